r"""Nystrom approximation of a Gramian from some of its columns, and a preconditioner.

With C the columns at some landmarks and W their square block, ``K ~ C W^-1 C^T``, which
has the eigenpairs ``U diag(s) U^T``. Frangella, Tropp and Udell's preconditioner of
``K + lambda I`` is then, up to a factor,

    P^-1 = U (diag(s) + lambda I)^-1 U^T + (I - U U^T) / (s_min + lambda).
"""

from typing import NamedTuple

import jax.numpy as jnp


class LowRank(NamedTuple):
    """Eigenpairs of an approximation of a positive semidefinite matrix."""

    values: jnp.ndarray  # (k,)  ascending, not negative
    vectors: jnp.ndarray  # (m, k)


def nystrom(columns, chosen):
    """Eigenpairs of the approximation.

    Parameters
    ----------
    columns : array of shape (m, k)
        Columns of the matrix.
    chosen : array of int of shape (k,)
        Their numbers.

    Returns
    -------
    LowRank
    """
    block_values, q = jnp.linalg.eigh(columns[chosen])
    # Pairs at rounding level are noise, which the root would blow up.
    floor = 10 * jnp.finfo(columns.dtype).eps * len(chosen) * block_values[-1]
    keep = block_values > floor
    root = jnp.where(keep, 1 / jnp.sqrt(jnp.where(keep, block_values, 1)), 0)
    extension = columns @ (q * root[None])
    # Eigenpairs of M M^T from those of M^T M lose small ones: QR first.
    basis, r = jnp.linalg.qr(extension)
    u, s, _ = jnp.linalg.svd(r)
    return LowRank(s[::-1] ** 2, basis @ u[:, ::-1])


def preconditioner(found, shift):
    """The inverse of the shifted approximation, as a function of a vector."""
    rest = found.values[0] + shift

    def apply(r):
        inside = found.vectors.T @ r
        change = inside / (found.values + shift) - inside / rest
        return found.vectors @ change + r / rest

    return apply
