"""Rows far from all others, moved to where a fit can say something."""

from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches

_REACH = 10.0  # largest distance of a row from the centre, over the root mean square
_COLLINEAR = 1e-12  # relative variance of a direction in which there are no rows
_REACH_ITERATIONS = 20


class Reach(NamedTuple):
    """Where the rows of a training set lie: at most ten times as far as usual.

    The distance from the centre is that of Mahalanobis, so it does not depend on the
    units or on linear combinations of the features. Its matrix is Huber's estimate of
    scatter: that of the rows after those farther than ten times the root mean square
    distance have been moved to there. Features of which more than half of the rows have
    one value, such as indicators of rare categories, have no part in it.
    """

    features: np.ndarray  # (k,) the features that have a part
    center: np.ndarray  # (k,)
    metric: np.ndarray  # (k, rank)  |metric^T (z - center)| is the distance / 10 rms
    farthest: float = 1.0  # stretch of the farthest row of the training set

    @classmethod
    def of(cls, z, weight):
        """Return the reach of weighted rows; the weights sum to one."""
        z = z if switches.on("tables.reach") else z[:, :0]
        low, high = np.quantile(
            z, (0.25, 0.75), axis=0, weights=weight, method="inverted_cdf"
        )
        features = np.flatnonzero(low < high)
        rows = z[:, features]
        limited, factor = rows, np.ones(len(rows))
        for _ in range(_REACH_ITERATIONS):
            center = weight @ limited
            metric = _metric(limited - center, weight)
            before, factor = factor, _shares(rows - center, metric)
            limited = center + factor[:, None] * (rows - center)
            if np.max(np.abs(factor - before)) <= 1e-2 * np.min(factor):
                break
        return cls(features, center, metric)

    def stretch(self, z):
        """Return how many times as far as the reach rows lie; one for those within."""
        shares = _shares(z[:, self.features] - self.center, self.metric)
        return 1 / np.maximum(shares, np.finfo(np.float64).tiny)

    def deviations(self, z, std, values):
        """Return standard errors of predictions for rows that may have been moved.

        Standard errors at the reach, times the stretch, are those of a line that goes
        on from there. The prediction does not go on, though. What it misses is taken
        for as much as the prediction changes from the centre to the reach, times the
        further distance. If rows of the training set lie beyond reach, the prediction
        there is that of all of them, and any value between is possible.

        Parameters
        ----------
        z : ndarray of shape (m, d)
            Rows as they were.
        std : ndarray of shape (m, q)
            Standard errors of the predictions for the moved rows.
        values : callable
            Maps rows within reach to predictions of shape (m, q).
        """
        stretch = self.stretch(z)
        far = stretch > 1
        if not far.any():
            return std
        z, stretch = z[far], stretch[far, None]
        centre = z.copy()
        centre[:, self.features] = self.center
        change = values(self.limited(z)) - values(centre)
        times = np.maximum(stretch / self.farthest, 1) - float(self.farthest == 1)
        std = std.copy()
        with np.errstate(over="ignore"):  # what is no float is infinite
            std[far] = np.hypot(std[far] * stretch, times * change)
        return std

    def limited(self, z):
        """Return rows moved towards the centre until they are within reach."""
        offset = z[:, self.features] - self.center
        factor = _shares(offset, self.metric)
        far = factor < 1
        if not far.any():
            return z
        z = z.copy()
        moved = self.center + factor[far, None] * offset[far]
        z[np.ix_(far, self.features)] = moved
        return z


def units_within_reach(units_of, X, weight):
    """Return the units of rows without those beyond reach, and the reach in them.

    One wrong entry among collinear features would otherwise be where slopes decide over
    predictions that no other row has anything to say about.

    Parameters
    ----------
    units_of : callable
        Maps features to their units: ``x``, ``x_center`` and ``x_scale``.
    X : ndarray of shape (m, d)
    weight : ndarray of shape (m,)
        Their sum is one.
    """
    units = units_of(X)
    z = units.x(X)
    reach = Reach.of(z, weight)
    within = reach.limited(z)
    if within is z:
        return units, reach
    # Units of the rows as they are now, which far ones no longer determine.
    moved = np.where(within == z, X, units.x_center + units.x_scale * within)
    units = units_of(moved)
    reach = Reach.of(units.x(moved), weight)
    return units, reach._replace(farthest=float(np.max(reach.stretch(units.x(X)))))


def _metric(offset, weight):
    """Factor of the inverse scatter, in units of the largest distance."""
    values, vectors = np.linalg.eigh((weight[:, None] * offset).T @ offset)
    kept = values > _COLLINEAR * np.max(values, initial=0)
    return vectors[:, kept] / (_REACH * np.sqrt(kept.sum() * values[kept]))


def _shares(offset, metric):
    """Factors by which rows come within reach, one for those that are."""
    # Divided by a power of two, as squares of far rows may leave the range of floats.
    _, exponent = np.frexp(np.max(np.abs(offset), axis=1, initial=1))
    size = np.ldexp(0.5, exponent)
    distance = np.linalg.norm((offset / size[:, None]) @ metric, axis=1)
    with np.errstate(over="ignore"):
        return 1 / np.maximum(size * distance, 1)
