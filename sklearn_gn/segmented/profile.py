r"""Confidence intervals of breakpoints by the profile of the sum of squares.

A position t belongs to the interval of a kink if fixing it there raises the least sum
of squares by no more than :math:`q^2 s^2`, with q a quantile of Student's t
distribution (Bates and Watts, "Nonlinear regression analysis and its applications",
1988, section 6.1). Close to the estimate that is the interval of the delta method,
which is too narrow where the kink is not sharp: the sum of squares rises less and less
with the distance. The other kinks follow to first order.

For other covariances, :math:`s^2` is such that both still agree close to the estimate.

Where the function may jump, each row that passes from one line to the other changes the
sum of squares by the squared distance of the lines and by its noise: a random walk with
drift, whether level or slope changes. The least value of such a walk on one side of the
true position is distributed exponentially, so that the true one is more than
:math:`2 x s^2` above the least sum of squares with a probability of
:math:`1 - (1 - e^{-x})^2` (Eo and Morley, "Likelihood-ratio-based confidence sets for
the timing of structural breaks", 2015); here :math:`s^2` counts as an estimate.
"""

import numpy as np
from scipy.optimize import brentq

from sklearn_gn.segmented import least_squares
from sklearn_gn.segmented.insertion import gain_of_ramps, gains
from sklearn_gn.segmented.problem import (
    Pieces,
    all_pieces,
    concatenate,
    locate,
    solve,
    take,
)

_RESOLVED = 1e-11  # rise, over the total, that is more than rounding errors
_NEAR = 4.0  # half-widths of the delta method within which positions are close
_EACH = 32  # positions that are tried near, far, and in between
_LARGEST = 1e9  # bound of a quantile
_ROWS = 64  # the same for jumps: every row near, some far, and in between


def kink_intervals(problem, fit, width, rows):
    """Return the intervals of the kinks in the units of the search, (B, n_kinks, 2).

    ``width`` (B, n_kinks) are the half-widths by the delta method; the rows have the
    targets that were fitted.
    """
    t = fit.t[:, fit.kinks]
    room = np.stack([t, t], axis=-1)
    if not t.size:
        return room
    low, high = (bound[:, None] for bound in problem.limits[:2])
    room[..., 0] = np.minimum(np.maximum(_neighbour(fit, -1), low), t)
    room[..., 1] = np.maximum(np.minimum(_neighbour(fit, 1), high), t)
    columns = least_squares.jacobian(
        fit.form, rows.x, rows.linear, fit.t, fit.free, fit.coef
    )
    half = least_squares.solve_columns(fit.form, columns, rows, fit.t.shape[1]).half
    curvature = np.sum(half[:, fit.coef.shape[1] :] ** 2, axis=-1)  # inverse, of kinks
    square = width**2
    known = (square > _RESOLVED * fit.total[:, None] * curvature) & (square < np.inf)
    interval = t[..., None] + np.stack([-width, width], axis=-1)
    interval = np.clip(interval, room[..., :1], room[..., 1:])
    problem = problem._replace(candidates=None)
    for k in range(t.shape[1]):
        b = np.flatnonzero(known[:, k])
        if not len(b):
            continue
        rise = _rise_of_kink(problem.of(b), fit.of(b), k)
        threshold = square[b, k] / curvature[b, k]
        for side in (0, 1):
            reach = room[b, k, side] - t[b, k]
            share = _last_below(rise, t[b, k], reach, width[b, k], threshold)
            interval[b, k, side] = np.where(
                share < 1, t[b, k] + share * reach, room[b, k, side]
            )
    return _through_last_gaps(problem, interval, room, known)


def _through_last_gaps(problem, interval, room, known):
    """Return the intervals that end between the last two rows as reaching the end.

    There a kink is a parameter of the last row alone, wherever it lies.
    """
    table, form = problem.table, problem.form
    second = np.stack([np.ones_like(table.n_rows), table.n_rows - 2], axis=1)
    second = take(table.x, second)
    below = known & (interval[..., 0] < second[:, :1]) & form.slope
    above = known & (interval[..., 1] > second[:, 1:]) & (not form.flat_end)
    return np.where(np.stack([below, above], axis=-1), room, interval)


def _neighbour(fit, side):
    """Return the breakpoint before (-1) or after (1) each kink, or the end."""
    ends = np.pad(fit.t, ((0, 0), (1, 1)), constant_values=((0, 0), (-1.0, 1.0)))
    return ends[:, fit.kinks + 1 + side]


def jump_intervals(problem, fit, level):
    """Return the intervals of the jumps in the units of the search, (B, n_jumps, 2).

    They reach from the row before the first break that belongs to them to the row after
    the last one, and no farther than the bounds.
    """
    table, jumps = problem.table, np.flatnonzero(fit.free)
    row = locate(table, fit.t)  # the first one after each break
    freedom, same = np.unique(fit.degrees_of_freedom, return_inverse=True)
    quantile = np.array([walk_quantile(level, each) for each in freedom])[same]
    threshold = quantile * fit.variance
    threshold = np.maximum(threshold, _RESOLVED * fit.total)
    ends = np.empty((len(row), len(jumps), 2), np.intp)
    for place, k in enumerate(jumps):
        rise = _rise_of_row(problem, fit, place)
        for side, end in enumerate(_free_rows(problem, row, k)):
            ends[:, place, side] = _last_row_below(rise, row[:, k], end, threshold)
    ends[..., 0] -= 1
    ends = np.minimum(ends, table.n_rows[:, None, None] - 1)
    low, high = (bound[:, None, None] for bound in problem.limits[:2])
    return np.clip(take(table.x, ends), low, high)


def walk_quantile(level, degrees_of_freedom):
    """Return the quantile of the rise at the true break, over the variance.

    The estimated variance is that of ``degrees_of_freedom`` normal numbers, over which
    the probability is averaged. It is NaN where these are.
    """
    if np.isnan(degrees_of_freedom):
        return np.nan
    half = min(degrees_of_freedom / 2, _LARGEST)  # infinite of a known variance

    def excess(x):
        one, two = (np.exp(-half * np.log1p(k * x / half)) for k in (1, 2))
        return 1 - 2 * one + two - level

    return 2 * brentq(excess, 0, _LARGEST)


def _free_rows(problem, row, k):
    """Return the least and the largest row at which a segment may begin, not others."""
    table, limits = problem.table, problem.limits
    x, count, places = table.x, table.count, np.pad(row, ((0, 0), (1, 1)))
    places[:, -1] = table.n_rows
    before, after = places[:, [k]], places[:, [k + 2]]
    places = np.arange(before.min() + 1, after.max())
    breaks = (x[:, places - 1] + x[:, places]) / 2
    free = (before < places) & (places < after)
    free &= (limits.low[:, None] <= breaks) & (breaks <= limits.high[:, None])
    least = limits.min_rows[:, None]
    free &= count[:, places] - take(count, before) >= least
    free &= take(count, after) - count[:, places] >= least
    distance = limits.min_distance[:, None] * (k > 0)
    free &= x[:, places - 1] - take(x, before) >= distance
    rows = np.where(free, places, row[:, [k]])
    return rows.min(axis=1), rows.max(axis=1)


def _rise_of_row(problem, fit, place):
    """Return the rise of the sum of squares as a function of the row after a break."""
    table, form = problem.table, problem.form
    t = fit.t[:, fit.free]
    pieces = all_pieces(problem, np.delete(t, place, axis=1))
    found = solve(table, pieces, form.flat_end)

    def gain(rows):
        return gains(problem.at(rows), pieces, found)[0]

    return _rise(fit, gain, locate(table, t[:, [place]]))


def _last_row_below(rise, start, end, threshold):
    """Return each series' last row from a break to an end with a small enough rise."""
    distance, towards = np.abs(end - start)[:, None], np.sign(end - start)[:, None]
    steps = np.broadcast_to(np.arange(_ROWS), (len(start), _ROWS))
    if distance.max() >= _ROWS:
        far = np.geomspace(_ROWS, np.maximum(distance[:, 0], _ROWS), _ROWS, axis=1)
        steps = np.concatenate([steps, far], axis=1)
    steps = np.minimum(steps, distance).astype(np.intp)
    while True:
        below = rise(start[:, None] + towards * steps) <= threshold[:, None]
        low, high = _at_last(below, steps)
        if np.all(high - low <= 1):
            return start + towards[:, 0] * low
        steps = np.linspace(low, high, _ROWS, axis=1).astype(np.intp)


def _rise_of_kink(problem, fit, place):
    """Return the rise of the sum of squares as a function of the position of a kink.

    The other kinks move to first order: a step at each is that of the slope there.
    """
    table, form = problem.table, problem.form
    t = fit.t[:, fit.free]
    others = np.delete(t, place, axis=1)
    one = np.ones_like(others)
    steps = Pieces(locate(table, others), one, 0 * one)
    pieces = concatenate(all_pieces(problem, others), steps)
    found = solve(table, pieces, form.flat_end)

    def gain(t):
        rows = np.minimum(locate(table, t), table.n_rows[:, None] - 1)
        return gain_of_ramps(problem.at(rows, t), pieces, found)

    return _rise(fit, gain, t[:, [place]])


def _rise(fit, gain, at):
    """Return what a break gains at its place more than at others, the rest held."""
    largest, n_rows = np.maximum(gain(at), 0), np.reshape(fit.n_rows, (-1, 1))

    def rise(places):
        return n_rows * (largest - np.maximum(gain(places), 0))

    return rise


def _at_last(below, *arrays):
    """Return the values of arrays where a row of them is last below, and those after.

    The first value counts as below; where the last one is too, both are that one.
    """
    below[:, 0] = True
    end = below.shape[1] - 1
    last = end - np.argmax(below[:, ::-1], axis=1)[:, None]
    return [
        np.take_along_axis(array, at, axis=1)[:, 0]
        for array in arrays
        for at in (last, np.minimum(last + 1, end))
    ]


def _last_below(rise, at, reach, half, threshold):
    """Return how far each series' rise is small enough, as a share of its reach."""
    far = np.where(reach != 0, np.abs(reach), 1)
    near = np.minimum(_NEAR * half, far)
    share = np.linspace(0, near, _EACH, axis=1)
    beyond = np.geomspace(near, far, _EACH, axis=1)[:, 1:]
    share = np.concatenate([share, beyond], axis=1) / far[:, None]
    for _ in range(2):
        excess = rise(at[:, None] + share * reach[:, None]) - threshold[:, None]
        low, high, below, above = _at_last(excess <= 0, share, excess)
        share = np.linspace(low, high, _EACH, axis=1)
    crossed = above > below
    size = np.where(crossed, above - below, 1)
    return np.where(crossed, low - (high - low) * below / size, high)
