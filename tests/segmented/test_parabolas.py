"""Segments of the second degree, joined in value."""

import pickle
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import curve_fit

from sklearn_gn import SegmentedRegressor, fit_groups


def columns(x, knots):
    """Return the columns of parabolas that are joined in value."""
    beyond = np.maximum(x[:, None] - np.asarray(knots), 0)
    return np.column_stack([np.ones_like(x), x, x**2, beyond, beyond**2])


def rss(x, y, knots):
    """Return the least sum of squares with given breakpoints."""
    A = columns(x, knots)
    return np.sum((y - A @ np.linalg.lstsq(A, y, rcond=None)[0]) ** 2)


def series(seed, n, kinks=(4.0,), noise=0.3):
    """Return x and y of parabolas with breakpoints."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 10, n))
    k = len(kinks)
    coef = rng.choice([-1, 1], 3 + 2 * k) * rng.uniform(0.5, 1, 3 + 2 * k)
    coef[3 : 3 + k] *= 3
    coef[[2, *range(3 + k, 3 + 2 * k)]] *= 0.3
    return x, columns(x, kinks) @ coef + noise * rng.standard_normal(n)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [1, 2])
def test_breakpoints_are_not_worse_than_brute_force(seed, k):
    x, y = series(seed, 40 + 20 * (k == 1), kinks=(3.0, 6.5)[:k])
    grid = np.linspace(x[4], x[-5], 400 if k == 1 else 60)
    gaps = [
        knots
        for knots in combinations(grid, k)
        if np.bincount(np.searchsorted(knots, x)).min() >= 4
    ]
    best = min(rss(x, y, knots) for knots in gaps)
    model = SegmentedRegressor(k, degree=2).fit(x[:, None], y)
    assert rss(x, y, model.breakpoints_) <= best * (1 + 1e-6)


def test_the_best_breakpoints_may_lie_between_rows_with_ties():
    rng = np.random.default_rng(35)
    x = np.sort(rng.uniform(0, 10, int(rng.integers(30, 61))))
    knots = np.sort(rng.uniform(1, 9, rng.integers(1, 4)))
    y = 0.3 * x + sum(rng.normal() * np.maximum(x - t, 0) for t in knots)
    y += sum(0.4 * rng.normal() * np.maximum(x - t, 0) ** 2 for t in knots)
    y += rng.choice([0.05, 0.3, 1.0]) * rng.normal(size=len(x))
    x = np.round(2 * x) / 2
    model = SegmentedRegressor(2, degree=2).fit(x[:, None], y)
    best = rss(x, y, (7.04371217, 8.88465222))  # of a search of all pairs of gaps
    assert rss(x, y, model.breakpoints_) <= best * (1 + 1e-6)


def test_given_breakpoints_are_least_squares():
    x, y = series(0, 60, kinks=(3.0, 7.0))
    model = SegmentedRegressor(0, degree=2, breakpoints=[3, 7]).fit(x[:, None], y)
    A = columns(x, [3, 7])
    coef = np.linalg.lstsq(A, y, rcond=None)[0]
    np.testing.assert_allclose(model.predict(x[:, None]), A @ coef, atol=1e-9)
    np.testing.assert_allclose(model.parameters_["estimate"], coef, rtol=1e-6)
    assert [*model.parameters_["name"][[1, 2, 3, 5]]] == [
        "x0",
        "x0^2",
        "slope change 1",
        "quadratic change 1",
    ]
    # Each segment's own parabola, and its value at the joints.
    table = model.segments_
    at = np.array([1.0, 5.0, 9.0])
    own = table["intercept"] + table["slope"] * at + table["quadratic"] * at**2
    np.testing.assert_allclose(own, model.predict(at[:, None]), rtol=1e-9)


def test_standard_errors_are_those_of_nonlinear_least_squares():
    x, y = series(1, 80, noise=0.1)
    model = SegmentedRegressor(1, degree=2).fit(x[:, None], y)

    def curve(x, a, b, c, d, e, t):
        return columns(x, [t]) @ np.array([a, b, c, d, e])

    start = [*model.parameters_["estimate"], model.breakpoints_[0]]
    found, covariance = curve_fit(curve, x, y, start, xtol=1e-12)
    std = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(start, found, rtol=2e-3)
    np.testing.assert_allclose(model.parameters_["std_error"], std[:5], rtol=0.02)
    np.testing.assert_allclose(model.breakpoint_std_, std[5:], rtol=0.02)
    # Of the second segment by the delta method.
    slope = np.array([0, 1, 0, 1, -2 * found[5], -2 * found[4]])
    assert model.segments_["slope_std_error"][1] == pytest.approx(
        np.sqrt(slope @ covariance @ slope), rel=0.02
    )
    low, high = model.breakpoint_interval_[0]
    assert high - low == pytest.approx(4 * std[5], rel=0.15)
    _, error = model.predict([[9.0]], return_std=True)
    gradient = np.array([1, 9, 81, 9 - found[5], (9 - found[5]) ** 2, 0])
    gradient[5] = -found[3] - 2 * found[4] * (9 - found[5])
    assert error[0] == pytest.approx(
        np.sqrt(gradient @ covariance @ gradient), rel=0.02
    )


def test_number_is_chosen():
    numbers = []
    for seed in range(30):
        k = seed % 3
        x, y = series(seed, 120, kinks=(3.0, 7.0)[:k])
        numbers.append(
            len(SegmentedRegressor(degree=2).fit(x[:, None], y).breakpoints_)
        )
    assert np.mean(numbers == np.arange(30) % 3) >= 0.9


def test_noise_has_no_breakpoints():
    found = []
    for seed in range(60):
        y = np.random.default_rng(seed).standard_normal(20 + 40 * (seed % 2))
        model = SegmentedRegressor(degree=2).fit(np.arange(len(y))[:, None], y)
        found.append(len(model.breakpoints_) > 0)
    assert np.mean(found) <= 0.07


def test_saved_summed_up_and_by_groups():
    x, y = series(2, 80)
    model = SegmentedRegressor(1, degree=2).fit(x[:, None], y)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(x[:, None]), model.predict(x[:, None]))
    assert "quadratic change 1" in str(model.summary())
    pd = pytest.importorskip("pandas")
    data = pd.DataFrame({"x": np.tile(x, 2), "y": np.tile(y, 2)})
    data["group"] = np.repeat(["a", "b"], len(x))
    table = fit_groups(SegmentedRegressor(1, degree=2), data, group="group", target="y")
    np.testing.assert_allclose(table["quadratic"][:2], model.segments_["quadratic"])


def test_counts():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 10, 200)
    eta = 3 - 0.4 * x + 0.05 * x**2 - 0.6 * np.maximum(x - 6, 0)
    model = SegmentedRegressor(1, degree=2, family="poisson")
    model.fit(x[:, None], rng.poisson(np.exp(eta)))
    low, high = model.breakpoint_interval_[0]
    assert low <= 6 <= high


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"jumps": True}, "jumps"),
        ({"jumps": "auto"}, "jumps"),
        ({"kinks": False}, "kinks"),
        ({"flat": "last"}, "flat"),
        ({"slopes": (0, None)}, "slopes"),
        ({"through": (0, 0)}, "through"),
        ({"broken_features": [0]}, "broken_features"),
    ],
)
def test_what_parabolas_do_not_take(parameters, name):
    X, y = np.arange(30.0)[:, None], np.arange(30.0)
    with pytest.raises(ValueError, match=f"degree=2 cannot be combined with {name}="):
        SegmentedRegressor(degree=2, **parameters).fit(X, y)


def test_chunks_columns_and_updates_do_not_take_parabolas():
    X, y = np.arange(30.0)[:, None], np.arange(30.0)
    model = SegmentedRegressor(degree=2)
    with pytest.raises(ValueError, match="degree=2"):
        model.fit_chunks([(X, y)])
    with pytest.raises(ValueError, match="degree=2"):
        model.fit(X, np.column_stack([y, y**2]))
    with pytest.raises(ValueError, match="degree=2"):
        model.fit(X, y).update([[30.0]], [30.0])


def test_plot():
    pytest.importorskip("matplotlib")
    from sklearn_gn.plotting import SegmentsDisplay

    x, y = series(3, 80)
    model = SegmentedRegressor(1, degree=2).fit(x[:, None], y)
    display = SegmentsDisplay.from_estimator(model, x[:, None], y, residuals=True)
    np.testing.assert_allclose(display.response, model.predict(display.grid[:, None]))
