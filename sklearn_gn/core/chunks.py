"""Rows in chunks: of memory-mapped and dask arrays, and of a user's iterables."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

_CHUNK_BYTES = 2**26  # of a memory-mapped array
MAPPED_BYTES = 2**30  # from which on a memory-mapped array is read in chunks


class MappedRows:
    """Chunks ``(X, y)`` or ``(X, y, weight)`` of an array on disk."""

    def __init__(self, X, y, sample_weight=None):
        self.arrays = [X, y] + ([] if sample_weight is None else [sample_weight])
        self._size = max(1, _CHUNK_BYTES // max(X.itemsize * X.shape[1], 1))

    def __iter__(self):
        """Yield views of the arrays, which are read where they are used."""
        for start in range(0, len(self.arrays[0]), self._size):
            yield tuple(array[start : start + self._size] for array in self.arrays)


class DaskRows:
    """Chunks of a dask array: its blocks of rows, computed one at a time."""

    def __init__(self, X, y, sample_weight=None):
        self.X = X.rechunk({1: -1})
        self.others = [y] + ([] if sample_weight is None else [sample_weight])

    def __iter__(self):
        """Yield blocks as numpy arrays."""
        start = 0
        for number, size in enumerate(self.X.chunks[0]):
            X = np.asarray(self.X.blocks[number])
            part = slice(start, start + size)
            yield (X, *(np.asarray(array[part]) for array in self.others))
            start += size


def is_dask(array):
    """Return whether an array is one of dask."""
    return type(array).__module__.startswith("dask.array")


def chunks_of(X, y, sample_weight=None):
    """Return the chunks of an array on disk, or None for one in memory."""
    if is_dask(X) and X.ndim == 2:
        return DaskRows(X, y, sample_weight)
    if isinstance(X, np.memmap) and X.ndim == 2 and X.nbytes >= MAPPED_BYTES:
        return MappedRows(X, y, sample_weight)
    return None


def prefetched(chunks):
    """Yield what an iterable yields; the next one is made meanwhile."""
    iterator, end = iter(chunks), object()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, iterator, end)
        while (chunk := coming.result()) is not end:
            coming = pool.submit(next, iterator, end)
            yield chunk
