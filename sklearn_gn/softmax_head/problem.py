"""The problem that a fit of FGNSoftmaxHead solves, and the attributes of its answer.

In the order of a fit: the distinct rows of the data, dense or sparse; the same for an
algorithm, with its options; and when it has run, what is known of the head.
"""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from sklearn_gn._caller import warn_user
from sklearn_gn.arrays import backend, libraries
from sklearn_gn.bayes.laplace import Deferred
from sklearn_gn.data.rows import canonical_rows, check_fits
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.runtime.fingerprint import digest
from sklearn_gn.softmax_head import newton, penalty, whitening
from sklearn_gn.softmax_head.fgn import LARGEST_GRAM, row_spectrum
from sklearn_gn.softmax_head.head import (
    AffineHead,
    BatchedRows,
    HeadOptions,
    batched_rows,
    evaluate,
    head_report,
    in_precision,
    logits_of,
    on_devices,
)
from sklearn_gn.softmax_head.sparse_rows import Combinations, SparseRows
from sklearn_gn.softmax_head.whitening import Coordinates, Units
from sklearn_gn.solvers import FGN, FGNNewton

# Damping and rank of each solver where the parameters are None.
_WHERE_NONE = {"fgn_newton": (0.0, 100), "fgn": (1.0, 1), "sgn": (1.0, 5)}
BATCH_SIZE = 256  # likewise, and the rows whose spectrum is told
_ALPHA = 1e-3  # of mini-batches, which cannot choose it
_DENSE_BYTES = 2**32  # a sparse X larger than this stays sparse or is refused
_DENSE_NUMBERS = 2**22  # a sparse X no larger than this is made dense
_DENSE_SHARE = 0.1  # nor is one with more than this share of entries kept sparse


# --- the rows ------------------------------------------------------------------------


def check_memory(estimator, X, y, solver):
    """Raise a ValueError if a fit of X would not fit into memory."""
    shape = () if sparse.issparse(X) else getattr(X, "shape", ())
    if len(shape) != 2 or not hasattr(y, "__len__") or len(y) != shape[0]:
        return  # validation says what is wrong
    n, d = shape
    size, is_newton = np.dtype(estimator.dtype).itemsize, type(solver) is FGNNewton
    # Rows in their order; whitened ones; logits, and what a step makes of them.
    needed = n * d * (size + 4 * is_newton)
    if getattr(X, "dtype", None) != estimator.dtype:
        needed += n * d * size
    if is_newton and needed > 2**28:  # counting classes takes time
        needed += 16 * n * len(np.unique(np.asarray(y)))
    single = "" if size == 4 else "dtype='float32' halves that. "
    check_fits(
        needed,
        f"{single}solver='fgn' reads a memory-mapped X, a dask array, or the "
        "chunks of fit_chunks piece by piece.",
    )


def distinct_rows(X, code, weight, solver):
    """Features, numbers of the distinct rows, their weights of sum one, and the sum.

    Features that stay sparse have all rows.
    """
    total = float(weight.sum())
    if sparse.issparse(X):
        numbers = X.shape[0] * X.shape[1]
        large = numbers > _DENSE_NUMBERS and X.nnz <= _DENSE_SHARE * numbers
        if large and type(solver) is FGNNewton:
            kept = np.flatnonzero(weight > 0)
            weight = weight[kept] / weight.max()  # whose sum does not overflow
            return X, kept, weight / weight.sum(), total
        if 8 * numbers > _DENSE_BYTES:
            raise ValueError(
                f"X is sparse and would take {8 * numbers / 2**30:.1f} GiB as a dense "
                f"array; the limit is {_DENSE_BYTES / 2**30:.0f}. "
                "solver='fgn_newton' leaves it sparse if at most a tenth of its "
                "entries are stored. Or give it in chunks to fit_chunks, or reduce "
                "the features with TruncatedSVD."
            )
        X = X.toarray()
    kept, weight = canonical_rows(X, code[:, None].astype(np.float64), weight)
    if isinstance(solver, FGNNewton):
        order = sorted_rows(X[kept])
        kept, weight = kept[order], weight[order]
    return X, kept, weight, total


def sorted_rows(X):
    """Numbers of the rows by their features, whatever units these are in."""
    rank = np.zeros(len(X), int)
    for column in X.T:
        order = np.lexsort((column, rank))
        rises = (np.diff(rank[order]) > 0) | (np.diff(column[order]) > 0)
        rank[order] = np.append(0, np.cumsum(rises))
        if rises.all():
            break
    return np.argsort(rank, kind="stable")


class Task(NamedTuple):
    """What an algorithm gets, and the way from its heads to heads of the features."""

    algorithm: Algorithm
    rows: Any
    options: HeadOptions
    # Features, labels and weights whose spectrum is told; None where rows are in chunks
    few: Any
    coordinates: Coordinates | Combinations | None = None
    order: np.ndarray | None = None  # numbers of the rows in the order of the task
    classes: np.ndarray | None = None  # likewise

    def start(self, net, n_features, n_classes):
        """Return the head to start from: zeros, unless it is given."""
        m = n_classes if n_classes > 2 else 1
        weight, bias = net or (np.zeros((n_features, m)), np.zeros(m))
        kind, bias = self.options.alpha.dtype, bias * (self.options.intercept > 0)
        net = AffineHead(weight.astype(kind), bias.astype(kind))
        space = self.coordinates
        return net if space is None else space.begin(of_classes(net, self.classes))

    def coefficients(self, net):
        """Return the attributes of a head that predictions need."""
        if self.coordinates is not None:
            net = self.coordinates.head(net)
            if len(net.bias) > 1:  # a shift that all classes share means nothing
                net = net._replace(bias=net.bias - net.bias.mean())
            net = of_classes(net, np.argsort(self.classes))
        return {
            "coef_": np.ascontiguousarray(net.weight.T, np.float64),
            "intercept_": net.bias.astype(np.float64),
            "temperature_": 1.0,  # until rows that are left out say otherwise
        }


def batch_task(estimator, solver, X, label, kept, weight, rng):
    """The task of a mini-batch solver; ``kept`` are the numbers of the rows."""
    from sklearn_gn.softmax_head.minibatch import ALGORITHMS

    mesh = backend.mesh_of(estimator.device)
    if mesh is not None and solver.shuffle:
        raise ValueError(
            f"device={estimator.device!r}: batches of several devices are drawn once. "
            "Give shuffle=False."
        )
    given = X, label, kept, weight, solver.batch_size or BATCH_SIZE, rng
    rows, size = batched_rows(*given, estimator.dtype, 1 if mesh is None else mesh.size)
    options = options_of(estimator, solver, size, rng, mesh=mesh)
    few = [array[: min(size, int(rows.n_rows))] for array in rows[:3]]
    return Task(solver.algorithm(ALGORITHMS), rows, options, few)


def newton_task(estimator, solver, X, label, kept, weight, total):
    """The task of Newton's method, of the rows ``kept``, in its coordinates."""
    device, stays_sparse = estimator.device, sparse.issparse(X)
    kind, elsewhere = np.dtype(estimator.dtype), device not in (None, "cpu")
    mesh = backend.mesh_of(device) if elsewhere else None
    compiled = (elsewhere or libraries.jax_is_forced) and not stays_sparse
    if stays_sparse and elsewhere:
        message = (
            f"device={device!r}: sparse features that are not made dense are "
            "fitted on the CPU. Give device=None."
        )
        if mesh is not None:
            raise ValueError(message)
        warn_user(message)
    # 1. The rows. The problem has one answer, whatever their order.
    rng, n = np.random.RandomState(0), len(kept)
    order = rng.permutation(n)
    kept, weight = kept[order], weight[order]
    x = X[kept] if stays_sparse else np.take(X, kept, axis=0)
    total, label = float(total * weight.sum()), label[kept].astype(np.int32)
    weight = weight / weight.sum()
    few = x[:BATCH_SIZE].copy(), label[:BATCH_SIZE], weight[:BATCH_SIZE]
    # Classes in the order of their first rows: their names change no rounding error.
    first = np.full(len(estimator.classes_), n)
    np.minimum.at(first, label, np.arange(n))
    classes = np.argsort(first, kind="stable")
    label = np.argsort(classes).astype(np.int32)[label]
    # 2. Their units.
    auto, intercept = estimator.alpha == "auto", estimator.fit_intercept
    if stays_sparse:
        x = sparse.csr_array(x)
        center = intercept * (weight @ x)
        units = Units(center, np.ones_like(center), axis=0)
    else:
        units = Units.of(x, label, weight, intercept, auto)
    x = x if x.dtype == kind else in_precision(x, kind)
    rows = x, label, weight.astype(kind)
    length = n
    if compiled:  # for one of a few numbers of rows
        n_devices = 1 if mesh is None else mesh.size
        length = -(-backend.row_bucket(n) // n_devices) * n_devices
        rows = [backend.pad_rows(array, length) for array in rows]
    rows = BatchedRows(*rows, np.int32(n), np.int32(1))
    options = options_of(estimator, solver, length, rng, mesh=mesh, compiled=compiled)
    if auto:  # of the training part; every row counts as one at least
        n_effective = max(total, float(n))
        alpha = penalty.first_alpha(rows, options.intercept, n_effective)
        options = options._replace(alpha=alpha, n_effective=n_effective)
    # 3. The coordinates.
    algorithm = replace(newton.NEWTON, compiled=compiled)
    if stays_sparse and n >= min(whitening.ROTATED + 1, x.shape[1]):
        heads = Combinations(rows.x, rows.weight, options.intercept)
        space = SparseRows(heads, rows.label, rows.weight, options.intercept)
        data = newton.left_out(space, rows, options)
        return Task(algorithm, data, options, few, heads, order, classes)
    of_rows = rows if units.axis == 0 else None
    with backend.scope(kind, device) if compiled else nullcontext():
        data = newton.prepare(rows, options, units.axis)
    coordinates = Coordinates(units, data.space, of_rows, options.intercept)
    return Task(algorithm, data, options, few, coordinates, order, classes)


def options_of(estimator, solver, batch_size, rng, **where):
    """What an algorithm gets besides the rows."""
    cast = np.dtype(estimator.dtype).type
    damping, rank = _WHERE_NONE.get(solver.name, (0.0, 1))
    return HeadOptions(
        alpha=cast(_ALPHA if estimator.alpha == "auto" else estimator.alpha),
        damping=damping if estimator.damping is None else estimator.damping,
        rank=rank if estimator.rank is None else estimator.rank,
        intercept=cast(estimator.fit_intercept),
        tol=cast(estimator.tol),
        batch_size=batch_size,
        seed=np.int32(rng.randint(np.iinfo(np.int32).max)),
        solver=solver,
        **where,
    )


# --- heads ---------------------------------------------------------------------------


def rows_key(estimator, X, y, weight):
    """A digest of all that a fit depends on but the penalty.

    None where the rows do not serve the next fit: they are those of Newton's method,
    dense and in memory, for a penalty of which a power can be taken.
    """
    given = estimator.get_params() | {"alpha": None}
    dense = not sparse.issparse(X) and estimator.device in (None, "cpu")
    newton = type(estimator._solver_object()) is FGNNewton and dense
    if not newton or estimator.alpha in ("auto", 0) or estimator.early_stopping:
        return None
    return digest((given, X, y, weight))


def of_classes(net, order):
    """A head with its classes in another order."""
    if len(net.bias) == 1:  # of the second class
        return AffineHead(*(array * (1 - 2 * order[0]) for array in net))
    return AffineHead(*(array[..., order] for array in net))


def previous_head(estimator):
    """The fitted head, to continue from; None if there is none."""
    if not hasattr(estimator, "coef_"):
        return None
    known, given = estimator.coef_.shape[1], estimator.n_features_in_
    if known != given:
        raise ValueError(
            f"warm_start=True continues from {known} features, X has {given}."
        )
    return AffineHead(estimator.coef_.T, estimator.intercept_)


# --- what is known of a fitted head --------------------------------------------------


def results_of(estimator, run, task):
    """The fitted attributes after a run, and after the search for a penalty."""
    net, options = run.best_net, task.options
    state, log = run.final_state, run.log
    if options.n_effective is None:  # the log may be in single precision
        logged = None if getattr(state, "lost", 0) else run.best_row
        return fitted_attributes(estimator, net, task, options.alpha, logged)
    alpha = state.alpha
    if state.path:  # of the best head until there is one at the chosen penalty
        judged = penalty.log_posteriors(state.path)
        if state.criterion >= -max(judged):
            alpha = state.path[int(np.argmax(judged))][0]
    if log and run.monitor != "loss":  # an earlier head may have been the best
        alpha = min(log, key=lambda row: row["val_loss"])["alpha"]
    # The step to the last head, if it is the best, has evaluated it.
    is_last = getattr(state, "lost", 1) == 0 and state.slope > -np.inf
    is_last = is_last and run.progress.best.value == state.criterion
    found = fitted_attributes(estimator, net, task, alpha, log[-1] if is_last else None)
    alphas, values, factors = np.array(sorted(state.path)).reshape(-1, 3).T
    log_factor = 0.0
    if len(alphas):  # between those of the path; rounding errors do not choose
        log_factor = np.interp(np.log(alpha), np.log(alphas), np.log(factors))
    return found | {
        "temperature_": float(np.exp(-np.round(log_factor, 2))),
        "alpha_method_": "left-out",
        "alpha_path_": {
            "alpha": alphas,
            "left_out": -values / task.rows.n_judged,
            "temperature": 1 / factors,
        },
    }


def fitted_attributes(estimator, net, task, alpha, logged=None):
    """The fitted attributes of a head; ``logged`` is its row of the log, if known."""
    options, few = task.options, task.few
    found = task.coefficients(net) | {"alpha_": float(alpha), "alpha_method_": "fixed"}
    if logged is None or few is None:
        scope = backend.scope(estimator.dtype, estimator.device)
        with scope if options.compiled else nullcontext():
            if few is None:  # in chunks
                from sklearn_gn.softmax_head.minibatch import evaluate_chunks

                logged, few = evaluate_chunks(net, task.rows, options)
            elif isinstance(task.rows, newton.NewtonData):
                net = newton.head_for(task.rows, net)
                logged = newton.objective(task.rows, net, alpha)
            else:
                rows = on_devices(task.rows, options)
                logged = evaluate(net, rows, alpha, options.intercept)
        logged = head_report(logged, None, alpha)
        logged = {"loss": logged.loss, **logged.extra}
    for name in ("loss", "competitor_dispersion"):
        found[f"{name}_"] = logged[name]
    n_competitors = 0
    if isinstance(options.solver, FGN):
        n_classes = len(estimator.classes_)
        n_competitors = min(options.rank - 1, max(n_classes - 2, 0))
    most = max(1, LARGEST_GRAM // (1 + n_competitors))
    x, label, weight = (array[: min(most, options.batch_size)] for array in few)
    given = x if sparse.issparse(x) else np.array(x), np.array(label), np.array(weight)
    of_head = found["coef_"], found["intercept_"], float(options.intercept)
    found["_spectrum"] = Deferred(spectrum_of, *given, *of_head, n_competitors)
    return found


def spectrum_of(x, label, weight, coef, bias, intercept, n_competitors):
    """Return the eigenvalues of the Gauss-Newton matrix of some rows, descending."""
    logits, gram = logits_of(x, coef, bias), x @ x.T
    gram = (gram.toarray() if sparse.issparse(x) else gram) + intercept
    with backend.one_blas_thread():
        return np.maximum(row_spectrum(logits, gram, label, weight, n_competitors), 0)
