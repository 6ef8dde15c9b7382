"""Damped and truncated least squares of many rows, which the solvers share.

A Gauss-Newton step is a linear least-squares problem. Forming its normal equations
squares the condition number, so the problem is factored as it stands (QR, then the
SVD of the small triangular factor) while that is affordable; beyond that the Gram
matrix is formed once and one step of refinement through the design wins most of the
lost digits back.
"""

import jax
import jax.numpy as jnp

from sklearn_gn.arrays.blocks import fold_blocks, sum_rows, transposed_product
from sklearn_gn.arrays.collectives import all_rows, n_devices
from sklearn_gn.linalg.factors import (
    QR_LIMIT,
    eigenpairs,
    singular_triplets,
    upper_factor,
)


def filter_factors(singular_values, damping, rank, rank_tol):
    """Factors that turn ``U^T b`` into a truncated, damped solution in V.

    They are ``s / (s^2 + damping)`` on the ``rank`` leading directions with ``s >
    rank_tol * s[0]``, zero elsewhere; s (k,) descends.
    """
    s = singular_values
    keep = (s > rank_tol * s[0]) & (jnp.arange(s.shape[0], dtype=jnp.int32) < rank)
    # Both forms stay finite for the smallest kept value: s^2 may underflow, s may not.
    safe = jnp.where(keep, s, jnp.ones_like(s))
    return jnp.where(keep, 1 / (safe + damping / safe), jnp.zeros_like(s))


def least_squares(system, rows, q, *, damping, rank, rank_tol):
    """Minimise ``|design x - target|^2 + damping |x|^2`` over the leading directions.

    ``system`` maps rows, a tree of arrays, to the design (m, p), of any shape and rank,
    with its q targets as the last columns: it is made block by block. The other
    parameters go to :func:`filter_factors`. The solution (p, q) has the least norm.
    """
    m = n_devices() * jax.tree.leaves(rows)[0].shape[0]
    p = jax.eval_shape(system, rows).shape[1] - q
    if m * p * p <= QR_LIMIT:
        # The factor R of [design, target] holds both R of the design and Q^T target,
        # so the tall Q is never formed.
        r = triangular_factor(system, rows)[:p]
        u, s, vt = singular_triplets(r[:, :p])
        factors = filter_factors(s, damping, rank, rank_tol)
        return vt.T @ (factors[:, None] * (u.T @ r[:, p:]))

    def product(block):
        matrix = system(block)
        return transposed_product(matrix, matrix)

    products = sum_rows(product, rows)
    s2, v = eigenpairs(products[:p, :p])
    s2, v = s2[::-1], v[:, ::-1]
    # Eigenvalues of a Gram matrix are exact only down to rounding of the largest, so
    # no direction below that is trusted, whatever rank_tol says.
    floor = jnp.sqrt(s2.shape[0] * jnp.finfo(s2.dtype).eps)
    s = jnp.sqrt(jnp.maximum(s2, 0))
    factors = filter_factors(s, damping, rank, jnp.maximum(rank_tol, floor))
    factors = jnp.where(factors > 0, factors / jnp.where(s > 0, s, 1), 0)
    inverse = v @ (factors[:, None] * v.T)
    x = inverse @ products[:p, p:]

    def gradient(block):
        matrix = system(block)
        return matrix[:, :p].T @ (matrix[:, p:] - matrix[:, :p] @ x)

    return x + inverse @ (sum_rows(gradient, rows) - damping * x)


def triangular_factor(design, rows):
    """Return R, (p, p), of the QR decomposition of ``design(block)`` of all blocks.

    Zero rows fill up where there are fewer rows than columns.
    """

    def joined(*parts):
        r = upper_factor(*parts)
        return jnp.pad(r, [(0, r.shape[1] - r.shape[0]), (0, 0)])

    own = fold_blocks(
        lambda block: joined(design(block)),
        lambda found, block: joined(found, design(block)),
        rows,
    )
    return own if n_devices() == 1 else joined(all_rows(own))
