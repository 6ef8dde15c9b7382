r"""Holes of a domain, about which solutions fall off like negative powers.

Outside of a ball of radius a about c, solutions of Laplace's equation are series in the
negative powers of the distance: in the plane real and imaginary parts of ``z^-k`` with
a logarithm, in space ``r^(-2k-1)`` times polynomials [1]_. They are polynomials of the
point's image in the sphere, ``a (x - c) / |x - c|^2``, times the fundamental solution
``log |x - c|`` or ``1 / |x - c|``, and so, up to smooth factors, are the solutions of
other elliptic equations near a hole. A network that has these as inputs sees the
neighbourhood of a small hole at its own scale, and goes round a large one.

References
----------
.. [1] O. D. Kellogg, "Foundations of potential theory".
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.pde.domains import Difference, Product, _SameAxes
from sklearn_gn.pde.patches import draw

_POINTS = 256  # of the outline of what may be a hole
_MOST = 4  # holes


class Hole(NamedTuple):
    """The inside of a closed outline that a domain lacks."""

    axes: tuple  # numbers of its axes
    center: tuple  # its coordinates there
    radius: float  # of a ball inside of it


def holes(domain):
    """Return the smallest holes of a domain of two or three axes of space, as a tuple.

    These are what is taken away from a domain that surrounds it.

    Parameters
    ----------
    domain : Domain
    """
    found = sorted(_holes(domain, 0), key=lambda hole: hole.radius)
    return tuple(found[:_MOST])


def _holes(domain, first_axis):
    if isinstance(domain, Product):
        second_axis = first_axis + domain.first.dim
        return _holes(domain.first, first_axis) + _holes(domain.second, second_axis)
    if not isinstance(domain, _SameAxes) or domain.dim not in (2, 3):
        return []
    found = _holes(domain.first, first_axis)
    if isinstance(domain, Difference):
        hole = _hole(domain, first_axis)
        found += [] if hole is None else [hole]
    return found


def _hole(domain, first_axis):
    outer, inner = domain.first, domain.second
    outline, _ = draw(inner.boundary(), _POINTS, np.random.RandomState(0))
    if (outer.depth(outline) <= 0).any():
        return None
    center = inner.bounds.mean(axis=1)
    (radius,) = inner.depth(center[None])
    if not radius > 0:
        return None
    axes = tuple(range(first_axis, first_axis + domain.dim))
    return Hole(axes, tuple(center.tolist()), float(radius))
