"""Cholesky factors of large matrices in NumPy, in threads.

SciPy's functions hold the interpreter's lock, so those of BLAS and LAPACK are called
where they stand, as SciPy lends them to Cython. The matrix is divided by its size
alone: the factor does not depend on the number of threads.
"""

import ctypes
from ctypes import c_char_p, c_double, c_int, c_void_p
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cython_blas, cython_lapack

from sklearn_gn.arrays.threads import in_threads

LEAST = 1000  # rows; smaller matrices are factored in some milliseconds
_WIDTH, _ROWS = 192, 384  # of a panel; of the blocks below it


def in_panels(factor):
    """Put the lower Cholesky factor of a matrix, stored by columns, in its place.

    NaN where there is none.
    """
    n = len(factor)
    for start in range(0, n, _WIDTH):
        panel = _Panel(factor, start, min(start + _WIDTH, n))
        if not panel.is_factored():
            return np.full_like(factor, np.nan)
        below = [slice(k, min(k + _ROWS, n)) for k in range(panel.stop, n, _ROWS)]
        in_threads([partial(panel.divide, rows) for rows in below])
        pairs = [(rows, own) for k, own in enumerate(below) for rows in below[k:]]
        in_threads([partial(panel.subtract, *pair) for pair in pairs])
        panel.clear_above()
    return factor


class _Panel(NamedTuple):
    """Columns of a matrix that stands in memory column by column."""

    matrix: np.ndarray  # kept for threads that work on when Ctrl-C ends the wait
    start: int  # columns
    stop: int

    def is_factored(self):
        """Factor the block of the diagonal; whether it is positive definite."""
        width, failed = c_int(self.stop - self.start), c_int()
        _functions().potrf(b"L", width, *self._at(self.start, self.start), failed)
        return failed.value == 0

    def divide(self, rows):
        """Divide rows below the block of the diagonal by its factor."""
        sizes = c_int(rows.stop - rows.start), c_int(self.stop - self.start)
        factor, own = (self._at(k, self.start) for k in (self.start, rows.start))
        of_right_transpose = b"R", b"L", b"T", b"N"
        _functions().trsm(*of_right_transpose, *sizes, c_double(1), *factor, *own)

    def subtract(self, rows, columns):
        """Subtract the panel's share of a block of the columns that follow."""
        height, width = c_int(rows.stop - rows.start), c_int(self.stop - self.start)
        left, right = (self._at(k.start, self.start) for k in (rows, columns))
        found = c_double(1), *self._at(rows.start, columns.start)
        if rows == columns:
            _functions().syrk(b"L", b"N", height, width, c_double(-1), *left, *found)
            return
        sizes = height, c_int(columns.stop - columns.start), width
        _functions().gemm(b"N", b"T", *sizes, c_double(-1), *left, *right, *found)

    def clear_above(self):
        """Put zeros above the diagonal, where those of the matrix still are."""
        own = self.matrix[self.start : self.stop, self.start : self.stop]
        own[...] = np.tril(own)
        self.matrix[: self.start, self.start : self.stop] = 0

    def _at(self, row, column):
        """A block that begins here, as BLAS takes it."""
        n = len(self.matrix)
        return self.matrix.ctypes.data + 8 * (row + column * n), c_int(n)


class _Functions(NamedTuple):
    """Of BLAS and LAPACK, in double precision."""

    potrf: Any
    trsm: Any
    syrk: Any
    gemm: Any


@cache
def _functions():
    size, factor = ctypes.POINTER(c_int), ctypes.POINTER(c_double)
    char, block = c_char_p, (c_void_p, size)
    return _Functions(
        _lent(cython_lapack, "dpotrf", char, size, *block, size),
        _lent(cython_blas, "dtrsm", *4 * [char], size, size, factor, *block, *block),
        _lent(
            *(cython_blas, "dsyrk", char, char, size, size),
            *(factor, *block, factor, *block),
        ),
        _lent(
            *(cython_blas, "dgemm", char, char, size, size, size),
            *(factor, *block, *block, factor, *block),
        ),
    )


def _lent(module, name, *types):
    """A function of SciPy for Cython, with arguments of these types."""
    capsule = module.__pyx_capi__[name]
    get = ctypes.PYFUNCTYPE(c_char_p, ctypes.py_object)
    signature = get(("PyCapsule_GetName", ctypes.pythonapi))(capsule)
    get = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)
    address = get(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, signature)
    return ctypes.CFUNCTYPE(None, *types)(address)
