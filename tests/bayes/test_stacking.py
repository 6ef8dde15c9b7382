"""Weights of models by the density of rows that are left out."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import log_softmax

from sklearn_gn.bayes import stacking


def test_weights_maximise_the_density_of_the_mixture():
    rng = np.random.default_rng(0)
    density = rng.normal(size=(60, 3)) + np.array([0.0, 0.3, -3.0])
    weight = rng.integers(1, 4, 60).astype(float)
    found = stacking.weights(density, weight, weight.sum())

    grid = np.array([(i, j, 100 - i - j) for i in range(101) for j in range(101 - i)])
    with np.errstate(divide="ignore"):
        values = weight @ np.log(np.exp(density) @ grid.T / 100)
        values = values + np.mean(np.log(grid), axis=1)
    np.testing.assert_allclose(found, grid[np.argmax(values)] / 100, atol=0.011)
    repeated = np.repeat(density, weight.astype(int), axis=0)
    again = stacking.weights(repeated, np.ones(len(repeated)), len(repeated))
    np.testing.assert_allclose(again, found, atol=1e-5)


def test_a_model_that_is_worse_everywhere_has_no_weight():
    density = np.array([[0.0, -2.0, -900.0]] * 9)
    found = stacking.weights(density, np.ones(9), 900.0)
    np.testing.assert_array_equal(found, [1, 0, 0])


def test_few_rows_do_not_tell_models_apart():
    density = np.array([[0.0, -0.2]] * 3)
    found = stacking.weights(density, np.ones(3), 3.0)
    assert 0.3 < found[1] < 0.5


@pytest.mark.parametrize("freedom", [4.0, 1000.0])
def test_densities_are_those_of_the_best_t_distribution(freedom):
    rng = np.random.default_rng(1)
    variances = rng.uniform(0.5, 2, 400)
    errors = 3 * np.sqrt(variances) * rng.standard_t(freedom, 400)
    found = stacking.log_densities(errors, 7 * variances, np.ones(400))

    def loss(log_scale, nu):
        scale = np.exp(log_scale) * np.sqrt(variances)
        return -np.sum(stats.t.logpdf(errors, nu, scale=scale))

    best = max(-minimize(loss, 0.0, (nu,)).fun for nu in stacking.FREEDOMS)
    assert np.sum(found) == pytest.approx(best, abs=1e-4)


def test_errors_of_zero_are_better_than_any_others():
    found = [
        stacking.log_densities(size * np.ones(5), np.ones(5), np.ones(5))
        for size in (0.0, 1e-300, 1e-9)
    ]
    assert np.isfinite(found).all()
    assert found[0][0] >= found[1][0] > found[2][0]


def test_errors_of_rounding_are_no_worse_than_none():
    rounding = np.finfo(np.float64).eps * np.array([1, -1, 0, 1, 0.5])
    given = 1e-30 * np.ones(5), np.ones(5)
    none, some = (stacking.log_densities(e, *given) for e in (0 * rounding, rounding))
    np.testing.assert_allclose(none, some, atol=2)


def test_the_factor_of_logits_is_the_most_probable_one():
    rng = np.random.default_rng(0)
    label, weight = rng.integers(3, size=80), rng.integers(1, 4, 80)
    y = np.eye(3)[label]
    logits = 2 * y + 2 * rng.standard_normal((80, 3))

    def loss(log_factor):
        log_p = log_softmax(np.exp(log_factor[0]) * logits, axis=1)[range(80), label]
        return -weight @ log_p + 2 * log_factor[0] ** 2

    factor, log_p = stacking.best_factor(logits, y, weight)
    found = np.exp(minimize(loss, [0.0], tol=1e-9).x[0])
    assert factor == pytest.approx(found, rel=1e-5)
    assert 0.2 < factor < 0.9  # the logits promise too much
    given = log_softmax(factor * logits, axis=1)[range(80), label]
    np.testing.assert_allclose(log_p, given, rtol=1e-12)
