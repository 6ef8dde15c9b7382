"""Other solvers for networks with an affine last layer, on the objective of GNvpro.

"gn" is Gauss-Newton in all weights with the same trust region, "lbfgs_vpro" L-BFGS on
the reduced objective; L-BFGS, Adam and SGD with Nesterov's momentum are
optax's. All start with the optimal
output layer, on many rows with that of some, and count work alike: one unit is a pass
over all rows, forward or backward.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.parts import differentiable_sum, total
from sklearn_gn.arrays.trees import norm
from sklearn_gn.optim import first_order
from sklearn_gn.optim.solver import Algorithm, Report
from sklearn_gn.optim.trust_region import lanczos
from sklearn_gn.varpro import batches, gnvpro, problem, training
from sklearn_gn.varpro.inner import solve_inner
from sklearn_gn.varpro.problem import Net
from sklearn_gn.varpro.reduced import KRYLOV_TOL, ReducedModel, krylov_dimension

# --- Gauss-Newton in all weights -----------------------------------------------------


@partial(by_rows, compiled=jitted(static_argnames=("model", "rank")), static=("model",))
def full_model(model, net, rows, penalties, rank):
    """Return the model in (theta, W), projected on a Krylov space of the gradient."""
    flat, unravel = ravel_pytree(net)

    def values(flat):
        net = unravel(flat)
        return problem.features(model, net.theta, rows.x) @ net.output

    here, push = jax.linearize(values, flat)
    pull = jax.linear_transpose(push, flat)

    def penalised(d):
        theta, output = unravel(d)
        smooth = jax.tree.map(
            lambda leaf: penalties.hidden * leaf, problem.penalty_product(model, theta)
        )
        return ravel_pytree(Net(smooth, penalties.output * output))[0]

    def product(d):
        curved = rows.weight[:, None] * problem.loss_curvature(model, here, push(d))
        return total(pull(curved)[0]) + penalised(d)

    weighted = rows.weight[:, None] * problem.loss_gradient(model, here, rows.y)
    gradient = total(pull(weighted)[0]) + penalised(flat)
    spectral, iterations = lanczos(product, gradient, rank=rank, tol=KRYLOV_TOL)
    return ReducedModel(spectral, gradient, iterations, None)


def _full_quadratic(net, rows, penalties, settings):
    """The quadratic model in all weights, and the passes over the rows that it took."""
    net = backend.on_device(net)
    rank = krylov_dimension(settings, net, net, rows)
    found = full_model(settings.model, net, rows, penalties, rank)
    return found, 2 + 2 * int(found.inner_iterations)


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def try_full_step(
    model, net, spectral, factors, rows, penalties, radius, damping, fraction
):
    """Return the step for a radius or a fixed shift, in all weights."""

    def evaluate(new):
        return new, problem.objective(model, new, rows, penalties)

    return gnvpro.step_from(net, evaluate, spectral, radius, damping, fraction)


def _with_given_output(model, net, rows, penalties):
    """Return the network as it is, and its objective."""
    return net, batches.objective(model, net, rows, penalties)


_ALL_WEIGHTS = gnvpro.Method(_with_given_output, _full_quadratic, try_full_step)


# --- L-BFGS on the reduced objective -------------------------------------------------


def reduced_objective(model, start, rows, penalties, theta):
    """Return Phi_red, differentiable by the envelope theorem."""
    frozen = lax.stop_gradient(theta)
    inner = solve_inner(model, frozen, rows, penalties, start)
    output = lax.stop_gradient(inner.output)

    @differentiable_sum
    def mean(net):
        values = problem.features(model, net.theta, rows.x) @ net.output
        return rows.weight @ problem.example_losses(model, values, rows.y)

    return mean(Net(theta, output)) + problem.total_penalty(
        model, theta, output, penalties
    )


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def lbfgs_update(model, net, memory, rows, penalties):
    """One step of L-BFGS with a line search for the strong Wolfe conditions."""
    reduced = partial(reduced_objective, model, net.output, rows, penalties)
    value, gradient = first_order.value_and_gradient(reduced, net.theta, memory)
    lbfgs = first_order.lbfgs()
    move, memory = first_order.line_search_step(
        lbfgs, net.theta, value, gradient, memory, reduced
    )
    theta = jax.tree.map(lambda p, u: p + u, net.theta, move)
    inner = solve_inner(model, theta, rows, penalties, net.output)
    better = inner.loss < value
    # Value and gradient of the line search are of no use if the step is not taken.
    forgotten = memory[-1]._replace(value=jnp.full_like(memory[-1].value, jnp.inf))
    kept = (Net(theta, inner.output), memory), (net, (*memory[:-1], forgotten))
    net, memory = jax.tree.map(lambda a, b: jnp.where(better, a, b), *kept)
    loss, info = jnp.where(better, inner.loss, value), memory[-1].info
    return net, memory, value, loss, norm(gradient), info


def lbfgs_step(rows, state, settings):
    """One iteration of L-BFGS on the reduced objective."""
    if not jax.tree.leaves(state.net.theta):
        return training.nothing_to_train(state)
    state, _ = training.enter_level(state, settings)
    before = state
    batch, share = batches.current_batch(rows, settings, state.iteration)
    penalties = settings.penalties
    net, memory = backend.on_device((state.net, state.memory))
    # What it remembers belongs to one batch.
    per_batch = settings.solver.iterations_per_batch
    other = batch is not rows and state.iteration % per_batch == 0
    if memory is None or other:
        lbfgs = first_order.lbfgs()
        memory = first_order.start(lbfgs, net.theta)
    # The value and gradient, unless they are known, and the new output layer.
    work = 1 if np.isfinite(memory[-1].value) else 3
    net, memory, value, loss, size, info = lbfgs_update(
        settings.model, net, memory, batch, penalties
    )
    work = share * (work + 2 * int(info.num_linesearch_steps))
    state = state._replace(net=net, memory=memory, work=state.work + work)
    report = Report(
        loss=float(loss),
        grad_norm=float(size),
        step_size=float(memory[-1].learning_rate),
        stop=None if loss < value else "tol",  # the next search would be the same
    )
    return training.after_iteration(
        rows, batch, before, state, report, settings, batches.with_optimal_output
    )


# --- mini-batches --------------------------------------------------------------------


@partial(jax.jit, static_argnames=("model", "name", "batch_size"))
def epoch_of(model, name, net, memory, rows, n_batches, penalties, rate, batch_size):
    """One pass of Adam or SGD."""

    def update(k, carry):
        net, memory = carry
        batch = batches.mini_batch(rows, k, batch_size)
        slope = jax.grad(problem.objective, argnums=1)(model, net, batch, penalties)
        return first_order.gradient_step(name, net, slope, memory, rate)

    return lax.fori_loop(jnp.int32(0), n_batches, update, (net, memory))


def epoch_step(rows, state, settings, *, name):
    """One epoch, and the loss on all rows.

    The gradient on all rows, for the log alone, would cost as much as the epoch.
    """
    state, _ = training.enter_level(state, settings)
    penalties = settings.penalties
    net, memory = backend.on_device((state.net, state.memory))
    rate = np.asarray(settings.solver.learning_rate, settings.dtype)
    if memory is None:
        memory = first_order.start(name, net)
    for shuffled, count, size in batches.shuffled_epochs(
        rows, settings, state.iteration
    ):
        words = shuffled, count, penalties, rate, size
        net, memory = epoch_of(settings.model, name, net, memory, *words)
        jax.block_until_ready(net)  # chunks that wait would fill the memory
    loss = float(batches.objective(settings.model, net, rows, penalties))
    moved = state._replace(net=net, memory=memory, work=state.work + 2)
    report = Report(loss, math.nan)
    return training.after_iteration(rows, rows, state, moved, report, settings)


_BASELINES = (
    Algorithm(
        "gn",
        training.init,
        partial(gnvpro.iterate, method=_ALL_WEIGHTS),
        prepare=training.prepare,
        evaluate_last=partial(training.evaluate_last, at_rows=_with_given_output),
    ),
    Algorithm(
        "lbfgs_vpro",
        training.init,
        lbfgs_step,
        prepare=training.prepare,
        evaluate_last=training.evaluate_last,
    ),
    *(
        Algorithm(
            name,
            training.init,
            partial(epoch_step, name=name),
            prepare=training.prepare,
        )
        for name in ("adam", "sgd")
    ),
)
ALGORITHMS = {a.name: a for a in (gnvpro.GNVPRO, *_BASELINES)}
