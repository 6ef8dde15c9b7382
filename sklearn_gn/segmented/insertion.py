"""The best place of one more breakpoint, the others held.

The decrease of the sum of squares is known exactly for a breakpoint at every candidate
and, of kinks, for one between it and the position before.
"""

import numpy as np

from sklearn_gn.segmented.problem import (
    DEPENDENT,
    HALF,
    RIGHT,
    all_pieces,
    locate,
    solve,
    take,
)


def insert(problem, knots, below=np.inf):
    """Return the best new breakpoint and the sum of squares with it, (B,) each.

    The sum of squares is infinite where no position is allowed that brings it to
    ``below`` (B,) or less.
    """
    pieces = all_pieces(problem, knots)
    found = solve(problem.table, pieces, problem.form.flat_end)
    gain, t = gains(problem, pieces, found)
    helps = gain >= np.maximum(found.rss - below, 0)[:, None]
    some = helps.any(axis=0)  # of these alone it matters whether they are allowed
    some[0] = True
    gain, t = np.where(helps, gain, -1)[:, some], t[:, some]
    others = np.broadcast_to(knots[:, None], (*t.shape, knots.shape[1]))
    trials = np.sort(np.concatenate([others, t[..., None]], axis=-1), axis=-1)
    gain = np.where(feasible(problem, trials), gain, -1)
    best = np.argmax(gain, axis=1)[:, None]
    gain, t = take(gain, best)[:, 0], take(t, best)[:, 0]
    return t, np.where(gain >= 0, np.maximum(found.rss - gain, 0), np.inf)


def gains(problem, pieces, found):
    """Return the decrease by each candidate and its breakpoint, allowed or not, (B, c).

    A kink between two rows is where the lines of both sides meet, if they meet there
    (Hudson, "Fitting segmented curves whose join points have to be estimated", 1966).
    """
    form, (_, t, before, *_) = problem.form, problem.candidates
    residual, inner, outside = orthogonal_part(problem, pieces, found)
    gain, change = gain_of_piece(residual[0], outside[0, 0], inner[0, 0])
    if len(residual) == 1:
        return gain, t
    # The step less its projection on the ramp.
    share = outside[0, 1] / np.where(outside[0, 0] > 0, outside[0, 0], np.inf)
    more, jump = gain_of_piece(
        residual[1] - share * residual[0],
        outside[1, 1] - share * outside[0, 1],
        inner[1, 1],
    )
    if form.step:
        return gain + more, t
    bend = change - share * jump
    meet = t - jump / np.where(bend != 0, bend, np.inf)
    inside = (meet >= before) & (meet <= t) & (more >= 0)
    gain, t = np.where(inside, gain + more, gain), np.where(inside, meet, t)
    if form.sign:
        gain = np.where(form.sign * np.where(inside, bend, change) >= 0, gain, -1)
    return gain, t


def orthogonal_part(problem, pieces, found):
    """Return products of the candidates' pieces, ramps before steps.

    A kink has both: with its step it is where two lines meet. The products are those
    with the residual, (m, B, c), of the pieces of a candidate with each other, (m, m,
    B, c), and the same of their parts that are orthogonal to the present function.
    """
    form, (rows, t, _, powers, targets) = problem.form, problem.candidates
    linear = [(-t, 1)] if form.ramp else []
    linear.append((1, 0))
    m = len(linear)
    # Sums from the later of the first rows on: of (1, x) with each present piece.
    own = take(problem.table.powers, pieces.first)[..., None]
    later = rows[:, None] >= pieces.first[..., None]
    s0, s1, s2 = (np.where(later, powers[:, None, k], own[:, :, k]) for k in range(3))
    level, slope = pieces.level[..., None], pieces.slope[..., None]
    with_one, with_x = level * s0 + slope * s1, level * s1 + slope * s2
    residual, halves, with_end = [], [], []
    end = found.end
    for a, b in linear:
        a_each = a[:, None] if np.ndim(a) else a
        with_targets = a_each * targets[:, :, 0] + b * targets[:, :, 1]
        cross = a_each * with_one + b * with_x
        cross = np.concatenate([cross, with_targets[:, 1:]], axis=1)
        residual.append(with_targets[:, 0] - (found.coef[:, None] @ cross)[:, 0])
        if end is not None:  # of the piece less its slope at the end
            with_end.append((end.coef[:, None] @ cross)[:, 0])
            residual[-1] = residual[-1] - b * end.with_target[:, None]
            cross = cross - b * end.with_pieces[..., None]
        halves.append(found.half_inverse @ cross)
    inner, outside = np.empty((2, m, m, *t.shape))
    for i, (a, b) in enumerate(linear):
        for j, (c, d) in enumerate(linear):
            inner[i, j] = a * c * powers[:, 0] + (a * d + b * c) * powers[:, 1]
            inner[i, j] += b * d * powers[:, 2]
            if end is not None:
                inner[i, j] += b * d * end.square[:, None]
                inner[i, j] -= b * with_end[j] + d * with_end[i]
            outside[i, j] = inner[i, j] - np.sum(halves[i] * halves[j], axis=1)
    return residual, inner, outside


def gain_of_piece(residual, outside, own):
    """Return the decrease by a piece and its coefficient; of dependent ones, -inf."""
    known = outside > DEPENDENT * own
    coef = np.where(known, residual / np.where(known, outside, 1), 0)
    return np.where(known, residual * coef, -np.inf), coef


def rows_before(problem, t):
    """Return the positions of sorted breakpoints (B, ..., k), and the rows before them.

    A row at a kink belongs to the segment before or to the one after: to that before
    only where it would have too few rows without.
    """
    table, limits = problem.table, problem.limits
    least = (limits.min_rows * (1 - HALF)).reshape(-1, *[1] * (t.ndim - 1))
    at = locate(table, t)
    low = take(table.count, at)
    on_row = take(table.x, np.minimum(at, table.x.shape[1] - 1)) == t
    following = take(table.count, np.minimum(at + 1, table.x.shape[1]))
    high = np.where(on_row, following, low)  # with a row that one lies on
    count, before, trial = low, np.zeros(t.shape), None
    while not np.array_equal(count, trial):  # one more row may leave the next too few
        trial, before[..., 1:] = count, count[..., :-1]
        count = np.where(low - before < least, high, low)
    return at, count


def behind_rows(problem, t):
    """Return sorted breakpoints (B, k), those behind their row by a rounding error.

    These are the kinks at a row that belongs to the segment before.
    """
    at, first = rows_before(problem, t)
    return np.where(first > take(problem.table.count, at), np.nextafter(t, RIGHT), t)


def feasible(problem, trials):
    """Return which sorted breakpoints keep the limits, of shape (B, T)."""
    table, form, known, limits = problem[:4]
    low, high, distance, least = (a[:, None, None] for a in limits)
    inside = np.all((trials >= low) & (trials <= high), axis=-1)
    lead = trials.shape[:-1]
    known = np.broadcast_to(known[:, None], (*lead, known.shape[-1]))
    t = np.sort(np.concatenate([trials, known], axis=-1), axis=-1)
    at, count = rows_before(problem, t)
    # With the ends of the data: their positions, and no or all of the rows before.
    positions, counts = np.empty((2, *lead, t.shape[-1] + 2))
    positions[..., 1:-1], counts[..., 1:-1] = t, count
    positions[..., 0], counts[..., 0] = table.x[:, :1], 0
    positions[..., -1] = take(table.x, table.n_rows[:, None] - 1)
    counts[..., -1] = take(table.count, table.n_rows[:, None])
    inside &= np.all(np.diff(counts) >= least * (1 - HALF), axis=-1)
    inside &= np.all(np.diff(at) >= 2 * (form.ramp and form.step), axis=-1)
    return inside & np.all(np.diff(positions) >= distance * (1 - HALF), axis=-1)
