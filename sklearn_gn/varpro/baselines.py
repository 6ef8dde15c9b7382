"""The solvers of networks with an affine last layer, all on the objective of GNvpro.

"gnvpro" and "gn" are Gauss-Newton with the output layer projected out, and in all
weights; "lbfgs_vpro" is L-BFGS on the reduced objective; L-BFGS, Adam and SGD with
Nesterov's momentum are optax's. All start with the optimal output layer (of some rows,
where there are many), and count work alike: one unit is a pass over all rows, forward
or backward.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.collectives import differentiable_sum
from sklearn_gn.arrays.trees import norm
from sklearn_gn.bayes.layers import losses
from sklearn_gn.optim import first_order
from sklearn_gn.optim.solver import Algorithm, Report, Rows
from sklearn_gn.varpro import problem, training
from sklearn_gn.varpro.gnvpro import gauss_newton
from sklearn_gn.varpro.problem import Net, of_rows, solve_inner

# --- L-BFGS on the reduced objective -------------------------------------------------


def lbfgs(rows, state, settings):
    """Take a step of L-BFGS on the reduced objective."""
    net, memory = backend.on_device((state.net, state.memory))
    per_batch = settings.solver.iterations_per_batch
    new_batch = not training.is_whole(settings) and state.iteration % per_batch == 0
    if memory is None or new_batch:  # what it remembers belongs to some rows
        memory = first_order.start(first_order.lbfgs(), net.theta)
    # The value and gradient, unless they are known, and the new output layer.
    passes = 1 if np.isfinite(memory[-1].value) else 3
    given = settings.model, net, memory, rows, settings.penalties
    net, memory, value, loss, size, search = lbfgs_update(*given)
    report = Report(
        loss=float(loss),
        grad_norm=float(size),
        step_size=float(search.learning_rate),
        stop=None if loss < value else "tol",  # the next search would be the same
    )
    state = state._replace(net=net, memory=memory)
    return state, report, passes + 2 * int(search.info.num_linesearch_steps)


@of_rows()
def lbfgs_update(model, net, memory, rows, penalties):
    """Search along a direction for the strong Wolfe conditions."""
    reduced = partial(reduced_objective, model, net.output, rows, penalties)
    value, gradient = first_order.value_and_gradient(reduced, net.theta, memory)
    at = first_order.lbfgs(), net.theta, value, gradient, memory, reduced
    move, searched = first_order.line_search_step(*at)
    theta = jax.tree.map(lambda p, u: p + u, net.theta, move)
    inner = solve_inner(model, Net(theta, net.output), rows, penalties)
    kept = (Net(theta, inner.output), searched), (net, memory)
    net, memory = jax.tree.map(partial(jnp.where, inner.loss < value), *kept)
    loss, search = jnp.fmin(inner.loss, value), searched[-1]
    return net, memory, value, loss, norm(gradient), search


def reduced_objective(model, start, rows, penalties, theta):
    """Return Phi_red, differentiable by the envelope theorem."""
    frozen = Net(lax.stop_gradient(theta), start)
    output = lax.stop_gradient(solve_inner(model, frozen, rows, penalties).output)

    @differentiable_sum
    def mean(net):
        values = problem.features(model, net.theta, rows.x) @ net.output
        return rows.weight @ losses(model, values, rows.y)

    net = Net(theta, output)
    return mean(net) + problem.total_penalty(model, *net, penalties)


# --- mini-batches --------------------------------------------------------------------


def epoch(rows, state, settings, name):
    """Take the steps of one epoch, and the loss on all rows.

    The gradient on all rows, for the log alone, would cost as much as the epoch.
    """
    net, memory = backend.on_device((state.net, state.memory))
    rate = np.asarray(settings.solver.learning_rate, settings.tol.dtype)
    memory = first_order.start(name, net) if memory is None else memory
    batches = training.shuffled_epochs(rows, settings, state.iteration)
    for shuffled, count, size in batches:
        given = shuffled, count, settings.penalties, rate, size
        net, memory = epoch_of(settings.model, name, net, memory, *given)
        jax.block_until_ready(net)  # chunks that wait would fill the memory
    _, loss = training.evaluated(net, rows, settings, False)
    return state._replace(net=net, memory=memory), Report(loss, math.nan), 2


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


ALGORITHMS = {
    name: Algorithm(
        name,
        training.init,
        partial(training.iterate, update=update, projected=projected),
        prepare=lambda rows, settings: training.prepare(rows, settings.mesh),
        evaluate_last=partial(training.evaluate_last, projected=projected),
    )
    for name, update, projected in (
        ("gnvpro", partial(gauss_newton, projected=True), True),
        ("gn", partial(gauss_newton, projected=False), False),
        ("lbfgs_vpro", lbfgs, True),
        ("adam", partial(epoch, name="adam"), False),
        ("sgd", partial(epoch, name="sgd"), False),
    )
}
