r"""Newton's method for the affine softmax head, to the optimum.

Mini-batch FGN comes near the optimum quickly and then hovers. Here the full softmax
Gauss-Newton matrix, which for an affine head is the exact Hessian, takes over:

1.  the features are whitened, which costs one eigendecomposition and makes single
    precision enough for all that is only approximate;
2.  a few epochs of FGN with rising damping replace the Newton steps that a line search
    would cut short;
3.  Newton steps follow by conjugate gradients in single precision, preconditioned by
    one block a class, with gradient and loss in the precision of the fit.

The blocks are those of the Hessian, ``sum_i w_i p_ic (1 - p_ic) h_i h_i^T`` for
class c. A probability near 0 or 1 has no curvature, so each block is a sum over few
rows: the examples of the class and those that compete with it.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.core.affine import AffineHead, all_classes, columns, to_columns
from sklearn_gn.core.fgn import curvature_rows, solve_rows
from sklearn_gn.core.linear_algebra.blocks import symmetric_product
from sklearn_gn.core.linear_algebra.krylov import conjugate_gradient
from sklearn_gn.core.softmax import (
    covariance_product,
    is_true_class,
    margins,
)
from sklearn_gn.core.solver import Algorithm
from sklearn_gn.softmax_head.fgn import (
    Data,
    Rows,
    block_rows,
    evaluate,
    gradient_norms,
    head_report,
    over_blocks,
    sweep,
    uniform,
)

_ROTATED = 4096  # features at most that are rotated to principal axes, not just scaled
_CONSTANT = 16  # deviation of a constant from its mean, in units of rounding
_NULL = 8  # variance without meaning, in units of the rounding of the largest
_START_DAMPINGS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the FGN epochs, whitened features
_START_BATCH = 512
_START_PARAMETERS = 2**15  # fewer are cheaper to bring near the optimum by Newton steps
_FORCING = 0.1  # relative residual of the Newton system
_CG_ITERATIONS = 100
_FLAT = 0.3  # part of the slope that may be left where the line search ends
_LINE_ITERATIONS = 8
_LARGEST_SLOTS = 4096  # rows of a class block
_BLOCK_FLOATS = 2**26  # of all blocks together
_LEAST_CURVATURE = 1e-6  # of a class, relative to the largest
_LEAST_VARIANCE = 1e-3  # of a whitened feature, for the preconditioner
_BLOCK_COST = 8  # products with the Hessian that building the blocks may cost
_ARMIJO = 1e-4
_HALVINGS = 30


class Whitened(NamedTuple):
    """The rows, and their features once more in whitened coordinates.

    Gradient and loss come from the features as given. Where single precision will do,
    ``x' = (x - center) basis`` stands for them, with ``W = basis W'``.
    """

    rows: Rows
    x: jnp.ndarray  # (L, d)  whitened, in single precision
    penalty: jnp.ndarray  # (d, 1)  alpha |basis e_j|^2
    variance: jnp.ndarray  # (d, 1)  of the whitened features, 1 or less
    center: jnp.ndarray  # (d,)
    basis: jnp.ndarray  # (d, d) or (d,)
    dual: jnp.ndarray  # its inverse transposed
    memo: dict  # the preconditioner by the head at which it was built


class State(NamedTuple):
    """Head, gradient, and the phase of the method."""

    net: AffineHead
    loss: float
    gradient: AffineHead
    epoch: int  # of the FGN start; past the last one: Newton
    anchor: AffineHead | None = None  # where the preconditioner was built
    usual: int = 0  # CG iterations there
    last: int = 0


# --- coordinates ---------------------------------------------------------------------


def prepare(rows, options):
    """Whiten the features."""
    rows = jax.device_put(rows)
    n_classes = max(int(np.max(rows.label)) + 1, 2)
    rotate = rows.x.shape[1] <= _ROTATED
    center, moments = second_moments(rows, options.intercept, rotate)
    if rotate and not _comparable(np.diagonal(moments), center):
        moments = jnp.diagonal(moments)
    ridge = np.asarray(options.alpha * n_classes, options.alpha.dtype)
    x, scale, *rest = whiten(rows, center, moments, ridge)
    return Whitened(rows, x, options.alpha * scale, *rest, memo={})


@partial(jax.jit, static_argnames="rotate")
def second_moments(rows, intercept, rotate):
    """Means of the features, and their covariance matrix or only its diagonal."""
    weight = counted(rows)
    center = intercept * (weight @ rows.x)
    d = center.shape[0]

    def add(total, x, weight):
        x = (x - center[None, :]) * jnp.sqrt(weight)[:, None]
        return total + (x.T @ x if rotate else jnp.sum(x**2, axis=0))

    start = jnp.zeros((d, d) if rotate else d, center.dtype)
    return center, over_blocks(add, start, (rows.x, weight), d)


def _comparable(variance, center):
    """Whether the features are near enough in size for common principal axes."""
    variance, center = np.asarray(variance), np.asarray(center)
    eps = np.finfo(variance.dtype).eps
    varying = variance[np.sqrt(variance) > _CONSTANT * eps * np.abs(center)]
    return varying.size == 0 or varying.min() > 8 * _NULL * eps * varying.max()


@jax.jit
def whiten(rows, center, moments, ridge):
    """Principal axes of the features, each scaled to unit variance.

    ``ridge`` keeps directions without variance from being blown up. Where it is too
    small for that, those that rounding alone makes differ from zero are left out: the
    head does not grow along them. With very many features, or such of different size,
    each is only scaled.
    """
    rotate = moments.ndim == 2
    weight, eps = counted(rows), jnp.finfo(center.dtype).eps
    d = center.shape[0]
    variance, axes = jnp.linalg.eigh(moments) if rotate else (moments, None)
    variance = jnp.maximum(variance, 0)
    largest = jnp.max(variance)
    # Single precision leaves noise of this size in every direction.
    noise = (32 * float(np.finfo(np.float32).eps)) ** 2 * jnp.sum(variance)
    if rotate:
        null = _NULL * eps * largest
        floor = jnp.maximum(d * eps * largest, noise)
    else:
        null = (_CONSTANT * eps * center) ** 2
        floor = null
    keep = (variance > null) | (ridge > null)
    floor = jnp.maximum(ridge, floor)
    scale = jnp.sqrt(variance + jnp.where(floor > 0, floor, 1))
    inverse = jnp.where(keep, 1 / scale, 0)
    basis = axes * inverse[None, :] if rotate else inverse
    kept_scale = jnp.where(keep, scale, 0)
    dual = axes * kept_scale[None, :] if rotate else kept_scale
    # Before single precision: features of any size come down to size one.
    size = jnp.max(scale)
    small = (basis * size).astype(jnp.float32)

    def write(k, out):
        x, weight = (
            lax.dynamic_slice_in_dim(a, k * block, block) for a in (rows.x, counts)
        )
        x = jnp.where(weight[:, None] > 0, (x - center[None, :]) / size, 0)
        x = x.astype(jnp.float32)
        x = x @ small if rotate else x * small[None, :]
        return lax.dynamic_update_slice_in_dim(out, x, k * block, axis=0)

    counts, block = weight, block_rows(len(weight), d)
    empty = jnp.zeros(rows.x.shape, jnp.float32)
    n_blocks = jnp.int32(len(weight) // block)
    single = lax.fori_loop(jnp.int32(0), n_blocks, write, empty)
    # Even along a constant feature the preconditioner needs some curvature.
    relative = jnp.maximum(variance / scale**2, _LEAST_VARIANCE)[:, None]
    return single, inverse[:, None] ** 2, relative, center, basis, dual


def counted(rows):
    """Weights of the rows that count, each once, with sum one."""
    mask = jnp.arange(rows.weight.shape[0], dtype=jnp.int32) < rows.n_rows
    weight = jnp.where(mask, rows.weight, 0)
    return weight / jnp.sum(weight)


def change(basis, matrix):
    """``basis matrix`` for a full or a diagonal basis."""
    return basis @ matrix if basis.ndim == 2 else basis[:, None] * matrix


def transposed(basis):
    """The basis transposed, full or diagonal."""
    return basis.T if basis.ndim == 2 else basis


@jax.jit
def from_whitened(head, center, basis):
    """A head, or a direction, for the features as given."""
    weight = change(basis, head.weight.astype(basis.dtype))
    return AffineHead(weight, head.bias.astype(basis.dtype) - center @ weight)


def to_whitened(head, center, dual):
    """The way back."""
    weight = change(transposed(dual), head.weight)
    return AffineHead(weight, head.bias + center @ head.weight)


def gradient_to_whitened(gradient, center, basis):
    """Gradient in the whitened coordinates."""
    centered = gradient.weight - center[:, None] * gradient.bias[None, :]
    return AffineHead(change(transposed(basis), centered), gradient.bias)


# --- the FGN start -------------------------------------------------------------------


@partial(jax.jit, static_argnames="batch_size")
def start_epoch(net, data, damping, intercept, batch_size):
    """One epoch of full FGN steps in single precision, on whitened features."""
    penalty, weight = _single((data.penalty, data.rows.weight))

    def update(head, batch):
        x, label, weight, _ = batch
        split = margins(all_classes(columns(head, x)), label)
        root, slope, by_class = curvature_rows(split, weight, 0)
        direction = to_columns(by_class)
        features = (symmetric_product(x) + intercept) / damping
        gram = features * (direction @ direction.T)
        pull = jnp.sum(direction * (x @ (penalty * head.weight)), axis=1) / damping
        slope = slope - root * root * pull
        back = solve_rows(gram, root, slope, jnp.sum(weight), 0)[:, None] * direction
        return AffineHead(
            head.weight - (penalty * head.weight + x.T @ back) / damping,
            head.bias - intercept / damping * jnp.sum(back, axis=0),
        )

    rows = data.rows._replace(
        x=data.x, weight=weight, n_batches=data.rows.n_rows // batch_size
    )
    head = _single(to_whitened(net, data.center, data.dual))
    head = sweep(update, head, Data(rows, None), batch_size)
    return from_whitened(head, data.center, data.basis)


def _start(data, state, options):
    """An epoch of FGN; its head is kept if the loss falls."""
    n = int(data.rows.n_rows)
    # A power of two, which divides the padded rows.
    batch_size = min(_START_BATCH, 1 << (n.bit_length() - 1))
    damping = _START_DAMPINGS[state.epoch]
    net = start_epoch(
        state.net,
        data._replace(memo=None),
        np.float32(damping),
        np.float32(options.intercept),
        batch_size,
    )
    found = evaluate(net, data.rows, uniform(options.alpha), options.intercept)
    if not float(found.loss) < state.loss:
        return None
    return net, found, damping


# --- Newton's method -----------------------------------------------------------------


def _probabilities(head, x):
    return jax.nn.softmax(all_classes(columns(head, x)), axis=1)


def _single(tree):
    return jax.tree.map(lambda a: a.astype(jnp.float32), tree)


@partial(jax.jit, static_argnames="slots")
def class_blocks(net, data, intercept, slots):
    """Inverses of the class blocks of the Hessian, of shape (m, d + 1, d + 1).

    The ``slots`` rows of largest curvature ``p_c (1 - p_c)`` enter the block of a class
    with their features; the rest of its curvature counts as if it were spread over all
    rows.
    """
    head, weight, penalty, variance = _single(
        (
            to_whitened(net, data.center, data.dual),
            counted(data.rows),
            data.penalty,
            data.variance,
        )
    )
    x, d = data.x, data.x.shape[1]
    p = _probabilities(head, x)
    curvature = to_columns(p * (1 - p) * weight[:, None])
    total = jnp.sum(curvature, axis=0)
    total = jnp.maximum(total, _LEAST_CURVATURE * jnp.max(total))
    kept, rows_of = lax.top_k(curvature.T, slots)
    rest = jnp.maximum(total - jnp.sum(kept, axis=1), 1e-3 * total)

    def inverse(block):
        index, curvature, rest = block
        h = jnp.concatenate([x[index], jnp.ones((slots, 1), x.dtype)], axis=1)
        spread = jnp.append((penalty + rest * variance)[:, 0], rest)
        matrix = (h * curvature[:, None]).T @ h + jnp.diag(spread)
        scale = lax.rsqrt(jnp.maximum(jnp.diagonal(matrix), jnp.finfo(x.dtype).tiny))
        matrix = matrix * scale[:, None] * scale[None, :]
        factor = lax.linalg.cholesky(matrix, symmetrize_input=False)
        root = lax.linalg.triangular_solve(
            factor, jnp.eye(d + 1, dtype=x.dtype), left_side=True, lower=True
        )
        root = root * scale[None, :]
        return root.T @ root

    inverses = lax.map(inverse, (rows_of, kept, rest))
    # Without an intercept its row and column drop out.
    keep = jnp.append(jnp.ones(d, x.dtype), intercept.astype(x.dtype))
    return inverses * keep[None, :, None] * keep[None, None, :]


@jax.jit
def newton_direction(net, gradient, data, inverses, intercept):
    """Inexact Newton step in single precision, and where to try it first.

    Returns
    -------
    direction : AffineHead
    trial : scalar
        Step length near the least loss along the direction.
    slope : scalar
    iterations : scalar
    """
    rows, x = data.rows, data.x
    single, weight, penalty, variance, intercept = _single(
        (
            to_whitened(net, data.center, data.dual),
            counted(rows),
            data.penalty,
            data.variance,
            intercept,
        )
    )
    n_classes = max(net.bias.shape[0], 2)
    p = _probabilities(single, x)
    curvature = jnp.sum(weight[:, None] * p * (1 - p), axis=0)
    least = _LEAST_CURVATURE * jnp.max(curvature)
    curvature = to_columns(jnp.maximum(curvature, least))

    def product(v):
        def body(carry, x, p, weight):
            change = covariance_product(p, all_classes(columns(v, x)))
            change = to_columns(change * weight[:, None])
            return AffineHead(
                carry.weight + x.T @ change, carry.bias + jnp.sum(change, axis=0)
            )

        start = jax.tree.map(jnp.zeros_like, v)
        image = over_blocks(body, start, (x, p, weight), n_classes)
        return AffineHead(image.weight + penalty * v.weight, intercept * image.bias)

    def by_kronecker(r):
        # Whitened features times the mean curvature of each class.
        scale = variance * curvature[None, :] + penalty
        return AffineHead(r.weight / scale, intercept * r.bias / curvature)

    def by_blocks(r):
        stacked = jnp.concatenate([r.weight, r.bias[None, :]]).T
        solved = jnp.einsum("cij,cj->ci", inverses, stacked).T
        return AffineHead(solved[:-1], solved[-1])

    whitened = gradient_to_whitened(gradient, data.center, data.basis)
    size, _ = gradient_norms(whitened)
    right = jax.tree.map(lambda g: -(g / size).astype(x.dtype), whitened)
    step, iterations, _ = conjugate_gradient(
        product,
        right,
        precondition=by_kronecker if inverses is None else by_blocks,
        tol=jnp.asarray(_FORCING, x.dtype),
        max_iter=_CG_ITERATIONS,
    )
    direction = jax.tree.map(lambda d: d.astype(size.dtype) * size, step)
    slope = sum(jnp.sum(d * g) for d, g in zip(direction, whitened, strict=True))
    along = _single(direction)
    trial = _line_minimum(
        all_classes(columns(single, x)),
        all_classes(columns(along, x)),
        rows.label,
        weight,
        (slope.astype(x.dtype), jnp.sum(penalty * along.weight**2)),
    )
    direction = from_whitened(direction, data.center, data.basis)
    return direction, trial.astype(size.dtype), slope, iterations


def _line_minimum(here, move, label, weight, slope_and_bend):
    """Rough zero of the derivative along a direction, by Newton's method in a bracket.

    The logits ``here + t move`` need no product with the features. The loss is convex,
    so the zero is unique. ``slope_and_bend`` are the derivative at zero and the second
    derivative of the penalty.
    """
    slope, bend = slope_and_bend
    true = is_true_class(label, here.shape[1])

    def mean_move(t):
        p = jax.nn.softmax(here + t * move, axis=1)
        first = jnp.sum(p * move, axis=1)
        second = jnp.sum(p * move**2, axis=1) - first**2
        at_true = jnp.sum(jnp.where(true, move, 0), axis=1)
        return weight @ (first - at_true), weight @ second

    # What the penalty adds at zero, from the exact slope.
    at_zero, _ = mean_move(jnp.zeros_like(slope))
    correction = slope - at_zero

    def improve(carry):
        t, lower, upper, _, count = carry
        first, second = mean_move(t)
        first = first + correction + t * bend
        lower = jnp.where(first < 0, t, lower)
        upper = jnp.where(first < 0, upper, t)
        newton = t - first / jnp.maximum(second + bend, jnp.finfo(t.dtype).tiny)
        inside = (newton > lower) & (newton < jnp.minimum(upper, 8 * t))
        middle = jnp.where(jnp.isinf(upper), 4 * t, (lower + upper) / 2)
        good = jnp.abs(first) <= _FLAT * jnp.abs(slope)
        new = jnp.where(good, t, jnp.where(inside, newton, middle))
        return new, lower, upper, good, count + 1

    start = jnp.ones_like(slope)
    t, *_ = lax.while_loop(
        lambda c: ~c[3] & (c[4] < _LINE_ITERATIONS),
        improve,
        (start, 0 * start, jnp.inf * start, jnp.bool_(False), jnp.int32(0)),
    )
    return t


def _slots(data, n_columns):
    """Rows that enter a class block; 0 where blocks are too large to be worth it."""
    n, d = data.x.shape
    # In products with the Hessian, of 4 n d multiply-adds a class: d^2 for each row of
    # a block, and about d^3 for its inverse.
    most = (_BLOCK_COST - d * d / (4 * n)) * 2 * n / d
    if most < 1 or n_columns * (d + 1) ** 2 > _BLOCK_FLOATS:
        return 0
    return min(1 << (int(most).bit_length() - 1), n, _LARGEST_SLOTS)


def _preconditioner(data, state, options):
    """Inverses of the class blocks, built again when CG has become slow."""
    slots = _slots(data, state.net.bias.shape[0])
    if not slots:
        return None, state
    if state.anchor is None or state.last > 2 * state.usual + 5:
        state = state._replace(anchor=state.net, usual=0)
    if data.memo.get("anchor") is not state.anchor:
        data.memo["anchor"] = state.anchor
        data.memo["inverses"] = class_blocks(
            state.anchor, data._replace(memo=None), options.intercept, slots
        )
    return data.memo["inverses"], state


def init(data, net, options):
    """Start at a given head; FGN epochs follow only where it is zero."""
    net = jax.device_put(net)
    found = evaluate(net, data.rows, uniform(options.alpha), options.intercept)
    fresh = not np.any(net.weight) and net.weight.size >= _START_PARAMETERS
    epoch = 0 if fresh else len(_START_DAMPINGS)
    return State(net, float(found.loss), found.gradient, epoch)


def step(data, state, options):
    """An epoch of FGN while it lowers the loss, then a Newton step."""
    if state.epoch < len(_START_DAMPINGS):
        taken = _start(data, state, options)
        if taken is not None:
            net, found, damping = taken
            state = state._replace(epoch=state.epoch + 1)
            columns = {"step_size": 1.0, "damping": damping}
            return _finish(state, net, found, options, **columns)
        state = state._replace(epoch=len(_START_DAMPINGS))
    return _newton_step(data, state, options)


def _newton_step(data, state, options):
    inverses, state = _preconditioner(data, state, options)
    direction, length, slope, iterations = newton_direction(
        state.net,
        state.gradient,
        data._replace(memo=None),
        inverses,
        options.intercept,
    )
    length, slope, iterations = float(length), float(slope), int(iterations)
    state = state._replace(last=iterations, usual=state.usual or iterations)
    net, found, length = _line_search(data, state, direction, length, slope, options)
    stop = None
    if found is None:
        net = state.net
        found = evaluate(net, data.rows, uniform(options.alpha), options.intercept)
        eps = float(np.finfo(data.rows.x.dtype).eps)
        # A system that CG cannot even begin with says nothing about the loss.
        flat = iterations and abs(slope) <= math.sqrt(eps) * max(abs(state.loss), eps)
        stop = "rounding" if flat else "line_search"
    columns = {"step_size": length, "inner_iterations": iterations}
    return _finish(state, net, found, options, stop=stop, **columns)


def _line_search(data, state, direction, length, slope, options):
    """Halve the step until the loss falls enough.

    Where the loss no longer resolves the step, a gradient of half the size decides.
    """
    if not slope < 0:
        return None, None, 0.0
    rounding = 8 * float(np.finfo(data.rows.x.dtype).eps) * abs(state.loss)
    resolved = -slope > rounding
    size = float(gradient_norms(state.gradient)[0])
    for _ in range(_HALVINGS if resolved else 1):
        net = moved(state.net, direction, np.asarray(length, data.rows.x.dtype))
        found = evaluate(net, data.rows, uniform(options.alpha), options.intercept)
        loss = float(found.loss)
        if resolved:
            good = loss <= state.loss + _ARMIJO * length * slope
        else:
            halved = float(gradient_norms(found.gradient)[0]) <= size / 2
            good = halved and loss <= state.loss + rounding
        if good:
            return net, found, length
        length /= 2
    return None, None, 0.0


@jax.jit
def moved(net, direction, length):
    """The head a step further."""
    return jax.tree.map(lambda p, d: p + length * d, net, direction)


def _finish(state, net, found, options, *, stop=None, **columns):
    """State and report of an evaluated head."""
    loss = float(found.loss)
    if not math.isfinite(loss):
        stop = "non_finite"
    elif float(gradient_norms(found.gradient)[1]) <= float(options.tol):
        stop = "tol"
    state = state._replace(net=net, loss=loss, gradient=found.gradient)
    return state, head_report(found, stop, options, **columns)


FGN_NEWTON = Algorithm("fgn_newton", init, step, prepare=prepare)
