"""Sums and factors over rows in blocks, so that no design is ever whole.

A design of a million rows and 500 columns takes 4 GB, its Gram matrix 2 MB. ``rows`` is
a tree of arrays with one leading axis, padded to a length of
:func:`sklearn_gn.arrays.backend.row_bucket`. Where the rows are divided among devices,
sums and factors cover all of these rows.
"""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import lax

from sklearn_gn.arrays.collectives import total

BLOCK_ROWS = 8192
LEAST_ROWS = 1024
_SYMMETRIC_ROWS = 256  # of the blocks of a symmetric product, on a CPU


def split(rows):
    """Return the rows with a leading axis of blocks of one length."""
    n = jax.tree.leaves(rows)[0].shape[0]
    power = n & -n
    length = n if n <= BLOCK_ROWS or power < LEAST_ROWS else min(BLOCK_ROWS, power)
    return jax.tree.map(lambda a: a.reshape(n // length, length, *a.shape[1:]), rows)


def sum_rows(function, rows):
    """Sum of ``function(block)`` over the blocks, of all devices."""
    return total(
        fold_blocks(
            function,
            lambda found, block: jax.tree.map(jnp.add, found, function(block)),
            rows,
        )
    )


def fold_blocks(begin, add, rows):
    """``begin(block)`` of the first block, then ``add(found, block)`` of the others."""
    blocks = split(rows)
    found = begin(jax.tree.map(lambda a: a[0], blocks))
    rest = jax.tree.map(lambda a: a[1:], blocks)
    if jax.tree.leaves(rest)[0].shape[0] == 0:
        return found
    return lax.scan(lambda found, block: (add(found, block), None), found, rest)[0]


def transposed_product(a, b):
    """``a^T b`` for matrices of many rows.

    On a CPU, XLA multiplies float64 at half its rate where the left factor has to be
    read by columns; to lay it out by rows first is cheaper.
    """
    return lax.optimization_barrier(a.T) @ b


def symmetric_product(a):
    """``a a^T``; half of it is multiplied."""
    return symmetric_product_of(lambda own, a: a[own], a.shape[0], 1, [(a,)])


def symmetric_product_of(make, n, rows_each, terms):
    """Return the sum of ``A A^T`` for matrices that are made in blocks of rows.

    ``make(own, *factors)`` makes the rows of the points in a slice, ``rows_each`` for
    each of ``n`` points; ``terms`` holds the factors of every matrix.
    """
    product = partial(_by_blocks, make, n, rows_each)
    return lax.platform_dependent(
        *terms,
        cpu=partial(product, _SYMMETRIC_ROWS),
        default=partial(product, 2048),  # small products would leave a GPU idle
    )


def _by_blocks(make, n, rows_each, size, *terms):
    count = min(max(1, -(-n * rows_each // size)), 12)  # every pair of them is compiled
    cuts = [n * k // count for k in range(count + 1)]
    lower = None
    for factors in terms:
        if lower is not None:  # the rows of one matrix are alive at a time
            factors, lower = lax.optimization_barrier((factors, lower))
        blocks = [make(slice(*cut), *factors) for cut in pairwise(cuts)]
        # Made once: XLA would make them again for every product that they take part in.
        blocks = lax.optimization_barrier(blocks)
        products = [[a @ b.T for b in blocks[: k + 1]] for k, a in enumerate(blocks)]
        lower = products if lower is None else jax.tree.map(jnp.add, lower, products)
    return symmetric_of(lower)


def symmetric_of(lower):
    """Return the symmetric matrix with the given lower blocks, row by row."""
    numbers = range(len(lower))
    return jnp.block(
        [[lower[i][j] if j <= i else lower[j][i].T for j in numbers] for i in numbers]
    )
