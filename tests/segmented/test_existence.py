"""The test for a breakpoint: its statistic, its size, and its distribution."""

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose
from scipy.signal import lfilter

from sklearn_gn import SegmentedRegressor

N = 40
X = np.linspace(-1, 1, N)


def largest_f(y, columns, line, m):
    """Largest F statistic over the positions, by least squares."""

    def rss(A):
        error = y - A @ np.linalg.lstsq(A, y)[0]
        return error @ error

    null = rss(line)
    full = np.array([rss(np.column_stack([line, *columns(t)])) for t in X[3 : N - 2]])
    return np.max((null - full) / m / full * (N - line.shape[1] - m))


FORMS = {
    "kinks": ({}, lambda t: [np.maximum(X - t, 0)], 2),
    "jumps": ({"degree": 0}, lambda t: [X >= t], 1),
    "level at the end": ({"flat": "last"}, lambda t: [np.minimum(X, t)], 1),
    "level at first": ({"flat": "first"}, lambda t: [np.maximum(X - t, 0)], 1),
    "both": ({"jumps": True}, lambda t: [np.maximum(X - t, 0), X >= t], 2),
}


@pytest.mark.parametrize("form", FORMS)
def test_statistic_is_the_largest_f(form):
    settings, columns, p = FORMS[form]
    line = np.column_stack([np.ones(N), X])[:, :p]
    y = np.random.default_rng(2).standard_normal(N)
    model = SegmentedRegressor(min_rows=3, **settings)
    found = model.breakpoint_test(X[:, None], y, n_draws=1)
    expected = largest_f(y, columns, line, len(columns(0.0)))
    assert_allclose(found.statistic, expected, rtol=1e-6)


def test_series_without_a_breakpoint_are_rejected_as_often_as_the_level_says():
    rng, model = np.random.default_rng(0), SegmentedRegressor(min_rows=3)
    series = rng.standard_normal((200, N))
    p = [model.breakpoint_test(X[:, None], y, n_draws=199).p_value for y in series]
    # Four standard deviations of a share of 200.
    level = np.array([0.5, 0.2, 0.05])
    rejected = np.mean(np.array(p)[:, None] <= level, axis=0)
    assert np.all(np.abs(rejected - level) < 4 * np.sqrt(level * (1 - level) / 200))


def test_a_kink_is_found_and_a_known_one_is_not_found_again():
    y = np.abs(X - 0.3) + 0.05 * np.random.default_rng(0).standard_normal(N)
    found = SegmentedRegressor().breakpoint_test(X[:, None], y, n_draws=199)
    assert found.p_value == 1 / 200
    best = SegmentedRegressor(1).fit(X[:, None], y).breakpoints_
    assert_allclose(found.breakpoint, best[0], rtol=1e-6)
    assert type(found.breakpoint) is float  # which prints as a number
    known = SegmentedRegressor(breakpoints=[0.3])
    assert known.breakpoint_test(X[:, None], y, n_draws=199).p_value > 0.1


@pytest.mark.parametrize("settings", [{}, {"degree": 0}])
def test_davies_bound_is_close_above_what_is_drawn(settings):
    rng = np.random.default_rng(1)
    model = SegmentedRegressor(**settings)
    for slope in (0.3, 0.6, 0.9):
        y = slope * (2 * np.maximum(X, 0) + (X > 0)) + 0.5 * rng.standard_normal(N)
        bound, drawn = (
            model.breakpoint_test(X[:, None], y, method=method, n_draws=9999)
            for method in ("davies", "simulated")
        )
        assert bound.statistic == drawn.statistic
        error = 4 * np.sqrt(drawn.p_value / 9999)
        assert drawn.p_value - error <= bound.p_value
        if drawn.p_value < 0.2:
            assert bound.p_value <= 1.3 * (drawn.p_value + error)


def test_score_test_is_the_t_test_of_the_mean_column():
    y = 0.4 * np.maximum(X, 0) + 0.3 * np.random.default_rng(2).standard_normal(N)
    found = SegmentedRegressor().breakpoint_test(X[:, None], y, method="score")
    mean = np.mean(np.maximum(X[:, None] - X[2 : N - 2], 0), axis=1)
    expected = sm.OLS(y, np.column_stack([np.ones(N), X, mean])).fit()
    assert_allclose(found.p_value, expected.pvalues[2], rtol=1e-6)
    assert_allclose(found.statistic, expected.tvalues[2] ** 2, rtol=1e-6)


@pytest.mark.parametrize(
    "settings", [{"jumps": True}, {"covariance": "HC3"}, {"method": "wald"}]
)
def test_what_davies_and_the_score_do_not_test(settings):
    method = settings.pop("method", "davies")
    with pytest.raises(ValueError, match=f"method='{method}'"):
        SegmentedRegressor(**settings).breakpoint_test(X[:, None], X, method=method)


def test_no_room_is_no_evidence():
    found = SegmentedRegressor().breakpoint_test(np.ones((6, 1)), np.arange(6.0))
    assert (found.statistic, found.p_value) == (0, 1)
    assert np.isnan(found.breakpoint)


# --- unequal and correlated noise -----------------------------------------------------


def score_statistic(y, weight, power):
    """Largest statistic of a change of level, from its definition."""
    n = weight.sum()
    error = y - weight @ y / n
    found = []
    for t in X[3 : N - 2]:
        column = (X >= t) - weight @ (X >= t) / n
        variance = weight @ (error / (1 - 1 / n) ** power * column) ** 2
        found.append((weight @ (error * column)) ** 2 / variance)
    return max(found)


@pytest.mark.parametrize(("kind", "power"), [("HC0", 0), ("HC1", 0.5), ("HC3", 1)])
def test_statistic_is_the_largest_score(kind, power):
    rng = np.random.default_rng(3)
    y, weight = rng.standard_normal(N), rng.integers(1, 4, N)
    model = SegmentedRegressor(degree=0, min_rows=1, min_distance=0, covariance=kind)
    model.set_params(bounds=(X[2] + 1e-9, X[N - 3] + 1e-9))
    one, two = np.ones(N), weight.astype(float)
    found = model.breakpoint_test(X[:, None], y, n_draws=1)
    assert_allclose(found.statistic, score_statistic(y, one, power), rtol=1e-9)
    found = model.breakpoint_test(X[:, None], y, sample_weight=two, n_draws=1)
    assert_allclose(found.statistic, score_statistic(y, two, power), rtol=1e-9)


@pytest.mark.parametrize(("kind", "power"), [("HC0", 0), ("HC3", 1)])
def test_drawn_statistics_are_those_of_drawn_series(kind, power):
    """Each draw has its own fit and its own variances."""
    y, one, n = np.random.default_rng(4).standard_normal(N), np.ones(N), 99
    model = SegmentedRegressor(degree=0, min_rows=1, min_distance=0, covariance=kind)
    model.set_params(bounds=(X[2] + 1e-9, X[N - 3] + 1e-9))
    found = model.breakpoint_test(X[:, None], y, n_draws=n, random_state=5)
    signs = np.random.RandomState(5).choice(np.array([-1.0, 1.0]), (n, N))
    drawn = signs * (y - y.mean()) / (1 - 1 / N) ** power
    drawn = np.array([score_statistic(each, one, power) for each in drawn])
    assert found.p_value == (1 + np.sum(drawn >= found.statistic)) / (1 + n)


def rejected(covariance, series):
    model = SegmentedRegressor(covariance=covariance)
    p = [model.breakpoint_test(X[:, None], y, n_draws=49).p_value for y in series]
    return np.mean(np.array(p) <= 0.2)


@pytest.mark.parametrize("kind", ["HC3", "HAC"])
@pytest.mark.repeats
def test_size_under_noise_of_its_kind(kind):
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((100, N + 30))
    if kind == "HC3":
        noise = noise[:, 30:] * np.exp(2 * X)
    else:
        noise = lfilter([1], [1, -0.6], noise)[:, 30:]
    # Four standard deviations of a share of 100.
    assert abs(rejected(kind, noise) - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 100)
    assert rejected("nonrobust", noise[:40]) > 0.4


@pytest.mark.parametrize("kind", ["HC3", "HAC-prewhitened"])
def test_a_kink_is_found_whatever_the_noise(kind):
    y = np.abs(X - 0.3) + 0.05 * np.random.default_rng(0).standard_normal(N)
    model = SegmentedRegressor(covariance=kind)
    found = model.breakpoint_test(X[:, None], y, n_draws=199)
    assert found.p_value == 1 / 200
    best = SegmentedRegressor(1).fit(X[:, None], y).breakpoints_
    assert_allclose(found.breakpoint, best[0], rtol=1e-6)
    model.set_params(breakpoints=[0.3])
    assert model.breakpoint_test(X[:, None], y, n_draws=199).p_value > 0.05


@pytest.mark.parametrize("covariance", ["HC0", "HC3"])
def test_few_rows_say_nothing(covariance):
    """Of the 16 signs of four residuals, two at least are as extreme as those seen."""
    x, y = np.arange(4.0)[:, None], np.array([0.0, 0, 1, 1])
    model = SegmentedRegressor(degree=0, jumps=True, min_rows=1, covariance=covariance)
    assert model.breakpoint_test(x, y, n_draws=199).p_value > 0.05
