"""Krylov methods for symmetric positive definite systems."""

import jax
import jax.numpy as jnp
from jax import lax

from sklearn_gn.core.linear_algebra.trees import add, dot
from sklearn_gn.core.linear_algebra.trust_region import SpectralModel


def conjugate_gradient(product, right, *, start=None, precondition=None, tol, max_iter):
    """Solve ``product(x) = right`` by the preconditioned conjugate gradient method.

    Parameters
    ----------
    product : callable
        The positive definite operator, on trees of arrays.
    right : tree of arrays
        Right-hand side.
    start : tree of arrays or None
        Initial guess; zero where not given.
    precondition : callable or None
        Approximate inverse, positive definite.
    tol : scalar
        Relative size of the residual, in the norm of the preconditioner, at which the
        iteration ends.
    max_iter : int or scalar
        Most iterations.

    Returns
    -------
    x : tree of arrays
    iterations : scalar
    residual : scalar
        Relative size of the last residual.
    """
    precondition = precondition or (lambda r: r)
    z = precondition(right)
    scale = dot(right, z)
    if start is None:
        x, r = jax.tree.map(jnp.zeros_like, right), right
    else:
        x, r = start, add(right, -1, product(start))
        z = precondition(r)
    size = dot(r, z)

    def unfinished(carry):
        *_, size, count = carry
        return (size > tol**2 * scale) & (count < max_iter)

    def iterate(carry):
        x, r, p, size, count = carry
        image = product(p)
        curvature = dot(p, image)
        # Zero or negative only by rounding, when there is nothing left to gain.
        usable = curvature > 0
        length = jnp.where(usable, size / jnp.where(usable, curvature, 1), 0)
        x, r = add(x, length, p), add(r, -length, image)
        z = precondition(r)
        new = jnp.where(usable, dot(r, z), 0)
        return x, r, add(z, new / size, p), new, count + 1

    x, _, _, last, count = lax.while_loop(
        unfinished, iterate, (x, r, z, size, jnp.int32(0))
    )
    return x, count, jnp.sqrt(last / jnp.where(scale > 0, scale, 1))


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
