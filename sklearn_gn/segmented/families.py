r"""Families of targets, with their canonical links.

The linear predictor :math:`\eta` is a broken line plus the offset; the mean of y is
:math:`\mu = \eta` ("gaussian"), :math:`e^\eta` ("poisson") or
:math:`1 / (1 + e^{-\eta})` ("binomial"). With a canonical link the Gauss-Newton matrix
of half the deviance weighs rows by the variance of y, and a step is a least-squares fit
to :math:`\eta + (y - \mu) / V(\mu)` (McCullagh and Nelder, "Generalized linear models",
1989).
"""

from typing import NamedTuple

import numpy as np
from scipy.special import expit, gammaln, logit, xlog1py, xlogy

from sklearn_gn.data.rows import check_sample_weight
from sklearn_gn.segmented.problem import EXACT

FAMILIES = ("gaussian", "poisson", "binomial")


class Family(NamedTuple):
    """A distribution of the targets."""

    name: str

    @property
    def has_known_variance(self):
        """Whether the mean determines the variance."""
        return self.name != "gaussian"

    def mean(self, eta):
        """Return the means."""
        if self.name == "gaussian":
            return eta
        largest = np.log(EXACT * np.finfo(float).max)  # whose sums are numbers, too
        eta = np.clip(eta, -largest, largest)
        return np.exp(eta) if self.name == "poisson" else expit(eta)

    def variance(self, mean):
        """Return the variances, which are also the derivatives of the means."""
        if self.name == "gaussian":
            return np.ones_like(mean)
        variance = mean if self.name == "poisson" else mean * (1 - mean)
        return np.maximum(variance, EXACT)

    def start(self, y, weight):
        """Return linear predictors near the targets, from which iterations start."""
        if self.name == "gaussian":
            return y
        if self.name == "poisson":
            return np.log(y + 0.1)
        return logit((weight * y + 0.5) / (weight + 1))

    def deviance(self, y, mean, weight):
        """Return the deviance of means, of "gaussian" the sum of squares."""
        if self.name == "gaussian":
            return float(weight @ (y - mean) ** 2)
        if self.name == "poisson":
            each = xlogy(y, y) - xlogy(y, mean) - (y - mean)
        else:
            each = xlogy(y, y) + xlog1py(1 - y, -y)
            each -= xlogy(y, mean) + xlog1py(1 - y, -mean)
        return 2 * float(weight @ each)

    def explained(self, y, mean, weight):
        """Return the share of the deviance about the mean of y that means explain."""
        y = np.asarray(y, dtype=np.float64)
        weight = check_sample_weight(weight, y)
        null = self.deviance(y, np.full_like(y, np.average(y, weights=weight)), weight)
        return 1 - self.deviance(y, mean, weight) / null

    def saturated(self, y, weight):
        """Return the log likelihood of means that equal the counts."""
        if self.name == "poisson":
            return float(weight @ (xlogy(y, y) - y - gammaln(y + 1)))
        ways = gammaln(weight + 1) - gammaln(weight * y + 1)
        ways -= gammaln(weight * (1 - y) + 1)
        return float(np.sum(ways) + weight @ (xlogy(y, y) + xlog1py(1 - y, -y)))

    def check(self, y):
        """Raise a ValueError for targets that the family does not have."""
        if self.name == "poisson" and y.min() < 0:
            raise ValueError(
                'family="poisson" is for counts: y must not be negative, but its '
                f"smallest value is {y.min():.6g}."
            )
        if self.name == "poisson" and not y.max() > 0:
            raise ValueError('family="poisson": all counts in y are zero.')
        if self.name == "binomial" and (y.min() < 0 or y.max() > 1):
            raise ValueError(
                'family="binomial" is for shares between 0 and 1, with the numbers of '
                f"trials as sample_weight: y ranges from {y.min():.6g} to "
                f"{y.max():.6g}."
            )
        if self.name == "binomial" and (not y.max() > 0 or not y.min() < 1):
            raise ValueError('family="binomial": all shares in y are equal.')


def check_offset(offset, X):
    """Return the offsets of the rows, zero where there are none."""
    if offset is None:
        return np.zeros(len(X))
    offset = np.asarray(offset, dtype=np.float64)
    if offset.shape != (len(X),) or not np.isfinite(offset).all():
        raise ValueError(
            f"offset must be {len(X)} finite numbers, one for each row, got an array "
            f"of shape {offset.shape}."
        )
    return offset
