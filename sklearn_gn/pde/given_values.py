"""What is known of a solution: values that conditions give, and the exact solution."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.arrays.backend import scope, to_numpy
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.pde.calls import call
from sklearn_gn.pde.operators import Field

_CHUNK = 2**20  # numbers of the points at which an exact solution is taken at a time
_PARTS, _CUTS = 16, 8  # of a segment, of which the steepest one is cut again


def faces_of(domain, condition):
    """Axes and values of the faces of a box that a condition holds on."""
    on = condition.where(domain)
    if callable(on) or not isinstance(on, (str, tuple)):
        return []
    names = domain.faces if on == "boundary" else (on,) if isinstance(on, str) else on
    known = {
        f"{axis}={side}": (k, domain.bounds[k, number])
        for k, axis in enumerate(domain.axes)
        for number, side in enumerate(("min", "max"))
    }
    if on == "boundary":
        names = [n for n in names if not n.startswith(f"{domain.time}=")]
    return [known[name] for name in names if name in known]


def outputs_of(problem, condition):
    """Return the names of the outputs that a condition is about."""
    field = Field(None, problem.domain.axes, problem.domain.time, problem.outputs)
    return (field if condition.outputs is None else field[condition.outputs]).outputs


def values_of(problem, conditions, places):
    """Return names of outputs and their values (n, k), for each of some conditions.

    Each has its places (n, d). Their functions are compiled together.
    """
    names = [outputs_of(problem, condition) for condition in conditions]
    functions, at = [], []
    for condition, known, X in zip(conditions, names, places, strict=True):
        if callable(condition.value):
            functions.append((condition.value, len(known)))
            at.append(X)
    found = iter(())
    if functions:
        with scope("float64"):
            found = iter(to_numpy(_given_at(problem, tuple(functions), at)))
    return [
        (
            known,
            next(found)
            if callable(condition.value)
            else np.broadcast_to(condition.value, (len(X), len(known))),
        )
        for condition, known, X in zip(conditions, names, places, strict=True)
    ]


@partial(jit_by_size, static_argnames=("problem", "functions"))
def _given_at(problem, functions, places):
    """What functions of conditions give at their points."""

    def values(value, k, X):
        def at(x):
            given = call(value, (x,), problem.start)
            return jnp.broadcast_to(jnp.asarray(given, x.dtype), (k,))

        return jax.vmap(at)(X)

    pairs = zip(functions, places, strict=True)
    return [values(value, k, X) for (value, k), X in pairs]


def steepest_parts(function, low, high):
    """Find jumps of a function along segments, cutting the steepest part again.

    The change along a tiny part of a segment vanishes for continuous functions, however
    steep they are.

    Parameters
    ----------
    function : callable
        Maps points (m, d) to values (m, k), NaN where there are none.
    low, high : ndarray of shape (n, d)
        Ends of the segments.

    Returns
    -------
    place : ndarray of shape (n, d)
        Middle of the part of each segment along which the values change most.
    before, after : ndarray of shape (n, k)
        Values at its ends.
    """
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

    chunk = max(1, _CHUNK // X.shape[1])
    if len(X) <= chunk:
        return jax.vmap(value)(X)
    return lax.map(value, X, batch_size=chunk)
