r"""The solution that a network stands for: values, derivatives, errors, error bars.

The error bars are those of the delta method.
Near the minimum the parameters answer a change e of the residuals by ``-J^+ e``, with
``J^+ = (J^T J + lambda I)^-1 J^T``. Here lambda is at rounding level: the damping of
the last steps is not part of what is minimised, and would make the bars too short.

Residuals of observations vary by their noise, estimated from the misfit of each output;
those of an equation are taken to vary by what they are on points that were not trained
on. What follows for a prediction or a coefficient with the derivative t in the
parameters is the standard deviation ``|t^T J^+ diag(s)|``.

Observations count by their weights: one of weight two is two observations of the same
value, so that data given twice shrink the error bars by the root of two.
"""

import math
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.arrays.extremes import unbounded
from sklearn_gn.arrays.trees import StoredWithoutCaches
from sklearn_gn.bayes.laplace import PseudoInverse, degrees_of_freedom, safe_norm
from sklearn_gn.linalg import jacobian as operators
from sklearn_gn.pde.operators import d
from sklearn_gn.pinn import pieces
from sklearn_gn.pinn.model import (
    LARGE,
    Batch,
    ClassModel,
    coefficient_values,
    coefficients,
    network,
)
from sklearn_gn.pinn.residuals import (
    Observed,
    class_residuals,
    residual_counts,
    residuals,
)

_REFERENCE_POINTS = 10_000
# Share of the length of a coefficient's derivative that the residuals do not see:
# 1e-4 at most was found where they determine it, 3e-2 at least where they do not.
_UNSEEN = 1e-2


@partial(jit_by_size, static_argnames=("model", "axes"))
def values(model, params, x, axes=()):
    """The outputs (n, q) of the solution at points, or their derivatives along axes."""

    def one(x):
        field = model.problem.field(partial(network, model, params))
        return jnp.atleast_1d(d(field, *axes)(x) if axes else field(x))

    return jax.vmap(one)(x)


@partial(jit_by_size, static_argnames="model")
def output_slopes(model, net, x):
    """Outputs at points, of shape (n, q), and their slopes in all weights."""
    flat, unravel = ravel_pytree(net)

    def outputs(flat, x):
        field = model.problem.field(partial(network, model, unravel(flat)))
        return jnp.atleast_1d(field(x))

    values = jax.vmap(outputs, in_axes=(None, 0))(flat, x)
    return values, jax.vmap(jax.jacrev(outputs), in_axes=(None, 0))(flat, x)


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


def reference(problem, rng):
    """How many points to compare at, points of a problem, its exact solution there."""
    n = max(64, min(_REFERENCE_POINTS, LARGE // problem.domain.dim))
    return n, *problem.reference(n, rng)


def relative_errors(problem, found, exact):
    """Relative L2 errors: of all known outputs together, and of each."""
    known = exact == exact
    free = np.isin(problem.outputs, problem.up_to_constant)

    def squares(a):
        a = np.where(known, a, 0)
        mean = np.where(free, a.sum(axis=0) / np.maximum(known.sum(axis=0), 1), 0)
        return np.sum(np.where(known, a - mean, 0) ** 2, axis=0)

    error, exact = squares(found - exact), squares(exact)
    with np.errstate(divide="ignore", invalid="ignore"):  # of outputs not known
        return np.sqrt(error.sum() / exact.sum()), np.sqrt(error / exact)


# --- error bars ----------------------------------------------------------------------


class Posterior(StoredWithoutCaches):
    """Error bars about a fitted network, in double precision; factored when needed."""

    def __init__(self, model, net, batches, fresh, n_observations):
        self.model = model
        self.net = net
        self.batches = batches
        self.fresh = fresh
        self.n_observations = n_observations

    @cached_property
    def _factored(self):
        r, parts = pieces.jacobian(self.model, self.net, self.batches)
        limits = np.finfo(r.dtype)
        n_observations = np.clip(self.n_observations, limits.tiny, limits.max)
        n_observations = r.dtype.type(n_observations)
        return _factor(
            self.model, self.net, self.batches, r, parts, self.fresh, n_observations
        )

    def output_deviations(self, x):
        """Standard deviations of the outputs at points, of shape (n, q)."""
        _, slopes = output_slopes(self.model, self.net, x)
        n, q, _ = slopes.shape
        return _deviations(self._factored, slopes.reshape(n * q, -1)).reshape(n, q)

    def noise_deviation(self):
        """Standard deviations (k,) of observations of weight one."""
        data, kind = self.batches[-1], self.model.classes[-1]
        n_rows = len(data.x) * kind.residual.n_outputs
        # Every row of an output has the same, but those of padding, zero.
        rows = np.asarray(self._factored.deviations)[-n_rows:]
        deviations = rows.reshape(len(data.x), -1).max(axis=0)
        factors = np.asarray(data.data)[0, len(deviations) :]
        size = math.sqrt(self.n_observations) / (factors if factors.size else 1)
        return unbounded(deviations * size / safe_norm(data.scale, -1))

    def noise_freedom(self):
        """Degrees of freedom (k,) of these estimates."""
        return np.asarray(self._factored.freedom)

    def coefficient_deviations(self):
        """Standard deviations of the coefficients; infinite if not determined."""
        # Whether they are determined depends on no weight: all classes count alike.
        counts = residual_counts(self.model.classes, self.batches)
        rows = np.split(np.asarray(self._factored.inverse.jacobian), np.cumsum(counts))
        sizes = np.array([safe_norm(part.ravel(), -1) for part in rows[:-1]])
        factors = np.repeat(1 / np.where(sizes > 0, sizes, 1), counts)
        return _coefficient_deviations(self.model, self.net, self._factored, factors)


class _Factored(NamedTuple):
    inverse: PseudoInverse  # J^+
    deviations: jnp.ndarray  # s, of shape (m,)
    freedom: jnp.ndarray  # of the noise of each observed output; 1 without


@partial(jit_by_size, largest=pieces.SMALL_JACOBIAN, static_argnames="model")
def _factor(model, net, batches, r, parts, fresh, n_observations):
    inverse = PseudoInverse.of(operators.dense(parts))
    noise = _noise_of_rows(model, net, batches, r, inverse, fresh, n_observations)
    return _Factored(inverse, *noise)


@partial(jit_by_size, largest=pieces.SMALL_JACOBIAN, static_argnames=())
def _deviations(factored, slopes):
    """``|t^T J^+ diag(s)|`` for the rows t of the slopes."""
    rows = factored.inverse.influence(slopes) * factored.deviations[None]
    return unbounded(safe_norm(rows, -1, jnp), jnp)


def _noise_of_rows(model, net, batches, r, inverse, fresh, n_observations):
    """Standard deviations (m,) of residuals, and degrees of freedom of the noise."""
    sizes = residual_counts(model.classes, batches)
    ends = np.cumsum(residual_counts(model.classes, fresh))
    fresh_r = jnp.split(residuals(model, net, fresh), ends[:-1])
    found, start, left = [], 0, jnp.ones(1, r.dtype)
    for k, (kind, batch) in enumerate(zip(model.classes, batches, strict=True)):
        rows, q = slice(start, start + sizes[k]), kind.residual.n_outputs
        start += sizes[k]
        if kind.residual.name == "data":
            # Unweighted misfits have the variance |r|^2 / |scale|^2. A weight w of the
            # row, that of c observations, makes it w / c, the same for all rows.
            determined = jnp.sum(inverse.leverages(rows).reshape(-1, q), axis=0)
            there = (~jnp.isnan(batch.data[:, :q])).astype(r.dtype)
            largest = jnp.max(batch.scale)  # squares of small weights would be zero
            square = (batch.scale / jnp.where(largest > 0, largest, 1)) ** 2
            total = jnp.sum(square)
            share = jnp.where(total > 0, square @ there / total, 1)
            left = degrees_of_freedom(n_observations * share, 1, determined, jnp)
            noise = safe_norm(r[rows].reshape(-1, q), 0, jnp) / jnp.sqrt(left)
            found.append(jnp.where(batch.scale[:, None] > 0, noise, 0).ravel())
        else:
            n = batch.x.shape[0] * q
            size = safe_norm(fresh_r[k], -1, jnp) / math.sqrt(n)
            found.append(jnp.full(n, size, r.dtype))
    return jnp.concatenate(found), left


@partial(jit_by_size, largest=pieces.SMALL_JACOBIAN, static_argnames="model")
def _coefficient_deviations(model, net, factored, factors):
    jacobian = factors[:, None] * factored.inverse.jacobian
    seen_by = PseudoInverse.of(jacobian)

    values = partial(coefficient_values, model.problem)

    def deviation(slopes, value):
        slopes = slopes.reshape(value.size, -1)
        n = factored.inverse.jacobian.shape[1] - slopes.shape[1]
        slopes = jnp.pad(slopes, ((0, 0), (n, 0)))
        unseen = safe_norm(slopes - seen_by.influence(slopes) @ jacobian, -1, jnp)
        is_open = unseen > _UNSEEN * safe_norm(slopes, -1, jnp)
        found = jnp.where(is_open, jnp.inf, _deviations(factored, slopes))
        return found.reshape(value.shape)

    return jax.tree.map(deviation, jax.jacfwd(values)(net.extra), values(net.extra))
