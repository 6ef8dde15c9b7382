r"""Huber's loss by least squares, in turns with the targets that they are fitted to.

A residual r beyond c robust standard deviations s counts as :math:`\pm c s`, where s is
the median absolute residual over 0.6745 (Huber, "Robust statistics", 1981). Least
squares of the fitted values plus the clipped residuals have the same minimum. Divided
by the share of rows within the bounds, these residuals have the variance of Huber's
estimate, so that least squares give the covariance of the M-estimate, and a new round
is a Newton step.

Weights count as repetitions of rows, and no round changes them.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sklearn_gn.data.row_checks import NORMAL_MEDIAN

BOUND = 1.345  # robust standard deviations; 95 % efficient for normal noise
LEAST_SCALE = 1e-12  # targets have deviation one: less is rounding errors
_MOST_ROUNDS = 8
_CHANGE = 0.02  # of the targets, in robust standard deviations, at which rounds end
START_BOUND = 3.0  # robust standard deviations from it: kinks are to be seen


def scale_of(residual, weight):
    """Return the scale: the median absolute residual, 1 for standard normal ones."""
    median = weighted_median(np.abs(residual), weight)
    return max(median / NORMAL_MEDIAN, LEAST_SCALE)


def weighted_median(values, weight):
    """Return the median of values that count as often as their weights say."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weight[order])
    half = share[-1] / 2
    low, high = np.searchsorted(share, half), np.searchsorted(share, half, side="right")
    high = min(high, len(values) - 1)
    return values[order[low]] / 2 + values[order[high]] / 2


def scales_of(fitted, rows):
    """Return the robust standard deviations of the residuals of the targets, (k,)."""
    return np.array([scale_of(r, rows.weight) for r in (rows.y - fitted).T])


def noise_std(fitted, rows, n_effective, n_parameters):
    """Return the standard deviations of the noise of the targets, of shape (k,)."""
    freedom = max(n_effective - n_parameters, 1.0)
    return scales_of(fitted, rows) * np.sqrt(n_effective / freedom)


def targets_of(fitted, rows):
    """Targets whose least squares are a Newton step for Huber's loss."""
    limit = BOUND * scales_of(fitted, rows)
    residual = rows.y - fitted
    share = rows.weight @ (np.abs(residual) <= limit) / rows.weight.sum()
    return fitted + np.clip(residual, -limit, limit) / share


def first_targets(rows):
    """Return targets without those parts that are far from a robust linear fit."""
    columns = np.concatenate([np.ones((len(rows.x), 1)), rows.x], axis=1)
    weighted = rows.weight[:, None] * columns
    inverse = np.linalg.pinv(columns.T @ weighted, rcond=1e-12, hermitian=True)
    medians = [weighted_median(y, rows.weight) for y in rows.y.T]
    fitted = np.broadcast_to(medians, rows.y.shape)
    for _ in range(_MOST_ROUNDS):
        targets = targets_of(fitted, rows)
        fitted = columns @ (inverse @ (weighted.T @ targets))
    limit = START_BOUND * scales_of(fitted, rows)
    return fitted + np.clip(rows.y - fitted, -limit, limit)


class RobustState(NamedTuple):
    """State of a fit: that of the least squares, and the targets of this round."""

    net: Any
    loss: float
    criterion: float  # later rounds are better than earlier ones
    inner: Any  # the state of the least squares
    y: np.ndarray  # (m, k)
    number: int  # of the round

    @classmethod
    def of(cls, inner, y, number):
        """Return the state of a round."""
        criterion = inner.criterion - 1e6 * number
        return cls(inner.net, inner.loss, criterion, inner, y, number)


def robust(algorithm, values, continued):
    """Return the algorithm for Huber's loss, from one for the squared loss."""

    def init(rows, net, options):
        y = first_targets(rows)
        return RobustState.of(algorithm.init(rows._replace(y=y), net, options), y, 0)

    def step(rows, state, options):
        clipped = rows._replace(y=state.y)
        inner, report = algorithm.step(clipped, state.inner, options)
        state = RobustState.of(inner, state.y, state.number)
        ended = report.stop in ("tol", "rounding", "line_search")
        if not ended or state.number >= _MOST_ROUNDS:
            return state, report
        fitted = values(inner.net, rows.x)
        y, scale = targets_of(fitted, rows), scales_of(fitted, rows)
        change = rows.weight @ ((y - state.y) / scale) ** 2
        if np.all(change <= _CHANGE**2 * rows.weight.sum()):
            return state, report
        inner = continued(rows._replace(y=y), inner)
        return RobustState.of(inner, y, state.number + 1), report._replace(stop=None)

    return replace(algorithm, init=init, step=step)
