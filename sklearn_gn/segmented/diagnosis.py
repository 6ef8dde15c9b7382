"""What limited the fit of a broken line, read off its fitted attributes."""

import numpy as np

from sklearn_gn.core.diagnosis import Diagnosis, Finding

_EXACT = 1e-12  # unexplained share of the variance that is rounding errors


def diagnose(model):
    """Return the :class:`~sklearn_gn.core.diagnosis.Diagnosis` of a fitted model.

    Parameters
    ----------
    model : SegmentedRegressor
    """
    findings = [finding for rule in RULES if (finding := rule(model)) is not None]
    if not findings:
        findings = [Finding("none", "The lines pass through the data.")]
    n = len(model.breakpoints_)
    described = f"{type(model).__name__}, {n} breakpoint{'' if n == 1 else 's'}"
    return Diagnosis(f"{described}, R2 {model.statistics_['r2']:.4g}", findings)


def _limit(model):
    """The criterion would perhaps take more breakpoints than were tried."""
    tried = model.selection_path_["n_breakpoints"]
    n_known = int(np.sum(model.breakpoint_std_ == 0))
    most = int(tried[-1])
    below = len(model.breakpoints_) - n_known < most
    if model.n_breakpoints != "auto" or below or _is_exact(model):
        return None
    if most < model.max_breakpoints:
        text = (
            f"The criterion chose {most} breakpoints, the most that the data have room "
            "for. Lower min_rows or min_distance, or take more rows."
        )
        return Finding("breakpoints", text, "min_rows")
    text = (
        f"The criterion chose {most} breakpoints, the most that were tried. Raise "
        "max_breakpoints; if the number keeps growing, the function is no broken line."
    )
    return Finding("breakpoints", text, "max_breakpoints")


def _points(model):
    figures = model.statistics_
    free, used = figures["degrees_of_freedom"], figures["n_parameters"]
    if free > used:
        return None
    text = (
        f"{free + used:.0f} rows are hardly enough for {used:.0f} parameters: "
        "intervals are wide, and breakpoints may follow the noise. Take more rows, or "
        "fewer breakpoints."
    )
    return Finding("points", text, "n_breakpoints")


def _uncertain(model):
    """Breakpoints whose intervals reach their neighbours."""
    ends = model.segments_["start"][0], model.segments_["end"][-1]
    low = np.array([ends[0], *model.breakpoints_[:-1]])
    high = np.array([*model.breakpoints_[1:], ends[1]])
    interval = model.breakpoint_interval_
    n = int(np.sum((interval[:, 0] <= low) | (interval[:, 1] >= high)))
    if n == 0:
        return None
    text = (
        f"The 95 % intervals of {n} of {len(interval)} breakpoints reach the next one "
        "or the end of the data: their positions mean little. Fix the number of "
        "breakpoints to fewer, or test them by breakpoint_test()."
    )
    return Finding("breakpoints", text, "n_breakpoints")


def _noise(model):
    if _is_exact(model):
        return None
    text = (
        f"The standard deviation of the data about the lines is {model.noise_std_:.3g}."
    )
    if model.n_breakpoints == "auto":
        text += " To the criterion it is noise: further breakpoints do not pay."
    elif not np.any(model.jumps_ != 0):
        text += " Where the residuals are not random, raise n_breakpoints or set jumps."
    return Finding("noise", text)


def _is_exact(model):
    return model.statistics_["r2"] >= 1 - _EXACT


RULES = (_limit, _points, _uncertain, _noise)
