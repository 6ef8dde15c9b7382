r"""Newton's method for heads of sparse features, in the space of the rows.

The Gauss-Newton matrix of an affine head is the exact Hessian, ``X^T S X + alpha``. All
that a step needs are combinations of rows (:mod:`sklearn_gn.softmax_head.row_space`):

1.  conjugate gradients solve the Newton system in single precision, with one product
    ``K R`` of the Gram matrix an iteration, which for the first one is that of the
    gradient. The product is what costs, and a new Hessian costs next to nothing: so
    systems are solved roughly, and the last step is one of the directions;
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
_FORCING = 0.9  # relative residual of a Newton system, in its rows,
_ROUGH = 10  # for so many steps; then it falls as the number of steps rises
_LITTLE = (
    0.5  # times the same: gain of an iteration, over the mean gain, that is little
)
_SOLVED = 0.1  # residual of the last Newton systems
_CG_ITERATIONS = 100
_LINE_ITERATIONS = 20
_FALLS = 1e-4  # slope of a step, over that of exact logits, that makes them exact anew
_CLOSE = 1e-10  # slope, over the loss, from which on logits are exact, systems solved
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
    exact: float  # slope, or loss, at which the logits were exact
    n_steps: int = 0
    last: "Direction | None" = None  # of the last step


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
    last, iterations = newton_direction(space, state, options)
    direction = _scaled(last, float(state.evaluation.grad_norm) or 1.0)
    # 2. Its length.
    length, slope = line_minimum(space, state, direction, options)
    columns = {
        "step_size": length,
        "damping": math.nan if options.damping is None else options.damping,
        "inner_iterations": iterations,
    }
    eps = float(np.finfo(state.own.dtype).eps)
    noise = space.cancelled(state.gradient, direction.weight)
    resolved = abs(slope) > 8 * eps * abs(state.loss) + noise
    if length == 0:
        stop = "line_search" if resolved else "rounding"
        return state, head_report(state.evaluation, stop, options, **columns)
    # 3. The new head.
    bias = state.net.bias + length * direction.bias
    net = RowHead(state.net.weight.plus(length, direction.weight), bias)
    # Changes of the logits are of single precision: exact for small changes.
    close = abs(slope) <= _CLOSE * abs(state.loss)
    exact = close or abs(slope) <= _FALLS * state.exact
    own = None if exact else state.own + length * direction.image
    new, stop = evaluated(space, net, options, own), None
    if not exact and float(new.evaluation.grad_max) <= float(options.tol):
        exact, new = True, evaluated(space, net, options)
    since = abs(slope) if exact else state.exact
    new = new._replace(exact=since, n_steps=state.n_steps + 1, last=last)
    if not math.isfinite(new.loss):
        stop = "non_finite"
    elif float(new.evaluation.grad_max) <= float(options.tol):
        stop = "tol"
    elif not resolved and new.evaluation.grad_norm >= state.evaluation.grad_norm:
        stop = "rounding"
    if not resolved and stop != "rounding" and new.loss >= state.loss:
        new = _just_below(new, state.loss)
    return new, head_report(new.evaluation, stop, options, **columns)


def _just_below(state, loss):
    """Return a state of a smaller gradient, whose lower loss rounding errors hide."""
    loss = math.nextafter(loss, -math.inf)
    return state._replace(loss=loss, evaluation=state.evaluation._replace(loss=loss))


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
    return SparseState(net, loss, own, found.p, gradient, image, evaluation, abs(loss))


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


class Curved(NamedTuple):
    """The Hessian times a direction, or a negative gradient, by their rows."""

    weight: Combination
    bias: np.ndarray


class NewtonSystem:
    """Hessian, right side and preconditioner of a step, in single precision.

    The gradient is scaled to size one, so that squares are numbers in this precision.
    The preconditioner is the penalty for the coefficients and the curvature for the
    intercepts.
    """

    def __init__(self, space, state, options):
        single = np.float32
        self.space, self.p = space, state.p
        self.weight = space.rows.weight.astype(single)
        self.damping = single(options.damping or 0)
        self.shift = single(options.alpha) + self.damping
        self.unit = self.shift if self.shift > 0 else single(1)
        curvature = self.weight @ (self.p * (1 - self.p))
        self.curvature = np.maximum(curvature, 1e-6 * curvature.max()) + self.damping
        self.scale = float(state.evaluation.grad_norm) or 1.0
        divisor = -single(self.scale)
        self.right_side = Curved(
            Combination(
                state.gradient.rows / divisor, -state.gradient.start / self.scale
            ),
            (-state.evaluation.gradient / self.scale).astype(single),
        )
        self.image = state.image / divisor

    def preconditioned(self, residual, image):
        """Return the direction of a residual, of which the logits are given."""
        weight, unit = residual.weight, self.unit
        return Direction(
            Combination(weight.rows / unit, weight.start / float(unit)),
            self.space.rows.intercept * residual.bias / self.curvature,
            image / unit,
        )

    def product(self, along):
        """Return the Hessian times a direction, which takes no product with features.

        Returns
        -------
        curved : Curved
        bend : float
            Second derivative along the direction.
        """
        change = along.image + along.bias[None, :]
        rows = curvature_product(self.p, self.weight, change)
        bias = rows.sum(axis=0) + self.damping * along.bias
        weight = Combination(
            rows + self.shift * along.weight.rows,
            float(self.shift) * along.weight.start,
        )
        curved = Curved(weight, bias)
        return curved, self.dot(along, curved)

    def dot(self, along, curved):
        """Inner product of a direction with a gradient."""
        of_weight = self.space.inner(along.weight, along.image, curved.weight)
        return of_weight + float(along.bias @ curved.bias)

    def row_size(self, residual):
        """Return the size of a residual in its rows, for which no logits are needed."""
        rows, weight = residual.weight.rows, self.space.rows.weight
        with np.errstate(over="ignore"):
            squares = np.einsum("ij,ij->i", rows, rows).astype(float)
            zeros = np.zeros_like(squares)
            return math.sqrt(np.divide(squares, weight, zeros, where=squares > 0).sum())


def newton_direction(space, state, options):
    """Solve the Newton system by conjugate gradients.

    The last step is a direction from the beginning, to which the others are made
    conjugate. So a solution may be rough: the next step goes on from it, as conjugate
    gradients do, but for a Hessian that is up to date.

    Returns
    -------
    direction : Direction
        For a gradient of size one.
    iterations : int
        Of conjugate gradients: products with the features, the gradient's among them.
    """
    system = NewtonSystem(space, state, options)
    most = _CG_ITERATIONS if options.rank is None else options.rank
    zero = np.zeros_like(state.p)
    found = Direction(Combination(zero, 0.0), system.right_side.bias * 0, zero)
    residual, image, gains = system.right_side, system.image, []
    close = state.exact <= _CLOSE * abs(state.loss)
    forcing = _FORCING * min(1.0, _ROUGH / (1 + state.n_steps))
    forcing = _SOLVED if close else max(_SOLVED, forcing)
    enough = forcing * system.row_size(residual)

    def minimised(along, curved, bend):
        length = system.dot(along, residual) / bend
        gains.append(length**2 * bend)
        left = residual.weight.plus(-length, curved.weight)
        bias = residual.bias - np.float32(length) * curved.bias
        return _moved(found, length, along), Curved(left, bias)

    steepest, known, last = system.preconditioned(residual, image), [], []
    if state.last is not None and most > 1:
        curved, bend = system.product(state.last)
        if bend > 0:
            known = last = [(state.last, curved, bend)]
            found, residual = minimised(*last[0])
    iterations = 0
    while iterations + len(last) < most:
        along = steepest
        for other, curved, bend in known:
            along = _moved(along, -system.dot(steepest, curved) / bend, other)
        curved, bend = system.product(along)
        if not bend > 0:
            break
        found, residual = minimised(along, curved, bend)
        iterations += 1
        # A little gain more is left to the next step, unless that is the last one.
        little = iterations * gains[-1] <= _LITTLE * forcing * sum(gains)
        little = little and iterations > 1 and not close
        if little or system.row_size(residual) <= enough:
            break
        known = [*last, (along, curved, bend)]
        image = space.image(residual.weight)[0]
        steepest = system.preconditioned(residual, image)
    return found, iterations


def _scaled(direction, scale):
    """Return a direction times a number."""
    weight, single = direction.weight, np.float32(scale)
    weight = Combination(weight.rows * single, weight.start * scale)
    return Direction(weight, direction.bias * single, direction.image * single)


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
