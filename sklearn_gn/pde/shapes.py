"""Shapes of which domains are made: boxes and balls. All of this is numpy."""

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import numpy as np
from scipy.special import gammaln, ndtri

from sklearn_gn._typing import Array
from sklearn_gn.pde.domains import Domain, namespace
from sklearn_gn.pde.patches import Patch, whole


@dataclass(frozen=True, init=False, repr=False)
class Box(Domain):
    """A product of intervals.

    Parameters
    ----------
    *unnamed : tuple
        Raises an error: intervals need the names of their axes.

    time : str or None, default="t"
        The axis that is time. If None, "t", too, is an axis of space.

    **intervals : tuple of two floats
        Lowest and highest value along each axis, by its name.

    Examples
    --------
    >>> from sklearn_gn.pde import Box
    >>> Box(x=(-1, 1), t=(0, 1)).faces
    ('x=min', 'x=max', 't=min', 't=max')
    """

    axes: tuple
    lower: tuple
    upper: tuple
    time: str | None

    def __init__(
        self, *unnamed: Any, time: str | None = "t", **intervals: tuple[float, float]
    ) -> None:
        if unnamed:
            raise ValueError(
                "Box takes its intervals by the names of the axes, such as "
                f"Box(x=(0, 1), y=(0, 1)); got {unnamed[0]!r} without a name."
            )
        if not intervals:
            raise ValueError("Box needs an interval for an axis, such as x=(0, 1).")
        for name, interval in intervals.items():
            pair = np.shape(interval) == (2,)
            if not pair or not -np.inf < interval[0] < interval[1] < np.inf:
                raise ValueError(
                    f"{name} must be (low, high) with low < high, got {interval!r}."
                )
        if time is not None and not isinstance(time, str):
            raise ValueError(
                f"time must be the name of an axis, got {time!r}: write t={time!r}."
            )
        if time not in (None, "t", *intervals):
            raise ValueError(
                f"time={time!r} must be one of the axes {tuple(intervals)} or None."
            )
        set_fields(
            self,
            axes=tuple(intervals),
            lower=tuple(float(low) for low, _ in intervals.values()),
            upper=tuple(float(high) for _, high in intervals.values()),
            time=time if time in intervals else None,
        )

    @classmethod
    def unit(
        cls, dim: int, time: tuple[float, float] | None = None, prefix: str = "x"
    ) -> "Box":
        """The unit cube, with axes x1, x2, ...

        Parameters
        ----------
        dim : int
            Number of axes of space.

        time : tuple of two floats, default=None
            Interval of time, the last axis "t". If None, there is no time.

        prefix : str, default="x"
            Prefix of the names of the axes.

        Returns
        -------
        Box
        """
        intervals: dict[str, Any] = {f"{prefix}{i + 1}": (0.0, 1.0) for i in range(dim)}
        if time is not None:
            intervals["t"] = time
        return cls(**intervals)

    def __repr__(self):
        intervals = zip(self.axes, self.lower, self.upper, strict=True)
        words = [f"{name}=({low}, {high})" for name, low, high in intervals]
        words[4:-4] = words[4:-4] if len(words) < 20 else ["..."]
        if self.time != ("t" if "t" in self.axes else None):
            words.append(f"time={self.time!r}")
        return f"Box({', '.join(words)})"

    @property
    def bounds(self) -> Array:
        """Lowest and highest values along the axes, of shape (d, 2)."""
        return np.column_stack([self.lower, self.upper])

    def depth(self, X: Array) -> Array:
        """Distance to the nearest face, negative outside."""
        low, high = self.bounds.T[:, None]
        return namespace(X).minimum(X - low, high - X).min(axis=1)

    def interior(self) -> Patch:
        """The patch of the whole box."""
        low, high = self.bounds.T
        measure = float(np.log(high - low).sum())
        return whole(measure, self.dim, lambda u: low + (high - low) * u)

    def patches(self, of_time: bool = False) -> Any:
        """Faces of space, or the ends of time."""
        inside, bounds = self.interior(), self.bounds

        def face(axis, side):
            def place(uniforms):
                points, normals, kept = inside.place(uniforms)
                points[:, axis], normals[:, axis] = bounds[axis, side], 2 * side - 1
                return points, normals, kept

            measure = inside.log_measure - math.log(np.ptp(bounds[axis]))
            return Patch(measure, self.dim, place)

        return {
            f"{name}={end}": face(axis, side)
            for axis, name in enumerate(self.axes)
            if (name == self.time) == of_time
            for side, end in enumerate(("min", "max"))
        }


class Interval(Box):
    """An interval, of time by default: where ordinary differential equations hold.

    Parameters
    ----------
    low, high : float
        Its ends.

    axis : str, default="t"
        Name of the axis. "t" is time, and has an :class:`Initial` condition at ``low``;
        any other name is an axis of space, whose two ends are the boundary.

    Examples
    --------
    >>> from sklearn_gn.pde import Interval
    >>> Interval(0, 10).faces
    ('t=min', 't=max')
    """

    def __init__(self, low: float, high: float, axis: str = "t") -> None:
        if axis == "time":
            raise ValueError("axis='time' is called 't': leave axis out.")
        super().__init__(time="t", **{axis: (low, high)})

    def __repr__(self):
        axis = "" if self.axes == ("t",) else f", axis={self.axes[0]!r}"
        return f"Interval({self.lower[0]}, {self.upper[0]}{axis})"


@dataclass(frozen=True, init=False, repr=False)
class Ball(Domain):
    """A ball in space; ``Ball(2) * Box(t=(0, 1))`` adds time. Its face is "sphere".

    In a ring, ``Ball(2) - Ball(2, radius=0.3)``, the outer face is "sphere" and the
    inner one "sphere (2)".

    Parameters
    ----------
    dim : int
        Number of axes.

    center : tuple of float, default=None
        Centre. If None, the origin.

    radius : float, default=1.0
        Radius, positive.

    axes : tuple of str, default=None
        Names of the axes. If None, x, y, z up to three axes, and x1, x2, ... beyond.

    density : {"uniform", "radius"}, default="uniform"
        Density of points inside. If "uniform", nearly all of them lie close to the
        sphere in many dimensions. If "radius", their distance from the centre is
        uniform.
    """

    axes: tuple
    center: tuple
    radius: float
    density: str

    time = None

    def __init__(
        self,
        dim: int,
        center: tuple[float, ...] | None = None,
        radius: float = 1.0,
        axes: tuple[str, ...] | None = None,
        density: Literal["uniform", "radius"] = "uniform",
    ) -> None:
        if density not in ("uniform", "radius"):
            raise ValueError(f"density must be 'uniform' or 'radius', got {density!r}.")
        if not isinstance(dim, Integral) or dim < 1:
            raise ValueError(
                "dim must be the number of axes, as in Ball(2, center=(0, 0), "
                f"radius=1.0), got {dim!r}."
            )
        if not 0 < radius < np.inf:
            raise ValueError(f"radius must be positive, got {radius!r}.")
        axes = axes_of_space(dim) if axes is None else axes
        center = (0.0,) * dim if center is None else tuple(float(c) for c in center)
        for name, values in (("center", center), ("axes", tuple(axes))):
            if len(values) != dim:
                raise ValueError(f"{name} must have dim={dim} entries, got {values!r}.")
        set_fields(
            self,
            axes=tuple(axes),
            center=center,
            radius=float(radius),
            density=density,
        )

    def __repr__(self):
        plain = Ball(self.dim, radius=self.radius)
        words = [f"Ball({self.dim}, radius={self.radius}"]
        for name in ("center", "axes", "density"):
            value = getattr(self, name)
            words += [] if value == getattr(plain, name) else [f"{name}={value}"]
        return ", ".join(words) + ")"

    @property
    def bounds(self) -> Array:
        """Lowest and highest values along the axes, of shape (d, 2)."""
        return np.array(self.center)[:, None] + self.radius * np.array([[-1.0, 1.0]])

    def depth(self, X: Array) -> Array:
        """Distance to the sphere, negative outside."""
        xp = namespace(X)
        return self.radius - xp.linalg.norm(X - xp.asarray([self.center]), axis=1)

    def _place(self, uniforms, ratio):
        """Points in the direction of normal numbers, at a share of the radius."""
        normals = ndtri(np.clip(uniforms[:, : self.dim], 1e-12, 1 - 1e-12))
        normals[~normals.any(axis=1), 0] = 1.0
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        return np.array(self.center) + self.radius * ratio * normals, normals

    def _log_measure(self):
        unit = self.dim / 2 * math.log(math.pi) - gammaln(self.dim / 2 + 1)
        return float(unit + self.dim * math.log(self.radius))

    def interior(self) -> Patch:
        """The patch of the whole ball."""

        def place(uniforms):
            power = 1 / self.dim if self.density == "uniform" else 1
            return self._place(uniforms, uniforms[:, -1:] ** power)[0]

        return whole(self._log_measure(), self.dim + 1, place)

    def patches(self, of_time: bool = False) -> Any:
        """The sphere."""
        area = self._log_measure() + math.log(self.dim / self.radius)
        sphere = whole(area, self.dim, lambda u: self._place(u, 1.0))
        return {} if of_time else {"sphere": sphere}


def set_fields(instance, **values):
    """Set attributes of a frozen instance."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def axes_of_space(dim):
    """Names of axes that are given none: x, y, z, or x1, x2, ... of more than three."""
    return tuple("xyz"[:dim] if dim <= 3 else (f"x{i + 1}" for i in range(dim)))
