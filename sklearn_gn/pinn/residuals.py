r"""Residuals of a network that is to solve a differential equation, and their Jacobian.

Residuals come in classes (interior, boundary, data, ...). With N points in a class,
each with residuals rho of k components, and a weight w, the loss is

    L = 1/2 |r|^2,    r stacks  sqrt(w / N) rho  of all classes.

What a residual needs of the network are derivatives at its point. Where these are of at
most second order, they are propagated through the layers by hand (``model``),
and the residual is handed the Taylor polynomial that they make; all others
differentiate the network itself, which is slower. Which ones a residual depends on is
found by differentiating it in all of them, and the finding is tried on a function whose
derivatives are known (:func:`rows_and_sizes`).
"""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.collectives import total
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.arrays.libraries import namespace
from sklearn_gn.linalg.jacobian import Part, ScaledAxes
from sklearn_gn.pde.domains import AT_ONCE
from sklearn_gn.pde.given_values import N_POINTS, ROUNDING
from sklearn_gn.pde.local_functions import LocalFunction, points_of_row
from sklearn_gn.pde.residual_classes import call, first_large_term, flat
from sklearn_gn.pinn.model import (
    Batch,
    DerivativeRows,
    Model,
    coefficients,
    input_stack,
    local_field,
    network,
    propagate,
)


def residuals(model, params, batches):
    """The vector r of shape (m,), weighted, one class after the other."""
    parts = []
    for kind, batch in zip(model.classes, batches, strict=True):
        rho = class_residuals(model, kind, params, batch)
        parts.append((batch.scale[:, None] * rho).reshape(-1))
    return jnp.concatenate(parts)


def residual_counts(classes, batches):
    """Number of residuals of each class at its points."""
    return [
        len(batch.x) * kind.n_outputs
        for kind, batch in zip(classes, batches, strict=True)
    ]


def class_losses(model, batches, r):
    """Half the sum of squares of each class, of shape (n_classes,)."""
    xp = namespace(r)
    ends = np.cumsum(residual_counts(model.classes, batches))
    parts = xp.split(r, ends[:-1])
    return total(xp.stack([0.5 * (part**2).sum() for part in parts]))


def class_residuals(model, kind, params, batch):
    """Residuals of a class as they are, of shape (N, k)."""
    if kind.rows is None:
        one = partial(_row_from_network, model, kind, batch.axes, params)
        return jax.vmap(one)(batch.x, batch.data)
    return _by_rows(model, kind, params, batch)[0]


def check_is_defined(model, params, batches):
    """Raise a ValueError if a residual of the network to start from is NaN or huge."""
    for kind, batch in zip(model.classes, batches, strict=True):
        if model.features is not None or kind.name == "data":
            continue
        rows = np.asarray(class_residuals(model, kind, params, batch))
        most = math.sqrt(np.finfo(rows.dtype).max)
        bad = ~(np.abs(rows) < most).all(axis=1)
        if bad.any():
            x, data = (np.asarray(a)[bad.argmax()] for a in (batch.x, batch.data))
            row = partial(_row_from_network, model, kind, batch.axes, params)
            raise ValueError(
                f"The residual {kind.name!r} is NaN or too large at "
                f"{x[0].round(6).tolist()} for the network to start from, by the term "
                f"{first_large_term(row, most, x, data)}. A solution that is positive "
                "may be negative during the fit: write jnp.maximum(u(x), 0) ** 1.5. "
                "Write factors of exponentials as one: jnp.exp(log_rate - energy / u)."
            )


def jacobian(model, params, batches):
    """r, and the parts of its Jacobian."""
    pairs = zip(model.classes, batches, strict=True)
    both = [_class_jacobian(model, kind, params, batch) for kind, batch in pairs]
    return jnp.concatenate([r for r, _ in both]), [part for _, part in both]


def rows_of_jacobian(model, params, batches):
    """Which arrays of r and the parts of its Jacobian have rows."""
    parts = []
    for kind, batch in zip(model.classes, batches, strict=True):
        layers = [(True, True)] * len(params.layers)
        if batch.axes is not None and not model.problem.periodic:
            layers[0] = ScaledAxes(True, False, False, False), True
        parts.append(Part(() if kind.rows is None else tuple(layers), True, True))
    return True, parts


# --- the Jacobian of a class ---------------------------------------------------------


def _class_jacobian(model, kind, params, batch):
    if kind.rows is None:
        return _dense_jacobian(model, kind, params, batch)
    (n, points, _), dtype = batch.x.shape, batch.scale.dtype
    rows = kind.rows
    taps = [
        jnp.zeros((n * points, rows.size, matrix.shape[1]), dtype)
        for matrix in params.layers
    ]

    def tapped(taps, extra):
        own = params._replace(extra=extra)
        rho, inputs = _by_rows(model, kind, own, batch, taps)
        return batch.scale[:, None] * rho, inputs

    rho, pull, inputs = jax.vjp(
        lambda taps: tapped(taps, params.extra), taps, has_aux=True
    )
    k = rho.shape[1]
    # Residuals of different points do not share taps: one backward pass a component.
    units = jnp.eye(k, dtype=rho.dtype)[:, None, :] + jnp.zeros_like(rho)[None]
    (gradients,) = jax.vmap(pull)(units)
    extra = jnp.zeros((n, k, 0), rho.dtype)
    if params.extra.size:
        extra = jax.jacfwd(lambda extra: tapped(taps, extra)[0])(params.extra)

    layers, size = [], points * rows.size
    for a, g in zip(inputs, gradients, strict=True):
        if not isinstance(a, ScaledAxes):
            a = a.reshape(n, size, -1)
        layers.append((a, jnp.moveaxis(g.reshape(k, n, size, -1), 0, 1)))
    empty = jnp.zeros((n * k, 0), rho.dtype)
    return rho.reshape(-1), Part(tuple(layers), empty, extra.reshape(n * k, -1))


def _dense_jacobian(model, kind, params, batch):
    def one(params, x, data):
        return _row_from_network(model, kind, batch.axes, params, x, data)

    rho = jax.vmap(partial(one, params))(batch.x, batch.data)
    derivative = jax.vmap(jax.jacrev(one), in_axes=(None, 0, 0))
    rows = derivative(params, batch.x, batch.data)
    (n, k), scale = rho.shape, batch.scale[:, None]
    flat = jnp.concatenate([a.reshape(n, k, -1) for a in rows.layers], axis=2)
    both = (scale[..., None] * a for a in (flat, rows.extra))
    part = Part((), *(a.reshape(n * k, -1) for a in both))
    return (scale * rho).reshape(-1), part


def row_residuals(model, kind, functions, points, data, extra, axes):
    """Residuals of one row, for functions of x at each of its points."""
    given = points, data, coefficients(model.problem, extra), axes
    return model.problem._residuals_at(kind, functions, *given)


@partial(jax.jit, static_argnums=(0, 1))
def row_from_top(model, kind, axes, top, x, data, extra):
    """Residuals of one row, from rows of the last layer of shape (P C, q)."""
    rows, points = kind.rows, points_of_row(x)
    functions = [
        local_field(top[p * rows.size : (p + 1) * rows.size], point, rows, axes)
        for p, point in enumerate(points)
    ]
    return row_residuals(model, kind, functions, points, data, extra, axes)


def _row_from_network(model, kind, axes, params, x, data):
    functions = [partial(network, model, params)] * x.shape[0]
    return row_residuals(model, kind, functions, x, data, params.extra, axes)


def _stacks(model, kind, batch):
    """The stack of the network's inputs, or ScaledAxes."""
    (n, points, dim), rows = batch.x.shape, kind.rows
    x, embedding = batch.x.reshape(n * points, dim), model.problem.embedding
    if batch.axes is not None and not model.problem.periodic:
        # Inputs that are the axes, scaled one by one.
        first = batch.axes[np.array(rows.first, np.int32)]
        slopes = embedding(jnp.ones_like(x[0])) - embedding(jnp.zeros_like(x[0]))
        zeros = jnp.zeros(len(rows.second), x.dtype)
        return ScaledAxes(jax.vmap(embedding)(x), first, slopes[first], zeros)
    make = partial(input_stack, embedding, rows=rows, axes=batch.axes)
    return jax.vmap(make)(x)


def _by_rows(model, kind, params, batch, taps=None):
    """Residuals (N, k) as they are, and the stacks that the layers were given."""
    stacks, rows = _stacks(model, kind, batch), kind.rows
    given = params.layers, stacks, rows, taps, model.problem.n_functions
    top, inputs = propagate(model.activations, *given)
    n, points, _ = batch.x.shape
    top = top.reshape(n, points * rows.size, -1)
    one = partial(row_from_top, model, kind, batch.axes)
    found = jax.vmap(one, (0, 0, 0, None))(top, batch.x, batch.data, params.extra)
    return found, inputs


@dataclass(frozen=True)
class Observed:
    """Residual of observations; of one that is missing, NaN, it is zero."""

    # Numbers of outputs, or functions of the field and a point. The data of several are
    # the observations, then factors of the misfits.
    entries: tuple

    def __call__(self, fields, points, data, coefficients):
        """Misfit at a point, of shape (k,); without data what is observed there."""
        field, x = fields[0], points[0]
        outputs = jnp.atleast_1d(field(x))
        found = (
            call(entry, (field, x), coefficients) if callable(entry) else outputs[entry]
            for entry in self.entries
        )
        values = flat(tuple(found), x)
        if not data.size:
            return values
        given, factors = jnp.split(data, [len(self.entries)])
        missing = jnp.isnan(given)
        misfits = jnp.where(missing, 0, values - jnp.where(missing, 0, given))
        return factors * misfits if factors.size else misfits


# --- which derivatives of the network a residual depends on --------------------------


def rows_and_sizes(problem, extra, axes=None, observed=None):
    """The DerivativeRows that each class depends on (or None), and its sizes (k,).

    The classes are differentiated in all derivatives, at random points, values, normals
    and coefficients; second derivatives of one slope share a row. None where a class
    needs more than second derivatives at its own points. A size is the change of a
    residual with a solution of size one that varies over the domain once.
    """
    rng = np.random.RandomState(0)
    model, kinds = Model(problem, (), ()), problem.residual_classes()
    # Points of each class, with normals in all directions.
    few, dim = [], problem.domain.dim
    for points in problem.probes(max(4, min(N_POINTS, AT_ONCE // dim)), rng).values():
        data = points.data.copy()
        data[:, :dim] = rng.standard_normal(data[:, :dim].shape)
        data[:, :dim] /= np.linalg.norm(data[:, :dim], axis=1, keepdims=True)
        few.append(Batch(points.x, data, np.ones(len(points.x)), axes))
    if observed is not None:
        data = rng.standard_normal((len(few[0].x), observed.n_outputs))
        kinds, few = (*kinds, observed), (*few, few[0]._replace(data=data))
    extra = np.asarray(extra, np.float64)
    # A term whose coefficient starts at zero is needed, and two whose coefficients
    # start at the same value will differ.
    extra = extra + 0.1 * (1 + np.abs(extra)) * rng.standard_normal(extra.shape)
    dim = problem.domain.dim if axes is None else len(axes)
    pairs = [(i, j) for i in range(dim) for j in range(i, dim)]
    full = DerivativeRows(tuple(range(dim)), tuple((pair,) for pair in pairs))
    classes = tuple(kind._replace(rows=full) for kind in kinds)
    q = problem.n_network_outputs
    tops = tuple(
        rng.uniform(-1, 1, (*batch.x.shape[:2], full.size, q)) for batch in few
    )
    found, sizes, few = [], [], tuple(few)
    # Value and derivatives of u(x) = s by one unit of the axes mapped to [-1, 1].
    steps = 2 / np.ptp(problem.domain.bounds, axis=1)
    steps = steps if axes is None else steps[axes]
    units = np.concatenate([[1.0], steps, [steps[i] * steps[j] for i, j in pairs]])
    for slopes in _slopes(model, classes, few, tops, extra):
        slopes = np.asarray(slopes)  # (N, k, P, C, q)
        with np.errstate(over="ignore"):
            squares = np.sum((units[:, None] * slopes) ** 2, axis=(2, 3, 4))
        # By medians: near a singular place they are huge.
        usual = np.median(squares, axis=0)
        sizes.append(np.sqrt(np.where(usual > 0, usual, squares.mean(axis=0))))
        slopes = np.moveaxis(slopes, 3, 0).reshape(full.size, -1)
        found.append(_rows_from_slopes(slopes, pairs, dim))
    pairs = zip(kinds, found, strict=True)
    classes = tuple(kind._replace(rows=rows) for kind, rows in pairs)
    # Classes that need more than their rows, by the residuals of a wave. The known
    # functions, the last inputs, vary more than once.
    n_plain = problem.n_inputs - problem.n_functions
    weights = rng.standard_normal((2 * n_plain + 1, q))
    doubtful = {
        k: pair
        for k, pair in enumerate(zip(classes, few, strict=True))
        if not _needs_known_derivatives_alone(model, *pair, extra)
    }
    given = *zip(*doubtful.values(), strict=True), weights, extra
    both = _both_ways(model, *given) if doubtful else ()
    for k, (fast, true) in zip(doubtful, both, strict=True):
        size = np.nanmax(np.abs(true), initial=0.0)
        if not np.allclose(fast, true, rtol=ROUNDING, atol=ROUNDING * size):
            found[k] = None
            sizes[k] = np.sqrt(np.mean(np.square(true), axis=0))
    return tuple(found), tuple(sizes)


@partial(jit_by_size, static_argnames=("model", "classes"))
def _slopes(model, classes, batches, tops, extra):
    """Derivatives of each class in the rows, of shape (N, k, P, C, q)."""

    def one(kind, axes, top, x, data):
        flat = top.reshape(-1, top.shape[-1])
        return row_from_top(model, kind, axes, flat, x, data, extra)

    return [
        jax.vmap(jax.jacrev(partial(one, kind, batch.axes)))(top, batch.x, batch.data)
        for kind, batch, top in zip(classes, batches, tops, strict=True)
    ]


def _needs_known_derivatives_alone(model, kind, batch, extra):
    """Whether a residual takes derivatives as they are, and no polynomial elsewhere."""
    elsewhere = []

    def residual(top, x, data):
        points = points_of_row(x)

        def function(point):
            local = local_field(top, point, kind.rows, batch.axes)
            if not isinstance(local, LocalFunction):
                elsewhere.append(point)
                return local

            def polynomial(x):
                elsewhere.append(x)
                return local.function(x)

            return local._replace(function=polynomial)

        functions = list(map(function, points))
        return row_residuals(model, kind, functions, points, data, extra, batch.axes)

    top = np.zeros((kind.rows.size, model.problem.n_network_outputs))
    jax.eval_shape(residual, top, batch.x[0], batch.data[0])
    return not elsewhere


@partial(jit_by_size, static_argnames=("model", "classes"))
def _both_ways(model, classes, batches, weights, extra):
    """Residuals of a wave, from its Taylor polynomials and from itself."""

    def wave(x):
        a = model.problem.embedding(x)[: len(weights) // 2]
        a = jnp.concatenate([a, a**2, jnp.ones_like(a[:1])])
        return jnp.sin(a @ weights)

    def fast(kind, axes, x, data):
        rows, points = kind.rows, points_of_row(x)
        functions = [
            local_field(input_stack(wave, point, rows, axes), point, rows, axes)
            for point in points
        ]
        return row_residuals(model, kind, functions, points, data, extra, axes)

    def true(kind, axes, x, data):
        return row_residuals(model, kind, [wave] * x.shape[0], x, data, extra, axes)

    return [
        tuple(jax.vmap(partial(f, kind, b.axes))(b.x, b.data) for f in (fast, true))
        for kind, b in zip(classes, batches, strict=True)
    ]


def _rows_from_slopes(slopes, pairs, dim):
    """Rows for slopes of shape (1 + dim + n_pairs, anything)."""
    groups = []
    for pair, slope in zip(pairs, slopes[1 + dim :], strict=True):
        if not slope.any():
            continue
        for group, first in groups:
            size = np.abs(first).max()
            if np.allclose(slope, first, rtol=ROUNDING, atol=ROUNDING * size):
                group.append(pair)
                break
        else:
            groups.append(([pair], slope))
    second = tuple(tuple(group) for group, _ in groups)
    axes = {axis for group in second for pair in group for axis in pair}
    axes |= set(np.flatnonzero(slopes[1 : 1 + dim].any(axis=1)).tolist())
    return DerivativeRows(tuple(sorted(axes)), second)
