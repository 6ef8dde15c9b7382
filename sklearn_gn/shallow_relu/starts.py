"""Breaking hyperplanes in the units of a fit, of its starts, and of several sizes."""

from enum import IntEnum

import numpy as np

from sklearn_gn.segmented.problem import criterion_value
from sklearn_gn.shallow_relu.network import ShallowReLU

_FLOOR = 1e-25  # relative loss below which only rounding errors differ
_FAR_HYPERPLANE = 1e8  # largest distance of a hyperplane, in units of the training data


def hyperplanes_to_scaled(units, hyperplanes):
    """Return hyperplanes of the user's units in those of a fit, ``|w| = 1``.

    Those far from all data are moved to where they are as good: the rounding errors
    of their hidden features would exceed the other features.
    """
    # Products may leave the range of floats, quotients of them need not: hence
    # mantissas and exponents, relative to the largest component of the normal.
    b, w = hyperplanes[:, :1], hyperplanes[:, 1:]
    (w, ew), (s, es), (c, ec), (b, eb) = map(
        np.frexp, (w, units.x_scale, units.x_center, b)
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


def hyperplanes_to_user(units, hyperplanes):
    """Return hyperplanes in units of a fit in the user's, ``|w| = 1``."""
    # Relative to the smallest scale, so that no ratio of scales can overflow.
    unit = units.x_scale.min()
    normal = hyperplanes[:, 1:] * (unit / units.x_scale)
    bias = hyperplanes[:, 0] * unit - normal @ units.x_center
    norm = row_norms(normal)
    rows = np.concatenate([bias[:, None], normal], axis=1) / norm
    return rows, norm[:, 0] / unit


def row_norms(normal):
    """Return Euclidean norms of rows, of shape (n, 1), without under- or overflow."""
    largest = np.max(np.abs(normal), axis=1, keepdims=True)
    largest = np.where(largest > 0, largest, 1.0)
    return largest * np.linalg.norm(normal / largest, axis=1, keepdims=True)


# --- initial networks ----------------------------------------------------------------


def initial_network(hyperplanes, n_spare, n_targets, dtype):
    """Return a network of hyperplanes (..., n, 1 + d), its output layer zero."""
    *lead, n, width = hyperplanes.shape
    spare = np.zeros((*lead, n_spare, width))
    spare[..., 1] = 1.0
    alive = np.arange(n + n_spare) < n
    return ShallowReLU(
        hyperplanes=np.concatenate([hyperplanes, spare], axis=-2).astype(dtype),
        coef=np.zeros((*lead, n + n_spare, n_targets), dtype),
        intercept=np.zeros((*lead, n_targets), dtype),
        alive=np.tile(alive, (*lead, 1)) if lead else alive,
    )


def given_hyperplanes(estimator, n, scaling):
    """Return the hyperplanes that are given to start from, in scaled units, or None."""
    init, d = estimator.init, len(scaling.x_scale)
    warm = estimator.warm_start and hasattr(estimator, "_network")
    # A linear model, which the evidence may prefer, has no neurons to go on with.
    if warm and len(estimator.hyperplanes_):
        previous = estimator.hyperplanes_
        if previous.shape[1] != 1 + d:
            raise ValueError(
                f"warm_start=True continues from {previous.shape[1] - 1} features, X "
                f"has {d}."
            )
        return hyperplanes_to_scaled(scaling, previous)
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
    return hyperplanes_to_scaled(scaling, hyperplanes)


def hyperplanes_of_starts(init, given, n, n_init, rows, rng):
    """Return the hyperplanes of all starts: ``init`` first, then random ones.

    Where some are given, these come first and random ones fill up. Otherwise they are
    evenly spaced over the range of features in turn; the first one on every axis lies
    at the lower end and carries the linear term.
    """
    z, d = rows.x, rows.x.shape[1]
    if given is not None:
        more = random_hyperplanes(rows, max(n - len(given), 0), rng)
        first = np.concatenate([given[:n], more])
    elif init == "random" or (init == "auto" and d > 1):
        first = random_hyperplanes(rows, n, rng)
    else:
        axes = {"horizontal": [d - 1], "vertical": [0]}.get(init, range(d))
        low, high = z.min(axis=0), z.max(axis=0)
        first = np.zeros((n, 1 + d))
        for k, axis in enumerate(axes):
            mine = np.arange(k, n, len(axes))
            share = np.arange(len(mine)) / max(len(mine), 1)
            first[mine, 1 + axis] = 1.0
            first[mine, 0] = -(low[axis] + (high[axis] - low[axis]) * share)
    starts = [first]
    for _ in range(1, n_init):
        starts.append(random_hyperplanes(rows, n, rng))
    return starts


def random_hyperplanes(rows, n, rng):
    """Return hyperplanes of random orientation through rows drawn by their weights."""
    z = rows.x
    normal = rng.standard_normal((n, z.shape[1]))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    row = np.searchsorted(np.cumsum(rows.weight), rng.random_sample(n), side="right")
    point = z[np.minimum(row, len(z) - 1)]
    return np.concatenate([-np.sum(normal * point, axis=1)[:, None], normal], axis=1)


# --- phases and sizes of a search ----------------------------------------------------


class Phase(IntEnum):
    """What the next step of a search does."""

    STARTS = 0  # descend from the starts, to the tolerance of the rounds
    ROUNDS = 1  # look for better networks
    END = 2  # descend to the tolerance of the fit


class SizePath:
    """Networks of several sizes, of which a criterion chooses one."""

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
        worth = {
            n: value + penalty for n, (value, _, _, penalty, _) in self.found.items()
        }
        return min(sorted(worth), key=worth.get)

    def result(self):
        """Return the hyperplanes of the best size, and the path: a dict of arrays."""
        ordered = sorted(self.found)
        columns = list(zip(*(self.found[n][:4] for n in ordered), strict=True))
        names = self.criterion, "loss", "n_parameters", "search_penalty"
        path = dict(zip(names, map(np.array, columns), strict=True))
        return self.found[self.best_size()][4], {"n_neurons": np.array(ordered), **path}
