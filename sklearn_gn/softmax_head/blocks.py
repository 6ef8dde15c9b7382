"""One diagonal block of the Hessian for each class: the preconditioner.

For class c it is ``sum_i w_i p_ic (1 - p_ic) h_i h_i^T`` plus the penalty. A
probability near 0 or 1 has no curvature, so each block is a sum over few rows: the
examples of the class and those that compete with it.
"""

from functools import partial

import numpy as np

from sklearn_gn.arrays.libraries import in_either_library, library_of, namespace
from sklearn_gn.arrays.parts import n_devices, total
from sklearn_gn.linalg.factors import factor
from sklearn_gn.optim.multinomial import probabilities
from sklearn_gn.softmax_head.head import over_blocks, values
from sklearn_gn.softmax_head.whitening import (
    curvatures,
    system_at,
)

_LARGEST_SLOTS = 4096  # rows of a class block
_BLOCK_FLOATS = 2**26  # of all blocks together
_BLOCK_COST = 8  # products with the Hessian that building the blocks may cost
_FEW_FEATURES = 4 * _BLOCK_COST
_FEWEST_ROWS = 4096  # of which the blocks of few features are made,
_ROWS_A_CLASS = 128  # or so many for each class


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


@partial(in_either_library, static_argnames="slots")
def class_blocks(net, data, settings, slots):
    """Inverses (m, d + 1, d + 1) of blocks of whitened features, in single precision.

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
    return _inverses(gram, kept, spread, system.intercept)


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


def _inverses(gram, columns, spread, intercept):
    """Inverses of the blocks ``gram(k, columns[k]) + diag(spread[k])``."""
    library, d = library_of(columns), spread.shape[1] - 1
    xp = library.xp
    keep = xp.append(xp.ones(d, spread.dtype), intercept)

    def block(arrays):
        k, column, spread = arrays
        matrix = gram(k, column) + xp.diag(spread)
        tiny = xp.finfo(matrix.dtype).tiny
        scale = library.rsqrt(xp.maximum(xp.diagonal(matrix), tiny))
        found = factor(matrix * scale[:, None] * scale[None, :], overwrite=True)
        # A root R of the inverse, R^T R, lower triangular up to a scale of its columns.
        # Without an intercept its row and column drop out.
        root = found.inverse_root() * (scale * keep)[None, :]
        return root.T @ root

    return library.map(block, (xp.arange(len(columns)), columns, spread))
