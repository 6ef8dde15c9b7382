"""Shapes in the plane that are given by an outline, and domains given by points.

All of this is numpy but ``depth``, which takes arrays of JAX too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.pde.domains import Domain, namespace
from sklearn_gn.pde.patches import Patch, select, whole
from sklearn_gn.pde.shapes import Box, axes_of_space, set_fields

_PLANE = ("x", "y")


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
            raise ValueError(
                f"vertices must be three or more pairs of numbers, got {vertices!r}."
            )
        if not np.isfinite(corners).all() or _edges_cross(corners):
            raise ValueError(
                "vertices must be finite, and in the order of an outline that does "
                f"not cross itself, got {vertices!r}."
            )
        _check_plane(axes)
        set_fields(self, vertices=tuple(map(tuple, corners.tolist())), axes=tuple(axes))

    def __repr__(self):
        axes = "" if self.axes == _PLANE else f", axes={self.axes}"
        return f"Polygon({self.vertices}{axes})"

    @property
    def bounds(self) -> Array:
        """Lowest and highest values along the axes, of shape (d, 2)."""
        return np.column_stack([np.min(self.vertices, 0), np.max(self.vertices, 0)])

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

    def patches(self, of_time: bool = False) -> dict[str, Patch]:
        """The edges."""
        corners = np.array(self.vertices)
        ends = np.roll(corners, -1, axis=0)
        outward = np.sign(_cross(corners, ends).sum())  # of edges to the right

        def segment(a, b):
            length = np.linalg.norm(b - a)
            normal = outward * np.array([b[1] - a[1], a[0] - b[0]]) / length

            def place(uniforms):
                points = a + uniforms[:, :1] * (b - a)
                return points, np.broadcast_to(normal, points.shape)

            return whole(math.log(length), 1, place)

        edges = zip(corners, ends, strict=True)
        named = {f"edge {k + 1}": segment(*edge) for k, edge in enumerate(edges)}
        return {} if of_time else named


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
        set_fields(
            self,
            center=tuple(map(float, center)),
            radii=tuple(map(float, radii)),
            angle=float(angle),
            axes=tuple(axes),
        )

    def __repr__(self):
        words = [f"center={self.center}", f"radii={self.radii}"]
        words += [f"angle={self.angle}"] if self.angle else []
        words += [] if self.axes == _PLANE else [f"axes={self.axes}"]
        return f"Ellipse({', '.join(words)})"

    @property
    def _half_axes(self):
        """The half axes, as columns."""
        c, s = math.cos(self.angle), math.sin(self.angle)
        return np.array([[c, -s], [s, c]]) * self.radii

    @property
    def bounds(self) -> Array:
        """Lowest and highest values along the axes, of shape (d, 2)."""
        reach = np.linalg.norm(self._half_axes, axis=1)
        return np.array(self.center)[:, None] + reach[:, None] * np.array([[-1.0, 1.0]])

    def depth(self, X: Array) -> Array:
        """Distance to the ellipse to first order, negative outside."""
        xp = namespace(X)
        center, to_disk = xp.asarray([self.center]), np.linalg.inv(self._half_axes)
        scaled = (X - center) @ xp.asarray(to_disk.T)
        ratio = xp.sqrt((scaled**2).sum(axis=1))
        slope = xp.sqrt(((scaled @ xp.asarray(to_disk)) ** 2).sum(axis=1))
        middle = ratio == 0
        reach = ratio / xp.where(middle, 1.0, slope)
        return (1 - ratio) * xp.where(middle, min(self.radii), reach)

    def _place(self, uniforms):
        """Points of the unit circle by angle, and where the ellipse has them."""
        angle = 2 * np.pi * uniforms
        circle = np.column_stack([np.cos(angle), np.sin(angle)])
        return circle, circle @ self._half_axes.T

    def interior(self) -> Patch:
        """The patch of the whole ellipse."""

        def place(uniforms):
            _, offset = self._place(uniforms[:, 1])
            return np.array(self.center) + np.sqrt(uniforms[:, :1]) * offset

        return whole(math.log(math.pi * math.prod(self.radii)), 2, place)

    def patches(self, of_time: bool = False) -> dict[str, Patch]:
        """The ellipse itself, of constant density along it."""

        def place(uniforms):
            circle, offset = self._place(uniforms[:, 0])
            normals = circle @ np.linalg.inv(self._half_axes)
            normals /= np.linalg.norm(normals, axis=1, keepdims=True)
            speed = np.linalg.norm(circle[:, ::-1] * self.radii, axis=1)
            kept = uniforms[:, 1] * max(self.radii) <= speed
            return np.array(self.center) + offset, normals, kept

        longest = math.log(2 * math.pi * max(self.radii))
        return {} if of_time else {"ellipse": Patch(longest, 2, place)}


class PointCloud(Domain):
    """A domain given by points, such as the nodes of a mesh.

    Its face is "points". As ``on`` of a condition it stands for its boundary points, or
    for all its points if it has none; the condition uses all of them, in their order.
    ``contains`` uses the bounding box only. A point cloud cannot be combined with other
    domains.

    Parameters
    ----------
    points : array of shape (n, d)
        Points inside.

    boundary : array of shape (m, d), default=None
        Points of the boundary.

    normals : array of shape (m, d), default=None
        Outward normals at these points, of any length.

    axes : tuple of str, default=None
        Names of the axes. If None, x, y, z up to three axes, and x1, x2, ... beyond.
    """

    time = None

    def __init__(
        self,
        points: Any,
        boundary: Any = None,
        normals: Any = None,
        axes: Sequence[str] | None = None,
    ) -> None:
        self.points = _cloud("points", points)
        self._boundary = None if boundary is None else _cloud("boundary", boundary)
        dim = self.points.shape[1]
        if self.points_on_it.shape[1] != dim:
            raise ValueError(
                f"boundary must have the {dim} columns of points, got the shape "
                f"{self.points_on_it.shape}."
            )
        if normals is None:
            normals = np.zeros_like(self.points_on_it)
        elif boundary is None or np.shape(normals) != self.points_on_it.shape:
            raise ValueError(
                "normals must have the shape of boundary, got "
                f"{np.shape(normals)} and {np.shape(boundary)}."
            )
        else:
            normals = _cloud("normals", normals)
            normals = normals / np.linalg.norm(normals, axis=1, keepdims=True)
        self.normals = normals
        axes = axes_of_space(dim) if axes is None else axes
        if len(axes) != dim:
            raise ValueError(f"axes must have {dim} entries, got {axes!r}.")
        self.axes = tuple(axes)

    def __eq__(self, other):
        return self is other or (
            isinstance(other, PointCloud)
            and self.axes == other.axes
            and np.array_equal(self.points, other.points)
            and np.array_equal(self.points_on_it, other.points_on_it)
            and np.array_equal(self.normals, other.normals)
        )

    def __hash__(self):
        return hash((self.axes, self.points.shape, *self.points[0].tolist()))

    def __repr__(self):
        found = 0 if self._boundary is None else len(self._boundary)
        return f"<{len(self.points)} points and {found} of the boundary, {self.axes}>"

    @property
    def points_on_it(self) -> Array:
        """What the cloud stands for as ``on`` of a condition."""
        return self.points if self._boundary is None else self._boundary

    def take(self, n: int, rng: np.random.RandomState) -> tuple[Array, Array]:
        """The points as ``on`` of a condition, or n of them, and their normals."""
        count, chosen = len(self.points_on_it), slice(None)
        if n < count:
            chosen = np.sort(rng.choice(count, n, replace=False))
        return self.points_on_it[chosen].copy(), self.normals[chosen].copy()

    @property
    def bounds(self) -> Array:
        """Lowest and highest values along the axes, of shape (d, 2)."""
        both = np.concatenate([self.points, self.points_on_it])
        return np.column_stack([both.min(axis=0), both.max(axis=0)])

    def depth(self, X: Array) -> Array:
        """Depth in the bounding box."""
        low, high = self.bounds.T[:, None]
        return namespace(X).minimum(X - low, high - X).min(axis=1)

    def interior(self) -> Patch:
        """The points inside, each as likely as the others."""
        return _choice(self.points, np.zeros_like(self.points))

    def patches(self, of_time: bool = False) -> dict[str, Patch]:
        """The points of the boundary."""
        if of_time or self._boundary is None:
            return {}
        return {"points": _choice(self._boundary, self.normals)}

    def _refuse(self, other):
        raise ValueError("a PointCloud cannot be combined by |, & or -.")

    __or__ = __and__ = __sub__ = __ror__ = __rand__ = __rsub__ = _refuse


def _cloud(name, value):
    array = np.array(value, dtype=float)
    if array.ndim != 2 or not len(array) or not np.isfinite(array).all():
        raise ValueError(
            f"{name} must be finite numbers of shape (n, d), got the shape "
            f"{array.shape}."
        )
    array.setflags(write=False)
    return array


def _choice(points, normals):
    """The patch of given points."""

    def place(uniforms):
        chosen = np.minimum((uniforms[:, 0] * len(points)).astype(int), len(points) - 1)
        return points[chosen], normals[chosen]

    return whole(0.0, 1, place)


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

    def on_both_sides(k, m):
        """Whether the ends of edges m are on both sides of the lines of edges k."""
        along = b[k] - a[k]
        return _cross(along, a[m] - a[k]) * _cross(along, b[m] - a[k]) <= 0

    return bool((on_both_sides(i, j) & on_both_sides(j, i) & apart).any())
