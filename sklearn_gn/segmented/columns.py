r"""Several columns of y whose lines break at the same places.

Each column has coefficients and noise of its own. Under normal noise the likelihood of
common breakpoints t is, but for constants, :math:`-n/2 \sum_j \log R_j(t)`, where R_j
is the sum of squares of column j. The engine minimises the sum of the R_j over given
variances, as for several targets of one series; the variances follow from its lines,
and by turns the likelihood rises to a maximum.

Only the kinks couple the columns. Without its coefficients, column j says of them
:math:`b_j b_j^\top \circ G / \sigma_j^2`, with its changes of slope b_j, and with the
products G of the steps at the kinks, less their projections on the lines. These add up
to the inverse covariance of the kinks, and the coefficients' follows.
"""

from copy import copy

import numpy as np

from sklearn_gn.data.row_checks import RowChecks
from sklearn_gn.linalg import factors
from sklearn_gn.segmented import inference, least_squares
from sklearn_gn.segmented.diagnosis import is_correlated, warn_of_number
from sklearn_gn.segmented.families import Family
from sklearn_gn.segmented.fitted import Feature, set_attributes
from sklearn_gn.segmented.least_squares import Covariance
from sklearn_gn.segmented.noise import NONE
from sklearn_gn.segmented.preparation import (
    problem_of,
    refuse,
    refuse_parts,
    stack,
    warn_of_room,
    with_known,
)
from sklearn_gn.segmented.problem import EXACT, sum_of_squares
from sklearn_gn.segmented.search import refine
from sklearn_gn.segmented.selection import find_breakpoints


def fit_columns(model, prepared, options, kind, y_std):
    """Fit several columns of y with common breakpoints."""
    text = (
        "{} cannot be combined with several columns of y: fit the columns one by one, "
        "or use MultiOutputRegressor of sklearn.multioutput."
    )
    if y_std is not None:
        raise ValueError(text.format("y_std"))
    refuse_parts(model, text)
    refuse(model, text, shape=None, jumps=bool(model.jumps))
    problem, fits, interval, path = _fits(model, prepared, options)
    warn_of_room(model, prepared[0], options, kind, int(fits[0].free.sum()))
    of_columns = []
    for own, each in zip(fits, prepared, strict=True):
        one = copy(model)
        one.autocorrelation = None
        at_bounds = inference.at_bounds(own, problem, interval)
        feature = Feature(own, each.rows, each.rows, interval, at_bounds, path)
        of_all = NONE, own.noise_std, inference.statistics(own), [feature]
        set_attributes(one, [kind], Family("gaussian"), *of_all)
        one._row_checks = RowChecks(len(each.rows.y))
        of_columns.append(one)
    state = vars(of_columns[0]) | {"autocorrelation": model.autocorrelation}
    vars(model).clear()
    vars(model).update(state)
    model.estimators_ = model._parts = of_columns
    for name in ("segments_", "jumps_", "parameters_"):
        setattr(model, name, [getattr(one, name) for one in of_columns])
    for name in ("noise_std_", "residual_correlation_"):
        setattr(model, name, np.array([getattr(one, name) for one in of_columns]))
    each, q = [one.statistics_ for one in of_columns], len(of_columns)
    n_free = int(fits[0].free.sum())
    n_parameters = q * (each[0]["n_parameters"] - n_free) + n_free
    deviance = sum(own["aic"] - 2 * own["n_parameters"] for own in each)
    model.statistics_ = {
        "n_rows": each[0]["n_rows"],
        "n_parameters": n_parameters,
        "degrees_of_freedom": q * each[0]["degrees_of_freedom"],
        "r2": float(np.mean([own["r2"] for own in each])),
        "aic": deviance + 2 * n_parameters,
        "bic": deviance + np.log(q * each[0]["n_rows"]) * n_parameters,
    }
    if model.n_breakpoints == "auto":
        warn_of_number(max(of_columns, key=is_correlated))


def _fits(model, prepared, options):
    """Return the problem, the fits of the columns, intervals, and the path."""
    options = options._replace(autocorrelation=None)
    (rows, scaling, _), q = stack(prepared), len(prepared)
    noise = []  # variances of the columns in their units, of fits of their own
    for t, path, _ in find_breakpoints(model, prepared, options)[0]:
        noise.append(path["rss"][np.searchsorted(path["n_breakpoints"], len(t))])
    size, best, kept = np.sqrt(np.maximum(noise, EXACT)), np.inf, None
    while True:
        scaled = [
            each._replace(
                rows=each.rows._replace(y=each.rows.y / (own * np.sqrt(q))),
                scaling=each.scaling._replace(y_size=each.scaling.y_size * own),
            )
            for each, own in zip(prepared, size, strict=True)
        ]
        if kept is None:
            ((t, path, _),), _, problem = find_breakpoints(
                model, scaled, options, shared=True
            )
        else:
            problem = problem_of(scaled, options).with_shared_breakpoints()
            moved, _ = refine(problem, t[None], sum_of_squares(problem, t[None]))
            (t,) = moved
        knots, free = with_known(prepared[0], options, t)
        lines = least_squares.solve_design(options.form, rows, np.tile(knots, (q, 1)))
        noise = np.maximum(lines.rss / rows.weight[0].sum(), EXACT)
        value = np.sum(np.log(noise))
        if not value < best - q * EXACT:
            break
        best, kept, size = value, (knots, free, problem, lines, size), np.sqrt(noise)
    return kept[2], *_read(options.form, rows, scaling, *kept), path


def _read(form, rows, scaling, t, free, problem, lines, size):
    """Return the fits of the columns, and the intervals of the breakpoints."""
    q, moving = len(size), least_squares.moving(form, free)
    fit = inference.infer(
        form, np.tile(t, (q, 1)), free, rows, scaling, Covariance(), rows.weight, lines
    )
    x, weight, n_rows = rows.x[0], rows.weight[0], fit.n_rows[0]
    columns = least_squares.design(form, x, rows.linear[0], t)
    space = least_squares.coefficient_space(form, len(t), columns.shape[1])
    half, rank = least_squares.inverse_root(columns, weight, space)
    steps = (x[:, None] >= t[moving]).astype(float)
    cross = (columns @ half).T @ (weight[:, None] * steps)
    products = steps.T @ (weight[:, None] * steps) - cross.T @ cross
    changes = lines.coef[:, least_squares.ramp_columns(form, len(t))][:, moving]
    freedom = n_rows - rank - free.sum() / q  # the breakpoints belong to all columns
    freedom = freedom if freedom > 0 else np.nan
    variance = np.maximum(lines.rss, np.finfo(float).tiny) / freedom
    information = (changes.T / variance) @ changes * products
    unit = np.sqrt(np.diagonal(information))
    unit = np.where(unit > 0, unit, 1)
    scaled = information / unit / unit[:, None] + EXACT * np.eye(len(unit))
    of_kinks = factors.solve_general(scaled, np.diag(1 / unit)) / unit[:, None]
    follows = half @ cross * changes[:, None]  # derivatives of coefficients by kinks
    beside = follows @ of_kinks
    own = variance[:, None, None] * (half @ half.T) + beside @ follows.swapaxes(1, 2)
    below = beside.swapaxes(1, 2), np.broadcast_to(of_kinks, (q, *of_kinks.shape))
    fit = fit._replace(
        covariance=np.block([[own, beside], [*below]]),
        degrees_of_freedom=np.full(q, freedom),
        variance=variance,
        n_parameters=np.full(q, rank + free.sum()),
    )
    # The profile is that of all columns, in units of their noise at the last search.
    one = fit.of([0])._replace(
        degrees_of_freedom=np.array([q * freedom]),
        variance=np.array([n_rows / freedom]),
        n_rows=np.array([q * n_rows]),
        total=np.array([np.sum(fit.total / size**2)]),
    )
    curvature = np.diagonal(of_kinks)[None] * freedom / n_rows
    interval = inference.breakpoint_intervals(one, problem, curvature)[0]
    return [fit.of(j) for j in range(q)], interval
