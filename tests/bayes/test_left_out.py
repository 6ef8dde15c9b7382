"""Values of rows that are left out, without fits."""

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import softmax

from sklearn_gn.bayes import laplace
from sklearn_gn.bayes.layers import Layers
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.optim.solver import Rows

ALPHA, M = 0.7, 30


def problem(loss, n_values, m=M):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, 2))
    y = rng.standard_normal((m, n_values))
    if loss == "cross_entropy":
        y = np.eye(max(n_values, 2))[np.digitize(x[:, 0] + y[:, 0], [-0.3, 0.8])]
    model = Layers((2,), (), n_values, loss, (0, 1))
    return model, Rows(x, y, np.full(m, 1 / m))


def fitted(model, rows, n_effective):
    """Minimum of the loss with a penalty of the slopes."""
    penalised = model.groups() >= 0

    def energy(theta):
        value = n_effective * model.error(theta, rows) / 2
        return value + ALPHA * np.sum(theta[penalised] ** 2) / 2

    def gradient(theta):
        slope = model.sums(theta, rows).negative_gradient
        return ALPHA * penalised * theta - n_effective * slope

    start = np.zeros(len(penalised))
    return minimize(energy, start, jac=gradient, method="BFGS", tol=1e-10).x


def covariance(model, rows, theta, n_effective):
    alpha = np.full(model.n_groups, ALPHA)
    sums = model.sums(theta, rows)
    return laplace.covariance(model, sums, alpha, 1.0, n_effective)


def refitted_values(model, rows):
    m, found = len(rows.x), []
    for i in range(m):
        kept = np.arange(m) != i
        rest = Rows(rows.x[kept], rows.y[kept], np.full(m - 1, 1 / (m - 1)))
        theta = fitted(model, rest, m - 1.0)
        found.append(model.values(theta, rows.x[i : i + 1])[0])
    return np.array(found)


def test_left_out_values_of_least_squares_are_exact():
    model, rows = problem("squared", 1)
    theta = fitted(model, rows, M)
    inverse = covariance(model, rows, theta, M)
    found = laplace.left_out_values(model, theta, inverse, rows, M)
    assert_allclose(found, refitted_values(model, rows), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("k", [1, 3])
def test_left_out_values_are_those_of_a_newton_step(k):
    model, rng = Layers((2, 3), ("tanh",), k, "cross_entropy", (0, 1)), default_rng(0)
    y = np.eye(max(k, 2))[rng.integers(max(k, 2), size=M)]
    rows = Rows(rng.standard_normal((M, 2)), y, np.full(M, 1 / M))
    theta = rng.standard_normal(model.n_parameters)
    inverse = covariance(model, rows, theta, M)
    found = laplace.left_out_values(model, theta, inverse, rows, M)
    jacobian, u = model.jacobian(theta, rows.x), model.values(theta, rows.x)
    for i in range(M):
        own, p = jacobian[:, :, i], softmax(all_classes(u[[i]]))[0, -k:]
        spread = own @ inverse @ own.T
        curvature = np.diag(p) - np.outer(p, p)
        pull = spread @ (p - y[i, -k:])
        step = np.linalg.solve(np.eye(k) - spread @ curvature, pull)
        assert_allclose(found[i] - u[i], step, rtol=1e-8)


def test_left_out_values_of_classes_are_those_of_fits_nearly():
    model, rows = problem("cross_entropy", 3)
    theta = fitted(model, rows, M)
    inverse = covariance(model, rows, theta, M)
    found = laplace.left_out_values(model, theta, inverse, rows, M)
    known, values = refitted_values(model, rows), model.values(theta, rows.x)
    assert np.abs(found - known).max() < 0.15 * np.abs(values - known).max()
