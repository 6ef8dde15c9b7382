"""Breakpoints of rows that lie on lines without noise, jumps included.

Descents from evenly spaced breakpoints rarely find many jumps: each needs a breakpoint
at the last row before it and one at the first row behind, and a loss that a breakpoint
lowers only there. Where the rows lie on few lines their best partition finds all jumps.
"""

from itertools import pairwise

import numpy as np

from sklearn_gn.shallow_relu.interval_sums import THIN_ROWS
from sklearn_gn.shallow_relu.partition import Segments, exact_partition
from sklearn_gn.shallow_relu.sorted_rows import LEFT

_LOOKED_AT = 1000  # rows that are compared with their neighbours
_ROUNDING = 1e-9  # of a target on a line with its neighbours, in standard deviations


def exact_knots(data, most):
    """Return the breakpoints of a function that goes through all rows, or None."""
    n = int(data.running.n_rows)
    if most < 2 or not 3 <= n <= 2 * THIN_ROWS or not _on_lines(data.rows):
        return None
    sums = np.delete(data.running.sums[: n + 1].T, 3, axis=0)
    for slope in (True, False):
        segments = Segments(data.rows.x, sums, slope)
        path = exact_partition(segments, 2 * data.size, most - slope)
        if path is not None:
            knots = [LEFT] * slope + _knots(data.rows, path, slope)
            if len(knots) <= most:
                return np.array(knots)
    return None


def _on_lines(rows):
    """Return whether most rows lie on a line with their neighbours."""
    n = len(rows.x)
    at = np.unique(np.linspace(1, n - 2, min(n - 2, _LOOKED_AT)).astype(np.intp))
    share = ((rows.x[at] - rows.x[at - 1]) / (rows.x[at + 1] - rows.x[at - 1]))[:, None]
    off = rows.y[at] - (1 - share) * rows.y[at - 1] - share * rows.y[at + 1]
    size = np.sqrt(rows.weight @ rows.y**2).max()
    return np.median(np.abs(off).max(axis=1)) <= _ROUNDING * size


def _knots(rows, path, slope):
    """Return one breakpoint where neighbouring lines meet, and two at a jump."""
    lines = [_line(rows, *ends, slope) for ends in pairwise(path)]
    knots = []
    for at, before, after in zip(path[1:-1], lines, lines[1:], strict=False):
        low, high = rows.x[at - 1], rows.x[at]
        change, jump = after[1] - before[1], after[0] - before[0]
        flat = np.abs(change) <= 1e-300
        meet = -jump / np.where(flat, np.inf, change)
        if (
            not flat.any()
            and np.ptp(meet) <= 1e-6 * (high - low)
            and low <= meet[0] <= high
        ):
            knots.append(meet[0])
        else:
            knots += [low, high]
    return sorted(set(knots))


def _line(rows, start, end, slope):
    """Return intercepts and slopes of the lines through some rows, of shape (2, q)."""
    x, y = rows.x[start:end], rows.y[start:end]
    rise = np.zeros(y.shape[1])
    if slope:
        rise = (y[-1] - y[0]) / (x[-1] - x[0])
    return y[0] - rise * x[0], rise
