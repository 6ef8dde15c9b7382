"""Periodic axes that the default network closes to circles."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn import PINNSolver
from sklearn_gn.pde import (
    Box,
    Dirichlet,
    Initial,
    Interval,
    Periodic,
    Problem,
    d,
    laplacian,
)
from sklearn_gn.pinn.enrichment import on_circles

SQUARE = Box(x=(0, 1), y=(0, 1))
WALLS = Dirichlet(lambda x: jnp.cos(2 * jnp.pi * x[0]), on=("y=min", "y=max"))


def poisson(source, *conditions, **words):
    def residual(u, x):
        return laplacian(u)(x) - source(x[0])

    return Problem(residual, SQUARE, [WALLS, *conditions], **words)


def smooth(x):
    return jnp.sin(2 * jnp.pi * x)


def heat(start):
    return Problem(
        lambda u, x: d(u, "t")(x) - d(u, "x", "x")(x),
        Box(x=(0, 1), t=(0, 1)),
        [Initial(start), Periodic("x")],
    )


@pytest.mark.parametrize(
    ("problem", "axes"),
    [
        (poisson(smooth, Periodic("x")), ("x",)),
        (poisson(smooth), ()),
        (poisson(smooth, periodic="x"), ("x",)),  # as it was stated
        (poisson(smooth, Periodic("x", derivatives=False)), ()),
        # The equation differs where the ends meet, or its slope does.
        (poisson(lambda x: x, Periodic("x")), ()),
        (poisson(lambda x: x * (1 - x), Periodic("x")), ()),
        (poisson(lambda x: 1e-6 * x * (1 - x), Periodic("x")), ()),  # in small units
        (poisson(lambda x: jnp.sin(20 * jnp.pi * x), Periodic("x")), ("x",)),
        (poisson(smooth, Periodic("x"), transform=lambda x, u: x[1] * u), ()),
        (heat(lambda x: x[0] * (1 - x[0])), ()),  # whose slope jumps
    ],
)
def test_an_axis_is_a_circle_where_the_solution_is_smooth(problem, axes):
    closed, (stage,) = on_circles(problem, [problem])
    for one in (closed, stage):
        assert one.periodic == axes
        of_axis = [c for c in one.conditions if isinstance(c, Periodic)]
        before = [c for c in problem.conditions if isinstance(c, Periodic)]
        assert of_axis == ([] if axes else before)


@pytest.mark.slow
def test_an_equation_of_fourth_order_needs_all_derivatives():
    """Values and slopes alone, which agree, leave two constants of u'''' + u free."""

    def residual(u, x):
        return d(u, "x", "x", "x", "x")(x) + u(x) - 2 * jnp.cos(x[0])

    problem = Problem(residual, Interval(0, 2 * np.pi, axis="x"), [Periodic("x")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver = PINNSolver(problem, max_iter=12, random_state=0).fit()
    x = np.linspace(0, 2 * np.pi, 50)[:, None]
    np.testing.assert_allclose(solver.predict(x), np.cos(x[:, 0]), atol=1e-4)
    for order in range(4):
        axes = ["x"] * order
        ends = solver.derivative(x, *axes) if order else solver.predict(x)
        np.testing.assert_allclose(ends[0], ends[-1], atol=1e-9)
