"""The best partition of sorted rows into segments that share nothing.

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

from sklearn_gn.segmented.problem import DEPENDENT, HALF, MOST_CANDIDATES, Limits

_NONE = Limits(*np.array([-np.inf, np.inf, 0.0, 0.0]))
_SPLITS = 3  # for every breakpoint


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
        places.update(segments.binary_splits(_SPLITS * most))
    while True:
        explained, paths = _programme(segments, np.array(sorted(places)), most)
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


def exact_partition(segments, total, most):
    """Return the positions of the fewest segments without residual, or None."""
    places = {0, segments.n, *segments.binary_splits(_SPLITS * most)}
    explained, paths = _programme(segments, np.array(sorted(places)), most)
    exact = np.flatnonzero(total - explained <= DEPENDENT * total)
    return paths[exact[0]] if len(exact) else None


def _programme(segments, places, most):
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
