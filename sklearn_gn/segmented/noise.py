r"""Noise that is correlated along the feature, or that varies with it.

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

from sklearn_gn.bayes.evidence_gn import SOME_ROWS
from sklearn_gn.bayes.laplace import left_out_errors, left_out_rows
from sklearn_gn.bayes.linear_evidence import linear_model, noise_scale
from sklearn_gn.data.units import Units
from sklearn_gn.optim import solver
from sklearn_gn.segmented import inference, least_squares
from sklearn_gn.segmented.preparation import with_known
from sklearn_gn.segmented.problem import EXACT, HALF, spread

# --- correlated noise ----------------------------------------------------------------


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


# --- noise that varies ---------------------------------------------------------------


def noise_scale_of(fit, rows):
    """Return how the noise varies with features and predictions, or None."""
    if rows is None or not fit.noise_std > 0:
        return None
    x, weight = np.column_stack([rows.x, rows.linear]), rows.weight / rows.weight.sum()
    some = left_out_rows(solver.Rows(x, rows.y[:, None], weight))
    scaling, n_rows = fit.scaling, float(fit.n_rows)
    center = np.append(scaling.center, scaling.linear_center)
    size = np.append(scaling.size, scaling.linear_size)
    limits = np.tile([[-np.inf], [np.inf]], len(size))
    units = Units(center, size, scaling.y_center, scaling.y_size, limits)
    features = center + size * some.x
    values, std = inference.predict(fit, features[:, 0], features[:, 1:])
    values = units.y(values[:, None])
    leverage = (std / fit.noise_std) ** 2
    left_out = left_out_errors(values, leverage, some, n_rows)
    return noise_scale(values, left_out, some, n_rows, units)


def with_own_precisions(prepared, options, t):
    """Return the series with rows weighted by the precisions of their noise.

    The logarithm of the variance is linear in the features, as far as the residuals of
    lines with the breakpoints t are evidence of that. Where they are none, where
    precisions are given, and where there are sums alone the series stays as it is.
    """
    rows, form, n = prepared.rows, options.form, len(prepared.rows.x)
    if rows.rest > 0 or prepared.has_precisions:
        return prepared
    t, _ = with_known(prepared, options, t)
    some = prepared.select(spread(0, n - 1, SOME_ROWS)).rows
    line = least_squares.solve_design(form, some, t)
    if not line.rss > EXACT * (some.weight @ some.y**2):
        return prepared
    columns, total = (
        least_squares.design(form, some.x, some.linear, t),
        some.weight.sum(),
    )
    leverage = np.minimum(some.weight, 1) * np.sum((columns @ line.half) ** 2, axis=1)
    squares = line.residual**2 / np.maximum(1 - leverage, np.finfo(float).eps)
    weight = some.weight / total
    # The square of one error says little, and least where it is next to nothing.
    target = np.log(squares / (weight @ squares) + 1 / total)[:, None]
    x = np.column_stack([some.x, some.linear])
    found = linear_model(solver.Rows(x, target, weight), total)
    if found is None:
        return prepared
    logs = np.column_stack([rows.x, rows.linear]) @ found.coef[1:, 0]
    if np.ptp(logs) <= HALF:
        return prepared
    weight = rows.weight * np.exp(logs.min() - logs)
    weight *= rows.weight.sum() / weight.sum()
    return prepared._replace(rows=rows._replace(weight=weight), has_precisions=True)
