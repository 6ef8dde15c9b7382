"""BreakpointDisplay: a piecewise-linear fit and where it breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_consistent_length, validate_data

from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.plotting._common import (
    Display,
    equal_scales,
    fitted_attribute,
    rows_like,
    select_target,
)


@dataclass(kw_only=True, eq=False, repr=False)
class BreakpointDisplay(Display):
    """Predictions over one or two features with the breakpoints or breaking lines.

    Keyword arguments of :meth:`plot` go to ``ax.plot`` for the curve over one feature,
    or to ``ax.pcolormesh`` for the surface over two.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    grid : tuple of one or two ndarrays
        Ascending coordinates of the grid, an array for every feature.
    response : ndarray of shape (n_grid,) or (n_grid_2, n_grid_1)
        Predictions on the grid; in two dimensions the second feature runs along the
        rows, as in :func:`numpy.meshgrid`.
    breaks : ndarray of shape (n_breaks,) or (n_breaks, 2, 2)
        Breakpoints, or the two end points of every breaking line.
    changes : ndarray of shape (n_breaks,), default=None
        How much the slope changes at each breaking line, relative to the largest
        change: lines of small changes are faint. If None, all are drawn alike.
    X, y : ndarrays of shape (n_samples, n_features) and (n_samples,), default=None
        Samples to draw, and their targets. If None, none are drawn.
    feature_names, target_name : sequence of str and str, default=None
        Labels of the axes of the features, and of the axis or colour bar of the target.

    Attributes
    ----------
    curve_, surface_ : matplotlib Line2D or QuadMesh
        The predictions over one feature, or over two.
    breaks_ : matplotlib LineCollection
        The breakpoints as vertical lines, or the breaking lines.
    points_ : matplotlib PathCollection or None
        The samples.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import ShallowReLURegressor
    >>> from sklearn_gn.plotting import BreakpointDisplay
    >>> X = np.linspace(0, 1, 61)[:, None]
    >>> y = np.abs(X[:, 0] - 0.25)
    >>> model = ShallowReLURegressor(n_neurons=3, random_state=0).fit(X, y)
    >>> display = BreakpointDisplay.from_estimator(model, X, y)
    >>> bool(np.any(np.isclose(display.breaks, 0.25)))
    True
    """

    grid: Sequence[Array]
    response: Array
    breaks: Array
    changes: Array | None = None
    X: Array | None = None
    y: Array | None = None
    feature_names: Sequence[str] | None = None
    target_name: str | None = None

    def _draw(self, ax, kwargs):
        """Draw the predictions, the breaks and the samples."""
        ax = self._axes(ax)
        self.points_ = None
        names = (None, None) if self.feature_names is None else self.feature_names
        if len(self.grid) == 1:
            if self.X is not None and self.y is not None:
                gray: dict[str, Any] = {"s": 12, "color": "0.55", "linewidths": 0}
                self.points_ = ax.scatter(self.X[:, 0], self.y, **gray, label="Samples")
            style = {"label": "Prediction", **kwargs}
            (self.curve_,) = ax.plot(self.grid[0], self.response, **style)
            style = {"colors": "tab:orange", "linewidths": 0.8, "zorder": 1}
            style["label"] = "Breakpoints" if len(self.breaks) else None
            over_all = ax.get_xaxis_transform()
            self.breaks_ = ax.vlines(self.breaks, 0, 1, transform=over_all, **style)
            ax.set(xlabel=names[0], ylabel=self.target_name)
            ax.legend()
            return ax
        from matplotlib.collections import LineCollection

        style = {"shading": "nearest", **kwargs}
        self.surface_ = ax.pcolormesh(*self.grid, self.response, **style)
        # A jump is two large changes; the root keeps the kinks beside it visible.
        style = {"colors": "white", "linewidths": 0.8}
        if len(self.breaks) and self.changes is not None:  # no empty array of opacities
            style["alpha"] = np.maximum(np.sqrt(self.changes), 0.15)
        self.breaks_ = ax.add_collection(LineCollection(list(self.breaks), **style))
        if self.X is not None and self.y is not None:
            style = {"s": 12, "edgecolors": "black", "linewidths": 0.4}
            style |= {"cmap": self.surface_.cmap, "norm": self.surface_.norm}
            self.points_ = ax.scatter(*self.X.T, c=self.y, **style)
        ax.set(xlabel=names[0], ylabel=names[1])
        width, height = (np.ptp(values) for values in self.grid)
        if height / 2 <= width <= 2 * height:
            equal_scales(ax, width / height)
        ax.figure.colorbar(self.surface_, ax=ax, label=self.target_name)
        return ax

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        target: int = 0,
        grid_resolution: int = 200,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a fitted estimator over the range of some samples.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator with the attribute ``hyperplanes_``, of one or two
            features.
        X : array-like of shape (n_samples, n_features)
            Samples whose range is drawn.
        y : array-like of shape (n_samples,) or (n_samples, n_targets), default=None
            Their targets. If None, the samples are not drawn.
        target : int, default=0
            Which target to draw where there are several.
        grid_resolution : int, default=200
            Grid points for every feature. With one feature the breakpoints are added
            to them, so that kinks are sharp.
        ax, **kwargs : optional
            See :meth:`plot`.

        Returns
        -------
        display : BreakpointDisplay
            What is drawn.

        Raises
        ------
        ValueError
            If there are more than two features, or if X, y or target do not fit the
            estimator.
        """
        hyperplanes = fitted_attribute(estimator, "hyperplanes_")
        if estimator.n_features_in_ > 2:
            raise ValueError(
                "BreakpointDisplay draws estimators of one or two features, and this "
                f"one has {estimator.n_features_in_}. PartialDependenceDisplay of "
                "sklearn.inspection draws one or two of them."
            )
        samples = validate_data(estimator, X, reset=False, dtype=np.float64)
        low, high = samples.min(axis=0), samples.max(axis=0)
        changes = None
        if len(low) == 1:
            zeros = np.sort(-hyperplanes[:, 0] / hyperplanes[:, 1])
            breaks = zeros[(low[0] < zeros) & (zeros < high[0])]
            even = np.linspace(low[0], high[0], grid_resolution)
            grid = (np.union1d(even, breaks),)
        else:
            breaks, drawn = _breaking_lines(hyperplanes, low, high)
            coef = select_target(np.atleast_2d(estimator.output_coef_).T, target)
            slope = np.linalg.norm(hyperplanes[:, 1:] * (high - low), axis=1)
            changes = np.abs(coef) * slope
            changes = changes[drawn] / np.max(changes, initial=np.finfo(float).tiny)
            # Centres of cells that fill the box.
            share = (np.arange(grid_resolution) + 0.5) / grid_resolution
            grid = tuple(low[:, None] + share * (high - low)[:, None])
        points = np.column_stack([values.ravel() for values in np.meshgrid(*grid)])
        response = select_target(estimator.predict(rows_like(X, points)), target)
        if y is not None:
            check_consistent_length(samples, y)
        unnamed = [f"x{i}" for i in range(estimator.n_features_in_)]
        columns = getattr(y, "columns", None)
        name = getattr(y, "name", None) if columns is None else columns[target]
        return cls(
            grid=grid,
            response=response.reshape([len(values) for values in grid[::-1]]),
            breaks=breaks,
            changes=changes,
            X=samples,
            y=None if y is None else select_target(np.asarray(y), target),
            feature_names=list(getattr(estimator, "feature_names_in_", unnamed)),
            target_name="y" if name is None else str(name),
        ).plot(ax, **kwargs)


def _breaking_lines(hyperplanes, low, high):
    """Ends (n, 2, 2) of the lines ``b + w . x = 0`` that cross a box, and which do."""
    bias, normal = hyperplanes[:, :1], hyperplanes[:, 1:]
    foot = -bias * normal / np.sum(normal**2, axis=1, keepdims=True)
    along = np.stack([-normal[:, 1], normal[:, 0]], axis=1)
    # The box is the intersection of two strips: a line is inside between the last entry
    # and the first exit. Lines along a strip enter and leave it at infinity.
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.stack([(low - foot) / along, (high - foot) / along])
    enter = bounds.min(axis=0).max(axis=1)
    leave = bounds.max(axis=0).min(axis=1)
    crosses = enter < leave
    ends = np.stack([enter, leave], axis=1)[crosses]
    lines = foot[crosses, None, :] + ends[:, :, None] * along[crosses, None, :]
    return lines, crosses
