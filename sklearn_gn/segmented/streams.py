"""Points as sums in bins of x, for more than fits into memory and for added rows.

What a straight line over a bin has to do with the points in it depends on five sums
alone, of 1, x, x^2, y and x y, which two points with weights have too; the part of the
squares of y that is left over is one number. Bins in which a breakpoint lies are
opened: their points themselves are used. When all breakpoints lie in open bins the sums
cover all points. Where other breakpoints are almost as good, a fit of the points
themselves may find those.

Points of chunks are read again where bins are opened; those that are added to a fit are
kept.
"""

from functools import partial

import numpy as np
from sklearn.utils.validation import _check_feature_names

from sklearn_gn.base import unchanged_on_failure
from sklearn_gn.data.chunks import first_chunk, one_column
from sklearn_gn.data.row_checks import RowChecks
from sklearn_gn.data.rows import check_sample_weight, chunks_of
from sklearn_gn.data.rows_source import fold_chunks
from sklearn_gn.data.tables import MappedRows
from sklearn_gn.segmented.fitted import is_of_fit, set_fit
from sklearn_gn.segmented.least_squares import two_rows
from sklearn_gn.segmented.preparation import (
    options_of,
    prepare,
    problem_of,
    read_more,
    refuse_parts,
)
from sklearn_gn.segmented.problem import sum_of_squares
from sklearn_gn.segmented.search import EXACT, delete_cheapest, descend, insert
from sklearn_gn.segmented.selection import find_of_one

MAPPED = 1 << 22  # rows from which on a memory-mapped array is read in chunks
N_BINS = 1 << 16
_FULL = 4  # rows of a bin, over the mean, at which bins are made anew


def mapped_rows(model, X, y, sample_weight):
    """Return the chunks of X of dask, or of a large file, if a model takes any."""
    try:
        refuse_parts(model, "")
    except ValueError:
        return None
    if isinstance(X, np.memmap):
        if len(X) < MAPPED or X.reshape(len(X), -1).shape[1] != 1:
            return None
        return MappedRows(X, y, sample_weight, MAPPED // 4)
    one = getattr(X, "shape", ())[1:] == (1,)
    return chunks_of(X, y, sample_weight) if one else None


class Bins:
    """Sums of 1, u, u^2, y, u y, y^2 over the rows in bins, in which u is in [0, 1]."""

    beside = 0  # bins on both sides of a breakpoint that are opened too

    def __init__(self, edges, center):
        self.edges, self.center = edges, center
        self.sums = np.zeros((6, len(edges) - 1))
        self.is_open = np.zeros(len(edges) - 1, bool)

    def open(self, t):
        """Open the bins of breakpoints; return whether one was closed."""
        at = np.searchsorted(self.edges[1:-1], t, side="right")
        if np.all(self.is_open[at]):
            return False
        near = at[:, None] + np.arange(-self.beside, self.beside + 1)
        self.is_open[np.clip(near, 0, len(self.is_open) - 1)] = True
        return True

    def points(self):
        """Return the rows of open bins, and two for each other, ready for a search."""
        index = np.flatnonzero((self.sums[0] > 0) & ~self.is_open)
        weight, su, suu, sy, suy, syy = self.sums[:, index]
        mean, level = su / weight, sy / weight
        variance = np.maximum(suu / weight - mean**2, 0)
        wide = variance > np.finfo(float).eps ** 1.25
        variance = np.where(wide, variance, 0)
        slope = suy / weight - mean * level
        slope = np.where(wide, slope / np.where(wide, variance, 1), 0)
        rest = float(np.sum(syy - weight * (level**2 + slope**2 * variance)))
        du, weight = two_rows(weight, variance, mean, 1 - mean)
        x = self.edges[index] + np.diff(self.edges)[index] * np.clip(mean + du, 0, 1)
        points = np.stack([x, level + slope * du, weight]).reshape(3, -1)
        x, y, weight = np.concatenate([points, self.rows()], axis=1)
        none = np.empty((len(x), 0))
        return prepare(x, y + self.center, none, weight, rest=max(rest, 0.0))

    def until_open(self, fit):
        """Fit the points until all breakpoints lie in open bins."""
        while True:
            answer, t = fit(self.points())
            if not self.open(t):
                return answer


def _terms(u, y, weight):
    of_u, of_y = weight * u, weight * y
    return weight, of_u, of_u * u, of_y, of_y * u, of_y * y


# --- chunks --------------------------------------------------------------------------


def fit(model, chunks):
    """Fit a model to the points of chunks, which are gone through several times."""
    refuse_parts(model, "{} needs all points at once, not chunks.")
    first = first_chunk(model, chunks)
    options = options_of(model, None)

    def search(prepared):
        found = find_of_one(model, prepared, options)
        return (prepared, found), prepared.scaling.to_user(found[2])

    found = fold_chunks(chunks, _range_of, np.maximum)
    if found is None or not found[2] > 0:
        raise ValueError("chunks hold no rows of positive weight.")
    low, high, center = -found[0], found[1], found[3]
    bins = ChunkBins(chunks, low, high, center)
    bins.open(np.append(options.known, [low, high]))
    prepared, found = bins.until_open(search)
    model.n_features_in_, model._columns = 1, [0]
    _check_feature_names(model, first[0], reset=True)
    set_fit(model, prepared, *found)


class ChunkBins(Bins):
    """Even bins of the points of chunks, which are read again where bins are opened."""

    beside = 2

    def __init__(self, chunks, low, high, center):
        step = (high - low if high > low else 1.0) / N_BINS
        super().__init__(low + np.arange(N_BINS + 1) * step, center)
        self.chunks, self.units = chunks, (low, step, center)
        self.sums[:] = fold_chunks(chunks, partial(_sums_of, *self.units), np.add)

    def rows(self):
        """Return x, y and weights of the points in open bins, (3, m)."""
        of_chunk = partial(_points_in, self.is_open, *self.units)
        return fold_chunks(self.chunks, of_chunk, partial(np.append, axis=1))


def _sums_of(low, step, center, number, chunk):
    x, y, weight = points_of(number, chunk)
    u = (x - low) / step
    index = np.minimum(u.astype(np.intp), N_BINS - 1)
    terms = _terms(u - index, y - center, weight)
    return np.array([np.bincount(index, each, minlength=N_BINS) for each in terms])


def _points_in(bins, low, step, center, number, chunk):
    x, y, weight = points_of(number, chunk)
    kept = bins[np.minimum(((x - low) / step).astype(np.intp), N_BINS - 1)]
    return np.stack([x[kept], y[kept] - center, weight[kept]])


def _range_of(number, chunk):
    """Return the least x times -1, the largest, the sum of weights, and a mean of y."""
    x, y, weight = points_of(number, chunk)
    total = weight.sum()
    if not np.isfinite([x.sum(), y.sum(), total]).all():
        raise ValueError("chunks hold NaN or infinity, or sums that overflow.")
    if weight.min() < 0:
        raise ValueError("chunks hold negative weights.")
    return np.array([-x.min(), x.max(), total, y.mean()])


def points_of(number, chunk):
    """Return x, y and the weights of a chunk."""
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
    return X[:, 0], y, weight[0] if weight else np.ones(len(y))


def update(model, X, y, sample_weight):
    """Add the rows of a user to a fitted model; they wait until it is read."""
    if not hasattr(model, "_kept"):
        text = "update needs the rows of a fit of one column: call fit before."
        raise ValueError(text)
    prepared, options = kept = model._kept
    form, text = options.form, "update cannot be combined with {}: fit all rows."
    refuse_parts(model, text)
    if form.step or form.flat_end or prepared.has_precisions:
        raise ValueError(text.format("jumps, a level last segment or y_std"))
    if prepared.rows.linear.shape[1]:
        raise ValueError(text.format("a fit of several features"))
    X, y = read_more(model, X, y, y_numeric=True)
    y, weight = y.astype(np.float64), check_sample_weight(sample_weight, X)
    stream = getattr(model, "_stream", None) or Stream(model)
    if not stream.waiting:  # the next rows begin with the breakpoints and their noise
        stream.t = model._fit.breakpoints[model._fit.free]
        stream.noise, stream.path = model._noise_of_fit, model.selection_path_
    stream.waiting.append(np.stack([X[:, 0], y, weight])[:, weight > 0])
    for name in filter(is_of_fit, [*vars(model)]):
        delattr(model, name)
    model._kept, model._stream = kept, stream


@unchanged_on_failure
def catch_up(model):
    """Fit the rows that wait, and set the attributes of the model."""
    stream = vars(model).pop("_stream")
    x, y, weight = np.concatenate(stream.waiting, axis=1)
    if len(x):
        stream.add(x, y, weight)
    stream.waiting = [np.empty((3, 0))]  # they are in bins, and still to be fitted
    found = stream.follow(model)
    if found is None:  # a search of all rows is worthwhile
        stream.is_open[:] = True
        prepared = stream.points()
        given = find_of_one(model, prepared, stream.options)
        stream.is_new, stream.checked = True, None
    else:
        prepared, t, problem = found
        given = stream.options, stream.path, t, prepared, problem, [stream.noise]
    set_fit(model, prepared, *given)
    stream.waiting = []
    model._kept, model._stream = (prepared, stream.options), stream
    model._row_checks = RowChecks(stream.n_rows)


class Stream(Bins):
    """Rows in bins of x, about as many in each as there are bins."""

    def __init__(self, model):
        prepared, self.options = model._kept
        rows, scaling = prepared.rows, prepared.scaling
        y = scaling.y_size * rows.y
        self._fill(
            np.stack([scaling.to_user(rows.x), y, rows.weight]), scaling.y_center
        )
        self.waiting = []  # rows (3, m) that nobody has asked for yet
        # What a search has not gained is no reason to search again.
        self.is_new, self.unavailable = False, 0.0
        # When last looked at: rows, squares, gain of a kink, and loss without one.
        self.checked = None

    def _fill(self, rows, center):
        """Put rows (3, n) in the order of x into bins."""
        self.n_rows = rows.shape[1]
        first = np.arange(0, self.n_rows, int(np.sqrt(self.n_rows)))
        first = first[np.append(True, np.diff(rows[0, first]) > 0)]
        super().__init__(np.append(rows[0, first], rows[0, -1]), center)
        self.bins = np.split(rows, first[1:], axis=1)
        self._sum_up(range(len(first)))

    def _sum_up(self, bins):
        for b in bins:
            x, y, weight = self.bins[b]
            width = self.edges[b + 1] - self.edges[b]
            u = (x - self.edges[b]) / (width if width > 0 else 1)
            self.sums[:, b] = [term.sum() for term in _terms(u, y, weight)]

    def add(self, x, y, weight):
        """Add rows (m,)."""
        self.edges[0] = min(self.edges[0], x.min())
        self.edges[-1] = max(self.edges[-1], x.max())
        at = np.searchsorted(self.edges[1:-1], x, side="right")
        rows = np.stack([x, y - self.center, weight])
        self.n_rows += len(x)
        for b in np.unique(at):
            self.bins[b] = np.concatenate([self.bins[b], rows[:, at == b]], axis=1)
        self._sum_up(np.unique(at))
        largest = max(self.bins[b].shape[1] for b in at)
        if largest > _FULL * (1 + self.n_rows / len(self.bins)):
            rows = np.concatenate(self.bins, axis=1)
            self._fill(rows[:, np.argsort(rows[0], kind="stable")], self.center)

    def rows(self):
        """Return x, y and weights of the rows in open bins, (3, m)."""
        own = [self.bins[b] for b in np.flatnonzero(self.is_open)]
        return np.concatenate([np.empty((3, 0)), *own], axis=1)

    def follow(self, model):
        """Return rows, their breakpoints and problem; None if a search is worthwhile.

        Kinks move from where they are to within a hundredth of a standard error. What
        the criterion would gain by others follows from the best place of one more, and
        from the loss without the cheapest. Rows that are added raise all sums of
        squares, so that until they could have closed the gap neither is looked at.
        """
        options = self.options

        def fit(prepared):
            problem, tol = problem_of([prepared], options, False), 1e-4 / self.n_rows
            t = prepared.scaling.x(self.t)[None]
            t, rss = descend(problem, t, sum_of_squares(problem, t), tol=tol)
            return (prepared, problem, t, rss), prepared.scaling.to_user(t[0])

        self.is_open[:] = False
        self.open(np.append(options.known, self.t))
        prepared, problem, t, rss = self.until_open(fit)
        n, k = prepared.rows.weight.sum() / self.noise.redundancy, t.shape[1]
        square = n * rss[0] * prepared.scaling.y_size**2
        gain, loss = np.inf, -np.inf  # no bounds are known
        if self.checked is not None:
            n_before, square_before, gain, loss = self.checked
            raised = n * np.log(max(square / square_before, 1))
            gain, loss = n / n_before * gain + raised, n / n_before * loss - raised
        price = 2 * (2.0 if model.criterion == "aic" else np.log(n))

        def excess():
            if model.n_breakpoints != "auto":
                return gain - loss  # of an exchange
            more = gain - price if k < model.max_breakpoints else -np.inf
            return max(more, price - loss)

        if excess() > self.unavailable:
            left = insert(problem.at(), t)[1][0]
            left = max(left, EXACT * rss[0])
            gain, loss = n * np.log(rss[0] / left), np.inf
            if k:
                loss = n * np.log(delete_cheapest(problem, t)[1][0] / rss[0])
            self.checked = n, square, gain, loss
            if self.is_new:
                self.unavailable = max(excess() + np.log(n), 0.0)
                self.is_new = False
            if excess() > self.unavailable:
                return None
        return prepared, t[0], problem
