"""Hashes of the rows of a table, and their comparison."""

import numpy as np

_BLOCK = 2**15  # numbers at a time


def row_codes(X, y):
    """Return a 64-bit hash of each row; equal rows have equal ones."""
    n_columns = X.shape[1] + y.shape[1]
    factors = np.random.RandomState(0).randint(2**62, size=n_columns, dtype=np.int64)
    factors = 2 * factors.astype(np.uint64) + np.uint64(1)
    code = np.empty(len(X), dtype=np.uint64)
    # Blocks that stay in the processor's cache, always in the same memory.
    size = max(1, _BLOCK // n_columns)
    table = np.empty((size, n_columns))
    shifted = np.empty((size, n_columns), dtype=np.uint64)
    for start in range(0, len(X), size):
        part = slice(start, start + size)
        block = np.concatenate([X[part], y[part]], axis=1, out=table[: len(X[part])])
        block += 0.0  # -0.0 becomes 0.0
        bits, mixed = block.view(np.uint64), shifted[: len(block)]
        # Wrap-around is meant; the shift lets the high bits take part.
        np.right_shift(bits, np.uint64(29), out=mixed)
        code[part] = np.bitwise_xor(bits, mixed, out=mixed) @ factors
    return code


def differ(X, y, some, others):
    """Whether rows, given by their numbers, differ from others."""
    return np.any(X[some] != X[others], axis=1) | np.any(y[some] != y[others], axis=1)
