"""Units of a fit: features and targets of mean 0 and size 1, and limits of far cells.

A few cells far from the others, such as a code for a missing value, decide the mean and
the deviation of their feature. Whether they are errors or lawful no distance tells: a
feature of heavy tails in a linear law has its best rows there. So each feature that has
cells far outside its quartiles is asked whether the targets are better predicted if
these cells count as a limit nearer to the others: by the predictive density of the rows
left out, of a small linear model of the feature, its size, and its product with another
feature.
"""

import math
from typing import NamedTuple

import numpy as np

from sklearn_gn.data.row_checks import HALF_THE_DIGITS, ROUNDING
from sklearn_gn.data.rows_source import BLOCK_ROWS
from sklearn_gn.linalg import factors

_FAR = 1e12  # in standard deviations of the training data
_TINY = np.finfo(float).tiny
_GAP = 10  # ratio of the sizes of two targets that are in different units
# Distances from the quartiles, in distances between them, inside which the outermost
# cells are limits; cells beyond the first one are far.
_LIMITS = (3.0, 10.0, 30.0)
_CLEAR = 2.0  # standard errors of a difference of predictive densities
_TAILS = 4.0  # degrees of freedom of Student's density of the residuals
_ITERATIONS = 10  # for the scale of that density


class Units(NamedTuple):
    """Features of mean 0 and variance 1; targets of mean 0 and of size 1.

    One factor serves all targets of like size, so that the loss is the user's up to
    that factor; or each target has its own, so that all of them count alike. Features
    count as their limits beyond these.
    """

    x_center: np.ndarray
    x_scale: np.ndarray
    y_center: np.ndarray
    y_scale: float | np.ndarray
    limits: np.ndarray  # (2, d)  least and largest value of features in these units

    @classmethod
    def of(cls, X, y, weight, *, each_target=False, limited=False, ranges=False):
        """Units of distinct rows X (m, d) and y (m, q), with weights (m,) of sum one.

        Every target may have its own factor, ``each_target``, and far cells may count
        as limits, ``limited``. With ``ranges`` a single feature is mapped to [-1, 1],
        and the unit of targets is their largest distance from the mean.
        """
        limits = np.tile([[-np.inf], [np.inf]], X.shape[1])
        varies = np.ptp(y, axis=0) > 0
        if ranges and X.shape[1] == 1:
            low, high = X.min(axis=0), X.max(axis=0)
            x_center = low / 2 + high / 2
            # Rounded as the features are, so that none leaves [-1, 1].
            half = np.maximum(high - x_center, x_center - low)
            x_scale = np.where(half > 0, half, 1.0)
        else:
            x_center, x_scale = moments(X, weight)
            if limited and varies.any():
                some = slice(None, None, max(1, len(X) // BLOCK_ROWS))
                weights = weight[some] if np.ptp(weight) > 0 else None
                quartiles = np.quantile(
                    X[some], [0.25, 0.75], 0, method="inverted_cdf", weights=weights
                )
                width = np.diff(quartiles, axis=0)[0]
                outside = np.maximum(quartiles[0] - X.min(0), X.max(0) - quartiles[1])
                far = np.flatnonzero((outside > _LIMITS[0] * width) & (width > 0))
                if len(far):
                    z = (X - x_center) / x_scale
                    limits[:, far] = _limits(X, y, weight, z, far, quartiles[:, far])
                    changed = np.isfinite(limits[0])
                    inside = np.clip(X[:, changed], *limits[:, changed])
                    x_center[changed], x_scale[changed] = moments(inside, weight)
        with np.errstate(over="ignore"):
            limits = np.clip((limits - x_center) / x_scale, -_FAR, _FAR)
        if limited:  # copies count as constants
            told = Units.varying(X, y, weight)
            limits[:, np.setdiff1d(np.flatnonzero(np.ptp(X, axis=0)), told)] = 0
        y_center, y_scale = moments(y, weight)
        # Rounding of the mean would be a residual of its own.
        y_center = np.where(varies, y_center, y[0])
        if ranges:
            y_scale = np.max(np.abs(y - y_center), axis=0)
        y_scale = np.where(varies, y_scale, 0)
        if y_scale.max() == 0:
            return cls(x_center, x_scale, y_center, 1.0, limits)
        if each_target and y.shape[1] > 1:
            y_scale = np.where(y_scale > 0, y_scale, y_scale.max())
            return cls(x_center, x_scale, y_center, y_scale, limits)
        # Targets share a unit, unless a gap divides their sizes: in the sum of squares
        # the smaller ones would be left to chance. One quantity measured at many places
        # may spread over several powers of ten without such a gap. A constant, also one
        # up to rounding, has no unit.
        sizes = np.sort(y_scale[y_scale > ROUNDING * np.abs(y_center)])
        first_of_group = sizes[1:][sizes[1:] / _GAP > sizes[:-1]]
        group = np.searchsorted(first_of_group, y_scale, side="right")
        for g in np.unique(group):
            own = y_scale[group == g]
            unit = own.max()
            if not ranges:  # squares of the sizes themselves may leave the floats
                unit *= math.sqrt(np.mean((own / unit) ** 2))
            y_scale[group == g] = unit
        y_scale = y_scale if len(first_of_group) else float(y_scale[0])
        return cls(x_center, x_scale, y_center, y_scale, limits)

    @classmethod
    def none(cls, X, y):
        """Return the user's own units."""
        d, q = X.shape[1], y.shape[1]
        limits = np.tile([[-_FAR], [_FAR]], d)
        return cls(np.zeros(d), np.ones(d), np.zeros(q), 1.0, limits)

    def x(self, X):
        """Return features in these units, inside their limits, which are finite."""
        with np.errstate(over="ignore"):
            return np.clip((X - self.x_center) / self.x_scale, *self.limits)

    def y(self, y):
        """Return targets in these units."""
        return (y - self.y_center) / self.y_scale

    @staticmethod
    def varying(x, y, weight):
        """Return the numbers of features that are no constants or copies; one at least.

        They are in descending order of their covariance with the targets, up to
        rounding: what is drawn for them depends neither on the order of the columns nor
        on those that say nothing new.
        """
        if not weight.all():
            x, y, weight = x[weight > 0], y[weight > 0], weight[weight > 0]
        with np.errstate(all="ignore"):  # of numbers at the ends of the floats
            size, y = np.ptp(x, axis=0), y / np.maximum(np.ptp(y, axis=0), _TINY)
            weight = weight[:, None] / np.sum(weight)
            products = (weight * (y - np.sum(weight * y, axis=0))).T @ x / size
            key = -np.round(np.linalg.norm(products, axis=0) / HALF_THE_DIGITS)
        found: list[int] = []
        for j in np.argsort(key, kind="stable").tolist():
            alike = (i for i in found if key[i] == key[j])
            if size[j] > 0 and not any(np.array_equal(x[:, i], x[:, j]) for i in alike):
                found.append(j)
        return tuple(found) or (0,)

    @property
    def has_limits(self):
        """Whether far cells of a feature count as a limit."""
        return bool(np.any(np.abs(self.limits) < _FAR))

    def same_as(self, other):
        """Whether these are the units of another fit."""
        pairs = zip(self, other, strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)

    @property
    def loss_scale(self):
        """Factor from losses in scaled units to the user's, in the mean of targets.

        It may be 0 or infinite.
        """
        with np.errstate(over="ignore"):
            return float(np.mean(np.square(np.asarray(self.y_scale, np.float64))))


# --- limits --------------------------------------------------------------------------


def _limits(X, y, weight, z, far, quartiles):
    """Return least and largest values of far features, (2, k); infinite without limits.

    ``z`` are the features in units of their deviations, ``far`` the numbers of features
    with cells far outside of their ``quartiles`` (2, k). Of many rows without such
    cells some stand for all.
    """
    limits = np.tile([[-np.inf], [np.inf]], len(far))
    y_center, y_scale = moments(y, weight)
    t = (y - y_center) / y_scale
    (low, high), cells, ends, near = quartiles, X[:, far], [], []
    for distance in _LIMITS:
        room = distance * (high - low)
        inside = (cells >= low - room) & (cells <= high + room)
        outermost = np.array(
            [
                np.min(cells, axis=0, where=inside, initial=np.inf),
                np.max(cells, axis=0, where=inside, initial=-np.inf),
            ]
        )
        clipped = np.clip(cells, *outermost)
        center, scale = moments(clipped, weight)
        ends.append(outermost)
        near.append((clipped - center) / scale)
    is_far = np.any(cells != np.clip(cells, *ends[0]), axis=1)
    every = max(1, len(z) // BLOCK_ROWS)
    others = np.flatnonzero(~is_far)[::every]
    some = np.concatenate([np.flatnonzero(is_far), others])
    weight = np.where(is_far, weight, weight * every)[some]
    z, t, weight = z[some], t[some], weight / np.sum(weight)
    near = [columns[some] for columns in near]
    bounded = z.copy()
    bounded[:, far] = near[0]
    # What the features leave of the targets, and their slopes.
    gram = (z.T * weight) @ z
    gram[np.diag_indices(len(gram))] += (1 + len(gram)) * np.sum(weight**2)
    slopes = factors.solve_semidefinite(gram, z.T @ (weight[:, None] * t))
    rest = t - z @ slopes
    for number, j in enumerate(far):
        own, target = cells[some, number], rest + z[:, j : j + 1] * slopes[j]
        raw = _left_out_densities(bounded, j, z[:, j], target, weight)
        best = _CLEAR
        for pair, columns in zip(ends, near, strict=True):
            unit = columns[:, number]
            at_limits = _left_out_densities(bounded, j, unit, target, weight)
            gain = _standardised(at_limits - raw, weight)
            if gain <= best:
                continue
            # Cells that tell more at the limit than in the middle are no errors.
            inside = own == np.clip(own, *pair[:, number])
            middle = weight[inside] @ unit[inside] / np.sum(weight[inside])
            silent = np.where(inside, unit, middle)
            silent = _left_out_densities(bounded, j, silent, target, weight)
            if _standardised(at_limits - silent, weight) < _CLEAR:
                best, limits[:, number] = gain, pair[:, number]
                z[:, j] = unit
    return limits


def _standardised(gains, weight):
    """Return the mean of gains of the rows over its standard error."""
    mean = weight @ gains
    error = math.sqrt(weight**2 @ (gains - mean) ** 2)
    return mean / error if error > 0 else 0.0


def _left_out_densities(z, j, unit, target, weight):
    """Return the log predictive densities of the rows, each left out by turns, (m,).

    The model is linear in feature j, which has the values ``unit``, in its size, and in
    its product with the one of the features z that explains most. The residuals have
    Student's density, which far rows hardly move.
    """
    explained = np.sum((z.T @ ((weight * unit)[:, None] * target)) ** 2, axis=1)
    explained[j] = 0
    product = unit * z[:, int(np.argmax(explained))]
    columns = np.column_stack([np.ones_like(unit), unit, np.abs(unit), product])
    columns /= np.sqrt(np.maximum(weight @ columns**2, np.finfo(np.float64).tiny))
    gram = (columns.T * weight) @ columns
    gram[np.diag_indices(4)] += np.sum(weight**2)  # as one more row for each
    smoother = factors.solve_semidefinite(gram, columns.T * weight)
    residuals = target - columns @ (smoother @ target)
    leverage = np.sum(columns * smoother.T, axis=1)
    left = np.maximum(1 - leverage, np.finfo(np.float64).eps)
    squares = (residuals / left[:, None]) ** 2
    variance = np.maximum(weight @ residuals**2, np.finfo(np.float64).tiny)
    for _ in range(_ITERATIONS):
        share = (_TAILS + 1) / (_TAILS + squares / variance)
        variance = np.maximum(weight @ (share * squares), np.finfo(np.float64).tiny)
    density = np.log1p(squares / variance / _TAILS) * (_TAILS + 1) + np.log(variance)
    return -np.sum(density, axis=1) / 2


def moments(A, weight):
    """Return weighted means and standard deviations; 1 where a column is constant.

    A column may be constant up to rounding by its weights alone, where the other rows
    have next to none: its size is the largest distance of a row from the mean.
    """
    # Divided first: squares of very large or small numbers leave the range of floats.
    size = np.maximum(A.max(axis=0), -A.min(axis=0))
    size = np.where(size > 0, size, 1.0)
    scaled = A / size
    # A constant is its own mean, which sums may miss by rounding.
    center = np.where(np.ptp(scaled, axis=0) > 0, weight @ scaled, scaled[0])
    scaled -= center
    largest = np.maximum(scaled.max(axis=0), -scaled.min(axis=0))
    deviation = np.sqrt(weight @ np.square(scaled, out=scaled))
    rounding = ROUNDING * np.abs(center)
    deviation = np.where(deviation > rounding, deviation, largest)
    with np.errstate(over="ignore"):  # of sizes below the normal numbers
        deviation = np.where(largest > rounding, deviation, 1 / size)
    return center * size, deviation * size
