"""The kinds of residuals of a problem: those inside, those of each condition."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.pde.calls import call
from sklearn_gn.pde.checks import named_errors
from sklearn_gn.pde.domains import unique
from sklearn_gn.pde.index_checks import check_indices
from sklearn_gn.pde.mistakes import explained_errors
from sklearn_gn.pde.some_axes import OnSomeAxes, Projection
from sklearn_gn.pde.values import flat


class ResidualClass(NamedTuple):
    """Residuals of one kind: those inside, those of a condition.

    Parameters
    ----------
    name : str
        "interior", or that of the condition.

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
class _Interior:
    """The residual of the equation, as a function like those of the conditions."""

    residual: Callable

    def __call__(self, fields, points, data, coefficients):
        del data
        (field,), (x,) = fields, points
        return flat(call(self.residual, (field, x), coefficients), x)


class ResidualClassesMixin:
    """Residuals of a problem, class by class."""

    def residual_classes(self) -> tuple[ResidualClass, ...]:
        """The kinds of residuals: "interior", then one for each condition."""
        return self._classes

    @cached_property
    def _classes(self):
        classes = [self.residual_class("interior", _Interior(self.residual))]
        for name, condition in self._named_conditions():
            size = self.domain.dim if condition.needs_normals else 0
            classes.append(
                self.residual_class(
                    name, condition, condition.n_fields, size, condition.weight
                )
            )
        return tuple(classes)

    def residual_class(
        self,
        name: str,
        function: Callable[..., Any],
        n_points: int = 1,
        n_data: int = 0,
        weight: float = 1.0,
    ) -> ResidualClass:
        """Return a kind of residuals, with their number, found by tracing.

        Parameters
        ----------
        name : str
            As it stands in the log.
        function : callable
            ``function(fields, points, data, coefficients)`` of ``n_points`` fields and
            points, and of ``n_data`` numbers.
        n_points, n_data : int
            Of one residual.
        weight : float
            Of the mean square of these residuals in the loss.

        Returns
        -------
        ResidualClass
            Functions and sizes.

        Raises
        ------
        ValueError
            That says what is wrong with the function.
        """
        residual = getattr(function, "residual", None)
        if self._projections:
            function = OnSomeAxes(function, self._projections)
            n_points *= 1 + len(self._projections)
        field = self.field(lambda x: jnp.zeros(len(self.outputs), x.dtype))

        def evaluate(points, data):
            return function((field,) * n_points, points, data, self.start)

        def works_swapped(residual):
            x = jax.ShapeDtypeStruct((self.domain.dim,), np.float64)

            def values(x):
                return flat(call(residual, (x, field), self.start), x)

            try:
                jax.eval_shape(values, x)
            except Exception:  # it has another mistake
                return False
            return True

        points = jax.ShapeDtypeStruct((n_points, self.domain.dim), np.float64)
        data = jax.ShapeDtypeStruct((n_data,), np.float64)
        with (
            jax.enable_x64(True),
            named_errors(name),
            explained_errors(residual, works_swapped),
        ):
            jaxpr = jax.make_jaxpr(evaluate)(points, data)
            (k,) = jaxpr.out_avals[0].shape
            check_indices(jaxpr, self.domain.axes)
        if k == 0:
            raise ValueError(f"{name}: the residual is empty.")
        return ResidualClass(name, function, n_points, float(weight), k)

    def _equation_at(self, function, x):
        """Residuals of the equation at one point, for the field of a function."""
        fields = (self.field(function),)
        return self._classes[0].function(fields, x[None], x[:0], self.start)

    @cached_property
    def _projections(self):
        """Numbers of outputs that depend on the same axes, and their projection."""
        axes, middle = self.domain.axes, self.domain.bounds.mean(axis=1)
        groups = {}
        for output, kept in self.depends_on.items():
            gone = tuple(k for k, name in enumerate(axes) if name not in kept)
            groups.setdefault(gone, []).append(self.outputs.index(output))
        return tuple(
            (tuple(numbers), Projection(gone, tuple(middle[list(gone)].tolist())))
            for gone, numbers in groups.items()
            if gone
        )

    def _named_conditions(self):
        named = {"interior": None}
        for condition in self.conditions:
            name = unique(condition.name or condition.kind, named, "_{}")
            named[name] = condition
        del named["interior"]
        return named.items()
