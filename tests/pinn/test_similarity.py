"""Solutions of the heat equation from jumps and kinks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from sklearn_gn.linalg.jacobian import Parameters
from sklearn_gn.pde import Box, Initial, Problem, d
from sklearn_gn.pde.given_values import Break
from sklearn_gn.pinn.enrichment import enriched
from sklearn_gn.pinn.enrichment.singular import (
    broken_functions,
    complex_erf_and_bell,
)
from sklearn_gn.pinn.model import Model, network

STRIP = Box(x=(-1, 3), t=(2, 5))
pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("angle", [0.0, 0.4, -np.pi / 4])
def test_error_function_of_complex_arguments_is_scipys(angle):
    z = np.geomspace(1e-6, 1e4, 60) * np.exp(1j * angle)
    z = np.concatenate([z, -z])
    error, bell = jax.jit(complex_erf_and_bell)(z)
    np.testing.assert_allclose(error, scipy.special.erf(z), atol=1e-11)
    size = np.exp(-np.maximum(np.real(z**2), 0))
    np.testing.assert_allclose(np.abs(bell), size, rtol=1e-8, atol=1e-12)


def derivatives(breaks, x):
    """Functions at points, with u_x, u_t and u_xx, each of shape (n, k)."""

    def of(x):
        return broken_functions(breaks, STRIP, x)

    def at(x):
        slopes = jax.jacfwd(of)
        return of(x), *slopes(x).T, jax.jacfwd(slopes)(x)[:, 0, 0]

    return map(np.asarray, jax.jit(jax.vmap(at))(x))


@pytest.mark.parametrize(("orders", "period"), [((0, 1, 2), np.inf), ((0,), 4.0)])
@pytest.mark.repeats
def test_functions_solve_the_equation(orders, period):
    breaks = tuple(Break(0, 0.5, order, (0.3, 0.2j), period) for order in orders)
    x = STRIP.sample(50, np.random.RandomState(0), "sobol")
    _, _, u_t, u_xx = derivatives(breaks, x)
    for k in range(0, 6 * len(breaks), 6):  # two real ones, then two complex ones
        real, re, im = slice(k, k + 2), slice(k + 2, k + 6, 2), slice(k + 3, k + 6, 2)
        np.testing.assert_allclose(u_t[:, real], 0.3 * u_xx[:, real], atol=1e-8)
        np.testing.assert_allclose(u_t[:, re], -0.2 * u_xx[:, im], atol=1e-8)
        np.testing.assert_allclose(u_t[:, im], 0.2 * u_xx[:, re], atol=1e-8)


def test_functions_begin_with_the_break():
    breaks = tuple(Break(0, 0.5, order, (0.3,), np.inf) for order in (0, 1, 2))
    s = np.linspace(-0.7, 1.2, 20)  # in units of half the axis
    x = np.column_stack([0.5 + 2 * s, np.full(20, 2.0)])
    values = jax.jit(jax.vmap(lambda x: broken_functions(breaks, STRIP, x)))(x)
    powers = np.array([0, 1, 1, 2, 2, 3])
    wanted = np.abs(s[:, None]) ** powers * np.sign(s[:, None]) ** (powers + 1)
    np.testing.assert_allclose(values, wanted, atol=1e-7)


@pytest.mark.slow
def test_functions_of_a_period_have_it():
    breaks = tuple(Break(0, place, 1, (0.05,), 4.0) for place in (-1.0, 0.5))
    t = np.linspace(2.01, 3, 20)
    ends = [np.column_stack([np.full(20, end), t]) for end in STRIP.bounds[0]]
    for found in derivatives(breaks, np.concatenate(ends)):
        np.testing.assert_allclose(found[:20], found[20:], atol=1e-8)


def test_a_default_network_has_the_functions():
    def residual(u, x):
        return d(u, "t")(x) - 0.3 * d(u, "x", "x")(x)

    start = Initial(lambda x: jnp.where(x[0] < 0.5, 1.0, 4.0))
    problem, _ = enriched(Problem(residual, STRIP, [start]), [])
    model = Model(problem, ("tanh",), ())
    last = np.zeros((2 + 2 + 1, 1))  # of neurons and functions, and the bias
    last[2] = 1
    net = Parameters((np.zeros((2 + 2 + 1, 2)), last), np.zeros(0))
    x = np.array([1.1, 2.7])
    found = jax.jit(lambda x: network(model, net, x))(x)
    wanted = scipy.special.erf(0.6 / np.sqrt(4 * 0.3 * 0.7))
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
