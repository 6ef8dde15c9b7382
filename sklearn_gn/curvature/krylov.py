"""Krylov methods for symmetric positive definite systems."""

import jax
import jax.numpy as jnp
from jax import lax


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
    scale = _dot(right, z)
    if start is None:
        x, r = jax.tree.map(jnp.zeros_like, right), right
    else:
        x, r = start, _add(right, -1, product(start))
        z = precondition(r)
    size = _dot(r, z)

    def unfinished(carry):
        *_, size, count = carry
        return (size > tol**2 * scale) & (count < max_iter)

    def iterate(carry):
        x, r, p, size, count = carry
        image = product(p)
        curvature = _dot(p, image)
        # Zero or negative only by rounding, when there is nothing left to gain.
        usable = curvature > 0
        length = jnp.where(usable, size / jnp.where(usable, curvature, 1), 0)
        x, r = _add(x, length, p), _add(r, -length, image)
        z = precondition(r)
        new = jnp.where(usable, _dot(r, z), 0)
        return x, r, _add(z, new / size, p), new, count + 1

    x, _, _, last, count = lax.while_loop(
        unfinished, iterate, (x, r, z, size, jnp.int32(0))
    )
    return x, count, jnp.sqrt(last / jnp.where(scale > 0, scale, 1))


def _dot(a, b):
    parts = jax.tree.leaves(jax.tree.map(lambda u, v: jnp.sum(u * v), a, b))
    return sum(parts[1:], parts[0])


def _add(a, factor, b):
    return jax.tree.map(lambda u, v: u + factor * v, a, b)
