"""How much residuals count: in the units of the statement, or in those of their size.

Sizes that are more than a factor of 1,000 apart come from units that do not fit
together, such as volts and coulombs: the one would hardly count next to the other. So
the residuals of such a class are divided by their sizes each, and such classes count in
units of their sizes, the observations too.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.numpy_programs import evaluated_by_numpy

_MOST_APART = 1000.0
_ALIKE = 10.0  # sizes of residual classes between which the weights are not changed
_N_POINTS = 20  # of each class, with a random function each
_ORDERS = 3  # values, and the first two derivatives


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


# --- ordinary differential equations that go on from a start --------------------------
#
# The residual of such an equation is a rate. Its size says little about the error that
# it causes, which is what the rate adds up to over time. Each row is therefore divided
# by what it is for an output of size one that varies once over all time, in its
# derivatives alone: then residuals are errors. The values of the outputs do not count.
# Where the equation is stiff their terms are far larger, and with them as units wrong
# slow parts would pass for small residuals; an output that stays small would hardly
# count in the units of the statement. Of the first and the second derivative the larger
# term is taken: with strong damping, a residual adds up in the first one. The
# conditions at the start are treated the same.


def units_of_rows(model):
    """Return the units (k,) of the rows of each residual class."""
    problem, rng = model.problem, np.random.RandomState(0)
    probes = problem.probes(_N_POINTS, rng)
    batches = [probes[known.residual.name] for known in model.classes]
    shapes = rng.standard_normal((_N_POINTS, _ORDERS, problem.n_network_outputs))
    with backend.scope("float64"):
        found = backend.to_numpy(_slopes(model, batches, shapes))
    return [_units(slopes) for slopes in found]


def _units(slopes):
    """Units of rows from their derivatives (n, k, _ORDERS, q)."""
    slopes = slopes[np.isfinite(slopes).all(axis=(1, 2, 3))]
    if not len(slopes):
        return np.ones(slopes.shape[1])
    sizes = np.sqrt(np.mean(np.sum(slopes**2, axis=3), axis=0))
    found = sizes[:, 1:].max(axis=1)
    found = np.where(found > 0, found, sizes[:, 0])  # of a row without derivatives
    return np.where(found > 0, found, 1.0)


@partial(evaluated_by_numpy, static_argnames="model")
def _slopes(model, batches, shapes):
    """Derivatives of the rows by the derivatives of the outputs, in shares of time."""
    problem = model.problem
    ((low, high),) = problem.domain.bounds

    def one(kind, x, data, shape):
        def rows(shape):
            def function(y):
                share = (y[0] - x[0, 0]) / (high - low)
                return shape[0] + share * shape[1] + share**2 / 2 * shape[2]

            fields = (problem.field(function),) * kind.n_points
            return kind.function(fields, x, data, problem.start)

        return jax.jacfwd(rows)(shape)

    return [
        jax.vmap(partial(one, known.residual))(
            batch.x, batch.data, jnp.asarray(shapes[: len(batch.x)])
        )
        for known, batch in zip(model.classes, batches, strict=True)
    ]
