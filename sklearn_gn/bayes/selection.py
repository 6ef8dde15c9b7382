"""Which columns, and which neurons, explain what is left of the targets."""

import numpy as np

from sklearn_gn.bayes.evidence import group_sums
from sklearn_gn.bayes.evidence_gn import ROUNDING
from sklearn_gn.bayes.layers import BESIDE, RIDGE, activated
from sklearn_gn.linalg.factors import factor

_SAME = 1e-9  # share of a column's square below which others have all of it
_CANDIDATES = 30  # random neurons for each that may join
_TINY = np.finfo(np.float64).tiny


def chosen_columns(columns, targets, n_effective, most):
    """Return numbers of the columns (m, p) that explain targets (m, k).

    The one that explains most joins, then the one that explains most of what is left,
    as long as the extended Bayesian information criterion falls (Chen and Chen, 2008).
    """
    found, k, total = [], targets.shape[1], np.sum(targets**2)
    cost = k * np.log(n_effective) / 2 + np.log(columns.shape[1])
    squares, products = np.einsum("ij,ij->j", columns, columns), columns.T @ targets
    # Rows of the triangular factor: no column has to be made orthogonal itself.
    rows, least = np.zeros((0, len(squares))), _SAME * squares
    while len(found) < most:
        size = np.where(squares > least, squares, np.inf)
        explained = np.sum(products**2, axis=1) / size
        best = int(np.argmax(explained))
        left = max(1 - explained[best] / max(total, _TINY), np.finfo(np.float64).eps)
        if n_effective * k / 2 * -np.log(left) <= cost:
            break
        found.append(best)
        own, row = squares[best], columns[:, best] @ columns - rows[:, best] @ rows
        products, total = products - np.outer(row, products[best] / own), total * left
        squares, rows = squares - row**2 / own, np.vstack([rows, row / np.sqrt(own)])
    return found


def grown_network(net, features, rows, n_effective, rng, least):
    """Return a network that ``least`` further neurons or more have joined, or None.

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
    bias = -BESIDE - np.sum(directions * points, axis=1)
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
    if len(joined) < least:
        return None
    n, both = len(joined), np.concatenate([linear, values[:, joined]], axis=1)
    found = factor(both.T @ both, RIDGE).solve(both.T @ rest)
    output = np.concatenate([output, found[1 + d :]])
    output[: 1 + d] += found[: 1 + d]
    # 3. The network with them.
    seen = set(old.features).union(*map(np.flatnonzero, directions[joined]))
    sizes = (d, *(size + n for size in old.sizes[1:]))
    model = old._replace(sizes=sizes, features=tuple(sorted(map(int, seen))))
    first = np.zeros((old.sizes[1], 1 + d))
    first[:, [0, *(1 + j for j in old.features)]] = layers[0]
    joining = np.column_stack([bias, directions])[joined]
    first = np.concatenate([first, joining])[:, [0, *(1 + j for j in model.features)]]
    wider = [np.pad(layer, (0, n)) for layer in layers[1:]]
    for layer in wider:
        layer[-n:, -n:] = np.eye(n)
    theta = model.join(output, [first, *wider])
    # Penalties of what the network had no use for would shrink the new weights away
    # before they are fitted: none is above that of weights as large as its own.
    squares = group_sums(theta**2, model.groups(), model.n_groups)
    numbers = group_sums(np.ones(len(theta)), model.groups(), model.n_groups)
    alpha = np.minimum(net.alpha, numbers / np.maximum(squares, _TINY))
    return net._replace(theta=theta, alpha=alpha, beta=None, model=model)
