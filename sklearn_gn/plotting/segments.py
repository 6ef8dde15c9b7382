"""SegmentsDisplay: a broken line with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_consistent_length, column_or_1d

from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.data import dates
from sklearn_gn.plotting._common import Display, date_axis, fitted_attribute
from sklearn_gn.segmented import fitted, inference


@dataclass(kw_only=True, eq=False, repr=False)
class SegmentsDisplay(Display):
    """A broken line, its confidence band, and the intervals of its breakpoints.

    Keyword arguments of :meth:`plot` go to ``ax.plot`` for the fitted function. With
    residuals it takes an array of two Axes.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    grid : ndarray of shape (n_grid,)
        Ascending positions.
    response, lower, upper : ndarrays of shape (n_grid,)
        Fitted values and the limits of the confidence band.
    breakpoints, intervals : ndarrays of shape (n_breakpoints,) and (n_breakpoints, 2)
        Breakpoints, and their confidence intervals.
    x, y : ndarrays of shape (n_samples,), default=None
        Samples to draw; y less what the linear features add to it. If None, none are
        drawn.
    residuals : ndarray of shape (n_samples,), default=None
        Residuals of the samples, for a second panel. If None, none are drawn.
    feature_name, target_name : str, default=None
        Labels of the axes.

    Attributes
    ----------
    line_, band_, points_ : matplotlib Line2D, PolyCollection and PathCollection
        The fitted function, its confidence band, and the samples, None if not drawn.
    intervals_ : matplotlib LineCollection
        Intervals of the breakpoints, bars at the bottom. Those that overlap are drawn
        one above the other.
    residuals_ : list of matplotlib PathCollection
        Residuals, a collection for each segment.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import SegmentedRegressor
    >>> from sklearn_gn.plotting import SegmentsDisplay
    >>> X = np.linspace(0, 1, 61)[:, None]
    >>> y = np.abs(X[:, 0] - 0.25)
    >>> model = SegmentedRegressor().fit(X, y)
    >>> display = SegmentsDisplay.from_estimator(model, X, y)
    >>> display.breakpoints.round(6)
    array([0.25])
    """

    grid: Array
    response: Array
    lower: Array
    upper: Array
    breakpoints: Array
    intervals: Array
    x: Array | None = None
    y: Array | None = None
    residuals: Array | None = None
    feature_name: str | None = None
    target_name: str | None = None

    def _draw(self, ax, kwargs):
        """Draw the fit, and below it the residuals where there are any."""
        if self.residuals is None:
            top = bottom = drawn = self._axes(ax)
        else:
            drawn = self._panels(ax, 2, 1, size=(6.4, 2.6))
            top, bottom = drawn[:, 0]
        self._plot_fit(top, kwargs)
        self.residuals_ = []
        if self.x is not None and self.residuals is not None:
            segment = np.searchsorted(self.breakpoints, self.x, side="right")
            color = bottom.xaxis.label.get_color()
            style = {"s": 12, "color": color, "linewidths": 0}
            for k in range(len(self.breakpoints) + 1):
                x, error = self.x[segment == k], self.residuals[segment == k]
                alpha = (0.7, 0.4)[k % 2]
                self.residuals_.append(bottom.scatter(x, error, alpha=alpha, **style))
            bottom.axhline(0, color=color, alpha=0.7, linewidth=0.8)
            bottom.set(ylabel="Residual", xlim=top.get_xlim())
        for panel in dict.fromkeys((top, bottom)):
            style = {"color": "tab:orange", "linewidth": 0.6, "alpha": 0.5}
            over_all = panel.get_xaxis_transform()
            panel.vlines(self.breakpoints, 0, 1, transform=over_all, **style)
            if np.asarray(self.grid).dtype.kind == "M":
                date_axis(panel, most_ticks=8)
        bottom.set_xlabel(self.feature_name)
        return drawn

    def _plot_fit(self, ax, kwargs):
        self.points_ = None
        if self.y is not None:
            style = {"s": 12, "color": "0.55", "linewidths": 0, "label": "Samples"}
            self.points_ = ax.scatter(self.x, self.y, **style)
        (self.line_,) = ax.plot(self.grid, self.response, **{"label": "Fit", **kwargs})
        style = {"alpha": 0.25, "linewidth": 0, "label": "95 % confidence band"}
        style["color"] = self.line_.get_color()
        self.band_ = ax.fill_between(self.grid, self.lower, self.upper, **style)
        # At most six levels of bars, so that none overlap the one before them.
        level, ends = [], []
        for low, high in self.intervals:  # in the order of the breakpoints
            free = [i for i, end in enumerate(ends) if not low <= end]
            level.append(free[0] if free else len(ends))
            ends[level[-1] : level[-1] + 1] = [high]
        level = np.array(level, dtype=int) % 6
        per_level = 0.05  # of the height of the axes
        height = per_level * (level + 0.75)
        style = {"transform": ax.get_xaxis_transform(), "color": "tab:orange"}
        bars = {"linewidth": 3, "alpha": 0.6, **style}
        self.intervals_ = ax.hlines(height, *self.intervals.T, **bars)
        label = "Breakpoints, 95 % intervals" if len(self.breakpoints) else None
        ax.plot(self.breakpoints, height, "|", markersize=7, label=label, **style)
        ax.set_ylabel(self.target_name)
        legend = ax.legend(ncols=2, loc="upper center", fontsize="small")
        # Room for the bars below the samples, and for the legend above them.
        covered = legend.get_window_extent().height / ax.get_window_extent().height
        below, above = per_level * (level.max(initial=0) + 1), min(1.2 * covered, 0.4)
        bottom, top = ax.get_ylim()
        height = (top - bottom) / (1 - below - above)
        ax.set_ylim(bottom - below * height, top + above * height)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        feature: int | str | None = None,
        residuals: bool = False,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a fitted estimator over the range of some samples.

        Parameters
        ----------
        estimator : SegmentedRegressor
            A fitted estimator.
        X : array-like of shape (n_samples, n_features)
            Samples whose range is drawn. Other features than the broken one are held
            at their means; what they add is taken from y.
        y : array-like of shape (n_samples,), default=None
            Their targets. If None, the samples are not drawn.
        feature : int or str, default=None
            Number or name of the broken feature to draw, if there are several. If None,
            the first one.
        residuals : bool, default=False
            Whether to draw the residuals of the samples, by segment, in a second panel.
        ax, **kwargs : optional
            See :meth:`plot`.

        Returns
        -------
        display : SegmentsDisplay
            What is drawn.

        Raises
        ------
        ValueError
            If X or y do not fit the estimator, if it does not break in ``feature``, or
            if ``residuals=True`` without y.
        """
        fitted_attribute(estimator, "breakpoint_interval_")
        if residuals and y is None:
            raise ValueError("residuals=True needs the targets: give y.")
        if feature is not None or isinstance(estimator.breakpoints_, list):
            estimator = _of_feature(estimator, feature)
        # Over the range of the samples, with the linear features at their means.
        fit, mean_of = estimator._fit, estimator._family.mean
        x, _ = fitted.split(estimator, X)
        even, t = np.linspace(x.min(), x.max(), 400), fit.breakpoints
        t = t[(t > even[0]) & (t < even[-1])]
        grid = np.unique(np.concatenate([even, t, np.nextafter(t, -np.inf)]))
        both = grid if y is None else np.append(grid, x)
        means = np.tile(fit.scaling.linear_center, (len(both), 1))
        values, std = inference.predict(fit, both, means)
        (response, at_samples), std = np.split(values, [len(grid)]), std[: len(grid)]
        error = None
        if y is not None:
            check_consistent_length(X, y)
            error = column_or_1d(y, dtype=np.float64) - estimator.predict(X)
        to_user = np.asarray if estimator._date_kind is None else dates.from_days
        return cls(
            grid=to_user(grid),
            response=mean_of(response),
            lower=mean_of(response - fit.half_width * std),
            upper=mean_of(response + fit.half_width * std),
            breakpoints=estimator.breakpoints_,
            intervals=estimator.breakpoint_interval_,
            x=to_user(x),
            y=None if error is None else mean_of(at_samples) + error,
            residuals=error if residuals else None,
            feature_name=estimator._name,
            target_name=str(getattr(y, "name", None) or "y"),
        ).plot(ax, **kwargs)


def _of_feature(estimator, feature):
    """Return what an estimator says of one of its broken features."""
    views = estimator._views()
    names = [view._name for view in views]
    if feature is None:
        return views[0]
    columns = names if isinstance(feature, str) else estimator._columns
    if feature not in columns:
        raise ValueError(f"feature={feature!r} is not among the broken ones: {names}.")
    return views[columns.index(feature)]
