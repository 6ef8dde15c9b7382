"""What all experiments share: the environment, summaries of runs, and tables.

The answer of an experiment is a dict with ``problems``, by name:

    description   what is fitted
    methods       by name: ``settings``, ``runs`` (one flat dict of figures a seed) and
                  ``summary`` (median, min and max of every figure); optional:
                  ``compile_seconds``, apart from the seconds of the runs
    paper         optional: by method, the figures that the paper prints
    target        optional: what was aimed at, the value reached, and ``passed``;
                  further targets under names that begin alike
    skipped       optional: by method, why it was not run

and ``notes``, a list of sentences without which the figures could be misread.
"""

import math
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from numbers import Integral, Number, Real
from pathlib import Path
from statistics import median

import jax
import joblib
from threadpoolctl import threadpool_info

import sklearn_gn  # noqa: F401  loads the BLAS libraries that are reported
from sklearn_gn.solvers import Solver

PLAIN = (dict, list, tuple, str, Number, type(None))  # what a result may hold
PACKAGES = ("sklearn-gn", "scikit-learn", "numpy", "scipy", "jax", "jaxlib", "optax")


def environment():
    """Machine, versions and date: what a timing depends on, and no names."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {
            "cpu": _cpu_model(),
            "cores": joblib.cpu_count(),
            "memory_gib": _memory_gib(),
            "load": _load(),
            "device": jax.devices()[0].device_kind,
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        "blas": [
            {k: pool.get(k) for k in ("internal_api", "version", "architecture")}
            for pool in threadpool_info()
        ],
    }


def _cpu_model():
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_gib():
    if not hasattr(os, "sysconf"):
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)


def _load():
    """Processes that wanted to run in the minute before: 0 on an idle machine."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def progress(*words):
    """A line for whoever waits."""
    print(*words, file=sys.stderr, flush=True)


def settings(estimator):
    """Parameters that differ from the defaults; objects as text."""
    defaults = type(estimator)().get_params(deep=False)
    changed = {
        name: value
        for name, value in estimator.get_params(deep=False).items()
        if value != defaults[name]
    }
    words = as_text(changed)
    if words.get("solver") == defaults.get("solver"):
        words.pop("solver", None)
    return words


def as_text(words):
    """The same parameters with objects as text, a solver by its own parameters."""
    flat = {}
    for name, value in words.items():
        if isinstance(value, Solver):
            flat[name] = value.name
            own = settings(value)
            flat |= {f"{name}__{parameter}": own[parameter] for parameter in own}
        else:
            flat[name] = value if isinstance(value, PLAIN) else repr(value)
    return flat


def summary(runs):
    """Median, min and max of every numeric figure that all runs have."""
    figures = [
        name
        for name, value in runs[0].items()
        if _is_number(value) and name != "seed" and all(name in run for run in runs)
    ]
    values = {name: [run[name] for run in runs] for name in figures}
    return {
        name: {"median": median(column), "min": min(column), "max": max(column)}
        for name, column in values.items()
    }


def _is_number(value):
    return isinstance(value, Number) and not isinstance(value, bool)


def target(methods, method, figure, statistic, at_most=None, *, at_least=None):
    """A target for one statistic of one figure of one method, and whether it is met.

    One of the two bounds. A figure that is not a number misses.
    """
    value = methods[method]["summary"][figure][statistic]
    bound = {"at_most": at_most} if at_least is None else {"at_least": at_least}
    passed = value <= at_most if at_least is None else value >= at_least
    return {
        "method": method,
        "figure": figure,
        "statistic": statistic,
        **bound,
        "value": value,
        "passed": bool(passed),
    }


def plain(tree):
    """The same with plain Python values, and None for what JSON cannot hold."""
    if isinstance(tree, dict):
        return {str(key): plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [plain(value) for value in tree]
    if isinstance(tree, str | bool | None):
        return tree
    if isinstance(tree, Integral):
        return int(tree)
    if isinstance(tree, Real):
        return float(tree) if math.isfinite(tree) else None
    raise TypeError(f"{type(tree).__name__} has no place in a result.")


# --- tables --------------------------------------------------------------------------


def tables(result):
    """All problems of a result as text."""
    parts = [_problem(name, problem) for name, problem in result["problems"].items()]
    return "\n\n".join([*parts, *(f"Note: {note}" for note in result["notes"])])


def _problem(name, problem):
    methods = problem["methods"]
    figures = list(dict.fromkeys(f for m in methods.values() for f in m["summary"]))
    rows = [["", *figures, "compile_seconds"]]
    for method, answer in methods.items():
        cells = [_cell(answer["summary"].get(figure)) for figure in figures]
        rows.append([method, *cells, _number(answer.get("compile_seconds"))])
    width = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(w) for cell, w in zip(row, width, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([f"{name}: {problem['description']}", *lines, *_below(problem)])


def _cell(value):
    if value is None:
        return "-"
    text = _number(value["median"])
    if value["min"] == value["max"]:
        return text
    return f"{text} [{_number(value['min'])}, {_number(value['max'])}]"


def _number(value):
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _below(problem):
    """Lines under a table: the paper's figures, what was skipped, and the targets."""
    for method, figures in problem.get("paper", {}).items():
        rows = (", ".join(f"{k} {_number(v)}" for k, v in f.items()) for f in figures)
        yield f"paper, {method}: {'; '.join(rows)}"
    for method, reason in problem.get("skipped", {}).items():
        yield f"skipped, {method}: {reason}"
    for aim in (problem[key] for key in problem if key.startswith("target")):
        sign, bound = ("<=", "at_most") if "at_most" in aim else (">=", "at_least")
        yield (
            f"target: {aim['statistic']} {aim['figure']} of {aim['method']} {sign} "
            f"{aim[bound]:.3g}: {'met' if aim['passed'] else 'MISSED'} "
            f"({_number(aim['value'])})"
        )
