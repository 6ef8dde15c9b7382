r"""What is read off a fit: parameters, breakpoints and segments with standard errors.

Free kinks are parameters like the others, so that all standard errors take their
uncertainty in (the delta method). The position of a jump is known to a number of rows
that does not depend on how many there are: the other standard errors take it as known.
The intervals of both come from the profile of the sum of squares.

A position t belongs to the interval of a kink if fixing it there raises the least sum
of squares by no more than :math:`q^2 s^2`, with q a quantile of Student's t
distribution (Bates and Watts, "Nonlinear regression analysis and its applications",
1988, section 6.1). Close to the estimate that is the interval of the delta method,
which is too narrow where the kink is not sharp: the sum of squares rises less and less
with the distance. The other kinks follow to first order. For other covariances,
:math:`s^2` is such that both still agree close to the estimate.

Where the function may jump, each row that passes from one line to the other changes the
sum of squares by the squared distance of the lines and by its noise: a random walk with
drift, whether level or slope changes. The least value of such a walk on one side of the
true position is distributed exponentially, so that the true one is more than
:math:`2 x s^2` above the least sum of squares with a probability of
:math:`1 - (1 - e^{-x})^2` (Eo and Morley, "Likelihood-ratio-based confidence sets for
the timing of structural breaks", 2015); here :math:`s^2` counts as an estimate.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, stdtr, stdtrit

from sklearn_gn.arrays import extremes
from sklearn_gn.segmented import least_squares
from sklearn_gn.segmented.problem import (
    DEPENDENT,
    EXACT,
    HALF,
    MOST_CANDIDATES,
    Form,
    Pieces,
    Scaling,
    all_pieces,
    concatenate,
    feasible,
    locate,
    powers_of,
    solve,
    take,
)
from sklearn_gn.segmented.search import gains, orthogonal_part

LEVEL = 0.95  # of the confidence limits
_EACH = 32  # positions that are tried near, far, and in between


class Fit(NamedTuple):
    """Fits with given breakpoints, of one series or of several side by side."""

    form: Form
    t: np.ndarray  # (..., k) breakpoints, ascending
    free: np.ndarray  # (k,) bool, those that are estimated
    coef: np.ndarray  # of the design
    covariance: np.ndarray  # of the coefficients and the free kinks
    degrees_of_freedom: np.ndarray  # (...) NaN where the noise cannot be estimated
    variance: np.ndarray  # of the noise of a row of weight one
    n_rows: np.ndarray
    n_parameters: np.ndarray  # the free breakpoints included
    rss: np.ndarray
    total: np.ndarray  # sum of squares about the mean
    scaling: Scaling

    @property
    def noise_std(self):
        """Standard deviation of the noise."""
        return self.scaling.y_size * np.sqrt(self.variance)

    @property
    def is_noise_unknown(self):
        """Whether there are too few rows to estimate the noise."""
        return np.isnan(self.degrees_of_freedom)

    @property
    def is_constant(self):
        """Whether the target does not vary, up to rounding."""
        spread = self.scaling.y_size * np.sqrt(self.total / self.n_rows)
        return spread <= EXACT * np.abs(self.scaling.y_center)

    @property
    def breakpoints(self):
        """Breakpoints in the user's units."""
        return self.scaling.to_user(self.t)

    @property
    def ramps(self):
        """Numbers of the coefficients that are changes of slope."""
        n = self.t.shape[-1] if self.form.ramp else 0
        return 1 + self.form.slope + np.arange(n)

    @property
    def steps(self):
        """Numbers of the coefficients that are jumps."""
        first = 1 + self.form.slope + self.form.ramp * self.t.shape[-1]
        return first + np.arange(self.t.shape[-1] if self.form.step else 0)

    @property
    def kinks(self):
        """Numbers of the breakpoints whose positions are parameters."""
        return least_squares.moving(self.form, self.free)

    @property
    def half_width(self):
        """Half-width of the confidence intervals, in standard errors."""
        return stdtrit(self.degrees_of_freedom, (1 + LEVEL) / 2)

    def with_redundant_rows(self, redundancy):
        """Return the fits (B, ...) where so many rows count as one independent row."""
        known = np.isinf(self.degrees_of_freedom)
        n_rows, rank = self.n_rows / redundancy, self.n_rows - self.degrees_of_freedom
        freedom = np.where(known, np.inf, np.maximum(n_rows - rank, 1.0))
        unknown = (n_rows <= self.n_parameters) & ~known
        freedom = np.where(unknown, np.nan, freedom)
        variance = np.where(known, self.variance, self.rss / redundancy / freedom)
        # The inverse normal matrix grows by the redundancy.
        before, after = np.where(known, 1, [self.degrees_of_freedom, freedom])
        growth = np.where(known, redundancy, before / after)
        return self._replace(
            covariance=growth[:, None, None] * self.covariance,
            degrees_of_freedom=freedom,
            variance=variance,
            n_rows=n_rows,
            rss=self.rss / redundancy,
            total=self.total / redundancy,
        )

    def of(self, b):
        """Return the fit of one of several series, or the fits of some."""
        one = (a[b] for a in self[3:-1])
        scaling = Scaling(*(a[b] for a in self.scaling))
        return Fit(self.form, self.t[b], self.free, *one, scaling)


def infer(form, t, free, rows, scaling, kind, repeats, found=None, space=None):
    """Fit the rows (B, n) of several series, which count by their ``repeats``.

    Also returned is the inverse of the curvature of the sum of squares, by kink (B, k).
    """
    if found is None:
        t, found = least_squares.fit_rows(form, rows, t, free)
        found = found._replace(rss=found.rss + rows.rest)
    columns = least_squares.jacobian(form, rows.x, rows.linear, t, free, found.coef)
    if space is None:
        space = least_squares.coefficient_space(form, t.shape[1], columns.shape[-1])
    cov, freedom, rank, half = least_squares.covariance(
        kind, columns, found, rows.weight, repeats, space
    )
    n_jumps = int(np.sum(free)) - len(least_squares.moving(form, free))
    n_rows, n_parameters = repeats.sum(axis=-1), rank + n_jumps
    known = kind.variance is not None
    unknown = (n_rows <= n_parameters) & (not known)
    freedom = np.where(unknown, np.nan, np.inf if known else freedom)
    mean = np.sum(rows.weight * rows.y, axis=-1) / rows.weight.sum(axis=-1)
    fit = Fit(
        form=form,
        t=t,
        free=free,
        coef=found.coef,
        covariance=np.where(unknown[:, None, None], np.nan, cov),
        degrees_of_freedom=freedom,
        variance=kind.variance if known else found.rss / freedom,
        n_rows=n_rows,
        n_parameters=n_parameters,
        rss=found.rss,
        total=np.sum(rows.weight * (rows.y - mean[:, None]) ** 2, axis=-1) + rows.rest,
        scaling=scaling,
    )
    return fit, np.sum(half[..., found.coef.shape[-1] :, :] ** 2, axis=-1)


def predict(fit, x, linear):
    """Return values and standard errors at positions in the user's units.

    The variance comes from the delta method, averaged over whether a position lies
    before or after each kink, whose estimates are normal and taken as independent.
    """
    u, linear = fit.scaling.x(x), fit.scaling.linear(linear)
    columns = least_squares.jacobian(fit.form, u, linear, fit.t, fit.free, fit.coef)
    size, n = fit.scaling.y_size, len(fit.coef)
    value = columns[:, :n] @ fit.coef
    variance = np.maximum(np.diagonal(fit.covariance)[n:], 0)
    distance, kink_std = u[:, None] - fit.t[fit.kinks], np.sqrt(variance)
    uncertain = kink_std > 0  # others lie where they lie
    after = ndtr(distance / np.where(uncertain, kink_std, 1))
    after = np.where(uncertain, after, distance >= 0)
    change = fit.coef[fit.ramps[fit.kinks]] if len(fit.kinks) else np.empty(0)
    columns[:, n:] += change * ((distance >= 0) - after)
    either = (after * (1 - after)) @ (change**2 * variance)
    far = np.maximum(np.max(np.abs(columns), axis=1), 1)  # the square may overflow
    columns = columns / far[:, None]
    variance = np.sum((columns @ fit.covariance) * columns, axis=1)
    variance = variance + either / far**2
    std = far * np.sqrt(np.maximum(variance, 0))
    return (
        extremes.scaled_back(value, size, fit.scaling.y_center),
        extremes.scaled_back(std, size),
    )


# --- parameters ----------------------------------------------------------------------


def user_parameters(fit):
    """Return parameters and covariance in the user's units."""
    scaling, form = fit.scaling, fit.form
    lead, n, m = 1 + form.slope, fit.coef.shape[-1], scaling.linear_size.shape[-1]
    size, y_size = scaling.size[..., None], scaling.y_size[..., None]
    scaled = np.concatenate([fit.coef, fit.t[..., fit.kinks]], axis=-1)
    factor = np.ones(scaled.shape)
    for power in range(1, 1 + form.ramp):
        factor[..., fit.ramps + (power - 1) * fit.t.shape[-1]] = 1 / size**power
    factor[..., n - m : n] = 1 / scaling.linear_size
    factor[..., :n] *= y_size
    factor[..., n:] = size
    jacobian = factor[..., None] * np.eye(scaled.shape[-1])
    for power in range(1, lead):  # on which lower powers depend
        own = powers_of(scaling.center, power, lead - 1) / scaling.size**power
        jacobian[..., :lead, power] = np.moveaxis(own, 0, -1) * y_size
    jacobian[..., 0, n - m : n] = -factor[..., n - m : n] * scaling.linear_center
    values = (jacobian @ scaled[..., None])[..., 0]
    values[..., 0] += scaling.y_center
    values[..., n:] += scaling.center[..., None]
    with np.errstate(over="ignore", invalid="ignore"):
        covariance = jacobian @ fit.covariance @ np.swapaxes(jacobian, -1, -2)
    return values, covariance


def parameter_table(fits, names, linear_names):
    """Return the parameters of the design with their errors, a dict of arrays.

    Changes at estimated breakpoints have no p-value: without one t is not Student's.
    """
    fit, labels, is_change = fits[0], ["intercept"], [False]
    for name, own in zip(names, fits, strict=True):
        of = f"{name} " if len(fits) > 1 else ""
        labels += [name, f"{name}^2"][: own.form.slope]
        is_change += [False] * own.form.slope
        kinds = ["slope change", "quadratic change"][: own.form.ramp]
        for kind in kinds + ["jump"] * own.form.step:
            labels += [f"{of}{kind} {k}" for k in range(1, len(own.t) + 1)]
            is_change += [*own.free]
    labels += linear_names
    values, covariance = user_parameters(fit)
    n = len(labels)
    space = least_squares.coefficient_space(fit.form, len(fit.t), n)
    is_there = np.ones(n, bool) if space is None else space.any(axis=1)
    values, std = values[:n], np.sqrt(np.maximum(np.diagonal(covariance)[:n], 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = values / std
    p = 2 * stdtr(fit.degrees_of_freedom, -np.abs(t))
    p[np.flatnonzero(is_change)] = np.nan
    width = fit.half_width * std
    table = {
        "name": np.array(labels, dtype=object),
        "estimate": values,
        "std_error": std,
        "t": t,
        "p_value": p,
        "lower": values - width,
        "upper": values + width,
    }
    return {name: column[is_there] for name, column in table.items()}


# --- breakpoints ---------------------------------------------------------------------


def breakpoint_errors(fit):
    """Return standard errors of the breakpoints."""
    std = np.where(fit.free, np.nan, np.zeros_like(fit.t))
    n = fit.coef.shape[-1]
    variance = np.diagonal(fit.covariance, axis1=-2, axis2=-1)[..., n:]
    std[..., fit.kinks] = fit.scaling.size[..., None] * np.sqrt(np.maximum(variance, 0))
    return std


def delta_intervals(fit):
    """Return 95 % intervals of the breakpoints by the delta method, (..., k, 2)."""
    width = fit.half_width[..., None] * breakpoint_errors(fit)
    interval = fit.breakpoints[..., None] + np.stack([-width, width], axis=-1)
    ends = [np.full_like(fit.t[..., :1], end) for end in (-1.0, 1.0)]
    t = fit.scaling.to_user(np.concatenate([ends[0], fit.t, ends[1]], axis=-1))
    return np.clip(interval, t[..., :-2, None], t[..., 2:, None])


def breakpoint_intervals(fit, problem, curvature):
    """Return 95 % confidence intervals of the breakpoints, of shape (B, k, 2)."""
    table, (low, high), kinks = problem.table, problem.limits[:2], fit.kinks
    problem, interval = problem._replace(candidates=None), np.stack([fit.t] * 2, -1)
    # Breakpoints and the ends of the data, and the rows after them.
    ends = np.pad(fit.t, ((0, 0), (1, 1)), constant_values=((0, 0), (-1.0, 1.0)))
    row = np.pad(locate(table, fit.t), ((0, 0), (1, 1)))
    row[:, -1] = table.n_rows
    freedom, same = np.unique(fit.degrees_of_freedom, return_inverse=True)
    of_walk = np.array([walk_quantile(each) for each in freedom])[same] * fit.variance
    of_walk = np.maximum(of_walk, DEPENDENT * fit.total)
    widths = np.zeros(fit.t.shape)
    widths[:, kinks] = fit.half_width[:, None] * breakpoint_errors(fit)[:, kinks]
    widths /= fit.scaling.size[:, None]
    for k in np.flatnonzero(fit.free):
        rise, t = _rise(problem, fit, k), fit.t[:, k]
        for side, sign, beside in ((0, -1, k), (1, 1, k + 2)):
            if k not in kinks:
                end, near = row[:, beside] - sign, np.full(len(t), _EACH - 1)
                last = _last_below(rise, row[:, k + 1], end, near, of_walk, step=1)
                last = np.minimum(last - (side == 0), table.n_rows - 1)
                last = np.clip(take(table.x, last[:, None])[:, 0], low, high)
            else:
                end = np.clip(ends[:, beside], low, high)
                end = np.minimum(end, t) if side == 0 else np.maximum(end, t)
                width, own = widths[:, k], curvature[:, np.flatnonzero(kinks == k)[0]]
                known = (width**2 > DEPENDENT * fit.total * own) & (width < np.inf)
                last = np.clip(t + sign * width, *np.sort([t, end], axis=0))
                if known.any():
                    near, own = np.where(known, [width, own], 1)
                    found = _last_below(rise, t, end, near, near**2 / own)
                    last = np.where(known, found, last)
            interval[:, k, side] = last
    interval[np.ix_(fit.is_noise_unknown, fit.free)] = np.nan
    size, center = fit.scaling.size, fit.scaling.center
    return center[:, None, None] + size[:, None, None] * interval


def walk_quantile(degrees_of_freedom):
    """Return the quantile of the rise over the estimated variance; NaN gives NaN."""
    if np.isnan(degrees_of_freedom):
        return np.nan
    half = min(degrees_of_freedom / 2, 1 / HALF)  # infinite of a known variance

    def excess(x):
        one, two = (np.exp(-half * np.log1p(k * x / half)) for k in (1, 2))
        return 1 - 2 * one + two - LEVEL

    return 2 * brentq(excess, 0, 1 / HALF)


def _rise(problem, fit, k):
    """Return how the sum of squares rises with the place of a break, the rest held.

    The place of a kink is its position; that of a jump is the row after it. The other
    kinks follow to first order.
    """
    form, start, kinks = fit.form, fit.t[:, [k]], fit.kinks
    if form.kinds:
        ramp, step = form.kinds[k]
        kinds = form.kinds[:k] + form.kinds[k + 1 :]
        form = form._replace(ramp=ramp, step=step, kinds=kinds)
    problem = problem._replace(form=form, known=np.delete(fit.t, k, axis=1))
    others, n_rows = fit.t[:, kinks[kinks != k]], np.reshape(fit.n_rows, (-1, 1))
    pieces = all_pieces(problem, fit.t[:, :0])
    steps = powers_of(others, 0, len(pieces.coef) - 1)
    pieces = concatenate(pieces, Pieces(locate(problem.table, others), steps))
    found = solve(problem.table, pieces, form.flat_end)
    if form.step:
        start = locate(problem.table, start)

    def gain(places):
        at = problem.at(places) if form.step else problem.at(t=places)
        residual, *parts = orthogonal_part(at, pieces, found)
        # Without the step of a kink, it stays where it is.
        residual = residual[: form.ramp + form.step]
        value = np.maximum(gains(at, (residual, *parts))[0], 0)
        if form.step:
            allowed = feasible(problem, at.candidates.t[..., None])
            value = np.where(allowed | (places == start), value, -np.inf)
        return value

    largest = gain(start)
    return lambda places: n_rows * (largest - gain(places))


def _last_below(rise, start, end, near, threshold, step=0):
    """Return each series' last place from a breakpoint to an end with a small rise."""
    towards, reach = np.sign(end - start)[:, None], np.abs(end - start)
    far = np.maximum(reach, 1e-300)
    first = np.minimum(np.maximum(near, 1e-300), far)
    beyond = np.geomspace(first, far, _EACH, axis=1)
    tried = np.concatenate(
        [np.linspace(0, first, _EACH, axis=1), beyond[:, 1:]], axis=1
    )
    while True:
        tried = np.minimum(tried, reach[:, None])
        if step:
            tried = tried.astype(np.intp)
        excess = rise(start[:, None] + towards * tried) - threshold[:, None]
        excess[:, 0] = np.minimum(excess[:, 0], 0)
        last = tried.shape[1] - 1 - np.argmax(excess[:, ::-1] <= 0, axis=1)
        at = np.minimum(np.stack([last, last + 1], axis=1), tried.shape[1] - 1)
        low, high = np.take_along_axis(tried, at, axis=1).T
        if np.all(high - low <= (step or high / _EACH**2)):
            break
        tried = np.linspace(low, high, _EACH, axis=1)
    if not step:
        below, above = np.take_along_axis(excess, at, axis=1).T
        size = np.where(above > below, above - below, 1)
        low = np.where(above > below, low - (high - low) * below / size, high)
    return start + towards[:, 0] * low


def at_bounds(fit, problem, interval):
    """Return which breakpoints the bounds hold back, and which intervals they cut."""
    table = problem.table
    bounds = np.concatenate([problem.limits.low, problem.limits.high])
    inside = [bounds[0] > table.x[0, 0], bounds[1] < table.x[0, table.n_rows[0] - 1]]
    ends = fit.scaling.to_user(bounds)
    reached = np.stack([interval[:, 0] <= ends[0], interval[:, 1] >= ends[1]], axis=1)
    reached &= fit.free[:, None] & inside
    rows = np.abs(locate(table, fit.t[None]).T - locate(table, bounds[None]))
    near = rows <= 1 + table.n_rows[0] // MOST_CANDIDATES
    return np.any(reached & near, axis=1), np.any(reached, axis=1)


# --- segments ------------------------------------------------------------------------


def segment_table(fit, rows):
    """Return the straight lines between the breakpoints, a dict of arrays."""
    values, covariance = user_parameters(fit)
    # A linear feature may have an infinite variance.
    unknown = fit.is_noise_unknown[..., None, None]
    covariance = np.where(unknown, np.nan, np.nan_to_num(covariance))
    width = fit.half_width[..., None]
    table, k, t = {}, fit.t.shape[-1], fit.breakpoints
    last = np.count_nonzero(rows.weight, axis=-1, keepdims=True) - 1
    low = fit.scaling.to_user(rows.x[..., :1])
    high = fit.scaling.to_user(np.take_along_axis(rows.x, last, axis=-1))
    table["start"] = np.concatenate([low, t], axis=-1)
    table["end"] = np.concatenate([t, high], axis=-1)
    # Derivatives of the coefficients of 1, x, ... by the parameters; without those by
    # the breakpoints: the line itself.
    n, form, kinks = fit.coef.shape[-1], fit.form, fit.kinks
    names = ("intercept", "slope", "quadratic")[: 1 + max(form.slope, form.ramp, 1)]
    gradients = np.zeros((len(names), *values.shape[:-1], k + 1, values.shape[-1]))
    for power in range(1 + form.slope):
        gradients[power, ..., power] = 1
    for j in range(1, k + 1):
        gradients[0, ..., j, fit.steps[:j]] = 1
        moved = kinks[kinks < j]
        for power in range(1, 1 + form.ramp):
            ramps = fit.ramps + (power - 1) * k
            own = powers_of(t[..., :j], power, len(names) - 1)
            gradients[..., j, ramps[:j]] = own
            slopes = power * powers_of(t[..., moved], power - 1, len(names) - 1)
            at = slice(n, n + len(moved))
            gradients[..., j, at] -= values[..., ramps[moved]] * slopes
    for name, gradient in zip(names, gradients, strict=True):
        estimate = (gradient[..., :n] @ values[..., :n, None])[..., 0]
        with np.errstate(over="ignore"):
            variance = np.sum((gradient @ covariance) * gradient, axis=-1)
        std = np.sqrt(np.maximum(variance, 0))
        table[name] = estimate
        table[f"{name}_std_error"] = std
        table[f"{name}_lower"] = estimate - width * std
        table[f"{name}_upper"] = estimate + width * std
    jump, std = np.zeros((2, *fit.t.shape[:-1], k + 1))
    if fit.form.step:
        jump[..., 1:] = values[..., fit.steps]
        variance = np.diagonal(covariance, axis1=-2, axis2=-1)[..., fit.steps]
        std[..., 1:] = np.sqrt(np.maximum(variance, 0))
    table["jump"], table["jump_std_error"] = jump, std
    before = [
        np.sum(rows.weight * (rows.x < fit.t[..., j, None]), -1) for j in range(k)
    ]
    ends = [np.zeros_like(fit.n_rows), *before, np.sum(rows.weight, -1)]
    table["n_rows"] = np.diff(np.stack(ends, axis=-1), axis=-1)
    return table


# --- the whole fit -------------------------------------------------------------------


def statistics(fit):
    """Return figures of the whole fit, a dict of numbers or of arrays."""
    n = fit.n_rows
    size = fit.scaling.y_size
    rss = np.maximum(fit.rss, np.finfo(float).tiny)
    total = np.where(fit.is_constant, np.inf, fit.total)
    log_variance = np.log(2 * np.pi * rss) - np.log(n) + 2 * np.log(size)
    deviance = n * (log_variance + 1)
    return {
        "n_rows": n,
        "n_parameters": fit.n_parameters,
        "degrees_of_freedom": np.where(
            np.isinf(fit.degrees_of_freedom),
            np.maximum(n - fit.n_parameters, 0.0),
            np.nan_to_num(fit.degrees_of_freedom),
        ),
        "rss": fit.rss * np.square(size),
        "r2": 1 - fit.rss / total,
        "aic": deviance + 2 * fit.n_parameters,
        "bic": deviance + np.log(n) * fit.n_parameters,
    }
