"""Levenberg-Marquardt of optimistix, on residuals written out in JAX."""

from functools import partial
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jax.flatten_util import ravel_pytree

from benchmarks._peers import _common


def start(sizes, seed):
    """Glorot weights and zero biases."""
    rng = np.random.RandomState(seed)
    return [
        (rng.standard_normal((w, v)) * np.sqrt(2 / (w + v)), np.zeros(v))
        for w, v in pairwise(sizes)
    ]


def network(layers, x):
    """Velocity and pressure at a point."""
    a = _common.unit(x)
    for matrix, bias in layers[:-1]:
        a = jnp.tanh(a @ matrix + bias)
    matrix, bias = layers[-1]
    return a @ matrix + bias


def navier_stokes(layers, x):
    """Balance of momentum and divergence at a point."""
    flow = partial(network, layers)
    value, slope = flow(x), jax.jacfwd(flow)(x)
    second = jax.jacfwd(jax.jacfwd(flow))(x)
    friction = _common.VISCOSITY * jnp.trace(second, axis1=1, axis2=2)
    momentum = slope[:2] @ value[:2] + slope[2] - friction[:2]
    return jnp.append(momentum, slope[0, 0] + slope[1, 1])


def misfit(layers, x):
    """Velocity less the exact one at a point of the boundary."""
    return network(layers, x)[:2] - _common.exact_velocity(x, jnp)


def stacked(of_point, points):
    """What functions of a point give at all points, scaled as the loss wants it."""
    parts = []
    for function, x in zip(of_point, points, strict=True):
        values = jax.vmap(function)(x) / np.sqrt(len(x))
        parts.append(values.reshape(-1, *values.shape[2:]))
    return jnp.concatenate(parts)


def residuals_of(layers_of, points):
    """Residuals of a flat vector of weights, with their Jacobian.

    A residual depends on one point: differentiated as a whole, as the library does it,
    the Jacobian needs many times as much memory.
    """
    kinds = navier_stokes, misfit

    @jax.custom_jvp
    def residuals(y):
        return stacked([partial(kind, layers_of(y)) for kind in kinds], points)

    @residuals.defjvp
    def _(primals, tangents):
        (y,), (direction,) = primals, tangents
        rows = [
            partial(jax.jacrev(lambda y, x, kind=kind: kind(layers_of(y), x)), y)
            for kind in kinds
        ]
        return residuals(y), stacked(rows, points) @ direction

    return residuals


def fit(task, curve):
    y, layers_of = ravel_pytree(start(task.sizes, task.seed))
    points = jnp.asarray(task.interior), jnp.asarray(task.boundary)
    residuals = residuals_of(layers_of, points)
    solver = optimistix.LevenbergMarquardt(rtol=1e-14, atol=1e-14)
    # There are fewer residuals than weights: the Jacobian row by row.
    words = {"args": None, "options": {"jac": "bwd"}, "tags": frozenset()}

    def function(y, _):
        return residuals(y), None

    @jax.jit
    def loss(y):
        return 0.5 * jnp.sum(residuals(y) ** 2)

    @jax.jit
    def velocity(y, x):
        return jax.vmap(partial(network, layers_of(y)))(x)

    shape = jax.eval_shape(residuals, y)
    state = solver.init(function, y, f_struct=shape, aux_struct=None, **words)
    step = eqx.filter_jit(eqx.Partial(solver.step, function, **words))
    later, state_later, _ = step(y=y, state=state)
    step(y=later, state=state_later)  # compiles again: the types differ
    curve.start()
    while not curve.done:
        y, state, _ = jax.block_until_ready(step(y=y, state=state))
        curve.add(partial(loss, y), partial(velocity, y))
    return {"method": "LevenbergMarquardt"}


if __name__ == "__main__":
    _common.main("optimistix", fit)
