"""The problem that a fit of FGNSoftmaxHead solves, and the attributes of its answer.

In the order of a fit: the distinct rows of the data, dense or sparse; the same in
batches, with the options of an algorithm; the algorithm; and when it has run, what is
known of the head. The estimator is an argument of most functions, for its parameters.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from sklearn_gn._caller import warn_user
from sklearn_gn.arrays import backend, libraries
from sklearn_gn.base import cross_entropy
from sklearn_gn.data.rows import canonical_rows, check_fits, row_codes
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.softmax_head import newton, penalty
from sklearn_gn.softmax_head.fgn import LARGEST_GRAM, n_competitors_of, row_spectrum
from sklearn_gn.softmax_head.head import (
    AffineHead,
    BatchedRows,
    HeadOptions,
    batched_rows,
    first_rows,
    head_report,
    in_basis,
    in_precision,
    logits_of,
    objective,
    on_devices,
)
from sklearn_gn.softmax_head.sparse_newton import SPARSE_NEWTON, evaluated
from sklearn_gn.softmax_head.sparse_rows import (
    RowSpace,
    expand,
    sparse_rows,
    with_start,
)
from sklearn_gn.softmax_head.whitening import Units, gram_of, has_few_rows
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
            # Divided by a power of two first, so that the sum does not overflow.
            weight = np.ldexp(weight[kept], -np.frexp(weight.max())[1])
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
    if isinstance(solver, FGNNewton):  # whatever the classes are called
        order = np.argsort(row_codes(X[kept], np.empty((len(kept), 0))), kind="stable")
        kept, weight = kept[order], weight[order]
    return X, kept, weight, total


class Task(NamedTuple):
    """What an algorithm gets, and what leads from its heads to those of the features.

    Without units, these are the same.
    """

    algorithm: Algorithm
    rows: Any
    options: HeadOptions
    few: BatchedRows | None  # whose spectrum is told; None where rows are in chunks
    units: Units | None = None
    few_rows: BatchedRows | None = None  # of which the heads are combinations

    def start(self, net, n_features, n_columns):
        """Return the head to start from: zeros, unless it is given."""
        options, kind = self.options, self.options.alpha.dtype
        if net is None:
            if self.units is not None:
                n_features = self.rows.whitened.single.shape[1]
            net = np.zeros((n_features, n_columns)), np.zeros(n_columns)
        elif self.units is not None:
            net = self.units.head(net)
            basis, dual = backend.views(self.rows.whitened[-2:])
            weight = net.weight
            if self.few_rows is not None:
                rows = self.few_rows
                weight = rows.x @ weight
                mean = options.intercept * (rows.weight @ weight)
                weight = dual[:, None] * (basis.T @ (weight - mean))
            net = in_basis(dual.T, weight), net.bias
        weight, bias = net
        bias = bias * (options.intercept > 0)
        return AffineHead(weight.astype(kind), bias.astype(kind))

    def coefficients(self, net):
        """Return the attributes of a head that predictions need."""
        if self.units is not None:
            basis = backend.views(self.rows.whitened.basis)
            weight = in_basis(basis, net.weight)
            if self.few_rows is not None:
                rows = self.few_rows
                mean = self.options.intercept * weight.sum(axis=0)
                weight = rows.x.T @ (weight - rows.weight[:, None] * mean)
            net = self.units.given_head(AffineHead(weight, net.bias))
        return {
            "coef_": np.ascontiguousarray(net.weight.T, np.float64),
            "intercept_": net.bias.astype(np.float64),
            "temperature_": 1.0,  # until rows that are left out say otherwise
        }


class SparseTask:
    """The same of many sparse rows, whose heads are combinations of the rows."""

    units = few_rows = None

    def __init__(self, rows, options, few):
        self.algorithm, self.options, self.few = SPARSE_NEWTON, options, few
        self.rows = rows

    def start(self, net, n_features, n_columns):
        """Return the head to start from: zeros, unless it is given."""
        weight, bias = net or (np.zeros((n_features, n_columns)), np.zeros(n_columns))
        bias = bias * (self.options.intercept > 0)
        kind = self.options.alpha.dtype
        head = AffineHead(weight.astype(kind), bias.astype(kind))
        self.rows, net = with_start(self.rows, head)
        return net

    def coefficients(self, net):
        """Return the attributes of a head that predictions need."""
        net = expand(net, self.rows)
        return {
            "coef_": net.weight.T,
            "intercept_": net.bias.astype(np.float64),
            "temperature_": 1.0,  # until rows that are left out say otherwise
        }


def task_of(estimator, solver, X, label, kept, weight, total, rng):
    """The task of a fit: rows in batches, or, for Newton's method, in its coordinates.

    ``kept`` are the numbers of the rows to take, ``weight`` their weights, and
    ``total`` is the sum of the weights of all rows.
    """
    mesh = backend.mesh_of(estimator.device)
    on_host = estimator.device in (None, "cpu") and not libraries.jax_is_forced
    n_devices = 1 if mesh is None else mesh.size
    _check_device_is_possible(estimator.device, mesh, solver, X)
    given = X, label, kept, weight
    if not isinstance(solver, FGNNewton):
        from sklearn_gn.softmax_head.minibatch import ALGORITHMS

        size = solver.batch_size or BATCH_SIZE
        rows, size = batched_rows(*given, size, rng, estimator.dtype, n_devices)
        options = options_of(estimator, solver, size, rng)
        return Task(solver.algorithm(ALGORITHMS), rows, options, first_rows(rows, size))
    # The problem has one answer, whatever the order of the rows.
    rng, stays_sparse = np.random.RandomState(0), sparse.issparse(X)
    by_numpy = on_host or stays_sparse
    rows, size = batched_rows(*given, np.inf, rng, X.dtype, n_devices, not by_numpy)
    options = options_of(estimator, solver, size, rng)
    options = options._replace(compiled=not by_numpy)
    few = first_rows(rows, BATCH_SIZE)
    few = few._replace(x=few.x.copy())
    n, auto = int(rows.n_rows), estimator.alpha == "auto"
    # Of the training part; every row counts as one at least.
    n_effective = max(float(total * weight.sum()), float(len(kept)))
    x, kind = rows.x, np.dtype(estimator.dtype)
    if stays_sparse:
        x = sparse.csr_array(x)
    else:
        units = Units.of(x[:n], rows.weight[:n], estimator.fit_intercept, auto)
    rows = rows._replace(x=in_precision(x, kind), weight=rows.weight.astype(kind))
    if stays_sparse and not has_few_rows(x):
        if auto:
            part, share = penalty.part_of(rows)
            found = options._replace(n_effective=n_effective * share)
            with scope_of(estimator, options):
                alpha, factor = newton.searched_penalty(part, found)
            options = newton.at_penalty(options, alpha * share)._replace(factor=factor)
        weight = rows.weight / rows.weight.sum()
        kinds = n_columns(estimator), estimator.fit_intercept, kind
        data = sparse_rows(x, rows.label, weight, *kinds)
        return SparseTask(data, options, few)
    if stays_sparse:
        center = options.intercept * (rows.weight @ rows.x)
        units = Units(len(center), slice(None), center, np.ones_like(center), True)
    few_rows = rows if gram_of(x, units.alike) == "rows" else None
    if auto:
        options = options._replace(n_effective=n_effective)
    with scope_of(estimator, options):
        data = newton.prepare(rows, options, units.alike)
    algorithm = replace(newton.NEWTON, compiled=not by_numpy)
    return Task(algorithm, data, options, few, units, few_rows)


def fold_masks(label, n_folds):
    """Masks of the rows of each fold; "loo" has a fold for each row."""
    count = len(label) if n_folds == "loo" else n_folds
    fold = penalty.folds_of(label, count, len(label))
    return fold[None, :] == np.arange(fold.max() + 1)[:, None]


def _check_device_is_possible(device, mesh, solver, X):
    """Warn, or raise a ValueError, if the fit cannot use the device or the devices."""
    if sparse.issparse(X) and device not in (None, "cpu"):
        message = (
            f"device={device!r}: sparse features that are not made dense are "
            "fitted on the CPU. Give device=None."
        )
        if mesh is not None:
            raise ValueError(message)
        warn_user(message)
    if mesh is not None and getattr(solver, "shuffle", False):
        raise ValueError(
            f"device={device!r}: batches of several devices are drawn once. "
            "Give shuffle=False."
        )


def options_of(estimator, solver, batch_size, rng):
    """What an algorithm gets besides the rows."""
    cast = estimator._cast
    damping, rank = _WHERE_NONE.get(solver.name, (0.0, 1))
    return HeadOptions(
        alpha=cast(_ALPHA if estimator.alpha == "auto" else estimator.alpha)[()],
        damping=damping if estimator.damping is None else estimator.damping,
        rank=rank if estimator.rank is None else estimator.rank,
        intercept=cast(estimator.fit_intercept),
        tol=cast(estimator.tol),
        batch_size=batch_size,
        seed=np.int32(rng.randint(np.iinfo(np.int32).max)),
        solver=solver,
        mesh=backend.mesh_of(estimator.device),
    )


def scope_of(estimator, options):
    """The context of what is computed besides the run of a solver."""
    if not options.compiled:
        return backend.one_blas_thread()
    return backend.scope(estimator.dtype, estimator.device)


# --- heads ---------------------------------------------------------------------------


def n_columns(estimator):
    """Columns of the head: one for two classes, else one a class."""
    return 1 if len(estimator.classes_) == 2 else len(estimator.classes_)


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


def validation_loss(validation, task):
    """The function from a head to its loss on the validation data, if there are any."""
    if validation is None:
        return None
    X, label, weight = validation

    def loss(net):
        found = task.coefficients(net)
        logits = logits_of(X, found["coef_"], found["intercept_"])
        return cross_entropy(logits, label, weight)

    return loss


# --- what is known of a fitted head --------------------------------------------------


def results_of(estimator, run, task):
    """The fitted attributes after a run, and those of the search for a penalty."""
    net, options = run.best_net, task.options
    if options.n_effective is None:
        return fitted_attributes(estimator, net, task, options.alpha, run.best_row)
    state, log = run.final_state, run.log
    alpha = newton.penalty_of_best(state)
    if log and run.monitor != "loss":  # an earlier head may have been the best
        alpha = min(log, key=lambda row: row["val_loss"])["alpha"]
    found = fitted_attributes(estimator, net, task, alpha)
    path = sorted(state.path)
    alphas, values, factors = np.array(path).reshape(-1, 3).T
    return found | {
        "temperature_": 1 / penalty.factor_at(alpha, path),
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
    found = task.coefficients(net)
    found |= {"alpha_": float(alpha), "alpha_method_": "fixed"}
    if options.factor is not None:  # of sparse features
        found |= {"alpha_method_": "left-out", "temperature_": 1 / options.factor}
    if logged is None or few is None:
        with scope_of(estimator, options):
            if few is None:  # in chunks
                from sklearn_gn.softmax_head.minibatch import evaluate_chunks

                logged, few = evaluate_chunks(net, task.rows, options)
            elif isinstance(task, SparseTask):
                logged = evaluated(RowSpace(task.rows), net, options).evaluation
            elif task.units is not None:
                logged = newton.objective(task.rows, net, alpha)
            else:
                logged = objective(net, on_devices(task.rows, options), options)
        logged = head_report(logged, None, options)
        logged = {"loss": logged.loss, **logged.extra}
    for name in ("loss", "competitor_dispersion", "retained_trace", "dropped_trace"):
        found[f"{name}_"] = logged[name]
    n_competitors = 0
    if isinstance(options.solver, FGN):
        n_competitors = n_competitors_of(options.rank, len(estimator.classes_))
    most = max(1, LARGEST_GRAM // (1 + n_competitors))
    few = first_rows(few, min(most, options.batch_size))
    n_rows = int(min(len(few.weight), few.n_rows))
    found["_spectrum"] = {
        "x": few.x if sparse.issparse(few.x) else np.array(few.x),
        "label": np.array(few.label),
        "weight": np.array(few.weight),
        "intercept": float(options.intercept),
        "n_competitors": n_competitors,
        "size": n_rows * (1 + n_competitors),
    }
    return found


def computed_spectrum(head, x, label, weight, intercept, n_competitors, size):
    """The eigenvalues of the matrix of some rows, descending."""
    logits, gram = logits_of(x, head.coef_, head.intercept_), x @ x.T
    gram = (gram.toarray() if sparse.issparse(gram) else gram) + intercept
    with backend.one_blas_thread():
        spectrum = row_spectrum(logits, gram, label, weight, n_competitors)
    return np.maximum(spectrum[:size], 0)
