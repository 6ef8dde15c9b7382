"""SolutionDisplay: the solution of a differential equation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._typing import Array
from sklearn_gn.plotting._common import Display
from sklearn_gn.plotting._curves import Curves, observed_values
from sklearn_gn.plotting._slices import (
    checked_values,
    grid_of_slice,
    is_known_at_points,
    output_numbers,
    shown_axes,
    values_on_grid,
)

_DECADES = 3  # of errors that are told apart by their colours


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
        Name of the solution in the legend or above its image.

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

    bands_ : list of matplotlib FillBetweenPolyCollection
        Bands of two standard deviations, one for each output.

    points_ : list of matplotlib Line2D
        Observations, of each output that was observed.

    windows_ : list of matplotlib Line2D
        Ends of the windows of time, in all panels.

    images_ : list of matplotlib QuadMesh
        Images of solution, reference (where there is one) and error; empty for curves.

    axes_ : ndarray of matplotlib Axes
        All panels, of shape (2, 1) for curves, or more rows where the outputs have very
        different sizes; of shape (1, 2) or (1, 3) for images.

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
    ...     hidden_layer_sizes=(6,),
    ...     n_interior=100,
    ...     n_boundary=1,
    ...     tol=0.1,
    ...     random_state=0,
    ... )
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
        self.bands_, self.points_, self.windows_ = [], [], []
        draw = self._plot_curves if len(self.ticks) == 1 else self._plot_images
        return self._drawn_on(draw(ax, name, kwargs))

    @property
    def _error_name(self):
        return "|Residual|" if self.reference is None else "|Error|"

    def _plot_curves(self, ax, name, kwargs):
        curves = Curves(self, name, kwargs)
        axes = self._panels(ax, len(curves.groups) + 1, 1, size=(5.5, 2.4))
        curves.draw(axes[:, 0])
        axes[0, 0].set_title(_fixed_title(self.fixed), fontsize="medium")
        self.lines_, self.bands_ = curves.lines, curves.bands
        self.points_, self.windows_ = curves.points, curves.windows
        return axes

    def _plot_images(self, ax, name, kwargs):
        images = self._styled_images(name, kwargs)
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
                panel.set_aspect("equal")
                panel.locator_params(nbins=5)  # the labels must not touch
        first = axes[0, 0]
        first.set_ylabel(self.axis_names[1])
        if self.fixed:
            title = f"{images[0][0]}\n{_fixed_title(self.fixed)}"
            first.set_title(title, fontsize="medium")
        first.figure.colorbar(self.images_[-2], ax=axes[0, -2])
        first.figure.colorbar(self.images_[-1], ax=axes[0, -1])
        return axes

    def _styled_images(self, name, kwargs):
        """Title, values and style of every image."""
        from matplotlib.colors import LogNorm, Normalize

        fields = [(f"{name} {self.output_name}", self.solution)]
        if self.reference is not None:
            fields.append((f"Reference {self.output_name}", self.reference))
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
            Output to show. If None, all of them as curves, and the first as an image.
            One that is determined up to a constant is compared without its mean over
            the points shown.

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
        cls._needs_matplotlib("from_estimator")
        problem = _problem(estimator)
        domain = problem.domain
        if not isinstance(n_points, Integral) or n_points < 2:
            raise ValueError(f"n_points must be an integer above 1, got {n_points!r}.")
        at = checked_values(domain, {} if at is None else at)
        shown = shown_axes(domain, axes, at)
        middle = dict(zip(domain.axes, domain.bounds.mean(axis=1), strict=True))
        fixed = {a: float(x) for a, x in (middle | at).items() if a not in shown}
        numbers = output_numbers(problem, output, len(shown))
        ticks, fixed, reference = grid_of_slice(
            problem, shown, fixed, numbers, n_points
        )

        def at_points(function):
            return values_on_grid(function, domain, shown, fixed, ticks)

        solution = at_points(lambda X: _columns(estimator.predict(X))[:, numbers])
        if problem.exact is not None and not is_known_at_points(problem):
            reference = at_points(lambda X: problem.exact_values(X)[:, numbers])
        if reference is None or np.isnan(solution - reference).all():
            residual = at_points(estimator.residual)
            reference, error = None, np.linalg.norm(residual, axis=-1, keepdims=True)
        else:
            error = _differences(problem, numbers, solution, reference)
        more = {}
        if len(shown) == domain.dim == 1:
            more = _known_of_curves(estimator, at_points, numbers)
        names = tuple(problem.outputs[k] for k in numbers)
        return cls(
            ticks=ticks,
            solution=_only(solution),
            error=_only(error),
            axis_names=shown,
            reference=_only(reference),
            fixed=fixed,
            output_name=names if len(names) > 1 else names[0],
            equal=domain.time not in shown and _alike(ticks),
            name=name,
            **more,
        ).plot(ax, **kwargs)


# -- what is to be drawn --------------------------------------------------------------


def _problem(estimator):
    check_is_fitted(estimator)
    problem = getattr(estimator, "problem_", None)
    if problem is None:
        raise ValueError(
            "SolutionDisplay draws a PINNSolver that was fitted with a problem; this "
            f"{type(estimator).__name__} has none."
        )
    return problem


# -- values ---------------------------------------------------------------------------


def _known_of_curves(estimator, at_points, numbers):
    """Standard deviations, observations and windows of a problem of one axis."""
    observations, std = observed_values(estimator), None
    if observations is not None:
        places, values = observations
        observations = places, values[:, numbers]
        # Without observations they are those of the residuals, thinner than a line.
        std = at_points(
            lambda X: _columns(estimator.predict(X, return_std=True)[1])[:, numbers]
        )
    ends = estimator.window_ends_
    return {
        "observations": observations,
        "std": _only(std),
        "window_ends": ends if len(ends) else None,
    }


def _only(values):
    """Values without their last axis where there is one output."""
    several = values is None or values.shape[-1] > 1
    return values if several else values[..., 0]


def _columns(y):
    return y.reshape(len(y), -1)


def _differences(problem, numbers, solution, reference):
    """Sizes of the differences between solution and reference.

    From both, the means of outputs that are known up to a constant are removed.
    """
    for i, k in enumerate(numbers):
        if problem.outputs[k] in problem.up_to_constant:
            known = ~np.isnan(solution[..., i] - reference[..., i])
            for values in (solution[..., i], reference[..., i]):
                values -= values[known].mean()
    return np.abs(solution - reference)


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
