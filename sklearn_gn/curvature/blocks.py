"""Sums and factors over rows in blocks, so that no design is ever whole.

A design of a million rows and 500 columns takes 4 GB, its Gram matrix 2 MB. ``rows`` is
a tree of arrays with one leading axis, as :func:`sklearn_gn._jax.row_bucket` pads it.
"""

import jax
import jax.numpy as jnp
from jax import lax

BLOCK_ROWS = 8192
LEAST_ROWS = 1024


def block_length(n_rows):
    """Rows of a block: a power of two, or all where none of some size divides them."""
    power = n_rows & -n_rows
    if n_rows <= BLOCK_ROWS or power < LEAST_ROWS:
        return n_rows
    return min(BLOCK_ROWS, power)


def split(rows):
    """The rows with a leading axis of blocks."""
    n = jax.tree.leaves(rows)[0].shape[0]
    length = block_length(n)
    return jax.tree.map(lambda a: a.reshape(n // length, length, *a.shape[1:]), rows)


def map_rows(function, rows):
    """``function(block)`` for all blocks, one after the other, joined again."""
    parts = lax.map(function, split(rows))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), parts)


def sum_rows(function, rows):
    """Sum of ``function(block)`` over the blocks."""
    blocks = split(rows)
    first = jax.tree.map(lambda a: a[0], blocks)
    rest = jax.tree.map(lambda a: a[1:], blocks)
    start = function(first)
    if jax.tree.leaves(rest)[0].shape[0] == 0:
        return start

    def add(total, block):
        return jax.tree.map(jnp.add, total, function(block)), None

    return lax.scan(add, start, rest)[0]


def triangular_factor(design, rows):
    """Factor R of the QR decomposition of ``design(block)`` of all blocks together.

    Parameters
    ----------
    design : callable
        Maps rows to a matrix of one row for each.

    Returns
    -------
    array of shape (p, p)
        Zero rows fill up where there are fewer rows than columns.
    """
    blocks = split(rows)
    first = _factor(design(jax.tree.map(lambda a: a[0], blocks)))
    rest = jax.tree.map(lambda a: a[1:], blocks)
    if jax.tree.leaves(rest)[0].shape[0] == 0:
        return first

    def add(factor, block):
        return _factor(jnp.concatenate([factor, design(block)])), None

    return lax.scan(add, first, rest)[0]


def _factor(matrix):
    r = jnp.linalg.qr(matrix, mode="r")
    return jnp.pad(r, [(0, matrix.shape[1] - r.shape[0]), (0, 0)])


def transposed_product(a, b):
    """``a^T b`` for matrices of many rows.

    On a CPU, XLA multiplies float64 at half its rate where the left factor has to be
    read by columns; to lay it out by rows first is cheaper.
    """
    return lax.optimization_barrier(a.T) @ b


def gram(design, rows):
    """``design^T design`` over all blocks."""

    def product(block):
        matrix = design(block)
        return transposed_product(matrix, matrix)

    return sum_rows(product, rows)
