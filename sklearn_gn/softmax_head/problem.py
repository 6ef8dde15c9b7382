"""The problem that a fit of FGNSoftmaxHead solves, and the attributes of its answer.

In the order of a fit: the distinct rows of the data, dense or sparse; the same in
batches, with the options of an algorithm; the algorithm; and when it has run, what is
known of the head. The estimator is an argument of most functions, for its parameters.
"""

import numpy as np
from scipy import sparse

from sklearn_gn._caller import warn_user
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.libraries import numpy_computes
from sklearn_gn.base import cross_entropy
from sklearn_gn.data.rows import canonical_rows, row_codes
from sklearn_gn.runtime.memory import check_fits
from sklearn_gn.softmax_head import newton, penalty
from sklearn_gn.softmax_head.coordinates import coordinates_of
from sklearn_gn.softmax_head.fgn import n_competitors_of, row_spectrum
from sklearn_gn.softmax_head.head import (
    AffineHead,
    Evaluation,
    HeadOptions,
    batched_rows,
    head_report,
    logits_of,
    objective,
    on_devices,
)
from sklearn_gn.softmax_head.sparse_newton import SPARSE_ALGORITHMS, evaluated
from sklearn_gn.softmax_head.sparse_rows import (
    RowSpace,
    RowVector,
    SparseRows,
    expand,
    sparse_rows,
    with_start,
)
from sklearn_gn.solvers import FGN, FGNNewton

BATCH_SIZE = 256  # where a solver does not say
_ALPHA = 1e-3  # of mini-batches, which cannot choose it
_LEAST_TOTAL = 1e-100  # of the weights: products with it neither under- nor overflow
_SPECTRUM_ROWS = 1024  # at most
_ROWS_OF_NEWTON = 128  # whose spectrum it tells, as many as in a batch of its start
_DENSE_BYTES = 2**32  # a sparse X larger than this stays sparse or is refused
_DENSE_NUMBERS = 2**22  # a sparse X no larger than this is made dense
_DENSE_SHARE = 0.1  # nor is one with more than this share of entries kept sparse
_ROOM = 1e12  # for the path of penalties, between its start and the ends of the range


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
    with np.errstate(over="ignore"):
        total = np.clip(weight.sum(), _LEAST_TOTAL, 1 / _LEAST_TOTAL)
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


def rows_and_options(estimator, solver, X, label, kept, weight, total, rng):
    """What an algorithm gets, rows in batches and options; and the rows' coordinates.

    None stands for the features as given.
    """
    size = getattr(solver, "batch_size", np.inf) or BATCH_SIZE
    is_newton, mesh = isinstance(solver, FGNNewton), backend.mesh_of(estimator.device)
    on_host = numpy_computes(estimator.device)
    by_numpy, coordinates = is_newton and on_host, None
    _check_device_is_possible(estimator.device, mesh, solver, X)
    if sparse.issparse(X):
        X, label = X[kept], label[kept]
        kind = n_columns(estimator), estimator.fit_intercept, np.dtype(estimator.dtype)
        rows = sparse_rows(X, label, weight, *kind)
    else:
        n_devices = 1 if mesh is None else mesh.size
        if is_newton:  # the problem has one answer, whatever the order of the rows
            rng = np.random.RandomState(0)
            auto = estimator.alpha == "auto"
            given = X[kept], weight / weight.sum(), estimator.fit_intercept, auto
            coordinates = coordinates_of(*given)
        data = X, label, kept, weight, size, rng, estimator.dtype
        rows, size = batched_rows(*data, n_devices, not by_numpy, coordinates)
    options = options_of(estimator, solver, size, rng)
    options = options._replace(compiled=not by_numpy)
    if not is_newton or estimator.alpha != "auto":
        return rows, options, coordinates
    # Of the training part; every row counts as one at least.
    n_effective = max(float(total * weight.sum()), float(len(kept)))
    options = options._replace(n_effective=n_effective)
    if sparse.issparse(X):
        given = X, label, weight / weight.sum(), estimator.fit_intercept, rows.x.dtype
        part, share = penalty.sparse_part(*given)
        found = _with_first_alpha(
            part, options._replace(n_effective=n_effective * share)
        )
        alpha, factor = newton.searched_penalty(part, found)
        options = newton.at_penalty(options, alpha * share)
        return rows, options._replace(factor=factor, n_effective=None), None
    return rows, _with_first_alpha(rows, options), coordinates


def fold_masks(label, n_folds):
    """Masks of the rows of each fold; "loo" has a fold for each row."""
    count = len(label) if n_folds == "loo" else n_folds
    fold = penalty.folds_of(label, count, len(label))
    return fold[None, :] == np.arange(fold.max() + 1)[:, None]


def _with_first_alpha(rows, options):
    """The options with the penalty that a search begins with."""
    n, kind = int(rows.n_rows), np.finfo(rows.x.dtype)
    weight = rows.weight[:n] / rows.weight[:n].sum()
    x = rows.x[:n]
    mean = weight @ x if options.intercept else 0.0
    with np.errstate(over="ignore"):
        squares = weight @ np.square(x).sum(axis=1) - np.sum(np.square(mean))
    alpha = penalty.first_alpha(float(squares), options.n_effective)
    return newton.at_penalty(
        options, np.clip(alpha, kind.tiny * _ROOM, kind.max / _ROOM)
    )


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
    return HeadOptions(
        alpha=cast(_ALPHA if estimator.alpha == "auto" else estimator.alpha)[()],
        damping=estimator.damping,
        rank=estimator.rank,
        intercept=cast(estimator.fit_intercept),
        tol=cast(estimator.tol),
        batch_size=batch_size,
        seed=np.int32(rng.randint(np.iinfo(np.int32).max)),
        solver=solver,
        mesh=backend.mesh_of(estimator.device),
    )


def algorithm_of(solver, rows, options):
    """The algorithm of a solver for sparse, for few, or for all other rows."""
    if isinstance(rows, SparseRows):
        return solver.algorithm(SPARSE_ALGORITHMS)
    if not options.compiled:
        return solver.algorithm(newton.SMALL_ALGORITHMS)
    from sklearn_gn.softmax_head.minibatch import ALGORITHMS

    return solver.algorithm(ALGORITHMS)


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
    intercept = estimator.intercept_ * bool(estimator.fit_intercept)
    return AffineHead(estimator._cast(estimator.coef_.T), estimator._cast(intercept))


def start_from(estimator, rows, net, coordinates=None):
    """The rows, and the head to start from: zeros, unless it is given."""
    if net is not None and coordinates is not None:
        net = AffineHead(*map(estimator._cast, coordinates.head(net)))
    if net is None:
        n_features = estimator.n_features_in_
        n_features = n_features if coordinates is None else rows.x.shape[1]
        shape = n_features, n_columns(estimator)
        weight = estimator._cast(np.zeros(shape))
        net = AffineHead(weight, estimator._cast(np.zeros(shape[1])))
    return with_start(rows, net) if isinstance(rows, SparseRows) else (rows, net)


def coefficients(net, rows, coordinates=None):
    """The attributes of a head that predictions need."""
    in_rows = isinstance(net, RowVector)
    net = expand(net, rows) if in_rows else net
    net = net if coordinates is None else coordinates.given_head(net)
    return {
        "coef_": net.weight.T.astype(np.float64, copy=not in_rows),
        "intercept_": net.bias.astype(np.float64),
        "temperature_": 1.0,  # until rows that are left out say otherwise
    }


def validation_loss(validation, rows, coordinates):
    """The function from a head to its loss on the validation data, if there are any."""
    if validation is None:
        return None
    X, label, weight = validation

    def loss(net):
        found = coefficients(net, rows, coordinates)
        logits = logits_of(X, found["coef_"], found["intercept_"])
        return cross_entropy(logits, label, weight)

    return loss


# --- what is known of a fitted head --------------------------------------------------


def results_of(estimator, run, coordinates):
    """The fitted attributes after a run, and those of the search for a penalty."""
    net, options = run.best_net, run.options
    if options.n_effective is None:
        return fitted_attributes(
            estimator, net, run.rows, options, run.best_row, coordinates
        )
    state, log = run.final_state, run.log
    alpha = newton.penalty_of_best(state)
    if log and run.monitor != "loss":  # an earlier head may have been the best
        alpha = min(log, key=lambda row: row["val_loss"])["alpha"]
    options = newton.at_penalty(options, alpha)
    found = fitted_attributes(
        estimator, net, run.rows, options, coordinates=coordinates
    )
    path = sorted(state.path)
    alphas, values, factors = np.array(path).reshape(-1, 3).T
    return found | {
        "temperature_": 1 / penalty.factor_at(alpha, path),
        "alpha_method_": "left-out",
        "alpha_path_": {
            "alpha": alphas,
            "left_out": -values / run.data.n_judged,
            "temperature": 1 / factors,
        },
    }


def fitted_attributes(estimator, net, rows, options, logged=None, coordinates=None):
    """The fitted attributes of a head; ``logged`` is its row of the log, if known."""
    found = coefficients(net, rows, coordinates)
    found |= {"alpha_": float(options.alpha), "alpha_method_": "fixed"}
    if isinstance(rows, SparseRows):
        if estimator.alpha == "auto":
            found["alpha_method_"] = "left-out"
        found["temperature_"] = 1 / options.factor
        logged = evaluated(RowSpace(rows), net, options).evaluation
    elif not hasattr(rows, "label"):  # in chunks
        from sklearn_gn.softmax_head.minibatch import evaluate_chunks

        with backend.scope(estimator.dtype, estimator.device):
            logged, rows = evaluate_chunks(net, rows, options)
    elif logged is None:
        with _scope(estimator, options):
            logged = objective(net, on_devices(rows, options), options)
    if isinstance(logged, Evaluation):
        logged = head_report(logged, None, options)
        logged = {"loss": logged.loss, **logged.extra}
    for name in ("loss", "competitor_dispersion", "retained_trace", "dropped_trace"):
        found[f"{name}_"] = logged[name]
    spectrum = _rows_of_spectrum(estimator, rows, options, coordinates)
    return found | {"_spectrum": spectrum}


def _rows_of_spectrum(estimator, rows, options, coordinates):
    """What the eigenvalues of the matrix of some rows are computed from."""
    competitors = 0
    if isinstance(options.solver, FGN):
        competitors = n_competitors_of(options.rank, len(estimator.classes_))
    n_examples = min(
        getattr(options.solver, "batch_size", _ROWS_OF_NEWTON) or BATCH_SIZE,
        max(1, _SPECTRUM_ROWS // (1 + competitors)),
        len(rows.weight),
    )
    chosen, count = slice(n_examples), len(rows.label)
    if isinstance(rows, SparseRows):  # which are in no random order
        chosen = np.unique(np.linspace(0, count - 1, n_examples).astype(int))
        x = rows.x[chosen]
        shape = x.shape[0], rows.n_features
        x = sparse.csr_array((x.data, rows.columns[x.indices], x.indptr), shape)
    else:
        x, count = np.array(rows.x[chosen]), int(rows.n_rows)
        x = x if coordinates is None else coordinates.given(x)
    return {
        "x": x,
        "label": np.array(rows.label[chosen]),
        "weight": np.array(rows.weight[chosen]),
        "intercept": float(options.intercept),
        "n_competitors": competitors,
        "size": min(n_examples, count) * (1 + competitors),
    }


def computed_spectrum(head, x, label, weight, intercept, n_competitors, size):
    """The eigenvalues of the matrix of some rows, descending."""
    logits, gram = logits_of(x, head.coef_, head.intercept_), x @ x.T
    gram = (gram.toarray() if sparse.issparse(gram) else gram) + intercept
    with backend.one_blas_thread():
        spectrum = row_spectrum(logits, gram, label, weight, n_competitors)
    return np.maximum(spectrum[:size], 0)


def _scope(estimator, options):
    """The context of what is computed besides the run of a solver."""
    if not options.compiled:
        return backend.one_blas_thread()
    return backend.scope(estimator.dtype, estimator.device)
