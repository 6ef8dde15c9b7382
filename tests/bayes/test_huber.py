"""Huber's loss by least squares of clipped targets."""

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.stats import norm

from sklearn_gn import ShallowReLURegressor, VarProNetClassifier, VarProNetRegressor
from sklearn_gn.bayes import huber
from sklearn_gn.optim.solver import Rows
from sklearn_gn.solvers import GNvpro


def _rows(m=120, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.3 * rng.standard_normal(m)
    y[::15] += 20
    return x, y, rng.integers(1, 4, m).astype(float)


def _reference(x, y, weight, start, scale):
    """Coefficients by SciPy, for rows as often as their weights say."""
    x, y = np.repeat(x, weight.astype(int), axis=0), np.repeat(y, weight.astype(int))
    columns = np.column_stack([np.ones(len(x)), x])
    return least_squares(
        lambda c: columns @ c - y,
        start,
        loss="huber",
        f_scale=huber.BOUND * scale,
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-13,
    ).x


def test_least_squares_of_the_targets_minimise_hubers_loss():
    x, y, weight = _rows()
    rows = Rows(x, y[:, None], weight / weight.sum())
    columns, root = np.column_stack([np.ones(len(x)), x]), np.sqrt(weight)[:, None]
    fitted = columns @ np.zeros((4, 1))
    for _ in range(100):
        targets = huber.targets_of(fitted, rows)
        coef = np.linalg.lstsq(root * columns, root * targets, rcond=None)[0]
        fitted = columns @ coef
    scale = huber.scales_of(fitted, rows)[0]
    expected = _reference(x, y, weight, coef[:, 0], scale)
    np.testing.assert_allclose(coef[:, 0], expected, atol=1e-7)
    # The variance of the estimate: E psi^2 over the square of the share within bounds.
    residual = y - fitted[:, 0]
    inside = weight @ (np.abs(residual) <= huber.BOUND * scale) / weight.sum()
    clipped = np.clip(residual, -huber.BOUND * scale, huber.BOUND * scale)
    np.testing.assert_allclose((targets - fitted)[:, 0], clipped / inside, atol=1e-7)


def test_linear_robust_network_is_that_of_scipy():
    x, y, weight = _rows()
    alpha = {"slope": 1e-9, "coef": 1e6, "bias": 1e6, "weights": np.full(3, 1e6)}
    model = ShallowReLURegressor(1, alpha=alpha, loss="huber", random_state=0)
    model.fit(x, y, sample_weight=weight)
    found = np.append(model.output_intercept_, model.linear_coef_)
    repeated = np.repeat(np.abs(y - model.predict(x)), weight.astype(int))
    scale = np.median(repeated) / norm.ppf(0.75)
    expected = _reference(x, y, weight, found, scale)
    plain = ShallowReLURegressor(1, alpha=alpha).fit(x, y, sample_weight=weight)
    # Rounds end when the targets move by less than a fiftieth of the noise.
    np.testing.assert_allclose(found, expected, atol=0.02 * scale)
    assert abs(plain.output_intercept_ - expected[0]) > scale


@pytest.mark.parametrize("kind", ["shallow_relu", "committee"])
def test_robust_fit_counts_rows_by_weight_and_sees_through_outliers(kind):
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, (150, 2))
    truth = 3 * np.abs(X[:, 0] - 0.2) + X[:, 1]
    y = truth + 0.1 * rng.standard_normal(150)
    y[::20] += 30
    weight = rng.integers(1, 3, 150)

    def make(loss):
        if kind == "shallow_relu":
            return ShallowReLURegressor(6, n_init=1, random_state=0, loss=loss)
        solver = GNvpro(loss=loss)
        return VarProNetRegressor(solver=solver, n_init=2, random_state=0)

    model = make("huber").fit(X, y, sample_weight=weight)
    repeated = make("huber").fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    np.testing.assert_allclose(model.predict(X), repeated.predict(X), rtol=1e-6)
    np.testing.assert_allclose(model.noise_std_, repeated.noise_std_, rtol=1e-6)
    plain = make("squared_error").fit(X, y)
    assert np.std(model.predict(X) - truth) < 0.1 * np.std(truth)
    assert np.std(plain.predict(X) - truth) > 0.3 * np.std(truth)
    assert 0.08 < model.noise_std_ < 0.14
    clean = np.arange(150) % 20 != 0
    lower, upper = model.predict_interval(X)
    assert 0.9 < np.mean(((lower < y) & (y < upper))[clean]) < 0.995


def test_robust_loss_needs_chosen_penalties_or_a_committee():
    X, y = np.arange(20.0).reshape(10, 2), np.arange(10.0)
    with pytest.raises(ValueError, match=r"loss='huber'.*alpha=0\.1"):
        ShallowReLURegressor(alpha=0.1, loss="huber").fit(X, y)
    with pytest.raises(ValueError, match=r"loss='huber'.*alpha=0\.1"):
        VarProNetRegressor(
            hidden_layer_sizes=(10,), alpha=0.1, solver=GNvpro(loss="huber")
        ).fit(X, y)
    with pytest.raises(ValueError, match=r"loss='huber'.*VarProNetClassifier"):
        VarProNetClassifier(solver=GNvpro(loss="huber")).fit(X, y > 4)
