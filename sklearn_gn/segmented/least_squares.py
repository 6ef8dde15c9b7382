"""Fit with given breakpoints over the rows themselves, and its covariance.

The search works with running sums, whose differences have rounding errors of the size
of the total. What a user reads is computed here, by orthogonal factorisation.
"""

from typing import NamedTuple

import numpy as np

_DEPENDENT = 1e-10  # relative singular value of a direction that is left out
_RESOLVED = 1e-9  # share of the variance above which running sums are exact enough
_MOST_STEPS = 30
_LARGEST_CORRELATION = 0.97  # of neighbouring scores, in prewhitening
COVARIANCES = ("nonrobust", "HC0", "HC1", "HC2", "HC3", "HAC", "HAC-prewhitened")


class Rows(NamedTuple):
    """Rows in the order of x."""

    x: np.ndarray  # (n,) in [-1, 1]
    y: np.ndarray  # (n,) of mean zero and deviation one
    linear: np.ndarray  # (n, m) features that enter linearly
    weight: np.ndarray  # (n,) a weight of two is two rows


class LinearFit(NamedTuple):
    """Least-squares fit in the columns of a design."""

    coef: np.ndarray
    residual: np.ndarray
    rss: float
    half: np.ndarray  # (p, rank)  H with the inverse normal matrix H H^T


class Covariance(NamedTuple):
    """What the covariance of the parameters is computed from."""

    kind: str  # one of COVARIANCES
    lags: int | None = None  # of both HAC


def design(form, x, linear, t):
    """Return the columns: 1, x, ramps, steps, and the linear features.

    Parameters
    ----------
    form : Form
    x : ndarray of shape (n,)
    linear : ndarray of shape (n, m)
    t : ndarray of shape (k,)
        Breakpoints.
    """
    columns = [np.ones((len(x), 1))]
    if form.slope:
        columns.append(x[:, None])
    if form.ramp:
        columns.append(np.maximum(x[:, None] - t, 0))
    if form.step:
        columns.append(_steps(x, t))
    return np.hstack([*columns, linear])


def _steps(x, t):
    return (x[:, None] >= t).astype(float)


def ramp_columns(form, n_breakpoints):
    """Return the numbers of the columns of the ramps."""
    return 1 + form.slope + np.arange(n_breakpoints if form.ramp else 0)


def moving(form, free):
    """Return the breakpoints that are parameters of the linearised model."""
    return np.flatnonzero(free & (form.ramp and not form.step))


def jacobian(form, x, linear, t, free, coef):
    """Return the derivatives of the function by all parameters, (n, p).

    The columns of :func:`design`, and those of the breakpoints that are free and at
    which the function is continuous: minus the change of slope from there on.
    """
    at = moving(form, free)
    changes = coef[ramp_columns(form, len(t))[at]] if len(at) else np.empty(0)
    columns = design(form, x, linear, t)
    return np.hstack([columns, -changes * _steps(x, t[at])])


def solve(columns, y, weight):
    """Return the least-squares fit; of directions without data, the shortest one."""
    root = np.sqrt(weight)[:, None]
    factor = np.linalg.qr(root * columns, mode="r")
    # Columns of unit length, so that what counts as dependent knows no units.
    length = np.linalg.norm(factor, axis=0)
    length = np.where(length > 0, length, 1)
    _, s, vt = np.linalg.svd(factor / length, full_matrices=False)
    kept = s > _DEPENDENT * s[0]
    half = vt[kept].T / s[kept] / length[:, None]
    coef, residual = np.zeros(columns.shape[1]), y
    for _ in range(2):  # the second time refines
        coef = coef + half @ (half.T @ (columns.T @ (weight * residual)))
        residual = y - columns @ coef
    return LinearFit(coef, residual, float(weight @ residual**2), half)


def fit_rows(form, rows, t, free):
    """Return the breakpoints and the least-squares fit.

    Where the residuals are near the rounding errors of running sums, the free kinks
    take a few more Gauss-Newton steps.
    """
    found = solve(design(form, rows.x, rows.linear, t), rows.y, rows.weight)
    at = moving(form, free)
    size = rows.weight @ rows.y**2  # y has mean zero
    for _ in range(_MOST_STEPS if len(at) else 0):
        if not 0 < found.rss < _RESOLVED * size:
            break
        columns = design(form, rows.x, rows.linear, t)
        tangent = np.hstack([columns, _steps(rows.x, t[at])])
        lines = solve(tangent, rows.y, rows.weight).coef
        change = lines[ramp_columns(form, len(t))[at]]
        trial = t.copy()
        trial[at] -= lines[columns.shape[1] :] / np.where(change != 0, change, np.inf)
        if np.any(np.diff(trial) <= 0) or np.any(np.abs(trial) >= 1):
            break
        new = solve(design(form, rows.x, rows.linear, trial), rows.y, rows.weight)
        if new.rss >= found.rss:
            break
        t, found = trial, new
    return t, found


def covariance(kind, columns, found, weight):
    """Return the covariance of the parameters, degrees of freedom, and the rank.

    Parameters
    ----------
    kind : Covariance
    columns : ndarray of shape (n, p)
        Derivatives by the parameters, the rows in the order of x.
    found : LinearFit
        In the columns without those of the breakpoints.
    weight : ndarray of shape (n,)
    """
    half = solve(columns, found.residual, weight).half
    n_rows, n_parameters = float(weight.sum()), half.shape[1]
    freedom = max(n_rows - n_parameters, 1.0)
    if kind.kind == "nonrobust":
        return found.rss / freedom * (half @ half.T), freedom, n_parameters
    influence = columns @ half
    square = found.residual**2
    if kind.kind == "HC1":
        square = square * n_rows / freedom
    elif kind.kind in ("HC2", "HC3"):
        left = np.maximum(1 - np.sum(influence**2, axis=1), np.finfo(float).eps)
        square = square / left ** (1 if kind.kind == "HC2" else 2)
    if kind.kind.startswith("HAC"):
        scores = influence * (weight * found.residual)[:, None]
        long_run = newey_west if kind.kind == "HAC" else prewhitened
        middle = long_run(scores, kind.lags, n_rows)
    else:
        middle = influence.T @ ((weight * square)[:, None] * influence)
    return half @ middle @ half.T, freedom, n_parameters


def newey_west(scores, lags, n_rows):
    """Return the long-run covariance of scores with Bartlett's weights.

    Parameters
    ----------
    scores : ndarray of shape (n, p)
    lags : int or None
        If None, ``4 (n / 100)^(2 / 9)``, rounded down.
    n_rows : float
    """
    if lags is None:
        lags = int(4 * (n_rows / 100) ** (2 / 9))
    total = scores.T @ scores
    for lag in range(1, min(lags, len(scores) - 1) + 1):
        part = scores[lag:].T @ scores[:-lag]
        total += (1 - lag / (lags + 1)) * (part + part.T)
    return total


def prewhitened(scores, lags, n_rows):
    """Return the long-run covariance of scores by way of an autoregression.

    What an autoregression of first order leaves is nearly uncorrelated, and its
    long-run covariance has less bias (Andrews and Monahan, "An improved
    heteroskedasticity and autocorrelation consistent covariance matrix estimator",
    1992). The parameters are those of :func:`newey_west`.
    """
    if len(scores) < 2:
        return newey_west(scores, lags, n_rows)
    before, now = scores[:-1], scores[1:]
    regression = np.linalg.lstsq(before, now)[0].T
    left, size, right = np.linalg.svd(regression)
    regression = left * np.minimum(size, _LARGEST_CORRELATION) @ right
    innovation = now - before @ regression.T
    middle = newey_west(innovation, lags, n_rows) * len(scores) / len(now)
    back = np.linalg.inv(np.eye(len(regression)) - regression)
    return back @ middle @ back.T
