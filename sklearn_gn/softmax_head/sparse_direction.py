"""The direction of a Newton step for a head of sparse features, and its system.

The product with the features is what costs; a new Hessian costs next to nothing. So a
system is solved by few conjugate gradients, and the next step goes on from it.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from sklearn_gn.softmax_head.row_space import Combination

_BLOCK_ELEMENTS = 2**18  # logits of a row block: what fits into the cache
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
    """Change of a head."""

    weight: Combination
    bias: np.ndarray
    image: np.ndarray  # logits of the weight


def is_close(slope, loss):
    """Return whether logits must be exact for a slope, and systems solved."""
    return abs(slope) <= _CLOSE * abs(loss)


class Curved(NamedTuple):
    """The Hessian times a direction, or a negative gradient, by their rows."""

    weight: Combination
    bias: np.ndarray


class NewtonSystem:
    """Hessian, right side and preconditioner of a step.

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
        self.unit = self.shift if self.shift > 0 else kind(1)
        self.factor = (
            cho_factor(self._of_intercepts(state.evaluation.gradient))
            if space.rows.intercept
            else None
        )
        self.scale = float(state.evaluation.grad_norm) or 1.0
        divisor = -kind(self.scale)
        self.right_side = Curved(
            Combination(
                state.gradient.rows / divisor, -state.gradient.start / self.scale
            ),
            (-state.evaluation.gradient / self.scale).astype(kind),
        )
        self.image = state.image / divisor

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

    def intercepts(self, gradient):
        """Return the change of the intercepts that brings their gradient to zero."""
        if self.factor is None:
            return np.zeros_like(gradient)
        return cho_solve(self.factor, gradient).astype(gradient.dtype)

    def with_intercepts(self, weight, image):
        """Return the direction of coefficients, with the best intercepts for them."""
        pulled = curvature_product(self.p, self.weight, image).sum(axis=0)
        return Direction(weight, self.intercepts(-pulled), image)

    def preconditioned(self, residual, image):
        """Return the direction of a residual, of which the logits are given."""
        rows = residual.weight.rows / self.unit
        weight = Combination(rows, residual.weight.start / float(self.unit))
        return self.with_intercepts(weight, image / self.unit)

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
        # In double precision: both may be huge where the features are.
        return of_weight + float(along.bias.astype(float) @ curved.bias)

    def row_size(self, residual):
        """Return the size of a residual in its rows, for which no logits are needed."""
        rows, weight = residual.weight.rows, self.space.rows.weight
        with np.errstate(over="ignore"):
            squares = np.einsum("ij,ij->i", rows, rows).astype(float)
            zeros = np.zeros_like(squares)
            return math.sqrt(np.divide(squares, weight, zeros, where=squares > 0).sum())


class Search:
    """The minimum of the quadratic model over the directions that were taken."""

    def __init__(self, system):
        self.system, self.residual, self.gains = system, system.right_side, []
        zero = np.zeros_like(system.p)
        self.found = Direction(Combination(zero, 0.0), 0 * self.residual.bias, zero)

    def take(self, along):
        """Go to the minimum along a direction conjugate to all before it.

        Returns
        -------
        list
            The direction, its product with the Hessian and second derivative; empty
            where that is not positive.
        """
        curved, bend = self.system.product(along)
        if not bend > 0:
            return []
        length = self.system.dot(along, self.residual) / bend
        left = self.residual.weight.plus(-length, curved.weight)
        bias = self.residual.bias - _as(curved.bias, length) * curved.bias
        self.residual = Curved(left, bias)
        self.found = _moved(self.found, length, along)
        self.gains.append(length**2 * bend)
        return [(along, curved, bend)]


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
    most = _CG_ITERATIONS if options.rank is None else options.rank
    system = NewtonSystem(space, state, options)
    search = Search(system)
    close = is_close(state.exact, state.loss)
    forcing = _FORCING * min(1.0, _ROUGH / (1 + state.n_steps))
    forcing = _SOLVED if close else max(_SOLVED, forcing)
    enough = forcing * system.row_size(search.residual)
    steepest = system.preconditioned(search.residual, system.image)
    # The intercepts come first, where they are not the best yet.
    weight, _, image = search.found
    search.take(Direction(weight, system.intercepts(search.residual.bias), image))
    kept, iterations = [], 0
    if state.last is not None and most > 1:
        most -= 1
        weight, _, image = state.last
        kept = search.take(system.with_intercepts(weight, image))
    known = kept
    while iterations < most:
        along = steepest
        for other, curved, bend in known:
            along = _moved(along, -system.dot(steepest, curved) / bend, other)
        taken = search.take(along)
        if not taken:
            break
        iterations += 1
        # A little gain more is left to the next step, unless that is the last one.
        little = iterations * search.gains[-1] <= _LITTLE * forcing * sum(search.gains)
        little = little and iterations > 1 and not close
        if little or system.row_size(search.residual) <= enough:
            break
        if iterations == 1:  # not from a residual of what came first, so it is kept too
            kept = kept + taken
        known = kept if iterations == 1 else kept + taken
        image, _ = space.image(search.residual.weight)
        steepest = system.preconditioned(search.residual, image)
    return search.found, iterations


def is_consistent(space, state, direction):
    """Return whether rows and logits of a direction give the same slope."""
    weight, image, gradient = direction.weight, direction.image, state.gradient
    by_rows = space.inner(gradient, state.image, weight)
    by_image = space.inner(weight, image, gradient)
    slope = by_image + float(state.evaluation.gradient @ direction.bias)
    return abs(by_rows - by_image) <= _ALIKE * abs(slope)


def scaled(direction, scale):
    """Return a direction times a number."""
    weight, factor = direction.weight, _as(direction.image, scale)
    weight = Combination(weight.rows * factor, weight.start * scale)
    return Direction(weight, direction.bias * factor, direction.image * factor)


def _moved(start, length, direction):
    """``start + length * direction``."""
    factor = _as(start.image, length)
    return Direction(
        start.weight.plus(length, direction.weight),
        start.bias + factor * direction.bias,
        start.image + factor * direction.image,
    )


def _as(values, number):
    """A number in the precision of an array."""
    return values.dtype.type(number)


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
