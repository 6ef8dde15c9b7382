"""SegmentsDisplay and SelectionPathDisplay draw what the model says."""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.dates import date2num
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.linear_model import Ridge

from sklearn_gn import SegmentedRegressor, ShallowReLURegressor, fit_groups
from sklearn_gn.plotting import (
    BreakpointDisplay,
    SegmentsDisplay,
    SelectionPathDisplay,
    SeriesDisplay,
)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"dose": rng.uniform(0, 10, 80), "z": rng.normal(size=80)})
    y = np.maximum(X["dose"] - 4, 0) + 3 * X["z"] + 0.1 * rng.standard_normal(80)
    return X, y.rename("response")


def test_curve_band_and_intervals(data):
    X, y = data
    model = SegmentedRegressor(1).fit(X, y)
    display = SegmentsDisplay.from_estimator(model, X, y, residuals=True)
    at_mean = pd.DataFrame({"dose": display.grid, "z": X["z"].mean()})
    value, std = model.predict(at_mean, return_std=True)
    assert_allclose(display.response, value)
    width = (display.upper - value) / std
    assert_allclose(width, (value - display.lower) / std)
    assert_allclose(width, stats.t.ppf(0.975, 80 - 5))
    assert np.isin(model.breakpoints_, display.grid).all()
    (bar,) = display.intervals_.get_segments()
    assert_allclose(bar[:, 0], model.breakpoint_interval_[0])
    assert_allclose(display.residuals, y - model.predict(X))
    sizes = [len(part.get_offsets()) for part in display.residuals_]
    assert_array_equal(sizes, model.segments_["n_rows"])
    # Samples stand where the fit has z at its mean.
    slope = model.parameters_["estimate"][-1]
    assert_allclose(display.y, y - slope * (X["z"] - X["z"].mean()))
    assert display.axes_[1, 0].get_xlabel() == "dose"
    assert display.axes_[0, 0].get_ylabel() == "response"


def test_intervals_that_overlap_are_drawn_apart():
    grid, breakpoints = np.linspace(0, 10, 50), np.array([2.0, 4.0, 5.0, 9.0])
    intervals = np.array([[1.0, 4.5], [3.0, 5.5], [4.6, 9.5], [9.4, 9.8]])
    display = SegmentsDisplay(
        grid=grid,
        response=grid,
        lower=grid - 1,
        upper=grid + 1,
        breakpoints=breakpoints,
        intervals=intervals,
        x=grid,
        y=grid,
    ).plot()
    heights = np.array([bar[0, 1] for bar in display.intervals_.get_segments()])
    assert_allclose(heights[[0, 1]], heights[[2, 3]])
    assert heights[0] < heights[1]
    # Neither the bars nor the legend hide the samples.
    display.figure_.canvas.draw()
    to_axes = display.ax_.transAxes.inverted()
    places = to_axes.transform(display.ax_.transData.transform(np.c_[grid, grid]))
    legend = display.ax_.get_legend().get_window_extent().transformed(to_axes)
    assert heights.max() < places[:, 1].min()
    assert places[:, 1].max() < legend.y0


def test_dates_are_drawn_as_dates():
    X = pd.DataFrame({"day": pd.date_range("2021-03-01", periods=50, tz="UTC")})
    y = np.maximum(np.arange(50.0) - 20, 0)
    display = SegmentsDisplay.from_estimator(SegmentedRegressor().fit(X, y), X, y)
    assert display.grid.dtype.kind == "M"
    assert display.ax_.xaxis.get_converter() is not None
    display.figure_.canvas.draw()
    labels = [t.get_text() for t in display.ax_.get_xticklabels()]
    assert max(map(len, labels)) <= 5  # brief ones do not run into each other


@pytest.mark.parametrize("days", [1, 13, 50, 400, 600, 700, 1120])
def test_date_axes_find_their_ticks(days):
    panel = plt.subplots(figsize=(2.4, 1.9))[1]
    hours = np.linspace(0, 24 * days, 9).astype("timedelta64[h]")
    X = pd.DataFrame({"at": np.datetime64("2021-03-01T05") + hours})
    model = SegmentedRegressor(0).fit(X, np.arange(9.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SegmentsDisplay.from_estimator(model, X, ax=panel)
        assert 2 <= len(panel.get_xticks()) <= 9


def test_residuals_need_targets(data):
    model = SegmentedRegressor(1).fit(*data)
    with pytest.raises(ValueError, match="residuals=True needs the targets"):
        SegmentsDisplay.from_estimator(model, data[0], residuals=True)


def test_targets_in_a_column_are_those_of_the_rows(data):
    X, y = data
    model = SegmentedRegressor(1).fit(X, y)
    display = SegmentsDisplay.from_estimator(model, X, pd.DataFrame({"flow": y}))
    expected = SegmentsDisplay.from_estimator(model, X, y)
    assert_allclose(display.y, expected.y, rtol=1e-10)
    with pytest.raises(ValueError, match="1d array"):
        SegmentsDisplay.from_estimator(model, X, np.column_stack([y, y]))


def test_labels_of_panels_stand_below_each_other(data):
    X, y = data
    model = SegmentedRegressor(1).fit(X, 1e5 * y)
    display = SegmentsDisplay.from_estimator(model, X, 1e5 * y, residuals=True)
    display.figure_.draw_without_rendering()
    above, below = (
        ax.yaxis.label.get_window_extent().x0 for ax in display.axes_.ravel()
    )
    assert above == pytest.approx(below, abs=1.0)


def test_the_path_shows_its_criterion(data):
    model = SegmentedRegressor(criterion="gcv", max_breakpoints=3).fit(*data)
    display = SelectionPathDisplay.from_estimator(model)
    assert_array_equal(display.line_.get_ydata(), model.selection_path_["gcv"])
    assert_array_equal(display.chosen_.get_xdata(), [len(model.breakpoints_)])
    given = SegmentedRegressor(2, criterion="gcv").fit(*data)
    assert SelectionPathDisplay.from_estimator(given).chosen == 2
    with pytest.raises(ValueError, match="draws how a SegmentedRegressor, or a"):
        SelectionPathDisplay.from_estimator(Ridge().fit(*data))


@pytest.mark.parametrize("dated", [False, True])
def test_panels_are_the_fits_of_the_series(dated):
    rng = np.random.default_rng(0)
    x = np.tile(np.arange(40.0), 3)
    y = np.maximum(x - np.repeat([10.0, 20.0, 30.0], 40), 0) + rng.normal(size=120)
    frame = pd.DataFrame({"x": x, "y": y, "g": np.repeat(["a", "b", "c"], 40)})
    if dated:
        frame["x"] = pd.Timestamp("2021-03-01", tz="UTC") + x * pd.Timedelta("1D")
    words = {"group": "g", "target": "y"}
    table = fit_groups(SegmentedRegressor(1), frame, **words)
    display = SeriesDisplay.from_table(
        table, frame, **words, feature="x", series=["c", "a"], n_columns=1
    )
    assert [ax.get_title() for ax in display.axes_[:, 0]] == ["c", "a"]
    for k, name in enumerate("ca"):
        own = frame[frame["g"] == name]
        model = SegmentedRegressor(1).fit(own[["x"]], own["y"])
        first = model.predict(own[["x"]].iloc[:1])
        assert_allclose(display.lines[k][0, 0, 1], first, rtol=1e-6, atol=1e-6)
        limits = model.breakpoint_interval_[0]
        if dated:
            limits = date2num(limits)
        assert_allclose(display.intervals[k][0, 1:], limits, rtol=1e-4)
        assert len(display.points_[k].get_offsets()) == 40
    display.figure_.canvas.draw()
    assert display.axes_[1, 0].get_xlabel() == "x"


def test_parabolas_of_series_are_curved():
    x = np.linspace(0, 10, 60)
    y = np.where(x < 4, x * (4 - x), 2 * (x - 4) * (9 - x))
    frame = pd.DataFrame({"x": x, "y": y, "g": "a"})
    table = fit_groups(SegmentedRegressor(1, degree=2), frame, group="g", target="y")
    display = SeriesDisplay.from_table(table, group="g")
    x, y = display.lines[0].reshape(-1, 2).T
    truth = np.where(x < 4, x * (4 - x), 2 * (x - 4) * (9 - x))
    assert_allclose(y, truth, atol=1e-6)


def test_long_titles_of_panels_do_not_overlap():
    names = [f"patient with number {k:04d} of the second cohort" for k in range(3)]
    display = SeriesDisplay(
        names=names, lines=[[[[0, 0], [1, 1]]]] * 3, intervals=[np.empty((0, 3))] * 3
    ).plot()
    display.figure_.canvas.draw()
    boxes = [panel.title.get_window_extent() for panel in display.axes_[0]]
    assert boxes[0].x1 < boxes[1].x0
    assert boxes[1].x1 < boxes[2].x0


def test_a_line_has_no_breakpoints_in_its_legend():
    x = np.arange(20.0)[:, None]
    display = SegmentsDisplay.from_estimator(SegmentedRegressor(0).fit(x, x[:, 0]), x)
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == ["Fit", "95 % confidence band"]


def test_the_other_display_of_breakpoints_is_named():
    x, y = np.arange(20.0)[:, None], np.arange(20.0)
    broken, shallow = SegmentedRegressor(0).fit(x, y), ShallowReLURegressor().fit(x, y)
    with pytest.raises(ValueError, match=r"SegmentsDisplay draws a SegmentedRegr"):
        BreakpointDisplay.from_estimator(broken, x)
    with pytest.raises(ValueError, match=r"BreakpointDisplay draws a ShallowReLU"):
        SegmentsDisplay.from_estimator(shallow, x)


def test_series_and_columns_must_be_there():
    with pytest.raises(ValueError, match=r"lacks the columns \['start', "):
        SeriesDisplay.from_table(pd.DataFrame({"g": ["a"], "slope": [1.0]}), group="g")
    frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0), "g": "a"})
    table = fit_groups(SegmentedRegressor(0), frame, group="g", target="y")
    with pytest.raises(ValueError, match="group='q' is not a column"):
        SeriesDisplay.from_table(table, group="q")
    with pytest.raises(ValueError, match=r"not \['b'\]"):
        SeriesDisplay.from_table(table, group="g", series=["b"])
    with pytest.raises(ValueError, match=r"target=None is not .* data\. Samples need"):
        SeriesDisplay.from_table(table, frame, group="g", feature="x")
