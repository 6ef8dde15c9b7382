"""Error bars: the Gauss-Newton covariance of the weights, for unit noise."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sklearn_gn.core.linear_algebra.blocks import symmetric_product
from sklearn_gn.core.linear_algebra.trees import dimension
from sklearn_gn.varpro.problem import features, penalty_matrix
from sklearn_gn.varpro.reduced import value_jacobian


class Posterior(NamedTuple):
    """Gauss-Newton covariance of the weights, for unit noise and one sample."""

    root: jnp.ndarray  # Cholesky factor of the Gauss-Newton matrix with penalties
    freedom: jnp.ndarray  # degrees of freedom that the model takes


@partial(jax.jit, static_argnames=("model", "whole"))
def posterior(model, net, rows, penalties, whole):
    """The Gauss-Newton matrix in (theta, W), or in W for given features."""
    jacobian = _joint_rows(model, net, rows.x, whole)
    k = jacobian.shape[-1]
    weighted = jnp.sqrt(rows.weight)[:, None, None] * jacobian
    weighted = weighted.reshape(-1, k)
    matrix = symmetric_product(weighted.T)
    total = matrix + penalty_hessian(model, net, penalties, k)
    # Enough to factor a singular matrix: directions without information keep a
    # variance that is large, not infinite.
    floor = k * jnp.finfo(matrix.dtype).eps * jnp.trace(matrix)
    total = total + floor * jnp.eye(k, dtype=matrix.dtype)
    root = lax.linalg.cholesky(total, symmetrize_input=False)
    half = lax.linalg.triangular_solve(root, matrix, left_side=True, lower=True)
    back = lax.linalg.triangular_solve(
        root, half, left_side=True, lower=True, transpose_a=True
    )
    return Posterior(root, jnp.trace(back))


@partial(jax.jit, static_argnames=("model", "whole"))
def predictive_variance(model, net, root, x, whole):
    """``J (H^-1) J^T`` of each row and value, of shape (m, q) or (m, 1)."""
    jacobian = _joint_rows(model, net, x, whole)
    m, q, k = jacobian.shape
    half = lax.linalg.triangular_solve(
        root, jacobian.reshape(-1, k).T, left_side=True, lower=True
    )
    return jnp.sum(half**2, axis=0).reshape(m, q)


def _joint_rows(model, net, x, whole):
    """Derivatives of the values in all weights, or in those of one output."""
    z = features(model, net.theta, x)
    if not whole:
        return z[:, None, :]
    q = net.output.shape[1]
    jv = value_jacobian(model, net.theta, net.output, x)
    eye = jnp.eye(q, dtype=z.dtype)
    linear = jnp.einsum("ik,qr->iqkr", z, eye).reshape(x.shape[0], q, -1)
    return jnp.concatenate([jv, linear], axis=2)


def penalty_hessian(model, net, penalties, k):
    """Second derivative of the penalties in (theta, W), or in k output weights."""
    matrix = penalties.output * jnp.eye(k, dtype=net.output.dtype)
    n = dimension(net.theta)
    if n == 0 or k < n + net.output.size:
        return matrix
    of_theta = penalties.hidden * penalty_matrix(model, net.theta)
    return matrix.at[:n, :n].set(of_theta)
