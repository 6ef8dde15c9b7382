r"""Stacking: weights of models by the density of rows that they have not seen.

The weights on the simplex maximise the mean log density of the mixture,

.. math::
    \sum_i v_i \log \sum_k w_k p_k(y_i \mid \text{all rows but } i),

over rows i of weights v (Yao, Vehtari, Simpson and Gelman, "Using stacking to average
Bayesian predictive distributions", Bayesian Analysis 13, 2018). The problem is concave.
"""

import math

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln

_TOLERANCE = 1e-9  # of the mean log density
_LEAST = 1e-3  # weight below which a model has none
FREEDOMS = np.array([2.0, 4.0, 8.0, 30.0, 1000.0])  # of Student's t distribution
_SCALE_STEPS = 40
_TINY = np.finfo(np.float64).tiny


def weights(log_densities, weight):
    """Return the weights of some models, (K,), from log densities (m, K) of rows.

    Models of next to no weight get none.
    """
    weight, k = weight / np.sum(weight), log_densities.shape[1]
    ratio = np.exp(log_densities - np.max(log_densities, axis=1, keepdims=True))

    def loss(shares):
        mixed = np.maximum(ratio @ shares, _TINY)
        return -weight @ np.log(mixed), -(weight / mixed) @ ratio

    found = minimize(
        loss,
        np.full(k, 1 / k),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * k,
        constraints={
            "type": "eq",
            "fun": lambda shares: np.sum(shares) - 1,
            "jac": np.ones_like,
        },
        options={"ftol": _TOLERANCE},
    ).x
    found = np.where(found < _LEAST, 0, found)
    return found / np.sum(found)


def log_densities(errors, variances, weight):
    """Return the log densities (m,) of the errors (m,) of one model at left-out rows.

    The errors have the given variances up to a factor, and the distribution is that of
    Student: factor and degrees of freedom are those of highest density, so that neither
    a few far rows nor a wrong level of the noise decides between models.
    """
    weight = weight / np.sum(weight)
    variances = np.maximum(variances, _TINY)
    squares = errors**2 / variances
    nu, size = FREEDOMS[:, None], max(float(weight @ squares), _TINY)
    squares = squares / size
    scale = np.ones_like(nu)
    for _ in range(_SCALE_STEPS):
        share = (nu + 1) / (nu + squares / scale)
        scale = np.maximum((share * squares) @ weight, _TINY)[:, None]
    constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - np.log(nu * math.pi) / 2
    found = constant - (nu + 1) / 2 * np.log1p(squares / scale / nu)
    found -= np.log(scale) / 2
    best = found[np.argmax(found @ weight)]
    return best - (math.log(size) + np.log(variances)) / 2
