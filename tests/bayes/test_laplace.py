"""Error bars against dense formulas and against scikit-learn's Bayesian regression."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import BayesianRidge

from sklearn_gn.bayes import laplace
from sklearn_gn.bayes.laplace import PseudoInverse, degrees_of_freedom, safe_norm

pytestmark = pytest.mark.usefixtures("float64")

# Compiled, since every operation outside a compiled function is compiled on its own.
factor_with_floor = jax.jit(laplace.factor_with_floor, static_argnames="ulps")
effective_parameters = jax.jit(lambda root, matrix: jnp.trace(root.solve(matrix)))
variances = jax.jit(lambda root, rows: root.variances(rows.T))
ULPS = 10


def draw(*shape, seed=0):
    return np.random.RandomState(seed).standard_normal(shape)


@pytest.mark.parametrize("penalised", [False, True])
def test_variances_and_parameters_are_those_of_the_dense_inverse(penalised):
    jacobian, t = draw(30, 6), draw(4, 6, seed=1)
    matrix = jacobian.T @ jacobian
    penalty = np.diag(np.arange(1.0, 7)) if penalised else None
    inverse = np.linalg.inv(matrix + (penalty if penalised else 0))
    root = factor_with_floor(np.asarray(matrix), penalty, ulps=ULPS)
    np.testing.assert_allclose(
        variances(root, np.asarray(t)), np.diag(t @ inverse @ t.T), rtol=1e-10
    )
    expected = np.trace(inverse @ matrix)
    np.testing.assert_allclose(effective_parameters(root, matrix), expected)
    if not penalised:
        assert expected == pytest.approx(6)


def test_bayesian_regression_of_scikit_learn():
    X, new = draw(40, 5), draw(7, 5, seed=2)
    y = X @ np.arange(5.0) + 0.3 * draw(40, seed=3)
    model = BayesianRidge(fit_intercept=False).fit(X, y)
    _, std = model.predict(new, return_std=True)
    gram = X.T @ X
    penalty = model.lambda_ / model.alpha_ * np.eye(5)
    root = factor_with_floor(np.asarray(gram), penalty, ulps=ULPS)
    of_mean = variances(root, np.asarray(new)) / model.alpha_
    np.testing.assert_allclose(of_mean + 1 / model.alpha_, std**2, rtol=1e-10)
    # MacKay's fixed point: the noise from what the parameters leave.
    gamma = float(effective_parameters(root, gram))
    square = np.sum((y - model.predict(X)) ** 2)
    noise = square / degrees_of_freedom(40, 1, gamma)
    assert noise == pytest.approx(1 / model.alpha_, rel=1e-3)
    np.testing.assert_allclose(gamma, model.lambda_ * model.coef_ @ model.coef_, 1e-3)


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (6, 6)])
@pytest.mark.parametrize("size", [1.0, 1e-170])
def test_pseudo_inverse_from_either_gramian(shape, size):
    jacobian, t = size * draw(*shape), size * draw(3, shape[1], seed=1)

    @jax.jit
    def influence(jacobian, t):
        inverse = PseudoInverse.of(jacobian)
        return inverse.factor.root, inverse.influence(t), inverse.leverages(slice(1, 4))

    root, found, leverages = influence(jacobian, t)
    assert root.shape == (min(shape),) * 2
    pseudo = np.linalg.pinv(jacobian)
    np.testing.assert_allclose(found, t @ pseudo, rtol=1e-8, atol=1e-10)
    expected = np.diagonal(jacobian @ pseudo)[1:4]
    np.testing.assert_allclose(leverages, expected, rtol=1e-8)


def test_rows_count_by_their_weights():
    """Weight two, and the row given twice, in a line through points."""
    x, y = draw(9, 2), draw(9, seed=1)
    weight = np.where(np.arange(9) < 4, 2.0, 1.0)
    again = np.repeat(np.arange(9), weight.astype(int))

    def deviation(x, y, weight):
        share = np.sqrt(weight / weight.sum())
        rows, target = share[:, None] * x, share * y
        matrix = rows.T @ rows
        root = factor_with_floor(np.asarray(matrix), ulps=ULPS)
        n_parameters = effective_parameters(root, matrix)
        error = target - rows @ np.linalg.lstsq(rows, target)[0]
        noise = error @ error / degrees_of_freedom(weight.sum(), 1, n_parameters)
        return np.sqrt(noise * variances(root, np.eye(2)))

    weighted = deviation(x, y, weight)
    np.testing.assert_allclose(
        weighted, deviation(x[again], y[again], np.ones(len(again)))
    )
    # The textbook: s^2 (X^T X)^-1 with s^2 from n - p.
    rows, target = x[again], y[again]
    _, square, *_ = np.linalg.lstsq(rows, target)
    covariance = square / (len(again) - 2) * np.linalg.inv(rows.T @ rows)
    np.testing.assert_allclose(weighted, np.sqrt(np.diag(covariance)))
    twice = deviation(x, y, 2 * weight)
    np.testing.assert_allclose(weighted / twice, np.sqrt((26 - 2) / (13 - 2)))


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_norms_of_numbers_of_any_size(scale):
    values = draw(4, 3) * scale
    values[:, 2] = 0
    expected = np.linalg.norm(values / scale, axis=0) * scale
    np.testing.assert_allclose(safe_norm(values, 0), expected)
