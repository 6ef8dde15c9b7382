"""Rows that come in chunks: a random sample of them, and blocks of equal length.

Neither depends on how the rows are cut into chunks.
"""

import numpy as np


class RowSample:
    """A random sample of rows without replacement, drawn while they go by.

    Every row gets a random number, and those with the smallest ones are kept.

    Parameters
    ----------
    n_most : int
        The size of the sample; of fewer rows it has all.
    seed : int

    Attributes
    ----------
    n_seen : int
        Number of rows that have gone by.
    """

    def __init__(self, n_most, seed):
        self.n_seen = 0
        self._n_most = n_most
        self._rng = np.random.RandomState(seed)
        self._arrays, self._numbers = None, np.empty(0)
        self._order = None

    def __len__(self):
        return len(self._numbers)

    @property
    def is_complete(self):
        """Whether no row is left out."""
        return self.n_seen == len(self)

    def n_more(self, n_rows):
        """Return by how many rows the sample grows at most where some go by."""
        return min(self._n_most, len(self) + n_rows) - len(self)

    def add(self, *arrays):
        """Let the rows of some arrays go by."""
        numbers = self._rng.random_sample(len(arrays[0]))
        before = len(self)
        joined = np.concatenate([self._numbers, numbers])
        kept = np.ones(len(joined), bool)
        if len(joined) > self._n_most:
            kept[np.argpartition(joined, self._n_most)[self._n_most :]] = False
        new = np.flatnonzero(kept[before:])
        slots = np.concatenate(
            [np.flatnonzero(~kept[:before]), np.arange(before, kept.sum())]
        )
        self._numbers = joined[: kept.sum()]
        self._numbers[slots] = numbers[new]
        self._put(arrays, slots, new)
        self.n_seen += len(numbers)
        self._order = None

    def _put(self, arrays, slots, new):
        if self._arrays is None:
            self._arrays = [np.empty((0, *a.shape[1:]), a.dtype) for a in arrays]
        for k, given in enumerate(arrays):
            own = self._arrays[k]
            dtype = np.result_type(own, given)
            if len(self) > len(own) or dtype != own.dtype:
                self._arrays[k] = own = _enlarged(own, len(self), self._n_most, dtype)
            own[slots] = given[new]

    def rows(self, part=slice(None)):
        """Return arrays of the rows, or of a part of them, in their random order.

        Parameters
        ----------
        part : slice or ndarray of int
            Places in the order, in which each row is as likely anywhere.
        """
        if self._order is None:
            self._order = np.argsort(self._numbers)
        return tuple(array[self._order[part]] for array in self._arrays)


def _enlarged(array, least, most, dtype):
    """Return an array with room for more rows, of another type where it must be."""
    room = min(max(least, 2 * len(array)), most)
    larger = np.empty((room, *array.shape[1:]), dtype)
    larger[: len(array)] = array
    return larger


def blocks_of(chunks, n_rows):
    """Yield the rows of chunks in blocks of ``n_rows``; the last one may be shorter.

    Parameters
    ----------
    chunks : iterable of tuples of arrays
        Their rows follow each other as if they were one table.
    n_rows : int
    """
    waiting, n_waiting = [], 0
    for chunk in chunks:
        start = 0
        while start < len(chunk[0]):
            part = slice(start, start + n_rows - n_waiting)
            waiting.append([array[part] for array in chunk])
            n_waiting += len(waiting[-1][0])
            start = part.stop
            if n_waiting == n_rows:
                yield _joined(waiting)
                waiting, n_waiting = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(parts):
    if len(parts) == 1:
        return tuple(parts[0])
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
