"""Kinks of one series by dynamic programming, where the search begins.

A continuous broken line with kinks at rows is known from its values there. With the
value v at a kink, all that lies before it costs at least a convex function of v, the
least of many parabolas: one for each way to place the earlier kinks. From one kink to
the next, parabolas become parabolas, as the value at the first is minimised. Of those
at a row only the lowest at some values are kept, so that the best line is not certain,
and of many rows only some may have kinks.
"""

import numpy as np

from sklearn_gn.segmented.problem import all_pieces, solve, spread

_MOST_ROWS = 60  # that may have kinks
_VALUES = np.linspace(-2, 2, 7)  # in deviations, at which parabolas are compared
_STARTS = 16  # from which the descents begin
_APART = 4  # positions at least between some kinks of two starts
_SHIFT = 1e-12


def kinks_at_rows(problem, knots):
    """Return several sets of kinks (m, k) at rows of one series, the best first.

    No two are near one another. They take the place of ``knots`` (1, k). Conditions on
    the slopes and known breakpoints are left out of account.
    """
    table, form, k = problem.table, problem.form, knots.shape[1]
    rows = spread(0, table.n_rows[0] - 1, max(_MOST_ROWS, 4 * k))
    # A row at a kink belongs to the segment before, or to the one after.
    x = np.sort([table.x[0, rows], np.nextafter(table.x[0, rows], 2)], axis=None)[:-1]
    rows, m = np.searchsorted(table.x[0], x), len(x)
    found = solve(table, all_pieces(problem, knots))
    linear = np.append(
        1, -found.coef[0, found.coef.shape[1] - table.gram.shape[1] + 1 :]
    )
    ends = np.append(rows[:-1], -1)  # the last segment holds the last row
    at = np.column_stack([table.powers[0, ends], linear @ table.targets[0, ends]])
    w, wx, wxx, wy, wxy = np.moveaxis(at[:, None] - at, -1, 0)  # from one to another
    allowed = table.count[0, rows] - table.count[0, rows, None]
    allowed[:, -1] = table.count[0, -1] - table.count[0, rows]
    allowed = allowed >= problem.limits.min_rows[0] * (1 - 1e-9)
    distance = x - x[:, None]
    allowed &= distance >= max(problem.limits.min_distance[0] * (1 - 1e-9), 1e-12)
    inner = (x >= problem.limits.low[0]) & (x <= problem.limits.high[0])
    inner[[0, -1]] = False
    length = np.where(allowed, distance, 1)
    # Products of both hats of a segment, s at its end and 1 - s at its start.
    s = (wx - x[:, None] * w) / length
    right = (wxx - 2 * x[:, None] * wx + x[:, None] ** 2 * w) / length**2
    both, left = s - right, w - 2 * s + right
    with_right = (wxy - x[:, None] * wy) / length
    with_left = wy - with_right
    of_segment = left, both, right, with_left, with_right
    start = [a[0, :, None] for a in of_segment]
    if form.slope:
        parabola = _onward(0.0, 0.0, 0.0, *start)
    else:
        parabola = start[0] + 2 * start[1] + start[2], -2 * (start[3] + start[4]), 0.0
    possible = allowed[0] & inner
    parabola = [
        np.where(possible[:, None], np.broadcast_to(a, (m, 1)), b)
        for a, b in zip(parabola, (1.0, 0.0, np.inf), strict=True)
    ]
    level = _levels(at, m)
    before = []
    for _ in range(k - 1):
        each = [a[:, :, None] for a in parabola]  # (from, parabola, to)
        new = _onward(*each, *(a[:, None] for a in of_segment))
        new = [a.reshape(-1, m) for a in new]
        closed = np.repeat(~(allowed & inner), parabola[0].shape[1], axis=0)
        new[2][closed] = np.inf
        value = (new[0][..., None] * level + new[1][..., None]) * level
        best = np.argmin(value + new[2][..., None], axis=0)  # (to, value)
        before.append(np.stack(np.divmod(best, parabola[0].shape[1])))
        parabola = [np.take_along_axis(a.T, best, axis=1) for a in new]
    last = [a[:, -1, None] for a in of_segment]
    a, b, c = _onward(*parabola, *last)
    total = np.where(allowed[:, -1:], c - b**2 / (4 * np.maximum(a, _SHIFT)), np.inf)
    order = np.argsort(total, axis=None, kind="stable")
    place = np.unravel_index(order[np.isfinite(total.ravel()[order])], total.shape)
    path = [place[0]]
    for step in reversed(before):
        place = step[:, place[0], place[1]]
        path.append(place[0])
    path, chosen = np.array(path[::-1]).T, []
    while len(path) and len(chosen) < _STARTS:
        chosen.append(path[0])
        path = path[np.abs(path - path[0]).max(axis=1) > _APART]
    return x[np.array(chosen, np.intp).reshape(-1, k)]


def _onward(a, b, c, left, both, right, with_left, with_right):
    """Return parabolas of the value at the end of a segment, from those at its start.

    A parabola is ``a v^2 + b v + c``.
    """
    a, b = np.maximum(a + left, _SHIFT), b - 2 * with_left
    return (
        np.maximum(right - both**2 / a, 0),
        -2 * with_right - both * b / a,
        c - b**2 / (4 * a),
    )


def _levels(at, m):
    """Return values near the targets around each row, of shape (m, values)."""
    cell = at[:-1] - at[1:]
    own = cell[:, 3] / np.maximum(cell[:, 0], _SHIFT)
    near = np.arange(m)
    total = at[np.maximum(near - 2, 0)] - at[np.minimum(near + 2, m - 1)]
    mean = total[:, 3] / np.maximum(total[:, 0], _SHIFT)
    return mean[:, None] + _VALUES * np.std(np.diff(own)) / np.sqrt(2)
