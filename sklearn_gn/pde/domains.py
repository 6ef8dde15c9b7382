"""Domains, and their combination by ``|``, ``&``, ``-`` and ``*``, in numpy.

The shapes that are combined are in :mod:`sklearn_gn.pde.shapes` and
:mod:`sklearn_gn.pde.outlines`. A domain is sampled
through patches: unions, intersections and
differences only drop points of those of their parts. Only ``depth`` and ``contains``
take arrays of JAX too, for coefficients that differ from one domain to the other.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.pde.patches import Patch, draw, join, product, select

NUDGE = 1e-7  # step to either side of a boundary, in units of the domain's size
_ROUNDING = 1e-12  # by which a point may be outside, in the same units


class Domain:
    """Base class of the domains.

    Attributes
    ----------
    axes : tuple of str
        Names of the axes.

    time : str or None
        The axis that is time. The boundary of a domain is the boundary of space, at all
        times; the ends of time are faces such as "t=min" and "t=max".

    bounds : ndarray of shape (d, 2)
        Lowest and highest values along the axes.
    """

    # A kind of domain has these, and ``depth(X)``, a distance to the boundary that is
    # negative outside; ``interior()``, the patch of the whole; ``patches(of_time)``,
    # a dict of the faces of space or of the ends of time.

    def __or__(self, other):
        return Union(self, other) if isinstance(other, Domain) else NotImplemented

    def __and__(self, other):
        return (
            Intersection(self, other) if isinstance(other, Domain) else NotImplemented
        )

    def __sub__(self, other):
        return Difference(self, other) if isinstance(other, Domain) else NotImplemented

    def __mul__(self, other):
        return Product(self, other) if isinstance(other, Domain) else NotImplemented

    @property
    def dim(self) -> int:
        """Number of axes, time included."""
        return len(self.axes)

    @property
    def faces(self) -> tuple[str, ...]:
        """Names of the faces, the ends of time last."""
        return (*self.patches(), *self.patches(of_time=True))

    def contains(self, X: Array) -> Array:
        """Which points (n, d) lie in the domain or on its boundary, up to rounding."""
        X = X if hasattr(X, "__array_namespace__") else np.asarray(X, dtype=float)
        if X.ndim != 2 or X.shape[1] != self.dim:
            raise ValueError(
                f"X must have the columns {self.axes}, got the shape {X.shape}."
            )
        return self.depth(X) >= -_ROUNDING * self._size()

    def sample(self, n: int, rng: np.random.RandomState, method: str = "sobol") -> Any:
        """Draw n points of the interior, of shape (n, d); see :func:`draw`."""
        return draw(self.interior(), n, rng, method)[0]

    def sample_boundary(
        self, n: int, rng: np.random.RandomState, method: str = "sobol"
    ) -> tuple[Array, Array]:
        """Draw n points of the boundary of space, at all times; see :func:`draw`.

        Parameters
        ----------
        n : int
            Number of points.
        rng : numpy.random.RandomState
            Source of the random numbers.
        method : {"sobol", "halton", "uniform"}, default="sobol"
            Sequence of the points.

        Returns
        -------
        points : ndarray of shape (n, d)
            Points of the same density on all faces.
        normals : ndarray of shape (n, d)
            Outward, of length one, zero along time.
        """
        return draw(self.boundary(), n, rng, method)

    def sample_face(
        self, name: str, n: int, rng: np.random.RandomState, method: str = "sobol"
    ) -> Any:
        """Draw n points of a face and their normals."""
        return draw(self.boundary((name,)), n, rng, method)

    def boundary(
        self, on: str | tuple[str, ...] | Callable[..., Any] = "boundary"
    ) -> Patch:
        """The patch of a part of the boundary, given as the ``on`` of a condition."""
        if callable(on):
            return select(self.boundary(), lambda points, _: _chosen(on, points))
        faces = self.patches()
        if on == "boundary":
            if not faces:
                raise ValueError(
                    f"{self!r} has no boundary in space: its axis {self.time!r} is "
                    "time. Use Initial(value) for what is given at its start, or name "
                    f"an end by on='{self.time}=min' or on='{self.time}=max'."
                )
            return join(faces.values())
        faces |= self.patches(of_time=True)
        names = (on,) if isinstance(on, str) else tuple(on)
        for name in names:
            if name not in faces:
                raise ValueError(
                    f"face {name!r} is unknown; the faces are {tuple(faces)}. For "
                    "another part of the boundary, on may be a function of the points, "
                    "such as lambda X: X[:, 0] < 0.5."
                )
        if not names:
            raise ValueError("on=() names no face.")
        return join(faces[name] for name in dict.fromkeys(names))

    def _is_outside(self, X, slack=1e-6):
        """Which points (n, d) are outside by more than rounding errors of the user."""
        return self.depth(X) < -slack * np.ptp(self.bounds, axis=1).max()

    def _size(self):
        return float(np.abs(self.bounds).max() + np.ptp(self.bounds, axis=1).max())

    def is_boundary(self, points: Array, normals: Array) -> Array:
        """Whether the domain is on the inner side of points and not on the outer."""
        step = NUDGE * self._size()
        inner, outer = points - step * normals, points + step * normals
        return (self.depth(inner) >= -step / 2) & (self.depth(outer) < -step / 2)


def namespace(X):
    """The module of an array: numpy or jax.numpy."""
    return X.__array_namespace__()


def _chosen(predicate, points):
    try:
        inspect.signature(predicate).bind(points)
    except TypeError as error:
        raise ValueError(
            "on must be a function of points (n, d) of the boundary that returns n "
            "bools, such as lambda X: X[:, 0] < 0.5. There is no second argument: all "
            "points that it is given are on the boundary."
        ) from error
    except ValueError:  # no signature
        pass
    kept = np.asarray(predicate(points))
    if kept.shape != points.shape[:1] or kept.dtype != bool:
        raise ValueError(
            "the function given as on must return one bool for each point, of shape "
            f"{points.shape[:1]}, got {kept.dtype} of shape {kept.shape}. It is given "
            "all points at once, as rows: write X[:, 0] for the first axis."
        )
    return kept


class _Pair(Domain):
    """Two domains, combined."""

    def __repr__(self):
        first, second = (
            f"({part})" if isinstance(part, _Pair) else f"{part}"
            for part in (self.first, self.second)
        )
        return f"{first} {self._sign} {second}"


@dataclass(frozen=True, repr=False)
class Product(_Pair):
    """Product of two domains of different axes, such as space and time."""

    first: Domain
    second: Domain

    _sign = "*"

    def __post_init__(self):
        common = tuple(name for name in self.first.axes if name in self.second.axes)
        if common:
            raise ValueError(f"both factors have the axes {common}.")
        times = self.first.time, self.second.time
        if None not in times:
            raise ValueError(f"both factors have time: {times}.")

    @property
    def axes(self):
        """Names of the axes."""
        return self.first.axes + self.second.axes

    @property
    def time(self):
        """The axis that is time, or None."""
        return self.first.time or self.second.time

    @property
    def bounds(self):
        """Lowest and highest values along the axes, of shape (d, 2)."""
        return np.concatenate([self.first.bounds, self.second.bounds])

    def depth(self, X):
        """The smaller depth of the two."""
        cut = self.first.dim
        first, second = self.first.depth(X[:, :cut]), self.second.depth(X[:, cut:])
        return namespace(X).minimum(first, second)

    def interior(self):
        """The patch of the whole product."""
        return product(self.first.interior(), self.second.interior())

    def patches(self, of_time=False):
        """Faces of either factor times the whole of the other."""
        a, b = self.first, self.second
        first, second = a.interior(), b.interior()
        return _merge(
            {name: product(p, second) for name, p in a.patches(of_time).items()},
            {name: product(first, p) for name, p in b.patches(of_time).items()},
        )


def _merge(first, second):
    """Two dicts in one; a name that is taken gets a number."""
    merged = dict(first)
    for name, patch in second.items():
        merged[unique(name.split(" (")[0], merged, " ({})")] = patch
    return merged


def unique(name, taken, suffix):
    """The name, with the first number from 2 on if it is taken."""
    names = [name, *(name + suffix.format(k + 2) for k in range(len(taken)))]
    return next(n for n in names if n not in taken)


@dataclass(frozen=True, repr=False)
class _SameAxes(_Pair):
    """Two domains of the same axes of space."""

    first: Domain
    second: Domain

    time = None

    def __post_init__(self):
        a, b = self.first, self.second
        if a.axes != b.axes:
            raise ValueError(f"the domains have different axes: {a.axes}, {b.axes}.")
        if a.time is not None or b.time is not None:
            raise ValueError(
                "|, & and - combine domains of space; multiply by time afterwards, as "
                "in (A - B) * Box(t=(0, 1))."
            )

    @property
    def axes(self):
        """Names of the axes."""
        return self.first.axes

    def patches(self, of_time=False):
        """What is left of the faces of both; equal names of the second get a number."""
        if of_time:
            return {}
        first, second = self.first.patches(), self.second.patches()
        return _merge(
            {name: select(p, self.is_boundary) for name, p in first.items()},
            {name: self._second_face(p) for name, p in second.items()},
        )

    def _second_face(self, patch):
        def place(uniforms):
            points, normals, kept = patch.place(uniforms)
            normals = self._orientation * normals
            # Where faces of both coincide, the first has the points already.
            doubled = self.first.is_boundary(points, normals)
            return points, normals, kept & self.is_boundary(points, normals) & ~doubled

        return patch._replace(place=place)


class Union(_SameAxes):
    """Points of either domain, written ``A | B``."""

    _sign, _orientation = "|", 1

    @property
    def bounds(self):
        """Lowest and highest values along the axes, of shape (d, 2)."""
        (a, b), (c, e) = self.first.bounds.T, self.second.bounds.T
        return np.column_stack([np.minimum(a, c), np.maximum(b, e)])

    def depth(self, X):
        """The larger depth of the two."""
        return namespace(X).maximum(self.first.depth(X), self.second.depth(X))

    def interior(self):
        """The patch of the whole union."""
        second = select(self.second.interior(), lambda x, _: self.first.depth(x) < 0)
        return join([self.first.interior(), second])


class Intersection(_SameAxes):
    """Points of both domains, written ``A & B``."""

    _sign, _orientation = "&", 1

    @property
    def bounds(self):
        """Lowest and highest values along the axes, of shape (d, 2)."""
        (a, b), (c, e) = self.first.bounds.T, self.second.bounds.T
        return np.column_stack([np.maximum(a, c), np.minimum(b, e)])

    def depth(self, X):
        """The smaller depth of the two; that of the outside of a domain is negative."""
        second = self._orientation * self.second.depth(X)
        return namespace(X).minimum(self.first.depth(X), second)

    def interior(self):
        """The patch of the whole intersection, from points of the smaller domain."""
        pair = self.first, self.second
        smaller, other = sorted(pair, key=lambda part: part.interior().log_measure)
        return select(smaller.interior(), lambda x, _: other.depth(x) >= 0)


class Difference(Intersection):
    """Points of the first domain that are not in the second, written ``A - B``."""

    _sign, _orientation = "-", -1

    @property
    def bounds(self):
        """Bounds of the first domain."""
        return self.first.bounds

    def interior(self):
        """The patch of the whole difference."""
        return select(self.first.interior(), lambda x, _: self.second.depth(x) <= 0)
