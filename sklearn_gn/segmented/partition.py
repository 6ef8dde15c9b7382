"""The best partition into segments that share nothing, by dynamic programming.

Where every segment has a line or a constant of its own, the sum of squares is a sum
over the segments, and the best partition into k + 1 of them consists of the best
partition of what is left of the last breakpoint and the last segment (Bellman, "On the
approximation of curves by line segments using dynamic programming", 1961).
"""

import numpy as np


def separable(problem):
    """Return whether no parameter is shared by two segments."""
    form = problem.form
    own_lines = form.step and form.ramp == form.slope and not form.flat_end
    return own_lines and not problem.known.shape[1] and problem.table.gram.shape[1] == 1


def best_partitions(problem, most):
    """Return the best partitions of one series.

    Parameters
    ----------
    problem : Problem
        Of one series.
    most : int
        Largest number of breakpoints.

    Returns
    -------
    rss : ndarray of shape (1 + most,)
        Infinite where the limits leave no room for so many.
    knots : list of ndarray of shape (k,)
    """
    places, t, gains = _segments(problem)
    best, before = gains[0], []
    total, rss, knots = problem.table.gram[0, 0, 0], [], []
    for k in range(most + 1):
        if k:
            through = best[:, None] + gains
            before.append(np.argmax(through, axis=0))
            best = np.take_along_axis(through, before[-1][None], axis=0)[0]
        rss.append(max(total - best[-1], 0))
        at, path = len(places) - 1, []
        for step in reversed(before):
            at = step[at]
            path.append(at)
        knots.append(t[path[::-1]] if np.isfinite(rss[-1]) else np.full(k, np.nan))
    return np.array(rss), knots


def _segments(problem):
    """Return the possible ends of segments, and what segments between them explain.

    Returns
    -------
    places : ndarray of shape (m,)
        Positions, from 0 to the number of rows.
    t : ndarray of shape (m,)
    gains : ndarray of shape (m, m)
        Decrease of the sum of squares by a segment; -inf where none is allowed.
    """
    table, form, _, limits, candidates = problem
    n = int(table.n_rows[0])
    inside = (candidates.rows[0] > 0) & (candidates.rows[0] < n)
    inside &= (candidates.t[0] >= limits.low[0]) & (candidates.t[0] <= limits.high[0])
    places = np.concatenate([[0], candidates.rows[0][inside], [n]])
    x = table.x[0]
    t = np.concatenate([x[:1], candidates.t[0][inside], x[n - 1 : n]])

    def between(sums):
        return sums[places][:, None] - sums[places][None]

    weight, sx, sxx = (between(table.powers[0][:, k]) for k in range(3))
    sy, sxy = (between(table.targets[0][:, 0, k]) for k in range(2))
    count = table.count[0][places]
    allowed = count[None] - count[:, None] >= limits.min_rows[0] * (1 - 1e-9)
    allowed &= places[None] - places[:, None] >= 1 + form.slope
    allowed &= t[None] - t[:, None] >= limits.min_distance[0] * (1 - 1e-9)
    whole = (places[:, None] == 0) & (places[None] == n)
    allowed |= whole
    mean = sy / np.where(allowed, weight, 1)
    gains = mean * sy
    if form.slope:
        spread = sxx - sx**2 / np.where(allowed, weight, 1)
        wide = allowed & (spread > 0)
        gains += np.where(wide, (sxy - sx * mean) ** 2 / np.where(wide, spread, 1), 0)
    return places, t, np.where(allowed, gains, -np.inf)
