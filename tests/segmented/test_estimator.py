"""SegmentedRegressor against statsmodels, and against its own contract."""

import re

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate, stats
from scipy.optimize import brentq
from sklearn.base import clone
from sklearn.metrics import r2_score

from sklearn_gn import SegmentedRegressor, ShallowReLURegressor
from sklearn_gn.datasets import load_nile
from sklearn_gn.segmented import programme

KINKS = np.array([3.1, 6.4])


@pytest.fixture(scope="module")
def data():
    """Two kinks in "dose", two linear features, unequal noise; not sorted."""
    rng = np.random.default_rng(3)
    x = rng.uniform(0, 10, 160)
    linear = rng.normal(size=(160, 2)) * (1, 50)
    y = 2 + x - 1.5 * np.maximum(x - KINKS[0], 0) + 2 * np.maximum(x - KINKS[1], 0)
    y += linear @ (0.7, -0.02) + (0.1 + 0.02 * x) * rng.standard_normal(160)
    return pd.DataFrame({"a": linear[:, 0], "dose": x, "b": linear[:, 1]}), y


def columns(X, t, *, ramp=True, step=False):
    x = X["dose"].to_numpy()[:, None]
    parts = [np.ones_like(x), x]
    parts += [np.maximum(x - t, 0)] if ramp else []
    parts += [(x >= t).astype(float)] if step else []
    return np.hstack([*parts, X[["a", "b"]].to_numpy()])


# --- known breakpoints: ordinary least squares ----------------------------------------


@pytest.mark.parametrize("kind", ["nonrobust", "HC0", "HC1", "HC2", "HC3", "HAC"])
@pytest.mark.parametrize(
    ("kinks", "jumps"), [(True, False), (True, True), (False, True)]
)
def test_known_breakpoints_are_statsmodels(data, kind, kinks, jumps):
    X, y = data
    model = SegmentedRegressor(
        0,
        kinks=kinks,
        jumps=jumps,
        breakpoints=KINKS,
        broken_features="dose",
        covariance=kind,
        hac_lags=3,
        autocorrelation=None,
    ).fit(X, y)
    order = np.argsort(X["dose"].to_numpy())
    design = columns(X, KINKS, ramp=kinks, step=jumps)[order]
    lags = {"cov_kwds": {"maxlags": 3}} if kind == "HAC" else {}
    expected = sm.OLS(y[order], design).fit(cov_type=kind, use_t=True, **lags)
    found = model.parameters_
    assert_allclose(found["estimate"], expected.params, rtol=1e-8)
    assert_allclose(found["std_error"], expected.bse, rtol=1e-8)
    assert_allclose(found["t"], expected.tvalues, rtol=1e-8)
    assert_allclose(found["p_value"], expected.pvalues, rtol=1e-7, atol=1e-14)
    assert_allclose(
        np.c_[found["lower"], found["upper"]], expected.conf_int(), rtol=1e-8
    )
    figures = model.statistics_
    assert_allclose(figures["r2"], expected.rsquared, rtol=1e-8)
    assert_allclose([figures["aic"], figures["bic"]], [expected.aic, expected.bic])
    assert_allclose(model.noise_std_**2, expected.scale, rtol=1e-8)
    value, std = model.predict(X.iloc[order], return_std=True)
    frame = expected.get_prediction(design).summary_frame(alpha=0.1)
    assert_allclose(value, frame["mean"], rtol=1e-8)
    assert_allclose(std, frame["mean_se"], rtol=1e-8)
    if kind == "nonrobust" and kinks:  # without them the residuals vary with the dose
        interval = model.predict_interval(X.iloc[order], level=0.9)
        assert_allclose(interval[0], frame["obs_ci_lower"], rtol=1e-8)
        assert_allclose(interval[1], frame["obs_ci_upper"], rtol=1e-8)


def test_prewhitened_error_of_a_mean():
    rng = np.random.default_rng(0)
    y = np.cumsum(rng.standard_normal(60)) * 0.9 ** np.arange(60)
    model = SegmentedRegressor(
        0, degree=0, covariance="HAC-prewhitened", hac_lags=0
    ).fit(np.arange(60.0)[:, None], y)
    e = y - y.mean()
    regression = (e[1:] @ e[:-1]) / (e[:-1] @ e[:-1])
    assert 0.2 < regression < 0.97
    left = e[1:] - regression * e[:-1]
    long_run = left @ left / 59 / (1 - regression) ** 2
    assert_allclose(model.parameters_["std_error"], np.sqrt(long_run / 60), rtol=1e-10)


def test_segments_of_known_breakpoints(data):
    X, y = data
    model = SegmentedRegressor(
        0, breakpoints=KINKS, broken_features="dose", jumps=True
    ).fit(X, y)
    expected = sm.OLS(y, columns(X, KINKS, step=True)).fit()
    # The lines after one and two breakpoints as contrasts of the parameters.
    slopes = np.array([[0, 1, 0, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0, 0]])
    slopes = np.vstack([slopes, [0, 1, 1, 1, 0, 0, 0, 0]])
    a, b = KINKS
    levels = np.array([[1, 0, 0, 0, 0, 0, 0, 0], [1, 0, -a, 0, 1, 0, 0, 0]])
    levels = np.vstack([levels, [1, 0, -a, -b, 1, 1, 0, 0]])
    for name, contrast in (("slope", slopes), ("intercept", levels)):
        test = expected.t_test(contrast)
        assert_allclose(model.segments_[name], test.effect, rtol=1e-8)
        assert_allclose(
            model.segments_[f"{name}_std_error"], test.sd.ravel(), rtol=1e-8
        )
        limits = [model.segments_[f"{name}_{side}"] for side in ("lower", "upper")]
        assert_allclose(np.transpose(limits), test.conf_int(), rtol=1e-8)
    assert_allclose(model.jumps_, expected.params[4:6], rtol=1e-8)
    assert_array_equal(model.breakpoint_std_, 0)
    counts = np.histogram(X["dose"], [-np.inf, a, b, np.inf])[0]
    assert_array_equal(model.segments_["n_rows"], counts)


# --- breakpoints that are found -------------------------------------------------------


def test_found_kinks_are_a_minimum_and_errors_are_those_of_the_linear_model(data):
    X, y = data
    model = SegmentedRegressor(2, broken_features="dose").fit(X, y)
    t = model.breakpoints_

    def fit(t):
        return sm.OLS(y, columns(X, t)).fit()

    best = fit(t)
    assert_allclose(model.statistics_["rss"], best.ssr, rtol=1e-10)
    for shift in ([0.02, 0], [-0.02, 0], [0, 0.02], [0, -0.02]):
        assert fit(t + shift).ssr > best.ssr
    # Muggeo's working model: the columns of the breakpoints added.
    x = X["dose"].to_numpy()[:, None]
    tangent = np.hstack([columns(X, t), -best.params[2:4] * (x >= t)])
    expected = sm.OLS(y, tangent).fit()
    assert_allclose(expected.params[-2:], 0, atol=1e-6)
    assert_allclose(model.breakpoint_std_, expected.bse[-2:], rtol=1e-6)
    assert_allclose(model.parameters_["std_error"], expected.bse[:6], rtol=1e-6)
    assert_allclose(model.noise_std_**2, expected.scale, rtol=1e-8)


def test_one_kink_is_the_best_of_a_fine_grid():
    rng = np.random.default_rng(1)
    for _ in range(6):
        x, y = np.sort(rng.uniform(size=30)), rng.standard_normal(30)
        model = SegmentedRegressor(1, min_rows=1).fit(x[:, None], y)
        best = np.inf
        for t in np.linspace(x[0], x[-1], 501)[1:-1]:
            A = np.column_stack([np.ones(30), x, np.maximum(x - t, 0)])
            best = min(best, np.linalg.lstsq(A, y)[1].min(initial=np.inf))
        assert model.statistics_["rss"] <= best * (1 + 1e-10)


@pytest.mark.parametrize("degree", [0, 1])
def test_jumps_are_the_best_partition(degree):
    x, y = np.arange(14.0) ** 1.2, np.random.default_rng(5).standard_normal(14)
    model = SegmentedRegressor(2, degree=degree, jumps=True, min_rows=2).fit(
        x[:, None], y
    )

    def rss(i, j):
        A = np.vander(x[i:j], degree + 1)
        error = y[i:j] - A @ np.linalg.lstsq(A, y[i:j])[0]
        return error @ error

    best = min(
        (rss(0, i) + rss(i, j) + rss(j, 14), i, j)
        for i in range(2, 11)
        for j in range(i + 2, 13)
    )
    assert_allclose(model.statistics_["rss"], best[0], rtol=1e-10)
    assert_array_equal(np.searchsorted(x, model.breakpoints_), best[1:])


@pytest.mark.parametrize("settings", [{"degree": 0}, {"jumps": True}])
def test_many_jumps_between_few_places_are_all_found(settings, monkeypatch):
    rng = np.random.default_rng(0)
    n, at = 1601, 30 + 50 * np.arange(30) + rng.integers(0, 30, 30)
    x, segment = np.arange(n), np.searchsorted(at, np.arange(n), side="right")
    y = rng.standard_normal(31)[segment]
    monkeypatch.setattr(programme, "MOST_CANDIDATES", 100)
    model = SegmentedRegressor(30, **settings).fit(x[:, None], y)
    assert_allclose(model.breakpoints_, at - 0.5)
    assert model.statistics_["rss"] < 1e-20 * n


def test_exact_broken_lines_are_found_to_rounding_errors():
    x = np.linspace(-1, 3, 200)
    y = np.interp(x, [-1, 0.123, 1.7, 3], [2.0, -1.0, 4.0, 4.5])
    model = SegmentedRegressor().fit(x[:, None], y)
    assert_allclose(model.breakpoints_, [0.123, 1.7], rtol=1e-10)
    assert model.statistics_["rss"] < 1e-20
    y = np.where(x < 0.5, 1.0, -2.0)
    model = SegmentedRegressor(degree=0).fit(x[:, None], y)
    assert_allclose(model.jumps_, [-3])
    middle = (x[x < 0.5][-1] + x[x >= 0.5][0]) / 2
    assert_allclose(model.breakpoints_, [middle], rtol=1e-12)


@pytest.mark.parametrize("linear", [0.0, 0.7])
@pytest.mark.parametrize(("n", "k"), [(60, 7), (100, 9)])
def test_kinks_that_help_only_together_are_found(n, k, linear):
    """BIC rises with the first kinks of a zigzag."""
    x, ends = np.linspace(0, 1, n), np.linspace(0, 1, k + 2)
    z = np.random.default_rng(0).standard_normal(n)
    y = np.interp(x, ends, np.arange(k + 2) % 2) + linear * z
    X = np.column_stack([x, z])[:, : 1 + (linear > 0)]
    model = SegmentedRegressor().fit(X, y)
    assert_allclose(model.breakpoints_, ends[1:-1], rtol=1e-9)
    assert model.statistics_["rss"] < 1e-20


def test_lines_go_on_outside_the_data(data):
    X, y = data
    model = SegmentedRegressor(2, broken_features="dose").fit(X, y)
    far = pd.DataFrame({"a": 0.0, "dose": [-7.0, 33.0], "b": 0.0})
    lines = model.segments_
    expected = lines["intercept"][[0, -1]] + lines["slope"][[0, -1]] * [-7, 33]
    assert_allclose(model.predict(far), expected)


def test_a_weight_of_two_is_two_rows(data):
    X, y = data
    weight = np.random.default_rng(0).integers(0, 4, len(y))
    repeated = np.repeat(np.arange(len(y)), weight)
    model = SegmentedRegressor(broken_features="dose", covariance="HC3")
    one = clone(model).fit(X, y, sample_weight=weight)
    other = clone(model).fit(X.iloc[repeated], y[repeated])
    assert_allclose(one.breakpoints_, other.breakpoints_, rtol=1e-9)
    assert_allclose(one.breakpoint_std_, other.breakpoint_std_, rtol=1e-6)
    assert one.statistics_ == pytest.approx(other.statistics_)


def test_the_units_do_not_matter(data):
    X, y = data
    model = SegmentedRegressor(broken_features="dose").fit(X, y)
    scaled = X.assign(dose=1e6 + 1e-3 * X["dose"], b=X["b"] * 1e5)
    other = SegmentedRegressor(broken_features="dose").fit(scaled, 1e8 * y)
    # The digits that are left of numbers of size 1e6 with a range of 0.01.
    assert_allclose(1e3 * (other.breakpoints_ - 1e6), model.breakpoints_, rtol=1e-5)
    assert_allclose(other.predict(scaled), 1e8 * model.predict(X), rtol=1e-6)


# --- what is asked for ----------------------------------------------------------------


def test_nile_has_one_jump_after_1898():
    X, y = load_nile(return_X_y=True)
    model = SegmentedRegressor(degree=0).fit(X, y)
    assert_allclose(model.breakpoints_, [1898.5], rtol=1e-12)
    assert_allclose(model.jumps_, y[28:].mean() - y[:28].mean())
    before, after = model.breakpoint_interval_[0]
    assert before < 1898 < after
    # breakpoints(Nile ~ 1) of strucchange, which counts the variance as a parameter.
    bic = model.selection_path_["bic"] + np.log(100)
    assert_allclose(bic[:2], [1318.242, 1270.084], atol=5e-4)


@pytest.mark.filterwarnings("ignore:The criterion falls up to 4")
@pytest.mark.parametrize("criterion", ["bic", "aic", "gcv"])
def test_the_criterion_chooses_from_its_path(data, criterion):
    X, y = data
    model = SegmentedRegressor(
        broken_features="dose", criterion=criterion, max_breakpoints=4
    ).fit(X, y)
    path = model.selection_path_
    chosen = path["n_breakpoints"][np.argmin(path[criterion])]
    assert len(model.breakpoints_) == chosen
    assert np.all(np.diff(path["rss"]) <= 1e-9 * path["rss"][0])
    if criterion in ("bic", "aic"):
        given = clone(model).set_params(n_breakpoints=3).fit(X, y)
        assert len(given.breakpoints_) == 3
        found = [each.statistics_[criterion] for each in (model, given)]
        assert_allclose(path[criterion][[chosen, 3]], found, rtol=1e-9)


def test_known_breakpoints_bounds_and_distances_are_kept(data):
    X, y = data
    model = SegmentedRegressor(
        3,
        breakpoints=[5.0],
        bounds=(2.0, 8.0),
        min_distance=0.8,
        min_rows=12,
        broken_features=1,
    ).fit(X, y)
    t = model.breakpoints_
    known = np.isclose(t, 5.0, rtol=1e-12)
    assert known.sum() == 1
    assert len(t) == 4
    assert t.min() >= 2 - 1e-9
    assert t.max() <= 8 + 1e-9
    assert np.diff(t).min() >= 0.8 * (1 - 1e-9)
    assert model.segments_["n_rows"].min() >= 12
    assert_array_equal(model.breakpoint_std_[known], 0)


@pytest.mark.parametrize("zone", [None, "Europe/Madrid"])
def test_dates(zone):
    days = pd.date_range("2020-01-01", periods=120, freq="D", tz=zone)
    x = np.arange(120.0)
    y = np.maximum(x - 60.0, 0) + 0.01 * np.sin(7 * x)
    X = pd.DataFrame({"day": days})
    model = SegmentedRegressor(1).fit(X, y)
    plain = days if zone is None else days.tz_convert("UTC").tz_localize(None)
    away = model.breakpoints_[0] - plain[60].to_numpy()
    assert abs(away) < np.timedelta64(3, "h")
    assert model.breakpoints_.dtype.kind == model.segments_["start"].dtype.kind == "M"
    assert_allclose(model.segments_["slope"], [0, 1], atol=1e-2)  # a day
    assert "1970-01-01" in str(model.summary())
    known = SegmentedRegressor(0, breakpoints=[days[60]], bounds=days[[3, 99]])
    assert known.fit(X, y).breakpoints_[0] == plain[60]
    with pytest.raises(ValueError, match="X holds numbers"):
        model.predict(pd.DataFrame({"day": x}))
    other = days.tz_localize(None) if zone else days.tz_localize("UTC")
    with pytest.raises(ValueError, match="fitted on dates with"):
        model.predict(pd.DataFrame({"day": other}))
    with pytest.raises(ValueError, match=r"'dy' is not among .*: \['day'\]"):
        SegmentedRegressor(broken_features="dy").fit(X, y)
    with pytest.raises(ValueError, match="X holds text: convert it to dates"):
        model.predict(pd.DataFrame({"day": ["2020-02-01"]}))
    for soon in (["soon"], [18300]):
        with pytest.raises(ValueError, match="list of dates"):
            SegmentedRegressor(0, breakpoints=soon).fit(X, y)
    with pytest.raises(ValueError, match=r"\['2035-03-15'\] must .* 20(19|20)-.* and"):
        SegmentedRegressor(0, breakpoints=["2035-03-15"]).fit(X, y)
    with pytest.raises(ValueError, match=r"as frame\[\['day'\]\].*index.to_frame"):
        model.fit(X["day"], y)


def test_dates_in_lists_and_columns_that_hold_none():
    days = pd.date_range("2020-01-01", periods=120, freq="D")
    y = np.abs(np.arange(120.0) - 60)
    rows = [[day] for day in days.date]
    found = SegmentedRegressor(1).fit(rows, y).breakpoints_
    assert_array_equal(
        found, SegmentedRegressor(1).fit(days.to_frame(), y).breakpoints_
    )
    with pytest.raises(ValueError, match="several columns as a data frame"):
        SegmentedRegressor(1).fit([[day, 1.0] for day in days.date], y)
    with pytest.raises(ValueError, match="X holds dates"):
        ShallowReLURegressor().fit(rows, y)
    with pytest.raises(ValueError, match="make dates of it by pandas"):
        SegmentedRegressor().fit(pd.DataFrame({"day": days.astype(str)}), y)
    frame = pd.DataFrame({"z": y, "day": days})
    with pytest.raises(ValueError, match="set broken_features to it"):
        SegmentedRegressor().fit(frame, y)
    frame.loc[3, "day"] = pd.NaT
    with pytest.raises(ValueError, match="NaT in 1 row"):
        SegmentedRegressor(broken_features="day").fit(frame, y)


def test_diagnose_names_outliers_unless_the_loss_is_robust():
    x = np.arange(100.0)[:, None]
    y = np.abs(x[:, 0] - 40) + np.random.RandomState(0).randn(100)
    y[[10, 70]] += 60
    model = SegmentedRegressor(1).fit(x[::-1], y[::-1])
    (finding, *_) = model.diagnose().findings
    assert finding.cause == "outliers"
    assert re.search(r"2 of 100 rows .* Look at rows (89, 29|29, 89)\.", finding.text)
    robust = SegmentedRegressor(1, loss="huber").fit(x, y)
    assert "outliers" not in [f.cause for f in robust.diagnose().findings]


@pytest.mark.parametrize("dates", [False, True])
def test_diagnose_names_a_jump_between_two_kinks(dates):
    x = np.arange(200)
    noise = 0.15 * np.random.default_rng(0).standard_normal(200)
    X = (np.datetime64("2020-01-01") + x if dates else x)[:, None]
    jump = np.where(x < 80, 0.0, 1.0) + noise
    ramp = np.clip(x - 80, 0, 40) / 40 + noise
    found = SegmentedRegressor().fit(X, jump).diagnose().findings
    assert found[0].parameter == "jumps"
    assert "Breakpoints 1 and 2 have only 3 rows between them" in found[0].text
    assert "n_breakpoints" not in [f.parameter for f in found]
    for model, y in [
        (SegmentedRegressor(jumps=True), jump),
        (SegmentedRegressor(), ramp),
    ]:
        findings = model.fit(X, y).diagnose().findings
        assert "jumps" not in [f.parameter for f in findings]


def test_diagnose_says_that_nothing_varies():
    x = np.arange(60.0)[:, None]
    for y in (np.zeros(60), np.ones(60), np.full(60, 1e9 + 0.1)):
        (finding,) = SegmentedRegressor().fit(x, y).diagnose().findings
        assert "target is constant" in finding.text
    (finding,) = SegmentedRegressor().fit(np.ones((60, 1)), x[:, 0]).diagnose().findings
    assert finding.parameter == "broken_features"
    assert "constant" not in str(SegmentedRegressor().fit(x, x[:, 0]).diagnose())


@pytest.mark.parametrize(
    "kind", ["nonrobust", "HC0", "HC1", "HC2", "HC3", "HAC", "HAC-prewhitened"]
)
@pytest.mark.parametrize("loss", ["squared_error", "huber"])
def test_as_many_rows_as_parameters_leave_no_errors(kind, loss):
    X = np.random.default_rng(0).normal(size=(8, 4))
    y = X[:, 1] ** 3
    known = SegmentedRegressor(
        0, breakpoints=[0.0], min_rows=1, covariance=kind, loss=loss
    )
    model = clone(known).fit(X[:7], y[:7])  # 2 + 1 + 3 coefficients and a row
    assert np.isfinite(model.parameters_["std_error"]).all()
    assert model.statistics_["degrees_of_freedom"] == 1
    model = known.fit(X[:6], y[:6])
    assert_allclose(model.predict(X[:6]), y[:6], atol=1e-9)
    for name in ("std_error", "t", "p_value", "lower", "upper"):
        assert np.isnan(model.parameters_[name]).all()
    for name in ("slope_std_error", "slope_lower", "intercept_upper"):
        assert np.isnan(model.segments_[name]).all()
    assert np.isnan(model.noise_std_)
    assert model.statistics_["degrees_of_freedom"] == 0
    assert "standard errors are NaN" in str(model.diagnose())
    with pytest.warns(UserWarning, match="standard deviations are NaN"):
        assert np.isnan(model.predict_interval(X)).all()
    if loss == "huber":
        assert np.all(model.robust_weights_ > 0)


def test_breakpoints_have_no_intervals_without_free_rows():
    x, y = np.arange(5.0), np.random.default_rng(1).normal(size=5)
    days = pd.date_range("2020-01-01", periods=5, freq="D").to_frame()
    jumps = SegmentedRegressor(1, jumps=True, min_rows=1)
    for X in (x[:, None], days):
        model = jumps.fit(X, y)
        assert pd.isna(model.breakpoint_interval_).all()
        assert not re.search("nan|nat", str(model.summary()), re.IGNORECASE)
    few = SegmentedRegressor(1, min_rows=1).fit(x[:4, None], [0, 0, 1, 3])
    assert few.statistics_["n_parameters"] == 4
    assert np.isnan([few.breakpoint_std_, *few.breakpoint_interval_.T]).all()


def test_residuals_have_robust_weights_where_the_rows_sum_to_few():
    x, y = np.arange(64.0)[:, None], np.random.default_rng(2).normal(size=64)
    model = SegmentedRegressor(0, loss="huber")
    counted = clone(model).fit(x, y).robust_weights_
    model.fit(x, y, sample_weight=np.full(64, 1 / 64))
    assert np.isnan(model.noise_std_)
    assert_allclose(model.robust_weights_, counted, rtol=1e-7)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e9 + 0.1])
@pytest.mark.parametrize("n", [2, 7, 1000])
def test_r2_of_a_constant_is_that_of_scikit_learn(value, n):
    x, y = np.arange(float(n))[:, None], np.full(n, value)
    model = SegmentedRegressor().fit(x, y)
    assert model.statistics_["r2"] == r2_score(y, y) == model.score(x, y)


@pytest.mark.parametrize("criterion", ["bic", "aic", "gcv"])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e9 + 0.1])
def test_no_criterion_breaks_a_constant(criterion, value):
    x = np.arange(40.0)[:, None]
    for options in ({}, {"jumps": True}, {"loss": "huber"}):
        model = SegmentedRegressor(criterion=criterion, **options)
        model.fit(x, np.full(40, value))
        assert len(model.breakpoints_) == 0
        assert_allclose(model.predict(x), value, rtol=1e-10)


def test_summary_says_what_cannot_be_estimated():
    x = np.arange(20.0)[:, None]
    y = np.abs(x[:, 0] - 7)
    assert "no more rows than parameters" in str(
        SegmentedRegressor(0).fit(x[:2], y[:2]).summary()
    )
    assert "p-value" in str(SegmentedRegressor(1).fit(x, y).summary())
    known = SegmentedRegressor(0, breakpoints=[7.0]).fit(x, y)
    assert "p-value" not in str(known.summary())
    days = pd.date_range("2020-01-01", periods=20, freq="D").to_frame()
    assert "2020-01-20 " in str(SegmentedRegressor(1).fit(days, y).summary())
    assert "00:00" not in str(SegmentedRegressor(0).fit(days, y).summary())


def test_warnings_name_the_line_of_the_user():
    x = np.arange(20.0)[:, None]
    with pytest.warns(UserWarning, match="not n_breakpoints=50") as caught:
        SegmentedRegressor(50).fit(x, x[:, 0])
    assert caught[0].filename == __file__


def polars_frame(days):
    return pytest.importorskip("polars").DataFrame({"day": days})


@pytest.mark.parametrize(
    "frame_of",
    [
        lambda days: polars_frame(days.to_numpy()),
        lambda days: polars_frame(days.date),
        lambda days: pd.DataFrame({"day": days.date}),
        lambda days: pd.DataFrame({"day": days.to_period("D")}),
    ],
    ids=["polars datetime", "polars date", "date objects", "periods"],
)
def test_dates_of_any_kind_of_column(frame_of):
    days = pd.date_range("2020-01-01", periods=40)
    y = np.maximum(np.arange(40.0) - 20, 0)
    X = frame_of(days)
    model = SegmentedRegressor(1).fit(X, y)
    away = model.breakpoints_ - days[[20]].to_numpy()
    assert np.abs(away) < np.timedelta64(1, "s")
    assert_allclose(model.segments_["slope"], [0, 1], atol=1e-9)  # a day
    assert_allclose(model.predict(X), y, atol=1e-9)


def test_least_distance_of_dates_is_days_or_a_timedelta():
    days = pd.date_range("2020-01-01", periods=40)
    X, y = pd.DataFrame({"day": days}), np.maximum(np.arange(40.0) - 5, 0)
    found = [
        SegmentedRegressor(1, min_distance=length).fit(X, y).breakpoints_
        for length in (8, pd.Timedelta("8D"), np.timedelta64(192, "h"))
    ]
    assert found[0] >= days[8].to_numpy()
    assert found[0] == found[1] == found[2]
    with pytest.raises(ValueError, match="min_distance must not be negative"):
        SegmentedRegressor(1, min_distance=pd.Timedelta("-1D")).fit(X, y)
    with pytest.raises(ValueError, match="needs dates"):
        SegmentedRegressor(min_distance=pd.Timedelta("1D")).fit(y[:, None], y)


def test_too_few_positions_give_fewer_segments_and_a_warning():
    y = np.arange(12.0)
    with pytest.warns(UserWarning, match="0 breakpoints, not n_breakpoints=2"):
        model = SegmentedRegressor(2).fit(np.ones((12, 1)), y)
    assert_allclose(model.predict([[1.0], [5.0]]), y.mean())
    x = np.repeat([0.0, 1.0, 2.0], 4)
    with pytest.warns(UserWarning, match="1 breakpoint, not n_breakpoints=3"):
        model = SegmentedRegressor(3).fit(x[:, None], np.abs(x - 1) + y % 2)
    assert_allclose(model.predict([[0.0], [1.0], [2.0]]), [1.5, 0.5, 1.5])
    model = SegmentedRegressor().fit(x[3:5, None], y[:2])
    with pytest.warns(UserWarning, match="noise cannot be estimated"):
        model.predict([[0.0]], return_std=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"breakpoints": [11.0]}, r"breakpoints=\[11.0\] must lie inside the data"),
        ({"breakpoints": [np.nan]}, "breakpoints must be a list of finite numbers"),
        ({"bounds": (3.0, 1.0)}, "bounds must be"),
        ({"kinks": False}, "kinks=False and jumps=False"),
        ({"broken_features": 7}, "broken_features=7 is out of range"),
        ({"broken_features": "z"}, "broken_features='z' is not among"),
    ],
)
def test_bad_input(data, settings, message):
    X, y = data
    settings = {"broken_features": "dose", **settings}
    with pytest.raises(ValueError, match=message):
        SegmentedRegressor(**settings).fit(X, y)


def test_columns_of_an_array_have_no_names(data):
    X, y = data
    with pytest.raises(ValueError, match=r"'dose' is a name, .* the number of the col"):
        SegmentedRegressor(broken_features="dose").fit(np.asarray(X), y)


def test_summary_shows_the_tables(data):
    X, y = data
    model = SegmentedRegressor(broken_features="dose").fit(X, y)
    summary = model.summary()
    text, html = str(summary), summary._repr_html_()
    for word in ("Breakpoints", "Segments", "slope change 2", "R2", "BIC", "dose"):
        assert word in text
        assert word in html
    shown = summary.tables["Parameters"]["coef"]
    assert_array_equal(shown, model.parameters_["estimate"])
    assert len({len(line) for line in text.splitlines() if line.startswith("=")}) == 1


@pytest.mark.parametrize("weighted", [False, True])
def test_intervals_of_kinks_are_those_of_the_f_test(weighted):
    rng = np.random.default_rng(3)
    x, z = np.sort(rng.uniform(size=60)), rng.normal(size=60)
    y = 4 * np.maximum(x - 0.5, 0) + z + 0.5 * rng.standard_normal(60)
    weight = rng.integers(1, 3, 60) if weighted else np.ones(60)
    model = SegmentedRegressor(1).fit(np.c_[x, z], y, sample_weight=weight)

    def f_test(t):
        A = np.column_stack([np.ones(60), x, np.maximum(x - t, 0), z])
        rss, least = sm.WLS(y, A, weight).fit().ssr, model.statistics_["rss"]
        return (rss - least) / least * (weight.sum() - 5)

    quantile = stats.f.ppf(0.95, 1, weight.sum() - 5)
    interval = model.breakpoint_interval_[0]
    assert_allclose([f_test(t) for t in interval], quantile, rtol=1e-4)
    half = stats.t.ppf(0.975, weight.sum() - 5) * model.breakpoint_std_[0]
    assert np.abs(interval - model.breakpoints_).max() > 1.1 * half


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_intervals_of_jumps_are_those_of_the_likelihood_ratio(degree, weighted):
    rng = np.random.default_rng(2)
    x, z = np.sort(rng.uniform(size=60)), rng.normal(size=60)
    y = 2.0 * (x > 0.3) + 3 * (x > 0.6) + z + rng.standard_normal(60)
    weight = rng.integers(1, 3, 60) if weighted else np.ones(60)
    model = SegmentedRegressor(2, jumps=True, degree=degree, min_rows=3)
    model.fit(np.c_[x, z], y, sample_weight=weight)
    count, rows = np.r_[0, np.cumsum(weight)], np.searchsorted(x, model.breakpoints_)
    least, n_coefs = model.statistics_["rss"], 3 * (1 + degree) + 1
    freedom = weight.sum() - n_coefs

    def coverage(rise):  # of a walk to both sides, averaged over the estimated variance
        def covered(variance):
            density = stats.chi2.pdf(variance, freedom)
            return np.expm1(-rise * variance / freedom / 2) ** 2 * density

        return integrate.quad(covered, 0, np.inf)[0]

    limit = brentq(lambda rise: coverage(rise) - 0.95, 1, 40) * least / freedom

    def rss(breaks):
        A = np.eye(3)[np.searchsorted(breaks, np.arange(60), side="right")]
        A = np.hstack([A * x[:, None] ** k for k in range(degree + 1)])
        return sm.WLS(y, np.c_[A, z], weight).fit().ssr

    for k, found in enumerate(model.breakpoint_interval_):
        places = np.r_[0, rows, 60]
        free = np.arange(places[k] + 1, places[k + 2])
        free = free[
            (count[free] - count[places[k]] >= 3)
            & (count[places[k + 2]] - count[free] >= 3)
        ]
        inside = [
            j for j in free if rss(np.sort(np.r_[j, rows[1 - k]])) - least < limit
        ]
        assert_allclose(found, [x[min(inside) - 1], x[max(inside)]], rtol=1e-12)
        assert len(inside) < len(free)


def test_intervals_of_jumps_hold_kinks_that_are_no_jumps():
    x = np.arange(130.0)
    y = 50 + 0.5 * np.minimum(x, 60) + np.random.default_rng(1).normal(0, 2, 130)
    model = SegmentedRegressor(1, jumps=True).fit(x[:, None], y)
    low, high = model.breakpoint_interval_[0]
    assert low <= 60 <= high < low + 20


def test_intervals_of_kinks_end_at_their_neighbours_and_may_be_robust():
    x = np.linspace(0, 1, 80)
    y = np.random.default_rng(0).standard_normal(80)
    model = SegmentedRegressor(3).fit(x[:, None], y)
    low = np.r_[0, model.breakpoints_[:-1]]
    high = np.r_[model.breakpoints_[1:], 1]
    interval = model.breakpoint_interval_
    beyond = np.c_[low - interval[:, 0], interval[:, 1] - high]
    assert_allclose(beyond.max(), 0, atol=1e-9)
    # Where the kink is sharp they are the intervals of the delta method.
    y = np.maximum(x - 0.4, 0) + 1e-4 * (1 + x) * y
    for kind in ("nonrobust", "HC3", "HAC"):
        model = SegmentedRegressor(1, covariance=kind).fit(x[:, None], y)
        half = stats.t.ppf(0.975, 76) * model.breakpoint_std_[0]
        distance = np.abs(model.breakpoint_interval_[0] - model.breakpoints_)
        assert_allclose(distance, half, rtol=2e-3)


def test_a_breakpoint_at_its_bound_is_said_and_intervals_stay_inside():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 80)
    y = np.abs(x - 0.3) + 0.05 * rng.normal(size=80)
    model = SegmentedRegressor(1, bounds=(0.8, 0.9)).fit(x[:, None], y)
    low, high = model.breakpoint_interval_[0]
    assert 0.8 - 1e-9 < low <= model.breakpoints_[0] <= high < 0.9 + 1e-9
    (finding, *_) = model.diagnose().findings
    assert finding.parameter == "bounds"
    assert "1 of 1 breakpoint lies at an end of bounds=(0.8, 0.9)" in str(finding)
    model = SegmentedRegressor(1, bounds=(0.1, 0.9)).fit(x[:, None], y)
    assert "bounds" not in [f.parameter for f in model.diagnose().findings]


def test_bounds_outside_the_data_and_missing_rows_are_named():
    x = np.linspace(0, 10, 30)
    with pytest.warns(UserWarning, match=r"bounds=\(80, 95\) lie outside.*0 to 10"):
        SegmentedRegressor(1, bounds=(80, 95)).fit(x[:, None], np.abs(x - 5))
    with pytest.warns(UserWarning, match=r"segments need \d+ rows each, \d+ in"):
        SegmentedRegressor(2).fit(x[:5, None], np.abs(x[:5] - 1))


def test_errors_of_a_continuous_line_are_continuous_at_its_kink():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 80)
    y = np.maximum(x - 0.5, 0) + 0.1 * rng.normal(size=80)
    model = SegmentedRegressor(1).fit(x[:, None], y)
    t = model.breakpoints_[0]
    _, std = model.predict([[t - 1e-9], [t + 1e-9]], return_std=True)
    assert_allclose(std[0], std[1], rtol=1e-6)


def test_a_summary_has_jumps_only_where_there_are_some():
    x = np.linspace(0, 1, 40)
    y = np.abs(x - 0.5)
    assert "jump" not in str(SegmentedRegressor(1).fit(x[:, None], y).summary())
    steps = SegmentedRegressor(1, degree=0).fit(x[:, None], np.sign(x - 0.5))
    assert "jump" in str(steps.summary())
    # Positions of jumps have no standard error; p-values end at rounding errors.
    assert str(steps.summary()).count("std err") == 2
    assert "<2.2e-16" in str(steps.summary())


@pytest.mark.parametrize(
    "model",
    [SegmentedRegressor(), SegmentedRegressor(jumps=True), ShallowReLURegressor()],
)
def test_prediction_intervals_follow_noise_that_grows(model):
    inside, width = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = np.sort(rng.uniform(0, 10, 600))[:, None]
        shape, draws = (0.2 + 0.2 * x[:, 0]), rng.standard_normal(600)
        y = 2 * np.maximum(x[:, 0] - 6, 0) + shape * draws
        low, high = clone(model).fit(x[::2], y[::2]).predict_interval(x[1::2])
        inside.append(((low <= y[1::2]) & (y[1::2] <= high)).reshape(3, 100))
        width.append((high - low).reshape(3, 100).mean(axis=1))
    assert_allclose(np.mean(inside, axis=(0, 2)), 0.95, atol=0.045)
    thirds = np.mean(width, axis=0)
    assert thirds[2] > 2 * thirds[0]


def test_prediction_intervals_of_equal_noise_have_one_width():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 10, 300)[:, None]
    y = 2 * np.maximum(x[:, 0] - 6, 0) + rng.standard_normal(300)
    model = SegmentedRegressor().fit(x, y)
    low, high = model.predict_interval(x)
    noise = high - low
    assert noise.max() < 1.1 * noise.min()
    days = np.datetime64("2024-01-01") + np.arange(300)
    frame = pd.DataFrame({"day": days})
    of_dates = SegmentedRegressor().fit(frame, y).predict_interval(frame)
    assert_allclose(of_dates, (low, high), rtol=1e-4, atol=1e-4)
