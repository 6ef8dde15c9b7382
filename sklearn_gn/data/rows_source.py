"""Rows that do not fit into memory and are read again for every sum.

:class:`CheckedRows` are the chunks of a user, checked as they are read, and
:class:`RowSource` the same rows in the units of a fit. Chunks are cut into parts of one
length, so that no sum depends on how the rows came. What is summed of a block of an
engine with workers (:mod:`sklearn_gn.data.tables`) is computed where the block lives.

The first look at the rows, a :class:`Survey`, has their number and a sample: the
distinct rows with the smallest hashes, which depend on neither the order nor the
multiplicity of rows. Other hashes give further samples.
"""

import functools
import operator
from functools import partial
from typing import NamedTuple

import numpy as np

from sklearn_gn.arrays.libraries import NumPy
from sklearn_gn.arrays.threads import one_blas_thread
from sklearn_gn.data.chunks import checked_chunk, numbered, prefetched
from sklearn_gn.data.row_checks import row_codes
from sklearn_gn.data.tables import engine_of
from sklearn_gn.optim.solver import Rows

_PART_ROWS, _PART_NUMBERS = 2**14, 2**22  # at most
_SAMPLE_ROWS, SAMPLE_NUMBERS = 2**16, 2**24  # at most
BLOCK_ROWS = 2048  # whose products stay in the processor's cache


_NO_ROWS = Rows(None, None, None)
_added = partial(NumPy.tree_map, operator.add)  # of arrays, or of tuples of arrays


class Sample(NamedTuple):
    """Distinct rows, their weights summed over all copies."""

    number: np.ndarray  # (m,) of the first copy, counted from 0
    weight: np.ndarray
    X: np.ndarray
    y: np.ndarray
    is_complete: bool  # whether these are all distinct rows


class Survey(NamedTuple):
    """What one pass over the rows has seen."""

    n_rows: int  # with positive weight
    total: float  # of the weights
    sample: Sample


class CheckedRows:
    """Chunks ``(X, targets, weight)`` in the user's units, checked as they are read.

    Targets have the shape (m, n_targets). Chunks without weight are left out. The
    ``labels`` are what :func:`sklearn_gn.data.chunks.checked_chunk` needs of classes.
    """

    def __init__(self, chunks, n_features, n_targets=1, **labels):
        self.chunks, words = chunks, {"n_features": n_features, "n_targets": n_targets}
        self._check = partial(checked_chunk, **words, **labels)

    @classmethod
    def of_classes(cls, chunks, classifier):
        """Return rows with class numbers, and weights times class weights."""
        classes, of_class = classifier.classes_, classifier.class_weight or {}
        factors = np.array([of_class.get(label, 1.0) for label in classes])
        return cls(chunks, classifier.n_features_in_, classes=classes, factors=factors)

    def __iter__(self):
        """Yield the chunks, from the first one on."""
        return filter(None, (self._check(*chunk) for chunk in numbered(self.chunks)))

    def fold(self, function, join):
        """Return ``function(X, y, weight)`` of all parts, joined; None without rows."""
        if engine_of(self.chunks) is None:
            parts = prefetched(even_parts(self))  # the next one is read meanwhile
            return _joined(join, (function(*part) for part in parts))
        task = partial(_of_block, self._check, function, join)
        return fold_chunks(self.chunks, task, join)

    def survey(self, most=None, draw=0):
        """Return the :class:`Survey`, with a sample by the hash of number ``draw``."""
        limits = (_SAMPLE_ROWS, SAMPLE_NUMBERS) if most is None else (most, 2**62)
        found = self.fold(partial(_Seen, limits, draw), _Seen.joined)
        if found is None or found.n_rows == 0:
            raise ValueError("chunks hold no rows of positive weight.")
        found.merge()
        _, *arrays = found.pieces[0]
        sample = Sample(*arrays, is_complete=found.limit is None)
        total = min(float(np.sum(found.totals)), np.finfo(np.float64).max)
        return Survey(found.n_rows, total, sample)


class RowSource:
    """Rows in the units of a fit, which are gone through part by part.

    The weights of the ``sample``, in these units, sum all copies over the total. Parts
    are rows of its kind: on a device, if it is.
    """

    def __init__(self, rows, scaling, found, sample):
        self._rows, self.n_rows, self.sample = rows, found.n_rows, sample
        kind = (sample or _NO_ROWS)._replace(**_NO_ROWS._asdict())
        self._in_units = partial(_in_units, kind, scaling, found.total)

    def __iter__(self):
        """Yield parts as :class:`Rows`; the weights of all of them sum to one."""
        return prefetched(self._in_units(*part) for part in even_parts(self._rows))

    def reduce(self, function, theta, size=None):
        """Return the sum of ``function(theta, rows)``, which a cluster pickles."""
        of_part = partial(_of_part, function, theta, size, self._in_units)
        return self._rows.fold(of_part, _added)


def reduce(function, theta, rows, size):
    """Return the sum of ``function(theta, block)``, of arrays, or a tuple of sums.

    The rows may be a source; ``size`` is the largest number of a block, None is all.
    """
    if isinstance(rows, RowSource):
        return rows.reduce(function, theta, size)
    blocks = [rows] if size is None else row_blocks(rows, size)
    return functools.reduce(_added, (function(theta, block) for block in blocks))


def row_blocks(rows, size=BLOCK_ROWS):
    """Yield rows, also from a source, in blocks of at most ``size``."""
    for part in rows if isinstance(rows, RowSource) else [rows]:
        for start in range(0, len(part.x), size):
            yield Rows(*(array[start : start + size] for array in part))


def _of_part(function, theta, size, in_units, *part):
    return reduce(function, theta, in_units(*part), size)


def _in_units(kind, scaling, total, X, y, weight):
    return kind._replace(x=scaling.x(X), y=scaling.y(y), weight=weight / total)


# --- parts of one length -------------------------------------------------------------


def even_parts(chunks):
    """Yield rows of chunks ``(X, y, weight)`` in float64, in parts of one length."""
    pieces, missing = [], None
    for chunk in chunks:
        start = 0
        while start < len(chunk[0]):
            if missing is None:
                size = missing = part_length(chunk[0].shape[1])
            piece = tuple(array[start : start + missing] for array in chunk)
            pieces.append(piece)
            start, missing = start + missing, missing - len(piece[0])
            if missing == 0:
                yield _in_one(pieces)
                pieces, missing = [], size
    if pieces:
        yield _in_one(pieces)


def part_length(n_features):
    """Return the number of rows of a part, a power of two."""
    fitting = max(1, _PART_NUMBERS // n_features)
    return min(_PART_ROWS, 1 << fitting.bit_length() - 1)


def blockwise(function, x, n_numbers=1000):
    """Return a function of rows, block by block, where a row takes so many numbers."""
    size = part_length(n_numbers)
    starts = range(0, max(len(x), 1), size)
    return np.concatenate([function(x[start : start + size]) for start in starts])


def _in_one(pieces):
    arrays = zip(*pieces, strict=True)
    joined = (a[0] if len(a) == 1 else np.concatenate(a) for a in arrays)
    # The bits of sums may depend on the order of an array in memory.
    return tuple(np.ascontiguousarray(a, dtype=np.float64) for a in joined)


# --- on the workers of a cluster -----------------------------------------------------


def fold_chunks(chunks, function, join):
    """Return ``function(number, chunk)`` of all chunks, joined, where these live."""
    engine = engine_of(chunks)
    if engine is None:
        return _joined(join, (function(*one) for one in numbered(chunks)))
    task = partial(_of_handle, chunks.chunk_of, function)
    handles = enumerate(chunks.handles())
    level = [engine.call(task, number, handle) for number, handle in handles]
    while len(level) > 1:
        pairs = (level[k : k + 2] for k in range(0, len(level), 2))
        level = [engine.call(partial(_joined_here, join), *pair) for pair in pairs]
    return engine.result(level[0]) if level else None


def _of_handle(chunk_of, function, number, handle):
    chunk = handle if chunk_of is None else chunk_of(handle)
    with one_blas_thread(), np.errstate(all="ignore"):
        for _, rows in numbered([chunk], number):
            return function(number, rows)


def _joined_here(join, *found):
    return _joined(join, found)


def _of_block(check, function, join, number, chunk):
    """Return ``function(X, y, weight)`` of the parts of a block; None without rows."""
    parts = even_parts(filter(None, [check(number, chunk)]))
    return _joined(join, (function(*part) for part in parts))


def _joined(join, found):
    """Return what is found, joined two by two; None where nothing is."""
    known = (one for one in found if one is not None)
    first = next(known, None)
    return None if first is None else functools.reduce(join, known, first)


# --- the first look ------------------------------------------------------------------


class _Seen:
    """What is seen of some rows: their number, and those with the smallest hashes."""

    def __init__(self, limits, draw, X, y, weight):
        n_rows, n_numbers = limits  # of a sample
        self.most = min(n_rows, max(1, n_numbers // (X.shape[1] + y.shape[1])))
        self.limit = None  # of the hashes
        self.n_rows, self.totals = np.count_nonzero(weight), [weight.sum()]
        self.n_seen = len(X)
        code = row_codes(X, y, draw)
        # Mixed as by splitmix64: their order tells nothing of the rows.
        code = (code ^ (code >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        code = (code ^ (code >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        code = code ^ (code >> np.uint64(31))
        number = np.arange(len(X))
        self.pieces = [tuple(a[weight > 0] for a in (code, number, weight, X, y))]
        self._n_new = len(self.pieces[0][0])

    def joined(self, other):
        """Return what is seen of these rows, and of others that come after them."""
        for code, number, *arrays in other.pieces:
            piece = (code, number + self.n_seen, *arrays)
            if self.limit is not None:
                piece = tuple(a[code <= self.limit] for a in piece)
            self.pieces.append(piece)
            self._n_new += len(piece[0])
        self.n_rows += other.n_rows
        self.n_seen += other.n_seen
        self.totals += other.totals
        limits = [one.limit for one in (self, other) if one.limit is not None]
        self.limit = min(limits, default=None)
        if self._n_new > self.most // 2:
            self.merge()
        return self

    def merge(self):
        """Make one row of copies, and leave out rows that are too many."""
        pieces = zip(*self.pieces, strict=True)
        code, number, weight, X, y = map(np.concatenate, pieces)
        order = np.argsort(code, kind="stable")
        code = code[order]
        new = np.ones(len(code), dtype=bool)
        alike = 1 + np.flatnonzero(code[1:] == code[:-1])
        here, before = order[alike], order[alike - 1]
        new[alike] = (X[here] != X[before]).any(axis=1) | (y[here] != y[before]).any(1)
        first = np.flatnonzero(new)
        weight = np.add.reduceat(weight[order], first)
        if len(first) > self.most:
            first, weight = first[: self.most], weight[: self.most]
            self.limit = code[first[-1]]
        code, order = code[first], order[first]
        self.pieces = [(code, number[order], weight, X[order], y[order])]
        self._n_new = 0
