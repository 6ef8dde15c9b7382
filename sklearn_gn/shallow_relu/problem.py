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
from sklearn_gn.bayes import huber
from sklearn_gn.bayes.device_rows import warn_of_cpu
from sklearn_gn.bayes.evidence import given_penalties
from sklearn_gn.bayes.evidence_gn import EvidenceOptions
from sklearn_gn.bayes.layers import Layers, block_size, first_network
from sklearn_gn.data.rows import canonical_rows, shares, validation_split
from sklearn_gn.data.rows_source import BLOCK_ROWS, RowSource
from sklearn_gn.data.units import Units
from sklearn_gn.optim.solver import Continued, Rows, RowsToDivide
from sklearn_gn.segmented.problem import deviance_shift
from sklearn_gn.shallow_relu import lines
from sklearn_gn.shallow_relu.evidence_gn import (
    EVIDENCE_GN,
    ROBUST_GN,
    SAMPLE_FIRST,
    RegularisedNetwork,
)
from sklearn_gn.shallow_relu.lines import SEGMENTED, SizePath
from sklearn_gn.shallow_relu.network import hyperplanes_to_scaled, initial_networks
from sklearn_gn.solvers import JointGN

_N_NEURONS = 20  # of a network whose size the evidence chooses, at first
_HIDDEN_WEIGHTS = 500  # of it at most: fewer neurons where there are many features
_FEW_NEURONS = 10  # from which on it has half as many parameters as rows, or ...
_FEW_PARAMETERS = 100  # ... so many, where that is more
_LEAST_RISE = 1e-3  # of the log evidence per row, in an iteration that is progress
_EXACT = 1e-7  # noise, in units of the targets, that is a network's rounding errors
# Parameters that have their defaults in fits that the global search may follow.
_OF_SEARCH = "alpha n_neurons criterion device warm_start damping rank early_stopping"
# Of rows whose neighbours tell whether the targets are linear in pieces.
_LOOKED_AT = 200  # rows
_ROUNDING = 1e-10  # of the targets' size
_AGREE = 0.7  # share of these rows that lie on a plane of their neighbours
_ALONE = 0.02  # share of rows that do not, although the neighbours lie on one plane
_LOCAL = 0.25  # squared distance of neighbours, over the median of all rows
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
    selection_path: dict | None = None  # sizes that were compared


class FitOptions(NamedTuple):
    """Settings of a run with given penalties.

    Numbers are traced, so that other values compile nothing. ``damping=None`` selects a
    solver's own rule, which is compiled apart from a fixed shift.
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
    solver = algorithm_of(estimator, X.shape[1])
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
        kept, weight = canonical_rows(X[:, Units.varying(X, y, weight)], y, weight)
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
    problem = Problem(solver, rows, scaling, validation, n_effective, n_observations)
    if by_evidence:
        return _by_evidence(estimator, problem, rng)
    return _by_search(estimator, problem, rng, is_late)


def algorithm_of(estimator, n_features):
    """Return the algorithm that a fit of so many features takes."""
    solver, alpha = estimator._solver_object(), estimator.alpha
    joint, given = isinstance(solver, JointGN), isinstance(alpha, dict)
    if estimator.loss == "huber":
        if not (joint and (given or alpha == "auto")):
            raise ValueError(
                "loss='huber' needs alpha='auto', or alpha_ of a fitted model, and "
                f"solver='vpgn'; got alpha={alpha!r} and solver={estimator.solver!r}."
            )
        return ROBUST_GN
    plain = estimator.damping is None and estimator.rank is None
    plain &= not given and alpha in (0, "auto") and estimator.dtype == "float64"
    if joint and plain and n_features == 1:
        return SEGMENTED
    # All parameters have penalties, chosen by the evidence or given, in the model with
    # a linear term. One number is their penalty too, so that both take the same time,
    # unless the number of neurons is given: then it is the penalty of the output layer
    # alone, and neurons are looked for.
    of_auto = given or alpha == "auto" or (alpha > 0 and estimator.n_neurons == "auto")
    if joint and (given or (n_features > 1 and of_auto)):
        return EVIDENCE_GN
    if given:
        raise ValueError(
            f"A dict as alpha needs the solver 'vpgn', got solver={estimator.solver!r}."
        )
    from sklearn_gn.shallow_relu.dense import ALGORITHMS

    return solver.algorithm(ALGORITHMS)


# --- rows in chunks ------------------------------------------------------------------


def reason_against_chunks(estimator, n_features):
    """Return what needs all rows at once and what to do, or None."""
    solver = type(estimator._solver_object())
    if estimator.loss != "squared_error":
        return (
            f"loss={estimator.loss!r} ranks the residuals of all rows. Set "
            "loss='squared_error'."
        )
    if n_features == 1 and not isinstance(estimator.alpha, dict):
        return (
            "With one feature, the search for breakpoints sorts all rows. "
            "SegmentedRegressor.fit_chunks finds breakpoints of rows in chunks."
        )
    if solver is not JointGN:
        return f"solver={estimator.solver!r} keeps all rows. Set solver='vpgn'."
    if algorithm_of(estimator, n_features) is not EVIDENCE_GN:
        return (
            f"With alpha={estimator.alpha!r} and n_neurons={estimator.n_neurons!r}, "
            "the global search keeps all rows. Set alpha='auto'."
        )
    return None


def on_all_rows(problem, chunks, found):
    """Return the problem of all rows, from that of their sample."""
    share = found.sample.weight.sum() / found.total
    sample = problem.rows._replace(weight=share * problem.rows.weight)
    n_observations = max(found.total, found.n_rows)
    n_effective = min(float(n_observations), MOST_ROWS)
    return problem._replace(
        solver=SAMPLE_FIRST,
        rows=RowSource(chunks, problem.scaling, found, sample),
        options=problem.options._replace(n_effective=n_effective),
        starts=[*((start,) for start in problem.starts[0]), Continued()],
        n_effective=found.total,
        n_observations=n_observations,
    )


# --- hyperplanes to start from -------------------------------------------------------


def given_hyperplanes(estimator, n, scaling):
    """Return the hyperplanes that are given to start from, in scaled units, or None."""
    init, d = estimator.init, len(scaling.x_scale)
    warm = estimator.warm_start and hasattr(estimator, "_network")
    # A linear model, which the evidence may prefer, has no neurons to go on with.
    if warm and len(estimator.hyperplanes_):
        previous = estimator.hyperplanes_
        if previous.shape[1] != 1 + d:
            raise ValueError(
                f"warm_start=True continues from {previous.shape[1] - 1} features, X "
                f"has {d}."
            )
        return hyperplanes_to_scaled(scaling, previous)
    if isinstance(init, str):
        if n is None and init != "auto":
            raise ValueError(
                f"init={init!r} needs a number for n_neurons, got 'auto'. Give a "
                "number, or hyperplanes from which to start, or leave init='auto'."
            )
        return None
    hyperplanes = np.asarray(init, dtype=np.float64)
    rows = len(hyperplanes) if n is None else n
    if hyperplanes.shape != (rows, 1 + d) or rows == 0:
        raise ValueError(
            f"init has shape {hyperplanes.shape}, expected (n_neurons, 1 + "
            f"n_features) = ({'any' if n is None else n}, {1 + d})."
        )
    usable = np.isfinite(hyperplanes).all(axis=1)
    usable &= np.any(hyperplanes[:, 1:] != 0, axis=1)
    if not usable.all():
        raise ValueError(
            "init must hold finite rows (b, w) with w different from zero; row "
            f"{int(np.argmin(usable))} is not."
        )
    return hyperplanes_to_scaled(scaling, hyperplanes)


def hyperplanes_of_starts(init, given, n, n_init, rows, rng):
    """Return the hyperplanes of all starts: from ``init``, then random ones.

    Where some are given, these come first. Otherwise they are evenly spaced over the
    range of features in turn, or random: of any orientation, through rows drawn by
    their weights. The first spaced one lies at the lower end of its axis and carries
    the linear term.
    """
    z, d, starts = rows.x, rows.x.shape[1], []
    fixed = np.zeros((0, 1 + d)) if given is None else given[:n]
    if given is None and not (init == "random" or (init == "auto" and d > 1)):
        axes = {"horizontal": [d - 1], "vertical": [0]}.get(init, range(d))
        low, high = z.min(axis=0), z.max(axis=0)
        fixed = np.zeros((n, 1 + d))
        for k, axis in enumerate(axes):
            mine = np.arange(k, n, len(axes))
            share = np.arange(len(mine)) / max(len(mine), 1)
            fixed[mine, 1 + axis] = 1.0
            fixed[mine, 0] = -(low[axis] + (high[axis] - low[axis]) * share)
    mass, features = np.cumsum(rows.weight), list(Units.varying(*rows))
    for _ in range(n_init):
        normal = np.zeros((n - len(fixed), d))
        normal[:, features] = rng.standard_normal((len(normal), len(features)))
        normal /= np.linalg.norm(normal, axis=1, keepdims=True)
        row = np.searchsorted(mass, rng.random_sample(len(normal)), side="right")
        bias = -np.sum(normal * z[np.minimum(row, len(z) - 1)], axis=1)
        starts.append(np.concatenate([fixed, np.column_stack([bias, normal])]))
        fixed = fixed[:0]
    return starts


# --- penalties by the evidence -------------------------------------------------------


def _by_evidence(estimator, problem, rng):
    rows, scaling = problem.rows, problem.scaling
    n_features, n_targets = rows.x.shape[1], rows.y.shape[1]
    # Drawn first, so that the first of several starts is that of one.
    seed = int(rng.randint(np.iinfo(np.int32).max))
    n = None if estimator.n_neurons == "auto" else estimator.n_neurons
    given = given_hyperplanes(estimator, n, scaling)
    n_distinct = len(Units.varying(*rows))
    if n is None:
        most = min(_N_NEURONS, max(2, _HIDDEN_WEIGHTS // n_distinct))
        n_parameters = max(_FEW_PARAMETERS, problem.n_observations / 2)
        n = min(most, max(_FEW_NEURONS, int(n_parameters / (2 + n_distinct))))
        # A former network may have lost neurons, which come back.
        n = n if given is None else max(n, len(given))
    n_init = estimator.n_init
    if n_init == "auto":  # the evidence chooses among three
        n_init = 3 if given is None else 1
    planes = hyperplanes_of_starts(estimator.init, given, n, n_init, rows, rng)
    features = tuple(range(n_features))
    model = Layers((n_features, n), ("relu",), n_targets, "squared", features)
    n_effective = min(float(problem.n_observations), MOST_ROWS)
    robust = problem.solver is ROBUST_GN
    seen = rows._replace(y=huber.first_targets(rows)) if robust else rows
    starts = [
        first_network(model, seen, n_effective, np.random.RandomState(seed), own)
        for own in planes
    ]
    if estimator.warm_start and given is not None and hasattr(estimator, "_network"):
        previous, units = estimator._network
        # Its parameters are in the units of its fit.
        same = isinstance(previous, RegularisedNetwork) and scaling.same_as(units)
        if same and previous.coef.shape == (n, n_targets):
            starts[0] = previous.found
    damping, tol, alpha = estimator.damping, float(estimator.tol), None
    if estimator.alpha != "auto":
        lengths = {"slope": None, "coef": None, "bias": None, "weights": n_features}
        alpha = given_penalties(estimator.alpha, lengths)
    options = EvidenceOptions(
        n_effective=n_effective,
        damping=None if damping is None else float(damping),
        rank=estimator.rank,
        tol=tol if isinstance(estimator.alpha, dict) else max(tol, _LEAST_RISE),
        seed=seed,
        alpha=alpha,
        first_size=model.n_parameters if estimator.n_neurons == "auto" else None,
    )
    rows = model.rows_on(estimator.device, rows)
    return problem._replace(rows=rows, starts=[tuple(starts)], options=options)


def exact_problem_of(estimator, problem, is_late):
    """Return the problem without penalties of data without noise; None of others.

    A default fit by the evidence is given, which has left what looks like noise. If the
    data are linear in pieces, the global search looks for a network of any size, and
    its problem is returned if BIC, an estimate of the log evidence times -2, is lower.
    """
    default = type(estimator)()
    same = (getattr(estimator, n) == getattr(default, n) for n in _OF_SEARCH.split())
    if problem.solver is not EVIDENCE_GN or not all(same):
        return None
    noise = np.max(estimator.noise_std_ / problem.scaling.y_scale)
    out_of_time = is_late() or estimator.stop_reason_ == "max_time"
    if out_of_time or noise < _EXACT or not has_exact_pieces(problem.rows):
        return None
    from sklearn_gn.shallow_relu.dense import ALGORITHMS

    problem = problem._replace(solver=ALGORITHMS["vpgn"])
    rng = check_random_state(estimator.random_state)
    problem = _by_search(estimator, problem, rng, is_late)
    bic = np.min(problem.selection_path[estimator.criterion])
    return problem if bic < -2 * estimator.log_evidence_ else None


def has_exact_pieces(rows):
    """Whether most distinct rows lie on planes of their neighbours, and few beside one.

    The evidence takes for noise what penalties leave of a jump. The plane through as
    many neighbours as it has coefficients passes through the next one, which noise
    never does. A constant with exceptions, such as counts that are mostly zero or
    labels, has rows that none of their neighbours agrees with.
    """
    n, d = rows.x.shape
    if n < 4 * (d + 2):
        return False
    looked_at = np.linspace(0, n - 1, min(n, _LOOKED_AT)).astype(np.intp)
    square = np.sum(rows.x**2, axis=1)
    agree, alone, size = [], [], block_size(n)
    for start in range(0, len(looked_at), size):
        some = looked_at[start : start + size]
        distance = square - 2 * rows.x[some] @ rows.x.T
        distance[np.arange(len(some)), some] = np.inf
        near = np.argpartition(distance, d + 2, axis=1)[:, : d + 2]
        order = np.argsort(np.take_along_axis(distance, near, 1), axis=1)
        near = np.take_along_axis(near, order, 1)
        # In many dimensions the nearest rows are about as far as any.
        far = np.median(distance[:, :: -(-n // BLOCK_ROWS)], axis=1)
        local = np.take_along_axis(distance, near[:, -1:], 1)[:, 0] < _LOCAL * far
        on_plane = _on_plane(rows, some, near[:, :-1])
        agree.append(local & on_plane)
        alone.append(~on_plane & _on_plane(rows, near[:, -1], near[:, :-1]))
        if np.sum(~np.concatenate(agree)) >= (1 - _AGREE) * len(looked_at):
            return False
    return bool(np.mean(np.concatenate(alone)) <= _ALONE)


def _on_plane(rows, some, others):
    """Whether rows lie on the planes through others, of shape (len(some), 1 + d)."""
    x, y = rows.x[others], rows.y[others]
    ones = np.ones((*others.shape, 1))
    design = np.concatenate([ones, x - rows.x[some][:, None]], axis=2)
    plane = np.linalg.pinv(design, rcond=1e-9)  # its first row is the value at the row
    left = np.einsum("ij,ijk->ik", plane[:, 0], y) - rows.y[some]
    size = 1 + np.sum(np.abs(plane[:, 0]), axis=1)
    return np.max(np.abs(left), axis=1) < _ROUNDING * size


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
    n_init = 1 if estimator.n_init == "auto" else estimator.n_init
    planes = hyperplanes_of_starts(estimator.init, given, n, n_init, unpadded, rng)
    nets, options = np.stack(planes), fit_options(estimator, rng)
    if solver is not SEGMENTED:
        n_spare = solver.n_spare if options.relocations > 0 else 0
        nets = initial_networks(nets, n_spare, unpadded.y.shape[1], estimator.dtype)
    elif path is not None and rows.problems:
        options = options._replace(relocations=0)  # the choice has searched already
    return problem._replace(starts=[nets], options=options, selection_path=path)


def fit_options(estimator, rng):
    """Return the settings of a run; the seed of the search is drawn."""
    setting = partial(getattr, estimator._solver_object())
    cast = np.dtype(estimator.dtype).type
    return FitOptions(
        alpha=cast(0 if estimator.alpha == "auto" else estimator.alpha),
        damping=None if estimator.damping is None else cast(estimator.damping),
        rank=np.int32(min(estimator.rank or _LARGEST_INT, _LARGEST_INT)),
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
    options, n_targets = fit_options(estimator, rng), len(scaling.y_center)
    n_numbers = problem.n_observations * n_targets
    if problem.solver is SEGMENTED:
        path = SizePath(name, n_numbers, rows.size)
        with backend.one_blas_thread():
            lines.select_size(rows, first, path)
    else:
        from sklearn_gn.shallow_relu.dense import select_size

        mean_square = float(rows.weight @ np.sum(rows.y**2, axis=1))
        path = SizePath(name, n_numbers, mean_square / 2)
        with backend.scope(estimator.dtype, estimator.device):
            select_size(rows, options, first, path, is_late)
    hyperplanes, path = path.result()
    log_mean_square = np.log(2 / n_targets) + 2 * np.mean(np.log(scaling.y_scale))
    path[name] = path[name] + deviance_shift(name, log_mean_square, n_numbers)
    path["loss"] = path["loss"] * scaling.loss_scale
    return hyperplanes, path
