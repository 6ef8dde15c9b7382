"""SurrogateDisplay: predictions of several outputs and what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from textwrap import fill
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import is_classifier
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.plotting._common import Display


@dataclass(kw_only=True, eq=False, repr=False)
class SurrogateDisplay(Display):
    """True and predicted outputs of a surrogate model.

    Outputs of single samples are drawn as curves or as fields on a plane grid, all
    samples together as a matrix. A few outputs without a common axis have a panel each,
    with predicted against true values.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    true, predicted : ndarrays of shape (n_samples, n_outputs)
        Outputs of the samples to draw, and their predictions.
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
    output_names : list of str, default=None
        Names of the outputs, for panels of their own; their numbers if None.

    Attributes
    ----------
    error_ : ndarray of shape (n_samples,)
        Relative errors of the samples, in the Euclidean norm.
    true_, predicted_ : lists of matplotlib artists
        What is drawn of both: Line2D objects, or AxesImage objects. With a panel for
        each output, the diagonals where predictions are right, and PathCollections.
    errors_ : list of AxesImage
        Prediction minus truth; only of fields and matrices.
    axes_, ax_, figure_ : ndarray of matplotlib Axes, Axes and Figure
        All panels: a row of samples for curves, three columns for fields, with a row
        for every sample, and for a matrix, else one panel for each output; the first
        of them, and the figure.

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

    true: Array
    predicted: Array
    rows: Array
    positions: Array | None = None
    position_name: str | None = None
    shape: tuple[int, ...] | None = None
    output_names: Sequence[str] | None = None

    def plot(
        self,
        ax: Any = None,
        *,
        kind: Literal["curves", "fields", "matrix", "scatter"] | None = None,
        log: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Draw truth and prediction, and for images the difference.

        Parameters
        ----------
        ax : matplotlib Axes or array of them, default=None
            Axes to divide into panels, or one for each panel. If None, a new figure is
            made.
        kind : {"curves", "fields", "matrix", "scatter"}, default=None
            If None, "fields" where there is a ``shape``, "scatter" with fewer than ten
            outputs and no ``positions``, else "curves". The matrix has a column for
            every sample and a row for every output. With "scatter" each output has a
            panel, in which predicted are drawn against true values.
        log : bool, default=False
            Whether images show absolute values on a logarithmic scale of four decades.
            Otherwise the error has a scale of its own.
        **kwargs : dict
            Passed to ``ax.plot`` or ``ax.scatter`` for the predictions, or to
            ``ax.imshow`` for the true and predicted images.

        Returns
        -------
        display : SurrogateDisplay
            The object itself.
        """
        kind = _checked_kind(kind, self.shape, self.positions, self.true.shape[1])
        self.error_ = _relative_errors(self.true, self.predicted)
        self.true_, self.predicted_, self.errors_ = [], [], []
        if kind == "curves":
            axes = self._plot_curves(ax, kwargs)
        elif kind == "scatter":
            axes = self._plot_scatter(ax, kwargs)
        else:
            axes = self._plot_images(ax, kind, log, kwargs)
        return self._drawn_on(axes)

    def _plot_curves(self, ax, kwargs):
        axes = self._panels(ax, 1, len(self.true), size=(3.4, 2.8))
        from matplotlib import colormaps

        n_outputs = self.true.shape[1]
        x = np.arange(n_outputs) if self.positions is None else self.positions
        n_curves = n_outputs // len(x)
        palette = colormaps["tab10" if n_curves <= 10 else "tab20"]
        broad = {"alpha": 0.35, "linewidth": 5, "solid_capstyle": "round"}
        pairs = zip(self.true, self.predicted, self._titles(), strict=True)
        for panel, (true, predicted, title) in zip(axes.flat, pairs, strict=True):
            for k in range(n_curves):
                part = slice(k * len(x), (k + 1) * len(x))
                style = {"color": palette(k % palette.N)}
                style["label"] = "True" if k == 0 else None
                self.true_ += panel.plot(x, true[part], **style, **broad)
                style["label"] = "Predicted" if k == 0 else None
                self.predicted_ += panel.plot(x, predicted[part], **style | kwargs)
            panel.set_title(title, fontsize="medium")
            default = "Output" if self.positions is None else "Position"
            panel.set_xlabel(self.position_name or default)
            if self.positions is None:
                panel.xaxis.get_major_locator().set_params(integer=True)
        axes[0, 0].set_ylabel("Value of the output")
        axes[0, 0].legend()
        return axes

    def _titles(self):
        return [
            f"Sample {row}, error {100 * error:.3g}%"
            for row, error in zip(self.rows, self.error_, strict=True)
        ]

    def _plot_scatter(self, ax, kwargs):
        n_outputs = self.true.shape[1]
        n_rows = -(-n_outputs // 4)
        axes = self._panels(ax, n_rows, -(-n_outputs // n_rows), size=(3.0, 2.9))
        for panel in axes.flat[n_outputs:]:
            panel.set_axis_off()
        names = self.output_names or [f"Output {k}" for k in range(n_outputs)]
        style = {"s": 14, "alpha": 0.7, "linewidths": 0, **kwargs}
        for panel, name, true, predicted in zip(
            axes.flat, names, self.true.T, self.predicted.T, strict=False
        ):
            ends = [np.nanmin([true, predicted]), np.nanmax([true, predicted])]
            self.true_ += panel.plot(ends, ends, color="0.6", zorder=0, linewidth=1)
            self.predicted_.append(panel.scatter(true, predicted, **style))
            r2 = f", R2 {r2_score(true, predicted):.4g}" if len(true) > 1 else ""
            panel.set_title(fill(f"{name}{r2}", 30), fontsize="medium")
            panel.set(xlabel="True", ylabel="Predicted")
        return axes

    def _plot_images(self, ax, kind, log, kwargs):
        from matplotlib.colors import LogNorm, Normalize

        if kind == "matrix":
            images = [(self.true.T, self.predicted.T)]
            size, layout = (3.8, 3.2), "constrained"
            kwargs = {"aspect": "auto", **kwargs}
        else:
            # Fields of one sample stand side by side, with an empty column between.
            n, pairs = len(self.true), np.stack([self.true, self.predicted], axis=1)
            fields = pairs.astype(float).reshape(n, 2, -1, *self.shape)
            fields = np.pad(fields, [(0, 0)] * 4 + [(0, 1)], constant_values=np.nan)
            images = np.moveaxis(fields, 2, 3).reshape(n, 2, fields.shape[3], -1)
            images = images[..., :-1]
            height, width = images[0][0].shape
            size, layout = (0.6 + 2.4 * min(width / height, 2.5), 2.6), "compressed"
        axes = self._panels(ax, len(images), 3, size=size, layout=layout)
        for row, (true, predicted) in zip(axes, images, strict=True):
            error = predicted - true
            if log:
                true, predicted, error = (np.abs(a) for a in (true, predicted, error))
                top = float(np.nanmax(true)) or 1.0
                norm = LogNorm(1e-4 * top, top, clip=True)
                style = error_style = {**kwargs, "norm": norm}
            else:
                norm = Normalize(float(np.nanmin(true)), float(np.nanmax(true)))
                top = float(np.nanmax(np.abs(error))) or 1.0
                style = {"norm": norm, **kwargs}
                error_style = {**kwargs, "cmap": "RdBu_r", "norm": Normalize(-top, top)}
            shown = (true, self.true_, style), (predicted, self.predicted_, style)
            shown += ((error, self.errors_, error_style),)
            for panel, (values, drawn, own) in zip(row, shown, strict=True):
                own = {"interpolation": "nearest", **own}
                drawn.append(panel.imshow(values, **own))
                plain = {"xticks": [], "yticks": []}
                panel.set(**({"xlabel": "Sample"} if kind == "matrix" else plain))
            row[0].figure.colorbar(self.predicted_[-1], ax=row[1])
            row[0].figure.colorbar(self.errors_[-1], ax=row[2])
        labels = ["Output"] if kind == "matrix" else self._titles()
        for panel, label in zip(axes[:, 0], labels, strict=True):
            panel.set_ylabel(label)
        for panel, title in zip(axes[0], ("True", "Predicted", "Error"), strict=True):
            panel.set_title(f"|{title}|" if log else title, fontsize="medium")
        return axes

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        samples: Any = None,
        positions: ArrayLike | None = None,
        position_name: str | None = None,
        shape: tuple[int, ...] | None = None,
        kind: Literal["curves", "fields", "matrix", "scatter"] | None = None,
        log: bool = False,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Compare predictions of a fitted regressor with the true outputs.

        Parameters
        ----------
        estimator : estimator
            A fitted regressor of several outputs, or a pipeline that ends in one.
        X, Y : array-like of shape (n_samples, n_features) and (n_samples, n_outputs)
            Samples, preferably ones that were not used in the fit, and their outputs.
        samples : int or sequence of int, default=None
            Which samples to draw: these rows, or this number of them, with relative
            errors spread evenly from the smallest to the largest. If None, three
            samples for curves and fields, else all of them.
        positions, position_name, shape : optional
            How the outputs are arranged, see :class:`SurrogateDisplay`.
        kind, log, ax, **kwargs : optional
            See :meth:`plot`.

        Returns
        -------
        display : SurrogateDisplay
            What is drawn.

        Raises
        ------
        ValueError
            If there is a single output, or if Y, samples, positions or shape do not
            fit.
        """
        if is_classifier(estimator):
            raise ValueError("SurrogateDisplay draws regressors, got a classifier.")
        names = getattr(Y, "columns", None)
        true = check_array(Y, dtype=np.float64, input_name="Y", ensure_2d=False)
        if true.ndim != 2 or true.shape[1] < 2:
            raise ValueError(
                "SurrogateDisplay draws estimators of several outputs. For a single "
                "one use PredictionErrorDisplay of sklearn.metrics."
            )
        check_consistent_length(X, true)
        positions = None if positions is None else column_or_1d(positions)
        kind = _checked_kind(kind, shape, positions, true.shape[1])
        predicted = np.asarray(estimator.predict(X), dtype=float)
        if predicted.shape != true.shape:
            raise ValueError(
                f"Y has {true.shape[1]} outputs, the predictions have the shape "
                f"{predicted.shape}."
            )
        together = kind in ("matrix", "scatter")
        chosen = _rows_to_draw(samples, _relative_errors(true, predicted), together)
        return cls(
            true=true[chosen],
            predicted=predicted[chosen],
            rows=chosen,
            positions=positions,
            position_name=position_name,
            shape=shape,
            output_names=None if names is None else [str(name) for name in names],
        ).plot(ax, kind=kind, log=log, **kwargs)


def _checked_kind(kind, shape, positions, n_outputs):
    """What to draw, of outputs whose arrangement is possible."""
    kinds = ("curves", "fields", "matrix", "scatter")
    if kind is None:
        alone = positions is None and n_outputs < 10  # fewer are no curve
        kind = "fields" if shape is not None else "scatter" if alone else "curves"
    if kind not in kinds:
        raise ValueError(f"kind must be one of {list(kinds)}, got {kind!r}.")
    if kind == "fields" and shape is None:
        raise ValueError("kind='fields' needs the shape of the grid.")
    if shape is not None and (len(shape) != 2 or min(shape) < 1):
        raise ValueError(
            f"shape must be height and width of a grid, got shape={tuple(shape)}."
        )
    if positions is not None and (not len(positions) or n_outputs % len(positions)):
        raise ValueError(
            f"{n_outputs} outputs are not a multiple of {len(positions)} positions."
        )
    if shape is not None and n_outputs % int(np.prod(shape)):
        raise ValueError(
            f"{n_outputs} outputs are not a multiple of shape={tuple(shape)}."
        )
    return kind


def _rows_to_draw(samples, error, together):
    """Rows of the samples: those given, or a number of them, by their errors."""
    n = len(error)
    if samples is None:
        samples = n if together else 3
    if isinstance(samples, Integral) and samples > 0:
        order = np.argsort(error, kind="stable")
        ranks = np.linspace(0, n - 1, min(samples, n))  # evenly, both ends included
        rows = order[np.round(ranks).astype(int)]
        return np.sort(rows) if together else rows
    rows = np.asarray(samples)
    are_numbers = rows.ndim == 1 and rows.size and rows.dtype.kind in "iu"
    if not (are_numbers and np.isin(rows, range(-n, n)).all()):
        raise ValueError(
            f"samples must be a number of samples, or a list of rows from 0 to {n - 1},"
            f" got {samples!r}."
        )
    return rows


def _relative_errors(true, predicted):
    """``|predicted - true| / |true|`` by row; absolute where the truth is zero."""
    size = np.linalg.norm(true, axis=1)
    return np.linalg.norm(predicted - true, axis=1) / np.where(size > 0, size, 1)
