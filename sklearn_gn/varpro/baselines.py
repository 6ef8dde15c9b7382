"""The solvers of networks with an affine last layer, all on the objective of GNvpro.

"gnvpro" and "gn" are Gauss-Newton with the output layer projected out, and in all
weights; "lbfgs_vpro" is L-BFGS on the reduced objective; L-BFGS, Adam and SGD with
Nesterov's momentum are optax's. All start with the optimal output layer, on many rows
with that of some, and count work alike: one unit is a pass over all rows, forward or
backward.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.parts import differentiable_sum
from sklearn_gn.arrays.trees import norm
from sklearn_gn.optim import first_order
from sklearn_gn.optim.solver import Algorithm, Report, Rows
from sklearn_gn.varpro import batches, problem
from sklearn_gn.varpro.gnvpro import evaluate_last, gauss_newton, init, iterate
from sklearn_gn.varpro.inner import solve_inner
from sklearn_gn.varpro.problem import Net

# --- L-BFGS on the reduced objective -------------------------------------------------


def lbfgs(rows, state, settings):
    """Take a step of L-BFGS on the reduced objective."""
    net, memory = backend.on_device((state.net, state.memory))
    per_batch = settings.solver.iterations_per_batch
    new_batch = not batches.is_whole(settings) and state.iteration % per_batch == 0
    if memory is None or new_batch:  # what it remembers belongs to some rows
        memory = first_order.start(first_order.lbfgs(), net.theta)
    # The value and gradient, unless they are known, and the new output layer.
    passes = 1 if np.isfinite(memory[-1].value) else 3
    net, memory, value, loss, size, info = lbfgs_update(
        settings.model, net, memory, rows, settings.penalties
    )
    report = Report(
        loss=float(loss),
        grad_norm=float(size),
        step_size=float(memory[-1].learning_rate),
        stop=None if loss < value else "tol",  # the next search would be the same
    )
    state = state._replace(net=net, memory=memory)
    return state, report, passes + 2 * int(info.num_linesearch_steps)


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def lbfgs_update(model, net, memory, rows, penalties):
    """Search along a direction for the strong Wolfe conditions."""
    reduced = partial(reduced_objective, model, net.output, rows, penalties)
    value, gradient = first_order.value_and_gradient(reduced, net.theta, memory)
    move, memory = first_order.line_search_step(
        first_order.lbfgs(), net.theta, value, gradient, memory, reduced
    )
    theta = jax.tree.map(lambda p, u: p + u, net.theta, move)
    inner = solve_inner(model, Net(theta, net.output), rows, penalties)
    better = inner.loss < value
    # Value and gradient of the line search are of no use if the step is not taken.
    forgotten = memory[-1]._replace(value=jnp.full_like(memory[-1].value, jnp.inf))
    kept = (Net(theta, inner.output), memory), (net, (*memory[:-1], forgotten))
    net, memory = jax.tree.map(partial(jnp.where, better), *kept)
    loss = jnp.minimum(inner.loss, value)
    return net, memory, value, loss, norm(gradient), memory[-1].info


def reduced_objective(model, start, rows, penalties, theta):
    """Return Phi_red, differentiable by the envelope theorem."""
    frozen = Net(lax.stop_gradient(theta), start)
    output = lax.stop_gradient(solve_inner(model, frozen, rows, penalties).output)

    @differentiable_sum
    def mean(net):
        values = problem.features(model, net.theta, rows.x) @ net.output
        return rows.weight @ problem.example_losses(model, values, rows.y)

    net = Net(theta, output)
    return mean(net) + problem.total_penalty(model, *net, penalties)


# --- mini-batches --------------------------------------------------------------------


def epoch(rows, state, settings, name):
    """Take the steps of one epoch, and the loss on all rows.

    The gradient on all rows, for the log alone, would cost as much as the epoch.
    """
    net, memory = backend.on_device((state.net, state.memory))
    rate = np.asarray(settings.solver.learning_rate, settings.dtype)
    memory = first_order.start(name, net) if memory is None else memory
    for shuffled, count, size in batches.shuffled_epochs(
        rows, settings, state.iteration
    ):
        given = shuffled, count, settings.penalties, rate, size
        net, memory = epoch_of(settings.model, name, net, memory, *given)
        jax.block_until_ready(net)  # chunks that wait would fill the memory
    loss = batches.objective(settings.model, net, rows, settings.penalties)
    return state._replace(net=net, memory=memory), Report(float(loss), math.nan), 2


@partial(jax.jit, static_argnames=("model", "name", "size"))
def epoch_of(model, name, net, memory, rows, n_batches, penalties, rate, size):
    """Go through shuffled rows in mini-batches."""

    def update(k, carry):
        net, memory = carry
        part = (lax.dynamic_slice_in_dim(a, k * size, size) for a in rows)
        given = net, Rows(*part), penalties
        slope = jax.grad(problem.objective, argnums=1)(model, *given)
        return first_order.gradient_step(name, net, slope, memory, rate)

    return lax.fori_loop(jnp.int32(0), n_batches, update, (net, memory))


def _algorithm(name, update, projected):
    return Algorithm(
        name,
        init,
        partial(iterate, update=update, projected=projected),
        prepare=batches.prepare,
        evaluate_last=partial(evaluate_last, projected=projected),
    )


ALGORITHMS = {
    name: _algorithm(name, update, projected)
    for name, update, projected in (
        ("gnvpro", partial(gauss_newton, projected=True), True),
        ("gn", partial(gauss_newton, projected=False), False),
        ("lbfgs_vpro", lbfgs, True),
        ("adam", partial(epoch, name="adam"), False),
        ("sgd", partial(epoch, name="sgd"), False),
    )
}
