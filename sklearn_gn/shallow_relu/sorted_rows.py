"""Rows of one feature sorted by x, their running sums, and sums between breakpoints.

All that a least-squares fit of straight lines needs to know of the rows are sums of
(1, x, x^2, t, x t, t^2) over the intervals between breakpoints: differences of running
sums, found by bisection, at a cost of O(n log N) for n breakpoints whatever the number
N of rows. Such differences have rounding errors of the size of the total;
:func:`exact_moments` sums over every interval again. Leading axes of breakpoints, and
of the sums between them, are those of several sets of breakpoints.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.segmented.problem import LEFT, RIGHT

THIN_ROWS = 32768  # running sums, evenly spaced, that the starts look at
UNRESOLVED = 1e3 * np.finfo(np.float64).eps  # of a variance, from running sums

_BLOCK_ROWS = 65536  # summed up together


class RunningSums(NamedTuple):
    """Rows sorted by x, with running sums; the weights sum to one.

    Padded at the end: x by infinity, the sums by their last row.
    """

    x: np.ndarray  # (N,) distinct, ascending, in [-1, 1]
    sums: np.ndarray  # (N + 1, 4 + 2 q) of w, w x, w x^2, w |t|^2, w t, w x t
    n_rows: np.ndarray  # () number of rows that are no padding
    ends: tuple | None = None  # between which breakpoints inside the data lie


class SortedRows(NamedTuple):
    """The rows themselves, without padding, for sums over every interval again."""

    x: np.ndarray  # (N,)
    y: np.ndarray  # (N, q) means of the targets of equal x
    weight: np.ndarray  # (N,)
    tie_variance: np.ndarray  # (q,) of targets at equal x, which no function explains


# --- from rows to running sums -------------------------------------------------------


def sort_rows(rows, n_padded=None):
    """Sort the rows, merge those of equal x; return their running sums, and the rows.

    Rows of weight zero are left out. ``n_padded`` is the length to pad to; if None, one
    that data of similar size share. Both results share the memory of the positions.
    """
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
    tie_variance = np.zeros(y.shape[1])
    if len(first) < len(x):
        total = np.add.reduceat(weight, first)
        mean = np.add.reduceat(weight[:, None] * y, first, axis=0) / total[:, None]
        inside = y - np.repeat(mean, np.diff(first, append=len(x)), axis=0)
        tie_variance = weight @ inside**2
        x, y, weight = x[first], mean, total
    n = len(x)
    n_padded = n_padded or backend.row_bucket(n)
    long = backend.aligned_zeros((n_padded,), np.float64)
    long[:n], long[n:] = x, np.inf
    sums = backend.aligned_zeros((n_padded + 1, 4 + 2 * y.shape[1]), np.float64)
    # In blocks, whose sums start again: quick, and little is lost to rounding.
    for start in range(0, n, _BLOCK_ROWS):
        part = slice(start, min(start + _BLOCK_ROWS, n))
        w, u, t = weight[part], x[part], y[part].T
        wu, wt = w * u, w * t
        table = np.concatenate([[w, wu, wu * u, np.sum(wt * t, axis=0)], wt, u * wt])
        np.cumsum(table, axis=1, out=table)
        np.add(table.T, sums[start], out=sums[start + 1 : part.stop + 1])
    sums[n + 1 :] = sums[n]
    rows = SortedRows(long[:n], y, weight, tie_variance)
    return RunningSums(long, sums, np.int32(n)), rows


def thin_sums(running, n):
    """Return the running sums at every k-th of n rows, which stay in the cache.

    The rows between two of them go with the first: a breakpoint is known to a share
    1 / THIN_ROWS of the rows, which is enough to choose among starts.
    """
    kept = np.arange(0, n, -(-n // THIN_ROWS))
    x = np.full(THIN_ROWS, np.inf)
    sums = np.tile(running.sums[-1], (THIN_ROWS + 1, 1))
    x[: len(kept)], sums[: len(kept)] = running.x[kept], running.sums[kept]
    return RunningSums(x, sums, np.int32(len(kept)), running.ends)


# --- sums over the intervals ---------------------------------------------------------


class IntervalMoments(NamedTuple):
    """Centred sums over the intervals; first that left of all breakpoints."""

    weight: np.ndarray  # (..., n + 1)
    x: np.ndarray  # (..., n + 1) means, inside the interval
    y: np.ndarray  # (..., n + 1, q) means
    xx: np.ndarray  # (..., n + 1) squares about the means; 0 if not resolved
    xy: np.ndarray  # (..., n + 1, q)
    rest: np.ndarray | None = None  # (..., n + 1) squares about the line fitted to y


def interval_ends(knots):
    """Return the left and right ends of all intervals."""
    ends = np.empty((*knots.shape[:-1], knots.shape[-1] + 2))
    ends[..., 0], ends[..., 1:-1], ends[..., -1] = LEFT, knots, RIGHT
    return ends[..., :-1], ends[..., 1:]


def sum_of_targets(a):
    """Return the sum over the last axis, which often has one element."""
    return a[..., 0] if a.shape[-1] == 1 else np.add.reduce(a, axis=-1)


def centred_sums(sums, ends):
    """Return moments without ``rest``, from sums over intervals with given ends."""
    q = (sums.shape[-1] - 4) // 2
    sx, sy = sums[..., 1], sums[..., 4 : 4 + q]
    weight = np.maximum(sums[..., 0], 0)
    full = weight > 0
    safe = np.where(full, weight, 1)
    low, high = ends
    x = np.minimum(np.maximum(sx / safe, low), high)
    y = np.where(full[..., None], sy / safe[..., None], 0)
    xx = sums[..., 2] - sx * x
    wide = xx > UNRESOLVED
    xy = np.where(wide[..., None], sums[..., 4 + q :] - sx[..., None] * y, 0)
    return IntervalMoments(weight, x, y, np.where(wide, xx, 0), xy)


def moments(knots, running):
    """Return the moments of the intervals, from the running sums."""
    bounds = np.empty((*knots.shape[:-1], knots.shape[-1] + 2), np.intp)
    bounds[..., 0], bounds[..., -1] = 0, -1
    bounds[..., 1:-1] = running.x.searchsorted(knots, side="left")
    at = running.sums.take(bounds, axis=0)
    sums = at[..., 1:, :] - at[..., :-1, :]
    part = centred_sums(sums, interval_ends(knots))
    sy = sums[..., 4 : 4 + part.y.shape[-1]]
    rest = sums[..., 3] - sum_of_targets(sy * part.y)
    rest -= sum_of_targets(part.xy**2) / np.where(part.xx > 0, part.xx, 1)
    return part._replace(rest=np.maximum(rest, 0))


def exact_moments(knots, rows):
    """Return the moments, each interval of the rows summed again: nothing cancels."""
    first = np.searchsorted(rows.x, knots, side="left")
    bounds = np.concatenate([[0], first, [len(rows.x)]])
    count = np.diff(bounds)
    full, wide = count > 0, count > 1

    def total(column):
        out = np.zeros((len(count), *column.shape[1:]))
        out[full] = np.add.reduceat(column, bounds[:-1][full], axis=0)
        return out

    weight = total(rows.weight)
    safe = np.where(full, weight, 1.0)
    x = total(rows.weight * rows.x) / safe
    y = total(rows.weight[:, None] * rows.y) / safe[:, None]
    dx = rows.x - np.repeat(x, count)
    dy = rows.y - np.repeat(y, count, axis=0)
    wdx = rows.weight * dx
    xx = np.where(wide, total(wdx * dx), 0.0)
    xy = np.where(wide[:, None], total(wdx[:, None] * dy), 0.0)
    slope = xy / np.where(xx > 0, xx, 1.0)[:, None]
    off = dy - np.repeat(slope, count, axis=0) * dx[:, None]
    x = np.where(full, x, np.concatenate([[LEFT], knots]))
    rest = total(rows.weight * np.einsum("kq,kq->k", off, off))
    return IntervalMoments(weight, x, y, xx, xy, rest)


def line_slopes(m):
    """Return the slopes of lines fitted to the intervals; 0 without two rows."""
    return m.xy / np.where(m.xx > 0, m.xx, 1)[..., None]
