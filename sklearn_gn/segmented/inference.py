"""What is read off a fit: parameters, breakpoints and segments with standard errors.

Free kinks are parameters like the others, so that all standard errors take their
uncertainty in (the delta method). The position of a jump is known to a number of rows
that does not depend on how many there are: its interval is that of Bai ("Estimation of
a change point in multiple regression models", 1997), and the other standard errors take
it as known.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, stdtr, stdtrit

from sklearn_gn.core import extremes
from sklearn_gn.segmented import least_squares
from sklearn_gn.segmented.problem import Form

LEVEL = 0.95  # of the confidence limits
_FAR = 1e100  # largest position, in units of the training data


class Scaling(NamedTuple):
    """From the user's units to those of the search."""

    center: float
    size: float  # half the range of x
    y_center: float
    y_size: float  # standard deviation
    linear_center: np.ndarray  # (m,)
    linear_size: np.ndarray

    def arithmetic(self):
        """Return the context in which to compute in the user's units."""
        sizes = [self.center, self.size, self.y_center, self.y_size]
        return extremes.arithmetic_of(
            np.concatenate([sizes, self.linear_center, self.linear_size])
        )

    def x(self, x):
        """Return positions in units in which the data lie in [-1, 1]."""
        return _bounded(x, self.center, self.size)

    def y(self, y):
        """Return the target with mean zero and deviation one."""
        return (y - self.y_center) / self.y_size

    def linear(self, linear):
        """Return the linear features in units of their deviations."""
        return _bounded(linear, self.linear_center, self.linear_size)

    def to_user(self, t):
        """Return positions in the user's units."""
        return self.center + self.size * t


class Fit(NamedTuple):
    """A fit with given breakpoints, in the units of the search."""

    form: Form
    t: np.ndarray  # (k,) breakpoints, ascending
    free: np.ndarray  # (k,) bool, those that are estimated
    coef: np.ndarray  # of the design
    covariance: np.ndarray  # of the coefficients and the free kinks
    degrees_of_freedom: float
    n_rows: float
    n_parameters: int  # the free breakpoints included
    rss: float
    total: float  # sum of squares about the mean
    scaling: Scaling

    @property
    def noise_std(self):
        """Standard deviation of the noise."""
        share = self.rss / self.degrees_of_freedom
        return float(self.scaling.y_size * np.sqrt(share))

    @property
    def breakpoints(self):
        """Breakpoints in the user's units."""
        return self.scaling.to_user(self.t)

    @property
    def ramps(self):
        """Numbers of the coefficients that are changes of slope."""
        return least_squares.ramp_columns(self.form, len(self.t))

    @property
    def steps(self):
        """Numbers of the coefficients that are jumps."""
        first = 1 + self.form.slope + len(self.ramps)
        return first + np.arange(len(self.t) if self.form.step else 0)

    @property
    def kinks(self):
        """Numbers of the breakpoints whose positions are parameters."""
        return least_squares.moving(self.form, self.free)

    def quantile(self, level=LEVEL):
        """Return the half-width of a confidence interval, in standard errors."""
        return float(stdtrit(self.degrees_of_freedom, (1 + level) / 2))

    def p_values(self, statistics):
        """Return the probability of larger t statistics, on both sides."""
        return 2 * stdtr(self.degrees_of_freedom, -np.abs(statistics))


def infer(form, rows, t, free, scaling, kind):
    """Fit the rows with given breakpoints, and compute the covariance.

    Parameters
    ----------
    form : Form
    rows : Rows
        In the units of the search.
    t : ndarray of shape (k,)
        Breakpoints, ascending.
    free : ndarray of shape (k,)
        Whether a breakpoint is estimated.
    scaling : Scaling
    kind : Covariance
    """
    t, found = least_squares.fit_rows(form, rows, t, free)
    columns = least_squares.jacobian(form, rows.x, rows.linear, t, free, found.coef)
    cov, freedom, rank = least_squares.covariance(kind, columns, found, rows.weight)
    n_jumps = int(np.sum(free)) - len(least_squares.moving(form, free))
    mean = rows.weight @ rows.y / rows.weight.sum()
    return Fit(
        form=form,
        t=t,
        free=free,
        coef=found.coef,
        covariance=cov,
        degrees_of_freedom=freedom,
        n_rows=float(rows.weight.sum()),
        n_parameters=rank + n_jumps,
        rss=found.rss,
        total=float(rows.weight @ (rows.y - mean) ** 2),
        scaling=scaling,
    )


def predict(fit, x, linear):
    """Return values and standard errors at positions in the user's units."""
    u, linear = fit.scaling.x(x), fit.scaling.linear(linear)
    columns = least_squares.jacobian(fit.form, u, linear, fit.t, fit.free, fit.coef)
    size = fit.scaling.y_size
    value = columns[:, : len(fit.coef)] @ fit.coef
    variance = np.sum((columns @ fit.covariance) * columns, axis=1)
    std = np.sqrt(np.maximum(variance, 0))
    return (
        extremes.scaled_back(value, size, fit.scaling.y_center),
        extremes.scaled_back(std, size),
    )


def _bounded(values, center, size):
    with np.errstate(over="ignore"):
        return np.clip((values - center) / size, -_FAR, _FAR)


# --- parameters ----------------------------------------------------------------------


def user_parameters(fit):
    """Return parameters and covariance in the user's units.

    The intercept is the value of the first line at x = 0, all linear features zero.
    """
    scaling, form, n_kinks = fit.scaling, fit.form, len(fit.kinks)
    factor = np.ones(len(fit.coef) + n_kinks)
    factor[1 : 1 + form.slope] = 1 / scaling.size
    factor[fit.ramps] = 1 / scaling.size
    m = len(scaling.linear_size)
    linear = np.arange(len(fit.coef) - m, len(fit.coef))
    factor[linear] = 1 / scaling.linear_size
    matrix = np.diag(factor)
    matrix[0, 1 : 1 + form.slope] = -scaling.center / scaling.size
    matrix[0, linear] = -scaling.linear_center / scaling.linear_size
    matrix *= scaling.y_size
    kinks = np.arange(len(fit.coef), len(matrix))
    matrix[kinks, kinks] = scaling.size
    values = matrix @ np.concatenate([fit.coef, fit.t[fit.kinks]])
    values[0] += scaling.y_center
    values[len(fit.coef) :] += scaling.center
    return values, matrix @ fit.covariance @ matrix.T


def parameter_table(fit, x_name, linear_names):
    """Return the parameters of the design with their errors, a dict of arrays.

    The changes of slope at estimated breakpoints have no p-value: without a change
    there is no breakpoint, and t is not distributed as t.
    """
    values, covariance = user_parameters(fit)
    n = len(fit.coef)
    numbers = range(1, len(fit.t) + 1)
    names = ["intercept"] + [x_name] * fit.form.slope
    names += [f"slope change {k}" for k in numbers] * fit.form.ramp
    names += [f"jump {k}" for k in numbers] * fit.form.step
    values, std = values[:n], np.sqrt(np.maximum(np.diagonal(covariance)[:n], 0))
    t = _ratio(values, std)
    p = fit.p_values(t)
    p[fit.ramps[fit.free[: len(fit.ramps)]]] = np.nan
    p[fit.steps[fit.free[: len(fit.steps)]]] = np.nan
    width = fit.quantile() * std
    return {
        "name": np.array(names + list(linear_names), dtype=object),
        "estimate": values,
        "std_error": std,
        "t": t,
        "p_value": p,
        "lower": values - width,
        "upper": values + width,
    }


def _ratio(values, std):
    with np.errstate(divide="ignore", invalid="ignore"):
        return values / std


# --- breakpoints ---------------------------------------------------------------------


def breakpoint_errors(fit):
    """Return standard errors of the breakpoints.

    They are zero for known breakpoints, and NaN for jumps, which have none.
    """
    std = np.where(fit.free, np.nan, 0.0)
    variance = np.diagonal(fit.covariance)[len(fit.coef) :]
    std[fit.kinks] = fit.scaling.size * np.sqrt(np.maximum(variance, 0))
    return std


def breakpoint_intervals(fit, rows, level=LEVEL):
    """Return confidence intervals of the breakpoints, of shape (k, 2)."""
    center, std = fit.breakpoints, breakpoint_errors(fit)
    width = fit.quantile(level) * np.nan_to_num(std)
    interval = np.stack([center - width, center + width], axis=1)
    for k in np.flatnonzero(np.isnan(std)):
        interval[k] = _jump_interval(fit, rows, k, level)
    return interval


def _jump_interval(fit, rows, k, level):
    """Return the interval of a jump: so many rows to both sides."""
    jump, variance = fit.coef[fit.steps[k]], fit.rss / fit.degrees_of_freedom
    x = np.unique(rows.x)
    first = np.searchsorted(x, fit.t[k])
    size = argmax_quantile(level) * variance / jump**2 if jump else np.inf
    reach = 1 + int(min(size * len(x) / fit.n_rows, len(x)))
    low, high = max(first - reach, 1), min(first + reach, len(x) - 1)
    return [fit.scaling.to_user((x[j - 1] + x[j]) / 2) for j in (low, high)]


def argmax_quantile(level):
    """Return the quantile of ``|argmax_s W(s) - |s| / 2|`` for a Brownian motion W."""

    def excess(x):
        root = np.sqrt(x)
        below = 1 + np.sqrt(x / (2 * np.pi)) * np.exp(-x / 8)
        below -= (x + 5) / 2 * ndtr(-root / 2)
        below += 1.5 * np.exp(x + log_ndtr(-1.5 * root))
        return below - (1 + level) / 2

    return brentq(excess, 1e-12, 1e4)


# --- segments ------------------------------------------------------------------------


def segment_table(fit, rows):
    """Return the straight lines between the breakpoints, a dict of arrays."""
    values, covariance = user_parameters(fit)
    slope, intercept = _line_gradients(fit, values)
    width = fit.quantile()
    table = {}
    ends = fit.scaling.to_user(np.array([rows.x[0], rows.x[-1]]))
    table["start"] = np.concatenate([ends[:1], fit.breakpoints])
    table["end"] = np.concatenate([fit.breakpoints, ends[1:]])
    # Without the derivatives by the breakpoints: the line itself.
    n = len(fit.coef)
    for name, gradient in (("intercept", intercept), ("slope", slope)):
        estimate = gradient[:, :n] @ values[:n]
        variance = np.sum((gradient @ covariance) * gradient, axis=1)
        std = np.sqrt(np.maximum(variance, 0))
        table[name] = estimate
        table[f"{name}_std_error"] = std
        table[f"{name}_lower"] = estimate - width * std
        table[f"{name}_upper"] = estimate + width * std
    jump = np.zeros(len(fit.t) + 1)
    jump[1:] = values[fit.steps] if fit.form.step else 0
    std = np.zeros(len(fit.t) + 1)
    if fit.form.step:
        std[1:] = np.sqrt(np.maximum(np.diagonal(covariance)[fit.steps], 0))
    table["jump"], table["jump_std_error"] = jump, std
    first = np.searchsorted(rows.x, fit.t)
    total = np.concatenate([[0], np.cumsum(rows.weight)])
    table["n_rows"] = np.diff(total[np.concatenate([[0], first, [len(rows.x)]])])
    return table


def _line_gradients(fit, values):
    """Return derivatives of slopes and intercepts of the lines by the parameters."""
    k = len(fit.t)
    slope, intercept = np.zeros((2, k + 1, len(values)))
    intercept[:, 0] = 1
    slope[:, 1 : 1 + fit.form.slope] = 1
    for s in range(1, k + 1):
        slope[s, fit.ramps[:s]] = 1
        intercept[s, fit.ramps[:s]] = -fit.breakpoints[: len(fit.ramps[:s])]
        intercept[s, fit.steps[:s]] = 1
        for place, kink in enumerate(fit.kinks):
            if kink < s:
                intercept[s, len(fit.coef) + place] = -values[fit.ramps[kink]]
    return slope, intercept


# --- the whole fit -------------------------------------------------------------------


def statistics(fit):
    """Return figures of the whole fit, a dict of numbers.

    The likelihood is that of normal noise; its variance is not counted as a parameter.
    """
    n = fit.n_rows
    size = fit.scaling.y_size
    rss = max(fit.rss, np.finfo(float).tiny)
    log_variance = np.log(2 * np.pi * rss) - np.log(n) + 2 * np.log(size)
    deviance = n * (log_variance + 1)
    return {
        "n_rows": n,
        "n_parameters": fit.n_parameters,
        "degrees_of_freedom": fit.degrees_of_freedom,
        "rss": float(fit.rss * np.square(size)),
        "r2": 1 - fit.rss / fit.total if fit.total > 0 else 0.0,
        "aic": float(deviance + 2 * fit.n_parameters),
        "bic": float(deviance + np.log(n) * fit.n_parameters),
    }
