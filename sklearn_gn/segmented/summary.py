"""Summary of a fit as text and as HTML."""

from functools import partial

import numpy as np

from sklearn_gn.runtime.summary import Summary, digits
from sklearn_gn.segmented.diagnosis import is_correlated

_FEW_DAYS = np.timedelta64(3, "D")  # shorter series show their dates to the second


def summarise(model):
    """Return the summary of a SegmentedRegressor, whose positions may be dates."""
    figures, of_columns = model.statistics_, getattr(model, "estimators_", [model])
    facts = {
        "Rows": figures["n_rows"],
        "Degrees of freedom": figures["degrees_of_freedom"],
        "Breakpoints": sum(len(view.breakpoints_) for view in of_columns[0]._views()),
        "Covariance": model._covariance.kind,
    }
    if model._family.has_known_variance:
        facts |= {
            "Family": model._family.name,
            "D2": figures["d2"],
            "Deviance": figures["deviance"],
            "Dispersion": figures["dispersion"],
        }
    else:
        noise = ", ".join(f"{one.noise_std_:.4g}" for one in of_columns)
        facts |= {"R2": figures["r2"]}
        facts["Noise std"] = noise if len(of_columns) > 1 else model.noise_std_
    facts |= {"AIC": figures["aic"], "BIC": figures["bic"]}
    if len(model.autocorrelation_):
        facts["Noise autoregression"] = ", ".join(
            f"{phi:.3g}" for phi in model.autocorrelation_
        )
    dates = any(kind is not None for kind in model._date_kinds)
    tables = {}
    for j, one in enumerate(of_columns):
        own, of = _tables(one), f" of column {j} of y" if len(of_columns) > 1 else ""
        if j and not one._fit.form.step:  # which are common
            own.pop("Breakpoints", None)
        tables |= {heading + of: table for heading, table in own.items()}
    return Summary("Segmented regression", facts, tables, _notes(model, dates))


def _tables(model):
    """Return the columns of each table, by heading, in the order of R's segmented."""
    lower, upper = "[0.025", "0.975]"
    views, parameters = model._views(), model.parameters_
    breakpoints, segments = {}, {}
    for view in views:
        of = f" of {view._names()[0]}" if len(views) > 1 else ""
        own, *lines = _tables_of(view, lower, upper)
        if len(view.breakpoints_):
            breakpoints[f"Breakpoints{of}"] = own
        segments[f"Segments{of}"] = lines[0]
    least, p_values = np.finfo(float).eps, []  # rounding errors of the tail
    for p in parameters["p_value"]:
        text = f"<{least:.2g}" if p < least else f"{p:.4g}"
        p_values.append("" if np.isnan(p) else text)
    coefficients = {
        "name": parameters["name"],
        "coef": parameters["estimate"],
        "std err": parameters["std_error"],
        "t": parameters["t"],
        "P>|t|": np.array(p_values),
        lower: parameters["lower"],
        upper: parameters["upper"],
    }
    return breakpoints | {"Parameters": coefficients} | segments


def _tables_of(model, lower, upper):
    """Return the breakpoints and the segments of one broken feature."""
    segments, interval = model.segments_, model.breakpoint_interval_
    if model._date_kind is not None:
        span = segments["end"][-1] - segments["start"][0]
        positions = partial(_dates, span=span)
    else:
        width = np.append(model.breakpoint_std_, interval[:, 1] - interval[:, 0])
        positions = partial(digits, width=width)
    breakpoints = {
        "number": np.arange(1, len(model.breakpoints_) + 1),
        "position": positions(model.breakpoints_),
        "std err": model.breakpoint_std_,
        lower: positions(interval[:, 0]),
        upper: positions(interval[:, 1]),
    }
    if np.isnan(model.breakpoint_std_).all():  # jumps
        del breakpoints["std err"]
    if model._fit.form.step:
        breakpoints["jump"] = model.jumps_
    lines = {
        "number": np.arange(1, len(segments["start"]) + 1),
        "start": positions(segments["start"]),
        "end": positions(segments["end"]),
        "rows": segments["n_rows"],
        "intercept": segments["intercept"],
        "slope": segments["slope"],
        "std err": segments["slope_std_error"],
        lower: segments["slope_lower"],
        upper: segments["slope_upper"],
    }
    lines |= {name: segments[name] for name in ("quadratic",) if name in segments}
    return breakpoints, lines


def _notes(model, dates):
    """Return what to know when reading the tables."""
    notes = ["Outside the data, the first and the last segment are extended."]
    if model.degree == 2:
        notes.append("A segment is intercept + slope x + quadratic x^2.")
    if any(fit.free.any() for fit in model._fits):
        notes.append(
            "Changes at an estimated breakpoint have no p-value; "
            "breakpoint_test(X, y) has one."
        )
    if dates:
        notes.append(
            "Slopes are per day, and intercepts are values at 1970-01-01. Standard "
            "errors of breakpoints are in days."
        )
    if model._fit.is_noise_unknown:
        notes.append(
            "There are no more rows than parameters: the noise cannot be estimated, "
            "and there are no standard errors, tests and intervals."
        )
    correlated = [view for view in model._views() if is_correlated(view)]
    if correlated:
        notes.append(
            "Neighbouring residuals are correlated "
            f"({correlated[0].residual_correlation_:.2f}); diagnose() says what to do."
        )
    return notes


def _dates(values, span):
    """Return dates as text, with seconds only if the data span less than a few days."""
    unit = "datetime64[s]" if span < _FEW_DAYS else "datetime64[m]"
    whole = "T00:00:00" if span < _FEW_DAYS else "T00:00"
    texts = values.astype(unit).astype(str)
    texts = [text.removesuffix(whole).replace("T", " ") for text in texts]
    return np.where(np.isnat(values), "", texts)
