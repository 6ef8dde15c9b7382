r"""Functions that are not smooth: at corners, and after initial values that break.

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

About an axis of symmetry, as of a well, an equation has the terms ``u_rr + n u_r / r``,
those of Euler's equation. Where the axis is outside of the domain, solutions are smooth
functions of ``log r``, however close to it the domain begins.

From initial values that jump, or have a kink, solutions of the heat equation are made
of, with the rate a of diffusion and s the distance to the break,

    F_0 = erf(s / sqrt(4 a t)),     F_1 = s F_0 + sqrt(4 a t / pi) exp(-s^2 / (4 a t)),
    F_k = s F_(k-1) + 2 (k - 1) a t F_(k-2)

which begin as ``|s|^k sign(s)^(k+1)`` and are integrals of each other,
``F_k' = k F_(k-1)``. A rate is complex where the equation disperses: Schrodinger's
equation turns a kink into Fresnel's integrals. The error function of complex arguments
is computed by Weideman's method [2]_.

References
----------
.. [1] P. Grisvard, "Elliptic problems in nonsmooth domains".
.. [2] J. A. C. Weideman, "Computation of the complex error function", SIAM Journal on
   Numerical Analysis 31 (1994).
"""

import math
from functools import partial
from itertools import combinations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq, minimize_scalar

from sklearn_gn.pde.conditions import Dirichlet
from sklearn_gn.pde.domains import Combined, Product
from sklearn_gn.pde.given_values import (
    JUMP,
    N_POINTS,
    ROUNDING,
    contradict_the_equation,
    faces_of,
)
from sklearn_gn.pde.reading import derivatives, slopes_of_equation
from sklearn_gn.pde.shapes import Box, Polygon
from sklearn_gn.pinn.statement import read

_DIGITS = 9  # of a place, in units of the domain's size, and of an angle
_SMALL = 1e-4  # radius that shows the opening, in the same units
_STRAIGHT = 0.02  # radians by which openings differ
_MOST = 12  # corners
_HIGHEST, _MOST_DERIVATIVES = 3, 8  # of F_k, and of F_0
_TERMS = 32  # of the complex error function
_RADII = np.geomspace(0.02, 2, N_POINTS)  # radii that are tried, in the same units


class Corner(NamedTuple):
    """A corner of an opening of a right angle or more, or a crossing of interfaces."""

    axes: tuple  # numbers of the two axes of its plane
    place: tuple  # its coordinates there
    middle: float  # angle of the bisector of the inside, opposite to a cut
    opening: float
    cutoff: float  # radius up to which the cut is outside or an interface; inf: all
    exponents: tuple  # of the distance, in functions that are not smooth


def rough_corners(problem):
    """Return the corners at which the solution of a problem is not smooth, as a tuple.

    Crossings and corners of straight interfaces, then corners of openings above a right
    angle, and beside them right angles, where values seldom go with the equation.
    Looked for in polygons and boxes of two axes, and in what is made of these by ``|``,
    ``&``, ``-`` and ``*``; not where curves meet. Of right angles alone, those at which
    the values on both sides contradict the equation; of a box in space these are edges.
    """
    found = sorted(_corners(problem, problem.domain), key=lambda c: -c.opening)
    of_domain = [corner for corner in found if corner.opening < 2 * math.pi]
    rough = [c for c in found if c.opening > math.pi / 2 + _STRAIGHT]
    if len(rough) == len(found) - len(of_domain):  # right angles alone
        right = of_domain or _edges_of_box(problem)
        found = [*rough, *contradicted_corners(problem, right)]
    return tuple(found[:_MOST])


def corner_functions(corners, domain, x):
    """Real and imaginary parts of singular functions of ``z / size``, with cut-offs.

    Those are ``z^a``, or ``z^a log z`` where a is a whole number, corner after corner.
    All corners are taken at once: one by one they take seconds to compile.
    """
    size = float(np.ptp(domain.bounds, axis=1).max())

    def column(values):
        return np.array(values).astype(x.dtype)

    a = column([a for corner in corners for a in corner.exponents])
    corners = [corner for corner in corners for _ in corner.exponents]
    middle = np.array([corner.middle for corner in corners])
    c, s = column(np.cos(middle)), column(np.sin(middle))
    place = column([corner.place for corner in corners])
    offset = x[np.array([corner.axes for corner in corners])] - place
    along = (c * offset[:, 0] + s * offset[:, 1]) / size
    across = (c * offset[:, 1] - s * offset[:, 0]) / size
    # At the corner the angle has no derivatives: take those next to it, inside.
    at_corner = (along == 0) & (across == 0)
    along += jnp.where(at_corner, float(np.finfo(x.dtype).eps), 0)
    square = along**2 + across**2
    angle = jnp.arctan2(across, along)
    real, imaginary = jnp.cos(a * angle), jnp.sin(a * angle)
    whole = np.abs(a - np.round(a)) < _STRAIGHT / 2
    if whole.any():
        log = jnp.log(square) / 2
        real, imaginary = (
            jnp.where(whole, log * real - angle * imaginary, real),
            jnp.where(whole, log * imaginary + angle * real, imaginary),
        )
    radius = square ** (a / 2)
    cutoff = column([size / corner.cutoff for corner in corners])
    if cutoff.any():
        radius *= jnp.maximum(1 - square * cutoff**2, 0) ** 3
    return jnp.stack([radius * real, radius * imaginary], axis=1).ravel()


def logarithmic_axes(problem):
    """Return the numbers of axes along which the terms are those of Euler's equation.

    The slopes of the equation in u_rr and in u_r / r have the same ratio at all points.
    """
    low = problem.domain.bounds[:, 0]
    if not (low > 0).any() or read(problem).factors is None:
        return ()
    x, factors = read(problem).x[:, None], read(problem).factors
    first, second = x * factors[..., 1], factors[..., 2]
    square = np.sum(second**2, axis=(0, 1))
    ratio = np.sum(first * second, axis=(0, 1)) / np.where(square > 0, square, 1)
    same = np.abs(first - ratio * second) <= JUMP * np.abs(ratio * second)
    found = same.all(axis=(0, 1)) & (ratio != 0) & (low > 0)
    return tuple(np.flatnonzero(found).tolist())


def logarithms(axes, domain, x):
    """Logarithms of coordinates, mapped to [-1, 1]."""
    low, high = np.log(domain.bounds[list(axes)]).T.astype(x.dtype)
    return 2 * (jnp.log(x[np.array(axes)]) - low) / (high - low) - 1


# --- where they are: points of a plane as complex numbers -----------------------------


def _corners(problem, domain, first_axis=0):
    """Corners of a domain, or of a factor of it from an axis on, and of interfaces."""
    if isinstance(domain, Product):
        factors = (
            (domain.first, first_axis),
            (domain.second, first_axis + domain.first.dim),
        )
        return [corner for own in factors for corner in _corners(problem, *own)]
    if domain.dim != 2 or domain.time is not None:
        return []
    regions = problem.regions if domain is problem.domain else None
    partitions = () if regions is None else regions.partitions
    pieces = [piece for domains in partitions for piece in domains if piece.dim == 2]
    edges = [edge for part in (domain, *pieces) for edge in _edges(part)]
    edges = np.reshape(edges, (-1, 2))

    def labels(z):
        """Numbers of the regions of points, -1 outside."""
        X = np.column_stack([z.real, z.imag])
        numbers = 0 if regions is None else regions.numbers(X)
        return np.where(domain.depth(X) > 0, numbers, -1)

    # Corners are ends of edges, and points in which two of them meet.
    along = edges[:, 1] - edges[:, 0]
    turn = (along.conj() * along[:, None]).imag
    i, j = np.nonzero(np.triu(abs(turn) > ROUNDING * abs(along * along[:, None])))
    between = (edges[j, 0] - edges[i, 0]).conj() / turn[j, i]
    first, second = (between * along[j]).imag, (between * along[i]).imag
    meet = (np.minimum(first, second) >= 0) & (np.maximum(first, second) <= 1)
    places = [edges[:, 0], (edges[i, 0] + first * along[i])[meet]]
    places = np.concatenate(places)
    unit = 10.0**-_DIGITS * domain._size()
    _, first = np.unique(np.round(places / unit), return_index=True)
    axes = first_axis, first_axis + 1
    found = [
        _corner(problem, domain, z, edges, labels, axes) for z in places[np.sort(first)]
    ]
    return [corner for corner in found if corner is not None]


def _corner(problem, domain, place, edges, labels, axes):
    """The corner at a place; None where there is none, or a sharp one."""
    size = float(np.ptp(domain.bounds, axis=1).max())
    # Angles, ascending, at which edges leave the place.
    (a, b), near = edges.T, 10.0**-_DIGITS * size
    share = np.clip(((place - a) / (b - a)).real, 0, 1)
    ends = (edges[abs(a + share * (b - a) - place) <= near] - place).ravel()
    angles = np.angle(ends[abs(ends) > near]) % (2 * math.pi)
    angles[2 * math.pi - angles < 10.0**-_DIGITS] = 0.0
    _, first = np.unique(np.round(angles, _DIGITS), return_index=True)
    angles = angles[first]

    turns = np.diff(angles, append=angles[:1] + 2 * math.pi)
    inside = place + _SMALL * size * np.exp(1j * (angles + turns / 2))
    sectors = labels(inside)
    first = np.flatnonzero(sectors != np.roll(sectors, 1))
    angles, sectors, inside = angles[first], sectors[first], inside[first]
    widths = np.diff(angles, append=angles[:1] + 2 * math.pi)
    n_outside = np.sum(sectors < 0)
    straight = len(first) == 2 and abs(widths[0] - math.pi) < _STRAIGHT
    if len(first) < 2 or straight or n_outside > (len(first) == 2):
        return None
    if n_outside:
        opening = float(widths[sectors >= 0].sum())
        middle = float(angles[sectors >= 0][0]) + opening / 2
        exponents = (math.pi / opening,) if opening > math.pi / 2 - _STRAIGHT else ()
    else:
        opening, middle = 2 * math.pi, float(angles[0]) + math.pi
        exponents = _exponents(problem, inside, widths)
    # How far the cut goes on being outside, or an interface, on its two sides.
    sides = np.exp(1j * (middle + _SMALL * np.array([-1, 1])))
    near, *along = (labels(place - r * size * sides) for r in (_SMALL, *_RADII))
    good = np.array([((at == near) | (at < 0)).all() for at in along])
    if not (exponents and good[0]):
        return None
    cutoff = math.inf if good.all() else float(size * _RADII[np.argmin(good) - 1])
    place = float(place.real), float(place.imag)
    return Corner(axes, place, middle, opening, cutoff, exponents)


def _edges_of_box(problem):
    """Edges of a box of three axes of space, each as a corner of a plane across it."""
    domain = problem.domain
    if not (isinstance(domain, Box) and domain.dim == 3 and domain.time is None):
        return []
    found = []
    for axes in combinations(range(3), 2):
        plane = Box(**{domain.axes[k]: tuple(domain.bounds[k]) for k in axes})
        found += [corner._replace(axes=axes) for corner in _corners(problem, plane)]
    return found


def _edges(domain):
    """Edges of all polygons and boxes that a domain is made of."""
    if isinstance(domain, Combined):
        return [*_edges(domain.first), *_edges(domain.second)]
    corners = []
    if isinstance(domain, Polygon):
        corners = [complex(*vertex) for vertex in domain.vertices]
    elif isinstance(domain, Box):
        (a, b), (c, e) = domain.bounds
        corners = [complex(a, c), complex(b, c), complex(b, e), complex(a, e)]
    return list(zip(corners, np.roll(corners, -1), strict=True))


def _exponents(problem, z, widths):
    """Exponents below 2, but one, of sectors of some widths with points z."""
    if len(problem.outputs) > 1 or problem.unknown:
        return ()
    X = np.column_stack([z.real, z.imag])
    slopes = slopes_of_equation(problem, X, 0.0)[:, 0, :, 0]
    xx, yy, xy = (slopes[:, derivatives(2).index(k)] for k in ((0, 0), (1, 1), (0, 1)))
    alike = np.allclose(xx, yy) and np.allclose(xy, 0) and (xx * xx[0] > 0).all()
    if not alike:
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
    """Return the right angles at which values contradict the equation.

    Looked for in problems of one output without unknowns, on a rectangle or a box,
    whose values are given on both sides. Elsewhere there are none, as where the values
    agree. The corners of a box are its edges.
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


# --- after initial values that break -------------------------------------------------


def broken_functions(breaks, domain, x):
    """The functions of all breaks at a point."""
    return jnp.stack([f for b in breaks for f in _of_break(b, domain, x)])


def _of_break(entry, domain, x):
    (low, high), (start, end) = (domain.bounds[k] for k in (entry.axis, 1 - entry.axis))
    size, dtype = float(high - low) / 2, np.dtype(x.dtype)
    s, t = (x[entry.axis] - entry.place) / size, x[1 - entry.axis] - start
    # At the start the functions are those of a very short time.
    t = jnp.maximum(t, float(np.finfo(dtype).eps ** 1.5 * (end - start)))
    period = float(entry.period / size)
    if not math.isinf(period):
        s = s - period * jnp.floor(s / period)
    for rate in entry.rates:
        is_complex = abs(rate.imag) > ROUNDING * abs(rate)
        kind = np.result_type(dtype, np.complex64) if is_complex else dtype
        rate = complex(rate) if is_complex else float(rate.real)
        z, at = s.astype(kind), rate / size**2 * t.astype(kind)
        ladder = _ladder(*jax.lax.stop_gradient((z, at)), period)
        for k in (entry.order, entry.order + 1):
            function = _member(k, z, at, ladder)
            yield jnp.real(function)
            if is_complex:
                yield jnp.imag(function)


def _ladder(s, at, period):
    """F_k by k, and for negative k the derivatives of F_0 of the orders -k.

    With a period, sums over the places on both sides, without polynomials that grow.
    """
    if math.isinf(period):
        return _aperiodic_ladder(s, at)
    m = s - period / 2
    mean = 11 / 12 * period
    polynomials = {
        -1: 2 / period,
        0: 2 * m / period,
        1: (m**2 + 2 * at) / period + mean,
        2: 2 * (m**3 / 3 + 2 * at * m) / period + 2 * mean * m,
    }
    both = _aperiodic_ladder(s, at), _aperiodic_ladder(s - period, at)
    return {k: f + both[1][k] - polynomials.get(k, 0) for k, f in both[0].items()}


def _aperiodic_ladder(s, at):
    width = jnp.sqrt(4 * at)
    if jnp.iscomplexobj(at):
        error, bell = complex_erf_and_bell(s / width)
    else:
        error, bell = jax.scipy.special.erf(s / width), jnp.exp(-((s / width) ** 2))
    slope = 2 / math.sqrt(math.pi) * bell / width
    found = {0: error, 1: s * error + 2 * at * slope, -1: slope}
    found[-2] = -s / (2 * at) * slope
    for k in range(2, _HIGHEST + 1):
        found[k] = s * found[k - 1] + 2 * (k - 1) * at * found[k - 2]
    for k in range(2, _MOST_DERIVATIVES):
        found[-k - 1] = -(s * found[-k] + (k - 1) * found[1 - k]) / (2 * at)
    return found


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _member(k, s, at, ladder):
    """F_k with the derivatives of the ladder, for quick compilation."""
    del s, at
    return ladder[k]


@_member.defjvp
def _slope_of_member(k, primals, tangents):
    ds, dat, _ = tangents
    slope, curvature = max(k, 1), max(k, 1) * max(k - 1, 1)
    along = slope * _member(k - 1, *primals) * ds
    return _member(k, *primals), along + curvature * _member(k - 2, *primals) * dat


# --- the error function --------------------------------------------------------------


def complex_erf_and_bell(z):
    """``erf(z)`` and ``exp(-z^2)`` within 45 degrees of the real axis."""
    square = z**2
    # Rounding of a large imaginary square is not to be seen in the size of the bell.
    square = jax.lax.complex(jnp.maximum(jnp.real(square), 0), jnp.imag(square))
    bell = jnp.exp(-square)
    sign = jnp.where(jnp.real(z) < 0, -1, 1).astype(z.dtype)
    z = sign * z
    scale, terms = _weideman(_TERMS)
    ratio = (scale - z) / (scale + z)  # with i z for the argument of Faddeeva's w
    series = jnp.polyval(jnp.asarray(terms, z.dtype), ratio, unroll=1)
    w = 2 * series / (scale + z) ** 2 + 1 / math.sqrt(math.pi) / (scale + z)
    return sign * (1 - bell * w), bell


def _weideman(n):
    """Scale and coefficients of Weideman's series, the highest power first."""
    m = 2 * n
    scale = math.sqrt(n / math.sqrt(2))
    theta = np.arange(-m + 1, m) * np.pi / m
    nodes = scale * np.tan(theta / 2)
    values = np.concatenate([[0.0], np.exp(-(nodes**2)) * (scale**2 + nodes**2)])
    terms = np.real(np.fft.fft(np.fft.fftshift(values))) / (2 * m)
    return scale, np.flipud(terms[1 : n + 1])
