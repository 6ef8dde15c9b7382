r"""Places at which solutions are not smooth: corners of domains and of interfaces.

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

Where interfaces of coefficients k cross, or one has a corner, the solution has terms
``r^a`` times a sine of ``a phi`` in each sector, for the exponents a with which u and
the flux ``k du/dphi`` are what they were after a full turn.

References
----------
.. [1] P. Grisvard, "Elliptic problems in nonsmooth domains".
"""

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from sklearn_gn.arrays import backend
from sklearn_gn.linalg.factors import solve_general
from sklearn_gn.pde.conditions import Dirichlet
from sklearn_gn.pde.domains import Product, _SameAxes
from sklearn_gn.pde.given_values import (
    JUMP,
    N_POINTS,
    ROUNDING,
    contradict_the_equation,
    faces_of,
)
from sklearn_gn.pde.outlines import Polygon
from sklearn_gn.pde.residual_classes import derivatives, slopes_at_zero
from sklearn_gn.pde.shapes import Box

_DIGITS = 9  # of a place, in units of the domain's size, and of an angle
_SMALL = 1e-4  # radius that shows the opening, in the same units
_STRAIGHT = 0.02  # radians by which openings differ
_MOST_CORNERS = 12  # corners
_REACHES = np.geomspace(0.02, 2, 60)  # radii that are tried, in the same units
_AROUND = 2 * math.pi * (np.arange(180) + 0.5) / 180  # angles of a circle


class Corner(NamedTuple):
    """A corner of an opening of a right angle or more."""

    axes: tuple  # numbers of the two axes of its plane
    place: tuple  # its coordinates there
    middle: float  # angle of the bisector of the inside
    opening: float
    reach: float  # radius of the disk whose inside is that of the corner; inf: all
    exponents: tuple  # of the distance, in functions that are not smooth


def rough_corners(problem):
    """Return the corners at which the solution of a problem is not smooth, as a tuple.

    Those of openings above a right angle, and beside them right angles, where values
    seldom go with the equation. Looked for in polygons and boxes of two axes, and in
    what is made of these by ``|``, ``&``, ``-`` and ``*``; not where curves meet. Where
    a domain has right angles alone, those at which the values on both sides contradict
    the equation; of a box in space these are edges. Before them, those of interfaces.
    """
    corners, of_interfaces = _corners(problem.domain, 0), crossings(problem)
    if any(corner.opening > math.pi / 2 + _STRAIGHT for corner in corners):
        found = sorted(corners, key=lambda corner: -corner.opening)
    else:
        corners = corners or _edges_of_box(problem.domain)
        found = contradicted_corners(problem, corners)
    return (*of_interfaces, *found)[:_MOST_CORNERS]


def _corners(domain, first_axis):
    if isinstance(domain, Product):
        second_axis = first_axis + domain.first.dim
        return [
            *_corners(domain.first, first_axis),
            *_corners(domain.second, second_axis),
        ]
    if domain.dim != 2 or domain.time is not None:
        return []
    edges, found = list(_edges(domain)), {}
    for place in _meeting_points(edges):
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


def _meeting_points(edges):
    """The first ends of edges, and the points in which two of them meet."""
    found = [first for first, _ in edges]
    for (a, b), (c, e) in combinations(edges, 2):
        matrix = np.column_stack([b - a, c - e])
        if abs(np.linalg.det(matrix)) > ROUNDING * np.abs(matrix).max() ** 2:
            share = solve_general(matrix, c - a)
            if ((share >= 0) & (share <= 1)).all():
                found.append(a + share[0] * (b - a))
    return found


def _corner(domain, place, edges, first_axis):
    """The corner at a place; None where there is none, or a sharp one."""
    size = float(np.ptp(domain.bounds, axis=1).max())
    angles = _directions(place, edges, 10.0**-_DIGITS * size)
    widths = _turns(angles)
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
    exponents = (math.pi / float(opening),)
    place = tuple(place.tolist())
    return Corner(axes, place, float(middle), float(opening), reach, exponents)


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


def _circle(angles):
    return np.column_stack([np.cos(angles), np.sin(angles)])


def _inside(domain, place, radius, angles):
    """Whether the points of a circle at these angles are inside."""
    return domain.depth(place + radius * _circle(angles)) > 0


# --- corners and crossings of interfaces ----------------------------------------------


def crossings(problem):
    """Return the places at which interfaces cross, or have a corner, as Corners.

    Looked for on two axes of space, between straight interfaces of an equation that is
    ``k laplacian(u)`` in the regions that meet there.
    """
    domain, regions = problem.domain, problem.regions
    if regions is None or domain.dim != 2 or domain.time is not None:
        return []
    pieces = dict.fromkeys(p for domains in regions.partitions for p in domains)
    edges = [edge for piece in pieces for edge in _edges(piece) if piece.dim == 2]
    size, found = float(np.ptp(domain.bounds, axis=1).max()), {}
    for place in _meeting_points(edges):
        key = tuple(np.round(place / size, _DIGITS))
        if key in found or domain.depth(place[None])[0] <= _SMALL * size:
            continue
        angles = _directions(place, edges, 10.0**-_DIGITS * size)
        near = _SMALL * size * _circle(angles + _turns(angles) / 2)
        numbers = regions.numbers(place + near)
        first = np.flatnonzero(numbers != np.roll(numbers, 1))
        angles, X = angles[first], place + near[first]
        widths, cut = _turns(angles), angles[:1]
        if len(first) < 2 or (len(first) == 2 and abs(widths[0] - math.pi) < _STRAIGHT):
            continue
        sides = np.concatenate([cut + _STRAIGHT, cut - _STRAIGHT])
        wanted = numbers[first[[0, -1]]]

        def is_cut(r, place=place, sides=sides, wanted=wanted):
            along = place + r * size * _circle(sides)
            return (
                (regions.numbers(along) == wanted) | (domain.depth(along) < 0)
            ).all()

        bad = [r for r in _REACHES if not is_cut(r)]
        reach = size * _REACHES[_REACHES < bad[0]].max(initial=0) if bad else math.inf
        found[key] = Corner(
            axes=(0, 1),
            place=tuple(place.tolist()),
            middle=float(cut[0]) + math.pi,
            opening=2 * math.pi,
            reach=reach,
            exponents=_exponents(problem, X, widths),
        )
    return [corner for corner in found.values() if corner.exponents and corner.reach]


def _turns(angles):
    """Angles from each of some directions, ascending, to the next one."""
    return np.diff(angles, append=angles[:1] + 2 * math.pi)


def _exponents(problem, X, widths):
    """Exponents below 2, but one, of sectors of some widths with points X."""
    with backend.scope("float64"):
        slopes = backend.to_numpy(slopes_at_zero(problem, X))[:, 0, :, 0]
    xx, yy, xy = (slopes[:, derivatives(2).index(k)] for k in ((0, 0), (1, 1), (0, 1)))
    alike = np.allclose(xx, yy) and np.allclose(xy, 0) and (xx * xx[0] > 0).all()
    if len(problem.outputs) > 1 or not alike:
        return ()

    def lack(a):  # of u and k u', which return to themselves after a full turn
        whole = np.eye(2)
        for k, angle in zip(xx / xx[0], a * widths, strict=True):
            c, s = math.cos(angle), math.sin(angle)
            whole = np.array([[c, s / k], [-k * s, c]]) @ whole
        return 2 - np.trace(whole)

    # It changes its sign at an exponent, or touches zero.
    a = np.linspace(0, 2, 4 * N_POINTS)  # beyond, second derivatives are bounded
    f, found = np.array([lack(one) for one in a]), []
    for i in range(2, len(a) - 1):
        bounds = a[i - 1], a[i + 1]
        if f[i - 1] * f[i + 1] < 0 and f[i - 1] * f[i] <= 0:
            found.append(brentq(lack, *bounds))
        elif abs(f[i]) < min(abs(f[i - 1]), abs(f[i + 1])):
            least = minimize_scalar(lambda a: abs(lack(a)), bounds=bounds)
            found += [least.x] if least.fun < ROUNDING * np.ptp(f) else []
    apart = np.diff(found, prepend=0) > JUMP  # of two at a place that is touched, one
    return tuple(float(a) for a in np.array(found)[apart] if abs(a - 1) > JUMP)


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
    given = {
        face: (condition,)
        for condition in problem.conditions
        if isinstance(condition, Dirichlet)
        for face in faces_of(domain, condition)
    }
    found, places, faces = [], [], []
    for corner in corners:
        sides = list(zip(corner.axes, corner.place, strict=True))
        if all(side in given for side in sides):
            place = domain.bounds.mean(axis=1)  # of an edge
            place[list(corner.axes)] = corner.place
            found.append(corner)
            places.append(place)
            faces.append(tuple((side[0], given[side]) for side in sides))
    wrong = contradict_the_equation(problem, places, faces)
    return tuple(c for c, is_wrong in zip(found, wrong, strict=True) if is_wrong)
