r"""Confidence intervals of kinks by the profile of the sum of squares.

A position t belongs to the interval of a kink if fixing it there raises the least sum
of squares by no more than :math:`q^2 s^2`, with q a quantile of Student's t
distribution (Bates and Watts, "Nonlinear regression analysis and its applications",
1988, section 6.1). Close to the estimate that is the interval of the delta method,
which is too narrow where the kink is not sharp: the sum of squares rises less and less
with the distance. The other kinks follow to first order.

For other covariances, :math:`s^2` is such that both still agree close to the estimate.
"""

import numpy as np

from sklearn_gn.segmented import least_squares
from sklearn_gn.segmented.problem import all_pieces
from sklearn_gn.segmented.products import Pieces, concatenate, locate, solve

_RESOLVED = 1e-11  # rise, over the total, that is more than rounding errors
_NEAR = 4.0  # half-widths of the delta method within which positions are close
_EACH = 32  # positions that are tried near, far, and in between


def kink_intervals(problem, fit, width, rows):
    """Return the intervals of the kinks in the units of the search, (n_kinks, 2).

    Parameters
    ----------
    problem : Problem
        Of one series.
    fit : Fit
    width : ndarray of shape (n_kinks,)
        Half-widths by the delta method.
    rows : Rows
        Of the series, with the targets that were fitted.
    """
    t = fit.t[fit.kinks]
    interval = np.stack([t - width, t + width], axis=1)
    if not len(t):
        return interval
    curvature = _inverse_curvature(fit, rows)
    ends = np.concatenate([[-1.0], fit.t, [1.0]])
    for k, (at, half) in enumerate(zip(t, width, strict=True)):
        least = _RESOLVED * fit.total * curvature[k]
        if not max(least, 0) < half**2 < np.inf:
            continue
        rise, threshold = _rise(problem, fit, k), half**2 / curvature[k]
        for side, end in ((0, ends[ends < at].max()), (1, ends[ends > at].min())):
            interval[k, side] = _last_below(rise, at, end, half, threshold)
    return interval


def _inverse_curvature(fit, rows):
    """Return the diagonal of the inverse normal matrix, of the kinks."""
    columns = least_squares.jacobian(
        fit.form, rows.x, rows.linear, fit.t, fit.free, fit.coef
    )
    level = least_squares.end_slope(fit.form, len(fit.t), columns.shape[-1])
    half = least_squares.solve(columns, rows.y, rows.weight, level).half
    return np.sum(half[len(fit.coef) :] ** 2, axis=-1)


def _rise(problem, fit, k):
    """Return the rise of the sum of squares as a function of the position of a kink."""
    knots, flat = fit.t[fit.free], problem.form.flat_end
    others = np.delete(knots, k)
    n_rows = float(fit.n_rows)

    def rss(t):
        trials = np.broadcast_to(knots, (1, len(t), len(knots))).copy()
        trials[..., k] = t
        there = np.broadcast_to(others, (1, len(t), len(others)))
        one = np.ones_like(there)
        steps = Pieces(locate(problem.table, there), one, 0 * one)
        pieces = concatenate(all_pieces(problem, trials), steps)
        return n_rows * solve(problem.table, pieces, flat).rss[0]

    least = rss(knots[[k]])
    return lambda t: rss(t) - least


def _last_below(rise, at, end, half, threshold):
    """Return the last position from a kink to an end whose rise is small enough."""
    far = abs(end - at)
    near = min(_NEAR * half, far)
    share = np.linspace(0, near, _EACH)
    if near < far:
        share = np.append(share, np.geomspace(near, far, _EACH)[1:])
    share = share / far
    for _ in range(2):
        excess = rise(at + share * (end - at)) - threshold
        last = np.flatnonzero(excess <= 0)[-1]
        if last == len(share) - 1:
            return end
        (low, high), (below, above) = share[last : last + 2], excess[last : last + 2]
        share = np.linspace(low, high, _EACH)
    return at + (low + (high - low) * below / (below - above)) * (end - at)
