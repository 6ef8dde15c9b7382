"""Outputs that depend on some of the axes only, such as a coefficient field."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


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
