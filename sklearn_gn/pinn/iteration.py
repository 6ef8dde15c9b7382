"""The iteration that all solvers of PINNSolver share: points, state, stopping, report.

A solver computes a step between :func:`with_due_points` and :func:`finish_iteration`.
"""

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from sklearn_gn.optim.solver import Report
from sklearn_gn.pinn import (
    accuracy,
    growth,
    observation_weight,
    solution,
    starts,
    windows,
)
from sklearn_gn.pinn.losses import (
    fresh_loss_in,
    fresh_misfit,
    loss_by,
    rebalanced_weights,
)
from sklearn_gn.pinn.model import n_waves
from sklearn_gn.pinn.output_units import at_given_values
from sklearn_gn.pinn.residuals import check_is_defined
from sklearn_gn.pinn.solved import (
    EXHAUSTED_LOSS,
    ROUNDING,
    holds_in_all_classes,
    is_solved,
    losses_of_no_solution,
)

_PATIENCE = 20  # iterations without a lower loss
_ENDING = 0.3  # of the seconds of the first iteration, to end a fit with error bars
_SHARES = (
    0.1,
    0.01,
    0.0,
)  # of the last weights, until the loss to begin with is finite


class Observations(NamedTuple):
    """What a fit is given."""

    training: Any  # Batch, or None
    validation: Any


class FixedPoints(NamedTuple):
    """Points that stay. Those of an equation to train on are drawn as the fit goes."""

    data: Any  # Batch of observations, or None
    fresh: tuple  # of Batch: never trained on
    reference: Any  # (points, values) to compare with, or None
    validates: bool = False  # whether the last of the fresh ones are observations


class PINNSettings(NamedTuple):
    """Settings of a fit."""

    models: tuple  # one for each problem of the sequence
    stage_ends: tuple  # iterations after which a problem is left, one less than models
    sampler: Any  # draw(model, seed, stage, number, net) makes batches
    solver: Any  # the solver object, for what only its algorithm needs
    damping: float | None  # fixed shift, or None
    rank: int | None  # columns of the preconditioner
    balanced: bool  # whether the weights of the classes even out their losses
    resample: int | str | None  # iterations for which points are kept, or "drift"
    max_iter: int
    tol: np.ndarray
    dtype: np.dtype
    seed: np.int32
    growth: Any = None  # growth.Rules, or None where sizes are given
    estimates_noise: bool = False  # whether the weight of observations adapts
    untrained: Any = None  # network to measure by; None: the one to begin with
    observed: observation_weight.Observed = observation_weight.Observed()
    mesh: Any = None  # of the devices among which the points are divided


class PINNState(NamedTuple):
    """Network, points, and what is remembered from one step to the next."""

    net: Any
    loss: float
    batches: tuple
    balance: np.ndarray  # (n_classes,)
    memory: Any = None  # of the solver: its damping, or that of optax
    previous_step: Any = None  # for momentum
    spectrum: np.ndarray | None = None
    stage: int = 0
    n_draws: int = 1
    iteration: int = 0
    n_stalled: int = 0  # iterations since the loss has last fallen by tol
    lowest_loss: float = math.inf  # on fresh points, where there are any
    first_fresh: float = math.nan  # loss on fresh points that no solution has
    first_classes: tuple = ()  # the same for each residual class
    n_starts: int = 1  # networks that were begun with
    begins_anew: bool = False  # before the next iteration, as this network is stuck
    level: Any = None  # growth.Level, where sizes are found
    march: Any = None  # windows.March, where time may be cut
    observation_weight: float = 1.0  # in place of the one of the batches
    next_observation_weight: float = 1.0  # for the next iteration
    weight_waits: bool = False  # whether it is to fall, now or later
    fresh_losses: tuple = ()  # since that weight has changed
    equation_losses: tuple = ()  # the same without the observations
    share_of_equation: float = math.inf  # at most, for that weight to change again
    began: float = 0.0  # when this iteration did, by time.perf_counter
    first_seconds: float = 0.0  # of the first iteration, which compiles
    steady_seconds: float = 0.0  # of the last one that compiled nothing
    next_seconds: float = 0.0  # that the next one will probably take
    answer: Any = None  # the networks of all windows of time, where there are some


def prepare(observations, settings):
    """Put the points that stay on the device, the same ones for the same seed."""
    model, seed = settings.models[-1], int(settings.seed)
    fresh = settings.sampler.fresh(model, seed)
    unseen = observations.validation
    if unseen is None and fresh:
        unseen = observations.training
    if unseen is not None:
        fresh = (*fresh, unseen)
    reference = settings.sampler.reference(model.problem, seed)
    validates = observations.validation is not None
    points = FixedPoints(observations.training, fresh, reference, validates)
    if settings.mesh is not None:
        return points
    return FixedPoints(*jax.device_put(points[:-1]), validates)


def initial_state(points, net, settings, memory=None):
    """Return the state at the start, on the first points."""
    model, level, march = settings.models[0], None, None
    if windows.possible(model):
        march = windows.March()
        if isinstance(net, windows.Pieces):
            net, march = windows.resumed(model, net, points.fresh)
    net = jax.device_put(net)
    if settings.growth is not None:
        sampler = settings.sampler
        sizes = growth.Sizes(sampler.n_interior, sampler.n_boundary)
        level = growth.Level(sizes, seconds=-time.perf_counter())
    batches = _draw(points, settings, 0, 0, net, level, march)
    balance = np.ones(len(model.classes), settings.dtype)
    loss = float(loss_by(settings)(model, net, batches))
    untrained = net if settings.untrained is None else settings.untrained
    if math.isnan(loss):
        check_is_defined(model, net, batches)
    for share in _SHARES:  # an exponential may overflow far from the given values
        if math.isfinite(loss):
            break
        untrained = net = jax.device_put(at_given_values(model.problem, net, share))
        loss = float(loss_by(settings)(model, net, batches))
    state = PINNState(net, loss, batches, balance, memory, level=level, march=march)
    loss_at = partial(fresh_loss_in, state)
    first, of_classes = losses_of_no_solution(loss_at, points, settings, untrained)
    return state._replace(
        first_fresh=min(first, windows.loss_of_no_solution(model)),
        first_classes=of_classes,
        answer=None if march is None else windows.pieces(march, model, net),
    )


def with_due_points(points, state, settings):
    """Return the state with the next problem, size or points, where it is time."""
    state = state._replace(began=time.perf_counter())
    if not state.begins_anew:
        state = _with_due_weight(state)
    stage = int(np.searchsorted(settings.stage_ends, state.iteration, side="right"))
    level, net = state.level, state.net
    if state.begins_anew:
        state = starts.with_new_network(state, settings)
        level = state.level
    elif state.march is not None and state.march.next_stop is not None:
        state = _with_next_window(points, state, settings)
    elif level is not None and level.next is not None:
        rng = np.random.RandomState([settings.seed, state.iteration])
        model = settings.models[stage]
        classes = [known.residual for known in model.classes]
        waves = n_waves(model.problem)
        level, net = growth.grown(level, settings.growth, classes, net, rng, waves)
        state = state._replace(
            level=level, net=jax.device_put(net), previous_step=None, n_stalled=0
        )
    elif stage == state.stage and not _is_draw_due(points, state, settings):
        return state
    batches = _draw(
        points, settings, stage, state.n_draws, state.net, level, state.march
    )
    if state.observation_weight != 1:
        batches = observation_weight.reweighted(batches, state.observation_weight)
    return state._replace(batches=batches, stage=stage, n_draws=state.n_draws + 1)


def _with_next_window(points, state, settings):
    """Return the state at the start of a window, without the solver's memory."""
    rng = np.random.RandomState([settings.seed, state.iteration])
    model = settings.models[-1]
    march, net = windows.moved_on(state.march, model, state.net, points.fresh, rng)
    return state._replace(
        march=march,
        net=jax.device_put(net),
        memory=None,
        previous_step=None,
        n_stalled=0,
        lowest_loss=math.inf,
    )


def _with_due_weight(state):
    """Return the state with the next weight of the observations, where it changes."""
    weight = state.next_observation_weight
    if weight == state.observation_weight:
        return state
    factor = weight / state.observation_weight
    return state._replace(
        batches=observation_weight.reweighted(state.batches, factor),
        observation_weight=weight,
        fresh_losses=(),
        equation_losses=(),
        n_stalled=0,
        lowest_loss=math.inf,
    )


def _is_draw_due(points, state, settings):
    every = settings.resample
    if every == "drift":
        fresh = fresh_loss_in(state, points, settings, state.net)
        return fresh > 2 * state.loss
    return every is not None and state.iteration > 0 and state.iteration % every == 0


def _draw(points, settings, stage, number, net, level=None, march=None):
    """Points to train on."""
    model, sampler = settings.models[stage], settings.sampler
    if level is not None:
        sampler = replace(sampler, **level.sizes._asdict())
    in_window = march is not None and march.active
    # The points of a window are those of all time, moved: they do not follow residuals.
    followed = None if in_window else net
    batches = sampler.draw(model, int(settings.seed), stage, number, followed)
    batches = windows.within(model, batches, march)
    if points.data is not None:
        batches = (*batches, points.data)
    return batches if settings.mesh is not None else jax.device_put(batches)


class StepSummary(NamedTuple):
    """What a solver says of its step."""

    class_losses: np.ndarray  # with the weights of the user
    gradient_norm: float
    step_norm: float
    network_norm: float
    damping: float = math.nan
    gain_ratio: float = math.nan
    inner_iterations: int = 1
    # Why to stop where points stay and nothing can be gained, or None.
    no_progress: str | None = None
    decisive: bool = True  # whether the loss tells that nothing can be gained


def finish_iteration(points, state, settings, step):
    """Return state and report of an iteration, for the state after its step."""
    losses = _losses(points, state, settings, step)
    state = _with_stalls(state, settings, losses)
    state = _with_observed_sizes(points, state, settings, losses)
    state, standing = _with_standing(points, state, settings, step, losses)
    stop = _reason_to_stop(state, settings, step, losses, standing)
    state, stop = _going_on(points, state, settings, step, losses, standing, stop)
    if settings.balanced and stop is None:
        balance = rebalanced_weights(step.class_losses, state.balance)
        state = state._replace(balance=balance)
    extra = _log_entries(points, state, settings, step, losses)
    state = state._replace(loss=losses.training, iteration=state.iteration + 1)
    return _with_expected_seconds(state, settings), Report(
        loss=losses.training,
        grad_norm=step.gradient_norm,
        step_size=step.step_norm,
        damping=step.damping,
        gain_ratio=step.gain_ratio,
        inner_iterations=step.inner_iterations,
        stop=stop,
        extra=extra,
    )


class _Losses(NamedTuple):
    """Losses after a step."""

    training: float
    fresh: float  # NaN where there are no fresh points
    validated: float  # the same with observations of validation, for the log
    noise: float  # of observations, which no solution lowers; 0 where it is not known
    decisive: bool  # whether they tell that nothing can be gained


def _losses(points, state, settings, step):
    """Losses of the network after a step."""
    model, march = settings.models[state.stage], state.march
    if march is not None and march.active:
        fresh = float(loss_by(settings, state.batches)(model, state.net, march.fresh))
    else:
        fresh = fresh_loss_in(state, points, settings, state.net)
    misfit, validated = float(step.class_losses[-1]), fresh
    if points.validates and settings.estimates_noise:
        # The weight follows from the noise of the observations that it is given to.
        fresh += misfit - fresh_misfit(state, points, settings, state.net)
    noise = misfit if state.observation_weight != 1 else 0.0
    # An easier problem does not decide that nothing is gained.
    decisive = step.decisive and state.stage + 1 == len(settings.models)
    training = float(np.sum(step.class_losses))
    return _Losses(training, fresh, validated, noise, decisive)


def _with_stalls(state, settings, losses):
    """Return the state with the number of iterations that have not lowered the loss."""
    if not losses.decisive:
        return state._replace(n_stalled=0, lowest_loss=math.inf)
    # Losses on points that are drawn anew do not compare: those on fresh ones do.
    judged = losses.training if math.isnan(losses.fresh) else losses.fresh
    judged -= losses.noise
    fell = judged < (1 - float(settings.tol)) * state.lowest_loss
    return state._replace(
        n_stalled=0 if fell else state.n_stalled + 1,
        lowest_loss=min(judged, state.lowest_loss),
    )


def _with_observed_sizes(points, state, settings, losses):
    """Return the state with what the losses say of window, network and points."""
    level, march, fresh = state.level, state.march, losses.fresh
    if level is not None and state.iteration == 0:
        level = level._replace(seconds=level.seconds + time.perf_counter())
    if march is not None:
        model, batches = settings.models[state.stage], march.fresh or points.fresh
        march = windows.observed(
            march, model, state.net, batches, fresh, state.first_fresh, settings.growth
        )
        answer = windows.pieces(march, model, state.net)
        state = state._replace(march=march, answer=answer)
    if level is not None and losses.decisive and not _is_in_windows(state):
        level = growth.observed(
            level,
            settings.growth,
            losses.training,
            fresh,
            state.first_fresh,
            state.net,
            state.steady_seconds,
        )
    return state._replace(level=level)


def _is_in_windows(state):
    march = state.march
    return march is not None and (march.active or march.next_stop is not None)


class _Standing(NamedTuple):
    """How far a fit has come."""

    solved: bool
    settled: bool  # whether nothing is gained, by steps or by growth
    accurate: bool  # by the estimated error


def _with_standing(points, state, settings, step, losses):
    """Return the state with the next weight of the observations, and the standing."""
    model, first = settings.models[state.stage], state.first_fresh
    training, fresh, _, noise, decisive = losses
    solved = math.isnan(fresh) or is_solved(fresh - noise, training - noise, first)
    if settings.estimates_noise and decisive:
        state = observation_weight.with_next_weight(
            state, settings.observed, step, fresh, solved
        )
    if noise:
        bound = state.observation_weight * settings.observed.spread_loss
        solved &= observation_weight.is_noise(noise, bound)
    if _is_in_windows(state):
        solved = solved and windows.are_solved(state.march, first)
        return state, _Standing(solved, state.march.ended, False)
    solved = solved and holds_in_all_classes(
        model.classes, step.class_losses, state.first_classes
    )
    level, accurate = state.level, False
    if solved:
        level, accurate = accuracy.ended_if_accurate(
            points, state, settings, level, fresh, noise
        )
    settled = state.n_stalled >= _PATIENCE
    if level is not None and level.late and not level.ended:
        settled = settled and solved
    elif level is not None:
        settled = level.ended and (settled or solved)
    return state._replace(level=level), _Standing(solved, settled, accurate)


def _reason_to_stop(state, settings, step, losses, standing):
    """Why a fit would end here, or None."""
    eps = np.finfo(settings.dtype).eps
    solved, kept = standing.solved, settings.resample is None
    if not math.isfinite(losses.training):
        return "non_finite"
    reweighted = state.next_observation_weight != state.observation_weight
    if reweighted or (_is_in_windows(state) and not state.march.ended):
        return None  # the next iteration has another loss to lower
    smallest = (ROUNDING * eps) ** 2 * step.network_norm
    if losses.training <= smallest and (solved or kept):
        return "rounding" if solved else "stalled"
    if step.no_progress and losses.decisive and kept:
        return step.no_progress
    if standing.settled and settings.tol > 0:
        return "tol" if solved else "stalled"
    return None


def _going_on(points, state, settings, step, losses, standing, stop):
    """Return state and reason to stop; None where the fit grows or begins anew."""
    model, level, first = settings.models[state.stage], state.level, state.first_fresh
    grows = level is not None and not _is_in_windows(state) and settings.growth.network
    left = losses.fresh > EXHAUSTED_LOSS * first
    if stop in ("tol", "stalled") and grows and not standing.accurate and left:
        if accuracy.has_to_grow(points, state, settings, level, stop):
            level, stop = growth.going_on(level), None
            state = state._replace(level=level)
    ends = stop is not None and stop in ("stalled", step.no_progress)
    astray = starts.may_be_astray(model, level, step.class_losses, first)
    astray |= starts.is_in_false_minimum(level, step.class_losses, state, settings)
    astray |= starts.has_vanished(step.class_losses, state, settings)
    if (ends and starts.is_stuck(model, step.class_losses, state)) or astray:
        if starts.has_another(state, settings):
            state, stop = state._replace(begins_anew=True), None
    return state, stop


def _log_entries(points, state, settings, step, losses):
    """What the log holds beside that of all solvers."""
    model, march = settings.models[state.stage], state.march
    extra = {
        f"loss_{kind.residual.name}": float(value)
        for kind, value in zip(model.classes, step.class_losses, strict=True)
    }
    if march is not None:
        ((low, high),) = model.problem.domain.bounds
        extra["window_end"] = low + (high - low) * march.stop
    if points.reference is not None:
        extra["relative_error"] = _relative_error(points, state, settings)
    fresh = losses.validated
    if not math.isnan(fresh):
        extra["val_loss"] = windows.loss_so_far(march, fresh, state.first_fresh)
    if settings.estimates_noise:
        extra["observation_weight"] = state.observation_weight
    return extra


def _with_expected_seconds(state, settings):
    """Return the state with the seconds that the next iteration will probably take.

    After one that compiled for a larger size, those of the size before times what a
    larger size costs at most; more where the end of a fit compiles error bars.
    """
    seconds = time.perf_counter() - state.began
    level, first = state.level, state.first_seconds or seconds
    is_new = level is not None and len(level.falls) == 1
    compiled = state.iteration <= 1 or is_new
    steady = state.steady_seconds if compiled else seconds
    changes = level is not None and level.next is not None
    changes |= state.iteration in settings.stage_ends
    changes |= state.iteration == getattr(settings.solver, "single_precision_iter", 0)
    expected = first if changes else min(seconds, growth.LARGER * steady)
    model = settings.models[-1]
    if model.problem.unknown or model.classes[-1].residual.name == "data":
        expected += _ENDING * first
    return state._replace(
        first_seconds=first, steady_seconds=steady, next_seconds=expected
    )


def _relative_error(points, state, settings):
    model, (x, exact) = settings.models[-1], points.reference
    if isinstance(state.answer, windows.Pieces):
        values = windows.at_points(solution.values, model, state.answer, x)
        return solution.relative_errors(model.problem, values, exact)[0]
    return float(solution.relative_error(model, state.net, x, exact))
