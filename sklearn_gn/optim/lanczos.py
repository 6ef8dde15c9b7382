"""Lanczos' method for symmetric positive semidefinite systems."""

import jax.numpy as jnp
from jax import lax

from sklearn_gn.optim.trust_region import SpectralModel


def lanczos(product, gradient, *, rank, tol):
    """Quadratic model in the Krylov space of a gradient.

    Lanczos' method with full reorthogonalisation, ended when the solution of the
    projected Newton system leaves a relative residual below ``tol``.

    Parameters
    ----------
    product : callable
        The positive semidefinite operator, on arrays of shape (n,).
    gradient : array of shape (n,)
    rank : int
        Largest dimension of the space.
    tol : scalar

    Returns
    -------
    model : SpectralModel
        Ritz values and vectors. Those beyond the space have no slope and value 0.
    iterations : scalar
    """
    n = gradient.shape[0]
    rank = min(rank, n)
    size = jnp.linalg.norm(gradient)
    first = gradient / jnp.where(size > 0, size, 1)
    basis = jnp.zeros((n, rank), gradient.dtype).at[:, 0].set(first)
    matrix = jnp.zeros((rank, rank), gradient.dtype)
    inside = jnp.arange(rank, dtype=jnp.int32)

    def unfinished(carry):
        *_, residual, count = carry
        return (residual > tol) & (count < rank)

    def iterate(carry):
        basis, matrix, _, count = carry
        image = product(basis[:, count])
        # Twice is enough.
        along = basis.T @ image
        rest = image - basis @ along
        correction = basis.T @ rest
        rest = rest - basis @ correction
        along = along + correction
        matrix = matrix.at[:, count].set(along).at[count, :].set(along)
        length = jnp.linalg.norm(rest)
        count = count + 1
        # Less than this is rounding: the space is invariant.
        scale = jnp.max(jnp.abs(matrix))
        ended = length <= 100 * jnp.finfo(image.dtype).eps * scale
        following = jnp.where(ended, 0, rest / jnp.where(ended, 1, length))
        basis = jnp.where((inside == count)[None, :], following[:, None], basis)
        # Beyond the space the identity, so that the small system can be solved.
        used = inside < count
        square = jnp.where(used[:, None] & used[None, :], matrix, 0)
        square = square + jnp.diag((~used).astype(image.dtype))
        values, vectors = jnp.linalg.eigh(square)
        floor = jnp.finfo(image.dtype).eps * jnp.max(values)
        solution = vectors @ (vectors[0] / jnp.maximum(values, floor))
        last = jnp.sum(jnp.where(inside == count - 1, solution, 0))
        return basis, matrix, jnp.where(ended, 0, jnp.abs(length * last)), count

    one = jnp.ones_like(size)
    start = basis, matrix, jnp.where(size > 0, one, 0), jnp.int32(0)
    basis, matrix, _, count = lax.while_loop(unfinished, iterate, start)
    used = inside < count
    basis = jnp.where(used[None, :], basis, 0)
    square = jnp.where(used[:, None] & used[None, :], matrix, 0)
    values, vectors = jnp.linalg.eigh(square)
    return (
        SpectralModel(jnp.maximum(values, 0), size * vectors[0], basis @ vectors),
        count,
    )
