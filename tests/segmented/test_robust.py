"""loss="huber" is the M-estimate of statsmodels, and finds kinks among outliers."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose

from sklearn_gn import SegmentedRegressor, fit_groups


@pytest.fixture(scope="module")
def data():
    """One kink at 4 and a linear feature; a tenth of the rows is far off."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 10, 120))
    z = rng.normal(size=120)
    y = 1 + x - 2 * np.maximum(x - 4, 0) + 0.5 * z + 0.1 * rng.standard_normal(120)
    y[rng.choice(120, 12, replace=False)] += rng.uniform(2, 9, 12)
    return pd.DataFrame({"x": x, "z": z}), y


def columns(X, t):
    x = X["x"].to_numpy()
    return np.column_stack([np.ones_like(x), x, np.maximum(x - t, 0), X["z"]])


@pytest.mark.parametrize("jumps", [False, True])
def test_known_breakpoints_are_statsmodels_rlm(data, jumps):
    X, y = data
    design = columns(X, 4.0)
    if jumps:
        design = np.insert(design, 3, X["x"] >= 4, axis=1)
    expected = sm.RLM(y, design, M=sm.robust.norms.HuberT()).fit(maxiter=500, tol=1e-13)
    model = SegmentedRegressor(0, breakpoints=[4.0], jumps=jumps, loss="huber")
    model.fit(X, y)
    assert_allclose(model.parameters_["estimate"], expected.params, rtol=1e-8)
    assert_allclose(model.parameters_["std_error"], expected.bse, rtol=1e-8)
    assert_allclose(model.noise_std_, expected.scale, rtol=1e-8)
    assert_allclose(model.robust_weights_, expected.weights, rtol=1e-7)


@pytest.mark.slow
def test_weights_do_not_outlive_their_fit(data):
    X, y = data
    model = SegmentedRegressor(1, loss="huber").fit(X, y)
    assert model.robust_weights_.min() < 1
    model.set_params(loss="squared_error").fit(X[:50], y[:50])
    assert not hasattr(model, "robust_weights_")
    model.set_params(loss="huber").fit(X[:40], y[:40])
    assert model.robust_weights_.shape == (40,)


def test_found_kink_is_a_minimum_of_hubers_loss(data):
    X, y = data
    model = SegmentedRegressor(loss="huber").fit(X, y)
    (t,) = model.breakpoints_
    assert abs(t - 4) < 4 * model.breakpoint_std_[0] < 0.5
    norm, scale = sm.robust.norms.HuberT(), model.noise_std_

    def loss(t):
        """Smallest sum of the loss at a fixed noise level."""
        A, coef = columns(X, t), model.parameters_["estimate"]
        for _ in range(200):
            weight = norm.weights((y - A @ coef) / scale)[:, None]
            coef = np.linalg.solve(A.T @ (weight * A), A.T @ (weight[:, 0] * y))
        return norm.rho((y - A @ coef) / scale).sum()

    assert loss(t) < min(loss(t + 1e-3), loss(t - 1e-3))
    assert loss(t) < min(loss(t + 0.1), loss(t - 0.1))


def test_weights_are_repeated_rows_and_groups_are_separate_fits(data):
    X, y = data
    weight = np.random.default_rng(1).integers(0, 3, len(y))
    repeated = np.repeat(np.arange(len(y)), weight)
    model = SegmentedRegressor(1, loss="huber")
    other = SegmentedRegressor(1, loss="huber").fit(X.iloc[repeated], y[repeated])
    model.fit(X, y, sample_weight=weight)
    assert_allclose(model.breakpoints_, other.breakpoints_, rtol=1e-7)
    assert_allclose(model.breakpoint_std_, other.breakpoint_std_, rtol=1e-6)
    frame = X.assign(y=y, w=weight, g="a")
    table = fit_groups(model, frame, group="g", target="y", sample_weight="w")
    assert_allclose(table["slope"], model.segments_["slope"], rtol=1e-7)
    assert_allclose(table["noise_std"], model.noise_std_, rtol=1e-7)


def test_exact_lines_with_outliers_are_exact():
    x = np.linspace(0, 1, 41)
    y = np.maximum(x - 0.4, 0)
    y[[3, 17, 30]] += [5, -4, 3]
    model = SegmentedRegressor(1, loss="huber").fit(x[:, None], y)
    assert_allclose(model.breakpoints_, [0.4], rtol=1e-7)
    assert_allclose(model.segments_["slope"], [0, 1], atol=1e-7)


def test_an_outlier_at_an_end_is_not_a_segment():
    x = np.arange(80.0)
    y = np.maximum(x - 40, 0) + 3 * np.random.default_rng(0).standard_normal(80)
    other = SegmentedRegressor(loss="huber").fit(x[:, None], y)
    assert len(other.breakpoints_) == 1
    for row in (0, 79):
        far = y.copy()
        far[row] += 300
        model = SegmentedRegressor(loss="huber").fit(x[:, None], far)
        assert len(model.breakpoints_) == 1
        assert abs(model.breakpoints_ - other.breakpoints_) < other.breakpoint_std_


def test_a_warning_names_the_outliers_that_breakpoints_follow():
    x = np.linspace(0, 10, 100)
    y = np.maximum(x - 6, 0) + np.random.default_rng(3).normal(0, 0.2, 100)
    y[[20, 50, 51]] += 8, -6, -6  # forty and thirty standard deviations
    order = np.random.default_rng(0).permutation(100)
    with pytest.warns(UserWarning, match="may be outliers") as caught:
        model = SegmentedRegressor().fit(x[order, None], y[order])
    assert len(model.breakpoints_) > 1
    rows = str(caught[0].message).split("others: ")[1].split(". ")[0].split(", ")
    assert sorted(order[[int(row) for row in rows]]) == [20, 50, 51]
    robust = SegmentedRegressor(loss="huber").fit(x[:, None], y)
    assert_allclose(robust.breakpoints_, [6], atol=0.3)


@pytest.mark.parametrize("first", [0, 198])
def test_two_outliers_at_an_end_are_no_segment(first):
    numbers = []
    for seed in range(8):
        x, noise = np.linspace(0, 10, 200), np.random.default_rng(seed).normal(size=200)
        y = x + noise
        y[first : first + 2] += 20
        model = SegmentedRegressor(loss="huber").fit(x[:, None], y)
        numbers.append(len(model.breakpoints_))
    assert np.mean(np.array(numbers) > 0) <= 0.25


@pytest.mark.parametrize("rows", [[97, 98, 99], [0, 98, 99]])
def test_the_warning_names_outliers_in_the_last_rows_for_both_losses(rows):
    x = np.linspace(0, 10, 100)
    y = np.maximum(x - 6, 0) + np.random.default_rng(1).normal(0, 0.2, 100)
    y[rows] += 8, -8, -8
    for loss in ("squared_error", "huber"):
        with pytest.warns(UserWarning, match="may be outliers") as caught:
            model = SegmentedRegressor(loss=loss).fit(x[:, None], y)
        assert len(model.breakpoints_) < 6
        named = str(caught[0].message).split("others: ")[1].split(". ")[0].split(", ")
        assert {*map(str, rows)} <= {*named}
