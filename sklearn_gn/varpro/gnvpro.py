"""GNvpro: Gauss-Newton-Krylov variable projection for deep networks.

The method of Newman, Ruthotto, Hart and van Bloemen Waanders ("Train like a (Var)Pro").
A network ``x -> W^T z(x; theta)`` ends in an affine layer, for which the objective
``Phi(W, theta)`` of :mod:`sklearn_gn.varpro.problem` is convex. It is solved for W, and
a Gauss-Newton method minimises what is left, ``Phi_red(theta) = Phi(W(theta), theta)``.
An iteration, :func:`iterate`,

1.  solves the inner problem (:mod:`sklearn_gn.varpro.inner`);
2.  linearises the values ``z W(theta)``, in which W moves with theta, and
3.  projects or forms the reduced Gauss-Newton matrix, in
    :mod:`sklearn_gn.varpro.reduced`;
4.  tries trust-region steps in its eigenvectors until one is accepted. The Krylov space
    or the eigenvectors stay while the radius shrinks, so that a rejected step costs
    only the next trial.

:mod:`sklearn_gn.varpro.training` has the schedule of batches and levels around it.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import linalg

from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.optim.solver import Algorithm, Report
from sklearn_gn.optim.trust_region import damped_coordinates, decrease, radius_shift
from sklearn_gn.varpro import batches, training
from sklearn_gn.varpro.inner import solve_inner
from sklearn_gn.varpro.problem import Net
from sklearn_gn.varpro.reduced import reduced_model

_GROW = 0.75  # gain ratio from which the trust region grows; it shrinks below 0.25


class TrialStep(NamedTuple):
    """A step that was tried."""

    net: Net  # after the step
    loss: jnp.ndarray
    predicted: jnp.ndarray  # decrease of the loss
    length: jnp.ndarray
    shift: jnp.ndarray  # of the Gauss-Newton matrix
    radius: jnp.ndarray


class Method(NamedTuple):
    """What Gauss-Newton methods differ in."""

    # (model, net, rows, penalties) -> the network that an iteration starts from, loss
    at_rows: Callable
    # (net, rows, penalties, settings) -> ReducedModel, passes over the rows
    quadratic: Callable
    attempt: Callable  # with the arguments of try_step


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def try_step(model, net, spectral, factors, rows, penalties, radius, damping, fraction):
    """Return the step for a radius or a fixed shift, and the objective after it."""

    def evaluate(theta):
        inner = solve_inner(model, theta, rows, penalties, net.output, factors)
        return Net(theta, inner.output), inner.loss

    return step_from(net.theta, evaluate, spectral, radius, damping, fraction)


def step_from(parameters, evaluate, spectral, radius, damping, fraction):
    """Return a fraction of the step from some parameters, by a quadratic model.

    The shift is ``damping``, or with None that with which the step is as long as the
    radius. Without a radius yet, which is NaN, the step may be as long as the
    parameters are: the model says nothing about steps that saturate the activations.
    """
    flat, unravel = ravel_pytree(parameters)
    size = jnp.maximum(jnp.linalg.norm(flat), 1)
    radius = jnp.where(jnp.isnan(radius), size, radius)
    shift = radius_shift(spectral, radius) if damping is None else damping
    coordinates = fraction * damped_coordinates(spectral, shift)
    net, loss = evaluate(unravel(flat + spectral.basis @ coordinates))
    predicted, length = decrease(spectral, coordinates), jnp.linalg.norm(coordinates)
    return TrialStep(net, loss, predicted, length, shift, radius)


def step(rows, state, settings):
    """One iteration of variable projection, on all rows or on a batch of them."""
    if not jax.tree.leaves(state.net.theta):  # the start is the solution
        return training.nothing_to_train(state)
    method = Method(batches.with_optimal_output, reduced_model, try_step)
    return iterate(rows, state, settings, method)


def iterate(rows, state, settings, method):
    """One iteration of a Gauss-Newton method."""
    state, refined = training.enter_level(state, settings)
    before, model, net = state, settings.model, state.net
    batch, share = batches.current_batch(rows, settings, state.iteration)
    penalties = settings.penalties
    # 1. The inner problem, where the objective is another one than before.
    if refined or batch is not rows:
        net, loss = method.at_rows(model, net, batch, penalties)
        state = state._replace(net=net, loss=float(loss), work=state.work + share)
    # 2. and 3. Linearisation, and the spectral form of the Gauss-Newton matrix.
    found, work = method.quadratic(net, batch, penalties, settings)
    # 4. Trust-region steps, until one is accepted.
    words = model, net, found.spectral, found.factors, batch, penalties
    trial, gain_ratio, radius, n_trials = find_step(
        state, partial(method.attempt, *words), settings
    )
    state = state._replace(
        radius=radius,
        work=state.work + share * (work + n_trials),
        spectrum=np.sort(np.asarray(found.spectral.values))[::-1],
    )
    stop = None
    if trial is None:  # no further iteration would find one
        stop = "rounding" if gain_ratio == 0 else "line_search"
    else:
        state = state._replace(net=trial.net)
    report = Report(
        loss=float(trial.loss) if trial else state.loss,
        # That of BLAS, whose squares do not overflow.
        grad_norm=float(linalg.norm(np.asarray(found.gradient), check_finite=False)),
        step_size=float(trial.length) if trial else 0.0,
        damping=float(trial.shift) if trial else math.nan,
        gain_ratio=gain_ratio,
        inner_iterations=int(found.inner_iterations),
        stop=stop,
    )
    return training.after_iteration(
        rows, batch, before, state, report, settings, method.at_rows
    )


def find_step(state, attempt, settings):
    """Try steps until one lowers the loss enough.

    In the trust region, which adapts, or with the fixed shift ``settings.damping``, of
    which rejected steps are halved. ``attempt(radius, damping, fraction)`` makes a
    :class:`TrialStep`, of which ``fraction`` is taken.

    Returns
    -------
    trial : TrialStep or None
        None where no step was accepted.
    gain_ratio : float
        Actual over predicted decrease; without a step, 0 if the loss is at rounding.
    radius : float
        Of the next iteration.
    n_trials : int
    """
    cast = settings.dtype.type
    # Half of a step as often as it has digits is none.
    eps, most = float(np.finfo(cast).eps), np.finfo(cast).nmant

    def attempted(radius, fraction):
        return attempt(cast(radius), settings.damping, cast(fraction))

    radius, fraction, promised = state.radius, 1.0, None
    for n_trials in range(1, most + 1):
        trial = attempted(radius, fraction)
        predicted, length = float(trial.predicted), float(trial.length)
        actual = state.loss - float(trial.loss)
        gain = actual / predicted if predicted > 0 else math.nan
        promised = predicted if promised is None else promised
        if not predicted > eps * abs(state.loss) or not length > 0:
            break
        if settings.damping is not None:
            if gain > 0:
                return trial, gain, radius, n_trials
            fraction /= 2
            continue
        radius = float(trial.radius)
        if not gain > 0:
            radius = min(radius, length) / 2
            continue
        # A step that did better than predicted is doubled while that lowers the loss;
        # with less, doubling never paid in fits of six kinds.
        while gain > 1 and n_trials < most:
            fraction *= 2
            longer = attempted(radius, fraction)
            n_trials += 1
            if not float(longer.loss) < float(trial.loss):
                break
            trial = longer
        if gain < 1 - _GROW:
            radius = length / 2
        elif gain > _GROW:
            radius = max(radius, 1.5 * float(trial.length))
        return trial, gain, radius, n_trials
    # Where even the first step promised next to nothing, the loss is at rounding.
    flat = promised <= eps ** (2 / 3) * abs(state.loss)
    return None, 0.0 if flat else math.nan, radius, n_trials


GNVPRO = Algorithm(
    "gnvpro",
    training.init,
    step,
    prepare=training.prepare,
    evaluate_last=training.evaluate_last,
)
