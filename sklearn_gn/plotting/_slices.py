"""Slices of a domain: which axes and outputs are shown, and their values on a grid."""

import math
import warnings
from numbers import Real

import numpy as np
from sklearn.utils import gen_batches

_FLOATS = 2**24  # numbers of the points that are evaluated together
_HOLES = 4  # cells for each point, beyond which the points of a reference are no grid


def output_numbers(problem, output, n_shown):
    """Numbers of the outputs to show: all as curves, one as an image."""
    if output is None:
        return list(range(len(problem.outputs))) if n_shown == 1 else [0]
    if output not in problem.outputs:
        raise ValueError(
            f"output={output!r} is unknown; the outputs are {problem.outputs}."
        )
    return [problem.outputs.index(output)]


def checked_values(domain, at):
    for axis, value in at.items():
        if axis not in domain.axes:
            raise ValueError(
                f"at: axis {axis!r} is unknown; the axes are {domain.axes}."
            )
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(f"at: {axis!r} must be a finite number, got {value!r}.")
    return at


def shown_axes(domain, axes, at):
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


def is_known_at_points(problem):
    """Whether the exact solution is not a function."""
    return hasattr(problem.exact, "points")


def grid_of_slice(problem, shown, fixed, numbers, n_points):
    """Ticks along the axes shown, values of the others, the reference if it is there.

    Where the reference is a grid, the ticks are its own.
    """
    if is_known_at_points(problem):
        found = _reference_slice(problem, shown, fixed, numbers, n_points)
        if found is not None:
            return found
    bounds = dict(zip(problem.domain.axes, problem.domain.bounds, strict=True))
    if len(shown) == 1:
        return (np.linspace(*bounds[shown[0]], n_points),), fixed, None
    edges = [np.linspace(*bounds[name], n_points + 1) for name in shown]
    return tuple((e[1:] + e[:-1]) / 2 for e in edges), fixed, None  # centres of cells


def _reference_slice(problem, shown, fixed, numbers, n_points):
    """The same for a reference that makes a grid; None if it does not."""
    names = problem.domain.axes
    columns = [np.unique(c, return_inverse=True) for c in problem.exact.points.T]
    ticks = {name: c[0] for name, c in zip(names, columns, strict=True)}
    if math.prod(map(len, ticks.values())) > _HOLES * len(problem.exact.points):
        return None
    values = np.full([*map(len, ticks.values()), len(numbers)], np.nan)
    values[tuple(c[1] for c in columns)] = problem.exact.values[:, numbers]
    nearest = {a: int(np.argmin(np.abs(ticks[a] - x))) for a, x in fixed.items()}
    values = values[tuple(nearest.get(name, slice(None)) for name in names)]
    if shown != tuple(name for name in names if name in shown):
        values = values.swapaxes(0, 1)
    kept = [_thinned(len(ticks[a]), n_points) for a in shown]
    values = values[np.ix_(*kept)]
    if len(shown) == 2:  # the horizontal axis runs along the rows
        values = values.swapaxes(0, 1)
    fixed = {a: float(ticks[a][i]) for a, i in nearest.items()}
    return tuple(ticks[a][i] for a, i in zip(shown, kept, strict=True)), fixed, values


def _thinned(n, n_points):
    """Numbers of at most ``n_points`` of n ticks, the first and the last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, n_points)).round().astype(int))


def values_on_grid(function, domain, shown, fixed, ticks):
    """Values (..., k) on the grid; NaN outside the domain."""
    mesh = np.meshgrid(*ticks)
    columns = dict(zip(shown, (c.ravel() for c in mesh), strict=True))
    n = mesh[0].size
    values = None
    for rows in gen_batches(n, max(1, _FLOATS // domain.dim)):
        X = np.empty((rows.stop - rows.start, domain.dim))
        for i, name in enumerate(domain.axes):
            X[:, i] = columns[name][rows] if name in columns else fixed[name]
        inside = domain.contains(X)
        if inside.any():
            with warnings.catch_warnings():  # of solvers that were fitted to frames
                warnings.filterwarnings("ignore", "X does not have valid feature names")
                found = function(X[inside])
            if values is None:
                values = np.full((n, found.shape[1]), np.nan)
            values[rows][inside] = found
    if values is None:
        raise ValueError(f"no point of the slice is in the domain: {fixed}.")
    return values.reshape(*mesh[0].shape, -1)
