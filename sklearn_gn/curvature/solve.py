"""Dense least-squares solves shared by the solvers.

A Gauss-Newton step is a linear least-squares problem. Forming its normal equations
squares the condition number, so the problem is factored as it stands (QR, then the
SVD of the small triangular factor) while that is affordable; beyond that the Gram
matrix is formed once and one step of refinement through the design wins most of the
lost digits back.
"""

import jax.numpy as jnp
from jax import lax

# Multiply-adds above which the Gram matrix (twice as fast, a matrix product) replaces
# the QR factorisation of the design.
_QR_LIMIT = 5e8


def filter_factors(singular_values, damping, rank, rank_tol):
    """Factors that turn ``U^T b`` into the coordinates of a truncated, damped solution.

    Parameters
    ----------
    singular_values : array of shape (k,)
        Singular values of the design, descending.
    damping : scalar
        Shift added to the Gram matrix.
    rank : scalar
        At most this many leading directions are kept.
    rank_tol : scalar
        Directions with ``s <= rank_tol * s[0]`` are dropped.

    Returns
    -------
    array of shape (k,)
        ``s / (s^2 + damping)`` on the kept directions, zero elsewhere.
    """
    s = singular_values
    keep = (s > rank_tol * s[0]) & (jnp.arange(s.shape[0], dtype=jnp.int32) < rank)
    # Both forms stay finite for the smallest kept value: s^2 may underflow, s may not.
    safe = jnp.where(keep, s, jnp.ones_like(s))
    return jnp.where(keep, 1 / (safe + damping / safe), jnp.zeros_like(s))


def least_squares(design, target, *, damping, rank, rank_tol):
    """Minimise ``|design x - target|^2 + damping |x|^2`` over the leading directions.

    Parameters
    ----------
    design : array of shape (m, p)
        Any shape and any rank.
    target : array of shape (m, q)
        Right-hand sides.
    damping, rank, rank_tol : scalars
        See :func:`filter_factors`.

    Returns
    -------
    x : array of shape (p, q)
        The solution of least norm among the kept directions.
    """
    m, p = design.shape
    if m * p * p <= _QR_LIMIT:
        return _qr_least_squares(design, target, damping, rank, rank_tol)
    return _gram_least_squares(design, target, damping, rank, rank_tol)


def _qr_least_squares(design, target, damping, rank, rank_tol):
    p = design.shape[1]
    # The factor R of [design, target] holds both R of the design and Q^T target, so
    # the tall Q is never formed.
    r = jnp.linalg.qr(jnp.concatenate([design, target], axis=1), mode="r")
    u, s, vt = jnp.linalg.svd(r[:, :p], full_matrices=False)
    factors = filter_factors(s, damping, rank, rank_tol)
    return vt.T @ (factors[:, None] * (u.T @ r[:, p:]))


def _gram_least_squares(design, target, damping, rank, rank_tol):
    s2, v = jnp.linalg.eigh(design.T @ design)
    s2, v = s2[::-1], v[:, ::-1]
    # Eigenvalues of a Gram matrix are exact only down to rounding of the largest, so
    # no direction below that is trusted, whatever rank_tol says.
    floor = jnp.sqrt(s2.shape[0] * jnp.finfo(s2.dtype).eps)
    s = jnp.sqrt(jnp.maximum(s2, 0))
    factors = filter_factors(s, damping, rank, jnp.maximum(rank_tol, floor))
    factors = jnp.where(factors > 0, factors / jnp.where(s > 0, s, 1), 0)

    def solve(gradient):
        return v @ (factors[:, None] * (v.T @ gradient))

    x = solve(design.T @ target)
    return x + solve(design.T @ (target - design @ x) - damping * x)


def gram_spectrum(design):
    """Eigenvalues of ``design^T design``, descending, from the singular values.

    Parameters
    ----------
    design : array of shape (m, p)

    Returns
    -------
    array of shape (p,)
        Zeros fill up where ``m < p``.
    """
    m, p = design.shape
    if m > p:
        design = jnp.linalg.qr(design, mode="r")
    s = jnp.linalg.svd(design, compute_uv=False)
    return lax.pad(s**2, jnp.zeros((), s.dtype), [(0, p - s.shape[0], 0)])
