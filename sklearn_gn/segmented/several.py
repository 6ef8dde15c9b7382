"""From the user's data to the joint problem, and from its solution to fits.

The joint fit (:mod:`sklearn_gn.segmented.joint`) is read off as one fit of each broken
feature, in which the columns and the derivatives of the other broken features are
linear features. In a step all of these move, so that each such fit has the parameters
and the covariance of the whole.
"""

from numbers import Integral

import numpy as np

from sklearn_gn._caller import warn_user
from sklearn_gn.data.row_checks import RowChecks
from sklearn_gn.optim.stop import counted
from sklearn_gn.segmented import inference, least_squares
from sklearn_gn.segmented.diagnosis import warn_of_number
from sklearn_gn.segmented.fitted import Feature, set_attributes
from sklearn_gn.segmented.joint import (
    Family,
    Joint,
    block,
    find,
    free_space,
    linearised,
    parse_points,
    parse_slopes,
    prepared_for,
    without_breakpoints,
)
from sklearn_gn.segmented.least_squares import Covariance, LinearFit, Rows
from sklearn_gn.segmented.noise import noise_of
from sklearn_gn.segmented.preparation import (
    check_inside,
    fewest_rows,
    options_of,
    prepare,
    problem_of,
    read_more,
    refuse,
)
from sklearn_gn.segmented.problem import Scaling


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


def fit(model, data, offset, has_y_std):
    """Fit several broken features, counts, or a line with conditions."""
    numbers, family = _numbers_of(model, len(data.kinds)), Family(model.family)
    if has_y_std and model.family != "gaussian":
        raise ValueError(
            f"y_std cannot be combined with family={model.family!r}, whose mean gives "
            "the variance."
        )
    joint, scalings = _joint_of(model, data, offset, family, numbers[0])
    n = len(joint.y)
    limited = [k and min(k, n) for k in numbers]
    most, criterion = min(model.max_breakpoints, n), str(model.criterion)
    state, paths = find(joint, limited, most, criterion)
    known = np.ones(1) if family.has_known_variance else None
    if data.variance is not None:
        known = np.array([data.variance / float(scalings[0].y_size) ** 2])
    noise_kind = Covariance(model.covariance, model.hac_lags, known)
    fits, noise, figures = _read(joint, state, scalings, noise_kind)
    features = [
        Feature(*own, problem, path)
        for own, problem, path in zip(fits, joint.limits, paths, strict=True)
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


def _joint_of(model, data, offset, family, number):
    """Return the joint problem in the units of the search, and the scalings."""
    repeats, is_known = data.repeats, family.has_known_variance
    if family.name == "binomial":  # weights are trials, which make one row
        repeats = np.ones(len(repeats))
    family.check(data.y[data.weight > 0])
    y = data.y if is_known else data.y - offset
    first = prepare(data.x[:, 0], y, data.linear, data.weight, repeats)
    rows, scaling, x = first.rows, first.scaling, data.x[first.order]
    y, offset = rows.y, offset[first.order] * is_known
    if is_known:
        y = data.y[first.order]
        scaling = scaling._replace(y_center=np.float64(0), y_size=np.float64(1))
    scalings = []
    for low, high in zip(x.min(axis=0), x.max(axis=0), strict=True):
        center, size = (low + high) / 2, np.float64((high - low) / 2 or 1.0)
        scalings.append(scaling._replace(center=center, size=size))
    own, options = scalings[0], options_of(model, data.kinds[0])
    check_inside(first._replace(scaling=own), options.known, data.kinds[0])
    form, least = options.form, options.min_rows
    least = least or fewest_rows(form, first.repeats.sum())
    options = options._replace(
        form=form._replace(sign=0) if model.slopes is not None else form,
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
        for name, segments, sign, value, is_equal in parse_slopes(
            model.slopes, n_segments + len(options.known)
        ):
            value = value * float(own.size / scaling.y_size)
            slopes.append((name, segments, sign, value, is_equal))
    if model.through is not None:
        if data.linear.shape[1]:
            raise ValueError("through needs X with one feature, which breaks.")
        for position, target in parse_points(model.through):
            at = float(own.x(np.array([position]))[0])
            value = float((target - scaling.y_center) / scaling.y_size)
            points.append((at, value, f"through=({position:g}, {target:g})"))
    x = [
        np.clip(own.x(column), -1, 1) for column, own in zip(x.T, scalings, strict=True)
    ]
    none, limits = np.empty((len(y), 0)), []
    for column in x:
        prepared = prepare(column, y, none, first.repeats)
        limits.append(problem_of([prepared], options, False))
    of_rows = x, rows.linear, y, offset, rows.weight, first.repeats
    return Joint(*of_rows, family, slopes, points, options, limits), scalings


# --- the parameters of the joint fit -------------------------------------------------


def _read(joint, state, scalings, kind):
    """Return fits, rows and intervals of single features, the noise, and figures."""
    form, t, (z, w) = joint.options.form, state.t, joint.working(state.eta)
    _, where = linearised(joint, t, state.coef)
    n, n_kinks = len(state.coef), len(where.kinks)
    coef = np.pad(state.coef, (0, n_kinks))
    space = free_space(joint, state, n + n_kinks)
    linear, moving = np.arange(n - joint.linear.shape[1], n), where.feature[where.kinks]
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
        prepared = prepared_for(joint, f, t, z, w, extra)
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
    first = np.flatnonzero(np.diff(joint.x[0], prepend=-np.inf) > 0)
    in_order = np.add.reduceat(np.sqrt(w) * (z - state.eta), first)
    asked = joint.options.autocorrelation
    asked = None if joint.family.has_known_variance else asked
    noise = noise_of(in_order, asked, int(fits[0].n_parameters[0]))
    figures = _figures(joint, state, fits[0].of(0))
    redundancy = noise.redundancy if kind.kind == "nonrobust" else 1.0
    if redundancy > 1:  # rows of correlated noise count less
        fits = [fit.with_redundant_rows(np.array([redundancy])) for fit in fits]
        freedom = inference.statistics(fits[0])["degrees_of_freedom"][0]
        figures["degrees_of_freedom"] = freedom
    features = []
    for fit, prepared, curvature in zip(fits, series, curvatures, strict=True):
        intervals = inference.delta_intervals(fit)
        if not joint.has_conditions:
            problem = problem_of([prepared], joint.options)
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
    X = read_more(model, X)
    x, linear = X[:, model._columns], np.delete(X, model._columns, axis=1)
    blocks_of, kinks = [], []
    for g, fit in enumerate(model._fits):
        if g == model._feature:
            continue
        own, at = x[:, g], fit.breakpoints
        blocks_of.append(block(fit.form, own, at))
        change = fit.coef[fit.ramps[fit.kinks]]
        kinks.append(-change * (own[:, None] >= at[fit.kinks]))
    return x[:, model._feature], np.hstack([*blocks_of, linear, *kinks])


def _figures(joint, state, fit):
    """Return the figures of the whole fit."""
    if not joint.family.has_known_variance:
        return inference.statistics(fit)
    family, weight, n_rows = joint.family, joint.weight, float(joint.repeats.sum())
    p, none = int(fit.n_parameters), joint.linear[:, :0]
    null = joint._replace(x=[], linear=none, slopes=[], points=[], limits=[])
    null = without_breakpoints(null).deviance
    deviance = state.deviance - 2 * family.saturated(joint.y, weight)
    return {
        "n_rows": n_rows,
        "n_parameters": p,
        "degrees_of_freedom": max(n_rows - p, 0.0),
        "deviance": state.deviance,
        "null_deviance": null,
        "d2": 1 - state.deviance / null if null > 0 else 1.0,
        "dispersion": float(fit.rss) / max(len(joint.y) - p, 1),
        "aic": deviance + 2 * p,
        "bic": deviance + np.log(n_rows) * p,
    }
