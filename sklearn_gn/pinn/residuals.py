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

from sklearn_gn.core.linear_algebra.jacobian import Parameters, Part
from sklearn_gn.networks._base import activation_function
from sklearn_gn.pde.operators import d
from sklearn_gn.pinn.taylor import (
    Along,
    Rows,
    input_stack,
    local_field,
    propagate,
)

_PROBES = 64  # points at which it is found out what a residual needs
_PROBED_FLOATS = 2**20
_EQUAL = 1e-9


class Batch(NamedTuple):
    """Points of a residual class."""

    x: jnp.ndarray  # (N, P, d): P points belong together in a periodic condition
    data: jnp.ndarray  # (N, e)  numbers that go with them, such as normals
    scale: jnp.ndarray  # (N,)  sqrt(weight / N); 0 for padding
    axes: jnp.ndarray | None = None  # (s,)  axes from which Laplacians are estimated


class ClassModel(NamedTuple):
    """A residual class, with what it needs of the network."""

    residual: Any  # function(fields, points, data, coefficients) -> (k,)
    rows: Rows | None  # None: the network itself is differentiated


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


# --- the network and its residuals ---------------------------------------------------


def network(model, params, x):
    """Outputs at one point, before hard constraints."""
    a, layers = model.problem.embedding(x), params.layers
    if model.features is not None:
        a, layers = model.features(layers[:-1], a), layers[-1:]
    for k, matrix in enumerate(layers):
        a = a @ matrix[:-1] + matrix[-1]
        if k < len(model.activations):
            a = activation_function(model.activations[k])(a)
    return a


def coefficients(problem, extra):
    """All coefficients by name: those known, and those that are parameters."""
    dtype = extra.dtype
    found = {name: _like(value, dtype) for name, value in problem.known.items()}
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


def _like(value, dtype):
    return value.astype(dtype) if isinstance(value, np.ndarray) else value


def _row(model, known, functions, x, data, extra, axes):
    """Residuals of one row, for functions of x at each of its points."""
    fields = tuple(model.problem.field(function, axes) for function in functions)
    found = coefficients(model.problem, extra)
    return known.residual.function(fields, x, data, found)


def _row_from_top(model, known, axes, top, x, data, extra):
    """The same from the last layer's rows at the points, of shape (P C, q)."""
    rows = known.rows
    functions = [
        local_field(top[p * rows.size : (p + 1) * rows.size], x[p], rows, axes)
        for p in range(x.shape[0])
    ]
    return _row(model, known, functions, x, data, extra, axes)


def _row_from_network(model, known, axes, params, x, data):
    functions = [partial(network, model, params)] * x.shape[0]
    return _row(model, known, functions, x, data, params.extra, axes)


def _stacks(model, known, batch):
    """Rows of the network's inputs, of shape (N P, C, n_inputs)."""
    n, points, dim = batch.x.shape
    x, embedding = batch.x.reshape(n * points, dim), model.problem.embedding
    if batch.axes is not None and not model.problem.periodic:
        return _sparse_stack(embedding, x, batch.axes, known.rows)
    make = partial(input_stack, embedding, rows=known.rows, axes=batch.axes)
    return jax.vmap(make)(x)


def _sparse_stack(embedding, x, axes, rows):
    """Inputs that are the axes, scaled one by one."""
    first = axes[np.array(rows.first, np.int32)]
    slopes = embedding(jnp.ones_like(x[0])) - embedding(jnp.zeros_like(x[0]))
    zeros = jnp.zeros(len(rows.second), x.dtype)
    return Along(jax.vmap(embedding)(x), first, slopes[first], zeros)


def _top(model, known, layers, stacks, batch, taps=None):
    top, inputs = propagate(model.activations, layers, stacks, known.rows, taps)
    n, points, _ = batch.x.shape
    return top.reshape(n, points * known.rows.size, -1), inputs


def class_residuals(model, known, params, batch):
    """Residuals of a class as they are, of shape (N, k)."""
    if known.rows is None:
        one = partial(_row_from_network, model, known, batch.axes, params)
        return jax.vmap(one)(batch.x, batch.data)
    stacks = _stacks(model, known, batch)
    top, _ = _top(model, known, params.layers, stacks, batch)
    one = partial(_row_from_top, model, known, batch.axes)
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


def weighted(batches, balance):
    """The batches with the classes' losses multiplied."""
    return tuple(
        batch._replace(scale=batch.scale * jnp.sqrt(balance[k]))
        for k, batch in enumerate(batches)
    )


def class_losses(model, batches, r):
    """Half the sum of squares of each class, of shape (n_classes,)."""
    sizes = [
        batch.x.shape[0] * known.residual.n_outputs
        for known, batch in zip(model.classes, batches, strict=True)
    ]
    parts = jnp.split(r, np.cumsum(sizes)[:-1])
    return jnp.stack([0.5 * jnp.sum(part**2) for part in parts])


@partial(jax.jit, static_argnames="model")
def solution(model, params, x):
    """The outputs of the solution at points, of shape (n, q)."""

    def one(x):
        return jnp.atleast_1d(model.problem.field(partial(network, model, params))(x))

    return jax.vmap(one)(x)


@partial(jax.jit, static_argnames="model")
def residual_values(model, params, x):
    """Residuals of the equation at points, of shape (n, k)."""
    kind = ClassModel(model.problem.residual_classes()[0], None)
    batch = Batch(x[:, None], x[:, :0], x[:, 0])
    return class_residuals(model, kind, params, batch)


@partial(jax.jit, static_argnames=("model", "axes"))
def derivative_values(model, params, x, axes):
    """Partial derivatives of the outputs at points, of shape (n, q)."""

    def one(x):
        field = model.problem.field(partial(network, model, params))
        return jnp.atleast_1d(d(field, *axes)(x))

    return jax.vmap(one)(x)


@partial(jax.jit, static_argnames="model")
def relative_error(model, params, points, values):
    """Relative L2 error over all outputs that are known."""
    return relative_errors(model.problem, solution(model, params, points), values)[0]


def relative_errors(problem, found, values):
    """Relative L2 errors: of all known outputs together, and of each.

    Outputs that are determined up to a constant are compared without their means. Takes
    arrays of either kind, numpy or JAX.
    """
    known = values == values
    exact = jnp.where(known, values, 0)
    error = jnp.where(known, found - values, 0)
    free = np.isin(problem.outputs, problem.up_to_constant)
    count = jnp.maximum(jnp.sum(known, axis=0, dtype=exact.dtype), 1)

    def squares(a):
        mean = jnp.where(free, jnp.sum(a, axis=0) / count, 0)
        return jnp.sum(jnp.where(known, a - mean[None], 0) ** 2, axis=0)

    error, exact = squares(error), squares(exact)
    return jnp.sqrt(jnp.sum(error) / jnp.sum(exact)), jnp.sqrt(error / exact)


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
        jnp.zeros((n * points, known.rows.size, matrix.shape[1]), batch.scale.dtype)
        for matrix in params.layers
    ]

    def tapped(taps, extra):
        top, inputs = _top(model, known, params.layers, stacks, batch, taps)
        one = partial(_row_from_top, model, known, batch.axes)
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
            a if isinstance(a, Along) else a.reshape(n, points * known.rows.size, -1),
            jnp.moveaxis(g.reshape(k, n, points * known.rows.size, -1), 0, 1),
        )
        for a, g in zip(inputs, gradients, strict=True)
    )
    empty = jnp.zeros((n * k, 0), rho.dtype)
    return rho.reshape(-1), Part(layers, empty, extra.reshape(n * k, -1))


def _dense_jacobian(model, known, params, batch):
    def one(params, x, data):
        return _row_from_network(model, known, batch.axes, params, x, data)

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


def needed_rows(problem, extra, axes=None):
    """The derivatives of the network that each residual class depends on.

    Found by differentiating it in all of them, at random points for random values of
    the derivatives, normals and coefficients. Second derivatives that it depends on in
    the same way share a row. None where it needs more than second derivatives at its
    own points: what it makes of a Taylor polynomial differs from what it makes of the
    function itself. To be called in double precision.

    Parameters
    ----------
    problem : Problem
    extra : array of shape (c,)
        The coefficients that are to be found, as parameters.
    axes : ndarray of int of shape (s,), default=None
        Axes from which Laplacians are estimated; None: they are exact.

    Returns
    -------
    tuple of Rows or None
    """
    rng = np.random.RandomState(0)
    model, kinds = Model(problem, (), ()), problem.residual_classes()
    few = _probes(problem, axes, rng)
    extra = np.asarray(extra, np.float64)
    # A term whose coefficient starts at zero is needed, and two whose coefficients
    # start at the same value will differ.
    extra = extra + 0.1 * (1 + np.abs(extra)) * rng.standard_normal(extra.shape)
    dim = problem.domain.dim if axes is None else len(axes)
    pairs = [(i, j) for i in range(dim) for j in range(i, dim)]
    full = Rows(tuple(range(dim)), tuple((pair,) for pair in pairs))
    known = tuple(ClassModel(kind, full) for kind in kinds)
    q = len(problem.outputs)
    tops = tuple(
        rng.standard_normal((*batch.x.shape[:2], full.size, q)) for batch in few
    )
    found = []
    for slopes in _slopes(model, known, few, tops, extra):
        slopes = np.moveaxis(np.asarray(slopes), 3, 0).reshape(full.size, -1)
        found.append(_rows_from_slopes(slopes, pairs, dim))
    known = tuple(map(ClassModel, kinds, found))
    weights = rng.standard_normal((2 * problem.n_inputs + 1, q))
    both = _both_ways(model, known, few, weights, extra)
    for k, (fast, true) in enumerate(both):
        size = np.abs(true).max()
        if not np.allclose(fast, true, rtol=_EQUAL, atol=_EQUAL * size):
            found[k] = None
    return tuple(found)


def _probes(problem, axes, rng):
    """Points of each class, with normals in all directions.

    They are more than the faces of a box in many dimensions would otherwise show.
    """
    n = max(4, min(_PROBES, _PROBED_FLOATS // problem.domain.dim))
    batches = []
    for points in problem.probes(n, rng).values():
        normals = rng.standard_normal(points.data.shape)
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        batches.append(Batch(points.x, normals, np.ones(n), axes))
    return tuple(batches)


@partial(jax.jit, static_argnames=("model", "known"))
def _slopes(model, known, batches, tops, extra):
    """Derivatives of each class in the rows, of shape (N, k, P, C, q)."""

    def one(kind, axes, top, x, data):
        flat = top.reshape(-1, top.shape[-1])
        return _row_from_top(model, kind, axes, flat, x, data, extra)

    return [
        jax.vmap(jax.jacrev(partial(one, kind, batch.axes)))(top, batch.x, batch.data)
        for kind, batch, top in zip(known, batches, tops, strict=True)
    ]


@partial(jax.jit, static_argnames=("model", "known"))
def _both_ways(model, known, batches, weights, extra):
    """Residuals of a wave, from its Taylor polynomials and from itself."""

    def wave(x):
        a = model.problem.embedding(x)
        a = jnp.concatenate([a, a**2, jnp.ones_like(a[:1])])
        return jnp.sin(a @ weights)

    def fast(kind, axes, x, data):
        rows = kind.rows
        functions = [
            local_field(input_stack(wave, point, rows, axes), point, rows, axes)
            for point in x
        ]
        return _row(model, kind, functions, x, data, extra, axes)

    def true(kind, axes, x, data):
        return _row(model, kind, [wave] * x.shape[0], x, data, extra, axes)

    def values(function, kind, batch):
        return jax.vmap(partial(function, kind, batch.axes))(batch.x, batch.data)

    return [
        tuple(values(function, kind, batch) for function in (fast, true))
        for kind, batch in zip(known, batches, strict=True)
    ]


def _rows_from_slopes(slopes, pairs, dim):
    """Rows for slopes of shape (1 + dim + n_pairs, anything)."""
    used = np.any(slopes != 0, axis=1)
    groups = []
    for pair, slope, wanted in zip(
        pairs, slopes[1 + dim :], used[1 + dim :], strict=True
    ):
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
    axes |= {i for i in range(dim) if used[1 + i]}
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
