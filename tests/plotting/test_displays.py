"""What all displays have in common."""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline

from sklearn_gn import (
    FGNSoftmaxHead,
    PINNSolver,
    SegmentedRegressor,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
    fit_groups,
    plotting,
)
from sklearn_gn.pde import Problem
from sklearn_gn.plotting import (
    BreakpointDisplay,
    ConvergenceDisplay,
    DispersionDisplay,
    FeatureDisplay,
    GramSpectrumDisplay,
    RelevanceDisplay,
    SegmentsDisplay,
    SelectionPathDisplay,
    SeriesDisplay,
    SolutionDisplay,
    SurrogateDisplay,
)

DISPLAYS = [getattr(plotting, name) for name in plotting.__all__]


@pytest.fixture(scope="module")
def segments(data_1d):
    return SegmentedRegressor().fit(*data_1d)


@pytest.fixture(scope="module")
def series(data_1d):
    """The fits of three series, and their data."""
    X, y = data_1d
    data = pd.DataFrame({"x": X[:, 0], "y": y, "g": np.arange(len(y)) % 3})
    words = {"group": "g", "target": "y"}
    return fit_groups(SegmentedRegressor(1), data, **words), data, words


@pytest.fixture
def draw(request):
    """Function that draws a display of its kind of model."""
    get = request.getfixturevalue

    def draw(display, **kwargs):
        if display is BreakpointDisplay:
            arguments = get("model_1d"), *get("data_1d")
        elif display is DispersionDisplay:
            arguments = get("head"), *get("iris")
        elif display is FeatureDisplay:
            network = VarProNetClassifier(
                hidden_layer_sizes=(4, 2), solver="adam", alpha=1e-3, random_state=0
            )
            arguments = network, *get("rings")
            kwargs |= {"iterations": (0, 1)}
        elif display is RelevanceDisplay:
            arguments = get("model_1d"), get("data_1d")[0]
        elif display in (SegmentsDisplay, SelectionPathDisplay):
            data = get("data_1d") if display is SegmentsDisplay else ()
            arguments = get("segments"), *data
        elif display is SeriesDisplay:
            table, data, words = get("series")
            return display.from_table(table, data, **words, feature="x", **kwargs)
        elif display is SolutionDisplay:
            arguments = (get("plane"),)
            kwargs |= {"n_points": 6}
        elif display is SurrogateDisplay:
            arguments = LinearRegression().fit(*get("decays")), *get("decays")
        else:
            arguments = (get("model_1d"),)
        return display.from_estimator(*arguments, **kwargs)

    return draw


@pytest.mark.parametrize("display", DISPLAYS)
def test_draws_on_given_axes_with_matplotlib_arguments(display, draw):
    _, (left, right) = plt.subplots(1, 2, layout="constrained")
    drawn = draw(display, ax=right, alpha=0.5, zorder=7)
    assert drawn.figure_ is right.figure
    assert not left.has_data()
    assert plt.get_fignums() == [1]
    assert drawn.ax_ in right.figure.axes
    drawn.figure_.canvas.draw()
    # Beside the other axes, not over them.
    assert drawn.ax_.get_position().x0 > left.get_position().x1
    first = {
        BreakpointDisplay: lambda d: d.curve_,
        ConvergenceDisplay: lambda d: d.lines_[0],
        DispersionDisplay: lambda d: d.points_,
        FeatureDisplay: lambda d: d.points_[0],
        GramSpectrumDisplay: lambda d: d.lines_[0],
        RelevanceDisplay: lambda d: d.bars_[0][0],
        SegmentsDisplay: lambda d: d.line_,
        SelectionPathDisplay: lambda d: d.line_,
        SeriesDisplay: lambda d: d.lines_[0],
        SolutionDisplay: lambda d: d.images_[0],
        SurrogateDisplay: lambda d: d.predicted_[0],
    }[display](drawn)
    assert (first.get_alpha(), first.get_zorder()) == (0.5, 7)


@pytest.mark.parametrize("display", DISPLAYS)
def test_makes_one_figure_and_needs_matplotlib(display, draw, monkeypatch):
    drawn = draw(display)
    assert plt.get_fignums() == [drawn.figure_.number]
    drawn.figure_.canvas.draw()
    axes = getattr(drawn, "axes_", drawn.ax_)
    assert drawn.plot(ax=axes) is drawn
    assert drawn.ax_ is (axes if axes is drawn.ax_ else axes[0, 0])
    assert plt.get_fignums() == [drawn.figure_.number]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for call in (lambda: draw(display), drawn.plot):
        with pytest.raises(ImportError, match=f"{display.__name__} requires"):
            call()


def test_unfitted_estimators(data_1d, iris, decays, plane_problem):
    arguments = {
        BreakpointDisplay: (ShallowReLURegressor(n_neurons=20, alpha=0.0), data_1d[0]),
        ConvergenceDisplay: (ShallowReLURegressor(n_neurons=20, alpha=0.0),),
        DispersionDisplay: (FGNSoftmaxHead(), *iris),
        GramSpectrumDisplay: (ShallowReLURegressor(n_neurons=20, alpha=0.0),),
        SolutionDisplay: (PINNSolver(Problem(**plane_problem)),),
        SurrogateDisplay: (VarProNetRegressor(), *decays),
    }
    for display, words in arguments.items():
        with pytest.raises(NotFittedError):
            display.from_estimator(*words)
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    "display",
    [BreakpointDisplay, ConvergenceDisplay, DispersionDisplay, GramSpectrumDisplay],
)
def test_estimator_without_the_attribute(display, data_1d):
    X, y = data_1d
    more = {BreakpointDisplay: (X,), DispersionDisplay: (X, y)}.get(display, ())
    with pytest.raises(ValueError, match=r"LinearRegression has no attribute \w+_"):
        display.from_estimator(LinearRegression().fit(X, y), *more)
    assert plt.get_fignums() == []


def test_pipeline_is_told_to_give_its_last_step(model_1d):
    with pytest.raises(ValueError, match="Give the last step of the pipeline"):
        ConvergenceDisplay.from_estimator(make_pipeline(model_1d))


@pytest.mark.parametrize("display", [FeatureDisplay, SurrogateDisplay])
def test_axes_that_cannot_be_divided(display, draw):
    figure = plt.figure()
    with pytest.raises(ValueError, match=r"made by plt\.subplots"):
        draw(display, ax=figure.add_axes((0, 0, 1, 1)))
    with pytest.raises(ValueError, match=r"ax has 7 Axes, there are 1 x \d panels"):
        draw(display, ax=plt.subplots(1, 7)[1])
