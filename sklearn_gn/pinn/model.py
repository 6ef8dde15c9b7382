"""The network of a fit, with its derivatives, and what is fixed when it is compiled.

The parameters are the weights of the layers, with the biases in the last row, and the
coefficients of the equation that are to be found.

Derivatives in the inputs are propagated by hand: a point carries a stack of rows
through the network, its value, first derivatives along some axes, and second
derivatives, where all that are only needed as a sum (a Laplacian) share a row. With
``z = a W`` row by row, an activation phi maps

    value    z          ->  phi(z)
    first    z_i        ->  phi'(z) z_i
    second   sum z_ij   ->  phi'(z) sum z_ij + phi''(z) sum z_i z_j,

so every layer is one matrix product for all rows of all points. This is collapsed
Taylor mode, or forward Laplacian: for d axes d + 2 rows where nested differentiation
would take about 2 d.
"""

import math
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.linalg.jacobian import Parameters, ScaledAxes
from sklearn_gn.networks._base import activation_function
from sklearn_gn.pde.local_functions import LocalFunction

FIRST_WIDTHS = (20,) * 2
_WIDER = 1.5  # from one network to the next
MOST_WEIGHTS = 3000  # of a network that grows, and whose whole matrix is looked at
_STEEPEST = 20.0  # slope of new neurons, from one on, where the domain is [-1, 1]
_FEW_AXES = 3  # on which steep neurons are not lost among the directions


class DerivativeRows(NamedTuple):
    """Which derivatives a stack carries, as axes of the input points."""

    first: tuple = ()  # axes
    second: tuple = ()  # groups of pairs of axes; the sum over a group is one row

    @property
    def size(self):
        """Number of rows of a point."""
        return 1 + len(self.first) + len(self.second)


class Batch(NamedTuple):
    """Points of a residual class."""

    x: jnp.ndarray  # (N, P, d): P points belong together in a periodic condition
    data: jnp.ndarray  # (N, e)  numbers that go with them, such as normals
    scale: jnp.ndarray  # (N,)  sqrt(weight / N); 0 for padding
    axes: jnp.ndarray | None = None  # (s,)  axes from which Laplacians are estimated

    def at(self, rows):
        """Rows of the points, filled up by the last one with the weight zero."""
        n = len(self.x)
        x, data, scale = (np.asarray(a)[np.minimum(rows, n - 1)] for a in self[:3])
        return self._replace(x=x, data=data, scale=np.where(rows < n, scale, 0))


class Model(NamedTuple):
    """What is fixed when functions are compiled."""

    problem: Any
    activations: tuple
    classes: tuple  # of ResidualClass
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
    a, layers, rows = model.problem.embedding(x), params.layers, DerivativeRows()
    if model.features is not None:
        a, layers = model.features(layers[:-1], a), layers[-1:]
    given = layers, a[None, None], rows, None, model.problem.n_functions
    return propagate(model.activations, *given)[0][0, 0]


@partial(jit_by_size, static_argnames="model")
def network_values(model, params, x):
    """Outputs at points x (n, d), before hard constraints."""
    return jax.vmap(partial(network, model, params))(x)


def coefficients(problem, extra):
    """All coefficients by name: known ones, and parameters."""
    found, start = {}, 0
    for name, value in problem.known.items():
        is_array = isinstance(value, np.ndarray)
        found[name] = value.astype(extra.dtype) if is_array else value
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
    """Glorot weights, zero for the last ``n_waves`` inputs, and biases of zero."""
    layers, last = [], len(sizes) - 2
    for k, (w, v) in enumerate(pairwise(sizes)):
        matrix = np.zeros((w + 1 + n_waves * (k in (0, last)), v))
        matrix[:w] = rng.standard_normal((w, v)) * np.sqrt(2 / (w + v))
        layers.append(matrix)
    extra = [np.ravel(u.encode(u.initial)) for u in unknown]
    return Parameters(tuple(layers), np.concatenate([np.zeros(0), *extra]))


def drawn_anew(rng, net, problem):
    """A newly drawn network of the layers of another, in its precision."""
    waves, layers = problem.n_functions, net.layers
    sizes = [len(layers[0]) - 1 - waves, *(matrix.shape[1] for matrix in layers)]
    new = start_parameters(rng, sizes, problem.unknown.values(), waves)
    return jax.tree.map(lambda leaf: leaf.astype(layers[0].dtype), new)


def cast(tree, dtype):
    """The arrays of a tree, with those of floats in another precision."""
    return jax.tree.map(lambda a: a.astype(dtype) if a.dtype.kind == "f" else a, tree)


# --- derivatives of the network ------------------------------------------------------


def input_stack(embedding, x, rows, axes=None):
    """Rows of the inputs at one point, (size, n_inputs); ``axes`` None numbers all."""
    every = jnp.arange(x.shape[0], dtype=jnp.int32)
    numbers = every if axes is None else axes

    def along(function, number):
        unit = (every == numbers[number]).astype(x.dtype)
        return lambda x: jax.jvp(function, (x,), (unit,))[1]

    parts = [embedding(x)[None]]
    if rows.first:
        first = np.array(rows.first, np.int32)
        parts.append(jax.vmap(lambda i: along(embedding, i)(x))(first))
    if rows.second:
        left, right = np.array(sum(rows.second, ()), np.int32).T
        second = jax.vmap(lambda i, j: along(along(embedding, i), j)(x))(left, right)
        sizes = [len(group) for group in rows.second]
        if max(sizes) > 1:  # the matrix has the square of the number of pairs
            ones = np.eye(len(sizes), dtype=second.dtype)
            second = np.repeat(ones, sizes, axis=1) @ second
        parts.append(second)
    return jnp.concatenate(parts)


@partial(jax.jit, static_argnames=("name", "rows"))
def activate(name, stack, rows):
    """The stack after an activation."""
    phi = activation_function(name)
    if not rows.first:
        return phi(stack)
    z, first, second = jnp.split(stack, [1, 1 + len(rows.first)], axis=1)
    one = jnp.ones_like(z)

    def slope(z):
        return jax.jvp(phi, (z,), (one,))

    if not rows.second:
        value, d1 = slope(z)
        return jnp.concatenate([value, d1 * first], axis=1)
    (value, d1), (_, d2) = jax.jvp(slope, (z,), (one,))
    place = {axis: k for k, axis in enumerate(rows.first)}
    squares = [
        sum(first[:, place[i]] * first[:, place[j]] for i, j in group)
        for group in rows.second
    ]
    second = d1 * second + d2 * jnp.stack(squares, axis=1)
    return jnp.concatenate([value, d1 * first, second], axis=1)


def propagate(activations, layers, stack, rows, taps=None, n_waves=0):
    """Stack after the last, affine layer, and the stacks that every layer was given.

    A stack (n, size, width) has the rows of all points. Those that layers
    are given have the ones of the biases, which only values have. Taps are added to the
    outputs of layers before activation: derivatives in them are what the Jacobian is
    made of. The last layer has the last ``n_waves`` inputs too.
    """
    inputs, waves = [], ()
    if n_waves:
        waves = (stack[..., stack.shape[-1] - n_waves :],)
    for k, matrix in enumerate(layers):
        if isinstance(stack, ScaledAxes):
            inputs.append(stack)
            stack = stack.times(matrix)
        else:
            ones = np.eye(stack.shape[1], 1, dtype=stack.dtype)
            ones = jnp.broadcast_to(ones, (*stack.shape[:2], 1))
            parts = stack, *(waves if k + 1 == len(layers) else ()), ones
            inputs.append(jnp.concatenate(parts, axis=-1))
            stack = inputs[-1] @ matrix
        if taps is not None:
            stack = stack + taps[k]
        if k < len(activations):
            stack = activate(activations[k], stack, rows)
    return stack, inputs


def local_field(top, x0, rows, axes=None):
    """The second-order Taylor polynomial around a point, as a function of x."""
    f = 1 + len(rows.first)
    if rows.second:
        # The products of two steps, of which those of a group share a row.
        left, right = np.array(sum(rows.second, ()), np.int32).T
        sizes = [len(group) for group in rows.second]
        share = np.where(left == right, 0.5, 1.0) / np.repeat(sizes, sizes)
        share = share.astype(top.dtype)[:, None]
        if max(sizes) > 1:
            share = share * np.repeat(np.eye(len(sizes), dtype=top.dtype), sizes, 0)
        coefficients = share @ top[f:] if max(sizes) > 1 else share * top[f:]

    def field(x):
        step = x - x0 if axes is None else (x - x0)[axes]
        value = top[0]
        if rows.first:
            value = value + _entries(step, rows.first) @ top[1:f]
        if rows.second:
            squares = _entries(step, left) * _entries(step, right)
            value = value + squares @ coefficients
        return value

    if axes is not None:
        return field
    return LocalFunction(field, x0, partial(_derivative, top, rows), 2)


def _derivative(top, rows, axes):
    """A derivative at the point of the polynomial; zero where no row has it."""
    if not axes:
        return lax.index_in_dim(top, 0, keepdims=False)
    if len(axes) == 1:
        if axes[0] in rows.first:
            number = 1 + rows.first.index(axes[0])
            return lax.index_in_dim(top, number, keepdims=False)
        return jnp.zeros_like(top, shape=top.shape[1:])
    pair = tuple(sorted(axes))
    for number, group in enumerate(rows.second, start=1 + len(rows.first)):
        if pair in group:
            return lax.index_in_dim(top, number, keepdims=False) / len(group)
    return jnp.zeros_like(top, shape=top.shape[1:])


def _entries(step, numbers):
    """Entries of a vector, if possible without indexing, which is slower."""
    low, n = int(numbers[0]), len(numbers)
    if tuple(numbers) == tuple(range(low, low + n)):
        return step if n == len(step) else step[low : low + n]
    return step[np.array(numbers, np.int32)]


# --- networks that grow --------------------------------------------------------------
#
# New neurons have outgoing weights of zero: the grown network is the same function, and
# its Jacobian has new columns. On up to three axes those of the first layer vary on
# many scales, since what a network has missed is mostly finer than what it has found.


def wider(net, rng, n_waves=0, factors=None):
    """Add neurons to all hidden layers that leave the function unchanged.

    Without ``rng`` all new weights are zero. The last ``n_waves`` inputs of the first
    layer enter the last layer, too; neurons begin without them. ``factors`` are those
    of the widths; None: the same for each.
    """
    layers, more, last = [], 0, len(net.layers) - 1
    factors = factors or (_WIDER,) * last
    for k, matrix in enumerate(map(np.asarray, net.layers)):
        skipped = 1 + n_waves * (k in (0, last))  # rows that are not neurons
        w, v = matrix.shape[0] - skipped, matrix.shape[1]
        columns = v if k == last else math.ceil(factors[k] * v)
        new = np.zeros((len(matrix) + more, columns), matrix.dtype)
        new[:w, :v], new[len(new) - skipped :, :v] = matrix[:w], matrix[w:]
        if rng is not None and columns > v and k == 0 and w <= _FEW_AXES:
            # Weights and biases of neurons that bend within the domain.
            slopes = rng.standard_normal((w, columns - v))
            sizes = np.exp(rng.uniform(0, np.log(_STEEPEST), columns - v))
            slopes *= sizes / np.linalg.norm(slopes, axis=0)
            new[:w, v:] = slopes
            new[-1, v:] = -np.sum(slopes * rng.uniform(-1, 1, slopes.shape), axis=0)
        elif rng is not None and columns > v:
            drawn = rng.standard_normal((w, columns - v))
            new[:w, v:] = drawn * np.sqrt(2 / (w + columns))
            if k == 0:  # with a bias, that they differ on an interval
                new[-1, v:] = rng.uniform(-1, 1, columns - v)
        layers.append(new)
        more = columns - v
    return Parameters(tuple(layers), np.asarray(net.extra))


def richer(net, n_waves=0):
    """The network with twice as many neurons in its first layer: the same function."""
    factors = 2, *[1] * (len(net.layers) - 2)
    return Richer(*wider(net, np.random.RandomState(0), n_waves, factors))
