"""The network of a fit, and what is fixed when functions of it are compiled.

The parameters are the weights of the layers, with the biases in the last row, and the
coefficients of the equation that are to be found.
"""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.linalg.jacobian import Parameters
from sklearn_gn.networks._base import activation_function
from sklearn_gn.pinn.taylor import DerivativeRows

ROUNDING = math.sqrt(np.finfo(float).eps)  # relative change of what is computed by it
FIRST_WIDTHS = (20,) * 2
N_POINTS = 200  # at which values and residuals of a class, or signs, are taken
PROBES = 64  # points at which an equation is looked at
LARGE = 2**22  # numbers in an array that is computed at once
_WIDER = 1.5  # from one network to the next
MOST_WEIGHTS = 3000  # of a network that grows, and whose whole matrix is looked at
_SLOPES = 1.0, 20.0  # of new neurons, where the domain is [-1, 1]
_FEW_AXES = 3  # on which steep neurons are not lost among the directions


class Batch(NamedTuple):
    """Points of a residual class."""

    x: jnp.ndarray  # (N, P, d): P points belong together in a periodic condition
    data: jnp.ndarray  # (N, e)  numbers that go with them, such as normals
    scale: jnp.ndarray  # (N,)  sqrt(weight / N); 0 for padding
    axes: jnp.ndarray | None = None  # (s,)  axes from which Laplacians are estimated


class ClassModel(NamedTuple):
    """A residual class, with what it needs of the network."""

    residual: Any  # function(fields, points, data, coefficients) -> (k,)
    rows: DerivativeRows | None  # None: the network itself is differentiated
    size: float = 1.0  # change of the residuals with a solution of size one


class Model(NamedTuple):
    """What is fixed when functions are compiled."""

    problem: Any
    activations: tuple
    classes: tuple  # of ClassModel
    features: Any = None  # Features, where the network is not the one made here


class Richer(NamedTuple):
    """Parameters of a network with twice as many neurons in its first layer."""

    layers: tuple
    extra: Any


class Features(NamedTuple):
    """A network of the user's. The output layer comes after it."""

    network: Any  # has apply(params, x)
    structure: Any  # of its parameters

    def __call__(self, leaves, x):
        """Features of one point."""
        params = jax.tree.unflatten(self.structure, leaves)
        return self.network.apply(params, x[None])[0]


def network(model, params, x):
    """Outputs at one point, before hard constraints."""
    a, layers = model.problem.embedding(x), params.layers
    waves = a[a.shape[0] - n_waves(model.problem) :]
    if model.features is not None:
        a, layers = model.features(layers[:-1], a), layers[-1:]
    for k, matrix in enumerate(layers):
        if waves.size and k + 1 == len(layers):
            a = jnp.concatenate([a, waves])
        a = a @ matrix[:-1] + matrix[-1]
        if k < len(model.activations):
            a = activation_function(model.activations[k])(a)
    return a


def n_waves(problem):
    """Number of the last inputs, which the output layer has too."""
    return getattr(problem, "n_functions", 0)


def coefficients(problem, extra):
    """All coefficients by name: those known, and those that are parameters."""
    dtype = extra.dtype
    found = {
        name: value.astype(dtype) if isinstance(value, np.ndarray) else value
        for name, value in problem.known.items()
    }
    start = 0
    for name, unknown in problem.unknown.items():
        shape = np.shape(unknown.initial)
        stop = start + math.prod(shape)
        found[name] = unknown.decode(extra[start:stop].reshape(shape))
        start = stop
    return found


def coefficient_values(problem, extra):
    """The coefficients that are parameters, by name."""
    found = coefficients(problem, extra)
    return {name: jnp.asarray(found[name]) for name in problem.unknown}


def start_parameters(rng, sizes, unknown, n_waves=0):
    """Glorot weights, zero those of the last ``n_waves`` inputs, and biases of zero."""
    layers, last = [], len(sizes) - 2
    for k, (w, v) in enumerate(pairwise(sizes)):
        matrix = np.zeros((w + 1 + n_waves * (k in (0, last)), v))
        matrix[:w] = rng.standard_normal((w, v)) * np.sqrt(2 / (w + v))
        layers.append(matrix)
    extra = [np.ravel(u.encode(u.initial)) for u in unknown]
    return Parameters(tuple(layers), np.concatenate([np.zeros(0), *extra]))


def drawn_anew(rng, net, problem):
    """A newly drawn network of the layers of another, in its precision."""
    waves, layers = n_waves(problem), net.layers
    sizes = [len(layers[0]) - 1 - waves, *(matrix.shape[1] for matrix in layers)]
    new = start_parameters(rng, sizes, problem.unknown.values(), waves)
    return jax.tree.map(lambda leaf: leaf.astype(layers[0].dtype), new)


# --- networks that grow --------------------------------------------------------------
#
# New neurons have outgoing weights of zero: the grown network is the same function, and
# its Jacobian has new columns. On up to three axes those of the first layer vary on
# many scales, since what a network has missed is mostly finer than what it has found.


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
    return Richer((*layers, *others), np.asarray(net.extra))


def _on_many_scales(rng, n_axes, n):
    """Weights (n_axes, n) and biases (n,) of neurons that bend within the domain."""
    slopes = rng.standard_normal((n_axes, n))
    slopes *= np.exp(rng.uniform(*np.log(_SLOPES), n)) / np.linalg.norm(slopes, axis=0)
    return slopes, -np.sum(slopes * rng.uniform(-1, 1, slopes.shape), axis=0)


def n_weights(net):
    """Number of weights, with the coefficients that are to be found."""
    return sum(np.size(matrix) for matrix in net.layers) + np.size(net.extra)
