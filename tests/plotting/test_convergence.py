import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba

from sklearn_gn import SegmentedRegressor
from sklearn_gn.plotting import ConvergenceDisplay


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
    assert display.ax_.get_ylabel() == "Loss"


def test_lowest_loss_is_marked_without_validation_data(model_2d):
    log = model_2d.convergence_log_
    display = ConvergenceDisplay.from_estimator(model_2d)
    assert len(display.lines_) == 1
    assert display.lowest_.get_ydata() == [log["loss"].min()]


def test_overlay_of_several_fits(model_1d, model_2d):
    first = ConvergenceDisplay.from_estimator(model_1d, name="line")
    second = ConvergenceDisplay.from_estimator(model_2d, name="plane", ax=first.ax_)
    labels = [text.get_text() for text in first.ax_.get_legend().get_texts()]
    assert labels == [
        "line (training)",
        "line (validation)",
        "plane",
        "Lowest (validation)",
        "Lowest",
    ]
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
    with pytest.raises(ValueError, match="x='work_units' is not in the log"):
        ConvergenceDisplay.from_estimator(model_1d, x="work_units")
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


@pytest.mark.parametrize("x", ["iteration", "time"])
def test_relative_error_over_the_log(plane, x):
    log = plane.convergence_log_
    display = ConvergenceDisplay.from_estimator(plane, x=x, y="relative_error")
    (line,) = display.lines_
    np.testing.assert_array_equal(line.get_xydata().T, [log[x], log["relative_error"]])
    assert display.lowest_.get_ydata() == [log["relative_error"].min()]
    assert display.ax_.get_ylabel() == "Relative error"


def test_work_and_refinements_are_those_of_the_log():
    log = _log(
        val_loss=np.array([4.0, 2.0, 1.5]),
        level=np.array([0, 0, 1]),
        work_units=np.array([1.0, 2.0, 4.0]),
    )
    display = ConvergenceDisplay(convergence_log=log).plot(x="work_units")
    last = 1
    for line, mark, column in zip(
        display.lines_, display.refinements_, ("loss", "val_loss"), strict=True
    ):
        points = np.column_stack([log["work_units"], log[column]])
        np.testing.assert_array_equal(line.get_xydata(), points)
        np.testing.assert_array_equal(mark.get_xydata(), points[[last]])
        assert mark.get_color() == line.get_color()
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels[-2:] == ["Refinement", "Lowest (validation)"]


def test_training_losses_of_different_windows_are_not_joined():
    log = {
        "iteration": np.arange(1, 6),
        "loss": np.array([1.0, 0.1, 2.0, 0.2, 3.0]),
        "val_loss": np.array([1.0, 0.5, 0.5, 0.2, 0.1]),
        "window_end": np.array([4.0, 4.0, 1.0, 1.0, 2.0]),
    }
    display = ConvergenceDisplay(convergence_log=log).plot()
    training, validation = display.lines_
    nan = np.nan
    expected = [1.0, 0.1, nan, 2.0, 0.2, nan, 3.0]
    np.testing.assert_array_equal(training.get_ydata(), expected)
    np.testing.assert_array_equal(validation.get_ydata(), log["val_loss"])
    assert [line.get_xdata()[0] for line in display.windows_] == [3, 5]
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == [
        "(training, this window)",
        "(validation, all windows)",
        "New window of time",
        "Lowest (validation)",
    ]


def _log(**columns):
    loss = np.array([3.0, 1.0, 2.0])
    empty, steps = np.full(3, np.nan), np.arange(1, 4)
    return {"iteration": steps, "loss": loss, "val_loss": empty, **columns}


@pytest.mark.parametrize(
    ("columns", "marked"),
    [
        ({"alpha": np.array([1.0, 1.0, 1.0])}, [1.0]),
        ({"alpha": np.array([1.0, 0.1, 0.1])}, None),
        ({"log_evidence": np.array([-9.0, -8.0, -7.0])}, None),
        ({"log_evidence": np.ones(3), "val_loss": np.array([3.0, 2, 0.5])}, [0.5]),
    ],
)
def test_losses_of_different_penalties_have_no_lowest(columns, marked):
    display = ConvergenceDisplay(convergence_log=_log(**columns)).plot()
    found = None if display.lowest_ is None else list(display.lowest_.get_ydata())
    assert found == marked


def test_labels_are_within_the_figure():
    log = _log(loss=np.array([1475.0, 1460.0, 1441.5]))
    display = ConvergenceDisplay(convergence_log=log).plot()
    display.figure_.canvas.draw()
    box = display.ax_.get_tightbbox()
    assert box.x0 >= 0
    assert box.y0 >= 0


def test_an_exact_fit_has_no_convergence():
    model = SegmentedRegressor(0).fit(np.arange(6.0)[:, None], np.arange(6.0))
    with pytest.raises(ValueError, match="draws fits in iterations"):
        ConvergenceDisplay.from_estimator(model)


def test_changes_of_the_penalty_are_marked():
    log = _log(alpha=np.array([1.0, 1.0, 0.1]))
    display = ConvergenceDisplay(convergence_log=log).plot()
    assert [line.get_xdata()[0] for line in display.penalties_] == [3]
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == ["Loss", "New penalty"]


@pytest.mark.parametrize(
    ("loss", "scale"), [([3.0, 1.0, 2.0], "linear"), ([10.0, 1.0, 2.0], "log")]
)
def test_narrow_ranges_and_counts_have_plain_labels(loss, scale):
    log = _log(loss=np.array(loss))
    display = ConvergenceDisplay(convergence_log=log).plot()
    assert display.ax_.get_yscale() == scale
    display.figure_.canvas.draw()
    assert all(tick == round(tick) for tick in display.ax_.get_xticks())


def test_a_logarithmic_axis_of_iterations_stays():
    _, ax = plt.subplots()
    ax.set_xscale("log")
    display = ConvergenceDisplay(convergence_log=_log()).plot(ax)
    assert display.ax_.get_xscale() == "log"
