"""The units of a fit, and the breaking hyperplanes of its initial networks in them."""

from typing import NamedTuple

import numpy as np

from sklearn_gn.data.scaling import moments, target_units
from sklearn_gn.shallow_relu.network import ShallowReLU

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
        """Return features in these units, bounded: infinities have no differences."""
        with np.errstate(over="ignore"):
            return np.clip((X - self.x_center) / self.x_scale, -_FAR, _FAR)

    def same_as(self, other):
        """Whether these are the units of another fit."""
        pairs = zip(self, other, strict=True)
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


# --- initial networks ----------------------------------------------------------------


def initial_network(hyperplanes, n_spare, n_targets, dtype):
    """Return the network of given hyperplanes, its output layer zero."""
    n, width = hyperplanes.shape
    spare = np.zeros((n_spare, width))
    spare[:, 1] = 1.0
    return ShallowReLU(
        hyperplanes=np.concatenate([hyperplanes, spare]).astype(dtype),
        coef=np.zeros((n + n_spare, n_targets), dtype),
        intercept=np.zeros(n_targets, dtype),
        alive=np.arange(n + n_spare) < n,
    )


def stack_networks(networks):
    """Return one network of stacked arrays, for starts that run side by side."""
    return ShallowReLU(*(np.stack(leaves) for leaves in zip(*networks, strict=True)))


def given_hyperplanes(init, previous, n, scaling):
    """Return hyperplanes from which to start, in scaled units; None if none are given.

    Those of the previous fit, if any, come before ``init``. ``n`` is the number of
    neurons, None if it is still to be chosen.
    """
    d = len(scaling.x_scale)
    if previous is not None:
        if previous.shape[1] != 1 + d:
            raise ValueError(
                f"warm_start=True continues from {previous.shape[1] - 1} features, X "
                f"has {d}."
            )
        return scaling.hyperplanes_to_scaled(previous)
    if isinstance(init, str):
        if n is None and init != "auto":
            raise ValueError(
                f"init={init!r} needs a number for n_neurons, got 'auto'. Give a "
                "number, or hyperplanes from which to start, or leave init='auto'."
            )
        return None
    hyperplanes = np.asarray(init, dtype=np.float64)
    rows = len(hyperplanes) if n is None else n
    if hyperplanes.shape != (rows, 1 + d) or rows == 0:
        raise ValueError(
            f"init has shape {hyperplanes.shape}, expected (n_neurons, 1 + "
            f"n_features) = ({'any' if n is None else n}, {1 + d})."
        )
    usable = np.isfinite(hyperplanes).all(axis=1)
    usable &= np.any(hyperplanes[:, 1:] != 0, axis=1)
    if not usable.all():
        raise ValueError(
            "init must hold finite rows (b, w) with w different from zero; row "
            f"{int(np.argmin(usable))} is not."
        )
    return scaling.hyperplanes_to_scaled(hyperplanes)


def hyperplanes_of_starts(init, given, n, n_init, rows, rng):
    """Return the hyperplanes of all starts: ``init`` first, then random ones.

    Where some are given, these come first and random ones fill up. Otherwise they are
    evenly spaced over the range of features in turn; the first one on every axis lies
    at the lower end and carries the linear term.
    """
    z, cumulated_weight = rows.x, np.cumsum(rows.weight)
    d = z.shape[1]

    def draw(n):
        return random_hyperplanes(z, cumulated_weight, n, rng)

    if given is not None:
        first = np.concatenate([given[:n], draw(max(n - len(given), 0))])
    elif init == "random" or (init == "auto" and d > 1):
        first = draw(n)
    else:
        axes = {"horizontal": [d - 1], "vertical": [0]}.get(init, range(d))
        low, high = z.min(axis=0), z.max(axis=0)
        first = np.zeros((n, 1 + d))
        for k, axis in enumerate(axes):
            mine = np.arange(k, n, len(axes))
            share = np.arange(len(mine)) / max(len(mine), 1)
            first[mine, 1 + axis] = 1.0
            first[mine, 0] = -(low[axis] + (high[axis] - low[axis]) * share)
    return [first, *(draw(n) for _ in range(1, n_init))]


def random_hyperplanes(z, cumulated_weight, n, rng):
    """Return hyperplanes of random orientation through rows drawn by their weights."""
    normal = rng.standard_normal((n, z.shape[1]))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    row = np.searchsorted(cumulated_weight, rng.random_sample(n), side="right")
    point = z[np.minimum(row, len(z) - 1)]
    return np.concatenate([-np.sum(normal * point, axis=1)[:, None], normal], axis=1)
