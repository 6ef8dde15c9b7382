"""How many breakpoints: information criteria, and cross-validation.

The criteria take the noise to be the same everywhere, and a first or last segment may
then follow the noise of a few rows, which predictions near that end and beyond extend.
Where the number is free, such a segment therefore has to explain two thirds of the sum
of squares that is left without it.
"""

from functools import partial

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.arrays import extremes
from sklearn_gn.bayes.line_ends import SHORT_END, has_short_end, long_ends
from sklearn_gn.segmented import autoregression, least_squares
from sklearn_gn.segmented.evidence import evidence_path
from sklearn_gn.segmented.preparation import limits_ends, problem_of
from sklearn_gn.segmented.search import (
    EXACT,
    converge,
    refine_jumps,
    search,
    settle,
    through_rows,
)
from sklearn_gn.shallow_relu.search import criterion_value, deviance_shift

CRITERIA = ("bic", "aic", "gcv", "evidence", "bic-ar1")
_OF_THE_FITS = ("evidence", "bic-ar1", "cv")  # not of the sums of squares alone
_MORE = 2  # breakpoints that the search goes beyond a given number


def n_parameters(problem, n_breakpoints):
    """Return the number of parameters with so many breakpoints besides known ones."""
    form, n_linear = problem.form, problem.table.gram.shape[1] - 1
    known = problem.known.shape[1] * (form.ramp + form.step)
    some_slope = form.slope or known or (form.ramp and n_breakpoints)
    base = 1 + form.slope + n_linear + known - bool(form.flat_end and some_slope)
    return base + n_breakpoints * form.parameters_per_breakpoint


def values(problem, criterion, n_rows, rss, n_breakpoints, series=slice(None)):
    """Return the criterion of sums of squares with a number of breakpoints."""
    number = n_parameters(problem, n_breakpoints)
    rss = np.maximum(rss, np.finfo(float).tiny)
    return criterion_value(criterion, rss, number, n_rows[series])


def log_values(*words):
    """Return the criterion in units of minus twice the logarithm of a likelihood."""
    found, (_, criterion, n_rows, *_), series = values(*words), words, words[-1]
    return n_rows[series] * np.log(found) if criterion == "gcv" else found


def choose(prepared, options, *, n_breakpoints, most, criterion, folds=None):
    """Search the breakpoints of several series.

    Parameters
    ----------
    prepared : list of Prepared
    options : Options
    n_breakpoints : int or None
        If None, the criterion chooses the number.
    most : int
        Largest number that is tried.
    criterion : {"bic", "aic", "gcv", "evidence", "bic-ar1", "cv"}
    folds : list of ndarray of bool, default=None
        Rows that are held out, for "cv" and one series.

    Returns
    -------
    list of (t, path)
        Breakpoints in the units of the search, and the path as a dict of arrays.
    """
    words = {"n_breakpoints": n_breakpoints, "most": most, "criterion": criterion}
    answers = _choose(prepared, options, folds=folds, **words)
    ends = ends_to_keep(prepared, options, n_breakpoints)
    if ends is None:
        return answers
    again = [
        b
        for b, ((t, _), own) in enumerate(zip(answers, ends, strict=True))
        if has_short_end(t, own)
    ]
    if again and switches.on("segmented.short_ends"):
        series = [prepared[b] for b in again]
        others = _choose(series, options, folds=folds, ends=ends[again], **words)
        for b, other in zip(again, others, strict=True):
            if _rss(*other) < SHORT_END * _rss(*answers[b]):
                answers[b] = other
    return answers


def ends_to_keep(prepared, options, n_breakpoints):
    """Return between which positions no series has a short first or last segment.

    An array of shape (n_series, 2), or None if such segments need not be worth it.
    """
    if n_breakpoints is not None or not limits_ends(options):
        return None
    return np.array([long_ends(each.rows.x, each.rows.weight) for each in prepared])


def _rss(t, path):
    """Return the sum of squares of an answer."""
    return path["rss"][path["n_breakpoints"] == len(t)][0]


def _choose(
    prepared, options, *, n_breakpoints, most, criterion, folds=None, ends=None
):
    """Search the breakpoints, between ``ends`` of shape (n_series, 2) if given."""
    problem = problem_of(prepared, options, ends)
    n_rows = np.array([each.rows.weight.sum() for each in prepared])
    if n_breakpoints is None:
        name = "bic" if criterion in _OF_THE_FITS else criterion
        value = partial(log_values, problem, name, n_rows)
        found = search(problem, most, None if criterion == "cv" else value)
    else:
        found = search(problem, n_breakpoints + (_MORE if n_breakpoints else 0))
    chosen, criteria = np.empty(len(prepared), int), {}
    sizes = np.log([each.scaling.y_size for each in prepared])
    shift = deviance_shift(criterion, 2 * sizes, n_rows)
    columns = _path_columns(problem, found, criterion, n_rows, shift)
    if criterion == "evidence":
        criteria["evidence"] = evidence_path(prepared, options, found)
    if criterion == "bic-ar1":
        criteria["bic-ar1"] = autoregression.criterion_path(
            prepared, options, found, columns["n_parameters"]
        )
    if n_breakpoints is None and criterion == "cv":
        criteria["cv"], criteria["cv_std_error"] = (
            a[None] for a in cross_validate(prepared[0], options, found, folds, ends)
        )
    for b in range(len(prepared)):
        path = _path_of({**columns, **criteria}, b)
        if n_breakpoints is None:
            chosen[b] = path["n_breakpoints"][_best(path, criterion)]
        else:
            kept = path["n_breakpoints"] <= n_breakpoints
            chosen[b] = path["n_breakpoints"][kept][-1]
    answers = _converged(problem, found, chosen)
    columns = _path_columns(problem, found, criterion, n_rows, shift)
    columns |= criteria
    return [(t, _path_of(columns, b)) for b, t in enumerate(answers)]


def _converged(problem, found, chosen):
    """Return the breakpoints of the numbers that are chosen, to all digits.

    All positions are tried for them; ``found`` has their sums of squares from then on.
    """
    answers = [None] * len(chosen)
    for k in np.unique(chosen):
        series = np.flatnonzero(chosen == k)
        part, knots = problem.of(series), found.knots[k][series]
        rss = found.rss[series, k]
        if not problem.form.step:
            knots, rss = settle(part, knots, rss)
        knots, rss = converge(part, knots, rss)
        knots, found.rss[series, k] = through_rows(part, knots, rss)
        for b, t, rss in zip(series, knots, found.rss[series, k], strict=True):
            answers[b] = refine_jumps(problem.of([b]), t[None], rss[None])[0][0]
    return answers


def _path_columns(problem, found, criterion, n_rows, shift):
    floor = EXACT * problem.table.gram[:, 0, 0]
    numbers = range(found.rss.shape[1])
    columns = {"rss": found.rss}
    if criterion not in _OF_THE_FITS:
        columns[criterion] = np.stack(
            [
                values(
                    problem, criterion, n_rows, np.maximum(found.rss[:, k], floor), k
                )
                for k in numbers
            ],
            axis=1,
        )
        columns[criterion] += shift[:, None]
    return {"n_parameters": [n_parameters(problem, k) for k in numbers], **columns}


def _path_of(columns, series):
    """Return the path of one series: the numbers of breakpoints that have a fit."""
    kept = np.flatnonzero(np.isfinite(columns["rss"][series]))
    path = {"n_breakpoints": kept}
    for name, column in columns.items():
        column = np.asarray(column)
        path[name] = (column if column.ndim == 1 else column[series])[kept]
    return path


def _best(path, criterion):
    if criterion != "cv":
        return int(np.argmin(path[criterion]))
    best = int(np.nanargmin(path["cv"]))
    enough = path["cv"] <= path["cv"][best] + path["cv_std_error"][best]
    return int(np.flatnonzero(enough)[0])


def cross_validate(prepared, options, found, folds, ends=None):
    """Return the mean squared error of rows held out, by the number of breakpoints.

    Breakpoints lie between ``ends``, of shape (1, 2), if given.

    Returns
    -------
    error : ndarray of shape (1 + most,)
        Infinite where a fold has no fit.
    std_error : ndarray of shape (1 + most,)
        Of the mean over the folds.
    """
    most, size = found.rss.shape[1] - 1, prepared.scaling.y_size
    training = [prepared.select(~held_out) for held_out in folds]
    ends = None if ends is None else np.tile(ends, (len(training), 1))
    path = search(problem_of(training, options, ends), most)
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
    return errors.mean(axis=0) * square, spread * square
