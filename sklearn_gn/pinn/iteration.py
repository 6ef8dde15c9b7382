"""The iteration that all solvers of PINNSolver share: points, state, report.

A solver computes a step between :func:`with_due_points` and :func:`finish_iteration`.
What comes after it is decided in :mod:`sklearn_gn.pinn.control`.
"""

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from sklearn_gn.arrays.devices import by_rows, jitted, put_rows
from sklearn_gn.arrays.trees import dimension
from sklearn_gn.data.row_checks import row_codes
from sklearn_gn.optim.solver import Report
from sklearn_gn.pinn import observation_weight, pieces, windows
from sklearn_gn.pinn.control import (
    LEAST_POINTS,
    Clock,
    Control,
    Level,
    decide,
    points_for,
    refined,
    with_expected_seconds,
)
from sklearn_gn.pinn.model import Batch
from sklearn_gn.pinn.residuals import check_is_defined, class_losses, residuals
from sklearn_gn.pinn.units import level_of_outputs
from sklearn_gn.pinn.windows import SinceBefore

_POOL = 10  # candidates for every point drawn where the residual is large
_FRESH = np.iinfo(np.uint32).max  # number of the draw that is never trained on
_FRESH_SHARE = 4  # times as many points: they decide which network is best
FEW_AXES = 20  # up to which points may follow the residual


class FixedPoints(NamedTuple):
    """Points that stay, unlike those on which an equation is trained."""

    data: Any  # Batch of observations, or None
    fresh: tuple  # of Batch: never trained on
    reference: Any  # (points, values) to compare with, or None
    validates: bool = False  # whether the last of the fresh ones are observations
    like: Any = None  # the first points to train on: what is compiled for them serves


class Steps(NamedTuple):
    """How the steps are computed."""

    solver: Any  # the solver object, for what only its algorithm needs
    damping: float | None  # fixed shift, or None
    rank: int | None  # columns of the preconditioner
    max_iter: int
    mesh: Any = None  # of the devices among which the points are divided


class PINNSettings(NamedTuple):
    """Settings of a fit."""

    models: tuple  # one for each problem of the sequence
    stage_ends: tuple  # iterations after which a problem is left, one less than models
    sampler: Any  # draw(model, seed, stage, number, net) makes batches
    steps: Steps
    resample: int | None  # iterations for which points are kept
    tol: np.ndarray  # share of the loss, by less than which it does not fall
    error: float  # estimated, at which the fit ends; 0: by no test
    usual_loss: float  # relative, with which it mostly comes, if it is to end there
    seed: np.int32
    untrained: Any  # network to measure by
    growth: Any = None  # control.Rules, or None where sizes are given
    observed: Any = None  # Observations, or None where their weight does not adapt

    @property
    def dtype(self):
        """Precision of the fit."""
        return self.tol.dtype


class PINNState(NamedTuple):
    """Network, points, and what is remembered from one step to the next."""

    net: Any
    loss: float
    batches: tuple
    memory: Any = None  # of the solver: its trust region, or that of optax
    stage: int = 0
    n_draws: int = 1
    iteration: int = 0
    control: Control = Control()
    next_seconds: float = 0.0  # that the next iteration will probably take

    @property
    def answer(self):
        """The solution: the network, or those of all windows of time."""
        march, level = self.control.march, self.control.level
        lowest = (level.before, *level.falls)[-1]
        return self.net if march is None else march.answer(lowest, self.net)


# --- points --------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampler:
    """Draws points, the same ones for the same numbers.

    With the method "residual", half of the interior points have a probability in
    proportion to the squared residual, as in Wu et al., "A comprehensive study of
    non-adaptive and residual-based adaptive sampling", with k = 2 and c = 1. All other
    points stay, so that a loss on new points is hardly another one. Residuals count in
    units of the size of their class if ``in_units``.
    """

    n_interior: int
    n_boundary: int
    method: str
    dtype: str
    in_units: bool = False

    def draw(self, model, seed, stage, number, net=None):
        """Draw the points of all residual classes except observations."""
        if model.classes[0].name == "data":  # without an equation
            return ()
        rng = np.random.RandomState([seed, stage, number])
        problem, follows = model.problem, self.method == "residual" and net is not None
        axes = problem._draw_directions(rng)
        method = "sobol" if self.method == "residual" else self.method
        source = np.random.RandomState([seed, stage, 0]) if follows else rng
        points = problem.sample(self.n_interior, self.n_boundary, source, method)

        def batch_of_class(kind):
            size = kind.size if self.in_units else 1.0
            x, data = points[kind.name]
            # Points that differ, each with the number of the given ones that it is.
            codes = row_codes(x.reshape(len(x), -1), data)  # of 100,000 axes, maybe
            _, first, counts = np.unique(codes, return_index=True, return_counts=True)
            order = np.argsort(first)
            kept, share = first[order], counts[order] / len(x)
            if isinstance(kind.function, SinceBefore):  # nothing, before a window
                data = np.zeros((len(data), kind.n_outputs))
            weight = kind.weight / size**2 * len(kept) * share
            return batch_of(x[kept], data[kept], weight, self.dtype, axes)

        model = model._replace(classes=model.classes[: len(points)])
        batches = tuple(map(batch_of_class, model.classes))
        if not (follows and number > 0):
            return batches
        # Every other interior point is replaced by one where residuals are large.
        n, own = self.n_interior // 2, points["interior"]
        x = problem.domain.sample(_POOL * n, rng, "sobol")
        pool = type(own)(problem._all_points(x[:, None]), x[:, :0])
        candidates = batch_of(*pool, 1.0, self.dtype, axes)
        r = pieces.residuals(model, net, (candidates, *batches[1:]), batches)
        rows = r[: len(x) * model.classes[0].n_outputs].reshape(len(x), -1)
        square = np.sum(np.square(rows, dtype=float), axis=1)
        if not 0 < square.sum() < np.inf or np.count_nonzero(square) < n:
            return batches
        chosen = rng.choice(len(square), n, replace=False, p=square / square.sum())
        both = zip(own, pool, strict=True)
        both = (np.concatenate([kept[: len(kept) - n], a[chosen]]) for kept, a in both)
        points["interior"] = type(own)(*both)
        return batch_of_class(model.classes[0]), *batches[1:]

    def fresh(self, model, seed, times=1):
        """Draw more points, which no fit trains on, or so many times as many."""
        few = model.problem.domain.dim <= FEW_AXES
        least = LEAST_POINTS if few else (0, 0)
        both = zip((self.n_interior, self.n_boundary), least, strict=True)
        n_interior, n_boundary = (times * _FRESH_SHARE * max(own) for own in both)
        larger = replace(self, n_interior=n_interior, n_boundary=n_boundary)
        return larger.draw(model, seed, 0, _FRESH)


def batch_of(x, data, weight, dtype, axes=None):
    """Points (N, P, d) of a class, whose ``weight`` is one number or one for each."""
    share = np.broadcast_to(np.asarray(weight, float) / len(x), len(x))
    scale = np.sqrt(share).astype(dtype)
    return Batch(x.astype(dtype), data.astype(dtype), scale, axes)


def prepare(observations, settings):
    """Put the points that stay on the device, the same ones for the same seed.

    The observations are Batches for training and for validation, or None.
    """
    training, validation = observations
    model, seed = settings.models[-1], int(settings.seed)
    fresh = settings.sampler.fresh(model, seed)
    like = settings.sampler.draw(model, seed, 0, 0)
    if training is not None:
        like = (*like, training)
    judged = training if validation is None and fresh else validation
    fresh = fresh if judged is None else (*fresh, judged)
    exact = None
    if model.problem.exact is not None:
        from sklearn_gn.pinn import solution

        n, *exact = solution.reference(model.problem, np.random.RandomState(seed))
        every = -(-len(exact[0]) // n)  # of a computed solution there may be more
        exact = tuple(a[::every].astype(settings.dtype) for a in exact)
    points = training, fresh, exact
    if settings.steps.mesh is None:
        points = jax.device_put(points)
    return FixedPoints(*points, validation is not None, like)


# --- the state, from one iteration to the next ---------------------------------------


def initial_state(points, net, settings):
    """Return the state at the start, on the first points."""
    model, march, level = settings.models[0], None, Level()
    if any(isinstance(kind.function, SinceBefore) for kind in model.classes):
        march = windows.TimeMarching()
        if isinstance(net, windows.Pieces):
            march, level = windows.marches(net)[-1], Level(before=net.losses[-1])
            net = net.nets[-1]
    net = jax.device_put(net)
    clock = Clock(changed=time.perf_counter())
    control = Control(march=march, level=level, clock=clock)
    batches = _draw(points, settings, 0, 0, net, control)
    placed = on_devices(batches, settings)
    untrained = settings.untrained
    share, (*hidden, last) = 1.0, map(np.asarray, net.layers)
    # An exponential may overflow far from the given values.
    while not math.isfinite(loss := losses_of_classes(model, net, placed).sum()):
        if share == 0 or (share == 1 and math.isnan(loss)):
            check_is_defined(model, net, batches)
        if share == 0:
            break
        if share == 1:
            level = np.zeros_like(last)
            level[-1] = np.resize(level_of_outputs(model.problem), last.shape[1])
        share = share / 2 if share > np.finfo(last.dtype).eps else 0.0
        layers = (*hidden, share * last + level)
        untrained = net = jax.device_put(net._replace(layers=layers))
    state = PINNState(net, float(loss), batches, control=control)
    first, of_classes = losses_of_no_solution(points, settings, untrained, state)
    control = control._replace(first_fresh=first, first_classes=of_classes)
    return state._replace(control=control)


def with_due_points(points, state, settings):
    """Return the state with the next problem, size or points, where it is time."""
    stage = int(np.searchsorted(settings.stage_ends, state.iteration, side="right"))
    state, is_other = refined(points, state, settings)
    every = settings.resample
    again = every and state.iteration > 0 and state.iteration % every == 0
    if not (again or is_other or stage != state.stage):
        return state
    batches = _draw(points, settings, stage, state.n_draws, state.net, state.control)
    batches = observation_weight.weighed(batches, state.control.weighing)
    return state._replace(batches=batches, stage=stage, n_draws=state.n_draws + 1)


def _draw(points, settings, stage, number, net, control):
    """Points to train on."""
    model, march, sampler = settings.models[stage], control.march, settings.sampler
    if settings.growth is not None and settings.growth.points:
        given = model.problem.residual_classes(), dimension(net), control.level.times
        n_interior, n_boundary = points_for(*given)
        sampler = replace(sampler, n_interior=n_interior, n_boundary=n_boundary)
    in_window = march is not None and march.active
    # The points of a window are those of all time, moved: they do not follow residuals.
    followed = None if in_window else net
    batches = sampler.draw(model, int(settings.seed), stage, number, followed)
    batches = windows.within(model, batches, march)
    if points.data is not None:
        batches = (*batches, points.data)
    return batches if settings.steps.mesh is not None else jax.device_put(batches)


class StepSummary(NamedTuple):
    """What a solver says of its step."""

    report: Report
    class_losses: np.ndarray  # with the weights of the user
    rounding_loss: float = 0.0  # loss, at most, of residuals that are rounding
    at_minimum: bool = False  # whether the loss is the lowest but for rounding
    # Why to stop where points stay and nothing can be gained, or None.
    no_progress: str | None = None
    decisive: bool = True  # whether the loss tells that nothing can be gained


def finish_iteration(points, state, settings, step):
    """Return state and report of an iteration, for the state after its step."""
    model, march = settings.models[state.stage], state.control.march
    # The losses of the network after the step.
    fresh = points._replace(fresh=windows.within(model, points.fresh, march))
    of_classes = fresh_losses(fresh, settings, state.net, state)
    # What comes next.
    control, stop = decide(points, state, settings, step, of_classes)
    state, march = state._replace(control=control), control.march
    # What the log holds beside that of all solvers.
    extra = {
        f"loss_{kind.name}": float(value)
        for kind, value in zip(model.classes, step.class_losses, strict=True)
    }
    if march is not None:
        *_, low, high = windows.time_of(model.problem)
        extra["window_end"] = low + (high - low) * march.stop
    if points.reference is not None:
        from sklearn_gn.pinn import solution

        last, (x, exact) = settings.models[-1], points.reference
        values = np.asarray(windows.at_points(solution.values, last, state.answer, x))
        found = solution.relative_errors(last.problem, values, np.asarray(exact))
        extra["relative_error"] = float(found[0])
    fresh = float(of_classes.sum())
    if not math.isnan(fresh):
        extra["val_loss"] = windows.loss_so_far(march, fresh, control.first_fresh)
    if settings.observed is not None:
        extra["observation_weight"] = control.weighing.weight
    state = state._replace(loss=step.report.loss, iteration=state.iteration + 1)
    report = step.report._replace(stop=stop, extra=extra)
    return with_expected_seconds(state, settings), report


# --- losses at points of training, and at those that are never trained on -------------


def fresh_losses(points, settings, net, state=None):
    """Losses of all classes at points that are never trained on; NaN without them."""
    fresh, like = points.fresh, points.like
    if not fresh:
        return np.full(1, np.nan)
    if state is not None:
        fresh = observation_weight.weighed(fresh, state.control.weighing)
        if state.stage + 1 == len(settings.models):
            like = state.batches
    fresh = on_devices(fresh, settings)
    return losses_of_classes(settings.models[-1], net, fresh, like)


def losses_of_no_solution(points, settings, untrained, state):
    """Loss on fresh points of the untrained network, then of each class alone.

    Large coefficients make it huge: a constant, which meets no condition, would pass
    for a solution, and its loss counts if it is lower.
    """
    first = fresh_losses(points, settings, untrained, state)
    if not points.fresh or not settings.models[-1].activations:
        return float(first.sum()), ()
    *hidden, last = untrained.layers
    for value in (0, 1):  # where the equation is singular at zero, and huge near it
        bias = np.zeros_like(last)
        bias[-1] = value
        constant = untrained._replace(layers=(*hidden, bias))
        level = fresh_losses(points, settings, constant, state)
        if np.isfinite(level.sum()):
            break
    # Where a constant solves all but for rounding, nothing is learnt from its loss.
    rounding = (dimension(untrained) * np.finfo(settings.dtype).eps) ** 2
    first, level = (np.append(losses, losses.sum()) for losses in (first, level))
    lower = np.where(level > rounding * first, np.minimum(first, level), first)
    return float(lower[-1]), tuple(lower[:-1].tolist())


def losses_of_classes(model, net, batches, like=None):
    """Half the sum of squares of each class; ``like`` as in ``pieces.cut``."""
    if not pieces.serve(batches):
        return np.asarray(_compiled_losses(model, net, batches))
    with np.errstate(over="ignore"):
        return class_losses(model, batches, pieces.residuals(model, net, batches, like))


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def _compiled_losses(model, net, batches):
    return class_losses(model, batches, residuals(model, net, batches))


def on_devices(batches, settings):
    """The batches, shared by all devices, padded by points of weight zero."""
    mesh = settings.steps.mesh
    if mesh is None:
        return batches
    sizes = (2 * mesh.size * -(-len(batch.x) // (2 * mesh.size)) for batch in batches)
    padded = (b.at(np.arange(n)) for b, n in zip(batches, sizes, strict=True))
    return tuple(Batch(*put_rows(list(b[:3]), mesh), b.axes) for b in padded)
