"""What the searches of one and of several features share: phases, and sizes."""

from enum import IntEnum

import numpy as np

from sklearn_gn.segmented.problem import criterion_value

_FLOOR = 1e-25  # relative loss below which only rounding errors differ


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
