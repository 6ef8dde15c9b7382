r"""Stacking: weights of models by the density of rows that they have not seen.

The weights on the simplex maximise the mean log density of the mixture,

.. math::
    \sum_i v_i \log \sum_k w_k p_k(y_i \mid \text{all rows but } i),

over rows i of weights v (Yao, Vehtari, Simpson and Gelman, "Using stacking to average
Bayesian predictive distributions", Bayesian Analysis 13, 2018). The problem is concave.
"""

import math

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, log_softmax, logsumexp

from sklearn_gn.bayes.evidence import SWITCHED_OFF
from sklearn_gn.bayes.evidence_gn import EXACT

_ITERATIONS = 200  # of the fixed point, which climbs in each
COST_OF_A_PENALTY = 2.0  # that the rows have chosen, in log density of all rows
FREEDOMS = np.array([2.0, 4.0, 8.0, 30.0, 1000.0])  # of Student's t distribution
_SCALE_STEPS = 40
_TINY = np.finfo(np.float64).tiny


def weights(log_densities, weight, n_effective):
    """Return the weights of some models, (K,), from log densities (m, K) of rows.

    They have the highest density with a prior that counts as one row, to which all
    models are equal: few rows do not tell models apart, and many leave worse models
    with next to no weight, which becomes none.
    """
    weight, k = weight / np.sum(weight), log_densities.shape[1]
    ratio = np.exp(log_densities - np.max(log_densities, axis=1, keepdims=True))
    shares = np.full(k, 1 / k)
    for _ in range(_ITERATIONS):
        of_rows = weight / np.maximum(ratio @ shares, _TINY)
        count = n_effective * shares * (of_rows @ ratio)
        shares = (count + 1 / k) / (n_effective + 1)
    shares = np.where(shares < SWITCHED_OFF, 0, shares)
    return shares / np.sum(shares)


def weights_of_targets(log_densities, weight, n_effective):
    """Return such weights for each target, (K, k), from an array or list (K, m, k)."""
    of_targets = np.transpose(log_densities, (2, 1, 0))
    return np.transpose([weights(each, weight, n_effective) for each in of_targets])


def is_worth(log_densities, weight, n_effective):
    """Whether the last model, of (K, m, k), is worth its place beside the others.

    It then raises the log density of all rows by more than a chosen penalty costs: its
    weight is a further parameter.
    """
    found = []
    for log_p in (log_densities, log_densities[:-1]):
        share = weights_of_targets(log_p, weight, n_effective)[:, None]
        mixed = logsumexp(log_p, axis=0, b=share)
        found.append(np.mean(np.average(mixed, axis=0, weights=weight)))
    with_it, without = found
    return n_effective * (with_it - without) > COST_OF_A_PENALTY


def log_densities(errors, variances, weight):
    """Return the log densities (m,) of the errors (m,) of one model at left-out rows.

    The errors have the given variances up to a factor, and Student's distribution, with
    the factor and the degrees of freedom of highest density, so that neither a few far
    rows nor a wrong level of the noise decides between models. Squares have that of
    rounding errors added: none at all are no better than these.
    """
    weight = weight / np.sum(weight)
    variances = np.maximum(variances, _TINY)
    squares = (errors**2 + EXACT) / variances
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


def log_probabilities(logits, y):
    """Return the log probabilities (m,) of the true classes y (m, k) of rows.

    They are 1e-12 at least, so that one row does not decide; NaN is as bad.
    """
    return np.fmax(np.sum(y * log_softmax(logits, axis=1), axis=1), math.log(1e-12))


def best_factor(logits, y, weight):
    """Return the factor t of logits with the highest density, and the density (m,).

    It costs ``2 log^2 t`` in units of the log density of all rows.
    """

    def loss(log_factor):
        log_p = log_probabilities(math.exp(log_factor) * logits, y)
        return -float(weight @ log_p) + 2 * log_factor**2

    factor = math.exp(minimize_scalar(loss).x)
    return factor, log_probabilities(factor * logits, y)
