"""Baselines for the shallow ReLU network: the objective and start of SgGN, other steps.

Levenberg-Marquardt in all parameters ("lm") or in the hidden ones ("lm_hidden"), KFRA,
BFGS and Adam, as in the comparisons of the SgGN paper. All work on the parameters
without the constraint ``|w_i| = 1``. A baseline is a pair of functions: ``start``
returns what the first iteration remembers, ``update`` carries out an iteration; the
loop around them is the same for all.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays.trees import norm, select
from sklearn_gn.linalg.factors import singular_triplets, solve_general, upper_factor
from sklearn_gn.linalg.least_squares import filter_factors
from sklearn_gn.optim import first_order
from sklearn_gn.optim.globalisation import Nielsen, search_damping
from sklearn_gn.optim.line_search import grid_search
from sklearn_gn.optim.solver import Algorithm, Report
from sklearn_gn.shallow_relu import sggn
from sklearn_gn.shallow_relu.joint import MAX_TRIALS
from sklearn_gn.shallow_relu.network import (
    heaviside,
    output_weights,
    preactivations,
    rescale,
    unit_normals,
)

_KFRA_DAMPING = 1e-4  # where none is given


class State(NamedTuple):
    """Network, loss, and what the next iteration remembers."""

    net: sggn.ShallowReLU
    loss: float
    memory: Any


class Update(NamedTuple):
    """Result of an iteration."""

    net: sggn.ShallowReLU
    memory: Any
    decrease: Any  # of the loss; 0 where the step was rejected
    grad_norm: Any
    step_size: Any = 1.0
    damping: Any = math.nan
    gain_ratio: Any = math.nan
    n_trials: Any = 1
    failed: Any = False  # whether a line search failed


# --- the loop ------------------------------------------------------------------------


def baseline(name, start, update):
    """Return the algorithm that starts from the optimal output layer."""
    return Algorithm(name, partial(init, start=start), partial(step, update=update))


def init(rows, net, options, *, start):
    """Solve for the output layer."""
    net, loss = sggn.initialise(net, rows, options)
    return State(net, float(loss), jax.jit(start)(net, rows))


def step(rows, state, options, *, update):
    """Carry out an iteration."""
    net, memory, numbers = iterate(
        state.net, state.memory, rows, options, update=update
    )
    loss, decrease, *logged, n_trials, failed = np.asarray(numbers).tolist()
    stop = None if decrease > float(options.tol) * loss else "tol"
    if stop and failed:
        stop = "line_search"
    if not math.isfinite(loss):
        stop = "non_finite"
    report = Report(loss, *logged, inner_iterations=int(n_trials), stop=stop)
    return State(net, loss, memory), report


@partial(jax.jit, static_argnames="update")
def iterate(net, memory, rows, options, *, update):
    """Return network, memory, and the loss with the numbers of :class:`Update`."""
    net, memory, *numbers = update(net, memory, rows, options)
    loss = sggn.objective(net, rows, options.alpha)
    # One array: each number by itself would take the time of a small iteration.
    return (
        net,
        memory,
        jnp.stack([jnp.asarray(n, loss.dtype) for n in (loss, *numbers)]),
    )


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
    """First shift: 1e-3 times the largest diagonal element of the Gram matrix."""
    residuals, moving, _ = lm_residuals(net, rows, 0.0, hidden_only)
    largest = jnp.max(jnp.sum(jax.jacfwd(residuals)(moving) ** 2, axis=0))
    return Nielsen.start(1e-3 * jnp.where(largest > 0, largest, 1))


def lm_update(net, shift, rows, options, *, hidden_only):
    """One accepted step; the SVD of the Jacobian serves all trial steps."""
    residuals, moving, network = lm_residuals(net, rows, options.alpha, hidden_only)
    error, jacobian = residuals(moving), jax.jacfwd(residuals)(moving)
    r = upper_factor(jnp.concatenate([jacobian, error[:, None]], axis=1))
    u, s, vt = singular_triplets(r[:, :-1])
    coordinates = u.T @ r[:, -1]

    def trial(shift, count):
        factors = filter_factors(s, shift, options.rank, options.rank_tol)
        along = factors * coordinates
        if options.damping is not None:
            along = jnp.exp2(-count.astype(s.dtype)) * along
        new = network(moving - vt.T @ along)
        if hidden_only:
            unit = unit_normals(new.hyperplanes, fallback=net.hyperplanes)
            new = sggn.fit_output_layer(new._replace(hyperplanes=unit), rows, options)
        # |e|^2 - |e - J d|^2, in the coordinates of the SVD.
        predicted = 0.5 * jnp.sum(s * along * (2 * coordinates - s * along))
        decrease = sggn.loss_decrease(net, new, rows, options.alpha)
        return new, decrease, predicted

    found = search_damping(
        trial, net, shift, fixed=options.damping, max_trials=MAX_TRIALS
    )
    return Update(
        net=rescale(found.accepted_or(net)),
        memory=found.damping,
        decrease=jnp.where(found.accepted, found.actual, 0),
        grad_norm=jnp.linalg.norm(jacobian.T @ error),
        damping=found.shift,
        gain_ratio=found.gain_ratio,
        n_trials=found.n_trials,
    )


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
    h = heaviside(z)
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
    return Update(
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


def bfgs_start(net, rows):
    """The identity for the inverse of the approximate Hessian."""
    del rows
    return jnp.eye(sum(p.size for p in trainable(net)), dtype=net.coef.dtype)


def bfgs_update(net, inverse_hessian, rows, options):
    """One BFGS step; the line search (strong Wolfe) is optax's."""
    x, unravel = ravel_pytree(trainable(net))

    def objective(x):
        return sggn.objective(with_parameters(net, unravel(x)), rows, options.alpha)

    value, gradient = jax.value_and_grad(objective)(x)
    search = -(inverse_hessian @ gradient)
    zoom = first_order.zoom_line_search(MAX_TRIALS)
    move, info = first_order.line_search_step(
        zoom,
        x,
        value,
        gradient,
        first_order.start(zoom, x),
        objective,
        direction=search,
    )
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
    return Update(
        net=with_parameters(net, unravel(jnp.where(accept, x + move, x))),
        memory=jnp.where(usable & accept, updated, inverse_hessian),
        decrease=jnp.where(accept, value - new_value, 0),
        grad_norm=jnp.linalg.norm(gradient),
        step_size=info.learning_rate,
        failed=~accept & promised,
    )


# --- Adam ----------------------------------------------------------------------------


def adam_start(net, rows):
    """Optax's moments, and the number of steps."""
    del rows
    return first_order.start("adam", trainable(net)), jnp.int32(0)


def adam_update(net, memory, rows, options):
    """One update on all rows; the rate is halved ten times over ``max_iter``."""
    moments, count = memory
    drops = (10 * count // options.max_iter).astype(net.coef.dtype)
    rate = options.learning_rate * jnp.exp2(-drops)
    _, gradient = value_and_gradient(net, rows, options)
    moved, moments = first_order.gradient_step(
        "adam", trainable(net), gradient, moments, rate
    )
    return Update(
        net=with_parameters(net, moved),
        memory=(moments, count + 1),
        decrease=jnp.inf,  # it ends by ``max_iter``
        grad_norm=norm(gradient),
        step_size=rate,
    )


ALGORITHMS = (
    *(
        baseline(name, *(partial(f, hidden_only=alone) for f in (lm_start, lm_update)))
        for name, alone in (("lm", False), ("lm_hidden", True))
    ),
    baseline("kfra", lambda net, rows: (), kfra_update),
    baseline("bfgs", bfgs_start, bfgs_update),
    baseline("adam", adam_start, adam_update),
)
