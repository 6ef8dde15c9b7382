"""The units of a fit, and hyperplanes in them."""

from functools import partial
from typing import NamedTuple

import numpy as np

from sklearn_gn.data.reach import Reach, units_within_reach
from sklearn_gn.data.scaling import moments, target_units

_FAR = 1e100  # largest feature, in units of the training data
_FAR_HYPERPLANE = 1e8  # largest distance of a hyperplane, in the same units


class Scaling(NamedTuple):
    """Features and targets of a fit: the targets have mean 0 and size 1.

    One feature is mapped to [-1, 1]; several are standardised, which is the metric in
    which |w| = 1 and steps are damped: a range would be that of the outliers. One
    factor serves all targets of like size, so that the loss is the user's up to that
    factor; where the evidence chooses the penalties, each target has its own, and all
    count alike.
    """

    x_center: np.ndarray
    x_scale: np.ndarray
    y_center: np.ndarray
    y_scale: float | np.ndarray
    reach: Reach | None = None

    @classmethod
    def robust(cls, X, y, weight):
        """Return units in which rows beyond the reach of the others are moved."""
        units_of = partial(cls.of, y=y, weight=weight, each_target=True)
        units, reach = units_within_reach(units_of, X, weight)
        return units._replace(reach=reach)

    @classmethod
    def of(cls, X, y, weight, *, each_target=False):
        """Return the units of weighted data, X of shape (m, d), y of shape (m, q)."""
        center, scale = _range(X) if X.shape[1] == 1 else moments(X, weight)
        # A constant is its own mean, which sums may miss by rounding.
        y_center = np.where(np.ptp(y, axis=0) > 0, weight @ y, y[0])
        sizes = np.max(np.abs(y - y_center), axis=0)
        y_scale = np.max(sizes) if np.max(sizes) > 0 else 1.0
        if each_target and len(sizes) > 1:
            y_scale = np.where(sizes > 0, sizes, y_scale)
        elif np.max(sizes) > 0:
            y_scale = target_units(sizes, y_center, np.max)
        return cls(center, scale, y_center, y_scale)

    def x(self, X):
        """Return features in these units, within reach."""
        z = self._bounded(X)
        return z if self.reach is None else self.reach.limited(z)

    def deviations(self, X, std, values):
        """Return standard errors in these units, greater for rows beyond reach."""
        return self.reach.deviations(self._bounded(X), std, values)

    def _bounded(self, X):
        """Features in these units, bounded: infinities have no differences."""
        with np.errstate(over="ignore"):
            return np.clip((X - self.x_center) / self.x_scale, -_FAR, _FAR)

    def same_as(self, other):
        """Whether these are the units of another fit."""
        pairs = zip(self[:-1], other[:-1], strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)

    def y(self, y):
        """Return targets in these units."""
        return (y - self.y_center) / self.y_scale

    @property
    def loss_scale(self):
        """Factor from losses in these units to the user's, in the mean of targets.

        It may be 0 or infinite.
        """
        with np.errstate(over="ignore"):
            return float(np.mean(np.square(np.float64(self.y_scale))))

    def hyperplanes_to_scaled(self, hyperplanes):
        """Return hyperplanes of the user's units in these, ``|w| = 1``.

        Those far from all data are moved to where they are as good: the rounding errors
        of their hidden features would exceed the other features.
        """
        # Products may leave the range of floats, quotients of them need not: hence
        # mantissas and exponents, relative to the largest component of the normal.
        b, w = hyperplanes[:, :1], hyperplanes[:, 1:]
        (w, ew), (s, es), (c, ec), (b, eb) = map(
            np.frexp, (w, self.x_scale, self.x_center, b)
        )
        exponent = np.where(w != 0, ew + es, np.iinfo(ew.dtype).min)
        largest = exponent.max(axis=1, keepdims=True)
        normal = np.ldexp(w * s, np.where(w != 0, exponent - largest, 0))
        with np.errstate(over="ignore", under="ignore"):
            terms = np.ldexp(np.c_[b, w * c], np.c_[eb, ew + ec] - largest)
        bound = np.finfo(float).max / (1 + terms.shape[1])
        bias = np.sum(np.clip(terms, -bound, bound), axis=1, keepdims=True)
        rows = np.concatenate([bias, normal], axis=1) / row_norms(normal)
        rows[:, 0] = np.clip(rows[:, 0], -_FAR_HYPERPLANE, _FAR_HYPERPLANE)
        return rows

    def hyperplanes_to_user(self, hyperplanes):
        """Return hyperplanes of these units in the user's, ``|w| = 1``."""
        # Relative to the smallest scale, so that no ratio of scales can overflow.
        unit = self.x_scale.min()
        normal = hyperplanes[:, 1:] * (unit / self.x_scale)
        bias = hyperplanes[:, 0] * unit - normal @ self.x_center
        norm = row_norms(normal)
        rows = np.concatenate([bias[:, None], normal], axis=1) / norm
        return rows, norm[:, 0] / unit


def _range(X):
    """Centre and half length of the range; 1 for what is constant."""
    low, high = X.min(axis=0), X.max(axis=0)
    center = low / 2 + high / 2
    # Rounded as the features are, so that none leaves [-1, 1].
    half = np.maximum(high - center, center - low)
    return center, np.where(half > 0, half, 1.0)


def row_norms(normal):
    """Return Euclidean norms of rows, of shape (n, 1), without under- or overflow."""
    largest = np.max(np.abs(normal), axis=1, keepdims=True)
    largest = np.where(largest > 0, largest, 1.0)
    return largest * np.linalg.norm(normal / largest, axis=1, keepdims=True)


def unit_sum(weight):
    """Return weights that sum to one, without overflow in the sum."""
    weight = weight / weight.max()
    return weight / weight.sum()
