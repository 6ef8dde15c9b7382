"""Equations whose short waves grow, and derivatives that the equation gives."""

import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from sklearn_gn import PINNSolver
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
from sklearn_gn.pinn import statement
from sklearn_gn.pinn.statement import fault_of_statement, growing_waves

STRIP = Box(x=(0, 1), t=(0, 1))
START, SPEED = Initial(1.0), Initial(0.0, order=1)


def parabolic(sign, order=2):
    return lambda u, x: d(u, "t")(x) + sign * d(u, *["x"] * order)(x)


def hyperbolic(sign):
    return lambda u, x: d(u, "t", "t")(x) + sign * d(u, "x", "x")(x)


def porous(u, x):
    return d(u, "t")(x) - u(x) ** 2 * d(u, "x", "x")(x)


def of_either_sign(u, x):
    return d(u, "t")(x) + u(x) * d(u, "x", "x")(x)


def fourth_order(u, x):
    return d(u, "t")(x) + d(u, "x", "x")(x) + d(u, "x", "x", "x", "x")(x)


END = Dirichlet(1.0, on="t=max")


@pytest.mark.parametrize(
    ("residual", "conditions", "match"),
    [
        (parabolic(-0.1), [START], None),
        (parabolic(0.1), [START], "which is diffusion backwards in time"),
        (parabolic(0.1), [END], None),  # as of Black and Scholes
        (parabolic(-0.1), [END], "given at t=max, .* runs forwards from t=min"),
        (parabolic(0.1), [START, END], None),
        (parabolic(0.1), [Dirichlet(0.0)], None),
        (parabolic(0.1, 3), [START], None),
        (hyperbolic(-1), [START, SPEED], None),
        (hyperbolic(1), [START, SPEED], "a potential that is given on one side only"),
        (hyperbolic(1), [START, END], None),  # Laplace's equation
        (hyperbolic(1), [START], None),
        (porous, [START], None),
        (of_either_sign, [START], None),
        (fourth_order, [START], None),
    ],
)
@pytest.mark.repeats
def test_waves_that_grow_without_bound_are_named(residual, conditions, match):
    text = growing_waves(Problem(residual, STRIP, conditions))
    assert bool(text) == (match is not None)
    assert match is None or re.search(match, text)


def test_the_axis_of_space_along_which_waves_grow_is_named():
    box = Box(x=(0, 1), y=(0, 1), t=(0, 1))

    def one_of_two(u, x):
        return d(u, "t")(x) - d(u, "x", "x")(x) + d(u, "y", "y")(x)

    assert "d(u, 'y', 'y')" in growing_waves(Problem(one_of_two, box, [START]))
    heat = Problem(lambda u, x: d(u, "t")(x) - laplacian(u)(x), box, [START])
    assert growing_waves(heat) == ""


def test_growing_waves_are_the_fault_of_a_statement_without_observations():
    problem = Problem(parabolic(0.1), STRIP, [START])
    solver = SimpleNamespace(problem_=problem, convergence_log_={}, _target_spread=None)
    text = "Short waves grow without bound from t=min"
    assert text in fault_of_statement(solver, stuck=False)
    solver.convergence_log_["loss_data"] = np.zeros(1)
    assert text not in fault_of_statement(solver, stuck=False)


@pytest.mark.parametrize(
    ("residual", "domain", "said"),
    [
        (parabolic(-0.1), STRIP, "1 derivative along 't' and gives that of order 1"),
        (hyperbolic(-1), STRIP, None),
        (lambda u, t: d(u, "t")(t) + u(t), Interval(0, 1), "1 derivative along 't'"),
    ],
)
def test_derivatives_that_the_equation_gives_are_named(residual, domain, said):
    problem = Problem(residual, domain, [START, SPEED])
    if said is None:
        statement.warn_of_redundant_derivatives(problem)
        return
    with pytest.warns(UserWarning, match=f"initial_2: order=1 is not needed.*{said}"):
        statement.warn_of_redundant_derivatives(problem)


def test_a_further_derivative_may_determine_a_coefficient():
    problem = Problem(
        lambda u, t, rate: d(u, "t")(t) + rate * u(t),
        Interval(0, 1),
        [START, SPEED],
        coefficients={"rate": Unknown(1.0)},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", ".*order=1 is not needed")
        PINNSolver(problem, max_iter=1).fit()
