"""fit_groups gives the table of separate fits."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.signal import lfilter

from sklearn_gn import SegmentedRegressor, fit_groups
from sklearn_gn.plotting import SeriesDisplay


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    parts = []
    for k, n in enumerate((40, 60, 25, 50)):
        x = rng.uniform(0, 1, n)
        y = 8.0 * (k > 0) * np.maximum(x - 0.4, 0) - 12 * (k > 1) * np.maximum(
            x - 0.7, 0
        )
        noise = 0.05 * rng.standard_normal(n)
        parts.append(pd.DataFrame({"g": f"s{k}", "x": x, "z": rng.normal(size=n)}))
        parts[-1]["y"] = y + 0.3 * parts[-1]["z"] + noise
        parts[-1]["w"] = rng.integers(1, 3, n)
    return pd.concat(parts).sample(frac=1, random_state=0, ignore_index=True)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_breakpoints": 2, "covariance": "HC3"},
        {"jumps": True, "breakpoints": [0.4], "n_breakpoints": 0},
        {"degree": 0, "criterion": "aic"},
    ],
)
@pytest.mark.repeats
def test_rows_are_those_of_separate_fits(data, settings):
    model = SegmentedRegressor(broken_features="x", **settings)
    table = fit_groups(
        model, data, group="g", target="y", features=["z", "x"], sample_weight="w"
    )
    assert_array_equal(table["g"].unique(), data["g"].unique())
    for name, own in data.groupby("g"):
        one = model.fit(own[["z", "x"]], own["y"], sample_weight=own["w"])
        rows = table[table["g"] == name]
        assert_array_equal(rows["segment"], 1 + np.arange(len(rows)))
        for column, expected in one.segments_.items():
            assert_allclose(rows[column], expected, rtol=1e-5, atol=1e-9)
        assert_allclose(
            rows["breakpoint_std_error"][1:], one.breakpoint_std_, rtol=1e-4
        )
        limits = rows[["breakpoint_lower", "breakpoint_upper"]][1:]
        assert_allclose(limits, one.breakpoint_interval_, rtol=1e-4)
        assert_allclose(rows["noise_std"], one.noise_std_, rtol=1e-7)
        assert_allclose(rows["r2"], one.statistics_["r2"], rtol=1e-7)


def test_dates(data):
    dated = data.assign(x=pd.Timestamp("2020-01-01") + data["x"] * pd.Timedelta("100D"))
    table = fit_groups(
        SegmentedRegressor(), dated, group="g", target="y", features=["x", "z"]
    )
    plain = fit_groups(
        SegmentedRegressor(), data, group="g", target="y", features=["x", "z"]
    )
    days = (table["start"] - pd.Timestamp("2020-01-01")) / pd.Timedelta("100D")
    assert_allclose(days, plain["start"], atol=1e-8)


def test_polars_frames(data):
    pl = pytest.importorskip("polars")
    other = pl.DataFrame({name: data[name].to_numpy() for name in data.columns})
    words = {"group": "g", "target": "y", "features": ["x"]}
    table = fit_groups(SegmentedRegressor(), other, **words)
    pd.testing.assert_frame_equal(
        table, fit_groups(SegmentedRegressor(), data, **words), check_dtype=False
    )
    drawn = {"group": "g", "target": "y", "feature": "x"}
    ours, theirs = (SeriesDisplay.from_table(table, d, **drawn) for d in (data, other))
    for one, two in zip(ours.samples, theirs.samples, strict=True):
        assert_allclose(one, two)


def test_bad_input(data):
    words = {"group": "g", "target": "y", "features": ["x"]}
    with pytest.raises(ValueError, match="data frame of pandas or polars, got dict"):
        fit_groups(SegmentedRegressor(), dict(data), **words)
    with pytest.raises(ValueError, match="fit_groups takes a SegmentedRegressor"):
        fit_groups(None, data, **words)
    with pytest.raises(ValueError, match=r"Column 'text' of X .*: leave it out of"):
        fit_groups(SegmentedRegressor(), data.assign(text="x"), group="g", target="y")
    with pytest.raises(ValueError, match=r"missing are \['q'\]"):
        fit_groups(SegmentedRegressor(), data, group="q", target="y")
    with pytest.raises(ValueError, match=r"Group 's\d': breakpoints="):
        fit_groups(SegmentedRegressor(breakpoints=[3.0]), data, **words)
    ages = data.assign(y=pd.to_timedelta(data["y"], unit="D"))
    with pytest.raises(ValueError, match="y holds durations: targets are numbers"):
        fit_groups(SegmentedRegressor(), ages, **words)


def test_nan_is_said_to_be_in_its_group(data):
    def refused(column, rows, value):
        damaged = data.copy()
        damaged.loc[rows, column] = value
        with pytest.raises(ValueError, match="Group") as caught:
            fit_groups(SegmentedRegressor(), damaged, group="g", target="y")
        return str(caught.value)

    data = data.drop(columns="w")
    second, third = (data.index[data["g"] == name] for name in ("s2", "s3"))
    said = refused("y", second[:1], np.nan)
    assert said == "Group 's2': y contains NaN in 1 row; drop it."
    said = refused("z", third[:2], np.inf)
    assert said == "Group 's3': X contains infinity in 2 rows; drop them."
    said = refused("x", [second[0], *third], np.nan)
    assert "contains NaN" in said
    assert "and rows of 1 other group." in said


@pytest.mark.parametrize("absolute_sigma", [False, True])
def test_errors_in_correlated_noise_are_those_of_separate_fits(absolute_sigma):
    rng, x, parts = np.random.default_rng(0), np.linspace(0, 10, 200), []
    for phi in (0.0, 0.6):
        noise = lfilter([0.4], [1, -phi], rng.standard_normal(200))
        y = 0.5 * x + np.maximum(x - 6, 0) + noise
        parts.append(pd.DataFrame({"g": phi, "x": x, "y": y, "s": 0.5}))
    words = {"group": "g", "target": "y", "features": ["x"], "y_std": "s"}
    model = SegmentedRegressor(1)
    table = fit_groups(model, pd.concat(parts), **words, absolute_sigma=absolute_sigma)
    found = table.loc[table["segment"] == 2, "breakpoint_std_error"]
    for one, error in zip(parts, found, strict=True):
        given = {"y_std": one["s"], "absolute_sigma": absolute_sigma}
        model.fit(one[["x"]], one["y"], **given)
        assert_allclose(error, model.breakpoint_std_[0], rtol=1e-7)
    assert len(model.autocorrelation_) > 0
