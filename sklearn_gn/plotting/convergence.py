"""ConvergenceDisplay: loss or error over the iterations of a fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from sklearn_gn import SegmentedRegressor
from sklearn_gn._typing import Array
from sklearn_gn.plotting._common import Display, fitted_attribute, foreground

_X_LABELS = {
    "iteration": "Iteration",
    "time": "Time (s)",
    "inner_iterations": "Inner iterations (cumulative)",
    "work_units": "Work units",
}
_Y_LABELS = {"loss": "Loss", "relative_error": "Relative error"}
_TRAINING, _VALIDATION = "(training)", "(validation)"
_BY_WINDOW = {
    _TRAINING: "(training, this window)",
    _VALIDATION: "(validation, all windows)",
}
_LOWEST = "Lowest"
_REFINEMENT = "Refinement"
_WINDOW = "New window of time"
_PENALTY = "New penalty"
_COUNTS = ("iteration", "inner_iterations")  # axes of integers
_FEW_DIGITS = 10.0  # largest over smallest value on a linear axis
_PALE = {"linewidth": 4.5, "alpha": 0.35}  # of a broad line under a thin one


@dataclass(kw_only=True, eq=False, repr=False)
class ConvergenceDisplay(Display):
    """Loss or error over the iterations, the time or the work of a fit.

    Use :meth:`from_estimator` to create it. Repeated calls with the same ``ax`` lay the
    curves of several fits over each other. Values that differ by a factor of ten make
    the vertical axis logarithmic.

    Parameters
    ----------
    convergence_log : dict of ndarrays of shape (n_iter,)
        With the keys ``iteration``, ``time``, ``inner_iterations``, ``loss`` and
        ``val_loss``. Further keys of some fits: ``relative_error``, ``work_units``,
        ``level``, the number of the level of a network that is refined during the fit,
        ``window_end``, where the window of time ends that is solved, and ``alpha``, the
        penalty of a softmax head.

    name : str, default=None
        Name of the fit in the legend.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D
        The curve of the loss and, where there are validation data, that of the
        validation loss; or the curve of the error. The training loss is that of one
        window of time: its curve is interrupted where a new one begins. The validation
        loss is that of all windows, and stays large until the last one is solved.

    lowest_ : matplotlib Line2D or None
        The mark at the lowest validation loss or, without validation data, at the
        lowest loss; or at the lowest error. None where the penalty changes during the
        fit, as with ``alpha="auto"``: its losses do not compare.

    refinements_ : list of matplotlib Line2D
        Marks on the curves at the last iteration before a refinement of the network.

    windows_ : list of matplotlib Line2D
        Vertical lines at the first iterations of new windows of time.

    penalties_ : list of matplotlib Line2D
        Vertical lines at the first iterations with a new penalty. The loss contains
        the penalty, and may jump there.

    ax_ : matplotlib Axes
        Axes with the curves.

    figure_ : matplotlib Figure
        Figure that holds the axes.

    See Also
    --------
    GramSpectrumDisplay : How well the data determine what was fitted.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import ShallowReLURegressor
    >>> from sklearn_gn.plotting import ConvergenceDisplay
    >>> X = np.linspace(0, 1, 50)[:, None]
    >>> model = ShallowReLURegressor(n_neurons=3, random_state=0)
    >>> display = ConvergenceDisplay.from_estimator(model.fit(X, np.exp(X[:, 0])))
    >>> display.ax_.get_ylabel()
    'Loss'
    """

    convergence_log: Mapping[str, Array]
    name: str | None = None

    def plot(
        self,
        ax: Any = None,
        *,
        x: Literal["iteration", "time", "inner_iterations", "work_units"] = "iteration",
        y: Literal["loss", "relative_error"] = "loss",
        name: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. If None, a new figure is made.

        x : {"iteration", "time", "inner_iterations", "work_units"}, \
                default="iteration"
            Horizontal axis. Time is in seconds since the start of the fit, compilation
            included; inner iterations are summed up. A work unit is a pass over all
            rows, forward or backward: unlike seconds it does not depend on the machine,
            and unlike iterations it makes methods comparable, but it leaves out the
            linear algebra. It is in the logs of the networks with variable projection.

        y : {"loss", "relative_error"}, default="loss"
            What is drawn. The relative error is in the log of fits that know the exact
            solution.

        name : str, default=None
            Name of the fit in the legend, in place of the stored one.

        **kwargs : dict
            Passed to ``ax.plot`` for the curves.

        Returns
        -------
        display : ConvergenceDisplay
            The object itself.
        """
        position, curves = self._position(x), self._curves(y)
        ax = self._axes(ax)
        name = self.name if name is None else name
        self.lines_, self.refinements_ = [], []
        self.windows_ = self._mark_changes(ax, position, "window_end", _WINDOW)
        self.penalties_ = self._mark_changes(ax, position, "alpha", _PENALTY)
        for suffix, style, values in curves:
            shown = _BY_WINDOW[suffix] if suffix and self.windows_ else suffix
            label = " ".join(filter(None, [name, shown])) or _Y_LABELS[y]
            line_kwargs = {**style, "label": label, **kwargs}
            if self.lines_:  # one colour for one fit
                line_kwargs.setdefault("color", self.lines_[0].get_color())
            points = position, values
            if y == "loss" and suffix != _VALIDATION:  # which is that of all time
                new = self._changes("window_end")  # no line from one to the next
                points = [np.insert(np.asarray(a, float), new, np.nan) for a in points]
            self.lines_ += ax.plot(*points, **line_kwargs)
            self.refinements_ += self._mark_refinements(ax, self.lines_[-1])
        several = f" {_VALIDATION}" if len(curves) > 1 else ""
        self.lowest_ = None
        if y != "loss" or several or not self._penalty_changes():
            self.lowest_ = _mark_lowest(ax, position, curves[-1][-1], _LOWEST + several)
        if any(_spans_decades(values) for *_, values in curves):
            ax.set_yscale("log", nonpositive="mask")
        ax.set(xlabel=_X_LABELS[x], ylabel=_Y_LABELS[y])
        if x in _COUNTS and ax.get_xscale() == "linear":
            ax.xaxis.get_major_locator().set_params(integer=True)
        handles, _ = ax.get_legend_handles_labels()
        marks = (_WINDOW, _PENALTY, _REFINEMENT, _LOWEST)  # after the curves
        handles = sorted(handles, key=lambda h: h.get_label().startswith(marks))
        ax.legend(handles=handles)
        return self._drawn_on(ax)

    def _position(self, x):
        if x not in _X_LABELS:
            raise ValueError(f"x must be one of {sorted(_X_LABELS)}, got {x!r}.")
        if x not in self.convergence_log:
            known = [name for name in _X_LABELS if name in self.convergence_log]
            raise ValueError(
                f"x={x!r} is not in the log of this fit, which has {known}."
            )
        values = self.convergence_log[x]
        return np.cumsum(values) if x == "inner_iterations" else values

    def _curves(self, y):
        """Suffix of the label, style and values; the one to be marked last."""
        if y not in _Y_LABELS:
            raise ValueError(f"y must be one of {sorted(_Y_LABELS)}, got {y!r}.")
        if y not in self.convergence_log:
            raise ValueError(
                f"y={y!r} is not in the log of this fit: only those of a problem "
                "with an exact solution have it."
            )
        if y == "relative_error":
            return [("", {}, self.convergence_log[y])]
        loss, val_loss = (self.convergence_log[k] for k in ("loss", "val_loss"))
        if np.isnan(val_loss).all():
            return [("", {}, loss)]
        return [(_TRAINING, _PALE, loss), (_VALIDATION, {}, val_loss)]

    def _penalty_changes(self):
        """Whether the losses are sums with penalties that differ."""
        alpha = np.asarray(self.convergence_log.get("alpha", ()))
        evidence = np.asarray(self.convergence_log.get("log_evidence", np.nan))
        return len(np.unique(alpha)) > 1 or not np.isnan(evidence).all()

    def _changes(self, column):
        """Numbers of the iterations at which a column of the log, if any, changes."""
        return 1 + np.flatnonzero(np.diff(self.convergence_log.get(column, ())))

    def _mark_changes(self, ax, position, column, label):
        style = {"color": "0.8", "linewidth": 1, "zorder": 0}
        lines = [ax.axvline(position[k], **style) for k in self._changes(column)]
        if lines and not any(line.get_label() == label for line in ax.lines):
            lines[0].set_label(label)
        return lines

    def _mark_refinements(self, ax, line):
        """Mark the points of a curve at which a level ends that is not the last."""
        ends = np.flatnonzero(np.diff(self.convergence_log.get("level", ())))
        if not len(ends):
            return []
        style = {"marker": "|", "markersize": 16, "markeredgewidth": 2}
        x, y = line.get_xydata()[ends].T
        return [_mark(ax, x, y, _REFINEMENT, color=line.get_color(), **style)]

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        x: Literal["iteration", "time", "inner_iterations", "work_units"] = "iteration",
        y: Literal["loss", "relative_error"] = "loss",
        ax: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the convergence log of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator with the attribute ``convergence_log_``.

        x : {"iteration", "time", "inner_iterations", "work_units"}, \
                default="iteration"
            Horizontal axis, see :meth:`plot`.

        y : {"loss", "relative_error"}, default="loss"
            What is drawn, see :meth:`plot`.

        ax : matplotlib Axes, default=None
            Axes to draw on. If None, a new figure is made.

        name : str, default=None
            Name of the fit in the legend. If None, the name of the class.

        **kwargs : dict
            Passed to ``ax.plot`` for the curves.

        Returns
        -------
        display : ConvergenceDisplay
            Display that holds the log and the drawn lines.
        """
        cls._needs_matplotlib("from_estimator")
        if isinstance(estimator, SegmentedRegressor):
            raise ValueError(
                "SegmentedRegressor has no iterations, and no convergence_log_: its "
                "fit is exact. SegmentsDisplay and SelectionPathDisplay draw it."
            )
        log = fitted_attribute(estimator, "convergence_log_")
        name = type(estimator).__name__ if name is None else name
        return cls(convergence_log=log, name=name).plot(ax, x=x, y=y, **kwargs)


def _spans_decades(values):
    """Whether the positive values are so different that they need a logarithmic axis.

    Zeros do, too: next to them the positive values are orders of magnitude.
    """
    positive = values[values > 0]
    if not len(positive):
        return False
    return np.any(values == 0) or positive.max() >= _FEW_DIGITS * positive.min()


def _mark_lowest(ax, position, values, label):
    """Ring around the lowest value."""
    best = [np.nanargmin(values)] if len(values) else []
    style = {"marker": "o", "fillstyle": "none", "color": foreground(ax)}
    return _mark(ax, position[best], values[best], label, **style)


def _mark(ax, x, y, label, **style):
    """Markers with one entry in the legend for all fits on the axes."""
    known = any(line.get_label() == label for line in ax.lines)
    label = None if known else label
    (mark,) = ax.plot(x, y, linestyle="none", label=label, **style)
    return mark
