"""Search for the best breakpoints, of several series side by side.

1. Upwards, a breakpoint is inserted where the residual sum of squares falls most, at a
   position or where the lines of both sides meet between two. Then kinks move by joint
   Gauss-Newton steps, in the form of Muggeo ("Estimating regression models with unknown
   break-points", 2003) and in the plain one.
2. Downwards, the breakpoint whose absence costs least is deleted.
3. Of the number that is chosen, kinks also descend from other starts, and every
   breakpoint is taken out in turn and inserted again, as long as that helps.

The way up ends where the criterion no longer falls and the residuals of neighbouring
rows are not correlated: kinks of a slope that goes up and down by turns are of no use
before most of them are there. Segments that share no parameter need no search, see
:mod:`sklearn_gn.segmented.programme`. Jumps lie halfway between two positions.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from sklearn_gn.linalg import factors
from sklearn_gn.segmented import programme
from sklearn_gn.segmented.problem import (
    DEPENDENT,
    EXACT,
    HALF,
    LEFT,
    MOST_CANDIDATES,
    RIGHT,
    Limits,
    Pieces,
    all_pieces,
    concatenate,
    feasible,
    locate,
    powers_of,
    solve,
    spread,
    sum_of_squares,
    take,
)
from sklearn_gn.segmented.programme import MOST_ROWS, STARTS, kinks_at_rows

PATIENCE = 2  # breakpoints without improvement of the criterion that end the growth
_ROUGH = 1e-5  # relative gain of a step that ends a descent where more is to come
_COARSE = 16  # positions that are tried on the way, for each kink
SIGNIFICANT = 3.0  # standard deviations of a correlation that is no chance


class Path(NamedTuple):
    """Best fits by the number of breakpoints, from none on."""

    rss: np.ndarray  # (B, 1 + most), infinite where there is no fit
    knots: list  # of (B, k)

    def keep(self, series, knots, rss):
        """Keep fits that are better than all of the same number so far."""
        k = knots.shape[1]
        better = rss < self.rss[series, k]
        self.rss[series[better], k] = rss[better]
        self.knots[k][series[better]] = knots[better]


def search(problem, most, value=None, start=None):
    """Return the best fits with up to a number of breakpoints, where it has a value.

    From the :class:`Path` of other weights of the rows, the breakpoints move, and the
    cheapest are deleted.
    """
    n_series = len(problem.table.x)
    knots = [np.full((n_series, k), np.nan) for k in range(most + 1)]
    path = Path(np.full((n_series, most + 1), np.inf), knots)
    if separable(problem):
        for b in range(n_series):
            _partition(problem.of([b]), path, np.array([b]))
        return path
    if start is not None:
        for k, knots in enumerate(start.knots[: most + 1]):
            series = np.flatnonzero(np.isfinite(start.rss[:, k]))
            if len(series):
                part, own = problem.of(series), knots[series]
                own = descend_roughly(part, own, sum_of_squares(part, own))
                path.keep(series, *own)
    else:
        if not problem.form.step:  # from few positions kinks move to where they belong
            rows = problem.candidates.rows[0]
            problem = problem.at(rows[spread(0, len(rows) - 1, _COARSE * (most + 1))])
        _grow(problem, path, value)
    for k in range(most, 1, -1):
        series = np.flatnonzero(np.isfinite(path.rss[:, k]))
        if len(series):
            part = problem.of(series)
            fewer = delete_cheapest(part, path.knots[k][series])
            path.keep(series, *descend_roughly(part, *fewer))
    return path


def _partition(problem, path, series):
    """Keep the best partitions of one series, whose segments share nothing.

    They share the linear features, whose coefficients follow from the most segments;
    both by turns.
    """
    table, k, n = problem.table, 0, problem.table.n_rows[0]
    q, most = table.square.shape[1], len(path.knots) - 1
    limits = Limits(*(each[0] for each in problem.limits))
    while True:
        before = path.rss[series].copy()
        linear = np.eye(q)
        if problem.n_linear:
            knots = path.knots[k][series]
            coef = solve(table, all_pieces(problem, knots)).coef[0]
            linear = np.vstack([linear, -coef[len(coef) - problem.n_linear :]])
        targets = np.swapaxes(table.targets[0], 1, 2) @ linear
        targets = targets.reshape(len(targets), -1)
        later = np.column_stack([table.powers[0], targets])[: n + 1].T
        own = table.count[0, : n + 1], limits
        segments = programme.Segments(table.x[0, :n], -later, problem.form.slope, *own)
        explained, paths = programme.best_partitions(segments, most)
        for k in np.flatnonzero(np.isfinite(explained)):
            knots = segments.t[paths[k][1:-1]][None]
            rss = np.maximum(table.total - explained[k], 0)
            rss = sum_of_squares(problem, knots) if problem.n_linear else rss
            path.keep(series, knots, rss)
        falls = path.rss[series] < (1 - _ROUGH) * before
        if not (problem.n_linear and falls.any()):
            break


def _grow(problem, path, value):
    floor = EXACT * np.maximum(problem.table.total, np.finfo(float).tiny)
    growing, knots = np.arange(len(floor)), np.empty((len(floor), 0))
    best, since = np.full(len(floor), np.inf), np.zeros(len(floor), int)
    # Whether neighbouring residuals of the fit of the best criterion are correlated.
    structured = np.zeros(len(floor), bool)
    for k in range(len(path.knots)):
        part = problem.of(growing)
        if k:
            t, rss = insert(part, knots)
            kept = np.isfinite(rss)
            if not kept.any():
                break
            growing, part = growing[kept], part.of(kept)
            knots = np.sort(np.column_stack([knots[kept], t[kept]]), axis=1)
        rss = sum_of_squares(part, knots)
        knots, rss = descend_roughly(part, knots, rss)
        path.keep(growing, knots, rss)
        going = rss > floor[growing]
        if value is not None:
            found = value(np.maximum(rss, floor[growing]), k, growing)
            better = found < best[growing]
            since[growing] = np.where(better, 0, since[growing] + 1)
            best[growing[better]] = found[better]
            if better.any():
                part = part.of(better)
                residual = residuals_in_order(part, knots[better])
                together = np.sum(residual[:, 1:] * residual[:, :-1], axis=(1, 2))
                together = together * np.sqrt(part.table.n_rows)
                square = np.sum(residual**2, axis=(1, 2))
                structured[growing[better]] = together > SIGNIFICANT * square
            going &= (since[growing] < PATIENCE) | structured[growing]
        growing, knots = growing[going], knots[going]
        if not len(growing):
            break


def delete_cheapest(problem, knots):
    """Return the breakpoints without the one whose absence costs least."""
    k = knots.shape[1]
    kept = np.array([[i for i in range(k) if i != j] for j in range(k)], np.intp)
    return _best_of(problem, knots[:, kept.reshape(k, k - 1)])


def exchange(problem, knots, rss):
    """Insert every breakpoint again at its best position, as long as that helps."""
    knots, rss, moving = knots.copy(), rss.copy(), np.arange(len(knots))
    while len(moving):
        part, trial, found = problem.of(moving), knots[moving], rss[moving]
        for k in range(knots.shape[1]):
            others = np.delete(trial, k, axis=1)
            t, new = insert(part, others, found)
            both = np.sort(np.column_stack([others, t]), axis=1)
            better = new < found * (1 - DEPENDENT)
            trial = np.where(better[:, None], both, trial)
            found = np.where(better, new, found)
        changed = found < rss[moving]
        if not changed.any():
            break
        moving, part, trial = moving[changed], part.of(changed), trial[changed]
        # What an exchange gains is known to fewer digits than the sum of squares.
        found = sum_of_squares(part, trial)
        trial, found = descend_roughly(part, trial, found)
        better = found < rss[moving] * (1 - DEPENDENT)
        moving = moving[better]
        knots[moving], rss[moving] = trial[better], found[better]
    return knots, rss


def refine(problem, knots, rss):
    """Return breakpoints at the best places that are known, to all digits."""
    k, n = knots.shape[1], problem.table.x.shape[1]
    # One kink between straight lines is already at the best of all places.
    if k > (problem.form.ramp == 1) and not problem.form.step:
        for b in np.flatnonzero(rss > EXACT * problem.table.total):
            one = problem.of([b])
            knots[[b]], rss[[b]] = _best_descent(one, knots[[b]], rss[[b]])
    knots, rss = exchange(problem, knots, rss)
    if problem.form.step and n > MOST_CANDIDATES:  # of which not all were tried
        near = np.arange(-(n // MOST_CANDIDATES) - 1, n // MOST_CANDIDATES + 2)
        rows = locate(problem.table, knots)[..., None] + near
        rows = np.unique(np.clip(rows, 0, n - 1).reshape(len(knots), -1), axis=1)
        knots, rss = exchange(problem.at(rows), knots, rss)
    return through_rows(problem, *descend(problem, knots, rss))


def _best_descent(problem, knots, rss):
    """Return the kinks of one series when no two neighbours are better elsewhere.

    Lines with more than two begin at the best kinks at rows, too, which no pairs reach.
    For each place of the first of two neighbours between those of others the second has
    a best one, and from the best of these pairs all kinks move together.
    """
    k, table = knots.shape[1], problem.table
    if k > 2 and problem.form.ramp == 1:
        knots, rss = _from_starts(problem, knots, kinks_at_rows(problem, knots))
    # The work of a round over all pairs hardly grows with their number.
    j, since, n_pairs = 0, 0, max(k - 1, 1)
    while since < n_pairs:  # until no pair is better elsewhere
        others, before = np.delete(knots, slice(j, j + 2), axis=1), rss
        around = np.hstack([[[LEFT]], others, [[RIGHT]]])[:, j : j + 2]
        (low, high), last = locate(table, around)[0], table.n_rows[0] - 1
        places = table.x[0, spread(low, min(high, last), 4 * MOST_ROWS // n_pairs)]
        if problem.form.ramp > 1:  # a gap between rows may hold a minimum of its own
            places = np.sort([*places, *(places[1:] + places[:-1]) / 2])
        each = problem.at(t=places[None]).of(np.zeros(len(places), np.intp))
        first = np.repeat(others, len(places), axis=0), places
        starts = np.sort(np.column_stack(first), axis=1)
        if k == 1:
            found = sum_of_squares(each, starts)
        else:
            second, found = insert(each, starts)
            starts = np.sort(np.column_stack([starts, second]), axis=1)
        around = np.pad(found, 1, constant_values=np.inf)
        least = (found <= around[:-2]) & (found <= around[2:])
        # Minima among the rows first; others may lead to one that lies between rows.
        best = np.lexsort((found, ~least))[: 1 + STARTS // n_pairs]
        best = best[np.isfinite(found[best])]
        knots, rss = _from_starts(problem, knots, starts[best])
        since = 1 if rss < before * (1 - _ROUGH) else since + 1
        j = (j + 1) % n_pairs
    return knots, rss


def _from_starts(problem, knots, starts):
    """Return the best kinks of one series to which they descend from one of some."""
    starts = np.concatenate([knots, starts])
    several = problem.of(np.zeros(len(starts), np.intp))
    found = sum_of_squares(several, starts)
    fine = feasible(several, starts[:, None])[:, 0] & np.isfinite(found)
    starts, found = descend_roughly(several.of(fine), starts[fine], found[fine])
    best = [np.argmin(found)]
    return starts[best], found[best]


# --- one more breakpoint --------------------------------------------------------------


def insert(problem, knots, below=np.inf):
    """Return the best new breakpoint and, if below a limit, the sum of squares."""
    pieces = all_pieces(problem, knots)
    found = solve(problem.table, pieces, problem.form.flat_end)
    gain, t = gains(problem, orthogonal_part(problem, pieces, found))
    _, _, distance, _, first, last = np.stack(problem.limits)[..., None]
    if not problem.form.step and np.any((first > LEFT) | (last < 1)):
        places = np.hstack([first, last, knots - distance, knots + distance])
        at = problem.at(t=places)
        own, places = gains(at, orthogonal_part(at, pieces, found))
        gain, t = np.hstack([gain, own]), np.hstack([t, places])
    gain = np.where(gain >= np.maximum(found.rss - below, 0)[:, None], gain, -1)
    best = np.argmax(gain, axis=1)[:, None]
    trials = np.sort(np.hstack([knots, take(t, best)]), axis=1)[:, None]
    rest = (take(gain, best) >= 0) & ~feasible(problem, trials)
    if rest.any():  # of these series the best of all that are allowed
        (rest,) = np.nonzero(rest[:, 0])
        others = np.broadcast_to(knots[rest, None], (*t[rest].shape, knots.shape[1]))
        trials = np.sort(np.concatenate([others, t[rest, :, None]], axis=-1), axis=-1)
        allowed = feasible(problem.of(rest), trials)
        gain[rest] = np.where(allowed, gain[rest], -1)
        best = np.argmax(gain, axis=1)[:, None]
    gain, t = take(gain, best)[:, 0], take(t, best)[:, 0]
    return t, np.where(gain >= 0, np.maximum(found.rss - gain, 0), np.inf)


def gains(problem, parts):
    """Return the decrease by each candidate and its breakpoint, allowed or not, (B, p).

    ``parts`` come from :func:`orthogonal_part`. A kink is at a row or between two,
    where the lines of both sides meet (Hudson, "Fitting segmented curves whose join
    points have to be estimated", 1966). What a fit with a jump gains, less what it
    costs to remove the jump, is the gain at any place: of parabolas the places are
    those where they meet, or come nearest.
    """
    form, (_, t, before, *_) = problem.form, problem.candidates
    residual, inner, outside = parts
    m, left, size, gain, cross = len(residual), [], [], [], {}
    for i in range(m):  # elimination of the pieces, the step last
        own, rest = outside[i, i], residual[i]
        for j in range(i):
            share = cross[i, j] / size[j]
            own, rest = own - share * cross[i, j], rest - share[:, None] * left[j]
        known = own > DEPENDENT * inner[i, i]
        size.append(np.where(known, own, np.inf))
        left.append(rest)
        more = np.where(known, np.sum(rest**2, axis=1) / size[i], -np.inf)
        gain.append(more + gain[-1] if i else more)
        for j in range(i + 1, m):
            of_both = [cross[j, k] * cross[i, k] / size[k] for k in range(i)]
            cross[j, i] = np.where(known, outside[j, i] - sum(of_both), 0)
    n_own = form.ramp + form.step
    at_rows = gain[n_own - 1]
    if m == n_own:
        return at_rows, t
    coef = [rest / own[:, None] for rest, own in zip(left, size, strict=True)]
    for i in reversed(range(m)):
        for j in range(i):
            coef[j] = coef[j] - (cross[i, j] / size[j])[:, None] * coef[i]
    slope, jump, bend = coef[0], coef[-1], coef[1] if m > 2 else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        if m == 2:
            back = [np.sum(jump * slope, axis=1) / np.sum(slope**2, axis=1)]
        else:  # of one target
            root = np.sqrt(np.maximum(slope**2 - 4 * bend * jump, 0))
            root = slope + np.copysign(root, slope)
            back = [(root / (2 * bend))[:, 0], (2 * jump / root)[:, 0]]
    places, all_gains = [t], [at_rows]
    for s in back:  # to the left of the row
        inside = (s >= 0) & (s <= t - before) & (gain[-1] > -np.inf)
        s = np.where(inside, s, 0)
        left_over = jump - s[:, None] * slope + (s**2)[:, None] * bend
        direction, variance = [*[-s, s**2][: m - 1], np.ones_like(s)], 0.0
        for i in range(m):
            for j in range(i):
                direction[i] = direction[i] - cross[i, j] / size[j] * direction[j]
            variance = variance + direction[i] ** 2 / size[i]
        inside &= variance > 0
        cost = np.sum(left_over**2, axis=1) / np.where(inside, variance, np.inf)
        places.append(t - s)
        all_gains.append(np.where(inside, gain[-1] - cost, -np.inf))
    return np.concatenate(all_gains, axis=1), np.concatenate(places, axis=1)


def orthogonal_part(problem, pieces, found):
    """Return products of the candidates' pieces, ramps before steps.

    They are those with the residuals of the targets, (m, B, q, c), with each other,
    (m, m, B, c), and those of the parts that are orthogonal to the present function.
    """
    form, (rows, t, _, powers, targets) = problem.form, problem.candidates
    q, end = problem.table.square.shape[1], found.end
    added = [[-t, 1.0], [t * t, -2 * t, 1.0]][: form.ramp]  # coefficients of 1, x, ...
    added.append([1.0])
    # Sums from the later of the first rows on: of 1, x, ... with each present piece.
    own = take(problem.table.powers, pieces.first)[..., None]
    later = rows[:, None] >= pieces.first[..., None]
    n_powers = powers.shape[1]
    sums = [np.where(later, powers[:, None, j], own[:, :, j]) for j in range(n_powers)]
    coefs = pieces.coef[..., None]
    with_powers = [
        sum(coef * s for coef, s in zip(coefs, sums[j:], strict=False))
        for j in range(len(coefs))
    ]
    residual, halves, with_end = [], [], []
    for piece in added:
        with_targets, cross = 0.0, 0.0
        for power, a in enumerate(piece):
            a_each = a[:, None] if np.ndim(a) else a
            with_targets = with_targets + a_each * targets[:, :, power]
            cross = cross + a_each * with_powers[power]
        cross = np.concatenate([cross, with_targets[:, q:]], axis=1)
        residual.append(with_targets[:, :q] - np.swapaxes(found.coef, 1, 2) @ cross)
        if end is not None:  # of the piece less its slope at the end
            b = float(len(piece) > 1)
            with_end.append((end.coef[:, None] @ cross)[:, 0])
            residual[-1] = residual[-1] - b * end.with_target[..., None]
            cross = cross - b * end.with_pieces[..., None]
        halves.append(found.half_inverse @ cross)
    inner, outside = np.zeros((2, len(added), len(added), *t.shape))
    for i, first in enumerate(added):
        for j, second in enumerate(added):
            for power, a in enumerate(first):
                for other, b in enumerate(second):
                    inner[i, j] += a * b * powers[:, power + other]
            if end is not None:
                b, d = float(len(first) > 1), float(len(second) > 1)
                inner[i, j] += b * d * end.square[:, None]
                inner[i, j] -= b * with_end[j] + d * with_end[i]
            outside[i, j] = inner[i, j] - np.sum(halves[i] * halves[j], axis=1)
    return residual, inner, outside


# --- Gauss-Newton steps --------------------------------------------------------------


def descend(problem, knots, rss, n_steps=30, tol=EXACT):
    """Move kinks by joint Gauss-Newton steps; functions that jump stay."""
    if problem.form.step or knots.shape[1] == 0:
        return knots, rss
    moving, problem = np.arange(len(knots)), problem._replace(candidates=None)
    # Lengths of the steps that are tried. Where parabolas meet with nearly one slope, a
    # step to first order is far too long.
    lengths = 0.3 ** np.arange(2 if problem.form.ramp == 1 else 8)[:, None, None]
    for _ in range(n_steps):
        if not len(moving):
            break
        part = problem.of(moving)
        steps = np.stack(gauss_newton_steps(part, knots[moving]), axis=1)
        trials = knots[moving, None, None] + lengths * steps[:, None]
        trials = np.clip(trials, LEFT, RIGHT).reshape(len(moving), -1, knots.shape[1])
        trial, new_rss = _best_of(part, trials)
        better = new_rss < rss[moving]
        falling = new_rss < (1 - tol) * rss[moving]
        knots[moving[better]] = trial[better]
        rss[moving[better]] = new_rss[better]
        moving = moving[falling]
    return knots, rss


descend_roughly = partial(descend, n_steps=6, tol=_ROUGH)  # where more is to come


def through_rows(problem, knots, rss):
    """Move kinks, one or two neighbours at a time, to rows beside them, and on.

    The sum of squares has corners at the rows. A minimum may lie in one, where steps
    that take it for smooth do not end.
    """
    if problem.form.step or knots.shape[1] == 0:
        return knots, rss
    table, k = problem.table, knots.shape[1]
    moving, last = np.arange(len(knots)), table.n_rows[:, None, None] - 1
    # Of each kink: where it is, and four rows beside it.
    one = [(j, a) for j in range(k) for a in range(1, 5)]
    two = [(j, a, b) for j in range(k - 1) for a in range(1, 5) for b in range(1, 5)]
    which = np.zeros((len(one) + len(two), k), np.intp)
    for trial, (j, *places) in zip(which, one + two, strict=True):
        trial[j : j + len(places)] = places
    while len(moving):
        part, at = problem.of(moving), knots[moving]
        rows = locate(part.table, at)[:, None] + np.arange(-2, 2)[:, None]
        rows = np.clip(rows, 0, last[moving])
        beside = take(part.table.x, rows.reshape(len(at), -1)).reshape(rows.shape)
        beside = np.clip(beside, *(each[:, None, None] for each in part.limits[:2]))
        places = np.concatenate([at[:, None], beside], axis=1)
        trial, new_rss = _best_of(part, places[:, which, np.arange(k)])
        better = new_rss < (1 - DEPENDENT) * rss[moving]
        moving = moving[better]
        part = part.of(better)
        knots[moving], rss[moving] = descend(part, trial[better], new_rss[better])
    return knots, rss


def _best_of(problem, trials):
    """Return the best of some trials (B, T, k), and its sum of squares."""
    trials = np.sort(trials, axis=-1)
    rss = sum_of_squares(problem, trials)
    rss = np.where(feasible(problem, trials), rss, np.inf)
    best = np.argmin(rss, axis=1)[:, None]
    return take(trials, best)[:, 0], take(rss, best)[:, 0]


def gauss_newton_steps(problem, knots):
    """Return the joint Gauss-Newton step, and the step to where fitted lines meet.

    The tangent space of the broken lines holds, besides the pieces, a step at every
    breakpoint. Its coefficient is the jump between the lines that are fitted on both
    sides, and the breakpoint moves by minus the jump over the change of slope.
    """
    table = problem.table
    pieces = all_pieces(problem, knots)
    k, n, kinds = knots.shape[1], pieces.first.shape[1], problem.form.kinds
    n_known = sum(is_ramp for is_ramp, _ in kinds) if kinds else problem.known.shape[1]
    before = 1 + problem.form.slope + n_known
    step = Pieces(locate(table, knots), powers_of(knots, 0, len(pieces.coef) - 1))
    flat, steps = problem.form.flat_end, slice(n, n + k)
    start = solve(table, pieces, flat).coef
    start = np.insert(start, [n] * k, 0, axis=1)
    found = solve(table, concatenate(pieces, step), flat, start)
    new, half = found.coef, found.half_inverse[..., steps]
    old, change = start[:, before : before + k], new[:, before : before + k]
    jump = new[:, steps]
    if jump.shape[2] > 1:
        metric = factors.solve_general(np.swapaxes(half, 1, 2) @ half, np.eye(k)[None])

    def along(size):
        if jump.shape[2] == 1:
            size = np.where(size != 0, size, np.inf)
            step = (-jump / size)[..., 0]
            root = half / np.swapaxes(size, 1, 2)
            inverse = np.swapaxes(root, 1, 2) @ root
            return within_limits(problem, knots, step, inverse)
        # Of several targets the moves that remove most of their jumps together.
        normal = metric * (size @ np.swapaxes(size, 1, 2))
        shift = EXACT * np.trace(normal, axis1=1, axis2=2) + np.finfo(float).tiny
        side = np.sum(size * (metric @ jump), axis=2, keepdims=True)
        normal = normal + shift[:, None, None] * np.eye(k)
        step = factors.solve_general(normal, -side)[..., 0]
        inverse = factors.solve_general(normal, np.eye(k)[None])
        return within_limits(problem, knots, step, inverse)

    return along(old), along(change)


def within_limits(problem, knots, step, inverse):
    """Return the best steps that keep the bounds, and the distances that are asked for.

    ``inverse`` is that of the Gauss-Newton matrix, whose quadratic model is minimised.
    """
    first, last = np.stack(problem.limits[4:])[..., None]
    k = knots.shape[1]
    far = np.repeat(problem.limits.min_distance[:, None], k - 1, axis=1)
    # What differences of neighbours are at least, and which of these are asked for.
    least = np.hstack([first, far, -last])
    asked = np.hstack([first > LEFT, far > 0, last < 1])
    if not asked.any():
        return step
    difference = np.diff(np.eye(k), prepend=0, append=0, axis=0)
    active, moved = np.zeros_like(asked), step
    while True:
        missing = least - (knots + moved) @ difference.T
        more = active | (asked & (missing > HALF))
        if np.array_equal(more, active):
            return moved
        active = more
        rows = difference * active[..., None]
        matrix = rows @ inverse @ np.swapaxes(rows, 1, 2)
        matrix = matrix + (~active + EXACT)[:, None] * np.eye(k + 1)
        side = active * (least - (knots + step) @ difference.T)
        multiplier = factors.solve_general(matrix, side[..., None])
        moved = step + (inverse @ np.swapaxes(rows, 1, 2) @ multiplier)[..., 0]


# --- residuals, and partitions ------------------------------------------------------


def residuals_in_order(problem, knots):
    """Return mean residuals of the positions (B, n, m), scaled to one variance."""
    table, pieces = problem.table, all_pieces(problem, knots)
    coef = solve(table, pieces, problem.form.flat_end).coef
    weight = (table.powers[:, :-1, 0] - table.powers[:, 1:, 0])[..., None]
    means = table.targets[:, :-1, :, 0] - table.targets[:, 1:, :, 0]
    means = means / np.where(weight > 0, weight, 1)
    n_pieces, n, m = pieces.first.shape[1], table.x.shape[1], coef.shape[2]
    at, fitted = (np.arange(len(knots))[:, None], pieces.first), 0.0
    for power, own in enumerate(pieces.coef):
        changes = np.zeros((len(knots), n + 1, m))
        np.add.at(changes, at, coef[:, :n_pieces] * own[..., None])
        fitted = (
            fitted + np.cumsum(changes, axis=1)[:, :-1] * table.x[..., None] ** power
        )
    fitted = fitted + means[..., m:] @ coef[:, n_pieces:]
    inside = (np.arange(n) < table.n_rows[:, None])[..., None]
    return np.where(inside, (means[..., :m] - fitted) * np.sqrt(np.abs(weight)), 0)


def separable(problem):
    """Return whether two segments share no parameter but those of linear features."""
    form = problem.form
    own_lines = form.step and form.ramp == form.slope and not form.flat_end
    return own_lines and not problem.known.shape[1]
