r"""Other solvers for the residuals of differential equations, on the loss of D-NGD.

Adam, SGD with Nesterov's momentum and a one-cycle schedule, and L-BFGS are optax's.
SSBroyden is the self-scaled Broyden method of Al-Baali, which Urban, Stefanou and Pons
brought to physics-informed networks. An iteration of the log is a number of steps.
"""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.parts import differentiable_sum
from sklearn_gn.arrays.trees import dimension, norm
from sklearn_gn.optim import first_order
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.pinn import iteration
from sklearn_gn.pinn.iteration import on_devices
from sklearn_gn.pinn.residuals import class_losses, residuals, with_class_weights

_STEPS = {"adam": 100, "sgd": 100, "lbfgs": 20, "ssbroyden": 20}  # of an iteration
_RISE, _FIRST, _LAST = 0.3, 1 / 25, 1e-4  # of the one cycle: share of steps, and rates
_LINE_SEARCH_STEPS = 25
_LARGEST_MATRIX = 20_000  # rows of SSBroyden's matrix


def init(points, net, settings, *, name):
    """Return the state at the start."""
    if name == "ssbroyden" and dimension(net) > _LARGEST_MATRIX:
        raise ValueError(
            f"solver='ssbroyden' keeps a matrix of {dimension(net)} rows; networks "
            f"have at most {_LARGEST_MATRIX} weights. Take 'lbfgs'."
        )
    return iteration.initial_state(points, net, settings, empty_memory(net, name))


def step(points, state, settings, *, name):
    """Make some steps on the same points."""
    n_draws = state.n_draws
    state = iteration.with_due_points(points, state, settings)
    net, memory = backend.on_device(state.net), state.memory
    if state.n_draws > n_draws:
        memory = memory_for_new_points(memory, net, name)
    net, memory, losses, *norms = iterate(
        settings.models[state.stage],
        net,
        memory,
        on_devices(state.batches, settings),
        state.balance,
        learning_rates(settings, state.iteration, name),
        name=name,
    )
    losses = np.asarray(losses) / state.balance
    state = state._replace(net=net, memory=memory)
    summary = iteration.StepSummary(losses, *map(float, norms))
    return iteration.finish_iteration(points, state, settings, summary)


@partial(jax.jit, static_argnames="name")
def empty_memory(net, name):
    """Return an empty memory."""
    return first_order.start(_method(name), ravel_pytree(net)[0])


def memory_for_new_points(memory, net, name):
    """The memory without differences of gradients of different points."""
    if name == "lbfgs":
        return empty_memory(net, name)
    if name == "ssbroyden":
        broyden, *rest = memory
        return broyden._replace(count=jnp.zeros_like(broyden.count)), *rest
    return memory


@partial(by_rows, compiled=jitted(static_argnames=("model", "name")), static=("model",))
def iterate(model, net, memory, batches, balance, rates, *, name):
    """Make as many steps as there are learning rates."""
    batches = with_class_weights(batches, balance)
    flat, unravel = ravel_pytree(net)

    @differentiable_sum
    def loss(flat):
        return 0.5 * jnp.sum(residuals(model, unravel(flat), batches) ** 2)

    def one(carry, rate):
        flat, memory = carry
        value, gradient = jax.value_and_grad(loss)(flat)
        if name in first_order.OPTIMISERS:
            return first_order.gradient_step(name, flat, gradient, memory, rate), None
        move, memory = first_order.line_search_step(
            _method(name), flat, value, gradient, memory, loss
        )
        return (flat + move, memory), None

    (new, memory), _ = lax.scan(one, (flat, memory), rates)
    net = unravel(new)
    losses = class_losses(model, batches, residuals(model, net, batches))
    gradient_norm = norm(jax.grad(loss)(new))
    return net, memory, losses, gradient_norm, norm(new - flat), norm(new)


def learning_rates(settings, iteration, name):
    """Learning rates of the steps of an iteration; ones where a line search decides."""
    n, dtype = _STEPS[name], settings.dtype
    if name not in first_order.OPTIMISERS:
        return np.ones(n, dtype)
    rate = dtype.type(settings.steps.solver.learning_rate)
    if name != "sgd":
        return np.full(n, rate)
    total = n * int(settings.steps.max_iter)
    share = (n * iteration + np.arange(n) + 0.5) / total
    # Up to the largest rate, then down, along cosines.
    up = _FIRST + (1 - _FIRST) * (1 - np.cos(np.pi * share / _RISE)) / 2
    down = _LAST + (1 - _LAST) * (1 + np.cos(np.pi * (share - _RISE) / (1 - _RISE))) / 2
    return (rate * np.where(share < _RISE, up, down)).astype(dtype)


# --- SSBroyden -----------------------------------------------------------------------


class Broyden(NamedTuple):
    """Approximate inverse of the Hessian, and the last point."""

    inverse: jnp.ndarray  # (n, n)
    params: jnp.ndarray
    gradient: jnp.ndarray
    direction: jnp.ndarray
    count: jnp.ndarray  # type: ignore[assignment]


@cache
def ssbroyden():
    """SSBroyden with a line search, for flat vectors."""

    def init(params):
        zero = jnp.zeros_like(params)
        eye = jnp.eye(params.shape[0], dtype=params.dtype)
        return Broyden(eye, zero, zero, zero, jnp.int32(0))

    def update(gradient, state, params):
        s, y = params - state.params, gradient - state.gradient
        moved = (state.count > 0) & (s @ y > 0)
        inverse = lax.cond(
            moved,
            lambda: _self_scaled_inverse(state.inverse, s, y, state),
            lambda: state.inverse,
        )
        direction = inverse @ gradient
        # Rounding can spoil the matrix: begin again.
        good = direction @ gradient > 0
        inverse = jnp.where(good, inverse, jnp.eye(s.shape[0], dtype=s.dtype))
        direction = jnp.where(good, direction, gradient)
        new = Broyden(inverse, params, gradient, -direction, state.count + 1)
        return direction, new

    return first_order.quasi_newton(init, update, _LINE_SEARCH_STEPS)


def _self_scaled_inverse(inverse, s, y, state):
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


def _method(name):
    """The method of a name, the same object every time."""
    if name in first_order.OPTIMISERS:
        return name
    return first_order.lbfgs(_LINE_SEARCH_STEPS) if name == "lbfgs" else ssbroyden()


ALGORITHMS = tuple(
    Algorithm(
        name,
        partial(init, name=name),
        partial(step, name=name),
        prepare=iteration.prepare,
    )
    for name in _STEPS
)
