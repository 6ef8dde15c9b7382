"""Units of a fit: features and targets of mean 0 and size 1."""

import math
from typing import NamedTuple

import numpy as np

_FAR = 1e12  # in standard deviations of the training data
_GAP = 10  # ratio of the sizes of two targets that are in different units


class Scaling(NamedTuple):
    """Features of mean 0 and variance 1; targets of mean 0 and mean variance 1.

    One factor serves all targets of like size, see :func:`target_units`, so that the
    loss is the user's up to that factor; or each target has its own, so that all of
    them count alike.
    """

    x_center: np.ndarray
    x_scale: np.ndarray
    y_center: np.ndarray
    y_scale: float | np.ndarray

    @classmethod
    def of(cls, X, y, weight, *, each_target=False):
        """Units of weighted data, X of shape (m, d), y of shape (m, q)."""
        x_center, x_scale = moments(X, weight)
        y_center, y_scale = moments(y, weight)
        varies = np.ptp(y, axis=0) > 0
        # Rounding of the mean would be a residual of its own.
        y_center, y_scale = (
            np.where(varies, y_center, y[0]),
            np.where(varies, y_scale, 0),
        )
        size = y_scale.max()
        if size == 0:
            return cls(x_center, x_scale, y_center, 1.0)
        if each_target and y.shape[1] > 1:
            y_scale = np.where(y_scale > 0, y_scale, _root_mean_square(y_scale))
            return cls(x_center, x_scale, y_center, y_scale)
        units = target_units(y_scale, y_center, _root_mean_square)
        return cls(x_center, x_scale, y_center, units)

    @classmethod
    def none(cls, X, y):
        """Return the user's own units."""
        d, q = X.shape[1], y.shape[1]
        return cls(np.zeros(d), np.ones(d), np.zeros(q), 1.0)

    def x(self, X):
        """Return features in these units, limited to a huge but finite range."""
        with np.errstate(over="ignore"):
            return np.clip((X - self.x_center) / self.x_scale, -_FAR, _FAR)

    def y(self, y):
        """Return targets in these units."""
        return (y - self.y_center) / self.y_scale

    @property
    def loss_scale(self):
        """Factor from losses in scaled units to the user's, in the mean of targets."""
        with np.errstate(over="ignore"):
            return float(np.mean(np.square(np.float64(self.y_scale))))


def target_units(sizes, center, unit_of):
    """Return one unit for all targets, or an array with one for each.

    Sorted by size, two neighbours whose sizes differ by more than a factor of ten are
    taken to be in different units, and the targets on either side do not share a scale:
    in the sum of their squares the smaller ones would be left to chance. One quantity
    measured at many places may spread over several powers of ten without such a gap.
    ``unit_of`` makes one unit of several sizes, which are distances from the centres.
    """
    # A constant, also one up to rounding, is no target in another unit.
    varying = np.sort(sizes[sizes > _rounding(center)])
    first_of_group = varying[1:][varying[1:] / _GAP > varying[:-1]]
    if len(first_of_group) == 0:
        return unit_of(sizes)
    group = np.searchsorted(first_of_group, sizes, side="right")
    units = [unit_of(sizes[group == g]) for g in range(1 + len(first_of_group))]
    return np.array(units)[group]


def _root_mean_square(sizes):
    """Root mean square; squares of the sizes themselves may leave the floats."""
    size = sizes.max()
    return size * math.sqrt(np.mean((sizes / size) ** 2))


def _rounding(center):
    """Deviations from a centre that are but rounding errors."""
    return 16 * np.finfo(float).eps * np.abs(center)


def moments(A, weight):
    """Return weighted means and standard deviations; 1 where a column is constant.

    A column may be constant up to rounding by its weights alone, where the other rows
    have next to none: its size is the largest distance of a row from the mean.
    """
    # Divided first: squares of very large or small numbers leave the range of floats.
    size = np.max(np.abs(A), axis=0)
    size = np.where(size > 0, size, 1.0)
    scaled = A / size
    # A constant is its own mean, which sums may miss by rounding.
    center = np.where(np.ptp(scaled, axis=0) > 0, weight @ scaled, scaled[0])
    distance = np.abs(scaled - center)
    deviation, largest = np.sqrt(weight @ distance**2), distance.max(axis=0)
    rounding = _rounding(center)
    deviation = np.where(deviation > rounding, deviation, largest)
    with np.errstate(over="ignore"):  # of sizes below the normal numbers
        deviation = np.where(largest > rounding, deviation, 1 / size)
    return center * size, deviation * size
