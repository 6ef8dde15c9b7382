"""The affine softmax head: its parameters, its rows, its settings, its objective.

Logits ``z = h W + b`` of given features ``h``; the objective is the weighted mean of
the cross-entropy plus ``alpha/2 |W|^2``. :func:`evaluate` computes it, with its
gradient, for all solvers.
"""

from typing import Any, NamedTuple

import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.libraries import (
    NumPy,
    RowsInOrder,
    in_either_library,
    library_of,
    namespace,
)
from sklearn_gn.arrays.parts import everywhere, total
from sklearn_gn.optim.multinomial import (
    all_classes,
    cross_entropy,
    margins,
    to_columns,
)
from sklearn_gn.optim.solver import Report
from sklearn_gn.softmax_head.curvature import traces

_SHARED_ROWS = 128  # of a batch of all rows, of which each device gets a share
_BLOCK_ELEMENTS = 2**21  # logits of a row block: what fits into the processor's cache,
_BLOCK_OF_NUMPY = 2**15  # where each operation goes through them by itself


class AffineHead(NamedTuple):
    """Parameters of a head, with m columns of values.

    For two classes m is 1, see :mod:`sklearn_gn.optim.multinomial`.
    """

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
    # (L,) where each row stood before the rows were divided among devices
    order: Array | None = None


class Batch(NamedTuple):
    """One mini-batch."""

    x: Array
    label: Array
    weight: Array
    gram: Array | None


class HeadOptions(NamedTuple):
    """What an algorithm gets besides the rows.

    Arrays are numpy scalars in the precision of the fit.
    """

    alpha: np.ndarray  # the first one where the evidence chooses
    damping: float | None  # None and a number as the solver object says
    rank: int | None
    intercept: np.ndarray  # 1 with an intercept, 0 without
    tol: np.ndarray
    batch_size: int  # of the rows
    seed: np.int32
    solver: Any  # the solver object, for what only it needs
    n_effective: float | None = None  # rows, by their weights; None: alpha is given
    mesh: Any = None  # of the devices among which the rows are divided
    compiled: bool = True  # False: NumPy computes
    factor: float = 1.0  # of the logits, by which new rows are predicted


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
def evaluate(head, rows, penalty, intercept):
    """Mean cross-entropy ``+ 1/2 sum penalty |W|^2``, its gradient, the mean traces.

    Parameters
    ----------
    head : AffineHead
    rows : BatchedRows
    penalty : array of shape (d, 1) or (1, 1)
        Factor of the squares of each row of the weights.
    intercept : scalar
        1, or 0 where the bias stays zero.

    Returns
    -------
    Evaluation
    """
    xp, n_classes = namespace(rows), max(head.bias.shape[0], 2)
    weight = weights_once(rows)

    def body(carry, x, label, weight):
        split = margins(all_classes(values(head, x)), label)
        size, gradient = weight * split.p_rest, to_columns(split.gradient)
        means = (cross_entropy(split.margin), *traces(split))
        return (
            carry[0] + x.T @ (size[:, None] * gradient),
            carry[1] + size @ gradient,
            carry[2] + xp.stack([weight @ mean for mean in means]),
            carry[3] & xp.all((split.margin < 0) | (weight == 0)),
        )

    zeros = xp.zeros_like(head.weight), xp.zeros_like(head.bias)
    start = (*zeros, xp.zeros(4, head.bias.dtype), xp.bool_(True))
    arrays = rows.x, rows.label, weight
    *sums, separated = over_blocks(body, start, arrays, n_classes)
    by_weight, by_bias, means, size = total((*sums, xp.sum(weight)))
    means, separated = means / size, everywhere(separated)
    gradient = AffineHead(
        by_weight / size + penalty * head.weight, intercept * by_bias / size
    )
    loss = means[0] + 0.5 * xp.sum(penalty * head.weight**2)
    return Evaluation(loss, gradient, *means[1:], separated, *gradient_norms(gradient))


def weights_once(rows):
    """Weights of the rows that count, each once."""
    order, xp = rows.order, namespace(rows)
    if order is None:
        order = xp.arange(rows.weight.shape[0], dtype=xp.int32)
    return xp.where(order < rows.n_rows, rows.weight, 0)


def on_devices(rows, options):
    """Put rows on the device, or divide them among several; leave them to NumPy."""
    if not options.compiled or isinstance(rows.x, RowsInOrder):
        return rows
    import jax

    if options.mesh is None:
        return jax.device_put(rows)
    order = np.arange(len(rows.weight), dtype=np.int32)
    arrays = [rows.x, rows.label, rows.weight, order]
    x, label, weight, order = divided(arrays, options)
    return rows._replace(x=x, label=label, weight=weight, order=order)


def divided(arrays, options):
    """Divide arrays of rows among several devices, or put them on the one."""
    if options.mesh is None:
        import jax

        return jax.device_put(arrays)
    from sklearn_gn.arrays.devices import divide_rows

    n_rows, size = len(arrays[0]), min(options.batch_size, _SHARED_ROWS)
    if n_rows % size:
        size = options.batch_size
    return divide_rows(arrays, options.mesh, size)


def in_one_piece(rows):
    """Copy features that are still where they were given, in the order of the rows."""
    if not isinstance(rows.x, RowsInOrder):
        return rows
    length = backend.row_bucket(len(rows.x))
    return rows._replace(
        x=copied_rows(rows.x.table, rows.x.order, length),
        label=backend.pad_rows(rows.label, length),
        weight=backend.pad_rows(rows.weight, length),
    )


def copied_rows(table, order, length):
    """Copy rows of a table, with zeros after them.

    Large arrays are written once: first touch of memory is what costs.
    """
    x = backend.aligned_zeros((length, table.shape[1]), table.dtype)
    np.take(table, order, axis=0, out=x[: len(order)], mode="clip")
    return x


def on_device(head, options):
    """Put a head on the device, or leave it to NumPy."""
    if not options.compiled:
        return head
    import jax

    return jax.device_put(head)


def objective(head, rows, options):
    """:func:`evaluate` with the penalty of the options."""
    return evaluate(head, rows, scalar_penalty(options.alpha), options.intercept)


def scalar_penalty(alpha):
    """The penalty ``alpha`` on every feature, of shape (1, 1)."""
    return alpha.reshape(1, 1)


def gradient_norms(gradient):
    """Euclidean norm and largest component."""
    xp = namespace(gradient)
    size = xp.sqrt(sum(xp.sum(g**2) for g in gradient))
    return size, xp.maximum(*(xp.max(xp.abs(g)) for g in gradient))


def head_report(evaluation, stop, options, **columns):
    """Log row of an evaluated head.

    Without a penalty, a head that separates the classes has not converged: the loss has
    no minimum.
    """
    ended = stop in ("tol", "rounding", "line_search")
    if ended and float(options.alpha) == 0 and evaluation.separated:
        stop = "separable"
    return Report(
        loss=float(evaluation.loss),
        grad_norm=float(evaluation.grad_norm),
        stop=stop,
        extra={
            "alpha": float(options.alpha),
            "competitor_dispersion": float(evaluation.dispersion),
            "retained_trace": float(evaluation.retained),
            "dropped_trace": float(evaluation.dropped),
        },
        **columns,
    )


# --- values, and sums over rows ------------------------------------------------------


def values(head, x):
    """Values of the m columns, of shape (n, m)."""
    return x @ head.weight + head.bias[None, :]


def values_transposed(x, change):
    """The transpose of :func:`values`, from (n, m) to the parameters."""
    return AffineHead(x.T @ change, namespace(change).sum(change, axis=0))


def block_rows(n_rows, n_classes, library):
    """Rows handled at a time; the last block may be shorter."""
    block, most = n_rows, _BLOCK_OF_NUMPY if library is NumPy else _BLOCK_ELEMENTS
    while block > 1 and block * n_classes > most:
        block = -(-block // 2)
    return block


def over_blocks(body, start, arrays, n_classes):
    """Fold ``body(carry, blocks of the arrays)`` over blocks of rows."""
    n, library = arrays[0].shape[0], library_of((arrays, start))
    block = block_rows(n, n_classes, library)
    whole = n // block

    def step(k, carry):
        parts = (library.rows_from(a, k * block, block) for a in arrays)
        return body(carry, *parts)

    carry = library.fori_loop(0, whole, step, start)
    if whole * block < n:
        carry = body(carry, *(a[whole * block :] for a in arrays))
    return carry
