r"""Noise that is correlated along the feature, varies with it, or has outliers.

Residuals in the order of the feature are taken for an autoregression
:math:`e_i = \sum_j \phi_j e_{i-j} + u_i`. Where its long-run variance
:math:`\sigma_u^2 / (1 - \sum_j \phi_j)^2` is v times the variance of e, means and
slopes of many rows vary as much as with v times fewer independent rows: rows then count
1 / v each, in the criterion, in standard errors and in intervals.

Many breakpoints follow the waves of correlated noise and leave residuals that look
independent, so that the number is chosen with the noise of each number, see
:mod:`sklearn_gn.segmented.selection`.

With Huber's loss a row whose residual r is beyond c robust standard deviations s gets
the weight c s / |r| (Huber, "Robust statistics", 1981), where s is the median absolute
residual over 0.6745. The search sees the same thing as a target, the fitted value plus
the residual times its weight, which keeps the sums over the weights of rows as they
are.

Least squares of these targets, their residuals divided by the share of rows within the
bounds, give the standard errors of the M-estimate too, with Huber's correction for the
number of parameters.
"""

from typing import NamedTuple

import numpy as np
from scipy.ndimage import median_filter

from sklearn_gn.bayes.evidence_gn import SOME_ROWS
from sklearn_gn.bayes.huber import BOUND, LEAST_SCALE, START_BOUND, scale_of
from sklearn_gn.bayes.laplace import left_out_errors, left_out_rows
from sklearn_gn.bayes.linear_evidence import linear_model, noise_scale
from sklearn_gn.data.units import Units
from sklearn_gn.optim import solver
from sklearn_gn.segmented import inference, least_squares
from sklearn_gn.segmented.preparation import problem_of, with_known
from sklearn_gn.segmented.problem import DEPENDENT, EXACT, HALF, spread, sum_of_squares
from sklearn_gn.segmented.search import descend

# --- correlated noise ----------------------------------------------------------------


class Noise(NamedTuple):
    """Residuals in the order of the feature, as an autoregression."""

    coef: np.ndarray  # (order,)
    redundancy: float  # rows that are worth one independent row, at least one
    correlation: float  # of neighbours; NaN of no residuals
    n_errors: float  # the same, in standard errors


_CORRECTIONS = 10  # of covariances for what the fit has taken


def covariances(residual, most):
    """Return the covariances of residuals with the later ones, by lag."""
    n = len(residual)
    most = int(4 * (n / 100) ** (2 / 9)) if most is None else most
    lags = range(min(most, n // 4) + 1)
    return np.array([residual[k:] @ residual[: n - k] / n for k in lags])


def yule_walker(covariance, n, order=None):
    """Return the coefficients and the long-run variance; the order by "bic" if None."""
    phi, variance = np.empty(0), covariance[0]
    best, answer = n * np.log(variance), (phi, variance)
    for p in range(1, len(covariance)):
        last = (covariance[p] - phi @ covariance[p - 1 : 0 : -1]) / variance
        phi = np.append(phi - last * phi[::-1], last)
        variance = variance * (1 - last**2)
        value = n * np.log(variance) + np.log(n) * p
        if value < best or p == order:
            best = value
            answer = phi, variance / max(1 - phi.sum(), 1 / n) ** 2
    return answer


def noise_of(residual, asked, n_parameters):
    """Return the :class:`Noise` of residuals, of an order or "auto".

    A fit takes its number of parameters times the long-run variance over n away from
    each covariance; that is added again. Correlation that makes means more exact counts
    as none, and the fit keeps a degree of freedom.
    """
    n, square = len(residual), residual @ residual
    correlation = np.nan
    if n > 1 and square > 0:
        correlation = float(residual[1:] @ residual[:-1] / square)
    noise = Noise(np.empty(0), 1.0, correlation, correlation * np.sqrt(n))
    if asked in (None, 0) or n <= n_parameters + 1 or not square > 0:
        return noise
    order = None if asked == "auto" else asked
    covariance, taken = covariances(residual, order), 0.0
    for _ in range(_CORRECTIONS + 1):
        coef, long_run = yule_walker(covariance + taken, n, order)
        before, taken = taken, min(n_parameters * long_run / n, covariance[0])
    redundancy = min(long_run / (covariance[0] + before), n / (n_parameters + 1))
    if redundancy > 1:
        noise = noise._replace(coef=coef, redundancy=float(redundancy))
    return noise


# --- noise that varies ---------------------------------------------------------------


def noise_scale_of(fit, rows):
    """Return how the noise varies with features and predictions, or None."""
    if rows is None or not fit.noise_std > 0:
        return None
    x, weight = np.column_stack([rows.x, rows.linear]), rows.weight / rows.weight.sum()
    some = left_out_rows(solver.Rows(x, rows.y[:, None], weight))
    scaling, n_rows = fit.scaling, float(fit.n_rows)
    center = np.append(scaling.center, scaling.linear_center)
    size = np.append(scaling.size, scaling.linear_size)
    limits = np.tile([[-np.inf], [np.inf]], len(size))
    units = Units(center, size, scaling.y_center, scaling.y_size, limits)
    features = center + size * some.x
    values, std = inference.predict(fit, features[:, 0], features[:, 1:])
    values = units.y(values[:, None])
    leverage = (std / fit.noise_std) ** 2
    left_out = left_out_errors(values, leverage, some, n_rows)
    return noise_scale(values, left_out, some, n_rows, units)


def with_own_precisions(prepared, options, t):
    """Return the series with rows weighted by the precisions of their noise.

    The logarithm of the variance is linear in the features, as far as the residuals of
    lines with the breakpoints t are evidence of that. Where they are none, where
    precisions are given, and where there are sums alone the series stays as it is.
    """
    rows, form, n = prepared.rows, options.form, len(prepared.rows.x)
    if rows.rest > 0 or prepared.has_precisions:
        return prepared
    t, _ = with_known(prepared, options, t)
    some = prepared.select(spread(0, n - 1, SOME_ROWS)).rows
    line = least_squares.solve_design(form, some, t)
    if not line.rss > EXACT * (some.weight @ some.y**2):
        return prepared
    columns = least_squares.design(form, some.x, some.linear, t)
    leverage = np.minimum(some.weight, 1) * np.sum((columns @ line.half) ** 2, axis=1)
    squares = line.residual**2 / np.maximum(1 - leverage, np.finfo(float).eps)
    total = some.weight.sum()
    weight = some.weight / total
    # The square of one error says little, and least where it is next to nothing.
    target = np.log(squares / (weight @ squares) + 1 / total)[:, None]
    x = np.column_stack([some.x, some.linear])
    found = linear_model(solver.Rows(x, target, weight), total)
    if found is None:
        return prepared
    logs = np.column_stack([rows.x, rows.linear]) @ found.coef[1:, 0]
    if np.ptp(logs) <= HALF:
        return prepared
    weight = rows.weight * np.exp(logs.min() - logs)
    weight *= rows.weight.sum() / weight.sum()
    return prepared._replace(rows=rows._replace(weight=weight), has_precisions=True)


# --- Huber's loss ---------------------------------------------------------------------


_MOST_SEARCHES = 5
_MOST_ITERATIONS = 200
_OUTLYING = 5.0  # robust standard deviations from the lines through other rows
_MOST_OUTLYING = 0.1  # share of rows that may be outliers
_SMOOTHED = 15  # rows of the running median that outliers are far from


def from_running_median(rows):
    """Return the residuals of the rows of one series from a running median."""
    around = rows.y
    if rows.linear.shape[1]:
        columns = np.column_stack([np.ones_like(rows.x), rows.x, rows.linear])
        coef = least_squares.solve(columns, rows.y, rows.weight).coef
        around = rows.y - rows.linear @ coef[2:]
    return around - median_filter(around, min(_SMOOTHED, len(around)), mode="mirror")


def robust_fit(form, prepared, y, t):
    """Return the fit to targets y, the residuals of the rows, and their scale."""
    rows = prepared.rows
    fitted = y - least_squares.solve_design(form, rows._replace(y=y), t).residual
    residual = rows.y - fitted
    return fitted, residual, scale_of(residual, rows.weight)


def find_robustly(find, change, prepared, options):
    """Search until the weights of the series no longer change.

    Rows far from a running median begin on it: clipped to the bound, a few of them at
    an end would look like a last segment.
    """
    clipped, found, moving = [], [None] * len(prepared), range(len(prepared))
    for each in prepared:
        residual = from_running_median(each.rows)
        far = np.abs(residual) > START_BOUND * scale_of(residual, each.rows.weight)
        rows = each.rows._replace(y=each.rows.y - far * residual)
        clipped.append(each._replace(rows=rows))

    def clip(b, t, form):
        """Clip the residuals; return how far targets move, in deviations of these."""
        t, _ = with_known(prepared[b], options, t)
        before = clipped[b].rows.y
        fitted, residual, scale = robust_fit(form, prepared[b], before, t)
        y = fitted + np.clip(residual, -BOUND * scale, BOUND * scale)
        clipped[b] = clipped[b]._replace(rows=clipped[b].rows._replace(y=y))
        return np.abs(y - before).max() / scale if scale > LEAST_SCALE else 0.0

    for _ in range(_MOST_SEARCHES):
        if not len(moving):
            break
        some = [clipped[b] for b in moving]
        answers, *more = find(some)
        if change:  # of their numbers, as the noise varies
            change(some, answers, *more)
        same = []
        for b, (t, path, form) in zip(moving, answers, strict=True):
            old, found[b] = found[b], (t, path, form)
            clip(b, t, form)
            near = old is not None and len(old[0]) == len(t)
            same.append(near and np.allclose(old[0], t, rtol=0, atol=1e-6))
        # Each is searched as often as it would be alone.
        moving = [b for b, is_same in zip(moving, same, strict=True) if not is_same]
    # Now the breakpoints move and the residuals are clipped by turns.
    for b, (t, path, form) in enumerate(found):
        for _ in range(_MOST_ITERATIONS):
            if len(t) and not form.step:
                problem = problem_of([clipped[b]], options._replace(form=form))
                rss = sum_of_squares(problem, t[None])
                t = descend(problem, t[None].copy(), rss)[0][0]
            if clip(b, t, form) < DEPENDENT:
                break
        found[b] = t, path, form
    return found, clipped


def outlying_rows(fit, prepared, options, few):
    """Return the outliers, the farthest first, that breakpoints of one series follow.

    Segments of few rows hold some, or the other rows reject the breakpoints.
    """
    rows, none = prepared.rows, np.empty(0, np.intp)
    size = np.abs(from_running_median(rows))
    far = size > _OUTLYING * scale_of(size, rows.weight)
    if not far.any() or far.mean() > _MOST_OUTLYING or not fit.free.any():
        return none
    segment = np.searchsorted(fit.t, rows.x, side="right")
    short = np.bincount(segment, minlength=len(fit.t) + 1) <= few
    if not far[short[segment]].any():
        others = [prepared.select(~far)]
        problem = problem_of(others, options._replace(form=fit.form), False)
        t = fit.t[None, fit.free]
        before = sum_of_squares(problem, t)
        _, least = descend(problem, t.copy(), before.copy())
        allowed = fit.free.sum() * fit.half_width**2 * least / fit.degrees_of_freedom
        if not before > least + allowed:
            return none
    return np.argsort(-size, kind="stable")[: far.sum()]


def rows_for_errors(form, prepared, clipped, t, n_parameters):
    """Return rows whose least squares give the errors of the M-estimate, and s."""
    fitted, residual, scale = robust_fit(form, prepared, clipped.rows.y, t)
    weight, bound = prepared.rows.weight, BOUND * scale
    share = float(np.average(np.abs(residual) <= bound, weights=weight))
    factor = 1 + n_parameters / weight.sum() * (1 - share) / share
    y = fitted + factor / share * np.clip(residual, -bound, bound)
    return prepared._replace(rows=prepared.rows._replace(y=y)), scale
