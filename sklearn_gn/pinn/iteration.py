"""The iteration that all solvers of PINNSolver share: points, state, report.

A solver computes a step between :func:`with_due_points` and :func:`finish_iteration`.
What comes after it is decided in :mod:`sklearn_gn.pinn.control`.
"""

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.devices import by_rows, jitted, put_rows
from sklearn_gn.arrays.parts import total
from sklearn_gn.optim.solver import Report
from sklearn_gn.pinn import observation_weight, pieces, solution, windows
from sklearn_gn.pinn.control import (
    ROUNDING,
    Clock,
    Control,
    Level,
    Losses,
    Sizes,
    decide,
    refined,
    with_expected_seconds,
)
from sklearn_gn.pinn.residuals import check_is_defined, residuals
from sklearn_gn.pinn.units import at_given_values

_BALANCE_POWER = 0.05
_SMALLEST_LOSS = 1e-6  # of a class, relative to the mean
# Of the last weights, until the loss to begin with is finite.
_SHARES = (0.1, 0.01, 0.0)


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


class Steps(NamedTuple):
    """How the steps are computed."""

    solver: Any  # the solver object, for what only its algorithm needs
    damping: float | None  # fixed shift, or None
    rank: int | None  # columns of the preconditioner
    max_iter: int


class PINNSettings(NamedTuple):
    """Settings of a fit."""

    models: tuple  # one for each problem of the sequence
    stage_ends: tuple  # iterations after which a problem is left, one less than models
    sampler: Any  # draw(model, seed, stage, number, net) makes batches
    steps: Steps
    balanced: bool  # whether the weights of the classes even out their losses
    resample: int | str | None  # iterations for which points are kept, or "drift"
    tol: np.ndarray
    seed: np.int32
    growth: Any = None  # growth.Rules, or None where sizes are given
    untrained: Any = None  # network to measure by; None: the one to begin with
    observed: Any = None  # Observed, or None where their weight does not adapt
    mesh: Any = None  # of the devices among which the points are divided

    @property
    def dtype(self):
        """Precision of the fit."""
        return self.tol.dtype


class PINNState(NamedTuple):
    """Network, points, and what is remembered from one step to the next."""

    net: Any
    loss: float
    batches: tuple
    balance: np.ndarray  # (n_classes,)
    memory: Any = None  # of the solver: its trust region, or that of optax
    stage: int = 0
    n_draws: int = 1
    iteration: int = 0
    control: Control = Control()
    answer: Any = None  # the networks of all windows of time, where there are some

    @property
    def next_seconds(self):
        """Seconds that the next iteration will probably take."""
        return self.control.clock.next


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
            march = windows.marches(model, net)[-1]
            fresh = windows.within(model, points.fresh, march)
            net = net.nets[-1]
            march = march._replace(fresh=jax.device_put(fresh))
    net = jax.device_put(net)
    clock = Clock(compiled=-time.perf_counter())
    if settings.growth is not None:
        sampler = settings.sampler
        sizes = Sizes(sampler.n_interior, sampler.n_boundary)
        level = Level(sizes)
    control = Control(level=level, march=march, clock=clock)
    batches = _draw(points, settings, 0, 0, net, control)
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
    if not math.isfinite(loss):
        check_is_defined(model, net, batches)
    state = PINNState(net, loss, batches, balance, memory, control=control)
    loss_at = partial(fresh_loss_in, state)
    first, of_classes = losses_of_no_solution(loss_at, points, settings, untrained)
    return state._replace(
        control=control._replace(first_fresh=first, first_classes=of_classes),
        answer=None if march is None else windows.pieces(march, model, net),
    )


def with_due_points(points, state, settings):
    """Return the state with the next problem, size or points, where it is time."""
    now = state.control
    clock = now.clock._replace(began=time.perf_counter())
    state = state._replace(control=now._replace(clock=clock))
    stage = int(np.searchsorted(settings.stage_ends, state.iteration, side="right"))
    state = refined(points, state, settings)
    every = settings.resample
    due = now.next is not None or stage != state.stage
    if not due and every == "drift":
        due = fresh_loss_in(state, points, settings, state.net) > 2 * state.loss
    elif not due and every is not None:
        due = state.iteration > 0 and state.iteration % every == 0
    if not due:
        return state
    batches = _draw(points, settings, stage, state.n_draws, state.net, state.control)
    weight = state.control.weighing.weight
    if weight != 1:
        batches = observation_weight.reweighted(batches, weight)
    return state._replace(batches=batches, stage=stage, n_draws=state.n_draws + 1)


def _draw(points, settings, stage, number, net, control):
    """Points to train on."""
    model, sampler = settings.models[stage], settings.sampler
    level, march = control.level, control.march
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
    control, stop = decide(points, state, settings, step, losses)
    state = state._replace(control=control)
    if control.march is not None:
        model = settings.models[state.stage]
        answer = windows.pieces(control.march, model, state.net)
        state = state._replace(answer=answer)
    if settings.balanced and stop is None:
        balance = rebalanced_weights(step.class_losses, state.balance)
        state = state._replace(balance=balance)
    extra = _log_entries(points, state, settings, step, losses)
    state = state._replace(loss=losses.training, iteration=state.iteration + 1)
    return with_expected_seconds(state, settings), Report(
        loss=losses.training,
        grad_norm=step.gradient_norm,
        step_size=step.step_norm,
        damping=step.damping,
        gain_ratio=step.gain_ratio,
        inner_iterations=step.inner_iterations,
        stop=stop,
        extra=extra,
    )


def _losses(points, state, settings, step):
    """Losses of the network after a step."""
    model, march = settings.models[state.stage], state.control.march
    if march is not None and march.active:
        fresh = float(loss_by(settings, state.batches)(model, state.net, march.fresh))
    else:
        fresh = fresh_loss_in(state, points, settings, state.net)
    misfit, validated = float(step.class_losses[-1]), fresh
    if points.validates and settings.observed is not None:
        # The weight follows from the noise of the observations that it is given to.
        fresh += misfit - fresh_misfit(state, points, settings, state.net)
    noise = misfit if state.control.weighing.weight != 1 else 0.0
    # An easier problem does not decide that nothing is gained.
    decisive = step.decisive and state.stage + 1 == len(settings.models)
    training = float(np.sum(step.class_losses))
    return Losses(training, fresh, validated, noise, decisive)


def _log_entries(points, state, settings, step, losses):
    """What the log holds beside that of all solvers."""
    model, march = settings.models[state.stage], state.control.march
    extra = {
        f"loss_{kind.residual.name}": float(value)
        for kind, value in zip(model.classes, step.class_losses, strict=True)
    }
    if march is not None:
        ((low, high),) = model.problem.domain.bounds
        extra["window_end"] = low + (high - low) * march.stop
    if points.reference is not None:
        last, (x, exact) = settings.models[-1], points.reference
        if isinstance(state.answer, windows.Pieces):
            values = windows.at_points(solution.values, last, state.answer, x)
            error = solution.relative_errors(last.problem, values, exact)[0]
        else:
            error = float(solution.relative_error(last, state.net, x, exact))
        extra["relative_error"] = error
    fresh = losses.validated
    if not math.isnan(fresh):
        extra["val_loss"] = windows.loss_so_far(march, fresh, state.control.first_fresh)
    if settings.observed is not None:
        extra["observation_weight"] = state.control.weighing.weight
    return extra


# --- losses at points of training, and at those that are never trained on -------------


def fresh_loss(points, settings, net, weight=1.0, like=None):
    """Loss at points that are never trained on (NaN without), cut as ``like``."""
    if not points.fresh:
        return math.nan
    fresh = points.fresh
    if weight != 1:
        fresh = observation_weight.reweighted(fresh, weight)
    return windows.total(loss_by(settings, like), settings.models[-1], net, fresh)


def fresh_loss_in(state, points, settings, net):
    """Return the fresh loss of a network at a state of the fit."""
    is_last = state.stage + 1 == len(settings.models)
    like = state.batches if is_last else None
    return fresh_loss(points, settings, net, state.control.weighing.weight, like)


def losses_of_no_solution(fresh_loss, points, settings, untrained):
    """Loss on fresh points of the untrained network, or of a constant if it is lower.

    Large coefficients make the first one huge: a constant, which meets no condition,
    would pass for a solution. Then the same of each class alone, empty where unknown.
    """
    if not points.fresh or not settings.models[-1].activations:
        return fresh_loss(points, settings, untrained), ()
    *hidden, last = untrained.layers
    constant = untrained._replace(layers=(*hidden, 0 * last))
    if not np.isfinite(fresh_loss(points, settings, constant)):
        # The equation is singular at zero, and huge near it.
        one = np.zeros_like(last)
        one[-1] = 1
        constant = untrained._replace(layers=(*hidden, one))
    rounding = (ROUNDING * np.finfo(settings.dtype).eps) ** 2

    def lower(points):
        first, level = (
            fresh_loss(points, settings, net) for net in (untrained, constant)
        )
        return min(first, level) if level > rounding * first else first

    classes = range(len(points.fresh))
    return lower(points), tuple(lower(with_class_alone(points, k)) for k in classes)


def with_class_alone(points, k):
    """The fixed points; of the fresh ones those of one class alone count."""
    fresh = tuple(
        batch._replace(scale=(i == k) * np.asarray(batch.scale))
        for i, batch in enumerate(points.fresh)
    )
    return points._replace(fresh=fresh)


def fresh_misfit(state, points, settings, net):
    """The part of :func:`fresh_loss_in` that observations have."""
    observed = with_class_alone(points, len(points.fresh) - 1)
    return fresh_loss_in(state, observed, settings, net)


def loss_by(settings, like=None):
    """:func:`total_loss` on the devices of a fit."""

    def loss(model, net, batches):
        return total_loss(model, net, on_devices(batches, settings), like)

    return loss


def total_loss(model, net, batches, like=None):
    """Half the sum of squares of all residuals; ``like`` as in ``pieces.cut``."""
    if not pieces.serve(batches):
        return _loss_of_all(model, net, batches)
    r = pieces.residuals(model, net, batches, like)
    with np.errstate(over="ignore"):
        return 0.5 * np.sum(np.square(r))


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def _loss_of_all(model, net, batches):
    return 0.5 * total(jnp.sum(residuals(model, net, batches) ** 2))


def on_devices(batches, settings):
    """The batches, with a share of the points of each on every device.

    They are padded by their last points, of weight zero.
    """
    mesh = settings.mesh
    if mesh is None:
        return batches

    def divided(batch):
        n = len(batch.x)
        rows = np.minimum(np.arange(n + -n % (2 * mesh.size)), n - 1)
        scale = np.asarray(batch.scale)
        scale = np.concatenate([scale, np.zeros(len(rows) - n, scale.dtype)])
        x, data = np.asarray(batch.x)[rows], np.asarray(batch.data)[rows]
        x, data, scale = put_rows([x, data, scale], mesh)
        return batch._replace(x=x, data=data, scale=scale)

    return tuple(map(divided, batches))


def rebalanced_weights(losses, balance):
    """Return class weights that slowly even out the classes' shares of the loss."""
    floor = np.maximum(_SMALLEST_LOSS * losses.mean(), np.finfo(float).tiny)
    shares = np.maximum(losses, floor) * balance
    balance = balance * (shares.mean() / shares) ** _BALANCE_POWER
    return (balance / balance.mean()).astype(balance.dtype)
