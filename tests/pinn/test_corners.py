"""Corners of domains, and their singular functions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn.pde import (
    Ball,
    Box,
    Dirichlet,
    Neumann,
    Piecewise,
    Polygon,
    Problem,
    div,
    grad,
    laplacian,
)
from sklearn_gn.pinn.enrichment import enriched
from sklearn_gn.pinn.enrichment.singular import rough_corners

L = Polygon([(0, 0), (1, 0), (1, -1), (-1, -1), (-1, 1), (0, 1)])
SQUARE = Box(x=(-1, 1), y=(-1, 1))


def corners_of(domain):
    return rough_corners(Problem(lambda u, x: laplacian(u)(x), domain))


def test_openings_and_bisectors():
    inner, *right = corners_of(L)
    assert inner.place == (0, 0)
    assert inner.opening == pytest.approx(3 * math.pi / 2, abs=1e-9)
    assert inner.middle == pytest.approx(5 * math.pi / 4, abs=1e-9)
    assert len(right) == 5
    for corner in right:
        assert corner.opening == pytest.approx(math.pi / 2, abs=1e-9)
    cut = corners_of(SQUARE - Box(x=(0, 1), y=(0, 1)))
    assert cut[0].place == (0, 0)
    np.testing.assert_allclose(cut[0][2:4], inner[2:4], atol=1e-9)
    # Two oblique edges leave the square upwards, with slopes of 6 and 2.
    both = SQUARE | Polygon([(0, 0), (0.5, 0), (1, 3), (0, 1)])
    found = [corner.opening for corner in corners_of(both)[:2]]
    expected = [2 * math.pi - math.atan(6), math.pi + math.atan(2)]
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_corners_of_a_hole_have_a_cutoff():
    hole = SQUARE - Box(x=(-0.2, 0.3), y=(-0.1, 0.2))
    corners = corners_of(hole * Box(t=(0, 1)))
    assert len(corners) == 8
    assert {0.3 < c.cutoff < 0.43 for c in corners[:4]} == {True}  # to its other side
    assert {c.cutoff for c in corners[4:]} == {math.inf}
    time_first = corners_of(Box(t=(0, 1)) * hole)
    assert time_first[0].axes == (1, 2)


@pytest.mark.parametrize(
    "domain",
    [
        SQUARE,
        SQUARE - Ball(2, radius=0.3),
        Polygon([(0, 0), (2, 0), (0, 1)]),
        Box(x=(0, 1), t=(0, 1)),
        Ball(3),
    ],
)
def test_no_corners(domain):
    assert corners_of(domain) == ()


def rough(x):
    return x[0] ** 2 - 3 * x[1] ** 2  # it does not solve Laplace's equation


def smooth(x):
    return jnp.exp(x[0]) * jnp.cos(x[1])


def poisson(u, x):
    return laplacian(u)(x) + 1


def bratu(u, x):
    return laplacian(u)(x) + jnp.exp(u(x)) - jnp.exp(smooth(x))


def wavy(u, x):
    return laplacian(u)(x) + jnp.sin(jnp.pi * x[0]) * jnp.sin(jnp.pi * x[1])


LEFT, BELOW = Dirichlet(0.0, on="x=min"), Dirichlet(0.0, on="y=min")


@pytest.mark.parametrize(
    ("residual", "conditions", "n_corners"),
    [
        (poisson, [Dirichlet(0.0)], 4),  # -1 is not 0 + 0
        (wavy, [Dirichlet(0.0)], 0),  # the source vanishes there
        (bratu, [Dirichlet(smooth)], 0),
        (bratu, [Dirichlet(rough)], 4),
        (poisson, [LEFT, BELOW, Neumann(0.0, on=("x=max", "y=max"))], 1),
        (poisson, [LEFT, Neumann(0.0, on=("x=max", "y=min", "y=max"))], 0),
    ],
)
def test_right_angles_at_which_values_contradict_the_equation(
    residual, conditions, n_corners
):
    found = rough_corners(Problem(residual, SQUARE, conditions))
    assert len(found) == n_corners
    if n_corners == 1:
        assert found[0].place == (-1, -1)


@pytest.mark.parametrize(
    ("values", "n_edges"),
    [
        (0.0, 12),
        (lambda x: -(x[1] ** 2) / 2, 0),  # a solution
        (lambda x: -(x[1] ** 2) / 2 + x[0] ** 3, 8),  # not where x[0] = 0
    ],
)
@pytest.mark.repeats
def test_edges_of_a_box_are_right_angles(values, n_edges):
    box = Box(x=(0, 1), y=(-1, 1), z=(0, 3))
    problem = Problem(lambda u, x: laplacian(u)(x) + 1, box, [Dirichlet(values)])
    found = rough_corners(problem)
    assert len(found) == n_edges
    if n_edges == 12:
        places = [(entry.axes, entry.place) for entry in found]
        assert {((0, 2), (1.0, 3.0)), ((1, 2), (-1.0, 0.0))} <= set(places)
        n_inputs = enriched(problem, [])[0].n_inputs
        assert n_inputs == 3 + 2 * 12


def of_pieces(*pieces, outputs=("u",)):
    k = Piecewise(1.0, *pieces)

    def residual(u, x):
        return [div(k * grad(v))(x) + 1 for v in u]

    problem = Problem(residual, SQUARE, [Dirichlet(0.0)], outputs=outputs)
    problem.residual_classes()
    return problem


QUADRANTS = [Box(x=x, y=y) for x, y in (((0, 1), (0, 1)), ((-1, 0), (-1, 0)))]


@pytest.mark.slow
def test_exponents_of_crossing_interfaces():
    # Of a chessboard they have a closed form.
    found, *_ = rough_corners(of_pieces(*((box, 10.0) for box in QUADRANTS)))
    first = 4 / math.pi * math.atan(10**-0.5)
    assert found.exponents == pytest.approx((first, 2 - first), abs=1e-7)
    assert found.place == (0, 0)
    assert found.cutoff == math.inf


@pytest.mark.slow
def test_exponents_of_the_corners_of_an_inclusion():
    inclusion = of_pieces((Box(x=(-0.4, 0.4), y=(-0.3, 0.3)), 10.0))
    corners = rough_corners(inclusion)[:4]
    places = {corner.place for corner in corners}
    assert places == {(x, y) for x in (-0.4, 0.4) for y in (-0.3, 0.3)}
    for corner in corners:
        assert corner.exponents[0] == pytest.approx(0.73169178, abs=1e-7)
        assert 0.5 < corner.cutoff < 0.8  # where the interface goes on in its direction


@pytest.mark.parametrize(
    "problem",
    [
        of_pieces((Box(x=(0, 1), y=(-1, 1)), 10.0)),
        of_pieces((Ball(2, radius=0.5), 10.0)),
        of_pieces((QUADRANTS[0], 10.0), outputs=("u", "v")),
        of_pieces((QUADRANTS[0], -10.0)),
    ],
)
def test_straight_interfaces_have_no_exponents(problem):
    assert [c for c in rough_corners(problem) if c.opening > math.pi] == []


def test_right_angles_are_not_looked_at_where_values_are_not_known():
    pair = Problem(
        lambda u, x: (laplacian(u["u"])(x) + 1, u["v"](x) - 1),
        SQUARE,
        [Dirichlet(0.0, outputs="u")],
        outputs=("u", "v"),
    )
    in_time = Problem(lambda u, x: u(x) - 1, Box(x=(0, 1), t=(0, 1)), [Dirichlet(0.0)])
    assert rough_corners(pair) == rough_corners(in_time) == ()


@pytest.mark.usefixtures("float64")
def test_inputs_are_harmonic_and_hold_the_singular_solution():
    problem, _ = enriched(Problem(lambda u, x: laplacian(u)(x), L), [])
    assert problem.n_inputs == 2 + 2 * 6
    rng = np.random.RandomState(0)
    x = L.sample(200, rng)

    @jax.jit
    @jax.vmap
    def with_bends(x):
        return problem.embedding(x), jax.hessian(problem.embedding)(x)

    inputs, bends = map(np.asarray, with_bends(x))
    size = np.abs(bends).max(axis=(2, 3))
    np.testing.assert_allclose(bends.trace(axis1=2, axis2=3) / (1 + size), 0, atol=1e-9)
    # r^(2/3) sin(2 phi / 3) vanishes on both edges of the inner corner.
    phi = (np.arctan2(x[:, 1], x[:, 0]) - math.pi / 2) % (2 * math.pi)
    exact = np.hypot(*x.T) ** (2 / 3) * np.sin(2 * phi / 3)
    singular = inputs[:, 2:4]
    weights = np.linalg.lstsq(singular, exact, rcond=None)[0]
    np.testing.assert_allclose(singular @ weights, exact, atol=1e-10)
