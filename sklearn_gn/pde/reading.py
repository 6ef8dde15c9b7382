"""How a statement is read: what its residuals are, and how they depend on the field.

Whatever has to know a statement, such as the units, jumps and waves of a fit and the
findings after it, asks two questions, at points that it chooses:

- Which values do the residuals of a class have, for plane waves as the fields? All
  derivatives of these are known. (:func:`residuals_of_waves`, :func:`fluxes_of_waves`)
- How do the equations change with each derivative of each output, all of which are
  independent arguments? (:func:`slopes_of_equation`)
"""

from contextlib import nullcontext
from functools import partial
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.pde.domains import AT_ONCE
from sklearn_gn.pde.local_functions import (
    HIGHEST,
    UNROLLED,
    LocalFunction,
    combined,
    in_numpy,
    points_of_row,
    wave_at,
)
from sklearn_gn.pde.operators import Field, derivative_along, differentiated, holding

_PAIRS = 2**12  # of a point and a wave, looked at together


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
    return fluxes_of_waves(problem, kind, points, waves, unknown, directions)[0]


def fluxes_of_waves(
    problem, kind, points, waves, unknown=None, directions=None, regions=None, mask=None
):
    """Residuals (n, m, k), and what an equation differentiates along each axis.

    The latter are arrays (n, m, any number), of what is no output itself. Coefficients
    are those of the one region in a mask.
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
        row = points.x[point], points.data[point], own, given
        found.append(_of_pairs(problem, kind, regions, mask, directions, *row))
    parts = (np.concatenate(part)[: n * m] for part in zip(*found, strict=True))
    residuals, *fluxes = (part.reshape(n, m, -1) for part in parts)
    return residuals, fluxes


@partial(in_numpy, static_argnames=("problem", "kind", "regions"))
def _of_pairs(problem, kind, regions, mask, directions, *rows):
    """Residuals (n, k), and in few axes what the equation differentiates, (n, any)."""

    def one(x, data, wave, unknown):
        points = points_of_row(x)
        functions = [wave_at(point, *wave) for point in points]
        given = points, data, problem.known | unknown, directions
        residual = partial(problem._residuals_at, kind, functions, *given)
        if kind.condition is not None or x.shape[1] > UNROLLED:
            return (residual(),)
        values, fluxes = with_fluxes(residual, points[0])
        return values, *fluxes

    with nullcontext() if regions is None else regions.within(mask):
        return jax.vmap(one)(*rows)


def with_fluxes(residual, x):
    """What a residual returns, and what it differentiates along each axis, (any,)."""
    with holding(differentiated, []) as noted:
        values = residual()
    found = [[jnp.zeros(0, x.dtype)] for _ in range(x.size)]
    for field, axes, is_divergence in noted:
        value = field(x)
        for k, axis in enumerate(axes):
            found[axis].append(jnp.ravel(value[..., k] if is_divergence else value))
    return values, list(map(jnp.concatenate, found))


def derivatives(dim):
    """Return all derivatives that are read, as tuples of axes, ascending."""
    orders = (combinations_with_replacement(range(dim), n) for n in range(HIGHEST + 1))
    return [axes for order in orders for axes in order]


@partial(in_numpy, static_argnames=("problem", "values"))
def slopes_of_equation(problem, points, size, values=None):
    """Slopes (n, k, m, q) of the equation in all derivatives, at points (n, d).

    They are those about the function ``values`` of a point, or a wave of the size of
    each output. An equation that is not local has slopes in the highest ones.
    """
    domain, q, dim = problem.domain, len(problem.outputs), points.shape[1]
    known = derivatives(dim)
    powers = np.array([[axes.count(k) for k in range(dim)] for axes in known])
    repeated = np.array([float(prod(map(factorial, row))) for row in powers.tolist()])
    vectors = np.random.RandomState(0).standard_normal((q, dim))
    vectors *= 2 * np.pi / np.ptp(domain.bounds, axis=1)

    def residual(changes, x):
        (point,) = points_of_row(x[None])
        about = values or wave_at(point, vectors, size, size, size)

        def derivative(axes):
            function = about
            for axis in axes:
                function = derivative_along(function, axis)
            return function(point) + changes[known.index(tuple(sorted(axes)))]

        def polynomial(y):  # where the equation does not take derivatives as they are
            table = [jnp.ones_like(x)]
            for _ in range(HIGHEST):
                table.append(table[-1] * (y - x))
            terms = prod(jnp.stack(table)[powers[:, k], k] for k in range(dim))
            return about(y) + terms / repeated @ changes

        function = LocalFunction(polynomial, point, derivative, HIGHEST)
        if q == 1:
            function = combined(lambda outputs: outputs[0], function)
        field = Field(function, domain.axes, domain.time, problem.outputs)
        equation = problem._interior[0].function
        return equation((field,), (point,), x[:0], problem.start)

    none = jnp.zeros((len(known), q), points.dtype)
    return jax.vmap(partial(jax.jacrev(residual), none))(points)
