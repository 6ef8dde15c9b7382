r"""Newton's method for heads of sparse features, in the space of the rows.

The Gauss-Newton matrix of an affine head is the exact Hessian, ``X^T S X + alpha``. All
that a step needs are combinations of rows (:mod:`sklearn_gn.softmax_head.sparse_rows`):

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

from sklearn_gn.arrays.libraries import NumPy
from sklearn_gn.linalg.factors import factor
from sklearn_gn.optim.multinomial import (
    all_classes,
    covariance_product,
    cross_entropy,
    margins,
    to_columns,
)
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.softmax_head.head import (
    Evaluation,
    head_report,
    length_along,
    traces,
)
from sklearn_gn.softmax_head.sparse_rows import RowSpace, RowVector

_BLOCK_ELEMENTS = 2**18  # logits of a row block: what fits into the cache
_LINE_ITERATIONS = 20
_FALLS = 1e-4  # slope of a step, over that of exact logits, that makes them exact anew
_FLAT = 0.1  # part of the slope that may be left where the line search ends
_FORCING = 0.9  # relative residual of a Newton system, in its rows,
_ROUGH = 10  # for so many steps; then it falls as the number of steps rises
_LITTLE = 0.5  # and, times that, the gain of an iteration over the mean one
_SOLVED = 0.1  # residual of the last Newton systems
_ALIKE = 1e-3  # relative difference of a slope from rows and from logits
_FLOOR = 1e-6  # of the curvature of an intercept, over the largest
_FARTHEST = 10.0  # an intercept goes for its own gradient: exp(10) times the odds
_CG_ITERATIONS = 100
_CLOSE = 1e-7  # slope, over the loss, from which on logits are exact, systems solved


class Direction(NamedTuple):
    """Change of a head, with the logits of its coefficients."""

    vector: RowVector
    image: np.ndarray

    def plus(self, factor, other):
        """Return this direction plus a multiple of another."""
        image = self.image + self.image.dtype.type(factor) * other.image
        return Direction(self.vector.plus(factor, other.vector), image)


class SparseState(NamedTuple):
    """A head with its logits, and its gradient as a combination of rows."""

    net: RowVector
    loss: float
    own: np.ndarray  # (n, m) logits of the coefficients, without intercepts
    p: np.ndarray  # (n, m) probabilities, in the precision of the systems
    gradient: Direction  # its rows likewise
    evaluation: Evaluation
    exact: float  # slope, or loss, at which the logits were exact
    criterion: float  # by which the best head is chosen: the loss, where it is resolved
    n_steps: int = 0
    last: Direction | None = None  # of the last step


# --- the iteration -------------------------------------------------------------------


def prepare(rows, options):
    """Return the products with the rows."""
    del options
    return RowSpace(rows)


def init(space, net, options):
    """Begin with a head, of zeros as a rule."""
    zero = not (net.start or net.rows.any())
    return evaluated(space, net, options, net.rows if zero else None)


def step(space, state, options):
    """One Newton step."""
    # 1. The direction.
    state, last, iterations = consistent_direction(space, state, options)
    size = float(state.evaluation.grad_norm) or 1.0
    zero = np.zeros_like(last.image)
    zero = Direction(RowVector(zero, 0.0, 0 * last.vector.bias), zero)
    direction = zero.plus(size, last)
    # 2. Its length. The slope at zero is exact as a product with the gradient.
    rows, change, alpha = space.rows, direction.vector, float(options.alpha)
    slope = space.dot(*state.gradient, change)
    length = 0.0
    if slope < 0:
        found, lower, enough = length_along(
            state.own + state.net.bias[None, :],
            direction.image + change.bias[None, :],
            rows.label,
            rows.weight,
            np.float64(slope),
            alpha * space.inner(*direction, change),
            flat=_FLAT,
            max_iter=_LINE_ITERATIONS,
        )
        length = float(found if enough else lower)
    columns = {
        "step_size": length,
        "damping": math.nan if options.damping is None else options.damping,
        "inner_iterations": iterations,
    }
    eps = float(np.finfo(state.own.dtype).eps)
    noise = space.cancelled(state.gradient.vector, change)
    resolved = abs(slope) > 8 * eps * abs(state.loss) + noise
    if length == 0 and state.last is not None:  # which conjugate gradients began with
        return step(space, state._replace(last=None), options)
    if length == 0 or abs(slope) <= noise:
        stop = "line_search" if resolved else "rounding"
        return state, head_report(state.evaluation, stop, options, **columns)
    # 3. The new head. Changes of the logits are of single precision: exact for small
    # changes.
    net = state.net.plus(length, change)
    exact = abs(slope) <= _FALLS * state.exact or is_close(slope, state.loss)
    own = None if exact else state.own + length * direction.image
    kind = state.p.dtype
    new = evaluated(space, net, options, own, kind)
    if not exact and float(new.evaluation.grad_max) <= float(options.tol):
        exact, new = True, evaluated(space, net, options, precision=kind)
    since = abs(slope) if exact else state.exact
    new = new._replace(exact=since, n_steps=state.n_steps + 1, last=last)
    stop = None
    if not math.isfinite(new.loss):
        stop = "non_finite"
    elif float(new.evaluation.grad_max) <= float(options.tol):
        stop = "tol"
    elif not resolved and new.evaluation.grad_norm >= state.evaluation.grad_norm:
        stop = "rounding"
    if not resolved and stop in (None, "tol"):
        # Rounding errors hide the fall of the loss, but the gradient fell.
        lower = math.nextafter(state.criterion, -math.inf)
        new = new._replace(criterion=min(new.loss, lower))
    return new, head_report(new.evaluation, stop, options, **columns)


def evaluated(space, net, options, own=None, precision=np.float32):
    """The state of a head: loss, gradient, and logits if they are not given.

    ``precision`` is that of the systems of its steps.
    """
    rows, alpha = space.rows, options.alpha
    if own is None:
        own, _ = space.image(net)
    logits = own + net.bias[None, :]
    error, p = np.empty_like(logits), np.empty(logits.shape, precision)
    means, separated = np.zeros(4), True
    for part in row_blocks(logits):
        label, weight = rows.label[part], rows.weight[part]
        split = margins(all_classes(logits[part]), label)
        sizes = cross_entropy(split.margin), *traces(split)
        means += [weight @ size for size in sizes]
        separated &= bool(np.all(split.margin < 0))
        wrong = split.p_rest[:, None] * split.rho
        p[part] = to_columns(NumPy.with_label(wrong, label, split.p_true))
        wrong = to_columns(NumPy.with_label(wrong, label, -split.p_rest))
        error[part] = weight[:, None] * wrong
    by_bias = rows.intercept * error.sum(axis=0)
    by_rows = (error + alpha * net.rows).astype(precision)
    vector = RowVector(by_rows, float(alpha) * net.start, by_bias)
    image, largest = space.image(vector)
    loss = float(means[0]) + 0.5 * float(alpha) * space.inner(net, own, net)
    size = math.sqrt(max(space.dot(vector, image, vector), 0.0))
    largest = max(largest, float(np.max(np.abs(by_bias))))
    traced = map(float, means[1:])
    evaluation = Evaluation(loss, by_bias, *traced, separated, size, largest)
    gradient = Direction(vector, image)
    return SparseState(net, loss, own, p, gradient, evaluation, abs(loss), loss)


def is_close(slope, loss):
    """Whether logits must be exact for a slope, and systems solved."""
    return abs(slope) <= _CLOSE * abs(loss)


def row_blocks(logits):
    """Slices of rows, each with few logits."""
    size = max(1, _BLOCK_ELEMENTS // logits.shape[1])
    return [slice(k, k + size) for k in range(0, len(logits), size)]


# --- the direction -------------------------------------------------------------------


def consistent_direction(space, state, options):
    """A Newton direction whose rows and logits agree, with state and iterations.

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
        last = last._replace(image=space.image(last.vector)[0])
    return state, last, iterations


def is_consistent(space, state, direction):
    """Whether rows and logits of a direction give the same slope."""
    by_rows = space.dot(*state.gradient, direction.vector)
    by_image = space.dot(*direction, state.gradient.vector)
    return abs(by_rows - by_image) <= _ALIKE * abs(by_image)


def newton_direction(space, state, options):
    """Solve the Newton system by conjugate gradients.

    The last step is a direction from the beginning, to which the others are made
    conjugate. So a solution may be rough: the next step goes on from it, as conjugate
    gradients do, but for a Hessian that is up to date. Returns the direction, for a
    gradient of size one, and the number of iterations: products with the features, the
    gradient's among them.
    """
    most = _CG_ITERATIONS if options.rank is None else options.rank
    system = NewtonSystem(space, state, options)
    close = is_close(state.exact, state.loss)
    forcing = _FORCING * min(1.0, _ROUGH / (1 + state.n_steps))
    forcing = _SOLVED if close else max(_SOLVED, forcing)
    enough = forcing * system.residual_size()
    steepest = system.preconditioned(system.image)
    # The intercepts come first, where they are not the best yet.
    none, bias = system.found, system.intercepts(system.residual.bias)
    system.take(none._replace(vector=none.vector._replace(bias=bias)))
    kept, iterations, gains = [], 0, system.gains
    if state.last is not None and most > 1:
        most -= 1
        kept = system.take(system.with_intercepts(*state.last))
    known = kept
    while iterations < most:
        along = steepest
        for other, curved, bend in known:
            along = along.plus(-space.dot(*steepest, curved) / bend, other)
        taken = system.take(along)
        if not taken:
            break
        iterations += 1
        # A little gain more is left to the next step, unless that is the last one.
        little = iterations * gains[-1] <= _LITTLE * forcing * sum(gains)
        little = little and iterations > 1 and not close
        if little or system.residual_size() <= enough:
            break
        if iterations == 1:  # not from a residual of what came first, so it is kept too
            kept = kept + taken
        known = kept if iterations == 1 else kept + taken
        steepest = system.preconditioned(space.image(system.residual)[0])
    return system.found, iterations


class NewtonSystem:
    """The system of a step, and the least of its model over the directions taken.

    All in the precision of the probabilities of the state: single, mostly.

    The gradient is scaled to size one, so that squares are numbers in this precision.
    The preconditioner is the penalty for the coefficients. Intercepts, whose part of
    the Hessian is small and dense, are eliminated: each direction has those that are
    best for its coefficients. Without that the mean of the rows of a class, from which
    an intercept hardly differs, would need many iterations. Where all rows of a class
    are taken for others with certainty, its intercept has a gradient and no curvature:
    so much curvature is added that this gradient changes it by ten at most.
    """

    def __init__(self, space, state, options):
        kind = state.p.dtype.type
        self.space, self.p = space, state.p
        self.weight = space.rows.weight.astype(kind)
        self.damping = kind(options.damping or 0)
        self.shift = kind(options.alpha) + self.damping
        self.factor = None
        if space.rows.intercept:
            of_intercepts = self._of_intercepts(state.evaluation.gradient)
            self.factor = factor(of_intercepts)
        size = float(state.evaluation.grad_norm) or 1.0
        gradient, image = state.gradient
        divisor = -kind(size)
        bias = (-gradient.bias / size).astype(kind)
        self.image = image / divisor
        self.residual = RowVector(gradient.rows / divisor, -gradient.start / size, bias)
        zero = np.zeros_like(self.p)
        self.found = Direction(RowVector(zero, 0.0, 0 * bias), zero)
        self.gains = []  # of the model, by the directions taken

    def take(self, along):
        """Go to the minimum along a direction conjugate to all before it.

        Returns a list of the direction, its product with the Hessian and the second
        derivative; empty where that is not positive.
        """
        curved, bend = self.product(along)
        if not bend > 0:
            return []
        length = self.space.dot(*along, self.residual) / bend
        self.residual = self.residual.plus(-length, curved)
        self.found = self.found.plus(length, along)
        self.gains.append(length**2 * bend)
        return [(along, curved, bend)]

    def product(self, along):
        """The Hessian times a direction, and the second derivative along it."""
        vector = along.vector
        rows = self._curved(along.image + vector.bias[None, :])
        bias = rows.sum(axis=0) + self.damping * vector.bias
        start = float(self.shift) * vector.start
        curved = RowVector(rows + self.shift * vector.rows, start, bias)
        return curved, self.space.dot(*along, curved)

    def preconditioned(self, image):
        """The direction of the residual, of which the logits are given."""
        unit = self.shift if self.shift > 0 else self.shift.dtype.type(1)
        rows, start = self.residual.rows / unit, self.residual.start / float(unit)
        vector = self.residual._replace(rows=rows, start=start)
        return self.with_intercepts(vector, image / unit)

    def with_intercepts(self, vector, image):
        """The direction of coefficients, with the best intercepts for them."""
        bias = self.intercepts(-self._curved(image).sum(axis=0))
        return Direction(vector._replace(bias=bias), image)

    def intercepts(self, gradient):
        """The change of the intercepts that brings their gradient to zero."""
        if self.factor is None:
            return np.zeros_like(gradient)
        return self.factor.solve(gradient).astype(gradient.dtype)

    def residual_size(self):
        """The size of the residual in its rows, for which no logits are needed."""
        rows, weight = self.residual.rows, self.space.rows.weight
        with np.errstate(over="ignore"):
            squares = np.einsum("ij,ij->i", rows, rows).astype(float)
            zeros = np.zeros_like(squares)
            return math.sqrt(np.divide(squares, weight, zeros, where=squares > 0).sum())

    def _curved(self, change):
        """The second derivative of the cross-entropy times a change of logits."""
        out = np.empty_like(change)
        for part in row_blocks(change):
            curved = covariance_product(self.p[part], change[part])
            out[part] = self.weight[part, None] * curved
        return out

    def _of_intercepts(self, gradient):
        """The Hessian of the intercepts, and something for what it leaves open."""
        m, p = self.p.shape[1], self.p
        if m == 1:
            hessian = (self.weight @ (p * (1 - p))).astype(float)[:, None]
        else:  # a Laplacian, whose diagonal the others determine
            hessian = -((self.weight[:, None] * p).T @ p).astype(float)
            np.fill_diagonal(hessian, 0.0)
            np.fill_diagonal(hessian, -hessian.sum(axis=0))
        own = hessian.diagonal().copy()
        largest = own.max() or 1.0
        if m > 1:  # what a shift that all classes share leaves open
            hessian += largest / m
        missing = np.maximum(np.abs(gradient) / _FARTHEST - own, 0)
        return hessian + np.diag(missing + _FLOOR * largest + self.damping)


SPARSE_NEWTON = Algorithm("fgn_newton", init, step, prepare=prepare, compiled=False)
