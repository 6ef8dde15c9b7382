"""Which derivatives of the network a residual depends on.

They are found by differentiating the residual in all of them, and the finding is tried
on a function whose derivatives are classes.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.pde.local_functions import LocalFunction, points_of_row
from sklearn_gn.pinn.model import (
    LARGE,
    PROBES,
    ROUNDING,
    Batch,
    ClassModel,
    Model,
    n_waves,
)
from sklearn_gn.pinn.residuals import row_from_top, row_residuals
from sklearn_gn.pinn.taylor import DerivativeRows, input_stack, local_field


def rows_and_sizes(problem, extra, axes=None, observed=None):
    """The DerivativeRows that each class depends on (or None), and its sizes (k,).

    The classes are differentiated in all derivatives, at random points, values, normals
    and coefficients; second derivatives of one slope share a row. None where a class
    needs more than second derivatives at its own points. A size is the change of a
    residual with a solution of size one that varies over the domain once.
    """
    rng = np.random.RandomState(0)
    model, kinds = Model(problem, (), ()), problem.residual_classes()
    few = _probes(problem, axes, rng)
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
    classes = tuple(ClassModel(kind, full) for kind in kinds)
    q = problem.n_network_outputs
    tops = tuple(
        rng.uniform(-1, 1, (*batch.x.shape[:2], full.size, q)) for batch in few
    )
    found, sizes = [], []
    units = _units(problem, pairs, axes)
    for slopes in _slopes(model, classes, few, tops, extra):
        slopes = np.asarray(slopes)  # (N, k, P, C, q)
        sizes.append(_usual_sizes(units[:, None] * slopes))
        slopes = np.moveaxis(slopes, 3, 0).reshape(full.size, -1)
        found.append(_rows_from_slopes(slopes, pairs, dim))
    classes = tuple(map(ClassModel, kinds, found))
    for k, values in _needing_more(model, classes, few, extra, rng):
        found[k] = None
        sizes[k] = np.sqrt(np.mean(np.square(values), axis=0))
    return tuple(found), tuple(sizes)


def _needing_more(model, classes, batches, extra, rng):
    """Yield the classes that need more than their rows, and residuals of a wave."""
    # Waves and singular functions, the last inputs, vary more than once.
    problem = model.problem
    n_plain = problem.n_inputs - n_waves(problem)
    weights = rng.standard_normal((2 * n_plain + 1, problem.n_network_outputs))
    doubtful = [
        k
        for k, (kind, batch) in enumerate(zip(classes, batches, strict=True))
        if not _needs_known_derivatives_alone(model, kind, batch, extra)
    ]
    if not doubtful:
        return
    both = _both_ways(
        model,
        tuple(classes[k] for k in doubtful),
        tuple(batches[k] for k in doubtful),
        weights,
        extra,
    )
    for k, (fast, true) in zip(doubtful, both, strict=True):
        size = np.nanmax(np.abs(true), initial=0.0)
        if not np.allclose(fast, true, rtol=ROUNDING, atol=ROUNDING * size):
            yield k, true


@np.errstate(over="ignore")
def _usual_sizes(slopes):
    """Sizes of residuals, by medians: near a singular place they are huge."""
    squares = np.sum(slopes**2, axis=(2, 3, 4))
    medians = np.median(squares, axis=0)
    return np.sqrt(np.where(medians > 0, medians, squares.mean(axis=0)))


def _units(problem, pairs, axes):
    """Value and derivatives of u(x) = s by one unit of the axes mapped to [-1, 1]."""
    low, high = problem.domain.bounds.T
    slopes = 2 / (high - low)
    slopes = slopes if axes is None else slopes[axes]
    return np.concatenate([[1.0], slopes, [slopes[i] * slopes[j] for i, j in pairs]])


def _probes(problem, axes, rng):
    """Points of each class, with normals in all directions."""
    n = max(4, min(PROBES, LARGE // problem.domain.dim))
    batches = []
    for points in problem.probes(n, rng).values():
        data, dim = points.data.copy(), problem.domain.dim
        data[:, :dim] = rng.standard_normal(data[:, :dim].shape)
        data[:, :dim] /= np.linalg.norm(data[:, :dim], axis=1, keepdims=True)
        batches.append(Batch(points.x, data, np.ones(len(points.x)), axes))
    return tuple(batches)


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
    used = np.any(slopes != 0, axis=1)
    groups = []
    for pair, slope, wanted in zip(
        pairs, slopes[1 + dim :], used[1 + dim :], strict=True
    ):
        if not wanted:
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
    axes |= {i for i in range(dim) if used[1 + i]}
    return DerivativeRows(tuple(sorted(axes)), second)
