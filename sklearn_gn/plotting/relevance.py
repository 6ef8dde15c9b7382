"""RelevanceDisplay: how much of a fitted function depends on each feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted

from sklearn_gn._typing import Array, ArrayLike, RandomState
from sklearn_gn.plotting._common import Display, rows_like, select_target


@dataclass(kw_only=True, eq=False, repr=False)
class RelevanceDisplay(Display):
    """How much of a fitted function depends on each feature.

    The relevance of a feature is the standard deviation of the change of the prediction
    when the feature takes its value in another row, over the root of two: for a linear
    model, the slope times the standard deviation of the feature. Where the model
    has a linear term, this and the rest of the function, which the hidden neurons make,
    have a bar each. Where features are correlated, an exchanged value may lie where
    there are no data, and one feature may take over the share of another.

    Keyword arguments of :meth:`plot` go to ``ax.barh``.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    total : ndarray of shape (n_features,)
        Relevance of every feature, in units of the target.
    linear, hidden : ndarray of shape (n_features,), default=None
        The same for the linear term alone and for the rest of the function. Their
        squares do not sum to the square of the total where the two are correlated.
    feature_names : list of str, default=None
        Names of the features; x0, x1, ... if None.

    Attributes
    ----------
    bars_ : list of matplotlib BarContainer
        Bars of the linear term and of the rest, or of the total alone. Features are
        ordered by the total, the largest at the top; the first 20 are shown.
    points_ : matplotlib Line2D or None
        The totals, where there are two parts.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.

    See Also
    --------
    sklearn.inspection.permutation_importance : The loss of accuracy instead.

    Notes
    -----
    The mark "Both" is the relevance of the whole function. It may lie below the sum
    of the two bars, and even below one of them: a feature's linear term and its hidden
    neurons may change the prediction in opposite directions, as where neurons flatten
    a line at one end, and then cancel out in part.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import ShallowReLURegressor
    >>> from sklearn_gn.plotting import RelevanceDisplay
    >>> X = np.random.default_rng(0).uniform(-1, 1, (60, 3))
    >>> y = 2 * X[:, 0] + abs(X[:, 1])
    >>> model = ShallowReLURegressor(random_state=0).fit(X, y)
    >>> display = RelevanceDisplay.from_estimator(model, X)
    >>> [label.get_text() for label in display.ax_.get_yticklabels()]
    ['x0', 'x1', 'x2']
    """

    total: Array
    linear: Array | None = None
    hidden: Array | None = None
    feature_names: Sequence[str] | None = None

    def _draw(self, ax, kwargs):
        """Draw the bars."""
        ax = self._axes(ax)
        order = np.argsort(-np.asarray(self.total), kind="stable")[:20]
        names = self.feature_names
        names = [f"x{j}" if names is None else str(names[j]) for j in order]
        place = np.arange(len(order), dtype=float)
        parts = [("Fitted function", self.total, 0.0)]
        if self.linear is not None:
            parts = [("Linear term", self.linear, -0.2)]
            parts += [("Hidden neurons", self.hidden, 0.2)]
        self.bars_ = []
        for label, values, shift in parts:
            style = {"height": 0.8 / len(parts), "label": label, **kwargs}
            values = np.asarray(values)[order]
            self.bars_.append(ax.barh(place + shift, values, **style))
        ax.set_yticks(place, names)
        ax.invert_yaxis()
        ax.set_xlabel("Relevance (units of the target)")
        if len(order) < len(self.total):
            n = len(self.total)
            ax.set_ylabel(f"The {len(order)} most relevant of {n} features")
        ax.grid(axis="x", alpha=0.3)
        ax.set_axisbelow(True)
        self.points_ = None
        if len(parts) > 1:
            total = np.asarray(self.total)[order]
            style = {"marker": "|", "markersize": 14, "markeredgewidth": 2}
            style |= {"linestyle": "none", "label": "Both"}
            style["color"] = ax.xaxis.label.get_color()
            (self.points_,) = ax.plot(total, place, **style)
            above = {"loc": "lower right", "bbox_to_anchor": (1, 1)}
            ax.legend(**above, ncols=3, columnspacing=1, frameon=False)
        return ax

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        *,
        target: int = 0,
        feature_names: Sequence[str] | None = None,
        random_state: RandomState = 0,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the relevance of the features for a fitted regressor.

        Parameters
        ----------
        estimator : estimator
            A fitted regressor. One with a linear term (``linear_coef_``), such as
            :class:`~sklearn_gn.ShallowReLURegressor`, gets a bar for it.
        X : array-like of shape (n_samples, n_features)
            Samples to average over, such as the training data.
        target : int, default=0
            Number of the target if there are several.
        feature_names : list of str, default=None
            Names of the features. If None, those that the estimator saw.
        random_state : int, RandomState instance or None, default=0
            Determines which rows exchange their values.
        ax, **kwargs : optional
            See :meth:`plot`.

        Returns
        -------
        display : RelevanceDisplay
            What is drawn.

        Raises
        ------
        ValueError
            If the estimator is a classifier, whose predictions have no size, or has no
            target of that number.
        """
        check_is_fitted(estimator)
        if is_classifier(estimator):
            raise ValueError(
                "RelevanceDisplay draws regressors. For classifiers use "
                "permutation_importance of sklearn.inspection."
            )
        if feature_names is None:
            feature_names = getattr(estimator, "feature_names_in_", None)
        values = check_array(X)
        other = check_random_state(random_state).permutation(len(values))
        predicted = []
        for j in (slice(0), *range(values.shape[1])):  # first with nothing exchanged
            changed = values.copy()
            changed[:, j] = values[other, j]
            y = estimator.predict(rows_like(X, changed))
            predicted.append(select_target(y, target))
        change = np.array(predicted[1:]) - predicted[0]
        parts = {"total": change}
        slope = getattr(estimator, "linear_coef_", None)
        if slope is not None and np.any(slope := np.atleast_2d(slope)[target]):
            parts["linear"] = (slope * (values[other] - values)).T
            parts["hidden"] = change - parts["linear"]
        relevance = {k: np.sqrt(np.mean(a**2, axis=1) / 2) for k, a in parts.items()}
        return cls(**relevance, feature_names=feature_names).plot(ax, **kwargs)
