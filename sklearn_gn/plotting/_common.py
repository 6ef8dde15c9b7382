"""What the displays share."""

import itertools
import json
import os
from pathlib import Path

import numpy as np
from sklearn.utils.validation import check_is_fitted

_OTHER_COLORS = (
    *("tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:cyan", "tab:olive"),
    *("tab:orange", "tab:green", "tab:blue", "tab:gray"),
)


def fitted_attribute(estimator, name):
    """Return a fitted attribute, or say clearly why there is none."""
    check_is_fitted(estimator)
    if not hasattr(estimator, name):
        hint = (
            " Give the last step of the pipeline."
            if hasattr(estimator, "steps")
            else ""
        )
        raise ValueError(f"{type(estimator).__name__} has no attribute {name}.{hint}")
    return getattr(estimator, name)


def axes_or_new(ax):
    """Return ``ax``, or the axes of a new figure where it is None."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots()[1]


def panels_or_new(ax, n_rows, n_columns, *, size, share=False, layout="constrained"):
    """Axes of several panels, as an array of shape (n_rows, n_columns).

    None makes a figure with panels of a given size in inches, a single Axes is divided,
    and an array of Axes is taken as it is.
    """
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.gridspec import GridSpecFromSubplotSpec

    shape = n_rows, n_columns
    if ax is None:
        width, height = size
        return plt.subplots(
            *shape,
            figsize=(width * n_columns, height * n_rows),
            layout=layout,
            squeeze=False,
            sharex=share,
            sharey=share,
        )[1]
    if not isinstance(ax, Axes):
        axes = np.asarray(ax, dtype=object)
        if axes.size != n_rows * n_columns:
            raise ValueError(
                f"ax has {axes.size} Axes, there are {n_rows} x {n_columns} panels."
            )
        return axes.reshape(shape)
    if ax.get_subplotspec() is None:
        raise ValueError(
            "ax must be made by plt.subplots to be divided into panels; else give an "
            "array of Axes."
        )
    ax.set_axis_off()
    grid = GridSpecFromSubplotSpec(*shape, subplot_spec=ax.get_subplotspec())
    axes = np.empty(shape, dtype=object)
    for place in np.ndindex(shape):
        first = axes[0, 0] if share and any(place) else None
        axes[place] = ax.figure.add_subplot(grid[place], sharex=first, sharey=first)
        if share:
            axes[place].label_outer()
    return axes


def method_styles(names, known):
    """Label, colour and dashes of every method; an unknown one gets its own colour."""
    taken = {known[name]["color"] for name in names if name in known}
    others = itertools.cycle(c for c in _OTHER_COLORS if c not in taken)
    for name in names:
        style = known[name] if name in known else {"color": next(others)}
        yield {**style, "label": name}


# -- results of benchmarks ------------------------------------------------------------


def benchmark_problems(result):
    """The problems of a result, which may be the path of a file."""
    if isinstance(result, str | os.PathLike):
        result = json.loads(Path(result).read_text())
    if not isinstance(result, dict) or "problems" not in result:
        raise ValueError(
            "result must be what a benchmark returns, with the key 'problems', or the "
            f"path of its JSON file, got {type(result).__name__}."
        )
    return result["problems"]


def benchmark_problem(result, name):
    """One of them."""
    problems = benchmark_problems(result)
    if name not in problems:
        raise ValueError(
            f"result has no problem {name!r}; its problems are {sorted(problems)}."
        )
    return problems[name]


def numbers(values):
    """An array, with NaN for the null of JSON."""
    return np.array(list(values), dtype=float)
