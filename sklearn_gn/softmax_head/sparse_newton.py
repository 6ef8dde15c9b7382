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

from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.softmax_head.head import Evaluation, head_report
from sklearn_gn.softmax_head.row_space import (
    Combination,
    RowHead,
    RowSpace,
    logits_of,
)
from sklearn_gn.softmax_head.sparse_direction import (
    Direction,
    is_close,
    is_consistent,
    newton_direction,
    row_blocks,
    scaled,
)

_LINE_ITERATIONS = 20
_FALLS = 1e-4  # slope of a step, over that of exact logits, that makes them exact anew
_FLAT = 0.1  # part of the slope that may be left where the line search ends


class SparseState(NamedTuple):
    """A head with its logits, and its gradient as a combination of rows."""

    net: RowHead
    loss: float
    own: np.ndarray  # (n, m) logits of the coefficients, without intercepts
    p: np.ndarray  # (n, m) probabilities, in the precision of the systems
    gradient: Combination  # of the coefficients, likewise
    image: np.ndarray  # its logits
    evaluation: Evaluation  # with the gradient of the intercepts
    exact: float  # slope, or loss, at which the logits were exact
    criterion: float  # by which the best head is chosen: the loss, where it is resolved
    n_steps: int = 0
    last: Direction | None = None  # of the last step


def init(space, net, options):
    """Begin with a head, of zeros as a rule."""
    weight = net.weight
    zero = not (weight.start or weight.rows.any())
    return evaluated(space, net, options, weight.rows if zero else None)


def step(space, state, options):
    """One Newton step."""
    # 1. The direction.
    state, last, iterations = consistent_direction(space, state, options)
    direction = scaled(last, float(state.evaluation.grad_norm) or 1.0)
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
    if length == 0 and state.last is not None:  # which conjugate gradients began with
        return step(space, state._replace(last=None), options)
    if length == 0 or abs(slope) <= noise:
        stop = "line_search" if resolved else "rounding"
        return state, head_report(state.evaluation, stop, options, **columns)
    # 3. The new head.
    bias = state.net.bias + length * direction.bias
    net = RowHead(state.net.weight.plus(length, direction.weight), bias)
    # Changes of the logits are of single precision: exact for small changes.
    exact = abs(slope) <= _FALLS * state.exact or is_close(slope, state.loss)
    own = None if exact else state.own + length * direction.image
    kind = state.p.dtype
    new = evaluated(space, net, options, own, kind)
    if not exact and float(new.evaluation.grad_max) <= float(options.tol):
        exact, new = True, evaluated(space, net, options, precision=kind)
    since = abs(slope) if exact else state.exact
    new = new._replace(exact=since, n_steps=state.n_steps + 1, last=last)
    stop = _reason_to_stop(state, new, resolved, options)
    if not resolved and stop in (None, "tol"):
        # Rounding errors hide the fall of the loss, but the gradient fell.
        lower = math.nextafter(state.criterion, -math.inf)
        new = new._replace(criterion=min(new.loss, lower))
    return new, head_report(new.evaluation, stop, options, **columns)


def _reason_to_stop(state, new, resolved, options):
    """Why a step is the last one, or None; whether its fall exceeds rounding errors."""
    if not math.isfinite(new.loss):
        return "non_finite"
    if float(new.evaluation.grad_max) <= float(options.tol):
        return "tol"
    if not resolved and new.evaluation.grad_norm >= state.evaluation.grad_norm:
        return "rounding"
    return None


def consistent_direction(space, state, options):
    """Return a Newton direction whose rows and logits agree, with state and iterations.

    Where they do not in single precision, the state is evaluated again for systems in
    the precision of the fit.
    """
    last, iterations = newton_direction(space, state, options)
    precision = state.own.dtype
    if state.p.dtype != precision and not is_consistent(space, state, last):
        again = evaluated(space, state.net, options, precision=precision)
        state = again._replace(n_steps=state.n_steps)
        last, iterations = newton_direction(space, state, options)
    if state.p.dtype == precision and not is_consistent(space, state, last):
        last = last._replace(image=space.image(last.weight)[0])
    return state, last, iterations


def evaluated(space, net, options, own=None, precision=np.float32):
    """Return the state of a head: loss, gradient, and logits if they are not given.

    ``precision`` is that of the systems of its steps.
    """
    rows, alpha = space.rows, options.alpha
    if own is None:
        own, _ = space.image(net.weight)
    logits = own + net.bias[None, :]
    found = evaluate(logits, rows.label, rows.weight, precision)
    gradient = Combination(
        (found.error + alpha * net.weight.rows).astype(precision),
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
    return SparseState(
        net, loss, own, found.p, gradient, image, evaluation, abs(loss), loss
    )


# --- the cross-entropy ---------------------------------------------------------------


class RowValues(NamedTuple):
    """The cross-entropy of all rows and its derivative in the logits."""

    loss: float
    error: np.ndarray  # (n, m)
    p: np.ndarray  # (n, m)
    dispersion: float  # means over the rows
    retained: float
    dropped: float
    separated: bool


def evaluate(logits, label, weight, precision=np.float32):
    """Evaluate logits of m columns, split as in :mod:`sklearn_gn.optim.multinomial`.

    ``precision`` is that of the probabilities.
    """
    error = np.empty_like(logits)
    p = np.empty(logits.shape, precision)
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


# --- the step length ------------------------------------------------------------------


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
        if math.isinf(upper):
            middle = 4 * length
        elif lower == 0:  # the direction may be far too long
            middle = upper / 10
        else:
            middle = (lower + upper) / 2
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
