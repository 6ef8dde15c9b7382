r"""The linear model with one penalty: its evidence is known in closed form.

It is ridge regression with a free intercept. With the eigenvalues :math:`\lambda_j` of
the centred :math:`X^T W X`, or with fewer rows than features of the centred
:math:`W^{1/2} X X^T W^{1/2}`, the projections :math:`p_j` of :math:`X^T W y` on the
eigenvectors and :math:`\rho = \alpha / \beta`,

.. math::
    R(\rho) = R(0) + \sum_j \frac{\rho \, p_j^2}{\lambda_j (\lambda_j + \rho)}, \qquad
    \beta = \frac{n_{eff} - 1}{R(\rho)}, \qquad
    \gamma = \sum_j \frac{\lambda_j}{\lambda_j + \rho},

and the log evidence of :mod:`sklearn_gn.bayes.evidence` is a function of
:math:`\rho` alone, whose maximum is looked for on a line.
"""

import math
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from sklearn_gn import _switches as switches
from sklearn_gn.bayes import stacking
from sklearn_gn.bayes.evidence import LARGEST, parameters_of_penalties
from sklearn_gn.bayes.evidence_gn import EXACT, RegularisedLayers
from sklearn_gn.bayes.laplace import left_out_errors, left_out_rows, value_variances
from sklearn_gn.data.rows_source import RowSource
from sklearn_gn.linalg.factors import LARGEST_DENSE, eigenpairs, eigenpairs_of_rows
from sklearn_gn.optim.solver import Rows

_GRID = np.linspace(-72.0, 18.0, 181)  # logarithms of rho over the mean eigenvalue


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
        along = (x - self.center) @ self.vectors
        return 1 / self.n_effective + along**2 @ self.inverse

    def network(self, model):
        """Return it as a network whose neurons have no coefficients."""
        theta = np.zeros(model.n_parameters)
        theta[: self.coef.size] = self.coef.ravel()
        alpha, gamma = np.full(model.n_groups, LARGEST), np.zeros(model.n_groups)
        alpha[0], gamma[0] = self.alpha, self.gamma
        given = theta, alpha, self.beta, gamma, self.log_evidence, model
        return RegularisedLayers(*given)


def beats(linear, net, covariance, rows, n_effective):
    """Whether rows that are left out prefer the linear model to a network.

    Penalties that the rows have chosen cost a model log density. Where some of many
    rows are left out, the gain of the network is known to a standard error, which does
    not count for it. ``covariance`` belongs to the network's parameters.
    """
    x, _, weight = some = left_out_rows(rows)

    def log_density(values, leverage):
        errors, factors = left_out_errors(values, leverage, some, n_effective)
        return sum(map(stacking.log_densities, errors.T, factors.T, repeat(weight)))

    variances = value_variances(net.model, net.theta, covariance, x)
    gain = log_density(net.model.values(net.theta, x), net.beta * variances)
    gain -= log_density(linear.coef[0] + x @ linear.coef[1:], linear.leverage(x))
    looked_at = np.sum(weight)  # share of all rows
    mean = weight @ gain / looked_at
    variance = weight @ (gain - mean) ** 2 / looked_at
    unseen = max(1 - looked_at, 0.0)
    error = math.sqrt(variance * unseen / (n_effective * looked_at))
    slopes = np.zeros(linear.coef[1:].size, np.intp)
    n_penalties = parameters_of_penalties(net.gamma, net.model.groups())
    n_penalties -= parameters_of_penalties(np.array([linear.gamma]), slopes)
    cost = stacking.COST_OF_A_PENALTY * n_penalties
    return bool(n_effective * (mean - error) <= cost)


class NoiseScale(NamedTuple):
    """Noise whose logarithm is linear in features and predictions, in some share."""

    units: Any  # of features and targets
    coef: np.ndarray  # (1 + d + k, k)
    limits: np.ndarray  # (2, k)  of the logarithms, those of the rows of the fit
    share: np.ndarray  # (k,)  in the variance; the other part is the same everywhere

    def at(self, X, y):
        """Return the standard deviation at X with predictions y, over that of all."""
        values = self.units.y(y.reshape(len(X), -1))
        x = np.concatenate([self.units.x(X), values], axis=1)
        logs = np.clip(self.coef[0] + x @ self.coef[1:], *self.limits)
        return np.sqrt(1 + self.share * np.expm1(logs)).reshape(y.shape)


def noise_scale(values, left_out, rows, n_effective, units):
    """Return the :class:`NoiseScale` of errors at left-out rows, or None.

    ``values`` (m, k) are those of the fit there, and ``left_out`` the errors and their
    variances if the noise is the same everywhere. The logarithms of the squares have
    the linear model of highest evidence, and its share is that of stacking: it is
    hardly any where the noise does not vary.
    """
    errors, variances = left_out
    weight = rows.weight / np.sum(rows.weight)
    n_seen = n_effective * np.sum(rows.weight)
    squares = errors**2 / variances
    mean = weight @ squares
    if not (np.all(mean > 0) and np.isfinite(mean).all()):
        return None
    # The square of one error says little, and least where it is next to nothing.
    target = np.log(squares / mean + 1 / n_seen)
    x = np.concatenate([rows.x, values], axis=1)
    logs_of_rows = Rows(x, target, weight)
    found = linear_model(logs_of_rows, n_seen)
    if found is None:
        return None
    logs = found.coef[0] + x @ found.coef[1:]
    moved, _ = left_out_errors(logs, found.leverage(x), logs_of_rows, n_seen)
    cost, share = stacking.COST_OF_A_PENALTY / n_seen, []
    for e, v, own in zip(errors.T, variances.T, (target + moved).T, strict=True):
        same = stacking.log_densities(e, v, weight)
        varying = stacking.log_densities(e, v * np.exp(own), weight) - cost
        both = np.stack([same, varying], axis=1)
        if not np.isfinite(both).all():  # of weights whose ratios overflow
            return None
        share.append(stacking.weights(both, weight, n_seen)[1])
    # In the mean of all rows the variance is that of the fit.
    level = np.log(weight @ (squares / mean / np.exp(logs)))
    coef = found.coef.copy()
    coef[0] += level
    limits = np.array([logs.min(axis=0), logs.max(axis=0)]) + level
    return NoiseScale(units, coef, limits, np.array(share))


def linear_model(rows, n_effective):
    """Return the :class:`LinearModel` of some rows, whose weights sum to one.

    It is None where nothing varies, where the matrix would be large, and for a single
    row. Penalties that leave the noise less than one degree of freedom are no choice,
    and where rows count as several, all on one line, there is no model.
    """
    if not switches.on("tables.linear_member"):
        return None
    of_chunks = isinstance(rows, RowSource)
    found = (_moments_of_chunks if of_chunks else _moments)(rows, n_effective)
    if found is None:
        return None
    x_mean, y_mean, values, vectors, cross, total, *centred = found
    # Along others the features vary by rounding errors.
    eps = np.finfo(np.float64).eps
    kept = values > len(values) * eps * np.max(values, initial=0)
    if not (total > 0 and np.any(kept) and n_effective > 1):
        return None
    values, vectors = values[kept], vectors[:, kept]
    # What least squares leave: of sums alone rounding errors, of rows exact.
    projections = vectors.T @ cross
    slopes, k = vectors @ (projections / values[:, None]), len(y_mean)
    rest = max(total - float(np.sum(cross * slopes)), eps * total)
    if centred:
        x, y = centred
        rest = max(float(np.sum((y - x @ slopes) ** 2)), EXACT * total)
    # The log evidence as a function of rho, with k targets; see the module.
    squares, freedom = np.sum(projections**2, axis=1), k * (n_effective - 1)
    if not (rest > 0 and math.isfinite(freedom / rest)):
        return None  # squares of the targets are no floats

    def beta(rho):
        rho = rho[..., None]
        shrinkage = np.sum(squares / values * (rho / (values + rho)), axis=-1)
        return freedom / (rest + shrinkage)

    def log_evidence(log_rho):
        rho = np.exp(log_rho)
        log_det = np.sum(np.log1p(values / rho[..., None]), axis=-1)
        log_det = log_det + np.log(n_effective * beta(rho))
        of_noise = k * n_effective * np.log(beta(rho) / (2 * math.pi))
        return (of_noise - freedom - k * log_det) / 2

    grid = math.log(np.mean(values)) + _GRID
    determined = np.sum(values / (values + np.exp(grid)[:, None]), axis=1)
    grid = grid[determined <= n_effective - 2]
    if not len(grid):
        return None  # no noise would be left
    best, width = grid[int(np.argmax(log_evidence(grid)))], _GRID[1] - _GRID[0]
    near = max(best - width, grid[0]), best + width
    found = minimize_scalar(lambda at: -log_evidence(at), bounds=near, method="bounded")
    log_rho, rho = found.x, np.exp(found.x)
    slopes = vectors @ (projections / (values + rho)[:, None])
    return LinearModel(
        coef=np.concatenate([(y_mean - x_mean @ slopes)[None], slopes]),
        alpha=float(rho * beta(rho)),
        beta=float(beta(rho)),
        gamma=k * float(np.sum(values / (values + rho))),
        log_evidence=float(log_evidence(log_rho)),
        center=x_mean,
        vectors=vectors,
        inverse=1 / (values + rho),
        n_effective=n_effective,
    )


def _moments(rows, n_effective):
    """Return means, eigenpairs of x^T x, x^T y, y^T y, and centred rows, or None."""
    n, d = rows.x.shape
    if min(n, d) > LARGEST_DENSE or (n < d + 2 and n_effective > n):
        return None
    x_mean, y_mean = rows.weight @ rows.x, rows.weight @ rows.y
    root = np.sqrt(n_effective * rows.weight)[:, None]
    x, y = root * (rows.x - x_mean), root * (rows.y - y_mean)
    values, vectors = eigenpairs_of_rows(x)
    return x_mean, y_mean, values, vectors, x.T @ y, float(np.sum(y**2)), x, y


def _moments_of_chunks(rows, n_effective):
    """Return the same from sums, centred by the means, without the rows."""
    d = rows.sample.x.shape[1]
    if d > LARGEST_DENSE:
        return None
    gram = rows.reduce(_products, None)
    mean = gram[0, 1:] / gram[0, 0]
    gram = n_effective * (gram[1:, 1:] - gram[0, 0] * np.outer(mean, mean))
    total = max(float(np.trace(gram[d:, d:])), 0.0)
    return mean[:d], mean[d:], *eigenpairs(gram[:d, :d]), gram[:d, d:], total


def _products(_, rows):
    """Return the weighted products of a one, the features and the targets."""
    table = np.concatenate([np.ones((len(rows.x), 1)), rows.x, rows.y], axis=1)
    table *= np.sqrt(rows.weight)[:, None]
    return table.T @ table
