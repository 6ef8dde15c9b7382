"""Error bars of unknown functions, against what the functions are."""

import pickle
import warnings

import numpy as np
import pytest

from sklearn_gn import PINNSolver
from sklearn_gn.pde import Box, Dirichlet, Interval, Problem, d
from sklearn_gn.pinn import unknown_functions as module
from sklearn_gn.pinn.unknown_functions import unknown_functions

NOISE = 1e-3
GRID = np.linspace(0, 1, 41)[:, None]


def loaded(u, x):
    return d(u["u"], "x", "x")(x) + u["f"](x)


STRING = Problem(
    loaded,
    Interval(0, 1, axis="x"),
    [Dirichlet(0.0, outputs="u")],
    outputs=("u", "f"),
)


def source(x):
    return np.sin(np.pi * x) + 0.6 * np.sin(2 * np.pi * x)


@pytest.fixture(scope="module")
def observed():
    rng = np.random.RandomState(3)
    x = rng.uniform(0, 1, (40, 1))
    y = np.sin(np.pi * x) / np.pi**2 + 0.6 * np.sin(2 * np.pi * x) / (2 * np.pi) ** 2
    return x, (y + NOISE * rng.normal(size=y.shape))[:, 0]


@pytest.fixture(scope="module")
def solver(observed):
    solver = PINNSolver(
        STRING,
        hidden_layer_sizes=(10, 10),
        observed_outputs=["u"],
        max_iter=40,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return solver.fit(*observed)


def test_the_bias_of_the_fit_counts_as_error(solver):
    y, std = solver.predict(GRID, return_std=True)
    error = np.abs(y[:, 1] - source(GRID[:, 0]))
    assert np.mean(error < 2 * std[:, 1]) > 0.9
    assert np.median(std[:, 1]) < 3 * np.median(error)  # no wider than need be
    again = pickle.loads(pickle.dumps(solver))
    np.testing.assert_allclose(again.predict(GRID, return_std=True)[1], std)


def test_functions_are_told_from_outputs_with_an_equation():
    assert unknown_functions(STRING, (0,), 1) == (1,)
    assert unknown_functions(STRING, (0, 1), 1) == ()
    assert unknown_functions(STRING, (0,), 2) == ()
    wall = Problem(
        loaded, Box(x=(0, 1), t=(0, 1)), outputs=("f", "u"), depends_on={"f": "x"}
    )
    assert unknown_functions(wall, (0, 1), 1) == (0,)


@pytest.mark.slow
def test_no_error_bars_where_there_are_too_many_axes(solver, monkeypatch):
    monkeypatch.setattr(module, "_WAVES", {})
    with pytest.raises(ValueError, match="more than three axes"):
        solver.predict(GRID, return_std=True)
