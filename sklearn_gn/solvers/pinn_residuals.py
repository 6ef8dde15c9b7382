r"""Residuals of a network that is to solve a differential equation, and their Jacobian.

Residuals come in classes (interior, boundary, data, ...). With N points in a class,
each with residuals rho of k components, and a weight w, the loss is

    L = 1/2 |r|^2,    r stacks  sqrt(w / N) rho  of all classes.

What a residual needs of the network are derivatives at its point. Where these are of at
most second order, they are propagated through the layers by hand (``networks/taylor``),
and the residual is handed the Taylor polynomial that they make; all others
differentiate the network itself, which is slower.
"""

import math
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.curvature.jacobian import Parameters, Part
from sklearn_gn.networks._base import activation_function
from sklearn_gn.networks.taylor import Rows, input_stack, local_field, propagate

_PROBES = 64  # points at which it is found out what a residual needs
_EQUAL = 1e-9


class Batch(NamedTuple):
    """Points of a residual class."""

    x: jnp.ndarray  # (N, P, d): P points belong together in a periodic condition
    data: jnp.ndarray  # (N, e)  numbers that go with them, such as normals
    scale: jnp.ndarray  # (N,)  sqrt(weight / N); 0 for padding


class ClassModel(NamedTuple):
    """A residual class, with what it needs of the network."""

    residual: Any  # function(fields, points, data, coefficients) -> (k,)
    rows: Rows | None  # None: the network itself is differentiated


class Model(NamedTuple):
    """What is fixed when functions are compiled."""

    problem: Any
    activations: tuple
    classes: tuple  # of ClassModel


# --- the network and its residuals ---------------------------------------------------


def network(model, params, x):
    """Outputs at one point, before hard constraints."""
    a = model.problem.embedding(x)
    for k, matrix in enumerate(params.layers):
        a = a @ matrix[:-1] + matrix[-1]
        if k < len(model.activations):
            a = activation_function(model.activations[k])(a)
    return a


def coefficients(problem, extra):
    """All coefficients by name: those known, and those that are parameters."""
    found, start = dict(problem.known), 0
    for name, unknown in problem.unknown.items():
        shape = np.shape(unknown.initial)
        stop = start + math.prod(shape)
        found[name] = unknown.decode(extra[start:stop].reshape(shape))
        start = stop
    return found


def _row(model, known, functions, x, data, extra):
    """Residuals of one row, for functions of x at each of its points."""
    fields = tuple(model.problem.field(function) for function in functions)
    found = coefficients(model.problem, extra)
    return known.residual.function(fields, x, data, found)


def _row_from_top(model, known, top, x, data, extra):
    """The same from the last layer's rows at the points, of shape (P C, q)."""
    rows = known.rows
    functions = [
        local_field(top[p * rows.size : (p + 1) * rows.size], x[p], rows)
        for p in range(x.shape[0])
    ]
    return _row(model, known, functions, x, data, extra)


def _row_from_network(model, known, params, x, data):
    functions = [partial(network, model, params)] * x.shape[0]
    return _row(model, known, functions, x, data, params.extra)


def _stacks(model, known, batch):
    """Rows of the network's inputs, of shape (N P, C, n_inputs)."""
    n, points, d = batch.x.shape
    make = partial(input_stack, model.problem.embedding, rows=known.rows)
    return jax.vmap(make)(batch.x.reshape(n * points, d))


def _top(model, known, layers, stacks, batch, taps=None):
    top, inputs = propagate(model.activations, layers, stacks, known.rows, taps)
    n, points, _ = batch.x.shape
    return top.reshape(n, points * known.rows.size, -1), inputs


def class_residuals(model, known, params, batch):
    """Residuals of a class as they are, of shape (N, k)."""
    if known.rows is None:
        one = partial(_row_from_network, model, known, params)
        return jax.vmap(one)(batch.x, batch.data)
    stacks = _stacks(model, known, batch)
    top, _ = _top(model, known, params.layers, stacks, batch)
    one = partial(_row_from_top, model, known)
    return jax.vmap(one, in_axes=(0, 0, 0, None))(
        top, batch.x, batch.data, params.extra
    )


def residuals(model, params, batches):
    """The vector r of shape (m,), weighted, one class after the other."""
    parts = []
    for known, batch in zip(model.classes, batches, strict=True):
        rho = class_residuals(model, known, params, batch)
        parts.append((batch.scale[:, None] * rho).reshape(-1))
    return jnp.concatenate(parts)


def second_derivative(model, params, batches, direction):
    """``d^2/dt^2 r(theta + t v)`` at t = 0."""

    def along(params):
        return jax.jvp(partial(_flipped, model, batches), (params,), (direction,))[1]

    return jax.jvp(along, (params,), (direction,))[1]


def _flipped(model, batches, params):
    return residuals(model, params, batches)


# --- their Jacobian ------------------------------------------------------------------


def jacobian(model, params, batches):
    """r, and the parts of its Jacobian."""
    both = [
        _class_jacobian(model, known, params, batch)
        for known, batch in zip(model.classes, batches, strict=True)
    ]
    return jnp.concatenate([r for r, _ in both]), [part for _, part in both]


def _class_jacobian(model, known, params, batch):
    if known.rows is None:
        return _dense_jacobian(model, known, params, batch)
    stacks = _stacks(model, known, batch)
    n, points, _ = batch.x.shape
    taps = [
        jnp.zeros((*stacks.shape[:2], matrix.shape[1]), stacks.dtype)
        for matrix in params.layers
    ]

    def tapped(taps, extra):
        top, inputs = _top(model, known, params.layers, stacks, batch, taps)
        one = partial(_row_from_top, model, known)
        rho = jax.vmap(one, in_axes=(0, 0, 0, None))(top, batch.x, batch.data, extra)
        return batch.scale[:, None] * rho, inputs

    rho, pull, inputs = jax.vjp(
        lambda taps: tapped(taps, params.extra), taps, has_aux=True
    )
    k = rho.shape[1]
    # Residuals of different points do not share taps: one backward pass a component.
    units = jnp.eye(k, dtype=rho.dtype)[:, None, :] + jnp.zeros_like(rho)[None]
    (gradients,) = jax.vmap(pull)(units)
    extra = jax.jacfwd(lambda extra: tapped(taps, extra)[0])(params.extra)
    layers = tuple(
        (
            a.reshape(n, points * known.rows.size, -1),
            jnp.moveaxis(g.reshape(k, n, points * known.rows.size, -1), 0, 1),
        )
        for a, g in zip(inputs, gradients, strict=True)
    )
    empty = jnp.zeros((n * k, 0), rho.dtype)
    return rho.reshape(-1), Part(layers, empty, extra.reshape(n * k, -1))


def _dense_jacobian(model, known, params, batch):
    def one(params, x, data):
        return _row_from_network(model, known, params, x, data)

    rho = jax.vmap(partial(one, params))(batch.x, batch.data)
    derivative = jax.vmap(jax.jacrev(one), in_axes=(None, 0, 0))
    rows = derivative(params, batch.x, batch.data)
    n, k = rho.shape
    flat = [a.reshape(n, k, -1) for a in rows.layers]
    matrix = batch.scale[:, None, None] * jnp.concatenate(flat, axis=2)
    extra = batch.scale[:, None, None] * rows.extra
    rho = batch.scale[:, None] * rho
    part = Part((), matrix.reshape(n * k, -1), extra.reshape(n * k, -1))
    return rho.reshape(-1), part


# --- what a residual needs -----------------------------------------------------------


def needed_rows(model, residual, params, batch):
    """The derivatives of the network that a residual class depends on.

    Found by differentiating it in all of them, at some of its points for random values
    of the derivatives. Second derivatives that it depends on in the same way share a
    row. None where it needs more than second derivatives at its own points: what it
    makes of the Taylor polynomial differs from what it makes of the network.

    Parameters
    ----------
    model : Model
        Its ``classes`` are not used.
    residual : ResidualClass
    params : Parameters
    batch : Batch

    Returns
    -------
    Rows or None
    """
    few = Batch(*(a[:_PROBES] for a in batch))
    n, points, d = few.x.shape
    pairs = [(i, j) for i in range(d) for j in range(i, d)]
    full = Rows(tuple(range(d)), tuple((pair,) for pair in pairs))
    q = params.layers[-1].shape[1]
    rng = np.random.RandomState(0)
    top = rng.standard_normal((n, points * full.size, q)).astype(few.x.dtype)
    slopes = np.asarray(_slopes(model, ClassModel(residual, full), params, few, top))
    slopes = slopes.reshape(n, -1, points, full.size, q)
    slopes = np.moveaxis(slopes, 3, 0).reshape(full.size, -1)
    rows = _rows_from_slopes(slopes, pairs, d)
    fast = np.asarray(_probe(model, ClassModel(residual, rows), params, few))
    true = np.asarray(_probe(model, ClassModel(residual, None), params, few))
    same = np.allclose(fast, true, rtol=_EQUAL, atol=_EQUAL * np.abs(true).max())
    return rows if same else None


@partial(jax.jit, static_argnames=("model", "known"))
def _slopes(model, known, params, batch, top):
    one = partial(_row_from_top, model, known)
    derivative = jax.vmap(jax.jacrev(one), in_axes=(0, 0, 0, None))
    return derivative(top, batch.x, batch.data, params.extra)


@partial(jax.jit, static_argnames=("model", "known"))
def _probe(model, known, params, batch):
    return class_residuals(model, known, params, batch)


def _rows_from_slopes(slopes, pairs, d):
    """Rows for slopes of shape (1 + d + n_pairs, anything)."""
    used = np.any(slopes != 0, axis=1)
    groups = []
    for pair, slope, wanted in zip(pairs, slopes[1 + d :], used[1 + d :], strict=True):
        if not wanted:
            continue
        for group, first in groups:
            size = np.abs(first).max()
            if np.allclose(slope, first, rtol=_EQUAL, atol=_EQUAL * size):
                group.append(pair)
                break
        else:
            groups.append(([pair], slope))
    second = tuple(tuple(group) for group, _ in groups)
    axes = {axis for group in second for pair in group for axis in pair}
    axes |= {i for i in range(d) if used[1 + i]}
    return Rows(tuple(sorted(axes)), second)


def start_parameters(rng, sizes, unknown):
    """Glorot weights and zero biases, drawn in numpy.

    ``sizes`` are the widths from the inputs to the outputs, ``unknown`` the
    coefficients that are to be found.
    """
    layers = []
    for w, v in pairwise(sizes):
        matrix = np.zeros((w + 1, v))
        matrix[:-1] = rng.standard_normal((w, v)) * np.sqrt(2 / (w + v))
        layers.append(matrix)
    extra = [np.ravel(u.encode(u.initial)) for u in unknown]
    return Parameters(tuple(layers), np.concatenate([np.zeros(0), *extra]))
