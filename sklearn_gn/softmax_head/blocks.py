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
from sklearn_gn.optim.multinomial import probabilities, to_columns
from sklearn_gn.softmax_head.head import over_blocks, values
from sklearn_gn.softmax_head.whitening import counted_weights, to_whitened

_LARGEST_SLOTS = 4096  # rows of a class block
_BLOCK_FLOATS = 2**26  # of all blocks together
_LEAST_CURVATURE = 1e-6  # of a class, relative to the largest
_BLOCK_COST = 8  # products with the Hessian that building the blocks may cost
_FEW_FEATURES = 4 * _BLOCK_COST
_FEWEST_ROWS = 4096  # of which the blocks of few features are made,
_ROWS_A_CLASS = 128  # or so many for each class


class ClassBlocks(NamedTuple):
    """What is known of the blocks ``M_c``, penalty included, of m columns."""

    inverses: Array | None  # (m, d + 1, d + 1); None where they are not formed
    log_det: Array  # sum of log det M_c - d log alpha
    gamma: Array | None  # sum of d - alpha tr(M_c^-1), over the coefficients


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
    """Rows of which the blocks of a preconditioner are made.

    With few features the first ones, which are in random order, are enough; else all.

    Parameters
    ----------
    data : Whitened
    n_columns : int

    Returns
    -------
    Whitened
    """
    (n, d), rows = data.x.shape, data.rows
    size = max(_FEWEST_ROWS, _ROWS_A_CLASS * n_columns)
    if d > _FEW_FEATURES or n <= size or rows.order is not None:
        return data
    first = rows._replace(
        x=rows.x[:size],
        label=rows.label[:size],
        weight=rows.weight[:size],
        n_rows=np.minimum(rows.n_rows, np.int32(size)),
    )
    return data._replace(rows=first, x=data.x[:size])


def affordable_rows(n, d, cost):
    """Rows of a block so that all cost as much as so many products with the Hessian.

    A power of two, or all n rows, or 0 where the factors alone would cost more.
    """
    # A product takes 4 n d multiply-adds a class; d^2 for each row of a block, and
    # about d^3 for its inverse.
    most = (cost - d * d / (4 * n)) * 2 * n / d
    return min(1 << (int(most).bit_length() - 1), n) if most >= 1 else 0


@partial(in_either_library, static_argnames=("slots", "inverses", "gamma"))
def class_blocks(net, data, settings, slots, inverses=True, gamma=True):
    """Blocks in whitened coordinates, in single precision.

    The ``slots`` rows of largest curvature ``p_c (1 - p_c)`` enter the block of a class
    with their features; the rest of its curvature counts as if it were spread over all
    rows. ``inverses`` and ``gamma`` say whether these are wanted.

    Returns
    -------
    ClassBlocks
    """
    head, weight, shift, variance, damping, intercept = single(
        (
            to_whitened(net, data.center, data.dual),
            counted_weights(data.rows),
            in_whitened(settings.alpha + settings.damping, data.squares),
            data.variance,
            settings.damping,
            settings.intercept,
        )
    )
    x, d = data.x, data.x.shape[1]
    curvature, whole = curvatures(probabilities(values(head, x)), weight)
    slots = max(1, slots // n_devices())  # of the rows of each device
    library = library_of(x)
    xp = library.xp
    ones = xp.full((min(slots, len(x)), 1), intercept)
    if slots < len(x):
        kept, chosen = library.top_k(curvature.T, slots)
        gram = lambda k, curvature: weighted_gram(  # noqa: E731
            xp.append(x[chosen[k]], ones, axis=1), curvature
        )
    else:
        kept, gram = curvature.T, class_grams(xp.append(x, ones, axis=1), curvature)
    rest = xp.maximum(whole - total(xp.sum(kept, axis=1)), 1e-3 * whole)

    def block(arrays):
        k, curvature, rest = arrays
        spread = xp.append((shift + rest * variance)[:, 0], rest + damping)
        factor, scale, log_det = scaled_factor(gram(k, curvature), spread)
        # A direction without penalty has no feature either, and stands by itself.
        log_det = log_det - xp.sum(xp.log(xp.where(shift > 0, shift, spread[:d, None])))
        log_det = log_det - (1 - intercept) * xp.log(spread[d])
        if not (inverses or gamma):
            return None, log_det, None
        root = inverse_root(factor, scale)
        own = n_determined(shift, root) if gamma else None
        if not inverses:
            return None, log_det, own
        # Without an intercept its row and column drop out.
        root = root * keep[None, :]
        return root.T @ root, log_det, own

    keep = xp.append(xp.ones(d, x.dtype), intercept)
    found, log_det, own = library.map(block, (xp.arange(len(rest)), kept, rest))
    return ClassBlocks(found, xp.sum(log_det), None if own is None else xp.sum(own))


@in_either_library
def kronecker_blocks(net, data, settings):
    """Blocks of whitened features times the mean curvature of each class."""
    head, weight, shift, variance, intercept = single(
        (
            to_whitened(net, data.center, data.dual),
            counted_weights(data.rows),
            in_whitened(settings.alpha, data.squares),
            data.variance,
            settings.intercept,
        )
    )
    _, whole = curvatures(probabilities(values(head, data.x)), weight)
    xp = namespace(whole)
    penalised = shift > 0
    ratio = variance * whole[None, :] / xp.where(penalised, shift, 1)
    ratio = xp.where(penalised, ratio, 0)
    log_det = xp.sum(xp.log1p(ratio)) + intercept * xp.sum(xp.log(whole))
    return ClassBlocks(None, log_det, xp.sum(ratio / (1 + ratio)))


@in_either_library
def exact_blocks(net, rows, center, alpha, intercept):
    """Blocks of all rows, in the precision of the fit."""
    library = library_of(rows)
    xp, x = library.xp, rows.x - center[None, :]
    weight = counted_weights(rows)
    x = xp.where(weight[:, None] > 0, x, 0)
    d = x.shape[1]
    curvature, whole = curvatures(probabilities(values(net, rows.x)), weight)
    h = xp.append(x, xp.full((len(x), 1), intercept, x.dtype), axis=1)
    gram, floor = class_grams(h, curvature), xp.max(whole) * _LEAST_CURVATURE

    def block(arrays):
        k, curvature = arrays
        shift = xp.append(xp.full(d, alpha), 0 * alpha)
        lacking = xp.maximum(floor - total(xp.sum(curvature)), 0)
        spread = xp.append(shift[:d], xp.where(intercept > 0, lacking, 1))
        factor, scale, log_det = scaled_factor(gram(k, curvature), spread)
        root = inverse_root(factor, scale)
        return log_det - d * xp.log(alpha), n_determined(shift[:d, None], root)

    log_det, gamma = library.map(block, (xp.arange(len(whole)), curvature.T))
    return ClassBlocks(None, xp.sum(log_det), xp.sum(gamma))


def curvatures(p, weight):
    """``w p (1 - p)`` of all rows and columns, and its sums over the rows."""
    xp = namespace(p)
    curvature = to_columns(p * (1 - p) * weight[:, None])
    whole = total(xp.sum(curvature, axis=0))
    return curvature, xp.maximum(whole, _LEAST_CURVATURE * xp.max(whole))


def weighted_gram(h, curvature):
    """``h^T diag(curvature) h``."""
    h = h * namespace(h).sqrt(curvature)[:, None]
    return total(h.T @ h)


def class_grams(h, curvature):
    """Return a function from k and column k of ``curvature`` to its weighted Gram.

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


def scaled_factor(gram, spread):
    """Cholesky factor of ``M = gram + diag(spread)``.

    Returns
    -------
    factor : array of shape (d, d)
        Of M with rows and columns times ``scale``, by which its diagonal is one.
    scale : array of shape (d,)
    log_det : scalar
        Of M.
    """
    library = library_of(gram)
    xp, matrix = library.xp, gram + library.xp.diag(spread)
    scale = library.rsqrt(xp.maximum(xp.diagonal(matrix), xp.finfo(gram.dtype).tiny))
    factor = library.cholesky(matrix * scale[:, None] * scale[None, :])
    log_det = 2 * xp.sum(xp.log(xp.diagonal(factor)) - xp.log(scale))
    return factor, scale, log_det


def inverse_root(factor, scale):
    """A root R of the inverse of the matrix of :func:`scaled_factor`, ``R^T R``.

    Lower triangular up to a scale of its columns.
    """
    return library_of(factor).triangular_inverse(factor) * scale[None, :]


def n_determined(shift, root):
    """Number of coefficients that the data determine, of those with a penalty.

    Parameters
    ----------
    shift : array of shape (d, 1)
        Penalties of the coefficients.
    root : array
        That of :func:`inverse_root`.
    """
    xp, shift = namespace(root), shift[:, 0]
    left = shift * xp.sum(root**2, axis=0)[: len(shift)]
    return xp.sum(xp.where(shift > 0, 1 - left, 0))


def single(tree):
    """The arrays of a tree in single precision."""
    library = library_of(tree)
    as_array, kind = library.xp.asarray, np.float32
    return library.tree_map(lambda a: as_array(a).astype(kind), tree)


def in_whitened(factor, squares):
    """What ``factor |W|^2`` is a factor of in each row of the whitened weights."""
    return namespace((factor, squares)).where(factor > 0, factor * squares, 0)
