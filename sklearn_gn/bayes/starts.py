"""Networks to start from: random ones, and fitted ones that further neurons join."""

import math

import numpy as np

from sklearn_gn.bayes.evidence import chosen_columns
from sklearn_gn.bayes.evidence_gn import ROUNDING, RegularisedLayers
from sklearn_gn.bayes.layers import activated, contrasts, forward
from sklearn_gn.linalg.factors import factor

_COEF = 0.1  # standard deviation of the first coefficients, in units of y
_RIDGE = 1e-3  # of the linear fit, in rows
_FEW_ROWS = 1.5  # for each of its coefficients, below which there is none
_CANDIDATES = 30  # random neurons for each that may join
_BESIDE = 1e-9  # distance of hyperplanes from rows that they would go through


def first_network(model, rows, n_effective, rng, hyperplanes=None, slopes=True):
    """Return a network with random hyperplanes, or given ones of a single layer.

    The linear term is that of the data: least squares, or a step of a softmax
    regression from the shares of the classes, with the largest curvature of its loss,
    which never raises it (Boehning, 1992). Without ``slopes``, or with hardly more rows
    than coefficients, it is the mean: a fit through all rows would leave no noise, and
    the evidence stays where it finds none. Random hyperplanes pass beside rows, not
    through them: rounding errors would decide on which side these are. They are drawn
    in the order of the features of the model; those of the network are sorted.
    """
    d, k = model.sizes[0], model.n_values
    output = np.zeros((model.n_linear, k))
    coef = rng.standard_normal((model.n_linear - 1 - d, k))
    mean = rows.weight @ rows.y
    if model.loss == "squared":
        constant, target = mean, rows.y - mean
        size = math.sqrt(float(rows.weight @ np.sum(rows.y**2, axis=1)) / k)
        coef *= np.ptp(rows.y, axis=0) > 0  # a target that is constant needs no neurons
    else:
        # A class may be without weight here; its share is that of half a row then.
        constant = np.log(np.maximum(mean, 0.5 / n_effective))
        target, size = 2 * (rows.y - mean), 1.0
    linear = np.zeros((1 + d, len(mean)))
    if slopes and n_effective >= _FEW_ROWS * (1 + d):
        x = np.concatenate([np.ones((1, len(rows.x))), rows.x.T])
        weighted = rows.weight[:, None] * x.T
        gram = x @ weighted
        ridge = _RIDGE / n_effective + ROUNDING * np.trace(gram)
        linear = factor(gram, ridge).solve(weighted.T @ target)
    linear[0] += constant
    output[: 1 + d] = linear if model.loss == "squared" else contrasts(linear, k)
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
            point = forward(part, layers, x)[0][-1].values
        bias = -_BESIDE - np.sum(direction * point.T, axis=1)
        layers.append(np.concatenate([bias[:, None], direction], axis=1))
    if layers:
        layers[0] = layers[0][:, [0, *(1 + np.argsort(model.features))]]
    model = model._replace(features=tuple(sorted(model.features)))
    alpha, gamma = np.ones(model.n_groups), np.zeros(model.n_groups)
    alpha[:2] = 1 / size**2 if size > 0 else 1.0
    theta = model.join(output, layers)
    return RegularisedLayers(theta, alpha, None, gamma, -math.inf, model)


def grown_network(net, features, rows, n_effective, rng):
    """Return a network that further neurons have joined, or None if none is worth it.

    Of many random neurons, which see one or two of the ``features`` or all that the
    network sees, those join that explain what is left, as many at most as there are. So
    a feature that has left comes back where the network lacks it. A new neuron has one
    of its own in each further layer; those of the network see no new one.
    """
    old, (output, layers) = net.model, net.model.split(net.theta)
    d, n_most = old.sizes[0], min(old.sizes[1:])
    # 1. Random neurons through rows.
    directions = np.zeros((_CANDIDATES * n_most, d))
    for number, own in enumerate(directions):
        n_seen = number % 3
        chosen = rng.permutation(features)[:n_seen] if n_seen else list(old.features)
        own[chosen] = rng.standard_normal(len(chosen))
    lengths = np.exp(rng.standard_normal(len(directions)))
    directions *= (lengths / np.linalg.norm(directions, axis=1))[:, None]
    points = rows.x[rng.randint(len(rows.x), size=len(directions))]
    bias = -_BESIDE - np.sum(directions * points, axis=1)
    values = directions @ rows.x.T + bias[:, None]
    for name in old.activations:
        values = activated(name, values)[0]
    # 2. Those that explain what is left beside a linear term, and their coefficients.
    root = np.sqrt(rows.weight)[:, None]
    linear = root * np.column_stack([np.ones(len(rows.x)), rows.x])
    values, rest = root * values.T, root * (rows.y - old.values(net.theta, rows.x))
    inner = factor(linear.T @ linear, ROUNDING * np.sum(linear**2))
    free, left = (a - linear @ inner.solve(linear.T @ a) for a in (values, rest))
    joined = chosen_columns(free, left, n_effective, n_most)
    if not joined:
        return None
    n, both = len(joined), np.concatenate([linear, values[:, joined]], axis=1)
    ridge = np.append(np.zeros(1 + d), np.full(n, _RIDGE))
    inner = factor(both.T @ both, ridge + ROUNDING * np.sum(both**2))
    found = inner.solve(both.T @ rest)
    output = np.concatenate([output, found[1 + d :]])
    output[: 1 + d] += found[: 1 + d]
    # 3. The network with them.
    seen = set(old.features).union(*map(np.flatnonzero, directions[joined]))
    model = old._replace(
        sizes=(d, *(size + n for size in old.sizes[1:])),
        features=tuple(sorted(map(int, seen))),
    )
    first = np.zeros((old.sizes[1], 1 + d))
    first[:, [0, *(1 + j for j in old.features)]] = layers[0]
    joining = np.column_stack([bias, directions])[joined]
    first = np.concatenate([first, joining])[:, [0, *(1 + j for j in model.features)]]
    wider = [np.pad(layer, (0, n)) for layer in layers[1:]]
    for layer in wider:
        layer[-n:, -n:] = np.eye(n)
    # The weights of features that come back are as large as those of others.
    alpha, back = net.alpha.copy(), np.setdiff1d(model.features, old.features)
    alpha[3 + back] = np.exp(np.mean(np.log(alpha[3 + np.array(old.features)])))
    theta = model.join(output, [first, *wider])
    return net._replace(theta=theta, alpha=alpha, beta=None, model=model)
