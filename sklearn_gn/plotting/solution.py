"""SolutionDisplay: the solution of a differential equation."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._typing import Array
from sklearn_gn.plotting._common import Display, equal_scales, label_once, legend


@dataclass(kw_only=True, eq=False, repr=False)
class SolutionDisplay(Display):
    """Solution of a differential equation, with its error.

    Along one axis: curves of all outputs, with the reference, the observations and a
    band of two standard deviations where there are any, and the error below. Outputs of
    very different size have panels of their own. Over two axes: images of solution,
    reference and error, with time, where there is one, on the horizontal axis. Points
    outside the domain are left blank. Where the solution is not known, the size of the
    residual takes the place of the error.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    ticks : tuple of one or two ndarrays
        Where the values are, along the axes that are shown.
    solution : ndarray of shape (n_points,), (n_points, n_outputs) or \
            (n_vertical, n_horizontal)
        Values of the solution; NaN outside the domain. Several outputs are drawn as
        curves only.
    error : ndarray of the same shape
        Absolute error or, without reference, the size of the residual, which is one
        number for all outputs.
    axis_names : tuple of str
        The axes that are shown, the horizontal one first.
    reference : ndarray of the same shape, default=None
        What the solution is compared with.
    fixed : dict of floats, default=None
        The other axes, and their values.
    output_name : str or tuple of str, default="u"
        What is shown; one name for each column of ``solution``.
    equal : bool, default=False
        Whether the axes of an image have the same scale.
    name : str, default=None
        Name of the solution.
    std : ndarray of the same shape as solution, default=None
        Standard deviations of curves.
    observations : tuple (ndarray of shape (m,), ndarray of shape (m, n_outputs)), \
            default=None
        Where curves were observed, and the values; NaN where they were not.
    window_ends : ndarray, default=None
        Ends of the windows of time. Beyond the last of them the problem is not solved:
        that part is shaded, and no curve is drawn there.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D
        Curves of the solution, one for each output, of the reference where there is
        one, and of the error; empty for images.
    bands_, points_, windows_ : lists of matplotlib artists
        Bands of two standard deviations and observations, of the outputs that have
        some, and ends of the windows of time in all panels.
    images_ : list of matplotlib QuadMesh
        Images of solution, reference (where there is one) and error; empty for curves.
    axes_, ax_, figure_ : ndarray of matplotlib Axes, Axes and Figure
        All panels, of shape (2, 1) for curves, or more rows where the outputs have very
        different sizes, of shape (1, 2) or (1, 3) for images; the panel of the
        solution, and the figure.

    See Also
    --------
    ConvergenceDisplay : How loss and error fell during the fit.

    Examples
    --------
    >>> from sklearn_gn import PINNSolver
    >>> from sklearn_gn.pde import Box, Initial, Problem, d
    >>> from sklearn_gn.plotting import SolutionDisplay
    >>> def growth(u, x):
    ...     return d(u, "t")(x) - u(x) * (1 - u(x))
    >>> problem = Problem(growth, Box(t=(0, 4)), [Initial(0.1)])
    >>> settings = {"hidden_layer_sizes": (6,), "n_interior": 100, "n_boundary": 1}
    >>> solver = PINNSolver(problem, **settings, tol=0.1, random_state=0)
    >>> display = SolutionDisplay.from_estimator(solver.fit())
    >>> bool(display.error.max() < 0.01)  # the residual
    True
    """

    ticks: Sequence[Array]
    solution: Array
    error: Array
    axis_names: tuple[str, ...]
    reference: Array | None = None
    fixed: Mapping[str, float] | None = None
    output_name: str | tuple[str, ...] = "u"
    equal: bool = False
    name: str | None = None
    std: Array | None = None
    observations: tuple[Array, Array] | None = None
    window_ends: Array | None = None

    def plot(self, ax: Any = None, *, name: str | None = None, **kwargs: Any) -> Self:
        """Draw curves or images.

        Parameters
        ----------
        ax : matplotlib Axes or array of them, default=None
            Axes to divide into panels, or one for each panel. If None, a new figure is
            made.
        name : str, default=None
            Name of the solution in the legend or above its image. If None, the stored
            one.
        **kwargs : dict
            Passed to ``ax.plot`` for the curve of the solution, or to
            ``ax.pcolormesh`` for the images of solution and reference.

        Returns
        -------
        display : SolutionDisplay
            The object itself.
        """
        name = name or self.name or "Solution"
        self.lines_, self.images_ = [], []
        self.bands_, self.points_, self.windows_ = [], [], []
        draw = self._plot_curves if len(self.ticks) == 1 else self._plot_images
        axes = draw(ax, name, kwargs)
        if self.fixed:
            title = f"{axes[0, 0].get_title()}\n{_fixed_title(self.fixed)}".lstrip()
            axes[0, 0].set_title(title, fontsize="medium")
        return self._drawn_on(axes)

    def _plot_curves(self, ax, name, kwargs):
        """A panel for each group of outputs of one size, and one for the error."""
        (x,), names = self.ticks, np.atleast_1d(self.output_name)
        solution, reference, std, error = (
            None if values is None else np.reshape(values, (len(x), -1))
            for values in (self.solution, self.reference, self.std, self.error)
        )
        ends = np.zeros(0) if self.window_ends is None else np.asarray(self.window_ends)
        beyond = x > (ends[-1] if len(ends) else np.inf)
        groups = _of_one_size(solution)
        axes = self._panels(ax, len(groups) + 1, 1, size=(5.5, 2.4))
        *above, below = axes[:, 0]
        pairs = list(zip(above, groups, strict=True))
        panel_of = {k: panel for panel, own in pairs for k in own}
        references, errors = [], []
        for k, panel in sorted(panel_of.items()):
            if reference is not None:
                style = {"color": "0.75", "linewidth": 5, "zorder": 1}
                label = label_once(panel, "Reference")
                references += panel.plot(x, reference[:, k], label=label, **style)
            curve = np.where(beyond, np.nan, solution[:, k])
            style = {"label": name, **kwargs}
            if len(names) > 1:
                style = {"label": str(names[k]), "color": f"C{k % 10}", **kwargs}
            (line,) = panel.plot(x, curve, **style)
            self.lines_.append(line)
            color = line.get_color()
            if std is not None:
                lower, upper = curve - 2 * std[:, k], curve + 2 * std[:, k]
                style = {"alpha": 0.25, "linewidth": 0}
                style["label"] = label_once(panel, "± 2 std")
                band = panel.fill_between(x, lower, upper, color=color, **style)
                self.bands_.append(band)
            if self.observations is not None:
                places, values = self.observations
                values = np.reshape(values, (len(places), -1))[:, k]
                if not np.isnan(values).all():
                    style = {"marker": ".", "linestyle": "none", "alpha": 0.7}
                    style["label"] = label_once(panel, "Observations")
                    self.points_ += panel.plot(places, values, color=color, **style)
            if k < error.shape[1]:
                color = color if error.shape[1] > 1 else "tab:red"
                values = np.where(beyond, np.nan, error[:, k])
                errors += below.plot(x, values, color=color)
        self.lines_ += references + errors
        if np.any(error > 0):
            below.set_yscale("log", nonpositive="mask")
        below.set_xlabel(self.axis_names[0])
        below.set_ylabel("|Residual|" if reference is None else "|Error|")
        for panel in axes[:, 0]:
            for end in ends[ends < x[-1]]:
                style = {"color": "0.6", "linewidth": 1, "linestyle": ":", "zorder": 0}
                label = label_once(panel, "End of a window")
                self.windows_.append(panel.axvline(end, label=label, **style))
            if beyond.any():
                style = {"facecolor": "0.95", "edgecolor": "0.85", "hatch": "//"}
                panel.axvspan(ends[-1], x[-1], label="Not solved", zorder=0, **style)
            panel.set_xlim(x[0], x[-1])
        for panel, own in pairs:
            panel.tick_params(labelbottom=False)
            label = ", ".join(names[own])
            if len(own) == 1 or len(label) <= 25:  # else the legend has them all
                panel.set_ylabel(label)
            n_labels = len(panel.get_legend_handles_labels()[1])
            if n_labels > 1:
                marks = "± 2 std", "Observations", "End of a window", "Not solved"
                beside = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
                place = beside if n_labels > 6 else {}  # many would cover the curves
                legend(panel, marks, fontsize="small", **place)
        return axes

    def _plot_images(self, ax, name, kwargs):
        from matplotlib.colors import LogNorm, Normalize

        fields = [(f"{name} {self.output_name}", self.solution)]
        if self.reference is not None:
            fields.append((f"Reference {self.output_name}", self.reference))
        both = np.stack([values for _, values in fields])
        style = {"norm": Normalize(np.nanmin(both), np.nanmax(both)), **kwargs}
        top = float(np.nanmax(self.error))
        norm = LogNorm(1e-3 * top, top, clip=True) if top > 0 else None
        title = "|Residual|" if self.reference is None else "|Error|"
        error_style = {"norm": norm, "cmap": "magma"}
        images = [(*field, style) for field in fields]
        images.append((title, self.error, error_style))
        extent = [np.ptp(values) for values in self.ticks]
        width = 0.6 + 2.6 * extent[0] / extent[1] if self.equal else 3.4
        layout = "compressed" if self.equal else "constrained"
        axes = self._panels(ax, 1, len(images), size=(width, 3.0), layout=layout)
        for panel, (title, values, style) in zip(axes[0], images, strict=True):
            style = {"shading": "nearest", "rasterized": True, **style}
            values = np.ma.masked_invalid(values)
            self.images_.append(panel.pcolormesh(*self.ticks, values, **style))
            panel.set_title(title, fontsize="medium")
            panel.set_xlabel(self.axis_names[0])
            if self.equal:
                equal_scales(panel, extent[0] / extent[1])
        axes[0, 0].set_ylabel(self.axis_names[1])
        for panel, image in zip(axes[0, -2:], self.images_[-2:], strict=True):
            panel.figure.colorbar(image, ax=panel)
        return axes

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        axes: str | Sequence[str] | None = None,
        at: Mapping[str, float] | None = None,
        output: str | None = None,
        n_points: int = 200,
        ax: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the solution that a fitted solver has found.

        A reference that is known at some points only is drawn at these, if they make a
        grid, thinned to ``n_points`` along each axis; axes that are not shown are fixed
        at the values of the grid next to those wanted. If they make no grid, there is
        no comparison.

        Parameters
        ----------
        estimator : PINNSolver
            A fitted solver of a problem.
        axes : str or sequence of str, default=None
            The one or two axes to show, the horizontal one first. If None, those that
            are not in ``at``, at most the first two.
        at : dict of floats, default=None
            Values of axes that are not shown; the others are in the middle.
        output : str, default=None
            Output to show. If None, all of them as curves, and the first as an image.
            One that is determined up to a constant is compared without its mean over
            the points shown.
        n_points : int, default=200
            Points along each axis.
        ax, name, **kwargs : optional
            See :meth:`plot`.

        Returns
        -------
        display : SolutionDisplay
            What is drawn.

        Raises
        ------
        ValueError
            If the estimator has no problem, if an axis or an output is unknown, or if
            no point of the slice is in the domain.
        """
        check_is_fitted(estimator)
        problem = getattr(estimator, "problem_", None)
        if problem is None:
            raise ValueError(
                "SolutionDisplay draws a PINNSolver that was fitted with a problem; "
                f"this {type(estimator).__name__} has none."
            )
        if not isinstance(n_points, Integral) or n_points < 2:
            raise ValueError(f"n_points must be an integer above 1, got {n_points!r}.")
        piece = Slice.of(problem, axes, {} if at is None else at, output, n_points)
        shown, numbers = piece.shown, piece.numbers
        n_outputs = len(problem.outputs)

        def predicted(X, std=False):
            y = estimator.predict(X, return_std=std)
            return (y[1] if std else y).reshape(-1, n_outputs)[:, numbers]

        solution = piece.values(predicted)
        reference = piece.reference
        if problem.exact is not None and not hasattr(problem.exact, "points"):
            reference = piece.values(lambda X: problem.exact_values(X)[:, numbers])
        if reference is None or np.isnan(solution - reference).all():
            residual = piece.values(estimator.residual)
            reference, error = None, np.linalg.norm(residual, axis=-1, keepdims=True)
        else:
            for i, k in enumerate(numbers):
                if problem.outputs[k] in problem.up_to_constant:
                    known = ~np.isnan(solution[..., i] - reference[..., i])
                    for values in (solution[..., i], reference[..., i]):
                        values -= values[known].mean()
            error = np.abs(solution - reference)
        std = observations = ends = None
        if len(shown) == problem.domain.dim == 1:
            ends = estimator.window_ends_ if len(estimator.window_ends_) else None
            observations = _observed_values(estimator, numbers)
        if observations is not None:
            # Without them they are those of the residuals, thinner than a line.
            std = piece.values(partial(predicted, std=True))
        names = tuple(problem.outputs[k] for k in numbers)
        width, height = np.ptp(piece.ticks[0]), np.ptp(piece.ticks[-1])
        alike = bool(0 < height / 2 <= width <= 2 * height)
        if len(names) == 1:
            solution, error, reference, std = (
                None if values is None else values[..., 0]
                for values in (solution, error, reference, std)
            )
        elif error.shape[-1] == 1:
            error = error[..., 0]
        return cls(
            ticks=piece.ticks,
            solution=solution,
            error=error,
            axis_names=shown,
            reference=reference,
            fixed=piece.fixed,
            output_name=names if len(names) > 1 else names[0],
            equal=problem.domain.time not in shown and alike,
            name=name,
            std=std,
            observations=observations,
            window_ends=ends,
        ).plot(ax, **kwargs)


def _of_one_size(columns):
    """Groups of outputs whose largest values are within a factor of ten, in order."""
    sizes = np.nanmax(np.where(np.isfinite(columns), np.abs(columns), 0), axis=0)
    left, groups = list(np.argsort(-sizes, kind="stable")), []
    while left:
        group = [k for k in left if sizes[k] * 10 >= sizes[left[0]] or sizes[k] == 0]
        groups.append(sorted(group))
        left = [k for k in left if k not in group]
    return sorted(groups)


def _observed_values(estimator, numbers):
    """Places and values (m, n_outputs) of observations on one axis; None: not kept."""
    posterior = estimator._posterior
    if posterior is None or posterior.model.classes[-1].name != "data":
        return None
    batch = posterior.batches[-1]
    there = np.asarray(batch.scale) > 0  # the others fill the array up
    x, y = np.asarray(batch.x)[there, 0, 0], np.asarray(batch.data)[there]
    values = np.full((len(x), len(estimator.problem_.outputs)), np.nan)
    # The factors of the misfits come after the observations.
    for column, entry in zip(y.T, estimator._fitted.observed, strict=False):
        if not callable(entry):
            values[:, entry] = column
    return None if np.isnan(values).all() else (x, values[:, numbers])


def _fixed_title(fixed):
    """Values of the axes that are not shown; x3 to x10 of one value are one entry."""
    groups = {}
    for axis, value in fixed.items():
        series = axis.rstrip("0123456789")
        groups.setdefault((series, f"{value:.4g}"), []).append(axis)
    words = []
    for (_, value), axes in groups.items():
        many = f"{axes[0]}, ..., {axes[-1]}"
        words.append(f"{', '.join(axes) if len(axes) < 4 else many} = {value}")
    return ", ".join(words)


# --- slices of a domain --------------------------------------------------------------


class Slice(NamedTuple):
    """Points of a grid over one or two axes of a domain."""

    domain: Any
    shown: tuple  # axes along which the points lie, the horizontal one first
    fixed: dict  # the other axes and their values
    numbers: list  # of the outputs that are shown
    ticks: tuple  # coordinates along the axes shown
    reference: Any = None  # values of one that is known on this very grid

    @classmethod
    def of(cls, problem, axes, at, output, n_points):
        """The slice that a user asks for, on the ticks of a gridded reference."""
        domain = problem.domain
        for axis, value in at.items():
            text = f"at: axis {axis!r} is unknown; the axes are {domain.axes}."
            if axis in domain.axes:
                text = f"at: {axis!r} must be a finite number, got {value!r}."
                if isinstance(value, Real) and math.isfinite(value):
                    continue
            raise ValueError(text)
        if axes is None:
            free = [axis for axis in domain.axes if axis not in at][:2]
            shown = sorted(free, key=lambda axis: axis != domain.time)
        else:
            shown = [axes] if isinstance(axes, str) else list(axes)
        if not 1 <= len(set(shown)) == len(shown) <= 2:
            raise ValueError(f"axes must be one or two different names, got {axes!r}.")
        for axis in shown:
            if axis not in domain.axes:
                text = f"axes={axis!r} is unknown; the axes are {domain.axes}."
                raise ValueError(text)
            if axis in at:
                raise ValueError(f"at: axis {axis!r} is one of those shown.")
        if output is None:
            numbers = list(range(len(problem.outputs))) if len(shown) == 1 else [0]
        elif output in problem.outputs:
            numbers = [problem.outputs.index(output)]
        else:
            raise ValueError(
                f"output={output!r} is unknown; the outputs are {problem.outputs}."
            )
        bounds = dict(zip(domain.axes, domain.bounds, strict=True))
        middle = {axis: bounds[axis].mean() for axis in domain.axes} | at
        fixed = {a: float(x) for a, x in middle.items() if a not in shown}
        if hasattr(problem.exact, "points"):
            own = _on_its_grid(problem, shown, fixed, numbers, n_points)
            if own is not None:
                return own
        if len(shown) == 1:
            ticks = (np.linspace(*bounds[shown[0]], n_points),)
        else:  # centres of cells
            edges = [np.linspace(*bounds[name], n_points + 1) for name in shown]
            ticks = tuple((e[1:] + e[:-1]) / 2 for e in edges)
        return cls(domain, tuple(shown), fixed, numbers, ticks)

    def values(self, function):
        """Values (..., k) of a function of rows on the grid; NaN outside the domain."""
        mesh = np.meshgrid(*self.ticks)
        columns = self.fixed | dict(zip(self.shown, map(np.ravel, mesh), strict=True))
        names = self.domain.axes
        X = np.column_stack(np.broadcast_arrays(*(columns[name] for name in names)))
        inside = self.domain.contains(X)
        if not inside.any():
            raise ValueError(f"no point of the slice is in the domain: {self.fixed}.")
        with warnings.catch_warnings():  # of solvers that were fitted to frames
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            found = function(X[inside])
        values = np.full((len(X), found.shape[1]), np.nan)
        values[inside] = found
        return values.reshape(*mesh[0].shape, -1)


def _on_its_grid(problem, shown, fixed, numbers, n_points):
    """The slice of a reference that makes a grid; None if it makes none.

    The grid has at most ``n_points`` of its ticks along an axis, both ends among them.
    """
    names = problem.domain.axes
    columns = [np.unique(c, return_inverse=True) for c in problem.exact.points.T]
    ticks = {name: c[0] for name, c in zip(names, columns, strict=True)}
    # Scattered points would fill next to none of the cells.
    if math.prod(map(len, ticks.values())) > 4 * len(problem.exact.points):
        return None
    values = np.full([*map(len, ticks.values()), len(numbers)], np.nan)
    values[tuple(c[1] for c in columns)] = problem.exact.values[:, numbers]
    nearest = {a: int(np.argmin(np.abs(ticks[a] - x))) for a, x in fixed.items()}
    values = values[tuple(nearest.get(name, slice(None)) for name in names)]
    if shown != [name for name in names if name in shown]:
        values = values.swapaxes(0, 1)
    sizes = [len(ticks[name]) for name in shown]
    even = [np.linspace(0, n - 1, min(n, n_points)).round() for n in sizes]
    kept = [np.unique(places.astype(int)) for places in even]
    values = values[np.ix_(*kept)]
    if len(shown) == 2:  # the horizontal axis runs along the rows
        values = values.swapaxes(0, 1)
    fixed = {a: float(ticks[a][i]) for a, i in nearest.items()}
    on_axes = tuple(ticks[a][i] for a, i in zip(shown, kept, strict=True))
    return Slice(problem.domain, tuple(shown), fixed, numbers, on_axes, values)
