"""Other solvers for networks with an affine last layer, on the objective of GNvpro.

"gn" is Gauss-Newton in all weights with the same trust region, "lbfgs_vpro" L-BFGS on
the reduced objective, "fgn" the matrix-free step of fast Gauss-Newton on mini-batches;
Adam and SGD with Nesterov's momentum are optax's. All start with the optimal output
layer, on many rows with that of some, and count work alike: one unit is a pass over all
rows, forward or backward.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.core.affine import all_classes
from sklearn_gn.core.fgn import model_direction
from sklearn_gn.core.linear_algebra.krylov import lanczos
from sklearn_gn.core.linear_algebra.trees import norm
from sklearn_gn.core.linear_algebra.trust_region import decrease
from sklearn_gn.core.solver import Algorithm, Report
from sklearn_gn.varpro.gnvpro import (
    _KRYLOV_TOL,
    _PATIENCE,
    Net,
    Rows,
    Trial,
    accepted_trial,
    chosen_penalties,
    columns,
    current_batch,
    curvature,
    error,
    features,
    finish,
    init,
    level_ends,
    look,
    losses,
    next_level,
    objective,
    on_all_rows,
    on_last_level,
    output_layer_only,
    patience,
    penalty,
    penalty_product,
    prepare,
    solve_inner,
    step_coordinates,
)

_FGN_DAMPING = 1.0
_FGN_CG = 10
_MINI_BATCH = 64
_START_ROWS = 2048  # for which the first output layer of a mini-batch method is optimal
_EPOCHS = 10  # without a new lowest loss, after which a mini-batch method ends


# --- Gauss-Newton in all weights -----------------------------------------------------


@partial(jax.jit, static_argnames=("model", "rank"))
def full_model(model, net, rows, penalties, rank):
    """Krylov projection of the Gauss-Newton matrix in (theta, W)."""
    flat, unravel = ravel_pytree(net)

    def values(flat):
        net = unravel(flat)
        return features(model, net.theta, rows.x) @ net.output

    here, push = jax.linearize(values, flat)
    pull = jax.linear_transpose(push, flat)

    def penalised(d):
        theta, output = unravel(d)
        smooth = jax.tree.map(
            lambda leaf: penalties.alpha * leaf, penalty_product(model, theta)
        )
        return ravel_pytree(Net(smooth, penalties.alpha_output * output))[0]

    def product(d):
        bent = rows.weight[:, None] * curvature(model, here, push(d))
        return pull(bent)[0] + penalised(d)

    weighted = rows.weight[:, None] * error(model, here, rows.y)
    gradient = pull(weighted)[0] + penalised(flat)
    spectral, iterations = lanczos(product, gradient, rank=rank, tol=_KRYLOV_TOL)
    return spectral, gradient, iterations


@partial(jax.jit, static_argnames="model")
def try_full_step(model, net, spectral, rows, penalties, radius, damping, fraction):
    """As ``try_step``, in all weights."""
    flat, unravel = ravel_pytree(net)
    coordinates, shift, radius = step_coordinates(spectral, flat, radius, damping)
    coordinates = fraction * coordinates
    new = unravel(flat + spectral.basis @ coordinates)
    return Trial(
        net=new,
        loss=objective(model, new, rows, penalties),
        predicted=decrease(spectral, coordinates),
        length=jnp.linalg.norm(coordinates),
        shift=shift,
        radius=radius,
    )


def gn_step(rows, state, options):
    """One accepted step of full Gauss-Newton."""
    if level_ends(state, options, patience(rows, options, state)):
        state = next_level(state, options)
    before = state
    batch, share = current_batch(rows, options, state.iteration)
    penalties = chosen_penalties(state.net.theta, batch, options, share)
    net = jax.device_put(state.net)
    loss = float(objective(options.model, net, batch, penalties))
    spectral, gradient, inner = full_model(
        options.model, net, batch, penalties, int(options.rank)
    )
    attempt = partial(try_full_step, options.model, net, spectral, batch, penalties)
    state = state._replace(net=net, loss=loss)
    trial, state, trials, gain = accepted_trial(state, attempt, options)
    whole = batch is rows  # otherwise the loss before the step is another pass
    work = share * (2 + 2 * int(inner) + trials + (not whole))
    state = state._replace(work=state.work + work)
    found = finish(state, options, trial, gain, inner, gradient, spectral)
    if whole:
        return found
    return on_all_rows(look_as_it_is, rows, before, *found, options)


def as_it_is(model, net, rows, penalties):
    """The network, and its objective."""
    return net, objective(model, net, rows, penalties)


look_as_it_is = partial(look, optimal=as_it_is)


# --- L-BFGS on the reduced objective -------------------------------------------------

_LBFGS = optax.lbfgs(
    linesearch=optax.scale_by_zoom_linesearch(
        max_linesearch_steps=20, initial_guess_strategy="one"
    )
)


def reduced_objective(model, start, rows, penalties, theta):
    """Phi_red, differentiable by the envelope theorem."""
    frozen = lax.stop_gradient(theta)
    inner = solve_inner(model, frozen, rows, penalties, start)
    output = lax.stop_gradient(inner.output)
    values = features(model, theta, rows.x) @ output
    mean = rows.weight @ losses(model, values, rows.y)
    return mean + penalty(model, theta, output, penalties)


@jax.jit
def lbfgs_start(theta):
    """An empty memory."""
    with jax.numpy_dtype_promotion("standard"):
        return _LBFGS.init(theta)


def forgotten(memory):
    """The memory without the value and gradient that the last line search ended with.

    They are of no use where the step was not taken, or the objective is another one.
    """
    search = memory[-1]
    return *memory[:-1], search._replace(value=jnp.full_like(search.value, jnp.inf))


@partial(jax.jit, static_argnames="model")
def lbfgs_iterate(model, net, memory, rows, penalties):
    """One step with a line search for the strong Wolfe conditions."""
    reduced = partial(reduced_objective, model, net.output, rows, penalties)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        # Those of the last line search, unless the memory is empty.
        value, gradient = optax.value_and_grad_from_state(reduced)(
            net.theta, state=memory
        )
        move, memory = _LBFGS.update(
            gradient, memory, net.theta, value=value, grad=gradient, value_fn=reduced
        )
    theta = jax.tree.map(lambda p, u: p + u, net.theta, move)
    inner = solve_inner(model, theta, rows, penalties, net.output)
    better = inner.loss < value
    memory = jax.tree.map(
        lambda kept, lost: jnp.where(better, kept, lost), memory, forgotten(memory)
    )
    moved = jax.tree.map(
        lambda new, old: jnp.where(better, new, old),
        Net(theta, inner.output),
        net,
    )
    size = norm(gradient)
    info = memory[-1].info
    return moved, memory, value, jnp.where(better, inner.loss, value), size, info


def lbfgs_step(rows, state, options):
    """One step of L-BFGS on the reduced objective."""
    if not jax.tree.leaves(state.net.theta):
        return output_layer_only(state)
    if level_ends(state, options, patience(rows, options, state)):
        state = next_level(state, options)
    before = state
    batch, share = current_batch(rows, options, state.iteration)
    penalties = chosen_penalties(state.net.theta, batch, options, share)
    net, memory = jax.device_put((state.net, state.memory))
    # What it remembers belongs to one batch.
    other = batch is not rows and state.iteration % options.iterations_per_batch == 0
    if memory is None or other:
        memory = lbfgs_start(net.theta)
    elif options.gcv:
        memory = forgotten(memory)
    # The value and gradient, unless they are known, and the new output layer.
    work = 1 if np.isfinite(memory[-1].value) else 3
    net, memory, value, loss, size, info = lbfgs_iterate(
        options.model, net, memory, batch, penalties
    )
    work = share * (work + 2 * int(info.num_linesearch_steps))
    state = state._replace(net=net, memory=memory, work=state.work + work)
    found = descent(state, options, float(value), float(loss), float(size))
    if batch is not rows:
        found = on_all_rows(look, rows, before, *found, options)
    state, report = found
    return state, report._replace(step_size=float(memory[-1].learning_rate))


def descent(state, options, before, loss, gradient_norm):
    """State and report of a method that lowers the loss step by step."""
    fell = before - loss > float(options.tol) * abs(before)
    return ended(state, options, loss, gradient_norm, fell, _PATIENCE)


def ended(state, options, loss, gradient_norm, fell, patience):
    """State and report of an iteration, after which the loss fell or did not."""
    waited = 0 if fell else state.waited + 1
    tired = waited >= patience and on_last_level(state, options)
    stop = "tol" if tired else None
    stop = stop if math.isfinite(loss) else "non_finite"
    state = state._replace(loss=loss, waited=waited, iteration=state.iteration + 1)
    report = Report(loss=loss, grad_norm=gradient_norm, stop=stop, extra=columns(state))
    return state, report


# --- mini-batches --------------------------------------------------------------------

_OPTIMISERS = {
    "adam": optax.scale_by_adam(),
    "sgd": optax.trace(decay=0.9, nesterov=True),
}


class Epoch(NamedTuple):
    """Rows in the order of the batches."""

    rows: Rows
    n_batches: jnp.ndarray


@jax.jit
def ordered(rows, order, n_batches):
    """The rows in another order, filled up to a whole number of batches."""
    return Epoch(Rows(*(a[order] for a in rows)), n_batches)


def epoch_of(rows, options, iteration):
    """A shuffled pass over the rows that have weight."""
    weight = np.asarray(rows.weight)
    counted = np.flatnonzero(weight > 0)
    b = min(int(options.batch_size) or _MINI_BATCH, len(counted))
    rng = np.random.RandomState((int(options.seed) + iteration) % 2**32)
    order = rng.permutation(counted)
    n_batches = -(-len(order) // b)
    order = np.append(order, order[: n_batches * b - len(order)])
    length = -(-len(weight) // b) * b
    order = np.append(order, np.zeros(length - len(order), order.dtype))
    return ordered(rows, order.astype(np.int32), np.int32(n_batches)), b


@partial(jax.jit, static_argnames=("model", "name", "batch_size"))
def optimiser_epoch(model, name, net, memory, epoch, penalties, rate, batch_size):
    """One pass of Adam or SGD."""

    def update(k, carry):
        net, memory = carry
        batch = _batch(epoch, k, batch_size)
        gradient = jax.grad(objective, argnums=1)(model, net, batch, penalties)
        with jax.numpy_dtype_promotion("standard"):
            move, memory = _OPTIMISERS[name].update(gradient, memory)
        return jax.tree.map(lambda p, u: p - rate * u, net, move), memory

    return lax.fori_loop(jnp.int32(0), epoch.n_batches, update, (net, memory))


@partial(jax.jit, static_argnames=("model", "batch_size"))
def fgn_epoch(model, net, epoch, penalties, rate, damping, batch_size):
    """One pass of matrix-free FGN steps on all weights."""

    def update(k, net):
        batch = _batch(epoch, k, batch_size)
        label = jnp.argmax(batch.y, axis=1).astype(jnp.int32)

        def logits(net):
            return all_classes(features(model, net.theta, batch.x) @ net.output)

        step = model_direction(
            logits, net, label, batch.weight, damping=damping, cg_iterations=_FGN_CG
        )
        pull = jax.grad(partial(penalty, model), argnums=(0, 1))(
            net.theta, net.output, penalties
        )
        return jax.tree.map(
            lambda p, d, g: p + rate * (d - g / damping), net, step, Net(*pull)
        )

    return lax.fori_loop(jnp.int32(0), epoch.n_batches, update, net)


def _batch(epoch, k, batch_size):
    """A batch, whose weights are of sum one on average: their mean is the objective."""
    x, y, weight = (
        lax.dynamic_slice_in_dim(a, k * batch_size, batch_size) for a in epoch.rows
    )
    return Rows(x, y, weight * epoch.n_batches.astype(weight.dtype))


@partial(jax.jit, static_argnames="name")
def optimiser_start(name, net):
    """Zero moments."""
    with jax.numpy_dtype_promotion("standard"):
        return _OPTIMISERS[name].init(net)


def epoch_init(rows, net, options):
    """The optimal output layer of some rows: that of all can cost many epochs."""
    return init(rows, net, options._replace(batch_size=np.int32(_START_ROWS)))


def epoch_step(rows, state, options, *, name):
    """One epoch, and the loss on all rows."""
    if level_ends(state, options, _EPOCHS):
        state = next_level(state, options)
    penalties = chosen_penalties(state.net.theta, rows, options)
    net, memory = jax.device_put((state.net, state.memory))
    epoch, b = epoch_of(rows, options, state.iteration)
    rate = options.learning_rate
    if name == "fgn":
        given = float(options.damping)
        damping = np.asarray(given if given > 0 else _FGN_DAMPING, options.alpha.dtype)
        net = fgn_epoch(options.model, net, epoch, penalties, rate, damping, b)
    else:
        memory = optimiser_start(name, net) if memory is None else memory
        net, memory = optimiser_epoch(
            options.model, name, net, memory, epoch, penalties, rate, b
        )
    loss = float(objective(options.model, net, rows, penalties))
    work = 2 if name != "fgn" else 3 + 2 * _FGN_CG
    state = state._replace(net=net, memory=memory, work=state.work + work)
    return epoch_end(state, options, loss)


def epoch_end(state, options, loss):
    """State and report of a method whose loss goes up and down.

    The gradient on all rows, for the log alone, would cost as much as the epoch.
    """
    tol, lowest = float(options.tol), state.lowest
    state = state._replace(lowest=min(loss, lowest))
    fell = loss < (1 - tol) * lowest or tol == 0
    return ended(state, options, loss, math.nan, fell, _EPOCHS)


ALGORITHMS = (
    Algorithm("gn", init, gn_step, prepare=prepare, look=look_as_it_is),
    Algorithm("lbfgs_vpro", init, lbfgs_step, prepare=prepare, look=look),
    Algorithm("adam", epoch_init, partial(epoch_step, name="adam"), prepare=prepare),
    Algorithm("sgd", epoch_init, partial(epoch_step, name="sgd"), prepare=prepare),
    Algorithm("fgn", epoch_init, partial(epoch_step, name="fgn"), prepare=prepare),
)
