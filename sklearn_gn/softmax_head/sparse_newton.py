r"""Newton's method for heads of sparse features, in the space of the rows.

The Gauss-Newton matrix of an affine head is the exact Hessian, ``X^T S X + alpha``. All
that a step needs are combinations of rows (:mod:`sklearn_gn.softmax_head.row_space`):

1.  conjugate gradients solve the Newton system in single precision, with one product
    ``K R`` of the Gram matrix an iteration, which the gradient needs as well;
2.  the step length is that of the least loss along the direction, found from logits
    alone, without a product with the features;
3.  logits, loss and gradient of the new head follow in the precision of the fit.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from sklearn_gn.core.solver import Algorithm
from sklearn_gn.softmax_head.head import Evaluation, head_report
from sklearn_gn.softmax_head.row_space import (
    Combination,
    RowHead,
    RowSpace,
    logits_of,
)

_BLOCK_ELEMENTS = 2**18  # logits of a row block: what fits into the cache
_FORCING = 0.25  # relative residual of a Newton system
_CG_ITERATIONS = 100
_LINE_ITERATIONS = 20
_FALLS = 1e-4  # slope of a step, over the loss, after which logits are computed anew
_FLAT = 0.1  # part of the slope that may be left where the line search ends


class SparseState(NamedTuple):
    """A head with its logits, and its gradient as a combination of rows."""

    net: RowHead
    loss: float
    own: np.ndarray  # (n, m) logits of the coefficients, without intercepts
    p: np.ndarray  # (n, m) probabilities, in single precision
    gradient: Combination  # of the coefficients, in single precision
    image: np.ndarray  # its logits
    evaluation: Evaluation  # with the gradient of the intercepts


class Direction(NamedTuple):
    """Change of a head."""

    weight: Combination
    bias: np.ndarray
    image: np.ndarray  # logits of the weight


def init(space, net, options):
    """Begin with a head, of zeros as a rule."""
    weight = net.weight
    zero = not (weight.start or weight.rows.any())
    return evaluated(space, net, options, weight.rows if zero else None)


def step(space, state, options):
    """One Newton step."""
    # 1. The direction.
    direction, iterations = newton_direction(space, state, options)
    # 2. Its length.
    length, slope = line_minimum(space, state, direction, options)
    columns = {
        "step_size": length,
        "damping": math.nan if options.damping is None else options.damping,
        "inner_iterations": iterations,
    }
    eps = float(np.finfo(state.own.dtype).eps)
    resolved = abs(slope) > 8 * eps * abs(state.loss)
    if length == 0:
        stop = "line_search" if resolved else "rounding"
        return state, head_report(state.evaluation, stop, options, **columns)
    # 3. The new head.
    bias = state.net.bias + length * direction.bias
    net = RowHead(state.net.weight.plus(length, direction.weight), bias)
    # While the loss falls much, the logits need not be exact.
    falls = abs(slope) > _FALLS * abs(state.loss)
    own = state.own + length * direction.image if falls else None
    new, stop = evaluated(space, net, options, own), None
    if not math.isfinite(new.loss):
        stop = "non_finite"
    elif float(new.evaluation.grad_max) <= float(options.tol):
        stop = "tol"
    elif not resolved and new.evaluation.grad_norm >= state.evaluation.grad_norm:
        stop = "rounding"
    return new, head_report(new.evaluation, stop, options, **columns)


def evaluated(space, net, options, own=None):
    """Return the state of a head: loss, gradient, and logits if they are not given."""
    rows, alpha = space.rows, options.alpha
    if own is None:
        own, _ = space.image(net.weight)
    logits = own + net.bias[None, :]
    found = evaluate(logits, rows.label, rows.weight)
    gradient = Combination(
        (found.error + alpha * net.weight.rows).astype(np.float32),
        float(alpha) * net.weight.start,
    )
    square = space.inner(net.weight, own, net.weight)
    image, largest = space.image(gradient)
    by_bias = rows.intercept * found.error.sum(axis=0)
    size = space.inner(gradient, image, gradient) + float(by_bias @ by_bias)
    evaluation = Evaluation(
        found.loss + 0.5 * float(alpha) * square,
        by_bias,
        found.dispersion,
        found.retained,
        found.dropped,
        found.separated,
        math.sqrt(max(size, 0.0)),
        max(largest, float(np.max(np.abs(by_bias)))),
    )
    loss = float(evaluation.loss)
    return SparseState(net, loss, own, found.p, gradient, image, evaluation)


# --- the cross-entropy ---------------------------------------------------------------


class RowValues(NamedTuple):
    """The cross-entropy of all rows and its derivative in the logits."""

    loss: float
    error: np.ndarray  # (n, m)
    p: np.ndarray  # (n, m) in single precision
    dispersion: float  # means over the rows
    retained: float
    dropped: float
    separated: bool


def evaluate(logits, label, weight):
    """Evaluate logits of m columns, split as in :mod:`sklearn_gn.core.multinomial`."""
    error = np.empty_like(logits)
    p = np.empty(logits.shape, np.float32)
    sums, separated = np.zeros(4), True
    for part in row_blocks(logits):
        z, t, w = logits[part], label[part], weight[part]
        if z.shape[1] == 1:
            z = np.concatenate([np.zeros_like(z), z], axis=1)
        index = np.arange(len(t)), t
        others = z.copy()
        others[index] = -np.inf
        top = others.max(axis=1)
        rho = np.exp(others - top[:, None])
        total = rho.sum(axis=1)
        rho /= total[:, None]
        margin = top + np.log(total) - z[index]
        p_true, p_rest = expit(-margin), expit(margin)
        xi = np.sum(rho * (1 - rho), axis=1)
        traces = xi, p_true * p_rest * (2 - xi), p_rest * xi
        sums += [w @ column for column in (np.logaddexp(0, margin), *traces)]
        separated &= bool(np.all(margin < 0))
        by_class = p_rest[:, None] * rho
        by_class[index] = p_true
        p[part] = by_class[:, -logits.shape[1] :]
        by_class[index] = -p_rest
        error[part] = w[:, None] * by_class[:, -logits.shape[1] :]
    return RowValues(float(sums[0]), error, p, *map(float, sums[1:]), separated)


def row_blocks(logits):
    """Return slices of rows, each with few logits."""
    size = max(1, _BLOCK_ELEMENTS // logits.shape[1])
    return [slice(k, k + size) for k in range(0, len(logits), size)]


def curvature_product(p, weight, change):
    """Return the second derivative of the cross-entropy times a change of logits."""
    out = np.empty_like(change)
    for part in row_blocks(change):
        q, u = p[part], change[part]
        qu = q * u
        out[part] = weight[part, None] * (qu - q * qu.sum(axis=1, keepdims=True))
    return out


# --- the direction -------------------------------------------------------------------


def newton_direction(space, state, options):
    """Solve the Newton system by conjugate gradients, in single precision.

    Preconditioned by the penalty for the coefficients and by the curvature for the
    intercepts.

    Returns
    -------
    direction : Direction
    iterations : int
    """
    single, rows, p = np.float32, space.rows, state.p
    weight = rows.weight.astype(single)
    damping = single(options.damping or 0)
    shift = single(options.alpha) + damping
    curvature = weight @ (p * (1 - p))
    curvature = np.maximum(curvature, 1e-6 * curvature.max()) + damping
    most = _CG_ITERATIONS if options.rank is None else options.rank

    unit = shift if shift > 0 else single(1)

    def size_and_preconditioned(r):
        z = Combination(r.weight.rows / unit, r.weight.start / float(unit))
        z = Direction(z, rows.intercept * r.bias / curvature, r.image / unit)
        return space.inner(r.weight, r.image, z.weight) + float(r.bias @ z.bias), z

    # Scaled to size one, so that squares are numbers in single precision.
    scale = float(state.evaluation.grad_norm) or 1.0
    negative = Combination(
        -state.gradient.rows / single(scale), -state.gradient.start / scale
    )
    residual = Direction(
        negative,
        (-state.evaluation.gradient / scale).astype(single),
        -state.image / single(scale),
    )
    size, along = size_and_preconditioned(residual)
    zero = Combination(np.zeros_like(p), 0.0)
    found = Direction(zero, np.zeros_like(residual.bias), np.zeros_like(p))
    first, iterations = size, 0
    while iterations < most and size > _FORCING**2 * first and size > 0:
        change = along.image + along.bias[None, :]
        curved = curvature_product(p, weight, change)
        bend = float(np.vdot(change, curved)) + float(shift) * space.inner(
            along.weight, along.image, along.weight
        )
        bend += float(damping) * float(np.linalg.norm(along.bias.astype(float))) ** 2
        if not bend > 0:
            break
        length = size / bend
        found = _moved(found, length, along)
        image_of = Combination(
            curved + shift * along.weight.rows, float(shift) * along.weight.start
        )
        left = residual.weight.plus(-length, image_of)
        by_bias = curved.sum(axis=0) + damping * along.bias
        bias = residual.bias - single(length) * rows.intercept * by_bias
        residual = Direction(left, bias, space.image(left)[0])
        before, (size, z) = size, size_and_preconditioned(residual)
        along = _moved(z, size / before, along)
        iterations += 1
    cast = single(scale)
    weight = Combination(found.weight.rows * cast, found.weight.start * scale)
    return Direction(weight, found.bias * cast, found.image * cast), iterations


def _moved(start, length, direction):
    """``start + length * direction``."""
    single = np.float32(length)
    return Direction(
        start.weight.plus(length, direction.weight),
        start.bias + single * direction.bias,
        start.image + single * direction.image,
    )


def line_minimum(space, state, direction, options):
    """Find the least loss along a direction by Newton's method in a bracket.

    Logits are linear in the length, so that no product with the features is needed.

    Returns
    -------
    length : float
        0 where the loss does not fall.
    slope : float
        At the start.
    """
    rows, weight = space.rows, direction.weight
    change = direction.image + direction.bias[None, :]
    logits = state.own + state.net.bias[None, :]
    alpha = float(options.alpha)
    tilt = alpha * space.inner(weight, direction.image, state.net.weight)
    bend = alpha * space.inner(weight, direction.image, weight)

    def derivatives(t):
        first = second = 0.0
        for part in row_blocks(change):
            u, w = change[part], rows.weight[part]
            p = _probabilities(logits[part] + t * u)
            mean = np.sum(p * u, axis=1)
            first += w @ (mean - _at_label(u, rows.label[part]))
            second += w @ (np.sum(p * u * u, axis=1) - mean * mean)
        return float(first) + tilt + t * bend, float(second) + bend

    # The slope at zero is exact as a product with the gradient.
    slope = space.inner(state.gradient, state.image, weight)
    slope += float(state.evaluation.gradient @ direction.bias)
    if not slope < 0:
        return 0.0, slope
    correction = slope - derivatives(0.0)[0]
    lower, upper, length = 0.0, math.inf, 1.0
    for _ in range(_LINE_ITERATIONS):
        first, curvature = derivatives(length)
        first += correction
        if abs(first) <= _FLAT * abs(slope):
            return length, slope
        lower, upper = (length, upper) if first < 0 else (lower, length)
        newton = length - first / max(curvature, np.finfo(float).tiny)
        middle = 4 * length if math.isinf(upper) else (lower + upper) / 2
        inside = lower < newton < min(upper, 8 * length)
        length = newton if inside else middle
    return lower, slope


def _probabilities(logits):
    """Softmax of the free columns."""
    if logits.shape[1] == 1:
        return expit(logits)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def _at_label(values, label):
    """Values of the true classes; of two classes the first has the value zero."""
    if values.shape[1] == 1:
        return values[:, 0] * label
    return values[np.arange(len(label)), label]


# --- what is known of a fitted head ---------------------------------------------------


def evaluation_and_spectrum(head, rows, options, n_examples):
    """Evaluate the coefficients of a head, and the FGN matrix of a few rows.

    Returns
    -------
    found : RowValues
        The loss with the penalty.
    spectrum : ndarray of shape (n_examples,)
        Eigenvalues for rows at equal distances, descending.
    """
    logits = logits_of(head, rows)
    found = evaluate(logits, rows.label, rows.weight)
    square = float(np.vdot(head.weight, head.weight))
    found = found._replace(loss=found.loss + 0.5 * float(options.alpha) * square)
    n = len(rows.label)
    few = np.unique(np.linspace(0, n - 1, min(n_examples, n)).astype(int))
    weight = rows.weight[few] / rows.weight[few].sum()
    # The gradient of the cross-entropy is p_rest times that of the margin.
    label, x = rows.label[few], rows.x[few]
    error = evaluate(logits[few], label, np.ones(len(few))).error
    p_rest = np.max(np.abs(error), axis=1)
    root = np.sqrt(weight * (1 - p_rest) / np.where(p_rest > 0, p_rest, 1))
    direction = root[:, None] * error
    gram = ((x @ x.T).toarray() + rows.intercept) * (direction @ direction.T)
    return found, np.maximum(np.linalg.eigvalsh(gram)[::-1], 0)


def prepare(rows, options):
    """Return the products with the rows."""
    del options
    return RowSpace(rows)


SPARSE_NEWTON = Algorithm("fgn_newton", init, step, prepare=prepare, compiled=False)
SPARSE_ALGORITHMS = {SPARSE_NEWTON.name: SPARSE_NEWTON}
