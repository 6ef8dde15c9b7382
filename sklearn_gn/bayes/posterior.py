r"""Error bars by the delta method: what the methods share.

Near a minimum the residuals are linear in the parameters, with the Jacobian J. The
covariance of the parameters is then the variance of the noise times
:math:`(J^T J + P)^{-1}`, where P is the second derivative of the penalties, and a
function of the parameters with the gradient t has the variance
:math:`\sigma^2\, t^T (J^T J + P)^{-1} t`. Where the noise differs from residual to
residual, with standard deviations s, it is :math:`|t^T J^+ \mathrm{diag}(s)|^2`, with
:math:`J^+ = (J^T J)^{-1} J^T`.

Rows count by their weights: a row of weight two is two rows. Weights that sum to one go
into J and P, their sum N as it was given into the degrees of freedom, which are those
of N rows of q targets less the parameters that the data determine; the covariance is
then that of one row, over N.

The matrices are shifted by rounding errors of their trace before they are factored: a
direction about which the data say nothing keeps a variance that is large, not infinite.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve

_RAISES = 10  # of the shift, each to four times of it


def factor_with_floor(matrix, penalty=None, *, ulps):
    """Cholesky factor of a Gauss-Newton matrix with its penalty.

    The shift is raised where rounding errors make the matrix indefinite.

    Parameters
    ----------
    matrix : array of shape (k, k)
    penalty : array of shape (k, k), default=None
    ulps : float
        The first shift, in roundings of the trace of ``matrix``.

    Returns
    -------
    array of shape (k, k)
        Lower triangular.
    """
    floor = ulps * jnp.finfo(matrix.dtype).eps * jnp.trace(matrix)
    total = matrix if penalty is None else matrix + penalty
    eye = jnp.eye(matrix.shape[0], dtype=matrix.dtype)

    def factor(shift):
        return lax.linalg.cholesky(total + shift * eye, symmetrize_input=False)

    def failed(carry):
        count, _, root = carry
        return ~jnp.isfinite(root[-1, -1]) & (count < _RAISES)

    def raised(carry):
        count, shift, _ = carry
        return count + 1, 4 * shift, factor(4 * shift)

    *_, root = lax.while_loop(failed, raised, (jnp.int32(0), floor, factor(floor)))
    return root


def effective_parameters(root, matrix):
    """Number of parameters that the data determine, ``tr (M + P)^-1 M``.

    Parameters
    ----------
    root : array of shape (k, k)
        Of :func:`factor_with_floor`.
    matrix : array of shape (k, k)
        M, without the penalty.
    """
    return jnp.trace(cho_solve((root, True), matrix))


def variances(root, gradients):
    """Variances of linear functions of the parameters, for noise of variance one.

    Parameters
    ----------
    root : array of shape (k, k)
        Of :func:`factor_with_floor`.
    gradients : array of shape (m, k)
        One function a row.

    Returns
    -------
    array of shape (m,)
    """
    half = lax.linalg.triangular_solve(root, gradients.T, left_side=True, lower=True)
    return jnp.sum(half**2, axis=0)


class PseudoInverse(NamedTuple):
    """``J^+``, by the smaller one of the two Gramians of J, scaled to size one."""

    jacobian: jnp.ndarray  # (m, n)
    size: jnp.ndarray  # of its largest entry, whose square may be no float
    root: jnp.ndarray  # Cholesky factor of the smaller Gramian, with a floor

    @classmethod
    def of(cls, jacobian):
        """The pseudo-inverse of an array of shape (m, n)."""
        m, n = jacobian.shape
        size = jnp.max(jnp.abs(jacobian))
        size = jnp.where(size > 0, size, 1)
        scaled = jacobian / size
        gramian = scaled @ scaled.T if m < n else scaled.T @ scaled
        return cls(jacobian, size, factor_with_floor(gramian, ulps=1))

    def influence(self, gradients):
        """Rows ``t^T J^+``: what residuals do to functions of the parameters.

        Parameters
        ----------
        gradients : array of shape (k, n)

        Returns
        -------
        array of shape (k, m)
        """
        solver = self.root, True
        jacobian, gradients = self.jacobian / self.size, gradients / self.size
        if jacobian.shape[0] < jacobian.shape[1]:
            return cho_solve(solver, jacobian @ gradients.T).T
        return cho_solve(solver, gradients.T).T @ jacobian.T

    def leverages(self, rows):
        """Diagonal of ``J J^+`` at a slice of the rows, without the matrix itself."""
        jacobian = self.jacobian / self.size
        if jacobian.shape[0] < jacobian.shape[1]:
            product = cho_solve((self.root, True), jacobian @ jacobian[rows].T)
            return product[rows].diagonal()
        return variances(self.root, jacobian[rows])


def safe_norm(values, axis, xp=np):
    """Euclidean norms of numbers whose squares may leave the range of floats.

    Parameters
    ----------
    values : array
    axis : int
    xp : module, default=numpy
        ``jax.numpy`` inside compiled functions.
    """
    size = xp.max(xp.abs(values), axis=axis, keepdims=True)
    size = xp.where(size > 0, size, 1)
    norms = xp.sqrt(xp.sum((values / size) ** 2, axis=axis, keepdims=True))
    return xp.squeeze(size * norms, axis=axis)
