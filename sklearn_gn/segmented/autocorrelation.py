r"""Noise that is correlated along the feature.

Residuals in the order of the feature are taken for an autoregression
:math:`e_i = \sum_j \phi_j e_{i-j} + u_i`. Where its long-run variance
:math:`\sigma_u^2 / (1 - \sum_j \phi_j)^2` is v times the variance of e, means and
slopes of many rows vary as much as with v times fewer independent rows: rows then count
1 / v each, in the criterion, in standard errors and in intervals.

Many breakpoints follow the waves of correlated noise and leave residuals that look
independent, so that the number is chosen with the noise of each number, see
:mod:`sklearn_gn.segmented.selection`.
"""

from typing import NamedTuple

import numpy as np


class Autoregression(NamedTuple):
    """Autoregression of residuals in the order of the feature."""

    coef: np.ndarray  # (order,)
    redundancy: float  # rows that are worth one independent row, at least one


_CORRECTIONS = 10  # of covariances for what the fit has taken
NONE = Autoregression(np.empty(0), 1.0)


def covariances(residual, most):
    """Return the covariances of residuals with the later ones, by lag."""
    n = len(residual)
    most = int(4 * (n / 100) ** (2 / 9)) if most is None else most
    lags = range(min(most, n // 4) + 1)
    return np.array([residual[k:] @ residual[: n - k] / n for k in lags])


def yule_walker(covariance, n, order=None):
    """Return the coefficients and the long-run variance; the order by "bic" if None."""
    phi, variance = np.empty(0), covariance[0]
    best, answer = n * np.log(variance), (phi, variance)
    for p in range(1, len(covariance)):
        last = (covariance[p] - phi @ covariance[p - 1 : 0 : -1]) / variance
        phi = np.append(phi - last * phi[::-1], last)
        variance = variance * (1 - last**2)
        value = n * np.log(variance) + np.log(n) * p
        if value < best or p == order:
            best = value
            answer = phi, variance / max(1 - phi.sum(), 1 / n) ** 2
    return answer


def noise_of(residual, asked, n_parameters):
    """Return the :class:`Autoregression` of residuals, of an order or "auto".

    A fit takes its number of parameters times the long-run variance over n away from
    each covariance; that is added again. Correlation that makes means more exact counts
    as none, and the fit keeps a degree of freedom.
    """
    n = len(residual)
    if asked in (None, 0) or n <= n_parameters + 1 or not residual @ residual > 0:
        return NONE
    order = None if asked == "auto" else asked
    covariance = covariances(residual, order)
    coef, long_run = yule_walker(covariance, n, order)
    for _ in range(_CORRECTIONS):
        taken = min(n_parameters * long_run / n, covariance[0])
        coef, long_run = yule_walker(covariance + taken, n, order)
    redundancy = min(long_run / (covariance[0] + taken), n / (n_parameters + 1))
    return Autoregression(coef, float(redundancy)) if redundancy > 1 else NONE
