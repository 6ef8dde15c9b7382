"""Waves that an equation lets pass, by its dispersion relation from textbooks."""

import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn.pde import (
    Box,
    Dirichlet,
    Initial,
    Interval,
    Problem,
    Unknown,
    d,
    laplacian,
)
from sklearn_gn.pinn.enrichment import waves as dispersion

pi = np.pi
STRIP = Box(x=(0, 1), t=(0, 2))
START = Initial(lambda x: jnp.sin(3 * pi * x[0]))


def klein_gordon(u, x):
    return d(u, "t", "t")(x) - 4 * d(u, "x", "x")(x) + 50 * u(x)


def beam(u, x):
    return d(u, "t", "t")(x) + d(u, "x", "x", "x", "x")(x)


def advection(u, x):
    return d(u, "t")(x) + 7 * d(u, "x")(x)


def schrodinger(u, x):
    re, im = u["re"], u["im"]
    return d(re, "t")(x) + d(im, "x", "x")(x), d(im, "t")(x) - d(re, "x", "x")(x)


def found(problem, scale=(1.0,)):
    vectors = dispersion.further_waves(problem, scale)
    return sorted(tuple(np.sign(k[0]) * np.array(k)) for k in vectors)


@pytest.mark.parametrize(
    ("residual", "outputs", "frequencies"),
    [
        (klein_gordon, ("u",), [-np.sqrt(36 * pi**2 + 50), np.sqrt(36 * pi**2 + 50)]),
        (beam, ("u",), [-9 * pi**2, 9 * pi**2]),
        (advection, ("u",), [-21 * pi]),
        (schrodinger, ("re", "im"), [-9 * pi**2, 9 * pi**2]),
    ],
)
def test_frequencies_of_initial_waves(residual, outputs, frequencies):
    start = Initial(lambda x: jnp.sin(3 * pi * x[0]), outputs=outputs[0])
    problem = Problem(residual, STRIP, start, outputs=outputs)
    expected = [(3 * pi, frequency) for frequency in frequencies]
    vectors = found(problem, (1.0,) * len(outputs))
    np.testing.assert_allclose(vectors, expected, rtol=1e-6)


def test_half_cycles_between_fixed_ends():
    start = Initial(lambda x: jnp.sin(pi * x[0]) + jnp.sin(2 * pi * x[0]) / 5)
    problem = Problem(
        lambda u, x: d(u, "t", "t")(x) - 4 * d(u, "x", "x")(x), STRIP, start
    )
    expected = [(k * pi, s * 2 * k * pi) for k in (1, 2) for s in (-1, 1)]
    np.testing.assert_allclose(found(problem), expected, rtol=1e-9)


def test_initial_waves_may_have_any_period():
    """Of which no series of half cycles of the axis consists."""
    start = Initial(lambda x: jnp.cos(20.3 * x[0]) + jnp.sin(60.1 * x[0]) / 2)
    problem = Problem(advection, STRIP, start)
    expected = [(k, -7 * k) for k in (20.3, 60.1)]
    np.testing.assert_allclose(found(problem), expected, rtol=1e-6)


def test_a_transform_changes_no_waves_of_the_equation():
    problem = Problem(klein_gordon, STRIP, START, transform=lambda x, u: x[0] * u)
    assert found(problem) == found(Problem(klein_gordon, STRIP, START))


def test_waves_of_all_directions():
    k = 9.0
    square = Box(x=(0, 1), y=(0, 3))
    problem = Problem(lambda u, x: laplacian(u)(x) + k**2 * u(x), square)
    vectors = np.array(found(problem))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), k, rtol=1e-9)
    angles = np.sort(np.arctan2(vectors[:, 1], vectors[:, 0]))
    np.testing.assert_allclose(np.diff(angles), pi / len(angles), rtol=1e-9)
    ode = Problem(lambda u, x: d(u, "t", "t")(x) + k**2 * u(x), Interval(0, 4))
    np.testing.assert_allclose(found(ode), [(k,)], rtol=1e-9)


def test_waves_have_the_periods_of_the_problem():
    def residual(u, x):
        return laplacian(u)(x) + 400 * u(x)

    ring = Box(x=(0, 2), y=(0, 1))
    across = [(0.0, 20.0)]  # the only one of the directions that are tried
    np.testing.assert_allclose(
        np.abs(found(Problem(residual, ring, periodic="x"))), across, atol=1e-9
    )
    below = Dirichlet(lambda x: jnp.cos(3 * pi * x[0]), on="y=min")
    vectors = found(Problem(residual, ring, below, periodic="x"))
    other = np.sqrt(400 - 9 * pi**2)
    expected = [(3 * pi, -other), (3 * pi, other)]
    np.testing.assert_allclose(vectors, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "residual",
    [
        lambda u, x: d(u, "t")(x) - d(u, "x", "x")(x),  # diffusion
        lambda u, x: d(u, "t", "t")(x) + d(u, "x", "x")(x),  # potentials
        lambda u, x: d(u, "t", "t")(x) - (1 + x[0]) * d(u, "x", "x")(x),
        lambda u, x: d(u, "t")(x) + 7 * u(x) * d(u, "x")(x),
        lambda u, x, c: d(u, "t")(x) + c * d(u, "x")(x),
    ],
)
def test_no_waves(residual):
    unknown = {"c": Unknown(7.0)} if residual.__code__.co_argcount == 3 else None
    problem = Problem(residual, STRIP, [START, Dirichlet(0.0)], coefficients=unknown)
    assert found(problem) == []
