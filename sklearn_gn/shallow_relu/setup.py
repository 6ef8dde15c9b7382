"""What a fit of ShallowReLURegressor is given: scaled rows, starts, options."""

from functools import partial
from typing import NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from sklearn_gn import _switches as switches
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.extremes import MOST_ROWS
from sklearn_gn.bayes.device_rows import rows_for, warn_of_cpu
from sklearn_gn.bayes.evidence import named_penalties
from sklearn_gn.bayes.evidence_gn import EvidenceOptions
from sklearn_gn.bayes.line_ends import SHORT_END, has_short_end, long_ends
from sklearn_gn.data.rows import canonical_rows, shares, total_weight, validation_split
from sklearn_gn.optim.solver import Rows, RowsToDivide
from sklearn_gn.shallow_relu.evidence_gn import (
    EVIDENCE_GN,
    ROBUST_GN,
    RegularisedNetwork,
    shape_of,
)
from sklearn_gn.shallow_relu.one_feature import SEGMENTED, SegmentedSizes
from sklearn_gn.shallow_relu.options import FitOptions, fit_options, solver_setting
from sklearn_gn.shallow_relu.scaling import Scaling, unit_sum
from sklearn_gn.shallow_relu.size_selection import deviance_shift, select_size
from sklearn_gn.shallow_relu.sorted_rows import LEFT, RIGHT
from sklearn_gn.shallow_relu.starts import (
    first_hyperplanes,
    given_hyperplanes,
    initial_network,
    random_hyperplanes,
    stack_networks,
)
from sklearn_gn.solvers import JointGN

_N_NEURONS = 20  # of a network whose size the evidence chooses, at first
_HIDDEN_WEIGHTS = 500  # of it at most: fewer neurons where there are many features
_FEW_NEURONS = 10  # from which on it has half as many parameters as rows, or ...
_FEW_PARAMETERS = 100  # ... so many, where that is more
_LEAST_RISE = 1e-3  # of the log evidence per row, in an iteration that is progress
_SLOTS = 32  # of which compiled networks of one feature have a multiple
_STARTS = ((5, 100), (3, 300))  # that the evidence chooses from, up to hidden weights


class Problem(NamedTuple):
    """What a solver is given, and what leads back to the user's units."""

    solver: object
    segmented: bool  # whether it is the engine of one feature, which sorts the rows
    rows: Rows
    options: FitOptions | EvidenceOptions
    starts: list
    scaling: Scaling
    validation: tuple | None
    n_effective: float  # sum of the sample weights
    n_observations: float  # the same, but every row counts as one at least
    n_rounds: int  # of the global search
    selection_path: dict | None  # sizes that were compared


def problem_of(estimator, solver_object, X, y, weight, validation):
    """Return what a solver is given, in its units.

    Parameters
    ----------
    estimator : ShallowReLURegressor
        Its constructor parameters are read, and under ``warm_start`` its network.
    solver_object : Solver
    X, y, weight : ndarrays
        Validated data.
    validation : tuple or None
        Validation data as given.
    """
    backend.mesh_of(estimator.device)  # a device that there is not is an error
    solver, segmented = _algorithm(estimator, solver_object, X.shape[1])
    n_effective = total_weight(weight)
    # Weights of a quadrature rule are no counts: each row counts as one at least.
    n_observations = max(n_effective, np.count_nonzero(weight))
    rng = check_random_state(estimator.random_state)
    y = y.reshape(len(y), -1).astype(np.float64)
    if segmented and not estimator.early_stopping:
        kept = slice(None) if weight.min() > 0 else weight > 0
        # It sorts and merges the rows itself.
        X, y, weight = X[kept], y[kept], unit_sum(weight[kept])
    else:
        kept, weight = canonical_rows(X, y, weight)
        X, y = X[kept], y[kept]
        n_observations = max(n_effective, len(kept))  # equal rows are one
    if estimator.early_stopping and validation is None:
        fraction = estimator.validation_fraction
        X, y, weight, validation, share = _split(X, y, weight, fraction, rng)
        n_effective *= share
        n_observations = max(n_effective, len(X))
    by_evidence = solver in (EVIDENCE_GN, ROBUST_GN)
    units = Scaling.robust if by_evidence else Scaling.of
    scaling = units(X, y, weight)
    rows = Rows(scaling.x(X), scaling.y(y), weight)
    problem = Problem(
        solver=solver,
        segmented=segmented,
        rows=rows,
        options=None,
        starts=[],
        scaling=scaling,
        validation=validation,
        n_effective=n_effective,
        n_observations=n_observations,
        n_rounds=0,
        selection_path=None,
    )
    if by_evidence:
        return _by_evidence(estimator, problem, rng)
    if segmented:
        warn_of_cpu(estimator.device, "one feature")
    return _by_search(estimator, solver_object, problem, rng)


def _algorithm(estimator, solver_object, n_features):
    """The algorithm, and whether it is the joint step's own engine of one feature."""
    given = isinstance(estimator.alpha, dict)
    if estimator.loss == "huber":
        chosen = given or estimator.alpha == "auto"
        if not chosen or type(solver_object) is not JointGN:
            raise ValueError(
                "loss='huber' needs alpha='auto', or alpha_ of a fitted model, and "
                f"solver='vpgn'; got alpha={estimator.alpha!r} and "
                f"solver={estimator.solver!r}."
            )
        return ROBUST_GN, False
    by_evidence = given or (n_features > 1 and estimator.alpha == "auto")
    if by_evidence and type(solver_object) is JointGN:
        return EVIDENCE_GN, False  # which does without JAX
    segmented = n_features == 1 and not given and estimator.alpha in (0, "auto")
    segmented &= estimator.damping is None and estimator.rank is None
    segmented &= estimator.dtype == "float64"
    if segmented and type(solver_object) is JointGN:
        return SEGMENTED, True  # so does this
    from sklearn_gn.shallow_relu.algorithms import ALGORITHMS

    solver = solver_object.algorithm(ALGORITHMS)
    if solver is not ALGORITHMS["vpgn"]:
        if given:
            raise ValueError(
                "A dict as alpha needs the solver 'vpgn', got "
                f"solver={estimator.solver!r}."
            )
        return solver, False
    if segmented:
        return SEGMENTED, True
    return EVIDENCE_GN if by_evidence else solver, False


def _split(X, y, weight, fraction, rng):
    """Set a random part of the distinct rows aside; and the weight of the rest."""
    train, val = validation_split(len(X), fraction, rng)
    train, val = np.sort(train), np.sort(val)
    weight_val, weight_train = shares(weight[val]), shares(weight[train])
    share = float(weight[train].sum())
    return X[train], y[train], weight_train, (X[val], y[val], weight_val), share


def _previous_network(estimator):
    warm = estimator.warm_start and hasattr(estimator, "_network")
    # A linear model, which the evidence may prefer, has no neurons to go on with.
    return estimator._network[0] if warm and len(estimator.hyperplanes_) else None


def _given_hyperplanes(estimator, n, scaling):
    """Those of the previous fit or of ``init``, in scaled units; None without."""
    previous = None
    if _previous_network(estimator) is not None:
        previous = estimator.hyperplanes_
    return given_hyperplanes(estimator.init, previous, n, scaling)


# --- penalties by the evidence -------------------------------------------------------


def _by_evidence(estimator, problem, rng):
    rows, scaling = problem.rows, problem.scaling
    # Drawn first, so that the first of several starts is that of one.
    seed = int(rng.randint(np.iinfo(np.int32).max))
    n = None if estimator.n_neurons == "auto" else estimator.n_neurons
    given = _given_hyperplanes(estimator, n, scaling)
    if n is None:
        # A former network may have lost neurons, which come back.
        n = _default_size(problem.n_observations, rows.x.shape[1])
        n = n if given is None else max(n, len(given))
    draw = partial(random_hyperplanes, rows.x, np.cumsum(rows.weight), rng=rng)
    first = first_hyperplanes(estimator.init, given, n, rows.x, draw)
    n_init = estimator.n_init
    if n_init == "auto":
        n_init = 1 if given is not None else _default_starts(n * rows.x.shape[1])
    others = [draw(n) for _ in range(1, n_init)]
    n_targets = rows.y.shape[1]
    starts = [initial_network(h, 0, n_targets, np.float64) for h in (first, *others)]
    shape = shape_of(len(first), rows.x.shape[1], n_targets)
    rows = rows_for(estimator.device, rows, shape)
    previous, shape = _previous_network(estimator), (n, n_targets)
    if isinstance(previous, RegularisedNetwork) and previous.coef.shape == shape:
        # Its parameters are in the units of its fit.
        if scaling.same_as(estimator._network[1]):
            starts[0] = previous
    damping, tol = estimator.damping, float(estimator.tol)
    alpha = _given_penalties(estimator, rows.x.shape[1])
    options = EvidenceOptions(
        n_effective=min(float(problem.n_observations), MOST_ROWS),
        damping=None if damping is None else float(damping),
        rank=estimator.rank,
        tol=max(tol, _LEAST_RISE) if alpha is None else tol,
        seed=seed,
        alpha=alpha,
    )
    return problem._replace(rows=rows, starts=[tuple(starts)], options=options)


def _default_size(n_rows, n_features):
    """Number of neurons of a network whose size the evidence chooses."""
    most = min(_N_NEURONS, max(2, _HIDDEN_WEIGHTS // n_features))
    n_parameters = max(_FEW_PARAMETERS, n_rows / 2)
    return min(most, max(_FEW_NEURONS, int(n_parameters / (2 + n_features))))


def _default_starts(n_hidden_weights):
    """Number of starts: matrices of many weights cost much."""
    return next((n for n, most in _STARTS if n_hidden_weights <= most), 1)


def _given_penalties(estimator, n_features):
    if not isinstance(estimator.alpha, dict):
        return None
    lengths = {"slope": None, "coef": None, "bias": None, "weights": n_features}
    return named_penalties(estimator.alpha, lengths)


# --- given penalties, with a global search -------------------------------------------


def _by_search(estimator, solver_object, problem, rng):
    solver, scaling = problem.solver, problem.scaling
    z, cumulated = problem.rows.x, np.cumsum(problem.rows.weight)
    rows = problem.rows
    if not problem.segmented:  # it pads them itself
        rows = _padded(rows, estimator, solver)
    path, ends, first, n = None, None, None, estimator.n_neurons
    if n == "auto":
        first = _given_hyperplanes(estimator, None, scaling)
        first, path, ends = _select_size(
            estimator, solver_object, problem._replace(rows=rows), first, rng
        )
        n = len(first)
    relocations = solver_setting(solver_object, "relocations")
    n_spare = solver.n_spare if relocations else 0
    if _by_joint_steps(solver_object, rows) and not problem.segmented:
        # Most sizes share their programs, also with the choice of the size.
        n_spare += -(n + n_spare) % _SLOTS
    draw = partial(random_hyperplanes, z, cumulated, rng=rng)
    if first is None:
        given = _given_hyperplanes(estimator, n, scaling)
        first = first_hyperplanes(estimator.init, given, n, z, draw)
    n_init = 1 if estimator.n_init == "auto" else estimator.n_init
    others = [draw(n) for _ in range(1, n_init)]
    kind = n_spare, rows.y.shape[1], estimator.dtype
    starts = [initial_network(hyperplanes, *kind) for hyperplanes in (first, *others)]
    if solver.side_by_side:
        starts = [stack_networks(starts)]
    options = fit_options(estimator, solver_object, rng)._replace(ends=ends)
    return problem._replace(
        rows=rows,
        starts=starts,
        options=options,
        n_rounds=int(options.relocations),
        selection_path=path,
    )


def _padded(rows, estimator, solver):
    """The rows as the compiled solvers take them, with the devices to divide them."""
    dtype, size = estimator.dtype, backend.row_bucket(len(rows.x))
    with np.errstate(over="ignore"):
        padded = (np.asarray(backend.pad_rows(a, size), dtype) for a in rows)
        rows = RowsToDivide(*padded)
    if not np.isfinite(rows.x).all():
        raise ValueError(
            f"Some numbers in X, in units of their spread, are too large for "
            f"dtype={dtype!r}. Remove these rows, or set dtype='float64'."
        )
    rows.mesh = backend.mesh_of(estimator.device)
    if rows.mesh is not None and solver.name not in ("sggn", "vpgn"):
        raise ValueError(
            f"device={estimator.device!r}: solver={estimator.solver!r} computes on one "
            "device. Give one, or solver='vpgn' or 'sggn'."
        )
    return rows


def _by_joint_steps(solver_object, rows):
    """Whether one feature is fitted by joint steps, on one device."""
    one_device = getattr(rows, "mesh", None) is None
    return type(solver_object) is JointGN and rows.x.shape[1] == 1 and one_device


def _select_size(estimator, solver_object, problem, first, rng):
    """Hyperplanes of the best size by ``criterion``, the path to it, and the ends.

    With one feature, breakpoints inside the data stay between the ends unless they are
    None: a first or last segment of a few rows may follow their noise, and has to lower
    the loss to a third.
    """
    if problem.segmented:
        kind, scope = SegmentedSizes, backend.one_blas_thread
    else:
        from sklearn_gn.shallow_relu.dense import DenseSizes as kind

        scope = backend.scope(estimator.dtype, estimator.device)
    rows = problem.rows
    mean_square = float(rows.weight @ np.sum(rows.y**2, axis=1))
    n_numbers = problem.n_observations * rows.y.shape[1]
    options = fit_options(estimator, solver_object, rng)

    def best_size(sizes):
        return select_size(sizes, estimator.criterion, n_numbers, mean_square / 2)

    with scope:
        sizes, ends = kind(rows, options, first), None
        hyperplanes, path = best_size(sizes)
        n_rows = problem.n_observations
        if problem.segmented and (held := _ends_to_hold(hyperplanes, sizes, n_rows)):
            sizes = kind(rows, options._replace(ends=held), first)
            others, other_path = best_size(sizes)
            if _loss(others, other_path) < SHORT_END * _loss(hyperplanes, path):
                hyperplanes, path, ends = others, other_path, held
    unit = 2 * np.mean(np.log(problem.scaling.y_scale))
    log_mean_square = np.log(2 / rows.y.shape[1]) + unit
    name = estimator.criterion
    path[name] = path[name] + deviance_shift(name, log_mean_square, n_numbers)
    path["loss"] = path["loss"] * problem.scaling.loss_scale
    return hyperplanes, path, ends


def _ends_to_hold(hyperplanes, sizes, n_rows):
    """Where no first or last segment is short; None if these leave none."""
    rows = sizes.data.rows
    ends = long_ends(rows.x, n_rows * rows.weight)
    knots = -hyperplanes[:, 0] / hyperplanes[:, 1]
    inside = knots[(knots > LEFT) & (knots < RIGHT)]
    short = has_short_end(inside, ends) and switches.on("segmented.short_ends")
    return ends if short else None


def _loss(hyperplanes, path):
    return path["loss"][path["n_neurons"] == len(hyperplanes)][0]
