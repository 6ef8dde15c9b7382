"""Networks and collocation points that find their size.

A fit starts with a small network and with more residuals than parameters, so that a
step is cheap and the network cannot satisfy the equation at its points alone. Where the
loss on fresh points no longer falls, it grows:

- the points, if the loss on fresh points is far above that of training;
- else the network, and the points with it.

Where the layers are given, only the points grow.

New neurons have outgoing weights of zero: the grown network is the same function, and
its Jacobian has new columns. On up to three axes those of the first layer vary on many
scales, since what a network has missed is mostly finer than what it has found. Growth
ends where the last one has not paid, or at the largest network; it goes on where the
error is then estimated to be large, and there is time.
"""

import math
import time
from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.linalg.jacobian import Parameters
from sklearn_gn.pinn.solved import EXHAUSTED_LOSS, SOLVED_LOSS

FIRST_WIDTHS = (20, 20)
_WIDER = 1.5  # from one network to the next
_MOST_WEIGHTS = 3000
_RESIDUALS = 2.5  # for each parameter
_BOUNDARY_SHARE = 0.3  # of the residuals
# Iterations in which the fresh loss is to fall by _FALL, or the fit grows. An iteration
# of a larger network takes as long as several of this one, which is often flat for a
# while and then finds its way: all the more once the equation is solved, when only
# digits are to be gained. Few do where points are missing, or nothing is left.
_PATIENCE, _EARLY_PATIENCE, _SHORT_PATIENCE = 40, 30, 12
_FALL = 0.5
# What the rest of max_time must have room for: compilations as long as the first one,
# and iterations at the next size, with their seconds relative to those of this one.
_COMPILATIONS, _ITERATIONS = 2, 30
_LEAST_ITERATIONS = 10  # the same where a fit would end otherwise, its time unused
LARGER, _MORE_POINTS = 5.0, 2.0
PAYS = 0.5  # of the fresh loss, from one growth to the next
_SLOPES = 1.0, 20.0  # of new neurons, where the domain is [-1, 1]
_FEW_AXES = 3  # on which steep neurons are not lost among the directions
_GENERALISES = 4.0  # fresh over training loss, beyond which points are missing


class Sizes(NamedTuple):
    """Numbers of collocation points."""

    n_interior: int
    n_boundary: int


# Points of networks beyond _MOST_WEIGHTS, whose Gramian has the size of the residuals.
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
    next: str | None = None  # "network" or "points", before the next iteration
    ended: bool = False  # whether growth has ended
    late: bool = False  # whether there is no time left to grow
    seconds: float = 0.0  # of the first iteration of the fit, which compiles
    promising: float = math.inf  # fresh loss at which the error may be small


def points_for(classes, n_weights, density=_RESIDUALS):
    """Numbers of points of a network, for so many residuals for each parameter."""
    if n_weights > _MOST_WEIGHTS:
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


def observed(level, rules, loss, fresh, first, net, seconds=0.0):
    """Return the level after an iteration, with what is to grow before the next one.

    ``first`` is the loss of the untrained network on fresh points.
    """
    lowest = min(fresh, lowest_loss(level))
    level = level._replace(falls=(*level.falls, lowest))
    solved = lowest <= SOLVED_LOSS * first
    lacks_points = rules.points and fresh > _GENERALISES * loss
    exhausted = lowest <= EXHAUSTED_LOSS * first
    patience = _PATIENCE if solved else _EARLY_PATIENCE
    if lacks_points or exhausted:
        patience = _SHORT_PATIENCE
    if len(level.falls) <= patience or level.ended:
        return level
    if not lowest > _FALL * level.falls[-1 - patience]:
        return level
    pays = lowest <= PAYS * level.before or not solved
    growing = pays and not exhausted and switches.on("pinn.growth")
    dearer = _MORE_POINTS if lacks_points else LARGER
    if growing and not _in_time(level, rules, dearer * seconds):
        return level._replace(late=True)
    if growing and lacks_points and _more_points(level.sizes, net) != level.sizes:
        return level._replace(next="points")
    if growing and rules.network and _n_weights(wider(net, None)) <= _MOST_WEIGHTS:
        return level._replace(next="network")
    return level._replace(ended=True)


def lowest_loss(level):
    """Lowest loss on fresh points so far."""
    return level.falls[-1] if level.falls else level.before


def is_slow(level):
    """Whether the fresh loss has not halved in a dozen iterations."""
    falls = level.falls
    if len(falls) <= _SHORT_PATIENCE:
        return False
    return falls[-1] > _FALL * falls[-1 - _SHORT_PATIENCE]


def _in_time(level, rules, seconds, compilations=_COMPILATIONS, n_iter=_ITERATIONS):
    """Whether there is time to grow: what is larger is compiled, and has to pay."""
    needed = compilations * level.seconds + n_iter * seconds
    return time.perf_counter() + needed < rules.deadline


def may_grow(level, rules, net):
    """Whether more time would let the network grow."""
    if level is None or level.ended or not rules.network:
        return False
    return _n_weights(wider(net, None)) <= _MOST_WEIGHTS


def may_go_on(level, rules, net, seconds):
    """Whether a network whose growth has ended has room and time, estimate included."""
    small = rules.network and _n_weights(wider(net, None)) <= _MOST_WEIGHTS
    n_compilations, n_iter = 1 + _COMPILATIONS, _LEAST_ITERATIONS
    return small and _in_time(level, rules, LARGER * seconds, n_compilations, n_iter)


def going_on(level):
    """Return the level of a network that has to grow after all."""
    return level._replace(next="network", ended=False)


def accurate_enough(level):
    """Return the level of a network whose error is small enough: it does not grow."""
    return level._replace(next=None, ended=True)


def not_accurate_before(level, loss):
    """Return the level of a network whose error is too large down to a fresh loss."""
    return level._replace(promising=loss)


def grown(level, rules, classes, net, rng, n_waves=0):
    """Return the next level and its network."""
    sizes, density = level.sizes, level.density
    if level.next == "points":
        sizes, density = _more_points(sizes, net), 2 * density
    else:
        net = wider(net, rng, n_waves)
        if rules.points:
            wanted = points_for(classes, _n_weights(net), density)
            sizes = Sizes(*map(max, sizes, wanted))
    kept = {"seconds": level.seconds, "promising": level.promising}
    return Level(sizes, density, before=level.falls[-1], **kept), net


def _more_points(sizes, net):
    most = _MOST if _n_weights(net) <= _MOST_WEIGHTS else _MOST_OF_FEW
    return Sizes(*(max(n, min(2 * n, m)) for n, m in zip(sizes, most, strict=True)))


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
