r"""Noise that is correlated from row to row: is it, and how many breakpoints are there.

The Bayesian information criterion of a broken line whose noise is an autoregression of
first order, :math:`e_i = \rho e_{i-1} + u_i`, has the exact normal likelihood of a
stationary series, the coefficients and the variance of u at their maximum:

.. math::
    n \log(2 \pi S(\rho) / n) + n - \log(1 - \rho^2) + (p + 1) \log n,

where S is the least sum of squares of the innovations, the first of them times
:math:`\sqrt{1 - \rho^2}` (Prais and Winsten, "Trend estimators and serial correlation",
1954), and the correlation minimises the whole. The breakpoints are those of least
squares.
"""

import numpy as np
from scipy.optimize import minimize_scalar

from sklearn_gn.segmented import inference, least_squares

_GRID = np.tanh(np.linspace(-3, 4, 36))  # correlations that are tried first
SIGNIFICANT = 3.0  # standard errors
_EXACT = 1e-13  # relative sum of squares that is rounding errors


def of_residuals(fit, rows):
    """Return the correlation of residuals at neighbouring positions, and its error.

    Of rows at one position the mean counts. The error is that of independent noise.

    Parameters
    ----------
    fit : Fit
    rows : Rows
        Of one series, of shape (n,).
    """
    residual = inference.residuals(fit, rows)
    first = np.flatnonzero(np.diff(rows.x, prepend=-np.inf) > 0)
    total = np.add.reduceat(rows.weight, first)
    scaled = np.add.reduceat(rows.weight * residual, first) / np.sqrt(total)
    square = scaled @ scaled
    if len(first) < 2 or not square > 0 or rows.rest > 0:
        return np.nan, np.nan
    return float(scaled[1:] @ scaled[:-1] / square), 1 / np.sqrt(len(first))


def criterion_path(prepared, options, found, n_parameters):
    """Return the criterion, by series and number of breakpoints.

    Parameters
    ----------
    prepared : list of Prepared
    options : Options
    found : Path
    n_parameters : list of int
        By the number of breakpoints, without the correlation.
    """
    values = np.full(found.rss.shape, np.inf)
    for b, each in enumerate(prepared):
        if np.ptp(each.rows.weight) > 0:
            raise ValueError(
                'criterion="bic-ar1" is for rows of equal weight, got weights from '
                f"{each.rows.weight.min():.6g} to {each.rows.weight.max():.6g}."
            )
        known = each.scaling.x(options.known)
        size = 2 * np.log(each.scaling.y_size)
        for k in np.flatnonzero(np.isfinite(found.rss[b])):
            t = np.sort(np.concatenate([found.knots[k][b], known]))
            n = len(each.rows.x)
            deviance = least_deviance(options.form, each.rows, t) + n * size
            values[b, k] = deviance + np.log(n) * (n_parameters[k] + 1)
    return values


def least_deviance(form, rows, t):
    """Return minus twice the largest logarithm of the likelihood.

    Parameters
    ----------
    form : Form
    rows : Rows
        Of one series, of shape (n,).
    t : ndarray of shape (k,)
        Breakpoints.
    """
    columns = least_squares.design(form, rows.x, rows.linear, t)
    rows = rows._replace(weight=np.ones_like(rows.x))
    fit = least_squares.solve_columns(form, columns, rows, len(t))
    n = len(rows.x)
    rss = max(float(fit.rss), _EXACT * float(rows.y @ rows.y))
    if not rss > 0:
        return -np.inf
    # Orthonormal, the residual last: what follows is well conditioned.
    space = columns @ fit.half[:, : int(fit.rank)]
    basis = np.column_stack([space, fit.residual / np.sqrt(rss)])
    now, before, start = basis[1:], basis[:-1], np.outer(basis[0], basis[0])
    square, lag, lag_square = now.T @ now, now.T @ before, before.T @ before

    def deviance(rho):
        gram = square - rho * (lag + lag.T) + rho**2 * lag_square
        gram = gram + (1 - rho**2) * start
        part = gram[:-1, -1] @ np.linalg.solve(gram[:-1, :-1], gram[:-1, -1])
        share = max(gram[-1, -1] - part, _EXACT)
        return n * (np.log(2 * np.pi * rss * share / n) + 1) - np.log(1 - rho**2)

    best = int(np.argmin([deviance(rho) for rho in _GRID[1:-1]])) + 1
    bracket = _GRID[best - 1], _GRID[best + 1]
    return minimize_scalar(deviance, bounds=bracket, options={"xatol": 1e-8}).fun
