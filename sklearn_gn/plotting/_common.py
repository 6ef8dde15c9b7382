"""What the displays share."""

from collections.abc import Callable
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.utils._optional_dependencies import check_matplotlib_support
from sklearn.utils.validation import check_is_fitted

# What a display draws, by the attribute that it needs.
_BROKEN_LINES = (
    "SegmentsDisplay draws a SegmentedRegressor, and BreakpointDisplay draws a "
    "ShallowReLURegressor."
)
_DRAWN = {
    "breakpoint_interval_": _BROKEN_LINES,
    "hyperplanes_": _BROKEN_LINES,
    "classes_": "DispersionDisplay draws classifiers.",
    "convergence_log_": "ConvergenceDisplay draws fits in iterations. That of a "
    "SegmentedRegressor is exact: see SegmentsDisplay and SelectionPathDisplay.",
    "selection_path_": "SelectionPathDisplay draws how a SegmentedRegressor, or a "
    "ShallowReLURegressor of one feature, chose its size.",
}


class Display:
    """Base of the displays: needs matplotlib to plot, and remembers where it drew."""

    _draw: Callable[..., Any]  # takes ax and keyword arguments, returns the axes

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : matplotlib Axes or array of them, default=None
            Axes to draw on. If None, a new figure is made. Where there are several
            panels, a single Axes is divided, and an array has one for each of them.
        **kwargs : dict
            Passed to matplotlib for what the class says.

        Returns
        -------
        display : Display
            The object itself.
        """
        return self._drawn_on(self._draw(ax, kwargs))

    def _axes(self, ax):
        """Return ``ax``, or the axes of a new figure, with room for its labels."""
        check_matplotlib_support(type(self).__name__)
        if ax is not None:
            return ax
        import matplotlib.pyplot as plt

        return plt.subplots(layout="constrained")[1]

    def _panels(
        self, ax, n_rows, n_columns, *, size, share=False, layout="constrained"
    ):
        """Axes of several panels, as an array of shape (n_rows, n_columns).

        None makes a figure with panels of a given size in inches, a single Axes is
        divided, and an array of Axes is taken as it is.
        """
        check_matplotlib_support(type(self).__name__)
        import matplotlib.pyplot as plt
        from matplotlib.axes import Axes

        shape, words = (n_rows, n_columns), {"sharex": share, "sharey": share}
        if ax is None:
            size = size[0] * n_columns, size[1] * n_rows
            words |= {"figsize": size, "layout": layout}
            return plt.subplots(*shape, squeeze=False, **words)[1]
        if not isinstance(ax, Axes):
            axes = np.asarray(ax, dtype=object)
            if axes.size != n_rows * n_columns:
                raise ValueError(
                    f"ax has {axes.size} Axes, there are {n_rows} x {n_columns} panels."
                )
            return axes.reshape(shape)
        if ax.get_subplotspec() is None:
            raise ValueError(
                "ax must be made by plt.subplots to be divided; else give an array."
            )
        ax.set_axis_off()
        grid = ax.get_subplotspec().subgridspec(*shape)
        return grid.subplots(squeeze=False, **words)

    def _drawn_on(self, axes):
        """Store the axes, or the array of panels, and return the display."""
        if isinstance(axes, np.ndarray):
            self.axes_ = axes
            axes[0, 0].figure.align_ylabels(axes[:, 0])
            axes = axes[0, 0]
        self.ax_ = axes
        self.figure_ = axes.figure
        return self


def fitted_attribute(estimator, name):
    """Return a fitted attribute; one that is not there is an error with advice."""
    check_is_fitted(estimator)
    if not hasattr(estimator, name):
        advice = _DRAWN.get(name, "")
        if hasattr(estimator, "steps"):
            advice = "Give the last step of the pipeline."
        message = f"{type(estimator).__name__} has no attribute {name}. {advice}"
        raise ValueError(message.rstrip())
    return getattr(estimator, name)


def label_once(ax, label):
    """Return a label for the legend, or None where the axes have one of this text."""
    return None if label in ax.get_legend_handles_labels()[1] else label


def legend(ax, marks, **style):
    """Draw the legend: curves, then marks, whose labels begin with one of these."""
    handles, _ = ax.get_legend_handles_labels()
    handles.sort(key=lambda handle: handle.get_label().startswith(marks))
    ax.legend(handles=handles, **style)


def equal_scales(ax, ratio):
    """Give both axes one scale, and so few ticks that the labels do not touch.

    ``ratio`` is width over height.
    """
    ax.set_aspect("equal")
    box = ax.get_window_extent()
    inches = min(box.width, ratio * box.height) / ax.figure.dpi
    ax.locator_params(axis="x", nbins=int(np.clip(1.7 * inches, 2, 5)))
    ax.locator_params(axis="y", nbins=5)


def date_axis(ax, most_ticks):
    """Label an x axis of dates briefly, with at least two ticks."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=2, maxticks=most_ticks)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def rows_like(X, values):
    """Return an array of rows in a data frame like X, or as it is if X is none."""
    if not hasattr(X, "columns"):
        return values
    return type(X)(dict(zip(X.columns, values.T, strict=True)))


def select_target(y, target):
    """Return column ``target`` of one or several targets."""
    y = y[:, None] if y.ndim == 1 else y
    if not (isinstance(target, Integral) and 0 <= target < y.shape[1]):
        raise ValueError(
            f"target={target} is not among the {y.shape[1]} targets, from 0 on."
        )
    return y[:, target]
