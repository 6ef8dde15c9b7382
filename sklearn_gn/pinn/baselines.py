r"""Other solvers for the residuals of differential equations, on the loss of D-NGD.

Adam, SGD with Nesterov's momentum and a one-cycle schedule, and L-BFGS are optax's.
SSBroyden is the self-scaled Broyden method of Al-Baali, which Urban, Stefanou and Pons
brought to physics-informed networks. An iteration of the log is a number of steps.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.core.linear_algebra.trees import dimension, norm
from sklearn_gn.core.solver import Algorithm
from sklearn_gn.pinn.fit import begin, ended, prepare, renewed
from sklearn_gn.pinn.residuals import class_losses, residuals, weighted

_STEPS = {"adam": 100, "sgd": 100, "lbfgs": 20, "ssbroyden": 20}  # of an iteration
_LARGEST_MATRIX = 20_000  # rows of SSBroyden's matrix
_SEARCH = optax.scale_by_zoom_linesearch(
    max_linesearch_steps=25, initial_guess_strategy="one"
)


# --- SSBroyden -----------------------------------------------------------------------


class Broyden(NamedTuple):
    """Approximate inverse of the Hessian, and the last point."""

    inverse: jnp.ndarray  # (n, n)
    params: jnp.ndarray
    gradient: jnp.ndarray
    direction: jnp.ndarray
    count: jnp.ndarray


def scale_by_ssbroyden():
    """The direction of SSBroyden, as a transformation of optax for flat vectors."""

    def init(params):
        zero = jnp.zeros_like(params)
        eye = jnp.eye(params.shape[0], dtype=params.dtype)
        return Broyden(eye, zero, zero, zero, jnp.int32(0))

    def update(gradient, state, params):
        s, y = params - state.params, gradient - state.gradient
        moved = (state.count > 0) & (s @ y > 0)
        inverse = lax.cond(
            moved,
            lambda: self_scaled(state.inverse, s, y, state),
            lambda: state.inverse,
        )
        direction = inverse @ gradient
        # Rounding can spoil the matrix: begin again.
        good = direction @ gradient > 0
        inverse = jnp.where(good, inverse, jnp.eye(s.shape[0], dtype=s.dtype))
        direction = jnp.where(good, direction, gradient)
        new = Broyden(inverse, params, gradient, -direction, state.count + 1)
        return direction, new

    return optax.GradientTransformation(init, update)


def self_scaled(inverse, s, y, state):
    """Al-Baali's update with the member of Broyden's family that he recommends."""
    n = s.shape[0]
    image = inverse @ y
    ys, yhy = y @ s, y @ image
    length = (s @ state.direction) / (state.direction @ state.direction)
    b = -length * (s @ state.gradient) / ys
    h = yhy / ys
    a = jnp.maximum(b * h - 1, jnp.finfo(s.dtype).eps)  # Cauchy and Schwarz: not less
    c = jnp.sqrt(a / (1 + a))
    rho = jnp.minimum(1, h * (1 - c))
    theta = jnp.maximum((rho - 1) / a, jnp.minimum(1 / rho, (1 - b) / b))
    sigma = 1 + a * theta
    root = jnp.abs(sigma) ** (1 / (1 - n))
    upper = rho * jnp.minimum(root, 1 / jnp.where(theta > 0, theta, 1))
    tau = jnp.where(theta > 0, upper, jnp.minimum(rho * root, sigma))
    phi = (1 - theta) / sigma
    v = s / ys - image / yhy
    changed = inverse - jnp.outer(image, image) / yhy + phi * yhy * jnp.outer(v, v)
    return changed / tau + jnp.outer(s, s) / ys


# --- steps ---------------------------------------------------------------------------

_METHODS = {
    "adam": optax.scale_by_adam(),
    "sgd": optax.trace(decay=0.9, nesterov=True),
    "lbfgs": optax.chain(optax.scale_by_lbfgs(), optax.scale(-1.0), _SEARCH),
    "ssbroyden": optax.chain(scale_by_ssbroyden(), optax.scale(-1.0), _SEARCH),
}
_FIRST_ORDER = ("adam", "sgd")


@partial(jax.jit, static_argnames="name")
def start(net, name):
    """An empty memory."""
    with jax.numpy_dtype_promotion("standard"):
        return _METHODS[name].init(ravel_pytree(net)[0])


def on_new_points(memory, net, name):
    """The memory without what compares gradients of different points.

    That difference says nothing of the curvature. SSBroyden keeps its matrix.
    """
    if name == "lbfgs":
        return start(net, name)
    if name == "ssbroyden":
        broyden, *rest = memory
        return broyden._replace(count=jnp.zeros_like(broyden.count)), *rest
    return memory


@partial(jax.jit, static_argnames=("model", "name"))
def iterate(model, net, memory, batches, balance, rates, *, name):
    """As many steps as there are rates; with the losses and the gradient's norm."""
    batches = weighted(batches, balance)
    flat, unravel = ravel_pytree(net)

    def loss(flat):
        return 0.5 * jnp.sum(residuals(model, unravel(flat), batches) ** 2)

    def step(carry, rate):
        flat, memory = carry
        value, gradient = jax.value_and_grad(loss)(flat)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            if name in _FIRST_ORDER:
                move, memory = _METHODS[name].update(gradient, memory)
                move = -rate * move
            else:
                move, memory = _METHODS[name].update(
                    gradient, memory, flat, value=value, grad=gradient, value_fn=loss
                )
        return (flat + move, memory), None

    (new, memory), _ = lax.scan(step, (flat, memory), rates)
    net = unravel(new)
    r = residuals(model, net, batches)
    slope = norm(jax.grad(loss)(new))
    losses = class_losses(model, batches, r)
    return net, memory, losses, slope, norm(new - flat), norm(new)


def step(points, state, options, *, name):
    """Some steps on the same points."""
    draws = state.draws
    state = renewed(points, state, options)
    net, memory = jax.device_put(state.net), state.memory
    if state.draws > draws:
        memory = on_new_points(memory, net, name)
    net, memory, losses, *sizes = iterate(
        options.models[state.stage],
        net,
        memory,
        state.batches,
        state.balance,
        rates(options, state.iteration, name),
        name=name,
    )
    losses = np.asarray(losses) / state.balance
    state = state._replace(net=net, memory=memory)
    slope, length, size = map(float, sizes)
    return ended(points, state, options, losses, slope=slope, length=length, size=size)


def rates(options, iteration, name):
    """Learning rates of the steps of an iteration."""
    n, rate = _STEPS[name], options.learning_rate
    if name != "sgd":
        return np.full(n, rate)
    total = n * int(options.max_iter)
    share = (n * iteration + np.arange(n) + 0.5) / total
    return (rate * _one_cycle(share)).astype(rate.dtype)


def _one_cycle(share, *, rise=0.3, first=1 / 25, last=1e-4):
    """Learning rate over its peak: up to it, then down, along cosines."""
    up = first + (1 - first) * (1 - np.cos(np.pi * share / rise)) / 2
    down = last + (1 - last) * (1 + np.cos(np.pi * (share - rise) / (1 - rise))) / 2
    return np.where(share < rise, up, down)


def init(points, net, options, *, name):
    """Loss of the start, on the first points."""
    if name == "ssbroyden" and dimension(net) > _LARGEST_MATRIX:
        raise ValueError(
            f"solver='ssbroyden' keeps a matrix of {dimension(net)} rows; networks "
            f"have at most {_LARGEST_MATRIX} weights. Take 'lbfgs'."
        )
    return begin(points, net, options, start(net, name))


ALGORITHMS = tuple(
    Algorithm(name, partial(init, name=name), partial(step, name=name), prepare=prepare)
    for name in _STEPS
)
