"""Whitened features: what makes single precision enough for Newton's method.

``x' = (x - center) basis`` has uncorrelated columns of variance 1 or less, and a head
``W', b'`` for it stands for ``W = basis W'``. The basis comes from one
eigendecomposition, or is a diagonal where features are very many or of very different
size.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn._typing import Array
from sklearn_gn.arrays.libraries import in_either_library, library_of, namespace
from sklearn_gn.arrays.parts import total
from sklearn_gn.softmax_head.head import (
    AffineHead,
    BatchedRows,
    block_rows,
    over_blocks,
    weights_once,
)

_ROTATED = 4096  # features at most that are rotated to principal axes, not just scaled
_FEW = 2  # features for a row, from which on the rows tell the axes
_CONSTANT = 16  # deviation of a constant from its mean, in units of rounding
_NULL = 8  # variance without meaning, in units of the rounding of the largest
_PATH = 1e-8  # least penalty that the evidence tries, over the first one
_LEAST_VARIANCE = 1e-3  # of a whitened feature, for the preconditioner


class Whitened(NamedTuple):
    """The rows, and their features once more in whitened coordinates.

    Gradient and loss come from the features as given. Where single precision will do,
    the whitened ones stand for them.
    """

    rows: BatchedRows
    x: Array  # (L, d)  whitened, in single precision
    squares: Array  # (d, 1)  |basis e_j|^2
    variance: Array  # (d, 1)  of the whitened features, 1 or less
    center: Array  # (d,)
    basis: Array  # (d, d) or (d,)
    dual: Array  # its inverse transposed


def whitened_rows(rows, options):
    """Whiten the features of the rows."""
    xp = namespace(rows)
    n_classes = max(int(xp.max(rows.label)) + 1, 2)  # the rows of all processes
    n, d = rows.x.shape
    rotate = d <= _ROTATED and switches.on("heads.whitening")
    few = rotate and n * _FEW <= d and options.mesh is None
    center, moments = second_moments(rows, options.intercept, rotate and not few)
    if few:
        few = _comparable(moments, center)
    elif rotate and not _comparable(np.diagonal(moments), center):
        moments = xp.diagonal(moments)
    least = options.alpha if options.n_effective is None else options.alpha * _PATH
    ridge = np.asarray(least * n_classes, options.alpha.dtype)
    return Whitened(rows, *whiten(rows, center, moments, ridge, few))


@partial(in_either_library, static_argnames="rotate")
def second_moments(rows, intercept, rotate):
    """Means of the features, and their covariance matrix or only its diagonal."""
    weight = counted_weights(rows)
    center, library = intercept * total(weight @ rows.x), library_of(rows)
    d, xp = center.shape[0], library.xp

    def add(found, x, weight):
        x = (x - center[None, :]) * xp.sqrt(weight)[:, None]
        square = library.symmetric_product(x.T) if rotate else xp.sum(x**2, axis=0)
        return found + square

    start = xp.zeros((d, d) if rotate else d, center.dtype)
    return center, total(over_blocks(add, start, (rows.x, weight), d))


def _comparable(variance, center):
    """Whether the features are near enough in size for common principal axes."""
    variance, center = np.asarray(variance), np.asarray(center)
    eps = np.finfo(variance.dtype).eps
    varying = variance[np.sqrt(variance) > _CONSTANT * eps * np.abs(center)]
    return varying.size == 0 or varying.min() > 8 * _NULL * eps * varying.max()


@partial(
    in_either_library,
    rows_out=(True, False, False, False, False, False),
    static_argnames="few",
)
def whiten(rows, center, moments, ridge, few=False):
    """Principal axes of the features, each scaled to unit variance.

    ``ridge`` keeps directions without variance from being blown up. Where it is too
    small for that, those that rounding alone makes differ from zero are left out: the
    head does not grow along them. With very many features, or such of different size,
    each is only scaled.

    ``moments`` is the covariance, or its diagonal, which is enough where few rows tell
    the axes.
    """
    library, rotate = library_of(rows), few or moments.ndim == 2
    xp = library.xp
    weight, eps = counted_weights(rows), xp.finfo(center.dtype).eps
    d = center.shape[0]
    variance, axes = moments, None
    if rotate:
        variance, axes = _axes_of_few(rows, center) if few else library.eigh(moments)
    variance = xp.maximum(variance, 0)
    largest = xp.max(variance)
    # Single precision leaves noise of this size in every direction.
    noise = (32 * float(np.finfo(np.float32).eps)) ** 2 * xp.sum(variance)
    if rotate:
        null = _NULL * eps * largest
        floor = xp.maximum(d * eps * largest, noise)
    else:
        null = (_CONSTANT * eps * center) ** 2
        floor = null
    keep = (variance > null) | (ridge > null)
    floor = xp.maximum(ridge, floor)
    scale = xp.sqrt(variance + xp.where(floor > 0, floor, 1))
    inverse = xp.where(keep, 1 / scale, 0)
    basis = axes * inverse[None, :] if rotate else inverse
    kept_scale = xp.where(keep, scale, 0)
    dual = axes * kept_scale[None, :] if rotate else kept_scale
    # Before single precision: features of any size come down to size one.
    size = xp.max(scale)
    small = (basis * size).astype(xp.float32)

    def write(k, out):
        x, weight = (library.rows_from(a, k * block, block) for a in (rows.x, counts))
        x = xp.where(weight[:, None] > 0, (x - center[None, :]) / size, 0)
        x = x.astype(xp.float32)
        x = x @ small if rotate else x * small[None, :]
        return library.with_rows(out, x, k * block)

    counts, block = weight, block_rows(len(weight), d, library)
    empty = xp.zeros(rows.x.shape, xp.float32)
    # A last block that would reach beyond the end is moved back.
    single = library.fori_loop(0, -(-len(weight) // block), write, empty)
    # Even along a constant feature the preconditioner needs some curvature.
    relative = xp.maximum(variance / scale**2, _LEAST_VARIANCE)[:, None]
    return single, inverse[:, None] ** 2, relative, center, basis, dual


def _axes_of_few(rows, center):
    """Eigenvalues and vectors of the covariance of fewer rows than features.

    The rows span few axes, and a basis of all others is one of eigenvectors too.
    """
    weight, library = counted_weights(rows), library_of(rows)
    xp, count = library.xp, len(weight)
    x = (rows.x - center[None, :]) * xp.sqrt(weight)[:, None]
    basis, factor = xp.linalg.qr(x.T, mode="complete")
    variance, axes = library.eigh(library.symmetric_product(factor[:count]))
    axes = xp.concatenate([basis[:, :count] @ axes, basis[:, count:]], axis=1)
    return xp.append(variance, xp.zeros(len(center) - count, x.dtype)), axes


def counted_weights(rows):
    """Weights of the rows that count, each once, with sum one."""
    weight = weights_once(rows)
    return weight / total(namespace(weight).sum(weight))


def in_basis(basis, matrix):
    """``basis matrix`` for a full or a diagonal basis."""
    return basis @ matrix if basis.ndim == 2 else basis[:, None] * matrix


def transposed(basis):
    """The basis transposed, full or diagonal."""
    return basis.T if basis.ndim == 2 else basis


@in_either_library
def from_whitened(head, center, basis):
    """A head, or a direction, for the features as given."""
    weight = in_basis(basis, head.weight.astype(basis.dtype))
    return AffineHead(weight, head.bias.astype(basis.dtype) - center @ weight)


def to_whitened(head, center, dual):
    """The way back."""
    weight = in_basis(transposed(dual), head.weight)
    return AffineHead(weight, head.bias + center @ head.weight)


def gradient_to_whitened(gradient, center, basis):
    """Gradient in the whitened coordinates."""
    centered = gradient.weight - center[:, None] * gradient.bias[None, :]
    return AffineHead(in_basis(transposed(basis), centered), gradient.bias)
