"""What a fit of ShallowReLURegressor is given: solver, scaled rows, starts, settings.

The evidence chooses the penalties of several features, or a search finds the network
under given ones; with one feature the search has an engine of its own. Where the number
of neurons is "auto" it is a fixed one for the evidence, whose penalties switch neurons
off, and the choice of an information criterion for the search.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.extremes import MOST_ROWS
from sklearn_gn.bayes.device_rows import rows_for, warn_of_cpu
from sklearn_gn.bayes.evidence import named_penalties
from sklearn_gn.bayes.evidence_gn import EvidenceOptions
from sklearn_gn.data.rows import canonical_rows, shares, validation_split
from sklearn_gn.data.units import Units
from sklearn_gn.optim.solver import Rows, RowsToDivide
from sklearn_gn.segmented.problem import deviance_shift
from sklearn_gn.shallow_relu import lines
from sklearn_gn.shallow_relu.evidence_gn import (
    EVIDENCE_GN,
    ROBUST_GN,
    RegularisedNetwork,
    shape_of,
)
from sklearn_gn.shallow_relu.exact_pieces import has_exact_pieces
from sklearn_gn.shallow_relu.lines import SEGMENTED
from sklearn_gn.shallow_relu.starts import (
    SizePath,
    given_hyperplanes,
    hyperplanes_of_starts,
    initial_network,
)
from sklearn_gn.solvers import JointGN

_N_NEURONS = 20  # of a network whose size the evidence chooses, at first
_HIDDEN_WEIGHTS = 500  # of it at most: fewer neurons where there are many features
_FEW_NEURONS = 10  # from which on it has half as many parameters as rows, or ...
_FEW_PARAMETERS = 100  # ... so many, where that is more
_LEAST_RISE = 1e-3  # of the log evidence per row, in an iteration that is progress
_STARTS = ((5, 100), (3, 300))  # that the evidence chooses from, up to hidden weights
_EXACT = 1e-7  # noise, in units of the targets, that is a network's rounding errors
# Parameters of fits that the global search may follow.
_OF_SEARCH = {
    "alpha": "auto",
    "n_neurons": "auto",
    "criterion": "bic",
    "device": None,
    "warm_start": False,
    "damping": None,
    "rank": None,
}
_LARGEST_INT = np.iinfo(np.int32).max


class Problem(NamedTuple):
    """What a solver is given, and what leads back to the user's units."""

    solver: Any
    rows: Any  # Rows, or the sorted ones of one feature
    scaling: Units
    validation: tuple | None
    n_effective: float  # sum of the sample weights
    n_observations: float  # the same, but every row counts as one at least
    options: Any = None  # FitOptions or EvidenceOptions
    starts: list = []
    n_rounds: int = 0  # of the global search
    selection_path: dict | None = None  # sizes that were compared


class FitOptions(NamedTuple):
    """Settings of a run with given penalties.

    Numbers are traced, so that other values compile nothing. ``damping=None`` selects
    a solver's own rule, which is another compiled function than that of a fixed shift.
    """

    alpha: float  # penalty of the output layer, part of the objective
    damping: float | None  # fixed shift of the Gauss-Newton matrix
    rank: int  # most directions kept in a solve
    rank_tol: float  # least relative singular value kept in a solve
    active_tol: float  # least relative |c_i| of an active neuron
    tol: float  # relative decrease of the loss that ends the descent
    relocations: int  # rounds of the global search
    max_iter: int  # most iterations of the run
    learning_rate: float  # of first-order solvers
    seed: int  # of the random draws of the search


def problem_of(estimator, X, y, weight, validation, is_late=lambda: False):
    """Return the :class:`Problem` of validated data, with their validation data."""
    solver = _algorithm(estimator, X.shape[1])
    n_effective = float(weight.sum())
    rng = check_random_state(estimator.random_state)
    y = y.reshape(len(y), -1).astype(np.float64)
    if solver is SEGMENTED and not estimator.early_stopping:
        # Weights of a quadrature rule are no counts: each row counts as one at least.
        n_observations = max(n_effective, np.count_nonzero(weight))
        # It sorts and merges the rows itself.
        kept = slice(None) if weight.min() > 0 else weight > 0
        X, y, weight = X[kept], y[kept], weight[kept] / weight.max()
        weight = weight / weight.sum()
    else:
        kept, weight = canonical_rows(X, y, weight)
        X, y = X[kept], y[kept]
        n_observations = max(n_effective, len(kept))  # equal rows are one
    if estimator.early_stopping and validation is None:
        train, val = validation_split(len(X), estimator.validation_fraction, rng)
        train, val = np.sort(train), np.sort(val)
        validation = X[val], y[val], shares(weight[val])
        n_effective *= float(weight[train].sum())
        X, y, weight = X[train], y[train], shares(weight[train])
        n_observations = max(n_effective, len(X))
    by_evidence = solver in (EVIDENCE_GN, ROBUST_GN)
    scaling = Units.of(X, y, weight, each_target=by_evidence, limited=True, ranges=True)
    rows = Rows(scaling.x(X), scaling.y(y), weight)
    counts = n_effective, n_observations
    problem = Problem(solver, rows, scaling, validation, *counts)
    if by_evidence:
        return _by_evidence(estimator, problem, rng)
    return _by_search(estimator, problem, rng, is_late)


def _algorithm(estimator, n_features):
    """Return the algorithm that a fit of so many features takes."""
    solver_object = estimator._solver_object()
    joint = type(solver_object) is JointGN
    given = isinstance(estimator.alpha, dict)
    if estimator.loss == "huber":
        if not (joint and (given or estimator.alpha == "auto")):
            raise ValueError(
                "loss='huber' needs alpha='auto', or alpha_ of a fitted model, and "
                f"solver='vpgn'; got alpha={estimator.alpha!r} and "
                f"solver={estimator.solver!r}."
            )
        return ROBUST_GN
    by_evidence = has_all_penalties(estimator, n_features)
    segmented = n_features == 1 and not given and estimator.alpha in (0, "auto")
    segmented &= estimator.damping is None and estimator.rank is None
    segmented &= estimator.dtype == "float64"
    if joint and (by_evidence or segmented):  # these do without JAX
        return SEGMENTED if segmented else EVIDENCE_GN
    from sklearn_gn.shallow_relu.algorithms import ALGORITHMS

    solver = solver_object.algorithm(ALGORITHMS)
    if solver is ALGORITHMS["vpgn"]:
        if segmented:
            return SEGMENTED
        return EVIDENCE_GN if by_evidence else solver
    if given:
        raise ValueError(
            f"A dict as alpha needs the solver 'vpgn', got solver={estimator.solver!r}."
        )
    return solver


def has_all_penalties(estimator, n_features):
    """Whether all parameters have penalties, chosen by the evidence or given.

    That is the model with a linear term. With a number as the penalty it is the one of
    "auto", so that both take the same time, unless the number of neurons is given, too:
    then it is the penalty of the output layer alone, and neurons are looked for.
    """
    alpha = estimator.alpha
    if isinstance(alpha, dict):
        return True
    of_auto = alpha == "auto" or (alpha > 0 and estimator.n_neurons == "auto")
    return n_features > 1 and of_auto


# --- penalties by the evidence -------------------------------------------------------


def _by_evidence(estimator, problem, rng):
    rows, scaling = problem.rows, problem.scaling
    n_features, n_targets = rows.x.shape[1], rows.y.shape[1]
    # Drawn first, so that the first of several starts is that of one.
    seed = int(rng.randint(np.iinfo(np.int32).max))
    n = None if estimator.n_neurons == "auto" else estimator.n_neurons
    given = given_hyperplanes(estimator, n, scaling)
    if n is None:
        most = min(_N_NEURONS, max(2, _HIDDEN_WEIGHTS // n_features))
        n_parameters = max(_FEW_PARAMETERS, problem.n_observations / 2)
        n = min(most, max(_FEW_NEURONS, int(n_parameters / (2 + n_features))))
        # A former network may have lost neurons, which come back.
        n = n if given is None else max(n, len(given))
    n_init = estimator.n_init
    if n_init == "auto":  # matrices of many weights cost much
        n_init = 1
        for several, most in _STARTS:
            if given is None and n * n_features <= most:
                n_init = max(n_init, several)
    starts = hyperplanes_of_starts(estimator.init, given, n, n_init, rows, rng)
    if estimator.warm_start and given is not None and hasattr(estimator, "_network"):
        previous, units = estimator._network
        # Its parameters are in the units of its fit.
        same = isinstance(previous, RegularisedNetwork) and scaling.same_as(units)
        if same and previous.coef.shape == (n, n_targets):
            starts[0] = previous
    damping, tol, alpha = estimator.damping, float(estimator.tol), None
    if isinstance(estimator.alpha, dict):
        lengths = {"slope": None, "coef": None, "bias": None, "weights": n_features}
        alpha = named_penalties(estimator.alpha, lengths)
    elif estimator.alpha != "auto":
        alpha = np.full(3 + n_features, float(estimator.alpha))
    exact = isinstance(estimator.alpha, dict)
    rows = rows_for(estimator.device, rows, shape_of(n, n_features, n_targets))
    options = EvidenceOptions(
        n_effective=min(float(problem.n_observations), MOST_ROWS),
        damping=None if damping is None else float(damping),
        rank=estimator.rank,
        tol=tol if exact else max(tol, _LEAST_RISE),
        seed=seed,
        alpha=alpha,
    )
    return problem._replace(rows=rows, starts=[tuple(starts)], options=options)


def exact_problem_of(estimator, problem, is_late):
    """Return the problem without penalties of data without noise; None of others.

    A default fit by the evidence is given, which has left what looks like noise. If the
    data are linear in pieces, the global search looks for a network of any size, and
    its problem is returned if BIC, an estimate of the log evidence times -2, is lower.
    """
    default = estimator.get_params(deep=False)
    default = all(default[name] == value for name, value in _OF_SEARCH.items())
    if problem.solver is not EVIDENCE_GN or not default or estimator.early_stopping:
        return None
    noise = np.max(estimator.noise_std_ / problem.scaling.y_scale)
    if is_late() or noise < _EXACT or not has_exact_pieces(problem.rows):
        return None
    from sklearn_gn.shallow_relu.algorithms import ALGORITHMS

    problem = problem._replace(solver=ALGORITHMS["vpgn"])
    rng = check_random_state(estimator.random_state)
    problem = _by_search(estimator, problem, rng, is_late)
    bic = np.min(problem.selection_path[estimator.criterion])
    return problem if bic < -2 * estimator.log_evidence_ else None


# --- given penalties, with a global search -------------------------------------------


def _by_search(estimator, problem, rng, is_late):
    solver, unpadded, path = problem.solver, problem.rows, None
    if solver is SEGMENTED:
        warn_of_cpu(estimator.device, "one feature")
        rows = lines.prepare(unpadded)
        unpadded = Rows(rows.rows.x[:, None], *rows.rows[1:3])
    else:
        rows = _padded(unpadded, estimator, solver)
    problem = problem._replace(rows=rows)
    n = None if estimator.n_neurons == "auto" else estimator.n_neurons
    given = given_hyperplanes(estimator, n, problem.scaling)
    if n is None:
        given, path = _select_size(estimator, problem, given, rng, is_late)
        n = len(given)
    searches = getattr(estimator._solver_object(), "relocations", 0) > 0
    n_spare = solver.n_spare if searches else 0
    n_init = 1 if estimator.n_init == "auto" else estimator.n_init
    planes = hyperplanes_of_starts(estimator.init, given, n, n_init, unpadded, rng)
    starts = [np.stack(planes)] if solver.side_by_side else planes
    if solver is not SEGMENTED:
        kind = n_spare, unpadded.y.shape[1], estimator.dtype
        starts = [initial_network(hyperplanes, *kind) for hyperplanes in starts]
    options = fit_options(estimator, rng)
    if path is not None and solver is SEGMENTED and rows.problems:
        options = options._replace(relocations=0)  # the choice has searched already
    return problem._replace(
        starts=starts,
        options=options,
        n_rounds=int(options.relocations),
        selection_path=path,
    )


def fit_options(estimator, rng):
    """Return the settings of a run; the seed of the search is drawn."""
    setting = partial(getattr, estimator._solver_object())
    cast = np.dtype(estimator.dtype).type
    rank, damping = estimator.rank, estimator.damping
    return FitOptions(
        alpha=cast(0 if estimator.alpha == "auto" else estimator.alpha),
        damping=None if damping is None else cast(damping),
        rank=np.int32(_LARGEST_INT if rank is None else min(rank, _LARGEST_INT)),
        rank_tol=cast(max(setting("rank_tol", 1e-12), np.finfo(cast).eps)),
        active_tol=cast(setting("active_tol", 1e-10)),
        tol=cast(estimator.tol),
        relocations=np.int32(min(setting("relocations", 0), _LARGEST_INT)),
        max_iter=np.int32(min(estimator.max_iter, _LARGEST_INT)),
        learning_rate=cast(setting("learning_rate", 0.01)),
        seed=np.int32(rng.randint(_LARGEST_INT)),
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


def _select_size(estimator, problem, first, rng, is_late):
    """Return the hyperplanes of the best size by ``criterion``, and the path to it."""
    rows, scaling, name = problem.rows, problem.scaling, estimator.criterion
    options = fit_options(estimator, rng)
    if problem.solver is SEGMENTED:
        n_targets = rows.rows.y.shape[1]
        n_numbers = problem.n_observations * n_targets
        with backend.one_blas_thread():
            found = lines.select_size(rows, first, name, n_numbers, is_late)
    else:
        from sklearn_gn.shallow_relu.dense import select_size

        n_targets = rows.y.shape[1]
        n_numbers = problem.n_observations * n_targets
        mean_square = float(rows.weight @ np.sum(rows.y**2, axis=1))
        path = SizePath(name, n_numbers, mean_square / 2)
        with backend.scope(estimator.dtype, estimator.device):
            found = select_size(rows, options, first, path, is_late)
    hyperplanes, path = found
    log_mean_square = np.log(2 / n_targets) + 2 * np.mean(np.log(scaling.y_scale))
    path[name] = path[name] + deviance_shift(name, log_mean_square, n_numbers)
    path["loss"] = path["loss"] * scaling.loss_scale
    return hyperplanes, path
