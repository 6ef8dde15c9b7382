r"""Jumps and kinks of initial values, which diffusion smooths.

Where initial values jump, or their slopes do, the solution of an equation of first
order in time and second order in space,

    u_t = A u_xx + (lower orders),

is at first a function of ``(x - x0) / sqrt(t)`` alone, for each eigenvalue of the
matrix A: an error function for a jump, its integral for a kink [1]_. That is so where
the values themselves break, where they do not meet those on the boundary, where their
slopes do not meet those on the boundary, and where a period closes.

References
----------
.. [1] H. S. Carslaw and J. C. Jaeger, "Conduction of heat in solids".
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.linalg.factors import least_norm_solution
from sklearn_gn.pde.conditions import Dirichlet, Initial, Neumann, Periodic, Robin
from sklearn_gn.pde.given_values import (
    JUMP,
    N_POINTS,
    ROUNDING,
    contradict_the_equation,
    faces_of,
    outputs_of,
    steepest_parts,
    value_at,
)
from sklearn_gn.pde.residual_classes import derivatives, slopes_of_equation
from sklearn_gn.pde.shapes import Box

_MOST = 4  # breaks
_DIGITS = 10  # of a place, relative to the axis
_ORDERS = {Dirichlet: 0, Neumann: 1, Robin: 1}  # of the derivative that is given


class Break(NamedTuple):
    """A jump or a kink of initial values."""

    axis: int  # number of the axis of space
    place: float
    order: int  # of the derivative that jumps: 0, 1 or 2
    rates: tuple  # of diffusion there, complex numbers of which none is a conjugate
    period: float  # of the axis; inf: none


def initial_breaks(problem):
    """Breaks of initial values, where diffusion along one axis smooths them."""
    starts = _initial_conditions(problem)
    if not starts or any(condition.order for condition in starts):
        return ()
    domain = problem.domain
    axis = 1 - domain.axes.index(domain.time)
    period = float(np.ptp(domain.bounds[axis]))
    if not _is_periodic(problem, axis):
        period = math.inf
    with backend.scope("float64"):
        found = _places(problem, axis, starts)[:_MOST]
        rates = _rates(problem, axis, [place for place, _ in found])
    breaks = tuple(
        Break(axis, place, order, of_place, period)
        for (place, order), of_place in zip(found, rates, strict=True)
        if of_place
    )
    return switches.kept("pinn.breaks", breaks)


def carried_kinks(problem):
    """Name of the axis, and places of kinks of initial values that waves carry."""
    starts = _initial_conditions(problem)
    if all(condition.order for condition in starts) or initial_breaks(problem):
        return "", []
    domain = problem.domain
    axis = 1 - domain.axes.index(domain.time)
    with backend.scope("float64"):
        _, units, _ = _values_and_units(problem, axis)
        return domain.axes[axis], _inside(problem, axis, 1, units[1])


def follows_jump(problem, X):
    """Return at which places (n, d) the default network follows a jump, (n,)."""
    found = np.zeros(len(X), bool)
    for entry in initial_breaks(problem):
        near = JUMP**2 * np.ptp(problem.domain.bounds[entry.axis])
        if entry.order == 0:
            found |= np.abs(X[:, entry.axis] - entry.place) <= near
    return found


def _initial_conditions(problem):
    """Those of a problem whose initial values are looked at, or an empty list."""
    domain = problem.domain
    plain = problem.transform is None and not (problem.unknown or problem.depends_on)
    if not (isinstance(domain, Box) and domain.dim == 2 and domain.time and plain):
        return []
    return [known for known in problem.conditions if isinstance(known, Initial)]


def _is_periodic(problem, axis):
    name = problem.domain.axes[axis]
    return name in problem.periodic or any(
        isinstance(condition, Periodic) and condition.axis == name
        for condition in problem.conditions
    )


# --- where the values break ----------------------------------------------------------


def _places(problem, axis, starts):
    """Places and orders of the breaks: those at the ends of the axis first."""
    low, high = problem.domain.bounds[axis]
    both, units, is_finite = _values_and_units(problem, axis)
    if not is_finite:
        return []
    if _is_periodic(problem, axis):
        differ = [
            (np.abs(values[-1] - values[0]) > JUMP * unit).any()
            for values, unit in zip(both, units, strict=True)
        ]
        found = [(float(low), order) for order in (0, 1) if differ[order]][:1]
    else:
        found = _at_ends(problem, axis, starts, [unit.max() for unit in units])
    for order, unit in enumerate(units):
        for place in _inside(problem, axis, order, unit):
            if all(abs(place - p) > JUMP**2 * (high - low) for p, _ in found):
                found.append((place, order))
    return found


def _values_and_units(problem, axis):
    """Initial values and slopes (n, q) on the axis, their units (q,), if finite."""
    low, high = problem.domain.bounds[axis]
    x = _on_axis(problem, axis, np.linspace(low, high, N_POINTS))
    both = backend.to_numpy(_values_and_slopes(problem, x, axis))
    size = np.abs(both[0]).max(axis=0)
    size = np.maximum(size, max(ROUNDING * size.max(), np.finfo(float).tiny))
    return both, (size, 2 * size / (high - low)), np.isfinite(both).all()


def _inside(problem, axis, order, unit):
    """Places inside of the axis at which a derivative of the values jumps."""
    low, high = problem.domain.bounds[axis]
    ends = _on_axis(problem, axis, np.linspace(low, high, N_POINTS))

    def values(X):
        return backend.to_numpy(_values_and_slopes(problem, X, axis))[order] / unit

    places, before, after = steepest_parts(values, ends[:-1], ends[1:])
    broken = np.abs(after - before).max(axis=1) > JUMP
    if broken.sum() >= _MOST:  # values of a table
        return []
    digits = _DIGITS - math.ceil(math.log10(high - low))
    return sorted(set(map(float, np.round(places[broken, axis], digits) + 0.0)))


def _at_ends(problem, axis, starts, units):
    """Places and orders of breaks where initial values do not meet conditions."""
    domain, (_, *kinds) = problem.domain, problem.residual_classes()
    found, places, faces = [], [], []
    for end, outward in zip(domain.bounds[axis], (-1.0, 1.0), strict=True):
        place, normal = _on_axis(problem, axis, [end])[0], np.zeros(2)
        normal[axis] = outward
        there = [
            (condition, kind)
            for (_, condition), kind in zip(
                problem._named_conditions(), kinds, strict=True
            )
            if type(condition) in _ORDERS and (axis, end) in faces_of(domain, condition)
        ]
        orders = [_ORDERS[type(condition)] for condition, _ in there]
        residuals = backend.to_numpy(
            _of_start(problem, tuple(kind for _, kind in there), place, normal)
        )
        broken = [
            order
            for order, residual in zip(orders, residuals, strict=True)
            if (np.abs(residual) > JUMP * units[order]).any()
        ]
        given = tuple(c for c, _ in there if isinstance(c, Dirichlet))
        outputs = {k for condition in given for k in outputs_of(problem, condition)}
        if broken:
            found.append((float(end), min(broken)))
        elif len(outputs) == len(problem.outputs):
            places.append(place)
            faces.append(((1 - axis, tuple(starts)), (axis, given)))
    wrong = contradict_the_equation(problem, places, faces)
    return found + [(float(place[axis]), 2) for place in np.array(places)[wrong]]


@partial(jit_by_size, static_argnames=("problem", "kinds"))
def _of_start(problem, kinds, x, normal):
    """Residuals of conditions, for the initial values as a field."""
    fields = (problem.field(_start(problem)),)
    return [kind.function(fields, x[None], normal, problem.start) for kind in kinds]


def _start(problem):
    """The initial values as a function of a point, of any time."""
    starts = [c for c in _initial_conditions(problem) if not c.order]
    domain = problem.domain
    time = domain.axes.index(domain.time)

    def values(x):
        return value_at(problem, starts, x.at[time].set(domain.bounds[time, 0]))

    return values


def _on_axis(problem, axis, x):
    """Points (n, 2) at the start of time, at places x (n,) of the axis of space."""
    points = np.empty((len(x), 2))
    points[:, axis], points[:, 1 - axis] = x, problem.domain.bounds[1 - axis, 0]
    return points


@partial(jit_by_size, static_argnames=("problem", "axis"))
def _values_and_slopes(problem, points, axis):
    """Initial values at points (n, 2), and slopes along an axis, (n, q) each."""
    start, unit = _start(problem), jnp.eye(2)[axis]
    return jax.vmap(lambda x: jax.jvp(start, (x,), (unit,)))(points)


# --- rates of diffusion --------------------------------------------------------------


def _rates(problem, axis, places):
    """Eigenvalues, one of a complex pair, of A at the places; empty if any grows."""
    if not places:
        return []
    bounds, q, n = problem.domain.bounds, len(problem.outputs), len(places)
    # On both sides of a place, where the equation may have different factors.
    near = JUMP**2 * np.ptp(bounds[axis]) * np.array([-1.0, 1.0])
    points = np.clip((np.array(places)[:, None] + near).ravel(), *bounds[axis])
    slopes = backend.to_numpy(_slopes(problem, _on_axis(problem, axis, points)))
    size, every = np.ptp(bounds, axis=1), derivatives(2)
    along = (1 - axis, 1), (1 - axis, 2), (axis, 2), (axis, 3), (axis, 4)
    terms = [slopes[:, :, every.index((k,) * m)] / size[k] ** m for k, m in along]
    unit = np.abs(terms[0]).max(axis=(1, 2), keepdims=True)
    terms = [(term / np.where(unit > 0, unit, 1)).reshape(n, -1, q) for term in terms]
    unit = size[axis] ** 2 / size[1 - axis]
    return [
        tuple(complex(rate * unit) for rate in _eigenvalues(*of_place))
        for of_place in zip(*terms, strict=True)
    ]


@partial(jit_by_size, static_argnames="problem")
def _slopes(problem, points):
    """Slopes of the equation at the initial values, of shape (n, k, m, q)."""
    none = jnp.zeros((len(derivatives(2)), len(problem.outputs)), points.dtype)
    slopes = partial(slopes_of_equation, problem, _start(problem), none)
    return jax.vmap(slopes)(points)


def _eigenvalues(u_t, u_tt, u_xx, *higher):
    """Different eigenvalues of ``-u_xx / u_t``; none, where there are other terms."""
    if not np.isfinite([u_t, u_tt, u_xx, *higher]).all():
        return []
    size, q = max(np.abs(u_t).max(), np.abs(u_xx).max()), u_t.shape[1]
    others = max(np.abs(term).max() for term in (u_tt, *higher))
    singular = np.linalg.matrix_rank(u_t, ROUNDING * np.abs(u_t).max()) < q
    if others > ROUNDING * size or singular:
        return []
    found = np.linalg.eigvals(-least_norm_solution(u_t, u_xx)).astype(complex)
    found = found[np.abs(found) > ROUNDING]
    if (found.real < -ROUNDING * np.abs(found)).any():
        return []
    rates = []
    for rate in found[found.imag >= -ROUNDING * np.abs(found)]:
        if all(abs(rate - other) > JUMP * abs(rate) for other in rates):
            rates.append(rate)
    return rates
