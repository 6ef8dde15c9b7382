"""DispersionDisplay: which classes are mistaken for one other, and which for many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.special import softmax
from sklearn.utils.validation import check_consistent_length, column_or_1d

from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.data.chunks import class_numbers
from sklearn_gn.plotting._common import Display, fitted_attribute


@dataclass(kw_only=True, eq=False, repr=False)
class DispersionDisplay(Display):
    r"""How widely the probability of an error is spread over the competitors, by class.

    The dispersion of an example is :math:`\xi = 1 - |\rho|^2` with the probabilities
    :math:`\rho` of the wrong classes relative to each other: 0 with a single
    competitor, :math:`1 - 1 / (C - 1)` where all are alike. The curvature that FGN
    drops is proportional to it.

    Keyword arguments of :meth:`plot` go to ``ax.plot`` for the points.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    dispersion, classes : ndarrays of shape (n_classes,)
        Mean dispersion of the examples of every class, and its label.
    training_mean : float, default=None
        Mean dispersion of the training data. If None, none are drawn.

    Attributes
    ----------
    points_, training_mean_ : matplotlib Line2D
        The classes in the order of their dispersion, and the training mean or None.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_gn import FGNSoftmaxHead
    >>> from sklearn_gn.plotting import DispersionDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> head = FGNSoftmaxHead(random_state=0).fit(X, y)
    >>> display = DispersionDisplay.from_estimator(head, X, y)
    >>> bool(display.dispersion.max() <= 0.5)  # two competitors
    True
    """

    dispersion: Array
    classes: Array
    training_mean: float | None = None

    def _draw(self, ax, kwargs):
        """Draw a point for every class, the most concentrated one at the bottom."""
        ax = self._axes(ax)
        order = np.argsort(self.dispersion, kind="stable")
        position = np.arange(1, len(order) + 1)
        few = len(order) <= 30  # classes are labelled one by one
        style = {"marker": "o", "markersize": 5 if few else 2, "linestyle": "none"}
        style |= {"label": "Mean of a class", **kwargs}
        xi = np.asarray(self.dispersion)[order]
        (self.points_,) = ax.plot(xi, position, **style)
        self.training_mean_ = None
        if self.training_mean is not None:
            style = {"linestyle": "--", "linewidth": 1, "label": "Training mean"}
            style["color"] = ax.xaxis.label.get_color()
            self.training_mean_ = ax.axvline(self.training_mean, **style)
        if few:
            ax.set_yticks(position, np.asarray(self.classes)[order])
            ax.grid(axis="y", linewidth=0.5, alpha=0.5)
        ax.set_xlabel(r"Competitor dispersion $\xi$")
        ax.set_ylabel("Class" if few else "Class, by dispersion")
        ax.legend()
        return ax

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike,
        *,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the dispersion of a fitted classifier on some samples.

        Parameters
        ----------
        estimator : estimator
            A fitted classifier with ``predict_log_proba``, or a pipeline that ends in
            one.
        X, y : array-like of shape (n_samples, n_features) and (n_samples,)
            Samples and their classes. A class without samples is left out, and so are
            samples all of whose competitors have probability zero.
        ax, **kwargs : optional
            See :meth:`plot`.

        Returns
        -------
        display : DispersionDisplay
            What is drawn.

        Raises
        ------
        ValueError
            If the estimator gives no probabilities, or if y does not fit to it or to X.
        """
        classes = fitted_attribute(estimator, "classes_")
        log_proba = fitted_attribute(estimator, "predict_log_proba")
        check_consistent_length(X, y)
        label = class_numbers(classes, column_or_1d(y), "y")
        log_p = log_proba(X)
        true = label[:, None] == np.arange(log_p.shape[1])
        # The softmax over the competitors' logarithms is their share of 1 - p_true,
        # without that difference. NaN: no competitor has any probability.
        with np.errstate(invalid="ignore"):
            rho = softmax(np.where(true, -np.inf, log_p), axis=1)
        xi = np.sum(rho * (1 - rho), axis=1)
        known = np.isfinite(xi)
        count = np.bincount(label[known], minlength=len(classes))
        total = np.bincount(label[known], xi[known], minlength=len(classes))
        seen = count > 0
        last = estimator[-1] if hasattr(estimator, "steps") else estimator
        mean = getattr(last, "competitor_dispersion_", None)
        if getattr(last, "temperature_", 1.0) != 1:
            mean = None  # of other probabilities than these
        return cls(
            dispersion=total[seen] / count[seen],
            classes=classes[seen],
            training_mean=mean,
        ).plot(ax, **kwargs)
