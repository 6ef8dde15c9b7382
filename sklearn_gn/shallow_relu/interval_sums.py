"""Sums over the intervals between breakpoints, for fits in one feature.

All that a least-squares fit of straight lines needs to know of the rows are sums of
(1, x, x^2, t, x t, t^2) over the intervals: differences of running sums, found by
bisection, at a cost of O(n log N) for n breakpoints whatever the number N of rows.
Such differences have rounding errors of the size of the total; :func:`exact_moments`
sums over every interval anew.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from sklearn_gn.core import backend

LEFT = -1.0  # where the data begin; a breakpoint there gives the first line its slope
RIGHT = 1.0 + 2.0**-10  # beyond the data: breakpoints there are not in use
THIN_ROWS = 32768  # running sums, evenly spaced, that the starts look at
UNRESOLVED = 1e3 * np.finfo(np.float64).eps  # of a variance, from running sums

_BLOCK_ROWS = 65536  # summed up together


class RunningSums(NamedTuple):
    """Rows sorted by x, with running sums; the weights sum to one.

    Padded at the end: x by infinity, the sums by their last row.
    """

    x: jnp.ndarray  # (N,) distinct, ascending, in [-1, 1]
    sums: jnp.ndarray  # (N + 1, 4 + 2 q) of w, w x, w x^2, w |t|^2, w t, w x t
    n_rows: jnp.ndarray  # () number of rows that are no padding


class SortedRows(NamedTuple):
    """The rows themselves, without padding, for sums over every interval anew."""

    x: np.ndarray  # (N,)
    y: np.ndarray  # (N, q) means of the targets of equal x
    weight: np.ndarray  # (N,)
    tie_variance: np.ndarray  # (q,) of targets at equal x, which no function explains


class IntervalMoments(NamedTuple):
    """Centred sums over the intervals; first that left of all breakpoints."""

    weight: jnp.ndarray  # (n + 1,)
    x: jnp.ndarray  # (n + 1,) means, inside the interval
    y: jnp.ndarray  # (n + 1, q) means
    xx: jnp.ndarray  # (n + 1,) sums of squares about the means; 0 if not resolved
    xy: jnp.ndarray  # (n + 1, q)
    rest: jnp.ndarray  # (n + 1,) of squares about the straight line fitted to y


# --- the data ------------------------------------------------------------------------


def sort_rows(rows, n_padded=None):
    """Sort the rows, merge those of equal x, and return their running sums.

    Parameters
    ----------
    rows : Rows
        Of one feature, in any order; rows of weight zero are left out.
    n_padded : int, default=None
        Length to pad to. If None, a length that data of similar size share.

    Returns
    -------
    running : RunningSums
    rows : SortedRows
        They share the memory of the positions.
    """
    x, y, weight = _by_position(*(np.asarray(a, np.float64) for a in rows))
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
    _fill_running_sums(long[:n], y, weight, sums)
    rows = SortedRows(long[:n], y, weight, tie_variance)
    return RunningSums(long, sums, np.int32(n)), rows


def _by_position(x, y, weight):
    x = x[:, 0]
    if weight.min() == 0:
        kept = weight > 0
        x, y, weight = x[kept], y[kept], weight[kept]
    if np.any(x[1:] < x[:-1]):
        order = np.argsort(x)
        x, y, weight = x[order], y[order], weight[order]
    return x, y, weight / weight.sum()


def row_slices(n):
    """Yield slices of the rows that are summed up together."""
    starts = range(0, n, _BLOCK_ROWS)
    return (slice(start, min(start + _BLOCK_ROWS, n)) for start in starts)


def _fill_running_sums(x, y, weight, sums):
    n = len(x)
    # In blocks, whose sums begin anew: quick, and little is lost to rounding.
    for rows in row_slices(n):
        w, u, t = weight[rows], x[rows], y[rows].T
        wu, wt = w * u, w * t
        table = np.concatenate([[w, wu, wu * u, np.sum(wt * t, axis=0)], wt, u * wt])
        np.cumsum(table, axis=1, out=table)
        np.add(table.T, sums[rows.start], out=sums[rows.start + 1 : rows.stop + 1])
    sums[n + 1 :] = sums[n]


def thin_sums(running, n):
    """Return the running sums at every k-th of n rows, which stay in the cache.

    The rows between two of them go with the first: a breakpoint is known to a share
    1 / THIN_ROWS of the rows, which is enough to choose among starts.
    """
    kept = np.arange(0, n, -(-n // THIN_ROWS))
    x = np.full(THIN_ROWS, np.inf)
    sums = np.tile(running.sums[-1], (THIN_ROWS + 1, 1))
    x[: len(kept)], sums[: len(kept)] = running.x[kept], running.sums[kept]
    return RunningSums(x, sums, np.int32(len(kept)))


# --- sums over the intervals ---------------------------------------------------------


def locate(knots, x):
    """Return the number of rows left of each breakpoint."""
    return jnp.searchsorted(x, knots, side="left").astype(jnp.int32)


def moments(knots, running):
    """Return centred sums over the intervals, from the running sums."""
    at = running.sums[locate(knots, running.x)]
    return moments_from_sums(_differences(at, running.sums[-1]), interval_ends(knots))


def _differences(at, total):
    """Return differences of running sums at the breakpoints, with both ends."""
    rows = jnp.concatenate([jnp.zeros_like(total)[None], at, total[None]])
    return rows[1:] - rows[:-1]


def interval_ends(knots):
    """Return the left and right ends of all intervals."""
    low = jnp.concatenate([jnp.full(1, LEFT, knots.dtype), knots])
    high = jnp.concatenate([knots, jnp.full(1, RIGHT, knots.dtype)])
    return low, high


def moments_from_sums(sums, ends):
    """Return moments about the means, from sums over intervals with given ends."""
    q = (sums.shape[-1] - 4) // 2
    weight, sx, sxx, syy = (sums[..., k] for k in range(4))
    sy, sxy = sums[..., 4 : 4 + q], sums[..., 4 + q :]
    weight = jnp.maximum(weight, 0)
    safe = jnp.where(weight > 0, weight, 1)
    x = jnp.clip(sx / safe, *ends)
    y = sy / safe[..., None]
    xx = sxx - sx * x
    wide = xx > UNRESOLVED
    xy = jnp.where(wide[..., None], sxy - sx[..., None] * y, 0)
    rest = syy - jnp.sum(sy * y, axis=-1)
    rest -= jnp.sum(xy**2, axis=-1) / jnp.where(wide, xx, 1)
    return IntervalMoments(
        weight=weight,
        x=x,
        y=jnp.where(weight[..., None] > 0, y, 0),
        xx=jnp.where(wide, xx, 0),
        xy=xy,
        rest=jnp.maximum(rest, 0),
    )


def exact_moments(knots, rows):
    """Return centred sums, each interval summed anew: nothing cancels."""
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
