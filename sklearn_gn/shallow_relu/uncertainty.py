"""Standard errors of shallow ReLU networks from the joint Gauss-Newton matrix.

The delta method: near its optimum the network is linear in all parameters, (c, r), and
their covariance is ``sigma^2 / N`` times the inverse of the joint Gauss-Newton matrix,
whose blocks are the mass matrix A, the layer matrix H and the cross block B. Directions
that the data do not determine are left out. ``N`` is the sum of the sample weights: a
weight of two counts as two rows.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.bayes.laplace import degrees_of_freedom
from sklearn_gn.shallow_relu.network import preactivations

_DEPENDENT = 1e-7  # relative singular value of a direction that is left out


class Posterior(NamedTuple):
    """What the standard deviation of a prediction takes, in scaled units."""

    mass: np.ndarray  # (1 + n, k)  M with A^-1 = M M^T
    projection: np.ndarray  # (1 + n, n (1 + d))  A^-1 B
    hidden: np.ndarray  # (n (1 + d), l)  L with K^-1 = L L^T
    coef: np.ndarray  # (n, q) zero where not active
    variance: np.ndarray  # (q,) of the noise, over N
    pooled: float  # the same of all targets together
    n_effective: float  # N
    degrees_of_freedom: float  # N q less the number of parameters that are determined


def posterior(net, factor, mean_square, n_effective):
    """Covariances of the parameters of a fitted network.

    Parameters
    ----------
    net : ShallowReLU
        ``alive`` marks the active neurons.
    factor : ndarray of shape (k, 1 + n + n * (1 + d))
        Matrix W with ``W^T W`` the joint Gram matrix, without the coefficients.
    mean_square : ndarray of shape (q,)
        Weighted mean squares of the residuals.
    n_effective : float
        Number of rows: the sum of the sample weights.
    """
    p, width, q = 1 + len(net.coef), net.hyperplanes.shape[1], net.coef.shape[1]
    mass, hidden = factor[:, :p], factor[:, p:]
    u, s, vt = np.linalg.svd(mass, full_matrices=False)
    kept = s > _DEPENDENT * s[0]
    u, root = u[:, kept], vt[kept].T / s[kept]
    hidden_in_mass = u.T @ hidden
    scale = np.repeat(net.coef, width, axis=0)
    outside = hidden - u @ hidden_in_mass
    stacked = np.concatenate([outside * scale[:, k] for k in range(q)])
    reference = np.linalg.norm(hidden * np.abs(scale).max(axis=1), 2)
    _, t, wt = np.linalg.svd(stacked, full_matrices=False)
    free = t > _DEPENDENT * reference
    n_parameters = q * kept.sum() + free.sum()
    ratio = q / degrees_of_freedom(n_effective, q, n_parameters)  # of the noise, over N
    return Posterior(
        mass=root,
        projection=root @ hidden_in_mass,
        hidden=wt[free].T / t[free],
        coef=net.coef,
        variance=mean_square * ratio,
        pooled=float(np.mean(mean_square) * ratio),
        n_effective=n_effective,
        degrees_of_freedom=float(n_effective * q - n_parameters),
    )


def prediction_deviations(found, net, z):
    """Return standard deviations of the outputs at rows ``z``, of shape (m, q)."""
    pre = preactivations(net.hyperplanes, z)
    pre[:, ~net.alive] = 0
    mass = np.column_stack([np.ones(len(z)), np.maximum(pre, 0)])
    y = np.column_stack([np.ones(len(z)), z])
    hidden = ((pre > 0)[:, :, None] * y[:, None, :]).reshape(len(z), -1)
    hidden = hidden - mass @ found.projection
    output = np.sum((mass @ found.mass) ** 2, axis=1)
    variance = np.empty((len(z), found.coef.shape[1]))
    for k, coef in enumerate(found.coef.T):
        scale = np.repeat(coef, y.shape[1])
        moved = np.sum(((hidden * scale) @ found.hidden) ** 2, axis=1)
        variance[:, k] = found.variance[k] * output + found.pooled * moved
    return np.sqrt(variance)
