"""Dynamic programmes: where the descents of kinks begin, and the best partitions.

A continuous broken line with kinks at some positions is known from its values there.
With the value v at a kink, all that lies before it costs at least a convex function of
v, the least of many parabolas: one for each way to place the earlier kinks. From one
kink to the next, parabolas become parabolas, as the value at the first is minimised. At
a position only the lowest ones at some values are kept, so that the best line is not
certain, and of many rows only some may have kinks.

Where every segment has a line or a constant of its own, the sum of squares is a sum
over the segments, and the best partition into k + 1 of them consists of the best
partition of what is left of the last breakpoint and the last segment (Bellman, "On the
approximation of curves by line segments using dynamic programming", 1961).

Its cost grows with the square of the number of places at which a segment may end. Of
many rows only some are such places: evenly spaced ones, and those at which segments are
split best, one after the other. The breakpoints of the best partitions then move, each
between its neighbours, to the best of all rows, and the places at which they arrive are
added, until none is new.
"""

import heapq
from functools import cache

import numpy as np

from sklearn_gn.segmented.problem import (
    DEPENDENT,
    EXACT,
    HALF,
    MOST_CANDIDATES,
    Limits,
    all_pieces,
    solve,
    spread,
)

MOST_ROWS = 60  # that may have kinks
_VALUES = np.linspace(-2, 2, 5)  # in deviations, at which parabolas are compared
STARTS = 16  # from which the descents begin
_APART = 4  # positions at least between some kinks of two starts


def kinks_at_rows(problem, knots):
    """Return several sets of kinks (m, k) at rows instead of ``knots``, the best first.

    Conditions on the slopes and known breakpoints are left out of account.
    """
    table, limits, k = problem.table, problem.limits, knots.shape[1]
    rows = spread(0, table.n_rows[0] - 1, MOST_ROWS)
    if k > len(rows) - 2:
        return np.empty((0, k))
    # A row at a kink belongs to the segment before, or to the one after.
    x = np.sort([table.x[0, rows], np.nextafter(table.x[0, rows], 2)], axis=None)[:-1]
    rows = np.searchsorted(table.x[0], x)
    n, q, ends = len(x), table.square.shape[1], np.append(rows[:-1], -1)
    # Sums of w, w x, w x^2, w y and w x y from each position on, of y without the
    # linear features; the last segment holds the last row.
    coef = solve(table, all_pieces(problem, knots)).coef[0]
    linear = np.vstack([np.eye(q), -coef[len(coef) - problem.n_linear :]])
    targets = (np.swapaxes(table.targets[0, ends], 1, 2) @ linear).reshape(n, -1)
    later = np.column_stack([table.powers[0, ends], targets])
    allowed = table.count[0, rows] - table.count[0, rows, None]
    allowed[:, -1] = table.count[0, -1] - table.count[0, rows]
    distance = x - x[:, None]
    allowed = allowed >= limits.min_rows[0] * (1 - 1e-9)
    allowed &= distance >= max(limits.min_distance[0] * (1 - 1e-9), EXACT)
    inner = (x >= limits.low[0]) & (x <= limits.high[0])
    inner[[0, -1]] = False
    part = np.moveaxis(later[:, None] - later, -1, 0)  # from one to another
    (w, wx, wxx), wy, wxy = part[:3], part[3 : 3 + q], part[3 + q :]
    length = np.where(allowed, distance, 1)
    # Products of both hats of a segment, s at its end and 1 - s at its start.
    s = (wx - x[:, None] * w) / length
    right = (wxx - 2 * x[:, None] * wx + x[:, None] ** 2 * w) / length**2
    both, left = s - right, w - 2 * s + right
    with_right = (wxy - x[:, None] * wy) / length
    of_segment = left, both, right, wy - with_right, with_right
    start = [each[..., 0, :, None] for each in of_segment]
    if problem.form.slope:
        parabola = _onward(0.0, np.zeros((q, 1, 1)), 0.0, *start)
    else:
        level = start[0] + 2 * start[1] + start[2]
        parabola = level, -2 * (start[3] + start[4]), np.zeros((n, 1))
    closed = np.where(allowed & inner, 0, np.inf)[:, None]
    parabola = parabola[0], parabola[1], parabola[2] + closed[0].T
    # Values near the targets around each position, (value, q, to).
    cell, near = later[:-1] - later[1:], np.arange(n)
    own = cell[:, 3 : 3 + q] / np.maximum(cell[:, :1], EXACT)
    around = later[np.maximum(near - 2, 0)] - later[np.minimum(near + 2, n - 1)]
    mean = around[:, 3 : 3 + q] / np.maximum(around[:, :1], EXACT)
    noise = np.sqrt(np.mean(np.diff(own, axis=0) ** 2, axis=0) / 2)
    values, steps = mean.T + _VALUES[:, None, None] * noise[:, None], []
    for _ in range(1, k):
        each = (a[..., None] for a in parabola)  # (from, parabola, to)
        a, b, c = _onward(*each, *(a[..., None, :] for a in of_segment))
        c += closed
        width, best = c.shape[1], np.empty((n, len(values)), np.intp)
        for own, at in zip(best.T, values, strict=True):
            value = a * np.sum(at**2, axis=0)
            value += c
            for of_target, each in zip(b, at, strict=True):
                value += of_target * each
            value = value.reshape(n * width, n)  # (from and parabola, to)
            least = value.min(axis=0)
            np.argmax(value <= least + EXACT * np.abs(least), axis=0, out=own)
        steps.append(np.stack(np.divmod(best, width)))
        best = best * n + np.arange(n)[:, None]
        parabola = (a.reshape(-1)[best], b.reshape(q, -1)[:, best], c.reshape(-1)[best])
    a, b, c = _onward(*parabola, *(each[..., :, -1, None] for each in of_segment))
    total = c - np.sum(b**2, axis=0) / (4 * np.maximum(a, EXACT))
    return x[_best_paths(np.where(allowed[:, -1:], total, np.inf), steps)]


def _onward(a, b, c, left, both, right, with_left, with_right):
    """Return parabolas ``a |v|^2 + b v + c`` of the value at the end of a segment."""
    a, b = np.maximum(a + left, EXACT), b - 2 * with_left
    c = c - np.sum(b**2, axis=0) / (4 * a)
    return np.maximum(right - both**2 / a, 0), -2 * with_right - both * b / a, c


def _best_paths(total, steps):
    """Return the paths to the lowest totals (m, parabola), no two near one another."""
    # The first of those that are equal but for rounding, here and on the way.
    finite = np.flatnonzero(np.isfinite(total))
    known = total.ravel()[finite]
    unit = DEPENDENT * np.abs(known).max(initial=np.finfo(float).tiny)
    order = finite[np.argsort(np.round(known / unit), kind="stable")]
    place = np.unravel_index(order, total.shape)
    path = [place[0]]
    for step in reversed(steps):
        place = step[:, place[0], place[1]]
        path.append(place[0])
    path, chosen = np.array(path[::-1]).T, []
    while len(path) and len(chosen) < STARTS:
        chosen.append(path[0])
        path = path[np.abs(path - path[0]).max(axis=1) > _APART]
    return np.array(chosen, np.intp).reshape(-1, 1 + len(steps))


# --- partitions -----------------------------------------------------------------------


_NONE = Limits(*np.array([-np.inf, np.inf, 0.0, 0.0]))
SPLITS = 3  # for every breakpoint


class Segments:
    """What the segments between positions explain.

    A position is a number of rows to the left, and lies halfway to the next row.
    Segments are lines if ``slope``, else constants; ``count`` counts their rows. The
    sums (3 + 2 q, n + 1) are those of w, w x, w x^2, w y, w x y up to each position.
    """

    def __init__(self, x, sums, slope, count=None, limits=_NONE):
        n = len(x)
        self.sums, self.slope, self.n = sums, slope, n
        self.count = np.arange(n + 1) if count is None else count
        self.min_rows = limits.min_rows * (1 - HALF)
        self.min_distance = limits.min_distance * (1 - HALF)
        self.t = np.concatenate([x[:1], (x[:-1] + x[1:]) / 2, x[-1:]])
        inside = (self.t >= limits.low) & (self.t <= limits.high)
        inside[[0, n]] = False
        self.inside = np.flatnonzero(inside)
        self.split = cache(self._best_split)

    def gain(self, start, end):
        """Return the decrease of the sum of squares by segments between positions."""
        weight, sx, sxx, *targets = (sums[end] - sums[start] for sums in self.sums)
        allowed = self.count[end] - self.count[start] >= self.min_rows
        allowed &= end - start >= 1 + self.slope
        allowed &= self.t[end] - self.t[start] >= self.min_distance
        allowed |= (start == 0) & (end == self.n)
        counted = allowed & (weight > 0)  # rows may have no weight to rounding
        weight = np.where(counted, weight, 1)
        spread = sxx - sx**2 / weight
        wide = counted & (spread > 0)
        spread = np.where(wide, spread, 1)
        gain, q = 0.0, len(targets) // 2
        for sy, sxy in zip(targets[:q], targets[q:], strict=True):
            mean = sy / weight
            gain = gain + mean * sy
            if self.slope:
                gain = gain + np.where(wide, (sxy - sx * mean) ** 2 / spread, 0)
        return np.where(allowed, gain, -np.inf)

    def _best_split(self, start, end):
        """Return the best position between two others, and what both parts explain."""
        first, last = np.searchsorted(self.inside, [start + 1, end])
        at, value = start, -np.inf
        while first < last:
            stride = -(-(last - first) // MOST_CANDIDATES)
            tried = self.inside[first:last:stride]
            values = self.gain(start, tried) + self.gain(tried, end)
            best = int(np.argmax(values))
            if values[best] > value:
                at, value = int(tried[best]), float(values[best])
            if stride == 1:
                break
            middle = first + best * stride
            first, last = max(middle - stride, first), min(middle + stride + 1, last)
        return at, value

    def binary_splits(self, most):
        """Return the positions of splits, the most useful segment first."""
        found, waiting = [], []

        def add(start, end):
            at, value = self.split(start, end)
            whole = float(self.gain(np.array(start), np.array(end)))
            if np.isfinite(value):
                heapq.heappush(waiting, (whole - value, start, at, end))

        add(0, self.n)
        while waiting and len(found) < most:
            _, start, at, end = heapq.heappop(waiting)
            found.append(at)
            add(start, at)
            add(at, end)
        return found

    def moved(self, path):
        """Return a partition whose ends have moved, each to its best position."""
        path = list(path)
        while True:
            before = list(path)
            for k in range(1, len(path) - 1):
                at, value = self.split(path[k - 1], path[k + 1])
                around = np.array(path[k - 1 : k + 2])
                if value > self.gain(around[:-1], around[1:]).sum():
                    path[k] = at
            if path == before:
                break
        return path


def best_partitions(segments, most):
    """Return what the best partitions, up to 1 + most segments, explain, and these."""
    inside = segments.inside
    few = min(len(inside), MOST_CANDIDATES)
    even = inside[np.unique(np.linspace(0, len(inside) - 1, few).astype(np.intp))]
    places = {0, segments.n, *even.tolist()}
    if few < len(inside):
        places.update(segments.binary_splits(SPLITS * most))
    while True:
        explained, paths = partitions_at(segments, np.array(sorted(places)), most)
        if few == len(inside):
            break
        moved = {
            at
            for path, value in zip(paths, explained, strict=True)
            if np.isfinite(value)
            for at in segments.moved(path)
        }
        if moved <= places:
            break
        places |= moved
    return explained, paths


def partitions_at(segments, places, most):
    """Return the best partitions whose ends are among some places."""
    m, starts = len(places), places[None]
    gains = segments.gain(starts, np.maximum(places[:, None], starts))
    best = gains[:, 0]
    explained, before, paths = [], [], []
    for k in range(most + 1):
        if k:
            through = gains + best
            before.append(np.argmax(through, axis=1))
            best = through[np.arange(m), before[-1]]
        explained.append(best[-1])
        path = [m - 1]
        for step in reversed(before):
            path.append(step[path[-1]])
        paths.append(places[[0, *reversed(path)]].tolist())
    return np.array(explained), paths
