"""Rows of one feature sorted by x, and their running sums."""

from typing import NamedTuple

import numpy as np

from sklearn_gn.arrays import backend

LEFT = -1.0  # where the data begin; a breakpoint there gives the first line its slope
RIGHT = 1.0 + 2.0**-10  # beyond the data: breakpoints there are not in use

_BLOCK_ROWS = 65536  # summed up together


class RunningSums(NamedTuple):
    """Rows sorted by x, with running sums; the weights sum to one.

    Padded at the end: x by infinity, the sums by their last row.
    """

    x: np.ndarray  # (N,) distinct, ascending, in [-1, 1]
    sums: np.ndarray  # (N + 1, 4 + 2 q) of w, w x, w x^2, w |t|^2, w t, w x t
    n_rows: np.ndarray  # () number of rows that are no padding
    ends: tuple | None = None  # between which breakpoints inside the data lie

    def locate(self, knots):
        """Return the number of rows left of each breakpoint."""
        return self.x.searchsorted(knots, side="left")

    def at(self, rows):
        """Return the sums before rows given by their numbers."""
        return self.sums.take(rows, axis=0)

    def position(self, rows):
        """Return x of rows given by their numbers."""
        return self.x[rows]

    def total(self, ndim):
        """Return the sums over all rows; ``ndim`` axes are those of the sets."""
        del ndim
        return self.sums[-1]

    def size(self, ndim):
        """Return the number of rows, which goes with arrays of so many axes."""
        del ndim
        return self.n_rows

    def of(self, which):
        """Return the sums of some of the sets of breakpoints: all share them."""
        del which
        return self


class StackedSums(NamedTuple):
    """Running sums of several series; each set of breakpoints belongs to one of them.

    The methods are those of :class:`RunningSums`; breakpoints begin with an axis as
    long as ``series``.
    """

    x: np.ndarray  # (n_series, N)
    sums: np.ndarray  # (n_series, N + 1, 4 + 2 q)
    n_rows: np.ndarray  # (n_series,)
    series: np.ndarray  # (B,) number of the series of each set, ascending

    @property
    def ends(self):
        """Breakpoints of several series may lie anywhere inside the data."""
        return None

    @classmethod
    def stack(cls, running, n_each):
        """Return the sums of series that have ``n_each`` sets of breakpoints each."""
        columns = zip(*((r.x, r.sums, r.n_rows) for r in running), strict=True)
        columns = (np.stack(column) for column in columns)
        return cls(*columns, np.repeat(np.arange(len(running)), n_each))

    def locate(self, knots):
        """Return the number of rows left of each breakpoint."""
        rows = np.empty(knots.shape, np.intp)
        bounds = np.searchsorted(self.series, np.arange(len(self.x) + 1))
        for x, first, end in zip(self.x, bounds[:-1], bounds[1:], strict=True):
            if first < end:
                rows[first:end] = np.searchsorted(x, knots[first:end], side="left")
        return rows

    def at(self, rows):
        """Return the sums before rows given by their numbers."""
        return self.sums[self._along(rows.ndim), rows]

    def position(self, rows):
        """Return x of rows given by their numbers."""
        return self.x[self._along(rows.ndim), rows]

    def total(self, ndim):
        """Return the sums over all rows; ``ndim`` axes are those of the sets."""
        return self.sums[self._along(ndim), -1]

    def size(self, ndim):
        """Return the numbers of rows, which go with arrays of so many axes."""
        return self.n_rows[self._along(ndim)]

    def of(self, which):
        """Return the sums of some of the sets of breakpoints."""
        return self._replace(series=self.series[which])

    def _along(self, ndim):
        return self.series.reshape(-1, *[1] * (ndim - 1))


class SortedRows(NamedTuple):
    """The rows themselves, without padding, for sums over every interval again."""

    x: np.ndarray  # (N,)
    y: np.ndarray  # (N, q) means of the targets of equal x
    weight: np.ndarray  # (N,)
    tie_variance: np.ndarray  # (q,) of targets at equal x, which no function explains


def sort_rows(rows, n_padded=None):
    """Sort the rows, merge those of equal x, and return their running sums."""
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
    # In blocks, whose sums start again: quick, and little is lost to rounding.
    for rows in row_slices(n):
        w, u, t = weight[rows], x[rows], y[rows].T
        wu, wt = w * u, w * t
        table = np.concatenate([[w, wu, wu * u, np.sum(wt * t, axis=0)], wt, u * wt])
        np.cumsum(table, axis=1, out=table)
        np.add(table.T, sums[rows.start], out=sums[rows.start + 1 : rows.stop + 1])
    sums[n + 1 :] = sums[n]
