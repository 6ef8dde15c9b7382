"""Error bars of unknown functions, against Gaussian-process regression."""

import pickle
import warnings

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from sklearn_gn import PINNSolver
from sklearn_gn.pde import Box, Dirichlet, Interval, Problem, d
from sklearn_gn.pinn import unknown_functions as module
from sklearn_gn.pinn.unknown_functions import Prior, covariance, unknown_functions

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
FIRST, SECOND = Prior(NOISE, (1.0,), (0.3,)), Prior(2 * NOISE, (0.5,), (0.5,))


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


def regression(x, y, prior):
    """Mean and deviation of f on GRID, and log evidence, by Green's function."""
    m = 400
    s = (np.arange(m) + 0.5)[:, None] / m
    green = np.minimum(x, s.T) * (1 - np.maximum(x, s.T)) / m
    both = np.vstack([s, GRID])
    known = covariance(cdist(both, both), *prior.deviations, *prior.lengths)
    of_u = green @ known[:m, :m] @ green.T + prior.noise**2 * np.eye(len(x))
    with_f = known[m:, :m] @ green.T
    mean = with_f @ np.linalg.solve(of_u, y)
    variance = known[m:, m:] - with_f @ np.linalg.solve(of_u, with_f.T)
    evidence = -(y @ np.linalg.solve(of_u, y) + np.linalg.slogdet(of_u)[1]) / 2
    return mean, np.sqrt(variance.diagonal()), evidence


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_the_posterior_is_that_of_gaussian_process_regression(solver, observed):
    posterior = solver._posterior
    form, to_changes = posterior._form()
    change, root = form.solution(FIRST)
    mean, deviation, evidence = regression(*observed, FIRST)
    numbers = posterior._waves.numbers[1] @ (GRID - 0.5).T
    waves = np.concatenate([np.cos(numbers), np.sin(numbers)]).T
    rows = waves @ to_changes[posterior._waves.sizes[0] :]
    found = solver.predict(GRID)[:, 1] + rows @ change
    np.testing.assert_allclose(found, mean, atol=0.05 * deviation.min())
    spread = np.linalg.norm(rows @ root, axis=1)
    np.testing.assert_allclose(spread, deviation, rtol=0.02)
    other = regression(*observed, SECOND)[2]
    gain = form.minus_log_evidence(SECOND) - form.minus_log_evidence(FIRST)
    assert gain == pytest.approx(evidence - other, rel=0.01)
    best = posterior._found.prior
    assert form.minus_log_evidence(best) < form.minus_log_evidence(FIRST)
    assert best.noise == pytest.approx(solver.noise_std_, rel=0.1)


@pytest.mark.slow
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


def test_an_overflow_is_no_evidence_and_no_end_of_a_fit():
    with pytest.raises(np.linalg.LinAlgError, match="not finite"):
        module._scaled(np.diag([np.inf, 1.0]))
