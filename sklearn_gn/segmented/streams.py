"""Points that do not fit into memory: sums are kept, not points.

The range of x is cut into many bins. What a straight line over a bin has to do with the
points in it depends on five sums alone, those of 1, x, x^2, y and x y, which two points
with weights have too; the part of the squares of y that is left over is one number.
Bins in which a breakpoint lies are opened: their points are read again and kept. When
all breakpoints lie in open bins the sums are those of all points. Where other
breakpoints are almost as good, a fit of the points themselves may find those.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from sklearn_gn.data.chunks import MappedRows, one_column
from sklearn_gn.data.rows_source import fold_chunks
from sklearn_gn.data.tables import chunks_of

FEW = 1 << 17  # rows that are simply kept
MAPPED = 1 << 22  # rows from which on a memory-mapped array is read in chunks
N_BINS = 1 << 16
_CHUNK_ROWS = 1 << 20  # of a memory-mapped array
_NEIGHBOURS = 2  # bins on both sides of a breakpoint that are opened too
_MOST_ROUNDS = 6


class Points(NamedTuple):
    """Points in the order of x, and the sum of squares that they do not show."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    rest: float


def mapped_rows(X, y, sample_weight):
    """Return the chunks of X of dask, or of a large file; None of others."""
    if isinstance(X, np.memmap):
        if len(X) < MAPPED or X.reshape(len(X), -1).shape[1] != 1:
            return None
        return MappedRows(X, y, sample_weight, _CHUNK_ROWS)
    one = getattr(X, "shape", ())[1:] == (1,)
    return chunks_of(X, y, sample_weight) if one else None


def fit_points(chunks, known, fit):
    """Fit the points of chunks, which are gone through several times.

    ``fit`` takes Points and returns (answer, breakpoints); the last answer is returned.
    """
    low, high, n_rows, center = _range(chunks)
    if n_rows <= FEW or not high > low:
        return fit(_kept(chunks))[0]
    bins = Bins(chunks, low, high, center)
    bins.open(np.append(known, [low, high]))
    for _ in range(_MOST_ROUNDS):
        answer, t = fit(bins.points())
        if not bins.open(t):
            break
    return answer


class Bins:
    """Sums over the points in bins of x, and the points of open bins."""

    def __init__(self, chunks, low, high, center):
        self.chunks, self.low, self.center = chunks, low, center
        self.scale = N_BINS / (high - low)
        self.is_open = np.zeros(N_BINS, bool)
        self.own = [np.empty((3, 0))]  # x, y and weight of points in open bins
        of_chunk = partial(_sums_of, low, self.scale, center)
        sums, self.square = fold_chunks(chunks, of_chunk, _added)
        self.sums = np.array(sums)  # that of a worker is read-only

    def open(self, t):
        """Open the bins around breakpoints; return whether one was closed."""
        at, _ = _locate(self.low, self.scale, np.asarray(t))
        if np.all(self.is_open[at]):
            return False
        near = at[:, None] + np.arange(-_NEIGHBOURS, _NEIGHBOURS + 1)
        new = np.zeros(N_BINS, bool)
        new[np.clip(near, 0, N_BINS - 1)] = True
        new &= ~self.is_open
        of_chunk = partial(_points_in, new, self.low, self.scale, self.center)
        found = fold_chunks(self.chunks, of_chunk, _one_after_the_other)
        self.square -= float(found[2] @ found[1] ** 2)
        self.own = [np.concatenate([*self.own, found], axis=1)]
        self.sums[:, new] = 0
        self.is_open |= new
        return True

    def points(self):
        """Return the points of open bins, and two for each of the others."""
        index = np.flatnonzero(self.sums[0] > 0)
        weight, su, suu, sy, suy = self.sums[:, index]
        mean, level = su / weight, sy / weight
        variance = np.maximum(suu / weight - mean**2, 0)
        wide = variance > 1e-20
        slope = np.where(wide, suy / weight - mean * level, 0)
        slope /= np.where(wide, variance, 1)
        # Two points with weights 1 : c^2 that lie in the bin.
        std = np.sqrt(variance)
        c = np.where(wide, (1 - mean) / np.where(wide, std, 1), 1)
        c = np.where(wide, np.clip(1, std / np.maximum(mean, 1e-300), c), 1)
        u = np.stack([mean - std / c, mean + std * c])
        y = level + slope * (u - mean)
        share = np.stack([c**2, np.ones_like(c)]) / (1 + c**2)
        rest = self.square - float(weight @ (level**2 + slope**2 * variance))
        x = self.low + (index + np.clip(u, 0, 1)) / self.scale
        all_points = np.stack([x, y, weight * share]).reshape(3, -1)
        all_points = np.concatenate([all_points, *self.own], axis=1)
        x, y, weight = all_points[:, np.argsort(all_points[0], kind="stable")]
        return Points(x, y + self.center, weight, max(rest, 0.0))


def _locate(low, scale, x):
    """Return the bin of each point, and its place in there."""
    u = (x - low) * scale
    index = np.minimum(u.astype(np.intp), N_BINS - 1)
    return index, u - index


def _sums_of(low, scale, center, number, chunk):
    """Return sums of 1, u, u^2, y, u y for each bin, u in [0, 1], and that of y^2."""
    x, y, weight = points_of(number, chunk)
    index, u = _locate(low, scale, x)
    y = y - center
    terms = [None, u, u * u, y, u * y]
    if weight is not None:
        terms = [weight, *(weight * term for term in terms[1:])]
    sums = [np.bincount(index, term, minlength=N_BINS) for term in terms]
    return np.array(sums, dtype=float), float(terms[3] @ y)


def _added(a, b):
    return a[0] + b[0], a[1] + b[1]


def _points_in(bins, low, scale, center, number, chunk):
    """Return x, y and weights of the points in some bins, of shape (3, m)."""
    x, y, weight = points_of(number, chunk)
    kept = bins[_locate(low, scale, x)[0]]
    weight = np.ones(len(x)) if weight is None else weight
    return np.stack([x[kept], y[kept] - center, weight[kept]])


def _one_after_the_other(a, b):
    return np.concatenate([a, b], axis=1)


def _range(chunks):
    """Return the least and the largest x, the number of rows, and a mean of y."""
    found = fold_chunks(chunks, _range_of, _joined_ranges)
    if found is None or not found[3] > 0:
        raise ValueError("chunks hold no rows of positive weight.")
    low, high, n_rows, _, center = found
    return low, high, n_rows, center


def _range_of(number, chunk):
    x, y, weight = points_of(number, chunk)
    total = len(x) if weight is None else weight.sum()
    if not np.isfinite([x.sum(), y.sum(), total]).all():
        raise ValueError("chunks hold NaN or infinity, or sums that overflow.")
    if weight is not None and weight.min() < 0:
        raise ValueError("chunks hold negative weights.")
    return x.min(), x.max(), len(x), total, float(y.mean())


def _joined_ranges(a, b):
    return min(a[0], b[0]), max(a[1], b[1]), a[2] + b[2], a[3] + b[3], a[4]


def _kept(chunks):
    """Return the points themselves."""
    every = partial(_points_in, np.ones(N_BINS, bool), 0.0, 0.0, 0.0)
    x, y, weight = fold_chunks(chunks, every, _one_after_the_other)
    order = np.argsort(x, kind="stable")
    return Points(x[order], y[order], weight[order], 0.0)


def points_of(number, chunk):
    """Return x, y and the weights or None of a chunk."""
    arrays = [np.asarray(a, dtype=np.float64) for a in chunk]
    X = arrays[0][:, None] if arrays[0].ndim == 1 else arrays[0]
    if X.ndim != 2 or X.shape[1] != 1:
        raise ValueError(
            f"Chunk {number}: X has the shape {X.shape}; a fit of chunks takes one "
            "feature."
        )
    y, *weight = (
        one_column(a, f"Chunk {number}: {name}")
        for name, a in zip(("y", "weights"), arrays[1:], strict=False)
    )
    return X[:, 0], y, weight[0] if weight else None
