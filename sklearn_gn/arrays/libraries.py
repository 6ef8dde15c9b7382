"""NumPy and JAX under one set of names, for formulas that are written once.

A fit of little data is done before a compiler has begun, so it computes with NumPy and
does not load JAX; all other fits are compiled. Both run the same functions: such a
function asks :func:`library_of` which library its arrays are of, and
:class:`in_either_library` compiles it only for arrays of JAX.
"""

from contextlib import contextmanager
from functools import cache, cached_property, partial, update_wrapper

import numpy as np
from scipy.special import expit, log_softmax

_LEAST_SUM = 1e-20  # of exponentials in single precision, for shares with all digits


class NumPy:
    """Control flow and functions that NumPy lacks, or has under other names."""

    xp = np

    @staticmethod
    def tree_map(function, tree, *others):
        """Apply a function to the arrays of nested tuples."""
        if tree is None:  # no array
            return None
        if not isinstance(tree, tuple):
            return function(tree, *others)
        parts = [
            NumPy.tree_map(function, *each) for each in zip(tree, *others, strict=True)
        ]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)

    @staticmethod
    def leaves(tree):
        """Return the arrays of nested tuples as a list."""
        if not isinstance(tree, tuple):
            return [tree]
        return [leaf for part in tree for leaf in NumPy.leaves(part)]

    @staticmethod
    def while_loop(unfinished, iterate, carry):
        """Iterate while a condition holds."""
        while unfinished(carry):
            carry = iterate(carry)
        return carry

    @staticmethod
    def cond(condition, if_true, if_false, x):
        """Apply one of two functions."""
        return if_true(x) if condition else if_false(x)

    @staticmethod
    def ravel(tree):
        """Return the arrays as one vector, and a function that undoes it."""
        arrays = NumPy.leaves(tree)
        ends = np.cumsum([array.size for array in arrays])[:-1]

        def unravel(flat):
            parts = iter(np.split(flat, ends))
            return NumPy.tree_map(lambda a: next(parts).reshape(a.shape), tree)

        return np.concatenate([array.ravel() for array in arrays]), unravel

    @staticmethod
    def fori_loop(lower, upper, iterate, carry):
        """Iterate with a counter."""
        for k in range(lower, upper):
            carry = iterate(k, carry)
        return carry

    @staticmethod
    def map(function, arrays):
        """Apply a function along the leading axis and stack what it returns."""
        several = isinstance(arrays, tuple)
        found = [*map(function, zip(*arrays, strict=True) if several else arrays)]
        return NumPy.tree_map(lambda *parts: np.stack(parts), *found)

    @staticmethod
    def rows_from(array, start, count):
        """Return some rows; those that would reach beyond the end begin earlier."""
        start = min(start, len(array) - count)
        return array[start : start + count]

    @staticmethod
    def with_rows(array, rows, start):
        """Write rows into an array, which NumPy changes in place."""
        start = min(start, len(array) - len(rows))
        array[start : start + len(rows)] = rows
        return array

    @staticmethod
    def with_part(array, part, row, column):
        """Write a part into a matrix, which NumPy changes in place."""
        height, width = part.shape
        array[row : row + height, column : column + width] = part
        return array

    @staticmethod
    def plus_diagonals(array, parts):
        """Add matrices, one for each t, to the entries (., t, ., t) of an array."""
        for t, part in enumerate(parts):
            array[:, t, :, t] += part
        return array

    @staticmethod
    def top_k(array, k):
        """Return the k largest entries of each row, and where they are."""
        where = np.argpartition(array, array.shape[1] - k, axis=1)[:, -k:]
        return np.take_along_axis(array, where, axis=1), where

    @staticmethod
    def softmax(logits):
        """Softmax of each row."""
        shares, total, _ = _exponentials(logits)
        shares /= total[:, None]
        return shares

    @staticmethod
    def logsumexp_and_softmax(logits):
        """Log of the sum of the exponentials of each row, and their shares."""
        shares, total, shift = _exponentials(logits)
        shares /= total[:, None]
        return np.log(total) + shift, shares

    @staticmethod
    def at_label(matrix, label):
        """Return the entry of each row in the column that is its label."""
        return matrix[np.arange(len(label)), label]

    @staticmethod
    def with_label(matrix, label, value):
        """Return a matrix with another value in the column of each row's label."""
        found = matrix.copy()
        found[np.arange(len(label)), label] = value
        return found

    @staticmethod
    def sigmoid_and_complement(x):
        """``1 / (1 + exp(-x))`` of x and of -x, exact for either sign."""
        less = np.exp(-np.abs(x))
        more = 1 / (1 + less)
        less *= more
        positive = x >= 0
        return np.where(positive, more, less), np.where(positive, less, more)

    @staticmethod
    def softplus(x):
        """``log(1 + exp(x))``."""
        return np.logaddexp(x, 0)

    sigmoid = staticmethod(expit)
    log_softmax = staticmethod(partial(log_softmax, axis=-1))

    @staticmethod
    def products_of_rows(pairs):
        """Products of every row of a and every row of b, for pairs (a, b) of matrices.

        Returns
        -------
        array of shape (p, m)
            Those of the first row of the first a with the rows of b stand first.
        """
        size = sum(len(a) * len(b) for a, b in pairs)
        found, end = np.empty((size, pairs[0][0].shape[1])), 0
        for a, b in pairs:
            start, end = end, end + len(a) * len(b)
            own = found[start:end].reshape(len(a), *b.shape)  # a view
            np.multiply(a[:, None], b, out=own)
        return found

    @staticmethod
    def vdot(a, b):
        """Inner product."""
        return np.vdot(a, b)

    @staticmethod
    def row_products(a, b):
        """Inner products of the rows of two matrices."""
        return np.einsum("ij,ij->i", a, b)

    @staticmethod
    def rsqrt(x):
        """``1 / sqrt(x)``."""
        return 1 / np.sqrt(x)

    @staticmethod
    def symmetric_product(a):
        """``a a^T``."""
        return a @ a.T


def _exponentials(logits):
    """Exponentials of logits less a shift, their sums by rows, and the shift.

    The shift is the largest logit of all. Where a row is so far below it that digits
    are lost, each row has its own, which takes much longer.
    """
    shift, ones = np.max(logits), np.ones(logits.shape[1], logits.dtype)
    found = logits - shift
    total = np.exp(found, out=found) @ ones
    if np.min(total) >= _LEAST_SUM:
        return found, total, shift
    shift = np.max(logits, axis=1)
    shift = np.where(np.isfinite(shift), shift, 0)
    found = np.exp(logits - shift[:, None])
    return found, found @ ones, shift


class JAX:
    """The same of JAX, outside of compiled functions and while they are traced."""

    def __init__(self):
        import jax
        from jax import lax
        from jax.flatten_util import ravel_pytree

        self.xp = jax.numpy
        self.tree_map, self.leaves = jax.tree.map, jax.tree.leaves
        self.while_loop, self.map, self.rsqrt = lax.while_loop, lax.map, lax.rsqrt
        self.cond, self.ravel = lax.cond, ravel_pytree
        self.rows_from, self.top_k = lax.dynamic_slice_in_dim, lax.top_k
        self.softmax = partial(jax.nn.softmax, axis=-1)
        self.softplus, self.sigmoid = jax.nn.softplus, jax.nn.sigmoid
        self.log_softmax = partial(jax.nn.log_softmax, axis=-1)
        self.vdot = partial(self.xp.vdot, precision=lax.Precision.HIGHEST)

    def fori_loop(self, lower, upper, iterate, carry):
        """Iterate with a counter."""
        from jax import lax

        counter = self.xp.int32
        return lax.fori_loop(counter(lower), counter(upper), iterate, carry)

    def logsumexp_and_softmax(self, logits):
        """Log of the sum of the exponentials along the last axis, and their shares."""
        from jax.nn import logsumexp

        log_sum = logsumexp(logits, axis=-1)
        return log_sum, self.xp.exp(logits - log_sum[:, None])

    def sigmoid_and_complement(self, x):
        """``1 / (1 + exp(-x))`` of x and of -x."""
        from jax.nn import sigmoid

        return sigmoid(x), sigmoid(-x)

    def at_label(self, matrix, label):
        """Return the entry of each row in the column that is its label."""
        here = self._is_label(matrix, label)
        return self.xp.sum(self.xp.where(here, matrix, 0), axis=1)

    def with_label(self, matrix, label, value):
        """Return a matrix with another value in the column of each row's label."""
        return self.xp.where(self._is_label(matrix, label), value, matrix)

    def _is_label(self, matrix, label):
        columns = self.xp.arange(matrix.shape[1], dtype=label.dtype)
        return label[:, None] == columns[None, :]

    def row_products(self, a, b):
        """Inner products of the rows of two matrices."""
        return self.xp.sum(a * b, axis=1)

    def products_of_rows(self, pairs):
        """Products of every row of a and every row of b, for pairs (a, b)."""
        parts = [(a[:, None] * b[None]).reshape(-1, b.shape[1]) for a, b in pairs]
        return self.xp.concatenate(parts)

    def with_rows(self, array, rows, start):
        """Write rows into an array."""
        from jax import lax

        return lax.dynamic_update_slice_in_dim(array, rows, start, axis=0)

    def with_part(self, array, part, row, column):
        """Write a part into a matrix."""
        from jax import lax

        return lax.dynamic_update_slice(array, part, (row, column))

    def plus_diagonals(self, array, parts):
        """Add matrices, one for each t, to the entries (., t, ., t) of an array."""
        eye = self.xp.eye(array.shape[1], dtype=array.dtype)
        return array + self.xp.stack(parts, axis=1)[..., None] * eye[None, :, None]

    def symmetric_product(self, a):
        """``a a^T``, of which half is multiplied."""
        from sklearn_gn.arrays.blocks import symmetric_product

        return symmetric_product(a)


class RowsInOrder:
    """Rows of a table of NumPy in another order, of which some are copied when needed.

    Parameters
    ----------
    table : ndarray of shape (n, d)
    order : ndarray of int
        Numbers of the rows.
    """

    def __init__(self, table, order):
        self.table, self.order = table, order
        self.shape, self.dtype = (len(order), table.shape[1]), table.dtype

    def __len__(self):
        return len(self.order)

    def __getitem__(self, key):
        return self.table[self.order[key]]


_jax = cache(JAX)
_jax_is_forced = False


@contextmanager
def forced_jax():
    """Let JAX compute on a CPU what NumPy would: tests hold both to the same results.

    It holds for the process.
    """
    global _jax_is_forced
    before, _jax_is_forced = _jax_is_forced, True
    try:
        yield
    finally:
        _jax_is_forced = before


def numpy_computes(device):
    """Return whether NumPy computes where a compiler would take longer than the fit.

    That is on one CPU. JAX computes on a GPU, and on several devices.

    Parameters
    ----------
    device : str, list, Mesh or None
        The parameter of an estimator.
    """
    return not _jax_is_forced and (device is None or device == "cpu")


_KINDS = (np.ndarray, np.generic, int, float, type(None), RowsInOrder)


def library_of(tree):
    """Return the library of some arrays: JAX, unless all of them are NumPy's.

    Parameters
    ----------
    tree : array or tree of arrays
        Of NumPy in nested tuples, or any tree of JAX.

    Returns
    -------
    NumPy or JAX
    """
    return NumPy if _is_numpy(tree) else _jax()


def namespace(tree):
    """Return ``numpy`` or ``jax.numpy``, the library of some arrays."""
    return library_of(tree).xp


def _is_numpy(tree):
    if type(tree) is np.ndarray or isinstance(tree, _KINDS):
        return True
    if not isinstance(tree, tuple):
        return False
    for part in tree:
        if type(part) is not np.ndarray and not _is_numpy(part):
            return False
    return True


class in_either_library:
    """Compute with NumPy where all arguments are NumPy's; compile for JAX's.

    Compiled, it is a :class:`~sklearn_gn.arrays.devices.by_rows` of a
    :class:`~sklearn_gn.arrays.compilation.jit_by_size`.

    Parameters
    ----------
    function : callable
        Of nested tuples of arrays.
    rows_out : pytree of bool or callable, default=False
        Which results have rows.
    deciding : callable, default=None
        Maps the arguments to those that say which library it is. If None, all do.
    static : tuple of str, default=()
        Names of arguments that are fixed when it is compiled, whatever they hold.
    **arguments
        Those of ``jax.jit``, such as ``static_argnames``.
    """

    def __init__(self, function, rows_out=False, deciding=None, static=(), **arguments):
        update_wrapper(self, function)
        self._function, self._rows_out = function, rows_out
        self._deciding = deciding or _all_arguments
        self._static, self._arguments = static, arguments

    def __call__(self, *args, **kwargs):
        """Call the function in the library of its arguments."""
        if library_of(self._deciding(*args, **kwargs)) is not NumPy:
            return self.compiled(*args, **kwargs)
        with np.errstate(all="ignore"):  # as in a compiled function
            return self._function(*args, **kwargs)

    @cached_property
    def compiled(self):
        """The compiled function, also for NumPy arrays."""
        from sklearn_gn.arrays.compilation import jit_by_size
        from sklearn_gn.arrays.devices import by_rows

        jitted = partial(jit_by_size, **self._arguments)
        return by_rows(self._function, jitted, self._rows_out, self._static)


def _all_arguments(*args, **kwargs):
    return args, tuple(kwargs.values())
