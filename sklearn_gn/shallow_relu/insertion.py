"""What a new breakpoint gains, for many candidates of many starts at once."""

import numpy as np

from sklearn_gn.shallow_relu.broken_line import value_at
from sklearn_gn.shallow_relu.interval_sums import (
    centred_sums,
    interval_ends,
    sum_of_targets,
)


def insertion_gains(knots, fitted, inverse, running, candidate, which=None):
    """Return the decrease of the squared loss by a new breakpoint, by candidate.

    Beside the hats that there are, a hat over the interval with its peak at the
    candidate does what the new breakpoint does.

    Parameters
    ----------
    knots : ndarray of shape (..., n)
    fitted : Line
    inverse : ndarray of shape (..., n + 1, n + 1)
        Of the mass matrix of the hats.
    running : RunningSums or StackedSums
    candidate : ndarray of int of shape (..., c)
        Row numbers.
    which : ndarray of int of shape (c,), default=None
        Number of the set of breakpoints of each of c candidates, with which sets may
        have some more than others. If None, all have as many.

    Returns
    -------
    ndarray of shape (..., c)
    """
    table, located = interval_table(knots, fitted, inverse, running)
    if which is None:
        which = np.arange(located[..., 0].size).reshape(*knots.shape[:-1], 1)
    else:
        running = running.of(which)
    position, q = running.position(candidate), fitted.values.shape[-1]
    row, first = table_rows(located, candidate, which, running.x.shape[-1] + 1)
    # Stored column by column, so that all that follows runs along the candidates.
    here = _with_first_axis_last(table.reshape(-1, table.shape[-1]).T.take(row, axis=1))
    low, high, variance, variance_left, covariance = (here[..., k] for k in range(5))
    start, slope = here[..., 5 : 5 + q], here[..., 5 + q : 5 + 2 * q]
    before, after = here[..., 5 + 2 * q : 9 + 4 * q], here[..., 9 + 4 * q :]
    middle = running.at(candidate)
    # Left and right of the candidate, along a new first axis.
    sums = _with_first_axis_last(np.empty((middle.shape[-1], 2, *candidate.shape)))
    np.subtract(middle, before, out=sums[0])
    np.subtract(after, middle, out=sums[1])
    part = centred_sums(sums, (np.stack([low, position]), np.stack([position, high])))
    own, with_left, with_right, drop = _products(
        part, low, high, position, first, start, slope
    )
    inside = (
        variance_left * with_left**2
        + 2 * covariance * with_left * with_right
        + variance * with_right**2
    )
    outside = own - inside
    useful = (outside > 1e-10 * own) & (own > 0)
    gain = sum_of_targets(drop**2) / np.where(useful, outside, 1)
    return np.where(useful, gain, -1)


def _products(part, low, high, position, first, start, slope):
    """Products of a new hat with itself, both hats of its interval and the residual."""
    peak = np.stack(
        [
            np.where(first, 0, 1 / np.maximum(position - low, 1e-14)),
            -1 / np.maximum(high - position, 1e-14),
        ]
    )
    width = np.where(first, 0, 1 / np.maximum(high - low, 1e-14))
    new, hat = 1 + peak * (part.x - position), (high - part.x) * width
    mass, tilt = part.weight * new, part.xx * peak
    across = tilt * width
    residual = part.y - start - slope * (part.x - low)[..., None]
    drop = mass[..., None] * residual
    drop += peak[..., None] * (part.xy - part.xx[..., None] * slope)
    both_sides = (
        mass * new + tilt * peak,
        mass * hat - across,
        mass * (1 - hat) + across,
        drop,
    )
    return tuple(side[0] + side[1] for side in both_sides)


def _with_first_axis_last(array):
    """Return an array, as it is in memory, with its first axis as the last one."""
    return array.transpose(*range(1, array.ndim), 0)


def interval_table(knots, fitted, inverse, running):
    """Return what :func:`insertion_gains` needs to know of every interval."""
    located = running.locate(knots)
    at = running.at(located)
    sums = np.zeros((*knots.shape[:-1], knots.shape[-1] + 2, at.shape[-1]))
    sums[..., 1:-1, :] = at
    sums[..., -1, :] = running.total(knots.ndim - 1)
    low, high = interval_ends(knots)
    variances = np.empty((*low.shape, 5))
    variances[..., 0], variances[..., 1] = low, high
    variances[..., 2] = np.diagonal(inverse, axis1=-2, axis2=-1)
    # Of the first interval no left hat is used.
    variances[..., 0, 3:] = 0
    variances[..., 1:, 3] = variances[..., :-1, 2]
    variances[..., 1:, 4] = np.diagonal(inverse, 1, axis1=-2, axis2=-1)
    start = value_at(knots, fitted.values, fitted.slopes, low)
    columns = variances, start, fitted.slopes, sums[..., :-1, :], sums[..., 1:, :]
    return np.concatenate(columns, axis=-1), located


def table_rows(located, candidate, which, n_rows):
    """Return the rows of the table, over all sets, in which the candidates lie.

    Also whether this is the first interval of a set.
    """
    n = located.shape[-1]
    n_sets = located.size // n
    before = n_rows * np.arange(n_sets)[:, None]
    bounds = (located.reshape(n_sets, n) + before).ravel()
    row = np.searchsorted(bounds, candidate + n_rows * which, side="right") + which
    return row, row == which * (n + 1)
