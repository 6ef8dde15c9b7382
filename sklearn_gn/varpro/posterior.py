"""Error bars of one network's predictions, from the Gauss-Newton matrix of its weights.

Committees have theirs in :mod:`sklearn_gn.varpro.members`.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.blocks import sum_rows, symmetric_product
from sklearn_gn.arrays.trees import dimension
from sklearn_gn.bayes.laplace import degrees_of_freedom, factor_with_floor, safe_norm
from sklearn_gn.linalg.large_gram import LARGEST_DENSE
from sklearn_gn.varpro.gnvpro import value_jacobian
from sklearn_gn.varpro.problem import (
    Model,
    Net,
    Penalties,
    features,
    penalty_matrix,
    predict_values,
)


class ErrorBars(NamedTuple):
    """Standard deviations of the predicted means of a least-squares fit."""

    model: Model
    net: Net  # in a unit of the targets that keeps squares in the range of floats
    joint: bool  # whether of all weights, or else of those of the output layer
    root: Any  # factor of their Gauss-Newton matrix
    noise: np.ndarray  # (q,)  from roots of variances to standard deviations
    degrees_of_freedom: float

    @classmethod
    def of(cls, model, net, rows, penalties, n_samples, z=None):
        """Return the error bars of a network that was fitted to rows.

        All weights count in a small network; in one of more than 2,000, or fitted to
        rows in chunks, whose features ``z`` are given, of the output layer.
        """
        size = float(np.max(np.abs(net.output)))
        power = round(math.log2(size)) if 0 < size < math.inf else 0
        unit = net.output.dtype.type(2.0**power)
        net = Net(net.theta, net.output / unit)
        # Of tiny outputs it may exceed the floats, the largest of which holds as well.
        with np.errstate(over="ignore"):
            hidden = np.asarray(penalties.hidden / unit / unit)
        hidden = np.minimum(hidden, np.finfo(hidden.dtype).max)
        n_weights = net.output.size + dimension(net.theta)
        joint = n_weights <= LARGEST_DENSE and z is None
        penalties = Penalties(hidden, penalties.output)
        found = posterior(model, net, rows, penalties, joint, z)
        values = predict_values(model, net, rows.x) if z is None else z @ net.output
        (root, n_parameters), values = backend.to_numpy((found, values))
        error = (values - rows.y / unit).astype(np.float64)
        size = safe_norm(np.sqrt(rows.weight.astype(np.float64))[:, None] * error, 0)
        q = rows.y.shape[1] if joint else 1
        left = degrees_of_freedom(n_samples, q, float(n_parameters))
        noise = np.sqrt(q / left) * size * float(unit)
        return cls(model, net, joint, root, noise, left)

    def variances(self, x):
        """Return the variances for unit noise, of shape (m, q) or (m, 1)."""
        return predictive_variance(self.model, self.net, self.root, x, self.joint)


@partial(jax.jit, static_argnames=("model", "joint"))
def posterior(model, net, rows, penalties, joint, z=None):
    """Return the factor in (theta, W), or in W, and the effective parameters."""

    def of_block(block):
        x, weight = block
        jacobian = _jacobian(model, net, x, joint) if z is None else x[:, None, :]
        weighted = jnp.sqrt(weight)[:, None, None] * jacobian
        return symmetric_product(weighted.reshape(-1, jacobian.shape[-1]).T)

    matrix = sum_rows(of_block, (rows.x if z is None else z, rows.weight))
    n, k = dimension(net.theta), len(matrix)
    penalty = penalties.output * jnp.eye(k, dtype=net.output.dtype)
    if joint and n > 0:
        of_theta = penalties.hidden * penalty_matrix(model, net.theta)
        penalty = penalty.at[:n, :n].set(of_theta)
    root = factor_with_floor(matrix, penalty, ulps=k)
    return root, jnp.trace(root.solve(matrix))  # parameters that the data determine


@partial(jax.jit, static_argnames=("model", "joint"))
def predictive_variance(model, net, root, x, joint):
    """Return ``J (H^-1) J^T`` of each row and value, of shape (m, q) or (m, 1)."""
    jacobian = _jacobian(model, net, x, joint)
    m, q, k = jacobian.shape
    return root.variances(jacobian.reshape(-1, k).T).reshape(m, q)


def _jacobian(model, net, x, joint):
    """Derivatives of the values in all weights, or in the weights of one output."""
    z = features(model, net.theta, x)
    if not joint:
        return z[:, None, :]
    q = net.output.shape[1]
    jv = value_jacobian(model, net.theta, net.output, x)
    eye = jnp.eye(q, dtype=z.dtype)
    linear = jnp.einsum("ik,qs->iqks", z, eye).reshape(x.shape[0], q, -1)
    return jnp.concatenate([jv, linear], axis=2)
