"""The affine softmax head: its parameters, its rows, its settings, its objective.

Logits ``z = h W + b`` of given features ``h``; the objective is the weighted mean of
the cross-entropy plus ``alpha/2 |W|^2``. :func:`evaluate` computes it, with its
gradient, for all solvers.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse

from sklearn_gn._typing import Array
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.collectives import n_devices, total
from sklearn_gn.arrays.extremes import largest_size
from sklearn_gn.arrays.libraries import NumPy, in_either_library, library_of, namespace
from sklearn_gn.optim.multinomial import all_classes, cross_entropy, margins, to_columns
from sklearn_gn.optim.solver import Report

LARGEST_LOGIT = np.finfo(np.float64).max / 4  # so that differences stay finite
_BLOCK_ELEMENTS = 2**21  # logits of a row block: what fits into the processor's cache,
_BLOCK_OF_NUMPY = 2**16  # where each operation goes through them by itself,
_ROWS_OF_NUMPY = 512  # and sums over so few rows add up few products


class AffineHead(NamedTuple):
    """Parameters of a head, with m columns of values; for two classes m is 1."""

    weight: Array  # (d, m)
    bias: Array  # (m,)


class BatchedRows(NamedTuple):
    """Weighted examples in the order of the batches.

    The first ``n_rows`` are the data, each once. What follows up to a whole number of
    batches begins again from the start, so that no batch is short; the rest is padding
    of weight zero.
    """

    x: Array  # (L, d)
    label: Array  # (L,) int32
    weight: Array  # (L,)
    n_rows: Array  # int32
    n_batches: Array  # int32
    # (L,) of sum one, and zero where a row comes again; None: these are the weights
    counted: Array | None = None


class HeadOptions(NamedTuple):
    """What an algorithm gets besides the rows, in the precision of the fit."""

    alpha: np.ndarray  # the first one where it is chosen
    damping: float
    rank: int
    intercept: np.ndarray  # 1 with an intercept, 0 without
    tol: np.ndarray
    batch_size: int  # of the rows
    seed: np.int32
    solver: Any  # the solver object, for what only it needs
    n_effective: float | None = None  # rows, by their weights; None: alpha is given
    mesh: Any = None  # of the devices among which the rows are divided
    compiled: bool = True  # False: NumPy computes


def logits_of(X, coef, intercept):
    """``X coef^T + intercept`` in float64, finite for finite X."""
    with np.errstate(over="ignore", invalid="ignore"):
        logits = X @ coef.T + intercept
        if not np.isfinite(logits).all():
            largest = abs(X).max(axis=1)
            if issparse(X):
                largest = largest.toarray().ravel()
            size = np.maximum(largest, 1)[:, None]
            small = X.multiply(1 / size).tocsr() if issparse(X) else X / size
            logits = (small @ coef.T) * size + intercept
    return np.clip(logits, -LARGEST_LOGIT, LARGEST_LOGIT)


# --- the rows ------------------------------------------------------------------------


def batched_rows(X, label, kept, weight, batch_size, rng, dtype, n_devices=1):
    """Put the rows ``kept`` in random order, in full batches.

    A row of more than twice the mean weight comes as several rows. Also returns the
    batch size, at most all rows, and a multiple of ``n_devices``.
    """
    n = len(kept)  # a part of the rows may have no weight
    weight = weight / weight.sum() if weight.any() else np.full(n, 1 / n)
    if batch_size < n:
        copies = np.ceil(weight * (len(weight) / 2)).astype(int)
        copies = np.maximum(copies, 1)  # weights may underflow to zero
        weight, kept = np.repeat(weight / copies, copies), np.repeat(kept, copies)
    n = len(kept)
    bucket = backend.row_bucket(n)  # one of a few, for which functions are compiled
    b = -(-int(min(batch_size, bucket)) // n_devices) * n_devices
    n_batches = -(-n // b)
    order = rng.permutation(n)
    if n > b:
        order = np.append(order, order[: n_batches * b - n])
    length = -(-bucket // b) * b
    # Written once, with zeros after them: first touch of memory is what costs.
    x = backend.aligned_zeros((length, X.shape[1]), X.dtype)
    np.take(X, kept[order], axis=0, out=x[: len(order)], mode="clip")
    rows = BatchedRows(
        x=x if x.dtype == dtype else in_precision(x, dtype),
        label=backend.pad_rows(label[kept[order]].astype(np.int32), length),
        weight=backend.pad_rows(weight[order].astype(dtype), length),
        n_rows=np.int32(n),
        n_batches=np.int32(n_batches),
        counted=backend.pad_rows(weight[order[:n]].astype(dtype), length),
    )
    return rows, b


def in_precision(x, dtype):
    """Features in another precision, in whose range they must be."""
    if largest_size(x.data if issparse(x) else x) > float(np.finfo(dtype).max):
        raise ValueError(
            f"X holds numbers beyond the range of dtype={str(dtype)!r}. Give "
            "dtype='float64', or scale the features."
        )
    return x.astype(dtype)


def on_devices(tree, options):
    """Put rows on the device, or divide them among several; leave them to NumPy."""
    if not options.compiled:
        return tree
    import jax

    if options.mesh is None:
        return jax.device_put(tree)

    from sklearn_gn.arrays.devices import put_rows

    n_devices = options.mesh.size

    def divide(leaf):  # an equal share of every batch on each device
        if not np.ndim(leaf):
            return leaf
        share = n_devices, options.batch_size // n_devices, *leaf.shape[1:]
        shares = np.swapaxes(leaf.reshape(-1, *share), 0, 1)
        return put_rows([shares.reshape(leaf.shape)], options.mesh)[0]

    return jax.tree.map(divide, tree)


# --- the objective -------------------------------------------------------------------


class Evaluation(NamedTuple):
    """Objective, gradient and mean curvature split of a head on all rows."""

    loss: Array
    gradient: AffineHead
    dispersion: Array
    retained: Array
    dropped: Array
    separated: Array  # whether every example beats its competitors together
    grad_norm: Array
    grad_max: Array  # largest component of the gradient


@in_either_library
def evaluate(head, rows, alpha, intercept, squares=1.0, dual=None):
    """Mean cross-entropy ``+ alpha/2 sum squares |W|^2``, its gradient, mean traces.

    ``squares`` is a number, or of shape (d, 1) one for each row of the weights, and
    ``intercept`` 1, or 0 where the bias stays zero. ``dual`` leads to the features for
    which the gradient is measured.
    """
    xp, n_classes = namespace(rows), max(head.bias.shape[0], 2)
    penalty = times(alpha, squares)
    weight = rows.weight if rows.counted is None else rows.counted

    def body(carry, x, label, weight):
        error, means, separated = errors(values(head, x), label, weight)
        return (
            carry[0] + x.T @ error,
            carry[1] + xp.sum(error, axis=0),
            carry[2] + means,
            carry[3] & separated,
        )

    zeros = xp.zeros_like(head.weight), xp.zeros_like(head.bias)
    start = (*zeros, xp.zeros(4, head.bias.dtype), xp.bool_(True))
    arrays = rows.x, rows.label, weight
    *sums, separated = over_blocks(body, start, arrays, n_classes)
    by_weight, by_bias, means, n_separated = total((*sums, separated.astype(xp.int32)))
    gradient = AffineHead(by_weight + penalty * head.weight, intercept * by_bias)
    loss = means[0] + 0.5 * xp.sum(penalty * head.weight**2)
    norms = gradient_norms(gradient, dual)
    return Evaluation(loss, gradient, *means[1:], n_separated == n_devices(), *norms)


def errors(logits, label, weight):
    """Weighted gradient in the logits, sums of loss and traces, and `separated`."""
    library, split = library_of((logits, label)), margins(all_classes(logits), label)
    xp, size = library.xp, weight * split.p_rest
    # How widely the error is spread, and the traces of both parts of the curvature,
    # for which see :mod:`sklearn_gn.softmax_head.fgn`.
    xi = 1 - library.row_products(split.rho, split.rho)
    traces = xi, split.p_true * split.p_rest * (2 - xi), split.p_rest * xi
    means = xp.stack([weight @ a for a in (cross_entropy(split.margin), *traces)])
    error = library.with_label(size[:, None] * split.rho, label, -size)
    separated = xp.all((split.margin < 0) | (weight == 0))
    return to_columns(error), means, separated


def times(factor, squares):
    """``factor squares`` in the factor's precision, 0 where it is, also of infinity."""
    xp = namespace((factor, squares))
    return xp.where(factor > 0, factor * xp.asarray(squares, factor.dtype), 0)


def in_basis(basis, matrix):
    """``basis matrix`` for a full or a diagonal basis."""
    return basis @ matrix if basis.ndim == 2 else basis[:, None] * matrix


def gradient_norms(gradient, dual=None):
    """Euclidean norm and largest component, in the features that ``dual`` leads to."""
    xp = namespace(gradient)
    if dual is not None:
        gradient = AffineHead(*(g.astype(dual.dtype) for g in gradient))
        gradient = gradient._replace(weight=in_basis(dual, gradient.weight))
    size = xp.sqrt(sum(xp.sum(g**2) for g in gradient))
    return size, xp.maximum(*(xp.max(xp.abs(g)) for g in gradient))


def head_report(evaluation, stop, alpha, **columns):
    """Log row of an evaluated head."""
    # Without a penalty, a head that separates the classes has not converged: the loss
    # has no minimum.
    ended = stop in ("tol", "rounding", "line_search")
    if ended and float(alpha) == 0 and evaluation.separated:
        stop = "separable"
    return Report(
        loss=float(evaluation.loss),
        grad_norm=float(evaluation.grad_norm),
        stop=stop,
        extra={
            "alpha": float(alpha),
            "competitor_dispersion": float(evaluation.dispersion),
            "retained_trace": float(evaluation.retained),
            "dropped_trace": float(evaluation.dropped),
        },
        **columns,
    )


# --- values, and sums over rows ------------------------------------------------------


def values(head, x):
    """Values of the m columns, of shape (n, m)."""
    found = x @ head.weight
    found += head.bias[None, :]  # of NumPy in place
    return found


def values_transposed(x, change):
    """The transpose of :func:`values`, from (n, m) to the parameters."""
    return AffineHead(x.T @ change, namespace(change).sum(change, axis=0))


def forcing_of(size, settings):
    """The relative residual to which a Newton system is solved.

    The larger the gradient, the less the system says; a step need be no more than the
    last one. ``size`` belongs to a gradient in coordinates of variance one.
    """
    xp, size = namespace(size), size.astype(np.float32)
    return xp.clip(xp.sqrt(size), settings.last, np.float32(0.5))


def derivatives_along(logits, change, label, weight):
    """The function from t to derivatives of the loss at ``logits + t change``."""
    library, n_classes = library_of((logits, change)), max(logits.shape[1], 2)
    zero = 0 * library.xp.sum(weight)

    def at(t):
        def body(found, logits, change, label, weight):
            change = all_classes(change)
            p = library.softmax(all_classes(logits) + t * change)
            mean = library.row_products(p, change)
            variance = library.row_products(p * change, change) - mean**2
            slope = mean - library.at_label(change, label)
            return found[0] + weight @ slope, found[1] + weight @ variance

        arrays = logits, change, label, weight
        return total(over_blocks(body, (zero, zero), arrays, n_classes))

    return at


def over_blocks(body, start, arrays, n_classes):
    """Fold ``body(carry, blocks of the arrays)`` over blocks of rows."""
    n, library = arrays[0].shape[0], library_of((arrays, start))
    block, most, least = n, _BLOCK_ELEMENTS, 1
    if library is NumPy:
        most, least = _BLOCK_OF_NUMPY, _ROWS_OF_NUMPY
    while block > least and block * n_classes > most:
        block = -(-block // 2)
    if block == n:
        return body(start, *arrays)
    whole = n // block

    def step(k, carry):
        parts = (library.rows_from(a, k * block, block) for a in arrays)
        return body(carry, *parts)

    carry = library.fori_loop(0, whole, step, start)
    if whole * block < n:
        carry = body(carry, *(a[whole * block :] for a in arrays))
    return carry
