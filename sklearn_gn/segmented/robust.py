"""Huber's loss: weights that follow from the residuals, until they no longer change.

A row whose residual r is beyond c robust standard deviations s gets the weight
c s / |r| (Huber, "Robust statistics", 1981), where s is the median absolute residual
over 0.6745. The search sees the same thing as a target, the fitted value plus the
residual times its weight, which keeps the sums over the weights of rows as they are.

Least squares of these targets, their residuals divided by the share of rows within the
bounds, give the standard errors of the M-estimate too, with Huber's correction for the
number of parameters.
"""

from itertools import compress

import numpy as np
from scipy.ndimage import median_filter

from sklearn_gn.bayes.huber import BOUND, LEAST_SCALE, START_BOUND, scale_of
from sklearn_gn.segmented import inference, least_squares
from sklearn_gn.segmented.preparation import problem_of, with_known
from sklearn_gn.segmented.problem import DEPENDENT, sum_of_squares
from sklearn_gn.segmented.search import descend

_MOST_SEARCHES = 5
_MOST_ITERATIONS = 200
_OUTLYING = 5.0  # robust standard deviations from the lines through other rows
_MOST_OUTLYING = 0.1  # share of rows that may be outliers
_SMOOTHED = 9  # rows of the running median that the first search starts from


def start(prepared):
    """Return the series with residuals from a running median clipped."""
    rows = prepared.rows
    line = rows.linear
    around = rows.y
    if line.shape[1]:
        columns = np.column_stack([np.ones_like(rows.x), rows.x, line])
        coef = least_squares.solve(columns, rows.y, rows.weight).coef
        around = rows.y - line @ coef[2:]
    smooth = median_filter(around, min(_SMOOTHED, len(around)), mode="mirror")
    residual = around - smooth
    far = START_BOUND / BOUND * scale_of(residual, rows.weight)
    y = rows.y - residual + np.clip(residual, -BOUND * far, BOUND * far)
    return prepared._replace(rows=rows._replace(y=y))


def residuals(form, rows, y, t):
    """Return fitted values to targets y, and the residuals of the rows."""
    fitted = y - least_squares.solve_design(form, rows._replace(y=y), t).residual
    return fitted, rows.y - fitted


def find_robustly(search, prepared, options):
    """Search until the weights of the series no longer change."""
    clipped, found = [start(each) for each in prepared], [None] * len(prepared)
    moving = range(len(prepared))
    for _ in range(_MOST_SEARCHES):
        before = [found[b] for b in moving]
        after, *_ = search([clipped[b] for b in moving])
        for b, each in zip(moving, after, strict=True):
            found[b] = each
            own = options._replace(form=each[2])
            clipped[b] = _clipped(prepared[b], clipped[b], own, each[0])[0]
        # Each is searched as often as it would be alone.
        moving = [
            b
            for b, old in zip(moving, before, strict=True)
            if old is None
            or len(old[0]) != len(found[b][0])
            or not np.allclose(old[0], found[b][0], rtol=0, atol=1e-6)
        ]
        if not moving:
            break
    # Now the breakpoints move and the residuals are clipped by turns.
    for b, (t, path, form) in enumerate(found):
        own = options._replace(form=form)
        for _ in range(_MOST_ITERATIONS):
            if len(t) and not form.step:
                problem = problem_of([clipped[b]], own)
                rss = sum_of_squares(problem, t[None])
                t = descend(problem, t[None].copy(), rss)[0][0]
            clipped[b], change = _clipped(prepared[b], clipped[b], own, t)
            if change < DEPENDENT:  # in robust standard deviations
                break
        found[b] = t, path, form
    return found, clipped


def outlying_rows(fit, prepared, options, few):
    """Return the outliers, the farthest first, that breakpoints of one series follow.

    The other rows reject such positions, or do as well without segments of few rows.
    """
    rows, none = prepared.rows, np.empty(0, np.intp)
    segment = np.searchsorted(fit.t, rows.x, side="right")
    short = np.bincount(segment, minlength=len(fit.t) + 1) <= few
    size = np.abs(inference.residuals(fit, rows))
    far = size > _OUTLYING * scale_of(size, rows.weight)
    used, kept = ~(short[segment] | far), ~(fit.free & (short[:-1] | short[1:]))
    dropped = np.flatnonzero(~kept)
    for group in np.split(dropped, np.flatnonzero(~short[dropped[1:]]) + 1):
        if len(group) and not (short[group[0]] or short[group[-1] + 1]):
            kept[group[len(group) // 2]] = True
    if used.all() or not used.any():
        return none
    others = prepared.select(used)
    kinds = tuple(compress(fit.form.kinds or (), kept))
    options = options._replace(form=fit.form._replace(kinds=kinds or None))
    problem, t = problem_of([others], options, False), fit.t[None, kept & fit.free]
    before = sum_of_squares(problem, t)
    t, (least,) = descend(problem, t.copy(), before.copy())
    t = with_known(prepared, options, t[0])[0]
    line = least_squares.solve_design(options.form, others.rows, t)
    freedom = others.rows.weight.sum() - line.rank
    rejected = (before[0] - least) * freedom > len(t) * fit.half_width**2 * least
    left = fit.degrees_of_freedom - rows.weight[far].sum()
    as_well = line.rss * left <= rows.weight[~far] @ size[~far] ** 2 * freedom
    # Most rows have to agree.
    if 2 * freedom <= fit.n_rows or not (rejected or (short.any() and as_well)):
        return none
    fitted = least_squares.design(options.form, rows.x, rows.linear, t) @ line.coef
    size = np.abs(rows.y - fitted)
    far = size > _OUTLYING * scale_of(size[used], others.rows.weight)
    if not far[~used].any() or far.mean() > _MOST_OUTLYING:
        return none
    return np.argsort(-size, kind="stable")[: far.sum()]


def _clipped(prepared, clipped, options, t):
    """Return the series with new targets, and how far these have moved."""
    rows, all_t = prepared.rows, with_known(prepared, options, t)[0]
    fitted, residual = residuals(options.form, rows, clipped.rows.y, all_t)
    scale = scale_of(residual, rows.weight)
    y = fitted + np.clip(residual, -BOUND * scale, BOUND * scale)
    change = np.abs(y - clipped.rows.y).max()
    rounding = scale <= LEAST_SCALE
    return clipped._replace(rows=rows._replace(y=y)), 0 if rounding else change / scale


def rows_for_errors(form, prepared, clipped, t, n_parameters):
    """Return rows whose least squares give the errors of the M-estimate, and s."""
    rows = prepared.rows
    fitted, residual = residuals(form, rows, clipped.rows.y, t)
    scale = scale_of(residual, rows.weight)
    n = rows.weight.sum()
    share = float(rows.weight @ (np.abs(residual) <= BOUND * scale)) / n
    factor = 1 + n_parameters / n * (1 - share) / share
    clipped = np.clip(residual, -BOUND * scale, BOUND * scale)
    y = fitted + factor / share * clipped
    return prepared._replace(rows=rows._replace(y=y)), scale
