"""Weighted rows that do not fit into memory, and are read again for every sum.

Chunks are cut into parts of one length, so that no sum depends on how the rows came.
"""

import numpy as np

from sklearn_gn.data.chunks import prefetched
from sklearn_gn.optim.solver import Rows

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
