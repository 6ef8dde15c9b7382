"""Weighted rows that do not fit into memory: a sample of them, and sums over all.

Chunks are cut into parts of one length, so that neither the sample nor a sum depends on
how the rows came. The sample holds the distinct rows with the smallest hashes: which
ones these are does not depend on the order or the multiplicity of rows either.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.core.chunks import prefetched
from sklearn_gn.core.data import check_differences, row_codes, total_weight
from sklearn_gn.core.extremes import largest_size
from sklearn_gn.core.solver import Rows

_SAMPLE_ROWS = 2**16
_SAMPLE_NUMBERS = 2**24  # at most
_PART_ROWS, _LEAST_PART_ROWS = 2**14, 2**11  # multiples of the blocks of sums
_PART_NUMBERS = 2**22  # at most, unless that were less rows


# --- parts of one length -------------------------------------------------------------


def even_parts(chunks):
    """Yield the rows of chunks ``(X, y, weight)`` in float64, in parts of one length.

    The last one may be shorter.
    """
    pieces, missing = [], None
    for chunk in chunks:
        start, end = 0, len(chunk[0])
        while start < end:
            if missing is None:
                size = missing = part_length(chunk[0].shape[1])
            piece = tuple(array[start : start + missing] for array in chunk)
            pieces.append(piece)
            start, missing = start + missing, missing - len(piece[0])
            if missing == 0:
                yield _joined(pieces)
                pieces, missing = [], size
    if pieces:
        yield _joined(pieces)


def part_length(n_features):
    """Return the number of rows of a part, a power of two."""
    fitting = _PART_NUMBERS // n_features
    return min(_PART_ROWS, max(_LEAST_PART_ROWS, 1 << fitting.bit_length() - 1))


def _joined(pieces):
    arrays = zip(*pieces, strict=True)
    joined = (a[0] if len(a) == 1 else np.concatenate(a) for a in arrays)
    # The bits of sums may depend on the order of an array in memory.
    return tuple(np.ascontiguousarray(a, dtype=np.float64) for a in joined)


# --- the first look at all rows ------------------------------------------------------


class Survey(NamedTuple):
    """What one pass over the chunks has seen."""

    n_rows: int  # with positive weight
    total: float  # of the weights
    largest: float  # absolute value in X and y
    sample: "Sample"


class Sample(NamedTuple):
    """Distinct rows, their weights summed over all copies."""

    number: np.ndarray  # (m,) of the first copy, counted from 0
    weight: np.ndarray
    X: np.ndarray
    y: np.ndarray
    is_complete: bool  # whether these are all distinct rows


def survey(chunks):
    """Return the :class:`Survey` of chunks ``(X, y, weight)``."""
    drawn, n_seen, n_rows, totals, largest = None, 0, 0, [], 0.0
    for X, y, weight in prefetched(even_parts(chunks)):
        check_differences("X", X)
        check_differences("y", y)
        if drawn is None:
            drawn = _SmallestHashes(sample_size(X.shape[1] + y.shape[1]))
        drawn.add(np.arange(n_seen, n_seen + len(X)), weight, X, y)
        n_seen, n_rows = n_seen + len(X), n_rows + np.count_nonzero(weight)
        totals.append(total_weight(weight))
        largest = max(largest, largest_size(X), largest_size(y))
    if n_rows == 0:
        raise ValueError("chunks hold no rows of positive weight.")
    total = total_weight(np.array(totals))
    return Survey(n_rows, total, largest, drawn.sample())


def sample_size(n_columns):
    """Return the most rows of a sample."""
    return min(_SAMPLE_ROWS, max(1, _SAMPLE_NUMBERS // n_columns))


class _SmallestHashes:
    """Draws the sample.

    Parameters
    ----------
    most : int
        Number of rows.
    """

    def __init__(self, most):
        self.most, self.limit = most, None
        self._pieces, self._n_new = [], 0

    def add(self, number, weight, X, y):
        """Look at further rows."""
        code = _mixed(row_codes(X, y))
        kept = weight > 0
        if self.limit is not None:
            kept &= code <= self.limit
        if not kept.any():
            return
        self._pieces.append(tuple(a[kept] for a in (code, number, weight, X, y)))
        self._n_new += len(self._pieces[-1][0])
        if self._n_new > self.most // 2:
            self._merge()

    def sample(self):
        """Return the :class:`Sample`."""
        self._merge()
        return Sample(*self._pieces[0][1:], is_complete=self.limit is None)

    def _merge(self):
        """Make one row of copies, and leave out rows that are too many."""
        code, number, weight, X, y = map(
            np.concatenate, zip(*self._pieces, strict=True)
        )
        order = np.argsort(code, kind="stable")
        code = code[order]
        new = np.ones(len(code), dtype=bool)
        alike = 1 + np.flatnonzero(code[1:] == code[:-1])
        one, other = order[alike], order[alike - 1]
        new[alike] = np.any(X[one] != X[other], axis=1)
        new[alike] |= np.any(y[one] != y[other], axis=1)
        first = np.flatnonzero(new)
        weight = np.add.reduceat(weight[order], first)
        if len(first) > self.most:
            first, weight = first[: self.most], weight[: self.most]
            self.limit = code[first[-1]]
        code, order = code[first], order[first]
        self._pieces = [(code, number[order], weight, X[order], y[order])]
        self._n_new = 0


def _mixed(code):
    """Return hashes whose order tells nothing of the rows (the mixer of splitmix64)."""
    code = (code ^ (code >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    code = (code ^ (code >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return code ^ (code >> np.uint64(31))


# --- all rows ------------------------------------------------------------------------


class ChunkedRows:
    """Rows in scaled units, read again whenever they are gone through.

    Parameters
    ----------
    chunks : CheckedChunks
    scaling : object
        Its methods ``x`` and ``y`` give features and targets in scaled units.
    found : Survey
    sample : Rows
        The sample in these units, its weights those of all copies over the total.
    """

    def __init__(self, chunks, scaling, found, sample):
        self._chunks, self._scaling, self._total = chunks, scaling, found.total
        self.n_rows, self.sample = found.n_rows, sample

    def __iter__(self):
        """Yield parts as :class:`Rows`; the weights of all of them sum to one."""
        return prefetched(self._parts())

    def _parts(self):
        for X, y, weight in even_parts(self._chunks):
            yield Rows(self._scaling.x(X), self._scaling.y(y), weight / self._total)


def row_blocks(rows, size):
    """Yield rows, those of chunks too, in blocks of at most ``size``."""
    for part in rows if isinstance(rows, ChunkedRows) else [rows]:
        for start in range(0, len(part.x), size):
            yield Rows(*(array[start : start + size] for array in part))


def n_rows_of(rows):
    """Return the number of rows."""
    return rows.n_rows if isinstance(rows, ChunkedRows) else len(rows.x)
