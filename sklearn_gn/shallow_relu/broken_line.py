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

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.core.compilation import jit_by_size
from sklearn_gn.shallow_relu.interval_sums import (
    IntervalMoments,
    exact_moments,
    interval_ends,
    moments,
)
from sklearn_gn.shallow_relu.parameters import ShallowReLU
from sklearn_gn.shallow_relu.sorted_rows import (
    LEFT,
    RIGHT,
)

_OUTSIDE = -3.0  # where the networks have the breakpoint that is at LEFT here
_LENGTHS = (1.0, 0.5, 0.2, 0.05)  # of either step that are tried
_CHAIN = 1e-15  # ties values that no row determines to those of their neighbours
_CLOSE = 2.0**-30  # breakpoints closer than this are one, at which the function jumps


class BrokenLine(NamedTuple):
    """The best function with given breakpoints."""

    values: jnp.ndarray  # (n + 1, q) at the breakpoints and at RIGHT
    slopes: jnp.ndarray  # (n + 1, q) of the intervals; the first is zero
    loss: jnp.ndarray
    moments: IntervalMoments


# --- the function with given breakpoints ---------------------------------------------


def hat_system(knots, m):
    """Return the least-squares system of the hats at the breakpoints and at RIGHT.

    Returns
    -------
    diagonal : array of shape (n + 1,)
        Of the mass matrix.
    beside : array of shape (n,)
        Entries next to the diagonal.
    target : array of shape (n + 1, q)
    """
    h, inverse = interval_lengths(knots)
    share = jnp.clip((m.x[1:] - knots) * inverse, 0, 1)  # of the right hat, at the mean
    bend = m.xx[1:] * inverse**2
    tilt = m.xy[1:] * inverse[:, None]
    weight, y = m.weight[1:], m.y[1:]
    diagonal = jnp.zeros(h.shape[0] + 1, h.dtype)
    diagonal = diagonal.at[0].add(m.weight[0])
    diagonal = diagonal.at[:-1].add(weight * (1 - share) ** 2 + bend + _CHAIN)
    diagonal = diagonal.at[1:].add(weight * share**2 + bend + _CHAIN)
    beside = weight * share * (1 - share) - bend - _CHAIN
    target = jnp.zeros((h.shape[0] + 1, y.shape[1]), h.dtype)
    target = target.at[0].add(m.weight[0] * m.y[0])
    target = target.at[:-1].add((weight * (1 - share))[:, None] * y - tilt)
    target = target.at[1:].add((weight * share)[:, None] * y + tilt)
    return diagonal, beside, target


def merge_knots(knots):
    """Return sorted breakpoints in the range, those that nearly coincide merged.

    An interval then has no length and no row, or a length that divides differences of
    values without making the coefficients of the network so large that they cancel.
    """
    knots = jnp.sort(jnp.clip(knots, LEFT, RIGHT), axis=-1)
    last = jnp.full((*knots.shape[:-1], 1), jnp.inf, knots.dtype)
    apart = jnp.diff(knots, axis=-1, append=last) >= _CLOSE
    kept = jnp.where(apart, knots, RIGHT)
    return lax.cummin(kept, axis=knots.ndim - 1, reverse=True)


def interval_lengths(knots):
    """Return the lengths of the intervals right of each breakpoint, and their inverses.

    An interval without length holds no row; its inverse is cut to stay finite.
    """
    h = jnp.diff(knots, append=jnp.full(1, RIGHT, knots.dtype))
    return h, 1 / jnp.maximum(h, 1e-14)


def solve_tridiagonal(diagonal, beside, target):
    """Solve a positive definite tridiagonal system by elimination."""

    def down(carry, row):
        pivot, value = carry
        d, e, f = row
        factor = e / pivot
        pivot = d - factor * e
        value = f - factor * value
        return (pivot, value), (pivot, value)

    first = (diagonal[0], target[0])
    rest = (diagonal[1:], beside, target[1:])
    _, (pivots, values) = lax.scan(down, first, rest)
    pivots = jnp.concatenate([diagonal[:1], pivots])
    values = jnp.concatenate([target[:1], values])

    def up(after, row):
        pivot, value, e = row
        here = (value - e * after) / pivot
        return here, here

    last = values[-1] / pivots[-1]
    _, before = lax.scan(up, last, (pivots[:-1], values[:-1], beside), reverse=True)
    return jnp.concatenate([before, last[None]])


def fit_values(knots, m):
    """Return the best function with given breakpoints."""
    values = solve_tridiagonal(*hat_system(knots, m))
    slopes = jnp.diff(values, axis=0) * interval_lengths(knots)[1][:, None]
    slopes = jnp.concatenate([jnp.zeros_like(slopes[:1]), slopes])
    beyond = value_at(knots, values, slopes, m.x) - m.y
    tilt = slopes - line_slopes(m)
    # How far the function is from the lines, which adds to their own residuals.
    off = m.weight * jnp.sum(beyond**2, axis=1) + m.xx * jnp.sum(tilt**2, axis=1)
    loss = 0.5 * jnp.sum(m.rest + off)
    return BrokenLine(values, slopes, loss, m)


def value_at(knots, values, slopes, x):
    """Return values at one point x of every interval."""
    start = jnp.concatenate([knots[:1], knots])
    at_start = jnp.concatenate([values[:1], values[:-1]])
    return at_start + slopes * (x - start)[:, None]


def line_slopes(m):
    """Return the slopes of lines fitted to the intervals; 0 without two rows."""
    wide = m.xx > 0
    return jnp.where(wide[:, None], m.xy / jnp.where(wide, m.xx, 1)[:, None], 0)


# --- one iteration -------------------------------------------------------------------


def gauss_newton_steps(knots, fitted):
    """Return the joint Gauss-Newton step, and the step to where fitted lines meet."""
    m = fitted.moments
    wide = (m.xx > 0)[:, None]
    slopes = jnp.where(wide, line_slopes(m), fitted.slopes)
    # An interval without rows keeps the line that it has.
    model = value_at(knots, fitted.values, fitted.slopes, m.x)
    means = jnp.where((m.weight > 0)[:, None], m.y, model)
    slopes = slopes.at[0].set(0)
    right = means[1:] + slopes[1:] * (knots - m.x[1:])[:, None]
    left = means[:-1] + slopes[:-1] * (knots - m.x[:-1])[:, None]
    jump = right - left
    usable = (knots < RIGHT) & (jnp.cumsum(m.weight[:-1]) > 0)

    def along(change):
        if jump.shape[1] == 1:
            size = change[:, 0]
            step = -jump[:, 0] / jnp.where(size != 0, size, 1)
            return jnp.where(usable & (size != 0), step, 0)
        return jnp.where(usable, shared_step(jump, change, knots, m), 0)

    return along(jnp.diff(fitted.slopes, axis=0)), along(jnp.diff(slopes, axis=0))


def shared_step(jump, change, knots, m):
    """Return the step that several targets share, by weighted least squares.

    The jumps of all targets have one covariance matrix V. The step minimises the sum
    over targets of ``|j + D(c) delta|^2`` in the metric of V^-1.
    """
    n = knots.shape[0]
    metric = jnp.linalg.inv(jump_covariance(knots, m))
    matrix = metric * (change @ change.T)
    shift = 1e-12 * jnp.max(jnp.diagonal(matrix)) + jnp.finfo(metric.dtype).tiny
    gradient = jnp.sum(change * (metric @ jump), axis=1)
    return -jnp.linalg.solve(matrix + shift * jnp.eye(n, dtype=metric.dtype), gradient)


def jump_covariance(knots, m):
    """Return the covariance of the jumps between lines fitted to the intervals.

    For rows of unit variance and weights that sum to one. Neighbouring jumps share a
    line, others are independent.
    """
    low, high = interval_ends(knots)
    mass = 1 / jnp.maximum(m.weight, 1e-12)
    wide = m.xx > 0
    spread = jnp.where(wide, 1 / jnp.where(wide, m.xx, 1), 0).at[0].set(0)
    at_low = mass + spread * (low - m.x) ** 2
    at_high = mass + spread * (high - m.x) ** 2
    across = mass + spread * (low - m.x) * (high - m.x)
    off = jnp.diag(-across[1:-1], 1)
    return jnp.diag(at_low[1:] + at_high[:-1]) + off + off.T


def iterate(knots, fitted, running):
    """Try both steps in several lengths; return the best trial and its function."""
    lengths = jnp.asarray(_LENGTHS, knots.dtype)
    moves = jnp.stack(gauss_newton_steps(knots, fitted))
    trials = lengths[:, None, None] * moves[None]
    trials = merge_knots(knots[None] + trials.reshape(-1, len(knots)))
    fits = jax.vmap(lambda t: fit_values(t, moments(t, running)))(trials)
    losses = jnp.where(jnp.isfinite(fits.loss), fits.loss, jnp.inf)
    best = jnp.argmin(losses)
    return trials[best], jax.tree.map(lambda a: a[best], fits)


def descend(knots, running, n_steps, tol):
    """Iterate until the loss no longer falls by ``tol`` times itself.

    Returns
    -------
    knots, fitted
    count : int
        Iterations done.
    """

    def going(carry):
        *_, improving, count = carry
        return improving & (count < n_steps)

    def step(carry):
        knots, fitted, _, count = carry
        trial, found = iterate(knots, fitted, running)
        better = found.loss < fitted.loss
        improving = fitted.loss - found.loss > tol * fitted.loss
        kept = jax.tree.map(partial(jnp.where, better), (trial, found), (knots, fitted))
        return *kept, improving, count + 1

    knots = merge_knots(knots)
    start = fit_values(knots, moments(knots, running))
    carry = (knots, start, jnp.bool_(True), jnp.int32(0))
    knots, fitted, _, count = lax.while_loop(going, step, carry)
    return knots, fitted, count


# --- exact sums ----------------------------------------------------------------------


_fit_values = jit_by_size(fit_values)


@jit_by_size
def fit_running(knots, running):
    """Return the best function with given breakpoints, from running sums."""
    return fit_values(knots, moments(knots, running))


@jit_by_size
def gradient(knots, fitted):
    """Return the derivatives of the loss with respect to the breakpoints."""
    m = fitted.moments
    error = value_at(knots, fitted.values, fitted.slopes, m.x) - m.y
    beyond = jnp.cumsum((m.weight[:, None] * error)[::-1], axis=0)[::-1]
    return -jnp.sum(jnp.diff(fitted.slopes, axis=0) * beyond[1:], axis=1)


@jit_by_size
def full_steps(knots, fitted):
    """Return the breakpoints after each of the two full steps."""
    return merge_knots(knots[None] + jnp.stack(gauss_newton_steps(knots, fitted)))


def fit_exact(knots, rows):
    """Return the best function with given breakpoints, from sums of each interval."""
    return _fit_values(knots, exact_moments(knots, rows))


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


def to_network(knots, fitted, n_slots):
    """Return the network of a function; breakpoints not in use lie at the end."""
    knots, values = np.asarray(knots), np.asarray(fitted.values)
    slopes = np.asarray(fitted.slopes)
    coef = np.diff(slopes, axis=0)
    coef[knots >= RIGHT] = 0
    intercept = values[0].copy()
    at_left = knots <= LEFT
    # Where the first line begins is free: far enough out, it goes on as a line.
    intercept -= coef[at_left].sum(axis=0) * (LEFT - _OUTSIDE)
    position = np.where(at_left, _OUTSIDE, knots)
    hyperplanes = np.column_stack([-position, np.ones(len(position))])
    return ShallowReLU(hyperplanes, coef, intercept, np.arange(len(knots)) < n_slots)
