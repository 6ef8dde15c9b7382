"""GNvpro: Gauss-Newton-Krylov variable projection for deep networks.

The method of Newman, Ruthotto, Hart and van Bloemen Waanders ("Train like a (Var)Pro").
A network ``x -> W^T z(x; theta)`` ends in an affine layer, for which the objective
``Phi(W, theta)`` of :mod:`sklearn_gn.varpro.problem` is convex. It is solved for W, and
a Gauss-Newton method minimises what is left, ``Phi_red(theta) = Phi(W(theta), theta)``.
An iteration, :func:`step`,

1.  solves the inner problem (:mod:`sklearn_gn.varpro.inner`);
2.  linearises the values ``z W(theta)``, in which W moves with theta, and
3.  projects or forms the reduced Gauss-Newton matrix, in
    :mod:`sklearn_gn.varpro.reduced`;
4.  takes a trust-region step in its eigenvectors
    (:mod:`sklearn_gn.varpro.trust_region`).

:mod:`sklearn_gn.varpro.training` has the schedule of batches and levels around it.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.optim.trust_region import decrease
from sklearn_gn.varpro import training
from sklearn_gn.varpro.batches import current_batch
from sklearn_gn.varpro.inner import solve_inner, with_optimal_output
from sklearn_gn.varpro.problem import Net
from sklearn_gn.varpro.reduced import reduced_model
from sklearn_gn.varpro.trust_region import (
    TrialStep,
    end_iteration,
    find_step,
    step_coordinates,
)


def prepare(rows, settings):
    """Put the rows on the device."""
    if settings.solver.curvature == "dense" and settings.rank is not None:
        raise ValueError(
            f"rank={settings.rank} is the dimension of a Krylov space, and "
            "GNvpro(curvature='dense') takes none: leave rank at None, or set "
            "curvature='krylov'."
        )
    return training.prepare(rows, settings)


def step(rows, state, settings):
    """One iteration, on all rows or on a batch of them."""
    if not jax.tree.leaves(state.net.theta):  # the start is the solution
        return training.nothing_to_train(state)
    state, refined = training.enter_level(state, settings)
    before, model, net = state, settings.model, state.net
    batch, share = current_batch(rows, settings, state.iteration)
    penalties = training.current_penalties(net.theta, batch, settings, share)
    # 1. The inner problem, where the objective is another one than before.
    if refined or settings.cross_validated or batch is not rows:
        net, loss = with_optimal_output(model, net, batch, penalties)
        state = state._replace(net=net, loss=float(loss), work=state.work + share)
    # 2. and 3. Linearisation, and the spectral form of the Gauss-Newton matrix.
    reduced, work = reduced_model(net, batch, penalties, settings)
    # 4. Trust-region steps, until one is accepted.
    attempt = partial(
        try_step, model, net, reduced.spectral, reduced.factors, batch, penalties
    )
    search = find_step(state, attempt, settings)
    work = share * (work + search.n_trials)
    state, report = end_iteration(state, search, reduced, work, settings)
    if batch is rows:
        return state, report
    return training.evaluate_when_due(rows, before, state, report, settings)


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def try_step(model, net, spectral, factors, rows, penalties, radius, damping, fraction):
    """Return the step for a radius or a fixed shift, and the objective after it."""
    flat, unravel = ravel_pytree(net.theta)
    coordinates, shift, radius = step_coordinates(spectral, flat, radius, damping)
    coordinates = fraction * coordinates
    theta = unravel(flat + spectral.basis @ coordinates)
    inner = solve_inner(model, theta, rows, penalties, net.output, factors)
    return TrialStep(
        net=Net(theta, inner.output),
        loss=inner.loss,
        predicted=decrease(spectral, coordinates),
        length=jnp.linalg.norm(coordinates),
        shift=shift,
        radius=radius,
    )


GNVPRO = Algorithm(
    "gnvpro",
    training.init,
    step,
    prepare=prepare,
    evaluate_last=training.evaluate_last,
)
