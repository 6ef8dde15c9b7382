"""What the searches of one and of several features share: phases, and sizes.

:func:`select_size` chooses the number of neurons by an information criterion, after
Liu, Cai and Chen, "Adaptive two-layer ReLU neural network" (2022).
"""

from enum import IntEnum

import numpy as np

from sklearn_gn.segmented.problem import criterion_value

_FLOOR = 1e-25  # relative loss below which only rounding errors differ
_PATIENCE = 2  # doublings without improvement that end the growth


class Phase(IntEnum):
    """What the next step of a search does."""

    STARTS = 0  # descend from the starts, to the tolerance of the rounds
    ROUNDS = 1  # look for better networks
    END = 2  # descend to the tolerance of the fit


class SizePath:
    """Networks of several sizes, of which a criterion chooses one.

    ``scale`` is the loss of the mean.
    """

    def __init__(self, criterion, n_observations, scale):
        self.criterion, self.n_observations = criterion, n_observations
        self.floor = max(_FLOOR * scale, np.finfo(float).tiny)
        # By size: criterion, loss, number of parameters, penalty, and hyperplanes.
        self.found = {}

    def visit(self, hyperplanes, loss, n_parameters, penalty=0.0):
        """Add a network; return its criterion and its size."""
        loss = max(np.inf if np.isnan(loss) else loss, self.floor)
        worth = criterion_value(self.criterion, loss, n_parameters, self.n_observations)
        n = len(hyperplanes)
        if n not in self.found or worth < self.found[n][0]:
            self.found[n] = worth, loss, n_parameters, penalty, hyperplanes
        return worth, n

    def best_size(self):
        """Return the size with the lowest criterion, the smallest of equal ones."""
        return min(sorted(self.found), key=lambda size: self._value(size))

    def _value(self, size):
        worth, *_, penalty, _ = self.found[size]
        return worth + penalty

    def result(self):
        """Return the hyperplanes of the best size, and the path: a dict of arrays."""
        ordered = sorted(self.found)
        columns = list(zip(*(self.found[n][:4] for n in ordered), strict=True))
        names = self.criterion, "loss", "n_parameters", "search_penalty"
        path = dict(zip(names, map(np.array, columns), strict=True))
        return self.found[self.best_size()][4], {"n_neurons": np.array(ordered), **path}


def select_size(sizes, criterion, n_observations, scale, is_late=lambda: False):
    """Grow and prune; return the hyperplanes of the best size, and the path.

    The network doubles where the error is until the criterion gets worse; from there
    the neurons that matter least are deleted, a quarter at a time of a network of more
    than twice the best size so far, then one by one. ``sizes`` are DenseSizes,
    ``scale`` is the loss of the mean, and ``is_late`` says whether the time of the fit
    is over.
    """
    path = SizePath(criterion, n_observations, scale)
    best, n = path.visit(*sizes.candidate())
    since = 0
    while 2 * n <= sizes.most and since < _PATIENCE and not is_late():
        sizes.grow()
        worth, grown = path.visit(*sizes.candidate())
        since = 0 if worth < best else since + 1
        best = min(best, worth)
        if grown <= n:  # no place is left where a neuron lowers the loss
            break
        n = grown
    while n > 1 and not is_late():
        best_size = path.best_size()
        sizes.prune(min(n - 2 * best_size, n // 4) if n > 2 * best_size + 1 else 1)
        pruned = path.visit(*sizes.candidate())[1]
        if pruned >= n:  # without a loss no neuron matters least
            break
        n = pruned
    return path.result()
