"""Sums over the intervals between breakpoints, for fits in one feature.

All that a least-squares fit of straight lines needs to know of the rows are sums of
(1, x, x^2, t, x t, t^2) over the intervals: differences of running sums, found by
bisection, at a cost of O(n log N) for n breakpoints whatever the number N of rows.
Such differences have rounding errors of the size of the total; :func:`exact_moments`
sums over every interval again.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.shallow_relu.sorted_rows import LEFT, RIGHT, RunningSums

THIN_ROWS = 32768  # running sums, evenly spaced, that the starts look at
UNRESOLVED = 1e3 * np.finfo(np.float64).eps  # of a variance, from running sums


class IntervalMoments(NamedTuple):
    """Centred sums over the intervals; first that left of all breakpoints.

    Leading axes, here and below, are those of several sets of breakpoints.
    """

    weight: np.ndarray  # (..., n + 1)
    x: np.ndarray  # (..., n + 1) means, inside the interval
    y: np.ndarray  # (..., n + 1, q) means
    xx: np.ndarray  # (..., n + 1) squares about the means; 0 if not resolved
    xy: np.ndarray  # (..., n + 1, q)
    rest: np.ndarray  # (..., n + 1) of squares about the straight line fitted to y


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


def interval_sums(knots, running):
    """Return the sums over the intervals, from the running sums, and their ends."""
    bounds = np.empty((*knots.shape[:-1], knots.shape[-1] + 2), np.intp)
    bounds[..., 0], bounds[..., 1:-1], bounds[..., -1] = 0, running.locate(knots), -1
    at = running.at(bounds)
    return at[..., 1:, :] - at[..., :-1, :], interval_ends(knots)


def moments(knots, running):
    """Return centred sums over the intervals, from the running sums."""
    return moments_from_sums(*interval_sums(knots, running))


def interval_ends(knots):
    """Return the left and right ends of all intervals."""
    ends = np.empty((*knots.shape[:-1], knots.shape[-1] + 2))
    ends[..., 0], ends[..., 1:-1], ends[..., -1] = LEFT, knots, RIGHT
    return ends[..., :-1], ends[..., 1:]


class CentredSums(NamedTuple):
    """The fields of :class:`IntervalMoments` that need no sums of squared targets."""

    weight: np.ndarray
    x: np.ndarray
    y: np.ndarray
    xx: np.ndarray
    xy: np.ndarray


def sum_of_targets(a):
    """Return the sum over the last axis, which often has one element."""
    return a[..., 0] if a.shape[-1] == 1 else np.add.reduce(a, axis=-1)


def centred_sums(sums, ends):
    """Return sums about the means, from sums over intervals with given ends."""
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
    return CentredSums(weight, x, y, np.where(wide, xx, 0), xy)


def moments_from_sums(sums, ends):
    """Return moments about the means, from sums over intervals with given ends."""
    part = centred_sums(sums, ends)
    sy = sums[..., 4 : 4 + part.y.shape[-1]]
    rest = sums[..., 3] - sum_of_targets(sy * part.y)
    rest -= sum_of_targets(part.xy**2) / np.where(part.xx > 0, part.xx, 1)
    return IntervalMoments(*part, rest=np.maximum(rest, 0))


def exact_moments(knots, rows):
    """Return centred sums, each interval summed again: nothing cancels."""
    n = len(rows.x)
    first = np.searchsorted(rows.x, knots, side="left")
    bounds = np.concatenate([[0], first, [n]])
    count = np.diff(bounds)
    full = count > 0

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
    wide = count > 1
    xx = np.where(wide, total(wdx * dx), 0.0)
    xy = np.where(wide[:, None], total(wdx[:, None] * dy), 0.0)
    slope = xy / np.where(xx > 0, xx, 1.0)[:, None]
    off = dy - np.repeat(slope, count, axis=0) * dx[:, None]
    return IntervalMoments(
        weight=weight,
        x=np.where(full, x, np.concatenate([[LEFT], knots])),
        y=y,
        xx=xx,
        xy=xy,
        rest=total(rows.weight * np.einsum("kq,kq->k", off, off)),
    )
