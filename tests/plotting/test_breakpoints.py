import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.plotting import BreakpointDisplay


def test_curve_is_the_prediction_and_has_its_kinks(model_1d, data_1d):
    X, y = data_1d
    display = BreakpointDisplay.from_estimator(model_1d, X, y, grid_resolution=20)
    x, prediction = display.curve_.get_data()
    np.testing.assert_allclose(prediction, model_1d.predict(x[:, None]), rtol=1e-10)
    assert (x[0], x[-1]) == (X.min(), X.max())
    breakpoints = model_1d.breakpoints_
    inside = breakpoints[(breakpoints > X.min()) & (breakpoints < X.max())]
    assert len(inside)
    np.testing.assert_allclose(display.breaks, inside, rtol=1e-10)
    assert np.isin(display.breaks, x).all()


def test_breakpoints_and_samples_are_drawn(model_1d, data_1d):
    X, y = data_1d
    display = BreakpointDisplay.from_estimator(model_1d, X, y)
    lines = np.array(display.breaks_.get_segments())
    np.testing.assert_array_equal(lines[:, :, 0], np.stack([display.breaks] * 2, 1))
    np.testing.assert_array_equal(
        display.points_.get_offsets(), np.column_stack([X, y])
    )
    assert BreakpointDisplay.from_estimator(model_1d, X).points_ is None


def test_a_line_has_no_breakpoints_in_its_legend():
    x = np.linspace(0, 1, 40)[:, None]
    model = ShallowReLURegressor(random_state=0).fit(x, x[:, 0])
    display = BreakpointDisplay.from_estimator(model, x)
    assert not len(display.breaks)
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == ["Prediction"]


def test_a_plane_has_no_breaking_lines():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(60, 2))
    y = X @ [1.0, 2.0] + rng.standard_normal(60)
    model = ShallowReLURegressor(random_state=0).fit(X, y)
    assert not len(model.hyperplanes_)
    display = BreakpointDisplay.from_estimator(model, X, y, grid_resolution=5)
    assert not len(display.breaks)
    assert len(display.points_.get_offsets()) == 60


def test_surface_is_the_prediction(model_2d, data_2d):
    X, y = data_2d
    display = BreakpointDisplay.from_estimator(model_2d, X, y, grid_resolution=30)
    xx0, xx1 = np.meshgrid(*display.grid)
    drawn = display.surface_.get_array()
    prediction = model_2d.predict(np.column_stack([xx0.ravel(), xx1.ravel()]))
    np.testing.assert_allclose(drawn.ravel(), prediction, rtol=1e-10)
    # The cells fill the range of the samples.
    corners = display.surface_.get_coordinates()
    np.testing.assert_allclose(corners.min(axis=(0, 1)), X.min(axis=0), atol=1e-12)
    np.testing.assert_allclose(corners.max(axis=(0, 1)), X.max(axis=0), atol=1e-12)
    np.testing.assert_array_equal(display.points_.get_offsets(), X)
    np.testing.assert_array_equal(display.points_.get_array(), y)
    assert display.ax_.get_aspect() == 1


def test_breaking_lines_end_on_the_border_of_the_box(model_2d, data_2d):
    X, _ = data_2d
    display = BreakpointDisplay.from_estimator(model_2d, X)
    ends = np.array(display.breaks_.get_segments())
    np.testing.assert_array_equal(ends, display.breaks)
    low, high = X.min(axis=0), X.max(axis=0)
    on_border = np.isclose(ends, low) | np.isclose(ends, high)
    assert on_border.any(axis=2).all()
    inside_box = (ends > low - 1e-9) & (ends < high + 1e-9)
    assert inside_box.all()
    # Each lies on a hyperplane of the model.
    value = model_2d.hyperplanes_[:, 0] + ends @ model_2d.hyperplanes_[:, 1:].T
    assert (np.abs(value).max(axis=1).min(axis=1) < 1e-9).all()


class KnownHyperplanes(LinearRegression):
    """An estimator whose hyperplanes and output coefficients are given."""

    def __init__(self, hyperplanes=None, output_coef=None):
        super().__init__()
        self.hyperplanes = hyperplanes
        self.output_coef = output_coef

    def fit(self, X, y):
        self.hyperplanes_ = np.array(self.hyperplanes, dtype=float)
        ones = np.ones(len(self.hyperplanes))
        self.output_coef_ = ones if self.output_coef is None else self.output_coef
        return super().fit(X, y)


def test_clipping_of_known_lines():
    X = np.array([[0.0, 0.0], [2.0, 1.0]])
    model = KnownHyperplanes(
        [
            [-1, 1, 0],  # x0 = 1
            [-0.5, 0, 1],  # x1 = 0.5
            [0.5, 0, -1],  # the same, from the other side
            [0, 0.6, -0.8],  # through the corner (0, 0) with slope 3/4
            [-3, 1, 0],  # x0 = 3, outside
            [3, 0.6, 0.8],  # outside, oblique
        ]
    ).fit(X, [0, 1])
    segments = BreakpointDisplay.from_estimator(model, X).breaks
    ends = sorted(sorted(map(tuple, segment.round(12))) for segment in segments)
    assert ends == [
        [(0, 0), (round(4 / 3, 12), 1)],
        [(0, 0.5), (2, 0.5)],
        [(0, 0.5), (2, 0.5)],
        [(1, 0), (1, 1)],
    ]


def test_lines_where_the_slope_hardly_changes_are_faint():
    X, y = np.array([[0.0, 0.0], [2.0, 1.0]]), [[0, 0], [1, 1]]
    lines = [[-1, 1, 0], [-0.5, 0, 1], [-3, 1, 0], [-0.5, 1, 0]]  # the third is outside
    coef = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, -0.5, 0.5, 0.001]])
    model = KnownHyperplanes(lines, coef).fit(X, y)
    # A step along the first feature counts twice, since it is twice as long.
    for target, changes in [(0, [1, 0.5, 1]), (1, [1, 0.25, 0.001])]:
        expected = np.array(changes)
        display = BreakpointDisplay.from_estimator(model, X, target=target)
        np.testing.assert_allclose(display.changes, expected, rtol=1e-12)
        np.testing.assert_allclose(
            display.breaks_.get_alpha(), np.maximum(np.sqrt(expected), 0.15)
        )
    with pytest.raises(ValueError, match="target=2 is not among the 2 targets"):
        BreakpointDisplay.from_estimator(model, X, target=2)


def test_target_selects_one_of_several(data_1d):
    X, y = data_1d
    model = KnownHyperplanes([[-0.5, 1]]).fit(X, np.column_stack([y, -2 * y]))
    targets = pd.DataFrame({"flow": y, "level": -2 * y})
    display = BreakpointDisplay.from_estimator(model, X, targets, target=1)
    prediction = model.predict(display.grid[0][:, None])[:, 1]
    np.testing.assert_allclose(display.curve_.get_ydata(), prediction, rtol=1e-10)
    np.testing.assert_array_equal(display.points_.get_offsets()[:, 1], -2 * y)
    assert display.ax_.get_ylabel() == "level"
    with pytest.raises(ValueError, match=r"target=0\.5 is not among"):
        BreakpointDisplay.from_estimator(model, X, target=0.5)
    with pytest.raises(ValueError, match="target=2 is not among the 2 targets"):
        BreakpointDisplay.from_estimator(model, X, target=2)


def test_names_of_a_data_frame_are_the_labels(data_2d):
    X, y = data_2d
    frame = pd.DataFrame(X, columns=["length", "width"])
    model = KnownHyperplanes([[-0.5, 1, 1]]).fit(frame, y)
    display = BreakpointDisplay.from_estimator(model, frame, pd.Series(y, name="load"))
    assert display.ax_.get_xlabel() == "length"
    assert display.ax_.get_ylabel() == "width"
    assert display.surface_.colorbar.ax.get_ylabel() == "load"


def test_three_features():
    X = np.random.default_rng(0).uniform(size=(30, 3))
    model = KnownHyperplanes([[0, 1, 0, 0]]).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="one or two features, and this one has 3"):
        BreakpointDisplay.from_estimator(model, X)
    assert plt.get_fignums() == []


def test_data_that_do_not_fit(model_1d, data_1d, data_2d):
    with pytest.raises(ValueError, match="X has 2 features"):
        BreakpointDisplay.from_estimator(model_1d, data_2d[0])
    X, y = data_1d
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        BreakpointDisplay.from_estimator(model_1d, X, y[:-1])
    assert plt.get_fignums() == []
