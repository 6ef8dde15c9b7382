"""Functions whose derivatives at one point are known.

A residual asks for the same few derivatives of a network many times over; automatic
differentiation would trace each of them again. Where they are known at the very point
that the residual was given, operators take them as they are; wherever else a field is
evaluated, and however else it is differentiated, they differentiate a function.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from sklearn_gn.arrays.backend import scope, to_numpy
from sklearn_gn.arrays.compilation import jit_by_size

UNROLLED = 8  # axes up to which derivatives are taken one by one
HIGHEST = 7  # order of derivatives in which an equation is read


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
    """Compile a function as ``jax.jit``: in double precision, with NumPy's arrays."""
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
    """A plane wave with its derivatives at x.

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

    return LocalFunction(function, x, derivative, HIGHEST)
