"""The Taylor mode of ``taylor`` in NumPy, with its derivatives in the weights by hand.

A network of a few hundred neurons at some thousand points computes for a millisecond:
its derivatives take a thousand times as long to be traced and compiled. Here rows are
arrays (C, n, width), kind by kind: the value, first and second derivatives.
"""

from itertools import islice
from typing import NamedTuple

import numpy as np


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


def with_biases(rows):
    """Rows (C, n, w) with the column of the biases."""
    found = np.zeros((*rows.shape[:-1], rows.shape[-1] + 1), rows.dtype)
    found[..., :-1] = rows
    found[0, :, -1] = 1
    return found


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
        _activate_derivatives(layer, kinds, rows[1:])
    if n_waves:
        rows = np.concatenate([rows, waves], axis=-1)
    return _affine(rows, layers[-1]), [*inputs, rows], hidden


def _affine(rows, matrix):
    """Rows after an affine layer."""
    z = rows @ matrix[:-1]
    z[0] += matrix[-1]
    return z


def _activate_derivatives(layer, kinds, out):
    """Write the rows of the derivatives after an activation."""
    if kinds.first:
        np.multiply(layer.slopes[0], layer.z[1:], out=out)
    if kinds.second:
        out[len(kinds.first) :] += layer.slopes[1] * layer.squares


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
