"""From the user's data to the joint problem, and from its solution to tables.

The joint fit (:mod:`sklearn_gn.segmented.joint`) is read off as one fit of each broken
feature, in which the columns and the derivatives of the other broken features are
linear features. In a step all of these move, so that each such fit has the parameters
and the covariance of the whole.
"""

from numbers import Integral
from typing import NamedTuple

import numpy as np

from sklearn_gn.segmented import inference, least_squares
from sklearn_gn.segmented.autocorrelation import noise_of
from sklearn_gn.segmented.conditions import parse_points, parse_slopes
from sklearn_gn.segmented.inference import Fit
from sklearn_gn.segmented.joint import (
    Joint,
    block,
    blocks,
    design,
    find,
    free,
    free_space,
    prepared_for,
    tangents,
    without_breakpoints,
    working,
)
from sklearn_gn.segmented.least_squares import Covariance, LinearFit, Rows
from sklearn_gn.segmented.preparation import (
    check_inside,
    fewest_rows,
    is_listed,
    options_of,
    prepare,
    problem_of,
)

_OF_ONE_FEATURE = ("breakpoints", "bounds", "min_distance", "slopes", "through")


class Data(NamedTuple):
    """Rows of positive weight, in the order of the first broken feature."""

    x: np.ndarray  # (n, F) broken features
    linear: np.ndarray  # (n, m)
    y: np.ndarray
    weight: np.ndarray  # repeats times precisions
    repeats: np.ndarray
    offset: np.ndarray
    variance: float | None  # of a row of weight one, where it is known
    kind: str | None  # of the dates of the first broken feature


def check_parameters(model, n_features):
    """Raise a ValueError for parameters that the joint fit does not take."""
    reason = "several broken features, a family of counts, slopes and through"
    if model.loss != "squared_error":
        raise ValueError(f"loss={model.loss!r} cannot be combined with {reason}.")
    for name in _OF_ONE_FEATURE if is_listed(model) else ():
        given = getattr(model, name)
        if given is not None and np.any(given != 0.0):
            raise ValueError(
                f"{name}={given!r} is for one broken feature: give its name or number "
                "as broken_features, no list."
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
    wrong = [
        n
        for n in given
        if n != "auto" and (not isinstance(n, Integral) or n is True or n < 0)
    ]
    if wrong:
        raise ValueError(
            f'n_breakpoints={model.n_breakpoints!r}: each must be "auto" or a number '
            "from 0 on."
        )
    return [None if n == "auto" else int(n) for n in given]


def fit_several(model, data, family, names):
    """Return noise, its deviation and the figures of the joint fit, and its features.

    Of each of these, whose ``names`` are given, there are the fit with the joint
    parameters, its rows by precision and by number, intervals, what bounds hold back
    and cut, and the path.
    """
    joint, scalings = _joint_of(model, data, family, names)
    n_rows = float(data.repeats.sum())
    most = min(model.max_breakpoints, len(data.y))
    numbers = [n and min(n, len(data.y)) for n in numbers_of(model, len(names))]
    state, paths = find(joint, numbers, most, str(model.criterion))
    for f, path in enumerate(paths):
        if path is None:
            paths[f] = {"n_breakpoints": np.array([len(state.t[f])])}
    variance = 1.0 if family.has_known_variance else None
    if data.variance is not None:
        variance = data.variance / float(scalings[0].y_size) ** 2
    known = None if variance is None else np.array([variance])
    kind = Covariance(model.covariance, model.hac_lags, known)
    correlation = None if family.has_known_variance else model.autocorrelation
    *read, noise = _read(joint, state, scalings, kind, correlation)
    none = [(np.zeros(len(t), bool),) * 2 for t in state.t]
    features, first = [*zip(*read, none, paths, strict=True)], read[0][0]
    return noise, first.noise_std, _figures(joint, state, first, n_rows), features


def _joint_of(model, data, family, names):
    """Return the joint problem in the units of the search, and the scalings."""
    y = data.y - (0 if family.has_known_variance else data.offset)
    first = prepare(data.x[:, 0], y, data.linear, data.weight)
    scaling = first.scaling
    offset = data.offset
    if family.has_known_variance:
        scaling = scaling._replace(y_center=np.float64(0), y_size=np.float64(1))
        scaled_y = data.y
    else:
        scaled_y, offset = first.rows.y, np.zeros(len(y))
    scalings = []
    for x in data.x.T:
        low, high = x.min(), x.max()
        size = np.float64((high - low) / 2 or 1.0)
        scalings.append(
            scaling._replace(center=np.float64((low + high) / 2), size=size)
        )
    options, own = options_of(model, data.kind), scalings[0]
    check_inside(first._replace(scaling=own), options.known, data.kind)
    form = options.form
    least = options.min_rows or fewest_rows(form, data.repeats.sum())
    options = options._replace(
        form=form._replace(sign=0) if model.slopes is not None else form,
        known=own.x(options.known),
        bounds=tuple(own.x(np.array(options.bounds))),
        min_distance=options.min_distance / float(own.size),
        min_rows=float(least),
        autocorrelation=None if len(names) > 1 else options.autocorrelation,
    )
    slopes, points = [], []
    number = numbers_of(model, len(names))[0]
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
        if data.linear.shape[1]:
            raise ValueError("through is for X with one feature, the one that breaks.")
        for x, target in parse_points(model.through):
            at = float(own.x(np.array([x]))[0])
            value = float((target - scaling.y_center) / scaling.y_size)
            points.append((at, value, f"through=({x:g}, {target:g})"))
    scaled = zip(data.x.T, scalings, strict=True)
    x = [np.clip(each.x(column), -1, 1) for column, each in scaled]
    joint = Joint(
        form,
        x,
        first.rows.linear,
        scaled_y,
        offset,
        data.weight,
        data.repeats,
        family,
        slopes,
        points,
        options,
    )
    return joint, scalings


# --- the parameters of the joint fit -------------------------------------------------


def _read(joint, state, scalings, kind, correlation):
    """Return the fits, rows and intervals of single features, and the noise."""
    form, t = joint.form, state.t
    z, w = working(joint, state.eta)
    columns, of_kinks = design(joint, t), tangents(joint, t, state.coef)
    n = columns.shape[1]
    every = np.hstack([columns, *of_kinks])
    space = free_space(joint, state, every.shape[1])
    # Rows of unequal precision as rows of equal one, which count by their repeats.
    root = np.sqrt(w / joint.repeats)
    residual = root * (z - state.eta)
    square, n_rows = float(joint.repeats @ residual**2), float(joint.repeats.sum())
    found = LinearFit(state.coef, residual[None], np.array([square]), space, n)
    reduced = ((root[:, None] * every) @ space)[None]
    cov, _, rank = least_squares.covariance(kind, reduced, found, joint.repeats[None])
    is_free = free(joint, t)
    jumps = sum(own.sum() for own in is_free) if form.step else 0
    n_parameters = int(rank[0]) + int(jumps)
    first = np.flatnonzero(np.diff(joint.x[0], prepend=-np.inf) > 0)
    in_order = np.add.reduceat(np.sqrt(joint.repeats) * residual, first)
    noise = noise_of(in_order, correlation, n_parameters)
    # Rows of correlated noise count less.
    redundancy = noise.redundancy if kind.kind == "nonrobust" else 1.0
    known, freedom = kind.variance is not None, n_rows / redundancy - n_parameters
    if known:
        freedom, variance, factor = np.inf, kind.variance[0], redundancy
    elif freedom > 0:
        variance = square / redundancy / freedom
        factor = max(n_rows - rank[0], 1.0) / freedom if redundancy > 1 else 1.0
    else:
        freedom = variance = factor = np.nan
    cov = factor * (space @ cov[0] @ space.T)
    mean = joint.weight @ joint.y / joint.weight.sum()
    total = joint.weight @ (joint.y - mean) ** 2
    sizes = [own.shape[1] for own in of_kinks]
    own_columns = blocks(form, t)
    moving = np.split(np.arange(n, n + sum(sizes)), np.cumsum(sizes)[:-1])
    features = np.arange(n - joint.linear.shape[1], n)
    coef = np.append(state.coef, np.zeros(every.shape[1] - n))
    fits, rows, counted, intervals = [], [], [], []
    for f, at in enumerate(t):
        others = [g for g in range(len(t)) if g != f]
        blocks_of = [own_columns[g] for g in others]
        kinks = [moving[g] for g in others]
        order = np.concatenate([[0], own_columns[f], *blocks_of, features, *kinks])
        center, size = _scaling_of_others(form, t, scalings, others)
        derived = sum(map(len, kinks))
        fit = Fit(
            form=form,
            t=at,
            free=is_free[f],
            coef=coef[order.astype(np.intp)],
            covariance=cov[np.ix_(*[np.append(order, moving[f]).astype(np.intp)] * 2)],
            degrees_of_freedom=np.float64(freedom),
            variance=np.float64(variance),
            n_rows=np.float64(n_rows),
            n_parameters=n_parameters,
            rss=np.float64(square),
            total=np.float64(total),
            scaling=scalings[f]._replace(
                linear_center=np.concatenate(
                    [center, scalings[f].linear_center, np.zeros(derived)]
                ),
                linear_size=np.concatenate(
                    [size, scalings[f].linear_size, np.ones(derived)]
                ),
            ),
        )
        prepared = prepared_for(joint, f, t, z, w, [of_kinks[g] for g in others])
        fits.append(fit)
        rows.append(prepared.rows)
        counted.append(prepared.rows._replace(weight=prepared.repeats))
        intervals.append(_intervals(joint, fit, prepared, redundancy))
    return fits, rows, counted, intervals, noise


def _scaling_of_others(form, t, scalings, others):
    """Return centers and sizes of the columns of other broken features."""
    center, size = [np.empty(0)], [np.empty(0)]
    for g in others:
        k, own = len(t[g]), scalings[g]
        center += [
            np.repeat(own.center, form.slope),
            np.zeros(k * (form.ramp + form.step)),
        ]
        size += [
            np.repeat(own.size, form.slope + k * form.ramp),
            np.ones(k * form.step),
        ]
    return np.concatenate(center), np.concatenate(size)


def columns_of_others(fits, f, x, linear):
    """Return what is linear in the fit of feature f, at rows (n, F) and (n, m)."""
    blocks_of, kinks = [], []
    for g, fit in enumerate(fits):
        if g == f:
            continue
        own, at = x[:, g], fit.breakpoints
        blocks_of.append(block(fit.form, own, at))
        change = fit.coef[fit.ramps[fit.kinks]]
        kinks.append(-change * (own[:, None] >= at[fit.kinks]))
    return np.hstack([*blocks_of, linear, *kinks])


def _intervals(joint, fit, prepared, redundancy):
    """Return the 95 % intervals of one feature's breakpoints, in the user's units."""
    if joint.slopes or joint.points or joint.form.sign:
        return inference.delta_intervals(fit)
    problem = problem_of([prepared], joint.options)
    # The profile adds up squares by their weights, which are no counts of rows.
    weight = prepared.rows.weight[None] / redundancy
    one = fit.as_one_of_several(n_rows=weight.sum())
    rows = Rows(*(a[None] for a in prepared.rows[:3]), weight, np.zeros(1))
    curvature = inference.kink_curvature(one, rows)
    return inference.breakpoint_intervals(one, problem, curvature)[0]


def _figures(joint, state, fit, n_rows):
    """Return the figures of the whole fit."""
    if not joint.family.has_known_variance:
        return inference.statistics(fit)
    family, weight = joint.family, joint.weight
    p = fit.n_parameters
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


# --- tables --------------------------------------------------------------------------


def parameter_table(fits, names, linear_names):
    """Return the table of all parameters, the broken features by their names."""
    form, first = fits[0].form, names[0]
    others = []
    for name, fit in zip(names[1:], fits[1:], strict=True):
        numbers = range(1, len(fit.t) + 1)
        others += [name] * form.slope
        others += [f"{name} slope change {k}" for k in numbers] * form.ramp
        others += [f"{name} jump {k}" for k in numbers] * form.step
    derived = sum(len(fit.kinks) for fit in fits[1:])
    hidden = [""] * derived
    table = inference.parameter_table(fits[0], first, [*others, *linear_names, *hidden])
    n = len(table["name"]) - derived
    table = {key: column[:n] for key, column in table.items()}
    own = 1 + form.slope
    k = len(fits[0].t) * (form.ramp + form.step)
    if len(fits) > 1:
        table["name"][own : own + k] = [
            f"{first} {name}" for name in table["name"][own : own + k]
        ]
    start = own + k
    for fit in fits[1:]:
        k = len(fit.t) * (form.ramp + form.step)
        table["p_value"][start + form.slope : start + form.slope + k] = np.nan
        start += form.slope + k
    return table
