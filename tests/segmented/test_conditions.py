"""Conditions on the slopes: level segments."""

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose

from sklearn_gn import SegmentedRegressor

X = np.linspace(0, 10, 60)
NOISE = np.random.default_rng(0).standard_normal(60)
CUT = {  # the function between the kinks a < b
    "first": lambda a, b: [np.maximum(X - a, 0), np.maximum(X - b, 0)],
    "last": lambda a, b: [np.minimum(X, a), np.minimum(X, b)],
    "both": lambda a, b: [np.clip(X, a, b)],
}


def ols(flat, a, b):
    return sm.OLS(
        SIGNAL + 0.3 * NOISE, np.column_stack([np.ones(60), *CUT[flat](a, b)])
    )


SIGNAL = 2 * np.clip(X, 3, 6)


@pytest.mark.parametrize("flat", CUT)
def test_known_breakpoints_are_ordinary_least_squares(flat):
    y = SIGNAL + 0.3 * NOISE
    model = SegmentedRegressor(
        0, breakpoints=[3.1, 6.2], flat=flat, autocorrelation=None
    ).fit(X[:, None], y)
    expected = ols(flat, 3.1, 6.2).fit()
    assert_allclose(model.predict(X[:, None]), expected.fittedvalues, rtol=1e-9)
    std = model.predict(X[:, None], return_std=True)[1]
    assert_allclose(std, expected.get_prediction().se_mean, rtol=1e-8)
    assert_allclose(model.noise_std_**2, expected.scale, rtol=1e-9)
    assert model.statistics_["n_parameters"] == expected.df_model + 1
    slope, error = model.segments_["slope"], model.segments_["slope_std_error"]
    level = {"first": [0], "last": [2], "both": [0, 2]}[flat]
    assert_allclose(slope[level], 0, atol=1e-10)
    assert_allclose(error[level], 0, atol=1e-9)
    assert abs(slope[1]) > 1


@pytest.mark.parametrize("flat", CUT)
def test_found_kinks_are_the_best(flat):
    y = SIGNAL + 0.3 * NOISE
    model = SegmentedRegressor(2, flat=flat).fit(X[:, None], y)
    grid = np.linspace(0.4, 9.6, 47)
    best = min(ols(flat, a, b).fit().ssr for a in grid for b in grid if b > a + 0.5)
    assert model.statistics_["rss"] <= best
    assert_allclose(model.statistics_["rss"], ols(flat, *model.breakpoints_).fit().ssr)
    chosen = SegmentedRegressor(flat=flat).fit(X[:, None], y)
    assert_allclose(chosen.breakpoints_, [3, 6], atol=0.5)


def test_level_without_a_breakpoint_is_the_mean():
    for flat in CUT:
        model = SegmentedRegressor(0, flat=flat).fit(X[:, None], NOISE)
        assert_allclose(model.predict(X[:, None]), NOISE.mean(), rtol=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flat": "first", "degree": 0}, "flat='first' needs lines"),
        ({"flat": "last", "kinks": False, "jumps": True}, "flat='last' needs lines"),
    ],
)
def test_conditions_that_contradict_each_other(settings, message):
    with pytest.raises(ValueError, match=message):
        SegmentedRegressor(**settings).fit(X[:, None], NOISE)
