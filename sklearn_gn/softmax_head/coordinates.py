"""The coordinates in which Newton's method fits a head, and the way back.

The features are centred where there is an intercept. Where the penalty is chosen, they
are divided by their standard deviations, so that the units of a column do not matter.
Rows fewer than the features are turned to as many coordinates as there are rows: the
optimum is a combination of the rows, and inner products are the same.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.data.units import moments
from sklearn_gn.linalg.factors import orthogonal_factors
from sklearn_gn.softmax_head.head import AffineHead

_MOST_ROWS = 4096  # that are turned


class Coordinates(NamedTuple):
    """Features ``((x - center) / size) basis``."""

    center: np.ndarray  # (d,)
    size: np.ndarray  # (d,)
    basis: np.ndarray | None  # (d, r), orthonormal columns

    def features(self, X):
        """Return rows in these coordinates, in the memory of X unless it is turned."""
        X -= self.center
        X /= self.size
        return X if self.basis is None else X @ self.basis

    def given(self, x):
        """Return the features as given of rows in these coordinates."""
        x = x if self.basis is None else x @ self.basis.T
        return x * self.size + self.center

    def head(self, net):
        """Return a head of the features as given in these coordinates."""
        weight = net.weight * self.size[:, None]
        weight = weight if self.basis is None else self.basis.T @ weight
        return AffineHead(weight, net.bias + self.center @ net.weight)

    def given_head(self, net):
        """Return a head in these coordinates for the features as given."""
        weight = net.weight if self.basis is None else self.basis @ net.weight
        weight = weight / self.size[:, None]
        bias = net.bias - self.center @ weight
        if len(bias) > 1:  # a shift that all classes share means nothing
            bias = bias - bias.mean()
        return AffineHead(weight, bias)


def coordinates_of(X, weight, intercept, scaled):
    """The coordinates for weighted rows; ``scaled`` divides by standard deviations."""
    d = X.shape[1]
    center, size = np.zeros(d), np.ones(d)
    if scaled:
        mean, size = moments(X, weight)
        if not intercept:
            size = np.hypot(mean, size)
            mean = np.zeros(d)
        far = weight @ ((X - mean) / size) ** 4
        size = size * (np.maximum(far, 1) / 3) ** 0.25
    else:
        mean = weight @ X
    if intercept:
        center = mean
    if len(X) >= d or len(X) > _MOST_ROWS:
        return Coordinates(center, size, None)
    turned, _ = orthogonal_factors(((X - center) / size).T)
    return Coordinates(center, size, turned)
