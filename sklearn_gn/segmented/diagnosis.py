"""What a fit says of itself: what limited it, and its summary as text and HTML."""

from functools import partial

import numpy as np

from sklearn_gn._caller import warn_user
from sklearn_gn.findings import Diagnosis, Finding, note_on_ends, outliers
from sklearn_gn.optim.stop import counted
from sklearn_gn.runtime.summary import Summary, digits
from sklearn_gn.segmented.problem import FEWEST_ROWS
from sklearn_gn.segmented.search import EXACT, SIGNIFICANT

_NAMED = 10  # rows that a warning names
_RISE = 2.0  # standard deviations of the noise, of a segment that looks like a jump


def diagnose(model):
    """Return the :class:`~sklearn_gn.findings.Diagnosis` of a fitted model."""
    views = model._views()
    own = model.breakpoints_ if model._is_listed else [model.breakpoints_]
    n = sum(map(len, own))
    described = f"{type(model).__name__}, {counted(n, 'breakpoint')}"
    findings: dict = {}  # what is said of several features is said once
    for view in views:
        constant = _constant(view)
        found = [rule(view) for rule in RULES] if constant is None else [constant]
        findings |= {each.text: each for each in found if each is not None}
        if constant is not None and len(views) == 1:
            return Diagnosis(described, [constant])
    several = list(findings.values())
    if not several:
        several = [Finding("none", "The lines pass through the data.")]
    name = "R2" if "r2" in model.statistics_ else "D2"
    explained = model.statistics_[name.lower()]
    return Diagnosis(f"{described}, {name} {explained:.4g}", several)


def _constant(model):
    """Targets, or positions, that do not vary, up to rounding."""
    if model._fit.is_constant:
        return Finding("none", "The target is constant: there is nothing to fit.")
    if model.segments_["start"][0] == model.segments_["end"][-1]:
        text = (
            "The feature that breaks is constant: set broken_features to another one."
        )
        return Finding("points", text, "broken_features")
    return None


def _bounds(model):
    """Breakpoints that the bounds hold back, and intervals that they cut."""
    held, cut = (int(n.sum()) for n in (model._held_by_bounds, model._cut_by_bounds))
    if not cut:
        return None
    of = f"of {counted(len(model.breakpoints_), 'breakpoint')}"
    text = (
        f"The 95 % intervals of {cut} {of} end at bounds={model.bounds!r}: the data "
        "would allow positions outside. Widen bounds, unless they are certain."
    )
    if held:
        text = (
            f"{held} {of} {'lies' if held == 1 else 'lie'} at an end of bounds="
            f"{model.bounds!r}: the best position may be outside, and then residuals "
            "and standard errors belong to a wrong line. Widen bounds."
        )
    return Finding("breakpoints", text, "bounds")


def _limit(model):
    """The criterion would perhaps take more breakpoints than were tried."""
    most = int(model.selection_path_["n_breakpoints"][-1])
    is_open = model.n_breakpoints == "auto" and not _is_exact(model)
    if not is_open or np.sum(model.breakpoint_std_ != 0) < most:
        return None
    text = f"The criterion falls up to {most} breakpoints, the most that "
    if most < model.max_breakpoints:
        text += "there is room for. Lower min_rows or min_distance, or take more rows."
        return Finding("breakpoints", text, "min_rows")
    text += (
        "were tried. Raise max_breakpoints; if the number keeps growing, the function "
        "is no broken line, or the noise is correlated."
    )
    return Finding("breakpoints", text, "max_breakpoints")


def warn_of_number(model, outlying=()):
    """Warn where the number of breakpoints that was chosen means little."""
    if len(outlying) and not _is_exact(model):
        rows = ", ".join(map(str, outlying[:_NAMED]))
        other = "" if model.loss == "huber" else ", or set loss='huber'"
        warn_user(
            "Breakpoints follow a few rows that may be outliers, far from the lines "
            f"through the others: {rows}. Look at these rows{other}."
        )
    finding = _limit(model)
    cap = finding is not None and finding.parameter == "max_breakpoints"
    none_left = model.statistics_["degrees_of_freedom"] <= 1
    if cap and model.max_breakpoints > 0:
        warn_user(finding.text)
    elif is_correlated(model) and (none_left or model.autocorrelation is None):
        warn_user(
            f"Neighbouring residuals correlate ({model.residual_correlation_:.2f}): "
            "the number of breakpoints means little; diagnose() says what to do."
        )


def _points(model):
    n, used, free, *_ = model.statistics_.values()
    if free > used:
        return None
    result = "intervals are wide, and breakpoints may follow the noise"
    if model._fit.is_noise_unknown:
        result = "the noise cannot be estimated, and standard errors are NaN"
    why = ", because the noise is correlated" if len(model.autocorrelation_) else ""
    text = (
        f"The weights of the rows sum to {n:.4g}, which with "
        f"{used:.0f} parameters leaves {counted(free, 'degree')} of freedom{why}: "
        f"{result}. Take more rows, or fewer breakpoints."
    )
    return Finding("points", text, "n_breakpoints")


def _outliers(model):
    checks = getattr(model, "_row_checks", None)
    if checks is None or model.loss == "huber":
        return None
    return outliers(checks, model.statistics_["n_parameters"], "set loss='huber'")


def _jump(model):
    """Two kinks with hardly a row between them: the function jumps there."""
    segments = model.segments_
    few = model.min_rows or FEWEST_ROWS
    short = segments["n_rows"] <= few
    length = segments["end"] - segments["start"]
    if length.dtype.kind == "m":  # of dates, whose slopes are per day
        length = length / np.timedelta64(1, "D")
    rise = np.abs(segments["slope"]) * length
    steep = short & (rise > _RISE * model.noise_std_)
    alone = ~short[:-2] & steep[1:-1] & ~short[2:]
    if model._fit.form.step or model.degree == 2 or not alone.any():
        return None
    k = int(np.argmax(alone)) + 1
    text = (
        f"Breakpoints {k} and {k + 1} have only {segments['n_rows'][k]:.0f} rows "
        "between them, where the function changes by "
        f"{rise[k]:.3g}. This looks like a jump: set jumps=True."
    )
    return Finding("breakpoints", text, "jumps")


def _uncertain(model):
    """Breakpoints whose intervals reach their neighbours."""
    if _jump(model) is not None:
        return None  # so do those of the two kinks
    interval, segments = model.breakpoint_interval_, model.segments_
    reached = interval[:, 0] <= segments["start"][:-1]
    n = int(np.sum(reached | (interval[:, 1] >= segments["end"][1:])))
    if n == 0:
        return None
    text = (
        f"The 95 % intervals of {n} of {len(interval)} breakpoints reach the next one "
        "or the end of the data: their positions mean little. Fix the number of "
        "breakpoints to fewer, or test them by breakpoint_test(X, y)."
    )
    return Finding("breakpoints", text, "n_breakpoints")


def _ends(model):
    """A breakpoint that was found next to an end of noisy data."""
    n_rows, found = model.segments_["n_rows"], model.breakpoint_std_ != 0
    if model.min_rows is not None or _is_exact(model) or not found.any():
        return None
    ends = [int(n_rows[end]) if found[end] else n_rows.sum() for end in (0, -1)]
    note = note_on_ends(*ends, int(n_rows.sum()))
    if not note:
        return None
    text = f"{note} Set min_rows=10, unless the break is known to be there."
    return Finding("breakpoints", text, "min_rows")


def _noise(model):
    """How the data lie about the lines, and counts beside what their family says."""
    if _is_exact(model) or model._fit.is_noise_unknown:
        return None
    figures = model.statistics_
    if model._family.has_known_variance:
        dispersion, name = figures["dispersion"], f"family={model.family!r}"
        freedom = max(figures["degrees_of_freedom"], 1.0)
        if dispersion < 1 + SIGNIFICANT * np.sqrt(2 / freedom):
            text = (
                f"The counts vary no more than {name} may explain: their dispersion is "
                f"{dispersion:.3g}."
            )
            return Finding("noise", text)
        text = (
            f"The counts vary {dispersion:.3g} times as much as {name} says: standard "
            "errors are too small, and there may be too many breakpoints. Set "
            'covariance="HC3".'
        )
        return Finding("noise", text, "covariance")
    spread = f"{model.noise_std_:.3g}"
    text = f"The data lie about the lines with a standard deviation of {spread}."
    if model.n_breakpoints == "auto":
        if is_correlated(model) and len(model.autocorrelation_):
            text += (
                " This noise is correlated, and slow changes count as part of it. For "
                "seasonal waves add columns for the months; they enter linearly."
            )
        elif not (_limit(model) or is_correlated(model)):
            text += " By the criterion, further breakpoints are not worth their cost."
    elif not np.any(model.jumps_ != 0):
        text += " If residuals show a pattern, raise n_breakpoints or set jumps=True."
    return Finding("noise", text)


def _correlation(model):
    """The criterion or the standard errors take the noise for independent."""
    known = len(model.autocorrelation_) > 0
    kind = model._covariance.kind
    chosen = model.n_breakpoints == "auto" and not (known and model.criterion == "bic")
    independent = not (kind.startswith("HAC") or (known and kind == "nonrobust"))
    if not is_correlated(model) or not (chosen or independent):
        return None
    text = (
        "Neighbouring residuals are correlated: the correlation is "
        f"{model.residual_correlation_:.2f}, {model._noise_of_fit.n_errors:.0f} "
        "standard errors from zero. "
    )
    by_default = model.criterion == "bic" and model.autocorrelation == "auto"
    other = "" if by_default else 'criterion="bic" with autocorrelation="auto", or '
    if chosen:
        text += (
            "The criterion assumes independent noise and takes the waves of correlated "
            f"noise for breakpoints: set {other}a min_distance longer than the waves. "
            "For seasonal waves add columns for the months; they enter linearly. "
        )
    if independent:
        text += (
            'Standard errors are too small: set covariance="HAC-prewhitened". Where '
            "the correlation is near one, fit the differences of y. "
        )
    text += "If the residuals follow a curve, the function is no broken line."
    return Finding("correlation", text, "autocorrelation" if chosen else "covariance")


def is_correlated(model):
    """Return whether neighbouring residuals are correlated, beyond rounding errors."""
    return not _is_exact(model) and model._noise_of_fit.n_errors > SIGNIFICANT


def _is_exact(model):
    figures = model.statistics_
    return figures.get("r2", figures.get("d2")) >= 1 - EXACT


RULES = (
    _bounds,
    _outliers,
    _correlation,
    _limit,
    _points,
    _jump,
    _ends,
    _uncertain,
    _noise,
)


# --- summary --------------------------------------------------------------------------


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
        names = "deviance", "dispersion"
        facts |= {"Family": model._family.name, "D2": figures["d2"]}
        facts |= {name.capitalize(): figures[name] for name in names}
    else:
        noise = ", ".join(f"{one.noise_std_:.4g}" for one in of_columns)
        facts |= {"R2": figures["r2"]}
        facts["Noise std"] = noise if len(of_columns) > 1 else model.noise_std_
    facts |= {"AIC": figures["aic"], "BIC": figures["bic"]}
    if len(model.autocorrelation_):
        facts["Noise autoregression"] = ", ".join(
            f"{phi:.3g}" for phi in model.autocorrelation_
        )
    tables = {}
    for j, one in enumerate(of_columns):
        own, of = _tables(one), f" of column {j} of y" if len(of_columns) > 1 else ""
        if j and not one._fit.form.step:  # which are common
            own.pop("Breakpoints", None)
        tables |= {heading + of: table for heading, table in own.items()}
    notes = ["Outside the data, the first and the last segment are extended."]
    if model.degree == 2:
        notes.append("A segment is intercept + slope x + quadratic x^2.")
    if any(fit.free.any() for fit in model._fits):
        notes.append(
            "Changes at an estimated breakpoint have no p-value; "
            "breakpoint_test(X, y) has one."
        )
    if any(kind is not None for kind in model._date_kinds):
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
    return Summary("Segmented regression", facts, tables, notes)


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


def _dates(values, span):
    """Return dates as text, with seconds only if the data span less than a few days."""
    unit = "datetime64[s]" if span < _FEW_DAYS else "datetime64[m]"
    whole = "T00:00:00" if span < _FEW_DAYS else "T00:00"
    texts = values.astype(unit).astype(str)
    texts = [text.removesuffix(whole).replace("T", " ") for text in texts]
    return np.where(np.isnat(values), "", texts)
