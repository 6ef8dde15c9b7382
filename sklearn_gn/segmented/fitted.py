r"""From data and breakpoints to the fitted attributes of every kind of fit.

Several columns of y break at the same places, with coefficients and noise of their own.
Under normal noise the likelihood of common breakpoints t is, but for constants,
:math:`-n/2 \sum_j \log R_j(t)`, where R_j is the sum of squares of column j. The engine
minimises the sum of the R_j over given variances, as for several targets of one series;
the variances follow from its lines, and by turns the likelihood rises to a maximum. The
covariance is that of the linear model of all columns, which the kinks alone couple.

A joint fit (:mod:`sklearn_gn.segmented.joint`) is read off as one fit of each broken
feature, in which the columns and the derivatives of the other broken features are
linear features. In a step all of these move, so that each such fit has the parameters
and the covariance of the whole.
"""

from copy import copy
from numbers import Integral

import numpy as np
from scipy.linalg import block_diag

from sklearn_gn._caller import warn_user
from sklearn_gn.bayes.huber import BOUND
from sklearn_gn.data import dates
from sklearn_gn.data.row_checks import RowChecks, with_tails
from sklearn_gn.linalg import factors
from sklearn_gn.optim.stop import counted
from sklearn_gn.segmented import inference, joint, least_squares, preparation
from sklearn_gn.segmented.diagnosis import is_correlated, warn_of_number
from sklearn_gn.segmented.joint import Family, linearised
from sklearn_gn.segmented.least_squares import Covariance, LinearFit, Rows
from sklearn_gn.segmented.noise import noise_of, outlying_rows, rows_for_errors
from sklearn_gn.segmented.preparation import problem_of, refuse, stack, with_known
from sklearn_gn.segmented.problem import EXACT, Scaling, sum_of_squares
from sklearn_gn.segmented.search import refine, residuals_in_order
from sklearn_gn.segmented.selection import find_breakpoints

OF_ROWS = "_kept", "_stream", "_noise_rows"  # which a saved model leaves behind
_OF_FIT = "_fit", "_fits", "_noise_of_fit", "_noise_scale", "_parts", "_row_checks"
_OF_FEATURES = "n_features_in_", "feature_names_in_"


def is_of_fit(name):
    """Return whether an attribute changes with the rows of a fit."""
    is_public = name.endswith("_") and not name.startswith("_")
    return name in _OF_FIT + OF_ROWS or (is_public and name not in _OF_FEATURES)


def set_attributes(model, kinds, family, noise, noise_std, figures, features):
    """Set the attributes from the figures of the whole and those of each feature.

    These are a fit, its rows by number, intervals, the problem with the bounds, and the
    path over the numbers of breakpoints.
    """
    for name in filter(is_of_fit, [*vars(model)]):
        delattr(model, name)
    fits = [fit for fit, *_ in features]
    unknown = family.has_known_variance or fits[0].is_noise_unknown
    model._fits, model._family, model._date_kinds = fits, family, kinds
    model._covariance = Covariance(model.covariance, model.hac_lags)
    model._noise_of_fit, model.autocorrelation_ = noise, noise.coef
    model.residual_correlation_ = noise.correlation
    names = [f"x{j}" for j in range(model.n_features_in_)]
    names = [str(name) for name in getattr(model, "feature_names_in_", names)]
    broken = [names[j] for j in model._columns]
    linear = [name for j, name in enumerate(names) if j not in model._columns]
    model.parameters_ = inference.parameter_table(fits, broken, linear)
    model.noise_std_ = float("nan" if unknown else noise_std)
    model.statistics_ = {name: float(value) for name, value in figures.items()}
    model._parts, model._is_listed, parts = [], False, []
    for f, (fit, rows, interval, problem, path) in enumerate(features):
        to_user = np.asarray if kinds[f] is None else dates.from_days
        segments = inference.segment_table(fit, rows)
        for name in ("start", "end"):
            segments[name] = to_user(segments[name])
        own = {
            "breakpoints_": to_user(fit.breakpoints),
            "breakpoint_std_": inference.breakpoint_errors(fit),
            "breakpoint_interval_": to_user(interval),
            "segments_": segments,
            "jumps_": segments["jump"][1:],
            "selection_path_": path,
        }
        part = copy(model)
        vars(part).update(own, _fit=fit, _feature=f, _name=broken[f])
        part._date_kind = kinds[f]
        part._held_by_bounds, part._cut_by_bounds = inference.at_bounds(
            fit, problem, interval
        )
        parts.append(part)
    vars(model).update(vars(parts[0]))
    if isinstance(model.broken_features, list):
        model._is_listed, model._parts = True, parts
        for name in own:
            setattr(model, name, [getattr(part, name) for part in parts])


def set_fit(model, prepared, options, path, t, clipped, problem, noises=None):
    """Set the attributes of a fit of one feature; return the scale of the residuals."""
    t, free = with_known(prepared, options, t)
    noise_kind = Covariance(model.covariance, model.hac_lags)
    given = [prepared], [clipped], problem, noise_kind, noises
    fits, figures, scale, interval, (noise,) = infer_all(options, t[None], free, *given)
    figures = {name: value[0] for name, value in figures.items()}
    features = [(fits.of(0), prepared.rows, interval[0], problem, path)]
    of_all = noise, scale[0], figures, features
    set_attributes(model, [options.kind], Family("gaussian"), *of_all)
    of_sums = prepared.rows.rest > 0 or prepared.has_precisions
    if not of_sums and clipped is prepared:
        model._noise_rows = prepared.rows
    return float(scale[0])


def judge_rows(model, X, y, prepared, options, scale):
    """Set what the rows of a fit of one feature say of it, and warn of them."""
    model._kept = prepared, options
    rows, order, fit = prepared.rows, prepared.order, model._fit
    size, center = fit.scaling.y_size, fit.scaling.y_center
    columns = least_squares.design(fit.form, rows.x, rows.linear, fit.t)
    of_fit = rows.y * size + center, size * (rows.y - columns @ fit.coef)
    values, left = (np.reshape(a, (-1, 1)) for a in of_fit)
    checks = RowChecks(len(rows.y))
    model._row_checks = with_tails(checks, values, left, rows.weight, order)
    if model.loss == "huber":
        size = np.abs(np.ravel(y).astype(np.float64) - model.predict(X))
        size = np.maximum(size, np.finfo(float).tiny)
        model.robust_weights_ = np.minimum(1, BOUND * scale / size)
    if model.n_breakpoints == "auto":
        few = 1 + (model.min_rows or preparation.FEWEST_ROWS)
        outlying = outlying_rows(fit, prepared, options, few)
        warn_of_number(model, order[outlying])


def infer_all(options, t, free, prepared, clipped, problem, kind, noises=None):
    """Return fits of several series, statistics, scales, intervals, noises.

    A scale clips the residuals of the series ``clipped``, or is that of the noise.
    Noises are given for updates, whose intervals are those of the delta method.
    """
    form, is_huber = options.form, clipped[0] is not prepared[0]
    if prepared[0].variance is not None:
        kind = kind._replace(variance=np.array([each.variance for each in prepared]))
    rows, scaling, repeats = stack(clipped)
    given = scaling, kind, repeats
    fit, curvature = inference.infer(form, t, free, rows, *given)
    figures, scales, is_update = inference.statistics(fit), fit.noise_std, bool(noises)
    if not is_update:
        of_all = problem._replace(form=form, known=fit.t)
        residual = residuals_in_order(of_all, fit.t[:, :0])[..., 0]
        residual *= ~(rows.rest > 0)[:, None]  # sums alone do not tell
        asked = np.where(fit.rss <= EXACT * fit.total, None, options.autocorrelation)
        each = zip(residual, problem.table.n_rows, asked, fit.n_parameters, strict=True)
        noises = [noise_of(own[:n], order, number) for own, n, order, number in each]
    if is_huber:
        each = zip(prepared, clipped, fit.t, fit.n_parameters, strict=True)
        pairs = [rows_for_errors(form, *own) for own in each]
        scales = scaling.y_size * np.array([scale for _, scale in pairs])
        fit_rows = stack([each for each, _ in pairs])[0]
        fit, _ = inference.infer(form, fit.t, free, fit_rows, *given)
    redundancy = np.array([each.redundancy for each in noises])
    if kind.kind == "nonrobust" and redundancy.max() > 1:
        fit = fit.with_redundant_rows(redundancy)
        curvature *= redundancy[:, None]
        figures["degrees_of_freedom"] = inference.statistics(fit)["degrees_of_freedom"]
        scales = scales if is_huber else fit.noise_std
    if is_update:
        return fit, figures, scales, inference.delta_intervals(fit), noises
    intervals = inference.breakpoint_intervals(fit, problem, curvature)
    return fit, figures, scales, intervals, noises


# --- several columns of y -------------------------------------------------------------


def fit_columns(model, prepared, options, y_std):
    """Fit several columns of y with common breakpoints."""
    text = (
        "{} cannot be combined with several columns of y: fit the columns one by one, "
        "or use MultiOutputRegressor of sklearn.multioutput."
    )
    if y_std is not None:
        raise ValueError(text.format("y_std"))
    preparation.refuse_parts(model, text)
    refuse(model, text, jumps=bool(model.jumps))
    problem, fits, interval, path = _fits(model, prepared, options)
    preparation.warn_of_room(model, prepared[0], options, int(fits[0].free.sum()))
    of_columns = []
    for own, each in zip(fits, prepared, strict=True):
        one = copy(model)
        one.autocorrelation = None
        of_one = problem_of([each], options, False)._replace(known=own.t[None])
        residual = residuals_in_order(of_one, own.t[None, :0])[0, :, 0]
        feature = own, each.rows, interval, problem, path
        noise = noise_of(residual, None, own.n_parameters)
        of_all = noise, own.noise_std, inference.statistics(own), [feature]
        set_attributes(one, [options.kind], Family("gaussian"), *of_all)
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
    return kept[2], *_read_columns(options.form, rows, scaling, *kept), path


def _read_columns(form, rows, scaling, t, free, problem, lines, size):
    """Return the fits of the columns, and the intervals of the breakpoints."""
    q, k, kind = len(size), len(least_squares.moving(form, free)), Covariance()
    t = np.tile(t, (q, 1))
    fit, _ = inference.infer(form, t, free, rows, scaling, kind, rows.weight, lines)
    columns = least_squares.jacobian(form, rows.x, rows.linear, t, free, fit.coef)
    p, n_rows, rank = fit.coef.shape[1], fit.n_rows[0], lines.rank[0]
    freedom = n_rows - rank - free.sum() / q  # the breakpoints belong to all columns
    freedom = freedom if freedom > 0 else np.nan
    variance = np.maximum(lines.rss, np.finfo(float).tiny) / freedom
    # The linear model of all columns, by their triangles: coefficients, then kinks.
    triangle = factors.upper_factor(np.sqrt(rows.weight)[..., None] * columns)
    triangle = triangle / np.sqrt(np.nan_to_num(variance, nan=1.0))[:, None, None]
    every = [block_diag(*triangle[..., :p]), np.vstack(triangle[..., p:])]
    own = least_squares.coefficient_space(form, t.shape[1], p)
    space = block_diag(*[np.eye(p) if own is None else own] * q, np.eye(k))
    every, one = np.hstack(every), np.ones(triangle[..., 0].size)
    half, _ = least_squares.inverse_root(every, one, space)
    of_kinks = half[q * p :]
    half = [np.vstack([own, of_kinks]) for own in half[: q * p].reshape(q, p, -1)]
    fit = fit._replace(
        covariance=np.stack([own @ own.T for own in half]) + 0 * freedom,
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
    curvature = np.sum(of_kinks**2, axis=1)[None] * freedom / n_rows
    interval = inference.breakpoint_intervals(one, problem, curvature)[0]
    return [fit.of(j) for j in range(q)], interval


# --- several features, families, and conditions ---------------------------------------


def fit_joint(model, data, offset, has_y_std):
    """Fit several broken features, counts, or a line with conditions."""
    numbers, family = _numbers_of(model, len(data.kinds)), Family(model.family)
    if has_y_std and model.family != "gaussian":
        raise ValueError(
            f"y_std cannot be combined with family={model.family!r}, whose mean gives "
            "the variance."
        )
    whole, scalings = _joint_of(model, data, offset, family, numbers[0])
    n = len(whole.y)
    limited = [k and min(k, n) for k in numbers]
    most, criterion = min(model.max_breakpoints, n), str(model.criterion)
    state, paths = joint.find(whole, limited, most, criterion)
    known = np.ones(1) if family.has_known_variance else None
    if data.variance is not None:
        known = np.array([data.variance / float(scalings[0].y_size) ** 2])
    noise_kind = Covariance(model.covariance, model.hac_lags, known)
    fits, noise, figures = _read_features(whole, state, scalings, noise_kind)
    features = [
        (*own, problem, path)
        for own, problem, path in zip(fits, whole.limits, paths, strict=True)
    ]
    of_all = noise, fits[0][0].noise_std, figures, features
    set_attributes(model, data.kinds, family, *of_all)
    model._row_checks = RowChecks(len(data.y))
    for view, number in zip(model._views(), numbers, strict=True):
        found = int(view._fit.free.sum())
        if number is not None and found < number:
            warn_user(
                f"The fit has {counted(found, 'breakpoint')} in {view._name}, not "
                f"{number}: the data have no room for more."
            )
    if not model._is_listed and model.n_breakpoints == "auto":
        warn_of_number(model)


def _numbers_of(model, n_features):
    """Return the number of breakpoints of each feature, None to be chosen; check all.

    A ValueError names parameters that the joint fit does not take.
    """
    text = "{} cannot be combined with several broken features, a family of counts, "
    text += "slopes and through: "
    refuse(model, text + "fit without.", loss="squared_error", jumps=bool(model.jumps))
    if isinstance(model.broken_features, list):
        refuse(
            model,
            "{} is for one broken feature: give its name or number as "
            "broken_features, not a list.",
            **dict.fromkeys(("breakpoints", "bounds", "slopes", "through")),
            min_distance=0.0,
        )
    given = model.n_breakpoints
    if isinstance(given, (str, Integral)):
        given = [given] * n_features
    if len(given) != n_features:
        raise ValueError(
            f"n_breakpoints={model.n_breakpoints!r} must be one number, or one for "
            f"each of the {n_features} broken features."
        )
    for n in given:
        if n != "auto" and (not isinstance(n, Integral) or n is True or n < 0):
            raise ValueError(
                f'n_breakpoints={model.n_breakpoints!r}: each must be "auto" or a '
                "number from 0 on."
            )
    if "auto" in given and model.criterion not in ("bic", "aic"):
        refuse(model, text + 'give "bic" or "aic".', criterion="bic")
    if model.slopes is not None or model.through is not None:
        if model.jumps or model.degree == 0:
            raise ValueError(
                "slopes and through are for kinks: set jumps=False and degree=1."
            )
        if model.through is not None and model.family != "gaussian":
            raise ValueError(
                f"through cannot be combined with family={model.family!r}."
            )
    return [None if n == "auto" else int(n) for n in given]


def _joint_of(model, data, offset, family, number):
    """Return the joint problem in the units of the search, and the scalings."""
    repeats, is_known = data.repeats, family.has_known_variance
    if family.name == "binomial":  # weights are trials, which make one row
        repeats = np.ones(len(repeats))
    family.check(data.y[data.weight > 0])
    y = data.y if is_known else data.y - offset
    first = preparation.prepare(data.x[:, 0], y, data.linear, data.weight, repeats)
    rows, scaling, x = first.rows, first.scaling, data.x[first.order]
    y, offset = rows.y, offset[first.order] * is_known
    if is_known:
        y = data.y[first.order]
        scaling = scaling._replace(y_center=np.float64(0), y_size=np.float64(1))
    scalings = []
    for low, high in zip(x.min(axis=0), x.max(axis=0), strict=True):
        center, size = (low + high) / 2, np.float64((high - low) / 2 or 1.0)
        scalings.append(scaling._replace(center=center, size=size))
    own, options = scalings[0], preparation.options_of(model, data.kinds[0])
    preparation.check_inside(first._replace(scaling=own), options)
    form, least = options.form, options.min_rows
    least = least or preparation.fewest_rows(form, first.repeats.sum())
    options = options._replace(
        known=own.x(options.known),
        bounds=tuple(own.x(np.array(options.bounds))),
        min_distance=options.min_distance / float(own.size),
        min_rows=float(least),
        autocorrelation=None if len(scalings) > 1 else options.autocorrelation,
    )
    slopes, points = [], []
    if model.slopes is not None:
        if number is None and not isinstance(model.slopes, tuple):
            raise ValueError(
                f"slopes={model.slopes!r} has an entry for each segment: give "
                "n_breakpoints as a number."
            )
        n_segments = 1 + (model.max_breakpoints if number is None else number)
        given = preparation.parse_slopes(model.slopes, n_segments + len(options.known))
        unit = float(own.size / scaling.y_size)
        slopes = [(*each, value * unit, equal) for *each, value, equal in given]
    if model.through is not None:
        if data.linear.shape[1]:
            raise ValueError("through needs X with one feature, which breaks.")
        for position, target in preparation.parse_points(model.through):
            at = float(own.x(np.array([position]))[0])
            value = float((target - scaling.y_center) / scaling.y_size)
            points.append((at, value, f"through=({position:g}, {target:g})"))
    x = [
        np.clip(own.x(column), -1, 1) for column, own in zip(x.T, scalings, strict=True)
    ]
    none = np.empty((len(y), 0))
    limits = [preparation.prepare(column, y, none, first.repeats) for column in x]
    limits = [problem_of([each], options, False) for each in limits]
    of_rows = x, rows.linear, y, offset, rows.weight, first.repeats
    return joint.Joint(*of_rows, family, slopes, points, options, limits), scalings


def _read_features(whole, state, scalings, kind):
    """Return fits, rows and intervals of single features, the noise, and figures."""
    form, t, (z, w) = whole.options.form, state.t, whole.working(state.eta)
    _, where = linearised(whole, t, state.coef)
    n, n_kinks = len(state.coef), len(where.kinks)
    coef = np.pad(state.coef, (0, n_kinks))
    space = joint.free_space(whole, state, n + n_kinks)
    linear, moving = np.arange(n - whole.linear.shape[1], n), where.feature[where.kinks]
    # Units of all parameters: of lines, changes, linear features, and kinks.
    center, size = np.zeros(n + n_kinks), np.ones(n + n_kinks)
    center[linear], size[linear] = scalings[0].linear_center, scalings[0].linear_size
    for columns, one in zip(where.columns, scalings, strict=True):
        lines, changes = np.split(columns, [form.slope])
        center[lines], size[lines] = one.center, one.size
        size[changes] = one.size if form.ramp else 1.0
    fits, series, curvatures = [], [], []
    for f, (columns, at) in enumerate(zip(where.columns, t, strict=True)):
        others = [each for g, each in enumerate(where.columns) if g != f]
        beside = np.concatenate([*others, linear, n + np.flatnonzero(moving != f)])
        order = np.concatenate([[0], columns, beside])
        scaling = scalings[f]._replace(
            linear_center=center[beside], linear_size=size[beside]
        )
        extra = [where.tangents[:, moving != f]]
        prepared = joint.prepared_for(whole, f, t, z, w, extra)
        rows = Rows(*(a[None] for a in prepared.rows[:4]), np.zeros(1))
        design = least_squares.design(form, rows.x, rows.linear, at[None])
        residual = rows.y - design @ coef[order]
        rss, free = rows.weight @ residual[0] ** 2, where.free[where.feature == f]
        fit, curvature = inference.infer(
            form,
            at[None],
            free,
            rows,
            Scaling(*(np.asarray(a)[None] for a in scaling)),
            kind,
            prepared.repeats[None],
            LinearFit(coef[None, order], residual, rss, space, n),
            space[np.append(order, n + np.flatnonzero(moving == f))],
        )
        jumps = where.free.sum() - n_kinks - form.step * free.sum()  # of the others
        fits.append(fit._replace(n_parameters=fit.n_parameters + jumps))
        series.append(prepared)
        curvatures.append(curvature)
    first = np.flatnonzero(np.diff(whole.x[0], prepend=-np.inf) > 0)
    in_order = np.add.reduceat(np.sqrt(w) * (z - state.eta), first)
    asked = whole.options.autocorrelation
    asked = None if whole.family.has_known_variance else asked
    noise = noise_of(in_order, asked, int(fits[0].n_parameters[0]))
    figures = _figures(whole, state, fits[0].of(0))
    redundancy = noise.redundancy if kind.kind == "nonrobust" else 1.0
    if redundancy > 1:  # rows of correlated noise count less
        fits = [fit.with_redundant_rows(np.array([redundancy])) for fit in fits]
        freedom = inference.statistics(fits[0])["degrees_of_freedom"][0]
        figures["degrees_of_freedom"] = freedom
    features = []
    for fit, prepared, curvature in zip(fits, series, curvatures, strict=True):
        intervals = inference.delta_intervals(fit)
        if not (whole.slopes or whole.points):
            problem = problem_of([prepared], whole.options)
            # The profile adds up squares by their weights, which are no counts of rows.
            weight = prepared.rows.weight.sum(keepdims=True) / redundancy
            given = fit._replace(n_rows=weight), problem, curvature * redundancy
            intervals = inference.breakpoint_intervals(*given)
        counted = prepared.rows._replace(weight=prepared.repeats)
        features.append((fit.of(0), counted, intervals[0]))
    return features, noise, figures


def split(model, X):
    """Return the feature that breaks of new rows, (n,), and what is linear beside."""
    if hasattr(model, "estimators_"):
        raise ValueError("Draw the columns of y one by one, by estimators_[j].")
    X = preparation.read_more(model, X)
    x, linear = X[:, model._columns], np.delete(X, model._columns, axis=1)
    blocks_of, kinks = [], []
    for g, fit in enumerate(model._fits):
        if g == model._feature:
            continue
        own, at = x[:, g], fit.breakpoints
        blocks_of.append(joint.block(fit.form, own, at))
        change = fit.coef[fit.ramps[fit.kinks]]
        kinks.append(-change * (own[:, None] >= at[fit.kinks]))
    return x[:, model._feature], np.hstack([*blocks_of, linear, *kinks])


def _figures(whole, state, fit):
    if not whole.family.has_known_variance:
        return inference.statistics(fit)
    family, weight, n_rows = whole.family, whole.weight, float(whole.repeats.sum())
    p, none = int(fit.n_parameters), whole.linear[:, :0]
    null = whole._replace(x=[], linear=none, slopes=[], points=[], limits=[])
    null = joint.without_breakpoints(null).deviance
    deviance = state.deviance - 2 * family.saturated(whole.y, weight)
    return {
        "n_rows": n_rows,
        "n_parameters": p,
        "degrees_of_freedom": max(n_rows - p, 0.0),
        "deviance": state.deviance,
        "null_deviance": null,
        "d2": 1 - state.deviance / null if null > 0 else 1.0,
        "dispersion": float(fit.rss) / max(len(whole.y) - p, 1),
        "aic": deviance + 2 * p,
        "bic": deviance + np.log(n_rows) * p,
    }
