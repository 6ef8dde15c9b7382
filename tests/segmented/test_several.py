"""Several broken features, families of counts, and conditions: the joint fit."""

import re

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from sklearn.metrics import d2_tweedie_score

from sklearn_gn import SegmentedRegressor, fit_groups


def ramp(x, t):
    return np.maximum(x - t, 0)


# --- several broken features ---------------------------------------------------------


def of_two(seed, n=150):
    """Two broken features, which are correlated, and a linear one."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(20, 80, n)
    dose = np.clip(age / 10 + rng.normal(0, 2, n), 0, 10)
    X = pd.DataFrame({"dose": dose, "weight": rng.normal(70, 5, n), "age": age})
    y = 0.5 * dose + ramp(dose, 6) - 0.05 * ramp(age, 50) + 0.02 * X["weight"]
    return X, y + rng.normal(0, 0.2, n)


@pytest.fixture(scope="module")
def two():
    X, y = of_two(0)
    model = SegmentedRegressor(1, broken_features=["dose", "age"], autocorrelation=None)
    return X, y, model.fit(X, y)


def columns_of(X, s, t):
    return np.column_stack(
        [
            np.ones(len(X)),
            X["dose"],
            ramp(X["dose"], s),
            X["age"],
            ramp(X["age"], t),
            X["weight"],
        ]
    )


def test_two_features_are_the_joint_optimum(two):
    X, y, model = two
    (s,), (t,) = model.breakpoints_
    best = np.inf
    for s_tried in np.linspace(s - 2, s + 2, 21):
        for t_tried in np.linspace(t - 15, t + 15, 21):
            A = columns_of(X, s_tried, t_tried)
            best = min(best, np.sum((y - A @ np.linalg.lstsq(A, y)[0]) ** 2))
    assert model.statistics_["rss"] <= best * (1 + 1e-9)
    found = sm.OLS(y, columns_of(X, s, t)).fit()
    assert_allclose(model.statistics_["rss"], found.ssr)
    assert_allclose(model.parameters_["estimate"], found.params, atol=1e-8)
    assert_allclose(model.predict(X), found.fittedvalues)


def test_standard_errors_are_those_of_the_joint_jacobian(two):
    X, y, model = two
    (s,), (t,) = model.breakpoints_
    estimate = model.parameters_["estimate"]
    tangents = np.column_stack(
        [-estimate[2] * (X["dose"] >= s), -estimate[4] * (X["age"] >= t)]
    )
    J = np.column_stack([columns_of(X, s, t), tangents])
    variance = model.statistics_["rss"] / (len(y) - J.shape[1])
    error = np.sqrt(variance * np.diag(np.linalg.inv(J.T @ J)))
    assert_allclose(model.parameters_["std_error"], error[:6], rtol=1e-6)
    assert_allclose(np.concatenate(model.breakpoint_std_), error[6:], rtol=1e-6)
    assert model.statistics_["n_parameters"] == 8
    names = ["intercept", "dose", "dose slope change 1", "age", "age slope change 1"]
    assert [*model.parameters_["name"]] == [*names, "weight"]
    assert np.isnan(model.parameters_["p_value"][[2, 4]]).all()
    for interval, at in zip(model.breakpoint_interval_, (6, 50), strict=True):
        assert interval[0, 0] < at < interval[0, 1]


def test_summary_and_attributes_are_by_feature(two):
    X, _, model = two
    tables = model.summary().tables
    assert [*tables] == [
        "Breakpoints of dose",
        "Breakpoints of age",
        "Parameters",
        "Segments of dose",
        "Segments of age",
    ]
    assert [len(each["slope"]) for each in model.segments_] == [2, 2]
    assert_allclose(model.segments_[0]["slope"][0], model.parameters_["estimate"][1])
    assert_allclose(
        model.segments_[1]["slope"][1], model.parameters_["estimate"][3:5].sum()
    )
    assert "2 breakpoints" in str(model.diagnose())
    shuffled = X.iloc[::-1]
    assert_allclose(model.predict(shuffled), model.predict(X)[::-1])


def test_numbers_are_chosen_by_feature():
    X, y = of_two(1, n=300)
    model = SegmentedRegressor(broken_features=["age", "dose", "weight"]).fit(X, y)
    assert [len(t) for t in model.breakpoints_] == [1, 1, 0]
    fixed = SegmentedRegressor([1, 1, 0], broken_features=["age", "dose", "weight"])
    assert_allclose(fixed.fit(X, y).statistics_["rss"], model.statistics_["rss"])


def test_a_number_without_room_is_mentioned():
    X = np.linspace(0, 1, 12)[:, None]
    model = SegmentedRegressor([30], broken_features=[0])
    with pytest.warns(UserWarning, match="in x0, not 30: the data have no room"):
        model.fit(X, np.sin(9 * X[:, 0]))
    constant = SegmentedRegressor(slopes=(0, None)).fit(X, np.ones(12))
    assert len(constant.breakpoints_) == 0


def test_a_list_of_one_feature_is_the_fit_of_one_feature():
    X, y = of_two(2)
    one = SegmentedRegressor(1, broken_features="dose").fit(X, y)
    several = SegmentedRegressor(1, broken_features=["dose"]).fit(X, y)
    assert_allclose(several.breakpoints_[0], one.breakpoints_, rtol=1e-7)
    assert_allclose(several.breakpoint_std_[0], one.breakpoint_std_, rtol=1e-5)
    assert_allclose(
        several.breakpoint_interval_[0], one.breakpoint_interval_, rtol=1e-4
    )
    assert_allclose(several.parameters_["std_error"], one.parameters_["std_error"])


@pytest.mark.slow
def test_coverage_of_two_features():
    rng, held = np.random.default_rng(0), np.zeros(2)
    for _ in range(300):
        X = rng.uniform(0, 10, (120, 2))
        y = ramp(X[:, 0], 4) + ramp(X[:, 1], 6) + rng.normal(0, 1, 120)
        model = SegmentedRegressor(1, broken_features=[0, 1]).fit(X, y)
        for f, t in enumerate((4, 6)):
            low, high = model.breakpoint_interval_[f][0]
            held[f] += low <= t <= high
    assert np.all((held >= 0.91 * 300) & (held <= 0.98 * 300)), held


# --- families ------------------------------------------------------------------------

# Births and cases of Down's syndrome by age of the mother in British Columbia, from
# Davison and Hinkley, "Bootstrap methods and their application" (1997).
AGE = np.array([17, 18.5, *np.arange(19.5, 46), 47])
BIRTHS = """
13555 13675 18752 22005 23896 24667 24807 23986 22860 21450 19202 17450 15685 13954
11987 10983 9825 8483 7448 6628 5780 4834 3961 2952 2276 1589 1018 596 327 249
"""
BIRTHS = np.array(BIRTHS.split(), float)
CASES = "16 15 16 22 16 12 17 22 15 14 27 14 9 12 12 18 13 11 23 13 17 15 30 31 33 20"
CASES = np.array([*CASES.split(), 16, 22, 11, 7], float)


def test_figures_that_r_publishes():
    # Muggeo, "segmented: an R package to fit regression models with broken-line
    # relationships", R News 8/1 (2008): the model of the data "down".
    model = SegmentedRegressor(family="binomial")
    model.fit(AGE[:, None], CASES / BIRTHS, BIRTHS)
    assert_allclose(model.breakpoints_, [31.08], atol=0.002)
    assert_allclose(model.breakpoint_std_, [0.7242], atol=1e-4)
    table, figures = model.parameters_, model.statistics_
    assert_allclose(table["estimate"], [-6.78243, -0.01341, 0.27422], atol=2e-5)
    assert_allclose(table["std_error"], [0.43140, 0.01795, 0.02323], atol=2e-5)
    assert_allclose(figures["null_deviance"], 625.21, atol=0.005)
    assert_allclose(figures["deviance"], 43.939, atol=0.001)
    assert_allclose(figures["aic"], 190.82, atol=0.005)


def counts(seed, n=60):
    rng, x = np.random.default_rng(seed), np.arange(float(n))
    exposure = rng.uniform(1, 3, n)
    mean = exposure * np.exp(2 + 0.03 * x - 0.06 * ramp(x, 35))
    return x[:, None], rng.poisson(mean).astype(float), np.log(exposure)


def test_poisson_is_that_of_statsmodels_at_the_best_breakpoint():
    for seed in range(2):
        X, y, offset = counts(seed)
        model = SegmentedRegressor(1, family="poisson").fit(X, y, offset=offset)

        def glm(t, *, X=X, y=y, offset=offset):
            A = np.column_stack([np.ones(60), X[:, 0], ramp(X[:, 0], t)])
            return sm.GLM(y, A, sm.families.Poisson(), offset=offset).fit()

        (t,) = model.breakpoints_
        found = glm(t)
        assert_allclose(model.parameters_["estimate"], found.params, rtol=1e-5)
        assert_allclose(model.predict(X, offset=offset), found.fittedvalues, rtol=1e-7)
        assert_allclose(model.statistics_["deviance"], found.deviance)
        assert_allclose(model.statistics_["aic"], found.aic + 2, rtol=1e-7)
        grid = np.linspace(3, 56, 54)
        assert found.deviance <= min(glm(t).deviance for t in grid) * (1 + 1e-9)


def test_score_and_means_of_counts():
    X, y, _ = counts(1)
    model = SegmentedRegressor(family="poisson").fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert mean.min() > 0
    assert std.min() > 0
    expected = d2_tweedie_score(y, mean, power=1)
    assert_allclose(model.score(X, y), expected)
    assert_allclose(model.statistics_["d2"], expected)
    assert "poisson" in str(model.summary())
    with pytest.raises(ValueError, match="predict_interval does not take family"):
        model.predict_interval(X)
    with pytest.raises(ValueError, match="breakpoint_test is for least squares"):
        model.breakpoint_test(X, y)


def test_counts_that_vary_more_are_mentioned():
    rng, x = np.random.default_rng(0), np.linspace(0, 10, 150)
    y = rng.poisson(np.exp(2 + 0.2 * x) * rng.gamma(2, 0.5, 150)).astype(float)
    model = SegmentedRegressor(0, family="poisson").fit(x[:, None], y)
    assert "The counts vary" in str(model.diagnose())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["poisson", "binomial"])
def test_coverage_of_counts(family):
    x, held = np.linspace(0, 10, 100), 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        if family == "poisson":
            y = rng.poisson(np.exp(1.5 + 0.1 * x + 0.35 * ramp(x, 6))).astype(float)
            trials = None
        else:
            trials = np.full(100, 20.0)
            p = 1 / (1 + np.exp(2 - 0.1 * x - 0.8 * ramp(x, 6)))
            y = rng.binomial(20, p) / 20
        model = SegmentedRegressor(1, family=family).fit(x[:, None], y, trials)
        low, high = model.breakpoint_interval_[0]
        held += low <= 6 <= high
    assert 0.92 * 300 <= held <= 0.98 * 300, held


def test_two_features_of_counts():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (250, 2))
    mean = np.exp(1 + 0.3 * ramp(X[:, 0], 4) - 0.3 * ramp(X[:, 1], 6))
    y = rng.poisson(mean).astype(float)
    model = SegmentedRegressor(1, broken_features=[0, 1], family="poisson").fit(X, y)
    (s,), (t,) = model.breakpoints_

    def deviance(s, t):
        A = np.column_stack([np.ones(250), X, ramp(X[:, 0], s), ramp(X[:, 1], t)])
        return sm.GLM(y, A, sm.families.Poisson()).fit().deviance

    assert_allclose(model.statistics_["deviance"], deviance(s, t))
    around = [deviance(s + a, t + b) for a in (-0.1, 0, 0.1) for b in (-0.1, 0, 0.1)]
    assert min(around) >= model.statistics_["deviance"] * (1 - 1e-9)


def test_known_breakpoints_and_bounds_of_counts():
    X, y, _ = counts(3)
    x = X[:, 0]
    known = SegmentedRegressor(0, breakpoints=[35.0], family="poisson").fit(X, y)
    A = np.column_stack([np.ones(60), x, ramp(x, 35)])
    found = sm.GLM(y, A, sm.families.Poisson()).fit()
    assert_allclose(known.parameters_["estimate"], found.params, rtol=1e-6)
    assert_allclose(known.parameters_["std_error"], found.bse, rtol=1e-5)
    assert_allclose(known.parameters_["p_value"], found.pvalues, rtol=1e-2)
    assert_allclose(known.breakpoint_std_, 0)
    one_more = SegmentedRegressor(1, breakpoints=[35.0], family="poisson").fit(X, y)
    assert 35.0 in one_more.breakpoints_.round(9)
    deviance = one_more.statistics_["deviance"]
    assert deviance < known.statistics_["deviance"]
    grid = [
        sm.GLM(y, np.column_stack([A, ramp(x, t)]), sm.families.Poisson()).fit()
        for t in np.linspace(3, 56, 107)
        if abs(t - 35) > 3
    ]
    assert deviance <= min(each.deviance for each in grid) * (1 + 1e-9)
    held = SegmentedRegressor(1, bounds=(10, 25), family="poisson").fit(X, y)
    assert 10 <= held.breakpoints_[0] <= 25
    assert "at an end of bounds=(10, 25)" in str(held.diagnose())


def test_level_of_counts_that_jumps():
    y = np.random.default_rng(0).poisson(np.repeat([3.0, 6.0], 40)).astype(float)
    X = np.arange(80.0)[:, None]
    model = SegmentedRegressor(1, degree=0, family="poisson").fit(X, y)

    def deviance(k):
        parts = y[:k], y[k:]
        log = np.log(np.maximum(y, 1e-300))
        means = np.concatenate([np.full(len(p), p.mean()) for p in parts])
        return 2 * np.sum(y * (log - np.log(means)) - (y - means))

    assert_allclose(
        model.statistics_["deviance"], min(deviance(k) for k in range(8, 73))
    )
    means = model.predict(X)[[0, -1]]
    k = int(np.ceil(model.breakpoints_[0]))
    assert_allclose(means, [y[:k].mean(), y[k:].mean()], rtol=1e-7)


# --- conditions ----------------------------------------------------------------------

X_OF_CONDITIONS = np.sort(np.random.default_rng(0).uniform(0, 10, 60))
MEETS = {  # what SLSQP asks of p = (intercept, slope, k changes, k breakpoints)
    "monotone": (
        {"n_breakpoints": 1, "slopes": (0, None)},
        [("ineq", lambda p: np.cumsum(p[1:3]))],
    ),
    "equal": (
        {"n_breakpoints": 2, "slopes": ["a", None, "a"]},
        [("eq", lambda p: p[2] + p[3])],
    ),
    "given and bounded": (
        {"n_breakpoints": 2, "slopes": [0.2, None, (None, 0.5)]},
        [("eq", lambda p: p[1] - 0.2), ("ineq", lambda p: 0.5 - p[1:4].sum())],
    ),
    "through points": (
        {"n_breakpoints": 1, "through": [(0, 0), (10, 2)], "slopes": (-1, 1)},
        [
            ("eq", lambda p: np.array([p[0], line(p, 1, np.array([10.0]))[0] - 2])),
            ("ineq", lambda p: 1 - np.abs(np.cumsum(p[1:3]))),
        ],
    ),
}


def line(p, k, x):
    return p[0] + p[1] * x + ramp(x[:, None], p[2 + k :]) @ p[2 : 2 + k]


@pytest.mark.parametrize("name", MEETS)
def test_optimum_under_conditions_is_that_of_slsqp(name):
    parameters, asked = MEETS[name]
    k, x = parameters["n_breakpoints"], X_OF_CONDITIONS
    noise = np.random.default_rng(1).normal(0, 0.5, 60)
    y = 0.2 * x + 0.8 * ramp(x, 4) - 1.2 * ramp(x, 7) + noise
    model = SegmentedRegressor(autocorrelation=None, **parameters).fit(x[:, None], y)

    def rss(p):
        return np.sum((y - line(p, k, x)) ** 2)

    best = np.inf
    for first in range(1, 9):
        start = np.array([first] if k == 1 else [first, (first + 10) / 2], float)
        A = np.column_stack([np.ones(60), x, ramp(x[:, None], start)])
        found = minimize(
            rss,
            np.append(np.linalg.lstsq(A, y)[0], start),
            method="SLSQP",
            constraints=[{"type": kind, "fun": f} for kind, f in asked],
            options={"maxiter": 500, "ftol": 1e-12},
        )
        best = min(best, found.fun if found.success else np.inf)
    assert model.statistics_["rss"] <= best * (1 + 1e-6)
    for x0, y0 in np.atleast_2d(parameters.get("through", np.empty((0, 2)))):
        assert_allclose(model.predict([[x0]]), y0, atol=1e-9)
    slope = model.segments_["slope"]
    if name == "monotone":
        assert slope.min() >= -1e-9
    if name == "equal":
        assert_allclose(slope[0], slope[2])
        assert_allclose(*model.segments_["slope_std_error"][[0, 2]])
        assert model.statistics_["n_parameters"] == 5
    if name == "given and bounded":
        assert_allclose(slope[0], 0.2)
        assert_allclose(model.segments_["slope_std_error"][0], 0, atol=1e-9)


def test_kinks_under_conditions_may_be_at_rows():
    """The sum of squares has corners there, in which its minimum may lie."""
    rng = np.random.default_rng(7)
    x = np.sort(rng.uniform(0, 10, 40))
    y = 0.5 * ramp(x, 3) - 0.8 * ramp(x, 6) + 0.5 * rng.normal(size=40)
    model = SegmentedRegressor(2, slopes=["a", None, "a"], min_rows=1)
    model.fit(x[:, None], y)
    pairs = [(s, t) for s in x[2:-3] for t in x[2:-3] if s < t]
    designs = [np.c_[np.ones(40), x, ramp(x, s) - ramp(x, t)] for s, t in pairs]
    best = min(np.linalg.lstsq(A, y)[1][0] for A in designs)
    assert model.statistics_["rss"] <= best * (1 + 1e-9)


def test_the_number_is_chosen_under_conditions():
    x = np.linspace(0, 10, 80)
    y = ramp(x, 5) + np.random.default_rng(4).normal(0, 0.3, 80)
    model = SegmentedRegressor(slopes=(0, None)).fit(x[:, None], y)
    assert_allclose(model.breakpoints_, [5], atol=0.3)
    assert model.segments_["slope"].min() >= -1e-9


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"slopes": (2, 1)}, "satisfies slopes=(2, 1)."),
        ({"slopes": [1, 2], "flat": "first"}, "slopes[0]=1 and flat='first'"),
        ({"slopes": [None, 2], "flat": "last"}, "flat='last' and slopes[1]=2"),
        (
            {"slopes": (0, 1), "through": [(0, 0), (3, -9)]},
            "slopes=(0, 1) and through=(0, 0) and through=(3, -9)",
        ),
        ({"slopes": [1]}, "has 1 entries, but the line has 2 segments"),
        ({"slopes": [1, {}]}, "slopes[1]={} must be None, a slope"),
        ({"through": [1, 2, 3]}, "through must be a point (x, y)"),
        ({"through": (0, 1), "jumps": True}, "slopes and through are for kinks"),
        ({"family": "poisson", "through": (0, 1)}, "through cannot be combined"),
        ({"family": "poisson", "loss": "huber"}, "loss='huber' cannot be combined"),
        ({"family": "poisson"}, "its smallest value is -"),
        ({"family": "binomial"}, "shares between 0 and 1"),
        ({"broken_features": [0, 0]}, "must name different features"),
        ({"broken_features": [0, 4]}, "broken_features=4 is out of range"),
        ({"broken_features": [0], "n_breakpoints": [1, 1]}, "one for each of the 1"),
        ({"broken_features": [0], "n_breakpoints": [-1]}, "a number from 0 on"),
        ({"broken_features": [0], "bounds": (0, 1)}, "bounds=(0, 1) is for one"),
    ],
)
def test_what_is_refused(parameters, message):
    x = np.linspace(0, 10, 30)
    model = SegmentedRegressor(**{"n_breakpoints": 1, **parameters})
    with pytest.raises(ValueError, match=re.escape(message)):
        model.fit(x[:, None], np.sin(x))


# --- known standard deviations -------------------------------------------------------


@pytest.mark.parametrize("kind", ["HC0", "HC1", "HC2", "HC3"])
def test_robust_errors_under_known_deviations(kind):
    rng, x = np.random.default_rng(0), np.linspace(0, 10, 80)
    std = np.where(x < 5, 0.1, 0.4)
    y = ramp(x, 6) + std * rng.normal(size=80)
    model = SegmentedRegressor(0, breakpoints=[6.0], covariance=kind)
    model.fit(x[:, None], y, y_std=std)
    A = np.column_stack([np.ones(80), x, ramp(x, 6)])
    found = sm.WLS(y, A, weights=std**-2.0).fit(cov_type=kind)
    assert_allclose(model.parameters_["std_error"], found.bse, rtol=1e-8)
    listed = SegmentedRegressor(1, broken_features=[0], covariance=kind)
    one = SegmentedRegressor(1, covariance=kind).fit(x[:, None], y, y_std=std)
    listed.fit(x[:, None], y, y_std=std)
    assert_allclose(listed.breakpoint_std_[0], one.breakpoint_std_, rtol=1e-4)


def test_absolute_sigma_is_that_of_known_variances():
    rng, x = np.random.default_rng(0), np.linspace(0, 10, 80)
    std = np.where(x < 5, 0.1, 0.4)
    y = ramp(x, 6) + std * rng.normal(size=80)
    known = SegmentedRegressor(0, breakpoints=[6.0], autocorrelation=None)
    known.fit(x[:, None], y, y_std=std, absolute_sigma=True)
    A = np.column_stack([np.ones(80), x, ramp(x, 6)]) / std[:, None]
    error = np.sqrt(np.diag(np.linalg.inv(A.T @ A)))
    assert_allclose(known.parameters_["std_error"], error)
    width = known.parameters_["upper"] - known.parameters_["lower"]
    assert_allclose(width, 2 * 1.959963984540054 * error)
    X, model = x[:, None], SegmentedRegressor(1)
    once = model.fit(X, y, y_std=std, absolute_sigma=True).breakpoint_std_[0]
    assert_allclose(known.noise_std_, np.mean(std**-2.0) ** -0.5)
    twice = model.fit(X, y, y_std=2 * std, absolute_sigma=True).breakpoint_std_[0]
    assert_allclose(twice, 2 * once, rtol=1e-6)
    with pytest.raises(ValueError, match="absolute_sigma=True needs y_std"):
        model.fit(X, y, absolute_sigma=True)
    data = pd.DataFrame({"x": np.tile(x, 2), "y": np.tile(y, 2)})
    data["std"] = np.concatenate([std, 2 * std])
    data["series"] = np.repeat(["a", "b"], 80)
    columns = {"group": "series", "target": "y", "y_std": "std"}
    table = fit_groups(model, data, **columns, absolute_sigma=True)
    assert_allclose(table["breakpoint_std_error"][[1, 3]], [once, twice], rtol=1e-6)
    table = fit_groups(model, data, **columns)
    relative = model.fit(X, y, y_std=std)
    assert_allclose(table["start"][[1, 3]], relative.breakpoints_.repeat(2))
    errors = relative.breakpoint_std_.repeat(2)
    assert_allclose(table["breakpoint_std_error"][[1, 3]], errors, rtol=1e-6)
    with pytest.raises(ValueError, match="Group 'a': y_std must be positive"):
        fit_groups(model, data.assign(std=0.0), **columns)
    with pytest.raises(ValueError, match="fit_groups is for least squares"):
        fit_groups(SegmentedRegressor(family="poisson"), data, **columns)


def test_display_of_each_broken_feature(two):
    from sklearn_gn.plotting import SegmentsDisplay

    X, y, model = two
    for f, name in enumerate(("dose", "age")):
        display = SegmentsDisplay.from_estimator(model, X, y, feature=name)
        assert display.feature_name == name
        assert_allclose(display.breakpoints, model.breakpoints_[f])
        slope = np.diff(display.response)[[1, -2]] / np.diff(display.grid)[[1, -2]]
        assert_allclose(slope, model.segments_[f]["slope"], atol=1e-8)
    age = list(X.columns).index("age")
    by_number = SegmentsDisplay.from_estimator(model, X, y, feature=age)
    assert by_number.feature_name == "age"
    with pytest.raises(ValueError, match="feature='weight' is not among the broken"):
        SegmentsDisplay.from_estimator(model, X, y, feature="weight")
