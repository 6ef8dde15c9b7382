"""Shapes that domains are made of: boxes, balls, and outlines in the plane."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.special import gammaln, ndtri

from sklearn_gn._typing import Array
from sklearn_gn.arrays.libraries import namespace
from sklearn_gn.pde.domains import Domain, Patch, axes_of_space, select, set_fields

_PLANE = ("x", "y")


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
            raise ValueError(f"time={time!r} must be one of {[*intervals]} or None.")
        set_fields(
            self,
            axes=tuple(intervals),
            lower=tuple(float(low) for low, _ in intervals.values()),
            upper=tuple(float(high) for _, high in intervals.values()),
            time=time if time in intervals else None,
            bounds=np.array(list(intervals.values()), dtype=float),
        )

    @classmethod
    def unit(cls, dim: int, time: tuple[float, float] | None = None) -> "Box":
        """The unit cube, with axes x1, x2, ...

        Parameters
        ----------
        dim : int
            Number of axes of space.
        time : tuple of two floats, default=None
            Interval of time, the last axis "t". If None, there is no time.

        Returns
        -------
        Box
        """
        intervals: dict[str, Any] = {f"x{i + 1}": (0.0, 1.0) for i in range(dim)}
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

    def interior(self) -> Patch:
        """The patch of the whole box."""
        low, high = self.bounds.T

        def place(uniforms):
            points = low + (high - low) * uniforms
            return points, np.zeros_like(points), np.full(len(points), True)

        return Patch(float(np.log(high - low).sum()), self.dim, place)

    def patches(self) -> dict[str, Patch]:
        """The two ends of each axis."""
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
    _log_measure: ClassVar[float]  # set for each ball

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
            bounds=np.array(center)[:, None] + radius * np.array([[-1.0, 1.0]]),
        )
        unit = dim / 2 * math.log(math.pi) - gammaln(dim / 2 + 1)
        set_fields(self, _log_measure=float(unit + dim * math.log(radius)))

    def __repr__(self):
        plain = Ball(self.dim, radius=self.radius)
        words = [f"Ball({self.dim}, radius={self.radius}"]
        for name in ("center", "axes", "density"):
            value = getattr(self, name)
            words += [] if value == getattr(plain, name) else [f"{name}={value}"]
        return ", ".join(words) + ")"

    def depth(self, X: Array) -> Array:
        """Distance to the sphere, negative outside."""
        xp = namespace(X)
        return self.radius - xp.linalg.norm(X - xp.asarray([self.center]), axis=1)

    def _place(self, uniforms, ratio):
        """Points in the direction of normal numbers, at a share of the radius."""
        normals = ndtri(np.clip(uniforms[:, : self.dim], 1e-12, 1 - 1e-12))
        normals[~normals.any(axis=1), 0] = 1.0
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        points = np.array(self.center) + self.radius * ratio * normals
        return points, normals, np.full(len(points), True)

    def interior(self) -> Patch:
        """The patch of the whole ball."""

        def place(uniforms):
            power = 1 / self.dim if self.density == "uniform" else 1
            points, normals, kept = self._place(uniforms, uniforms[:, -1:] ** power)
            return points, 0 * normals, kept

        return Patch(self._log_measure, self.dim + 1, place)

    def patches(self) -> dict[str, Patch]:
        """The sphere."""
        area = self._log_measure + math.log(self.dim / self.radius)
        return {"sphere": Patch(area, self.dim, lambda u: self._place(u, 1.0))}


@dataclass(frozen=True, init=False, repr=False)
class Polygon(Domain):
    """A polygon in the plane, which need not be convex.

    Its faces are "edge 1", from the first vertex to the second, and so on.

    Parameters
    ----------
    vertices : sequence of pairs of float
        Corners in their order along the boundary, either way round. The last one is
        joined to the first. Edges must not cross each other.
    axes : tuple of two str, default=("x", "y")
        Names of the axes.

    Examples
    --------
    >>> from sklearn_gn.pde import Polygon
    >>> Polygon([(0, 0), (2, 0), (0, 1)]).faces
    ('edge 1', 'edge 2', 'edge 3')
    """

    vertices: tuple
    axes: tuple

    time = None

    def __init__(self, vertices: Any, axes: Sequence[str] = _PLANE) -> None:
        corners = np.asarray(vertices, dtype=float)
        if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3:
            raise ValueError(f"vertices must be three or more pairs, got {vertices!r}.")
        if not np.isfinite(corners).all() or _edges_cross(corners):
            raise ValueError(
                "vertices must be finite, and in the order of an outline that does "
                f"not cross itself, got {vertices!r}."
            )
        _check_plane(axes)
        set_fields(
            self,
            vertices=tuple(map(tuple, corners.tolist())),
            axes=tuple(axes),
            bounds=np.column_stack([corners.min(axis=0), corners.max(axis=0)]),
        )

    def __repr__(self):
        axes = "" if self.axes == _PLANE else f", axes={self.axes}"
        return f"Polygon({self.vertices}{axes})"

    def depth(self, X: Array) -> Array:
        """Distance to the nearest edge, negative outside."""
        xp = namespace(X)
        first = xp.asarray(self.vertices)[None]
        second = xp.roll(first, -1, axis=1)
        along = second - first
        to = X[:, None] - first
        share = xp.clip((to * along).sum(-1) / (along**2).sum(-1), 0, 1)
        offset = to - share[..., None] * along
        distance = xp.sqrt((offset**2).sum(-1).min(axis=1))
        # A ray to the right of an inner point crosses an odd number of edges.
        y = X[:, 1:2]
        straddles = (first[..., 1] > y) != (second[..., 1] > y)
        rise = xp.where(along[..., 1] == 0, 1.0, along[..., 1])
        crossing = first[..., 0] + (y - first[..., 1]) / rise * along[..., 0]
        odd = (straddles & (X[:, :1] < crossing)).sum(axis=1) % 2 == 1
        return xp.where(odd, distance, -distance)

    def interior(self) -> Patch:
        """The patch of what is inside of the bounding box."""
        box = Box(time=None, **dict(zip(self.axes, self.bounds, strict=True)))
        return select(box.interior(), lambda points, _: self.depth(points) >= 0)

    def patches(self) -> dict[str, Patch]:
        """The edges."""
        corners = np.array(self.vertices)
        ends = np.roll(corners, -1, axis=0)
        outward = np.sign(_cross(corners, ends).sum())  # of edges to the right

        def segment(a, b):
            length = np.linalg.norm(b - a)
            normal = outward * np.array([b[1] - a[1], a[0] - b[0]]) / length

            def place(uniforms):
                points = a + uniforms[:, :1] * (b - a)
                normals = np.broadcast_to(normal, points.shape)
                return points, normals, np.full(len(points), True)

            return Patch(math.log(length), 1, place)

        edges = zip(corners, ends, strict=True)
        return {f"edge {k + 1}": segment(*edge) for k, edge in enumerate(edges)}


@dataclass(frozen=True, init=False, repr=False)
class Ellipse(Domain):
    """An ellipse in the plane. Its face is "ellipse".

    Parameters
    ----------
    center : tuple of two floats, default=(0.0, 0.0)
        Centre.
    radii : tuple of two floats, default=(1.0, 1.0)
        Half axes.
    angle : float, default=0.0
        Angle from the first axis to the first half axis, in radians.
    axes : tuple of two str, default=("x", "y")
        Names of the axes.
    """

    center: tuple
    radii: tuple
    angle: float
    axes: tuple
    _half_axes: ClassVar[Array]  # set for each ellipse

    time = None

    def __init__(
        self,
        center: tuple[float, float] = (0.0, 0.0),
        radii: tuple[float, float] = (1.0, 1.0),
        angle: float = 0.0,
        axes: Sequence[str] = _PLANE,
    ) -> None:
        for name, pair in (("center", center), ("radii", radii)):
            if np.shape(pair) != (2,) or not np.isfinite(pair).all():
                raise ValueError(f"{name} must be two finite numbers, got {pair!r}.")
        if not min(radii) > 0:
            raise ValueError(f"radii must be positive, got {radii!r}.")
        _check_plane(axes)
        c, s = math.cos(angle), math.sin(angle)
        half_axes = np.array([[c, -s], [s, c]]) * radii  # as columns
        half_width = np.linalg.norm(half_axes, axis=1)[:, None]
        set_fields(
            self,
            center=tuple(map(float, center)),
            radii=tuple(map(float, radii)),
            angle=float(angle),
            axes=tuple(axes),
            bounds=np.array(center, float)[:, None] + half_width * [[-1.0, 1.0]],
            _half_axes=half_axes,
        )

    def __repr__(self):
        words = [f"center={self.center}", f"radii={self.radii}"]
        words += [f"angle={self.angle}"] if self.angle else []
        words += [] if self.axes == _PLANE else [f"axes={self.axes}"]
        return f"Ellipse({', '.join(words)})"

    def depth(self, X: Array) -> Array:
        """Distance to the ellipse to first order, negative outside."""
        xp = namespace(X)
        center, to_disk = xp.asarray([self.center]), np.linalg.inv(self._half_axes)
        scaled = (X - center) @ xp.asarray(to_disk.T)
        ratio = xp.sqrt((scaled**2).sum(axis=1))
        slope = xp.sqrt(((scaled @ xp.asarray(to_disk)) ** 2).sum(axis=1))
        middle = ratio == 0
        radius = ratio / xp.where(middle, 1.0, slope)  # of the ellipse there
        return (1 - ratio) * xp.where(middle, min(self.radii), radius)

    def _place(self, uniforms):
        """Points of the unit circle by angle, and where the ellipse has them."""
        angle = 2 * np.pi * uniforms
        circle = np.column_stack([np.cos(angle), np.sin(angle)])
        return circle, circle @ self._half_axes.T

    def interior(self) -> Patch:
        """The patch of the whole ellipse."""

        def place(uniforms):
            _, offset = self._place(uniforms[:, 1])
            points = np.array(self.center) + np.sqrt(uniforms[:, :1]) * offset
            return points, np.zeros_like(points), np.full(len(points), True)

        return Patch(math.log(math.pi * math.prod(self.radii)), 2, place)

    def patches(self) -> dict[str, Patch]:
        """The ellipse itself, of constant density along it."""

        def place(uniforms):
            circle, offset = self._place(uniforms[:, 0])
            normals = circle @ np.linalg.inv(self._half_axes)
            normals /= np.linalg.norm(normals, axis=1, keepdims=True)
            speed = np.linalg.norm(circle[:, ::-1] * self.radii, axis=1)
            kept = uniforms[:, 1] * max(self.radii) <= speed
            return np.array(self.center) + offset, normals, kept

        longest = math.log(2 * math.pi * max(self.radii))
        return {"ellipse": Patch(longest, 2, place)}


def _check_plane(axes):
    if len(axes) != 2 or len(set(axes)) < 2:
        raise ValueError(f"axes must be two different names, got {axes!r}.")


def _cross(a, b):
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _edges_cross(corners):
    """Whether two edges that are not neighbours meet, or an edge has no length."""
    a, b = corners, np.roll(corners, -1, axis=0)
    if (a == b).all(axis=1).any() or _cross(a, b).sum() == 0:
        return True
    i, j = np.triu_indices(len(corners), 2)
    apart = (i > 0) | (j < len(corners) - 1)  # the last one is next to the first
    # Edges of one line, as on both sides of a notch, meet if their ranges do.
    low, high = np.minimum(a, b), np.maximum(a, b)
    near = (np.maximum(low[i], low[j]) <= np.minimum(high[i], high[j])).all(axis=1)

    def on_both_sides(k, m):
        """Whether the ends of edges m are on both sides of the lines of edges k."""
        along = b[k] - a[k]
        return _cross(along, a[m] - a[k]) * _cross(along, b[m] - a[k]) <= 0

    return bool((on_both_sides(i, j) & on_both_sides(j, i) & apart & near).any())
