import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.plotting import RelevanceDisplay


@pytest.fixture(scope="module")
def data():
    X = np.random.default_rng(0).uniform(-1, 1, (400, 3))
    return X, 3 * X[:, 0] + np.abs(X[:, 1])


def test_relevance_of_a_line_is_that_of_its_slope(data):
    X = data[0]
    model = LinearRegression().fit(X, X @ [3.0, -2.0, 0.0])
    display = RelevanceDisplay.from_estimator(model, X)
    other = np.random.RandomState(0).permutation(len(X))
    spread = np.sqrt(np.mean((X - X[other]) ** 2, axis=0) / 2)
    np.testing.assert_allclose(
        display.total, spread * [3, 2, 0], rtol=1e-10, atol=1e-10
    )
    assert display.linear is None
    (bars,) = display.bars_
    np.testing.assert_allclose([b.get_width() for b in bars], display.total)


def test_parts_are_those_of_the_function(data):
    X, y = data
    model = ShallowReLURegressor(random_state=0).fit(X, y)
    display = RelevanceDisplay.from_estimator(
        model, X, feature_names=["line", "kink", "none"]
    )
    exchanged = X[np.random.RandomState(0).permutation(len(X))]
    kink = np.abs(exchanged[:, 1]) - np.abs(X[:, 1])
    expected = np.sqrt(np.mean(kink**2) / 2)
    assert display.total[1] == pytest.approx(expected, rel=1e-6)
    assert display.total[0] == pytest.approx(3 * X[:, 0].std(), rel=0.1)
    np.testing.assert_allclose(display.total[2], 0, atol=1e-6)
    np.testing.assert_array_equal(display.points_.get_xdata(), display.total)
    names = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert names == ["line", "kink", "none"]


def test_frames_keep_their_names(data):
    X, y = data
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = LinearRegression().fit(frame, y)
    display = RelevanceDisplay.from_estimator(model, frame)
    names = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert names[0] == "a"


def test_target_is_chosen(data):
    X, y = data
    model = LinearRegression().fit(X, np.c_[y, X[:, 2]])
    display = RelevanceDisplay.from_estimator(model, X, target=1)
    assert np.argmax(display.total) == 2
    names = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert names[0] == "x2"
    with pytest.raises(ValueError, match="target=2 is not among the 2 targets"):
        RelevanceDisplay.from_estimator(model, X, target=2)


def test_models_of_polars_frames_get_polars_frames(data):
    polars = pytest.importorskip("polars")
    X = polars.DataFrame(dict(zip("abc", data[0].T, strict=True)))
    model = ShallowReLURegressor(2, random_state=0).fit(X, data[1])
    RelevanceDisplay.from_estimator(model, X)  # without a warning about names


def test_legend_is_above_the_bars_and_inside_the_figure(data):
    X = pd.DataFrame(data[0], columns=[f"a rather long name {k}" for k in range(3)])
    model = ShallowReLURegressor(random_state=0).fit(X, data[1])
    display = RelevanceDisplay.from_estimator(model, X)
    figure = display.figure_
    figure.canvas.draw()
    box = display.ax_.get_legend().get_window_extent()
    assert box.y0 >= display.ax_.get_window_extent().y1 - 1
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1


def test_a_term_that_is_zero_has_no_bar():
    x = np.random.default_rng(0).uniform(-1, 1, (60, 1))
    model = ShallowReLURegressor(1, alpha=0, random_state=0).fit(x, np.abs(x[:, 0]))
    assert not np.any(model.linear_coef_)
    display = RelevanceDisplay.from_estimator(model, x)
    assert len(display.bars_) == 1
    assert display.linear is None


def test_a_part_of_many_features_says_so():
    display = RelevanceDisplay(total=np.arange(30.0)).plot()
    assert display.ax_.get_ylabel() == "The 20 most relevant of 30 features"
    assert RelevanceDisplay(total=np.arange(20.0)).plot().ax_.get_ylabel() == ""


def test_labels_of_classes_have_no_size(data):
    model = LogisticRegression().fit(data[0], data[1] > 0)
    with pytest.raises(ValueError, match="permutation_importance"):
        RelevanceDisplay.from_estimator(model, data[0])


def test_marks_are_seen_on_a_dark_ground():
    parts = {"linear": np.ones(3), "hidden": np.ones(3)}
    with plt.style.context("dark_background"):
        display = RelevanceDisplay(total=np.arange(3.0), **parts).plot()
    assert display.points_.get_color() == "white"
    assert (
        RelevanceDisplay(total=np.arange(3.0), **parts).plot().points_.get_color()
        == "black"
    )
