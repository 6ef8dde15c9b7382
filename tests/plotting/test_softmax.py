import copy
import json
import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from sklearn.base import BaseEstimator
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.plotting import (
    AccuracyTimeDisplay,
    CurvatureTraceDisplay,
    DispersionDisplay,
    RetainedDecreaseDisplay,
    StepTimeDisplay,
)


@pytest.fixture(autouse=True)
def _no_figure_left():
    plt.close("all")
    yield
    plt.close("all")


def steps(n_classes, **seconds):
    methods = {
        name: {"summary": {"seconds_per_step": {"median": value}}}
        for name, value in seconds.items()
    }
    return {"classes": n_classes, "methods": methods}


def curves(accuracy, **more):
    """A method as ``fgn_heads`` writes it."""
    return {
        "curves": {
            "seconds": [0.5, 1.0, 1.5],
            "accuracy_mean": accuracy,
            "accuracy_std": [0.01, 0.02, 0.04],
            "cross_entropy_mean": [3.0, 2.5, 2.25],
        },
        **more,
    }


MECHANISM = {
    "problems": {  # sizes in the order of their names, not of the numbers
        "steps_16": steps(16, adam=0.25, fgn=0.5, sgn=None, mine=1.0),
        "steps_2": steps(2, adam=0.125, fgn=0.25, sgn=2.0, mine=1.0),
        "traces": {
            "dispersion": [0.0, 0.5, 0.875],
            "retained": [0.5, 0.375, 0.25],
            "dropped": [0.0, 0.25, 0.4375],
            "full": [0.5, 0.625, 0.6875],
        },
        "decrease": {
            "dispersion": [0.0, 0.5, 0.875],
            "fraction": {"1": [1.0, 0.9, 0.95], "0.1": [1.0, 0.7, 0.8]},
        },
    }
}
HEADS = {
    "problems": {
        "cars_like": {
            "methods": {
                "adam": curves([0.25, 0.375, None]),
                "sgn": curves([0.25, 0.4, 0.43]),
                "fgn": curves([0.3, 0.42, 0.44]),
                "lbfgs": {},
            }
        }
    }
}
BENCHMARKS = {
    AccuracyTimeDisplay: HEADS,
    CurvatureTraceDisplay: MECHANISM,
    RetainedDecreaseDisplay: MECHANISM,
    StepTimeDisplay: MECHANISM,
}


class KnownProbabilities(BaseEstimator):
    """A classifier whose X holds the logarithms of the probabilities."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_log_proba(self, X):
        return X


def known(classes):
    return KnownProbabilities().fit(None, classes)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    _, first = np.unique(X, axis=0, return_index=True)
    return X[first], y[first]


def fitted_head(X, y):
    head = FGNSoftmaxHead(solver="adam", max_iter=1)  # the quickest to compile
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return head.fit(X, y)


@pytest.fixture(scope="module")
def head(iris):
    return fitted_head(*iris)


def draw(display, head, iris):
    if display is DispersionDisplay:
        return lambda **kwargs: display.from_estimator(head, *iris, **kwargs)
    return lambda **kwargs: display.from_benchmark(BENCHMARKS[display], **kwargs)


def points(line):
    return line.get_xydata().T.tolist()


def legend(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


# -- what all of them have in common --------------------------------------------------

DISPLAYS = [DispersionDisplay, *BENCHMARKS]


@pytest.mark.parametrize("display", DISPLAYS)
def test_draws_on_given_axes(display, head, iris):
    _, (left, right) = plt.subplots(1, 2)
    drawn = draw(display, head, iris)(ax=right)
    assert drawn.ax_ is right
    assert drawn.figure_ is right.figure
    assert not left.has_data()
    assert plt.get_fignums() == [1]
    drawn.figure_.canvas.draw()


@pytest.mark.parametrize("display", DISPLAYS)
def test_makes_one_figure_and_plot_returns_self(display, head, iris):
    drawn = draw(display, head, iris)()
    assert plt.get_fignums() == [drawn.figure_.number]
    assert drawn.plot(ax=drawn.ax_) is drawn
    assert plt.get_fignums() == [drawn.figure_.number]


@pytest.mark.parametrize("display", DISPLAYS)
def test_takes_matplotlib_arguments(display, head, iris):
    drawn = draw(display, head, iris)(linewidth=3, color="black")
    first = drawn.ax_.lines[0]
    assert (first.get_linewidth(), first.get_color()) == (3, "black")


@pytest.mark.parametrize("display", DISPLAYS)
def test_without_matplotlib(display, head, iris, monkeypatch):
    drawn = draw(display, head, iris)()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=rf"{display.__name__}.from_\w+ requires"):
        draw(display, head, iris)()
    with pytest.raises(ImportError, match=f"{display.__name__}.plot requires"):
        drawn.plot()


@pytest.mark.parametrize("display", BENCHMARKS)
def test_result_may_be_a_file(display, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(BENCHMARKS[display]))
    drawn = display.from_benchmark(BENCHMARKS[display])
    for result in (path, str(path)):
        again = display.from_benchmark(result)
        for line, other in zip(drawn.ax_.lines, again.ax_.lines, strict=True):
            np.testing.assert_array_equal(line.get_xydata(), other.get_xydata())


@pytest.mark.parametrize("display", BENCHMARKS)
@pytest.mark.parametrize("result", [3, {"methods": {}}, [MECHANISM]])
def test_something_else_than_a_result(display, result):
    with pytest.raises(ValueError, match="result must be what a benchmark returns"):
        display.from_benchmark(result)
    assert plt.get_fignums() == []


@pytest.mark.parametrize("display", BENCHMARKS)
def test_result_of_another_experiment(display):
    with pytest.raises(ValueError, match="result has no problem"):
        display.from_benchmark({"problems": {"friedman1": {}}})
    assert plt.get_fignums() == []


@pytest.mark.parametrize("display", [AccuracyTimeDisplay, StepTimeDisplay])
def test_unknown_method(display):
    with pytest.raises(ValueError, match=r"methods: .* no method 'lm'; it has"):
        display.from_benchmark(BENCHMARKS[display], methods=["adam", "lm"])
    assert plt.get_fignums() == []


# -- DispersionDisplay ----------------------------------------------------------------


def test_dispersion_of_known_probabilities():
    p = [
        [0.7, 0.1, 0.1, 0.1],  # of class a: three alike, 1 - 1/3
        [0.5, 0.25, 0.25, 0.0],  # of class a: two alike, 1 - 1/2
        [0.5, 0.25, 0.25, 0.0],  # of class b: shares 2/3 and 1/3
        [0.6, 0.4, 0.0, 0.0],  # of class d: shares 0.6 and 0.4
    ]
    with np.errstate(divide="ignore"):
        log_p = np.log(p)
    model = known(["a", "b", "c", "d"])
    display = DispersionDisplay.from_estimator(model, log_p, ["a", "a", "b", "d"])
    assert display.classes.tolist() == ["a", "b", "d"]  # nothing of class c
    expected = [(2 / 3 + 1 / 2) / 2, 4 / 9, 0.48]
    np.testing.assert_allclose(display.dispersion, expected, rtol=1e-14)
    # Sorted, and the labels with them.
    x, y = display.points_.get_data()
    np.testing.assert_array_equal(x, display.dispersion[[1, 2, 0]])
    assert y.tolist() == display.ax_.get_yticks().tolist() == [1, 2, 3]
    labels = [text.get_text() for text in display.ax_.get_yticklabels()]
    assert labels == ["b", "d", "a"]
    assert display.training_mean_ is None
    assert legend(display) == ["Mean of a class"]


def test_dispersion_of_a_certain_prediction():
    # The probability of an error is far below rounding; in the second row it is zero.
    log_p = np.array([[0.0, -800.0, -800.0], [0.0, -np.inf, -np.inf]])
    display = DispersionDisplay.from_estimator(known([0, 1, 2]), log_p, [0, 0])
    np.testing.assert_allclose(display.dispersion, [0.5], rtol=1e-14)


def test_training_mean_is_that_of_the_head(head, iris):
    X, y = iris
    display = DispersionDisplay.from_estimator(head, X, y)
    assert set(display.training_mean_.get_xdata()) == {head.competitor_dispersion_}
    assert legend(display) == ["Mean of a class", "Training mean"]
    mean = display.dispersion @ np.bincount(y) / len(y)
    assert mean == pytest.approx(head.competitor_dispersion_, rel=1e-10)


def test_pipelines_have_a_dispersion_too(iris):
    X, y = iris
    scaler = StandardScaler().fit(X)
    head = fitted_head(scaler.transform(X), y)
    whole = DispersionDisplay.from_estimator(make_pipeline(scaler, head), X, y)
    parts = DispersionDisplay.from_estimator(head, scaler.transform(X), y)
    np.testing.assert_array_equal(whole.dispersion, parts.dispersion)
    assert whole.training_mean == head.competitor_dispersion_


def test_many_classes_are_numbered():
    n = 40
    log_p = np.log(np.random.default_rng(0).dirichlet(np.ones(n), size=n))
    display = DispersionDisplay.from_estimator(known(range(n)), log_p, np.arange(n))
    assert np.all(np.diff(display.points_.get_xdata()) >= 0)
    assert display.points_.get_ydata().tolist() == list(range(1, n + 1))
    assert display.ax_.get_ylabel() == "Class, by dispersion"


def test_data_that_do_not_fit(head, iris):
    X, y = iris
    with pytest.raises(ValueError, match=r"y holds labels .* \[7\]"):
        DispersionDisplay.from_estimator(head, X, np.where(y == 2, 7, y))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        DispersionDisplay.from_estimator(head, X, y[:-1])
    with pytest.raises(ValueError, match="LinearRegression has no attribute classes_"):
        DispersionDisplay.from_estimator(LinearRegression().fit(X, y), X, y)
    with pytest.raises(NotFittedError):
        DispersionDisplay.from_estimator(FGNSoftmaxHead(), X, y)
    assert plt.get_fignums() == []


# -- the displays of benchmarks -------------------------------------------------------


def test_step_times_are_the_medians():
    display = StepTimeDisplay.from_benchmark(MECHANISM)
    sgn, fgn, adam = display.lines_
    assert points(adam) == [[2, 16], [0.125, 0.25]]
    assert points(fgn) == [[2, 16], [0.25, 0.5]]
    np.testing.assert_array_equal(sgn.get_ydata(), [2, np.nan])
    assert legend(display) == ["SGN", "FGN", "Adam"]
    assert display.ax_.get_xscale() == display.ax_.get_yscale() == "log"


def test_methods_keep_their_colours():
    chosen = StepTimeDisplay.from_benchmark(MECHANISM, methods=["mine", "fgn"])
    assert legend(chosen) == ["mine", "FGN"]
    mine, fgn = (to_rgba(line.get_color()) for line in chosen.lines_)
    others = StepTimeDisplay.from_benchmark(MECHANISM).lines_
    assert fgn == to_rgba(others[1].get_color())
    assert mine not in [to_rgba(line.get_color()) for line in others]


def test_traces_and_their_gap():
    display = CurvatureTraceDisplay.from_benchmark(MECHANISM)
    traces = MECHANISM["problems"]["traces"]
    assert points(display.full_) == [traces["dispersion"], traces["full"]]
    assert points(display.retained_) == [traces["dispersion"], traces["retained"]]
    (outline,) = display.gap_.get_paths()
    corners = {tuple(corner) for corner in outline.vertices}
    for values in (traces["full"], traces["retained"]):
        assert set(zip(traces["dispersion"], values, strict=True)) <= corners
    assert legend(display) == ["Full (SGN)", "Retained (FGN)", "Dropped"]


def test_decreases_by_damping():
    display = RetainedDecreaseDisplay.from_benchmark(MECHANISM)
    decrease = MECHANISM["problems"]["decrease"]
    for line, (scale, values) in zip(
        display.lines_, decrease["fraction"].items(), strict=True
    ):
        assert points(line) == [decrease["dispersion"], values]
        assert line.get_label() == scale
    assert display.ax_.get_legend().get_title().get_text() == "Relative damping"


def test_accuracies_with_a_standard_deviation_to_both_sides():
    display = AccuracyTimeDisplay.from_benchmark(HEADS)
    fgn, _, adam = display.lines_
    assert points(fgn) == [[0.5, 1.0, 1.5], [0.3, 0.42, 0.44]]
    np.testing.assert_array_equal(adam.get_ydata(), [0.25, 0.375, np.nan])
    (outline,) = display.bands_[0].get_paths()
    corners = {tuple(corner) for corner in outline.vertices}
    for x, mean, std in zip(*points(fgn), [0.01, 0.02, 0.04], strict=True):
        assert {(x, mean - std), (x, mean + std)} <= corners
    assert legend(display) == ["FGN", "SGN", "Adam"]
    display.figure_.canvas.draw()
    assert all(t.get_text().endswith("%") for t in display.ax_.get_yticklabels())


def test_accuracies_of_another_problem():
    result = copy.deepcopy(HEADS)
    result["problems"]["mnist"] = result["problems"].pop("cars_like")
    display = AccuracyTimeDisplay.from_benchmark(result, problem="mnist")
    assert len(display.lines_) == 3
    with pytest.raises(ValueError, match=r"no problem 'cars_like'.*\['mnist'\]"):
        AccuracyTimeDisplay.from_benchmark(result)
    with pytest.raises(ValueError, match="no curves of 'lbfgs' in problem='mnist'"):
        AccuracyTimeDisplay.from_benchmark(result, problem="mnist", methods=["lbfgs"])
