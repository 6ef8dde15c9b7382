"""Continuous piecewise-linear functions with free breakpoints: fits and steps.

With one feature the shallow ReLU network is such a function, constant left of its first
breakpoint,

    u(x) = c_0 + sum_i c_i max(0, x - t_i),    t_1 <= ... <= t_n .

- Given the breakpoints, the values v_i at them solve a tridiagonal system: hats in
  place of the ReLU functions, whose mass matrix has a condition number of order n^4.
- The tangent space at (c, t), all parameters together, holds the piecewise-linear
  functions that may jump at the breakpoints. The joint Gauss-Newton step is hence a
  straight-line fit on every interval, and moves t_i by minus the jump of the lines
  there over c_i. With the slope change of the fitted lines in place of c_i the
  breakpoint goes to where the lines meet (Muggeo, "Estimating regression models with
  unknown break-points", 2003); both are tried, in several lengths.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.linalg.factors import solve_general, solve_tridiagonal
from sklearn_gn.shallow_relu.sorted_rows import (
    LEFT,
    RIGHT,
    IntervalMoments,
    exact_moments,
    interval_ends,
    line_slopes,
    moments,
    sum_of_targets,
)

_LENGTHS = np.array([1.0, 0.5, 0.2, 0.05])  # of either step that are tried
_CHAIN = 1e-15  # ties values that no row determines to those of their neighbours
_CLOSE = 2.0**-30  # breakpoints closer than this are one, at which the function jumps


class BrokenLine(NamedTuple):
    """The best function with given breakpoints, and what it leaves."""

    values: np.ndarray  # (..., n + 1, q) at the breakpoints and at RIGHT
    slopes: np.ndarray  # (..., n + 1, q) of the intervals; the first is zero
    loss: np.ndarray | None = None  # (...)
    moments: IntervalMoments | None = None


# --- the function with given breakpoints ---------------------------------------------


def hat_system(knots, inverse, m):
    """Return the least-squares system of the hats at the breakpoints and at RIGHT.

    That is the diagonal of the mass matrix, (..., n + 1), the entries beside it,
    (..., n), and the right-hand side, (..., n + 1, q). ``inverse`` are
    the inverse lengths of the intervals right of each breakpoint.
    """
    weight, y = m.weight[..., 1:], m.y[..., 1:, :]
    # Of the right hat, at the mean.
    share = np.minimum((m.x[..., 1:] - knots) * inverse, 1)
    bend = m.xx[..., 1:] * inverse**2 + _CHAIN
    right = weight * share
    left = weight - right
    across = left * share - bend
    diagonal = np.empty(m.weight.shape)
    diagonal[..., 0] = m.weight[..., 0]
    diagonal[..., 1:] = right * share + bend
    diagonal[..., :-1] += left - across
    target = np.empty(m.y.shape)
    target[..., 0, :] = m.weight[..., :1] * m.y[..., 0, :]
    upper = target[..., 1:, :]
    np.multiply(right[..., None], y, out=upper)
    upper += m.xy[..., 1:, :] * inverse[..., None]
    lower = weight[..., None] * y - upper
    target[..., :-1, :] += lower
    return diagonal, across, target


def between_ends(knots, running):
    """Return breakpoints inside the data between the ends that they are held to."""
    if running.ends is None:
        return knots
    inside = (knots != LEFT) & (knots != RIGHT)
    return np.where(inside, np.clip(knots, *running.ends), knots)


def merge_knots(knots):
    """Return sorted breakpoints in the range, those that nearly coincide merged.

    An interval then has no length and no row, or a length that divides differences of
    values without making the coefficients of the network so large that they cancel.
    """
    knots = np.minimum(np.maximum(knots, LEFT), RIGHT)
    knots.sort(axis=-1)
    close = knots[..., 1:] - knots[..., :-1] < _CLOSE
    if close.any():
        knots[..., :-1][close] = RIGHT
        knots = np.minimum.accumulate(knots[..., ::-1], axis=-1)[..., ::-1]
    return knots


def fit_values(knots, m):
    """Return the best function with given breakpoints."""
    h = np.empty(knots.shape)  # lengths of the intervals right of each breakpoint
    h[..., :-1] = knots[..., 1:] - knots[..., :-1]
    h[..., -1] = RIGHT - knots[..., -1]
    inverse = 1 / np.maximum(h, 1e-14)  # finite of one without length, which has no row
    values = solve_tridiagonal(*hat_system(knots, inverse, m))
    slopes = _slopes(inverse, values)
    beyond = value_at(knots, values, slopes, m.x) - m.y
    tilt = slopes - line_slopes(m)
    # How far the function is from the lines, which adds to their own residuals.
    off = m.weight * sum_of_targets(beyond**2) + m.xx * sum_of_targets(tilt**2)
    loss = 0.5 * np.add.reduce(m.rest + off, axis=-1)
    return BrokenLine(values, slopes, loss, m)


def _slopes(inverse, values):
    slopes = np.empty(values.shape)
    slopes[..., 0, :] = 0
    rise = values[..., 1:, :] - values[..., :-1, :]
    np.multiply(rise, inverse[..., None], out=slopes[..., 1:, :])
    return slopes


def value_at(knots, values, slopes, x):
    """Return values at one point x of every interval."""
    beyond_end = np.empty(x.shape)
    np.subtract(x[..., :-1], knots, out=beyond_end[..., :-1])
    np.subtract(x[..., -1], RIGHT, out=beyond_end[..., -1])
    return values + slopes * beyond_end[..., None]


def fit_running(knots, running):
    """Return the best function with given breakpoints, from running sums."""
    return fit_values(knots, moments(knots, running))


# --- one iteration -------------------------------------------------------------------


def gauss_newton_steps(knots, fitted):
    """Return the joint Gauss-Newton step, and the step to where fitted lines meet."""
    m = fitted.moments
    wide = (m.xx > 0)[..., None]
    slopes = np.where(wide, line_slopes(m), fitted.slopes)
    # An interval without rows keeps the line that it has.
    model = value_at(knots, fitted.values, fitted.slopes, m.x)
    means = np.where((m.weight > 0)[..., None], m.y, model)
    slopes[..., 0, :] = 0
    right = slopes[..., 1:, :] * (knots - m.x[..., 1:])[..., None]
    left = slopes[..., :-1, :] * (knots - m.x[..., :-1])[..., None]
    jump = means[..., 1:, :] + right - (means[..., :-1, :] + left)
    usable = (knots < RIGHT) & (np.cumsum(m.weight[..., :-1], axis=-1) > 0)

    def along(lines):
        change = lines[..., 1:, :] - lines[..., :-1, :]
        if jump.shape[-1] == 1:
            size, step = change[..., 0], np.zeros(knots.shape)
            return np.divide(-jump[..., 0], size, out=step, where=usable & (size != 0))
        return np.where(usable, shared_step(jump, change, knots, m), 0)

    with np.errstate(over="ignore"):
        return along(fitted.slopes), along(slopes)


def shared_step(jump, change, knots, m):
    """Return the step that several targets share, by weighted least squares.

    The jumps of all targets have one covariance matrix V. The step minimises the sum
    over targets of ``|j + D(c) delta|^2`` in the metric of V^-1.
    """
    n = knots.shape[-1]
    metric = np.linalg.inv(jump_covariance(knots, m))
    matrix = metric * (change @ np.swapaxes(change, -1, -2))
    diagonal = np.max(np.diagonal(matrix, axis1=-2, axis2=-1), axis=-1)
    shift = (1e-12 * diagonal + np.finfo(np.float64).tiny)[..., None, None] * np.eye(n)
    gradient = np.sum(change * (metric @ jump), axis=-1)
    return -solve_general(matrix + shift, gradient[..., None])[..., 0]


def jump_covariance(knots, m):
    """Return the covariance of the jumps between lines fitted to the intervals.

    For rows of unit variance and weights that sum to one. Neighbouring jumps share a
    line, others are independent.
    """
    n = knots.shape[-1]
    low, high = interval_ends(knots)
    mass = 1 / np.maximum(m.weight, 1e-12)
    spread = np.where(m.xx > 0, 1 / np.where(m.xx > 0, m.xx, 1), 0)
    spread[..., 0] = 0
    at_low = mass + spread * (low - m.x) ** 2
    at_high = mass + spread * (high - m.x) ** 2
    across = mass + spread * (low - m.x) * (high - m.x)
    covariance = np.zeros((*knots.shape, n))
    row = np.arange(n)
    covariance[..., row, row] = at_low[..., 1:] + at_high[..., :-1]
    covariance[..., row[1:], row[:-1]] = -across[..., 1:-1]
    covariance[..., row[:-1], row[1:]] = -across[..., 1:-1]
    return covariance


def iterate(knots, fitted, running):
    """Try both steps in several lengths; return the best trials and their functions."""
    moves = np.empty((len(knots), 1, 2, knots.shape[1]))
    moves[:, 0, 0], moves[:, 0, 1] = gauss_newton_steps(knots, fitted)
    moves[~np.isfinite(moves)] = 0
    trials = knots[:, None, None] + _LENGTHS[:, None, None] * moves
    trials = between_ends(trials, running)
    trials = merge_knots(trials.reshape(len(knots), -1, knots.shape[1]))
    fits = fit_values(trials, moments(trials, running))
    best = np.argmin(np.where(np.isfinite(fits.loss), fits.loss, np.inf), axis=1)
    chosen = np.arange(len(knots)), best
    return trials[chosen], _take(fits, chosen)


def _take(fitted, index):
    """Return some of several functions."""
    *parts, m = fitted
    return BrokenLine(
        *[a[index] for a in parts], IntervalMoments(*[a[index] for a in m])
    )


def descend(knots, running, n_steps, tol):
    """Iterate until the losses no longer fall by ``tol`` times themselves."""
    at = merge_knots(between_ends(knots, running))
    function = fit_running(at, running)
    knots, losses = at.copy(), function.loss.copy()
    going, count = np.arange(len(knots)), np.zeros(len(knots), np.intp)
    for _ in range(n_steps):
        at, found = iterate(at, function, running)
        count[going] += 1
        better = found.loss < function.loss
        improving = function.loss - found.loss > tol * function.loss
        lower = going[better]
        knots[lower], losses[lower] = at[better], found.loss[better]
        function = found
        if not improving.all():
            going, at = going[improving], at[improving]
            function = _take(function, improving)
        if len(going) == 0:
            break
    return knots, losses, count


# --- exact sums ----------------------------------------------------------------------


def gradient(knots, fitted):
    """Return the derivatives of the loss with respect to the breakpoints."""
    m = fitted.moments
    error = value_at(knots, fitted.values, fitted.slopes, m.x) - m.y
    beyond = np.cumsum((m.weight[:, None] * error)[::-1], axis=0)[::-1]
    return -np.sum(np.diff(fitted.slopes, axis=0) * beyond[1:], axis=1)


def full_steps(knots, fitted):
    """Return the breakpoints after each of the two full steps."""
    return merge_knots(knots + np.stack(gauss_newton_steps(knots, fitted)))


def fit_exact(knots, rows):
    """Return the best function with given breakpoints, from sums of each interval."""
    return fit_values(knots, exact_moments(knots, rows))


def spread_knots(knots, x):
    """Move breakpoints that share a gap between rows to its ends.

    The function stays the same at all rows, and is not steeper than it has to be:
    breakpoints that nearly coincide have coefficients that nearly cancel. Left of all
    rows one breakpoint is enough, in a gap with its ends two.
    """
    knots, before = np.sort(knots), None
    while before is None or not np.array_equal(knots, before, equal_nan=True):
        before = knots.copy()
        used = np.flatnonzero(knots < RIGHT)
        gap = np.searchsorted(x, knots[used], side="left")
        for at in np.unique(gap):
            slots = used[gap == at]
            if at == 0:
                knots[slots[:-1]] = RIGHT
                knots[slots[-1]] = min(LEFT, x[0])
            elif at == len(x):
                knots[slots] = RIGHT
            elif x[at - 1] in knots or (at == 1 and knots[0] < x[0]):
                knots[slots[:-1]] = RIGHT
                knots[slots[-1]] = x[at]
            elif len(slots) > 1:
                knots[slots[1:-1]] = RIGHT
                knots[slots[[0, -1]]] = x[at - 1], x[at]
        knots = np.sort(knots)
    return knots
