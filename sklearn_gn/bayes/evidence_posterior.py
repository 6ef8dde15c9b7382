"""The posterior of a network whose penalties the evidence chose, by its matrix.

The covariance of the parameters is H^-1 of :mod:`sklearn_gn.bayes.evidence`, dense
or of low rank.
"""

import numpy as np

from sklearn_gn.bayes import evidence, evidence_gn, low_rank
from sklearn_gn.linalg.large_gram import LargeGram

_MOST_RAISES = 10  # of the shift that makes a matrix positive definite


def covariance(model, sums, alpha, beta, n_effective):
    """Return the posterior covariance H^-1 of the parameters.

    Returns
    -------
    ndarray of shape (P, P) or LowRank
        For :func:`posterior_variances`.
    """
    scale = beta * n_effective
    precision = evidence.prior_precision(model.groups(), alpha)
    if isinstance(sums.gram, LargeGram):
        floor = evidence_gn.ROUNDING * scale * sums.gram.trace()
        diagonal = low_rank.positive_precision(precision, scale) + floor
        return low_rank.approximation(sums.gram, diagonal, scale)
    hessian = evidence.plus_diagonal(scale * sums.gram, precision)
    shift = evidence_gn.ROUNDING * np.trace(hessian)
    for _ in range(_MOST_RAISES):  # rounding may have made it indefinite
        hessian = evidence.plus_diagonal(hessian, shift)
        inverse, log_det = evidence.inverse_and_log_det(hessian)
        if np.isfinite(log_det):
            break
        shift *= 4
    return inverse


class PosteriorCovariance:
    """The posterior covariance, computed at the first access.

    Until then the Gauss-Newton matrix is kept, which is as large. That of a large
    network holds all rows, so its approximation is computed at once.

    Parameters
    ----------
    model, sums, alpha, beta, n_effective
        Arguments of :func:`covariance`.
    """

    def __init__(self, model, sums, alpha, beta, n_effective):
        self._arguments = model, sums, alpha, beta, n_effective
        self._found = None
        if isinstance(sums.gram, LargeGram):
            self.get()

    def get(self):
        """Return what :func:`covariance` returns."""
        arguments = self._arguments
        if arguments is not None:  # two threads may both compute it
            self._found = covariance(*arguments)
            self._arguments = None
        return self._found


def noise_ratio(squares):
    """Return the variance of the noise of each target, over the mean of all.

    Parameters
    ----------
    squares : ndarray of shape (k,)
        Weighted sums of the squared residuals.
    """
    mean = np.mean(squares)
    return squares / mean if mean > 0 else np.ones(len(squares))


def one_or_each(noise_std):
    """Return the noise of one target as a number, of several as the array (k,)."""
    return noise_std if len(noise_std) > 1 else float(noise_std[0])


def posterior_variances(found, gradients, used=slice(None)):
    """Return the variances of linear functions of the parameters.

    Parameters
    ----------
    found : ndarray of shape (P, P) or LowRank
        From :func:`covariance`.
    gradients : ndarray of shape (p, m)
        One function a column.
    used : slice or ndarray of int
        Parameters that they depend on; all by default.
    """
    if isinstance(found, low_rank.LowRank):
        return found.variances(gradients, used)
    part = found[used][:, used]
    return np.maximum(np.einsum("pm,pm->m", gradients, part @ gradients), 0)


def spectrum(gram):
    """Return the eigenvalues of a Gauss-Newton matrix, descending; leading ones."""
    if isinstance(gram, LargeGram):
        factor = low_rank.factor_of(gram, np.full(len(gram), low_rank.FREE))
        gram = factor.T @ factor
    return np.maximum(np.linalg.eigvalsh(gram)[::-1], 0)
