r"""Places at which solutions are not smooth: corners of a domain.

At a corner of the opening w, solutions of equations of second order have terms
``r^(k a) sin(k a phi)`` and ``r^(k a) cos(k a phi)``, a = pi / w, in polar coordinates
about it; where k a is a whole number, logarithms appear [1]_. For openings above a
right angle they have no bounded second derivatives, and above pi no bounded slopes. All
of them are smooth functions of x, y and of the real and imaginary part of ``z^a`` with
z = r e^(i phi), which opens the corner to a straight line.

On the two sides of a right angle, values g and h give the second derivatives along
them. Where the equation does not hold with these, as for a constant source and a
boundary at zero, the solution has a term ``r^2 log(r)`` there, and its second
derivatives jump from one side to the other: the first function that is not smooth is
``z^2 log z``. The edges of a box of three axes are right angles of its planes.

References
----------
.. [1] P. Grisvard, "Elliptic problems in nonsmooth domains".
"""

import math
from functools import partial
from itertools import combinations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.linalg.factors import solve_general
from sklearn_gn.pde.calls import call
from sklearn_gn.pde.conditions import Dirichlet
from sklearn_gn.pde.domains import Product, _SameAxes
from sklearn_gn.pde.given_values import faces_of
from sklearn_gn.pde.outlines import Polygon
from sklearn_gn.pde.shapes import Box

_DIGITS = 9  # of a place, in units of the domain's size, and of an angle
_SMALL = 1e-4  # radius that shows the opening, in the same units
_STRAIGHT = 0.02  # radians by which openings differ
_MOST_CORNERS = 12  # corners
_REACHES = np.geomspace(0.02, 2, 60)  # radii that are tried, in the same units
_AROUND = 2 * math.pi * (np.arange(180) + 0.5) / 180  # angles of a circle
_N_POINTS = 64  # that show the size of the residuals
_AGREE = 1e-3  # residual at a corner, relative to the largest one


class Corner(NamedTuple):
    """A corner of an opening of a right angle or more."""

    axes: tuple  # numbers of the two axes of its plane
    place: tuple  # its coordinates there
    middle: float  # angle of the bisector of the inside
    opening: float
    reach: float  # radius of the disk whose inside is that of the corner; inf: all


def rough_corners(problem):
    """Return the corners at which the solution of a problem is not smooth, as a tuple.

    Those of openings above a right angle, and beside them right angles, where values
    seldom go with the equation. Looked for in polygons and boxes of two axes, and in
    what is made of these by ``|``, ``&``, ``-`` and ``*``; not where curves meet. Where
    a domain has right angles alone, those at which the values on both sides contradict
    the equation; of a box in space these are edges.
    """
    corners = _corners(problem.domain, 0)
    if any(corner.opening > math.pi / 2 + _STRAIGHT for corner in corners):
        widest = sorted(corners, key=lambda corner: -corner.opening)
        return tuple(widest[:_MOST_CORNERS])
    return contradicted_corners(problem, corners or _edges_of_box(problem.domain))


def _corners(domain, first_axis):
    if isinstance(domain, Product):
        second_axis = first_axis + domain.first.dim
        return [
            *_corners(domain.first, first_axis),
            *_corners(domain.second, second_axis),
        ]
    if domain.dim != 2 or domain.time is not None:
        return []
    edges = list(_edges(domain))
    places = [first for first, _ in edges]
    places += [p for a, b in combinations(edges, 2) for p in _intersection(a, b)]
    found = {}
    for place in places:
        key = tuple(np.round(place / domain._size(), _DIGITS))
        if key not in found:
            found[key] = _corner(domain, place, edges, first_axis)
    return [corner for corner in found.values() if corner is not None]


def _edges_of_box(domain):
    """Edges of a box of three axes of space, each as a corner of a plane across it."""
    if not (isinstance(domain, Box) and domain.dim == 3 and domain.time is None):
        return []
    found = []
    for axes in combinations(range(3), 2):
        plane = Box(**{domain.axes[k]: tuple(domain.bounds[k]) for k in axes})
        found += [corner._replace(axes=axes) for corner in _corners(plane, 0)]
    return found


def _edges(domain):
    """Edges of all polygons and boxes that a domain is made of."""
    if isinstance(domain, _SameAxes):
        yield from _edges(domain.first)
        yield from _edges(domain.second)
        return
    if isinstance(domain, Polygon):
        corners = np.array(domain.vertices)
    elif isinstance(domain, Box):
        (a, b), (c, e) = domain.bounds
        corners = np.array([(a, c), (b, c), (b, e), (a, e)])
    else:
        return
    yield from zip(corners, np.roll(corners, -1, axis=0), strict=True)


def _intersection(first, second):
    """The point in which two edges that are not parallel meet, if they do."""
    (a, b), (c, e) = first, second
    matrix = np.column_stack([b - a, c - e])
    if abs(np.linalg.det(matrix)) < 1e-12 * np.abs(matrix).max() ** 2:
        return []
    share = solve_general(matrix, c - a)
    return [a + share[0] * (b - a)] if ((share >= 0) & (share <= 1)).all() else []


def _corner(domain, place, edges, first_axis):
    """The corner at a place; None where there is none, or a sharp one."""
    size = float(np.ptp(domain.bounds, axis=1).max())
    angles = _directions(place, edges, 10.0**-_DIGITS * size)
    widths = np.diff(angles, append=angles[:1] + 2 * math.pi)
    inside = _inside(domain, place, _SMALL * size, angles + widths / 2)
    first = np.flatnonzero(inside & ~np.roll(inside, 1))
    opening = widths[inside].sum()
    if len(first) != 1 or abs(opening - math.pi) < _STRAIGHT:
        return None
    if opening < math.pi / 2 - _STRAIGHT:
        return None
    middle = angles[first[0]] + opening / 2
    # The cut of the angle is opposite to the middle.
    radii = np.linspace(_SMALL, 2, 500) * size
    cut = place - radii[:, None] * np.array([math.cos(middle), math.sin(middle)])
    reach = math.inf
    if (domain.depth(cut) > 0).any():
        near = _inside(domain, place, _SMALL * size, _AROUND)
        same = [
            (_inside(domain, place, r * size, _AROUND) == near).all() for r in _REACHES
        ]
        if not same[0]:
            return None
        reach = size * float(_REACHES[same.index(False) - 1])
    axes = first_axis, first_axis + 1
    return Corner(axes, tuple(place.tolist()), float(middle), float(opening), reach)


def _directions(place, edges, near):
    """Angles, ascending, at which edges leave a place."""
    found = []
    for a, b in edges:
        along = b - a
        share = np.clip((place - a) @ along / (along @ along), 0, 1)
        if np.linalg.norm(a + share * along - place) <= near:
            ends = (end - place for end in (a, b))
            found += [math.atan2(*e[::-1]) for e in ends if np.linalg.norm(e) > near]
    angles = np.array(found) % (2 * math.pi)
    angles[2 * math.pi - angles < 10.0**-_DIGITS] = 0.0
    _, first = np.unique(np.round(angles, _DIGITS), return_index=True)
    return angles[first]


def _inside(domain, place, radius, angles):
    """Whether the points of a circle at these angles are inside."""
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    return domain.depth(place + radius * circle) > 0


# --- right angles at which values contradict the equation -----------------------------


def contradicted_corners(problem, corners):
    """Return those of the right angles at which values contradict the equation.

    Looked for in problems of one output without unknowns, on a rectangle or a box,
    whose values are given on both sides. Elsewhere there are none, as where the values
    agree. The corners of a box are those of its edges.
    """
    domain = problem.domain
    plain = problem.transform is None and not (problem.periodic or problem.unknown)
    is_box = isinstance(domain, Box) and domain.time is None
    if not (is_box and plain and len(problem.outputs) == 1):
        return ()
    sides = {}
    for _, condition in problem._named_conditions():
        if isinstance(condition, Dirichlet):
            sides |= dict.fromkeys(faces_of(domain, condition), condition)
    faces = [tuple(zip(corner.axes, corner.place, strict=True)) for corner in corners]
    found = [
        (corner, tuple((axis, sides[axis, place]) for axis, place in both))
        for corner, both in zip(corners, faces, strict=True)
        if all(face in sides for face in both)
    ]
    if not found:
        return ()
    corners, pairs = zip(*found, strict=True)
    x = domain.sample(_N_POINTS, np.random.RandomState(0), "sobol")
    with backend.scope("float64"):
        places = np.tile(domain.bounds.mean(axis=1), (len(corners), 1))  # of edges
        for place, corner in zip(places, corners, strict=True):
            place[list(corner.axes)] = corner.place
        residuals = backend.to_numpy(_residuals_of_values(problem, pairs, places, x))
    at_corner, inside = np.abs(residuals[:, 0]), np.abs(residuals[:, 1:]).max(axis=1)
    contradicted = at_corner > _AGREE * inside
    return tuple(c for c, wrong in zip(corners, contradicted, strict=True) if wrong)


@partial(jit_by_size, static_argnames=("problem", "pairs"))
def _residuals_of_values(problem, pairs, places, x):
    """Residuals (n, 1 + m), at each corner and at points, of a function for each.

    It is the sum of the values on the two sides, ``g(y) + h(x)``, without the ones that
    they share.
    """

    def value(condition, x):
        given = condition.value
        if callable(given):
            given = call(given, (x,), problem.start)
        return jnp.ravel(jnp.asarray(given, x.dtype))

    def at(x, place, first, second):
        (i, of_first), (j, of_second) = first, second

        def both(x):
            on_first, on_second = x.at[i].set(place[i]), x.at[j].set(place[j])
            shared = value(of_first, on_first.at[j].set(place[j]))
            return value(of_first, on_first) + value(of_second, on_second) - shared

        return jnp.ravel(problem._equation_at(both, x))

    rows = []
    for place, (first, second) in zip(places, pairs, strict=True):
        points = jnp.concatenate([place[None], x])
        rows.append(
            jax.vmap(partial(at, place=place, first=first, second=second))(points)
        )
    return jnp.stack(rows)[..., 0]
