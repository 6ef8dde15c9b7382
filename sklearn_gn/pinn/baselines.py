r"""Other solvers for the residuals of differential equations, on the loss of D-NGD.

Adam, SGD with Nesterov's momentum and a one-cycle schedule, and L-BFGS are optax's.
An iteration of the log is a number of steps.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.collectives import differentiable_sum
from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.trees import norm
from sklearn_gn.optim import first_order
from sklearn_gn.optim.solver import Algorithm, Report
from sklearn_gn.pinn import iteration
from sklearn_gn.pinn.iteration import on_devices
from sklearn_gn.pinn.residuals import class_losses, residuals

_STEPS = {"adam": 100, "sgd": 100, "lbfgs": 20, "ssbroyden": 20}  # of an iteration


def step(points, state, settings, *, name):
    """Make some steps on the same points."""
    n_draws, n, dtype = state.n_draws, _STEPS[name], settings.dtype
    state = iteration.with_due_points(points, state, settings)
    net, memory = backend.on_device(state.net), state.memory
    if memory is None or (state.n_draws > n_draws and name == "lbfgs"):
        memory = first_order.start(_method(name), ravel_pytree(net)[0])
    elif state.n_draws > n_draws and name == "ssbroyden":
        # Without differences of gradients of different points.
        memory = memory[0]._replace(count=jnp.zeros_like(memory[0].count)), *memory[1:]
    rates = np.ones(n, dtype)  # of methods with a line search
    if name in first_order.OPTIMISERS:
        rates *= settings.steps.solver.learning_rate
    if name == "sgd":
        peak = float(settings.steps.solver.learning_rate)
        schedule = optax.cosine_onecycle_schedule(n * settings.steps.max_iter, peak)
        steps = np.arange(n * state.iteration, n * (state.iteration + 1))
        with jax.numpy_dtype_promotion("standard"):
            rates = np.asarray(jax.vmap(schedule)(steps), dtype)
    batches = on_devices(state.batches, settings)
    given = settings.models[state.stage], net, memory, batches, rates
    net, memory, losses, *norms = iterate(*given, name=name)
    losses = np.asarray(losses)
    state = state._replace(net=net, memory=memory)
    report = Report(float(losses.sum()), *map(float, norms))
    summary = iteration.StepSummary(report, losses)
    return iteration.finish_iteration(points, state, settings, summary)


@partial(by_rows, compiled=jitted(static_argnames=("model", "name")), static=("model",))
def iterate(model, net, memory, batches, rates, *, name):
    """Make as many steps as there are learning rates."""
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
    return net, memory, losses, norm(jax.grad(loss)(new)), norm(new - flat)


def _method(name):
    """The method of a name, the same object every time."""
    if name in first_order.OPTIMISERS:
        return name
    return first_order.lbfgs() if name == "lbfgs" else first_order.ssbroyden()


ALGORITHMS = tuple(
    Algorithm(
        name,
        iteration.initial_state,
        partial(step, name=name),
        prepare=iteration.prepare,
    )
    for name in _STEPS
)
