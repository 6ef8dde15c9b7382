"""Evidence and steps of large networks against the dense formulas."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sklearn_gn import ShallowReLURegressor, VarProNetRegressor
from sklearn_gn.bayes import evidence, evidence_gn, laplace, layers, low_rank
from sklearn_gn.bayes.layers import first_network
from sklearn_gn.linalg import factors
from sklearn_gn.linalg import low_rank as linalg_low_rank
from sklearn_gn.optim.solver import Rows


def multilayer(n_targets=1, m=400, d=6, width=9):
    """A network of two layers near its start, and its rows."""
    rng = np.random.default_rng(0)
    model = layers.Layers(
        (d, width, width), ("tanh", "relu"), n_targets, "squared", tuple(range(1, d))
    )
    x, y = rng.standard_normal((m, d)), rng.standard_normal((m, n_targets))
    weight = rng.uniform(0.5, 2, m)
    rows = Rows(x, y, weight / weight.sum())
    start = first_network(model, rows, m, np.random.RandomState(0)).theta
    return model, start + 0.2 * rng.standard_normal(len(start)), rows


def shallow(n_targets=2, m=400):
    rng = np.random.default_rng(0)
    features = (0, 2, 3, 4)
    model = layers.Layers((5, 8), ("relu",), n_targets, "squared", features)
    x, y = rng.standard_normal((m, 5)), rng.standard_normal((m, n_targets))
    theta = rng.standard_normal(len(model.groups()))
    return model, theta, Rows(x, y, np.full(m, 1 / m))


def both(problem, monkeypatch):
    """Sums with the matrix, and with its products."""
    model, theta, rows = problem
    dense = model.sums(theta, rows)
    # Rows in blocks of 256: the last one is not full.
    monkeypatch.setattr(factors, "LARGEST_DENSE", 50)
    return dense, model.sums(theta, rows)


@pytest.mark.parametrize("problem", [multilayer(), multilayer(2), shallow()])
def test_products_are_those_of_the_matrix(problem, monkeypatch):
    dense, large = both(problem, monkeypatch)
    vectors = np.random.default_rng(1).standard_normal((len(dense.gram), 40))
    expected = dense.gram @ vectors
    assert_allclose(large.gram @ vectors, expected, atol=1e-10 * np.abs(expected).max())
    assert_allclose(large.gram @ vectors[:, 0], expected[:, 0], rtol=1e-8, atol=1e-10)
    assert_allclose(large.negative_gradient, dense.negative_gradient, atol=1e-10)
    assert_allclose(large.error, dense.error, rtol=1e-10)
    assert_allclose(large.gram.trace(), np.trace(dense.gram), rtol=1e-10)
    assert_allclose(large.gram.diagonal(), np.diag(dense.gram), atol=1e-10)
    rows = large.gram.jacobian_rows()
    assert_allclose(rows.T @ rows, dense.gram, atol=1e-10)


@pytest.mark.parametrize("problem", [multilayer(), multilayer(2), shallow()])
def test_estimates_are_near_the_dense_evidence(problem, monkeypatch):
    model, theta, rows = problem
    dense, large = both(problem, monkeypatch)
    monkeypatch.setattr(low_rank, "_FIRST_RANK", 10)
    monkeypatch.setattr(low_rank, "_LARGEST_RANK", 40)
    alpha = 10 ** np.random.default_rng(2).uniform(-1, 2, model.groups().max() + 1)
    net = evidence_gn.RegularisedLayers(theta, alpha, 20.0, None, 0.0, model)
    expected, found = (
        evidence_gn.at_penalties(model, net, sums, float(len(rows.x)))[0]
        for sums in (dense, large)
    )
    assert large.gram.factor.shape[1] <= 40 < expected.gamma.sum()
    assert_allclose(found.gamma.sum(), expected.gamma.sum(), rtol=0.02)
    assert np.abs(found.gamma - expected.gamma).max() < 0.02 * expected.gamma.sum()
    assert_allclose(found.log_det, expected.log_det, rtol=0.02)
    assert found.n_free == expected.n_free


def test_few_rows_are_exact(monkeypatch):
    problem = multilayer(m=40)
    model, theta, rows = problem
    dense, large = both(problem, monkeypatch)
    alpha = np.linspace(0.5, 3, model.n_groups)
    net = evidence_gn.RegularisedLayers(theta, alpha, 20.0, None, 0.0, model)
    expected, found = (
        evidence_gn.at_penalties(model, net, sums, 40.0)[0] for sums in (dense, large)
    )
    assert_allclose(found.gamma, expected.gamma, rtol=1e-8)
    assert_allclose(found.log_det, expected.log_det, rtol=1e-8)
    gradients = model.jacobian(theta, rows.x[:5])[0]
    std = [
        laplace.posterior_variances(
            laplace.covariance(model, sums, alpha, 20.0, 40.0), gradients
        )
        for sums in (dense, large)
    ]
    assert_allclose(*std, rtol=1e-4)


@pytest.mark.parametrize("rank", [None, 20])
def test_steps_are_those_of_the_matrix(rank, monkeypatch):
    monkeypatch.setattr(low_rank, "TOL", 1e-10)
    problem = multilayer(m=400 if rank is None else 40)
    dense, large = both(problem, monkeypatch)
    groups = problem[0].groups()
    precision = evidence.prior_precision(groups, np.linspace(0.5, 3, groups.max() + 1))
    moves = [
        evidence_gn._solver(sums.gram, precision, 1e3, rank, dense.negative_gradient)(
            0.1, dense.negative_gradient
        )
        for sums in (dense, large)
    ]
    assert_allclose(*moves, atol=1e-7 * np.max(moves))


@pytest.mark.parametrize("kind", [VarProNetRegressor, ShallowReLURegressor])
def test_a_fit_by_estimates_is_as_good(kind, largest_dense):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (500, 3))
    y = np.sin(3 * X[:, 0]) + np.abs(X[:, 1]) + 0.1 * rng.standard_normal(500)
    dense = kind(random_state=0, n_init=2).fit(X, y)
    assert dense.alpha_method_ == "dense"
    largest_dense(20)
    large = kind(random_state=0, n_init=2).fit(X, y)
    assert large.alpha_method_ == "lanczos"
    assert large.converged_
    assert_allclose(large.noise_std_, dense.noise_std_, rtol=0.05)
    assert_allclose(large.noise_std_, 0.1, rtol=0.15)
    lower, upper = large.predict_interval(X)
    assert 0.92 < np.mean((lower < y) & (y < upper)) < 0.99


def test_variances_beyond_the_floats_are_infinite():
    rng = np.random.default_rng(0)
    diagonal, factor = rng.uniform(1, 2, 5), rng.standard_normal((5, 2))
    gradients = rng.standard_normal((5, 3)) * [1, 1e150, 1e200]
    found = linalg_low_rank.LowRank.of(diagonal, factor).variances(gradients)
    matrix = np.diag(diagonal) + factor @ factor.T
    expected = np.sum(gradients[:, :2] * np.linalg.solve(matrix, gradients[:, :2]), 0)
    assert_allclose(found[:2], expected, rtol=1e-10)
    assert found[2] == np.inf
