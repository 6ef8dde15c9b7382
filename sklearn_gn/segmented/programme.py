"""Kinks of one series where descents begin, by dynamic programming.

A continuous broken line with kinks at some positions is known from its values there.
With the value v at a kink, all that lies before it costs at least a convex function of
v, the least of many parabolas: one for each way to place the earlier kinks. From one
kink to the next, parabolas become parabolas, as the value at the first is minimised. At
a position only the lowest ones at some values are kept, so that the best line is not
certain, and of many rows only some may have kinks.
"""

import numpy as np

from sklearn_gn.segmented.problem import DEPENDENT, EXACT, all_pieces, solve, spread

MOST_ROWS = 60  # that may have kinks
_VALUES = np.linspace(-2, 2, 5)  # in deviations, at which parabolas are compared
STARTS = 16  # from which the descents begin
_APART = 4  # positions at least between some kinks of two starts


def kinks_at_rows(problem, knots):
    """Return several sets of kinks (m, k) at rows instead of ``knots``, the best first.

    Conditions on the slopes and known breakpoints are left out of account.
    """
    table, form, k = problem.table, problem.form, knots.shape[1]
    rows = spread(0, table.n_rows[0] - 1, MOST_ROWS)
    if k > len(rows) - 2:
        return np.empty((0, k))
    # A row at a kink belongs to the segment before, or to the one after.
    x = np.sort([table.x[0, rows], np.nextafter(table.x[0, rows], 2)], axis=None)[:-1]
    rows = np.searchsorted(table.x[0], x)
    ends = np.append(rows[:-1], -1)  # the last segment holds the last row
    # Sums of w, w x, w x^2, w y and w x y, of y without the linear features.
    coef, m = solve(table, all_pieces(problem, knots)).coef[0], table.square.shape[1]
    linear = np.vstack([np.eye(m), -coef[len(coef) - problem.n_linear :]])
    targets = (np.swapaxes(table.targets[0, ends], 1, 2) @ linear).reshape(len(x), -1)
    later = np.column_stack([table.powers[0, ends], targets])
    allowed = table.count[0, rows] - table.count[0, rows, None]
    allowed[:, -1] = table.count[0, -1] - table.count[0, rows]
    allowed = allowed >= problem.limits.min_rows[0] * (1 - 1e-9)
    allowed &= x - x[:, None] >= problem.limits.min_distance[0] * (1 - 1e-9)
    inner = (x >= problem.limits.low[0]) & (x <= problem.limits.high[0])
    *_, places = kinks_at_positions(x, later, form.slope, k, allowed, inner)
    return x[places]


def kinks_at_positions(x, later, slope, most, allowed=True, inner=True):
    """Yield sets of 1, 2, up to ``most`` kinks, (m, k) numbers of positions each.

    ``later`` are the sums of w, w x, w x^2, w y and w x y over the rows from each of
    the positions x on, with several targets y side by side; the last position's is over
    none. Without ``slope`` the first segment is level. A segment from one position to
    another has to be ``allowed`` (m, m), a kink at one ``inner`` (m,).
    """
    m, q = len(x), (later.shape[1] - 3) // 2
    if m < 3:
        return
    part = np.moveaxis(later[:, None] - later, -1, 0)  # from one to another
    (w, wx, wxx), wy, wxy = part[:3], part[3 : 3 + q], part[3 + q :]
    distance = x - x[:, None]
    allowed = allowed & (distance >= EXACT)
    inner = inner & (np.arange(m) > 0) & (np.arange(m) < m - 1)
    length = np.where(allowed, distance, 1)
    # Products of both hats of a segment, s at its end and 1 - s at its start.
    s = (wx - x[:, None] * w) / length
    right = (wxx - 2 * x[:, None] * wx + x[:, None] ** 2 * w) / length**2
    both, left = s - right, w - 2 * s + right
    with_right = (wxy - x[:, None] * wy) / length
    of_segment = left, both, right, wy - with_right, with_right
    start = [each[..., 0, :, None] for each in of_segment]
    if slope:
        parabola = _onward(0.0, np.zeros((q, 1, 1)), 0.0, *start)
    else:
        level = start[0] + 2 * start[1] + start[2]
        parabola = level, -2 * (start[3] + start[4]), np.zeros((m, 1))
    closed = np.where(allowed & inner, 0, np.inf)[:, None]
    parabola = parabola[0], parabola[1], parabola[2] + closed[0].T
    # Values near the targets around each position, (value, q, to).
    cell, near = later[:-1] - later[1:], np.arange(m)
    own = cell[:, 3 : 3 + q] / np.maximum(cell[:, :1], EXACT)
    around = later[np.maximum(near - 2, 0)] - later[np.minimum(near + 2, m - 1)]
    mean = around[:, 3 : 3 + q] / np.maximum(around[:, :1], EXACT)
    noise = np.sqrt(np.mean(np.diff(own, axis=0) ** 2, axis=0) / 2)
    values, steps = mean.T + _VALUES[:, None, None] * noise[:, None], []
    last = [each[..., :, -1, None] for each in of_segment]
    for k in range(1, most + 1):
        _, _, total = _onward(*parabola, *last, ends=True)
        total = np.where(allowed[:, -1:], total, np.inf)
        yield _best_paths(total, steps)
        if k == most:
            break
        each = (a[..., None] for a in parabola)  # (from, parabola, to)
        a, b, c = _onward(*each, *(a[..., None, :] for a in of_segment))
        c += closed
        width, best = c.shape[1], np.empty((m, len(values)), np.intp)
        for own, at in zip(best.T, values, strict=True):
            value = a * np.sum(at**2, axis=0)
            value += c
            for of_target, each in zip(b, at, strict=True):
                value += of_target * each
            value = value.reshape(m * width, m)  # (from and parabola, to)
            least = value.min(axis=0)
            np.argmax(value <= least + EXACT * np.abs(least), axis=0, out=own)
        steps.append(np.stack(np.divmod(best, width)))
        best = best * m + np.arange(m)[:, None]
        parabola = (a.reshape(-1)[best], b.reshape(q, -1)[:, best], c.reshape(-1)[best])


def _onward(a, b, c, left, both, right, with_left, with_right, ends=False):
    """Return parabolas ``a |v|^2 + b v + c`` of the value at the end of a segment.

    Where the line ``ends``, c is what it costs at least.
    """
    a, b = np.maximum(a + left, EXACT), b - 2 * with_left
    c = c - np.sum(b**2, axis=0) / (4 * a)
    new = np.maximum(right - both**2 / a, 0), -2 * with_right - both * b / a
    if ends:
        c = c - np.sum(new[1] ** 2, axis=0) / (4 * np.maximum(new[0], EXACT))
    return *new, c


def _best_paths(total, steps):
    """Return the paths to the lowest totals (m, parabola), no two near one another."""
    # The first of those that are equal but for rounding, here and on the way.
    finite = np.flatnonzero(np.isfinite(total))
    known = total.ravel()[finite]
    unit = DEPENDENT * np.abs(known).max(initial=np.finfo(float).tiny)
    order = finite[np.argsort(np.round(known / unit), kind="stable")]
    place = np.unravel_index(order, total.shape)
    path = [place[0]]
    for step in reversed(steps):
        place = step[:, place[0], place[1]]
        path.append(place[0])
    path, chosen = np.array(path[::-1]).T, []
    while len(path) and len(chosen) < STARTS:
        chosen.append(path[0])
        path = path[np.abs(path - path[0]).max(axis=1) > _APART]
    return np.array(chosen, np.intp).reshape(-1, 1 + len(steps))
