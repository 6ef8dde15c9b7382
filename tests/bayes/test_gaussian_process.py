"""The limit of infinitely many neurons, against scikit-learn's Gaussian process."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime, minimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

from sklearn_gn.bayes import gaussian_process
from sklearn_gn.bayes.gaussian_process import Kernel, LogDensity


def problem(n=40, k=1):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    y = np.sin(2 * x[:, [0] * k] + np.arange(k)) + 0.1 * rng.normal(size=(n, k))
    return x, y, rng.integers(1, 4, n).astype(float)


KERNEL = Kernel(np.array([0.5, 0.1]), 0.9, 0.4, 0.2, 0.03)


def peer(found, x, y, count):
    """The process of scikit-learn with the same kernel."""
    v, kernel = found.process.scale, found.process.kernel
    smooth = ConstantKernel(v) * RBF(1 / np.sqrt(kernel.rho))
    lengths = np.where(np.eye(len(kernel.rho)), 1 / np.sqrt(kernel.nu), np.inf)
    for own in lengths:
        smooth = smooth + ConstantKernel(v * kernel.additive) * RBF(own)
    slope = ConstantKernel(v * kernel.slope) * DotProduct(1.0)
    noise = v * kernel.noise / count
    other = GaussianProcessRegressor(smooth + slope, alpha=noise, optimizer=None)
    return other.fit(x, y)


@pytest.mark.parametrize("n_rows", [9, 2000])  # many are interpolated
def test_means_deviations_and_evidence(n_rows):
    x, y, count = problem()
    found = gaussian_process.fitted(KERNEL, x, y, count)
    other = peer(found, x, y, count)
    z = np.random.default_rng(1).normal(size=(n_rows, 2))
    mean, std = other.predict(z, return_std=True)
    process = found.process
    values, size = process.values(found.theta, z)[:, 0], np.max(np.abs(mean))
    assert_allclose(values, mean, rtol=1e-9, atol=1e-11 * size)
    assert_allclose(process.variances(process.root(), z)[:, 0], std**2, rtol=1e-5)
    assert found.log_evidence == pytest.approx(other.log_marginal_likelihood_value_)


def test_the_scale_has_the_highest_evidence():
    x, y, count = problem()
    found = gaussian_process.fitted(KERNEL, x, y, count)
    for factor in (0.9, 1.1):
        scale = found.process.scale * factor
        moved = found._replace(process=found.process._replace(scale=scale))
        value = peer(moved, x, y, count).log_marginal_likelihood_value_
        assert value < found.log_evidence


def test_a_row_that_stands_for_several_is_left_out_once():
    x, y, count = problem(25)
    found = gaussian_process.fitted(KERNEL, x, y, count)
    v = found.process.scale
    for i in (0, 1, 2, 3):
        left = count - (np.arange(25) == i)
        kept = left > 0
        other = peer(found, x[kept], y[kept], left[kept])
        mean, std = other.predict(x[[i]], return_std=True)
        assert_allclose(found.errors[i], mean - y[i], rtol=1e-7)
        expected = std**2 + v * KERNEL.noise
        assert_allclose(found.variances[[i]], expected, rtol=1e-6)


@pytest.mark.parametrize("singles", [False, True])
@pytest.mark.parametrize("k", [1, 3])
def test_derivatives_of_the_evidence(k, singles):
    density = LogDensity(*problem(k=k), singles)
    logs = np.log([0.5, 0.1, 0.9, 0.4, 0.2, 0.03])

    _, slope = density(logs)
    expected = approx_fprime(logs, lambda logs: density(logs)[0], 1e-6)
    assert_allclose(slope, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", [19, 29, 55])
def test_the_search_does_not_end_where_the_evidence_is_nearly_flat(seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.7, 1.7, (150, 2))
    y = np.sin(2 * x[:, :1]) * rng.uniform(0, 0.7) + rng.standard_normal((150, 1))
    y = (y - y.mean()) / y.std()
    lengths, noise = np.full(2, rng.uniform(-4, 2)), rng.uniform(0.1, 10)
    start = np.append(lengths, [0, -np.inf, *np.log([0.1, noise])])
    given = x, y, np.ones(150)
    found = gaussian_process.best_kernel(start, *given, steps=60)
    density, start = LogDensity(*given, singles=False), np.maximum(found.x, -20)
    best = minimize(density, start, jac=True, method="BFGS", options={"gtol": 1e-6})
    assert 150 * (found.fun - best.fun) < 3


def test_the_search_finds_oscillations():
    x = np.linspace(-1.7, 1.7, 120)[:, None]
    y = np.sin(35 * x)
    given = x, y, np.ones(120), [(0,)]
    logs, _ = gaussian_process.first_kernel(*given, gaussian_process.NOISES)
    found = gaussian_process.fitted(Kernel.of(logs), x, y, np.ones(120))
    z = np.linspace(-1.6, 1.6, 50)[:, None]
    assert_allclose(found.process.values(found.theta, z), np.sin(35 * z), atol=1e-4)
