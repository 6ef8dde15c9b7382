"""From breakpoints to the fitted attributes: of one feature, or of several."""

from copy import copy
from typing import NamedTuple

import numpy as np

from sklearn_gn.bayes.huber import BOUND
from sklearn_gn.data import dates
from sklearn_gn.data.row_checks import RowChecks, with_tails
from sklearn_gn.segmented import inference, robust
from sklearn_gn.segmented.diagnosis import warn_of_number
from sklearn_gn.segmented.families import Family
from sklearn_gn.segmented.least_squares import Covariance, Rows
from sklearn_gn.segmented.noise import noise_of
from sklearn_gn.segmented.preparation import FEWEST_ROWS, stack, with_known
from sklearn_gn.segmented.search import EXACT, residuals_in_order

OF_ROWS = ("_kept", "_stream", "_noise_rows")  # which a saved model leaves behind
_OF_SOME = ("robust_weights_", "estimators_", "_row_checks", "_noise_scale", *OF_ROWS)


class Feature(NamedTuple):
    """What is set of one broken feature."""

    fit: inference.Fit
    rows: Rows  # by precision
    counted: Rows  # by number
    interval: np.ndarray
    at_bounds: tuple  # which breakpoints bounds hold back, and whose intervals they cut
    path: dict


def set_attributes(model, kinds, family, noise, noise_std, figures, features):
    """Set the fitted attributes from the figures of the whole and each feature's."""
    for name in _OF_SOME:
        vars(model).pop(name, None)
    first, fits = features[0], [each.fit for each in features]
    unknown = family.has_known_variance or first.fit.is_noise_unknown
    correlation, error = inference.residual_correlation(first.fit, first.rows)
    model._fits, model._family, model._date_kinds = fits, family, kinds
    model._covariance = Covariance(model.covariance, model.hac_lags)
    model.autocorrelation_, model._redundancy = noise
    names = [f"x{j}" for j in range(model.n_features_in_)]
    names = [str(name) for name in getattr(model, "feature_names_in_", names)]
    broken = [names[j] for j in model._columns]
    linear = [name for j, name in enumerate(names) if j not in model._columns]
    model.parameters_ = inference.parameter_table(fits, broken, linear)
    model.noise_std_ = float("nan" if unknown else noise_std)
    model.residual_correlation_ = correlation
    model._correlation_errors = correlation / error
    model.statistics_ = {name: float(value) for name, value in figures.items()}
    model._parts, model._is_listed, parts = [], False, []
    for f, each in enumerate(features):
        to_user = np.asarray if kinds[f] is None else dates.from_days
        segments = inference.segment_table(each.fit, each.counted)
        for name in ("start", "end"):
            segments[name] = to_user(segments[name])
        own = {
            "breakpoints_": to_user(each.fit.breakpoints),
            "breakpoint_std_": inference.breakpoint_errors(each.fit),
            "breakpoint_interval_": to_user(each.interval),
            "segments_": segments,
            "jumps_": segments["jump"][1:],
            "selection_path_": each.path,
        }
        part = copy(model)
        vars(part).update(own, _fit=each.fit, _feature=f, _name=broken[f])
        part._date_kind, part._to_user = kinds[f], to_user
        part._held_by_bounds, part._cut_by_bounds = each.at_bounds
        parts.append(part)
    vars(model).update(vars(parts[0]))
    if isinstance(model.broken_features, list):
        model._is_listed, model._parts = True, parts
        for name in own:
            setattr(model, name, [getattr(part, name) for part in parts])


def set_fit(model, prepared, kind, options, path, t, clipped, problem, noises=None):
    """Set the attributes of a fit of one feature; return the scale of the residuals."""
    t, free = with_known(prepared, options, t)
    noise_kind = Covariance(model.covariance, model.hac_lags)
    given = [prepared], [clipped], problem, noise_kind, noises
    fits, figures, scale, interval, noise = infer_all(options, t[None], free, *given)
    fit, rows = fits.of(0), (clipped.rows, prepared.rows)
    at_bounds = inference.at_bounds(fit, problem, interval[0])
    feature = Feature(fit, *rows, interval[0], at_bounds, path)
    figures = {name: value[0] for name, value in figures.items()}
    of_all = noise[0], scale[0], figures, [feature]
    set_attributes(model, [kind], Family("gaussian"), *of_all)
    of_sums = prepared.rows.rest > 0 or prepared.has_precisions
    if not of_sums and clipped is prepared:
        model._noise_rows = prepared.rows
    return float(scale[0])


def judge_rows(model, X, y, prepared, options, scale):
    """Set what the rows of a fit of one feature say of it, and warn of them."""
    model._kept = prepared, options
    rows, order, fit = prepared.rows, prepared.order, model._fit
    size, center = fit.scaling.y_size, fit.scaling.y_center
    of_fit = rows.y * size + center, size * inference.residuals(fit, rows)
    values, left = (np.reshape(a, (-1, 1)) for a in of_fit)
    checks = RowChecks(len(rows.y))
    model._row_checks = with_tails(checks, values, left, rows.weight, order)
    if model.loss == "huber":
        size = np.abs(np.ravel(y).astype(np.float64) - model.predict(X))
        size = np.maximum(size, np.finfo(float).tiny)
        model.robust_weights_ = np.minimum(1, BOUND * scale / size)
    if model.n_breakpoints == "auto":
        few = 1 + (model.min_rows or FEWEST_ROWS)
        outlying = robust.outlying_rows(fit, prepared, options, few)
        warn_of_number(model, order[outlying] if model.loss != "huber" else ())


def infer_all(options, t, free, prepared, clipped, problem, kind, noises=None):
    """Return fits of several series, statistics, scales, intervals, noises.

    A scale clips the residuals of the series ``clipped``, or is that of the noise.
    Noises are given for updates, whose intervals are those of the delta method.
    """
    form, is_huber = options.form, clipped[0] is not prepared[0]
    is_update = noises is not None
    if prepared[0].variance is not None:
        kind = kind._replace(variance=np.array([each.variance for each in prepared]))
    rows, scaling, repeats = stack(clipped)
    fit = inference.infer(form, t, free, rows, scaling, kind, repeats)
    figures, scales = inference.statistics(fit), fit.noise_std
    if not is_update:
        of_all = problem._replace(form=form, known=fit.t)
        residual = residuals_in_order(of_all, fit.t[:, :0])[..., 0]
        exact = fit.rss <= EXACT * fit.total
        asked = np.where(exact | (rows.rest > 0), None, options.autocorrelation)
        each = zip(residual, problem.table.n_rows, asked, fit.n_parameters, strict=True)
        noises = [noise_of(own[:n], order, number) for own, n, order, number in each]
    if is_huber:
        each = zip(prepared, clipped, fit.t, fit.n_parameters, strict=True)
        pairs = [robust.rows_for_errors(form, *own) for own in each]
        scales = scaling.y_size * np.array([scale for _, scale in pairs])
        fit_rows = stack([each for each, _ in pairs])[0]
        fit = inference.infer(form, fit.t, free, fit_rows, scaling, kind, repeats)
    redundancy = np.array([each.redundancy for each in noises])
    if kind.kind == "nonrobust" and redundancy.max() > 1:
        fit = fit.with_redundant_rows(redundancy)
        rows = rows._replace(weight=rows.weight / redundancy[:, None])
        figures["degrees_of_freedom"] = inference.statistics(fit)["degrees_of_freedom"]
        if not is_huber:
            scales = fit.noise_std
    if is_update:
        return fit, figures, scales, inference.delta_intervals(fit), noises
    curvature = inference.kink_curvature(fit, rows)
    intervals = inference.breakpoint_intervals(fit, problem, curvature)
    return fit, figures, scales, intervals, noises
