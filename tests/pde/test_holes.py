"""Holes of a domain, and the functions that fall off from them."""

import jax
import numpy as np
import pytest

from sklearn_gn.pde import Ball, Box, Problem, laplacian
from sklearn_gn.pde.corners import holes
from sklearn_gn.pinn.enrichment.posed import hole_functions, posed

SQUARE, CUBE = Box(x=(0, 1), y=(0, 1)), Box(x=(0, 1), y=(0, 1), z=(0, 1))


def disk(center, radius):
    return Ball(len(center), center=center, radius=radius)


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        (SQUARE - disk((0.3, 0.6), 0.1), [((0, 1), (0.3, 0.6), 0.1)]),
        (CUBE - disk((0.3, 0.6, 0.5), 0.1), [((0, 1, 2), (0.3, 0.6, 0.5), 0.1)]),
        (
            Box(t=(0, 1)) * (SQUARE - disk((0.3, 0.6), 0.1) - disk((0.7, 0.7), 0.05)),
            [((1, 2), (0.7, 0.7), 0.05), ((1, 2), (0.3, 0.6), 0.1)],
        ),
        (SQUARE - disk((0.0, 0.5), 0.1), []),  # on the boundary
        (SQUARE - disk((0.5, 0.5), 0.4), [((0, 1), (0.5, 0.5), 0.4)]),
        (SQUARE | disk((0.3, 0.6), 0.1), []),
    ],
)
def test_holes_are_found(domain, expected):
    found = holes(domain)
    assert len(found) == len(expected)
    for hole, (axes, center, radius) in zip(found, expected, strict=True):
        assert hole.axes == axes
        np.testing.assert_allclose(hole.center, center, rtol=1e-12)
        assert hole.radius == pytest.approx(radius, rel=1e-9)


@pytest.mark.parametrize("dim", [2, 3])
def test_functions_of_a_hole_are_inputs_that_solve_laplaces_equation(dim):
    box = SQUARE if dim == 2 else CUBE
    domain = box - disk((0.5,) * dim, 0.2)
    problem, _ = posed(Problem(lambda u, x: laplacian(u)(x), domain), [])
    (hole,) = problem.added["holes"]
    x = np.full(dim, 0.5) + np.array([0.3, 0.2, 0.1][:dim])
    with jax.enable_x64(True):
        values = np.asarray(hole_functions((hole,), None, x))
        inputs = np.asarray(problem.embedding(x))
        bends = jax.jit(jax.hessian(lambda x: hole_functions((hole,), None, x)))(x)
    np.testing.assert_allclose(inputs[-dim - 1 :], values, rtol=1e-12)
    radius = np.linalg.norm(x - 0.5)
    fundamental = np.log(0.2 / radius) if dim == 2 else 0.2 / radius
    np.testing.assert_allclose(values[0], fundamental, rtol=1e-12)
    np.testing.assert_allclose(values[1:], 0.2 * (x - 0.5) / radius**2, rtol=1e-12)
    harmonic = np.trace(np.asarray(bends), axis1=1, axis2=2)
    chosen = slice(None) if dim == 2 else slice(1)  # in space x / r^2 is not harmonic
    np.testing.assert_allclose(harmonic[chosen], 0, atol=1e-11)
