"""Step 1 of GNvpro: the inner problem, the optimal output layer of given features.

Ridge regression is solved by the singular value decomposition of the features,
multinomial logistic regression by Newton's method. Both return what later solves with
the Hessian of the inner problem need.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sklearn_gn.arrays.blocks import (
    sum_rows,
    symmetric_product,
)
from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.parts import all_rows, n_devices, own_rows, total
from sklearn_gn.linalg.factors import factor, orthogonal_factors, singular_triplets
from sklearn_gn.linalg.large_gram import LARGEST_DENSE
from sklearn_gn.optim.line_search import backtrack, insufficient_decrease
from sklearn_gn.optim.multinomial import (
    hessian_product,
    newton_direction,
    probabilities,
    to_columns,
)
from sklearn_gn.varpro.problem import (
    Net,
    example_losses,
    features,
    loss_gradient,
    total_penalty,
)

INNER_TOL = 1e-10  # of the gradient of the inner problem, absolute or relative
_INNER_ITERATIONS = 100
_STALE = 16  # part of the order of a factor, in iterations that make a new one pay
_FORCING = 0.1  # relative residual of the first systems


class InnerSolution(NamedTuple):
    """Solution of the inner problem, and factors of its Hessian."""

    output: jnp.ndarray  # (p, q)
    loss: jnp.ndarray
    z: jnp.ndarray  # (m, p)
    values: jnp.ndarray  # (m, q)
    error: jnp.ndarray  # (m, q)  weighted
    factors: Any


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def with_optimal_output(model, net, rows, penalties):
    """Return the network with its optimal output layer, and the objective."""
    inner = solve_inner(model, net.theta, rows, penalties, net.output)
    return Net(net.theta, inner.output), inner.loss


def solve_inner(model, theta, rows, penalties, start, factors=None):
    """Return the optimal output layer, with the value of the reduced objective."""
    z, alpha_out = features(model, theta, rows.x), penalties.output
    if model.loss == "squared":
        output, factors = solve_squares(z, rows, alpha_out)
    else:
        output, factors = solve_entropy(model, z, rows, alpha_out, start, factors)
    values = z @ output
    loss = total(rows.weight @ example_losses(model, values, rows.y))
    loss = loss + total_penalty(model, theta, output, penalties)
    weighted = rows.weight[:, None] * loss_gradient(model, values, rows.y)
    return InnerSolution(output, loss, z, values, weighted, factors)


def solve_hessian(model, inner, rows, penalties, right):
    """Solve with the Hessian of the inner problem; (p, q), if direct also (p, q, r)."""
    f = inner.factors
    if model.loss == "squared":
        flat = right.reshape(right.shape[0], -1)
        solved = f.right @ (f.inverse[:, None] * (f.right.T @ flat))
        return solved.reshape(right.shape)
    if inner.output.size <= LARGEST_DENSE:  # factored as a whole
        return f.solve(right)
    alpha_out = penalties.output
    direction, _ = entropy_direction(
        inner.z, inner.values, rows.weight, alpha_out, f, right, INNER_TOL
    )
    return -direction


def output_response(model, inner, rows, penalties, right, change):
    """Solve with the inner Hessian for ``right + z^T (w change)``."""
    if model.loss == "squared":
        f = inner.factors
        image = total(f.left.T @ (jnp.sqrt(rows.weight)[:, None] * change))
        fitted = f.right @ ((f.s * f.inverse)[:, None] * image)
        return solve_hessian(model, inner, rows, penalties, right) + fitted
    right = right + total(inner.z.T @ (rows.weight[:, None] * change))
    return solve_hessian(model, inner, rows, penalties, right)


def output_response_transposed(model, inner, rows, penalties, output):
    """Apply the transpose of :func:`output_response`; (p, q) to (p, q) and (m, q)."""
    solved = solve_hessian(model, inner, rows, penalties, output)
    if model.loss == "squared":
        f = inner.factors
        image = (f.s * f.inverse)[:, None] * (f.right.T @ output)
        return solved, jnp.sqrt(rows.weight)[:, None] * (f.left @ image)
    return solved, rows.weight[:, None] * (inner.z @ solved)


class SquaresFactors(NamedTuple):
    """SVD ``sqrt(w) z = U diag(s) V^T`` of the weighted features."""

    left: jnp.ndarray  # (m, p)
    s: jnp.ndarray  # (p,)
    right: jnp.ndarray  # (p, p)
    inverse: jnp.ndarray  # (p,)  1 / (s^2 + alpha_out)

    def half(self, right):
        """Return ``R right`` of (p, q, r) for the root R of the inverse Hessian."""
        image = self.right.T @ right.reshape(right.shape[0], -1)
        return (jnp.sqrt(self.inverse)[:, None] * image).reshape(right.shape)


def solve_squares(z, rows, alpha_out):
    """Solve ridge regression by the SVD; return W and the factors."""
    factors = squares_factors(z, rows.weight)
    factors = with_penalty(factors, alpha_out)
    right = jnp.sqrt(rows.weight)[:, None] * rows.y
    image = total(factors.left.T @ right)
    output = factors.right @ ((factors.s * factors.inverse)[:, None] * image)
    return output, factors


def squares_factors(z, weight):
    """Return the SVD of the p weighted features, with zeros if m < p."""
    a = jnp.sqrt(weight)[:, None] * z
    m, p = a.shape
    if m < p:
        a = jnp.concatenate([a, jnp.zeros((p - m, p), a.dtype)])
    q, r = orthogonal_factors(a)
    if n_devices() > 1:
        of_factors, r = orthogonal_factors(all_rows(r))
        q = q @ own_rows(of_factors)
    u, s, vt = singular_triplets(r)
    return SquaresFactors((q @ u)[:m], s, vt.T, jnp.zeros_like(s))


def with_penalty(factors, alpha_out):
    """Return factors with a penalty; if it is 0, null directions are left out."""
    s = factors.s
    keep = s > s.shape[0] * jnp.finfo(s.dtype).eps * s[0]
    shifted = s**2 + alpha_out
    usable = (shifted > 0) & (keep | (alpha_out > 0))
    inverse = jnp.where(usable, 1 / jnp.where(usable, shifted, 1), 0)
    return factors._replace(inverse=inverse)


class EntropyFactors(NamedTuple):
    """``R`` with ``R^T R = H^-1`` for the inner Hessian; if large, of a block a class.

    Products with it are many times faster than substitutions in a Cholesky factor.
    """

    root: jnp.ndarray  # (qp, qp), or (q, p, p)

    def solve(self, right):
        """Solve for ``right`` of shape (p, q), with the whole also (p, q, r)."""
        columns = jnp.swapaxes(right, 0, 1)  # class by class
        if self.root.ndim == 2:
            flat = columns.reshape(self.root.shape[0], *columns.shape[2:])
            # On a CPU, XLA takes thirty times as long for root^T @ vector.
            solved = ((self.root @ flat).T @ self.root).T.reshape(columns.shape)
        else:
            image = jnp.einsum("cjk,ck->cj", self.root, columns)
            solved = jnp.einsum("cjk,cj->ck", self.root, image)
        return jnp.swapaxes(solved, 0, 1)

    def half(self, right):
        """Return ``R right`` of (p, q, r), of shape (qp, r), for a whole root."""
        flat = jnp.swapaxes(right, 0, 1).reshape(self.root.shape[0], -1)
        return self.root @ flat


def solve_entropy(model, z, rows, alpha_out, start, factors=None):
    """Solve multinomial logistic regression by Newton's method; return W and factors.

    Systems are solved by conjugate gradients, preconditioned by the factors of an
    earlier Hessian, even of other features, until they take more iterations than new
    factors cost. A step is halved until the loss falls. The iteration ends when no
    component of the gradient exceeds ``INNER_TOL``, absolute or relative to the first,
    or at rounding.
    """
    weight, y, eps = rows.weight, rows.y, float(jnp.finfo(z.dtype).eps)

    def objective(output):
        mean = total(weight @ example_losses(model, z @ output, y))
        return mean + 0.5 * alpha_out * jnp.sum(output**2)

    def gradient(output):
        e = weight[:, None] * loss_gradient(model, z @ output, y)
        return total(z.T @ e) + alpha_out * output

    def factors_at(output):
        return entropy_factors(z, z @ output, weight, alpha_out)

    def size(g):
        return jnp.max(jnp.abs(g))

    def unfinished(carry):
        _, _, g, _, _, count, stuck = carry
        return (size(g) > goal) & (count < _INNER_ITERATIONS) & ~stuck

    def newton(carry):
        output, loss, g, factors, fresh, count, _ = carry
        factors = lax.cond(fresh, factors_at, lambda output: factors, output)
        # Exact enough for quadratic convergence.
        forcing = jnp.clip(size(g) / size(first), INNER_TOL, _FORCING)
        step, iterations = entropy_direction(
            z, z @ output, weight, alpha_out, factors, g, forcing
        )
        slope, rounding = jnp.sum(step * g), 4 * eps * jnp.abs(loss)

        def too_long(length, new):
            return insufficient_decrease(new, loss, length, slope, rounding)

        length, new = backtrack(
            lambda length: objective(output + length * step),
            too_long,
            jnp.ones_like(loss),
        )
        good = (new <= loss + rounding) & (slope < 0)
        moved = jnp.where(good, output + length * step, output)
        following = gradient(moved)
        # At rounding the gradient no longer falls.
        flat = -slope <= eps * jnp.abs(loss)
        flat = flat & (size(following) >= size(g) / 2)
        stuck = jnp.where(good, flat, fresh)
        stale = ~good | (iterations > factors.root.shape[-1] // _STALE)
        loss = jnp.where(good, new, loss)
        return moved, loss, following, factors, stale, count + 1, stuck

    first = gradient(start)
    goal = INNER_TOL * jnp.maximum(1, size(first))
    stale = jnp.bool_(factors is None)
    if factors is None:
        shapes = jax.eval_shape(factors_at, start)
        factors = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    zero, no = jnp.int32(0), jnp.bool_(False)
    carry = start, objective(start), first, factors, stale, zero, no
    output, *_ = lax.while_loop(unfinished, newton, carry)
    return output, factors_at(output)


def entropy_direction(z, values, weight, alpha_out, factors, gradient, forcing):
    """Return the Newton direction of the inner problem (p, q), and CG iterations."""
    p = probabilities(values)

    def product(v):
        image = hessian_product(
            lambda v: z @ v, lambda change: total(z.T @ change), p, weight, v
        )
        return image + alpha_out * v

    return newton_direction(
        product,
        gradient,
        precondition=factors.solve,
        forcing=forcing,
        max_iter=gradient.size,
    )


def entropy_hessian(z, values, weight):
    """Return the Hessian of the inner loss, with W raveled class by class."""
    probability = to_columns(probabilities(values))
    p, q = z.shape[1], probability.shape[1]

    def between_classes(rows):
        probability, scaled = rows
        products = probability[:, :, None] * scaled[:, None, :]
        return symmetric_product(products.reshape(len(scaled), -1).T)

    scaled = jnp.sqrt(weight)[:, None] * z
    hessian = -sum_rows(between_classes, (probability, scaled))
    blocks = total(
        lax.map(lambda share: (scaled * share[:, None]).T @ scaled, probability.T)
    )
    classes = jnp.arange(q, dtype=jnp.int32)
    hessian = hessian.reshape(q, p, q, p).at[classes, :, classes, :].add(blocks)
    return hessian.reshape(q * p, q * p)


def entropy_factors(z, values, weight, alpha_out):
    """Return a root of the inverse inner Hessian, or of its diagonal blocks."""
    probability = to_columns(probabilities(values))
    if z.shape[1] * probability.shape[1] <= LARGEST_DENSE:
        hessian = entropy_hessian(z, values, weight)
        # Where the network is certain, this is what large terms leave of each other.
        scale = total(weight @ jnp.sum(z**2, axis=1))
        return EntropyFactors(_inverse_root(hessian, alpha_out, scale))
    share = (probability * (1 - probability) * weight[:, None]).T

    def root_of_block(share):
        block = total((z * share[:, None]).T @ z)
        return _inverse_root(block, alpha_out, jnp.trace(block))

    return EntropyFactors(lax.map(root_of_block, share))


def _inverse_root(matrix, shift, scale):
    """Return R, where ``R^T R`` is the inverse of the matrix with a shift.

    The shift is at rounding level at least, relative to ``scale``: the trace, or that
    of the terms whose difference the matrix is. Without a penalty the Hessian is
    singular, as a constant may be added to all classes.
    """
    floor = len(matrix) * jnp.finfo(matrix.dtype).eps * scale
    return factor(matrix, jnp.maximum(shift, floor)).inverse_root()
