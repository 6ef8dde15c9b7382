r"""The linear model with one penalty, of which the evidence is known in closed form.

It is ridge regression with a free intercept. With the eigenvalues :math:`\lambda_j` of
the centred :math:`X^T W X`, or with fewer rows than features those of the centred
:math:`W^{1/2} X X^T W^{1/2}`, the projections :math:`p_j` of :math:`X^T W y` on the
eigenvectors and :math:`\rho = \alpha / \beta`,

.. math::
    R(\rho) = y^T W y - \sum_j \frac{p_j^2}{\lambda_j + \rho}, \qquad
    \beta = \frac{n_{eff} - 1}{R(\rho)}, \qquad
    \gamma = \sum_j \frac{\lambda_j}{\lambda_j + \rho},

and the log evidence of :mod:`sklearn_gn.bayes.evidence` is a function of
:math:`\rho` alone, whose maximum is looked for on a line.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from sklearn_gn import _switches as switches
from sklearn_gn.bayes.evidence import LARGEST, SMALLEST
from sklearn_gn.bayes.laplace import left_out_errors, left_out_rows
from sklearn_gn.data.rows_source import RowSource, n_rows_of
from sklearn_gn.linalg.factors import eigenpairs, eigenpairs_of_rows
from sklearn_gn.linalg.large_gram import LARGEST_DENSE

_DECISIVE = 10.0  # difference of log evidences, for normal noise
# In standard errors. One, the usual rule, lets go of networks that pay on tables of
# less than 200 rows, zero keeps some that follow a few far rows (100 tables of R's
# packages, two splits each).
CLEAR = 0.5
# The same where the evidence speaks for the simpler model: with less, some pass that
# follow noise (58 tables, three splits and starts each; simulated noise).
AGAINST_EVIDENCE = 2.0
_GRID = np.linspace(-18.0, 18.0, 73)  # logarithms of rho over the mean eigenvalue


class LinearModel(NamedTuple):
    """A ridge regression whose penalty has the highest evidence."""

    coef: np.ndarray  # (1 + d, k), the intercept first
    alpha: float
    beta: float
    gamma: float  # well-determined slopes
    log_evidence: float
    center: np.ndarray  # (d,)  mean of the features
    vectors: np.ndarray  # (d, r)  eigenvectors of the matrix, ...
    inverse: np.ndarray  # (r,)  ... and inverse eigenvalues with the penalty added
    n_effective: float

    def leverage(self, x):
        """Return the derivatives of predictions in observations at rows, (m,)."""
        return 1 / self.n_effective + ((x - self.center) @ self.vectors) ** 2 @ (
            self.inverse
        )

    def penalties(self, n_groups):
        """Return ``alpha`` and ``gamma`` of a network that is this model.

        All its groups but the slopes, which come first, are switched off.
        """
        alpha, gamma = np.full(n_groups, LARGEST), np.zeros(n_groups)
        alpha[0], gamma[0] = self.alpha, self.gamma
        return alpha, gamma


def beats(linear, log_evidence, gamma, rows, n_effective, errors_of_network):
    r"""Whether the linear model is to be preferred to a network.

    The log evidence takes the noise for normal: a few far residuals make a network that
    follows them look probable, and those of skewed counts one that predicts them well
    improbable. So a difference is decisive only if it is above 10 in units of what it
    says of noise whose squares vary more than those of normal noise. Otherwise rows
    that are left out decide, and where they do not tell the two apart the linear model
    is preferred.

    With as many features as rows a network has more penalties than there are data, and
    their choice alone fits noise. Each that the data determine then counts as what they
    leave of its range, of which :math:`\sqrt{2 / \gamma}` is the deviation
    (MacKay, "Bayesian interpolation", 1992), and the log evidence alone speaks for the
    linear model.

    Parameters
    ----------
    linear : LinearModel
    log_evidence : float
        Of the network.
    gamma : ndarray
        Well-determined parameters of its groups.
    rows : Rows or RowSource
    n_effective : float
        Number of rows, counted by their weights.
    errors_of_network : callable
        Maps rows to errors of the network, of shape (m, k), where these are left out.
    """
    gain = log_evidence - linear.log_evidence
    if n_rows_of(rows) < len(linear.center) + 2:
        more = _share_of_penalties(gamma) - _share_of_penalties(np.array(linear.gamma))
        if gain + more < 0:
            return True
    rows = left_out_rows(rows)
    residuals = linear.coef[0] + rows.x @ linear.coef[1:] - rows.y
    leverage = linear.leverage(rows.x)
    errors = left_out_errors(residuals, leverage, rows.weight, n_effective)
    squares = np.sum(errors**2, axis=1)
    if abs(gain) > _DECISIVE * _spread(squares, rows.weight):
        return bool(gain < 0)
    of_network = np.sum(errors_of_network(rows) ** 2, axis=1)
    clear = CLEAR if gain > 0 else AGAINST_EVIDENCE
    return not are_clearly_lower(of_network, squares, rows.weight, n_effective, clear)


def are_clearly_lower(squares, others, weight, n_effective, clear):
    """Whether square errors are lower by some standard errors of their difference.

    Of two models that rows do not tell apart, the simpler one is the better choice
    (Breiman et al., Classification and Regression Trees, 1984, section 3.4.3). The
    square errors (m,) are those of two models at the same rows, ``n_effective`` is the
    number of all rows, whose weights sum to one.
    """
    gain, n_looked_at = others - squares, n_effective * np.sum(weight)
    mean, variance = _mean_and_variance(gain, weight)
    return bool(mean > clear * math.sqrt(variance / n_looked_at))


def _spread(squares, weight):
    """Return the variance of square errors over that of normal noise; at least one."""
    mean, variance = _mean_and_variance(squares, weight)
    return max(1.0, variance / (2 * mean**2)) if mean > 0 else 1.0


def _mean_and_variance(values, weight):
    weight = weight / np.sum(weight)
    mean = weight @ values
    return mean, weight @ (values - mean) ** 2


def _share_of_penalties(gamma):
    """Logarithm of the share of the range of all penalties that the data leave."""
    root = np.log(LARGEST / SMALLEST) * np.sqrt(gamma / (4 * np.pi))
    return -float(np.sum(np.log(np.maximum(root, 1))))


def linear_model(rows, n_effective):
    """Return the :class:`LinearModel` of some rows, whose weights sum to one.

    It is None where nothing varies, where the matrix would be large, and for a single
    row. With as many features as rows a line goes through all of them: penalties that
    leave the noise less than one degree of freedom are no choice then, and where rows
    count as several, all on that line, there is no model.
    """
    if not switches.on("tables.linear_member"):
        return None
    of_chunks = isinstance(rows, RowSource)
    found = (_moments_of_chunks if of_chunks else _moments)(rows, n_effective)
    if found is None:
        return None
    x_mean, y_mean, values, vectors, cross, total = found
    k = len(y_mean)
    if not (total > 0 and np.max(values, initial=0) > 0 and n_effective > 1):
        return None
    projections = vectors.T @ cross
    squares = np.sum(projections**2, axis=1)
    curve = _EvidenceOfPenalty(values, squares, total, n_effective, k)
    if not (curve.floor > 0 and math.isfinite(curve.freedom / curve.floor)):
        return None  # squares of the targets are no floats
    log_rho = curve.highest()
    if log_rho is None:
        return None
    rho = np.exp(log_rho)
    slopes = vectors @ (projections / (values + rho)[:, None])
    beta = curve.beta(rho)
    return LinearModel(
        coef=np.concatenate([(y_mean - x_mean @ slopes)[None], slopes]),
        alpha=float(rho * beta),
        beta=float(beta),
        gamma=k * float(curve.gamma(rho)),
        log_evidence=float(curve.at(log_rho)),
        center=x_mean,
        vectors=vectors,
        inverse=1 / (values + rho),
        n_effective=n_effective,
    )


class _EvidenceOfPenalty(NamedTuple):
    """The log evidence as a function of rho, with k targets; see the module."""

    values: np.ndarray  # lambda, (r,)
    squares: np.ndarray  # p^2, (r,)
    total: float  # y^T W y
    n_effective: float
    k: int

    @property
    def freedom(self):
        """Degrees of freedom of the noise."""
        return self.k * (self.n_effective - 1)

    @property
    def floor(self):
        """Least sum of squares of the residuals: that of rounding errors."""
        return self.total * np.finfo(np.float64).eps

    def beta(self, rho):
        """Return the precision of the noise."""
        explained = np.sum(self.squares / (self.values + rho[..., None]), axis=-1)
        return self.freedom / np.maximum(self.total - explained, self.floor)

    def gamma(self, rho):
        """Return the number of well-determined slopes of a target."""
        return np.sum(self.values / (self.values + rho[..., None]), axis=-1)

    def at(self, log_rho):
        """Return the log evidence."""
        rho = np.exp(log_rho)
        beta = self.beta(rho)
        log_det = np.sum(np.log1p(self.values / rho[..., None]), axis=-1)
        log_det = log_det + np.log(self.n_effective * beta)
        of_noise = self.k * self.n_effective * np.log(beta / (2 * math.pi))
        return (of_noise - self.freedom - self.k * log_det) / 2

    def highest(self):
        """Return log rho where it is highest; None where no noise would be left."""
        grid = math.log(np.mean(self.values)) + _GRID
        grid = grid[self.gamma(np.exp(grid)) <= self.n_effective - 2]
        if not len(grid):
            return None
        best, width = grid[int(np.argmax(self.at(grid)))], _GRID[1] - _GRID[0]
        return minimize_scalar(
            lambda log_rho: -self.at(log_rho),
            bounds=(max(best - width, grid[0]), best + width),
            method="bounded",
        ).x


class _Moments(NamedTuple):
    """What a linear fit takes of centred rows x and y, times roots of the weights."""

    x_mean: np.ndarray
    y_mean: np.ndarray
    values: np.ndarray  # eigenvalues of x^T x that may be positive, ...
    vectors: np.ndarray  # ... and its eigenvectors
    cross: np.ndarray  # x^T y
    total: float  # sum of the squares of y


def _moments(rows, n_effective):
    """Return the :class:`_Moments`; None where the matrix is large, and no linear fit.

    Where rows count as several, all of them on one hyperplane, there is none.
    """
    n, d = rows.x.shape
    if min(n, d) > LARGEST_DENSE or (n < d + 2 and n_effective > n):
        return None
    x_mean, y_mean = rows.weight @ rows.x, rows.weight @ rows.y
    root = np.sqrt(n_effective * rows.weight)[:, None]
    x, y = root * (rows.x - x_mean), root * (rows.y - y_mean)
    values, vectors = eigenpairs_of_rows(x)
    return _Moments(x_mean, y_mean, values, vectors, x.T @ y, float(np.sum(y**2)))


def _moments_of_chunks(rows, n_effective):
    """Return the same from sums, less those of the means: scaled rows have hardly any.

    There are more rows than features.
    """
    d = rows.sample.x.shape[1]
    if d > LARGEST_DENSE:
        return None
    gram = rows.reduce(_products, None)
    mean = gram[0, 1:] / gram[0, 0]
    gram = n_effective * (gram[1:, 1:] - gram[0, 0] * np.outer(mean, mean))
    values, vectors = eigenpairs(gram[:d, :d])
    total = max(float(np.trace(gram[d:, d:])), 0.0)
    return _Moments(
        mean[:d], mean[d:], np.maximum(values, 0), vectors, gram[:d, d:], total
    )


def _products(_, rows):
    """Return the weighted products of a one, the features and the targets."""
    table = np.concatenate([np.ones((len(rows.x), 1)), rows.x, rows.y], axis=1)
    table *= np.sqrt(rows.weight)[:, None]
    return table.T @ table
