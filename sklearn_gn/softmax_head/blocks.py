"""One diagonal block of the Hessian for each class: preconditioner, log determinant.

For class c it is ``sum_i w_i p_ic (1 - p_ic) h_i h_i^T`` plus the penalty. A
probability near 0 or 1 has no curvature, so each block is a sum over few rows: the
examples of the class and those that compete with it.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.arrays.libraries import in_either_library, library_of, namespace
from sklearn_gn.arrays.parts import n_devices, total
from sklearn_gn.linalg.factors import factor
from sklearn_gn.optim.multinomial import probabilities
from sklearn_gn.softmax_head.head import over_blocks, values
from sklearn_gn.softmax_head.whitening import (
    LEAST_CURVATURE,
    counted_weights,
    curvatures,
    system_at,
)

_LARGEST_SLOTS = 4096  # rows of a class block
_BLOCK_FLOATS = 2**26  # of all blocks together
_BLOCK_COST = 8  # products with the Hessian that building the blocks may cost
_FEW_FEATURES = 4 * _BLOCK_COST
_FEWEST_ROWS = 4096  # of which the blocks of few features are made,
_ROWS_A_CLASS = 128  # or so many for each class


class BlockSums(NamedTuple):
    """What the evidence takes of the blocks ``M_c``, penalty included."""

    log_det: Array  # sum of log det M_c - d log alpha
    gamma: Array  # sum of d - alpha tr(M_c^-1), over the coefficients


def n_slots(data, n_columns):
    """Rows that enter a class block of the preconditioner; 0 where it does not pay.

    With few features all of :func:`some_rows` do, which costs less than to choose.
    """
    if n_columns * (data.x.shape[1] + 1) ** 2 > _BLOCK_FLOATS:
        return 0
    n, d = data.x.shape
    if d <= _FEW_FEATURES:  # d^2 for each row, where a product takes 4 d
        return n
    return min(affordable_rows(n, d, _BLOCK_COST), _LARGEST_SLOTS)


def some_rows(data, n_columns):
    """Whitened rows of which the blocks of a preconditioner are made.

    With few features the first ones, which are in random order, are enough; else all.
    """
    (n, d), rows = data.x.shape, data.rows
    size = max(_FEWEST_ROWS, _ROWS_A_CLASS * n_columns)
    if d > _FEW_FEATURES or n <= size or rows.order is not None:
        return data
    x, label, weight = (a[:size] for a in (rows.x, rows.label, rows.weight))
    n_rows = np.minimum(rows.n_rows, np.int32(size))
    first = rows._replace(x=x, label=label, weight=weight, n_rows=n_rows)
    return data._replace(rows=first, x=data.x[:size])


def affordable_rows(n, d, cost):
    """Rows of a block so that all cost as much as so many products with the Hessian.

    A power of two, or all n rows, or 0 where the factors alone would cost more.
    """
    # A product takes 4 n d multiply-adds a class; d^2 for each row of a block, and
    # about d^3 for its inverse.
    most = (cost - d * d / (4 * n)) * 2 * n / d
    return min(1 << (int(most).bit_length() - 1), n) if most >= 1 else 0


@partial(in_either_library, static_argnames=("slots", "inverses"))
def class_blocks(net, data, settings, slots, inverses=False):
    """Inverses (m, d + 1, d + 1), or sums, of blocks of whitened features, in single.

    The ``slots`` rows of largest curvature ``p_c (1 - p_c)`` enter the block of a class
    with their features; the rest of its curvature counts as if it were spread over all
    rows.
    """
    system, x = system_at(net, data, settings), data.x
    curvature, whole = curvatures(probabilities(values(system.head, x)), system.weight)
    slots = max(1, slots // n_devices())  # of the rows of each device
    library = library_of(x)
    xp = library.xp
    ones = xp.full((min(slots, len(x)), 1), system.intercept)
    if slots < len(x):
        kept, chosen = library.top_k(curvature.T, slots)
        gram = lambda k, curvature: weighted_gram(  # noqa: E731
            xp.append(x[chosen[k]], ones, axis=1), curvature
        )
    else:
        kept = curvature.T
        gram = class_grams(xp.append(x, ones, axis=1), curvature)
    rest = xp.maximum(whole - total(xp.sum(kept, axis=1)), 1e-3 * whole)
    spread = system.shift + rest[None, :] * system.variance
    spread = xp.append(spread, (rest + system.damping)[None, :], axis=0).T
    shift = system.shift[:, 0]
    return _factored(gram, kept, spread, shift, system.intercept, inverses)


@in_either_library
def exact_blocks(net, rows, center, alpha, intercept):
    """Blocks of all rows, in the precision of the fit, without their inverses."""
    xp, weight = namespace(rows), counted_weights(rows)
    x = xp.where(weight[:, None] > 0, rows.x - center[None, :], 0)
    d = x.shape[1]
    curvature, whole = curvatures(probabilities(values(net, rows.x)), weight)
    h = xp.append(x, xp.full((len(x), 1), intercept, x.dtype), axis=1)
    floor = xp.max(whole) * LEAST_CURVATURE
    lacking = xp.maximum(floor - total(xp.sum(curvature, axis=0)), 0)
    shift = xp.full(d, alpha)
    spread = xp.append(
        xp.full((len(whole), d), alpha),
        xp.where(intercept > 0, lacking, 1)[:, None],
        axis=1,
    )
    gram = class_grams(h, curvature)
    return _factored(gram, curvature.T, spread, shift, intercept)


@in_either_library
def kronecker_blocks(net, data, settings):
    """Blocks of whitened features times the mean curvature of each class."""
    system = system_at(net, data, settings)
    p = probabilities(values(system.head, data.x))
    _, whole = curvatures(p, system.weight)
    xp, shift = namespace(whole), system.shift
    ratio = system.variance * whole[None, :] / xp.where(shift > 0, shift, 1)
    ratio = xp.where(shift > 0, ratio, 0)
    log_det = xp.sum(xp.log1p(ratio)) + system.intercept * xp.sum(xp.log(whole))
    return BlockSums(log_det, xp.sum(ratio / (1 + ratio)))


def weighted_gram(h, curvature):
    """``h^T diag(curvature) h``."""
    h = h * namespace(h).sqrt(curvature)[:, None]
    return total(h.T @ h)


def class_grams(h, curvature):
    """A function from k and column k of ``curvature`` to its weighted Gram.

    With few features, those of all columns are one product.
    """
    xp, size = namespace(h), h.shape[1]
    if size > _FEW_FEATURES + 1:
        return lambda k, column: weighted_gram(h, column)

    def add(found, h, curvature):
        products = (h[:, :, None] * h[:, None, :]).reshape(-1, size * size)
        return found + curvature.T @ products

    start = xp.zeros((curvature.shape[1], size * size), h.dtype)
    found = total(over_blocks(add, start, (h, curvature), size * size))
    found = found.reshape(-1, size, size)
    return lambda k, column: found[k]


def _factored(gram, columns, spread, shift, intercept, inverses=False):
    """Inverses or sums of the blocks ``gram(k, columns[k]) + diag(spread[k])``.

    ``shift`` of shape (d,) is the penalty of the coefficients in ``spread``.
    """
    library, d = library_of(columns), len(shift)
    xp = library.xp
    keep = xp.append(xp.ones(d, spread.dtype), intercept)

    def block(arrays):
        k, column, spread = arrays
        matrix = gram(k, column) + xp.diag(spread)
        tiny = xp.finfo(matrix.dtype).tiny
        scale = library.rsqrt(xp.maximum(xp.diagonal(matrix), tiny))
        found = factor(matrix * scale[:, None] * scale[None, :], overwrite=True)
        # A root R of the inverse, R^T R, lower triangular up to a scale of its columns.
        root = found.inverse_root() * scale[None, :]
        if inverses:  # without an intercept its row and column drop out
            root = root * keep[None, :]
            return root.T @ root
        log_det = found.log_det - 2 * xp.sum(xp.log(scale))
        # A direction without penalty has no feature either, and stands by itself.
        log_det = log_det - xp.sum(xp.log(xp.where(shift > 0, shift, spread[:d])))
        log_det = log_det - xp.where(intercept > 0, 0, xp.log(spread[d]))
        left = 1 - shift * xp.sum(root**2, axis=0)[:d]
        return log_det, xp.sum(xp.where(shift > 0, left, 0))

    found = library.map(block, (xp.arange(len(columns)), columns, spread))
    return found if inverses else BlockSums(*map(xp.sum, found))
