r"""Error bars of a solution, by the delta method.

Near the minimum the parameters answer a change e of the residuals by ``-J^+ e``, with
``J^+ = (J^T J + lambda I)^-1 J^T``. Here lambda is at rounding level: the damping of
the last steps is not part of what is minimised, and would make the bars too short.

Residuals of observations vary by their noise, estimated from the misfit; those of an
equation are taken to vary by what they are on points that were not trained on. What
follows for a prediction or a coefficient with the derivative t in the parameters is the
standard deviation ``|t^T J^+ diag(s)|``.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.core.linear_algebra import jacobian as operators
from sklearn_gn.pinn.dngd import factors
from sklearn_gn.pinn.residuals import (
    class_losses,
    coefficient_values,
    network,
    residuals,
)


def _influence(matrix):
    """The function ``t -> t J^+`` of rows t."""
    m, n = matrix.shape
    shift = jnp.finfo(matrix.dtype).eps * jnp.sum(matrix**2)
    small = matrix @ matrix.T if m < n else matrix.T @ matrix
    factor = jnp.linalg.cholesky(small + shift * jnp.eye(min(m, n), dtype=small.dtype))

    def solve(b):
        half = lax.linalg.triangular_solve(factor, b, left_side=True, lower=True)
        return lax.linalg.triangular_solve(
            factor, half, left_side=True, lower=True, transpose_a=True
        )

    if m < n:
        return lambda t: solve(matrix @ t.T).T
    return lambda t: solve(t.T).T @ matrix.T


def linear_model(model, net, batches):
    """Residuals (m,) and their Jacobian (m, n)."""
    _, r, parts = factors(model, net, batches, np.ones(len(batches), net.extra.dtype))
    return r, _dense(parts)


_dense = jax.jit(operators.dense)


@partial(jax.jit, static_argnames="model")
def row_deviations(model, net, batches, linear, fresh):
    """Standard deviations of the residuals, of shape (m,)."""
    r, matrix = linear
    influence = _influence(matrix)
    losses = class_losses(model, fresh, residuals(model, net, fresh))
    found, start = [], 0
    for k, (kind, batch) in enumerate(zip(model.classes, batches, strict=True)):
        n, q = batch.x.shape[0], kind.residual.n_outputs
        stop = start + n * q
        if kind.residual.name == "data":
            own = matrix[start:stop]
            freedom = jnp.sum(influence(own)[:, start:stop].diagonal())
            counted = q * jnp.sum((batch.scale > 0).astype(r.dtype))
            left = jnp.maximum(counted - freedom, 1)
            square = jnp.sum(r[start:stop] ** 2) / jnp.sum(batch.scale**2) / q
            deviation = batch.scale * jnp.sqrt(square * counted / left)
        else:
            deviation = jnp.full(n, jnp.sqrt(2 * losses[k] / (n * q)), r.dtype)
        found.append(jnp.repeat(deviation, q))
        start = stop
    return jnp.concatenate(found)


@partial(jax.jit, static_argnames="model")
def variance(model, net, linear, deviations, x):
    """Variance of the outputs at points, of shape (n, q)."""
    influence = _influence(linear[1])
    flat, unravel = ravel_pytree(net)

    def outputs(flat, x):
        field = model.problem.field(partial(network, model, unravel(flat)))
        return jnp.atleast_1d(field(x))

    slopes = jax.vmap(jax.jacrev(outputs), in_axes=(None, 0))(flat, x)
    n, q, _ = slopes.shape
    rows = influence(slopes.reshape(n * q, -1)) * deviations[None]
    return jnp.sum(rows**2, axis=1).reshape(n, q)


@partial(jax.jit, static_argnames="model")
def coefficient_deviations(model, net, linear, deviations):
    """Standard deviations of the unknown coefficients, by name."""
    matrix = linear[1]
    influence = _influence(matrix)

    def values(extra):
        return coefficient_values(model.problem, extra)

    def deviation(slopes, value):
        slopes = slopes.reshape(value.size, -1)
        n = matrix.shape[1] - slopes.shape[1]
        rows = influence(jnp.pad(slopes, ((0, 0), (n, 0)))) * deviations[None]
        return jnp.sqrt(jnp.sum(rows**2, axis=1)).reshape(value.shape)

    return jax.tree.map(deviation, jax.jacfwd(values)(net.extra), values(net.extra))
