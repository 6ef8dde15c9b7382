"""Choice of the number of neurons by an information criterion.

Adaptive neuron enhancement (Liu, Cai and Chen, "Adaptive two-layer ReLU neural
network", 2022) doubles the network where the error is until the criterion gets worse;
from there the neurons that matter least are deleted, a quarter at a time of a network
of more than twice the best size so far, then one by one. The size with the best
criterion wins.
"""

import numpy as np

_FLOOR = 1e-25  # relative loss below which only rounding errors differ
_PATIENCE = 2  # doublings without improvement that end the growth


def criterion_value(criterion, loss, n_parameters, n_observations):
    """Return the criterion of a fit, to be minimised, without what all fits share."""
    share = n_parameters / np.asarray(n_observations)
    if criterion == "gcv":
        value = loss / np.where(share < 1, 1 - share, 1) ** 2
    else:
        penalty = np.log(n_observations) if criterion == "bic" else 2.0
        value = n_observations * np.log(loss) + penalty * n_parameters
    return np.where(share < 1, value, np.inf)[()]


def deviance_shift(criterion, log_mean_square, n_observations):
    """Return what makes a criterion minus twice a log likelihood and the penalty.

    The likelihood is that of normal noise. "gcv" has no likelihood and is not shifted.
    """
    if criterion == "gcv":
        return np.zeros_like(log_mean_square)
    return n_observations * (np.log(2 * np.pi) + log_mean_square + 1)


def select_size(sizes, criterion, n_observations, scale):
    """Grow and prune; return the hyperplanes of the best size, and the path."""
    found = {}

    def visit():
        hyperplanes, loss, n_parameters = sizes.candidate()
        loss = np.inf if np.isnan(loss) else loss
        loss = max(loss, _FLOOR * scale, np.finfo(float).tiny)
        worth = criterion_value(criterion, loss, n_parameters, n_observations)
        n = len(hyperplanes)
        if n not in found or worth < found[n][0]:
            found[n] = worth, loss, n_parameters, hyperplanes
        return worth, n

    best, n = visit()
    since = 0
    while 2 * n <= sizes.most and since < _PATIENCE:
        sizes.grow()
        worth, grown = visit()
        since = 0 if worth < best else since + 1
        best = min(best, worth)
        if grown <= n:  # no place is left where a neuron lowers the loss
            break
        n = grown
    while n > 1:
        best_size = min(found, key=lambda size: found[size][0])
        sizes.prune(min(n - 2 * best_size, n // 4) if n > 2 * best_size + 1 else 1)
        pruned = visit()[1]
        if pruned >= n:  # without a loss no neuron matters least
            break
        n = pruned
    ordered = sorted(found)
    columns = list(zip(*(found[n][:3] for n in ordered), strict=True))
    path = dict(
        zip((criterion, "loss", "n_parameters"), map(np.array, columns), strict=True)
    )
    winner = ordered[int(np.argmin(path[criterion]))]
    return found[winner][3], {"n_neurons": np.array(ordered), **path}
