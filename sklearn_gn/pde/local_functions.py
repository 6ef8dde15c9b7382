"""Functions whose derivatives at one point are known.

A residual asks for the same few derivatives of a network many times over; automatic
differentiation would trace each of them again. Where they are known at the very point
that the residual was given, operators take them as they are; wherever else a field is
evaluated, and however else it is differentiated, they differentiate a function.

A statement is looked at through the residuals of plane waves, whose derivatives are
known everywhere: :func:`residuals_of_waves`.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.arrays.backend import scope, to_numpy
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.pde.domains import AT_ONCE

_PAIRS = 2**10  # of a point and a wave, looked at together
UNROLLED = 8  # axes up to which derivatives are taken one by one


class LocalFunction(NamedTuple):
    """A function of a point with known derivatives at one point.

    The point is recognised as the same object, which no copy of it that is being
    differentiated is. ``derivative`` maps a tuple of up to ``order`` axes to the
    derivative along them at the point.
    """

    function: Callable
    point: Any
    derivative: Callable
    order: int

    def __call__(self, x):
        """Value at a point."""
        return self.derivative(()) if x is self.point else self.function(x)


def combined(linear, *functions):
    """``linear(f(x), g(x), ...)`` as a function of x."""

    def value(x):
        return linear(*(function(x) for function in functions))

    def derivative(axes):
        return linear(*(function.derivative(axes) for function in functions))

    if not all(isinstance(function, LocalFunction) for function in functions):
        return value
    order = min(function.order for function in functions)
    return LocalFunction(value, functions[0].point, derivative, order)


def in_numpy(function, **arguments):
    """Compile a function that looks at a statement: double precision, NumPy's arrays.

    With the arguments of ``jax.jit``.
    """
    compiled = jit_by_size(function, **arguments)

    @wraps(function)
    def called(*args):
        with scope("float64"):
            return to_numpy(compiled(*args))

    return called


def points_of_row(x):
    """The points of a row, each an object by which derivatives there are known."""
    return tuple(lax.index_in_dim(x, p, keepdims=False) for p in range(x.shape[0]))


def wave_at(x, vectors, cosines, sines, level=0.0):
    """A plane wave with its derivatives at x, up to the fourth ones.

    It is ``level + cosines cos(vectors y) + sines sin(vectors y)`` as a function of y,
    of an output for each of the vectors, or for each of the amplitudes of a single one.
    """

    def function(y):
        angle = vectors @ y
        return level + cosines * jnp.cos(angle) + sines * jnp.sin(angle)

    if len(x) > UNROLLED:
        return function
    angle = vectors @ x
    cosine, sine = jnp.cos(angle), jnp.sin(angle)

    def derivative(axes):
        a, b = cosines, sines
        for axis in axes:
            a, b = vectors[..., axis] * b, -vectors[..., axis] * a
        found = a * cosine + b * sine
        return found if axes else level + found

    return LocalFunction(function, x, derivative, 4)


class PlaneWaves(NamedTuple):
    """Plane waves of q outputs: ``level + cosine cos(v x) + sine sin(v x)``."""

    vectors: np.ndarray  # (m, q, d)
    cosines: np.ndarray  # (m, q)
    sines: np.ndarray  # (m, q)
    levels: np.ndarray  # (m, q)


def constants(values, dim):
    """PlaneWaves that are constants (m, q)."""
    values = np.asarray(values, float)
    return PlaneWaves(np.zeros((*values.shape, dim)), 0 * values, 0 * values, values)


def residuals_of_waves(problem, kind, points, waves, unknown=None, directions=None):
    """Residuals (n, m, k) of a class at points for waves as fields, in NumPy.

    ``unknown`` has values (m, ...) of unknown coefficients, in place of their initial
    ones. All waves of a class are looked at by one compiled function.
    """
    n, m = len(points.x), len(waves.levels)
    initial = {key: np.stack([problem.start[key]] * m) for key in problem.unknown}
    unknown = initial | (unknown or {})
    size = max(1, min(_PAIRS, AT_ONCE // waves.vectors[0].size))
    found = []
    for start in range(0, n * m, size):
        point, wave = divmod(np.minimum(np.arange(start, start + size), n * m - 1), m)
        own = PlaneWaves(*(array[wave] for array in waves))
        given = {key: values[wave] for key, values in unknown.items()}
        both = points.x[point], points.data[point]
        found.append(_of_pairs(problem, kind, *both, own, given, directions))
    return np.concatenate(found)[: n * m].reshape(n, m, -1)


@partial(in_numpy, static_argnames=("problem", "kind"))
def _of_pairs(problem, kind, x, data, waves, unknown, directions):
    def one(x, data, wave, unknown):
        points = points_of_row(x)
        functions = [wave_at(point, *wave) for point in points]
        given = points, data, problem.known | unknown, directions
        return problem._residuals_at(kind, functions, *given)

    return jax.vmap(one)(x, data, waves, unknown)
