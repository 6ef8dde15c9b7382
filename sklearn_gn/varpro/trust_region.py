"""Step 4 of GNvpro: trust-region steps, tried until one of them is accepted.

The Krylov space or the eigenvectors stay while the radius shrinks, so that a rejected
step costs only the next trial.
"""

import math
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy import linalg

from sklearn_gn.optim.solver import Report
from sklearn_gn.optim.trust_region import (
    damped_coordinates,
    radius_shift,
)
from sklearn_gn.varpro.problem import Net
from sklearn_gn.varpro.training import PATIENCE, log_columns, on_last_level

_REJECT, _SHRINK, _GROW = 1e-4, 0.1, 0.75  # gain ratios of the trust region
_TRIALS = 40
_FLAT = 1e-2  # predicted decrease, in roots of the rounding unit, that is none


class TrialStep(NamedTuple):
    """A step that was tried."""

    net: Net  # after the step
    loss: jnp.ndarray
    predicted: jnp.ndarray  # decrease of the loss
    length: jnp.ndarray
    shift: jnp.ndarray  # of the Gauss-Newton matrix
    radius: jnp.ndarray


class StepSearch(NamedTuple):
    """The outcome of the trials of an iteration."""

    trial: TrialStep | None  # None where no step was accepted
    gain_ratio: float  # actual over predicted decrease; without a step, 0 at rounding
    radius: float  # of the next iteration
    n_trials: int


def find_step(state, attempt, settings):
    """Try steps until one lowers the loss enough.

    In the trust region, which adapts, or with the fixed shift ``settings.damping``, of
    which rejected steps are halved.

    Parameters
    ----------
    state : TrainingState
    attempt : callable
        ``attempt(radius, damping, fraction)`` makes a :class:`TrialStep`, of which
        ``fraction`` is taken.
    settings : Settings

    Returns
    -------
    StepSearch
    """
    cast = settings.dtype.type
    eps = float(np.finfo(cast).eps)

    def attempt_floats(radius, fraction=1.0):
        return attempt(cast(radius), settings.damping, cast(fraction))

    radius, fraction, promised = state.radius, 1.0, None
    for n_trials in range(1, _TRIALS + 1):
        trial = attempt_floats(radius, fraction)
        predicted, length = float(trial.predicted), float(trial.length)
        actual = state.loss - float(trial.loss)
        gain = actual / predicted if predicted > 0 else math.nan
        promised = predicted if promised is None else promised
        if not predicted > eps * abs(state.loss) or not length > 0:
            break
        if settings.damping is not None:
            if gain > _REJECT:
                return StepSearch(trial, gain, radius, n_trials)
            fraction /= 2
            continue
        radius = float(trial.radius)
        if not gain >= _REJECT:
            radius = min(radius, length) / 2
            continue
        if gain < _SHRINK:
            radius = length / 2
        elif gain > _GROW:
            if gain > 1:  # with less, doubling never paid in fits of six kinds
                longer = partial(attempt_floats, radius)
                trial, n_trials = _lengthened(trial, longer, n_trials)
            radius = max(radius, 1.5 * float(trial.length))
        return StepSearch(trial, gain, radius, n_trials)
    # Where even the first step promised next to nothing, the loss is at rounding.
    flat = promised <= math.sqrt(eps) * _FLAT * abs(state.loss)
    return StepSearch(None, 0.0 if flat else math.nan, radius, n_trials)


def _lengthened(trial, attempt, n_trials):
    """Double a step that did better than predicted, while that lowers the loss."""
    fraction = 1.0
    while n_trials < _TRIALS:
        fraction *= 2
        longer = attempt(fraction)
        n_trials += 1
        if not float(longer.loss) < float(trial.loss):
            break
        trial = longer
    return trial, n_trials


def step_coordinates(spectral, flat, radius, damping):
    """Return the coordinates of a step, its shift, and the radius.

    Without a radius yet, which is NaN, the step may be as long as the parameters are:
    the model says nothing about steps that saturate the activations.

    Parameters
    ----------
    spectral : SpectralModel
    flat : array of shape (n,)
        The parameters.
    radius : scalar
        Of the trust region.
    damping : scalar or None
        The shift; if None, the one with which the step has the length of the radius.
    """
    size = jnp.maximum(jnp.linalg.norm(flat), 1)
    radius = jnp.where(jnp.isnan(radius), size, radius)
    shift = radius_shift(spectral, radius) if damping is None else damping
    return damped_coordinates(spectral, shift), shift, radius


def end_iteration(state, search, reduced, work, settings):
    """Return state and report after the trials.

    Parameters
    ----------
    state : TrainingState
    search : StepSearch
    reduced : ReducedModel
    work : float
        Passes over the rows of this iteration.
    settings : Settings
    """
    trial, stop = search.trial, None
    last = on_last_level(state, settings)
    if trial is None:
        loss, n_stalled = state.loss, PATIENCE
        if last:
            stop = "rounding" if search.gain_ratio == 0 else "line_search"
    else:
        loss = float(trial.loss)
        fell = state.loss - loss > float(settings.tol) * abs(state.loss)
        n_stalled = 0 if fell else state.n_stalled + 1
        if n_stalled >= PATIENCE and last:
            stop = "tol"
        state = state._replace(net=trial.net)
    if not math.isfinite(loss):
        stop = "non_finite"
    state = state._replace(
        loss=loss,
        n_stalled=n_stalled,
        iteration=state.iteration + 1,
        radius=search.radius,
        work=state.work + work,
        spectrum=np.sort(np.asarray(reduced.spectral.values))[::-1],
    )
    report = Report(
        loss=loss,
        # That of BLAS, whose squares do not overflow.
        grad_norm=float(linalg.norm(np.asarray(reduced.gradient), check_finite=False)),
        step_size=float(trial.length) if trial else 0.0,
        damping=float(trial.shift) if trial else math.nan,
        gain_ratio=search.gain_ratio,
        inner_iterations=int(reduced.inner_iterations),
        stop=stop,
        extra=log_columns(state),
    )
    return state, report
