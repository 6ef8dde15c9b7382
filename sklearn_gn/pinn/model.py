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
    """Glorot weights and zero biases, drawn in numpy.

    ``sizes`` leave out the ``n_waves`` inputs that are waves, whose weights are zero.
    """
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
