r"""What a number of breakpoints is judged by: criteria, evidence, cross-validation.

A breakpoint is the best of many positions, and noise alone has a best one too: of few
rows it lowers the sum of squares by more than "bic" charges. As the position moves, the
direction in which a breakpoint shows moves on the unit sphere, along a curve of length
L. Of noise in m dimensions with a share of more than s of its square along the curve,
the probability is at most :math:`(1 + L / \pi) (1 - s)^{m / 2 - 1}` (Hotelling, "Tubes
and spheres in n-spaces", 1939; the one is for the end of the curve). A breakpoint costs
what noise reaches in one series of twenty, where this is more than "bic" charges.

The evidence is the probability of the data, given the number. The coefficients other
than the intercept have Zellner's prior, of a size g that maximises the evidence (Liang,
Paulo, Molina, Clyde and Berger, "Mixtures of g priors for Bayesian variable selection",
2008), the intercept and the logarithm of the noise a flat one. Breakpoints are uniform
in the range that is allowed. With p coefficients, sums of squares T about the mean and
R of the residuals, the evidence relative to the mean's is, for given breakpoints,

.. math::
    \log B = \frac{n - 1 - p}2 \log(1 + g) - \frac{n - 1}2 \log(1 + g R / T).

The integral over kinks is Laplace's, with the Gauss-Newton matrix of R; of jumps, which
have finitely many positions, the largest term stands for the sum.
"""

import numpy as np
from scipy.special import betaincinv, gammaln

from sklearn_gn.arrays import extremes
from sklearn_gn.segmented import least_squares
from sklearn_gn.segmented.inference import LEVEL
from sklearn_gn.segmented.preparation import problem_of, with_known
from sklearn_gn.segmented.problem import (
    EXACT,
    criterion_value,
    deviance_shift,
    take,
)
from sklearn_gn.segmented.search import search

CRITERIA = ("bic", "aic", "gcv", "evidence")


def n_parameters(problem, n_breakpoints):
    """Return the numbers of parameters with so many breakpoints besides known ones."""
    form, n_linear, m = problem.form, problem.n_linear, problem.table.square.shape[1]
    known = problem.known.shape[1] * (form.ramp + form.step)
    has_slope = form.slope | (known > 0) | (form.ramp & (np.asarray(n_breakpoints) > 0))
    base = 1 + form.slope + n_linear + known - (form.flat_end & has_slope)
    return m * base + n_breakpoints * (1 + m * (form.ramp + form.step))


def search_penalty(problem, positions, n_rows, most):
    """Return what 0 to ``most`` breakpoints cost beyond "bic", by series, (B, k).

    They were searched among so many independent ``positions`` (B,). A breakpoint may
    have several directions, whose share of the square is a beta variable.
    """
    form = problem.form
    numbers, is_both = n_parameters(problem, np.arange(most)), form.ramp * form.step
    directions = problem.table.square.shape[1] * (form.ramp + form.step)
    shown = max(directions, 2)  # the least number that the bound of a curve is that of
    left = np.maximum(n_rows - numbers - is_both, shown + 1) - shown
    rest = betaincinv(left / 2, shown / 2, (1 - LEVEL) / positions[:, None])
    charged = (1 + directions) * np.log(n_rows)
    excess = np.maximum(-n_rows * np.log(rest) - charged, 0)
    return np.cumsum(np.pad(excess, ((0, 0), (1, 0))), axis=1)


def path_columns(problem, found, n_rows, prepared, options):
    """Return the figures of all fits by name."""
    criterion = options.criterion
    numbers = np.arange(found.rss.shape[1])
    counts = n_parameters(problem, numbers)
    columns = {"n_parameters": counts, "rss": found.rss}
    if criterion == "evidence":
        columns[criterion] = np.full(found.rss.shape, np.inf)
        for b, k in np.argwhere(np.isfinite(found.rss)):
            own = prepared[b]
            t, free = with_known(own, options, found.knots[k][b])
            low, high = np.clip(own.scaling.x(np.array(options.bounds)), -1, 1)
            value = log_evidence(options.form, own.rows, t, free, low, high)
            columns[criterion][b, k] = -2 * value
    elif criterion != "cv":
        floor = EXACT * problem.table.total[:, None] + np.finfo(float).tiny
        rss = np.maximum(found.rss, floor)
        sizes = np.log([each.scaling.y_size for each in prepared])
        sizes = sizes.reshape(len(n_rows), -1).mean(axis=1)
        shift = deviance_shift(criterion, 2 * sizes, n_rows)
        of_rss = criterion_value(criterion, rss, counts, n_rows[:, None])
        columns[criterion] = shift[:, None] + of_rss
    return columns


def cross_validate(prepared, options, found, folds):
    """Return the mean squared error of rows held out, by the number of breakpoints."""
    most, size = found.rss.shape[1] - 1, prepared.scaling.y_size
    training = [prepared.select(~held_out) for held_out in folds]
    path = search(problem_of(training, options), most)
    errors = np.full((len(folds), most + 1), np.inf)
    known = prepared.scaling.x(options.known)
    for f, (train, held_out) in enumerate(zip(training, folds, strict=True)):
        test = prepared.select(held_out).rows
        for k in np.flatnonzero(np.isfinite(path.rss[f])):
            t = np.sort(np.concatenate([known, path.knots[k][f]]))
            fit = least_squares.solve_design(options.form, train.rows, t)
            columns = least_squares.design(options.form, test.x, test.linear, t)
            errors[f, k] = np.average(
                (test.y - columns @ fit.coef) ** 2, weights=test.weight
            )
    with np.errstate(invalid="ignore"):
        spread = errors.std(axis=0, ddof=1) / np.sqrt(len(folds))
    square = extremes.scaled_back(size, size)
    return {
        "cv": errors.mean(axis=0)[None] * square,
        "cv_std_error": spread[None] * square,
    }


def log_evidence(form, rows, t, free, low, high):
    """Return the log evidence of a fit, less the log evidence of the mean."""
    rows = type(rows)(*(a[None] for a in rows[:4]))
    t, found = least_squares.fit_rows(form, rows, t[None], free)
    n, p = float(rows.weight.sum()), float(found.rank[0]) - 1
    mean = np.sum(rows.weight * rows.y) / n
    total = float(np.sum(rows.weight * (rows.y - mean) ** 2))
    if total == 0:
        return 0.0  # the mean of a constant target leaves nothing to explain
    tiny = np.finfo(float).tiny
    rss = float(np.clip(found.rss[0], 1e-25 * total + tiny, total + tiny))
    if p <= 0 or n - 1 <= p:
        g = 0.0
    else:
        g = max((total - rss) / p / rss * (n - 1 - p) - 1, 0)
    value = (n - 1 - p) / 2 * np.log1p(g) - (n - 1) / 2 * np.log1p(g * rss / total)
    n_free = int(np.sum(free))
    at = least_squares.moving(form, free)
    if len(at):
        columns = least_squares.jacobian(form, rows.x, rows.linear, t, free, found.coef)
        space = least_squares.coefficient_space(form, t.shape[1], columns.shape[-1])
        (half,), _ = least_squares.inverse_root(columns, rows.weight, space)
        inverse = (half @ half.T)[-len(at) :, -len(at) :]
        log_det = np.linalg.slogdet(inverse)[1]
        precision = (n - 1) * g / (total + g * rss) + tiny
        width = (len(at) * np.log(2 * np.pi / precision) + log_det) / 2
        volume = len(at) * np.log(high - low) - gammaln(len(at) + 1)
        return float(value + min(width - volume, 0))
    places = np.count_nonzero((rows.x[0, 1:] > low) & (rows.x[0, :-1] < high))
    places = max(places, n_free)
    return float(
        value - gammaln(places + 1) + gammaln(n_free + 1) + gammaln(places - n_free + 1)
    )


def chosen_numbers(columns, criterion, possible, n_rows):
    """Return the numbers that are chosen, (B,)."""
    if criterion == "cv":
        error = np.where(possible & ~np.isnan(columns["cv"]), columns["cv"], np.inf)
        best = np.argmin(error, axis=1)[:, None]
        enough = take(error, best) + take(columns["cv_std_error"], best)
        return np.argmax(error <= enough, axis=1)
    total = columns[criterion] + columns.get("search_penalty", 0)
    total = np.where(possible, total, np.inf)
    if criterion == "gcv":
        total = n_rows[:, None] * np.log(total)
    return np.argmin(total, axis=1)
