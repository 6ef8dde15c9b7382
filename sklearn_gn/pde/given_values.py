"""What is known of a solution: values that conditions give, and the exact solution.

Everything that looks at given values reads them here: their sizes, their jumps, whether
they agree where two parts of the boundary meet, and whether the equation does there.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.arrays.backend import scope, to_numpy
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.pde.calls import call, named_parameters
from sklearn_gn.pde.conditions import Dirichlet, Initial
from sklearn_gn.pde.operators import Field
from sklearn_gn.pde.patches import AT_ONCE

JUMP = 1e-3  # change of values, or of what they make, relative to their size
ROUNDING = float(np.sqrt(np.finfo(float).eps))  # relative change that is none
N_POINTS = 128  # of a domain, or of a part of its boundary, at which it is looked at
MANY_POINTS = 4096  # the same where small parts of it count
_PARTS, _CUTS = 16, 8  # of a segment, of which the steepest one is cut again


def faces_of(domain, condition):
    """Axes and values of the faces of a box that a condition holds on."""
    on = condition.where(domain)
    if callable(on) or not isinstance(on, (str, tuple)):
        return []
    names = (
        domain.patches() if on == "boundary" else (on,) if isinstance(on, str) else on
    )
    known = {
        f"{axis}={side}": (k, domain.bounds[k, number])
        for k, axis in enumerate(domain.axes)
        for number, side in enumerate(("min", "max"))
    }
    return [known[name] for name in names if name in known]


def outputs_of(problem, condition):
    """Return the numbers of the outputs that a condition is about."""
    field = Field(None, problem.domain.axes, problem.domain.time, problem.outputs)
    chosen = field if condition.outputs is None else field[condition.outputs]
    return [problem.outputs.index(name) for name in chosen.outputs]


def gives_values(problem, condition):
    """Whether a condition gives values of the outputs that are known."""
    if not isinstance(condition, (Dirichlet, Initial)) or getattr(
        condition, "order", 0
    ):
        return False
    if not callable(condition.value) or not problem.unknown:
        return True
    named, takes_all = named_parameters(condition.value, 1)
    return not (takes_all or set(named) & set(problem.unknown))


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
    found, functions, at = [], {}, []
    for number, (condition, X) in enumerate(zip(conditions, places, strict=True)):
        found.append(np.full((len(X), len(problem.outputs)), np.nan))
        if callable(condition.value):
            functions[number] = condition
            at.append(X)
        else:
            found[-1][:, outputs_of(problem, condition)] = condition.value
    if functions:
        with scope("float64"):
            values = to_numpy(_values_at(problem, tuple(functions.values()), at))
        for number, own in zip(functions, values, strict=True):
            found[number] = own
    return found


@partial(jit_by_size, static_argnames=("problem", "conditions"))
def _values_at(problem, conditions, places):
    return [
        jax.vmap(lambda x, given=given: value_at(problem, (given,), x, jnp.nan))(X)
        for given, X in zip(conditions, places, strict=True)
    ]


def contradict_the_equation(problem, places, faces):
    """Whether the values on two faces contradict the equation where these meet, (n,).

    For each place (d,), ``faces`` has two pairs of the axis across a face and of the
    conditions on it. The sum of the values on both, without what they share, fulfils
    the equation there, compared with elsewhere, or the solution is not smooth.
    """
    if not len(places):
        return np.zeros(0, bool)
    x = problem.domain.sample(N_POINTS, np.random.RandomState(0))
    with scope("float64"):
        found = to_numpy(_residuals_of_sums(problem, tuple(faces), np.array(places), x))
    there, size = np.abs(found[:, 0, 0]), np.abs(found).max(axis=(1, 2))
    return (there > JUMP * size).any(axis=1)


@partial(jit_by_size, static_argnames=("problem", "faces"))
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

        return problem._equation_at(values, x)

    rows = []
    for place, (first, second) in zip(places, faces, strict=True):
        of_corner = partial(residual, place=place, first=first, second=second)
        at_points = jax.vmap(of_corner, (0, None))
        points = jnp.concatenate([place[None], x])
        rows.append(jax.vmap(at_points, (None, 0))(points, shares))
    return jnp.stack(rows)


def steepest_parts(function, low, high):
    """Middles of the steepest parts of segments, found by cutting, and end values."""
    rows, share = np.arange(len(low)), np.linspace(0, 1, _PARTS + 1)[:, None]
    for _ in range(_CUTS):
        X = low[:, None] + share * (high - low)[:, None]
        values = function(X.reshape(-1, X.shape[2])).reshape(*X.shape[:2], -1)
        steps = np.nan_to_num(np.abs(np.diff(values, axis=1))).max(axis=2, initial=0)
        part = steps.argmax(axis=1)
        low, high = X[rows, part], X[rows, part + 1]
    return (low + high) / 2, values[rows, part], values[rows, part + 1]


# --- the exact solution --------------------------------------------------------------


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
            raise ValueError(
                f"points and values must be (N, d) and (N, q), got {shapes}."
            )

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


@partial(jit_by_size, static_argnames="problem")
def exact_at(problem, X):
    """The exact solution, a function of one point, at points X, (n, q)."""

    def value(x):
        return problem._as_outputs(problem.exact(x), "exact")

    return lax.map(value, X, batch_size=min(len(X), max(1, AT_ONCE // X.shape[1])))
