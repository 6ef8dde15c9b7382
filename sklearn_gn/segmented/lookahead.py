"""A second start of the search, where the residuals of the first are no noise.

Kinks that are inserted one by one are of no use before most of them are there when the
slope goes up and down by turns: the criterion rises first, and the search ends too
early. The residuals are then correlated from row to row. For such series the best
partitions into lines of their own, see :mod:`sklearn_gn.shallow_relu.partition`, say
where the kinks of each number may lie.
"""

import numpy as np

from sklearn_gn.segmented.problem import all_pieces
from sklearn_gn.segmented.products import solve
from sklearn_gn.shallow_relu.partition import Segments, best_partitions

_PLACES = 250  # of kinks, at least; more of them are found by splitting
_SIGNIFICANT = 3.0  # standard deviations of the correlation of neighbouring residuals


def structured(problem, knots):
    """Return of which series the residuals of neighbouring rows are correlated.

    Parameters
    ----------
    problem : Problem
    knots : ndarray of shape (B, k)
    """
    table = problem.table
    inside = np.arange(table.x.shape[1]) < table.n_rows[:, None]
    residual = np.where(inside, _residuals(problem, knots), 0)
    square = np.sum(residual**2, axis=1)
    together = np.sum(residual[:, 1:] * residual[:, :-1], axis=1)
    return together * np.sqrt(table.n_rows) > _SIGNIFICANT * square


def _residuals(problem, knots):
    """Return the residuals of the mean target at every position, (B, n)."""
    table, pieces = problem.table, all_pieces(problem, knots)
    coef = solve(table, pieces, problem.form.flat_end).coef
    weight = table.powers[:, :-1, 0] - table.powers[:, 1:, 0]
    means = table.targets[:, :-1, :, 0] - table.targets[:, 1:, :, 0]
    means = means / np.where(weight > 0, weight, 1)[..., None]
    n_pieces, n = pieces.first.shape[1], table.x.shape[1]
    level, slope = np.zeros((2, len(knots), n + 1))
    series = np.arange(len(knots))[:, None]
    own = coef[:, :n_pieces]
    np.add.at(level, (series, pieces.first), own * pieces.level)
    np.add.at(slope, (series, pieces.first), own * pieces.slope)
    fitted = np.cumsum(level, axis=1)[:, :-1]
    fitted += np.cumsum(slope, axis=1)[:, :-1] * table.x
    return means[..., 0] - fitted - np.sum(means[..., 1:] * coef[:, None, n_pieces:], 2)


def starts_from_lines(problem, knots, most):
    """Yield breakpoints of one series, for each number those of the best partition.

    Parameters
    ----------
    problem : Problem
        Of one series.
    knots : ndarray of shape (1, k)
        Those of the first search, whose coefficients the linear features keep.
    most : int
        Largest number of breakpoints.
    """
    table, limits = problem.table, problem.limits
    n = int(table.n_rows[0])
    pieces = all_pieces(problem, knots)
    coef = solve(table, pieces, problem.form.flat_end).coef[0]
    targets = table.targets[0, : n + 1]
    targets = targets[:, 0] - np.einsum(
        "q,nqc->nc", coef[pieces.first.shape[1] :], targets[:, 1:]
    )
    segments = Segments(
        table.x[0, :n],
        -np.vstack([table.powers[0, : n + 1].T, targets.T]),
        True,
        count=table.count[0, : n + 1],
        min_rows=limits.min_rows[0],
        min_distance=limits.min_distance[0],
        bounds=(limits.low[0], limits.high[0]),
    )
    explained, paths = best_partitions(segments, most, n_even=_PLACES)
    for path, value in zip(paths[1:], explained[1:], strict=True):
        if np.isfinite(value):
            yield segments.t[None, path[1:-1]]
