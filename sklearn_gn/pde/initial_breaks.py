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
from sklearn_gn.pde.calls import call
from sklearn_gn.pde.conditions import Dirichlet, Initial, Neumann, Periodic, Robin
from sklearn_gn.pde.given_values import faces_of, outputs_of, steepest_parts
from sklearn_gn.pde.residual_classes import derivatives, slopes_of_equation
from sklearn_gn.pde.shapes import Box

_MOST = 4  # breaks
_POINTS, _SEGMENTS = 256, 64  # of the axis
_BREAK = 1e-3  # of values, or of slopes times half the axis, relative to the values
_FEW = 16  # points that show the size of residuals
_SAME, _DIGITS = 1e-6, 10  # distance of two places; digits of one; relative to the axis
_NEAR = 1e-4  # distance, relative to the axis, at which the equation is taken
_NEGLIGIBLE = 1e-12  # size of values that count as none, relative to other outputs
_AGREE = 1e-6  # residual of the equation that is rounding, relative to those inside
_ABSENT = 1e-6  # size of a term of the equation that counts as none, relative
_ORDERS = {Dirichlet: 0, Neumann: 1, Robin: 1}  # of the derivative that is given
_EQUAL = 1e-3  # difference of two rates that are the same, relative


class Break(NamedTuple):
    """A jump or a kink of initial values."""

    axis: int  # number of the axis of space
    place: float
    order: int  # of the derivative that jumps: 0, 1 or 2
    rates: tuple  # of diffusion there, complex numbers of which none is a conjugate
    period: float  # of the axis; inf: none


def initial_breaks(problem):
    """Return the breaks of the initial values of a problem, as a tuple.

    Looked for in problems of one axis of space and time, without unknowns or transform,
    whose equations are of first order in time and of second order in space.
    """
    domain = problem.domain
    starts = _initial_conditions(problem)
    if not starts or any(condition.order for condition in starts):
        return ()
    axis = 1 - domain.axes.index(domain.time)
    with backend.scope("float64"):
        found = _places(problem, axis)[:_MOST]
        rates = _rates(problem, axis, [place for place, _ in found])
    period = math.inf
    if _is_periodic(problem, axis):
        period = float(np.ptp(domain.bounds[axis]))
    breaks = tuple(
        Break(axis, place, order, of_place, period)
        for (place, order), of_place in zip(found, rates, strict=True)
        if of_place
    )
    return switches.kept("pinn.breaks", breaks)


def carried_kinks(problem):
    """Return the name of the axis, and places of kinks of initial values on it.

    Those that :func:`initial_breaks` does not find, since diffusion does not smooth
    them: waves carry them through the domain.
    """
    starts = _initial_conditions(problem)
    if all(condition.order for condition in starts) or initial_breaks(problem):
        return "", []
    domain = problem.domain
    axis = 1 - domain.axes.index(domain.time)
    with backend.scope("float64"):
        x = _on_axis(problem, axis, np.linspace(*domain.bounds[axis], _POINTS))
        size = np.abs(_values_and_slopes(problem, x, axis)[0]).max(axis=0)
        unit = 2 * np.maximum(size, np.finfo(float).tiny) / np.ptp(x[:, axis])
        return domain.axes[axis], _inside(problem, axis, 1, unit)


def _initial_conditions(problem):
    """Those of a problem whose initial values are looked at, or an empty list."""
    domain = problem.domain
    plain = problem.transform is None and not (problem.unknown or problem.depends_on)
    if not (isinstance(domain, Box) and domain.dim == 2 and domain.time and plain):
        return []
    return [known for known in problem.conditions if isinstance(known, Initial)]


def follows_jump(problem, X):
    """Return at which places (n, d) the default network follows a jump, (n,)."""
    found = np.zeros(len(X), bool)
    for entry in initial_breaks(problem):
        near = _SAME * np.ptp(problem.domain.bounds[entry.axis])
        if entry.order == 0:
            found |= np.abs(X[:, entry.axis] - entry.place) <= near
    return found


def _is_periodic(problem, axis):
    name = problem.domain.axes[axis]
    return name in problem.periodic or any(
        isinstance(condition, Periodic) and condition.axis == name
        for condition in problem.conditions
    )


# --- where the values break ----------------------------------------------------------


def _places(problem, axis):
    """Places and orders of the breaks: those at the ends of the axis first."""
    low, high = problem.domain.bounds[axis]
    points = _on_axis(problem, axis, np.linspace(low, high, _POINTS))
    value, slope = _values_and_slopes(problem, points, axis)
    if not (np.isfinite(value).all() and np.isfinite(slope).all()):
        return []
    size = np.abs(value).max(axis=0)
    size = np.maximum(size, max(_NEGLIGIBLE * size.max(), np.finfo(float).tiny))
    units = size, 2 * size / (high - low)
    if _is_periodic(problem, axis):
        differ = [
            np.abs(f[-1] - f[0]) > _BREAK * unit
            for f, unit in zip((value, slope), units, strict=True)
        ]
        found = [(float(low), order) for order in (0, 1) if differ[order].any()][:1]
    else:
        found = _at_ends(problem, axis, units)
    for order, unit in enumerate(units):
        for place in _inside(problem, axis, order, unit):
            if all(abs(place - other) > _SAME * (high - low) for other, _ in found):
                found.append((place, order))
    return found


def _inside(problem, axis, order, unit):
    """Places inside of the axis at which a derivative of the values jumps."""
    low, high = problem.domain.bounds[axis]
    ends = _on_axis(problem, axis, np.linspace(low, high, _SEGMENTS + 1))

    def values(X):
        return _values_and_slopes(problem, X, axis)[order] / unit

    places, before, after = steepest_parts(values, ends[:-1], ends[1:])
    broken = np.abs(after - before).max(axis=1) > _BREAK
    if broken.sum() >= _MOST:  # values of a table
        return []
    digits = _DIGITS - math.ceil(math.log10(high - low))
    return sorted(set(map(float, np.round(places[broken, axis], digits) + 0.0)))


def _at_ends(problem, axis, units):
    """Places and orders of breaks where initial values do not meet conditions.

    Values that meet those on the boundary, but not in the way in which the equation
    has them change, break its second derivatives.
    """
    duration = float(np.ptp(problem.domain.bounds[1 - axis]))
    value, slope = (unit.max() for unit in units)
    units, found = (value, slope, value / duration), []
    for end, entries in _conditions_at_ends(problem, axis).items():
        conditions, rate = _at_an_end(problem, axis, end, tuple(entries))
        broken = [
            order
            for (_, order), residual in zip(entries, conditions, strict=True)
            if (np.abs(residual) > _BREAK * units[order]).any()
        ]
        if not broken and rate is not None and (np.abs(rate) > _BREAK * units[2]).any():
            broken = [2]
        found += [(end, order) for order in sorted(broken)[:1]]
    return found


def _conditions_at_ends(problem, axis):
    """Numbers of the conditions at each end, with the order of what they give."""
    found = {}
    for number, (_, condition) in enumerate(problem._named_conditions()):
        order = _ORDERS.get(type(condition))
        if order is not None:
            for face, end in faces_of(problem.domain, condition):
                if face == axis:
                    found.setdefault(float(end), []).append((number, order))
    return found


def _at_an_end(problem, axis, end, entries):
    """What conditions and equation say of the initial values at an end of the axis."""
    domain = problem.domain
    x, normal = _on_axis(problem, axis, [end])[0], np.zeros(2)
    normal[axis] = 1 if end > domain.bounds[axis].mean() else -1
    places = np.linspace(*domain.bounds[axis], _FEW + 2)[1:-1]
    inside = _on_axis(problem, axis, places)
    residuals, equation = backend.to_numpy(
        _traced_at_an_end(problem, axis, entries, x, normal, inside)
    )
    if equation is None or not all(np.isfinite(part).all() for part in equation):
        return residuals, None
    there, slopes, elsewhere = equation
    there = np.where(np.abs(there) > _AGREE * np.abs(elsewhere).max(axis=0), there, 0.0)
    return residuals, least_norm_solution(slopes, there)


@partial(jit_by_size, static_argnames=("problem", "axis", "entries"))
def _traced_at_an_end(problem, axis, entries, x, normal, inside):
    start, q = _start(problem), len(problem.outputs)
    _, *kinds = problem.residual_classes()
    named = [condition for _, condition in problem._named_conditions()]
    field = problem.field(start)
    residuals = [
        kinds[number].function((field,), x[None], normal, problem.start)
        for number, _ in entries
    ]
    given = [named[number] for number, order in entries if order == 0]
    outputs = {k for condition in given for k in _numbers(problem, condition)}
    if len(outputs) < q:
        return residuals, None

    def residual(rate):
        def values(y):
            on_face = _given(problem, given, y.at[axis].set(x[axis]))
            at_start = _given(problem, given, x)
            return start(y) + on_face - at_start + rate * (y - x)[1 - axis]

        return problem._equation_at(values, x)

    def of_start(x):
        return problem._equation_at(start, x)

    zero = jnp.zeros(q, x.dtype)
    slopes = jax.jacrev(residual)(zero)
    return residuals, (residual(zero), slopes, jax.vmap(of_start)(inside))


def _start(problem):
    """The initial values as a function of a point, of any time."""
    starts = [c for c in _initial_conditions(problem) if not c.order]
    domain = problem.domain
    time = domain.axes.index(domain.time)
    return lambda x: _given(problem, starts, x.at[time].set(domain.bounds[time, 0]))


def _given(problem, conditions, x):
    """Values of all outputs that conditions give at a point; zero for the others."""
    outputs = jnp.zeros(len(problem.outputs), x.dtype)
    for condition in conditions:
        value = condition.value
        if callable(value):
            value = call(value, (x,), problem.start)
        numbers = np.array(_numbers(problem, condition))
        outputs = outputs.at[numbers].set(jnp.asarray(value, x.dtype))
    return outputs


def _numbers(problem, condition):
    """Numbers of the outputs that a condition is about."""
    return [problem.outputs.index(name) for name in outputs_of(problem, condition)]


def _on_axis(problem, axis, x):
    """Points (n, 2) at the start of time, at places x (n,) of the axis of space."""
    points = np.empty((len(x), 2))
    points[:, axis], points[:, 1 - axis] = x, problem.domain.bounds[1 - axis, 0]
    return points


def _values_and_slopes(problem, points, axis):
    """Initial values at points (n, 2), and slopes along an axis, (n, q) each."""
    return backend.to_numpy(_traced_values_and_slopes(problem, points, axis))


@partial(jit_by_size, static_argnames=("problem", "axis"))
def _traced_values_and_slopes(problem, points, axis):
    start, unit = _start(problem), jnp.eye(2)[axis]
    return jax.vmap(lambda x: jax.jvp(start, (x,), (unit,)))(points)


# --- rates of diffusion --------------------------------------------------------------


def _rates(problem, axis, places):
    """Eigenvalues of the matrix A at each of the places, as tuples.

    A pair of complex ones is represented by one. Empty where the equation is of another
    order, and where something grows.
    """
    if not places:
        return []
    low, high = problem.domain.bounds[axis]
    near = _NEAR * (high - low)
    sides = (np.array(places)[:, None] + near * np.array([-1.0, 1.0])).ravel()
    points = _on_axis(problem, axis, np.clip(sides, low, high))
    slopes = backend.to_numpy(_slopes(problem, points))
    time = 1 - axis
    wanted = (time,), (time, time), *((axis,) * n for n in (2, 3, 4))
    every = derivatives(2)
    terms = [slopes[:, :, every.index(tuple(axes))] for axes in wanted]
    # On both sides of a place, where the equation may have different factors.
    unit = np.abs(terms[0]).max(axis=(1, 2), keepdims=True)
    terms = [term / np.where(unit > 0, unit, 1) for term in terms]
    terms = [term.reshape(len(places), -1, len(problem.outputs)) for term in terms]
    size = np.ptp(problem.domain.bounds, axis=1)
    sizes = size[1 - axis], size[axis]
    return [_eigenvalues(*of_place, sizes) for of_place in zip(*terms, strict=True)]


@partial(jit_by_size, static_argnames="problem")
def _slopes(problem, points):
    """Slopes of the equation at the initial values, of shape (n, k, m, q)."""
    start = _start(problem)
    none = jnp.zeros((len(derivatives(2)), len(problem.outputs)), points.dtype)
    return jax.vmap(lambda x: slopes_of_equation(problem, start, none, x))(points)


def _eigenvalues(u_t, u_tt, u_xx, u_xxx, u_xxxx, sizes):
    """Eigenvalues of ``-u_xx / u_t``; none, where there are other terms."""
    time, space = sizes
    units = 1 / time, 1 / time**2, 1 / space**2, 1 / space**3, 1 / space**4
    terms = [
        unit * term
        for unit, term in zip(units, (u_t, u_tt, u_xx, u_xxx, u_xxxx), strict=True)
    ]
    if not np.isfinite(terms).all():
        return ()
    first, second, *others = (np.abs(terms[k]).max() for k in (0, 2, 1, 3, 4))
    if max(others) > _ABSENT * max(first, second):
        return ()
    left, q = u_t, u_t.shape[1]
    if np.linalg.matrix_rank(left, _ABSENT * np.abs(left).max()) < q:
        return ()
    found = np.linalg.eigvals(-least_norm_solution(left, u_xx)).astype(complex)
    least = _ABSENT * space**2 / time
    found = found[np.abs(found) > least]
    if (found.real < -_ABSENT * np.abs(found)).any():
        return ()
    rates = []
    for rate in found[found.imag >= -_ABSENT * np.abs(found)]:
        if all(abs(rate - other) > _EQUAL * abs(rate) for other in rates):
            rates.append(complex(rate))
    return tuple(rates)
