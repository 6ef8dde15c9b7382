"""The best partition of a series whose segments share nothing."""

import numpy as np

from sklearn_gn.shallow_relu import partition


def separable(problem):
    """Return whether no parameter is shared by two segments."""
    form = problem.form
    own_lines = form.step and form.ramp == form.slope and not form.flat_end
    return own_lines and not problem.known.shape[1] and problem.table.gram.shape[1] == 1


def best_partitions(problem, most):
    """Return the best partitions of one series.

    Parameters
    ----------
    problem : Problem
        Of one series.
    most : int
        Largest number of breakpoints.

    Returns
    -------
    rss : ndarray of shape (1 + most,)
        Infinite where the limits leave no room for so many.
    knots : list of ndarray of shape (k,)
    """
    table, form, _, limits, _ = problem
    n = int(table.n_rows[0])
    later = np.vstack([table.powers[0].T, table.targets[0, :, 0].T])[:, : n + 1]
    segments = partition.Segments(
        table.x[0, :n],
        -later,
        form.slope,
        count=table.count[0, : n + 1],
        min_rows=limits.min_rows[0],
        min_distance=limits.min_distance[0],
        bounds=(limits.low[0], limits.high[0]),
    )
    explained, paths = partition.best_partitions(segments, most)
    rss = np.maximum(table.gram[0, 0, 0] - explained, 0)
    knots = [
        segments.t[path[1:-1]] if np.isfinite(value) else np.full(k, np.nan)
        for k, (path, value) in enumerate(zip(paths, explained, strict=True))
    ]
    return rss, knots
