"""Networks and points that find their size."""

import itertools
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn import PINNSolver
from sklearn_gn.arrays.trees import dimension
from sklearn_gn.pde import Box, Dirichlet, Neumann, Problem, d
from sklearn_gn.pinn import control, error_estimate, fitting
from sklearn_gn.pinn.iteration import Sampler
from sklearn_gn.pinn.model import (
    Model,
    start_parameters,
)

EQUATION = Problem(lambda u, x: d(u, "x", "x") + 1, Box(x=(0, 1)), Dirichlet(0.0))


def fitted(**settings):
    solver = PINNSolver(EQUATION, random_state=0, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return solver.fit()


def test_a_linear_problem_ends_at_its_minimum():
    solver = fitted()
    assert solver.converged_
    assert solver.n_iter_ < 50
    x = np.linspace(0, 1, 9)[:, None]
    exact = (x * (1 - x))[:, 0] / 2
    np.testing.assert_allclose(solver.predict(x), exact, atol=1e-7)


@pytest.mark.parametrize(
    ("estimate", "settings", "larger"),
    [
        (2e-4, {}, True),
        (5e-5, {}, False),
        (2e-4, {"max_time": 1e-2}, False),  # there is no time
        (2e-4, {"hidden_layer_sizes": (8, 8)}, False),
    ],
)
@pytest.mark.repeats
def test_a_network_that_is_not_accurate_grows_after_all(
    monkeypatch, estimate, settings, larger
):
    monkeypatch.setattr(
        error_estimate, "relative_error_estimate", lambda *_, **__: estimate
    )
    monkeypatch.setattr(
        control,
        "what_is_missing",
        lambda level, *_: "end" if len(level.falls) > 3 else None,
    )
    monkeypatch.setattr(fitting, "FIRST_WIDTHS", (8, 8))
    solver = fitted(max_iter=30, **settings)
    assert (solver.coefs_[0].shape[1] > 8) == larger


@pytest.mark.parametrize(
    ("widths", "sizes"),
    [
        ((5, 5), [(200, 80), (400, 160), (800, 320), (1600, 640), (3200, 1280)]),
        ((60, 60), [(500, 200), (1000, 400), (2000, 800), (2000, 800)]),
    ],
)
def test_points_grow_where_the_layers_are_given(widths, sizes):
    net = start_parameters(np.random.RandomState(0), (1, *widths, 1), ())
    rules = control.Rules(network=False, points=True)
    kinds = EQUATION.residual_classes()
    model = Model(EQUATION, ("tanh",), kinds)
    for k, (expected, larger) in enumerate(itertools.pairwise(sizes)):
        classes = EQUATION.residual_classes()
        assert control.points_for(classes, dimension(net), 2**k) == expected
        level = control.Level(2**k, (1e-3,) * 13)
        found = control.what_is_missing(level, 1.0, model, rules, 1e-5, 1e-3, net)
        assert found == ("end" if larger == expected else "points")


def test_a_default_fit_grows_and_solves_the_equation(monkeypatch):
    # It grows whenever it may.
    monkeypatch.setattr(control, "is_flat", lambda falls, *_: len(falls) > 3)
    monkeypatch.setattr(control, "MOST_WEIGHTS", 200)
    monkeypatch.setattr(fitting, "FIRST_WIDTHS", (8, 8))
    solver = PINNSolver(EQUATION, random_state=0, max_iter=24, tol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit()
    assert solver.coefs_[1].shape == (12, 12)
    x = np.linspace(0, 1, 9)[:, None]
    np.testing.assert_allclose(solver.predict(x), (x * (1 - x))[:, 0] / 2, atol=1e-5)
    # A warm start begins with the network that was found.
    solver.set_params(warm_start=True, max_iter=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit()
    assert solver.coefs_[1].shape == (12, 12)
    assert solver.fresh_loss_ < 1e-8


@pytest.mark.usefixtures("float64")
def test_half_of_the_points_are_where_the_residual_is():
    problem = Problem(
        lambda u, x: 0 * u(x) + jnp.maximum(x[0] - 0.5, 0),
        Box(x=(0, 1)),
        Dirichlet(0.0),
    )
    kinds = problem.residual_classes()
    model = Model(problem, ("tanh",), kinds)
    net = start_parameters(np.random.RandomState(0), (1, 3, 1), ())
    sampler = Sampler(16, 4, "residual", "float64")
    even, found = (
        sampler.draw(model, 0, 0, number, net)[0].x.ravel() for number in (0, 1)
    )
    np.testing.assert_array_equal(found[:8], even[:8])
    assert len(found) == 16
    assert found[8:].min() > 0.5 > even[8:].min()


@pytest.mark.parametrize(
    ("tol", "dtype"),
    [(1e-1, "float64"), (1e-2, "float32"), (1e-3, "float64"), (1e-5, "float64")],
)
def test_a_fit_ends_at_the_error_that_is_asked_for(tol, dtype):
    problem = Problem(
        lambda u, x: d(u, "x", "x") - 4 * jnp.exp(2 * x[0]),
        Box(x=(0, 1)),
        Dirichlet(lambda x: jnp.exp(2 * x[0])),
        exact=lambda x: jnp.exp(2 * x[0]),
    )
    settings = dict(hidden_layer_sizes=(8, 8), dtype=dtype, random_state=0)
    solver = PINNSolver(problem, tol=tol, **settings).fit()
    assert solver.converged_
    assert solver.stop_reason_ == "tol"
    assert solver.relative_error() < 3 * tol
    errors = solver.convergence_log_["relative_error"]
    # It does not go on for long, as each digit takes a few iterations.
    assert np.count_nonzero(errors < tol / 10) <= 3


def test_a_statement_that_contradicts_itself_ends_soon():
    """No points and no neurons help where values and slopes at the ends exclude all."""
    conditions = [Dirichlet(0.0), Neumann(0.3)]
    equation = Problem(EQUATION.residual, Box(x=(0, 1)), conditions)
    solver = PINNSolver(equation, random_state=0)
    with pytest.warns(ConvergenceWarning, match="need at most 2"):
        solver.fit()
    assert solver.stop_reason_ == "stalled"
    assert solver.n_iter_ < 60
