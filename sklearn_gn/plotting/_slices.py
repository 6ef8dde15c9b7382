"""Slices of a domain: which axes and outputs are shown, and their values on a grid."""

import math
import warnings
from numbers import Real
from typing import Any, NamedTuple

import numpy as np


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
                raise ValueError(f"at: axis {axis!r} is already shown.")
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
