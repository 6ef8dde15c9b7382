"""FeatureDisplay: the features of a classifier and the regions of its last layer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import column_or_1d

from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.callbacks import _Callback
from sklearn_gn.data.chunks import class_numbers
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.plotting._common import Display
from sklearn_gn.varpro.classifier import VarProNetClassifier


@dataclass(kw_only=True, eq=False, repr=False)
class FeatureDisplay(Display):
    """Features of a classifier, and the regions of its last layer, by iteration.

    For networks whose last hidden layer has two units. They show what variable
    projection does: the hidden layers move the classes apart, and at every iteration
    the straight borders between their regions are the best there are.

    Keyword arguments of :meth:`plot` go to ``ax.scatter`` for the samples.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    features : sequence of ndarrays of shape (n_samples, 2)
        Features of the same samples at several iterations.
    output : sequence of ndarrays of shape (3, n_classes) or (3, 1)
        The output layers, with the intercepts in the last row. For two classes one
        column, the logit of the second.
    code, classes : ndarrays of shape (n_samples,) and (n_classes,)
        Number of the class of each sample, and the labels of the classes.
    iterations : sequence of int
        Numbers of the iterations.
    name : str, default=None
        Name of the method, written next to the first panel.

    Attributes
    ----------
    accuracy_ : list of float
        Share of the samples in the region of their class, by panel.
    points_, regions_ : lists of matplotlib PathCollection and PolyCollection
        The samples of each panel, and the regions of the classes that have one.
    axes_, ax_, figure_ : ndarray of matplotlib Axes, Axes and Figure
        The panels, of shape (1, n_iterations), the first of them, and the figure.

    See Also
    --------
    sklearn.inspection.DecisionBoundaryDisplay : The regions in the space of X.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import VarProNetClassifier
    >>> from sklearn_gn.plotting import FeatureDisplay
    >>> X = np.random.default_rng(0).uniform(-1, 1, (120, 2))
    >>> inside = np.sum(X**2, axis=1) < 0.5
    >>> model = VarProNetClassifier(
    ...     hidden_layer_sizes=(4, 2), alpha=1e-3, random_state=0
    ... )
    >>> display = FeatureDisplay.from_estimator(model, X, inside, iterations=(0, 1, 3))
    >>> display.accuracy_[-1] > display.accuracy_[0]
    True
    """

    features: Sequence[Array]
    output: Sequence[Array]
    code: Array
    classes: Array
    iterations: Sequence[int]
    name: str | None = None

    def _draw(self, ax, kwargs):
        """Draw a panel for every iteration."""
        axes = self._panels(ax, 1, len(self.features), size=(2.6, 2.8), share=True)
        from matplotlib import colormaps
        from matplotlib.collections import PolyCollection
        from matplotlib.lines import Line2D

        n = len(self.classes)
        colors = colormaps["turbo"](np.linspace(0, 1, n))
        if n <= 20:
            colors = colormaps["tab10" if n <= 10 else "tab20"](np.arange(n))
        colors = colors[:, :3]
        # Axes that are shared with other panels may show more than these features.
        stacked = np.concatenate(self.features)
        low, high = stacked.min(axis=0), stacked.max(axis=0)
        margin = 20 * np.where(high > low, high - low, 1.0)
        box = low - margin, high + margin
        self.accuracy_, self.points_, self.regions_ = [], [], []
        for panel, z, output, iteration in zip(
            axes.flat, self.features, self.output, self.iterations, strict=True
        ):
            regions = [_region(output, k, box) for k in range(n)]
            faces = [0.3 * colors[k] + 0.7 for k in range(n) if len(regions[k])]
            style = {"facecolors": faces, "edgecolors": "black", "linewidths": 0.7}
            regions = [region for region in regions if len(region)]
            drawn = PolyCollection(regions, **style, zorder=0)
            self.regions_.append(panel.add_collection(drawn, autolim=False))
            style = {"c": colors[self.code], "s": 5, "linewidths": 0, **kwargs}
            self.points_.append(panel.scatter(*z.T, **style))
            found = np.argmax(all_classes(z @ output[:-1] + output[-1]), axis=1)
            self.accuracy_.append(float(np.mean(found == self.code)))
            title = f"Iteration {iteration}\naccuracy {self.accuracy_[-1]:.1%}"
            panel.set_title(title, fontsize="medium")
            panel.set_xlabel("First feature")
        label = "Second feature"
        axes[0, 0].set_ylabel(label if self.name is None else f"{self.name}\n{label}")
        if n <= 10:  # more do not fit into a legend
            style = {"linestyle": "none", "marker": "o", "markersize": 4}
            handles = [
                Line2D([], [], color=color, label=str(label), **style)
                for color, label in zip(colors, self.classes, strict=True)
            ]
            beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
            axes[0, -1].legend(handles=handles, title="Class", frameon=False, **beside)
        return axes

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike,
        *,
        iterations: Sequence[int] = (0, 1, 2, 5, 10),
        name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Fit a copy of an estimator and draw what its features do on the way.

        Parameters
        ----------
        estimator : estimator
            A :class:`~sklearn_gn.VarProNetClassifier`, fitted or not, with two units in
            its last hidden layer. With an integer as ``random_state`` the copy goes the
            same way as the estimator. Its callbacks are not called.
        X, y : array-like of shape (n_samples, n_features) and (n_samples,)
            Samples to fit and to draw, and their classes.
        iterations : sequence of int, default=(0, 1, 2, 5, 10)
            Iterations to draw; 0 is the network before the first. The fit is ended
            after the largest. If it ends earlier by itself, its last iteration stands
            for all that would follow.
        name : str, default=None
            Name of the method, written next to the first panel.
        ax, **kwargs : optional
            See :meth:`plot`.

        Returns
        -------
        display : FeatureDisplay
            What is drawn.

        Raises
        ------
        ValueError
            If the last hidden layer does not have two units, if the estimator is of
            another kind, or if an iteration is negative.
        """
        wanted = sorted(set(iterations))
        if not wanted or wanted[0] < 0:
            text = f"iterations must be non-negative numbers, got {iterations!r}."
            raise ValueError(text)
        if not isinstance(estimator, VarProNetClassifier):
            raise ValueError(
                "FeatureDisplay draws a VarProNetClassifier, got "
                f"{type(estimator).__name__}. Give the last step of a pipeline."
            )
        recorder = _Recorder(wanted)
        fitted = clone(estimator).set_callbacks(recorder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted.fit(X, y)
        models = recorder.models
        if wanted[-1] > fitted.n_iter_:
            models[fitted.n_iter_] = fitted
        found = [_features_and_output(model, X) for model in models.values()]
        return cls(
            features=[features for features, _ in found],
            output=[output for _, output in found],
            code=class_numbers(fitted.classes_, column_or_1d(y), "y"),
            classes=fitted.classes_,
            iterations=list(models),
            name=name,
        ).plot(ax, **kwargs)


@dataclass(eq=False)
class _Recorder(_Callback):
    """Callback that keeps the models of some iterations and stops after the last."""

    iterations: Sequence[int]
    models: dict[int, VarProNetClassifier] = field(default_factory=dict)

    def on_fit_task_begin(self, estimator, context):
        """Keep the network before the first iteration."""
        if context.task_name == "iteration" and context.task_id == 0:
            self._start = estimator._fit_run.best_net

    def on_fit_task_end(self, estimator, context, *, fitted_estimator):
        """Keep the model after an iteration."""
        if context.task_name != "iteration":
            return False
        iteration = context.task_id + 1
        if iteration == 1 and 0 in self.iterations:
            model, _, scaling = fitted_estimator._fitted
            self.models[0] = copy.copy(fitted_estimator)
            self.models[0]._fitted = model, self._start, scaling
        if iteration in self.iterations:
            self.models[iteration] = fitted_estimator
        return iteration >= self.iterations[-1]


def _features_and_output(model, X):
    """Two features of every sample, and the output layer on them."""
    known, net, _ = model._fitted  # all that models seen by a callback have
    found = "a committee was fitted: set alpha to a number and"
    if known is not None:
        z = model.transform(X)
        if z.shape[1] == 2:
            return z, np.asarray(net.output, dtype=float)
        found = f"the last hidden layer of this network has {z.shape[1]}: set"
    raise ValueError(
        f"FeatureDisplay draws the two features of one network, and {found} "
        "hidden_layer_sizes to widths that end with 2, such as (10, 2)."
    )


def _region(output, k, box):
    """Corners of the convex region of class k in a box."""
    (x0, y0), (x1, y1) = box
    polygon = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
    for other in range(max(2, output.shape[1])):
        if other == k or not len(polygon):
            continue
        logits = all_classes(polygon @ output[:-1] + output[-1])
        lead = logits[:, k] - logits[:, other]
        after, lead_after = np.roll(polygon, -1, axis=0), np.roll(lead, -1)
        corners = []
        for here, there, a, b in zip(polygon, after, lead, lead_after, strict=True):
            if a >= 0:
                corners.append(here)
            if (a >= 0) != (b >= 0):
                corners.append(here + a / (a - b) * (there - here))
        polygon = np.array(corners)
    return polygon
