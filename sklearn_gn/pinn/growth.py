"""Networks and collocation points that find their size.

A fit starts with a small network and with more residuals than parameters, so that a
step is cheap and the network cannot satisfy the equation at its points alone. What
grows, and when, is decided in :mod:`sklearn_gn.pinn.control`: the points, or the
network and the points with it; where the layers are given, only the points.

New neurons have outgoing weights of zero: the grown network is the same function, and
its Jacobian has new columns. On up to three axes those of the first layer vary on many
scales, since what a network has missed is mostly finer than what it has found.
"""

import math
from typing import NamedTuple

import numpy as np

from sklearn_gn.linalg.jacobian import Parameters

FIRST_WIDTHS = (20, 20)
_WIDER = 1.5  # from one network to the next
MOST_WEIGHTS = 3000  # of a network that grows, and whose whole matrix is looked at
_RESIDUALS = 2.5  # for each parameter
_BOUNDARY_SHARE = 0.3  # of the residuals
_SLOPES = 1.0, 20.0  # of new neurons, where the domain is [-1, 1]
_FEW_AXES = 3  # on which steep neurons are not lost among the directions


class Sizes(NamedTuple):
    """Numbers of collocation points."""

    n_interior: int
    n_boundary: int


# Points of networks beyond MOST_WEIGHTS, whose Gramian has the size of the residuals.
_FEW, _MOST_OF_FEW = Sizes(500, 200), Sizes(2000, 800)
_LEAST, _MOST = Sizes(200, 80), Sizes(8000, 3000)


class Rules(NamedTuple):
    """What may grow in a fit."""

    network: bool
    points: bool
    deadline: float = math.inf  # of the fit, by time.perf_counter
    budget: float = math.inf  # seconds of the fit


class Level(NamedTuple):
    """What is remembered of the present size."""

    sizes: Sizes
    density: float = _RESIDUALS  # residuals for each parameter
    falls: tuple = ()  # lowest fresh loss after each iteration of this size
    before: float = math.inf  # lowest fresh loss when this size began
    ended: bool = False  # whether growth has ended
    late: bool = False  # whether there is no time left to grow
    promising: float = math.inf  # fresh loss at which the error may be small


def points_for(classes, n_weights, density=_RESIDUALS):
    """Numbers of points of a network, for so many residuals for each parameter."""
    if n_weights > MOST_WEIGHTS:
        return _FEW
    interior, *conditions = [kind for kind in classes if kind.name != "data"]
    n_residuals = density * n_weights
    share = _BOUNDARY_SHARE if conditions else 0.0
    outputs = np.mean([kind.n_outputs for kind in conditions]) if conditions else 1
    n_interior = (1 - share) * n_residuals / interior.n_outputs
    n_boundary = share * n_residuals / outputs
    return Sizes(
        int(np.clip(n_interior, _LEAST.n_interior, _MOST.n_interior)),
        int(np.clip(n_boundary, _LEAST.n_boundary, _MOST.n_boundary)),
    )


def lowest_loss(level):
    """Lowest loss on fresh points so far."""
    return level.falls[-1] if level.falls else level.before


def has_room(net):
    """Whether there is a larger network."""
    return _n_weights(wider(net, None)) <= MOST_WEIGHTS


def more_points(sizes, net):
    """Twice as many points, as far as these are allowed."""
    most = _MOST if _n_weights(net) <= MOST_WEIGHTS else _MOST_OF_FEW
    return Sizes(*(max(n, min(2 * n, m)) for n, m in zip(sizes, most, strict=True)))


def grown(level, what, rules, classes, net, rng, n_waves=0):
    """The next level and its network: of more "points", or a larger "network"."""
    sizes, density = level.sizes, level.density
    if what == "points":
        sizes, density = more_points(sizes, net), 2 * density
    else:
        net = wider(net, rng, n_waves)
        if rules.points:
            wanted = points_for(classes, _n_weights(net), density)
            sizes = Sizes(*map(max, sizes, wanted))
    before, promising = level.falls[-1], level.promising
    return Level(sizes, density, before=before, promising=promising), net


def wider(net, rng, n_waves=0):
    """Add neurons to all hidden layers that leave the function unchanged.

    Without ``rng`` all new weights are zero. The last ``n_waves`` inputs of the first
    layer are those of the last layer, too; neurons begin without them.
    """
    layers, n_old = [], None
    for k, matrix in enumerate(net.layers):
        matrix = np.asarray(matrix)
        last = k + 1 == len(net.layers)
        skipped = 1 + n_waves * (last or n_old is None)  # rows that are not neurons
        w, v = matrix.shape[0] - skipped, matrix.shape[1]
        rows = w if n_old is None else math.ceil(_WIDER * w)
        columns = v if last else math.ceil(_WIDER * v)
        new = np.zeros((rows + skipped, columns), matrix.dtype)
        new[:w, :v], new[rows:, :v] = matrix[:w], matrix[w:]
        if rng is not None and n_old is None and not last and w <= _FEW_AXES:
            new[:w, v:], new[-1, v:] = _on_many_scales(rng, w, columns - v)
        elif rng is not None and not last:
            drawn = rng.standard_normal((w, columns - v))
            new[:w, v:] = drawn * np.sqrt(2 / (w + columns))
            if n_old is None:  # with a bias, that they differ on an interval
                new[-1, v:] = rng.uniform(-1, 1, columns - v)
        layers.append(new)
        n_old = w
    return Parameters(tuple(layers), np.asarray(net.extra))


def richer(net, n_waves=0):
    """The network with twice as many neurons in its first layer: the same function."""
    first, second, *others = (np.asarray(matrix) for matrix in net.layers)
    n, n_axes = first.shape[1], len(first) - 1 - n_waves
    new = np.zeros_like(first)
    new[:n_axes], new[-1] = _on_many_scales(np.random.RandomState(0), n_axes, n)
    unread = np.zeros((n, second.shape[1]), second.dtype)
    layers = np.hstack([first, new]), np.vstack([second[:n], unread, second[n:]])
    return Parameters((*layers, *others), np.asarray(net.extra))


def _on_many_scales(rng, n_axes, n):
    """Weights (n_axes, n) and biases (n,) of neurons that bend within the domain."""
    slopes = rng.standard_normal((n_axes, n))
    slopes *= np.exp(rng.uniform(*np.log(_SLOPES), n)) / np.linalg.norm(slopes, axis=0)
    return slopes, -np.sum(slopes * rng.uniform(-1, 1, slopes.shape), axis=0)


def _n_weights(net):
    return sum(np.size(matrix) for matrix in net.layers) + np.size(net.extra)
