r"""Calibration of a classifier's logits by approximate leave-one-out.

The evidence is an approximation, and where classes are nearly separable it leaves the
logits of a network too small. One number repairs this: the factor of the logits with
the least log loss of rows that were left out. Nothing is fitted again for it. Where row
i is left out once, one Newton step with the curvature H of the fit moves its values by

.. math::
    V_i (I - \Lambda_i V_i)^{-1} (p_i - y_i), \qquad V_i = J_i H^{-1} J_i^T,

with the derivatives J_i of its values and their second derivative of the loss
\Lambda_i. For the squared loss of a linear model this is exact.
"""

import math

import numpy as np
from scipy.optimize import minimize_scalar

from sklearn_gn import _switches as switches
from sklearn_gn.bayes.layers import (
    curvatures,
    losses,
    residuals,
    row_blocks,
)
from sklearn_gn.optim.solver import Rows

_ROWS = 500  # from which the factor is found
_LARGEST = 4.0  # factor, and its inverse the smallest


def factor_of_logits(model, theta, covariance, rows, n_effective):
    """Return the best factor of a network's logits.

    Parameters
    ----------
    model : Layers
    theta : ndarray of shape (P,)
    covariance : ndarray of shape (P, P)
        H^-1 at ``theta``.
    rows : Rows
    n_effective : float
        Number of rows, counted by their weights.
    """
    if not switches.on("varpro.calibration"):
        return 1.0
    some = Rows(*(a[:: -(-len(rows.x) // _ROWS)] for a in rows))
    values = left_out_values(model, theta, covariance, some, n_effective)
    if not np.isfinite(values).all():
        return 1.0
    found = minimize_scalar(
        lambda t: some.weight @ losses(model, math.exp(t) * values, some.y),
        bounds=(-math.log(_LARGEST), math.log(_LARGEST)),
        method="bounded",
    )
    return math.exp(found.x)


def scaled(member, factor):
    """Return a member with the logits times a factor."""
    model, net = member
    output, layers = model.split(net.theta)
    return member._replace(net=net._replace(theta=model.join(factor * output, layers)))


def left_out_values(model, theta, covariance, rows, n_effective):
    """Return the values of rows that are left out once, of shape (m, k)."""
    moved = []
    for x, y, weight in row_blocks(rows, model.n_values * len(theta)):
        u = model.values(theta, x)
        jacobian = model.jacobian(theta, x)
        spread = np.einsum("tpm,spm->mts", jacobian, covariance @ jacobian)
        # A row that stands for several is left out once only.
        once = np.minimum(weight * n_effective, 1)[:, None, None]
        share = once * (curvatures(model, u) @ spread)
        pull = -once * residuals(model, u, y)[:, :, None]
        without = np.linalg.solve(np.eye(u.shape[1]) - share, pull)
        moved.append(u + (spread @ without)[:, :, 0])
    return np.concatenate(moved)
