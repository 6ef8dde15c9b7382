"""The first network of a fit by the evidence: a linear fit, and small coefficients."""

import math

import numpy as np

from sklearn_gn.bayes.evidence_gn import ROUNDING
from sklearn_gn.bayes.layers import forward, log_odds, with_one
from sklearn_gn.linalg.factors import factor

_COEF = 0.1  # standard deviation of the first coefficients, in units of y
_RIDGE = 1e-3  # of the linear fit, in rows
_FEW_ROWS = 1.5  # for each of its coefficients, below which there is none
_BESIDE = 1e-9  # distance of hyperplanes from rows that they would go through


def first_network(model, rows, n_effective, rng, hyperplanes=None):
    """Return a network with random hyperplanes, or given ones of a single layer.

    The linear term is that of the data for the squared loss. Where there are hardly
    more rows than coefficients, it is the mean: a fit through all rows would leave no
    noise, and the evidence stays where it finds none. For classes, the constants are
    the logarithms of their shares. Random hyperplanes go through rows; rounding errors
    would decide on which side these are, so they pass beside them.
    """
    d, k = model.sizes[0], model.n_values
    output, size = np.zeros((model.n_linear, k)), 1.0  # of the values
    coef = rng.standard_normal((model.n_linear - 1 - d, k))
    if model.loss == "squared":
        size = math.sqrt(float(rows.weight @ np.sum(rows.y**2, axis=1)) / k)
        output[0] = rows.weight @ rows.y
        if n_effective >= _FEW_ROWS * (1 + d):
            x = np.concatenate([np.ones((1, len(rows.x))), rows.x.T])
            weighted = rows.weight[:, None] * x.T
            gram = x @ weighted
            ridge = _RIDGE / n_effective + ROUNDING * np.trace(gram)
            output[: 1 + d] = factor(gram, ridge).solve(weighted.T @ rows.y)
        coef *= np.ptp(rows.y, axis=0) > 0  # a target that is constant needs no neurons
    else:
        # A class may be without weight here; its share is that of half a row then.
        output[0] = log_odds(np.maximum(rows.weight @ rows.y, 0.5 / n_effective), k)
    output[1 + d :] = _COEF * size * coef
    cumulated, layers = np.cumsum(rows.weight), []
    for number, (width, n_inputs) in enumerate(model.shapes()):
        if hyperplanes is not None:
            layers.append(hyperplanes - _BESIDE * np.eye(1, n_inputs))
            continue
        direction = rng.standard_normal((width, n_inputs - 1))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        drawn = np.searchsorted(cumulated, rng.uniform(size=width) * cumulated[-1])
        x = rows.x[np.minimum(drawn, len(rows.x) - 1)]
        point = x.T[list(model.features)]
        if layers:
            part = model._replace(activations=model.activations[:number])
            point = forward(part, layers, with_one(x))[-1].values
        bias = -_BESIDE - np.sum(direction * point.T, axis=1)
        layers.append(np.concatenate([bias[:, None], direction], axis=1))
    alpha, gamma = np.ones(model.n_groups), np.zeros(model.n_groups)
    alpha[:2] = 1 / size**2 if size > 0 else 1.0
    return model.network(model.join(output, layers), alpha, None, gamma, -math.inf)
