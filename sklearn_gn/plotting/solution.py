"""SolutionDisplay: the solution of a differential equation."""

import math
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn.utils import gen_batches
from sklearn.utils._optional_dependencies import check_matplotlib_support
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._typing import Array
from sklearn_gn.plotting._common import Display

_FLOATS = 2**24  # numbers of the points that are evaluated together
_HOLES = 4  # cells for each point, beyond which the points of a reference are no grid
_DECADES = 3  # of errors that are told apart by their colours


class SolutionDisplay(Display):
    """Solution of a differential equation, with its error.

    Along one axis: curves of solution and reference, and the error below. Over two
    axes: images of solution, reference and error, with time, where there is one, on the
    horizontal axis. Points outside the domain are left blank. Where the solution is not
    known, the size of the residual takes the place of the error.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    ticks : tuple of one or two ndarrays
        Where the values are, along the axes that are shown.

    solution : ndarray of shape (n_points,) or (n_vertical, n_horizontal)
        Values of the solution; NaN outside the domain.

    error : ndarray of the same shape
        Absolute error or, without reference, the size of the residual.

    axis_names : tuple of str
        The axes that are shown, the horizontal one first.

    reference : ndarray of the same shape, default=None
        What the solution is compared with.

    fixed : dict of floats, default=None
        The other axes, and their values.

    output_name : str, default="u"
        What is shown.

    equal : bool, default=False
        Whether the axes of an image have the same scale.

    name : str, default=None
        Name of the solution in the legend or above its image.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D
        Curves of solution, reference (where there is one) and error; empty for images.

    images_ : list of matplotlib QuadMesh
        Images of solution, reference (where there is one) and error; empty for curves.

    axes_ : ndarray of matplotlib Axes
        All panels, of shape (2, 1) for curves, (1, 2) or (1, 3) for images.

    ax_ : matplotlib Axes
        The panel of the solution.

    figure_ : matplotlib Figure
        Figure that holds the panels.

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
    >>> solver = PINNSolver(
    ...     problem,
    ...     hidden_layer_sizes=(8,),
    ...     n_interior=30,
    ...     n_boundary=1,
    ...     tol=0.1,
    ...     random_state=0,
    ... )
    >>> display = SolutionDisplay.from_estimator(solver.fit())
    >>> bool(display.error.max() < 0.01)  # the residual
    True
    """

    def __init__(
        self,
        *,
        ticks: Sequence[Array],
        solution: Array,
        error: Array,
        axis_names: tuple[str, ...],
        reference: Array | None = None,
        fixed: Mapping[str, float] | None = None,
        output_name: str = "u",
        equal: bool = False,
        name: str | None = None,
    ) -> None:
        self.ticks = ticks
        self.solution = solution
        self.error = error
        self.axis_names = axis_names
        self.reference = reference
        self.fixed = fixed
        self.output_name = output_name
        self.equal = equal
        self.name = name

    def plot(self, ax: Any = None, *, name: str | None = None, **kwargs: Any) -> Self:
        """Draw curves or images.

        Parameters
        ----------
        ax : matplotlib Axes or array of them, default=None
            Axes to divide into panels, or one for each panel. If None, a new figure is
            made.

        name : str, default=None
            Name of the solution, in place of the stored one.

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
        draw = self._plot_curves if len(self.ticks) == 1 else self._plot_images
        return self._drawn_on(draw(ax, name, kwargs))

    @property
    def _error_name(self):
        return "|Residual|" if self.reference is None else "|Error|"

    def _extent(self):
        """Width and height of an image, in the units of its axes."""
        return [np.ptp(values) for values in self.ticks]

    def _plot_curves(self, ax, name, kwargs):
        axes = self._panels(ax, 2, 1, size=(5.5, 2.4))
        above, below = axes[:, 0]
        (x,) = self.ticks
        if self.reference is not None:
            broad = {"color": "0.75", "linewidth": 5, "label": "Reference"}
            reference = above.plot(x, self.reference, **broad)
        self.lines_ += above.plot(x, self.solution, **{"label": name, **kwargs})
        if self.reference is not None:
            self.lines_ += reference
            above.legend()
        self.lines_ += below.plot(x, self.error, color="tab:red")
        if np.any(self.error > 0):
            below.set_yscale("log", nonpositive="mask")
        above.set_title(_fixed_title(self.fixed), fontsize="medium")
        above.set_ylabel(self.output_name)
        below.set(xlabel=self.axis_names[0], ylabel=self._error_name)
        for panel in (above, below):
            panel.set_xlim(x[0], x[-1])
        above.tick_params(labelbottom=False)
        return axes

    def _plot_images(self, ax, name, kwargs):
        images = self._styled_images(name, kwargs)
        width = 0.6 + 2.6 * np.divide(*self._extent()) if self.equal else 3.4
        layout = "compressed" if self.equal else "constrained"
        axes = self._panels(ax, 1, len(images), size=(width, 3.0), layout=layout)
        for panel, (title, values, style) in zip(axes[0], images, strict=True):
            style = {"shading": "nearest", "rasterized": True, **style}
            values = np.ma.masked_invalid(values)
            self.images_.append(panel.pcolormesh(*self.ticks, values, **style))
            panel.set_title(title, fontsize="medium")
            panel.set_xlabel(self.axis_names[0])
            if self.equal:
                panel.set_aspect("equal")
                panel.locator_params(nbins=5)  # the labels must not touch
        first = axes[0, 0]
        first.set_ylabel(self.axis_names[1])
        if self.fixed:
            first.set_title(f"{name}\n{_fixed_title(self.fixed)}", fontsize="medium")
        bar = first.figure.colorbar(self.images_[-2], ax=axes[0, -2])
        bar.ax.set_title(self.output_name, fontsize="medium")
        first.figure.colorbar(self.images_[-1], ax=axes[0, -1])
        return axes

    def _styled_images(self, name, kwargs):
        """Title, values and style of every image."""
        from matplotlib.colors import LogNorm, Normalize

        fields = [(name, self.solution)]
        if self.reference is not None:
            fields.append(("Reference", self.reference))
        both = np.stack([values for _, values in fields])
        style = {"norm": Normalize(np.nanmin(both), np.nanmax(both)), **kwargs}
        top = float(np.nanmax(self.error))
        norm = LogNorm(10**-_DECADES * top, top, clip=True) if top > 0 else None
        error = self._error_name, self.error, {"norm": norm, "cmap": "magma"}
        return [*((*field, style) for field in fields), error]

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
            Output to show. If None, the first. One that is determined up to a constant
            is compared without its mean over the points shown.

        n_points : int, default=200
            Points along each axis.

        ax : matplotlib Axes or array of them, default=None
            Axes to divide into panels, or one for each panel. If None, a new figure is
            made.

        name : str, default=None
            Name of the solution in the legend or above its image.

        **kwargs : dict
            Passed to ``ax.plot`` for the curve of the solution, or to
            ``ax.pcolormesh`` for the images of solution and reference.

        Returns
        -------
        display : SolutionDisplay
            Display that holds the values and the drawn objects.

        Raises
        ------
        ValueError
            If the estimator has no problem, if an axis or an output is unknown, or if
            no point of the slice is in the domain.
        """
        check_matplotlib_support(f"{cls.__name__}.from_estimator")
        problem = _problem(estimator)
        domain, k = problem.domain, _output_number(problem, output)
        if not isinstance(n_points, Integral) or n_points < 2:
            raise ValueError(f"n_points must be an integer above 1, got {n_points!r}.")
        at = _checked_values(domain, {} if at is None else at)
        shown = _shown_axes(domain, axes, at)
        middle = dict(zip(domain.axes, domain.bounds.mean(axis=1), strict=True))
        fixed = {a: float(x) for a, x in (middle | at).items() if a not in shown}
        ticks, fixed, reference = _grid(problem, shown, fixed, k, n_points)

        def at_points(function):
            return _at_points(function, domain, shown, fixed, ticks)

        solution = at_points(lambda X: _columns(estimator.predict(X))[:, k])
        if problem.exact is not None and not _is_known_at_points(problem):
            reference = at_points(lambda X: problem.exact_values(X)[:, k])
        if reference is None or np.isnan(solution - reference).all():
            reference = None
            error = at_points(lambda X: np.linalg.norm(estimator.residual(X), axis=1))
        else:
            if problem.outputs[k] in problem.up_to_constant:
                solution, reference = _without_means(solution, reference)
            error = np.abs(solution - reference)
        return cls(
            ticks=ticks,
            solution=solution,
            error=error,
            axis_names=shown,
            reference=reference,
            fixed=fixed,
            output_name=problem.outputs[k],
            equal=domain.time not in shown and _alike(ticks),
            name=name,
        ).plot(ax, **kwargs)


# -- what is to be drawn --------------------------------------------------------------


def _problem(estimator):
    check_is_fitted(estimator)
    problem = getattr(estimator, "problem_", None)
    if problem is None:
        raise ValueError(
            f"SolutionDisplay draws solutions of a problem, {type(estimator).__name__} "
            "has none."
        )
    return problem


def _output_number(problem, output):
    if output is None:
        return 0
    if output not in problem.outputs:
        raise ValueError(
            f"output={output!r} is unknown; the outputs are {problem.outputs}."
        )
    return problem.outputs.index(output)


def _checked_values(domain, at):
    for axis, value in at.items():
        if axis not in domain.axes:
            raise ValueError(
                f"at: axis {axis!r} is unknown; the axes are {domain.axes}."
            )
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(f"at: {axis!r} must be a finite number, got {value!r}.")
    return at


def _shown_axes(domain, axes, at):
    if axes is None:
        free = [axis for axis in domain.axes if axis not in at][:2]
        shown = sorted(free, key=lambda axis: axis != domain.time)
    else:
        shown = [axes] if isinstance(axes, str) else list(axes)
    if not 1 <= len(set(shown)) == len(shown) <= 2:
        raise ValueError(f"axes must be one or two different names, got {axes!r}.")
    for axis in shown:
        if axis not in domain.axes:
            raise ValueError(f"axes={axis!r} is unknown; the axes are {domain.axes}.")
        if axis in at:
            raise ValueError(f"at: axis {axis!r} is one of those shown.")
    return tuple(shown)


# -- values on a grid -----------------------------------------------------------------


def _is_known_at_points(problem):
    """Whether the exact solution is not a function."""
    return hasattr(problem.exact, "points")


def _grid(problem, shown, fixed, k, n_points):
    """Ticks along the axes shown, values of the others, the reference if it is there.

    Where the reference is a grid, the ticks are its own.
    """
    if _is_known_at_points(problem):
        found = _reference_slice(problem, shown, fixed, k, n_points)
        if found is not None:
            return found
    bounds = dict(zip(problem.domain.axes, problem.domain.bounds, strict=True))
    if len(shown) == 1:
        return (np.linspace(*bounds[shown[0]], n_points),), fixed, None
    edges = [np.linspace(*bounds[name], n_points + 1) for name in shown]
    return tuple((e[1:] + e[:-1]) / 2 for e in edges), fixed, None  # centres of cells


def _reference_slice(problem, shown, fixed, k, n_points):
    """The same for a reference that makes a grid; None if it does not."""
    names = problem.domain.axes
    columns = [np.unique(c, return_inverse=True) for c in problem.exact.points.T]
    ticks = {name: c[0] for name, c in zip(names, columns, strict=True)}
    if math.prod(map(len, ticks.values())) > _HOLES * len(problem.exact.points):
        return None
    values = np.full([len(t) for t in ticks.values()], np.nan)
    values[tuple(c[1] for c in columns)] = problem.exact.values[:, k]
    nearest = {a: int(np.argmin(np.abs(ticks[a] - x))) for a, x in fixed.items()}
    values = values[tuple(nearest.get(name, slice(None)) for name in names)]
    if shown != tuple(name for name in names if name in shown):
        values = values.T
    kept = [_thinned(len(ticks[a]), n_points) for a in shown]
    values = values[np.ix_(*kept)].T  # the horizontal axis runs along the rows
    fixed = {a: float(ticks[a][i]) for a, i in nearest.items()}
    return tuple(ticks[a][i] for a, i in zip(shown, kept, strict=True)), fixed, values


def _thinned(n, n_points):
    """Numbers of at most ``n_points`` of n ticks, the first and the last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, n_points)).round().astype(int))


def _at_points(function, domain, shown, fixed, ticks):
    """Values on the grid; NaN outside the domain."""
    mesh = np.meshgrid(*ticks)
    columns = dict(zip(shown, (c.ravel() for c in mesh), strict=True))
    n = mesh[0].size
    values = np.full(n, np.nan)
    for rows in gen_batches(n, max(1, _FLOATS // domain.dim)):
        X = np.empty((rows.stop - rows.start, domain.dim))
        for i, name in enumerate(domain.axes):
            X[:, i] = columns[name][rows] if name in columns else fixed[name]
        inside = domain.contains(X)
        if inside.any():
            with warnings.catch_warnings():  # of solvers that were fitted to frames
                warnings.filterwarnings("ignore", "X does not have valid feature names")
                values[rows][inside] = function(X[inside])
    if np.isnan(values).all():
        raise ValueError(f"no point of the slice is in the domain: {fixed}.")
    return values.reshape(mesh[0].shape)


def _columns(y):
    return y.reshape(len(y), -1)


def _without_means(solution, reference):
    """Both without their means over the points at which both are known."""
    known = ~np.isnan(solution - reference)
    return solution - solution[known].mean(), reference - reference[known].mean()


# -- what is written ------------------------------------------------------------------


def _fixed_title(fixed):
    """Values of the axes that are not shown; x3 to x10 of one value are one entry."""
    groups = {}
    for axis, value in (fixed or {}).items():
        series = axis.rstrip("0123456789")
        groups.setdefault((series, f"{value:.4g}"), []).append(axis)
    names = (
        ", ".join(axes) if len(axes) < 4 else f"{axes[0]}, ..., {axes[-1]}"
        for axes in groups.values()
    )
    return ", ".join(
        f"{name} = {value}" for name, (_, value) in zip(names, groups, strict=True)
    )


def _alike(ticks):
    """Whether width and height differ by a factor of at most two."""
    width, height = np.ptp(ticks[0]), np.ptp(ticks[-1])
    return bool(0 < height / 2 <= width <= 2 * height)
