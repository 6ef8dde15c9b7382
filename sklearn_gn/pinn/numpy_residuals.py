"""Residuals of small networks with NumPy, and their derivatives in the weights.

What JAX traces is what the user has written: the residuals of points as functions of
the rows of the last layer. It knows nothing of the network, so one that grows compiles
nothing anew. The formulas are those of ``residuals`` and ``taylor``, with the
derivatives in the weights by hand: a network of a few hundred neurons at some thousand
points computes for a millisecond, and takes a thousand times as long to be traced and
compiled.
"""

from functools import partial
from itertools import islice
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.caches import KeptWithArrays
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.linalg.jacobian import Part
from sklearn_gn.pinn.model import Model, n_waves
from sklearn_gn.pinn.residuals import input_stacks, row_from_top

_inputs = KeptWithArrays()  # rows of the inputs of the network

_quiet = np.errstate(all="ignore")  # as in a compiled function


def serve(model, batches):
    """Whether residuals are functions of rows that NumPy can propagate."""
    known = all(name in ACTIVATIONS for name in model.activations)
    in_rows = all(kind.rows is not None for kind in model.classes)
    exact = all(batch.axes is None for batch in batches)
    return known and in_rows and exact and model.features is None


@_quiet
def residuals(model, params, batches):
    """The vector r of shape (m,), weighted, one class after the other."""
    params = backend.views(params)
    tops = [
        _as_rows(_propagated(model, kind, params, batch)[0], batch)
        for kind, batch in zip(model.classes, batches, strict=True)
    ]
    found = _residuals(
        *_compiled_arguments(model, model.classes, batches), tops, params.extra
    )
    return _weighted(found, batches)


@_quiet
def class_residuals(model, kind, params, batch):
    """Residuals of a class as they are, of shape (N, k)."""
    params = backend.views(params)
    top = _as_rows(_propagated(model, kind, params, batch)[0], batch)
    stated = _compiled_arguments(model, (kind,), (batch,))
    return np.asarray(_residuals(*stated, [top], params.extra)[0])


@_quiet
def jacobian(model, params, batches):
    """r, and the parts of its Jacobian."""
    params = backend.views(params)
    pairs = list(zip(model.classes, batches, strict=True))
    states = [_propagated(model, kind, params, batch, True) for kind, batch in pairs]
    tops = [_as_rows(s[0], batch) for s, (_, batch) in zip(states, pairs, strict=True)]
    stated = _compiled_arguments(model, model.classes, batches)
    found, slopes, extra = _first_order(*stated, tops, params.extra)
    parts = [
        _part(kind, params, batch, state, *map(np.asarray, derivatives))
        for (kind, batch), state, *derivatives in zip(
            pairs, states, slopes, extra, strict=True
        )
    ]
    return _weighted(found, batches), parts


# --- the network's part --------------------------------------------------------------


def _propagated(model, kind, params, batch, differentiable=False):
    """Rows of the last layer, and what they were made of."""
    make_rows = partial(_input_rows, model, kind, batch)
    return propagate(
        model.activations,
        params.layers,
        _inputs.get(batch.x, (model.problem, kind.rows), make_rows),
        kind.rows,
        n_waves(model.problem),
        differentiable,
    )


def _input_rows(model, kind, batch):
    """Rows of the inputs of the network, of shape (C, n P, n_inputs)."""
    problem, kinds = model.problem, kind.rows
    n, points, dim = batch.x.shape
    x = np.asarray(batch.x).reshape(n * points, dim)
    if problem.periodic or n_waves(problem):
        return np.moveaxis(np.asarray(input_stacks(problem, kinds, x, None)), 1, 0)
    # The axes, mapped to [-1, 1].
    rows = np.zeros((kinds.size, *x.shape), x.dtype)
    rows[0] = problem.embedding(x)
    if kinds.first:
        low, high = problem.domain.bounds.T
        for k, axis in enumerate(kinds.first, start=1):
            rows[k, :, axis] = 2 / (high[axis] - low[axis])
    return rows


def _as_rows(top, batch):
    """Rows (C, n P, q) of the last layer as the residual takes them, (n, P C, q)."""
    n, points, _ = batch.x.shape
    return top.swapaxes(0, 1).reshape(n, points * len(top), -1)


def _part(kind, params, batch, state, slopes, extra):
    """The Jacobian of a class from the derivatives (n, k, P C, q) in the last layer."""
    (n, points, _), (_, inputs, hidden) = batch.x.shape, state
    k, c = slopes.shape[1], kind.rows.size
    scale = np.asarray(batch.scale)[:, None, None]
    slopes = (scale[..., None] * slopes).reshape(n, k, points, c, -1)
    slopes = np.moveaxis(slopes, (1, 3), (0, 1)).reshape(k, c, n * points, -1)
    gradients = pull_back(slopes, params.layers, hidden, kind.rows)

    def by_point(g):
        g = g.reshape(k, c, n, points, -1)
        return np.moveaxis(g, (0, 1), (1, 3)).reshape(n, k, points * c, -1)

    layers = []
    for rows, g in zip(inputs, gradients, strict=True):
        biases = np.zeros((*rows.shape[:-1], 1), rows.dtype)
        biases[0] = 1
        rows = np.concatenate([rows, biases], axis=-1)
        layers.append((_as_rows(rows, batch), by_point(g)))
    extra = (scale * extra).reshape(n * k, -1)
    return Part(tuple(layers), np.zeros((n * k, 0), extra.dtype), extra)


# --- the user's part -----------------------------------------------------------------


def _compiled_arguments(model, classes, batches):
    """What is compiled for, and the points."""
    plain = Model(model.problem, (), classes)
    return plain, [(batch.x, batch.data) for batch in batches]


def _weighted(found, batches):
    return np.concatenate(
        [
            (np.asarray(batch.scale)[:, None] * np.asarray(rho)).ravel()
            for rho, batch in zip(found, batches, strict=True)
        ]
    )


def _by_rows(model, points, function, *arrays):
    """``function(residual, *arrays)`` of each row, class by class."""

    def of_class(kind, x, data, *own):
        def one(x, data, *own):
            def residual(top, extra):
                return row_from_top(model, kind, None, top, x, data, extra)

            return function(residual, *own)

        return jax.vmap(one)(x, data, *own)

    pairs = zip(model.classes, points, *arrays, strict=True)
    return [of_class(kind, *point, *own) for kind, point, *own in pairs]


@partial(jit_by_size, static_argnames="model")
def _residuals(model, points, tops, extra):
    """Residuals of each class, of shape (n, k)."""
    return _by_rows(model, points, lambda one, top: one(top, extra), tops)


@partial(jit_by_size, static_argnames="model")
def _first_order(model, points, tops, extra):
    """The same, with their derivatives (n, k, P C, q) and (n, k, c)."""

    def both(residual, top):
        rho, pull = jax.vjp(residual, top, extra)
        return rho, *jax.vmap(pull)(jnp.eye(rho.shape[0], dtype=rho.dtype))

    return tuple(zip(*_by_rows(model, points, both, tops), strict=True))


# --- Taylor mode: rows (C, n, width) of values, first and second derivatives ----------


class Layer(NamedTuple):
    """What is remembered of a hidden layer."""

    z: np.ndarray  # (C, n, v)  rows before the activation
    slopes: tuple  # of the activation at the values, from the first derivative on
    squares: np.ndarray  # (n_second, n, v)  sums of products of first derivatives


def _tanh(z):
    value = np.tanh(z)
    yield value
    first = value * value
    np.subtract(1, first, out=first)
    yield first
    second = value * first
    second *= -2
    yield second
    yield first * (4 - 6 * first)


def _sin(z):
    sine, cosine = np.sin(z), np.cos(z)
    yield from (sine, cosine, -sine, -cosine)


# Each yields the function and its first three derivatives.
ACTIVATIONS = {"tanh": _tanh, "sin": _sin}


def propagate(activations, layers, rows, kinds, n_waves, differentiable):
    """Rows after the last, affine layer, rows that each layer was given, and Layers.

    All rows are of shape (C, n, width); ``differentiable`` if :func:`pull_back`
    follows.
    """
    inputs, hidden, waves = [], [], rows[..., rows.shape[-1] - n_waves :]
    n_slopes = bool(kinds.first) + bool(kinds.second) + differentiable
    for name, matrix in zip(activations, layers, strict=False):
        inputs.append(rows)
        z = _affine(rows, matrix)
        value, *slopes = islice(ACTIVATIONS[name](z[0]), 1 + n_slopes)
        layer = Layer(z, tuple(slopes), _squares(z, kinds))
        hidden.append(layer)
        rows = np.empty_like(z)
        rows[0] = value
        if kinds.first:
            np.multiply(layer.slopes[0], layer.z[1:], out=rows[1:])
        if kinds.second:
            rows[1 + len(kinds.first) :] += layer.slopes[1] * layer.squares
    if n_waves:
        rows = np.concatenate([rows, waves], axis=-1)
    return _affine(rows, layers[-1]), [*inputs, rows], hidden


def _affine(rows, matrix):
    """Rows after an affine layer."""
    z = rows @ matrix[:-1]
    z[0] += matrix[-1]
    return z


def _pairs(kinds):
    """For each second row, the pairs of first rows whose products it sums."""
    place = {axis: k for k, axis in enumerate(kinds.first, start=1)}
    return [[(place[i], place[j]) for i, j in group] for group in kinds.second]


def _squares(z, kinds):
    """The sums of products that each second row adds up."""
    found = np.empty((len(kinds.second), *z.shape[1:]), z.dtype)
    for own, ((i, j), *others) in zip(found, _pairs(kinds), strict=True):
        np.multiply(z[i], z[j], out=own)
        for i, j in others:
            own += z[i] * z[j]
    return found


# --- derivatives in the weights ------------------------------------------------------


def pull_back(gradients, layers, hidden, kinds):
    """Derivatives (k, C, n, v) in the outputs of all layers, from those of the last."""
    found = [gradients]
    for matrix, layer in zip(layers[:0:-1], hidden[::-1], strict=True):
        n_neurons = layer.z.shape[-1]
        found.append(_before_activation(found[-1] @ matrix[:n_neurons].T, layer, kinds))
    return found[::-1]


def _before_activation(gradients, layer, kinds):
    """Derivatives in the rows before an activation, from those after it."""
    z, slopes, squares = layer
    cut = 1 + len(kinds.first)
    found = slopes[0] * gradients
    if kinds.first:
        found[:, 0] += slopes[1] * np.einsum("kcnv,cnv->knv", gradients[:, 1:], z[1:])
    if not kinds.second:
        return found
    found[:, 0] += slopes[2] * np.einsum("kcnv,cnv->knv", gradients[:, cut:], squares)
    bent = slopes[1] * gradients[:, cut:]
    for g, pairs in enumerate(_pairs(kinds)):
        for i, j in pairs:
            found[:, i] += bent[:, g] * z[j]
            found[:, j] += bent[:, g] * z[i]
    return found
