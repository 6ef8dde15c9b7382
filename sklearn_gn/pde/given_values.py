r"""What is known of a solution: values that conditions give, and the exact solution.

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
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn import _switches as switches
from sklearn_gn.linalg.factors import least_norm_solution
from sklearn_gn.pde.conditions import Dirichlet, Initial, Neumann, Periodic, Robin
from sklearn_gn.pde.domains import AT_ONCE
from sklearn_gn.pde.local_functions import in_numpy
from sklearn_gn.pde.operators import Field
from sklearn_gn.pde.reading import derivatives, slopes_of_equation
from sklearn_gn.pde.residual_classes import call
from sklearn_gn.pde.shapes import Box

JUMP = 1e-3  # change of values, or of what they make, relative to their size
ROUNDING = float(np.sqrt(np.finfo(float).eps))  # relative change that is none
N_POINTS = 256  # of a domain, or of a part of its boundary, at which it is looked at
MANY_POINTS = 4096  # the same where small parts of it count
_MOST = 4  # breaks
DIGITS = 10  # of a place, relative to the axis, and of normals
_ORDERS = {Dirichlet: 0, Neumann: 1, Robin: 1}  # of the derivative that is given
PARTS, _CUTS = 16, 10  # of a segment, of which the steepest one is cut again
PLACE = float(PARTS) ** (1 - _CUTS)  # clear of where a jump is, relative to the axis


def faces_of(domain, condition):
    """Axes and values of the faces of a box that a condition holds on."""
    known = {
        f"{axis}={side}": (k, domain.bounds[k, number])
        for k, axis in enumerate(domain.axes)
        for number, side in enumerate(("min", "max"))
    }
    return [known[name] for name in condition.faces(domain) if name in known]


def outputs_of(problem, condition):
    """Return the numbers of the outputs that a condition is about."""
    field = Field(None, problem.domain.axes, problem.domain.time, problem.outputs)
    chosen = field if condition.outputs is None else field[condition.outputs]
    return [problem.outputs.index(name) for name in chosen.outputs]


def value_at(problem, conditions, x, absent=0.0):
    """Values (q,) that conditions give at a point, in JAX; of others, ``absent``."""
    outputs = jnp.full(len(problem.outputs), absent, x.dtype)
    for condition in conditions:
        value = condition.value
        if callable(value):
            value = call(value, (x,), problem.start)
        numbers = np.array(outputs_of(problem, condition))
        outputs = outputs.at[numbers].set(jnp.asarray(value, x.dtype))
    return outputs


def values_of(problem, conditions, places):
    """Values (n, q) that each condition gives at its places, NaN of outputs without."""
    found = []
    for condition, X in zip(conditions, places, strict=True):
        if callable(condition.value):
            found.append(_values_at(problem, condition, X))
        else:
            found.append(np.full((len(X), len(problem.outputs)), np.nan))
            found[-1][:, outputs_of(problem, condition)] = condition.value
    return found


@partial(in_numpy, static_argnames=("problem", "condition"))
def _values_at(problem, condition, X):
    return jax.vmap(lambda x: value_at(problem, (condition,), x, jnp.nan))(X)


def contradict_the_equation(problem, places, faces):
    """Whether the values on two faces contradict the equation where these meet, (n,).

    For each place (d,), ``faces`` has two pairs of the axis across a face and of the
    conditions on it. The sum of the values on both, without what they share, fulfils
    the equation there, compared with elsewhere, or the solution is not smooth.
    """
    if not len(places):
        return np.zeros(0, bool)
    problem.residual_classes()  # which what is compiled below cannot make
    x = problem.domain.sample(N_POINTS, np.random.RandomState(0))
    found = _residuals_of_sums(problem, tuple(faces), np.array(places), x)
    there, size = np.abs(found[:, 0, 0]), np.abs(found).max(axis=(1, 2))
    return (there > JUMP * size).any(axis=1)


@partial(in_numpy, static_argnames=("problem", "faces"))
def _residuals_of_sums(problem, faces, places, x):
    """Residuals (n, 3, 1 + m, k) of a sum and of its two parts, there and at points."""
    shares = np.array([[1, 1, -1], [1, 0, 0], [0, 1, 0]], x.dtype)

    def residual(x, share, place, first, second):
        (i, on_first), (j, on_second) = first, second

        def values(x):
            x_first, x_second = x.at[i].set(place[i]), x.at[j].set(place[j])
            parts = (
                value_at(problem, on_first, x_first),
                value_at(problem, on_second, x_second),
                value_at(problem, on_second, x_second.at[i].set(place[i])),
            )
            return share @ jnp.stack(parts)

        given = (values,), x[None], x[:0], problem.start
        return problem._residuals_at(problem.residual_classes()[0], *given)

    rows = []
    for place, (first, second) in zip(places, faces, strict=True):
        of_corner = partial(residual, place=place, first=first, second=second)
        at_points = jax.vmap(of_corner, (0, None))
        points = jnp.concatenate([place[None], x])
        rows.append(jax.vmap(at_points, (None, 0))(points, shares))
    return jnp.stack(rows)


def steepest_parts(function, low, high, unit=None):
    """Middles of the steepest parts of segments, found by cutting, and end values.

    Those are in units of the values, returned last: the largest ones, if not given.
    """
    rows, share = np.arange(len(low)), np.linspace(0, 1, PARTS + 1)[:, None]
    for _ in range(_CUTS):
        X = low[:, None] + share * (high - low)[:, None]
        values = function(X.reshape(-1, X.shape[2]))
        if unit is None:
            unit = np.nanmax(np.abs(values), axis=0, initial=np.finfo(float).tiny)
        values = (values / unit).reshape(*X.shape[:2], -1)
        steps = np.nan_to_num(np.abs(np.diff(values, axis=1))).max(axis=2, initial=0)
        part = steps.argmax(axis=1)
        low, high = X[rows, part], X[rows, part + 1]
        if steps.max(initial=0) <= JUMP:  # relative to the size: they are smooth
            break
    return (low + high) / 2, values[rows, part], values[rows, part + 1], unit


class Break(NamedTuple):
    """A jump or a kink of initial values."""

    axis: int  # number of the axis of space
    place: float
    order: int  # of the derivative that jumps: 0, 1 or 2
    rates: tuple  # of diffusion there, complex numbers of which none is a conjugate
    period: float  # of the axis; inf: none


def initial_breaks(problem):
    """Breaks of initial values, where diffusion along one axis smooths them."""
    starts, domain = _initial_conditions(problem), problem.domain
    if not starts or any(condition.order for condition in starts):
        return ()
    problem.residual_classes()  # which what is compiled below cannot make
    axis = 1 - domain.axes.index(domain.time)
    closed = [c.axis for c in problem.conditions if isinstance(c, Periodic)]
    is_periodic = domain.axes[axis] in (*problem.periodic, *closed)
    period = float(np.ptp(domain.bounds[axis])) if is_periodic else math.inf
    found = _places(problem, axis, starts, is_periodic)[:_MOST]
    rates = _rates(problem, axis, [place for place, _ in found])
    breaks = tuple(
        Break(axis, place, order, of_place, period)
        for (place, order), of_place in zip(found, rates, strict=True)
        if of_place
    )
    return switches.kept("pinn.breaks", breaks)


def carried_kinks(problem):
    """Name of the axis, and places of kinks of initial values that waves carry."""
    starts, domain = _initial_conditions(problem), problem.domain
    if all(condition.order for condition in starts) or initial_breaks(problem):
        return "", []
    axis = 1 - domain.axes.index(domain.time)
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
    """Conditions whose initial values are looked at, or an empty list."""
    domain = problem.domain
    plain = problem.transform is None and not (problem.unknown or problem.depends_on)
    if not (isinstance(domain, Box) and domain.dim == 2 and domain.time and plain):
        return []
    return [known for known in problem.conditions if isinstance(known, Initial)]


def _places(problem, axis, starts, is_periodic):
    """Places and orders of the breaks: those at the ends of the axis first."""
    low, high = problem.domain.bounds[axis]
    both, units, is_finite = _values_and_units(problem, axis)
    if not is_finite:
        return []
    if is_periodic:
        steps = [np.abs(both[k][-1] - both[k][0]) / units[k] for k in range(2)]
        found = [(float(low), k) for k in range(2) if steps[k].max() > JUMP][:1]
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
    both = _values_and_slopes(problem, x, axis)
    size = np.abs(both[0]).max(axis=0)
    size = np.maximum(size, max(ROUNDING * size.max(), np.finfo(float).tiny))
    return both, (size, 2 * size / (high - low)), np.isfinite(both).all()


def _inside(problem, axis, order, unit):
    """Places inside of the axis at which a derivative of the values jumps."""
    low, high = problem.domain.bounds[axis]
    ends = _on_axis(problem, axis, np.linspace(low, high, N_POINTS))

    def values(X):
        return _values_and_slopes(problem, X, axis)[order]

    places, before, after, _ = steepest_parts(values, ends[:-1], ends[1:], unit)
    broken = np.abs(after - before).max(axis=1) > JUMP
    if broken.sum() >= _MOST:  # values of a table
        return []
    digits = DIGITS - math.ceil(math.log10(high - low))
    return sorted(set(map(float, np.round(places[broken, axis], digits) + 0.0)))


def _at_ends(problem, axis, starts, units):
    """Places and orders of breaks where initial values do not meet conditions."""
    domain, (_, *kinds) = problem.domain, problem.residual_classes()
    found, places, faces = [], [], []
    kinds = [kind for kind in kinds if type(kind.condition) in _ORDERS]
    for end, outward in zip(domain.bounds[axis], (-1.0, 1.0), strict=True):
        place, normal = _on_axis(problem, axis, [end])[0], np.zeros(2)
        normal[axis] = outward
        there = tuple(k for k in kinds if (axis, end) in faces_of(domain, k.condition))
        orders = [_ORDERS[type(kind.condition)] for kind in there]
        pairs = zip(orders, _of_start(problem, there, place, normal), strict=True)
        broken = [k for k, r in pairs if (np.abs(r) > JUMP * units[k]).any()]
        given = tuple(k.condition for k in there if isinstance(k.condition, Dirichlet))
        outputs = {k for condition in given for k in outputs_of(problem, condition)}
        if broken:
            found.append((float(end), min(broken)))
        elif len(outputs) == len(problem.outputs):
            places.append(place)
            faces.append(((1 - axis, tuple(starts)), (axis, given)))
    wrong = contradict_the_equation(problem, places, faces)
    return found + [(float(place[axis]), 2) for place in np.array(places)[wrong]]


@partial(in_numpy, static_argnames=("problem", "kinds"))
def _of_start(problem, kinds, x, normal):
    """Residuals of conditions, for the initial values as a field."""
    fields = (problem.field(_Start(problem)),)
    return [kind.function(fields, x[None], normal, problem.start) for kind in kinds]


@dataclass(frozen=True)
class _Start:
    """The initial values as a function of a point, of any time."""

    problem: Any

    def __call__(self, x):
        starts = [c for c in _initial_conditions(self.problem) if not c.order]
        domain = self.problem.domain
        time = domain.axes.index(domain.time)
        return value_at(self.problem, starts, x.at[time].set(domain.bounds[time, 0]))


def _on_axis(problem, axis, x):
    """Points (n, 2) at the start of time, at places x (n,) of the axis of space."""
    points = np.empty((len(x), 2))
    points[:, axis], points[:, 1 - axis] = x, problem.domain.bounds[1 - axis, 0]
    return points


@partial(in_numpy, static_argnames=("problem", "axis"))
def _values_and_slopes(problem, points, axis):
    """Initial values at points (n, 2), and slopes along an axis, (n, q) each."""
    start, unit = _Start(problem), jnp.eye(2)[axis]
    return jax.vmap(lambda x: jax.jvp(start, (x,), (unit,)))(points)


def _rates(problem, axis, places):
    """Eigenvalues, one of a complex pair, of A at the places; empty if any grows."""
    if not places:
        return []
    bounds, q, n = problem.domain.bounds, len(problem.outputs), len(places)
    # On both sides of a place, where the equation may have different factors.
    near = JUMP**2 * np.ptp(bounds[axis]) * np.array([-1.0, 1.0])
    points = np.clip((np.array(places)[:, None] + near).ravel(), *bounds[axis])
    points = _on_axis(problem, axis, points)
    slopes = slopes_of_equation(problem, points, 0.0, _Start(problem))
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


@dataclass(frozen=True, eq=False)
class Reference:
    """A solution known at some points only, such as one computed on a grid.

    Any object with these attributes can be used instead, and may compute them when they
    are first needed.

    Parameters
    ----------
    points : ndarray of shape (N, d)
        Points at which the solution is known.
    values : ndarray of shape (N, q)
        Values at these points, NaN for components that are not known.
    name : str, default=None
        Source of the values.
    """

    points: np.ndarray
    values: np.ndarray
    name: str | None = None

    def __post_init__(self):
        shapes = np.shape(self.points), np.shape(self.values)
        if [len(shape) for shape in shapes] != [2, 2] or shapes[0][0] != shapes[1][0]:
            raise ValueError(f"points, values must be (N, d), (N, q), got {shapes}.")

    def __eq__(self, other):
        return isinstance(other, Reference) and (
            self.name == other.name
            and np.array_equal(self.points, other.points)
            and np.array_equal(self.values, other.values, equal_nan=True)
        )

    def __hash__(self):
        return hash((self.name, np.shape(self.values)))


def is_reference(exact):
    """Whether it has points, without computing them."""
    return hasattr(type(exact), "points") or "points" in getattr(exact, "__dict__", {})


@partial(in_numpy, static_argnames="problem")
def exact_at(problem, X):
    """The exact solution, a function of one point, at points X, (n, q)."""

    def value(x):
        return problem._as_outputs(problem.exact(x), "exact")

    return lax.map(value, X, batch_size=min(len(X), max(1, AT_ONCE // X.shape[1])))
