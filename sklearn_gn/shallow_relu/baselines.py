"""Baselines for the shallow ReLU network: the objective and start of SgGN, other steps.

Levenberg-Marquardt in all parameters ("lm") or in the hidden ones ("lm_hidden"), KFRA,
BFGS and Adam, as in the comparisons of the SgGN paper. All work on the parameters
without the constraint ``|w_i| = 1``; the returned network is rescaled to it.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays.trees import select
from sklearn_gn.linalg.least_squares import filter_factors
from sklearn_gn.optim import first_order
from sklearn_gn.optim.globalisation import Nielsen, search_damping
from sklearn_gn.optim.line_search import grid_search
from sklearn_gn.optim.solver import Algorithm, Report
from sklearn_gn.shallow_relu import sggn
from sklearn_gn.shallow_relu.network import (
    heaviside,
    hidden_features,
    output_weights,
    preactivations,
    rescale,
    unit_normals,
)

KFRA_DAMPING = 1e-4  # where none is given
_MAX_TRIALS = 30  # steps tried in one iteration of Levenberg-Marquardt


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


def _stop(loss, decrease, tol):
    if not math.isfinite(loss):
        return "non_finite"
    return None if decrease > tol * loss else "tol"


# --- Levenberg-Marquardt -------------------------------------------------------------


class LMState(NamedTuple):
    """Network, loss and shift of a Levenberg-Marquardt run."""

    net: sggn.ShallowReLU
    loss: float
    shift: Nielsen


def full_jacobian(net, rows):
    """Jacobian of the residual in (hyperplanes, coef, intercept), raveled.

    Returns
    -------
    array of shape (m * q, n * (1 + d) + n * q + q)
    """
    q = net.coef.shape[1]
    layer = hidden_jacobian(net, rows)
    eye = jnp.eye(q, dtype=layer.dtype)
    root = jnp.sqrt(rows.weight)
    features = root[:, None] * hidden_features(net.hyperplanes, rows.x)
    output = jnp.einsum("ki,lj->klij", features, eye).reshape(layer.shape[0], -1)
    constant = jnp.einsum("k,lj->klj", root, eye).reshape(layer.shape[0], q)
    return jnp.concatenate([layer, output, constant], axis=1)


def hidden_jacobian(net, rows):
    """Jacobian of the residual in the hyperplanes alone, raveled."""
    size = jnp.repeat(sggn.activity(net), net.hyperplanes.shape[1])
    return sggn.layer_design(net, rows, sggn.active_set(net, 0.0)) * size[None, :]


@partial(jax.jit, static_argnames="hidden_only")
def lm_start(net, rows, hidden_only):
    """First shift: 1e-3 times the largest diagonal element of the Gram matrix."""
    jacobian = (hidden_jacobian if hidden_only else full_jacobian)(net, rows)
    largest = jnp.max(jnp.sum(jacobian**2, axis=0))
    return Nielsen.start(1e-3 * jnp.where(largest > 0, largest, 1))


@partial(jax.jit, static_argnames="hidden_only")
def lm_iterate(state, rows, options, hidden_only):
    """One accepted step; the SVD of the Jacobian serves all trial steps."""
    net = state.net
    parameters, unravel = ravel_pytree(trainable(net))
    n_moving = net.hyperplanes.size if hidden_only else parameters.shape[0]
    jacobian = (hidden_jacobian if hidden_only else full_jacobian)(net, rows)
    error = sggn.residual(net, rows).reshape(-1)
    if not hidden_only:  # the ridge penalty is a residual of the coefficients

        def penalty(p):
            weights = output_weights(with_parameters(net, unravel(p)))
            return jnp.sqrt(options.alpha) * weights.ravel()

        jacobian = jnp.concatenate([jacobian, jax.jacfwd(penalty)(parameters)])
        error = jnp.concatenate([error, penalty(parameters)])
    r = jnp.linalg.qr(jnp.concatenate([jacobian, error[:, None]], axis=1), mode="r")
    u, s, vt = jnp.linalg.svd(r[:, :n_moving], full_matrices=False)
    coordinates = u.T @ r[:, n_moving]

    def trial(shift, count):
        factors = filter_factors(s, shift, options.rank, options.rank_tol)
        along = factors * coordinates
        if options.damping is not None:
            along = jnp.exp2(-count.astype(s.dtype)) * along
        moved = parameters.at[:n_moving].add(-(vt.T @ along))
        new = with_parameters(net, unravel(moved))
        if hidden_only:
            unit = unit_normals(new.hyperplanes, fallback=net.hyperplanes)
            new = sggn.fit_output_layer(new._replace(hyperplanes=unit), rows, options)
        # |e|^2 - |e - J d|^2, in the coordinates of the SVD.
        predicted = 0.5 * jnp.sum(s * along * (2 * coordinates - s * along))
        decrease = sggn.loss_decrease(net, new, rows, options.alpha)
        return new, decrease, predicted

    found = search_damping(
        trial, net, state.shift, fixed=options.damping, max_trials=_MAX_TRIALS
    )
    kept = found.accepted_or(net)
    gradient = jnp.linalg.norm(jacobian.T @ error)
    loss = sggn.objective(kept, rows, options.alpha)
    return (
        LMState(kept, loss, found.damping),
        jnp.where(found.accepted, found.actual, 0),
        gradient,
        found.shift,
        found.gain_ratio,
        found.n_trials,
    )


def lm_init(rows, net, options, *, hidden_only):
    """Start from the optimal output layer."""
    net, loss = sggn.initialise(net, rows, options)
    return LMState(net, float(loss), lm_start(net, rows, hidden_only))


def lm_step(rows, state, options, *, hidden_only):
    """One accepted step; the trial steps count as inner iterations."""
    state, decrease, gradient, used, gain, count = lm_iterate(
        state, rows, options, hidden_only
    )
    loss = float(state.loss)
    report = Report(
        loss=loss,
        grad_norm=float(gradient),
        step_size=1.0,
        damping=float(used),
        gain_ratio=float(gain),
        inner_iterations=int(count),
        stop=_stop(loss, float(decrease), float(options.tol)),
    )
    # A number again, as at the start: an array would be compiled for once more.
    return state._replace(net=_rescaled(state.net), loss=loss), report


_rescaled = jax.jit(rescale)


# --- KFRA ----------------------------------------------------------------------------


class NetState(NamedTuple):
    """Network and loss."""

    net: sggn.ShallowReLU
    loss: float


def kfra_init(rows, net, options):
    """Start from the optimal output layer."""
    net, loss = sggn.initialise(net, rows, options)
    return NetState(net, float(loss))


@jax.jit
def kfra_iterate(net, rows, options):
    """Block-diagonal Gauss-Newton with Kronecker-factored blocks (Botev et al. 2017).

    Of the hidden layer: E[y y^T] kron (E[h h^T] o C C^T); of the output layer:
    E[S S^T] kron I. ``damping`` is split between the two factors of a block by the
    ratio of their mean traces; the step is scaled by a line search.
    """
    given = KFRA_DAMPING if options.damping is None else options.damping
    damping = jnp.asarray(given, net.coef.dtype)
    loss, (g_hidden, g_coef, g_intercept) = value_and_gradient(net, rows, options)
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
    d_output = jnp.linalg.solve(a_output + damping * eye, g_output)
    move = (d_hidden, d_output[1:], d_output[0])

    def along(gamma):
        moved = jax.tree.map(lambda p, d: p - gamma * d, trainable(net), move)
        return with_parameters(net, moved)

    def loss_along(gamma):
        return sggn.objective(along(gamma), rows, options.alpha)

    gamma = grid_search(partial(lax.map, loss_along), z.dtype, jnp)
    new = along(gamma)
    decrease = sggn.loss_decrease(net, new, rows, options.alpha)
    accept = decrease > 0
    kept = select(accept, new, net)
    gradient = jnp.sqrt(sum(jnp.sum(g**2) for g in (g_hidden, g_coef, g_intercept)))
    loss = sggn.objective(kept, rows, options.alpha)
    return rescale(kept), loss, jnp.where(accept, decrease, 0), gradient, gamma, damping


def _kronecker_solve(left, right, gradient, damping):
    """``(left + pi sqrt(damping) I)^-1 gradient (right + sqrt(damping)/pi I)^-1``."""
    mean = jnp.trace(left) / left.shape[0], jnp.trace(right) / right.shape[0]
    usable = (mean[0] > 0) & (mean[1] > 0)
    pi = jnp.where(usable, jnp.sqrt(mean[0] / jnp.where(usable, mean[1], 1)), 1)
    root = jnp.sqrt(damping)
    left = left + pi * root * jnp.eye(left.shape[0], dtype=left.dtype)
    right = right + root / pi * jnp.eye(right.shape[0], dtype=right.dtype)
    return jnp.linalg.solve(left, jnp.linalg.solve(right, gradient.T).T)


def kfra_step(rows, state, options):
    """One step along the Kronecker-factored direction."""
    net, loss, decrease, gradient, gamma, damping = kfra_iterate(
        state.net, rows, options
    )
    loss = float(loss)
    report = Report(
        loss=loss,
        grad_norm=float(gradient),
        step_size=float(gamma),
        damping=float(damping),
        stop=_stop(loss, float(decrease), float(options.tol)),
    )
    return NetState(net, loss), report


# --- BFGS ----------------------------------------------------------------------------

_LINE_SEARCH_STEPS = 30


class BFGSState(NamedTuple):
    """Network, loss and inverse of the approximate Hessian."""

    net: sggn.ShallowReLU
    loss: float
    inverse_hessian: jnp.ndarray


def bfgs_init(rows, net, options):
    """Start from the optimal output layer and the identity."""
    net, loss = sggn.initialise(net, rows, options)
    n = sum(p.size for p in trainable(net))
    return BFGSState(net, float(loss), np.eye(n, dtype=net.coef.dtype))


@jax.jit
def bfgs_iterate(net, inverse_hessian, rows, options):
    """One BFGS step; the line search (strong Wolfe) is optax's."""
    x, unravel = ravel_pytree(trainable(net))

    def objective(x):
        return sggn.objective(with_parameters(net, unravel(x)), rows, options.alpha)

    value, gradient = jax.value_and_grad(objective)(x)
    search = -(inverse_hessian @ gradient)
    zoom = first_order.zoom_line_search(_LINE_SEARCH_STEPS)
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
    decrease = value - new_value
    accept = decrease > 0
    return (
        with_parameters(net, unravel(jnp.where(accept, x + move, x))),
        jnp.where(accept, new_value, value),
        jnp.where(usable & accept, updated, inverse_hessian),
        jnp.where(accept, decrease, 0),
        -0.5 * (search @ gradient),
        jnp.linalg.norm(gradient),
        info.learning_rate,
    )


def bfgs_step(rows, state, options):
    """One step of BFGS."""
    net, loss, inverse_hessian, decrease, expected, gradient, rate = bfgs_iterate(
        state.net, state.inverse_hessian, rows, options
    )
    loss, tol = float(loss), float(options.tol)
    stop = _stop(loss, float(decrease), tol)
    # No step although the model promises one: the search failed, at a kink mostly.
    if stop == "tol" and not decrease > 0 and expected > math.sqrt(tol) * loss:
        stop = "line_search"
    report = Report(
        loss=loss,
        grad_norm=float(gradient),
        step_size=float(rate),
        stop=stop,
    )
    return BFGSState(net, loss, inverse_hessian), report


# --- Adam ----------------------------------------------------------------------------


class AdamState(NamedTuple):
    """Network, loss, optax's moments and the number of steps."""

    net: sggn.ShallowReLU
    loss: float
    moments: tuple
    count: int = 0  # type: ignore[assignment]


def adam_init(rows, net, options):
    """Start from the optimal output layer."""
    net, loss = sggn.initialise(net, rows, options)
    moments = first_order.start("adam", trainable(net))
    return AdamState(net, float(loss), moments)


@jax.jit
def adam_iterate(net, moments, rows, options, rate):
    """One update on all rows."""
    _, gradient = value_and_gradient(net, rows, options)
    moved, moments = first_order.gradient_step(
        "adam", trainable(net), gradient, moments, rate
    )
    net = with_parameters(net, moved)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gradient))
    return net, moments, sggn.objective(net, rows, options.alpha), norm


def adam_step(rows, state, options):
    """One step on all rows; the rate is halved ten times over ``max_iter``."""
    drops = 10 * state.count // int(options.max_iter)
    rate = float(options.learning_rate) * 0.5**drops
    net, moments, loss, norm = adam_iterate(
        state.net, state.moments, rows, options, np.asarray(rate, state.net.coef.dtype)
    )
    loss = float(loss)
    report = Report(
        loss=loss,
        grad_norm=float(norm),
        step_size=rate,
        stop=None if math.isfinite(loss) else "non_finite",
    )
    return AdamState(net, loss, moments, state.count + 1), report


ALGORITHMS = (
    Algorithm(
        "lm",
        partial(lm_init, hidden_only=False),
        partial(lm_step, hidden_only=False),
    ),
    Algorithm(
        "lm_hidden",
        partial(lm_init, hidden_only=True),
        partial(lm_step, hidden_only=True),
    ),
    Algorithm("kfra", kfra_init, kfra_step),
    Algorithm("bfgs", bfgs_init, bfgs_step),
    Algorithm("adam", adam_init, adam_step),
)
