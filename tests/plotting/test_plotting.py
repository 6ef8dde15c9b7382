import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.plotting import (
    BreakpointDisplay,
    ConvergenceDisplay,
    GramSpectrumDisplay,
)
from sklearn_gn.solvers import JointGN

DISPLAYS = [BreakpointDisplay, ConvergenceDisplay, GramSpectrumDisplay]


@pytest.fixture(autouse=True)
def _no_figure_left():
    plt.close("all")
    yield
    plt.close("all")


def regressor(n_neurons=3):
    solver = JointGN(relocations=2)
    return ShallowReLURegressor(n_neurons, solver=solver, random_state=0)


@pytest.fixture(scope="module")
def data_1d():
    X = np.linspace(-2, 3, 40)[:, None]
    return X, np.abs(X[:, 0] - 0.5) + np.sin(X[:, 0])


@pytest.fixture(scope="module")
def model_1d(data_1d):
    X, y = data_1d
    return regressor().fit(X, y, X_val=X[::3], y_val=y[::3] + 0.1)


@pytest.fixture(scope="module")
def data_2d():
    X = np.random.default_rng(0).uniform((-1, 0), (1, 1.5), (60, 2))
    return X, np.abs(X[:, 0] + X[:, 1] - 0.5)


@pytest.fixture(scope="module")
def model_2d(data_2d):
    return regressor().fit(*data_2d)


def from_estimator(display, model, X):
    """The three displays differ only in whether they need X."""
    arguments = (X,) if display is BreakpointDisplay else ()
    return lambda **kwargs: display.from_estimator(model, *arguments, **kwargs)


# -- what all displays have in common -------------------------------------------------


@pytest.mark.parametrize("display", DISPLAYS)
def test_draws_on_given_axes(display, model_1d, data_1d):
    _, (left, right) = plt.subplots(1, 2)
    drawn = from_estimator(display, model_1d, data_1d[0])(ax=right)
    assert drawn.ax_ is right
    assert drawn.figure_ is right.figure
    assert not left.has_data()
    assert plt.get_fignums() == [1]


@pytest.mark.parametrize("display", DISPLAYS)
def test_makes_one_figure_and_plot_returns_self(display, model_1d, data_1d):
    drawn = from_estimator(display, model_1d, data_1d[0])()
    assert plt.get_fignums() == [drawn.figure_.number]
    assert drawn.plot(ax=drawn.ax_) is drawn
    assert plt.get_fignums() == [drawn.figure_.number]


@pytest.mark.parametrize("display", DISPLAYS)
def test_pictures_render(display, model_1d, model_2d, data_1d, data_2d):
    for model, (X, _) in ((model_1d, data_1d), (model_2d, data_2d)):
        from_estimator(display, model, X)().figure_.canvas.draw()


@pytest.mark.parametrize("display", DISPLAYS)
def test_unfitted_estimator(display, data_1d):
    with pytest.raises(NotFittedError):
        from_estimator(display, regressor(), data_1d[0])()
    assert plt.get_fignums() == []


@pytest.mark.parametrize("display", DISPLAYS)
def test_estimator_without_the_attribute(display, data_1d):
    X, y = data_1d
    with pytest.raises(ValueError, match=r"LinearRegression has no attribute \w+_"):
        from_estimator(display, LinearRegression().fit(X, y), X)()
    assert plt.get_fignums() == []


def test_pipeline_is_told_to_give_its_last_step(data_1d):
    pipeline = make_pipeline(StandardScaler(), regressor()).fit(*data_1d)
    with pytest.raises(ValueError, match="Give the last step of the pipeline"):
        ConvergenceDisplay.from_estimator(pipeline)


@pytest.mark.parametrize("display", DISPLAYS)
def test_without_matplotlib(display, model_1d, data_1d, monkeypatch):
    drawn = from_estimator(display, model_1d, data_1d[0])()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    name = display.__name__
    with pytest.raises(ImportError, match=f"{name}.from_estimator requires matplotlib"):
        from_estimator(display, model_1d, data_1d[0])()
    with pytest.raises(ImportError, match=f"{name}.plot requires matplotlib"):
        drawn.plot()


def test_import_leaves_matplotlib_alone():
    code = "import sys, sklearn_gn.plotting; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- ConvergenceDisplay ---------------------------------------------------------------


@pytest.mark.parametrize("x", ["iteration", "time", "inner_iterations"])
def test_curves_are_the_log(model_1d, x):
    log = model_1d.convergence_log_
    display = ConvergenceDisplay.from_estimator(model_1d, x=x)
    position = np.cumsum(log[x]) if x == "inner_iterations" else log[x]
    training, validation = display.lines_
    np.testing.assert_array_equal(training.get_xydata().T, [position, log["loss"]])
    np.testing.assert_array_equal(
        validation.get_xydata().T, [position, log["val_loss"]]
    )
    best = np.argmin(log["val_loss"])
    np.testing.assert_array_equal(
        display.lowest_.get_xydata(), [[position[best], log["val_loss"][best]]]
    )
    assert display.ax_.get_yscale() == "log"


def test_lowest_loss_is_marked_without_validation_data(model_2d):
    log = model_2d.convergence_log_
    display = ConvergenceDisplay.from_estimator(model_2d)
    assert len(display.lines_) == 1
    assert display.lowest_.get_ydata() == [log["loss"].min()]


def test_overlay_of_several_fits(model_1d, model_2d):
    first = ConvergenceDisplay.from_estimator(model_1d, name="line")
    second = ConvergenceDisplay.from_estimator(model_2d, name="plane", ax=first.ax_)
    labels = [text.get_text() for text in first.ax_.get_legend().get_texts()]
    assert labels == ["line (training)", "line (validation)", "plane", "Lowest"]
    training, validation = (to_rgba(line.get_color()) for line in first.lines_)
    assert training == validation
    assert training != to_rgba(second.lines_[0].get_color())


def test_curves_take_matplotlib_arguments(model_1d):
    display = ConvergenceDisplay.from_estimator(model_1d, color="black", linewidth=3)
    assert {line.get_color() for line in display.lines_} == {"black"}
    assert {line.get_linewidth() for line in display.lines_} == {3}


def test_losses_of_zero_stay_off_the_logarithmic_axis():
    log = {
        "iteration": np.array([1, 2, 3]),
        "loss": np.array([1.0, 0.1, 0.0]),
        "val_loss": np.full(3, np.nan),
    }
    display = ConvergenceDisplay(convergence_log=log).plot()
    display.figure_.canvas.draw()
    assert 0.05 < display.ax_.get_ylim()[0] < 0.1
    log["loss"] = np.zeros(3)
    display = ConvergenceDisplay(convergence_log=log).plot()
    assert display.ax_.get_yscale() == "linear"


def test_empty_log():
    log = dict.fromkeys(("iteration", "loss", "val_loss"), np.array([]))
    display = ConvergenceDisplay(convergence_log=log).plot()
    display.figure_.canvas.draw()
    assert len(display.lowest_.get_xdata()) == 0


def test_unknown_x(model_1d):
    with pytest.raises(ValueError, match=r"x must be one of .*'time'.*, got 'epoch'"):
        ConvergenceDisplay.from_estimator(model_1d, x="epoch")
    assert plt.get_fignums() == []


def test_relative_error_is_a_curve_of_its_own():
    log = {
        "iteration": np.array([1, 2, 3]),
        "time": np.array([0.5, 0.75, 1.5]),
        "loss": np.ones(3),
        "val_loss": np.ones(3),
        "relative_error": np.array([0.5, 0.01, 0.02]),
    }
    display = ConvergenceDisplay(convergence_log=log)
    display.plot(x="time", y="relative_error")
    (line,) = display.lines_
    np.testing.assert_array_equal(
        line.get_xydata(), [[0.5, 0.5], [0.75, 0.01], [1.5, 0.02]]
    )
    np.testing.assert_array_equal(display.lowest_.get_xydata(), [[0.75, 0.01]])
    assert display.ax_.get_ylabel() == "Relative error"
    assert display.ax_.get_xlabel() == "Time (s)"
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == ["Relative error", "Lowest"]


def test_unknown_y(model_1d):
    with pytest.raises(ValueError, match=r"y must be one of .*'loss'.*, got 'error'"):
        ConvergenceDisplay.from_estimator(model_1d, y="error")
    with pytest.raises(ValueError, match="y='relative_error' is not in the log"):
        ConvergenceDisplay.from_estimator(model_1d, y="relative_error")
    assert plt.get_fignums() == []


# -- BreakpointDisplay ----------------------------------------------------------------


def test_curve_is_the_prediction_and_has_its_kinks(model_1d, data_1d):
    X, y = data_1d
    display = BreakpointDisplay.from_estimator(model_1d, X, y, grid_resolution=20)
    x, prediction = display.curve_.get_data()
    np.testing.assert_array_equal(prediction, model_1d.predict(x[:, None]))
    assert (x[0], x[-1]) == (X.min(), X.max())
    breakpoints = model_1d.breakpoints_
    inside = breakpoints[(breakpoints > X.min()) & (breakpoints < X.max())]
    assert len(inside)
    np.testing.assert_allclose(display.breaks, inside, rtol=0, atol=1e-12)
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


def test_surface_is_the_prediction(model_2d, data_2d):
    X, y = data_2d
    display = BreakpointDisplay.from_estimator(model_2d, X, y, grid_resolution=30)
    xx0, xx1 = np.meshgrid(*display.grid)
    drawn = display.surface_.get_array()
    prediction = model_2d.predict(np.column_stack([xx0.ravel(), xx1.ravel()]))
    np.testing.assert_array_equal(drawn.ravel(), prediction)
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
    """An estimator whose hyperplanes are given."""

    def __init__(self, hyperplanes=None):
        super().__init__()
        self.hyperplanes = hyperplanes

    def fit(self, X, y):
        self.hyperplanes_ = np.array(self.hyperplanes, dtype=float)
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


def test_target_selects_one_of_several(data_1d):
    X, y = data_1d
    model = regressor().fit(X, np.column_stack([y, -2 * y]))
    targets = pd.DataFrame({"flow": y, "level": -2 * y})
    display = BreakpointDisplay.from_estimator(model, X, targets, target=1)
    prediction = model.predict(display.grid[0][:, None])[:, 1]
    np.testing.assert_array_equal(display.curve_.get_ydata(), prediction)
    np.testing.assert_array_equal(display.points_.get_offsets()[:, 1], -2 * y)
    assert display.ax_.get_ylabel() == "level"
    with pytest.raises(ValueError, match="target=2 is not among the 2 targets"):
        BreakpointDisplay.from_estimator(model, X, target=2)


def test_names_of_a_data_frame_are_the_labels(data_2d):
    X, y = data_2d
    frame = pd.DataFrame(X, columns=["length", "width"])
    model = regressor().fit(frame, y)
    display = BreakpointDisplay.from_estimator(model, frame, pd.Series(y, name="load"))
    assert display.ax_.get_xlabel() == "length"
    assert display.ax_.get_ylabel() == "width"
    assert display.surface_.colorbar.ax.get_ylabel() == "load"


def test_three_features():
    X = np.random.default_rng(0).uniform(size=(30, 3))
    model = regressor().fit(X, X[:, 0])
    with pytest.raises(ValueError, match="one or two features, this one has 3"):
        BreakpointDisplay.from_estimator(model, X)
    assert plt.get_fignums() == []


def test_data_that_do_not_fit(model_1d, data_1d, data_2d):
    with pytest.raises(ValueError, match="X has 2 features"):
        BreakpointDisplay.from_estimator(model_1d, data_2d[0])
    X, y = data_1d
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        BreakpointDisplay.from_estimator(model_1d, X, y[:-1])
    assert plt.get_fignums() == []


# -- GramSpectrumDisplay --------------------------------------------------------------


def test_spectra_are_those_of_the_estimator(model_1d):
    display = GramSpectrumDisplay.from_estimator(model_1d)
    gram, mass = display.lines_
    np.testing.assert_array_equal(gram.get_ydata(), model_1d.gram_spectrum_)
    np.testing.assert_array_equal(mass.get_ydata(), model_1d.mass_spectrum_)
    np.testing.assert_array_equal(
        gram.get_xdata(), 1 + np.arange(len(model_1d.gram_spectrum_))
    )
    assert display.ax_.get_yscale() == "log"


def test_truncation_is_drawn_where_something_is_below():
    spectrum = np.array([2.0, 1.0, 1e-7])
    display = GramSpectrumDisplay(gram_spectrum=spectrum, truncation=1e-6).plot()
    (line,) = display.truncation_lines_
    np.testing.assert_array_equal(line.get_ydata(), [2e-6, 2e-6])
    display = GramSpectrumDisplay(gram_spectrum=spectrum, truncation=1e-8).plot()
    assert display.truncation_lines_ == []


@pytest.mark.parametrize(
    ("rank_tol", "dtype", "expected"),
    [(1e-3, "float64", 1e-3), (1e-12, "float32", np.finfo("float32").eps)],
)
def test_truncation_is_that_of_the_solver(data_1d, rank_tol, dtype, expected):
    model = regressor().set_params(solver__rank_tol=rank_tol, dtype=dtype)
    model.fit(*data_1d)
    display = GramSpectrumDisplay.from_estimator(model)
    assert display.truncation == pytest.approx(float(expected) ** 2, rel=1e-6)


def test_zero_eigenvalues_are_counted():
    display = GramSpectrumDisplay(
        gram_spectrum=np.array([1.0, 0.1, 0.0, 0.0]), mass_spectrum=np.zeros(2)
    ).plot()
    display.figure_.canvas.draw()
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == [
        "Gauss-Newton matrix (2 of 4 are zero)",
        "Mass matrix (2 of 2 are zero)",
    ]
    assert 0.01 < display.ax_.get_ylim()[0] < 0.1


def test_constant_target_leaves_an_empty_spectrum():
    X = np.arange(10.0)[:, None]
    model = regressor().fit(X, np.ones(10))
    display = GramSpectrumDisplay.from_estimator(model)
    display.figure_.canvas.draw()
    assert len(display.lines_[0].get_xdata()) == len(model.gram_spectrum_)
