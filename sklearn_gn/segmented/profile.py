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

from sklearn_gn.segmented.problem import (
    DEPENDENT,
    HALF,
    Pieces,
    all_pieces,
    concatenate,
    feasible,
    locate,
    powers_of,
    solve,
    take,
)
from sklearn_gn.segmented.search import gains, orthogonal_part

_EACH = 32  # positions that are tried near, far, and in between


def kink_intervals(problem, fit, width, curvature):
    """Return intervals of the kinks, (B, n_kinks, 2), by those of the delta method."""
    t = fit.t[:, fit.kinks]
    room = np.stack([t, t], axis=-1)
    if not t.size:
        return room
    low, high = (bound[:, None] for bound in problem.limits[:2])
    ends = np.pad(fit.t, ((0, 0), (1, 1)), constant_values=((0, 0), (-1.0, 1.0)))
    room[..., 0] = np.minimum(np.maximum(ends[:, fit.kinks], low), t)
    room[..., 1] = np.maximum(np.minimum(ends[:, fit.kinks + 2], high), t)
    square = width**2
    known = (square > DEPENDENT * fit.total[:, None] * curvature) & (square < np.inf)
    interval = t[..., None] + np.stack([-width, width], axis=-1)
    interval = np.clip(interval, room[..., :1], room[..., 1:])
    problem = problem._replace(candidates=None)
    for k, kink in enumerate(fit.kinks):
        b = np.flatnonzero(known[:, k])
        if not len(b):
            continue
        rise = _rise(problem.of(b), fit.of(b), kink)
        threshold = square[b, k] / curvature[b, k]
        for side in (0, 1):
            given = room[b, k, side], width[b, k], threshold
            interval[b, k, side] = _last_below(rise, t[b, k], *given)
    return interval


def jump_intervals(problem, fit, level):
    """Return the intervals of the jumps in the units of the search, (B, n_jumps, 2)."""
    table, jumps = problem.table, fit.jumps
    row = locate(table, fit.t)  # the first one after each break
    freedom, same = np.unique(fit.degrees_of_freedom, return_inverse=True)
    quantile = np.array([walk_quantile(level, each) for each in freedom])[same]
    threshold = quantile * fit.variance
    threshold = np.maximum(threshold, DEPENDENT * fit.total)
    ends = np.empty((len(row), len(jumps), 2), np.intp)
    places = np.pad(row, ((0, 0), (1, 1)))
    places[:, -1] = table.n_rows
    for place, k in enumerate(jumps):
        rise, near = _rise(problem, fit, k), np.full(len(row), _EACH - 1)
        for side, end in enumerate((places[:, k] + 1, places[:, k + 2] - 1)):
            last = _last_below(rise, row[:, k], end, near, threshold, step=1)
            ends[:, place, side] = last
    ends[..., 0] -= 1
    ends = np.minimum(ends, table.n_rows[:, None, None] - 1)
    low, high = (bound[:, None, None] for bound in problem.limits[:2])
    return np.clip(take(table.x, ends), low, high)


def walk_quantile(level, degrees_of_freedom):
    """Return the quantile of the rise over the estimated variance; NaN gives NaN."""
    if np.isnan(degrees_of_freedom):
        return np.nan
    half = min(degrees_of_freedom / 2, 1 / HALF)  # infinite of a known variance

    def excess(x):
        one, two = (np.exp(-half * np.log1p(k * x / half)) for k in (1, 2))
        return 1 - 2 * one + two - level

    return 2 * brentq(excess, 0, 1 / HALF)


def _rise(problem, fit, k):
    """Return how the sum of squares rises with the place of a break, the rest held.

    The place of a kink is its position; that of a jump is the row after it. The other
    kinks follow to first order.
    """
    form, start, kinks = fit.form, fit.t[:, [k]], fit.kinks
    if form.kinds:
        ramp, step = form.kinds[k]
        kinds = form.kinds[:k] + form.kinds[k + 1 :]
        form = form._replace(ramp=ramp, step=step, kinds=kinds)
    problem = problem._replace(form=form, known=np.delete(fit.t, k, axis=1))
    others, n_rows = fit.t[:, kinks[kinks != k]], np.reshape(fit.n_rows, (-1, 1))
    pieces = all_pieces(problem, fit.t[:, :0])
    steps = powers_of(others, 0, len(pieces.coef) - 1)
    pieces = concatenate(pieces, Pieces(locate(problem.table, others), steps))
    found = solve(problem.table, pieces, form.flat_end)
    if form.step:
        start = locate(problem.table, start)

    def gain(places):
        if form.step:
            at = problem.at(places)
        else:
            rows = locate(problem.table, places)
            rows = np.minimum(rows, problem.table.n_rows[:, None] - 1)
            at = problem.at(rows, places)
        residual, *parts = orthogonal_part(at, pieces, found)
        # Without the step of a kink, it stays where it is.
        residual = residual[: form.ramp + form.step]
        value = np.maximum(gains(at, (residual, *parts))[0], 0)
        if form.step:
            allowed = feasible(problem, at.candidates.t[..., None])
            value = np.where(allowed | (places == start), value, -np.inf)
        return value

    largest = gain(start)
    return lambda places: n_rows * (largest - gain(places))


def _last_below(rise, start, end, near, threshold, step=0):
    """Return each series' last place from a breakpoint to an end with a small rise."""
    towards, reach = np.sign(end - start)[:, None], np.abs(end - start)
    far = np.maximum(reach, 1e-300)
    first = np.minimum(np.maximum(near, 1e-300), far)
    beyond = np.geomspace(first, far, _EACH, axis=1)
    tried = np.concatenate(
        [np.linspace(0, first, _EACH, axis=1), beyond[:, 1:]], axis=1
    )
    while True:
        tried = np.minimum(tried, reach[:, None])
        if step:
            tried = tried.astype(np.intp)
        excess = rise(start[:, None] + towards * tried) - threshold[:, None]
        excess[:, 0] = np.minimum(excess[:, 0], 0)
        last = tried.shape[1] - 1 - np.argmax(excess[:, ::-1] <= 0, axis=1)
        at = np.minimum(np.stack([last, last + 1], axis=1), tried.shape[1] - 1)
        low, high = np.take_along_axis(tried, at, axis=1).T
        if np.all(high - low <= (step or high / _EACH**2)):
            break
        tried = np.linspace(low, high, _EACH, axis=1)
    if not step:
        below, above = np.take_along_axis(excess, at, axis=1).T
        size = np.where(above > below, above - below, 1)
        low = np.where(above > below, low - (high - low) * below / size, high)
    return start + towards[:, 0] * low
