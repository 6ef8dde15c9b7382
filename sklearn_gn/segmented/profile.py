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
from sklearn_gn.segmented.problem import all_pieces, make_candidates
from sklearn_gn.segmented.products import Pieces, concatenate, locate, solve

_RESOLVED = 1e-11  # rise, over the total, that is more than rounding errors
_NEAR = 4.0  # half-widths of the delta method within which positions are close
_EACH = 32  # positions that are tried near, far, and in between
_LARGEST = 1e9  # bound of a quantile
_ROWS = 64  # the same for jumps: every row near, some far, and in between


def kink_intervals(problem, fit, width, rows):
    """Return the intervals of the kinks in the units of the search, (n_kinks, 2).

    Parameters
    ----------
    problem : Problem
        Of one series.
    fit : Fit
    width : ndarray of shape (n_kinks,)
        Half-widths by the delta method.
    rows : Rows
        Of the series, with the targets that were fitted.
    """
    t = fit.t[fit.kinks]
    interval = np.stack([t - width, t + width], axis=1)
    if not len(t):
        return interval
    curvature = _inverse_curvature(fit, rows)
    ends = np.concatenate([[-1.0], fit.t, [1.0]])
    for k, (at, half) in enumerate(zip(t, width, strict=True)):
        least = _RESOLVED * fit.total * curvature[k]
        if not max(least, 0) < half**2 < np.inf:
            continue
        rise = _rise_of_kink(problem, fit, k)
        threshold = half**2 / curvature[k]
        for side, end in ((0, ends[ends < at].max()), (1, ends[ends > at].min())):
            interval[k, side] = _last_below(rise, at, end, half, threshold)
    return interval


def jump_intervals(problem, fit, level):
    """Return the intervals of the jumps in the units of the search, (n_jumps, 2).

    They reach from the row before the first break that belongs to them to the row after
    the last one.

    Parameters
    ----------
    problem : Problem
        Of one series.
    fit : Fit
    level : float
    """
    x, jumps = problem.table.x[0], np.flatnonzero(fit.free)
    row = np.searchsorted(x, fit.t)  # the first one after each break
    variance = fit.rss / fit.degrees_of_freedom
    threshold = walk_quantile(level, fit.degrees_of_freedom) * variance
    threshold = max(threshold, _RESOLVED * fit.total)
    interval = np.empty((len(jumps), 2))
    for place, k in enumerate(jumps):
        rise = _rise_of_row(problem, fit, place)
        first, last = _free_rows(problem, row, k)
        low = _last_row_below(rise, row[k], first, threshold)
        high = _last_row_below(rise, row[k], last, threshold)
        interval[place] = x[max(low - 1, 0)], x[min(high, len(x) - 1)]
    return interval


def walk_quantile(level, degrees_of_freedom):
    """Return the quantile of the rise at the true break, over the variance.

    The estimated variance is that of ``degrees_of_freedom`` normal numbers, over which
    the probability is averaged.
    """
    half = degrees_of_freedom / 2

    def excess(x):
        one, two = (np.exp(-half * np.log1p(k * x / half)) for k in (1, 2))
        return 1 - 2 * one + two - level

    return 2 * brentq(excess, 0, _LARGEST)


def _free_rows(problem, row, k):
    """Return the least and the largest row at which a segment may begin, not others."""
    table, limits = problem.table, problem.limits
    n, x, count = int(table.n_rows[0]), table.x[0], table.count[0]
    before = row[k - 1] if k else 0
    after = row[k + 1] if k + 1 < len(row) else n
    places = np.arange(before + 1, after)
    breaks = (x[places - 1] + x[places]) / 2
    free = (limits.low[0] <= breaks) & (breaks <= limits.high[0])
    free &= count[places] - count[before] >= limits.min_rows[0]
    free &= count[after] - count[places] >= limits.min_rows[0]
    free &= x[places - 1] - x[before] >= limits.min_distance[0] * (k > 0)
    places = np.append(places[free], row[k])
    return places.min(), places.max()


def _rise_of_row(problem, fit, place):
    """Return the rise of the sum of squares as a function of the row after a break."""
    table, form = problem.table, problem.form
    pieces = all_pieces(problem, np.delete(fit.t[fit.free], place)[None])
    found = solve(table, pieces, form.flat_end)

    def gain(rows):
        candidates = make_candidates(table, form, rows)
        each, _ = gains(problem._replace(candidates=candidates), pieces, found)
        return each[0]

    return _rise(fit, gain, np.searchsorted(table.x[0], fit.t[fit.free][[place]]))


def _last_row_below(rise, start, end, threshold):
    """Return the last row from a break to an end whose rise is small enough."""
    distance = abs(end - start)
    steps = np.append(
        np.arange(_ROWS), np.geomspace(_ROWS, max(distance, _ROWS), _ROWS)
    )
    steps = np.unique(np.minimum(steps, distance).astype(np.intp))
    while True:
        below = rise(start + np.sign(end - start) * steps) <= threshold
        below[0] = True
        last = np.flatnonzero(below)[-1]
        if last == len(steps) - 1 or steps[last + 1] == steps[last] + 1:
            return start + np.sign(end - start) * steps[last]
        between = np.linspace(steps[last], steps[last + 1], _ROWS).astype(np.intp)
        steps = np.unique(between)


def _inverse_curvature(fit, rows):
    """Return the diagonal of the inverse normal matrix, of the kinks."""
    columns = least_squares.jacobian(
        fit.form, rows.x, rows.linear, fit.t, fit.free, fit.coef
    )
    level = least_squares.end_slope(fit.form, len(fit.t), columns.shape[-1])
    half = least_squares.solve(columns, rows.y, rows.weight, level).half
    return np.sum(half[len(fit.coef) :] ** 2, axis=-1)


def _rise_of_kink(problem, fit, place):
    """Return the rise of the sum of squares as a function of the position of a kink.

    The other kinks move to first order: a step at each is that of the slope there.
    """
    table, form = problem.table, problem.form
    others = np.delete(fit.t[fit.free], place)[None]
    one = np.ones_like(others)
    steps = Pieces(locate(table, others), one, 0 * one)
    pieces = concatenate(all_pieces(problem, others), steps)
    found = solve(table, pieces, form.flat_end)

    def gain(t):
        rows = np.minimum(locate(table, t[None])[0], table.n_rows[0] - 1)
        candidates = make_candidates(table, form, rows)._replace(t=t[None])
        ramp = gain_of_ramps(problem._replace(candidates=candidates), pieces, found)
        return ramp[0]

    return _rise(fit, gain, fit.t[fit.free][[place]])


def _rise(fit, gain, at):
    """Return what a break gains at its place more than at others, the rest held."""
    largest = np.maximum(gain(at), 0)

    def rise(places):
        return float(fit.n_rows) * (largest - np.maximum(gain(places), 0))

    return rise


def _last_below(rise, at, end, half, threshold):
    """Return the last position from a kink to an end whose rise is small enough."""
    far = abs(end - at)
    near = min(_NEAR * half, far)
    share = np.linspace(0, near, _EACH)
    if near < far:
        share = np.append(share, np.geomspace(near, far, _EACH)[1:])
    share = share / far
    for _ in range(2):
        excess = rise(at + share * (end - at)) - threshold
        last = np.flatnonzero(excess <= 0)[-1]
        if last == len(share) - 1:
            return end
        (low, high), (below, above) = share[last : last + 2], excess[last : last + 2]
        share = np.linspace(low, high, _EACH)
    return at + (low + (high - low) * below / (below - above)) * (end - at)
