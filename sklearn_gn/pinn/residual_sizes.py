"""How much residuals count: in the units of the statement, or in those of their size.

Sizes that are more than a factor of 1,000 apart come from units that do not fit
together, such as volts and coulombs: the one would hardly count next to the other. So
the residuals of such a class are divided by their sizes each, and such classes count in
units of their sizes, the observations too.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sklearn_gn import _switches as switches

_MOST_APART = 1000.0
_ALIKE = 10.0  # sizes of residual classes between which the weights are not changed


@dataclass(frozen=True)
class InUnits:
    """Residuals of a class, each divided by a unit."""

    function: Callable
    units: tuple

    def __call__(self, fields, points, data, coefficients):
        """Residuals of a row, of shape (k,)."""
        found = self.function(fields, points, data, coefficients)
        return found / np.array(self.units, found.dtype)


def in_units(kind, sizes):
    """A class of residuals that differ in size by 1,000 at most, and its size."""
    finite = np.isfinite(sizes) & (sizes > 0)
    if not finite.any():
        return kind, 1.0
    size = float(np.sqrt(np.sum(sizes[finite] ** 2) / len(sizes)))
    sizes = np.where(finite, sizes, size)
    if not _are_apart(sizes) or not switches.on("pinn.balance"):
        return kind, size
    units = tuple(map(float, sizes / size))
    return kind._replace(function=InUnits(kind.function, units)), size


def size_of_observations(problem, observed):
    """Root mean square of the units of the observed outputs."""
    scale = getattr(problem, "scale", ())
    units = [scale[k] for k in observed if not callable(k)] if scale else []
    return float(np.sqrt(np.mean(np.square(units)))) if units else 1.0


def alike_sizes(model, loss_weights, free):
    """Return the factor from one within which the size of a class changes no weight.

    All count in units of their sizes where these are apart. Else it is another order of
    magnitude than one; not where layers, or the weight of observations, are given.
    """
    if loss_weights != "auto":
        return 1.0 if loss_weights == "scaled" else math.inf
    sizes = np.array([known.size for known in model.classes])
    alike = 1.0 if _are_apart(sizes) else _ALIKE if free else math.inf
    acts = any(counted_size(size, alike) != 1 for size in sizes)
    return math.inf if acts and not switches.on("pinn.balance") else alike


def counted_size(size, alike):
    """Return the size in units of which the residuals of a class count."""
    return 1.0 if 1 / alike < size < alike else size


def _are_apart(sizes):
    return sizes.max() > _MOST_APART * sizes.min()
