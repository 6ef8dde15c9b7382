r"""The solution that a network stands for: values, derivatives, errors, error bars.

The error bars come from the delta method.
Near the minimum the parameters answer a change e of the residuals by ``-J^+ e``, with
``J^+ = (J^T J + lambda I)^-1 J^T``. Here lambda is at rounding level: the damping of
the last steps is not part of what is minimised, and would make the bars too short.

Residuals of observations vary by their noise, estimated from the misfit of each output;
residuals of an equation are taken to vary by their size on points that were not
trained on. What follows for a prediction or a coefficient with the derivative t in the
parameters is the standard deviation ``|t^T J^+ diag(s)|``.

Observations count by their weights: one of weight two is two observations of the same
value, so that data given twice shrink the error bars by the root of two.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.arrays.extremes import unbounded
from sklearn_gn.arrays.trees import StoredWithoutCaches
from sklearn_gn.bayes.laplace import PseudoInverse, degrees_of_freedom, safe_norm
from sklearn_gn.linalg import jacobian as operators
from sklearn_gn.pde.domains import AT_ONCE
from sklearn_gn.pde.given_values import MANY_POINTS
from sklearn_gn.pde.operators import d
from sklearn_gn.pinn import pieces
from sklearn_gn.pinn.model import coefficient_values, coefficients, network
from sklearn_gn.pinn.residuals import residual_counts

# Share of the length of a coefficient's derivative that the residuals do not see:
# 1e-4 at most was found where they determine it, 3e-2 at least where they do not.
_UNSEEN = 1e-2


@dataclass(frozen=True)
class Outputs:
    """The outputs at a point, or their derivatives along axes, as a residual is one."""

    axes: tuple = ()

    def __call__(self, fields, points, data, coefficients):
        """Values at a point, of shape (q,)."""
        field = d(fields[0], *self.axes) if self.axes else fields[0]
        return jnp.atleast_1d(field(points[0]))


@partial(jit_by_size, static_argnames=("model", "function"))
def values(model, params, x, function=Outputs()):
    """Values (n, k) of the solution at points, of what is computed like residuals."""
    found = coefficients(model.problem, params.extra)

    def one(x):
        field = model.problem.field(partial(network, model, params))
        return function((field,), (x,), x[:0], found)

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


def reference(problem, rng):
    """How many points to compare at, points of a problem, its exact solution there."""
    n = max(64, min(MANY_POINTS, AT_ONCE // problem.domain.dim))
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


@dataclass(eq=False)
class Posterior(StoredWithoutCaches):
    """Error bars about a fitted network, in NumPy and double precision.

    The Jacobian is factored when it is needed.
    """

    model: Any
    net: Any
    batches: tuple
    fresh: tuple
    n_observations: float

    @cached_property
    def _factored(self):
        """The pseudo-inverse, deviations of residuals (m,), degrees of freedom (k,).

        The freedom belongs to the noise of each observed output; 1 without any.
        """
        model, fresh = self.model, self.fresh
        r, parts = pieces.jacobian(model, self.net, self.batches)
        (part,) = operators.multiplied_out(parts)
        limits = np.finfo(r.dtype)
        n_observations = np.clip(self.n_observations, limits.tiny, limits.max)
        with np.errstate(all="ignore"):
            inverse = PseudoInverse.of(np.hstack([part.dense, part.extra]))
            ends = np.cumsum(residual_counts(model.classes, fresh))
            fresh_r = np.split(pieces.residuals(model, self.net, fresh), ends[:-1])
            found, stop, left = [], 0, np.ones(1)
            each = zip(model.classes, self.batches, fresh_r, strict=True)
            for kind, batch, own in each:
                q, n = kind.n_outputs, len(batch.x)
                rows = slice(stop, stop + q * n)
                stop = rows.stop
                if kind.name != "data":
                    found.append(np.full(q * n, safe_norm(own, -1) / math.sqrt(q * n)))
                    continue
                # Unweighted misfits have the variance |r|^2 / |scale|^2. A weight w of
                # the row, that of c observations, makes it w / c, the same for all.
                determined = inverse.leverages(rows).reshape(-1, q).sum(axis=0)
                there = ~np.isnan(batch.data[:, :q])
                # Squares of small weights would be zero.
                square = (batch.scale / (batch.scale.max() or 1)) ** 2
                share = square @ there / square.sum() if square.any() else np.ones(q)
                left = degrees_of_freedom(n_observations * share, 1, determined)
                noise = safe_norm(r[rows].reshape(-1, q), 0) / np.sqrt(left)
                found.append(np.where(batch.scale[:, None] > 0, noise, 0).ravel())
        return inverse, np.concatenate(found), left

    @np.errstate(all="ignore")
    def _norms(self, slopes):
        """``|t^T J^+ diag(s)|`` for the rows t of the slopes."""
        inverse, deviations, _ = self._factored
        return unbounded(safe_norm(inverse.influence(slopes) * deviations, -1))

    def output_deviations(self, x):
        """Standard deviations of the outputs at points, of shape (n, q)."""
        _, slopes = backend.to_numpy(output_slopes(self.model, self.net, x))
        n, q, _ = slopes.shape
        return self._norms(slopes.astype(float).reshape(n * q, -1)).reshape(n, q)

    def noise_deviation(self):
        """Standard deviations (k,) of observations of weight one."""
        data, kind = self.batches[-1], self.model.classes[-1]
        n_rows = len(data.x) * kind.n_outputs
        # Every row of an output has the same, but those of padding, zero.
        rows = self._factored[1][-n_rows:]
        deviations = rows.reshape(len(data.x), -1).max(axis=0)
        factors = np.asarray(data.data)[0, len(deviations) :]
        size = math.sqrt(self.n_observations) / (factors if factors.size else 1)
        return unbounded(deviations * size / safe_norm(data.scale, -1))

    @property
    def noise_freedom(self):
        """Degrees of freedom (k,) of these estimates."""
        return self._factored[2]

    @np.errstate(all="ignore")
    def coefficient_deviations(self):
        """Standard deviations of coefficients by name; infinite if not determined."""
        # Whether they are determined depends on no weight: all classes count alike.
        ends = np.cumsum(residual_counts(self.model.classes, self.batches))
        parts = np.split(self._factored[0].jacobian, ends[:-1])
        jacobian = np.concatenate([a / (safe_norm(a.ravel(), -1) or 1) for a in parts])
        seen_by, found = PseudoInverse.of(jacobian), {}
        both = coefficient_slopes(self.model.problem, self.net.extra)
        for name, slopes in backend.to_numpy(both).items():
            own = slopes.astype(float).reshape(-1, slopes.shape[-1])
            rows = np.zeros((len(own), jacobian.shape[1]))
            rows[:, -own.shape[1] :] = own
            unseen = safe_norm(rows - seen_by.influence(rows) @ jacobian, -1)
            is_open = unseen > _UNSEEN * safe_norm(rows, -1)
            deviations = np.where(is_open, np.inf, self._norms(rows))
            found[name] = deviations.reshape(slopes.shape[:-1])
        return found


@partial(jit_by_size, static_argnames="problem")
def coefficient_slopes(problem, extra):
    """Derivatives (..., n) of the coefficients by name in the parameters of these."""
    return jax.jacfwd(partial(coefficient_values, problem))(extra)
