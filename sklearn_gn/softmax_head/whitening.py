"""Newton systems in whitened features, which make single precision enough for them.

``x' = (x - center) basis`` has uncorrelated columns of variance 1 or less, and a head
``W', b'`` for it stands for ``W = basis W'``. The basis comes from one
eigendecomposition, or is a diagonal where features are very many or of very different
size. In these coordinates the Newton direction is found by conjugate gradients in
single precision, and then the least loss along it, roughly.

The preconditioner is the variance of each feature times the mean curvature of a class,
or one diagonal block of the Hessian for each class: for class c it is
``sum_i w_i p_ic (1 - p_ic) h_i h_i^T`` plus the penalty. A probability near 0 or 1 has
no curvature, so each block is a sum over few rows: the examples of the class and those
that compete with it.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn._typing import Array
from sklearn_gn.arrays.libraries import in_either_library, library_of, namespace
from sklearn_gn.arrays.parts import n_devices, total
from sklearn_gn.arrays.trees import add, dot
from sklearn_gn.linalg import factors
from sklearn_gn.linalg.krylov import conjugate_gradient
from sklearn_gn.optim.multinomial import (
    hessian_product,
    probabilities,
    to_columns,
)
from sklearn_gn.softmax_head.head import (
    AffineHead,
    BatchedRows,
    block_rows,
    gradient_norms,
    length_along,
    over_blocks,
    single,
    values,
    values_transposed,
    weights_once,
)

_ROTATED = 4096  # features at most that are rotated to principal axes, not just scaled
_CONSTANT = 16  # deviation of a constant from its mean, in units of rounding
_NULL = 8  # variance without meaning, in units of the rounding of the largest
_PATH = 1e-8  # least penalty that a search tries, over the first one
_LEAST_VARIANCE = 1e-3  # of a whitened feature, for the preconditioner
LEAST_CURVATURE = 1e-6  # of a class, relative to the largest
_FLAT = 0.3  # part of the slope that may be left where the line search ends
_LINE_ITERATIONS = 8
_ALIKE = 1e-4  # curvature left of a direction, that is made conjugate to another
_BLOCK_COST = 8  # products with the Hessian that building the blocks may cost
_LARGEST_SLOTS = 4096  # rows of a class block
_BLOCK_FLOATS = 2**26  # of all blocks together
_LEAST_REST = 1e-3  # of the curvature of a class, that is spread over all rows


# --- the coordinates -----------------------------------------------------------------


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
    d = rows.x.shape[1]
    rotate = d <= _ROTATED and switches.on("heads.whitening")
    center, moments = second_moments(rows, options.intercept, rotate)
    if rotate and not _comparable(np.diagonal(moments), center):
        moments = xp.diagonal(moments)
    least = options.alpha if options.n_effective is None else options.alpha * _PATH
    ridge = np.asarray(least * n_classes, options.alpha.dtype)
    return Whitened(rows, *whiten(rows, center, moments, ridge))


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


@partial(in_either_library, rows_out=(True, False, False, False, False, False))
def whiten(rows, center, moments, ridge):
    """Principal axes of the features, each scaled to unit variance.

    ``ridge`` keeps directions without variance from being blown up. Where it is too
    small for that, those that rounding alone makes differ from zero are left out: the
    head does not grow along them. With very many features, or such of different size,
    each is only scaled.

    ``moments`` is the covariance, or its diagonal.
    """
    library, rotate = library_of(rows), moments.ndim == 2
    xp = library.xp
    weight, eps = counted_weights(rows), xp.finfo(center.dtype).eps
    d = center.shape[0]
    variance, axes = moments, None
    if rotate:
        variance, axes = factors.eigenpairs(moments)
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
    block = block_rows(len(weight), d, library)

    def write(k, out):
        x, own = (library.rows_from(a, k * block, block) for a in (rows.x, weight))
        x = xp.where(own[:, None] > 0, (x - center[None, :]) / size, 0)
        x = x.astype(xp.float32)
        x = x @ small if rotate else x * small[None, :]
        return library.with_rows(out, x, k * block)

    # A last block that would reach beyond the end is moved back.
    empty = xp.zeros(rows.x.shape, xp.float32)
    found = library.fori_loop(0, -(-len(weight) // block), write, empty)
    # Even along a constant feature the preconditioner needs some curvature.
    relative = xp.maximum(variance / scale**2, _LEAST_VARIANCE)[:, None]
    return found, inverse[:, None] ** 2, relative, center, basis, dual


def counted_weights(rows):
    """Weights of the rows that count, each once, with sum one."""
    weight = weights_once(rows)
    return weight / total(namespace(weight).sum(weight))


def in_basis(basis, matrix):
    """``basis matrix`` for a full or a diagonal basis."""
    return basis @ matrix if basis.ndim == 2 else basis[:, None] * matrix


def to_whitened(head, center, dual):
    """A head, or a direction, for the whitened features."""
    return AffineHead(in_basis(dual.T, head.weight), head.bias + center @ head.weight)


def in_whitened(factor, squares):
    """What ``factor |W|^2`` is a factor of in each row of the whitened weights."""
    return namespace((factor, squares)).where(factor > 0, factor * squares, 0)


# --- the system ----------------------------------------------------------------------


class NewtonSettings(NamedTuple):
    """What the compiled functions need, as scalars."""

    alpha: np.ndarray
    damping: np.ndarray  # shift added to the Hessian
    intercept: np.ndarray
    cg_iterations: np.int32
    forcing: np.ndarray  # relative residual of the Newton system


class System(NamedTuple):
    """A Newton system in whitened coordinates, in single precision."""

    head: AffineHead
    weight: Array  # (L,) of the rows that count, sum one
    penalty: Array  # (d, 1) of the weights,
    shift: Array  # (d, 1) and with the damping
    variance: Array  # (d, 1) of the whitened features
    damping: Array  # of the biases
    intercept: Array


def system_at(net, data, settings):
    """The system at a head."""
    return single(
        System(
            to_whitened(net, data.center, data.dual),
            counted_weights(data.rows),
            in_whitened(settings.alpha, data.squares),
            in_whitened(settings.alpha + settings.damping, data.squares),
            data.variance,
            settings.damping,
            settings.intercept,
        )
    )


def class_curvature(p, weight):
    """The sums of ``w p (1 - p)`` over the rows, of each column."""
    xp = namespace(p)

    def body(found, p, weight):
        return found + weight @ (p * (1 - p))

    start = xp.zeros(p.shape[1], p.dtype)
    whole = to_columns(total(over_blocks(body, start, (p, weight), p.shape[1])))
    return xp.maximum(whole, LEAST_CURVATURE * xp.max(whole))


@in_either_library
def whitened_newton_direction(net, gradient, data, inverses, settings, last=None):
    """Inexact Newton step in single precision, and where to try it first.

    Where ``last``, the step before, is given, the direction is that of the least
    undamped model over both: damping alone would make it a gradient step, along which
    a minimum is approached slowly. Returns the direction, the step length near the
    least loss along it, the slope, and the number of iterations.
    """
    system, center, basis = system_at(net, data, settings), data.center, data.basis
    library = library_of(data.x)
    xp = library.xp
    centered = gradient.weight - center[:, None] * gradient.bias[None, :]
    whitened = AffineHead(in_basis(basis.T, centered), gradient.bias)
    size, _ = gradient_norms(whitened)
    right = library.tree_map(lambda g: -(g / size).astype(data.x.dtype), whitened)
    if last is not None:
        last = single(to_whitened(last, center, data.dual))
    # The probabilities are let go before there are other logits.
    unit_step, iterations = _solved(data.x, system, right, inverses, settings, last)
    direction = library.tree_map(lambda d: d.astype(size.dtype) * size, unit_step)
    slope = sum(xp.sum(d * g) for d, g in zip(direction, whitened, strict=True))
    along = single(direction)
    trial, *_ = length_along(
        values(system.head, data.x),
        values(along, data.x),
        data.rows.label,
        system.weight,
        slope.astype(data.x.dtype),
        xp.sum(system.penalty * along.weight**2),
        flat=_FLAT,
        max_iter=_LINE_ITERATIONS,
    )
    # Back to the features as given.
    weight = in_basis(basis, direction.weight.astype(basis.dtype))
    bias = direction.bias.astype(basis.dtype) - center @ weight
    direction = AffineHead(weight, bias)
    return direction, trial.astype(size.dtype), slope, iterations


def _solved(x, system, right, inverses, settings, last):
    """The solution of the system with a right side, and the number of iterations."""
    library = library_of(x)
    xp, p = library.xp, probabilities(values(system.head, x))

    def product(v, shift=system.shift, damping=system.damping):
        def body(carry, x, p, weight):
            forward = partial(values, x=x), partial(values_transposed, x)
            return library.tree_map(
                xp.add, carry, hessian_product(*forward, p, weight, v)
            )

        start = library.tree_map(xp.zeros_like, v)
        image = total(over_blocks(body, start, (x, p, system.weight), p.shape[1]))
        bias = system.intercept * (image.bias + damping * v.bias)
        return AffineHead(image.weight + shift * v.weight, bias)

    step, iterations, _ = conjugate_gradient(
        product,
        right,
        precondition=_preconditioner(
            system, class_curvature(p, system.weight), inverses
        ),
        tol=settings.forcing,
        max_iter=settings.cg_iterations,
    )
    if last is not None:
        undamped = partial(product, shift=system.penalty, damping=0 * system.damping)
        step = least_of_both(undamped, right, step, last)
    return step, iterations


def _preconditioner(system, curvature, inverses):
    """The preconditioner of conjugate gradients, one block a class.

    ``inverses`` are those of the blocks; if None, these are whitened features times the
    mean curvature of each class.
    """
    xp, shift, variance = namespace(curvature), system.shift, system.variance

    def by_class(r):
        if inverses is None:
            bias = system.intercept * r.bias / (curvature + system.damping)
            return AffineHead(r.weight / (variance * curvature[None, :] + shift), bias)
        stacked = xp.concatenate([r.weight, r.bias[None, :]]).T
        solved = xp.matmul(inverses, stacked[:, :, None])[:, :, 0].T
        return AffineHead(solved[:-1], solved[-1])

    if len(curvature) == 1:  # two classes
        return by_class

    def differences(head):
        return AffineHead(*(a - xp.mean(a, axis=-1, keepdims=True) for a in head))

    def precondition(r):
        # What moves all classes alike changes no probability. The blocks do not know
        # this, and would lead CG there.
        solved = differences(by_class(differences(r)))
        common = xp.mean(r.weight, axis=1, keepdims=True)
        common = common / (shift + variance * xp.mean(curvature))
        return solved._replace(weight=solved.weight + common)

    return precondition


def least_of_both(product, right, step, last):
    """Minimum of the quadratic model over two directions; ``step`` if it has none.

    ``product`` is that with the Hessian, and ``right`` minus the gradient.
    """
    xp = namespace(right)

    def length(direction, image, least):
        bend = dot(direction, image)
        usable = bend > least
        along = dot(direction, right) / xp.where(usable, bend, 1)
        return xp.where(usable, along, 0)

    image, image_of_last = product(step), product(last)
    bend, bend_of_last = dot(step, image), dot(last, image_of_last)
    share = -dot(step, image_of_last) / xp.where(bend > 0, bend, 1)
    # What rounding leaves of a last step along this one says nothing.
    least = _ALIKE * bend_of_last
    other = add(last, share, step)
    further = length(other, add(image_of_last, share, image), least)
    own = length(step, image, 0)
    return add(add(step, xp.where(own > 0, own - 1, 0), step), further, other)


# --- the blocks of the preconditioner ------------------------------------------------


def n_slots(shape, n_columns):
    """Rows that enter each class block, and what all blocks cost in products.

    A product takes 2 n d multiply-adds a class, and a block d^2 for each row and about
    d^3 for its inverse, which is ``_BLOCK_COST`` products at most; to choose and copy
    the rows takes as long. Rows are a power of two, or all, or 0 where the blocks do
    not pay.
    """
    n, d = shape
    most = _BLOCK_COST * 2 * n / d - d
    if most < 1 or n_columns * (d + 1) ** 2 > _BLOCK_FLOATS:
        return 0, 0.0
    slots = min(1 << (int(most).bit_length() - 1), n, _LARGEST_SLOTS)
    return slots, 2 * (slots + d) * d / (2 * n)


@partial(in_either_library, static_argnames="slots")
def class_blocks(net, data, settings, slots):
    """Inverses (m, d + 1, d + 1) of blocks of whitened features, in single precision.

    The ``slots`` rows of largest curvature ``p_c (1 - p_c)`` enter the block of a class
    with their features; the rest of its curvature counts as if it were spread over all
    rows. Without an intercept its row and column drop out.
    """
    system, x = system_at(net, data, settings), data.x
    library, slots = library_of(x), max(1, slots // n_devices())
    xp, p = library.xp, probabilities(values(system.head, x))
    whole = class_curvature(p, system.weight)
    curvature = to_columns(p * (1 - p) * system.weight[:, None])
    keep = xp.append(xp.ones(x.shape[1], x.dtype), system.intercept)
    ones = xp.full((min(slots, len(x)), 1), system.intercept)

    def block(arrays):
        k, whole = arrays
        kept, chosen = library.top_k(curvature[:, k][None, :], len(ones))
        h = xp.append(x[chosen[0]], ones, axis=1) * xp.sqrt(kept[0])[:, None]
        rest = xp.maximum(whole - total(xp.sum(kept)), _LEAST_REST * whole)
        spread = (system.shift + rest * system.variance)[:, 0]
        spread = xp.append(spread, rest + system.damping)
        matrix = total(h.T @ h) + xp.diag(spread)
        tiny = xp.finfo(matrix.dtype).tiny
        scale = library.rsqrt(xp.maximum(xp.diagonal(matrix), tiny))
        found = factors.factor(matrix * scale[:, None] * scale[None, :], overwrite=True)
        # A root R of the inverse, R^T R, lower triangular up to a scale of its columns.
        root = found.inverse_root() * (scale * keep)[None, :]
        return root.T @ root

    return library.map(block, (xp.arange(len(whole)), whole))
