"""Evidence against dense formulas, BayesianRidge, ARDRegression and differences."""

import numpy as np
import pytest
from sklearn.linear_model import ARDRegression, BayesianRidge

from sklearn_gn.bayes import evidence


def problem(n=40, seed=0, n_groups=3, n_free=2, n_parameters=9):
    rng = np.random.default_rng(seed)
    jacobian = rng.standard_normal((n, n_parameters))
    groups = np.arange(n_parameters - n_free) % n_groups
    groups = np.concatenate([np.full(n_free, -1), groups])
    alpha = np.array([0.3, 7.0, 1e3])[:n_groups]
    return jacobian, groups, alpha, 2.5


def dense(jacobian, groups, alpha, beta):
    """The formulas of the module as they stand there."""
    precision = np.where(groups >= 0, alpha[groups], 0)
    hessian = beta * jacobian.T @ jacobian + np.diag(precision)
    inverse = np.linalg.inv(hessian)
    gamma = [
        np.sum(groups == g) - a * np.trace(inverse[np.ix_(groups == g, groups == g)])
        for g, a in enumerate(alpha)
    ]
    logs = np.sum(np.log(precision[precision > 0]))
    return np.array(gamma), np.linalg.slogdet(hessian)[1] - logs


@pytest.mark.parametrize("n", [40, 6])
def test_primal_and_dual_are_the_dense_formulas(n):
    n_free = 2
    jacobian, groups, alpha, beta = problem(n=n, n_free=n_free)
    gamma, log_det = dense(jacobian, groups, alpha, beta)
    primal = evidence.primal_curvature(jacobian.T @ jacobian, groups, alpha, beta)
    dual = evidence.dual_curvature(jacobian, groups, alpha, beta, n_free)
    for found in (primal, dual):
        np.testing.assert_allclose(found.gamma, gamma, rtol=1e-10)
        np.testing.assert_allclose(found.log_det, log_det, rtol=1e-10)
        assert found.n_free == n_free


def linear_fixed_point(X, y, groups, weight=None, n_iter=3000):
    """Penalties, noise and coefficients of a linear model at the fixed point."""
    weight = np.ones(len(y)) if weight is None else weight
    gram, right = X.T @ (weight[:, None] * X), X.T @ (weight * y)
    alpha, beta = np.ones(groups.max() + 1), 1.0
    for _ in range(n_iter):
        precision = evidence.prior_precision(groups, alpha)
        coef = np.linalg.solve(beta * gram + np.diag(precision), beta * right)
        found = evidence.primal_curvature(gram, groups, alpha, beta)
        squares = evidence.group_sums(coef**2, groups, len(alpha))
        error = weight @ (y - X @ coef) ** 2
        alpha, beta = evidence.updated(found, squares, error, weight.sum(), 1e-30)
    return alpha, beta, coef, gram, error


def linear_data(n=60, d=5, seed=1):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = X @ np.array([1.0, -2.0, 0.5, 3.0, 0.2]) + 0.3 * rng.standard_normal(n)
    return X - X.mean(axis=0), y - y.mean()


HYPER_PRIORS = {"alpha_1": 0, "alpha_2": 0, "lambda_1": 0, "lambda_2": 0}


def test_one_group_is_bayesian_ridge():
    X, y = linear_data()
    alpha, beta, coef, *_ = linear_fixed_point(X, y, np.zeros(5, dtype=int))
    peer = BayesianRidge(
        fit_intercept=False, tol=1e-14, max_iter=3000, **HYPER_PRIORS
    ).fit(X, y)
    np.testing.assert_allclose(alpha[0], peer.lambda_, rtol=1e-6)
    np.testing.assert_allclose(beta, peer.alpha_, rtol=1e-6)
    np.testing.assert_allclose(coef, peer.coef_, rtol=1e-6)


def test_a_group_a_coefficient_is_ard_regression():
    X, y = linear_data()
    alpha, beta, coef, *_ = linear_fixed_point(X, y, np.arange(5))
    peer = ARDRegression(
        fit_intercept=False,
        tol=1e-14,
        max_iter=3000,
        threshold_lambda=1e300,
        **HYPER_PRIORS,
    ).fit(X, y)
    np.testing.assert_allclose(alpha, peer.lambda_, rtol=1e-6)
    np.testing.assert_allclose(beta, peer.alpha_, rtol=1e-6)
    np.testing.assert_allclose(coef, peer.coef_, rtol=1e-6)


def evidence_of(X, y, groups, log_alpha, log_beta):
    """Log evidence of a linear model by the density of y itself."""
    alpha, beta = np.exp(log_alpha), np.exp(log_beta)
    covariance = np.eye(len(y)) / beta + (X / alpha[groups]) @ X.T
    _, log_det = np.linalg.slogdet(2 * np.pi * covariance)
    return -(log_det + y @ np.linalg.solve(covariance, y)) / 2


def test_log_evidence_is_the_density_of_the_targets():
    X, y = linear_data()
    groups = np.array([0, 0, 1, 1, 2])
    alpha, beta, _, gram, _ = linear_fixed_point(X, y, groups, n_iter=50)
    precision = evidence.prior_precision(groups, alpha)
    coef = np.linalg.solve(beta * gram + np.diag(precision), beta * (X.T @ y))
    energy = beta / 2 * np.sum((y - X @ coef) ** 2) + np.sum(precision * coef**2) / 2
    found = evidence.log_evidence(
        evidence.primal_curvature(gram, groups, alpha, beta), energy, len(y), beta
    )
    expected = evidence_of(X, y, groups, np.log(alpha), np.log(beta))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_derivatives_of_the_evidence_vanish_at_the_fixed_point():
    X, y = linear_data()
    groups = np.array([0, 0, 1, 1, 2])
    alpha, beta, *_ = linear_fixed_point(X, y, groups)
    at = np.append(np.log(alpha), np.log(beta))
    for k in range(4):
        step = np.zeros(4)
        step[k] = 1e-4
        up, down = (
            evidence_of(X, y, groups, p[:3], p[3]) for p in (at + step, at - step)
        )
        assert abs(up - down) / 2e-4 < 1e-5


def test_weights_are_repetitions():
    X, y = linear_data()
    groups = np.array([0, 0, 1, 1, 2])
    weight = np.arange(len(y)) % 3
    repeated = np.repeat(np.arange(len(y)), weight)
    weighted = linear_fixed_point(X, y, groups, weight.astype(float), n_iter=30)
    plain = linear_fixed_point(X[repeated], y[repeated], groups, n_iter=30)
    for a, b in zip(weighted[:3], plain[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.slow
def test_penalties_count_as_the_parameters_of_steins_lemma():
    """The divergence of a fit with chosen penalties; y are coefficients in noise."""
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2], 12)
    y = rng.standard_normal(36) * np.repeat([4.0, 1.3, 0.3], 12)

    def fitted(y):
        alpha = np.ones(3)
        for _ in range(5000):
            gamma = 12 / (1 + alpha)
            coef = y / (1 + alpha[groups])
            squares = evidence.group_sums(coef**2, groups, 3)
            curvature = evidence.Curvature(gamma, 0, None)
            alpha, _ = evidence.updated(curvature, squares, 1.0, 36.0, 1.0)
        return coef, gamma

    step = 1e-5 * np.eye(36)
    divergence = sum(
        (fitted(y + e)[0][i] - fitted(y - e)[0][i]) / 2e-5 for i, e in enumerate(step)
    )
    gamma = fitted(y)[1]
    assert gamma[1] > 1  # only the last group is switched off
    more = evidence.parameters_of_penalties(gamma, groups)
    assert np.sum(gamma) + more == pytest.approx(divergence, rel=1e-5)
    assert evidence.parameters_of_penalties(np.full(3, 0.2), groups) <= 0.6 + 1e-12
