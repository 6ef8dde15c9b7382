"""Units of the residuals of ordinary differential equations that go on from a start.

The residual of such an equation is a rate. Its size says little about the error that it
causes, which is what the rate adds up to over time, relative to the size of the output.
Each row is therefore divided by what it is for an output of size one that varies once
over all time, in its derivatives alone: then residuals are errors. The values of the
outputs do not count. Where the equation is stiff their terms are far larger, and with
them as units wrong slow parts would pass for small residuals; an output that stays
small, such as the concentration of a radical, would hardly count in the units of the
statement. Of the first and the second derivative the larger term is taken: with strong
damping, a residual adds up in the first one.

The rows of the conditions at the start are treated the same.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.numpy_programs import evaluated_by_numpy

_N_POINTS = 20  # of each class, with a random function each
_ORDERS = 3  # values, and the first two derivatives


def units_of_rows(model):
    """Return the units (k,) of the rows of each residual class."""
    problem, rng = model.problem, np.random.RandomState(0)
    probes = problem.probes(_N_POINTS, rng)
    batches = [probes[known.residual.name] for known in model.classes]
    shapes = rng.standard_normal((_N_POINTS, _ORDERS, len(problem.outputs)))
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
