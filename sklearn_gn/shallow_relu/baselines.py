"""Baselines for the shallow ReLU network: the objective and start of SgGN, other steps.

Levenberg-Marquardt in all parameters ("lm") or in the hidden ones ("lm_hidden"), KFRA,
BFGS and Adam, as in the comparisons of the SgGN paper. All work on the parameters
without the constraint ``|w_i| = 1``.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays.trees import norm, select
from sklearn_gn.linalg.factors import singular_triplets, solve_general, upper_factor
from sklearn_gn.optim import first_order
from sklearn_gn.optim.globalisation import Nielsen
from sklearn_gn.optim.line_search import grid_search
from sklearn_gn.shallow_relu import sggn
from sklearn_gn.shallow_relu.network import (
    output_weights,
    preactivations,
    rescale,
    unit_normals,
)

_KFRA_DAMPING = 1e-4  # where none is given


# --- parameters and derivatives ------------------------------------------------------


def trainable(net):
    """The parameters as a tuple; ``alive`` is not one."""
    return net.hyperplanes, net.coef, net.intercept


def with_parameters(net, parameters):
    """The network with other parameters."""
    hyperplanes, coef, intercept = parameters
    return net._replace(hyperplanes=hyperplanes, coef=coef, intercept=intercept)


def value_and_gradient(net, rows, options):
    """The objective F and its gradient in the trainable parameters."""
    return jax.value_and_grad(
        lambda p: sggn.objective(with_parameters(net, p), rows, options.alpha)
    )(trainable(net))


# --- Levenberg-Marquardt -------------------------------------------------------------


def lm_residuals(net, rows, alpha, hidden_only):
    """Return the residuals as a function of the parameters, these, and what is back."""
    parameters, unravel = ravel_pytree(trainable(net))
    n_moving = net.hyperplanes.size if hidden_only else len(parameters)

    def network(moving):
        return with_parameters(net, unravel(parameters.at[:n_moving].set(moving)))

    def residuals(moving):
        moved = network(moving)
        error = sggn.residual(moved, rows).ravel()
        if hidden_only:
            return error
        penalty = jnp.sqrt(alpha) * output_weights(moved).ravel()
        return jnp.concatenate([error, penalty])

    return residuals, parameters[:n_moving], network


def lm_start(net, rows, *, hidden_only):
    """The first shift, from the largest diagonal element of the Gram matrix."""
    residuals, moving, _ = lm_residuals(net, rows, 0.0, hidden_only)
    largest = jnp.max(jnp.sum(jax.jacfwd(residuals)(moving) ** 2, axis=0))
    return Nielsen.start(jnp.where(largest > 0, largest, 1))


def lm_update(net, memory, rows, options, *, hidden_only):
    """One accepted step; the SVD of the Jacobian serves all trial steps."""
    residuals, moving, network = lm_residuals(net, rows, options.alpha, hidden_only)
    error, jacobian = residuals(moving), jax.jacfwd(residuals)(moving)
    r = upper_factor(jnp.concatenate([jacobian, error[:, None]], axis=1))
    u, s, vt = singular_triplets(r[:, :-1])
    model = sggn.leading(s**2, s * (u.T @ r[:, -1]), vt.T, options)

    def moved(step):
        new = network(moving + step)
        if hidden_only:
            unit = unit_normals(new.hyperplanes, fallback=net.hyperplanes)
            new = sggn.fit_output_layer(new._replace(hyperplanes=unit), rows, options)
        return new

    found = sggn.damped_step(net, memory, rows, options, model, moved)
    return found._replace(net=rescale(found.net))


# --- KFRA ----------------------------------------------------------------------------


def kfra_update(net, memory, rows, options):
    """Block-diagonal Gauss-Newton with Kronecker-factored blocks (Botev et al. 2017).

    Of the hidden layer: E[y y^T] kron (E[h h^T] o C C^T); of the output layer:
    E[S S^T] kron I. ``damping`` is split between the two factors of a block by the
    ratio of their mean traces; the step is scaled by a line search.
    """
    given = _KFRA_DAMPING if options.damping is None else options.damping
    damping = jnp.asarray(given, net.coef.dtype)
    _, gradient = value_and_gradient(net, rows, options)
    g_hidden, g_coef, g_intercept = gradient
    z = preactivations(net.hyperplanes, rows.x)
    ones = jnp.ones_like(z[:, :1])
    y = jnp.concatenate([ones, rows.x], axis=1)
    h = (z > 0).astype(z.dtype)
    weighted = rows.weight[:, None]
    a_hidden = y.T @ (weighted * y)
    b_hidden = (h.T @ (weighted * h)) * (net.coef @ net.coef.T)
    d_hidden = _kronecker_solve(b_hidden, a_hidden, g_hidden, damping)
    s = jnp.concatenate([ones, jnp.maximum(z, 0)], axis=1)
    a_output = s.T @ (weighted * s)
    g_output = jnp.concatenate([g_intercept[None, :], g_coef])
    eye = jnp.eye(a_output.shape[0], dtype=z.dtype)
    d_output = solve_general(a_output + damping * eye, g_output)
    move = (d_hidden, d_output[1:], d_output[0])

    def along(gamma):
        moved = jax.tree.map(lambda p, d: p - gamma * d, trainable(net), move)
        return with_parameters(net, moved)

    losses = partial(lax.map, lambda g: sggn.objective(along(g), rows, options.alpha))
    gamma = grid_search(losses, z.dtype, jnp)
    new = along(gamma)
    decrease = sggn.loss_decrease(net, new, rows, options.alpha)
    return sggn.Update(
        net=rescale(select(decrease > 0, new, net)),
        memory=memory,
        decrease=jnp.where(decrease > 0, decrease, 0),
        grad_norm=norm(gradient),
        step_size=gamma,
        damping=damping,
    )


def _kronecker_solve(left, right, gradient, damping):
    """``(left + pi sqrt(damping) I)^-1 gradient (right + sqrt(damping)/pi I)^-1``."""
    mean = jnp.trace(left) / left.shape[0], jnp.trace(right) / right.shape[0]
    usable = (mean[0] > 0) & (mean[1] > 0)
    pi = jnp.where(usable, jnp.sqrt(mean[0] / jnp.where(usable, mean[1], 1)), 1)
    root = jnp.sqrt(damping)
    left = left + pi * root * jnp.eye(left.shape[0], dtype=left.dtype)
    right = right + root / pi * jnp.eye(right.shape[0], dtype=right.dtype)
    return solve_general(left, solve_general(right, gradient.T).T)


# --- BFGS ----------------------------------------------------------------------------


def bfgs_update(net, inverse_hessian, rows, options):
    """One BFGS step; the line search (strong Wolfe) is optax's."""
    x, unravel = ravel_pytree(trainable(net))

    def objective(x):
        return sggn.objective(with_parameters(net, unravel(x)), rows, options.alpha)

    value, gradient = jax.value_and_grad(objective)(x)
    search = -(inverse_hessian @ gradient)
    zoom = first_order.zoom_line_search()
    at = x, value, gradient, first_order.start(zoom, x)
    move, info = first_order.line_search_step(zoom, *at, objective, direction=search)
    # The curvature condition fails at kinks; the old matrix then stays.
    new_value, new_gradient = jax.value_and_grad(objective)(x + move)
    change = new_gradient - gradient
    curvature = change @ move
    usable = curvature > 1e-10 * jnp.linalg.norm(change) * jnp.linalg.norm(move)
    scale = 1 / jnp.where(usable, curvature, 1)
    left = jnp.eye(x.shape[0], dtype=x.dtype) - scale * jnp.outer(move, change)
    updated = left @ inverse_hessian @ left.T + scale * jnp.outer(move, move)
    accept = new_value < value
    # No step although the model promises one: the search failed, at a kink mostly.
    promised = -0.5 * (search @ gradient) > jnp.sqrt(options.tol) * value
    return sggn.Update(
        net=with_parameters(net, unravel(jnp.where(accept, x + move, x))),
        memory=jnp.where(usable & accept, updated, inverse_hessian),
        decrease=jnp.where(accept, value - new_value, 0),
        grad_norm=jnp.linalg.norm(gradient),
        step_size=info.learning_rate,
        failure=jnp.where(~accept & promised, 2, 0),
    )


# --- Adam ----------------------------------------------------------------------------


def adam_update(net, memory, rows, options):
    """One update on all rows; the rate is halved ten times over ``max_iter``."""
    moments, count = memory
    drops = (10 * count // options.max_iter).astype(net.coef.dtype)
    rate = options.learning_rate * jnp.exp2(-drops)
    _, gradient = value_and_gradient(net, rows, options)
    given = "adam", trainable(net), gradient, moments, rate
    moved, moments = first_order.gradient_step(*given)
    return sggn.Update(
        net=with_parameters(net, moved),
        memory=(moments, count + 1),
        decrease=jnp.inf,  # it ends by ``max_iter``
        grad_norm=norm(gradient),
        step_size=rate,
    )


METHODS = {
    "lm": tuple(partial(f, hidden_only=False) for f in (lm_start, lm_update)),
    "lm_hidden": tuple(partial(f, hidden_only=True) for f in (lm_start, lm_update)),
    "kfra": (lambda net, _: (), kfra_update),
    "bfgs": (  # from the identity for the inverse of the approximate Hessian
        lambda net, _: jnp.eye(
            sum(map(jnp.size, trainable(net))), dtype=net.coef.dtype
        ),
        bfgs_update,
    ),
    "adam": (  # from Optax's moments, and the number of steps
        lambda net, _: (first_order.start("adam", trainable(net)), jnp.int32(0)),
        adam_update,
    ),
}
