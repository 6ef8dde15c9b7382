"""Displays of softmax heads and of the benchmarks of their solvers."""

import itertools

import numpy as np
from scipy.special import softmax
from sklearn.utils._optional_dependencies import check_matplotlib_support
from sklearn.utils.validation import check_consistent_length, column_or_1d

from sklearn_gn.plotting._common import (
    axes_or_new,
    benchmark_problem,
    benchmark_problems,
    fitted_attribute,
    method_styles,
    numbers,
)

_MOST_LABELS = 30  # classes that are labelled one by one
_LEGEND = {  # of the methods of the benchmarks
    "adam": "Adam",
    "fgn": "FGN",
    "sgn": "SGN",
    "fgn_cached": "FGN, Grams kept",
    "fgn_uncached": "FGN, Grams rebuilt",
}
_STYLES = {  # the same in every picture
    "Adam": {"color": "tab:blue"},
    "FGN": {"color": "tab:green"},
    "SGN": {"color": "tab:orange"},
    "FGN, Grams kept": {"color": "tab:green", "linestyle": "--"},
    "FGN, Grams rebuilt": {"color": "tab:green", "linestyle": ":"},
}


class DispersionDisplay:
    r"""How widely the probability of an error is spread over the competitors, by class.

    The dispersion of an example is :math:`\xi = 1 - |\rho|^2` with the probabilities
    :math:`\rho` of the wrong classes relative to each other: 0 with a single
    competitor, :math:`1 - 1 / (C - 1)` where all are alike. The curvature that FGN
    drops is proportional to it.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    dispersion : ndarray of shape (n_classes,)
        Mean dispersion of the examples of every class.

    classes : ndarray of shape (n_classes,)
        Labels of the classes.

    training_mean : float, default=None
        Mean dispersion of the training data; None draws none.

    Attributes
    ----------
    points_ : matplotlib Line2D
        The classes in the order of their dispersion.

    training_mean_ : matplotlib Line2D or None
        The training mean.

    ax_ : matplotlib Axes
        Axes with the picture.

    figure_ : matplotlib Figure
        Figure that holds the axes.

    See Also
    --------
    CurvatureTraceDisplay : What the dispersion means for the curvature.

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

    def __init__(self, *, dispersion, classes, training_mean=None):
        self.dispersion = dispersion
        self.classes = classes
        self.training_mean = training_mean

    def plot(self, ax=None, **kwargs):
        """Draw a point for every class, the most concentrated one at the bottom.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for the points.

        Returns
        -------
        display : DispersionDisplay
            The object itself.
        """
        check_matplotlib_support(f"{type(self).__name__}.plot")
        ax = axes_or_new(ax)
        order = np.argsort(self.dispersion, kind="stable")
        position = np.arange(1, len(order) + 1)
        few = len(order) <= _MOST_LABELS
        (self.points_,) = ax.plot(
            np.asarray(self.dispersion)[order],
            position,
            **{
                "linestyle": "none",
                "marker": "o",
                "markersize": 5 if few else 2,
                "label": "Mean of a class",
                **kwargs,
            },
        )
        self.training_mean_ = None
        if self.training_mean is not None:
            self.training_mean_ = ax.axvline(
                self.training_mean,
                color="black",
                linestyle="--",
                linewidth=1,
                label="Training mean",
            )
        if few:
            ax.set_yticks(position, np.asarray(self.classes)[order])
            ax.grid(axis="y", linewidth=0.5, alpha=0.5)
        ax.set(
            xlabel=r"Competitor dispersion $\xi$",
            ylabel="Class" if few else "Class, by dispersion",
        )
        ax.legend()
        self.ax_ = ax
        self.figure_ = ax.figure
        return self

    @classmethod
    def from_estimator(cls, estimator, X, y, *, ax=None, **kwargs):
        """Draw the dispersion of a fitted classifier on some samples.

        Parameters
        ----------
        estimator : estimator
            A fitted classifier with ``predict_log_proba``, or a pipeline that ends in
            one.

        X : array-like of shape (n_samples, n_features)
            Samples.

        y : array-like of shape (n_samples,)
            Their classes. A class without samples is left out, and so are samples all
            of whose competitors have probability zero.

        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for the points.

        Returns
        -------
        display : DispersionDisplay
            Display that holds the dispersions and the drawn objects.

        Raises
        ------
        ValueError
            If the estimator gives no probabilities, or if y does not fit to it or to X.
        """
        check_matplotlib_support(f"{cls.__name__}.from_estimator")
        classes = fitted_attribute(estimator, "classes_")
        log_proba = fitted_attribute(estimator, "predict_log_proba")
        y = column_or_1d(y)
        check_consistent_length(X, y)
        unknown = ~np.isin(y, classes)
        if unknown.any():
            raise ValueError(
                "y holds labels that are not among classes_ of the estimator: "
                f"{np.unique(y[unknown]).tolist()}."
            )
        label = np.searchsorted(classes, y)
        xi = _dispersion(log_proba(X), label)
        known = np.isfinite(xi)
        count = np.bincount(label[known], minlength=len(classes))
        total = np.bincount(label[known], xi[known], minlength=len(classes))
        seen = count > 0
        last = estimator[-1] if hasattr(estimator, "steps") else estimator
        return cls(
            dispersion=total[seen] / count[seen],
            classes=classes[seen],
            training_mean=getattr(last, "competitor_dispersion_", None),
        ).plot(ax, **kwargs)


def _dispersion(log_p, label):
    """``xi`` of every sample; NaN where no competitor has any probability.

    The softmax over the competitors' logarithms is their share of ``1 - p_true``,
    without that difference.
    """
    true = label[:, None] == np.arange(log_p.shape[1])
    with np.errstate(invalid="ignore"):
        rho = softmax(np.where(true, -np.inf, log_p), axis=1)
    return np.sum(rho * (1 - rho), axis=1)


class StepTimeDisplay:
    """Seconds per step of several methods over the number of classes.

    Use :meth:`from_benchmark` to create it from the experiment ``fgn_mechanism``.

    Parameters
    ----------
    classes : array-like of shape (n_sizes,)
        Numbers of classes.

    seconds : dict of array-likes of shape (n_sizes,)
        Seconds per step of every method, by name.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D
        A curve for every method.

    ax_ : matplotlib Axes
        Axes with the curves.

    figure_ : matplotlib Figure
        Figure that holds the axes.

    See Also
    --------
    AccuracyTimeDisplay : What the methods make of their seconds.

    Examples
    --------
    >>> from sklearn_gn.plotting import StepTimeDisplay
    >>> seconds = {"Adam": [1e-3, 2e-3], "FGN": [1.1e-3, 1.9e-3]}
    >>> display = StepTimeDisplay(classes=[2, 64], seconds=seconds).plot()
    >>> display.ax_.get_xscale()
    'log'
    """

    def __init__(self, *, classes, seconds):
        self.classes = classes
        self.seconds = seconds

    def plot(self, ax=None, **kwargs):
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for the curves.

        Returns
        -------
        display : StepTimeDisplay
            The object itself.
        """
        check_matplotlib_support(f"{type(self).__name__}.plot")
        ax = axes_or_new(ax)
        self.lines_ = []
        for style, values in zip(
            method_styles(self.seconds, _STYLES), self.seconds.values(), strict=True
        ):
            self.lines_ += ax.plot(
                self.classes,
                values,
                **{"marker": "o", "markersize": 4, **style, **kwargs},
            )
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set(xlabel="Classes", ylabel="Time per step (s)")
        ax.legend()
        self.ax_ = ax
        self.figure_ = ax.figure
        return self

    @classmethod
    def from_benchmark(
        cls, result, *, methods=("sgn", "fgn", "adam"), ax=None, **kwargs
    ):
        """Draw a result of the experiment ``fgn_mechanism``.

        Parameters
        ----------
        result : dict or path-like
            The result, or the JSON file that holds it.

        methods : sequence of str, default=("sgn", "fgn", "adam")
            Names of the methods to draw.

        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for the curves.

        Returns
        -------
        display : StepTimeDisplay
            Display that holds the medians and the drawn lines.

        Raises
        ------
        ValueError
            If the result has no such problem or method.
        """
        check_matplotlib_support(f"{cls.__name__}.from_benchmark")
        sizes = [
            problem
            for name, problem in benchmark_problems(result).items()
            if name.startswith("steps_")
        ]
        if not sizes:
            raise ValueError("result has no problem whose name begins with 'steps_'.")
        sizes.sort(key=lambda problem: problem["classes"])
        return cls(
            classes=np.array([problem["classes"] for problem in sizes]),
            seconds={
                _LEGEND.get(method, method): numbers(
                    _method(problem, method)["summary"]["seconds_per_step"]["median"]
                    for problem in sizes
                )
                for method in methods
            },
        ).plot(ax, **kwargs)


class CurvatureTraceDisplay:
    """Traces of the softmax curvature and of the part that FGN keeps.

    The shaded gap between them is the part that it drops.

    Use :meth:`from_benchmark` to create it from the experiment ``fgn_mechanism``.

    Parameters
    ----------
    dispersion : array-like of shape (n_points,)
        Competitor dispersion.

    retained : array-like of shape (n_points,)
        Trace of the kept part.

    full : array-like of shape (n_points,)
        Trace of the whole.

    Attributes
    ----------
    full_ : matplotlib Line2D
        Trace of the whole.

    retained_ : matplotlib Line2D
        Trace of the kept part.

    gap_ : matplotlib FillBetweenPolyCollection
        What is between them.

    ax_ : matplotlib Axes
        Axes with the curves.

    figure_ : matplotlib Figure
        Figure that holds the axes.

    See Also
    --------
    RetainedDecreaseDisplay : What the gap means for a step.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn.plotting import CurvatureTraceDisplay
    >>> xi, p = np.linspace(0, 0.9), 0.6
    >>> display = CurvatureTraceDisplay(
    ...     dispersion=xi,
    ...     retained=p * (1 - p) * (2 - xi),
    ...     full=2 * p * (1 - p) + (1 - p) ** 2 * xi,
    ... ).plot()
    >>> display.ax_.get_ylabel()
    'Trace'
    """

    def __init__(self, *, dispersion, retained, full):
        self.dispersion = dispersion
        self.retained = retained
        self.full = full

    def plot(self, ax=None, **kwargs):
        """Draw both traces and the gap.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for both curves.

        Returns
        -------
        display : CurvatureTraceDisplay
            The object itself.
        """
        check_matplotlib_support(f"{type(self).__name__}.plot")
        ax = axes_or_new(ax)
        (self.full_,) = ax.plot(
            self.dispersion,
            self.full,
            **{**_STYLES["SGN"], "label": "Full (SGN)", **kwargs},
        )
        (self.retained_,) = ax.plot(
            self.dispersion,
            self.retained,
            **{**_STYLES["FGN"], "label": "Retained (FGN)", **kwargs},
        )
        self.gap_ = ax.fill_between(
            self.dispersion,
            self.retained,
            self.full,
            color="0.85",
            linewidth=0,
            label="Dropped",
        )
        ax.set(xlabel=r"Competitor dispersion $\xi$", ylabel="Trace")
        ax.set_ylim(bottom=0)
        ax.legend(loc="lower left")
        self.ax_ = ax
        self.figure_ = ax.figure
        return self

    @classmethod
    def from_benchmark(cls, result, *, ax=None, **kwargs):
        """Draw a result of the experiment ``fgn_mechanism``.

        Parameters
        ----------
        result : dict or path-like
            The result, or the JSON file that holds it.

        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for both curves.

        Returns
        -------
        display : CurvatureTraceDisplay
            Display that holds the traces and the drawn objects.

        Raises
        ------
        ValueError
            If the result has no such problem.
        """
        check_matplotlib_support(f"{cls.__name__}.from_benchmark")
        problem = benchmark_problem(result, "traces")
        columns = "dispersion", "retained", "full"
        return cls(**{name: numbers(problem[name]) for name in columns}).plot(
            ax, **kwargs
        )


class RetainedDecreaseDisplay:
    """Share of the decrease of the full damped model that FGN's step reaches.

    Use :meth:`from_benchmark` to create it from the experiment ``fgn_mechanism``.

    Parameters
    ----------
    dispersion : array-like of shape (n_points,)
        Competitor dispersion.

    fraction : dict of array-likes of shape (n_points,)
        Share of the decrease, by damping relative to the curvature.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D
        A curve for every damping.

    ax_ : matplotlib Axes
        Axes with the curves.

    figure_ : matplotlib Figure
        Figure that holds the axes.

    See Also
    --------
    CurvatureTraceDisplay : The curvature that the step leaves out.

    Examples
    --------
    >>> from sklearn_gn.plotting import RetainedDecreaseDisplay
    >>> display = RetainedDecreaseDisplay(
    ...     dispersion=[0, 0.5], fraction={"0.1": [1, 0.4], "1": [1, 0.8]}
    ... ).plot()
    >>> [line.get_label() for line in display.lines_]
    ['0.1', '1']
    """

    def __init__(self, *, dispersion, fraction):
        self.dispersion = dispersion
        self.fraction = fraction

    def plot(self, ax=None, **kwargs):
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for the curves.

        Returns
        -------
        display : RetainedDecreaseDisplay
            The object itself.
        """
        check_matplotlib_support(f"{type(self).__name__}.plot")
        ax = axes_or_new(ax)
        self.lines_ = []
        dashes = itertools.cycle(("-", "--", ":", "-."))
        for (damping, values), dash in zip(self.fraction.items(), dashes, strict=False):
            style = {**_STYLES["FGN"], "linestyle": dash, "label": str(damping)}
            self.lines_ += ax.plot(self.dispersion, values, **{**style, **kwargs})
        ax.set(
            xlabel=r"Competitor dispersion $\xi$",
            ylabel="Share of the full decrease",
        )
        ax.legend(title="Relative damping")
        self.ax_ = ax
        self.figure_ = ax.figure
        return self

    @classmethod
    def from_benchmark(cls, result, *, ax=None, **kwargs):
        """Draw a result of the experiment ``fgn_mechanism``.

        Parameters
        ----------
        result : dict or path-like
            The result, or the JSON file that holds it.

        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for the curves.

        Returns
        -------
        display : RetainedDecreaseDisplay
            Display that holds the shares and the drawn lines.

        Raises
        ------
        ValueError
            If the result has no such problem.
        """
        check_matplotlib_support(f"{cls.__name__}.from_benchmark")
        problem = benchmark_problem(result, "decrease")
        return cls(
            dispersion=numbers(problem["dispersion"]),
            fraction={k: numbers(v) for k, v in problem["fraction"].items()},
        ).plot(ax, **kwargs)


class AccuracyTimeDisplay:
    """Test accuracy of several methods over the seconds of their fits.

    Use :meth:`from_benchmark` to create it from the experiment ``fgn_heads``.

    Parameters
    ----------
    curves : dict of dicts of array-likes of shape (n_points,)
        By name of the method, with the keys ``seconds``, ``accuracy_mean`` and
        ``accuracy_std``: mean and standard deviation over the seeds, as shares of 1.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D
        The mean of every method.

    bands_ : list of matplotlib FillBetweenPolyCollection
        One standard deviation to both sides of each.

    ax_ : matplotlib Axes
        Axes with the curves.

    figure_ : matplotlib Figure
        Figure that holds the axes.

    See Also
    --------
    StepTimeDisplay : What a step of each method costs.

    Examples
    --------
    >>> from sklearn_gn.plotting import AccuracyTimeDisplay
    >>> curve = {
    ...     "seconds": [1, 2],
    ...     "accuracy_mean": [0.42, 0.44],
    ...     "accuracy_std": [0.01, 0.01],
    ... }
    >>> display = AccuracyTimeDisplay(curves={"FGN": curve}).plot()
    >>> display.ax_.get_ylabel()
    'Test accuracy'
    """

    def __init__(self, *, curves):
        self.curves = curves

    def plot(self, ax=None, **kwargs):
        """Draw the curves and their bands.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for the curves.

        Returns
        -------
        display : AccuracyTimeDisplay
            The object itself.
        """
        check_matplotlib_support(f"{type(self).__name__}.plot")
        from matplotlib.ticker import PercentFormatter

        ax = axes_or_new(ax)
        self.lines_, self.bands_ = [], []
        for style, curve in zip(
            method_styles(self.curves, _STYLES), self.curves.values(), strict=True
        ):
            mean, std = (np.asarray(curve[f"accuracy_{k}"]) for k in ("mean", "std"))
            (line,) = ax.plot(curve["seconds"], mean, **{**style, **kwargs})
            band = ax.fill_between(
                curve["seconds"],
                mean - std,
                mean + std,
                color=line.get_color(),
                alpha=0.25,
                linewidth=0,
            )
            self.lines_.append(line)
            self.bands_.append(band)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        ax.set(xlabel="Time (s)", ylabel="Test accuracy")
        ax.legend(loc="lower right")
        self.ax_ = ax
        self.figure_ = ax.figure
        return self

    @classmethod
    def from_benchmark(
        cls,
        result,
        *,
        problem="cars_like",
        methods=("fgn", "sgn", "adam"),
        ax=None,
        **kwargs,
    ):
        """Draw a result of the experiment ``fgn_heads``.

        Parameters
        ----------
        result : dict or path-like
            The result, or the JSON file that holds it.

        problem : str, default="cars_like"
            Name of the problem, whose methods have ``curves``.

        methods : sequence of str, default=("fgn", "sgn", "adam")
            Names of the methods to draw.

        ax : matplotlib Axes, default=None
            Axes to draw on; those of a new figure where not given.

        **kwargs : dict
            Passed to ``ax.plot`` for the curves.

        Returns
        -------
        display : AccuracyTimeDisplay
            Display that holds the curves and the drawn objects.

        Raises
        ------
        ValueError
            If the result has no such problem or method.
        """
        check_matplotlib_support(f"{cls.__name__}.from_benchmark")
        answer = benchmark_problem(result, problem)
        columns = "seconds", "accuracy_mean", "accuracy_std"
        curves = {}
        for method in methods:
            found = _method(answer, method).get("curves")
            if found is None:
                raise ValueError(
                    f"result has no curves of {method!r} in problem={problem!r}."
                )
            name = _LEGEND.get(method, method)
            curves[name] = {column: numbers(found[column]) for column in columns}
        return cls(curves=curves).plot(ax, **kwargs)


def _method(problem, name):
    methods = problem["methods"]
    if name not in methods:
        raise ValueError(
            f"methods: result has no method {name!r}; it has {sorted(methods)}."
        )
    return methods[name]
