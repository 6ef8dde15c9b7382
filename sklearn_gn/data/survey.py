"""The first look at rows that do not fit into memory: their number, and a sample.

The sample holds the distinct rows with the smallest hashes. Which ones these are
depends on neither the order nor the multiplicity of rows, nor on how they are cut into
chunks. Other hashes give further samples.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.arrays.extremes import largest_size
from sklearn_gn.data.chunked_rows import even_parts
from sklearn_gn.data.chunks import prefetched
from sklearn_gn.data.hashing import row_codes
from sklearn_gn.data.rows import check_differences, differ, total_weight

_SAMPLE_ROWS = 2**16
_SAMPLE_NUMBERS = 2**24  # at most
_GOLDEN = 0x9E3779B97F4A7C15  # between the hashes of two draws, as in splitmix64


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


def survey(chunks, most=None):
    """Return the :class:`Survey` of chunks ``(X, y, weight)``.

    ``most`` is the largest number of rows of the sample; None is :func:`sample_size`.
    """
    drawn, n_seen, n_rows, totals, largest = None, 0, 0, [], 0.0
    for X, y, weight in prefetched(even_parts(chunks)):
        check_differences("X", X)
        check_differences("y", y)
        if drawn is None:
            most = sample_size(X.shape[1] + y.shape[1]) if most is None else most
            drawn = _SmallestHashes(most)
        drawn.add(np.arange(n_seen, n_seen + len(X)), weight, X, y)
        n_seen, n_rows = n_seen + len(X), n_rows + np.count_nonzero(weight)
        totals.append(total_weight(weight))
        largest = max(largest, largest_size(X), largest_size(y))
    if n_rows == 0:
        raise ValueError("chunks hold no rows of positive weight.")
    total = total_weight(np.array(totals))
    return Survey(n_rows, total, largest, drawn.sample())


def further_sample(chunks, most, draw):
    """Return the sample of another draw; that of :func:`survey` is draw 0."""
    drawn, n_seen = _SmallestHashes(most, draw), 0
    for X, y, weight in prefetched(even_parts(chunks)):
        drawn.add(np.arange(n_seen, n_seen + len(X)), weight, X, y)
        n_seen += len(X)
    return drawn.sample()


def sample_size(n_columns):
    """Return the most rows of a sample."""
    return min(_SAMPLE_ROWS, max(1, _SAMPLE_NUMBERS // n_columns))


class _SmallestHashes:
    """Draws the sample.

    Parameters
    ----------
    most : int
        Number of rows.
    draw : int, default=0
        Number of the hash.
    """

    def __init__(self, most, draw=0):
        self.most, self.limit = most, None
        self._shift = np.uint64(_GOLDEN * draw % 2**64)
        self._pieces, self._n_new = [], 0

    def add(self, number, weight, X, y):
        """Look at further rows."""
        code = _mixed(row_codes(X, y) + self._shift)
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
        new[alike] = differ(X, y, order[alike], order[alike - 1])
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
