r"""Heads of sparse features, as combinations of the rows.

The optimum of a head with a penalty is ``W = X^T A``: its columns are combinations of
the rows, with one factor for each row and class. Gradients and steps have the same
form, so a fit needs arrays of the size of the logits, however many features there are,
and of the features only the product of their Gram matrix with such an array,

    K A = X (X^T A),

by two sparse products for a few classes at a time. Of a feature that one row alone has,
as half of the word pairs of a text are, the square on the diagonal of K is all that
matters. With an intercept the features are centred, ``x - mean``, which never shows in
the matrix: ``K`` stands between two projections. A head to start from, which need not
be such a combination, is one row more.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy import sparse

from sklearn_gn.arrays.threads import in_threads, share
from sklearn_gn.softmax_head.head import AffineHead

_ONE_THREAD = 2**24  # multiply-adds of a product that a second thread is not worth
_LARGEST = 1e15  # of the features, whose products are summed in single precision
_CLASSES = 64  # of a block: what is dense has a column for each feature and class


class RowVector(NamedTuple):
    """A head, or a change of one, with ``W = X^T rows + start * (head to start from)``.

    :func:`expand` gives the coefficients.
    """

    rows: np.ndarray  # (n, m)
    start: float
    bias: np.ndarray  # (m,) for centred features

    def plus(self, factor, other):
        """Return this vector plus a multiple of another, in its own precision."""
        rows, bias = (
            own + own.dtype.type(factor) * change.astype(own.dtype, copy=False)
            for own, change in ((self.rows, other.rows), (self.bias, other.bias))
        )
        return RowVector(rows, self.start + float(factor) * other.start, bias)


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
    """The rows of a CSR matrix as a fit uses them.

    Raises a ValueError if X holds a number too large for single precision.
    """
    X = sparse.csr_array(X)
    if (largest := _largest(X.data)) > _LARGEST:
        raise ValueError(
            f"X holds a number of size {largest:.0e}; products of sparse features are "
            f"summed in single precision, so {_LARGEST:.0e} is the most. Scale them, "
            "by MaxAbsScaler for example."
        )
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


class GramProduct(NamedTuple):
    """What a product with the Gram matrix takes, in one precision."""

    x: sparse.csr_array  # (n, k) features that several rows have
    transposed: sparse.csr_array  # (k, n)
    squares: np.ndarray  # (n, 1) sums of squares of the features of one row alone
    largest: np.ndarray  # (n, 1) the largest size of these


class RowSpace:
    """Products with the Gram matrix of the rows, in two precisions."""

    def __init__(self, rows):
        self.rows = rows
        self._products = {x.dtype: self._product(x) for x in (rows.single, rows.x)}
        self.start = None
        if rows.start is not None:
            logits = self._centred(rows.x @ rows.start)
            self.start = logits, float(np.vdot(rows.start, rows.start))

    def _product(self, x):
        """The product of a matrix, the most frequent of its columns first."""
        shared = x.shape[1]
        if self.rows.start is None:  # which has a value for every feature
            shared = max(np.count_nonzero(np.bincount(x.indices) > 1), 1)
        alone = x[:, shared:].tocoo()
        x = x[:, :shared]
        squares, largest = np.zeros((2, x.shape[0], 1), x.dtype)
        np.add.at(squares[:, 0], alone.row, alone.data**2)
        np.maximum.at(largest[:, 0], alone.row, np.abs(alone.data))
        return GramProduct(x, sparse.csr_array(x.T), squares, largest)

    def image(self, vector):
        """Return the logits of a vector, and its largest coefficient.

        The logits are those of the centred features, without an intercept.
        """
        product = self._products[vector.rows.dtype]
        right = self._balanced(vector.rows)
        out = np.empty_like(right)
        first = None if self.rows.start is None else self.rows.start * vector.start

        def block(part):
            of = np.ascontiguousarray(right[:, part])
            weight = product.transposed @ of
            out[:, part] = product.x @ weight + product.squares * of
            if first is not None:
                weight = weight + first[:, part]
            return max(_largest(weight), _largest(product.largest * of))

        largest = max(by_columns(block, right.shape[1], product.x.nnz))
        out = self._centred(out)
        if vector.start:
            out += out.dtype.type(vector.start) * self.start[0].astype(out.dtype)
        return out, largest

    def inner(self, vector, image, other):
        """Return ``<V, W>`` of two vectors' coefficients, and of one the logits."""
        found = float(np.vdot(image, other.rows))
        if self.start is not None and other.start:
            logits, square = self.start
            along = float(np.vdot(logits, vector.rows)) + vector.start * square
            found += other.start * along
        return found

    def dot(self, vector, image, other):
        """Return the same with the intercepts, in double precision."""
        of_bias = float(vector.bias.astype(float) @ other.bias)
        return self.inner(vector, image, other) + of_bias

    def cancelled(self, vector, other):
        """Return what rounding leaves of an inner product of single precision.

        Where rows and the head to start from cancel.
        """
        if self.start is None:
            return 0.0
        eps = float(np.finfo(np.float32).eps)
        return eps * abs(vector.start * other.start) * self.start[1]

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
    """The rows, which hold the coefficients of a head to start from, and the head."""
    bias = head.bias
    zeros = np.zeros((len(rows.weight), len(bias)), bias.dtype)
    if not head.weight.any():
        return rows, RowVector(zeros, 0.0, bias)
    weight = head.weight[rows.columns]
    if rows.intercept:
        bias = bias + rows.weight @ (rows.x @ weight)
    return rows._replace(start=weight), RowVector(zeros, 1.0, bias)


def expand(head, rows):
    """A head of the rows by its coefficients for the features as given."""
    found, bias = np.zeros((rows.n_features, rows.n_columns)), head.bias
    right = head.rows
    if rows.intercept:
        right = right - rows.weight[:, None] * right.sum(axis=0)[None, :]
        mean = rows.x.T @ rows.weight
    used = len(rows.columns)

    def block(part):
        weight = rows.x.T @ np.ascontiguousarray(right[:, part])
        if head.start:
            weight += head.start * rows.start[:, part]
        found[rows.columns, part] = weight[:used]
        return mean @ weight if rows.intercept else np.zeros(weight.shape[1])

    bias = bias - np.concatenate(by_columns(block, rows.n_columns, rows.x.nnz))
    if rows.n_columns > 1:  # a shift that all classes share means nothing
        bias = bias - bias.mean()
    return AffineHead(found, bias)


def by_columns(block, n_columns, nnz):
    """Call a function with slices of the columns of a product, in threads if many."""
    n_threads = min(share(), n_columns) if nnz * n_columns > _ONE_THREAD else 1
    width = max(1, min(_CLASSES, -(-n_columns // n_threads)))
    found = [None] * -(-n_columns // width)

    def call(k):
        found[k] = block(slice(k * width, (k + 1) * width))

    in_threads([partial(call, k) for k in range(len(found))])
    return found


def _largest(values):
    """The largest size of all values, without an array of these sizes."""
    if not values.size:
        return 0.0
    return float(max(values.max(), -values.min()))
