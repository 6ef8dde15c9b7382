"""Eigenvalue problems: the value that is found is next to where the search begins."""

import re
import warnings
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn import PINNSolver
from sklearn_gn.pde import (
    Box,
    Condition,
    Dirichlet,
    Interval,
    Neumann,
    Problem,
    Unknown,
    apply,
    d,
    integral,
)
from sklearn_gn.pinn.eigenvalues import is_eigenvalue_problem, other_solutions

LENGTH = 4.0  # of the domain, on both sides


def oscillator(u, x, E):
    return -d(u, "x", "x")(x) / 2 + x[0] ** 2 / 2 * u(x) - E * u(x)


def norm(u, x):
    return integral(apply(jnp.square, u), "x", -LENGTH, LENGTH)(x) - 1


def harmonic(start, **settings):
    return Problem(
        oscillator,
        Interval(-LENGTH, LENGTH, axis="x"),
        [Dirichlet(0.0), Condition(norm, on=[[0.0]])],
        coefficients={"E": Unknown(start)},
        **settings,
    )


def positive(x, v):
    return (LENGTH**2 - x[0] ** 2) * jnp.exp(v)


def odd(x, v):
    return x[0] * positive(x, v)


def solved(problem, **settings):
    """The fitted solver and its warnings."""
    solver = PINNSolver(
        problem,
        **{
            "hidden_layer_sizes": (12, 12),
            "n_interior": 100,
            "n_boundary": 2,
            "random_state": 0,
            "max_iter": 60,
            **settings,
        },
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solver.fit()
    texts = [str(w.message) for w in caught]
    return solver, [text for text in texts if "No observations determine" in text]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "level", "is_said"), [(0.0, 0, False), (1.6, 1, False), (1.9, 1, True)]
)
def test_the_value_found_is_next_to_its_start(start, level, is_said):
    """The levels of the harmonic oscillator are n + 1/2."""
    solver, said = solved(harmonic(start))
    assert solver.coefficients_["E"] == pytest.approx(level + 0.5, abs=2e-2)
    assert bool(said) is is_said


@pytest.mark.parametrize(
    ("value", "transform", "is_said"),
    [
        (1.5, None, True),
        (1.0, None, False),  # near its start
        (1.5, positive, False),
        (1.5, odd, False),  # the zero is stated
    ],
)
def test_a_value_is_said_to_be_one_of_several(value, transform, is_said):
    problem = harmonic(1.0, transform=transform)

    def predict(x):
        return np.sin(x[:, 0]) if transform is not positive else np.cos(x[:, 0] / 3)

    solver = SimpleNamespace(
        problem_=problem,
        coefficients_={"E": np.float64(value)},
        convergence_log_={},
        _undetermined=[],
        predict=predict,
    )
    said, is_doubtful = other_solutions(solver)
    assert ("No observations determine E = 1.5" in said) is is_said
    assert is_doubtful is is_said
    solver.convergence_log_["loss_data"] = np.ones(3)
    assert other_solutions(solver) == ("", False)


def cycle(u, x, T):
    """Of van der Pol, in units of its period."""
    change = d(u, "s", "s")(x) + T**2 * u(x)
    return change - T * (1 - u(x) ** 2) * d(u, "s")(x)


def slope(u, x):
    return d(u, "s")(x)


def value(u, x):
    return u(x) - 1


@pytest.mark.parametrize(
    ("condition", "size", "said"),
    [
        (slope, 0.0, "is zero, which solves the problem for all values of T"),
        (slope, 1.0, ""),
        (value, 1.0, "T = 0.1: other values may solve .* This one is constant"),
    ],
)
def test_solutions_that_say_nothing_of_a_coefficient(condition, size, said):
    problem = Problem(
        cycle,
        Interval(0, 1, axis="s"),
        [Condition(condition, on=[[0.0]])],
        coefficients={"T": Unknown(6.0)},
        periodic="s",
    )
    solver = SimpleNamespace(
        problem_=problem,
        coefficients_={"T": np.float64(0.1)},
        convergence_log_={},
        _undetermined=[],
        predict=lambda x: np.full(len(x), size),
    )
    text, is_doubtful = other_solutions(solver)
    assert is_doubtful is bool(said)
    assert re.search(said, text)


@pytest.mark.slow
def test_values_are_held_at_first_but_not_where_a_fit_goes_on():
    problem = Problem(
        wave,
        Interval(0, 1, axis="x"),
        [Dirichlet(0.0), Neumann(-1.0, on="x=min")],
        coefficients={"k": Unknown(8.0)},
    )
    sizes = {"hidden_layer_sizes": (4,), "n_interior": 20, "n_boundary": 3}
    solver, _ = solved(problem, max_iter=3, **sizes)  # the third one is free
    assert solver.coefficients_["k"] != 8.0
    before = solver.coefficients_["k"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        # The first radius may be too long for a step.
        solver.set_params(max_iter=2, warm_start=True).fit()
    assert solver.coefficients_["k"] != before


def wave(u, x, k):
    return d(u, "x", "x")(x) + k * u(x)


def value_at_one(u, x):
    return u(x) - 0.3


def decay(u, x, k):
    return d(u, "x")(x) + k * u(x)


def loaded(u, x, k):
    return d(u, "x", "x")(x) + k


def to_one(x, v):
    return 1 + x[0] * v


def above_one(x, v):
    return 1 + jnp.exp(v)


def loaded_but_at_minus_one(u, x, k):
    return d(u, "x", "x")(x) + k + 1


@pytest.mark.parametrize(
    ("residual", "conditions", "settings", "start", "expected"),
    [
        (wave, [Dirichlet(0.0), Neumann(-1.0, on="x=min")], {}, 1.0, True),
        (wave, [Dirichlet(0.0)], {}, 1.0, False),  # of any size
        (
            decay,
            [Dirichlet(1.0, on="x=min"), Condition(value_at_one, on=[[1.0]])],
            {},
            1.0,
            False,
        ),
        (
            decay,
            [Condition(value_at_one, on=[[1.0]])],
            {"transform": to_one},
            1.0,
            False,
        ),
        (loaded, [Condition(value_at_one, on=[[0.5]])], {}, 1.0, False),
        (loaded_but_at_minus_one, [Neumann(-1.0, on="x=min")], {}, -1.0, False),
    ],
)
def test_eigenvalue_problems_are_solved_by_zero_but_for_its_size(
    residual, conditions, settings, start, expected
):
    problem = Problem(
        residual,
        Interval(0, 1, axis="x"),
        conditions,
        coefficients={"k": Unknown(start)},
        **settings,
    )
    assert is_eigenvalue_problem(problem) is expected


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (None, True),
        (positive, True),
        (odd, True),
        (to_one, False),
        (above_one, False),
    ],
)
def test_a_transform_has_to_let_the_solution_be_zero(transform, expected):
    assert is_eigenvalue_problem(harmonic(1.0, transform=transform)) is expected


def spread(u, x):
    return d(u, "x", "x")(x) + u(x) ** 2


def narrow(u, x):
    return spread(u, x) + jnp.where(jnp.abs(x[0] - 0.5) < 0.02, 1e-9, 0.0)


@pytest.mark.parametrize(
    ("residual", "value", "size", "is_said"),
    [
        (spread, 0.0, 0.0, True),
        (spread, 0.0, 1e-3, False),
        (spread, 1e-9, 0.0, False),
        (narrow, 0.0, 0.0, False),
    ],
)
def test_a_solution_of_zero_is_said(residual, value, size, is_said):
    solver = SimpleNamespace(
        problem_=Problem(residual, Box(x=(0, 1)), Dirichlet(value)),
        coefficients_={},
        convergence_log_={},
        _undetermined=[],
        predict=lambda x: np.full(len(x), size),
        _solved_until=np.inf,
        _unidentified="",
    )
    said, is_doubtful = other_solutions(solver)
    assert ("The solution is zero everywhere" in said) is is_doubtful is is_said
    solver.convergence_log_["loss_data"] = np.ones(3)
    assert other_solutions(solver) == ("", False)
