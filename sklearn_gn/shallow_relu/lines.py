"""Networks of one feature: continuous broken lines, by the engine of segmented.

With one feature the shallow ReLU network is a broken line with its breakpoints at the
neurons. Left of the data a neuron gives the first line its slope; without one there the
function is level up to its first breakpoint. Descents and the search are in
:mod:`sklearn_gn.segmented.search`, and an information criterion chooses a size by
:mod:`sklearn_gn.segmented.selection`; several targets share their breakpoints.

Differences of running sums have rounding errors of the size of the total. What a fit
returns is computed from two rows for every interval between breakpoints, with the same
moments as all of it (:func:`fit_at`). On these the joint Gauss-Newton step is a small
least-squares problem, which refines fits of data without noise.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from sklearn_gn.linalg.factors import least_norm_solution
from sklearn_gn.optim.solver import Algorithm, Report, Rows
from sklearn_gn.segmented import least_squares, programme, selection
from sklearn_gn.segmented.least_squares import two_rows
from sklearn_gn.segmented.preparation import Options, Prepared, problem_of
from sklearn_gn.segmented.problem import (
    DEPENDENT,
    EXACT,
    HALF,
    LEFT,
    RIGHT,
    Form,
    Scaling,
    criterion_value,
    sum_of_squares,
)
from sklearn_gn.segmented.search import (
    descend,
    descend_roughly,
    insert,
    refine,
    through_rows,
)
from sklearn_gn.shallow_relu.network import ShallowReLU

MOST_NEURONS = 64  # that the choice of a size tries
_SAME = 1e-12  # distance of a row from a breakpoint that is meant to be at it
_ROUNDING = 1e-26  # relative loss at which residuals are rounding errors


# --- rows and intervals --------------------------------------------------------------


class SortedRows(NamedTuple):
    """Distinct positions in ascending order, and the mean targets there."""

    x: np.ndarray  # (N,) in [-1, 1]
    y: np.ndarray  # (N, q)
    weight: np.ndarray  # (N,) of sum one
    tie_variance: np.ndarray  # (q,) of targets at equal x, which no function explains


def sort_rows(rows):
    """Return the rows of positive weight in order, merged where x is equal."""
    x, y, weight = (np.asarray(a, np.float64) for a in rows)
    x = x[:, 0]
    if weight.min() == 0:
        kept = weight > 0
        x, y, weight = x[kept], y[kept], weight[kept]
    if np.any(x[1:] < x[:-1]):
        order = np.argsort(x)
        x, y, weight = x[order], y[order], weight[order]
    weight = weight / weight.sum()
    first = np.flatnonzero(np.concatenate([[True], x[1:] > x[:-1]]))
    if len(first) == len(x):
        return SortedRows(x, y, weight, np.zeros(y.shape[1]))
    total = np.add.reduceat(weight, first)
    mean = np.add.reduceat(weight[:, None] * y, first, axis=0) / total[:, None]
    inside = y - np.repeat(mean, np.diff(first, append=len(x)), axis=0)
    return SortedRows(x[first], mean, total, weight @ inside**2)


def condensed_rows(knots, rows):
    """Return two rows of every interval between breakpoints that stand for all of it.

    They lie inside it, with the same sums of (1, x, x^2): whatever is linear on the
    intervals has the same Gram matrix. Their targets are the values of the fitted
    lines. Also returned are the sums of squares (q,) that no such function explains. A
    row at a breakpoint belongs to the interval right of it.
    """
    bounds = np.unique([0, *np.searchsorted(rows.x, knots), len(rows.x)])
    count, w = np.diff(bounds), rows.weight[:, None]

    def total(column):  # each interval is summed by itself: nothing cancels
        return np.add.reduceat(column, bounds[:-1], axis=0)

    weight = total(rows.weight)
    mean, y = total(rows.weight * rows.x) / weight, total(w * rows.y) / weight[:, None]
    dx, dy = rows.x - np.repeat(mean, count), rows.y - np.repeat(y, count, axis=0)
    xx = np.where(count > 1, total(rows.weight * dx * dx), 0.0)
    slope = total(w * dx[:, None] * dy) / np.where(xx > 0, xx, np.inf)[:, None]
    off = dy - np.repeat(slope, count, axis=0) * dx[:, None]
    rest = np.sum(w * off**2, axis=0) + rows.tie_variance
    first, last = rows.x[bounds[:-1]], rows.x[bounds[1:] - 1]
    dx, weight = two_rows(weight, xx / weight, mean - first, last - mean)
    y = (y + slope * dx[..., None]).reshape(-1, y.shape[1])
    return Rows((mean + dx).reshape(-1, 1), y, weight.ravel()), rest


# --- the function with given breakpoints ---------------------------------------------


class Line(NamedTuple):
    """The best function with given breakpoints."""

    knots: np.ndarray  # (n,) ascending; those at RIGHT are not in use
    values: np.ndarray  # (n + 1, q) at the breakpoints and at RIGHT
    slopes: np.ndarray  # (n + 1, q) of the intervals; the first is zero
    residual: np.ndarray  # (m, q) of the condensed rows, times roots of the weights
    rows: Rows  # the condensed ones
    loss: float


def fit_at(knots, rows):
    """Return the best function with breakpoints, no two of them in the same place."""
    knots = spread_knots(knots, rows.x)
    few, rest = condensed_rows(knots, rows)
    root = np.sqrt(few.weight)[:, None]
    columns, target = root * hats(knots, few.x[:, 0]), root * few.y
    values = least_norm_solution(columns, target)
    residual = columns @ values - target
    loss = 0.5 * float(rest.sum() + np.sum(residual**2))
    length = np.diff(knots, append=RIGHT)[:, None]
    slopes = np.zeros_like(values)
    np.divide(np.diff(values, axis=0), length, out=slopes[1:], where=length > 0)
    return Line(knots, values, slopes, residual, few, loss)


def hats(knots, x):
    """Return the basis of values at the breakpoints and at RIGHT, (len(x), n + 1)."""
    ends = np.append(knots, RIGHT)
    return np.column_stack([np.interp(x, ends, one) for one in np.eye(len(ends))])


def gauss_newton_step(line):
    """Return the joint Gauss-Newton step of the breakpoints.

    The tangent space holds, besides the function space, a step at each breakpoint,
    times the change of slope there. All targets share the breakpoints.
    """
    (x, _, weight), q = line.rows, line.values.shape[1]
    free = np.flatnonzero((line.knots > LEFT) & (line.knots < RIGHT))
    root = np.sqrt(weight)[:, None]
    columns, change = root * hats(line.knots, x[:, 0]), np.diff(line.slopes, axis=0)
    behind = root * (x >= line.knots[free])
    tangent = [
        np.hstack([np.kron(one, columns), -behind * change[free, k]])
        for k, one in enumerate(np.eye(q))
    ]
    solution = least_norm_solution(np.vstack(tangent), -line.residual.T.reshape(-1, 1))
    step = np.zeros(len(line.knots))
    step[free] = solution[len(solution) - len(free) :, 0]
    return step


def descend_rows(line, rows, tol, below=np.inf):
    """Take the best of halved Gauss-Newton steps while the loss falls below a bound."""
    before = np.inf
    while 0 < line.loss < below and line.loss < before * (1 - tol):
        step, before = gauss_newton_step(line), line.loss
        trials = (fit_at(line.knots + step / 2**k, rows) for k in range(4))
        line = min(line, *trials, key=lambda each: each.loss)
    return line


def spread_knots(knots, x):
    """Move breakpoints that share a gap between rows to its ends, and sort them.

    The function stays the same at all rows, and is not steeper than it has to be:
    breakpoints that nearly coincide have coefficients that nearly cancel. Left of all
    rows one breakpoint is enough, in a gap with its ends two.
    """
    knots = np.clip(knots, LEFT, RIGHT)
    at = np.searchsorted(x, knots)
    for beside in (x[np.maximum(at - 1, 0)], x[np.minimum(at, len(x) - 1)]):
        # Beside a row by a rounding error: at it.
        knots = np.where(abs(knots - beside) < _SAME, beside, knots)
    knots, before = np.sort(knots), None
    while before is None or not np.array_equal(knots, before):
        knots[knots >= x[-1]] = RIGHT
        before = knots.copy()
        used = np.flatnonzero(knots < RIGHT)
        gap = np.searchsorted(x, knots[used])
        for at in np.unique(gap):
            slots = used[gap == at]
            if at == 0:
                knots[slots[:-1]], knots[slots[-1]] = RIGHT, LEFT
            elif x[at - 1] in knots or (at == 1 and knots[0] < x[0]):
                knots[slots[:-1]], knots[slots[-1]] = RIGHT, x[at]
            elif len(slots) > 1:
                knots[slots[1:-1]] = RIGHT
                knots[slots[[0, -1]]] = x[at - 1], x[at]
        knots = np.sort(knots)
    return knots


def to_network(line):
    """Return the network of a function; breakpoints not in use lie at the end."""
    coef = np.diff(line.slopes, axis=0)
    coef[line.knots >= RIGHT] = 0
    at_left = line.knots <= LEFT
    # Where the first line begins is free: far enough out, it goes on as a line.
    outside = 3 * LEFT
    intercept = line.values[0] - coef[at_left].sum(axis=0) * (LEFT - outside)
    position = np.where(at_left, outside, line.knots)
    alive = np.ones(len(coef), bool)
    hyperplanes = np.column_stack([-position, np.ones(len(position))])
    return ShallowReLU(hyperplanes, coef, intercept, alive)


# --- the iteration -------------------------------------------------------------------


class Data(NamedTuple):
    """The rows, and the problems of the engine of one target."""

    rows: SortedRows
    problems: dict  # of the engine, by whether the first line has a slope
    size: float  # half the weighted mean square of the targets
    floor: float  # loss at which residuals are rounding errors


class Phase(IntEnum):
    """What the next step of a search does."""

    STARTS = 0  # descend from the starts, to the tolerance of the rounds
    ROUNDS = 1  # look for better networks
    END = 2  # descend to the tolerance of the fit


class State(NamedTuple):
    """What a run remembers."""

    net: ShallowReLU  # the best so far
    loss: float
    knots: np.ndarray  # (n_starts, n_neurons) ascending, the best start first
    phase: Phase


def prepare(rows):
    """Sort the rows and sum them up, once."""
    rows = sort_rows(rows)
    problem = problem_of(_prepared(rows, 1.0), _OPTIONS).with_shared_breakpoints()
    forms = {slope: Form(slope, ramp=True, step=False) for slope in (True, False)}
    problems = {slope: problem._replace(form=form) for slope, form in forms.items()}
    ties = 0.5 * float(rows.tie_variance.sum())
    size = 0.5 * float(np.sum(rows.weight @ rows.y**2)) + ties
    return Data(rows, problems, size, ties * (1 + 1e-12) + _ROUNDING * size)


# Of the engine: all breakpoints inside the data are allowed.
_OPTIONS = Options(
    Form(slope=True, ramp=True, step=False), np.empty(0), (-1.0, 1.0), 0.0, 0.0
)


def _prepared(rows, n_rows):
    """Return the rows by target for the engine, in its units already."""
    weight, none = n_rows * rows.weight, np.empty((len(rows.x), 0))
    return [
        Prepared(
            least_squares.Rows(rows.x, y, none, weight, n_rows * float(rest)),
            Scaling.identity(),
            weight,
        )
        for y, rest in zip(rows.y.T, rows.tie_variance, strict=True)
    ]


def init(data, hyperplanes, options):
    """Begin with the breakpoints of all starts, (n_starts, n, 2).

    Starts from rows without noise on few lines replace the first ones.
    """
    knots = -hyperplanes[..., 0] / hyperplanes[..., 1]
    knots = np.sort(np.clip(knots, LEFT, RIGHT), axis=1)
    knots[1:, 0] = LEFT  # random breakpoints alone would leave out the slope there
    exact = exact_knots(data, knots.shape[1])
    if exact is not None:
        knots[0] = RIGHT
        knots[0, : len(exact)] = exact
    line = fit_at(knots[0], data.rows)
    phase = Phase.ROUNDS if options.relocations > 0 else Phase.END
    phase = Phase.STARTS if len(knots) > 1 else phase
    return State(to_network(line), line.loss, knots, phase)


def exact_knots(data, most):
    """Return the breakpoints of a function through all rows that is known, or None."""
    (x, y, w, _), column = data.rows, data.rows.weight[:, None]
    if len(x) <= most + 1:
        return np.append(LEFT, x[1:-1])
    share = ((x[1:-1] - x[:-2]) / (x[2:] - x[:-2]))[:, None]
    off = y[1:-1] - (1 - share) * y[:-2] - share * y[2:]
    if np.median(np.abs(off)) > _SAME * np.abs(y).max():
        return None  # most rows are not on a line with their neighbours
    terms = np.column_stack([w, w * x, w * x**2, column * y, x[:, None] * column * y])
    sums = np.pad(np.cumsum(terms.T, axis=1), ((0, 0), (1, 0)))
    for slope in (True, False)[most <= 1 :]:
        segments, total = programme.Segments(x, sums, slope), 2 * data.size
        places = segments.binary_splits(programme.SPLITS * (most - slope))
        places = np.unique([0, len(x), *places])
        explained, paths = programme.partitions_at(segments, places, most - slope)
        exact = np.flatnonzero(total - explained <= DEPENDENT * total)
        if not len(exact):
            continue
        path = paths[exact[0]]
        first, last = np.array(path[:-1]), np.array(path[1:]) - 1  # rows of the lines
        rise = (y[last] - y[first]) / (x[last] - x[first])[:, None] if slope else 0
        change = np.diff(rise + 0 * y[first], axis=0)
        jump = np.diff(y[first] - rise * x[first, None], axis=0)
        # One breakpoint where neighbouring lines meet, and two at a jump.
        meet = -jump / np.where(change != 0, change, np.inf)
        low, high = x[last[:-1]], x[first[1:]]
        same = np.ptp(meet, axis=1) <= 1e-6 * (high - low)
        same &= np.all(change != 0, axis=1) & (low <= meet[:, 0]) & (meet[:, 0] <= high)
        ends = [LEFT] * slope, meet[same, 0], low[~same], high[~same]
        knots = np.unique(np.concatenate(ends))
        if len(knots) <= most:
            return knots
    return None


def step(data, state, options):
    """Let the starts descend, or search from the best of them, or go on to the end."""
    phase, knots, after = state.phase, state.knots, Phase.END
    if state.loss <= data.floor:
        return state, Report(state.loss, 0.0, stop="rounding")
    if phase == Phase.STARTS:
        knots = _descended(data, knots, descend_roughly)[: programme.STARTS]
        knots = _descended(data, knots, descend)
        after = Phase.ROUNDS if options.relocations > 0 else Phase.END
    elif phase == Phase.ROUNDS:
        knots = np.vstack([knots[:1], *_searched(data, knots[0])])
        knots = _descended(data, knots, descend)
    else:
        # Converged also where the sum of squares has corners at rows.
        move = lambda p, *start: through_rows(p, *descend(p, *start))  # noqa: E731
        knots = _descended(data, knots[:1], move)
    line = fit_at(knots[0], data.rows)
    if phase == Phase.END:  # running sums are not exact enough for little noise
        line = descend_rows(line, data.rows, options.tol, HALF * data.size)
    before, state = state.loss, state._replace(knots=knots, phase=after)
    if line.loss < before:
        state = state._replace(net=to_network(line), loss=line.loss)
    stop = "tol" if phase == Phase.END else None
    if state.loss <= data.floor:
        stop = "rounding"
    behind = np.sqrt(line.rows.weight)[:, None] * (line.rows.x >= line.knots)
    gradient = np.sum(np.diff(line.slopes, axis=0) * (behind.T @ line.residual), axis=1)
    grad_norm = float(np.linalg.norm(gradient))
    accepted = stop is not None or state.loss < before
    return state, Report(state.loss, grad_norm, accepted=accepted, stop=stop)


def _descended(data, knots, move):
    """Return sets of breakpoints after a descent, the best first."""
    losses = np.empty(len(knots))
    for slope, problem in data.problems.items():
        mine = np.flatnonzero((knots[:, 0] <= LEFT) == slope)
        if len(mine):
            several = problem.of(np.zeros(len(mine), np.intp))
            inner = np.minimum(knots[mine, int(slope) :], 1.0)
            found, losses[mine] = move(several, inner, sum_of_squares(several, inner))
            knots[mine, int(slope) :] = found
    # A breakpoint left of the data is one parameter, one inside is two: the second has
    # to be worth what it costs by the Bayesian information criterion.
    inside, n = np.sum((knots > LEFT) & (knots < RIGHT), axis=1), len(data.rows.x)
    order = np.argsort(losses * np.exp(inside * np.log(n) / n), kind="stable")
    return knots[order]


def _searched(data, knots):
    """Yield sets of breakpoints (m, n) with a slope at the start, and without."""
    none = np.full((1, 1), LEFT)
    sloped, level = data.problems[True], data.problems[False]
    inner = np.minimum(knots[None, 1:], 1.0)
    inner, _ = refine(sloped, inner, sum_of_squares(sloped, inner))
    yield np.hstack([none, inner])
    yield np.sort(np.hstack([inner, insert(level, inner)[0][:, None]]))


# --- sizes ---------------------------------------------------------------------------


class SizePath:
    """Networks of several sizes; a criterion chooses one."""

    def __init__(self, criterion, n_observations, scale):
        self.criterion, self.n_observations = criterion, n_observations
        self.floor = max(_ROUNDING * scale, np.finfo(float).tiny)
        # By size: criterion, loss, number of parameters, penalty, and hyperplanes.
        self.found = {}

    def visit(self, hyperplanes, loss, n_parameters, penalty=0.0):
        """Add a network; return its criterion and its size."""
        loss = max(np.inf if np.isnan(loss) else loss, self.floor)
        worth = criterion_value(self.criterion, loss, n_parameters, self.n_observations)
        n = len(hyperplanes)
        if n not in self.found or worth < self.found[n][0]:
            self.found[n] = worth, loss, n_parameters, penalty, hyperplanes
        return worth, n

    def best_size(self):
        """Return the size with the lowest criterion, the smallest of equal ones."""
        return min(
            sorted(self.found), key=lambda n: self.found[n][0] + self.found[n][3]
        )

    def result(self):
        """Return the hyperplanes of the best size, and the path: a dict of arrays."""
        ordered = sorted(self.found)
        columns = list(zip(*(self.found[n][:4] for n in ordered), strict=True))
        names = self.criterion, "loss", "n_parameters", "search_penalty"
        path = dict(zip(names, map(np.array, columns), strict=True))
        return self.found[self.best_size()][4], {"n_neurons": np.array(ordered), **path}


def select_size(data, first, path):
    """Visit networks of all sizes, and one of the ``first`` hyperplanes, or of None."""
    rows, q = data.rows, data.rows.y.shape[1]
    ((best, found, _),), *_ = selection.choose(
        _prepared(rows, path.n_observations / q),
        _OPTIONS._replace(criterion=path.criterion),
        (None, min(MOST_NEURONS, max(len(rows.x) - 1, 1)) - 1),
        shared=True,
    )
    best, losses = np.append(LEFT, best), found["rss"] / 2
    penalty, sizes = found["search_penalty"], 1 + found["n_breakpoints"]
    columns = sizes, np.maximum(losses, EXACT * data.size), found["n_parameters"]
    for n, loss, n_parameters, extra in zip(*columns, penalty, strict=True):
        hyperplanes = np.ones((n, 2))  # of other sizes only their number counts
        hyperplanes[:, 0] = -best if n == len(best) else 0
        path.visit(hyperplanes, loss, n_parameters, extra)
    if first is not None:
        knots = np.sort(np.clip(-first[:, 0] / first[:, 1], LEFT, RIGHT))
        line = fit_at(_descended(data, knots[None], descend)[0], rows)
        knots = line.knots[line.knots < RIGHT]
        hyperplanes = np.column_stack([-knots, np.ones(len(knots))])
        # A breakpoint left of the data is no parameter, its slope is.
        n_parameters = int(np.sum(knots > LEFT)) + q * (1 + len(knots))
        extra = penalty[min(len(knots), len(penalty)) - 1]
        path.visit(hyperplanes, line.loss, n_parameters, extra)


SEGMENTED = Algorithm("vpgn", init, step, compiled=False)
