"""Figures of the softmax heads, from ``fgn_mechanism`` and ``fgn_heads``."""

import itertools

from matplotlib.ticker import PercentFormatter

from benchmarks.figures._common import STYLES, numbers, part, styles

_DISPERSION = r"Competitor dispersion $\xi$"


def step_times(ax, mechanism, methods=("sgn", "fgn", "adam")):
    """Median seconds per step over the number of classes."""
    sizes = [p for name, p in mechanism["problems"].items() if name[:6] == "steps_"]
    sizes.sort(key=lambda problem: problem["classes"])
    for name, style in zip(methods, styles(methods), strict=True):
        answers = [part(problem["methods"], name, "method") for problem in sizes]
        medians = [a["summary"]["seconds_per_step"]["median"] for a in answers]
        classes = [problem["classes"] for problem in sizes]
        ax.plot(classes, numbers(medians), marker="o", markersize=4, **style)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set(xlabel="Classes", ylabel="Time per step (s)")
    ax.legend()


def curvature_traces(ax, mechanism):
    """Traces of the softmax curvature, of the part that FGN keeps, and the gap."""
    problem = part(mechanism["problems"], "traces", "problem")
    columns = "dispersion", "retained", "full"
    xi, retained, full = (numbers(problem[name]) for name in columns)
    ax.plot(xi, full, **{**STYLES["sgn"], "label": "Full (SGN)"})
    ax.plot(xi, retained, **{**STYLES["fgn"], "label": "Retained (FGN)"})
    ax.fill_between(xi, retained, full, color="0.85", linewidth=0, label="Dropped")
    ax.set(xlabel=_DISPERSION, ylabel="Trace")
    ax.set_ylim(bottom=0)
    ax.legend(loc="lower left")


def retained_decrease(ax, mechanism):
    """Share of the decrease of the full damped model that FGN's step reaches."""
    problem = part(mechanism["problems"], "decrease", "problem")
    xi = numbers(problem["dispersion"])
    dashes = itertools.cycle(("-", "--", ":", "-."))
    for (damping, shares), dash in zip(problem["fraction"].items(), dashes):  # noqa: B905
        ax.plot(xi, numbers(shares), color="tab:green", ls=dash, label=damping)
    ax.set(xlabel=_DISPERSION, ylabel="Share of the full decrease")
    ax.legend(title="Relative damping")


def accuracy_over_time(ax, heads, problem="cars_like", methods=("fgn", "sgn", "adam")):
    """Mean test accuracy over the seconds, with a standard deviation to both sides."""
    answers = part(heads["problems"], problem, "problem")["methods"]
    for name, style in zip(methods, styles(methods), strict=True):
        curves = part(part(answers, name, "method"), "curves", f"figure of {name!r}:")
        columns = "seconds", "accuracy_mean", "accuracy_std"
        seconds, mean, std = (numbers(curves[column]) for column in columns)
        (line,) = ax.plot(seconds, mean, **style)
        band = {"color": line.get_color(), "alpha": 0.25, "linewidth": 0}
        ax.fill_between(seconds, mean - std, mean + std, **band)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set(xlabel="Time (s)", ylabel="Test accuracy")
    ax.legend(loc="lower right")
