"""What limited a fit, read off its log and its fitted attributes.

Each rule looks at one thing and returns a :class:`Finding`, or None where it has
nothing to say. The most serious finding comes first.
"""

from dataclasses import dataclass
from html import escape
from typing import NamedTuple

import numpy as np

from sklearn_gn.optim.stop import StopReason, counted

_CURE_OF_ENDS = "Compare with VarProNetRegressor and SegmentedRegressor(min_rows=10)."


class Finding(NamedTuple):
    """One thing that limited a fit.

    Attributes
    ----------
    cause : str
        One of "iterations", "time", "stopped", "overfitting", "points", "steps",
        "copies", "outliers", "scale", "linear", "single network", "lack of fit",
        "noise", "rank", "branch", "compilation", and "none" if nothing limited the
        fit. For :class:`~sklearn_gn.SegmentedRegressor`, one of "breakpoints",
        "outliers", "correlation", "points", "noise" and "none".
    text : str
        What was seen, and what to do.
    parameter : str or None
        The constructor parameter to change first.
    """

    cause: str
    text: str
    parameter: str | None = None


@dataclass(eq=False, repr=False)
class Diagnosis:
    """What limited a fit; prints as text, and as a list in a notebook.

    Attributes
    ----------
    estimator : str
        The estimator, and how its fit ended.
    findings : list of Finding
    """

    estimator: str
    findings: list

    def __str__(self):
        lines = [f"{self.estimator}:"]
        for cause, text, parameter in self.findings:
            change = f" [{parameter}]" if parameter else ""
            # A fit without a limit has no cause to name.
            named = "" if cause == "none" else f"{cause}{change}: "
            lines.append(f"- {named}{text}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self):
        items = []
        for cause, text, parameter in self.findings:
            change = f" (<code>{escape(parameter)}</code>)" if parameter else ""
            named = "" if cause == "none" else f"<b>{escape(cause)}</b>{change}: "
            items.append(f"<li>{named}{escape(text)}</li>")
        return f"<p>{escape(self.estimator)}</p><ul>{''.join(items)}</ul>"


def diagnose(model):
    """Return the :class:`Diagnosis` of a fitted estimator."""
    name = type(model).__name__
    if not hasattr(model, "convergence_log_"):
        text = "partial_fit keeps no log. Compare score() on rows that are held out."
        return Diagnosis(f"{name}, after partial_fit", [Finding("none", text)])
    own = model._limits()
    # Where the estimator has findings of its own, they are the same as in its warning.
    rules = RULES if own is None else (compilation,)
    findings = [Finding(*found) for found in own or []]
    findings += [finding for rule in rules if (finding := rule(model)) is not None]
    if not findings:
        findings = [Finding("none", "The fit converged, and nothing limited it.")]
    n_iter = counted(model.n_iter_, "iteration")
    loss = f"loss {model.loss_:.4g}" if hasattr(model, "loss_") else ""
    described = f"{name} stopped ({model.stop_reason_}) after {n_iter}, {loss}"
    for k, (cause, text, parameter) in enumerate(findings):
        named = model._naming_its_budget(text)  # a callback, if not max_time ended it
        of_callback = parameter == "max_time" and named != text
        findings[k] = Finding(cause, named, None if of_callback else parameter)
    return Diagnosis(described.removesuffix(", "), findings)


# --- the rules -----------------------------------------------------------------------


def _budget(model):
    reason = StopReason(model.stop_reason_)
    if not reason.budget:
        return None
    if reason is StopReason.INTERRUPTED:
        return Finding("stopped", reason.advice, "warm_start")
    if reason is StopReason.CALLBACK:
        return Finding("stopped", "A callback stopped the fit.")
    cause, parameter = "iterations", "max_iter"
    if reason is StopReason.MAX_TIME:
        cause, parameter = "time", "max_time"
    losses = model.convergence_log_["loss"]
    best = np.minimum.accumulate(losses[np.isfinite(losses)])
    how, fall = "", np.nan
    if by_evidence(model):
        how = "The log evidence, by which such a fit ends, was still rising. "
    elif len(best) > 1:
        before = best[-1 - max(1, len(best) // 10)]
        fall = (before - best[-1]) / abs(before) if before != 0 else 0.0
        how = f"In the last tenth of the iterations the loss fell by {fall:.1%}. "
    if fall < 0.01:
        advice = "It had nearly settled: raising tol would end such a fit earlier."
        return Finding(cause, how + advice, "tol")
    return Finding(cause, f"{how}Raise {parameter}, or set warm_start=True.", parameter)


def _failure(model):
    reason = StopReason(model.stop_reason_)
    if reason.converged or reason.requested or reason.budget:
        return None
    parameters = {"separable": "alpha", "line_search": "solver", "stalled": None}
    return Finding("stopped", reason.advice, parameters.get(reason.value, "damping"))


def _overfitting(model):
    log = model.convergence_log_
    seen = np.isfinite(log["val_loss"]) & np.isfinite(log["loss"])
    if not seen.any():
        return None
    val, loss = log["val_loss"][seen], log["loss"][seen]
    best = int(np.argmin(val))
    cause, parameter, cure = model._cure_of_overfitting
    if parameter == "alpha" and by_evidence(model):
        parameter, cure = _CURE_BY_EVIDENCE
    # A model that does not generalise.
    if val[best] > 10.0 * loss[best] > 0:
        text = (
            f"The lowest loss on the validation data is {val[best] / loss[best]:.3g} "
            f"times that on the training data. {cure}"
        )
        return Finding(cause, text, parameter)
    stopped_early = getattr(model, "early_stopping", False)  # and returned the best
    # The last validation loss over the lowest.
    if val[-1] > 1.05 * val[best] and not stopped_early:
        iteration = log["iteration"][seen][best]
        text = (
            f"The loss on the validation data was lowest in iteration {iteration:.0f} "
            f"and rose by {val[-1] / val[best] - 1:.1%} after it. {cure}"
        )
        return Finding(cause, text, parameter)
    return None


_CURE_BY_EVIDENCE = (
    "early_stopping",
    "The evidence takes rows for independent and noise for normal: look for rows that "
    "repeat each other, and for outliers, or set early_stopping=True.",
)


def by_evidence(model):
    """Return whether the evidence has chosen the penalties."""
    return bool(np.isfinite(getattr(model, "n_effective_parameters_", np.nan)))


def _small_penalties(model):
    factor, excess = getattr(model, "_want_of_penalties", (1.0, 0.0))
    if excess == 0 or not hasattr(model, "noise_std_") or _is_constant(model):
        return None
    noise = np.ravel(model.noise_std_)
    share = float(np.mean((noise / model._target_spread) ** 2))
    lost = share * excess / (model._n_rows * len(noise))  # of R2, to the noise
    if lost < 0.01:
        return None
    used = counted(model.n_effective_parameters_, "parameter")
    text = (
        f"The evidence prefers penalties some {float(f'{factor:.2g}'):,g} times as "
        f"large: with those of now the data determine {used}, which follow the noise "
        f"and cost some {lost:.2f} of R2. Raise alpha, or leave it at 'auto'."
    )
    return Finding("overfitting", text, "alpha")


def _poor_steps(model):
    reason = StopReason(model.stop_reason_)
    gains = model.convergence_log_["gain_ratio"][-5:]
    gains = gains[np.isfinite(gains)]
    # At lower gain ratios the quadratic model is of no use.
    if reason.converged or len(gains) == 0 or np.median(gains) > 0.1:
        return None
    text = (
        f"The last steps reached {np.median(gains):.1%} of the reduction that the "
        "quadratic model predicts: it holds in a small neighbourhood only. Try another "
        "random_state, or features of similar size."
    )
    return Finding("steps", text, "random_state")


def _points(model):
    one_target = by_evidence(model) and np.size(getattr(model, "noise_std_", ())) == 1
    if not one_target:
        return None
    n_rows, used = model._n_rows, model.n_effective_parameters_
    # Parameters that the data determine, over the rows.
    if used <= 0.5 * n_rows or _is_constant(model):
        return None
    text = (
        f"The model uses {counted(used, 'parameter')} for "
        f"{counted(n_rows, 'row')}. More rows, or fewer features, would help most."
    )
    return Finding("points", text)


def _copies(model):
    checks = getattr(model, "_row_checks", None)
    if checks is None or checks.n_copies == 0:
        return None
    effect = "the model follows their noise"
    if not hasattr(model, "classes_"):
        effect += ", and intervals are too narrow"
    text = (
        f"{checks.n_copies} of {checks.n_rows} rows repeat other rows, target included."
        f" If they are copies, {effect}, because each counts as an observation of its "
        "own: drop them (drop_duplicates() of pandas)."
    )
    return Finding("copies", text)


def _outliers(model):
    checks = getattr(model, "_row_checks", None)
    losses = (getattr(of, "loss", "") for of in (model, getattr(model, "solver", None)))
    if checks is None or checks.n_far == 0 or "huber" in losses:
        return None  # or they count as little as they should
    used = model.n_effective_parameters_ / np.size(model.noise_std_)
    cure = "give far rows small sample_weight"
    if getattr(model, "loss", None) == "squared_error":
        cure = "set loss='huber'"
    elif hasattr(model, "estimators_"):  # a committee
        cure = "set solver=GNvpro(loss='huber')"
    return outliers(checks, used, cure)


def outliers(checks, n_parameters, cure):
    """Return the finding that a few rows decide the noise level, or None.

    ``n_parameters`` counts what the data determine, for each target; ``cure`` says what
    makes such rows count less.
    """
    # Of fewer degrees of freedom outliers tell nothing.
    if checks.n_far == 0 or checks.n_rows - n_parameters < 10:
        return None  # of so few residuals some always look far
    several = "s" if len(checks.farthest) > 1 else ""
    rows = ", ".join(map(str, checks.farthest))
    cure = (
        "The targets are positive and skewed, their logarithms are not: try "
        "TransformedTargetRegressor(model, func=np.log, inverse_func=np.exp)."
        if checks.log_helps
        else f"Look at row{several} {rows}. Then {cure}, or transform all targets "
        "(TransformedTargetRegressor)."
    )
    if checks.nearly_exact:
        cure += " Without noise, the model is too coarse there: give it more neurons."
    text = (
        f"The residuals have heavy tails: {checks.n_far} of {checks.n_rows} rows lie "
        "more than 5 robust standard deviations from the model, where normal noise has "
        f"none, and hold {checks.far_squares:.0%} of the squares. They decide the "
        f"noise level and the width of the intervals. {cure}"
    )
    return Finding("outliers", text)


def _scale(model):
    spread = getattr(model, "_feature_spread", 1.0)
    if spread < 1e3:  # largest over smallest deviation of features that are not scaled
        return None
    cure = ", or set scale=True" if hasattr(model, "scale") else ""
    text = (
        f"The largest standard deviation of a feature is {spread:.1g} times the "
        "smallest. The penalty holds back the weights of small features, and steps "
        f"along them are slow. Put a StandardScaler() in front{cure}."
    )
    return Finding("scale", text)


def _rank(model):
    spectrum = getattr(model, "gram_spectrum_", np.zeros(0))
    # Penalties that the evidence chooses decide what the data do not; a spectrum of
    # rows has null directions as soon as there are more rows than parameters; and the
    # network of an equation has many, which its damped steps leave alone.
    of_rows = getattr(model, "_has_spectrum_of_rows", False)
    of_equation = getattr(model, "problem_", None) is not None
    if by_evidence(model) or of_rows or of_equation:
        return None
    if len(spectrum) == 0 or not np.isfinite(spectrum).all() or spectrum[0] <= 0:
        return None
    n_null = int(np.sum(spectrum < 1e-12 * spectrum[0]))  # without influence
    if n_null == 0:
        return None
    text = (
        f"{n_null} of {len(spectrum)} directions of the Gauss-Newton matrix have no "
        "influence on the data. That does no harm to predictions; standard errors of "
        "parameters along these directions mean nothing. A smaller network, or "
        "features without duplicates, has fewer."
    )
    return Finding("rank", text)


def _linear(model):
    """What is simpler in place of networks: their log is not about the answer."""
    share = model._share_of_linear()
    if share == 0 or _is_constant(model):
        return None
    text = "The returned model is linear: networks predict left-out rows no better."
    of_classes = hasattr(model, "classes_")
    if of_classes or share < 1 - 1e-9:
        simple = "frequencies of the classes have" if of_classes else "linear model has"
        members = getattr(model, "estimators_", [])
        process = [np.mean(m.share_) for m in members if hasattr(m, "length_scales_")]
        also = f" and a Gaussian process one of {sum(process):.0%}" if process else ""
        text = (
            f"The {simple} a share of {share:.0%}{also} in what is predicted: with "
            "these shares, rows that are left out are predicted best."
        )
    losses = model.convergence_log_["loss"]
    # A difference that is worth mentioning.
    if len(losses) and abs(losses[-1] - model.loss_) > 0.01 * model.loss_:
        text += (
            f" convergence_log_ shows the networks alone and ends at a loss of "
            f"{losses[-1]:.4g}; the returned model has a loss_ of {model.loss_:.4g}."
        )
    return Finding("linear", text)


def _single_network(model):
    """What is fitted in place of a committee that would take too long."""
    wanted = getattr(model, "solver", None) == "gnvpro" and model.network == "mlp"
    if not wanted or hasattr(model, "estimators_") or not isinstance(model.alpha, str):
        return None
    text = (
        "A committee whose penalties the evidence chooses would be too large: one "
        f"network with alpha={model.alpha_} was fitted, without the attributes of a "
        "committee. Compare other penalties on rows that are held out."
    )
    return Finding("single network", text, "alpha")


def _constant(model):
    if not _is_constant(model):
        return None
    one = len(model._target_spread) == 1
    which = "The target is" if one else "All targets are"
    return Finding("none", f"{which} constant: there is nothing to fit.")


def _lack_of_fit(model):
    checks = getattr(model, "_row_checks", None)
    if checks is None or checks.lacking < 0.1:  # too little to be worth mentioning
        return None
    by_layers = hasattr(model, "hidden_layer_sizes")
    name = "hidden_layer_sizes" if by_layers else "n_neurons"
    change = f"Raise {name}"
    if getattr(model, "alpha_method_", None) == "fixed":
        name, change = "alpha", f"Lower alpha or leave it at 'auto', raise {name}"
    text = (
        f"The residuals of neighbouring rows agree in {checks.lacking:.0%} of their "
        "squares. That is no independent noise: the model does not fit what is there, "
        f"or the noise is correlated. {change}, or try a Gaussian process."
    )
    return Finding("lack of fit", text, name)


def _noise(model):
    noise = np.atleast_1d(getattr(model, "noise_std_", np.nan))
    known = np.isfinite(noise).all() and model.converged_ and not _is_constant(model)
    if not known or _lack_of_fit(model) is not None:  # it would not be all noise
        return None
    spread = getattr(model, "_target_spread", None)
    # Noise over the deviation of the targets.
    exact = spread is not None and bool(np.all(noise <= 1e-6 * spread))
    deviations = f"standard deviations from {noise.min():.3g} to {noise.max():.3g}"
    if len(noise) == 1:
        deviations = f"a standard deviation of {noise[0]:.3g}"
    elif len(noise) == 2:
        deviations = f"standard deviations of {noise[0]:.3g} and {noise[1]:.3g}"
    if not by_evidence(model):
        # A criterion has chosen the number of neurons, or it is given; other networks
        # of given penalties are fitted to data without noise.
        if exact or not hasattr(model, "n_neurons"):
            return None
        text = f"The data lie about the model with {deviations}. "
        if hasattr(model, "selection_path_"):
            text += "By the criterion this is noise: more neurons are not worth it."
        else:
            text += "Where the residuals are not random, raise n_neurons."
        if ends := note_on_ends(*getattr(model, "_rows_at_ends", (1, 1, 1))):
            text += f" {ends} {_CURE_OF_ENDS}"
        return Finding("noise", text)
    if small_steps(model):
        return None
    used = counted(model.n_effective_parameters_, "parameter")
    if exact:
        text = (
            f"The data determine {used} and leave no noise: the model passes through "
            "all rows."
        )
        return Finding("none", text)
    text = (
        f"The data determine {used}. What the model does not explain counts as noise, "
        f"with {deviations}. More features or rows may help, more iterations will not."
    )
    return Finding("noise", text)


def _is_constant(model):
    """Whether no target varies."""
    spread = getattr(model, "_target_spread", None)
    return spread is not None and not np.any(spread)


def small_steps(model):
    """Return the finding that steps are kept small by a parameter, or None."""
    if StopReason(model.stop_reason_).converged and not by_evidence(model):
        return None
    limits = {name: getattr(model, name, None) for name in model._limits_of_steps()}
    n_directions = len(getattr(model, "gram_spectrum_", ())) or np.inf
    name, value = "rank", limits.get("rank")
    if value is None or value >= n_directions:
        name, value = "damping", limits.get("damping")
    if not value:
        return None
    text = (
        f"{name}={value} keeps the steps small, so the fit may have stopped far from "
        f"the minimum. Set {name}=None."
    )
    return Finding("steps", text, name)


def compilation(model):
    """Return the finding that the first iteration took much of the time, or None."""
    times = model.convergence_log_["time"]
    if not getattr(model, "_is_compiled", True) or len(times) == 0:
        return None
    # Half of the time, and seconds that are worth mentioning.
    if times[0] < max(1.0, 0.5 * times[-1]):
        return None
    text = (
        f"The first iteration took {times[0]:.1f} of {times[-1]:.1f} seconds, mostly "
        "for compilation. Later fits of these shapes do not compile; other processes "
        "need not either with enable_compilation_cache()."
    )
    return Finding("compilation", text)


RULES = (
    _failure,
    small_steps,
    _budget,
    _overfitting,
    _small_penalties,
    _points,
    _poor_steps,
    _copies,
    _outliers,
    _scale,
    _linear,
    _single_network,
    _constant,
    _lack_of_fit,
    _noise,
    _rank,
    compilation,
)


# --- segments at the ends of a broken line -------------------------------------------


def rows_at_ends(rows, n_effective, breakpoints):
    """Return the rows before the first breakpoint, after the last one, and all."""
    x, share = np.ravel(rows.x), n_effective * np.asarray(rows.weight, np.float64)
    used = x[share > 0]
    inside = breakpoints[(breakpoints > used.min()) & (breakpoints < used.max())]
    if len(inside) == 0:
        return n_effective, n_effective, n_effective
    before, after = x < inside.min(), x > inside.max()
    return float(np.sum(share[before])), float(np.sum(share[after])), n_effective


def note_on_ends(n_first, n_last, n_rows):
    """Return a sentence on the shorter end if it has few rows, else an empty string."""
    fewest = min(n_first, n_last)
    if fewest >= min(10, n_rows / 10):
        return ""
    which = "first" if n_first < n_last else "last"
    return (
        f"The {which} segment has only {fewest:.0f} of {n_rows:.0f} rows: its slope "
        "may be their noise, and predictions near that end and beyond extend it."
    )
