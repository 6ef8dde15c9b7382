"""Search for the best breakpoints, of several series side by side.

The numbers of breakpoints are gone through upwards and then downwards:

1. Insert a breakpoint at the position where the residual sum of squares falls most: it
   is known exactly for every position and, of kinks, between the positions, the other
   breakpoints held.
2. Exchange: take out each breakpoint in turn and insert it again at its best position,
   until no position changes.
3. Move kinks between the positions by joint Gauss-Newton steps, in the form of Muggeo
   ("Estimating regression models with unknown break-points", 2003) and in the plain
   one, in several lengths, the best of which is taken.
4. Downwards, delete the breakpoint whose absence costs least, then 2 and 3 again.

Of every number the best fit is kept. The way up ends where the criterion no longer
falls and the residuals of neighbouring rows are not correlated: kinks of a slope that
goes up and down by turns are of no use before most of them are there. Segments that
share no parameter need no search: the best partition is computed, see
:mod:`sklearn_gn.segmented.partition`. A breakpoint at which the function may jump
lies halfway between two positions.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.segmented import partition
from sklearn_gn.segmented.insertion import best_pair, feasible, insert
from sklearn_gn.segmented.problem import (
    LEFT,
    MOST_CANDIDATES,
    RIGHT,
    Pieces,
    all_pieces,
    broken_lines,
    concatenate,
    has_only_kinks,
    locate,
    solve,
    spread,
    sum_of_squares,
    take,
)
from sklearn_gn.segmented.programme import kinks_at_rows

_LENGTHS = (1.0, 0.3)  # of the Gauss-Newton steps that are tried
_MOST_STEPS = 30  # of the breakpoints that are chosen
_STEPS_ON_THE_WAY = 6
_MOST_ROWS = 10  # rows over which a breakpoint moves, once it has converged
_MOST_EXCHANGES = 2  # rounds
_STEP_TOL = 1e-12  # relative decrease that ends the steps
_TOL_ON_THE_WAY = 1e-5
_KEPT = 4  # best starts that go on
_PAIRED = 300  # positions of which all pairs are tried
_EXCHANGE_TOL = 1e-9  # relative decrease that is worth an exchange
_PATIENCE = 2  # breakpoints without improvement of the criterion that end the growth
_SIGNIFICANT = 3.0  # standard deviations of a correlation that is no chance
NEAR = 10.0  # difference of the criterion that is very strong evidence
EXACT = 1e-13  # relative sum of squares that is rounding errors


# --- exchange ------------------------------------------------------------------------


def exchange(problem, knots, rss):
    """Insert every breakpoint again at its best position; return what has changed."""
    changed = np.zeros(len(knots), bool)
    for k in range(knots.shape[1]):
        others = np.delete(knots, k, axis=1)
        t, new_rss = insert(problem, others)
        if problem.form.sign:
            both = np.sort(np.column_stack([others, t]), axis=1)
            new_rss = np.where(
                np.isfinite(new_rss), sum_of_squares(problem, both), np.inf
            )
        better = new_rss < rss * (1 - _EXCHANGE_TOL)
        last = np.where(better, t, knots[:, k])
        knots = np.sort(np.column_stack([others, last]), axis=1)
        rss = np.where(better, new_rss, rss)
        changed |= better
    return knots, rss, changed


def place_exactly(problem, knots, rss):
    """Return one or two kinks of one series at their best of all places.

    Of many positions evenly spaced ones are tried, and then all near the best. Several
    series may have one kink each and few positions.
    """
    k, n = knots.shape[1], problem.table.x.shape[1]
    if k == 1 and n <= MOST_CANDIDATES:
        t, found = insert(problem.at(np.arange(n)), knots[:, :0])
        trial, better = t[:, None], found < rss
    else:
        t, found = _best_places(problem, k)
        trial, better = np.sort(np.reshape(t, (1, k))), np.array([found < rss[0]])
    trial = np.where(better[:, None], trial, knots)
    return descend(problem, trial, sum_of_squares(problem, trial))


def restart(problem, knots, rss):
    """Return the best kinks of one series, also from starts of dynamic programming."""
    starts = np.concatenate([knots, kinks_at_rows(problem, knots)])
    several = problem.of(np.zeros(len(starts), np.intp))
    found = sum_of_squares(several, starts)
    fine = feasible(several, starts[:, None])[:, 0] & np.isfinite(found)
    starts, found = converge(several.of(fine), starts[fine], found[fine])
    best = np.argsort(found, kind="stable")[:_KEPT]
    several = problem.of(np.zeros(len(best), np.intp))
    found = settle(several, *through_rows(several, starts[best], found[best]))
    starts, found = through_rows(several, *found)
    best = [np.argmin(found)]
    return starts[best], found[best]


def refine(problem, knots, rss):
    """Return breakpoints at the best places that are known, to all digits.

    One or two kinks are at the best of all places; more are those of the best of many
    descents.
    """
    k = knots.shape[1]
    if k == 1 and not problem.form.step and problem.table.x.shape[1] <= MOST_CANDIDATES:
        knots, rss = place_exactly(problem, knots, rss)
    elif k:
        place = restart if k > 2 else place_exactly
        place = refine_jumps if problem.form.step else place
        floor = EXACT * problem.table.gram[:, 0, 0]
        for b in np.flatnonzero((rss > floor) | (k <= 2)):
            one = problem.of([b])
            knots[[b]], rss[[b]] = place(one, knots[[b]], rss[[b]])
    return through_rows(problem, *converge(problem, knots, rss))


def _best_places(problem, number):
    """Return the best places of one or two kinks, and the sum of squares."""
    none = np.empty((1, 0))
    n, most = problem.table.x.shape[1], _PAIRED if number == 2 else MOST_CANDIDATES
    rows, stride = spread(0, n - 1, most), -(-n // most)
    t, best = np.empty(number), np.inf
    while True:
        if number == 2:
            new, rss = best_pair(problem, rows)
        else:
            new, rss = (a[0] for a in insert(problem.at(rows), none))
        if rss < best:
            t, best = new, rss
        if stride == 1 or not np.isfinite(best):
            return t, best
        around = locate(problem.table, np.reshape(t, (1, -1)))[0]
        near = [
            spread(max(at - stride, 0), min(at + stride, n - 1), most // number)
            for at in around
        ]
        rows, stride = np.unique(near), -(-2 * stride * number // most)


def refine_jumps(problem, knots, rss):
    """Try all positions near each breakpoint of one series.

    Of many positions only some are tried before. The best partitions need no more.
    """
    if separable(problem):
        return knots, rss
    table = problem.table
    n = table.x.shape[1]
    stride = -(-n // MOST_CANDIDATES)
    while stride > 1 and problem.form.step:
        for k in range(knots.shape[1]):
            at = int(locate(table, knots[:, k : k + 1])[0, 0])
            low, high = max(at - stride, 0), min(at + stride + 1, n)
            near = problem.at(spread(low, high - 1, MOST_CANDIDATES))
            others = np.delete(knots, k, axis=1)
            t, new_rss = insert(near, others)
            if new_rss[0] < rss[0]:
                knots, rss = np.sort(np.column_stack([others, t]), axis=1), new_rss
        stride = -(-2 * stride // MOST_CANDIDATES)
    return knots, rss


# --- Gauss-Newton steps --------------------------------------------------------------


def converge(problem, knots, rss):
    """Move the breakpoints that are chosen until they no longer move."""
    return descend(problem, knots, rss, _MOST_STEPS, _STEP_TOL)


def descend(problem, knots, rss, n_steps=_STEPS_ON_THE_WAY, tol=_TOL_ON_THE_WAY):
    """Move kinks by joint Gauss-Newton steps; functions that jump stay."""
    if problem.form.step or knots.shape[1] == 0:
        return knots, rss
    moving, problem = np.arange(len(knots)), problem._replace(candidates=None)
    lengths = np.array(_LENGTHS)[None, :, None, None]
    for _ in range(n_steps):
        part = problem.of(moving) if len(moving) < len(knots) else problem
        steps = np.stack(gauss_newton_steps(part, knots[moving]), axis=1)
        trials = knots[moving, None, None] + lengths * steps[:, None]
        trials = np.clip(trials, LEFT, RIGHT).reshape(len(moving), -1, knots.shape[1])
        trial, new_rss = _best_of(part, trials)
        better = new_rss < rss[moving]
        falling = new_rss < (1 - tol) * rss[moving]
        knots[moving[better]] = trial[better]
        rss[moving[better]] = new_rss[better]
        moving = moving[falling]
        if not len(moving):
            break
    return knots, rss


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
    for _ in range(_MOST_ROWS):
        part, at = problem.of(moving), knots[moving]
        rows = locate(part.table, at)[:, None] + np.arange(-2, 2)[:, None]
        rows = np.clip(rows, 0, last[moving])
        beside = take(part.table.x, rows.reshape(len(at), -1)).reshape(rows.shape)
        places = np.concatenate([at[:, None], beside], axis=1)
        trial, new_rss = _best_of(part, places[:, which, np.arange(k)])
        better = new_rss < (1 - _STEP_TOL) * rss[moving]
        moving = moving[better]
        if not len(moving):
            break
        knots[moving], rss[moving] = converge(
            problem.of(moving), trial[better], new_rss[better]
        )
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
    if has_only_kinks(problem) and not (problem.form.flat_end or problem.known.size):
        return _steps_of_lines(problem, knots)
    table = problem.table
    pieces = all_pieces(problem, knots)
    k, before = knots.shape[1], pieces.first.shape[1] - knots.shape[1]
    step = Pieces(locate(table, knots), np.ones_like(knots), np.zeros_like(knots))
    flat = problem.form.flat_end
    start = solve(table, pieces, flat).coef
    start = np.insert(start, [before + k] * k, 0, axis=1)
    new = solve(table, concatenate(pieces, step), flat, start).coef
    old, change = start[:, before : before + k], new[:, before : before + k]
    jump = new[:, before + k : before + 2 * k]

    def along(size):
        return np.where(size != 0, -jump / np.where(size != 0, size, 1), 0)

    return along(old), along(change)


def _steps_of_lines(problem, knots):
    """Return both steps from straight lines fitted to the intervals.

    An interval whose rows determine no line keeps the one that it has.
    """
    order = np.argsort(knots, axis=-1)
    found = broken_lines(problem, knots)
    slopes = found.xy / np.where(found.xx > 0, found.xx, 1)
    slopes = np.where(found.xx > 0, slopes, found.slopes)
    if not problem.form.slope:
        slopes[..., 0] = 0
    own = found.values[..., 1:] + found.slopes * (found.x - found.ends[..., 1:])
    y, t = np.where(found.weight > 0, found.y, own), found.ends[..., 1:-1]
    left = y[..., :-1] + slopes[..., :-1] * (t - found.x[..., :-1])
    jump = y[..., 1:] + slopes[..., 1:] * (t - found.x[..., 1:]) - left

    def along(size):
        step = np.where(size != 0, -jump / np.where(size != 0, size, 1), 0)
        unsorted = np.empty_like(step)
        np.put_along_axis(unsorted, order, step, axis=-1)
        return unsorted

    return along(np.diff(found.slopes)), along(np.diff(slopes))


# --- the path over the numbers of breakpoints ----------------------------------------


def settle(problem, knots, rss):
    """Exchange and move breakpoints until nothing changes."""
    moving = np.arange(len(knots) if knots.shape[1] > 1 else 0)
    for _ in range(_MOST_EXCHANGES if len(moving) else 0):
        found, _, changed = exchange(problem.of(moving), knots[moving], rss[moving])
        moving, part = moving[changed], problem.of(moving[changed])
        if not changed.any():
            break
        # What an exchange gains is known to fewer digits than the sum of squares.
        trial = found[changed]
        trial, trial_rss = descend(part, trial, sum_of_squares(part, trial))
        better = trial_rss < rss[moving]
        moving = moving[better]
        knots[moving], rss[moving] = trial[better], trial_rss[better]
        if not better.any():
            break
    return knots, rss


def delete_cheapest(problem, knots):
    """Return the breakpoints without the one whose absence costs least."""
    k = knots.shape[1]
    kept = np.array([[i for i in range(k) if i != j] for j in range(k)], np.intp)
    trials = knots[:, kept.reshape(k, k - 1)]
    rss = sum_of_squares(problem, trials)
    best = np.argmin(rss, axis=1)[:, None]
    return take(trials, best)[:, 0], take(rss, best)[:, 0]


def delete_wrong(problem, knots):
    """Return the kinks without the one that is farthest from the given sign."""
    found = solve(problem.table, all_pieces(problem, knots), problem.form.flat_end)
    first = 1 + problem.form.slope
    changes = problem.form.sign * found.coef[:, first : first + knots.shape[1]]
    worst = np.arange(knots.shape[1]) == np.argmin(changes, axis=1)[:, None]
    return knots[~worst].reshape(len(knots), -1)


class Path(NamedTuple):
    """Best fits by the number of breakpoints, from none on."""

    rss: np.ndarray  # (B, 1 + most), infinite where there is no fit
    knots: list  # of (B, k)

    def of(self, b):
        """Return the fits of one series."""
        return Path(self.rss[[b]], [knots[[b]] for knots in self.knots])


def search(problem, most, value=None):
    """Return the best fits with up to a number of breakpoints.

    ``value`` is the criterion of sums of squares, a number of breakpoints, and the
    numbers of the series; None: all numbers count alike.
    """
    if separable(problem):
        return _partitions(problem, most)
    problem = problem.coarse(most)
    n_series = len(problem.table.x)
    floor = EXACT * np.maximum(problem.table.gram[:, 0, 0], np.finfo(float).tiny)
    path = Path(
        np.full((n_series, most + 1), np.inf),
        [np.full((n_series, k), np.nan) for k in range(most + 1)],
    )
    refused = _grow(problem, path, value, floor)
    _prune(problem, path, refused, value)
    return path


def _grow(problem, path, value, floor):
    """Insert breakpoints one by one, up to the largest number.

    Conditions on the slopes hold on the way down only. Returned are, by the number of
    breakpoints, the series and breakpoints whose slopes change in the wrong direction.
    """
    form, growing = problem.form, np.arange(len(problem.table.x))
    knots, refused = np.empty((len(growing), 0)), [[] for _ in path.knots]
    _keep(path, growing, knots, sum_of_squares(problem, knots))
    free = problem._replace(form=form._replace(flat_end=False, sign=0))
    since = np.zeros(len(growing), int)  # breakpoints without a better criterion
    if value is not None:
        best = value(np.maximum(sum_of_squares(free, knots), floor), 0, growing)
        structured = _is_structured(free, knots)  # the fits of the best criterion
    for k in range(1, len(path.knots)):
        part = free.of(growing)
        t, rss = insert(part, knots)
        kept = np.isfinite(rss)
        growing, part = growing[kept], part.of(kept)
        if not len(growing):
            break
        knots = np.sort(np.column_stack([knots[kept], t[kept]]), axis=1)
        knots, rss = descend(part, knots, rss[kept])
        asked = form.flat_end or form.sign
        kept_rss = sum_of_squares(problem.of(growing), knots) if asked else rss
        _keep(path, growing, knots, kept_rss)
        wrong = ~np.isfinite(kept_rss)
        refused[k].append((growing[wrong], knots[wrong]))
        if value is not None:
            found = value(np.maximum(rss, floor[growing]), k, growing)
            better = found < best[growing]
            since[growing] = np.where(better, 0, since[growing] + 1)
            best[growing] = np.minimum(best[growing], found)
            if better.any():
                now = _is_structured(part.of(better), knots[better])
                structured[growing[better]] = now
        going = rss > floor[growing]
        if value is not None:
            going &= (since[growing] < _PATIENCE) | structured[growing]
        growing, knots = growing[going], knots[going]
        if not len(growing):
            break
    return refused


def residuals_in_order(problem, knots):
    """Return the residuals of the positions, (B, n), scaled to one variance.

    Of rows at one position the mean counts.
    """
    table, pieces = problem.table, all_pieces(problem, knots)
    coef = solve(table, pieces, problem.form.flat_end).coef
    weight = table.powers[:, :-1, 0] - table.powers[:, 1:, 0]
    means = table.targets[:, :-1, :, 0] - table.targets[:, 1:, :, 0]
    means = means / np.where(weight > 0, weight, 1)[..., None]
    n_pieces, n = pieces.first.shape[1], table.x.shape[1]
    level, slope = np.zeros((2, len(knots), n + 1))
    at = np.arange(len(knots))[:, None], pieces.first
    np.add.at(level, at, coef[:, :n_pieces] * pieces.level)
    np.add.at(slope, at, coef[:, :n_pieces] * pieces.slope)
    fitted = np.cumsum(level, axis=1)[:, :-1]
    fitted += np.cumsum(slope, axis=1)[:, :-1] * table.x
    fitted += np.sum(means[..., 1:] * coef[:, None, n_pieces:], axis=2)
    inside = np.arange(n) < table.n_rows[:, None]
    return np.where(inside, (means[..., 0] - fitted) * np.sqrt(np.abs(weight)), 0)


def _is_structured(problem, knots):
    """Return of which series the residuals of neighbouring rows are correlated."""
    residual = residuals_in_order(problem, knots)
    together = np.sum(residual[:, 1:] * residual[:, :-1], axis=1)
    square = np.sum(residual**2, axis=1)
    return together * np.sqrt(problem.table.n_rows) > _SIGNIFICANT * square


def separable(problem):
    """Return whether no parameter is shared by two segments."""
    form = problem.form
    own_lines = form.step and form.ramp == form.slope and not form.flat_end
    return own_lines and not problem.known.shape[1] and problem.table.gram.shape[1] == 1


def _partitions(problem, most):
    """Return the path of the best partitions into segments that share nothing."""
    table, form, limits = problem.table, problem.form, problem.limits
    path = Path(np.full((len(table.x), most + 1), np.inf), [])
    path.knots.extend(np.full((len(table.x), k), np.nan) for k in range(most + 1))
    for b, n in enumerate(table.n_rows):
        later = np.vstack([table.powers[b].T, table.targets[b, :, 0].T])[:, : n + 1]
        segments = partition.Segments(
            table.x[b, :n],
            -later,
            form.slope,
            count=table.count[b, : n + 1],
            min_rows=limits.min_rows[b],
            min_distance=limits.min_distance[b],
            bounds=(limits.low[b], limits.high[b]),
        )
        explained, paths = partition.best_partitions(segments, most)
        path.rss[b] = np.maximum(table.gram[b, 0, 0] - explained, 0)
        for k in np.flatnonzero(np.isfinite(explained)):
            path.knots[k][b] = segments.t[paths[k][1:-1]]
    return path


def _keep(path, series, knots, rss):
    """Keep fits that are better than those of the same number so far."""
    k = knots.shape[1]
    better = rss < path.rss[series, k]
    path.rss[series[better], k] = rss[better]
    path.knots[k][series[better]] = knots[better]


def _prune(problem, path, refused, value):
    """Delete breakpoints one by one, from the largest fits down.

    Fits that were refused lose the kinks whose slopes change in the wrong direction.
    Those that the criterion is far from choosing are not settled.
    """
    for k in range(path.rss.shape[1] - 1, 0, -1):
        for series, knots in refused[k]:
            if not len(series):
                continue
            part = problem.of(series)
            knots = delete_wrong(part, knots)
            rss = sum_of_squares(part, knots)
            wrong = ~np.isfinite(rss)
            refused[k - 1].append((series[wrong], knots[wrong]))
            _keep(path, series, *descend(part, knots, rss))
        series = np.flatnonzero(np.isfinite(path.rss[:, k]))
        if len(series):
            near = series[_is_near(path, k, series, value)]
            if len(near):
                found = settle(problem.of(near), path.knots[k][near], path.rss[near, k])
                _keep(path, near, *found)
            if k > 1:
                part = problem.of(series)
                knots, rss = delete_cheapest(part, path.knots[k][series])
                _keep(path, series, *descend(part, knots, rss))


def _is_near(path, k, series, value):
    """Return which of some series may have the best criterion with k breakpoints."""
    if value is None:
        return np.ones(len(series), bool)
    values = [
        np.where(np.isfinite(rss), value(rss, number, series), np.inf)
        for number, rss in enumerate(path.rss[series].T)
    ]
    return values[k] <= np.min(values, axis=0) + NEAR
