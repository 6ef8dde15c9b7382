r"""Corners of a plane domain at which solutions are not smooth.

At a corner of the opening w, solutions of equations of second order have terms
``r^(k a) sin(k a phi)`` and ``r^(k a) cos(k a phi)``, a = pi / w, in polar coordinates
about it; where k a is a whole number, logarithms appear [1]_. For openings above a
right angle they have no bounded second derivatives, and above pi no bounded slopes. All
of them are smooth functions of x, y and of the real and imaginary part of ``z^a`` with
z = r e^(i phi), which opens the corner to a straight line. At a right angle the first
one that is not smooth is ``z^2 log z``.

References
----------
.. [1] P. Grisvard, "Elliptic problems in nonsmooth domains".
"""

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np

from sklearn_gn.pde.domains import Product, _SameAxes
from sklearn_gn.pde.outlines import Polygon
from sklearn_gn.pde.right_angles import contradicted_corners
from sklearn_gn.pde.shapes import Box

_STEP = 2 * math.pi / 720
_ANGLES = _STEP * (np.arange(720) + 0.5)
_BISECTIONS = 50
_DIGITS = 9  # of a place, in units of the domain's size
_SMALL = 1e-4  # radius that shows the opening, in the same units
_STRAIGHT = 0.02  # radians by which openings differ
_MOST = 12  # corners
_REACHES = np.geomspace(0.02, 2, 60)  # radii that are tried, in the same units


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

    Parameters
    ----------
    problem : Problem
    """
    corners = _corners(problem.domain, 0)
    right = corners or _edges_of_box(problem.domain)
    return _singular(corners) or contradicted_corners(problem, right)


def _singular(corners):
    """The corners if an opening is above a right angle, the widest ones first."""
    found = sorted(corners, key=lambda corner: -corner.opening)
    blunt = any(corner.opening > math.pi / 2 + _STRAIGHT for corner in found)
    return tuple(found[:_MOST]) if blunt else ()


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
            found[key] = _corner(domain, place, first_axis)
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
    share = np.linalg.solve(matrix, c - a)
    return [a + share[0] * (b - a)] if ((share >= 0) & (share <= 1)).all() else []


def _corner(domain, place, first_axis):
    """The corner at a place; None where there is none, or a sharp one."""
    size = float(np.ptp(domain.bounds, axis=1).max())
    inside = _inside(domain, place, _SMALL * size, _ANGLES)
    before = np.roll(inside, 1)
    first, last = np.flatnonzero(inside & ~before), np.flatnonzero(before & ~inside)
    if len(first) != 1:
        return None
    low, high = (_edge_angle(domain, place, _SMALL * size, k[0]) for k in (first, last))
    opening = (high - low) % (2 * math.pi)
    if abs(opening - math.pi) < _STRAIGHT or opening < math.pi / 2 - _STRAIGHT:
        return None
    middle = low + opening / 2
    # The cut of the angle is opposite to the middle.
    radii = np.linspace(_SMALL, 2, 500) * size
    cut = place - radii[:, None] * np.array([math.cos(middle), math.sin(middle)])
    reach = math.inf
    if (domain.depth(cut) > 0).any():
        same = [
            (_inside(domain, place, r * size, _ANGLES) == inside).all()
            for r in _REACHES
        ]
        if not same[0]:
            return None
        reach = size * float(_REACHES[same.index(False) - 1])
    axes = first_axis, first_axis + 1
    return Corner(axes, tuple(place.tolist()), float(middle), float(opening), reach)


def _edge_angle(domain, place, radius, number):
    """The angle, up to rounding, between the one of a number and the one before."""
    low, high = _ANGLES[number] - _STEP, _ANGLES[number]
    (at_high,) = _inside(domain, place, radius, np.array([high]))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        (same,) = _inside(domain, place, radius, np.array([middle])) == at_high
        low, high = (low, middle) if same else (middle, high)
    return (low + high) / 2


def _inside(domain, place, radius, angles):
    """Whether the points of a circle at these angles are inside."""
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    return domain.depth(place + radius * circle) > 0
