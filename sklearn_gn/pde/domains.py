"""Domains, their combination by ``|``, ``&``, ``-`` and ``*``, and points of them.

Points are drawn from patches, pieces of a domain or of its boundary. A patch maps
uniform numbers in the unit cube to points of constant density on a piece, and says
which of them to keep. One more uniform number joins pieces: it picks one in proportion
to its measure. So a low-discrepancy sequence in the cube remains one on the domain, and
the density is constant whatever was combined: unions, intersections and differences
only drop some of the points of their parts.

All of this is numpy. Only ``depth`` and ``contains`` take arrays of JAX too, for
coefficients that differ from one domain to the other.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.random import RandomState
from scipy.stats import qmc

from sklearn_gn._typing import Array
from sklearn_gn.arrays.libraries import namespace

METHODS = ("sobol", "halton", "uniform")
AT_ONCE = 2**20  # numbers of points drawn, or looked at, at a time
NUDGE = 1e-7  # step to either side of a boundary, in units of the domain's size
_ROUNDING = 1e-12  # by which a point may be outside, in the same units
_FEW = 1e-3  # share of candidates that tells an empty patch


class Patch(NamedTuple):
    """Points of constant density on a piece, as a function of uniform numbers."""

    log_measure: float  # of the piece before any point is dropped
    n_uniforms: int
    # (n, n_uniforms) -> points (n, d), normals (n, d), kept (n,); no normals: zero
    place: Callable


def draw(patch, n, rng, method="sobol"):
    """Draw n points of a patch: points and normals of shape (n, d).

    Sobol's sequence has at most 21,201 dimensions; beyond, numbers are uniform. A
    ValueError is raised if less than one candidate in a thousand is kept.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; the methods are {METHODS}.")
    uniforms = _uniforms(patch.n_uniforms, rng, method)
    # Sobol's sequence comes in powers of two.
    most = 1 << max(1, AT_ONCE // patch.n_uniforms).bit_length() - 1
    size = min(most, 1 << max(0, n - 1).bit_length())
    points, normals, found, total = [], [], 0, 0
    while not points or found < n:
        x, normal, kept = patch.place(uniforms(size))
        points.append(x[kept])
        normals.append(normal[kept])
        found, total = found + int(kept.sum()), total + size
        if total >= max(1 / _FEW, most) and found < _FEW * total:
            raise ValueError(
                f"{found or 'None'} of {total} sampled points lie inside the domain. "
                "Is it empty, or very thin?"
            )
        size = min(most, total)
    return np.concatenate(points)[:n], np.concatenate(normals)[:n]


def measured(patch, n, rng):
    """Draw up to n points of a patch: points, normals, and the measure they show."""
    points, normals, kept = patch.place(_uniforms(patch.n_uniforms, rng, "sobol")(n))
    return points[kept], normals[kept], np.exp(patch.log_measure) * kept.mean()


def _uniforms(n_dimensions, rng, method):
    if method == "uniform" or n_dimensions > qmc.Sobol.MAXDIM:
        return lambda n: rng.uniform(size=(n, n_dimensions))
    engine = qmc.Sobol if method == "sobol" else qmc.Halton
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


def product(first, second):
    """The patch of pairs of points of two patches."""
    cut = first.n_uniforms

    def place(uniforms):
        a, b = first.place(uniforms[:, :cut]), second.place(uniforms[:, cut:])
        return np.hstack([a[0], b[0]]), np.hstack([a[1], b[1]]), a[2] & b[2]

    measure = first.log_measure + second.log_measure
    return Patch(measure, cut + second.n_uniforms, place)


def _operator(sign):
    """The method that combines two domains."""

    def combine(self, other):
        if not isinstance(other, Domain):
            return NotImplemented
        if sign != "*" and PointCloud in (type(self), type(other)):
            raise ValueError("a PointCloud cannot be combined by |, & or -.")
        return (Product if sign == "*" else Combined)(self, other, sign)

    return combine


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

    # A kind of domain has these, and ``interior()``, the patch of the whole, and
    # ``patches()``, those of the faces by their names.
    axes: tuple[str, ...]
    time: str | None
    bounds: Array

    __or__ = _operator("|")
    __and__ = _operator("&")
    __sub__ = _operator("-")
    __mul__ = _operator("*")

    @property
    def dim(self) -> int:
        """Number of axes, time included."""
        return len(self.axes)

    @property
    def faces(self) -> tuple[str, ...]:
        """Names of the faces, the ends of time last."""
        of_space = self._faces_of_space()
        return (*of_space, *(name for name in self.patches() if name not in of_space))

    def _faces_of_space(self):
        ends = (f"{self.time}=min", f"{self.time}=max")
        return tuple(name for name in self.patches() if name not in ends)

    def depth(self, X: Array) -> Array:
        """Distance to the boundary, negative outside; here that of the bounding box."""
        low, high = self.bounds.T[:, None]
        return namespace(X).minimum(X - low, high - X).min(axis=1)

    def contains(self, X: Array) -> Array:
        """Which points (n, d) lie in the domain or on its boundary, up to rounding."""
        X = X if hasattr(X, "__array_namespace__") else np.asarray(X, dtype=float)
        if X.ndim != 2 or X.shape[1] != self.dim:
            raise ValueError(f"X needs the columns {self.axes}, got shape {X.shape}.")
        return self.depth(X) >= -_ROUNDING * self._size()

    def sample(self, n: int, rng: RandomState, method: str = "sobol") -> Any:
        """Draw n points of the interior, of shape (n, d); see :func:`draw`."""
        return draw(self.interior(), n, rng, method)[0]

    def sample_boundary(
        self, n: int, rng: RandomState, method: str = "sobol"
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
        self, name: str, n: int, rng: RandomState, method: str = "sobol"
    ) -> Any:
        """Draw n points of a face and their normals."""
        return draw(self.boundary((name,)), n, rng, method)

    def boundary(
        self, on: str | tuple[str, ...] | Callable[..., Any] = "boundary"
    ) -> Patch:
        """The patch of a part of the boundary, given as the ``on`` of a condition."""
        if callable(on):
            return select(self.boundary(), lambda points, _: _chosen(on, points))
        faces, names = self.patches(), (on,) if isinstance(on, str) else tuple(on)
        if on == "boundary":
            names = self._faces_of_space()
            if not names:
                raise ValueError(
                    f"{self!r} has no boundary in space: its axis {self.time!r} is "
                    "time. Use Initial(value) for what is given at its start, or name "
                    f"an end by on='{self.time}=min' or on='{self.time}=max'."
                )
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


def set_fields(instance, **values):
    """Set attributes of a frozen instance."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


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


@dataclass(frozen=True, repr=False)
class _Pair(Domain):
    """Two domains, combined by a sign."""

    first: Domain
    second: Domain
    sign: str

    def __repr__(self):
        first, second = (
            f"({part})" if isinstance(part, _Pair) else f"{part}"
            for part in (self.first, self.second)
        )
        return f"{first} {self.sign} {second}"


@dataclass(frozen=True, repr=False)
class Product(_Pair):
    """Product of two domains of different axes, such as space and time."""

    def __post_init__(self):
        common = tuple(name for name in self.first.axes if name in self.second.axes)
        if common:
            raise ValueError(f"both factors have the axes {common}.")
        times = self.first.time, self.second.time
        if None not in times:
            raise ValueError(f"both factors have time: {times}.")
        set_fields(
            self,
            axes=self.first.axes + self.second.axes,
            time=self.first.time or self.second.time,
            bounds=np.concatenate([self.first.bounds, self.second.bounds]),
        )

    def depth(self, X):
        """The smaller depth of the two."""
        cut = self.first.dim
        first, second = self.first.depth(X[:, :cut]), self.second.depth(X[:, cut:])
        return namespace(X).minimum(first, second)

    def interior(self):
        """The patch of the whole product."""
        return product(self.first.interior(), self.second.interior())

    def patches(self):
        """Faces of either factor times the whole of the other."""
        first, second = self.first.interior(), self.second.interior()
        return _merge(
            {name: product(p, second) for name, p in self.first.patches().items()},
            {name: product(first, p) for name, p in self.second.patches().items()},
        )


@dataclass(frozen=True, repr=False)
class Combined(_Pair):
    """Two domains of the same axes of space: ``A | B``, ``A & B`` or ``A - B``."""

    def __post_init__(self):
        a, b = self.first, self.second
        if a.axes != b.axes:
            raise ValueError(f"the domains have different axes: {a.axes}, {b.axes}.")
        if a.time is not None or b.time is not None:
            raise ValueError(
                "|, & and - combine domains of space; multiply by time afterwards, as "
                "in (A - B) * Box(t=(0, 1))."
            )
        lower, upper = np.sort([a.bounds, b.bounds], axis=0)
        bounds = {
            "|": np.column_stack([lower[:, 0], upper[:, 1]]),
            "&": np.column_stack([upper[:, 0], lower[:, 1]]),
            "-": a.bounds,
        }
        set_fields(self, axes=a.axes, time=None, bounds=bounds[self.sign])

    def depth(self, X):
        """The larger depth of the two in a union, else the smaller one."""
        xp, first, second = namespace(X), self.first.depth(X), self.second.depth(X)
        if self.sign == "|":
            return xp.maximum(first, second)
        return xp.minimum(first, -second if self.sign == "-" else second)

    def interior(self):
        """The patch of the whole; of an intersection, from points of the smaller."""
        first, second = self.first, self.second
        if self.sign == "|":
            rest = select(second.interior(), lambda x, _: first.depth(x) < 0)
            return join([first.interior(), rest])
        if self.sign == "-":
            return select(first.interior(), lambda x, _: second.depth(x) <= 0)
        if second.interior().log_measure < first.interior().log_measure:
            first, second = second, first
        return select(first.interior(), lambda x, _: second.depth(x) >= 0)

    def patches(self):
        """What is left of the faces of both; equal names of the second get a number."""
        orientation = -1 if self.sign == "-" else 1

        def of_second(patch):
            def place(uniforms):
                points, normals, kept = patch.place(uniforms)
                normals = orientation * normals
                # Where faces of both coincide, the first has the points already.
                kept = kept & ~self.first.is_boundary(points, normals)
                return points, normals, kept & self.is_boundary(points, normals)

            return patch._replace(place=place)

        first, second = self.first.patches(), self.second.patches()
        return _merge(
            {name: select(patch, self.is_boundary) for name, patch in first.items()},
            {name: of_second(patch) for name, patch in second.items()},
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
        self, points: Any, boundary: Any = None, normals: Any = None, axes: Any = None
    ) -> None:
        self.points = _cloud("points", points)
        self._boundary = None if boundary is None else _cloud("boundary", boundary)
        dim = self.points.shape[1]
        if self.points_on_it.shape[1] != dim:
            raise ValueError(
                f"boundary must have the {dim} columns of points, got the shape "
                f"{self.points_on_it.shape}."
            )
        self.normals = np.zeros_like(self.points_on_it)
        if normals is not None:
            if boundary is None or np.shape(normals) != self.points_on_it.shape:
                raise ValueError(
                    "normals must have the shape of boundary, got "
                    f"{np.shape(normals)} and {np.shape(boundary)}."
                )
            normals = _cloud("normals", normals)
            self.normals = normals / np.linalg.norm(normals, axis=1, keepdims=True)
        axes = axes_of_space(dim) if axes is None else axes
        if len(axes) != dim:
            raise ValueError(f"axes must have {dim} entries, got {axes!r}.")
        self.axes = tuple(axes)
        both = np.concatenate([self.points, self.points_on_it])
        self.bounds = np.column_stack([both.min(axis=0), both.max(axis=0)])
        self._key = self.axes, *(a.tobytes() for a in (both, self.points, self.normals))

    def __eq__(self, other):
        return isinstance(other, PointCloud) and self._key == other._key

    def __hash__(self):
        return hash(self._key)

    def __repr__(self):
        found = 0 if self._boundary is None else len(self._boundary)
        return f"<{len(self.points)} points and {found} of the boundary, {self.axes}>"

    @property
    def points_on_it(self) -> Array:
        """What the cloud stands for as ``on`` of a condition."""
        return self.points if self._boundary is None else self._boundary

    def take(self, n: int, rng: RandomState) -> tuple[Array, Array]:
        """The points as ``on`` of a condition, or n of them, and their normals."""
        chosen = np.arange(len(self.points_on_it))
        if n < len(chosen):
            chosen = np.sort(rng.choice(len(chosen), n, replace=False))
        return self.points_on_it[chosen], self.normals[chosen]

    def interior(self) -> Patch:
        """The points inside, each as likely as the others."""
        return _choice(self.points, np.zeros_like(self.points))

    def patches(self) -> dict[str, Patch]:
        """The points of the boundary."""
        if self._boundary is None:
            return {}
        return {"points": _choice(self._boundary, self.normals)}


def _cloud(name, value):
    array = np.array(value, dtype=float)
    if array.ndim != 2 or not len(array) or not np.isfinite(array).all():
        raise ValueError(
            f"{name} must be finite numbers (n, d), got the shape {array.shape}."
        )
    array.setflags(write=False)
    return array


def _choice(points, normals):
    """The patch of given points."""

    def place(uniforms):
        chosen = np.minimum((uniforms[:, 0] * len(points)).astype(int), len(points) - 1)
        return points[chosen], normals[chosen], np.full(len(chosen), True)

    return Patch(0.0, 1, place)


def axes_of_space(dim):
    """Names of axes that are given none: x, y, z, or x1, x2, ... of more than three."""
    return tuple("xyz"[:dim] if dim <= 3 else (f"x{i + 1}" for i in range(dim)))
