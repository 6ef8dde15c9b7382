"""NumPy and JAX under one set of names, for formulas that are written once.

A fit of little data is done before a compiler has begun, so it computes with NumPy and
does not load JAX; all other fits are compiled. Both run the same functions: such a
function asks :func:`library_of` which library its arrays are of, and
:class:`in_either_library` compiles it only for arrays of JAX.
"""

from functools import cache, cached_property, partial, update_wrapper

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit, log_softmax

from sklearn_gn.arrays.threads import symmetric_product


class NumPy:
    """Control flow and functions that NumPy lacks, or has under other names."""

    xp = np
    cond = staticmethod(lambda condition, yes, no, x: yes(x) if condition else no(x))
    softmax = staticmethod(lambda logits: NumPy.logsumexp_and_softmax(logits)[1])
    log_softmax = staticmethod(partial(log_softmax, axis=-1))
    at_label = staticmethod(lambda matrix, label: matrix[np.arange(len(label)), label])
    softplus = staticmethod(partial(np.logaddexp, 0))
    sigmoid = staticmethod(expit)
    row_products = staticmethod(partial(np.einsum, "ij,ij->i"))
    vdot = staticmethod(np.vdot)
    symmetric_product = staticmethod(symmetric_product)
    rows_from = staticmethod(lambda array, start, count: array[start : start + count])

    @staticmethod
    def tree_map(function, tree, *others):
        """Apply a function to the arrays of nested tuples."""
        if tree is None:  # no array
            return None
        if not isinstance(tree, tuple):
            return function(tree, *others)
        branches = zip(tree, *others, strict=True)
        parts = [NumPy.tree_map(function, *each) for each in branches]
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
    def with_part(array, part, row, column):
        """Write a part into a matrix, at the end if it would reach beyond it."""
        height, width = part.shape
        row = min(row, len(array) - height)
        array[row : row + height, column : column + width] = part
        return array

    @staticmethod
    def logsumexp_and_softmax(logits):
        """Log of the sum of the exponentials of each row, and their shares.

        Logits are shifted by the largest of all. Where a row is so far below it that
        digits are lost, also in single precision, each row has its own shift, which
        takes much longer.
        """
        shift, ones = np.max(logits), np.ones(logits.shape[1], logits.dtype)
        shares = logits - shift
        total = np.exp(shares, out=shares) @ ones
        if not np.min(total) >= 1e-20:
            shift = np.max(logits, axis=1)
            shift = np.where(np.isfinite(shift), shift, 0)
            shares = np.exp(logits - shift[:, None])
            total = shares @ ones
        shares /= total[:, None]
        return np.log(total) + shift, shares

    @staticmethod
    def with_label(matrix, label, value):
        """Write values into the column of each row's label, in place."""
        matrix[np.arange(len(label)), label] = value
        return matrix

    @staticmethod
    def sigmoid_and_complement(x):
        """``1 / (1 + exp(-x))`` of x and of -x, by one exponential."""
        less = np.exp(-np.abs(x))
        more = 1 / (1 + less)
        less *= more
        positive = x >= 0
        return np.where(positive, more, less), np.where(positive, less, more)

    @staticmethod
    def products_of_rows(pairs):
        """Products of every row of a and every row of b, for pairs (a, b) of matrices.

        Those of the first row of the first a with the rows of b stand first, (p, m).
        """
        size = sum(len(a) * len(b) for a, b in pairs)
        found, end = np.empty((size, pairs[0][0].shape[1])), 0
        for a, b in pairs:
            start, end = end, end + len(a) * len(b)
            own = found[start:end].reshape(len(a), *b.shape)  # a view
            np.multiply(a[:, None], b, out=own)
        return found


class JAX:
    """The same of JAX, outside of compiled functions and while they are traced."""

    def __init__(self):
        import jax
        from jax import lax
        from jax.flatten_util import ravel_pytree

        from sklearn_gn.arrays.blocks import symmetric_product

        self.symmetric_product = symmetric_product
        self.xp = xp = jax.numpy
        self.tree_map, self.leaves = jax.tree.map, jax.tree.leaves
        self.cond, self.while_loop, self.ravel = lax.cond, lax.while_loop, ravel_pytree
        self.fori_loop = lambda lower, upper, iterate, carry: lax.fori_loop(
            xp.int32(lower), xp.int32(upper), iterate, carry
        )
        self.rows_from = lax.dynamic_slice_in_dim
        self.with_part = lambda array, part, *corner: lax.dynamic_update_slice(
            array, part, [xp.int32(place) for place in corner]
        )
        self.softplus, self.sigmoid = jax.nn.softplus, jax.nn.sigmoid
        self.softmax = partial(jax.nn.softmax, axis=-1)
        self.log_softmax = partial(jax.nn.log_softmax, axis=-1)
        self.sigmoid_and_complement = lambda x: (jax.nn.sigmoid(x), jax.nn.sigmoid(-x))
        self.vdot = partial(xp.vdot, precision=lax.Precision.HIGHEST)
        self.row_products = lambda a, b: xp.sum(a * b, axis=1)

    def logsumexp_and_softmax(self, logits):
        """Log of the sum of the exponentials along the last axis, and their shares."""
        from jax.nn import logsumexp

        log_sum = logsumexp(logits, axis=-1)
        return log_sum, self.xp.exp(logits - log_sum[:, None])

    def at_label(self, matrix, label):
        """Return the entry of each row in the column that is its label."""
        columns = self.xp.arange(matrix.shape[1], dtype=label.dtype)
        here = label[:, None] == columns[None, :]
        return self.xp.sum(self.xp.where(here, matrix, 0), axis=1)

    def with_label(self, matrix, label, value):
        """Return a matrix with other values in the column of each row's label."""
        columns = self.xp.arange(matrix.shape[1], dtype=label.dtype)
        value = self.xp.broadcast_to(value, label.shape)[:, None]
        return self.xp.where(label[:, None] == columns[None, :], value, matrix)

    def products_of_rows(self, pairs):
        """Products of every row of a and every row of b, for pairs (a, b)."""
        parts = [(a[:, None] * b[None]).reshape(-1, b.shape[1]) for a, b in pairs]
        return self.xp.concatenate(parts)


_jax = cache(JAX)
jax_is_forced = False  # tests set it: JAX computes on a CPU what NumPy would
_KINDS = (np.ndarray, np.generic, int, float, type(None), csr_array)


def library_of(tree):
    """Return the library of a tree of arrays: JAX, unless all of them are NumPy's."""
    if isinstance(tree, _KINDS):
        return NumPy
    if not isinstance(tree, tuple):
        return _jax()
    for part in tree:
        if type(part) is not np.ndarray and library_of(part) is not NumPy:
            return _jax()
    return NumPy


def namespace(tree):
    """Return ``numpy`` or ``jax.numpy``, the library of some arrays."""
    return library_of(tree).xp


class in_either_library:
    """Compute with NumPy where all arguments are NumPy's; compile for JAX's.

    Compiled, it is a :class:`~sklearn_gn.arrays.devices.by_rows` of a
    :class:`~sklearn_gn.arrays.compilation.jit_by_size`, whose arguments are the others.
    The function takes nested tuples of arrays; ``deciding`` selects the arguments that
    say which library it is.
    """

    def __init__(self, function, rows_out=False, deciding=None, static=(), **arguments):
        update_wrapper(self, function)
        self._function, self._rows_out = function, rows_out
        self._deciding = deciding
        self._static, self._arguments = static, arguments

    def __call__(self, *args, **kwargs):
        """Call the function in the library of its arguments."""
        deciding = args, tuple(kwargs.values())
        if self._deciding is not None:
            deciding = self._deciding(*args, **kwargs)
        if library_of(deciding) is not NumPy:
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
