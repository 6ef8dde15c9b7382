"""Noise that is correlated or grows is noticed, and a criterion allows for it."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.signal import lfilter
from statsmodels.regression.linear_model import yule_walker
from statsmodels.tsa.stattools import acf

from sklearn_gn import SegmentedRegressor, fit_groups

X = np.arange(150.0)[:, None]


def noise(seed, correlation=0.8):
    draws = np.random.default_rng(seed).standard_normal(250)
    return lfilter([1], [1, -correlation], draws)[100:]


def causes(model):
    return [(f.cause, f.parameter) for f in model.diagnose().findings]


@pytest.mark.filterwarnings("ignore:Neighbouring residuals")
@pytest.mark.slow
def test_correlated_noise_is_named_and_chosen_for():
    y = noise(0) + 0.3 * np.maximum(X[:, 0] - 60, 0)
    model = SegmentedRegressor(autocorrelation=None).fit(X, y)
    residual = y - model.predict(X)
    expected = (residual[1:] @ residual[:-1]) / (residual @ residual)
    assert_allclose(model.residual_correlation_, expected, rtol=1e-9)
    assert len(model.breakpoints_) > 1
    assert causes(model)[0] == ("correlation", "autocorrelation")
    assert "not worth" not in str(model.diagnose())
    assert "add columns for the months" in str(model.diagnose())
    assert f"correlated ({expected:.2f})" in str(model.summary())
    default = SegmentedRegressor().fit(X, y)
    assert len(default.breakpoints_) == 1
    assert len(default.autocorrelation_) >= 1
    assert "Noise autoregression" in str(default.summary())
    assert causes(default) == [("noise", None)]
    model.set_params(n_breakpoints=1).fit(X, y)
    assert causes(model)[0] == ("correlation", "covariance")
    model.set_params(covariance="HAC").fit(X, y)
    assert causes(model) == [("noise", None)]


@pytest.mark.parametrize("jumps", [False, True])
def test_a_season_is_named_as_what_hides_breakpoints(jumps):
    x = np.arange(180.0)
    y = 0.5 * x - 0.9 * np.maximum(x - 70, 0) + 12 * (x >= 130)
    y = y + 8 * np.sin(np.pi * x / 6) + np.random.default_rng(1).normal(0, 2, 180)
    said = str(SegmentedRegressor(jumps=jumps).fit(x[:, None], y).diagnose())
    assert "For seasonal waves add columns for the months" in said
    assert 'autocorrelation="auto"' not in said  # it is the default


def test_rows_that_correlated_noise_makes_few_are_named():
    model = SegmentedRegressor(2).fit(X[:80], noise(0, 0.97)[:80])
    ((_, text, parameter), *_) = model.diagnose().findings
    assert parameter == "n_breakpoints"
    assert "because the noise is correlated" in text
    free = SegmentedRegressor(2, autocorrelation=None).fit(X[:8], noise(0)[:8])
    assert "correlated" not in free.diagnose().findings[0].text


def test_coefficients_are_those_of_yule_and_walker():
    noise = np.random.default_rng(1).standard_normal(2030)
    series = lfilter([1], [1, -0.6, -0.2], noise)[30:]
    x = np.arange(2000.0)[:, None]
    model = SegmentedRegressor(0, autocorrelation=2).fit(x, series)
    left = series - model.predict(x)
    expected, _ = yule_walker(
        left, order=2, method="mle", demean=False, result_object=False
    )
    # Of a straight line, which takes a little of each covariance away.
    assert_allclose(model.autocorrelation_, expected, atol=0.01)


def test_correlation_of_tied_rows_is_that_of_their_means():
    y, twice = noise(1), np.repeat(np.arange(150), 2)
    line = SegmentedRegressor(0)
    one, other = line.fit(X, y).residual_correlation_, line.fit(X[twice], y[twice])
    assert_allclose(other.residual_correlation_, one, rtol=1e-9)
    residual = y - other.predict(X)
    assert_allclose(one, acf(residual, nlags=1, adjusted=False)[1], rtol=1e-9)


def numbers_found(seed, kink, n=200, n_series=60, **settings):
    """Numbers of breakpoints of series with AR(1) noise of .6, and a kink or none."""
    draws = np.random.default_rng(seed).standard_normal((n_series, n + 50))
    y = lfilter([1], [1, -0.6], draws)[:, 50:]
    y += kink * np.maximum(np.arange(n) - n / 2, 0)
    x, series = (
        np.tile(np.arange(float(n)), n_series),
        np.repeat(np.arange(n_series), n),
    )
    data = pd.DataFrame({"series": series, "x": x, "y": y.ravel()})
    table = fit_groups(SegmentedRegressor(**settings), data, group="series", target="y")
    return table.groupby("series").size().to_numpy() - 1


@pytest.mark.parametrize("settings", [{}, {"jumps": True}])
def test_waves_of_correlated_noise_are_no_breakpoints(settings):
    limit = 0.05 + 2 * np.sqrt(0.05 * 0.95 / 60)
    assert np.mean(numbers_found(0, 0.0, **settings) > 0) <= limit


def test_a_kink_in_correlated_noise_is_found():
    assert np.mean(numbers_found(1, 0.15) == 1) >= 0.9


def test_few_rows_of_correlated_noise_have_the_right_number():
    assert np.mean(numbers_found(1, 0.5, n=60) == 1) >= 0.72
    assert np.mean(numbers_found(1, 0.0, n=60) > 0) <= 0.06


@pytest.mark.parametrize("n", [60, 200])
def test_intervals_in_correlated_noise_hold_the_kink(n):
    x, draws = np.linspace(0, 10, n), np.random.default_rng(2)
    y = 0.3 * lfilter([0.8], [1, -0.6], draws.standard_normal((200, n + 50)))[:, 50:]
    y += 0.5 * x + np.maximum(x - 4, 0)
    series = np.arange(200)
    data = pd.DataFrame({"g": series.repeat(n), "x": np.tile(x, 200), "y": y.ravel()})
    table = fit_groups(SegmentedRegressor(1), data, group="g", target="y")
    found = table[table["segment"] == 2]
    held = (found["breakpoint_lower"] <= 4) & (found["breakpoint_upper"] >= 4)
    assert 0.9 <= held.mean() <= 0.99


@pytest.mark.filterwarnings("ignore::UserWarning")  # the waves may be breakpoints
@pytest.mark.parametrize("jumps", [False, True])
def test_a_season_does_not_hide_a_strong_bend(jumps):
    x, found = np.arange(300.0), 0
    season = 0.5 * np.sin(2 * np.pi * x / 24)
    for seed in range(4):
        y = np.abs(x - 150) / 30 + season
        y += np.random.default_rng(seed).normal(0, 0.3, len(x))
        at = SegmentedRegressor(jumps=jumps).fit(x[:, None], y).breakpoints_
        found += 1 <= len(at) <= 3 and np.abs(at - 150).min() < 30
    assert found == 4


def test_a_change_of_level_in_correlated_noise_is_found():
    x, found = np.arange(200.0), 0
    for seed in range(10):
        y = 3 * (x >= 80) + np.append(noise(seed, 0.5), noise(99 + seed, 0.5)[:50])
        at = SegmentedRegressor(jumps=True).fit(x[:, None], y).breakpoints_
        found += len(at) == 1 and abs(at[0] - 79.5) < 6
    assert found >= 8


@pytest.mark.parametrize("n_kinks", [11, 16])
def test_a_series_of_more_breakpoints_than_allowed_has_those_that_are(n_kinks):
    # Their waves would pass for correlated noise about a straight line.
    x = np.arange(340.0)
    ends = np.linspace(0, 339, n_kinks + 2)
    y = np.interp(x, ends, np.arange(n_kinks + 2) % 2 * 5.0)
    y = y + np.random.default_rng(n_kinks).normal(0, 0.3, 340)
    with pytest.warns(UserWarning, match="Raise max_breakpoints"):
        model = SegmentedRegressor().fit(x[:, None], y)
    assert len(model.breakpoints_) == 10
    data = pd.DataFrame({"x": x, "y": y, "series": "a"})
    table = fit_groups(SegmentedRegressor(), data, group="series", target="y")
    assert_allclose(table["start"][1:], model.breakpoints_)


@pytest.mark.filterwarnings("ignore:Breakpoints follow")
@pytest.mark.parametrize("jumps", [False, True])
def test_noise_that_grows_has_no_breakpoints_unless_deviations_are_given(jumps):
    right, told = 0, 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x = np.sort(rng.uniform(0, 10, 60))
        y = 3.0 * (x >= 4) if jumps else 0.5 * x + np.maximum(x - 4, 0)
        y = y + (0.05 + 0.15 * x) * rng.standard_normal(60)
        model = SegmentedRegressor(jumps=jumps).fit(x[:, None], y)
        right += len(model.breakpoints_) == 1
        path = model.selection_path_
        best = np.argmin(path["bic"] + path["search_penalty"])
        assert path["n_breakpoints"][best] == len(model.breakpoints_)
        model.fit(x[:, None], y, y_std=np.ones(60))  # which wins over the residuals
        told += len(model.breakpoints_) == 1
    assert right >= 24
    assert told <= right - 2
