"""Domains: where the points of a problem lie. All of this is numpy.

A domain is built from boxes and balls by ``|``, ``-`` and ``*``. Sampling rests on
patches: a patch takes uniform numbers in the unit cube to points of constant density on
a piece of the domain or of its boundary, and says which of them to keep. One more
uniform number joins pieces: it picks one in proportion to its measure. Unions and
differences only drop points. So a low-discrepancy sequence in the cube remains one on
the domain, and the density is constant whatever was combined.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, ndtri
from scipy.stats import qmc

METHODS = ("sobol", "halton", "uniform")
_BATCH = 2**20  # numbers drawn at a time
_ENOUGH, _FEW = 1024, 1e-3  # candidates, and share of them, that tell an empty patch
_NUDGE = 1e-7  # step to either side of a boundary, in units of the domain's size
_ROUNDING = 1e-12  # by which a point may be outside, in the same units


class Patch(NamedTuple):
    """Points of constant density on a piece, as a function of uniform numbers."""

    log_measure: float  # of the piece before any point is dropped
    n_uniforms: int
    # (n, n_uniforms) -> points (n, d), normals (n, d), kept (n,); no normals: zero
    place: Callable


def draw(patch, n, rng, method="sobol"):
    """Draw n points of a patch.

    Parameters
    ----------
    patch : Patch
    n : int
    rng : RandomState
    method : {"sobol", "halton", "uniform"}, default="sobol"
        Sobol's sequence has at most 21,201 dimensions; beyond, numbers are uniform.

    Returns
    -------
    points, normals : ndarray of shape (n, d)

    Raises
    ------
    ValueError
        If less than one candidate in a thousand is kept.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; the methods are {METHODS}.")
    uniforms = _uniforms(patch.n_uniforms, rng, method)
    # Sobol's sequence comes in powers of two.
    most = 1 << max(1, _BATCH // patch.n_uniforms).bit_length() - 1
    size = min(most, 1 << max(0, n - 1).bit_length())
    points, normals, found, total = [], [], 0, 0
    while not points or found < n:
        x, normal, kept = patch.place(uniforms(size))
        points.append(x[kept])
        normals.append(normal[kept])
        found, total = found + int(kept.sum()), total + size
        if total >= max(_ENOUGH, most) and found < _FEW * total:
            raise ValueError(f"of {total} candidates {found} are inside.")
        size = min(most, total)
    return np.concatenate(points)[:n], np.concatenate(normals)[:n]


def _uniforms(n_dimensions, rng, method):
    if method == "uniform" or n_dimensions > qmc.Sobol.MAXDIM:
        return lambda n: rng.uniform(size=(n, n_dimensions))
    engine = {"sobol": qmc.Sobol, "halton": qmc.Halton}[method]
    return engine(n_dimensions, seed=int(2**31 * rng.uniform())).random


def join(patches):
    """One patch of several."""
    patches = list(patches)
    if len(patches) == 1:
        return patches[0]
    logs = np.array([patch.log_measure for patch in patches])
    weights = np.exp(logs - logs.max())
    shares = np.cumsum(weights) / weights.sum()

    def place(uniforms):
        choice = np.searchsorted(shares[:-1], uniforms[:, 0], side="right")
        order = np.argsort(choice, kind="stable")
        picked, starts = np.unique(choice[order], return_index=True)
        groups = np.split(uniforms[order, 1:], starts[1:])
        parts = [
            patches[k].place(group[:, : patches[k].n_uniforms])
            for k, group in zip(picked, groups, strict=True)
        ]
        back = np.argsort(order)
        return tuple(np.concatenate(part)[back] for part in zip(*parts, strict=True))

    total = logs.max() + np.log(weights.sum())
    return Patch(total, 1 + max(patch.n_uniforms for patch in patches), place)


def select(patch, keep):
    """The part of a patch for which ``keep(points, normals)`` is true."""

    def place(uniforms):
        points, normals, kept = patch.place(uniforms)
        return points, normals, kept & keep(points, normals)

    return patch._replace(place=place)


class Domain:
    """What the domains share.

    Attributes
    ----------
    axes : tuple of str
        Names of the axes.

    time : str or None
        The axis that is time. The boundary of a domain is that of space, at all times;
        the ends of time are faces such as "t=min" and "t=max".

    bounds : ndarray of shape (d, 2)
        Lowest and highest values along the axes.
    """

    # A kind of domain has these, and ``depth(X)``, a distance to the boundary that is
    # negative outside; ``interior()``, the patch of the whole; ``patches(of_time)``,
    # a dict of the faces of space or of the ends of time.

    def __or__(self, other):
        return Union(self, other) if isinstance(other, Domain) else NotImplemented

    def __sub__(self, other):
        return Difference(self, other) if isinstance(other, Domain) else NotImplemented

    def __mul__(self, other):
        return Product(self, other) if isinstance(other, Domain) else NotImplemented

    @property
    def dim(self):
        """Number of axes, time included."""
        return len(self.axes)

    @property
    def faces(self):
        """Names of the faces, those of time last."""
        return (*self.patches(), *self.patches(of_time=True))

    def contains(self, X):
        """Which points (n, d) lie in the domain or on its boundary, up to rounding."""
        X = np.asarray(X, dtype=float)
        if X.ndim != 2 or X.shape[1] != self.dim:
            raise ValueError(
                f"X must have the columns {self.axes}, got the shape {X.shape}."
            )
        return self.depth(X) >= -_ROUNDING * self._size()

    def sample(self, n, rng, method="sobol"):
        """Draw n points of the interior, of shape (n, d); see :func:`draw`."""
        return draw(self.interior(), n, rng, method)[0]

    def sample_boundary(self, n, rng, method="sobol"):
        """Draw n points of the boundary of space, at all times; see :func:`draw`.

        Returns
        -------
        points : ndarray of shape (n, d)
            Of the same density on all faces.
        normals : ndarray of shape (n, d)
            Outward, of length one, zero along time.
        """
        return draw(self.boundary(), n, rng, method)

    def sample_face(self, name, n, rng, method="sobol"):
        """Draw n points of a face and their normals."""
        return draw(self.boundary((name,)), n, rng, method)

    def boundary(self, on="boundary"):
        """The patch of a part of the boundary.

        Parameters
        ----------
        on : str, tuple of str or callable, default="boundary"
            "boundary" for that of space, faces by name, or a function of points (n, d)
            that says which of the boundary of space to take.

        Returns
        -------
        Patch
        """
        if callable(on):
            return select(self.boundary(), lambda points, _: _chosen(on, points))
        faces = self.patches()
        if on == "boundary":
            if not faces:
                raise ValueError(f"{self!r} has no boundary in space.")
            return join(faces.values())
        faces |= self.patches(of_time=True)
        names = (on,) if isinstance(on, str) else tuple(on)
        for name in names:
            if name not in faces:
                raise ValueError(
                    f"face {name!r} is unknown; the faces are {tuple(faces)}."
                )
        if not names:
            raise ValueError("on=() names no face.")
        return join(faces[name] for name in dict.fromkeys(names))

    def _size(self):
        return float(np.abs(self.bounds).max() + np.ptp(self.bounds, axis=1).max())

    def is_boundary(self, points, normals):
        """Whether the domain is on the inner side of points and not on the outer."""
        step = _NUDGE * self._size()
        inner, outer = points - step * normals, points + step * normals
        return (self.depth(inner) >= -step / 2) & (self.depth(outer) < -step / 2)


def _chosen(predicate, points):
    kept = np.asarray(predicate(points))
    if kept.shape != points.shape[:1] or kept.dtype != bool:
        raise ValueError(
            "the function given as on must return one bool for each point, of shape "
            f"{points.shape[:1]}, got {kept.dtype} of shape {kept.shape}."
        )
    return kept


def _set(instance, **values):
    for name, value in values.items():
        object.__setattr__(instance, name, value)  # the classes are frozen


@dataclass(frozen=True, init=False, repr=False)
class Box(Domain):
    """A product of intervals.

    Parameters
    ----------
    time : str or None, default="t"
        The axis that is time; None says that "t", too, is an axis of space.

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

    def __init__(self, *, time="t", **intervals):
        if not intervals:
            raise ValueError("Box needs an interval for an axis, such as x=(0, 1).")
        for name, interval in intervals.items():
            pair = np.shape(interval) == (2,)
            if not pair or not -np.inf < interval[0] < interval[1] < np.inf:
                raise ValueError(
                    f"{name} must be (low, high) with low < high, got {interval!r}."
                )
        if time not in (None, "t", *intervals):
            raise ValueError(
                f"time={time!r} must be one of the axes {tuple(intervals)} or None."
            )
        _set(
            self,
            axes=tuple(intervals),
            lower=tuple(float(low) for low, _ in intervals.values()),
            upper=tuple(float(high) for _, high in intervals.values()),
            time=time if time in intervals else None,
        )

    @classmethod
    def unit(cls, dim, time=None, prefix="x"):
        """The unit cube, with axes x1, x2, ...

        Parameters
        ----------
        dim : int
            Number of axes of space.

        time : tuple of two floats, default=None
            Interval of time, the last axis "t"; None leaves time out.

        prefix : str, default="x"
            What the names of the axes begin with.

        Returns
        -------
        Box
        """
        intervals = {f"{prefix}{i + 1}": (0.0, 1.0) for i in range(dim)}
        return cls(**intervals, **({} if time is None else {"t": time}))

    def __repr__(self):
        intervals = zip(self.axes, self.lower, self.upper, strict=True)
        words = [f"{name}=({low}, {high})" for name, low, high in intervals]
        words[4:-4] = words[4:-4] if len(words) < 20 else ["..."]
        if self.time != ("t" if "t" in self.axes else None):
            words.append(f"time={self.time!r}")
        return f"Box({', '.join(words)})"

    @property
    def bounds(self):
        """Lowest and highest values along the axes, of shape (d, 2)."""
        return np.column_stack([self.lower, self.upper])

    def depth(self, X):
        """Distance to the nearest face, negative outside."""
        low, high = self.bounds.T
        return np.minimum(X - low, high - X).min(axis=1)

    def interior(self):
        """The patch of the whole box."""
        low, high = self.bounds.T

        def place(uniforms):
            points = low + (high - low) * uniforms
            return points, np.zeros_like(points), np.full(len(points), True)

        return Patch(float(np.log(high - low).sum()), self.dim, place)

    def patches(self, of_time=False):
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


@dataclass(frozen=True, init=False, repr=False)
class Ball(Domain):
    """A ball in space; ``Ball(2) * Box(t=(0, 1))`` adds time. Its face is "sphere".

    Parameters
    ----------
    dim : int
        Number of axes.

    center : tuple of float, default=None
        None: the origin.

    radius : float, default=1.0
        Positive.

    axes : tuple of str, default=None
        None: x, y, z up to three axes, x1, x2, ... beyond.

    density : {"uniform", "radius"}, default="uniform"
        Of points inside: uniform, which in many dimensions puts nearly all of them
        beside the sphere; or with a uniform distance from the centre.
    """

    axes: tuple
    center: tuple
    radius: float
    density: str

    time = None

    def __init__(self, dim, center=None, radius=1.0, axes=None, density="uniform"):
        if density not in ("uniform", "radius"):
            raise ValueError(f"density must be 'uniform' or 'radius', got {density!r}.")
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim!r}.")
        if not 0 < radius < np.inf:
            raise ValueError(f"radius must be positive, got {radius!r}.")
        if axes is None:
            axes = "xyz"[:dim] if dim <= 3 else [f"x{i + 1}" for i in range(dim)]
        center = (0.0,) * dim if center is None else tuple(float(c) for c in center)
        for name, values in (("center", center), ("axes", tuple(axes))):
            if len(values) != dim:
                raise ValueError(f"{name} must have dim={dim} entries, got {values!r}.")
        _set(
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
    def bounds(self):
        """Lowest and highest values along the axes, of shape (d, 2)."""
        return np.array(self.center)[:, None] + self.radius * np.array([[-1.0, 1.0]])

    def depth(self, X):
        """Distance to the sphere, negative outside."""
        return self.radius - np.linalg.norm(X - np.array(self.center), axis=1)

    def _place(self, uniforms, ratio):
        """Points in the direction of normal numbers, at a share of the radius."""
        normals = ndtri(np.clip(uniforms[:, : self.dim], 1e-12, 1 - 1e-12))
        normals[~normals.any(axis=1), 0] = 1.0
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        points = np.array(self.center) + self.radius * ratio * normals
        return points, normals, np.full(len(points), True)

    def _log_measure(self):
        unit = self.dim / 2 * math.log(math.pi) - gammaln(self.dim / 2 + 1)
        return float(unit + self.dim * math.log(self.radius))

    def interior(self):
        """The patch of the whole ball."""

        def place(uniforms):
            power = 1 / self.dim if self.density == "uniform" else 1
            ratio = uniforms[:, -1:] ** power
            points, normals, kept = self._place(uniforms, ratio)
            return points, np.zeros_like(normals), kept

        return Patch(self._log_measure(), self.dim + 1, place)

    def patches(self, of_time=False):
        """The sphere."""
        area = self._log_measure() + math.log(self.dim / self.radius)
        sphere = Patch(area, self.dim, lambda u: self._place(u, 1.0))
        return {} if of_time else {"sphere": sphere}


class _Pair(Domain):
    """Two domains, combined."""

    def __repr__(self):
        simple = [isinstance(p, (Box, Ball)) for p in (self.first, self.second)]
        first = f"{self.first}" if simple[0] else f"({self.first})"
        second = f"{self.second}" if simple[1] else f"({self.second})"
        return f"{first} {self._sign} {second}"


@dataclass(frozen=True, repr=False)
class Product(_Pair):
    """Product of two domains of different axes, such as space and time.

    Parameters
    ----------
    first, second : Domain
        The axes of the second follow those of the first.
    """

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
        return np.minimum(self.first.depth(X[:, :cut]), self.second.depth(X[:, cut:]))

    def interior(self):
        """The patch of the whole product."""
        return _product(self.first.interior(), self.second.interior())

    def patches(self, of_time=False):
        """Faces of either factor times the whole of the other."""
        a, b = self.first, self.second
        first, second = a.interior(), b.interior()
        return _merge(
            {name: _product(p, second) for name, p in a.patches(of_time).items()},
            {name: _product(first, p) for name, p in b.patches(of_time).items()},
        )


def _product(first, second):
    cut = first.n_uniforms

    def place(uniforms):
        a, b = first.place(uniforms[:, :cut]), second.place(uniforms[:, cut:])
        return np.hstack([a[0], b[0]]), np.hstack([a[1], b[1]]), a[2] & b[2]

    measure = first.log_measure + second.log_measure
    return Patch(measure, cut + second.n_uniforms, place)


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
                "| and - combine domains of space; multiply by time afterwards, as in "
                "(A - B) * Box(t=(0, 1))."
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
        both = np.stack([self.first.bounds, self.second.bounds])
        return np.column_stack([both[:, :, 0].min(axis=0), both[:, :, 1].max(axis=0)])

    def depth(self, X):
        """The larger depth of the two."""
        return np.maximum(self.first.depth(X), self.second.depth(X))

    def interior(self):
        """The patch of the whole union."""
        second = select(self.second.interior(), lambda x, _: self.first.depth(x) < 0)
        return join([self.first.interior(), second])


class Difference(_SameAxes):
    """Points of the first domain that are not in the second, written ``A - B``."""

    _sign, _orientation = "-", -1

    @property
    def bounds(self):
        """Bounds of the first domain."""
        return self.first.bounds

    def depth(self, X):
        """Depth in the first domain, or distance to the second if that is smaller."""
        return np.minimum(self.first.depth(X), -self.second.depth(X))

    def interior(self):
        """The patch of the whole difference."""
        return select(self.first.interior(), lambda x, _: self.second.depth(x) <= 0)
