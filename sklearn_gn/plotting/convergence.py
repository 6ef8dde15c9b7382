"""ConvergenceDisplay: loss or error over the iterations of a fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.plotting._common import Display, fitted_attribute, label_once, legend

_LABELS = {
    "x": {
        "iteration": "Iteration",
        "time": "Time (s)",
        "inner_iterations": "Inner iterations (cumulative)",
        "work_units": "Work units",
    },
    "y": {"loss": "Loss", "relative_error": "Relative error"},
}


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
        The curve of the loss and, where there are validation data, of the validation
        loss; or the curve of the error. With windows of time, the curve of the training
        loss is interrupted where a new window begins, and the validation loss, which
        covers all windows, stays large until the last one is solved.
    lowest_ : matplotlib Line2D or None
        The mark at the lowest validation loss or, without validation data, at the
        lowest loss; or at the lowest error. None where the penalty changes during the
        fit, as with ``alpha="auto"``: its losses do not compare.
    refinements_, windows_, penalties_ : lists of matplotlib Line2D
        Marks on the curves at the last iteration before a refinement of the network,
        and vertical lines at the first iterations of new windows of time, and of new
        penalties, which the loss contains.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.

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
        log = {key: np.asarray(values) for key, values in self.convergence_log.items()}
        for word, chosen in (("x", x), ("y", y)):
            names = sorted(_LABELS[word])
            if chosen not in names:
                raise ValueError(f"{word} must be one of {names}, got {chosen!r}.")
            if chosen not in log:
                known = [name for name in names if name in log]
                raise ValueError(
                    f"{word}={chosen!r} is not in the log of this fit, but {known}."
                )
        position = np.cumsum(log[x]) if x == "inner_iterations" else log[x]
        first_rows = {  # of new windows of time, penalties and levels of a network
            column: 1 + np.flatnonzero(np.diff(log.get(column, ())))
            for column in ("window_end", "alpha", "level")
        }
        new_window = first_rows["window_end"]
        curves = {"": log[y]}
        if y == "loss" and not np.isnan(log["val_loss"]).all():
            of = (", this window", ", all windows") if any(new_window) else ("", "")
            names = f"(training{of[0]})", f"(validation{of[1]})"
            curves = dict(zip(names, (log["loss"], log["val_loss"]), strict=True))
        *_, (last, values) = curves.items()
        ax = self._axes(ax)
        name = self.name if name is None else name
        self.windows_, self.penalties_ = [], []
        self.lines_, self.refinements_ = [], []
        for marks, column, label in (
            (self.windows_, "window_end", "New window of time"),
            (self.penalties_, "alpha", "New penalty"),
        ):
            for row in first_rows[column]:
                style = {"color": "0.8", "linewidth": 1, "zorder": 0}
                style["label"] = label_once(ax, label)
                marks.append(ax.axvline(position[row], **style))
        for suffix, values in curves.items():
            label = " ".join(filter(None, [name, suffix])) or _LABELS["y"][y]
            style = {"label": label, **kwargs}
            if suffix != last:  # a broad pale line under a thin one
                style = {"linewidth": 4.5, "alpha": 0.35, **style}
            if self.lines_:  # one colour for one fit
                style.setdefault("color", self.lines_[0].get_color())
            # No line from one window to the next.
            breaks = new_window if values is log["loss"] else []
            points = np.insert([position, values], breaks, np.nan, axis=1)
            (line,) = ax.plot(*points, **style)
            self.lines_.append(line)
            before = first_rows["level"] - 1
            if len(before):
                style = {"linestyle": "none", "marker": "|", "markersize": 16}
                style |= {"markeredgewidth": 2, "color": line.get_color()}
                style["label"] = label_once(ax, "Refinement")
                self.refinements_ += ax.plot(position[before], values[before], **style)
        self.lowest_ = None
        alpha, evidence = log.get("alpha", ()), log.get("log_evidence", np.nan)
        comparable = len(np.unique(alpha)) <= 1 and np.isnan(evidence).all()
        if y != "loss" or last or comparable:
            best = [np.nanargmin(values)] if len(values) else []
            style = {"linestyle": "none", "marker": "o", "fillstyle": "none"}
            style["label"] = label_once(ax, "Lowest (validation)" if last else "Lowest")
            style["color"] = ax.xaxis.label.get_color()
            (self.lowest_,) = ax.plot(position[best], values[best], **style)
        drawn = np.concatenate(list(curves.values()))
        positive = drawn[drawn > 0]
        # Next to zeros the positive values are orders of magnitude, too.
        least = positive.min(initial=np.inf)
        if len(positive) and (np.any(drawn == 0) or positive.max() >= 10 * least):
            ax.set_yscale("log", nonpositive="mask")
        ax.set(xlabel=_LABELS["x"][x], ylabel=_LABELS["y"][y])
        if "iteration" in x and ax.get_xscale() == "linear":
            ax.xaxis.get_major_locator().set_params(integer=True)
        legend(ax, ("New window of time", "New penalty", "Refinement", "Lowest"))
        return self._drawn_on(ax)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        x: Literal["iteration", "time", "inner_iterations", "work_units"] = "iteration",
        y: Literal["loss", "relative_error"] = "loss",
        name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the convergence log of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator with the attribute ``convergence_log_``.
        x, y : optional
            See :meth:`plot`.
        name : str, default=None
            Name of the fit in the legend. If None, the name of the class.
        ax, **kwargs : optional
            See :meth:`plot`.

        Returns
        -------
        display : ConvergenceDisplay
            What is drawn.
        """
        log = fitted_attribute(estimator, "convergence_log_")
        name = type(estimator).__name__ if name is None else name
        return cls(convergence_log=log, name=name).plot(ax, x=x, y=y, **kwargs)
