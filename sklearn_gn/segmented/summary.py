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
        of = f" of {view._name}" if len(views) > 1 else ""
        lines, interval = view.segments_, view.breakpoint_interval_
        if view._date_kind is not None:
            positions = partial(_dates, span=lines["end"][-1] - lines["start"][0])
        else:
            width = np.append(view.breakpoint_std_, interval[:, 1] - interval[:, 0])
            positions = partial(digits, width=width)
        own = {
            "number": np.arange(1, len(view.breakpoints_) + 1),
            "position": positions(view.breakpoints_),
            "std err": view.breakpoint_std_,
            lower: positions(interval[:, 0]),
            upper: positions(interval[:, 1]),
        }
        if np.isnan(view.breakpoint_std_).all():  # jumps
            del own["std err"]
        if view._fit.form.step:
            own["jump"] = view.jumps_
        if len(view.breakpoints_):
            breakpoints[f"Breakpoints{of}"] = own
        segments[f"Segments{of}"] = {
            "number": np.arange(1, len(lines["start"]) + 1),
            "start": positions(lines["start"]),
            "end": positions(lines["end"]),
            "rows": lines["n_rows"],
            "intercept": lines["intercept"],
            "slope": lines["slope"],
            "std err": lines["slope_std_error"],
            lower: lines["slope_lower"],
            upper: lines["slope_upper"],
        }
        if "quadratic" in lines:
            segments[f"Segments{of}"]["quadratic"] = lines["quadratic"]
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
