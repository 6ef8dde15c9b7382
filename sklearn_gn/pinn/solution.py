"""The solution that a network stands for: values, derivatives, residuals, errors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.arrays.numpy_programs import evaluated_by_numpy
from sklearn_gn.pde.operators import d
from sklearn_gn.pinn.model import (
    Batch,
    ClassModel,
    coefficients,
    network,
)
from sklearn_gn.pinn.residuals import Observed, class_residuals

_REFERENCE_POINTS = 10_000
_REFERENCE_FLOATS = 2**22  # of the coordinates of points to compare at


@partial(evaluated_by_numpy, static_argnames="model")
def values(model, params, x):
    """The outputs of the solution at points, of shape (n, q)."""

    def one(x):
        return jnp.atleast_1d(model.problem.field(partial(network, model, params))(x))

    return jax.vmap(one)(x)


@partial(evaluated_by_numpy, static_argnames="model")
def output_slopes(model, net, x):
    """Outputs at points, of shape (n, q), and their slopes in all weights."""
    flat, unravel = ravel_pytree(net)

    def outputs(flat, x):
        field = model.problem.field(partial(network, model, unravel(flat)))
        return jnp.atleast_1d(field(x))

    values = jax.vmap(outputs, in_axes=(None, 0))(flat, x)
    return values, jax.vmap(jax.jacrev(outputs), in_axes=(None, 0))(flat, x)


@partial(jit_by_size, static_argnames=("model", "axes"))
def derivatives(model, params, x, axes):
    """Partial derivatives of the outputs at points, of shape (n, q)."""

    def one(x):
        field = model.problem.field(partial(network, model, params))
        return jnp.atleast_1d(d(field, *axes)(x))

    return jax.vmap(one)(x)


@partial(jit_by_size, static_argnames="model")
def equation_residuals(model, params, x):
    """Residuals of the equation at points, of shape (n, k)."""
    kind = ClassModel(model.problem.residual_classes()[0], None)
    batch = Batch(x[:, None], x[:, :0], x[:, 0])
    return class_residuals(model, kind, params, batch)


@partial(jit_by_size, static_argnames=("model", "observed"))
def observable(model, params, x, observed):
    """What is observed, without noise, at points, of shape (n, n_observed)."""
    found = coefficients(model.problem, params.extra)

    def one(x):
        field = model.problem.field(partial(network, model, params))
        return Observed(observed).values(field, x, found)

    return jax.vmap(one)(x)


# --- errors --------------------------------------------------------------------------


def reference(problem, rng, most=_REFERENCE_POINTS):
    """How many points to compare at, points of a problem, its exact solution there."""
    n = max(64, min(most, _REFERENCE_FLOATS // problem.domain.dim))
    return n, *problem.reference(n, rng)


@partial(evaluated_by_numpy, static_argnames="model")
def relative_error(model, params, points, exact):
    """Relative L2 error over all outputs that are known."""
    return _relative_errors(model.problem, values(model, params, points), exact)[0]


def relative_errors(problem, found, exact):
    """Relative L2 errors: of all known outputs together, and of each, in numpy."""
    with backend.scope("float64"):
        joint, each = backend.to_numpy(_relative_errors(problem, found, exact))
    return float(joint), each


def _relative_errors(problem, found, exact):
    known = exact == exact
    error = jnp.where(known, found - exact, 0)
    exact = jnp.where(known, exact, 0)
    free = np.isin(problem.outputs, problem.up_to_constant)
    count = jnp.maximum(jnp.sum(known, axis=0, dtype=exact.dtype), 1)

    def squares(a):
        mean = jnp.where(free, jnp.sum(a, axis=0) / count, 0)
        return jnp.sum(jnp.where(known, a - mean[None], 0) ** 2, axis=0)

    error, exact = squares(error), squares(exact)
    return jnp.sqrt(jnp.sum(error) / jnp.sum(exact)), jnp.sqrt(error / exact)
