"""The controller of a fit: estimate, refine, stop.

After each iteration :func:`decide` looks at the losses of training and of fresh points
and names the one next thing, or the reason to stop; :func:`refined` carries it out
before the next iteration. What may come next:

- nothing but further iterations, while the loss on fresh points falls;
- "points", if that loss is far above the one of training;
- "network": a larger one, if the loss does not fall, and while growing pays. A network
  whose estimated error is too large grows even where it does not pay;
- "window": the next part of the time of an ordinary differential equation, which is cut
  where one network does not follow the solution (:mod:`sklearn_gn.pinn.windows`);
- "start": another network, where this one is stuck. Some are led by their first steps
  to a coefficient that is zero, a solution that is, or a minimum that is no solution;
  others drawn from the same distribution are not;
- the end, where nothing is to be gained, or where the estimated error is small enough.

A fit ends when the estimated error has fallen to ``tol``. An estimate costs as much as
some iterations: it is made where the loss falls slowly, the network is about to grow,
or the fit to end; of a ``tol`` that is given, as soon as the loss is one that mostly
goes with it. After one that is too large, the next is made where the error is small
enough if it falls like the root of the loss. What is larger is begun only if there is
as much time left as the present size has taken.
"""

import math
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.trees import dimension
from sklearn_gn.pde.coefficients import Unknown
from sklearn_gn.pinn import observation_weight, windows
from sklearn_gn.pinn.model import MOST_WEIGHTS, drawn_anew, wider
from sklearn_gn.pinn.observation_weight import Weighing
from sklearn_gn.pinn.statement import VANISHED, too_many_conditions
from sklearn_gn.pinn.windows import (
    FALL,
    FEW_ITERATIONS,
    SOLVED_LOSS,
    WELL_SOLVED_LOSS,
    is_flat,
)

# Losses on fresh points, relative to that of no solution: below the first nothing is
# left to gain, beyond the second a fit has learnt nothing.
EXHAUSTED_LOSS = float(np.finfo(float).eps)
_UNMET_LOSS = 1e-2
OVERFITTED = 100.0  # fresh over training loss: the solution holds at its points alone
FAR = 4.0  # the same, beyond which points are missing
_PATIENCE = 40  # iterations in which the fresh loss is to fall by FALL, or a fit grows
LEAST_FALL = 1e-3  # of the loss, in half as many iterations, or a fit ends
_ENDING = 0.3  # of the seconds of the first iteration, to end a fit with error bars
USUAL_SHARE = 0.1  # relative error, over the root of the relative loss
_MOST_STARTS = 3  # networks, until one is not stuck
_RESIDUALS, _BOUNDARY_SHARE = 2.5, 0.3  # for each parameter; of the residuals


# Points inside and of conditions that do not grow, and those of networks beyond
# MOST_WEIGHTS, whose Gramian has the size of the residuals.
FEW_POINTS, _MOST_OF_FEW = (500, 200), (2000, 800)
LEAST_POINTS, _MOST = (200, 80), (8000, 3000)


class Rules(NamedTuple):
    """What may grow in a fit."""

    network: bool
    points: bool
    deadline: float = math.inf  # of the fit, by time.perf_counter


class Level(NamedTuple):
    """What is remembered of the present size, window and weight."""

    times: int = 1  # as many points as a network of this size begins with
    falls: tuple = ()  # lowest fresh loss after each iteration since the last change
    before: float = math.inf  # lowest fresh loss when this size began
    ended: str = ""  # why it does not grow: "time", or as of what_is_missing


class Clock(NamedTuple):
    """Seconds of the iterations."""

    began: float = 0.0  # when this one did, by time.perf_counter
    changed: float = 0.0  # when the present size began
    first: float = 0.0  # seconds of the first one, which compiles
    steady: float = 0.0  # of the last one that compiled nothing


class Control(NamedTuple):
    """What is remembered of a fit to decide what comes next."""

    first_fresh: float = math.nan  # loss on fresh points that no solution has
    first_classes: tuple = ()  # the same for each residual class
    n_stalled: int = 0  # iterations since the loss has last fallen by tol
    lowest_loss: float = math.inf  # on fresh points, where there are any
    promising: float = math.inf  # loss at which the error may be the one asked for
    estimate: float = math.nan  # of the error, the last one
    n_starts: int = 1  # networks that were begun with
    next: str | None = None  # "points", "network", "window" or "start"
    level: Level = Level()
    march: Any = None  # windows.TimeMarching, where time may be cut
    weighing: Weighing = Weighing()
    clock: Clock = Clock()


# --- estimate and stop ---------------------------------------------------------------


def decide(points, state, settings, step, of_classes):
    """Return the control with what comes next, and the reason to stop or None.

    ``of_classes`` are the losses on fresh points; NaN where there are none.
    """
    model, now, rules = settings.models[state.stage], state.control, settings.growth
    known, usual, first = settings.observed, settings.usual_loss, now.first_fresh
    training, misfit = step.report.loss, float(step.class_losses[-1])
    fresh = float(of_classes.sum())
    if points.validates and known is not None:
        # The weight follows from the noise of the observations that it is given to.
        fresh += misfit - float(of_classes[-1])
    noise = misfit if now.weighing.weight != 1 else 0.0  # which no solution lowers
    # How far the loss has fallen. Losses on points that are drawn anew do not compare,
    # those on fresh ones do; another problem has another loss, and an easier one does
    # not decide that nothing is gained.
    judged = (training if math.isnan(fresh) else fresh) - noise
    falls, n_stalled, lowest = now.level.falls, 0, math.inf
    decisive = step.decisive and state.stage + 1 == len(settings.models)
    if decisive:
        falls = (*falls, min(fresh, (now.level.before, *falls)[-1]))
        stalled = not judged < (1 - float(settings.tol)) * now.lowest_loss
        n_stalled = now.n_stalled + 1 if stalled else 0
        lowest = min(judged, now.lowest_loss)
    level, march, weighing = now.level._replace(falls=falls), now.march, now.weighing
    # Whether what is larger can be compiled, and has as much time as this size had.
    at, clock = time.perf_counter(), now.clock
    in_time = rules is None or 2 * at + clock.first - clock.changed <= rules.deadline
    if march is not None and falls:
        goal = (settings.error / USUAL_SHARE) ** 2

        def may_cut():
            """Of partial equations, where a larger network is not the better answer."""
            if not in_time or model.problem.domain.dim == 1:
                return in_time
            from sklearn_gn.pinn.error_estimate import loses_track

            given = model, state.net, state.batches, points.fresh
            return falls[-1] > SOLVED_LOSS * first and loses_track(*given)

        march = windows.observed(march, falls, first, goal, may_cut)
    # Whether the equation holds, between the points of training, too. Few digits need
    # no more than the loss that mostly goes with them.
    enough = min(max(SOLVED_LOSS, usual), _UNMET_LOSS)
    limit = max(OVERFITTED * (training - noise), WELL_SOLVED_LOSS * first)
    solved = math.isnan(fresh) or fresh - noise <= min(enough * first, limit)
    if known is not None and decisive:
        given = weighing, known, step, fresh, falls, solved
        weighing = observation_weight.with_next_weight(*given)
    if noise:
        solved &= observation_weight.is_noise(
            noise, weighing.weight * known.spread_loss
        )
    settled, due = n_stalled >= _PATIENCE // 2, None
    estimate, promising = now.estimate, now.promising
    in_windows = march is not None and (march.active or march.next_stop)
    if in_windows:
        # The next window,
        solved &= all(loss <= enough * first for loss in march.done.losses)
        settled, due = march.ended, march.next_stop and "window"
    else:
        # or what is larger,
        estimates = solved and decisive and settings.error > 0
        # Each condition by its own measure, unless the error is small enough.
        solved &= not _unmet(model, step.class_losses, now.first_classes, enough)
        may_grow = rules is not None and rules.network and has_room(state.net)
        may_grow = may_grow and switches.on("pinn.growth")
        if rules is not None:
            given = level, first, model, rules, training, fresh, state.net
            lacks = what_is_missing(*given)
            if lacks in ("points", "network"):
                # If not, the rest of the time is for further iterations.
                due, lacks = (lacks, "") if in_time else (None, "time")
            level = level._replace(ended=lacks)
            ends = {"end": settled or solved, "time": settled and solved}
            settled = lacks == "statement" or ends.get(lacks, False)
        # or the end, if the error is small enough. It is estimated where the loss falls
        # slowly, or nothing else is left to do.
        few = FEW_ITERATIONS // 4 if step.at_minimum else FEW_ITERATIONS
        promises = rules is not None and is_flat(falls, few)
        promises |= fresh <= usual * first or due is not None
        promises &= fresh <= promising
        accurate, wanted, error = False, settings.error, math.nan
        if estimates and noise:
            accurate = observation_weight.hides_the_rest(falls, noise, known)
            accurate &= not weighing.waits
        elif estimates and (promises or (settled and may_grow)):
            # It is not known with noise, or with unknown functions.
            weighs_less = weighing.weight != 1 or weighing.changes or weighing.waits
            unclear = known is None or known.has_functions or weighs_less
            if points.data is None or not unclear:
                from sklearn_gn.pinn import error_estimate

                forward = points.data is None and not model.problem.unknown
                of, given = "in units" if forward else "largest", state.batches
                with backend.scope("float64"):
                    error = error_estimate.relative_error_estimate(
                        model, state.net, given, points.fresh, of=of
                    )
            estimate = error
            accurate = error <= wanted
            # Of an error that is larger than the solution nothing more is known.
            fall = (wanted / min(error, 1.0)) ** 2 if error > wanted else 0.0
            promising = fresh * fall
        # A network that solves the equation grows where its error is beyond the usual.
        too_large = error > max(USUAL_SHARE * math.sqrt(SOLVED_LOSS), wanted)
        grows = settled and too_large and may_grow and fresh > EXHAUSTED_LOSS * first
        if accurate:
            due, solved, settled = None, True, True
        elif grows and in_time:
            due, settled = "network", False
    # Why the fit would end here; not where the next iteration lowers another loss.
    kept, stop = settings.resample is None, None
    if not math.isfinite(training):
        stop = "non_finite"
    elif weighing.changes or (in_windows and not march.ended):
        stop = None
    elif training <= step.rounding_loss and n_stalled and (solved or kept):
        # Residuals may be rounding, and the last step has gained nothing.
        stop = "rounding" if solved else "stalled"
    elif step.no_progress and decisive and kept:
        stop = step.no_progress
    elif settled and settings.tol > 0:
        stop = "tol" if solved else "stalled"
    now = now._replace(
        n_stalled=n_stalled,
        lowest_loss=lowest,
        promising=promising,
        estimate=estimate,
        next=due,
        level=level,
        march=march,
        weighing=weighing,
    )
    if _begins_anew(now, state, settings, step, stop):
        return now._replace(next="start"), None
    return now, stop


def _unmet(model, class_losses, first_classes, share):
    """Classes, but observations, of more loss than a share of no solution's."""
    names = (kind.name for kind in model.classes)
    every = zip(names, class_losses, first_classes, strict=False)
    return {n for n, loss, first in every if n != "data" and loss > share * first}


def what_is_missing(level, first, model, rules, training, fresh, net):
    """What a fit needs that no longer falls: "points", "network", or the "end".

    Of conditions that contradict one another it is another "statement"; "": nothing.
    """
    lowest = (math.inf, *level.falls)[-1]
    exhausted = lowest <= EXHAUSTED_LOSS * first
    lacks_points = rules.points and fresh > FAR * training
    patience = FEW_ITERATIONS if lacks_points or exhausted else _PATIENCE
    if not is_flat(level.falls, patience):
        return ""
    if level.ended:
        return level.ended
    falls = lowest <= FALL * level.before
    if exhausted or not (falls or lowest > SOLVED_LOSS * first):
        return "end"
    half = _PATIENCE // 2
    stays = not falls or is_flat(level.falls, half, 1 - half * LEAST_FALL)
    if stays and too_many_conditions(model.problem):
        return "statement"
    if switches.on("pinn.growth"):
        classes, n = model.problem.residual_classes(), dimension(net)
        sizes, larger = (points_for(classes, n, k * level.times) for k in (1, 2))
        if lacks_points and larger != sizes:
            return "points"
        if rules.network and has_room(net):
            return "network"
    return "end"


# --- another start -------------------------------------------------------------------


def _begins_anew(now, state, settings, step, stop):
    """Whether a fit that is stuck begins anew: alone, without windows."""
    model, class_losses = settings.models[state.stage], step.class_losses
    level, weighing, first = now.level, now.weighing, now.first_fresh
    # Where the weight of the observations has fallen, coefficients explain them.
    unexplained = weighing.weight == 1 or weighing.waits
    # In windows, and in an ordinary equation that may have some, these are cut instead.
    march, dim = now.march, model.problem.domain.dim
    in_windows = march is not None and (dim == 1 or march.active)
    alone = not in_windows and model.features is None
    is_first_order = settings.steps.solver.name != "dngd"
    if is_first_order or not (alone and unexplained) or now.n_starts == _MOST_STARTS:
        return False
    stuck, total = False, class_losses.sum()
    if settings.observed is not None:
        # A positive coefficient has gone to zero, and the fit has settled there.
        spread = weighing.weight * settings.observed.spread_loss
        stuck = class_losses[-1] > _UNMET_LOSS * spread
        stuck &= observation_weight.has_settled(level.falls, weighing.equation)
        stuck = stuck and vanished(model.problem, state.net.extra).any()
    if stop is not None and stop in ("stalled", step.no_progress):
        # It has learnt next to nothing at its points of training.
        unmet = _unmet(model, class_losses, now.first_classes, _UNMET_LOSS)
        stuck |= total > _UNMET_LOSS * first or bool(unmet - {"interior"})
    if settings.growth is not None and (level.ended or is_flat(level.falls, _PATIENCE)):
        # It no longer learns, and is between one that is solved and one that has learnt
        # nothing, by their digits: with wrong coefficients, or in vain a larger one.
        if model.problem.unknown and math.isinf(level.before):
            is_data = [kind.name == "data" for kind in model.classes]
            astray, total = True, total - class_losses @ is_data
        else:
            widths = (net.layers[0].shape[1] for net in (settings.untrained, state.net))
            astray = level.falls[-1] > FALL * level.before and np.diff([*widths]) > 0
        stuck |= bool(astray and total > math.sqrt(SOLVED_LOSS * _UNMET_LOSS) * first)
    stuck = stuck and not too_many_conditions(model.problem)
    return stuck and switches.on("pinn.starts")


def vanished(problem, extra):
    """Which of the parameters ``extra`` are positive coefficients that went to zero."""
    raw, found, stop = np.asarray(extra, float), [], 0
    for known in problem.unknown.values():
        first = np.ravel(known.encode(known.initial))
        start, stop = stop, stop + first.size
        fall = raw[start:stop] - first
        found.extend(known.positive & (fall < known.encode(VANISHED)))
    return np.array(found, bool)


# --- refine --------------------------------------------------------------------------
#
# A fit starts with a small network and with more residuals than parameters, so that a
# step is cheap and the network cannot satisfy the equation at its points alone.


def points_for(classes, n_weights, times=1):
    """Numbers of points of a network: at first, and so many times as many."""
    if n_weights > MOST_WEIGHTS:
        counts, most = FEW_POINTS, _MOST_OF_FEW
    else:
        interior, *conditions = [kind for kind in classes if kind.name != "data"]
        share = _BOUNDARY_SHARE if conditions else 0.0
        outputs = np.mean([kind.n_outputs for kind in conditions]) if conditions else 1
        counts = _RESIDUALS * n_weights * np.array([1 - share, share])
        counts, most = counts / [interior.n_outputs, outputs], _MOST
        counts = np.clip(counts, LEAST_POINTS, most).astype(int).tolist()
    return tuple(min(times * n, m) for n, m in zip(counts, most, strict=True))


def has_room(net):
    """Whether there is a larger network."""
    return dimension(wider(net, None)) <= MOST_WEIGHTS


def refined(points, state, settings):
    """Return the state with what is due, and whether other points are to be drawn."""
    now, model = state.control, settings.models[-1]
    net, memory = state.net, state.memory
    due, level, weighing, batches = now.next, now.level, now.weighing, state.batches
    clock = now.clock._replace(began=time.perf_counter())
    now, lowest = now._replace(next=None, clock=clock), (level.before, *level.falls)[-1]
    if due is None and not weighing.changes:
        return state._replace(control=now), False
    rng = np.random.RandomState([settings.seed, state.iteration])
    level = level._replace(falls=())
    if due == "start":
        net = drawn_anew(rng, settings.untrained, model.problem)
        # Positive coefficients that went to zero begin higher, by half of the digits by
        # which they are known to have fallen, and again by as many.
        raised = now.n_starts * Unknown(1.0, positive=True).encode(VANISHED**-0.5)
        gone = raised * vanished(model.problem, state.net.extra)
        net = net._replace(extra=net.extra + gone.astype(settings.dtype))
        weighing = weighing._replace(next=weighing.weight, share=math.inf)
        now = now._replace(n_starts=now.n_starts + 1)
    elif weighing.changes:
        given = weighing, settings.observed, model, net, batches
        weighing, batches = observation_weight.changed(*given)
    if due == "window":
        march, net = windows.moved_on(now.march, lowest, model, net, points.fresh, rng)
        now = now._replace(march=march)
    elif due == "network":
        net = wider(net, rng, model.problem.n_functions)
    if due is not None:
        net, weighing = jax.device_put(net), weighing._replace(equation=())
        now = now._replace(clock=clock._replace(changed=clock.began))
        times, before = level.times * (1 + (due == "points")), lowest
        if due in ("window", "start"):  # of another function
            memory, before = None, math.inf
        level = Level(times, before=before)
    # The loss does not compare with the ones before.
    again = {"n_stalled": 0, "lowest_loss": math.inf, "promising": math.inf}
    now = now._replace(level=level, weighing=weighing, **again)
    state = state._replace(control=now, net=net, batches=batches, memory=memory)
    return state, due is not None


def with_expected_seconds(state, settings):
    """Return the state with the seconds that the next iteration will probably take."""
    now = state.control
    clock, model = now.clock, settings.models[-1]
    seconds = time.perf_counter() - clock.began
    compiled = state.iteration <= 1 or len(now.level.falls) == 1
    first, steady = clock.first or seconds, clock.steady if compiled else seconds
    in_single = getattr(settings.steps.solver, "single_precision_iter", 0)
    changes = state.iteration in (*settings.stage_ends, in_single)
    changes |= now.next in ("points", "network")
    expected = first if changes else steady
    if model.problem.unknown or model.classes[-1].name == "data":
        expected += _ENDING * first
    now = now._replace(clock=clock._replace(first=first, steady=steady))
    return state._replace(control=now, next_seconds=expected)
