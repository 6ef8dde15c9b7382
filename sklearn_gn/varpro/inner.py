"""Step 1 of GNvpro: the inner problem, the optimal output layer of given features.

Ridge regression is solved by the singular value decomposition of the features,
multinomial logistic regression by Newton's method. Both return a root of the inverse
Hessian, for later solves with it.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sklearn_gn.arrays.blocks import sum_rows, symmetric_product
from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.parts import all_rows, n_devices, own_rows, total
from sklearn_gn.linalg.factors import factor, orthogonal_factors, singular_triplets
from sklearn_gn.linalg.large_gram import LARGEST_DENSE
from sklearn_gn.optim.line_search import line_minimum
from sklearn_gn.optim.multinomial import (
    hessian_product,
    newton_direction,
    probabilities,
    to_columns,
)
from sklearn_gn.varpro.problem import (
    Net,
    evaluate,
    example_losses,
    features,
    loss_curvature,
    loss_gradient,
)

INNER_TOL = 1e-10  # of the gradient of the inner problem, absolute or relative
# Of a first system the residual, and of the slope of a step what a line search leaves.
_FORCING = 0.1


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def with_optimal_output(model, net, rows, penalties, z=None):
    """Return the network with its optimal output layer, and the objective."""
    inner = solve_inner(model, net, rows, penalties, z=z)
    return Net(net.theta, inner.output), inner.loss


def solve_inner(model, net, rows, penalties, factors=None, z=None):
    """Return the Evaluation with the optimal output layer, and its factors.

    For the cross-entropy the search begins with the output layer of the network, and
    with ``factors`` that may belong to other features.
    """
    z = features(model, net.theta, rows.x) if z is None else z
    if model.loss == "squared":
        output, factors = solve_squares(z, rows, penalties.output)
    else:
        given = rows, penalties.output, net.output, factors
        output, factors = solve_entropy(model, z, *given)
    inner = evaluate(model, Net(net.theta, output), rows, penalties, z)
    return inner._replace(factors=factors)


class HessianRoot(NamedTuple):
    """``R`` with ``R^T R = H^-1`` for the Hessian H of the inner problem.

    Blocks of shape (1, p, p), the same for all targets of least squares, (1, pq, pq),
    the whole of the cross-entropy, or (q, p, p), those of the classes where the whole
    is large. Products are many times faster than substitutions in a Cholesky factor.
    Right sides have the shape (p, q, ...).
    """

    root: Any

    def half(self, right):
        """Return ``R right``, of the shape (blocks, order, columns)."""
        n_blocks, order, _ = self.root.shape
        by_block = right if n_blocks == 1 else right.swapaxes(0, 1)
        return self.root @ by_block.reshape(n_blocks, order, -1)

    def back(self, image, shape):
        """Return ``R^T image`` with the shape of the right sides."""
        # On a CPU, XLA takes thirty times as long for root^T @ vector.
        solved = (image.swapaxes(1, 2) @ self.root).swapaxes(1, 2)
        if len(self.root) == 1:
            return solved.reshape(shape)
        return solved.reshape(shape[1], shape[0], *shape[2:]).swapaxes(0, 1)

    def solve(self, right):
        """Return ``H^-1 right``."""
        return self.back(self.half(right), right.shape)


def solve_hessian(model, inner, rows, penalties, right):
    """Solve with the Hessian of the inner problem; (p, q), if direct also (p, q, r)."""
    if len(inner.factors.root) == 1:
        return inner.factors.solve(right)
    given = inner.z, inner.values, rows.weight, penalties.output, inner.factors
    return -entropy_direction(*given, right, INNER_TOL)[0]


def solve_squares(z, rows, alpha_out):
    """Solve ridge regression by the SVD of ``sqrt(w) z``; return W and the factors."""
    scale = jnp.sqrt(rows.weight)[:, None]
    m, p = z.shape
    # With less than p rows, rows of zeros follow.
    q, r = orthogonal_factors(jnp.pad(scale * z, ((0, max(p - m, 0)), (0, 0))))
    if n_devices() > 1:
        of_factors, r = orthogonal_factors(all_rows(r))
        q = q @ own_rows(of_factors)
    u, s, vt = singular_triplets(r)
    # Without a penalty null directions are left out.
    keep = (s > p * jnp.finfo(s.dtype).eps * s[0]) | (alpha_out > 0)
    keep, shifted = keep & (s**2 + alpha_out > 0), s**2 + alpha_out
    inverse = jnp.where(keep, 1 / jnp.where(keep, shifted, 1), 0)
    image = u.T @ total(q[:m].T @ (scale * rows.y))
    output = vt.T @ ((s * inverse)[:, None] * image)
    return output, HessianRoot((jnp.sqrt(inverse)[:, None] * vt)[None])


def solve_entropy(model, z, rows, alpha_out, start, factors=None):
    """Solve multinomial logistic regression by Newton's method; return W and factors.

    Systems are solved by conjugate gradients, preconditioned by the factors of an
    earlier Hessian, even of other features, until they take more iterations than new
    factors cost. Along a step the least loss is found, by its slope, which rounding
    errors of the loss do not hide. The iteration ends when no component of the gradient
    exceeds ``INNER_TOL``, absolute or relative to the first, or at rounding.
    """
    weight, y, limits = rows.weight, rows.y, jnp.finfo(z.dtype)

    def gradient(output):
        e = weight[:, None] * loss_gradient(model, z @ output, y)
        return total(z.T @ e) + alpha_out * output

    def factors_at(output):
        return entropy_factors(z, z @ output, weight, alpha_out)

    def size(g):
        return jnp.max(jnp.abs(g))

    def unfinished(carry):
        _, g, _, _, stuck, count = carry
        return (size(g) > goal) & ~stuck & (count < 2 * limits.nmant)

    def newton(carry):
        output, g, factors, stale, _, count = carry
        factors = lax.cond(stale, factors_at, lambda output: factors, output)
        values = z @ output
        # Exact enough for quadratic convergence.
        forcing = jnp.clip(size(g) / size(first), INNER_TOL, _FORCING)
        step, iterations = entropy_direction(
            z, values, weight, alpha_out, factors, g, forcing
        )
        change, slope = z @ step, jnp.sum(step * g)

        def derivatives(length):
            moved = values + length * change
            bent = loss_curvature(model, moved, change)
            both = jnp.stack([loss_gradient(model, moved, y), bent])
            first, second = total(jnp.sum(both * change[None], axis=2) @ weight)
            first = first + alpha_out * jnp.sum((output + length * step) * step)
            return first, second + alpha_out * jnp.sum(step**2)

        length, lower, found = line_minimum(
            derivatives, slope, flat=_FORCING, max_iter=limits.nmant
        )
        length = jnp.where(found, length, lower)
        good = (length > 0) & (slope < 0)
        moved = jnp.where(good, output + length * step, output)
        following = gradient(moved)
        # At rounding the gradient no longer falls.
        loss = total(weight @ example_losses(model, values, y))
        flat = -slope <= limits.eps * loss
        flat = flat & (size(following) >= size(g) / 2)
        stuck = jnp.where(good, flat, stale)
        # A product takes 4 m p q operations, a Hessian m times the square of its order.
        stale = ~good | (4 * iterations > factors.root.shape[-1])
        return moved, following, factors, stale, stuck, count + 1

    first = gradient(start)
    goal = INNER_TOL * jnp.maximum(1, size(first))
    stale = jnp.bool_(factors is None)
    if factors is None:
        shapes = jax.eval_shape(factors_at, start)
        factors = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    carry = start, first, factors, stale, jnp.bool_(False), jnp.int32(0)
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


def entropy_factors(z, values, weight, alpha_out):
    """Return a root of the inverse inner Hessian, or of its diagonal blocks."""
    probability = to_columns(probabilities(values))
    if z.shape[1] * probability.shape[1] <= LARGEST_DENSE:
        hessian = entropy_hessian(z, values, weight)
        # Where the network is certain, this is what large terms leave of each other.
        scale = total(weight @ jnp.sum(z**2, axis=1))
        return HessianRoot(_inverse_root(hessian, alpha_out, scale)[None])
    share = (probability * (1 - probability) * weight[:, None]).T

    def root_of_block(share):
        block = total((z * share[:, None]).T @ z)
        return _inverse_root(block, alpha_out, jnp.trace(block))

    return HessianRoot(lax.map(root_of_block, share))


def entropy_hessian(z, values, weight):
    """Return the Hessian of the inner loss, with W raveled feature by feature."""
    probability = to_columns(probabilities(values))
    p, q = z.shape[1], probability.shape[1]

    def between_classes(rows):
        scaled, probability = rows
        products = scaled[:, :, None] * probability[:, None, :]
        return symmetric_product(products.reshape(len(scaled), -1).T)

    scaled = jnp.sqrt(weight)[:, None] * z
    hessian = -sum_rows(between_classes, (scaled, probability))
    blocks = total(
        lax.map(lambda share: (scaled * share[:, None]).T @ scaled, probability.T)
    )
    classes = jnp.arange(q, dtype=jnp.int32)
    hessian = hessian.reshape(p, q, p, q).at[:, classes, :, classes].add(blocks)
    return hessian.reshape(p * q, p * q)


def _inverse_root(matrix, shift, scale):
    """Return R, where ``R^T R`` is the inverse of the matrix with a shift.

    The shift is at rounding level at least, relative to ``scale``: the trace, or that
    of the terms whose difference the matrix is. Without a penalty the Hessian is
    singular, as a constant may be added to all classes.
    """
    floor = len(matrix) * jnp.finfo(matrix.dtype).eps * scale
    return factor(matrix, jnp.maximum(shift, floor)).inverse_root()
