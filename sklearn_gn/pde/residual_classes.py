"""The kinds of residuals of a problem: those inside, those of each condition.

Outputs may depend on some of the axes only, such as a coefficient field: these are
taken at projected points. :func:`slopes_of_equation` reads an equation: how it depends
on each derivative of the solution.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.pde.calls import (
    call,
    check_indices,
    explained_errors,
    flat,
    named_errors,
)
from sklearn_gn.pde.local_functions import LocalFunction, followed_by, points_of_row
from sklearn_gn.pde.operators import Field, derivative_along


class ResidualClass(NamedTuple):
    """Residuals of one kind: inside the domain, or of a condition.

    Parameters
    ----------
    name : str
        "interior", or the name of the condition.

    function : callable
        Maps P fields, P points (d,), data (e,) and coefficients to residuals (k,).

    n_points : int
        Number of points of one residual, P.

    weight : float
        Factor in the loss.

    n_outputs : int
        Number of residuals, k.
    """

    name: str
    function: Callable
    n_points: int
    weight: float
    n_outputs: int


@dataclass(frozen=True)
class Interior:
    """The residual of the equation, as a function like those of the conditions."""

    residual: Callable
    regions: Any = None  # looked up once for each point

    def __call__(self, fields, points, data, coefficients):
        """Residual at a point, of shape (k,)."""
        del data
        (field,), (x,) = fields, points
        region = nullcontext()
        if self.regions is not None:
            region = self.regions.within(self.regions.masks(x[None])[0])
        with region:
            return flat(call(self.residual, (field, x), coefficients), x)


def traced_class(problem, name, function, n_points=1, n_data=0, weight=1.0):
    """A kind of residuals, whose number is traced; errors say what is wrong."""
    residual = getattr(function, "residual", None)
    if problem._projections:
        function = OnSomeAxes(function, problem._projections)
        n_points *= 1 + len(problem._projections)
    field = problem.field(lambda x: jnp.zeros(len(problem.outputs), x.dtype))

    def evaluate(points, data):
        return function((field,) * n_points, points, data, problem.start)

    def works_swapped(residual):
        x = jax.ShapeDtypeStruct((problem.domain.dim,), np.float64)

        def values(x):
            return flat(call(residual, (x, field), problem.start), x)

        try:
            jax.eval_shape(values, x)
        except Exception:  # it has another mistake
            return False
        return True

    points = jax.ShapeDtypeStruct((n_points, problem.domain.dim), np.float64)
    data = jax.ShapeDtypeStruct((n_data,), np.float64)
    with (
        jax.enable_x64(True),
        named_errors(name),
        explained_errors(residual, works_swapped),
    ):
        jaxpr = jax.make_jaxpr(evaluate)(points, data)
        (k,) = jaxpr.out_avals[0].shape
        check_indices(jaxpr, problem.domain.axes)
    if k == 0:
        raise ValueError(f"{name}: the residual is empty.")
    return ResidualClass(name, function, n_points, float(weight), k)


# --- outputs that depend on some of the axes -----------------------------------------


@dataclass(frozen=True)
class OnSomeAxes:
    """A residual of outputs of which some depend on some of the axes only.

    Those are taken at the point with its other axes in the middle of the domain. A row
    has the points themselves first, then those of each set of axes.
    """

    function: Callable
    projections: tuple  # of (numbers of outputs, Projection)

    def __call__(self, fields, points, data, coefficients):
        """Residual of a row, of shape (k,)."""
        parts = 1 + len(self.projections)
        if len(fields) < parts or len(fields) % parts:
            return self.function(fields, points, data, coefficients)
        n = len(fields) // parts
        found = tuple(self._assembled(*fields[k::n]) for k in range(n))
        return self.function(found, points[:n], data, coefficients)

    def _assembled(self, field, *others):
        def value(x):
            outputs = field(x)
            for (numbers, _), other in zip(self.projections, others, strict=True):
                chosen = np.array(numbers)
                outputs = outputs.at[chosen].set(other(x)[chosen])
            return outputs

        return field.derived(value, field.outputs)


@dataclass(frozen=True)
class Projection:
    """Moves a point to the middle of the domain along some axes."""

    axes: tuple  # numbers
    middle: tuple

    def __call__(self, x):
        """The point, or an array of points of numpy."""
        for axis, value in zip(self.axes, self.middle, strict=True):
            if isinstance(x, np.ndarray):
                x = x.copy()
                x[..., axis] = value
            else:
                x = x.at[..., axis].set(value)
        return x


def projections_of(problem):
    """Numbers of outputs that depend on the same axes, and their projection."""
    axes, middle = problem.domain.axes, problem.domain.bounds.mean(axis=1)
    groups = {}
    for output, kept in problem.depends_on.items():
        gone = tuple(k for k, name in enumerate(axes) if name not in kept)
        groups.setdefault(gone, []).append(problem.outputs.index(output))
    return tuple(
        (tuple(numbers), Projection(gone, tuple(middle[list(gone)].tolist())))
        for gone, numbers in groups.items()
        if gone
    )


# --- how an equation depends on the derivatives of the solution -----------------------


def derivatives(dim):
    """Return all derivatives up to the fourth ones, as tuples of axes, ascending."""
    orders = (combinations_with_replacement(range(dim), n) for n in range(5))
    return [axes for order in orders for axes in order]


@partial(jit_by_size, static_argnames="problem")
def slopes_at_zero(problem, points, changes=0.0):
    """Slopes (n, k, m, q) of the equation at points (n, d), about zero and changes."""
    shape = len(derivatives(problem.domain.dim)), len(problem.outputs)
    changes = jnp.broadcast_to(jnp.asarray(changes, points.dtype), shape)

    def zero(x):
        return jnp.zeros(shape[1], x.dtype)

    return jax.vmap(partial(slopes_of_equation, problem, zero, changes))(points)


def slopes_of_equation(problem, values, changes, x):
    """Slopes (k, n, q) of the equation in the derivatives (n, q) at a point."""
    known = derivatives(problem.domain.dim)
    (point,) = points_of_row(x[None])
    repeated = [prod(factorial(axes.count(k)) for k in set(axes)) for axes in known]

    def residual(changes):
        def derivative(axes):
            function = values
            for axis in axes:
                function = derivative_along(function, axis)
            return function(x) + changes[known.index(tuple(sorted(axes)))]

        def polynomial(y):  # where the equation does not take derivatives as they are
            steps = y - x
            powers = [prod(steps[k] for k in axes) for axes in known]
            terms = zip(changes, powers, repeated, strict=True)
            return values(y) + sum(a * power / n for a, power, n in terms)

        function = LocalFunction(polynomial, point, derivative, 4)
        if len(problem.outputs) == 1:
            function = followed_by(function, lambda outputs: outputs[0])
        axes, time = problem.domain.axes, problem.domain.time
        field = Field(function, axes, time, problem.outputs)
        kind = problem.residual_classes()[0]
        return kind.function((field,), (point,), x[:0], problem.start)

    return jax.jacrev(residual)(changes)
