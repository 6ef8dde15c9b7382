"""Displays of networks fitted by variable projection, and of their benchmarks."""

import copy
import warnings

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._optional_dependencies import check_matplotlib_support
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    column_or_1d,
)

from sklearn_gn.callbacks import _Callback
from sklearn_gn.plotting._common import (
    axes_or_new,
    benchmark_problem,
    fitted_attribute,
    method_styles,
    numbers,
    panels_or_new,
)
from sklearn_gn.varpro.classifier import VarProNetClassifier

_LEGEND = {  # of the methods of the benchmarks
    "gnvpro": "GNvpro",
    "lbfgs_vpro": "L-BFGSvpro",
    "gn": "Full GN",
    "fgn": "FGN",
    "adam": "Adam",
    "sgd": "SGD",
}
_STYLES = {  # the same in every picture
    "GNvpro": {"color": "tab:red"},
    "L-BFGSvpro": {"color": "tab:purple"},
    "Full GN": {"color": "tab:brown"},
    "FGN": {"color": "tab:green"},
    "Adam": {"color": "tab:blue"},
    "SGD": {"color": "tab:cyan"},
}
_MOST_NAMED_CLASSES = 10  # that fit into a legend
_FAR = 20.0  # how far regions reach beyond the features, relative to their range
_X_LABELS = {"work_units": "Work units", "seconds": "Time (s)"}


class FeatureDisplay:
    """Features of a classifier, and the regions of its last layer, by iteration.

    For networks whose last hidden layer has two units. What variable projection does is
    to be seen here: the hidden layers move the classes apart, and at every iteration
    the straight borders between their regions are the best there are.

    Use :meth:`from_estimator` or :meth:`from_models` to create it.

    Parameters
    ----------
    features : sequence of ndarrays of shape (n_samples, 2)
        Features of the same samples at several iterations.

    output : sequence of ndarrays of shape (3, n_classes) or (3, 1)
        The output layers, with the intercepts in the last row. For two classes one
        column, the logit of the second.

    code : ndarray of shape (n_samples,)
        Number of the class of each sample.

    classes : ndarray of shape (n_classes,)
        Labels of the classes.

    iterations : sequence of int
        Numbers of the iterations.

    name : str, default=None
        Name of the method, written beside the first panel.

    Attributes
    ----------
    accuracy_ : list of float
        Share of the samples in the region of their class, by panel.

    points_ : list of matplotlib PathCollection
        The samples of each panel.

    regions_ : list of matplotlib PolyCollection
        The regions of each panel, for the classes that have one.

    axes_ : ndarray of matplotlib Axes of shape (1, n_iterations)
        All panels.

    ax_ : matplotlib Axes
        The first panel.

    figure_ : matplotlib Figure
        Figure that holds the panels.

    See Also
    --------
    sklearn.inspection.DecisionBoundaryDisplay : The regions in the space of X.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import VarProNetClassifier
    >>> from sklearn_gn.plotting import FeatureDisplay
    >>> X = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    >>> inside = np.sum(X**2, axis=1) < 0.5
    >>> model = VarProNetClassifier(hidden_layer_sizes=(4, 2), random_state=0)
    >>> display = FeatureDisplay.from_estimator(model, X, inside, iterations=(0, 1, 3))
    >>> display.accuracy_[-1] > display.accuracy_[0]
    True
    """

    def __init__(self, *, features, output, code, classes, iterations, name=None):
        self.features = features
        self.output = output
        self.code = code
        self.classes = classes
        self.iterations = iterations
        self.name = name

    def plot(self, ax=None, **kwargs):
        """Draw a panel for every iteration.

        Parameters
        ----------
        ax : matplotlib Axes or array of them, default=None
            Axes to divide into panels, or one for each; those of a new figure where not
            given.

        **kwargs : dict
            Passed to ``ax.scatter`` for the samples.

        Returns
        -------
        display : FeatureDisplay
            The object itself.
        """
        check_matplotlib_support(f"{type(self).__name__}.plot")
        axes = panels_or_new(ax, 1, len(self.features), size=(2.6, 2.8), share=True)
        colors = _class_colors(len(self.classes))
        box = _box(self.features)
        self.accuracy_, self.points_, self.regions_ = [], [], []
        for panel, z, output, iteration in zip(
            axes.flat, self.features, self.output, self.iterations, strict=True
        ):
            self.regions_.append(_draw_regions(panel, box, output, colors))
            points = panel.scatter(
                *z.T,
                **{"c": colors[self.code], "s": 5, "linewidths": 0, **kwargs},
            )
            found = np.argmax(_logits(z, output), axis=1)
            accuracy = float(np.mean(found == self.code))
            panel.set_title(
                f"Iteration {iteration}\naccuracy {accuracy:.1%}", fontsize="medium"
            )
            panel.set_xlabel("First feature")
            self.points_.append(points)
            self.accuracy_.append(accuracy)
        first, last = axes[0, 0], axes[0, -1]
        label = "Second feature"
        first.set_ylabel(label if self.name is None else f"{self.name}\n{label}")
        self._draw_legend(last, colors)
        self.axes_ = axes
        self.ax_ = first
        self.figure_ = first.figure
        return self

    def _draw_legend(self, ax, colors):
        from matplotlib.lines import Line2D

        if len(self.classes) > _MOST_NAMED_CLASSES:
            return
        style = {"linestyle": "none", "marker": "o", "markersize": 4}
        handles = [
            Line2D([], [], color=color, label=str(label), **style)
            for color, label in zip(colors, self.classes, strict=True)
        ]
        ax.legend(
            handles=handles,
            title="Class",
            loc="center left",
            bbox_to_anchor=(1, 0.5),
            frameon=False,
        )

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        y,
        *,
        iterations=(0, 1, 2, 5, 10),
        name=None,
        ax=None,
        **kwargs,
    ):
        """Fit a copy of an estimator and draw what its features do on the way.

        Parameters
        ----------
        estimator : estimator
            A :class:`~sklearn_gn.VarProNetClassifier`, fitted or not, with two units in
            its last hidden layer. With an integer as ``random_state`` the copy goes the
            same way as the estimator. Its callbacks are not called.

        X : array-like of shape (n_samples, n_features)
            Samples to fit and to draw.

        y : array-like of shape (n_samples,)
            Their classes.

        iterations : sequence of int, default=(0, 1, 2, 5, 10)
            Iterations to draw; 0 is the network before the first. The fit is ended
            after the largest. If it ends earlier by itself, its last iteration stands
            for all that would follow.

        name : str, default=None
            Name of the method, written beside the first panel.

        ax : matplotlib Axes or array of them, default=None
            Axes to divide into panels, or one for each; those of a new figure where not
            given.

        **kwargs : dict
            Passed to ``ax.scatter`` for the samples.

        Returns
        -------
        display : FeatureDisplay
            Display that holds the features and the drawn objects.

        Raises
        ------
        ValueError
            If the last hidden layer has not two units, if the estimator is of another
            kind, or if an iteration is negative.
        """
        check_matplotlib_support(f"{cls.__name__}.from_estimator")
        wanted = sorted(set(iterations))
        if not wanted or wanted[0] < 0:
            raise ValueError(
                f"iterations must be non-negative numbers, got {iterations!r}."
            )
        if not isinstance(estimator, VarProNetClassifier):
            raise ValueError(
                "FeatureDisplay fits a VarProNetClassifier, got "
                f"{type(estimator).__name__}; of a pipeline give the last step."
            )
        recorder = _Recorder(X, wanted)
        fitted = clone(estimator).set_callbacks(recorder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted.fit(X, y)
        if wanted[-1] > fitted.n_iter_:
            recorder.record(fitted.n_iter_, fitted)
        shots = dict(sorted(recorder.shots.items()))
        return cls(
            features=[z for z, _ in shots.values()],
            output=[output for _, output in shots.values()],
            code=_codes(fitted.classes_, y),
            classes=fitted.classes_,
            iterations=list(shots),
            name=name,
        ).plot(ax, **kwargs)

    @classmethod
    def from_models(cls, models, X, y, *, name=None, ax=None, **kwargs):
        """Draw models that were recorded during a fit, or fitted one by one.

        Parameters
        ----------
        models : dict of estimators
            Classifiers by number of the iteration: what a callback gets as
            ``fitted_estimator``, or fitted ones.

        X : array-like of shape (n_samples, n_features)
            Samples to draw.

        y : array-like of shape (n_samples,)
            Their classes.

        name : str, default=None
            Name of the method, written beside the first panel.

        ax : matplotlib Axes or array of them, default=None
            Axes to divide into panels, or one for each; those of a new figure where not
            given.

        **kwargs : dict
            Passed to ``ax.scatter`` for the samples.

        Returns
        -------
        display : FeatureDisplay
            Display that holds the features and the drawn objects.

        Raises
        ------
        ValueError
            If there are no models, or if one has not two units in its last hidden
            layer.
        """
        check_matplotlib_support(f"{cls.__name__}.from_models")
        if not models:
            raise ValueError("models is empty.")
        shots = [_features_and_output(model, X) for model in models.values()]
        classes = fitted_attribute(next(iter(models.values())), "classes_")
        return cls(
            features=[z for z, _ in shots],
            output=[output for _, output in shots],
            code=_codes(classes, y),
            classes=classes,
            iterations=list(models),
            name=name,
        ).plot(ax, **kwargs)


class _Recorder(_Callback):
    """Callback that keeps features and output layer at some iterations."""

    def __init__(self, X, iterations):
        self.X = X
        self.iterations = iterations
        self.shots = {}

    def on_fit_task_begin(self, estimator, context):
        """Keep the network before the first iteration."""
        if context.task_name == "iteration" and context.task_id == 0:
            self._start = estimator._fit_run.best_net

    def on_fit_task_end(self, estimator, context, *, fitted_estimator):
        """Record the model after an iteration; stop after the last one wanted."""
        if context.task_name != "iteration":
            return False
        iteration = context.task_id + 1
        if iteration == 1 and 0 in self.iterations:
            model, _, scaling = fitted_estimator._fitted
            first = copy.copy(fitted_estimator)
            first._fitted = model, self._start, scaling
            self.record(0, first)
        if iteration in self.iterations:
            self.record(iteration, fitted_estimator)
        return iteration >= self.iterations[-1]

    def record(self, iteration, model):
        """Keep what is drawn of a model."""
        self.shots[iteration] = _features_and_output(model, self.X)


def _features_and_output(model, X):
    """Two features of every sample, and the output layer on them."""
    if not hasattr(model, "_fitted") or not hasattr(model, "transform"):
        raise ValueError(
            f"{type(model).__name__} is not a fitted VarProNetClassifier; of a "
            "pipeline give the last step."
        )
    _, net, _ = model._fitted  # all that models seen by a callback have
    z = model.transform(X)
    if z.shape[1] != 2:
        raise ValueError(
            "FeatureDisplay draws two features, the last hidden layer of this network "
            f"has {z.shape[1]} units."
        )
    return z, np.asarray(net.output, dtype=float)


def _codes(classes, y):
    """Numbers of the classes of y."""
    y = column_or_1d(y)
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise ValueError(
            "y holds labels that are not among classes_ of the estimator: "
            f"{np.unique(y[unknown]).tolist()}."
        )
    return np.searchsorted(classes, y)


def _logits(z, output):
    """Logits of all classes."""
    values = z @ output[:-1] + output[-1]
    return values if values.shape[1] > 1 else np.hstack([np.zeros_like(values), values])


def _class_colors(n_classes):
    """A colour for every class, as an array of RGB rows."""
    from matplotlib import colormaps

    for name in ("tab10", "tab20"):
        if n_classes <= colormaps[name].N:
            return colormaps[name](np.arange(n_classes))[:, :3]
    return colormaps["turbo"](np.linspace(0, 1, n_classes))[:, :3]


def _box(features):
    """Corners of a box far around the features of all panels.

    Axes that are shared with other panels may show more than these features.
    """
    stacked = np.concatenate(features)
    low, high = stacked.min(axis=0), stacked.max(axis=0)
    margin = _FAR * np.where(high > low, high - low, 1.0)
    return low - margin, high + margin


def _draw_regions(ax, box, output, colors):
    """Pale colours of the likeliest class, with black borders."""
    from matplotlib.collections import PolyCollection

    polygons, faces = [], []
    for k, color in enumerate(colors):
        polygon = _region(output, k, box)
        if len(polygon):
            polygons.append(polygon)
            faces.append(0.3 * color + 0.7)
    return ax.add_collection(
        PolyCollection(
            polygons, facecolors=faces, edgecolors="black", linewidths=0.7, zorder=0
        ),
        autolim=False,
    )


def _region(output, k, box):
    """Corners of the convex region of class k in a box."""
    (x0, y0), (x1, y1) = box
    polygon = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
    for other in range(max(2, output.shape[1])):
        if other == k or not len(polygon):
            continue
        logits = _logits(polygon, output)
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


class WorkDisplay:
    """Loss of several fits over the work they took, training and validation.

    A work unit is a pass over all rows, forward or backward. Unlike seconds it does not
    depend on the machine, and unlike iterations it makes methods comparable. It leaves
    out the linear algebra, so look at the seconds too.

    Use :meth:`from_estimators` or :meth:`from_benchmark` to create it.

    Parameters
    ----------
    curves : dict of dicts of array-likes of shape (n_points,)
        By name of the fit. Keys are ``train``, the loss, ``work_units`` or ``seconds``
        or both, and optionally ``validation`` and ``level``, the number of the level of
        a network that is refined on the way.

    quantity : str, default="Loss"
        What the curves show, the label of the vertical axis.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D
        The training loss of every fit.

    validation_lines_ : list of matplotlib Line2D
        The validation losses, where there are some.

    levels_ : list of matplotlib Line2D
        A vertical line for every refinement, black where several fits share it. Where
        fits are refined at different places, the marks on the curve of each.

    ax_ : matplotlib Axes
        Axes with the curves.

    figure_ : matplotlib Figure
        Figure that holds the axes.

    See Also
    --------
    ConvergenceDisplay : The loss of one fit over its iterations.

    Examples
    --------
    >>> from sklearn_gn.plotting import WorkDisplay
    >>> curve = {
    ...     "work_units": [5, 10, 15, 20],
    ...     "train": [1.0, 0.5, 0.2, 0.1],
    ...     "level": [0, 0, 1, 1],
    ... }
    >>> display = WorkDisplay(curves={"GNvpro": curve}).plot()
    >>> [float(line.get_xdata()[0]) for line in display.levels_]
    [10.0]
    """

    def __init__(self, *, curves, quantity="Loss"):
        self.curves = curves
        self.quantity = quantity

    def plot(self, ax=None, *, x="work_units", yscale="log", **kwargs):
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        x : {"work_units", "seconds"}, default="work_units"
            Horizontal axis.

        yscale : {"log", "linear"}, default="log"
            Scale of the vertical axis.

        **kwargs : dict
            Passed to ``ax.plot`` for the curves.

        Returns
        -------
        display : WorkDisplay
            The object itself.
        """
        check_matplotlib_support(f"{type(self).__name__}.plot")
        self._check(x)
        ax = axes_or_new(ax)
        self.lines_, self.validation_lines_ = [], []
        for style, curve in zip(
            method_styles(self.curves, _STYLES), self.curves.values(), strict=True
        ):
            (line,) = ax.plot(curve[x], curve["train"], **{**style, **kwargs})
            self.lines_.append(line)
            validation = numbers(curve.get("validation", ()))
            if np.isfinite(validation).any():
                dashed = {"color": line.get_color(), **kwargs, "linestyle": "--"}
                self.validation_lines_ += ax.plot(curve[x], validation, **dashed)
        self.levels_ = self._draw_levels(ax, x)
        ax.set_yscale(yscale, **({"nonpositive": "mask"} if yscale == "log" else {}))
        ax.set(xlabel=_X_LABELS[x], ylabel=self.quantity)
        handles = [*self.lines_, *self._keys()]
        _make_room(ax, rows=-(-len(handles) // 2))
        ax.legend(handles=handles, loc="upper right", ncols=2, fontsize="small")
        self.ax_ = ax
        self.figure_ = ax.figure
        return self

    def _check(self, x):
        _check_x(x)
        for name, curve in self.curves.items():
            for column in (x, "train"):
                if column not in curve:
                    raise ValueError(f"The curve of {name!r} has no {column!r}.")

    def _draw_levels(self, ax, x):
        """Marks at the last point of every level but the last."""
        ends = []
        for line, curve in zip(self.lines_, self.curves.values(), strict=True):
            last = np.flatnonzero(np.diff(np.asarray(curve.get("level", ()))))
            if len(last):
                ends.append((line.get_color(), line.get_xydata()[last].T))
        places = {tuple(x) for _, (x, _) in ends}
        if len(places) > 1:  # lines across the axes would not tell whose they are
            style = {"linestyle": "none", "marker": "|", "markersize": 16}
            return [
                line
                for color, (x, y) in ends
                for line in ax.plot(x, y, color=color, markeredgewidth=2, **style)
            ]
        color = ends[0][0] if len(ends) == 1 else "black"
        return [
            ax.axvline(end, color=color, linestyle=":", linewidth=1, zorder=0)
            for place in places
            for end in place
        ]

    def _keys(self):
        """Entries of the legend that say what the dashes mean."""
        from matplotlib.lines import Line2D

        keys = []
        if self.validation_lines_:
            keys += [("Training", {}), ("Validation", {"linestyle": "--"})]
        if self.levels_:
            first = self.levels_[0]
            style = {"linestyle": first.get_linestyle(), "marker": first.get_marker()}
            keys.append(("Refinement", {"markersize": 10, **style}))
        return [
            Line2D([], [], color="black", linewidth=1, label=label, **style)
            for label, style in keys
        ]

    @classmethod
    def from_estimators(cls, estimators, *, x="work_units", ax=None, **kwargs):
        """Draw the logs of fitted estimators.

        Parameters
        ----------
        estimators : dict of estimators
            Fitted estimators by name, whose ``convergence_log_`` has a column
            ``work_units``.

        x : {"work_units", "seconds"}, default="work_units"
            Horizontal axis. Seconds are counted from the begin of a fit, compilation
            included.

        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for the curves.

        Returns
        -------
        display : WorkDisplay
            Display that holds the curves and the drawn lines.

        Raises
        ------
        ValueError
            If an estimator has no such log.
        """
        check_matplotlib_support(f"{cls.__name__}.from_estimators")
        curves = {}
        for name, estimator in estimators.items():
            log = fitted_attribute(estimator, "convergence_log_")
            if "work_units" not in log:
                raise ValueError(
                    f"The log of {name!r}, a {type(estimator).__name__}, has no work "
                    "units."
                )
            curves[name] = {
                "work_units": log["work_units"],
                "seconds": log["time"],
                "train": log["loss"],
                "validation": log["val_loss"],
                "level": log["level"],
            }
        return cls(curves=curves).plot(ax, x=x, **kwargs)

    @classmethod
    def from_benchmark(
        cls,
        result,
        problem,
        *,
        methods=None,
        quantity="Relative error",
        x="work_units",
        yscale="log",
        ax=None,
        **kwargs,
    ):
        """Draw a result of a benchmark that records curves.

        Parameters
        ----------
        result : dict or path-like
            The result, or the JSON file that holds it.

        problem : str
            Name of the problem, which has ``curves`` by method.

        methods : sequence of str, default=None
            Names of the methods to draw; None draws all that have the column ``x``.

        quantity : str, default="Relative error"
            What the curves of this benchmark show, the label of the vertical axis.

        x : {"work_units", "seconds"}, default="work_units"
            Horizontal axis.

        yscale : {"log", "linear"}, default="log"
            Scale of the vertical axis; "linear" for accuracies.

        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for the curves.

        Returns
        -------
        display : WorkDisplay
            Display that holds the curves and the drawn lines.

        Raises
        ------
        ValueError
            If the result has no such problem, or no curves of a method.
        """
        check_matplotlib_support(f"{cls.__name__}.from_benchmark")
        _check_x(x)
        found = benchmark_problem(result, problem).get("curves", {})
        if methods is None:
            methods = [name for name, curve in found.items() if x in curve]
        curves = {}
        for method in methods:
            if method not in found:
                raise ValueError(
                    f"result has no curves of {method!r} in problem={problem!r}; it "
                    f"has those of {sorted(found)}."
                )
            curves[_LEGEND.get(method, method)] = {
                column: numbers(values) for column, values in found[method].items()
            }
        if not curves:
            raise ValueError(f"result has no curves in problem={problem!r}.")
        return cls(curves=curves, quantity=quantity).plot(
            ax, x=x, yscale=yscale, **kwargs
        )


def _make_room(ax, rows):
    """Raise the upper limit for a legend of some rows above the curves."""
    share = 0.05 * (rows + 1)
    to_axis = ax.transData.transform
    low, high = (to_axis((ax.get_xlim()[0], y))[1] for y in ax.get_ylim())
    top = low + (high - low) / (1 - share)
    ax.set_ylim(top=ax.transData.inverted().transform((0, top))[1])


def _check_x(x):
    if x not in _X_LABELS:
        raise ValueError(f"x must be one of {sorted(_X_LABELS)}, got {x!r}.")


class SurrogateDisplay:
    """True and predicted outputs of a surrogate model, for single samples.

    Outputs are drawn as curves, as fields on a plane grid, or all samples together as a
    matrix.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    true : ndarray of shape (n_samples, n_outputs)
        True outputs of the samples to draw.

    predicted : ndarray of shape (n_samples, n_outputs)
        Their predictions.

    rows : ndarray of shape (n_samples,)
        Numbers of the samples, for the titles.

    positions : ndarray of shape (n_positions,), default=None
        Coordinates of the outputs on a common axis, such as time. With fewer positions
        than outputs, these are several curves, one after another.

    position_name : str, default=None
        What the coordinates are, the label of the axis.

    shape : tuple of int, default=None
        Height and width of the grid of the outputs. With more outputs than grid points,
        these are several fields, one after another.

    Attributes
    ----------
    error_ : ndarray of shape (n_samples,)
        Relative errors of the samples, in the Euclidean norm.

    true_ : list
        What is drawn of the true outputs: Line2D objects, or AxesImage objects.

    predicted_ : list
        The same of the predictions.

    errors_ : list of AxesImage
        Prediction minus truth; only of fields and matrices.

    axes_ : ndarray of matplotlib Axes
        All panels: a row of samples for curves, else three columns, for fields with a
        row for every sample.

    ax_ : matplotlib Axes
        The first panel.

    figure_ : matplotlib Figure
        Figure that holds the panels.

    See Also
    --------
    sklearn.metrics.PredictionErrorDisplay : For a single output.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn_gn.plotting import SurrogateDisplay
    >>> time = np.linspace(0, 1, 20)
    >>> X = np.random.default_rng(0).uniform(1, 2, (50, 2))
    >>> Y = X[:, :1] * np.exp(-X[:, 1:] * time)
    >>> model = Ridge(1e-3).fit(X[:40], Y[:40])
    >>> display = SurrogateDisplay.from_estimator(model, X[40:], Y[40:], positions=time)
    >>> display.axes_.shape
    (1, 3)
    """

    def __init__(
        self,
        *,
        true,
        predicted,
        rows,
        positions=None,
        position_name=None,
        shape=None,
    ):
        self.true = true
        self.predicted = predicted
        self.rows = rows
        self.positions = positions
        self.position_name = position_name
        self.shape = shape

    def plot(self, ax=None, *, kind=None, log=False, **kwargs):
        """Draw truth and prediction, and for images the difference.

        Parameters
        ----------
        ax : matplotlib Axes or array of them, default=None
            Axes to divide into panels, or one for each; those of a new figure where not
            given.

        kind : {"curves", "fields", "matrix"}, default=None
            None draws fields where there is a ``shape``, else curves. The matrix has a
            column for every sample and a row for every output.

        log : bool, default=False
            Whether images show absolute values on a logarithmic scale of four decades.
            Else the error has a scale of its own.

        **kwargs : dict
            Passed to ``ax.plot`` for the predictions, or to ``ax.imshow`` for the true
            and predicted images.

        Returns
        -------
        display : SurrogateDisplay
            The object itself.
        """
        check_matplotlib_support(f"{type(self).__name__}.plot")
        kind = _surrogate_kind(kind, self.shape)
        draw = self._plot_curves if kind == "curves" else self._plot_images
        self.error_ = _relative_errors(self.true, self.predicted)
        self.true_, self.predicted_, self.errors_ = [], [], []
        self.axes_ = draw(ax, kind, log, kwargs)
        self.ax_ = self.axes_[0, 0]
        self.figure_ = self.ax_.figure
        return self

    def _title(self, i):
        return f"Sample {self.rows[i]}, error {100 * self.error_[i]:.3g}%"

    def _plot_curves(self, ax, kind, log, kwargs):
        from matplotlib import colormaps

        axes = panels_or_new(ax, 1, len(self.true), size=(3.4, 2.8))
        n_outputs = self.true.shape[1]
        x = np.arange(n_outputs) if self.positions is None else self.positions
        n_curves = n_outputs // len(x)
        palette = colormaps["tab10" if n_curves <= 10 else "tab20"]
        for i, panel in enumerate(axes.flat):
            for k in range(n_curves):
                part = slice(k * len(x), (k + 1) * len(x))
                color = palette(k % palette.N)
                first = i == k == 0
                self.true_ += panel.plot(
                    x,
                    self.true[i, part],
                    color=color,
                    alpha=0.35,
                    linewidth=5,
                    solid_capstyle="round",
                    label="True" if first else None,
                )
                style = {"color": color, "label": "Predicted" if first else None}
                self.predicted_ += panel.plot(
                    x, self.predicted[i, part], **{**style, **kwargs}
                )
            panel.set_title(self._title(i), fontsize="medium")
            default = "Output" if self.positions is None else "Position"
            panel.set_xlabel(self.position_name or default)
        axes[0, 0].legend()
        return axes

    def _plot_images(self, ax, kind, log, kwargs):
        if kind == "matrix":
            images = [(self.true.T, self.predicted.T)]
            size, layout = (3.8, 3.2), "constrained"
            kwargs = {"aspect": "auto", **kwargs}
        else:
            images = [
                tuple(_side_by_side(a, self.shape) for a in pair)
                for pair in zip(self.true, self.predicted, strict=True)
            ]
            height, width = images[0][0].shape
            size, layout = (0.6 + 2.4 * min(width / height, 2.5), 2.6), "compressed"
        axes = panels_or_new(ax, len(images), 3, size=size, layout=layout)
        for i, (row, (true, predicted)) in enumerate(zip(axes, images, strict=True)):
            self._draw_triple(row, true, predicted, log, kwargs)
            if kind == "matrix":
                row[0].set_ylabel("Output")
                for panel in row:
                    panel.set_xlabel("Sample")
            else:
                for panel in row:
                    panel.set(xticks=[], yticks=[])
                row[0].set_ylabel(self._title(i))
        for panel, title in zip(axes[0], ("True", "Predicted", "Error"), strict=True):
            panel.set_title(f"|{title}|" if log else title, fontsize="medium")
        return axes

    def _draw_triple(self, row, true, predicted, log, kwargs):
        from matplotlib.colors import LogNorm, Normalize

        error = predicted - true
        if log:
            true, predicted, error = (np.abs(a) for a in (true, predicted, error))
            top = float(np.nanmax(true)) or 1.0
            norm, error_norm = LogNorm(1e-4 * top, top, clip=True), None
            error_style = {**kwargs, "norm": norm}
        else:
            norm = Normalize(float(np.nanmin(true)), float(np.nanmax(true)))
            largest = float(np.nanmax(np.abs(error))) or 1.0
            error_norm = Normalize(-largest, largest)
            error_style = {**kwargs, "cmap": "RdBu_r", "norm": error_norm}
        style = {"interpolation": "nearest", "norm": norm, **kwargs}
        self.true_.append(row[0].imshow(true, **style))
        self.predicted_.append(row[1].imshow(predicted, **style))
        error_style = {"interpolation": "nearest", **error_style}
        self.errors_.append(row[2].imshow(error, **error_style))
        figure = row[0].figure
        figure.colorbar(self.predicted_[-1], ax=row[1])
        figure.colorbar(self.errors_[-1], ax=row[2])

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        Y,
        *,
        samples=None,
        kind=None,
        positions=None,
        position_name=None,
        shape=None,
        log=False,
        ax=None,
        **kwargs,
    ):
        """Draw predictions of a fitted regressor beside the true outputs.

        Parameters
        ----------
        estimator : estimator
            A fitted regressor of several outputs, or a pipeline that ends in one.

        X : array-like of shape (n_samples, n_features)
            Samples, best of all such that were not used in the fit.

        Y : array-like of shape (n_samples, n_outputs)
            Their true outputs.

        samples : int or sequence of int, default=None
            Which samples to draw: these rows, or so many that their relative errors are
            spread evenly from the smallest to the largest. None draws three of them, in
            a matrix all samples.

        kind : {"curves", "fields", "matrix"}, default=None
            See :meth:`plot`.

        positions : array-like of shape (n_positions,), default=None
            Coordinates of the outputs on a common axis, such as time. With fewer
            positions than outputs, these are several curves, one after another.

        position_name : str, default=None
            What the coordinates are, the label of the axis.

        shape : tuple of int, default=None
            Height and width of the grid of the outputs. With more outputs than grid
            points, these are several fields, one after another.

        log : bool, default=False
            Whether images show absolute values on a logarithmic scale.

        ax : matplotlib Axes or array of them, default=None
            Axes to divide into panels, or one for each; those of a new figure where not
            given.

        **kwargs : dict
            Passed to ``ax.plot`` for the predictions, or to ``ax.imshow`` for the true
            and predicted images.

        Returns
        -------
        display : SurrogateDisplay
            Display that holds the outputs and the drawn objects.

        Raises
        ------
        ValueError
            If there is a single output, or if Y, positions or shape do not fit.
        """
        check_matplotlib_support(f"{cls.__name__}.from_estimator")
        kind = _surrogate_kind(kind, shape)
        true = check_array(Y, dtype=np.float64, input_name="Y", ensure_2d=False)
        if true.ndim != 2 or true.shape[1] < 2:
            raise ValueError(
                "SurrogateDisplay draws several outputs; for a single one there is "
                "PredictionErrorDisplay in sklearn.metrics."
            )
        check_consistent_length(X, true)
        positions = None if positions is None else column_or_1d(positions)
        _check_layout(true.shape[1], positions, shape)
        predicted = np.asarray(estimator.predict(X), dtype=float)
        if predicted.shape != true.shape:
            raise ValueError(
                f"Y has {true.shape[1]} outputs, the predictions have the shape "
                f"{predicted.shape}."
            )
        if samples is None:
            samples = len(true) if kind == "matrix" else 3
        if np.ndim(samples) == 0:
            chosen = _spread(_relative_errors(true, predicted), int(samples))
            chosen = np.sort(chosen) if kind == "matrix" else chosen
        else:
            chosen = np.asarray(samples)
        return cls(
            true=true[chosen],
            predicted=predicted[chosen],
            rows=chosen,
            positions=positions,
            position_name=position_name,
            shape=shape,
        ).plot(ax, kind=kind, log=log, **kwargs)


def _surrogate_kind(kind, shape):
    kinds = ("curves", "fields", "matrix")
    if kind is None:
        return "curves" if shape is None else "fields"
    if kind not in kinds:
        raise ValueError(f"kind must be one of {list(kinds)}, got {kind!r}.")
    if kind == "fields" and shape is None:
        raise ValueError("kind='fields' needs the shape of the grid.")
    return kind


def _check_layout(n_outputs, positions, shape):
    if positions is not None and n_outputs % len(positions):
        raise ValueError(
            f"{n_outputs} outputs are not a multiple of {len(positions)} positions."
        )
    if shape is not None and n_outputs % int(np.prod(shape)):
        raise ValueError(
            f"{n_outputs} outputs are not a multiple of the grid points of "
            f"shape={tuple(shape)}."
        )


def _relative_errors(true, predicted):
    """``|predicted - true| / |true|`` by row; absolute where the truth is zero."""
    size = np.linalg.norm(true, axis=1)
    return np.linalg.norm(predicted - true, axis=1) / np.where(size > 0, size, 1)


def _spread(error, n):
    """Rows of the smallest error, of the largest, and evenly between them."""
    order = np.argsort(error, kind="stable")
    ranks = np.linspace(0, len(order) - 1, min(n, len(order)))
    return order[np.round(ranks).astype(int)]


def _side_by_side(values, shape):
    """Fields of one sample beside each other, with an empty column between them."""
    fields = values.reshape(-1, *shape)
    gap = np.full((shape[0], 1), np.nan)
    parts = [part for field in fields for part in (gap, field)]
    return np.hstack(parts[1:])


class TaylorDisplay:
    """Errors of Taylor expansions of the reduced objective over the length of the step.

    With the exact output layer, the error of the expansion of order 0 falls like
    :math:`h` and that of order 1 like :math:`h^2`. Where the inner problem is solved
    only to a tolerance, the gradient of variable projection is not exact, and below
    some :math:`h` the second error falls like :math:`h` as well.

    Use :meth:`from_network` to create it.

    Parameters
    ----------
    steps : array-like of shape (n_steps,)
        Lengths of the steps.

    zeroth : dict of array-likes of shape (n_steps,)
        Errors of the expansion of order 0, by tolerance of the inner problem.

    first : dict of array-likes of shape (n_steps,)
        Errors of the expansion of order 1.

    Attributes
    ----------
    zeroth_ : list of matplotlib Line2D
        The errors of order 0, dashed.

    first_ : list of matplotlib Line2D
        The errors of order 1.

    slopes_ : list of matplotlib Line2D
        The slopes of :math:`h` and :math:`h^2`, dotted.

    ax_ : matplotlib Axes
        Axes with the curves.

    figure_ : matplotlib Figure
        Figure that holds the axes.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn.plotting import TaylorDisplay
    >>> h = np.logspace(0, -4, 5)
    >>> display = TaylorDisplay(
    ...     steps=h, zeroth={"1e-10": h}, first={"1e-10": h**2}
    ... ).plot()
    >>> display.ax_.get_xscale()
    'log'
    """

    def __init__(self, *, steps, zeroth, first):
        self.steps = steps
        self.zeroth = zeroth
        self.first = first

    def plot(self, ax=None, **kwargs):
        """Draw the errors and the slopes to compare them with.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for the errors.

        Returns
        -------
        display : TaylorDisplay
            The object itself.
        """
        check_matplotlib_support(f"{type(self).__name__}.plot")
        from matplotlib import colormaps
        from matplotlib.lines import Line2D

        ax = axes_or_new(ax)
        h = np.asarray(self.steps, dtype=float)
        shades = colormaps["viridis"](np.linspace(0.9, 0, len(self.first)))
        self.zeroth_, self.first_ = [], []
        for color, (tol, errors) in zip(shades, self.first.items(), strict=True):
            style = {"color": color, "marker": "o", "markersize": 3}
            self.first_ += ax.plot(h, errors, **{**style, "label": tol, **kwargs})
            dashed = {"color": color, **kwargs, "linestyle": "--"}
            self.zeroth_ += ax.plot(h, self.zeroth[tol], **dashed)
        self.slopes_ = self._draw_slopes(ax, h)
        ax.set_xscale("log")
        ax.set_yscale("log", nonpositive="mask")
        ax.set(xlabel="Length of the step $h$", ylabel="Error")
        keys = [("--", "Order 0"), ("-", "Order 1"), (":", "$h$ and $h^2$")]
        handles = [
            Line2D([], [], color="black", linestyle=dash, label=label)
            for dash, label in keys
        ]
        ax.set_ylim(top=30 * ax.get_ylim()[1])  # room for the first legend
        ax.add_artist(ax.legend(handles=handles, loc="upper left", ncols=3))
        ax.legend(handles=self.first_, title="Inner tolerance", loc="lower right")
        self.ax_ = ax
        self.figure_ = ax.figure
        return self

    def _draw_slopes(self, ax, h):
        """Slopes through the largest step of the last tolerance, a little above."""
        slopes = []
        for errors, order in ((self.zeroth, 1), (self.first, 2)):
            values = numbers(list(errors.values())[-1])
            largest = np.argmax(h)
            line = 3 * values[largest] * (h / h[largest]) ** order
            floor = min(v[v > 0].min() for v in map(numbers, self.first.values()))
            line = np.where(line < floor / 3, np.nan, line)
            slopes += ax.plot(h, line, color="black", linestyle=":", linewidth=1)
        return slopes

    @classmethod
    def from_network(
        cls,
        network,
        X,
        y,
        *,
        tolerances=(1e-2, 1e-3, 1e-5, 1e-10),
        steps=None,
        rank=100,
        alpha=5e-6,
        alpha_output=1e-8,
        random_state=None,
        ax=None,
        **kwargs,
    ):
        """Compute the errors for a network with random weights, and draw them.

        The inner problem is a multinomial logistic regression on the features of the
        network. It is solved from zero by Newton's method, with few iterations of
        conjugate gradients a step, until its gradient is as small as the tolerance.

        Parameters
        ----------
        network : object
            With ``init(key, x)`` and ``apply(parameters, x)``, or one of
            :mod:`sklearn_gn.networks`.

        X : array-like of shape (n_samples, n_features)
            Samples, of size one.

        y : array-like of shape (n_samples,)
            Their classes.

        tolerances : sequence of float, default=(1e-2, 1e-3, 1e-5, 1e-10)
            Sizes of the gradient at which the inner iteration is ended.

        steps : array-like of shape (n_steps,), default=None
            Lengths of the steps in a random direction of length one; None takes 17 from
            1 to 1e-8.

        rank : int, default=100
            Most iterations of conjugate gradients in an inner Newton step. With too few
            the small tolerances are not reached, of which a warning tells.

        alpha : float, default=5e-6
            Penalty of the weights of the network.

        alpha_output : float, default=1e-8
            Penalty of the output layer.

        random_state : int, RandomState instance or None, default=None
            Seed of the weights and the direction.

        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for the errors.

        Returns
        -------
        display : TaylorDisplay
            Display that holds the errors and the drawn lines.
        """
        check_matplotlib_support(f"{cls.__name__}.from_network")
        from sklearn_gn.plotting._taylor import taylor_errors

        answer = taylor_errors(
            network,
            X,
            y,
            tolerances=tolerances,
            steps=np.logspace(0, -8, 17) if steps is None else steps,
            rank=rank,
            alpha=alpha,
            alpha_output=alpha_output,
            random_state=random_state,
        )
        for tol, reached in answer["inner_gradient"].items():
            if reached > 2 * float(tol):
                warnings.warn(
                    f"The inner iteration reached {reached:.1e}, not the tolerance "
                    f"{tol}. Raise rank.",
                    ConvergenceWarning,
                    stacklevel=2,
                )
        return cls(**{k: answer[k] for k in ("steps", "zeroth", "first")}).plot(
            ax, **kwargs
        )
