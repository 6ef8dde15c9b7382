"""Fit with given breakpoints over the rows themselves, and its covariance.

The search works with running sums, whose differences have rounding errors of the size
of the total. What a user reads is computed here, by orthogonal factorisation.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.linalg import factors
from sklearn_gn.segmented.problem import DEPENDENT, HALF

_LARGEST_CORRELATION = 0.97  # of neighbouring scores, in prewhitening
COVARIANCES = ("nonrobust", "HC0", "HC1", "HC2", "HC3", "HAC", "HAC-prewhitened")


class Rows(NamedTuple):
    """Rows in the order of x; of several series, padded by rows of weight zero."""

    x: np.ndarray  # (..., n) in [-1, 1]
    y: np.ndarray  # (..., n) of mean zero and deviation one
    linear: np.ndarray  # (..., n, m) features that enter linearly
    weight: np.ndarray  # (..., n) a weight of two is two rows
    rest: np.ndarray | float = 0.0  # (...) sum of squares that the rows do not show


def two_rows(weight, variance, below, above):
    """Return distances from the mean x, and weights, (2, m), of two rows by interval.

    They have the sums of 1, x and x^2 of its rows, and lie no further ``below`` and
    ``above`` the mean than these.
    """
    wide = (below > 0) & (above > 0)
    ratio = np.sqrt(np.where(wide, below, 1) / np.where(wide, above, 1))
    share = weight / (1 + ratio**2)
    dx = np.sqrt(variance) * np.stack([-ratio, 1 / ratio])
    return dx, np.stack([share, weight - share])


class LinearFit(NamedTuple):
    """Least-squares fit in the columns of a design."""

    coef: np.ndarray  # (..., p)
    residual: np.ndarray  # (..., n)
    rss: np.ndarray  # (...)
    half: np.ndarray  # (..., p, r)  H with the inverse normal matrix H H^T
    rank: np.ndarray  # (...)


class Covariance(NamedTuple):
    """What the covariance of the parameters is computed from."""

    kind: str = "nonrobust"  # one of COVARIANCES
    lags: int | None = None  # of both HAC
    variance: np.ndarray | None = None  # (B,) of the noise, where it is known


def design(form, x, linear, t):
    """Return the columns: 1, x, ramps, steps, and the linear features, (..., n, p).

    Of parabolas x^2 follows on x, and the squares of all ramps on these.
    """
    columns = [x[..., None] ** power for power in range(1 + form.slope)]
    beyond = x[..., None] - t[..., None, :]
    for power in range(1, 1 + form.ramp):
        columns.append(np.maximum(beyond, 0) ** power)
    if form.step:
        columns.append(beyond >= 0)
    return np.concatenate([*columns, linear], axis=-1)


def tangents(x, t, changes, at):
    """Return the derivatives of ramps by the breakpoints ``at``, (..., n, k)."""
    beyond = x[..., None] - t[..., None, at]
    found = -changes[..., None, at] * (beyond >= 0)
    if changes.shape[-1] > t.shape[-1]:  # of the squares
        of_squares = changes[..., None, t.shape[-1] + at]
        found = found - 2 * of_squares * np.maximum(beyond, 0)
    return found


def moving(form, free):
    """Return the breakpoints that are parameters of the linearised model."""
    kinds = form.kinds or [(form.ramp, form.step)] * len(free)
    return np.flatnonzero(free & np.array([ramp > step for ramp, step in kinds], bool))


def jacobian(form, x, linear, t, free, coef):
    """Return the derivatives by all coefficients and free kinks, (..., n, p)."""
    at = moving(form, free)
    columns = design(form, x, linear, t)
    if not len(at):
        return columns
    changes = coef[..., 1 + form.slope :][..., : form.ramp * t.shape[-1]]
    return np.concatenate([columns, tangents(x, t, changes, at)], axis=-1)


def coefficient_space(form, n_breakpoints, n_columns):
    """Return a basis of the coefficients that a form leaves free, or None for all."""
    if form.kinds:
        ramps, steps = np.array(form.kinds, bool).reshape(-1, 2).T
        rest = n_columns - 1 - form.slope - 2 * n_breakpoints
        kept = np.repeat([True, True], [1 + form.slope, rest])
        kept = np.insert(kept, 1 + form.slope, np.concatenate([ramps, steps]))
        return np.eye(n_columns)[:, kept]
    slopes = np.arange(1, 1 + form.slope + (n_breakpoints if form.ramp else 0))
    if not (form.flat_end and len(slopes)):
        return None
    space = np.delete(np.eye(n_columns), slopes[-1], axis=1)
    space[slopes[-1], slopes[:-1]] = -1
    return space


def inverse_root(columns, weight, space=None):
    """Return H with the inverse normal matrix H H^T, and the rank, in a space."""
    if space is not None:
        half, rank = inverse_root(columns @ space, weight)
        return space @ half, rank
    factor = factors.upper_factor(np.sqrt(weight)[..., None] * columns)
    # Columns of unit length, so that what counts as dependent knows no units.
    length = np.linalg.norm(factor, axis=-2)
    length = np.where(length > 0, length, 1)
    _, s, vt = factors.singular_triplets(factor / length[..., None, :])
    kept = s > DEPENDENT * s[..., :1]
    inverse = np.where(kept, 1 / np.where(kept, s, 1), 0)
    half = np.swapaxes(vt, -1, -2) * inverse[..., None, :] / length[..., None]
    return half, kept.sum(axis=-1)


def solve(columns, y, weight, space=None):
    """Return the least-squares fit; of directions without data, the shortest one."""
    half, rank = inverse_root(columns, weight, space)
    coef, residual = np.zeros(half.shape[:-1]), y
    for _ in range(2):  # the second time refines
        side = _times(np.swapaxes(columns, -1, -2), weight * residual)
        coef = coef + _times(half, _times(np.swapaxes(half, -1, -2), side))
        residual = y - _times(columns, coef)
    return LinearFit(coef, residual, np.sum(weight * residual**2, axis=-1), half, rank)


def _times(matrix, vector):
    return (matrix @ vector[..., None])[..., 0]


def solve_design(form, rows, t):
    """Return the least-squares fit with given breakpoints."""
    columns = design(form, rows.x, rows.linear, t)
    space = coefficient_space(form, t.shape[-1], columns.shape[-1])
    return solve(columns, rows.y, rows.weight, space)


def fit_rows(form, rows, t, free):
    """Return the breakpoints (B, k) and the least-squares fits of several series.

    Kinks of rows with little noise take further Gauss-Newton steps over the rows.
    """
    found, at, t = solve_design(form, rows, t), moving(form, free), t.copy()
    size = np.sum(rows.weight * rows.y**2, axis=-1)  # y has mean zero
    for b in np.flatnonzero((found.rss < HALF * size) & (len(at) > 0)):
        own = Rows(*(a[b] for a in rows[:4]))
        while found.rss[b] > 0:
            columns = design(form, own.x, own.linear, t[b])
            tangent = np.hstack([columns, own.x[:, None] >= t[b, at]])
            space = coefficient_space(form, t.shape[1], tangent.shape[1])
            lines = solve(tangent, own.y, own.weight, space).coef
            change = lines[1 + form.slope + at]
            jump, trial = lines[columns.shape[1] :], t[b].copy()
            trial[at] -= jump / np.where(change != 0, change, np.inf)
            if np.any(np.diff(trial) <= 0) or np.any(np.abs(trial) >= 1):
                break
            new = solve_design(form, own, trial)
            if new.rss >= found.rss[b]:
                break
            t[b] = trial
            for kept, value in zip(found, new, strict=True):
                kept[b] = value
    return t, found


def covariance(kind, columns, found, weight, repeats, space=None):
    """Return covariances of the parameters, degrees of freedom, ranks, and roots."""
    half, rank = inverse_root(columns, weight, space)
    transposed, n_rows = np.swapaxes(half, -1, -2), repeats.sum(axis=-1)
    freedom = np.maximum(n_rows - rank, 1.0)
    if kind.kind == "nonrobust":
        known = kind.variance is not None
        variance = kind.variance if known else found.rss / freedom
        return variance[:, None, None] * (half @ transposed), freedom, rank, half
    influence = columns @ half
    if kind.kind.startswith("HAC"):
        scores = influence * (weight * found.residual)[..., None]
        long_run = newey_west if kind.kind == "HAC" else prewhitened
        ends = np.count_nonzero(weight, axis=-1)
        middle = np.stack(
            [
                long_run(own[:end], kind.lags, n)
                for own, end, n in zip(scores, ends, n_rows, strict=True)
            ]
        )
    else:
        tiny = np.finfo(float).tiny  # of rows that are padding
        precision = weight / np.maximum(repeats, tiny)
        square = precision * weight * found.residual**2
        if kind.kind == "HC1":
            square = square * (n_rows / freedom)[:, None]
        elif kind.kind in ("HC2", "HC3"):
            leverage = precision * np.sum(influence**2, axis=-1)
            left = np.maximum(1 - leverage, np.finfo(float).eps)
            square = square / left ** (1 if kind.kind == "HC2" else 2)
        middle = np.swapaxes(influence, -1, -2) @ (square[..., None] * influence)
    return half @ middle @ transposed, freedom, rank, half


def newey_west(scores, lags, n_rows):
    """Return the long-run covariance of scores (n, p) with Bartlett's weights."""
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
    1992).
    """
    if len(scores) < 2:
        return newey_west(scores, lags, n_rows)
    before, now = scores[:-1], scores[1:]
    regression = factors.least_norm_solution(before, now).T
    left, size, right = factors.singular_triplets(regression)
    regression = left * np.minimum(size, _LARGEST_CORRELATION) @ right
    innovation = now - before @ regression.T
    middle = newey_west(innovation, lags, n_rows) * len(scores) / len(now)
    back = np.linalg.inv(np.eye(len(regression)) - regression)
    return back @ middle @ back.T
