"""Initial networks: breaking hyperplanes in scaled units."""

import numpy as np

from sklearn_gn.shallow_relu.network import ShallowReLU


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
    """Return hyperplanes from which to start, in scaled units."""
    d = len(scaling.x_scale)
    if previous is not None:
        if previous.shape[1] != 1 + d:
            raise ValueError(
                f"warm_start=True continues from {previous.shape[1] - 1} features, X "
                f"has {d}."
            )
        if n is not None or len(previous) > 0:
            return scaling.hyperplanes_to_scaled(previous)
    if not isinstance(init, str):
        return scaling.hyperplanes_to_scaled(check_hyperplanes(init, n, d))
    if n is None and init != "auto":
        raise ValueError(
            f"init={init!r} needs a number for n_neurons, got 'auto'. Give a number, "
            "or hyperplanes from which to start, or leave init='auto'."
        )
    return None


def first_hyperplanes(init, given, n, z, draw):
    """Return the hyperplanes of the first start."""
    d = z.shape[1]
    if given is not None:
        return np.concatenate([given[:n], draw(max(n - len(given), 0))])
    if init == "random" or (init == "auto" and d > 1):
        return draw(n)
    axes = {"horizontal": [d - 1], "vertical": [0]}
    return axis_hyperplanes(z, n, list(axes.get(init, range(d))))


def axis_hyperplanes(z, n, axes):
    """Return hyperplanes evenly spaced over the range of given features in turn.

    The first one on every axis lies at the lower end and carries the linear term.
    """
    low, high = z.min(axis=0), z.max(axis=0)
    hyperplanes = np.zeros((n, 1 + z.shape[1]))
    for k, axis in enumerate(axes):
        mine = np.arange(k, n, len(axes))
        share = np.arange(len(mine)) / max(len(mine), 1)
        hyperplanes[mine, 1 + axis] = 1.0
        hyperplanes[mine, 0] = -(low[axis] + (high[axis] - low[axis]) * share)
    return hyperplanes


def random_hyperplanes(z, cumulated_weight, n, rng):
    """Return hyperplanes of random orientation through rows drawn by their weights."""
    normal = rng.standard_normal((n, z.shape[1]))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    row = np.searchsorted(cumulated_weight, rng.random_sample(n), side="right")
    point = z[np.minimum(row, len(z) - 1)]
    return np.concatenate([-np.sum(normal * point, axis=1)[:, None], normal], axis=1)


def check_hyperplanes(init, n, d):
    """Return the array ``init`` of hyperplanes, or raise a ValueError."""
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
    return hyperplanes
