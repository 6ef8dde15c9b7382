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
from sklearn_gn.segmented.conditions import parse_points, parse_slopes
from sklearn_gn.segmented.diagnosis import warn_of_number
from sklearn_gn.segmented.families import Family
from sklearn_gn.segmented.fitted import Feature, set_attributes
from sklearn_gn.segmented.inference import infer
from sklearn_gn.segmented.joint import (
    Joint,
    block,
    find,
    free_space,
    layouts,
    prepared_for,
    tangents,
    without_breakpoints,
    working,
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
)
from sklearn_gn.segmented.problem import Scaling

_OF_ONE_FEATURE = ("breakpoints", "bounds", "min_distance", "slopes", "through")


def check_parameters(model, n_features):
    """Raise a ValueError for parameters that the joint fit does not take."""
    reason = "several broken features, a family of counts, slopes and through"
    for name, plain in (("loss", "squared_error"), ("jumps", bool(model.jumps))):
        given = getattr(model, name)
        if given != plain:
            raise ValueError(f"{name}={given!r} cannot be combined with {reason}.")
    several = isinstance(model.broken_features, list)
    for name in _OF_ONE_FEATURE if several else ():
        given = getattr(model, name)
        if given is not None and np.any(given != 0.0):
            raise ValueError(
                f"{name}={given!r} is for one broken feature: give its name or number "
                "as broken_features, not a list."
            )
    automatic = None in numbers_of(model, n_features)
    if automatic and model.criterion not in ("bic", "aic"):
        raise ValueError(
            f"criterion={model.criterion!r} cannot be combined with {reason}: give "
            '"bic" or "aic".'
        )
    limited = model.slopes is not None or model.through is not None
    if limited and (model.jumps or model.degree == 0):
        raise ValueError(
            "slopes and through are for kinks: set jumps=False and degree=1."
        )
    if model.through is not None and model.family != "gaussian":
        raise ValueError(f"through cannot be combined with family={model.family!r}.")


def numbers_of(model, n_features):
    """Return the number of breakpoints of each broken feature, None to be chosen."""
    given = model.n_breakpoints
    if isinstance(given, (str, Integral)):
        given = [given] * n_features
    given = list(given)
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
    return [None if n == "auto" else int(n) for n in given]


def fit(model, data, offset, has_y_std):
    """Fit several broken features, counts, or a line with conditions."""
    check_parameters(model, len(data.kinds))
    if has_y_std and model.family != "gaussian":
        raise ValueError(
            f"y_std cannot be combined with family={model.family!r}, whose mean gives "
            "the variance."
        )
    repeats, family = data.repeats, Family(model.family)
    if family.name == "binomial":  # weights are trials, which make one row
        repeats = (data.weight > 0).astype(np.float64)
    order = np.argsort(data.x[:, 0], kind="stable")
    order = order[repeats[order] > 0]
    rows = data.x, data.linear, data.y, data.weight, repeats, offset
    x, linear, y, weight, repeats, offset = (each[order] for each in rows)
    family.check(y)
    given = x, linear, y, weight, repeats, offset
    joint, scalings = _joint_of(model, family, data.kinds[0], *given)
    numbers, n = numbers_of(model, len(scalings)), len(y)
    most = min(model.max_breakpoints, n)
    limited = [k and min(k, n) for k in numbers]
    state, paths = find(joint, limited, most, str(model.criterion))
    correlation, known = model.autocorrelation, None
    if family.has_known_variance:
        correlation, known = None, np.ones(1)
    elif data.variance is not None:
        known = np.array([data.variance / float(scalings[0].y_size) ** 2])
    noise_kind = Covariance(model.covariance, model.hac_lags, known)
    read, figures, noise = _read(joint, state, scalings, noise_kind, correlation)
    features = [
        Feature(*own, (np.zeros(len(own[0].t), bool),) * 2, path)
        for own, path in zip(read, paths, strict=True)
    ]
    of_all = noise, features[0].fit.noise_std, figures, features
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


def _joint_of(model, family, kind, x, linear, y, weight, repeats, offset):
    """Return the joint problem in the units of the search, and the scalings."""
    if not family.has_known_variance:
        y, offset = y - offset, np.zeros(len(y))
    first = prepare(x[:, 0], y, linear, weight)
    scaling = first.scaling
    if family.has_known_variance:
        scaling = scaling._replace(y_center=np.float64(0), y_size=np.float64(1))
    else:
        y = first.rows.y
    scalings = []
    for low, high in zip(x.min(axis=0), x.max(axis=0), strict=True):
        center, size = (low + high) / 2, np.float64((high - low) / 2 or 1.0)
        scalings.append(scaling._replace(center=center, size=size))
    options, own = options_of(model, kind), scalings[0]
    check_inside(first._replace(scaling=own), options.known, kind)
    form = options.form
    least = options.min_rows or fewest_rows(form, repeats.sum())
    options = options._replace(
        form=form._replace(sign=0) if model.slopes is not None else form,
        known=own.x(options.known),
        bounds=tuple(own.x(np.array(options.bounds))),
        min_distance=options.min_distance / float(own.size),
        min_rows=float(least),
        autocorrelation=None if len(scalings) > 1 else options.autocorrelation,
    )
    slopes, points = [], []
    number = numbers_of(model, len(scalings))[0]
    if model.slopes is not None:
        listed = not isinstance(model.slopes, tuple)
        if number is None and listed:
            raise ValueError(
                f"slopes={model.slopes!r} has an entry for each segment: give "
                "n_breakpoints as a number."
            )
        n_segments = 1 + (model.max_breakpoints if number is None else number)
        n_segments += len(options.known)
        unit = float(own.size / scaling.y_size)
        slopes = [
            (*condition, value * unit)
            for *condition, value in parse_slopes(model.slopes, n_segments)
        ]
    if model.through is not None:
        if linear.shape[1]:
            raise ValueError("through needs X with one feature, which breaks.")
        for position, target in parse_points(model.through):
            at = float(own.x(np.array([position]))[0])
            value = float((target - scaling.y_center) / scaling.y_size)
            points.append((at, value, f"through=({position:g}, {target:g})"))
    scaled = zip(x.T, scalings, strict=True)
    x = [np.clip(each.x(column), -1, 1) for column, each in scaled]
    rows = x, first.rows.linear, y, offset, weight, repeats
    joint = Joint(form, *rows, family, slopes, points, options)
    return joint, scalings


# --- the parameters of the joint fit -------------------------------------------------


def _read(joint, state, scalings, kind, correlation):
    """Return fits, rows and intervals of single features, figures, and the noise."""
    form, t, (z, w) = joint.form, state.t, working(joint, state.eta)
    of_kinks, where = tangents(joint, t, state.coef), layouts(joint, t)
    own_columns = [own.columns for own in where]
    sizes = [own.shape[1] for own in of_kinks]
    n = len(state.coef)
    moving = np.split(np.arange(n, n + sum(sizes)), np.cumsum(sizes)[:-1])
    features = np.arange(n - joint.linear.shape[1], n)
    coef = np.append(state.coef, np.zeros(sum(sizes)))
    space = free_space(joint, state, len(coef))
    jumps = sum(np.sum(own.free > own.kinks) for own in where)
    fits, series = [], []
    for f, at in enumerate(t):
        others = [g for g in range(len(t)) if g != f]
        kinks = [moving[g] for g in others]
        order = [[0], own_columns[f], *(own_columns[g] for g in others), features]
        order = np.concatenate([*order, *kinks]).astype(np.intp)
        # Lines, ramps and steps of the others, the linear features, and the kinks.
        one, center, size = scalings[f], [], []
        for g in others:
            changes, slopes = len(t[g]) * (form.ramp + form.step), form.slope
            center += [*[scalings[g].center] * slopes, *[0.0] * changes]
            slopes += len(t[g]) * form.ramp
            size += [*[scalings[g].size] * slopes, *[1.0] * (len(t[g]) * form.step)]
        zero = np.zeros(sum(map(len, kinks)))
        scaling = one._replace(
            linear_center=np.concatenate([center, one.linear_center, zero]),
            linear_size=np.concatenate([size, one.linear_size, zero + 1]),
        )
        prepared = prepared_for(joint, f, t, z, w, [of_kinks[g] for g in others])
        rows = Rows(*(a[None] for a in prepared.rows[:4]), np.zeros(1))
        columns = least_squares.design(form, rows.x, rows.linear, at[None])
        residual = rows.y - columns @ coef[order]
        rss = np.sum(rows.weight * residual**2, axis=1)
        fit = infer(
            form,
            at[None],
            where[f].free,
            rows,
            Scaling(*(np.asarray(a)[None] for a in scaling)),
            kind,
            prepared.repeats[None],
            LinearFit(coef[None, order], residual, rss, space, n),
            space[np.append(order, moving[f]).astype(np.intp)],
        )
        n_parameters = fit.n_parameters + jumps - form.step * where[f].free.sum()
        fits.append(fit._replace(n_parameters=n_parameters))
        series.append(prepared)
    first = np.flatnonzero(np.diff(joint.x[0], prepend=-np.inf) > 0)
    in_order = np.sqrt(w) * (z - state.eta)
    noise = noise_of(
        np.add.reduceat(in_order, first), correlation, int(fits[0].n_parameters[0])
    )
    figures = _figures(joint, state, fits[0].of(0))
    redundancy = noise.redundancy if kind.kind == "nonrobust" else 1.0
    if redundancy > 1:  # rows of correlated noise count less
        fits = [fit.with_redundant_rows(np.array([redundancy])) for fit in fits]
        freedom = inference.statistics(fits[0])["degrees_of_freedom"][0]
        figures["degrees_of_freedom"] = freedom
    features = []
    for fit, prepared in zip(fits, series, strict=True):
        counted = prepared.rows._replace(weight=prepared.repeats)
        if joint.has_conditions:
            (intervals,) = inference.delta_intervals(fit)
        else:
            problem = problem_of([prepared], joint.options)
            # The profile adds up squares by their weights, which are no counts of rows.
            weight = prepared.rows.weight[None] / redundancy
            of_squares = fit._replace(n_rows=weight.sum(axis=1))
            rows = Rows(*(a[None] for a in prepared.rows[:3]), weight, np.zeros(1))
            curvature = inference.kink_curvature(of_squares, rows)
            given = of_squares, problem, curvature
            (intervals,) = inference.breakpoint_intervals(*given)
        features.append((fit.of(0), prepared.rows, counted, intervals))
    return features, figures, noise


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
    p = int(fit.n_parameters)
    none = {"slopes": [], "points": [], "linear": joint.linear[:, :0]}
    null = without_breakpoints(joint._replace(x=[], **none)).deviance
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
