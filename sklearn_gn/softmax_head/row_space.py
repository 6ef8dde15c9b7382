r"""Heads of sparse features, as combinations of the rows.

The optimum of a head with a penalty is ``W = X^T A``: its columns are combinations of
the rows, with one factor for each row and class. Gradients and steps have the same
form, so a fit needs arrays of the size of the logits, however many features there are,
and of the features only the product of their Gram matrix with such an array,

    K A = X (X^T A),

by two sparse products for a few classes at a time. With an intercept the features are
centred, ``x - mean``, which never shows in the matrix: ``K`` stands between two
projections. A head to start from, which need not be such a combination, is one row
more.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import joblib
import numpy as np
from scipy import sparse

from sklearn_gn.softmax_head.head import AffineHead

_N_THREADS = joblib.cpu_count()
_ONE_THREAD = 2**24  # multiply-adds of a product that a second thread is not worth
_CLASSES = 64  # of a block: what is dense has a column for each feature and class


class Combination(NamedTuple):
    """Coefficients ``W = X^T rows + start * (the head to start from)``."""

    rows: np.ndarray  # (n, m)
    start: float

    def plus(self, factor, other):
        """Return this combination plus a multiple of another."""
        rows = other.rows.astype(self.rows.dtype, copy=False)
        return Combination(
            self.rows + self.rows.dtype.type(factor) * rows,
            self.start + float(factor) * other.start,
        )


class RowHead(NamedTuple):
    """A head whose coefficients are a combination of rows; see :func:`expand`."""

    weight: Combination
    bias: np.ndarray  # (m,) for centred features


class SparseRows(NamedTuple):
    """Weighted rows of sparse features.

    Only columns that hold something are kept, the most frequent first, since what
    belongs to these is then close together in memory.
    """

    x: sparse.csr_array  # (n, k) in the precision of the fit
    single: sparse.csr_array  # (n, k)
    columns: np.ndarray  # (k,) their numbers in the data
    n_features: int
    label: np.ndarray  # (n,)
    weight: np.ndarray  # (n,), sum one
    n_columns: int  # of the head
    intercept: bool
    start: np.ndarray | None  # (k, m) coefficients to start from


def sparse_rows(X, label, weight, n_columns, intercept, dtype):
    """Return the rows of a CSR matrix as a fit uses them."""
    X = sparse.csr_array(X)
    X.sum_duplicates()
    counts = np.bincount(X.indices, minlength=X.shape[1])
    columns = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    place = np.zeros(X.shape[1], X.indices.dtype)
    place[columns] = np.arange(len(columns))
    shape = len(weight), max(len(columns), 1)
    x = sparse.csr_array((X.data.astype(dtype), place[X.indices], X.indptr), shape)
    single = sparse.csr_array((x.data.astype(np.float32), x.indices, x.indptr), shape)
    return SparseRows(
        x, single, columns, X.shape[1], label, weight, n_columns, intercept, None
    )


class RowSpace:
    """Products with the Gram matrix of the rows, in two precisions.

    Parameters
    ----------
    rows : SparseRows
    """

    def __init__(self, rows):
        self.rows = rows
        self._matrices = {
            x.dtype: (x, sparse.csr_array(x.T)) for x in (rows.single, rows.x)
        }
        self.start = None
        if rows.start is not None:
            logits = self._centred(rows.x @ rows.start)
            self.start = logits, float(np.vdot(rows.start, rows.start))

    def image(self, c):
        """Return the logits of a combination, and its largest coefficient.

        The logits are those of the centred features, without an intercept.
        """
        x, transposed = self._matrices[c.rows.dtype]
        right = self._balanced(c.rows)
        out = np.empty_like(right)
        first = None if self.rows.start is None else self.rows.start * c.start

        def block(k):
            part = slice(k, k + width)
            weight = transposed @ np.ascontiguousarray(right[:, part])
            out[:, part] = x @ weight
            if first is not None:
                weight = weight + first[:, part]
            return np.max(np.abs(weight), initial=0.0)

        m = right.shape[1]
        n_threads = min(_N_THREADS, m) if x.nnz * m > _ONE_THREAD else 1
        width = max(1, min(_CLASSES, -(-m // n_threads)))
        blocks = range(0, m, width)
        if n_threads == 1:
            largest = max(map(block, blocks))
        else:
            with ThreadPoolExecutor(n_threads) as pool:
                largest = max(pool.map(block, blocks))
        out = self._centred(out)
        if c.start:
            out += out.dtype.type(c.start) * self.start[0].astype(out.dtype)
        return out, float(largest)

    def inner(self, c, image, other):
        """Return ``<V, W>`` of a combination, given by its logits too, and another."""
        found = float(np.vdot(image, other.rows))
        if self.start is not None and other.start:
            found += other.start * self._against_start(c)
        return found

    def _against_start(self, c):
        logits, square = self.start
        return float(np.vdot(logits, c.rows)) + c.start * square

    def _centred(self, values):
        if not self.rows.intercept:
            return values
        return values - (self.rows.weight.astype(values.dtype) @ values)[None, :]

    def _balanced(self, values):
        """Return the transpose of :meth:`_centred`, applied to values."""
        if not self.rows.intercept:
            return values
        share = self.rows.weight.astype(values.dtype)
        return values - share[:, None] * values.sum(axis=0)[None, :]


def with_start(rows, head):
    """Return the rows, which hold the coefficients of a head, and the head."""
    bias = head.bias
    zeros = np.zeros((len(rows.weight), len(bias)), bias.dtype)
    if not head.weight.any():
        return rows, RowHead(Combination(zeros, 0.0), bias)
    weight = head.weight[rows.columns]
    if rows.intercept:
        bias = bias + rows.weight @ (rows.x @ weight)
    return rows._replace(start=weight), RowHead(Combination(zeros, 1.0), bias)


def expand(head, rows):
    """Return a head of the rows by its coefficients for the features as given."""
    found, bias = np.zeros((rows.n_features, rows.n_columns)), head.bias
    right = head.weight.rows
    if rows.intercept:
        right = right - rows.weight[:, None] * right.sum(axis=0)[None, :]
    weight = rows.x.T @ right
    if head.weight.start:
        weight += head.weight.start * rows.start
    if rows.intercept:
        bias = bias - rows.weight @ (rows.x @ weight)
    if rows.n_columns > 1:  # a shift that all classes share means nothing
        bias = bias - bias.mean()
    found[rows.columns] = weight[: len(rows.columns)]
    return AffineHead(found, bias)
