"""Functions whose derivatives at one point are known, and what operators make of it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn.pde import Box, Neumann, Problem, d, div, grad, hessian, laplacian
from sklearn_gn.pde.local_functions import (
    LocalFunction,
    points_of_row,
    wave_at,
)
from sklearn_gn.pinn.enrichment import PosedProblem
from sklearn_gn.pinn.model import DerivativeRows, Model
from sklearn_gn.pinn.residuals import (
    Batch,
    _needs_known_derivatives_alone,
    row_from_top,
)

pytestmark = pytest.mark.usefixtures("float64")

BOX = Box(x=(0.0, 1.0), y=(0.0, 1.0), t=(0.0, 1.0))
NAMES = ("u", "v", "p")


def fields_and_points(problem, known_at, x):
    points = points_of_row(x)
    return tuple(problem.field(known_at(point)) for point in points), points


def expanded(function, x):
    """The function, with its value and first two derivatives at x."""
    slopes = jax.jacfwd(function)
    known = function(x), slopes(x), jax.jacfwd(slopes)(x)
    return LocalFunction(function, x, lambda axes: known[len(axes)][(..., *axes)], 2)


def smooth(x):
    weights = np.arange(9.0).reshape(3, 3) / 7 - 0.5
    return jnp.sin(weights @ x) * x[0] + x[1] ** 2


def of_operators(u, x):
    """What every operator makes of the derivatives at a point, and of others."""
    flow = u["u", "v"]
    return jnp.concatenate(
        [
            u(x),
            d(u, "x")(x),
            d(u, "t", "x")(x),
            d(u, "x", "x", "y")(x),
            d(u["p"], "t")(x)[None],
            (-d(u[-1], "y", "y"))(x)[None],
            jnp.ravel(grad(u)(x)),
            jnp.ravel(grad(u[1])(x)),
            jnp.ravel(d(grad(u), "t")(x)),
            laplacian(u)(x),
            laplacian(flow)(x),
            jnp.ravel(hessian(u[:2])(x)),
            div(flow)(x)[None],
            div(u[0] * grad(u[2]))(x)[None],
            d(laplacian(u[0]), "y")(x)[None],
            (flow @ d(flow, "y"))(x)[None],
            u(x + 1.0),
            d(u, "x")(2 * x),
        ]
    )


@pytest.mark.slow
def test_operators_agree_with_differentiation_and_ask_for_less():
    problem = Problem(lambda u, x: u(x), BOX, outputs=NAMES)

    def plain(x):
        return of_operators(problem.field(smooth), x)

    def known(x):
        (u,), (x,) = fields_and_points(problem, partial(expanded, smooth), x[None])
        return of_operators(u, x)

    x = np.array([0.3, 0.7, 0.2])
    values, jacobians = jax.jit(
        lambda x: (
            [function(x) for function in (known, plain)],
            [jax.jacfwd(function)(x) for function in (known, plain)],
        )
    )(x)
    np.testing.assert_allclose(*values, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(*jacobians, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("shape", [(3,), (3, 3)])
def test_a_wave_knows_its_derivatives(shape):
    rng = np.random.default_rng(0)
    vectors, (cosines, sines) = rng.standard_normal(shape), rng.standard_normal((2, 3))
    problem = Problem(lambda u, x: u(x), BOX, outputs=NAMES)

    def wave(x):
        angle = vectors @ x
        return 2.0 + cosines * jnp.cos(angle) + sines * jnp.sin(angle)

    def with_higher_orders(u, x):
        higher = (d(u, *axes)(x) for axes in ("xyt", "xxyy", "ttttx"))
        return jnp.concatenate([of_operators(u, x), *higher])

    def plain(x):
        return with_higher_orders(problem.field(wave), x)

    def known(x):
        at = partial(wave_at, vectors=vectors, cosines=cosines, sines=sines, level=2.0)
        (u,), (x,) = fields_and_points(problem, at, x[None])
        return with_higher_orders(u, x)

    x = np.array([0.3, 0.7, 0.2])
    np.testing.assert_allclose(
        jax.jit(known)(x), jax.jit(plain)(x), rtol=1e-10, atol=1e-10
    )


def test_known_derivatives_are_taken_as_they_are():
    asked = []

    def derivative(axes):
        asked.append(axes)
        return jnp.full(3, 10.0 + len(asked))

    def never(x):
        raise AssertionError("evaluated elsewhere")

    x = jnp.zeros(3)
    problem = Problem(lambda u, x: u(x), BOX, outputs=NAMES)
    u = problem.field(LocalFunction(never, x, derivative, 2))
    assert float(d(u["v"], "y", "t")(x)) == 11.0
    assert sorted(asked.pop()) == [1, 2]
    np.testing.assert_array_equal(laplacian(u)(x), np.full(3, 11.0 + 12.0))
    assert asked == [(0, 0), (1, 1)]
    with pytest.raises(AssertionError, match="elsewhere"):
        d(u, "x", "x", "x")(x)
    with pytest.raises(AssertionError, match="elsewhere"):
        u(x + 0)


def test_units_of_the_outputs_move_values_alone():
    problem = PosedProblem(
        lambda u, x: u(x), BOX, outputs=NAMES, center=(5.0, 0, 0), scale=(2.0, 3, 4)
    )

    @jax.jit
    def found_and_plain(x):
        (u,), (point,) = fields_and_points(problem, partial(expanded, smooth), x[None])
        found = u(point), d(u, "y")(point)
        return found, (smooth(x), jax.jacfwd(smooth)(x)[:, 1])

    found, plain = found_and_plain(np.array([0.3, 0.7, 0.2]))
    scale = np.array([2.0, 3.0, 4.0])
    value = np.array([5, 0, 0]) + scale * np.array(plain[0])
    np.testing.assert_allclose(found[0], value, rtol=1e-12)
    np.testing.assert_allclose(found[1], scale * np.array(plain[1]), rtol=1e-10)


@pytest.mark.parametrize(
    ("residual", "alone"),
    [
        (lambda u, x: d(u, "x", "x")(x) + u(x) * d(u, "t")(x), True),
        (lambda u, x: div(u * grad(u))(x), False),
        (lambda u, x: d(u, "x", "x", "x")(x), False),
        (lambda u, x: u(x) - u(x - 0.1), False),
    ],
)
def test_residuals_that_need_known_derivatives_alone(residual, alone):
    problem = Problem(residual, BOX, Neumann(1.0, on="x=max"))
    pairs = tuple(((i, j),) for i in range(3) for j in range(i, 3))
    rows = DerivativeRows((0, 1, 2), pairs)
    drawn = problem.probes(20, np.random.RandomState(0)).values()
    batches = [Batch(p.x, p.data, np.ones(len(p.x)), None) for p in drawn]
    found = [
        _needs_known_derivatives_alone(
            Model(problem, (), ()), kind._replace(rows=rows), batch, np.zeros(0)
        )
        for kind, batch in zip(problem.residual_classes(), batches, strict=True)
    ]
    assert found == [alone, True]


def test_a_derivative_costs_a_few_operations():
    def residual(u, x):
        flow = u[:2](x)
        return sum(
            flow @ jnp.stack([d(u[k], i)(x) for i in "xy"])
            + d(u[k], "t")(x)
            - sum(d(u[k], i, i)(x) for i in "xy")
            for k in range(2)
        )

    problem = Problem(residual, BOX, outputs=NAMES)
    rows = DerivativeRows((0, 1, 2), (((0, 0), (1, 1)),))
    (kind,) = problem.residual_classes()
    trace = jax.make_jaxpr(row_from_top.__wrapped__, static_argnums=(0, 1, 2))
    top, x, none = np.ones((rows.size, 3)), np.ones((1, 3)), np.ones(0)
    model = Model(problem, (), ())
    found = trace(model, kind._replace(rows=rows), None, top, x, none, none)
    n_derivatives = 2 * (2 + 1 + 2)
    assert len(found.eqns) < 8 * n_derivatives + 20
