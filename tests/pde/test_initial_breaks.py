"""Jumps and kinks of initial values."""

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks._allen_cahn import AllenCahn
from sklearn_gn.pde import (
    Box,
    Dirichlet,
    Initial,
    Neumann,
    Periodic,
    Problem,
    Robin,
    Unknown,
    d,
)
from sklearn_gn.pde.given_values import initial_breaks

STRIP = Box(x=(0, 3), t=(1, 3))


def heat(u, x):
    return d(u, "t")(x) - 0.3 * d(u, "x", "x")(x)


def heated(u, x):
    return heat(u, x) - 1


def waving(u, x):
    return heat(u, x) - jnp.sin(np.pi * x[0])


def table(x):
    return jnp.interp(x[0], jnp.linspace(0, 3, 9), jnp.array([0.0, 1, 3, 2] * 2 + [5]))


def options(u, x):
    return x[0] * (d(u, "t")(x) - (0.2 * x[0]) ** 2 * d(u, "x", "x")(x))


def payoff(x):
    return jnp.maximum(x[0] - 1 / 3, 0.0)


def step(x):
    return jnp.where(x[0] < 0.7, 2.0, 5.0)


def wave(x):
    return jnp.sin(np.pi * x[0])


@pytest.mark.parametrize(
    ("residual", "conditions", "wanted"),
    [
        (heat, [Initial(step)], [(0.7, 0, 0.3)]),
        (options, [Initial(payoff)], [(1 / 3, 1, (0.2 / 3) ** 2)]),
        (heat, [Initial(lambda x: step(x) + 9 * payoff(x))], [(0.7, 0), (1 / 3, 1)]),
        (heat, [Initial(wave), Dirichlet(0.0)], []),
        (heat, [Initial(wave), Dirichlet(2.0, on="x=max")], [(3.0, 0)]),
        (heat, [Initial(wave), Neumann(np.pi, on="x=min")], [(0.0, 1)]),
        (heat, [Initial(wave), Neumann(-np.pi)], []),
        (heat, [Initial(2.0), Robin(1.0, 3.0, 2.1, on="x=max")], [(3.0, 1)]),
        (heated, [Initial(0.0), Dirichlet(0.0)], [(0.0, 2), (3.0, 2)]),
        (heated, [Initial(0.0), Dirichlet(lambda x: x[1] - 1)], []),
        (waving, [Initial(0.0), Dirichlet(0.0)], []),  # but for rounding
        (heat, [Initial(table)], []),
        (heat, [Initial(wave), Periodic("x")], [(0.0, 1)]),  # half of a wave more
        (heat, [Initial(lambda x: wave(2 * x)), Periodic("x")], []),
    ],
)
@pytest.mark.repeats
def test_breaks_have_their_place_order_and_rate(residual, conditions, wanted):
    found = initial_breaks(Problem(residual, STRIP, conditions))
    places = [(entry.place, entry.order) for entry in found]
    expected = [entry[:2] for entry in wanted]
    assert len(places) == len(expected)
    if expected:
        np.testing.assert_allclose(places, expected, atol=1e-9)
    for entry, (_, _, *rates) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(entry.rates, rates or [0.3], rtol=1e-6)
        assert entry.period == (3.0 if Periodic("x") in conditions else np.inf)


def test_rates_of_a_system_are_eigenvalues():
    def residual(u, x):
        a, b = (d(u[name], "x", "x")(x) for name in "ab")
        return d(u["a"], "t")(x) + b / 2, 2 * d(u["b"], "t")(x) - 3 * a - 4 * b

    start = Initial(lambda x: jnp.stack([step(x), 0 * x[0]]))
    (found,) = initial_breaks(Problem(residual, STRIP, start, outputs=("a", "b")))
    wanted = np.linalg.eigvals([[0, -0.5], [1.5, 2]])
    np.testing.assert_allclose(np.sort(found.rates), np.sort(wanted))

    def schrodinger(u, x):
        a, b = (d(u[name], "x", "x")(x) for name in "ab")
        return d(u["a"], "t")(x) + b / 2, d(u["b"], "t")(x) - a / 2

    problem = Problem(schrodinger, STRIP, start, outputs=("a", "b"))
    ((rate,),) = (entry.rates for entry in initial_breaks(problem))
    assert rate == pytest.approx(0.5j)


def test_exact_periods_are_those_of_the_breaks():
    (entry,) = initial_breaks(AllenCahn())
    assert entry[:3] == (0, -1.0, 1)
    assert entry.rates == pytest.approx([1e-4])
    assert entry.period == 2.0


@pytest.mark.parametrize(
    "residual",
    [
        lambda u, x: d(u, "t")(x) + d(u, "x")(x),
        lambda u, x: d(u, "t", "t")(x) - d(u, "x", "x")(x),
        lambda u, x: d(u, "t")(x) + d(u, "x", "x")(x),  # backwards in time
        lambda u, x: d(u, "t")(x) + d(u, "x", "x", "x")(x),
        lambda u, x: d(u, "t")(x) - d(u, "x", "x")(x) + d(u, "x", "x", "x", "x")(x),
        lambda u, x: u(x) - d(u, "x", "x")(x),
    ],
)
def test_other_equations_have_none(residual):
    assert initial_breaks(Problem(residual, STRIP, Initial(step))) == ()


def test_nothing_is_assumed_of_unknown_coefficients_and_other_domains():
    def residual(u, x, k):
        return d(u, "t")(x) - k * d(u, "x", "x")(x)

    unknown = {"k": Unknown(1.0)}
    problem = Problem(residual, STRIP, Initial(step), coefficients=unknown)
    assert initial_breaks(problem) == ()
    known = Problem(residual, STRIP, Initial(step), coefficients={"k": 0.5})
    ((rate,),) = (entry.rates for entry in initial_breaks(known))
    assert rate == pytest.approx(0.5)
    box = Box(x=(0, 1), y=(0, 1), t=(0, 1))
    assert initial_breaks(Problem(heat, box, Initial(step))) == ()
