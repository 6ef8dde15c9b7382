r"""The objective of networks with an affine output layer, and the optimal layer.

For a network ``x -> W^T z(x; theta)`` it is

    Phi(W, theta) = sum_i w_i L(W^T z_i, y_i) + alpha/2 |B theta|^2
                    + alpha_out/2 |W|^2,       sum_i w_i = 1.

The features z have a one appended, so that the last row of W is the bias; it is
penalised like the other rows. L is half of the squared error, or the cross-entropy.

In W the objective is convex. This inner problem is ridge regression, solved by the
singular value decomposition of the features, or multinomial logistic regression, solved
by Newton's method. Both give a root of the inverse Hessian, for later solves with it.
"""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays.blocks import sum_rows, symmetric_product
from sklearn_gn.arrays.collectives import all_rows, n_devices, own_rows, total
from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.bayes.layers import losses, residuals
from sklearn_gn.linalg.factors import (
    LARGEST_DENSE,
    factor,
    orthogonal_factors,
    singular_triplets,
)
from sklearn_gn.optim.line_search import line_minimum
from sklearn_gn.optim.multinomial import (
    all_classes,
    covariance_product,
    hessian_product,
    newton_direction,
    probabilities,
    to_columns,
)

INNER_TOL = 1e-10  # of the gradient of the inner problem, absolute or relative
# Of a first system the residual, and of the slope of a step what a line search leaves.
_FORCING = 0.1


def of_rows(*static):
    """Return what compiles a function of rows for each model and static arguments."""
    compiled = jitted(static_argnames=("model", *static))
    return partial(by_rows, compiled=compiled, static=("model",))


class Net(NamedTuple):
    """Parameters of a network."""

    theta: Any  # weights of the feature extractor
    output: jnp.ndarray  # (p, q)  output layer W; the last row is the bias


class Model:
    """The feature extractor and the loss, fixed when functions are compiled.

    Equal networks, which must be hashable and not change any more, with the same loss
    ("squared" or "cross_entropy") make the same object, which compares by identity: JAX
    compares the static arguments of a compiled function in every call, and a Ctrl-C
    that falls into a comparison in Python comes out as another error.
    """

    @staticmethod  # type: ignore[misc]
    @cache
    def __new__(cls, network, loss):
        """Return the model with this network and loss, a new one if there is none."""
        model = object.__new__(cls)
        model.network, model.loss = network, loss
        return model

    def __reduce__(self):
        return Model, (self.network, self.loss)


class Penalties(NamedTuple):
    """Factors of the two penalties in the objective."""

    hidden: jnp.ndarray  # alpha
    output: jnp.ndarray  # alpha_out


# --- the objective -------------------------------------------------------------------


@partial(jax.jit, static_argnames="model", inline=True)
def features(model, theta, x):
    """Return the features with a one appended, of shape (m, p)."""
    z = model.network.apply(theta, x)
    return jnp.concatenate([z, jnp.ones((z.shape[0], 1), z.dtype)], axis=1)


def loss_curvature(model, values, u):
    """Return the second derivative of L times u; both have the shape (m, q)."""
    if model.loss == "squared":
        return u
    return to_columns(covariance_product(probabilities(values), all_classes(u)))


def penalty_product(model, direction):
    """Return ``B^T B d`` for a direction of the structure of theta."""
    apply = getattr(model.network, "roughness", lambda theta: theta)
    (image,) = jax.linear_transpose(apply, direction)(apply(direction))
    return image


def penalty_matrix(model, theta):
    """Return ``B^T B``, of shape (n, n)."""
    flat, unravel = ravel_pytree(theta)
    product = jax.vmap(lambda d: ravel_pytree(penalty_product(model, unravel(d)))[0])
    return product(jnp.eye(flat.size, dtype=flat.dtype))


def total_penalty(model, theta, output, penalties):
    """Return the sum of the penalties of theta and W."""
    apply = getattr(model.network, "roughness", lambda theta: theta)
    rough = sum(jnp.sum(r**2) for r in jax.tree.leaves(apply(theta)))
    return 0.5 * (penalties.hidden * rough + penalties.output * jnp.sum(output**2))


class Evaluation(NamedTuple):
    """A network on some rows."""

    output: jnp.ndarray  # (p, q)
    loss: jnp.ndarray  # the objective
    z: jnp.ndarray  # (m, p)
    values: jnp.ndarray  # (m, q)
    error: jnp.ndarray  # (m, q)  derivative of the loss in the values, weighted
    factors: Any = None  # of the inner Hessian, where the output layer is optimal


def evaluate(model, net, rows, penalties, z=None):
    """Return the :class:`Evaluation` at the given output layer.

    The features z are computed from the rows unless they are given.
    """
    z = features(model, net.theta, rows.x) if z is None else z
    values = z @ net.output
    loss = total(rows.weight @ losses(model, values, rows.y))
    loss = loss + total_penalty(model, *net, penalties)
    error = -rows.weight[:, None] * residuals(model, values, rows.y)
    return Evaluation(net.output, loss, z, values, error)


@of_rows()
def objective(model, net, rows, penalties, z=None):
    """Return Phi(W, theta) at the given output layer."""
    return evaluate(model, net, rows, penalties, z).loss


@partial(jax.jit, static_argnames="model", inline=True)
def predict_values(model, net, x):
    """Return the values of the output layer."""
    return features(model, net.theta, x) @ net.output


# --- the inner problem ---------------------------------------------------------------


@of_rows()
def with_optimal_output(model, net, rows, penalties, z=None):
    """Return the network with its optimal output layer, objective and factors."""
    inner = solve_inner(model, net, rows, penalties, z=z)
    return Net(net.theta, inner.output), inner.loss, inner.factors


def solve_inner(model, net, rows, penalties, z=None):
    """Return the Evaluation with the optimal output layer, and its factors.

    For the cross-entropy the search begins with the output layer of the network.
    """
    z = features(model, net.theta, rows.x) if z is None else z
    if model.loss == "squared":
        output, factors = solve_squares(z, rows, penalties.output)
    else:
        output = solve_entropy(model, z, rows, penalties.output, net.output)
        given = z, z @ output, rows.weight, penalties.output
        factors = entropy_factors(*given, output.size <= LARGEST_DENSE)
    inner = evaluate(model, Net(net.theta, output), rows, penalties, z)
    return inner._replace(factors=factors)


class HessianRoot(NamedTuple):
    """``R`` with ``R^T R = H^-1`` for the Hessian H of the inner problem.

    Of shape (p, p), the same for all targets of least squares, and nearly so for all
    classes where the whole, (pq, pq), is large. Products are many times faster than
    substitutions in a Cholesky factor. Right sides have the shape (p, q, ...).
    """

    root: Any

    def solve(self, right):
        """Return ``H^-1 right``."""
        image = self.root @ right.reshape(len(self.root), -1)
        # On a CPU, XLA takes thirty times as long for root^T @ vector.
        return (image.T @ self.root).T.reshape(right.shape)


def solve_hessian(model, inner, rows, penalties, right):
    """Solve with the Hessian of the inner problem; (p, q), if direct also (p, q, r)."""
    if model.loss == "squared" or len(inner.factors.root) == inner.output.size:
        return inner.factors.solve(right)
    given = inner.z, inner.values, rows.weight, penalties.output, inner.factors
    return -entropy_direction(*given, right, INNER_TOL)


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
    return output, HessianRoot(jnp.sqrt(inverse)[:, None] * vt)


def solve_entropy(model, z, rows, alpha_out, start):
    """Solve multinomial logistic regression by Newton's method; return W.

    Along a step the least loss is found, by its slope, which rounding errors of the
    loss do not hide. The iteration ends when no component of the gradient exceeds
    ``INNER_TOL``, absolute or relative to the first, or at rounding.
    """
    weight, y, limits = rows.weight, rows.y, jnp.finfo(z.dtype)

    def gradient(output):
        e = weight[:, None] * residuals(model, z @ output, y)
        return alpha_out * output - total(z.T @ e)

    def size(g):
        return jnp.max(jnp.abs(g))

    def unfinished(carry):
        _, g, stuck, count = carry
        return (size(g) > goal) & ~stuck & (count < 2 * limits.nmant)

    def newton(carry):
        output, g, _, count = carry
        values = z @ output
        factors = entropy_factors(z, values, weight, alpha_out, False)
        # Exact enough for quadratic convergence.
        forcing = jnp.clip(size(g) / size(first), INNER_TOL, _FORCING)
        step = entropy_direction(z, values, weight, alpha_out, factors, g, forcing)
        change, slope = z @ step, jnp.sum(step * g)

        def derivatives(length):
            moved = values + length * change
            bent = loss_curvature(model, moved, change)
            both = jnp.stack([-residuals(model, moved, y), bent])
            first, second = total(jnp.sum(both * change[None], axis=2) @ weight)
            first = first + alpha_out * jnp.sum((output + length * step) * step)
            return first, second + alpha_out * jnp.sum(step**2)

        given = {"flat": _FORCING, "max_iter": limits.nmant}
        length, lower, found = line_minimum(derivatives, slope, **given)
        length = jnp.where(found, length, lower)
        good = (length > 0) & (slope < 0)
        moved = jnp.where(good, output + length * step, output)
        following = gradient(moved)
        # At rounding the gradient no longer falls.
        loss = total(weight @ losses(model, values, y))
        flat = (-slope <= limits.eps * loss) & (size(following) >= size(g) / 2)
        return moved, following, ~good | flat, count + 1

    first = gradient(start)
    goal = INNER_TOL * jnp.maximum(1, size(first))
    carry = start, first, jnp.bool_(False), jnp.int32(0)
    return lax.while_loop(unfinished, newton, carry)[0]


def entropy_direction(z, values, weight, alpha_out, factors, gradient, forcing):
    """Return the Newton direction of the inner problem, (p, q)."""
    p = probabilities(values)

    def product(v):
        of_losses = hessian_product(
            lambda v: z @ v, lambda change: total(z.T @ change), p, weight, v
        )
        return of_losses + alpha_out * v

    direction, _ = newton_direction(
        product,
        gradient,
        precondition=factors.solve,
        forcing=forcing,
        max_iter=gradient.size,
    )
    return direction


def entropy_factors(z, values, weight, alpha_out, whole):
    """Return a root of the inverse inner Hessian, or of the mean over its classes.

    The Hessian, of W raveled feature by feature, is shifted at rounding level at least:
    without a penalty it is singular, as a constant may be added to all classes.
    """
    probability = to_columns(probabilities(values))
    scaled = jnp.sqrt(weight)[:, None] * z
    p, q = z.shape[1], probability.shape[1]

    def block_of(share):
        return (scaled * share[:, None]).T @ scaled

    def between_classes(rows):
        scaled, probability = rows
        products = scaled[:, :, None] * probability[:, None, :]
        return symmetric_product(products.reshape(len(scaled), -1).T)

    # Where the network is certain, this is what large terms leave of each other.
    scale = total(jnp.sum(scaled**2))
    if whole:
        hessian = -sum_rows(between_classes, (scaled, probability))
        classes = jnp.arange(q, dtype=jnp.int32)
        own = total(lax.map(block_of, probability.T))
        hessian = hessian.reshape(p, q, p, q).at[:, classes, :, classes].add(own)
        hessian = hessian.reshape(p * q, p * q)
    else:
        hessian = total(block_of(jnp.mean(probability * (1 - probability), axis=1)))
    floor = len(hessian) * jnp.finfo(hessian.dtype).eps * scale
    return HessianRoot(factor(hessian, jnp.maximum(alpha_out, floor)).inverse_root())
