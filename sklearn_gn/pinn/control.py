"""The controller of a fit: estimate, refine, stop.

After each iteration :func:`decide` looks at the losses of training and of fresh points
and names the one next thing, or the reason to stop; :func:`refined` carries it out
before the next iteration. What may come next:

- nothing but further iterations, while the loss on fresh points falls;
- "points", if that loss is far above the one of training;
- "network": a larger one, if the loss does not fall, and while growing pays. A network
  of which the estimated error is too large grows even where it does not pay;
- "window": the next part of the time of an ordinary differential equation, which is cut
  where one network does not follow the solution (:mod:`sklearn_gn.pinn.windows`);
- "start": another network, where this one is stuck. Some are led by their first steps
  to a coefficient that is zero, a solution that is, or a minimum that is no solution;
  others drawn from the same distribution are not;
- the end, where nothing is to be gained, or where the estimated error is small enough.

An estimate of the error costs as much as some iterations, so it is made where the
network is about to grow or the loss falls slowly; after one that is too large, the next
is made where the error is small if it falls like the root of the loss.
"""

import math
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.pde.coefficients import Unknown
from sklearn_gn.pinn import observation_weight, windows
from sklearn_gn.pinn.error_estimate import (
    largest_error_estimate,
    relative_error_estimate,
)
from sklearn_gn.pinn.model import (
    MOST_WEIGHTS,
    drawn_anew,
    n_waves,
    n_weights,
    wider,
)
from sklearn_gn.pinn.statement import VANISHED
from sklearn_gn.pinn.windows import FALL, FEW_ITERATIONS, is_flat

# Losses on fresh points, relative to that of the untrained network: below these the
# equation is solved, it is solved so well that the error need not be estimated, the
# solution is accurate even if the network overfits, and nothing is left to gain.
SOLVED_LOSS, WELL_SOLVED_LOSS = 1e-6, 1e-10
_ACCURATE_LOSS, EXHAUSTED_LOSS = 1e-12, 1e-16
_UNMET_LOSS = 1e-2  # relative to that of no solution, beyond which nothing is learnt
ROUNDING = 30  # residuals, in units in the last place, that are rounding
OVERFITTED = 100.0  # fresh over training loss
# Iterations in which the fresh loss is to fall by FALL, or the fit grows. An iteration
# of a larger network takes as long as several of this one, which is often flat for a
# while and then finds its way: all the more once the equation is solved, when only
# digits are to be gained. Few do where points are missing, or nothing is left.
_PATIENCE, _EARLY_PATIENCE = 40, 30
_STALLED = 20  # iterations without a lower loss, after which a fit ends
# What the rest of max_time must have room for: compilations as long as the first one,
# and iterations at the next size, with their seconds relative to those of this one.
_COMPILATIONS, _ITERATIONS = 2, 30
_LEAST_ITERATIONS = 10  # the same where a fit would end otherwise, its time unused
_LARGER, _MORE_POINTS = 5.0, 2.0
_ENDING = 0.3  # of the seconds of the first iteration, to end a fit with error bars
_GENERALISES = 4.0  # fresh over training loss, beyond which points are missing
# Estimated relative error beyond which a network that solves the equation still grows,
# and the one below which a fit ends; that of a fit to observations, which are hardly
# ever exact to more digits.
_LARGE_ERROR, _SMALL_ERROR, _SMALL_ERROR_OF_UNKNOWNS = 1e-4, 1e-7, 1e-5
_MOST_STARTS = 3  # networks, until one is not stuck
_ASTRAY_LOSS = 1e-4  # relative to that of no solution, of a fit that has gone wrong
_RAISE = 10.0  # of the next start of one that has gone to zero
_UNEXPLAINED = 0.01  # of the variance of the observations, beyond which it is wrong


_RESIDUALS = 2.5  # for each parameter
_BOUNDARY_SHARE = 0.3  # of the residuals


class Sizes(NamedTuple):
    """Numbers of collocation points."""

    n_interior: int
    n_boundary: int


# Points of networks beyond MOST_WEIGHTS, whose Gramian has the size of the residuals.
_FEW, _MOST_OF_FEW = Sizes(500, 200), Sizes(2000, 800)
_LEAST, _MOST = Sizes(200, 80), Sizes(8000, 3000)


class Rules(NamedTuple):
    """What may grow in a fit."""

    network: bool
    points: bool
    deadline: float = math.inf  # of the fit, by time.perf_counter
    budget: float = math.inf  # seconds of the fit


class Level(NamedTuple):
    """What is remembered of the present size."""

    sizes: Sizes
    density: float = _RESIDUALS  # residuals for each parameter
    falls: tuple = ()  # lowest fresh loss after each iteration of this size
    before: float = math.inf  # lowest fresh loss when this size began
    ended: bool = False  # whether growth has ended
    late: bool = False  # whether there is no time left to grow
    promising: float = math.inf  # fresh loss at which the error may be small


class Clock(NamedTuple):
    """Seconds of the iterations."""

    began: float = 0.0  # when this one did, by time.perf_counter
    compiled: float = 0.0  # of all until the first one ended
    first: float = 0.0
    steady: float = 0.0  # of the last one that compiled nothing
    next: float = 0.0  # that the next one will probably take


class Control(NamedTuple):
    """What is remembered of a fit to decide what comes next."""

    first_fresh: float = math.nan  # loss on fresh points that no solution has
    first_classes: tuple = ()  # the same for each residual class
    n_stalled: int = 0  # iterations since the loss has last fallen by tol
    lowest_loss: float = math.inf  # on fresh points, where there are any
    n_starts: int = 1  # networks that were begun with
    next: str | None = None  # "points", "network", "window" or "start"
    level: Any = None  # Level, where sizes are found
    march: Any = None  # windows.March, where time may be cut
    weighing: observation_weight.Weighing = observation_weight.Weighing()
    clock: Clock = Clock()

    def began_again(self):
        """The control of another loss, which does not compare with the one before."""
        return self._replace(n_stalled=0, lowest_loss=math.inf)

    @property
    def is_in_windows(self):
        """Whether the time is cut, or about to be."""
        march = self.march
        return march is not None and (march.active or march.next_stop is not None)


class Losses(NamedTuple):
    """Losses after a step."""

    training: float
    fresh: float  # NaN where there are no fresh points
    validated: float  # the same with observations of validation, for the log
    noise: float  # of observations, which no solution lowers; 0 where it is not known
    decisive: bool  # whether they tell that nothing can be gained


# --- estimate and stop ---------------------------------------------------------------


def decide(points, state, settings, step, losses):
    """Return the control with what comes next, and the reason to stop or None."""
    model, first = settings.models[state.stage], state.control.first_fresh
    training, fresh, _, noise, decisive = losses
    now = _with_stalls(state.control, settings, losses)
    if state.iteration == 0:
        seconds = now.clock.compiled + time.perf_counter()
        now = now._replace(clock=now.clock._replace(compiled=seconds))
    if now.march is not None:
        own = now.march.fresh or points.fresh
        march = windows.observed(
            now.march, model, state.net, own, fresh, first, settings.growth
        )
        now = now._replace(march=march)
    if now.level is not None and decisive and not now.is_in_windows:
        now = observed(now, settings.growth, training, fresh, state.net)
    # Between the points of training, too.
    limit = max(training - noise, _ACCURATE_LOSS * first)
    solved = fresh - noise <= SOLVED_LOSS * first and fresh - noise <= (
        OVERFITTED * limit
    )
    solved = solved or math.isnan(fresh)
    if settings.observed is not None and decisive:
        weighing = observation_weight.with_next_weight(
            now.weighing, settings.observed, step, fresh, solved
        )
        now = now._replace(weighing=weighing)
    if noise:
        bound = now.weighing.weight * settings.observed.spread_loss
        solved &= observation_weight.is_noise(noise, bound)
    accurate = False
    if now.is_in_windows:
        before = [loss for _, loss, _ in now.march.done]
        solved = solved and all(loss <= SOLVED_LOSS * first for loss in before)
        settled = now.march.ended
    else:
        solved = solved and not _unmet(
            model, step.class_losses, now.first_classes, SOLVED_LOSS
        )
        if solved:
            now, accurate = ended_if_accurate(points, state, settings, now, losses)
        settled, level = now.n_stalled >= _STALLED, now.level
        if level is not None and level.late and not level.ended:
            settled = settled and solved  # nothing is gained, by steps or by growth
        elif level is not None:
            settled = level.ended and (settled or solved)
    stop = _reason_to_stop(now, settings, step, losses, solved, settled)
    if stop in ("tol", "stalled") and not accurate and fresh > EXHAUSTED_LOSS * first:
        if has_to_grow(points, state, settings, now, stop):
            level = now.level._replace(ended=False)
            now, stop = now._replace(level=level, next="network"), None
    if now.is_in_windows and now.march.next_stop is not None:
        now = now._replace(next="window")
    if _begins_anew(now, state, settings, step, stop):
        now, stop = now._replace(next="start"), None
    return now, stop


def _unmet(model, class_losses, first_classes, share):
    """Residual classes, but observations, of more loss than a share of no solution's.

    Empty where the losses of no solution are not known.
    """
    named = [known.residual.name for known in model.classes]
    return {
        name
        for name, loss, first in zip(named, class_losses, first_classes, strict=False)
        if name != "data" and loss > share * first
    }


def _with_stalls(now, settings, losses):
    """The control with the number of iterations that have not lowered the loss."""
    if not losses.decisive:
        return now.began_again()
    # Losses on points that are drawn anew do not compare: those on fresh ones do.
    judged = losses.training if math.isnan(losses.fresh) else losses.fresh
    judged -= losses.noise
    fell = judged < (1 - float(settings.tol)) * now.lowest_loss
    return now._replace(
        n_stalled=0 if fell else now.n_stalled + 1,
        lowest_loss=min(judged, now.lowest_loss),
    )


def observed(now, rules, loss, fresh, net):
    """The control after an iteration, with what is to grow before the next one."""
    level, first = now.level, now.first_fresh
    lowest = min(fresh, lowest_loss(level))
    level = level._replace(falls=(*level.falls, lowest))
    now = now._replace(level=level)
    solved, exhausted = lowest <= SOLVED_LOSS * first, lowest <= EXHAUSTED_LOSS * first
    lacks_points = rules.points and fresh > _GENERALISES * loss
    patience = _PATIENCE if solved else _EARLY_PATIENCE
    if lacks_points or exhausted:
        patience = FEW_ITERATIONS
    if level.ended or not is_flat(level.falls, patience):
        return now
    pays = lowest <= FALL * level.before or not solved
    growing = pays and not exhausted and switches.on("pinn.growth")
    dearer = _MORE_POINTS if lacks_points else _LARGER
    if growing and not _in_time(now.clock, rules, dearer):
        return now._replace(level=level._replace(late=True))
    if growing and lacks_points and more_points(level.sizes, net) != level.sizes:
        return now._replace(next="points")
    if growing and rules.network and has_room(net):
        return now._replace(next="network")
    return now._replace(level=level._replace(ended=True))


def _in_time(clock, rules, dearer, compilations=_COMPILATIONS, n_iter=_ITERATIONS):
    """Whether there is time to grow: what is larger is compiled, and has to pay."""
    needed = compilations * clock.compiled + n_iter * dearer * clock.steady
    return time.perf_counter() + needed < rules.deadline


def ended_if_accurate(points, state, settings, now, losses):
    """The control of a fit that has solved the equation; whether it is accurate."""
    level, first, fresh = now.level, now.first_fresh, losses.fresh
    if level is None or settings.tol == 0:
        return now, False
    ended = now._replace(next=None, level=level._replace(ended=True))
    if losses.noise:
        weighing, noise = now.weighing, losses.noise
        enough = not weighing.waits and observation_weight.hides_the_rest(
            weighing.losses, noise, settings.observed
        )
        return (ended, True) if enough else (now, False)
    is_inverse = points.data is not None
    small = _SMALL_ERROR_OF_UNKNOWNS if is_inverse else _SMALL_ERROR
    if fresh > (SOLVED_LOSS if is_inverse else WELL_SOLVED_LOSS) * first:
        return now, False
    slow = is_flat(level.falls, FEW_ITERATIONS) and fresh <= level.promising
    if now.next is None and not slow:
        return now, False
    error = _estimated_error(points, state, settings, now)
    if error <= small:
        return ended, True
    promising = 0.0 if math.isnan(error) else fresh * (small / error) ** 2
    return now._replace(level=level._replace(promising=promising)), False


def has_to_grow(points, state, settings, now, stop):
    """Whether a fit that is about to end needs a larger network, and has the time."""
    level, rules = now.level, settings.growth
    if level is None or now.is_in_windows or not rules.network:
        return False
    in_time = _in_time(now.clock, rules, _LARGER, 1 + _COMPILATIONS, _LEAST_ITERATIONS)
    if not (in_time and has_room(state.net) and switches.on("pinn.growth")):
        return False
    if stop == "stalled":
        return lowest_loss(level) <= SOLVED_LOSS * now.first_fresh
    return _estimated_error(points, state, settings, now) > _LARGE_ERROR


def _estimated_error(points, state, settings, now):
    """Estimate of the (largest) relative error; NaN where observations have noise.

    It is NaN for unknown functions too: observations hardly see their fast parts.
    """
    model, batches = settings.models[-1], state.batches
    if settings.dtype != np.float64:
        return math.nan
    if points.data is None and not model.problem.unknown:
        return relative_error_estimate(
            model, state.net, batches, points.fresh, in_units=True
        )
    if points.data is not None:
        exact = settings.observed is not None and now.weighing.is_exact
        if not exact or settings.observed.has_functions:
            return math.nan
    return largest_error_estimate(model, state.net, batches, points.fresh)


def _reason_to_stop(now, settings, step, losses, solved, settled):
    """Why a fit would end here, or None."""
    eps, kept = np.finfo(settings.dtype).eps, settings.resample is None
    if not math.isfinite(losses.training):
        return "non_finite"
    if now.weighing.changes or (now.is_in_windows and not now.march.ended):
        return None  # the next iteration has another loss to lower
    smallest = (ROUNDING * eps) ** 2 * step.network_norm
    if losses.training <= smallest and (solved or kept):
        return "rounding" if solved else "stalled"
    if step.no_progress and losses.decisive and kept:
        return step.no_progress
    if settled and settings.tol > 0:
        return "tol" if solved else "stalled"
    return None


# --- another start -------------------------------------------------------------------


def _begins_anew(now, state, settings, step, stop):
    """Whether a fit that is stuck begins anew: alone, without windows."""
    model, class_losses = settings.models[state.stage], step.class_losses
    stuck = False
    if stop is not None and stop in ("stalled", step.no_progress):
        # It has learnt next to nothing at its points of training.
        unmet = _unmet(model, class_losses, now.first_classes, _UNMET_LOSS)
        stuck = (
            bool(unmet - {"interior"})
            or np.sum(class_losses) > _UNMET_LOSS * now.first_fresh
        )
    stuck = stuck or _is_astray(now, state, settings, class_losses)
    stuck = stuck or has_vanished(now, state.net, settings, class_losses)
    # Where the weight of the observations has fallen, coefficients explain them.
    unexplained = now.weighing.weight == 1 or now.weighing.waits
    possible = (
        settings.models[-1].features is None and settings.steps.solver.name == "dngd"
    )
    possible &= now.march is None and state.stage == 0 and unexplained
    few = now.n_starts < _MOST_STARTS
    return stuck and possible and few and switches.on("pinn.starts")


def _is_astray(now, state, settings, class_losses):
    """Whether a fit has gone wrong, where its network no longer learns.

    Coefficients do not come back in a larger network; and a larger one that has gained
    nothing, far from a solution, is in a minimum that is none.
    """
    model, level = settings.models[state.stage], now.level
    if level is None or not (now.next == "network" or level.late or level.ended):
        return False
    if model.problem.unknown and math.isinf(level.before):
        of_equation = sum(
            loss
            for known, loss in zip(model.classes, class_losses, strict=True)
            if known.residual.name != "data"
        )
        if of_equation > _ASTRAY_LOSS * now.first_fresh:
            return True
    first, net = settings.untrained.layers[0], state.net.layers[0]
    no_gain = net.shape[1] > first.shape[1] and level.falls[-1] > FALL * level.before
    return bool(no_gain and np.sum(class_losses) > _ASTRAY_LOSS * now.first_fresh)


def has_vanished(now, net, settings, class_losses):
    """Whether a fit has settled where a positive coefficient is zero, and not well.

    There the loss hardly depends on its logarithm, and it does not come back.
    """
    if settings.observed is None:
        return False
    weighing, spread = now.weighing, settings.observed.spread_loss
    poor = class_losses[-1] > _UNEXPLAINED * weighing.weight * spread
    settled = observation_weight.has_settled(weighing.losses, weighing.equation)
    return poor and settled and vanished(settings.models[-1].problem, net.extra).any()


def vanished(problem, extra):
    """Which of the parameters ``extra`` are positive coefficients that went to zero."""
    raw, found, stop = np.asarray(extra, float), [], 0
    for known in problem.unknown.values():
        first = np.ravel(known.encode(known.initial))
        start, stop = stop, stop + first.size
        fall = raw[start:stop] - first
        found.append(known.positive & (fall < known.encode(VANISHED)))
    return np.concatenate([np.zeros(0, bool), *found])


# --- growth --------------------------------------------------------------------------
#
# A fit starts with a small network and with more residuals than parameters, so that a
# step is cheap and the network cannot satisfy the equation at its points alone.


def points_for(classes, n_weights, density=_RESIDUALS):
    """Numbers of points of a network, for so many residuals for each parameter."""
    if n_weights > MOST_WEIGHTS:
        return _FEW
    interior, *conditions = [kind for kind in classes if kind.name != "data"]
    n_residuals = density * n_weights
    share = _BOUNDARY_SHARE if conditions else 0.0
    outputs = np.mean([kind.n_outputs for kind in conditions]) if conditions else 1
    n_interior = (1 - share) * n_residuals / interior.n_outputs
    n_boundary = share * n_residuals / outputs
    return Sizes(
        int(np.clip(n_interior, _LEAST.n_interior, _MOST.n_interior)),
        int(np.clip(n_boundary, _LEAST.n_boundary, _MOST.n_boundary)),
    )


def lowest_loss(level):
    """Lowest loss on fresh points so far."""
    return level.falls[-1] if level.falls else level.before


def has_room(net):
    """Whether there is a larger network."""
    return n_weights(wider(net, None)) <= MOST_WEIGHTS


def more_points(sizes, net):
    """Twice as many points, as far as these are allowed."""
    most = _MOST if n_weights(net) <= MOST_WEIGHTS else _MOST_OF_FEW
    return Sizes(*(max(n, min(2 * n, m)) for n, m in zip(sizes, most, strict=True)))


def grown(level, what, rules, classes, net, rng, n_waves=0):
    """The next level and its network: of more "points", or a larger "network"."""
    sizes, density = level.sizes, level.density
    if what == "points":
        sizes, density = more_points(sizes, net), 2 * density
    else:
        net = wider(net, rng, n_waves)
        if rules.points:
            wanted = points_for(classes, n_weights(net), density)
            sizes = Sizes(*map(max, sizes, wanted))
    before, promising = level.falls[-1], level.promising
    return Level(sizes, density, before=before, promising=promising), net


# --- refine --------------------------------------------------------------------------


def refined(points, state, settings):
    """Return the state with what is due; points are to be drawn where that is not None.

    That is another network, a larger one, more points, the next window of time, or the
    next weight of the observations, whose points stay.
    """
    now, model = state.control, settings.models[-1]
    due = now.next
    rng = np.random.RandomState([settings.seed, state.iteration])
    weighing = now.weighing
    if due != "start" and weighing.changes:
        factor = weighing.next / weighing.weight
        batches = observation_weight.reweighted(state.batches, factor)
        weighing = observation_weight.Weighing(
            weighing.next, weighing.next, weighing.waits, share=weighing.share
        )
        now = now.began_again()._replace(weighing=weighing)
        state = state._replace(batches=batches)
    now = now._replace(next=None)
    if due is None:
        return state._replace(control=now)
    level, net, memory = now.level, state.net, None
    if due == "start":
        net = drawn_anew(rng, settings.untrained, model.problem)
        # Positive coefficients that went to zero begin higher.
        raised = now.n_starts * Unknown(1.0, positive=True).encode(_RAISE)
        gone = raised * vanished(model.problem, state.net.extra)
        net = net._replace(extra=net.extra + gone.astype(settings.dtype))
        if level is not None:
            level = Level(level.sizes, level.density)
        weight = weighing.weight
        weighing = observation_weight.Weighing(weight, weight, weighing.waits)
        now = now.began_again()._replace(
            level=level, weighing=weighing, n_starts=now.n_starts + 1
        )
    elif due == "window":
        march, net = windows.moved_on(now.march, model, net, points.fresh, rng)
        now = now.began_again()._replace(march=march)
    else:
        known = settings.models[state.stage]
        kinds = [one.residual for one in known.classes]
        level, net = grown(
            level, due, settings.growth, kinds, net, rng, n_waves(known.problem)
        )
        now, memory = now._replace(level=level, n_stalled=0), state.memory
    return state._replace(control=now, net=jax.device_put(net), memory=memory)


def with_expected_seconds(state, settings):
    """Return the state with the seconds that the next iteration will probably take.

    After one that compiled for a larger size, those of the size before times what a
    larger size costs at most; more where the end of a fit compiles error bars.
    """
    now = state.control
    clock, level = now.clock, now.level
    seconds = time.perf_counter() - clock.began
    first = clock.first or seconds
    compiled = state.iteration <= 1 or (level is not None and len(level.falls) == 1)
    steady = clock.steady if compiled else seconds
    changes = now.next in ("points", "network")
    changes |= state.iteration in settings.stage_ends
    changes |= state.iteration == getattr(
        settings.steps.solver, "single_precision_iter", 0
    )
    expected = first if changes else min(seconds, _LARGER * steady)
    model = settings.models[-1]
    if model.problem.unknown or model.classes[-1].residual.name == "data":
        expected += _ENDING * first
    clock = clock._replace(first=first, steady=steady, next=expected)
    return state._replace(control=now._replace(clock=clock))
