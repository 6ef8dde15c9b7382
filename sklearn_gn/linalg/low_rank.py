r"""Semidefinite matrices of low rank, and positive diagonals with such a matrix added.

The Nystrom approximation of a matrix G from its products with some vectors Omega,

.. math::
    G \approx Y (\Omega^T Y)^{-1} Y^T = F F^T, \qquad Y = G \Omega,

holds its leading eigenvectors. Random vectors suit a matrix that is known by products
only; with unit vectors Y are some of its columns. M = D + F F^T has a cheap inverse,
and is so near to D + G that conjugate gradients with it need few iterations (Frangella,
Tropp and Udell, 2021).
"""

from typing import Any, NamedTuple

import numpy as np

from sklearn_gn.arrays.extremes import unbounded
from sklearn_gn.arrays.libraries import namespace
from sklearn_gn.linalg import factors


def nystrom_factor(products, block):
    """Return F of shape (n, k) from Y (n, k) and ``Omega^T Y`` (k, k)."""
    xp = namespace((products, block))
    values, vectors = factors.eigenpairs(block)
    # Pairs at rounding level are noise, which the root would blow up.
    kept = values > 10 * xp.finfo(values.dtype).eps * len(values) * values[-1]
    root = xp.where(kept, 1 / xp.sqrt(xp.where(kept, values, 1)), 0)
    return products @ (vectors * root[None])


class Diagonalised(NamedTuple):
    """Eigenpairs of an approximation of a positive semidefinite matrix."""

    values: Any  # (k,)  ascending, not negative
    vectors: Any  # (m, k)


def nystrom(columns, chosen):
    """Eigenpairs of the approximation from k columns (m, k), of the given numbers."""
    extension = nystrom_factor(columns, columns[chosen])
    # Eigenpairs of M M^T from those of M^T M lose small ones: QR first.
    basis, r = factors.orthogonal_factors(extension)
    u, s, _ = factors.singular_triplets(r)
    return Diagonalised(s[::-1] ** 2, basis @ u[:, ::-1])


def preconditioner(found, shift):
    """The inverse of the shifted approximation, as a function of a vector.

    It is, up to a factor, ``U (diag(s) + lambda)^-1 U^T + (I - U U^T) / (s_min +
    lambda)``.
    """
    rest = found.values[0] + shift

    def apply(r):
        inside = found.vectors.T @ r
        change = inside / (found.values + shift) - inside / rest
        return found.vectors @ change + r / rest

    return apply


class LowRank(NamedTuple):
    """The matrix M = D + F F^T."""

    root_diagonal: np.ndarray  # (P,)  D^{1/2}
    whitened: np.ndarray  # (P, r)  V = D^{-1/2} F
    factor: factors.Factor  # of 1 + V^T V, (r, r)
    log_det: float

    @classmethod
    def of(cls, diagonal, factor):
        """Return the matrix of a positive diagonal and F."""
        root_diagonal = np.sqrt(diagonal)
        whitened = factor / root_diagonal[:, None]
        inner = factors.factor(whitened.T @ whitened, 1.0, overwrite=True)
        log_det = float(np.sum(np.log(diagonal)) + inner.log_det)
        return cls(root_diagonal, whitened, inner, log_det)

    def solve(self, right):
        """Return the product of M^-1 and vectors of shape (P, s)."""
        root_diagonal = self.root_diagonal[:, None]
        whitened = right / root_diagonal
        inner = self.factor.solve(self.whitened.T @ whitened)
        return (whitened - self.whitened @ inner) / root_diagonal

    def sample(self, n, rng):
        """Return n normal vectors of covariance M, of shape (P, n)."""
        size, rank = self.whitened.shape
        own = rng.standard_normal((size, n))
        both = own + self.whitened @ rng.standard_normal((rank, n))
        return self.root_diagonal[:, None] * both

    def variances(self, gradients, used=slice(None)):
        """Return ``t^T M^-1 t`` of columns t with entries in some parameters.

        Those beyond the range of floats are infinite.
        """
        whitened = gradients / self.root_diagonal[used, None]
        with np.errstate(over="ignore", invalid="ignore"):
            known = self.factor.variances(self.whitened[used].T @ whitened)
            left = np.sum(whitened**2, axis=0) - known
        return unbounded(np.maximum(left, 0))
