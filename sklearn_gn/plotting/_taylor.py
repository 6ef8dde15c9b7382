"""Taylor expansions of the reduced objective, with its inner problem solved badly.

What :class:`~sklearn_gn.plotting.TaylorDisplay` draws. The solvers find the optimal
output layer to rounding, so here is an inner iteration that can be ended early.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from sklearn.utils import check_random_state, check_X_y

from sklearn_gn.core import backend
from sklearn_gn.core.linear_algebra.krylov import conjugate_gradient
from sklearn_gn.core.solver import Rows
from sklearn_gn.networks._base import checked_network, initial_parameters
from sklearn_gn.varpro.problem import (
    Model,
    Net,
    Penalties,
    example_losses,
    features,
    loss_curvature,
    loss_gradient,
    objective,
)

_NEWTON_ITERATIONS = 200
_CG_TOL = 1e-12


def inexact_inner(model, theta, rows, alpha_output, tol, rank):
    """The output layer by Newton's method, from zero until the gradient is small.

    Each step has at most ``rank`` iterations of conjugate gradients and is halved until
    the loss falls.
    """
    z = features(model, theta, rows.x)
    n_classes = rows.y.shape[1]
    start = jnp.zeros((z.shape[1], 1 if n_classes == 2 else n_classes), z.dtype)
    eps = float(jnp.finfo(z.dtype).eps)

    def value(output):
        mean = rows.weight @ example_losses(model, z @ output, rows.y)
        return mean + 0.5 * alpha_output * jnp.sum(output**2)

    def gradient(output):
        e = rows.weight[:, None] * loss_gradient(model, z @ output, rows.y)
        return z.T @ e + alpha_output * output

    def unfinished(carry):
        _, g, count, stuck = carry
        return (jnp.linalg.norm(g) > tol) & (count < _NEWTON_ITERATIONS) & ~stuck

    def newton(carry):
        output, g, count, _ = carry
        here = z @ output

        def product(v):
            bent = rows.weight[:, None] * loss_curvature(model, here, z @ v)
            return z.T @ bent + alpha_output * v

        step, *_ = conjugate_gradient(
            product, -g, tol=jnp.asarray(_CG_TOL, z.dtype), max_iter=rank
        )
        slope, loss = jnp.sum(step * g), value(output)
        allowed = 4 * eps * jnp.abs(loss)

        def too_long(length):
            new = value(output + length * step)
            return ~(new <= loss + 1e-4 * length * slope + allowed) & (length > 1e-9)

        length = lax.while_loop(too_long, lambda t: t / 2, jnp.ones_like(loss))
        moved = output + length * step
        after = gradient(moved)
        # At rounding the gradient no longer falls.
        flat = -slope <= eps * jnp.abs(loss)
        stuck = flat & (jnp.linalg.norm(after) >= jnp.linalg.norm(g) / 2)
        return moved, after, count + 1, stuck

    carry = start, gradient(start), jnp.int32(0), jnp.bool_(False)
    output, g, *_ = lax.while_loop(unfinished, newton, carry)
    return output, jnp.linalg.norm(g)


@partial(jax.jit, static_argnames="model")
def taylor_values(model, theta, direction, rows, penalties, steps, tol, rank):
    """Objective and slope at theta, and objectives at the steps from it."""
    flat, unravel = ravel_pytree(theta)
    solve = partial(inexact_inner, model)

    def solved(flat):
        theta = unravel(flat)
        output, size = solve(theta, rows, penalties.output, tol, rank)
        return Net(theta, output), size

    def value(step):
        net, _ = solved(flat + step * direction)
        return objective(model, net, rows, penalties)

    net, size = solved(flat)
    here, gradient = jax.value_and_grad(objective, argnums=1)(
        model, net, rows, penalties
    )
    # The gradient of variable projection: that at fixed W.
    slope = ravel_pytree(gradient.theta)[0] @ direction
    return here, slope, lax.map(value, steps), size


def taylor_errors(
    network,
    X,
    y,
    *,
    tolerances,
    steps,
    rank,
    alpha,
    alpha_output,
    random_state,
):
    """Errors of the Taylor expansions of order 0 and 1 in a random direction.

    Parameters
    ----------
    network : object
        With ``init`` and ``apply``.
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,)
        Classes.
    tolerances : sequence of float
        Sizes of the inner gradient at which the inner iteration ends.
    steps : array-like of shape (n_steps,)
        Lengths of the steps.
    rank : int
        Most iterations of conjugate gradients in an inner Newton step.
    alpha, alpha_output : float
        Penalties of the network and of the output layer.
    random_state : int, RandomState instance or None

    Returns
    -------
    dict
        ``steps``, ``zeroth`` and ``first``, the last two by tolerance, and
        ``inner_gradient``, the norm that was reached, all as plain Python values.
    """
    X, y = check_X_y(X, y, dtype=np.float64)
    classes, code = np.unique(y, return_inverse=True)
    rng = check_random_state(random_state)
    network = checked_network(network)
    model = Model(network, "cross_entropy")
    rows = Rows(X, np.eye(len(classes))[code], np.full(len(X), 1 / len(X)))
    penalties = Penalties(np.float64(alpha), np.float64(alpha_output))
    steps = np.asarray(steps, dtype=np.float64)
    answer = {"steps": steps.tolist(), "zeroth": {}, "first": {}, "inner_gradient": {}}
    with backend.scope("float64"):
        theta = initial_parameters(network, rng, X[:1])
        size = sum(np.size(leaf) for leaf in backend.leaves(theta))
        direction = rng.standard_normal(size)
        direction /= np.linalg.norm(direction)
        for tol in tolerances:
            here, slope, there, reached = backend.to_numpy(
                taylor_values(
                    *(model, theta, direction, rows, penalties, steps),
                    *(np.float64(tol), np.int32(rank)),
                )
            )
            name = f"{tol:g}"
            answer["zeroth"][name] = np.abs(there - here).tolist()
            answer["first"][name] = np.abs(there - here - steps * slope).tolist()
            answer["inner_gradient"][name] = float(reached)
    return answer
