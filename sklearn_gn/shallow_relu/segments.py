"""Segments of a fitted network of one feature: breakpoints and standard errors.

Between neighbouring breakpoints the function is a straight line. Its rows determine the
line, hence the jump between two lines where they should meet, hence the breakpoint.
"""

import numpy as np
from scipy.linalg import null_space

from sklearn_gn.linalg.large_gram import row_slices
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu.sorted_rows import exact_moments, line_slopes, sort_rows

_DEPENDENT = 1e-7  # relative singular value of a direction that is left out


def fitted_breakpoints(net, rows, variance):
    """Return the breakpoints of the active neurons, ascending, and standard errors."""
    position = -net.hyperplanes[:, 0] / net.hyperplanes[:, 1]
    # The others go to the end, where there are no rows.
    position[~net.alive] = max(2.0, position[net.alive].max(initial=0) + 1)
    order = np.argsort(position, kind="stable")
    left = (net.hyperplanes[:, 1] < 0) & net.alive
    knots = position[order]
    std = breakpoint_deviations(knots, net.coef[order], rows, variance, left[order])
    n_active = int(net.alive.sum())
    knots, std = knots[:n_active], std[:n_active]
    std[(knots <= -1) | (knots >= 1)] = np.nan
    return knots, std


def breakpoint_deviations(knots, coef, rows, variance, left=None):
    """Return standard errors of sorted breakpoints, from jumps of independent lines."""
    _, host = sort_rows(rows)
    m = exact_moments(knots, host)
    slopes, determined = _slope_covariance(m.xx, left)
    covariance = _jump_covariance(knots, m, slopes)
    two = (m.weight > 0) & determined
    known = two[1:] & two[:-1]
    if coef.shape[1] == 1:
        size = np.abs(coef[:, 0])
        inverse = np.diagonal(covariance) / np.where(size > 0, size, 1) ** 2
    else:
        information = np.linalg.inv(covariance) * (coef @ coef.T)
        inverse = np.diagonal(np.linalg.pinv(information, hermitian=True))
    known &= np.any(coef != 0, axis=1)
    return np.where(known, np.sqrt(variance * np.maximum(inverse, 0)), np.inf)


def _slope_covariance(xx, left):
    """Return the covariance of the slopes, and which of them the data determine.

    The slope of the first segment is minus the changes at the neurons that point left,
    all of which still act there; without such neurons it is zero.
    """
    if left is None or not left.any():
        determined = np.concatenate([[True], xx[1:] > 0])
        inverse = 1 / np.where(xx > 0, xx, np.inf)
        inverse[0] = 0
        return np.diag(inverse), determined
    tie = np.zeros((1, len(xx)))
    tie[0, 0] = 1
    tie[0, 1:] += left
    tie[0, :-1] -= left
    free = null_space(tie)
    information, vectors = np.linalg.eigh(free.T @ (xx[:, None] * free))
    kept = information > _DEPENDENT**2 * information[-1]
    along = free @ vectors
    root = along[:, kept] / np.sqrt(information[kept])
    return root @ root.T, np.linalg.norm(along[:, ~kept], axis=1) < _DEPENDENT


def _jump_covariance(knots, m, slopes):
    """Return the covariance of the jumps between lines whose slopes have one."""
    row = np.arange(len(knots))
    arm = np.zeros((len(knots), len(knots) + 1))
    arm[row, row + 1] = knots - m.x[1:]
    arm[row, row] = m.x[:-1] - knots
    level = np.diff(np.eye(len(knots) + 1), axis=0)
    mass = 1 / np.maximum(m.weight, 1e-12)
    return (level * mass) @ level.T + arm @ slopes @ arm.T


def condense_rows(net, host):
    """Return a few rows that stand for all, for a network that a fit returns."""
    knots = np.sort(-net.hyperplanes[:, 0])
    m = exact_moments(knots, host)
    bounds = np.concatenate([[0], np.searchsorted(host.x, knots), [len(host.x)]])
    used = m.weight > 0
    first, last = host.x[bounds[:-1][used]], host.x[bounds[1:][used] - 1]
    mean, total = m.x[used], m.weight[used]
    deviation = np.sqrt(m.xx[used] / total)
    slope = line_slopes(m)[used]
    below, above = mean - first, last - mean
    wide = (below > 0) & (above > 0)
    ratio = np.sqrt(np.where(wide, below, 1) / np.where(wide, above, 1))
    share = 1 / (1 + ratio**2)
    parts = (
        (-deviation * ratio, total * share),
        (deviation / ratio, total * (1 - share)),
    )
    x, y, weight = (
        np.concatenate(columns)
        for columns in zip(
            *((mean + dx, m.y[used] + slope * dx[:, None], w) for dx, w in parts),
            strict=True,
        )
    )
    return Rows(x[:, None], y, weight), _mean_square(net, m, host)


def _mean_square(net, m, host):
    """Return the weighted mean squares of the residuals of all targets."""
    if host.y.shape[1] == 1:
        order = np.argsort(-net.hyperplanes[:, 0])
        slopes = np.concatenate([np.zeros((1, 1)), np.cumsum(net.coef[order], axis=0)])
        value = np.maximum(m.x[:, None] + net.hyperplanes[:, 0], 0) @ net.coef
        beyond = value + net.intercept - m.y
        off = m.weight[:, None] * beyond**2
        off += m.xx[:, None] * (slopes - line_slopes(m)) ** 2
        return m.rest.sum() + off.sum(axis=0) + host.tie_variance
    square = np.zeros(host.y.shape[1])
    for rows in row_slices(len(host.x)):
        hidden = np.maximum(host.x[rows, None] + net.hyperplanes[:, 0], 0)
        error = hidden @ net.coef + net.intercept - host.y[rows]
        square += host.weight[rows] @ error**2
    return square + host.tie_variance
