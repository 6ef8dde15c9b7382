"""The linear model that competes with networks by its evidence."""

import numpy as np
import pytest
from scipy.linalg import null_space
from scipy.optimize import minimize
from scipy.stats import multivariate_normal, norm
from sklearn.linear_model import Ridge

from sklearn_gn import ShallowReLURegressor, VarProNetRegressor
from sklearn_gn.bayes.laplace import left_out_errors
from sklearn_gn.bayes.linear_evidence import linear_model
from sklearn_gn.optim.solver import Rows


def rows_of(n, d, k, seed=0):
    rng = np.random.RandomState(seed)
    x, weight = rng.randn(n, d) + 1, rng.randint(1, 4, size=n)
    y = x[:, :1] + rng.randn(n, k)
    return Rows(x, y, weight / weight.sum()), float(weight.sum())


@pytest.mark.parametrize(("k", "d"), [(1, 4), (2, 4), (1, 35)])
def test_its_evidence_is_the_density_of_the_data(k, d):
    n = 30
    rows, n_effective = rows_of(n, d, k)
    if d > n:
        rows, n_effective = rows._replace(weight=np.full(n, 1 / n)), float(n)
    found = linear_model(rows, n_effective)

    rep = np.repeat(np.arange(n), np.round(n_effective * rows.weight).astype(int))
    contrasts = null_space(np.ones((1, len(rep)))).T  # what a free constant leaves
    x, y = contrasts @ rows.x[rep], contrasts @ rows.y[rep]

    def density(alpha, beta):
        cov = np.eye(len(x)) / beta + x @ x.T / alpha
        return sum(multivariate_normal.logpdf(t, cov=cov) for t in y.T)

    best = density(found.alpha, found.beta)
    # The volume of the constant, without the root of 2 pi of its density.
    constants = k * np.log(2 * np.pi * len(rep)) / 2
    assert best - constants == pytest.approx(found.log_evidence, abs=1e-9)
    for factor in (0.9, 1.1):
        assert density(found.alpha * factor, found.beta) < best
        assert density(found.alpha, found.beta * factor) < best
    ridge = Ridge(alpha=found.alpha / found.beta / n_effective)
    ridge.fit(rows.x, rows.y, sample_weight=rows.weight)
    np.testing.assert_allclose(found.coef[1:].T, np.atleast_2d(ridge.coef_), atol=1e-9)
    np.testing.assert_allclose(found.coef[0], ridge.intercept_, atol=1e-9)


@pytest.mark.parametrize("d", [1, 4])
def test_it_is_exact_on_a_line_without_noise(d):
    rows, n_effective = rows_of(60, d, 1)
    slopes = np.arange(1.0, 1 + d)[:, None]
    found = linear_model(rows._replace(y=0.5 + rows.x @ slopes), n_effective)
    np.testing.assert_allclose(found.coef, [[0.5], *slopes], atol=1e-14)
    assert found.beta > 1e28


def best_linear_evidence(X, y):
    """The highest evidence of a linear model with a constant."""
    contrasts = null_space(np.ones((1, len(y)))).T
    values, vectors = np.linalg.eigh(contrasts @ X @ X.T @ contrasts.T)
    values, targets = np.maximum(values, 0), vectors.T @ (contrasts @ y)

    def energy(logs):  # of the variances of coefficients and noise
        slope, noise = np.exp(logs)
        return -norm.logpdf(targets, scale=np.sqrt(noise + slope * values)).sum()

    found = minimize(energy, [-2.0, 0.0], method="Nelder-Mead", tol=1e-10)
    return -found.fun - np.log(2 * np.pi * len(y)) / 2


@pytest.mark.parametrize(("n", "d"), [(134, 15), (40, 60)])
@pytest.mark.parametrize("kind", [ShallowReLURegressor, VarProNetRegressor])
def test_a_network_that_finds_structure_in_noise_loses_to_it(kind, n, d):
    rng = np.random.RandomState(7)  # where rounding does not decide
    X, y = rng.randn(n, d), rng.randn(n)
    model = kind(random_state=0).fit(X, y)
    if kind is VarProNetRegressor:
        assert np.var(model.predict(rng.randn(500, d))) < 0.05
        return
    slopes = model.predict(np.eye(d)) - model.predict(np.zeros((1, d)))
    np.testing.assert_allclose(
        model.predict(X), model.predict(np.zeros((1, d))) + X @ slopes, atol=1e-9
    )
    # The features have other units there, robust ones.
    best = best_linear_evidence(X / X.std(axis=0), y)
    assert model.log_evidence_ == pytest.approx(best, abs=2)
    assert model.n_effective_parameters_ < d
    if n < d:
        return
    # On other data a warm start looks for structure once more.
    model.set_params(warm_start=True).fit(X, np.abs(X[:, 0]) + 0.1 * y)
    assert model.score(X, np.abs(X[:, 0]) + 0.1 * y) > 0.9


@pytest.mark.parametrize("d", [4, 15])
def test_errors_at_left_out_rows_are_those_of_fits_without_them(d):
    rows, n_effective = rows_of(12, d, 2)
    if d > 12:
        rows, n_effective = rows._replace(weight=np.full(12, 1 / 12)), 12.0
    linear = linear_model(rows, n_effective)
    values = linear.coef[0] + rows.x @ linear.coef[1:]
    found, _ = left_out_errors(values, linear.leverage(rows.x), rows, n_effective)
    counts = n_effective * rows.weight
    for i in range(12):  # one of the rows that row i stands for
        ridge = Ridge(alpha=linear.alpha / linear.beta)
        without = np.maximum(counts - (np.arange(12) == i), 0)
        ridge.fit(rows.x, rows.y, sample_weight=without)
        expected = ridge.predict(rows.x[i : i + 1])[0] - rows.y[i]
        np.testing.assert_allclose(found[i], expected, atol=1e-8)


def test_a_network_that_follows_far_rows_loses_to_the_linear_model():
    rng = np.random.default_rng(6)
    X = rng.normal(size=(300, 4))
    y = X[:, 0] + rng.standard_t(1.5, 300)
    model = ShallowReLURegressor(random_state=0).fit(X, y)
    assert len(model.hyperplanes_) == 0
