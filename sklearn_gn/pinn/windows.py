r"""Windows of time: long times are solved in parts.

Over a long time an equation may have more near-solutions than solutions: a network that
leaves the path early, at one place of large residual, and follows another solution from
there on. So it is for ordinary equations, and for partial ones whose errors grow. Where
the loss on fresh points no longer falls although the equation is not solved well, and
the problem is one of evolution, the interval of time is halved. A window is solved by a
network of its own, on points of its own, until its loss no longer falls, or goes with
the error that is asked for. Where it is solved, the next one begins with its values,
and is longer if that went quickly; where not, it is halved again. The measure is the
loss of a solution that stays as it is at the start: one that changes fast has large
residuals.

All windows share what is compiled. The network of a window is the whole interval's with
the weights of time changed, points are moved along the axis of time, and a condition at
the start has the residual ``r(u) - r(u_before)``; without a window before, the last
term is zeros. Residuals of the equation count in proportion to the length of the
window: a short one would otherwise rather have another start.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.linalg.jacobian import Parameters
from sklearn_gn.pinn.model import drawn_anew, network_values
from sklearn_gn.pinn.pieces import class_residuals

# A loss that has not fallen by FALL in so many iterations falls no longer.
FALL, FEW_ITERATIONS = 0.5, 12
# Losses on fresh points, relative to that of no solution, at which the equation is
# solved, and well solved.
SOLVED_LOSS, WELL_SOLVED_LOSS = 1e-6, 1e-10
_SHORTEST = 2.0**-16  # window, as a share of all time


class Pieces(NamedTuple):
    """The networks of windows, one after the other."""

    stops: np.ndarray = np.zeros(0)  # where they end, as shares of the interval
    losses: np.ndarray = np.zeros(0)  # on fresh points
    nets: tuple = ()

    def ends(self, domain):
        """Times (n,) at which the windows end."""
        low, high = domain.bounds[domain.axes.index(domain.time)]
        return low + (high - low) * self.stops


class TimeMarching(NamedTuple):
    """Where the windows are."""

    start: float = 0.0  # of the present window, as shares of the interval
    stop: float = 1.0
    done: Pieces = Pieces()  # the windows before
    next_stop: float | None = None  # end of a new window, before the next iteration
    ended: bool = False  # whether the last window is solved, or cannot be
    uncut: float = math.inf  # lowest fresh loss before the cut, of no solution
    unit: float = 0.0  # loss of a solution that stays where the window begins

    @property
    def active(self):
        """Whether there are windows."""
        return self.stop - self.start < 1

    def answer(self, loss, net):
        """The solution: a network, or all so far, the last one of a loss."""
        stops, losses, nets = self.done
        both = np.append(stops, self.stop), np.append(losses, loss)
        return Pieces(*both, (*nets, net)) if self.active else net


@dataclass(frozen=True)
class SinceBefore:
    """Residual of a condition at the start, less the window before's."""

    function: Callable

    def __call__(self, fields, points, data, coefficients):
        """Residual of a row, of shape (k,)."""
        return self.function(fields, points, data[:0], coefficients) - data


def with_windows(model, observed):
    """Return a model whose conditions at the start suit any window.

    The model itself, unless its problem goes on from a start, in time alone or in space
    and time.
    """
    from sklearn_gn.pinn.statement import read

    problem, (interior, *conditions), moved = model.problem, model.classes, []
    domain, more = problem.domain, problem.unknown or problem.depends_on
    if observed or more or problem.transform or problem.regions is not None:
        return model
    if domain.time in (None, *problem.periodic) or read(problem).orders is None:
        return model
    start, end = (f"{domain.time}={side}" for side in ("min", "max"))
    for kind in conditions:
        faces = kind.condition.faces(domain)
        at_ends = not {start, end}.isdisjoint(faces)
        needs_normals = kind.condition.needs_normals
        if not faces or (at_ends and (needs_normals or faces != (start,))):
            return model
        if at_ends:
            kind = kind._replace(function=SinceBefore(kind.function))
        moved.append(kind)
    if not any(isinstance(kind.function, SinceBefore) for kind in moved):
        return model
    return model._replace(classes=(interior, *moved))


def time_of(problem):
    """Return the column of points that is time, the input of the network, its range."""
    axis = problem.domain.axes.index(problem.domain.time)
    plain = [name for name in problem.domain.axes if name not in problem.periodic]
    return axis, plain.index(problem.domain.time), *problem.domain.bounds[axis]


def within(model, batches, march):
    """Return points of the whole interval moved to the window, in numpy."""
    if march is None or not march.active:
        return batches
    axis, _, low, high = time_of(model.problem)
    moved, length = [], march.stop - march.start
    for kind, batch in zip(model.classes, batches, strict=True):
        x = np.array(batch.x)
        share = march.start + length * (x[..., axis] - low) / (high - low)
        x[..., axis] = low + (high - low) * share
        batch = batch._replace(x=x)
        if kind.name == "interior":
            batch = batch._replace(scale=length * np.asarray(batch.scale))
        if isinstance(kind.function, SinceBefore) and march.done.nets:
            before = class_residuals(model, kind, march.done.nets[-1], batch)
            batch = batch._replace(data=before)
        moved.append(batch)
    return tuple(moved)


def observed(march, falls, first, goal, may_cut):
    """Return the march after an iteration, with where the next window is to end.

    A window ends at a loss of ``goal``, or where it is solved and its loss flat.
    ``may_cut`` is asked once, when the loss of all time has ceased to fall.
    """
    if march.ended:
        return march
    lowest, flat = falls[-1], is_flat(falls, FEW_ITERATIONS)
    length = march.stop - march.start
    half = march._replace(next_stop=march.start + length / 2)
    if not march.active:
        unsolved = lowest > WELL_SOLVED_LOSS * first
        newly = flat and not is_flat(falls[:-1], FEW_ITERATIONS)
        cut = newly and unsolved and switches.on("pinn.windows") and may_cut()
        is_solution = lowest <= SOLVED_LOSS * first  # which only all windows are worth
        uncut = math.inf if is_solution else lowest
        return half._replace(uncut=uncut) if cut else march
    # Where the solution changes fast, residuals are large, too.
    share = lowest / max(march.unit, first)
    well = share <= WELL_SOLVED_LOSS
    if share <= min(goal, WELL_SOLVED_LOSS) or (flat and (well or length <= _SHORTEST)):
        if march.stop == 1:
            return march._replace(ended=True)
        if well and len(falls) <= FEW_ITERATIONS:
            length = 2 * length
        # The last window is not a scrap.
        last = (1 - march.stop) / length <= 5 / 4
        return march._replace(next_stop=1.0 if last else march.stop + length)
    return half if flat else march


def is_flat(falls, patience, share=FALL):
    """Whether the lowest loss has not fallen to a share in so many iterations."""
    return len(falls) > patience and falls[-1] > share * falls[-1 - patience]


def moved_on(march, loss, model, net, fresh_points, rng):
    """Return the march with its next window, and the network to begin it with.

    The ``loss`` is the lowest one of the present window.
    """
    goes_on = march.next_stop > march.stop
    before = Parameters(tuple(map(np.array, net.layers)), np.array(net.extra))
    if goes_on:
        new = TimeMarching(march.stop, march.next_stop, march.answer(loss, before))
        net = with_time(model, before, march, back=True)
    else:
        new = TimeMarching(march.start, march.next_stop, march.done)
        net = drawn_anew(rng, before, model.problem)
    net, fresh = with_time(model, net, new), within(model, fresh_points, new)
    # It begins where the window before ends, as far as constants go.
    at_start = [isinstance(kind.function, SinceBefore) for kind in model.classes]
    start = fresh[at_start.index(True)].x[:, 0]
    reached = (before, *new.done.nets)[-1]
    values = [np.asarray(network_values(model, each, start)) for each in (reached, net)]
    *hidden, last = net.layers
    last = np.array(last)
    last[-1] += np.mean(values[0] - values[1], axis=0)
    net, unit = net._replace(layers=(*hidden, last)), 0.0
    if new.done.nets:
        _, row, *_ = time_of(model.problem)
        first, *others = map(np.array, reached.layers)
        first[-1] += (2 * new.start - 1) * first[row]
        first[row] = 0
        constant = reached._replace(layers=(first, *others))
        of_equation = model, model.classes[0], constant, fresh[0]
        rows = np.asarray(class_residuals(*of_equation), np.float64)
        loss = 0.5 * np.sum((np.asarray(fresh[0].scale)[:, None] * rows) ** 2)
        unit = float(loss) if math.isfinite(loss) else 0.0  # of the equation alone
    return new._replace(uncut=march.uncut, unit=unit), net


def with_time(model, net, march, back=False):
    """Return a network of s in [-1, 1] as one of the time that is s in the window."""
    _, row, *_ = time_of(model.problem)
    length = march.stop - march.start
    slope, shift = 1 / length, (1 - 2 * march.start) / length - 1
    if back:
        slope, shift = length, -shift * length
    first = net.layers[0].copy()
    first[-1] += shift * first[row]
    first[row] *= slope
    return net._replace(layers=(first, *net.layers[1:]))


def marches(solution):
    """Where each of the windows of a solution is, one after the other."""
    pairs = enumerate(zip((0.0, *solution.stops), solution.stops, strict=False))
    return [
        TimeMarching(*pair, Pieces(*(p[:k] for p in solution))) for k, pair in pairs
    ]


def last_network(solution):
    """The network of a solution, or of its last window."""
    return solution.nets[-1] if isinstance(solution, Pieces) else solution


def at_points(function, model, solution, x):
    """Values (n, ...) of ``function(model, net, x)``, each of the window it is in."""
    if not isinstance(solution, Pieces):
        return function(model, solution, x)
    found = [np.asarray(function(model, net, x)) for net in solution.nets]
    ends = solution.ends(model.problem.domain)[:-1]
    axis, *_ = time_of(model.problem)
    number = np.searchsorted(ends, np.asarray(x)[:, axis])
    return np.stack(found)[number, np.arange(len(number))]


def loss_so_far(march, fresh, first):
    """Loss on fresh points over all time, without a window as before the cut.

    A window that is not solved leaves its time as it was, but for a share that is
    smaller than the shortest window: so far, it only tells its own networks apart.
    """
    if march is None or not march.active:
        return fresh
    uncut = min(first, march.uncut)
    if fresh > WELL_SOLVED_LOSS * max(march.unit, first):
        fresh = uncut + _SHORTEST / 2 * (min(fresh, uncut) - uncut)
    stops, losses, _ = march.answer(fresh, None)
    so_far = np.diff((0.0, *stops)) @ losses
    return float(so_far + (1 - march.stop) * uncut)
