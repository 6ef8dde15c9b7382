import copy
import json
import sys
import warnings
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import ShallowReLURegressor, VarProNetClassifier, VarProNetRegressor
from sklearn_gn.callbacks import ValidationMonitor
from sklearn_gn.core.backend import scope
from sklearn_gn.core.solver import Rows
from sklearn_gn.networks import MLP, NeuralODE
from sklearn_gn.plotting import (
    FeatureDisplay,
    SurrogateDisplay,
    TaylorDisplay,
    WorkDisplay,
)
from sklearn_gn.plotting._taylor import inexact_inner, taylor_errors
from sklearn_gn.varpro.inner import solve_inner
from sklearn_gn.varpro.problem import Model, Penalties


@pytest.fixture(autouse=True)
def _no_figure_left():
    plt.close("all")
    yield
    plt.close("all")


def quietly(model, *data, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(*data, **more)


def rings(n_classes, n=120):
    X = np.random.default_rng(0).uniform(-1, 1, (n, 2))
    radius = np.hypot(*X.T)
    return X, np.digitize(radius, np.quantile(radius, np.arange(1, n_classes) / 3))


def classifier(**words):
    words = {"hidden_layer_sizes": (4, 2), "random_state": 0, **words}
    return VarProNetClassifier(**words)


@pytest.fixture(scope="module")
def plane():
    return rings(3)


@pytest.fixture(scope="module")
def decays():
    """Six curves over time, with two parameters."""
    X = np.random.default_rng(0).uniform(1, 2, (60, 2))
    rates = X[:, 1:, None] * np.arange(1, 4)[:, None] * np.linspace(0, 1, 4)
    return X, (X[:, :1, None] * np.exp(-rates)).reshape(60, 12)


@pytest.fixture(scope="module")
def refined(decays):
    """A fit over two levels, with validation data."""
    X, Y = decays
    network = NeuralODE(width=3, n_cells=1, n_levels=2)
    model = VarProNetRegressor(network, max_iter=6, tol=0, random_state=0)
    return quietly(model, X[:40], Y[:40], X_val=X[40:], y_val=Y[40:])


class KnownPredictions(BaseEstimator):
    """A regressor whose X holds the predictions."""

    def fit(self, X, y):
        return self

    def predict(self, X):
        return X


def method(work_units, train, **more):
    return {
        "work_units": work_units,
        "seconds": [w / 4 for w in work_units],
        "train": train,
        **more,
    }


BENCHMARK = {
    "problems": {
        "cdr": {
            "curves": {
                "gnvpro": method(
                    [10, 20, 30, 40],
                    [1.0, 0.5, 0.25, 0.125],
                    validation=[2.0, 1.0, None, 0.5],
                    level=[0, 1, 1, 2],
                ),
                "adam": method([10, 20, 30], [1.0, 0.75, 0.5]),
                "mine": method([10, 40], [1.0, 0.5], validation=[None, None]),
            }
        },
        "memory": {"methods": {}},
    }
}
EXPANSION = {
    "steps": [1.0, 0.1, 0.01],
    "zeroth": {"0.1": [1.0, 0.1, 0.01], "1e-10": [1.0, 0.1, 0.01]},
    "first": {"0.1": [1.0, 0.02, 0.001], "1e-10": [1.0, 0.01, np.nan]},
}


def draw(display, plane, decays):
    if display is FeatureDisplay:
        return lambda **kwargs: display.from_estimator(
            classifier(), *plane, iterations=(0, 1), **kwargs
        )
    if display is WorkDisplay:
        return lambda **kwargs: display.from_benchmark(BENCHMARK, "cdr", **kwargs)
    if display is TaylorDisplay:
        return display(**EXPANSION).plot
    _, Y = decays
    return lambda **kwargs: display.from_estimator(
        KnownPredictions(), 1.01 * Y, Y, **kwargs
    )


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


# -- what all of them have in common --------------------------------------------------

DISPLAYS = [FeatureDisplay, SurrogateDisplay, TaylorDisplay, WorkDisplay]


@pytest.mark.parametrize("display", DISPLAYS)
def test_draws_on_given_axes(display, plane, decays):
    _, (left, right) = plt.subplots(1, 2, layout="constrained")
    drawn = draw(display, plane, decays)(ax=right)
    assert drawn.figure_ is right.figure
    assert not left.has_data()
    assert plt.get_fignums() == [1]
    assert drawn.ax_ in right.figure.axes
    drawn.figure_.canvas.draw()
    # Beside the other axes, not over them.
    assert drawn.ax_.get_position().x0 > left.get_position().x1


@pytest.mark.parametrize("display", DISPLAYS)
def test_makes_one_figure_and_plot_returns_self(display, plane, decays):
    drawn = draw(display, plane, decays)()
    assert plt.get_fignums() == [drawn.figure_.number]
    drawn.figure_.canvas.draw()
    assert drawn.plot(ax=getattr(drawn, "axes_", drawn.ax_)) is drawn
    assert plt.get_fignums() == [drawn.figure_.number]


@pytest.mark.parametrize("display", DISPLAYS)
def test_takes_matplotlib_arguments(display, plane, decays):
    drawn = draw(display, plane, decays)(alpha=0.5, zorder=7)
    artist = {
        FeatureDisplay: lambda d: d.points_,
        SurrogateDisplay: lambda d: d.predicted_,
        TaylorDisplay: lambda d: d.first_,
        WorkDisplay: lambda d: d.lines_,
    }[display](drawn)[0]
    assert (artist.get_alpha(), artist.get_zorder()) == (0.5, 7)


@pytest.mark.parametrize("display", DISPLAYS)
def test_without_matplotlib(display, plane, decays, monkeypatch):
    drawn = draw(display, plane, decays)()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    create = draw(display, plane, decays)
    if display is TaylorDisplay:
        create = partial(display.from_network, MLP((3,)), *plane)
    with pytest.raises(ImportError, match=rf"{display.__name__}.from_\w+ requires"):
        create()
    with pytest.raises(ImportError, match=f"{display.__name__}.plot requires"):
        drawn.plot()


@pytest.mark.parametrize("display", [FeatureDisplay, SurrogateDisplay])
def test_axes_that_cannot_be_divided(display, plane, decays):
    figure = plt.figure()
    with pytest.raises(ValueError, match=r"made by plt\.subplots"):
        draw(display, plane, decays)(ax=figure.add_axes((0, 0, 1, 1)))
    with pytest.raises(ValueError, match=r"ax has 7 Axes, there are 1 x \d panels"):
        draw(display, plane, decays)(ax=plt.subplots(1, 7)[1])


# -- FeatureDisplay -------------------------------------------------------------------


def test_panels_are_the_iterates_of_the_fit(plane):
    X, y = plane
    display = FeatureDisplay.from_estimator(classifier(), X, y, iterations=(3, 1))
    assert display.iterations == [1, 3]
    for k, n_iter in enumerate(display.iterations):
        fitted = quietly(classifier(max_iter=n_iter), X, y)
        np.testing.assert_array_equal(display.features[k], fitted.transform(X))
        np.testing.assert_array_equal(display.output[k][:-1].T, fitted.output_coef_)
        np.testing.assert_array_equal(display.output[k][-1], fitted.output_intercept_)
        np.testing.assert_array_equal(
            display.points_[k].get_offsets(), fitted.transform(X)
        )
        assert display.accuracy_[k] == fitted.score(X, y)
        title = display.axes_[0, k].get_title()
        assert title == f"Iteration {n_iter}\naccuracy {fitted.score(X, y):.1%}"


def test_before_the_first_iteration_the_classifier_is_the_best(plane):
    X, y = plane
    display = FeatureDisplay.from_estimator(classifier(), X, y, iterations=[0])
    (z,), (output,) = display.features, display.output
    ones = np.ones((len(z), 1))
    peer = LogisticRegression(
        C=1 / (1e-3 * len(y)), fit_intercept=False, tol=1e-10, max_iter=1000
    ).fit(np.hstack([z, ones]), y)
    np.testing.assert_allclose(
        np.hstack([z, ones]) @ (output - output.mean(axis=1, keepdims=True)),
        peer.decision_function(np.hstack([z, ones])),
        atol=1e-4,
    )


@pytest.mark.parametrize("n_classes", [2, 3])
def test_regions_are_the_predictions(n_classes):
    X, y = rings(n_classes)
    names = np.array(["a", "b", "c"])[y]
    model = quietly(classifier(max_iter=4), X, names)
    display = FeatureDisplay.from_models({4: model}, X, names)
    z, predicted = model.transform(X), model.predict(X)
    for name, region in zip("abc", display.regions_[0].get_paths(), strict=False):
        np.testing.assert_array_equal(region.contains_points(z), predicted == name)
    assert legend(display.axes_[0, -1]) == model.classes_.tolist()
    colors = display.points_[0].get_facecolors()
    assert len(np.unique(colors[names == "a"], axis=0)) == 1


def test_fit_ends_after_the_last_panel(plane):
    X, y = plane
    monitor = ValidationMonitor(X, y)
    model = classifier().set_callbacks(monitor)
    FeatureDisplay.from_estimator(model, X, y, iterations=(0, 2))
    assert monitor.history_["step"] == []
    assert not hasattr(model, "classes_")


def test_panels_beyond_the_end_are_the_end(plane):
    X, y = plane
    model = classifier(max_iter=2)
    display = FeatureDisplay.from_estimator(model, X, y, iterations=(0, 1, 10, 20))
    assert display.iterations == [0, 1, 2]
    fitted = quietly(clone(model), X, y)
    np.testing.assert_array_equal(display.features[-1], fitted.transform(X))


def test_models_seen_by_a_callback(plane):
    X, y = plane

    class Keep:
        def __init__(self):
            self.models = {}

        def setup(self, estimator, context):
            pass

        def teardown(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context):
            pass

        def on_fit_task_end(self, estimator, context, *, fitted_estimator):
            if context.task_name == "iteration":
                self.models[context.task_id + 1] = fitted_estimator
            return context.task_id == 1

    keep = Keep()
    classifier().set_callbacks(keep).fit(X, y)
    recorded = FeatureDisplay.from_models(keep.models, X, y, name="GNvpro")
    again = FeatureDisplay.from_estimator(classifier(), X, y, iterations=(1, 2))
    for one, other in zip(recorded.features, again.features, strict=True):
        np.testing.assert_array_equal(one, other)
    assert recorded.ax_.get_ylabel() == "GNvpro\nSecond feature"


def test_features_that_cannot_be_drawn(plane):
    X, y = plane
    wide = classifier(hidden_layer_sizes=(3,))
    with pytest.raises(ValueError, match="last hidden layer of this network has 3"):
        FeatureDisplay.from_estimator(wide, X, y)
    with pytest.raises(ValueError, match="iterations must be non-negative"):
        FeatureDisplay.from_estimator(classifier(), X, y, iterations=(-1, 2))
    with pytest.raises(ValueError, match="iterations must be non-negative"):
        FeatureDisplay.from_estimator(classifier(), X, y, iterations=())
    pipeline = make_pipeline(StandardScaler(), classifier())
    with pytest.raises(ValueError, match="got Pipeline; of a pipeline give the last"):
        FeatureDisplay.from_estimator(pipeline, X, y)
    with pytest.raises(ValueError, match="models is empty"):
        FeatureDisplay.from_models({}, X, y)
    with pytest.raises(ValueError, match="not a fitted VarProNetClassifier"):
        FeatureDisplay.from_models({0: classifier()}, X, y)
    fitted = quietly(classifier(max_iter=1), X, y)
    with pytest.raises(ValueError, match=r"y holds labels .* \[7\]"):
        FeatureDisplay.from_models({1: fitted}, X, np.where(y == 2, 7, y))
    assert plt.get_fignums() == []


def test_many_classes_have_colours_and_no_legend(plane):
    z = np.random.default_rng(0).standard_normal((30, 2))
    output = np.random.default_rng(1).standard_normal((3, 30))
    display = FeatureDisplay(
        features=[z],
        output=[output],
        code=np.arange(30),
        classes=np.arange(30),
        iterations=[0],
    ).plot()
    assert display.ax_.get_legend() is None
    assert len(np.unique(display.points_[0].get_facecolors(), axis=0)) == 30


# -- WorkDisplay ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "column"), [("work_units", "work_units"), ("seconds", "time")]
)
def test_curves_are_those_of_the_log(refined, x, column):
    log = refined.convergence_log_
    display = WorkDisplay.from_estimators({"GNvpro": refined}, x=x)
    (line,), (dashed,) = display.lines_, display.validation_lines_
    np.testing.assert_array_equal(line.get_xydata().T, [log[column], log["loss"]])
    np.testing.assert_array_equal(dashed.get_xydata().T, [log[column], log["val_loss"]])
    assert to_rgba(line.get_color()) == to_rgba(dashed.get_color())
    assert legend(display.ax_) == ["GNvpro", "Training", "Validation", "Refinement"]
    ends = [line.get_xdata()[0] for line in display.levels_]
    assert ends == [log[column][log["level"] == 0].max()]
    assert display.ax_.get_yscale() == "log"


def test_common_refinements_are_drawn_once(refined):
    both = WorkDisplay.from_estimators({"one": refined, "two": refined})
    assert [line.get_color() for line in both.levels_] == ["black"]
    single = WorkDisplay.from_estimators({"one": refined})
    colors = {to_rgba(line.get_color()) for line in single.levels_}
    assert colors == {to_rgba(single.lines_[0].get_color())}


def test_refinements_at_different_places_are_marked_on_the_curves():
    curves = {
        "one": method([1, 2, 3], [4.0, 2.0, 1.0], level=[0, 1, 1]),
        "two": method([2, 4, 6], [5.0, 3.0, 2.0], level=[0, 1, 2]),
    }
    display = WorkDisplay(curves=curves).plot()
    assert [line.get_xydata().tolist() for line in display.levels_] == [
        [[1, 4]],
        [[2, 5], [4, 3]],
    ]
    for level, line in zip(display.levels_, display.lines_, strict=True):
        assert level.get_color() == line.get_color()
    assert legend(display.ax_) == ["one", "two", "Refinement"]


def test_legend_is_above_the_curves(refined):
    for yscale in ("log", "linear"):
        display = WorkDisplay.from_estimators({"GNvpro": refined}).plot(yscale=yscale)
        display.figure_.canvas.draw()
        box = display.ax_.get_legend().get_window_extent()
        for line in (*display.lines_, *display.validation_lines_):
            drawn = display.ax_.transData.transform(line.get_xydata())
            assert drawn[:, 1].max() < box.y0


def test_curves_of_a_benchmark(tmp_path):
    display = WorkDisplay.from_benchmark(BENCHMARK, "cdr")
    _, adam, _ = display.lines_
    assert adam.get_xydata().T.tolist() == [[10, 20, 30], [1, 0.75, 0.5]]
    (validation,) = display.validation_lines_  # the others have none
    np.testing.assert_array_equal(validation.get_ydata(), [2, 1, np.nan, 0.5])
    assert [line.get_xdata()[0] for line in display.levels_] == [10, 30]
    names = ["GNvpro", "Adam", "mine", "Training", "Validation", "Refinement"]
    assert legend(display.ax_) == names
    colors = {to_rgba(line.get_color()) for line in display.lines_}
    assert len(colors) == 3
    path = tmp_path / "result.json"
    path.write_text(json.dumps(BENCHMARK))
    chosen = WorkDisplay.from_benchmark(path, "cdr", methods=["adam"], x="seconds")
    assert legend(chosen.ax_) == ["Adam"]
    assert to_rgba(chosen.lines_[0].get_color()) == to_rgba(adam.get_color())
    assert chosen.lines_[0].get_xdata().tolist() == [2.5, 5, 7.5]
    assert chosen.ax_.get_xlabel() == "Time (s)"
    assert chosen.ax_.get_ylabel() == "Relative error"


def test_accuracies_of_methods_that_count_no_work():
    curves = copy.deepcopy(BENCHMARK["problems"]["cdr"]["curves"])
    del curves["mine"]["work_units"]
    result = {"problems": {"images": {"curves": curves}}}
    words = {"quantity": "Accuracy", "yscale": "linear"}
    display = WorkDisplay.from_benchmark(result, "images", **words)
    assert legend(display.ax_)[:2] == ["GNvpro", "Adam"]
    assert (display.ax_.get_ylabel(), display.ax_.get_yscale()) == (
        "Accuracy",
        "linear",
    )


def test_curves_that_are_not_there(plane, decays):
    with pytest.raises(ValueError, match="no problem 'dcr'"):
        WorkDisplay.from_benchmark(BENCHMARK, "dcr")
    with pytest.raises(ValueError, match=r"no curves of 'sgd' .*'adam'"):
        WorkDisplay.from_benchmark(BENCHMARK, "cdr", methods=["sgd"])
    with pytest.raises(ValueError, match="no curves in problem='memory'"):
        WorkDisplay.from_benchmark(BENCHMARK, "memory")
    with pytest.raises(ValueError, match="result must be what a benchmark returns"):
        WorkDisplay.from_benchmark({"methods": {}}, "cdr")
    with pytest.raises(ValueError, match=r"x must be one of .*, got 'iteration'"):
        WorkDisplay.from_benchmark(BENCHMARK, "cdr", x="iteration")
    result = copy.deepcopy(BENCHMARK)
    del result["problems"]["cdr"]["curves"]["adam"]["seconds"]
    with pytest.raises(ValueError, match="The curve of 'Adam' has no 'seconds'"):
        WorkDisplay.from_benchmark(result, "cdr", methods=["adam"], x="seconds")
    X, y = plane
    shallow = ShallowReLURegressor(n_neurons=2, random_state=0).fit(X, X[:, 0])
    with pytest.raises(ValueError, match=r"log of 'line', a Shallow.* no work units"):
        WorkDisplay.from_estimators({"line": shallow})
    with pytest.raises(ValueError, match="LinearRegression has no attribute conv"):
        WorkDisplay.from_estimators({"line": LinearRegression().fit(X, y)})
    with pytest.raises(NotFittedError):
        WorkDisplay.from_estimators({"net": VarProNetRegressor()})
    assert plt.get_fignums() == []


# -- SurrogateDisplay -----------------------------------------------------------------


def known_errors(n_samples=7, n_outputs=12):
    """Truth, and predictions of given relative errors."""
    Y = np.random.default_rng(0).uniform(1, 2, (n_samples, n_outputs))
    error = (1 + np.random.default_rng(1).permutation(n_samples)) / 64
    return Y, Y * (1 + error[:, None]), error


def test_samples_are_spread_over_the_errors():
    Y, P, error = known_errors()
    display = SurrogateDisplay.from_estimator(KnownPredictions(), P, Y)
    assert error[display.rows].tolist() == [1 / 64, 4 / 64, 7 / 64]
    np.testing.assert_allclose(display.error_, error[display.rows], rtol=1e-12)
    titles = [panel.get_title() for panel in display.axes_.flat]
    expected = [f"Sample {i}, error {100 * error[i]:.3g}%" for i in display.rows]
    assert titles == expected
    five = SurrogateDisplay.from_estimator(KnownPredictions(), P, Y, samples=20)
    np.testing.assert_array_equal(np.sort(five.rows), np.arange(7))
    chosen = SurrogateDisplay.from_estimator(KnownPredictions(), P, Y, samples=[4, 2])
    assert chosen.rows.tolist() == [4, 2]


def test_curves_are_truth_and_prediction():
    Y, P, _ = known_errors()
    time = np.linspace(0, 1, 4)
    display = SurrogateDisplay.from_estimator(
        KnownPredictions(),
        P,
        Y,
        samples=[5, 1],
        positions=time,
        position_name="Time (s)",
    )
    assert display.ax_.get_xlabel() == "Time (s)"
    assert display.axes_.shape == (1, 2)
    for lines, values in ((display.true_, Y), (display.predicted_, P)):
        drawn = np.array([line.get_ydata() for line in lines])
        np.testing.assert_array_equal(drawn, values[[5, 1]].reshape(6, 4))
        for line in lines:
            np.testing.assert_array_equal(line.get_xdata(), time)
    assert legend(display.ax_) == ["True", "Predicted"]
    for true, predicted in zip(display.true_, display.predicted_, strict=True):
        assert to_rgba(true.get_color()) == to_rgba(predicted.get_color())
    whole = SurrogateDisplay.from_estimator(KnownPredictions(), P, Y, samples=[0])
    assert whole.predicted_[0].get_xdata().tolist() == list(range(12))


def test_fields_are_truth_prediction_and_error():
    Y, P, _ = known_errors()
    display = SurrogateDisplay.from_estimator(
        KnownPredictions(), P, Y, samples=[5, 1], shape=(2, 3)
    )
    assert display.axes_.shape == (2, 3)
    for i, row in enumerate((5, 1)):
        for images, values in (
            (display.true_, Y),
            (display.predicted_, P),
            (display.errors_, P - Y),
        ):
            image = images[i].get_array()
            first, second = values[row].reshape(2, 2, 3)
            np.testing.assert_array_equal(image[:, :3], first)
            assert image[:, 3].mask.all()  # the gap
            np.testing.assert_array_equal(image[:, 4:], second)
        assert display.true_[i].norm is display.predicted_[i].norm
        low, high = display.errors_[i].get_clim()
        assert low == -high == -np.abs(P[row] - Y[row]).max()
    display.figure_.canvas.draw()


def test_logarithmic_fields_show_absolute_values():
    Y, P, _ = known_errors()
    display = SurrogateDisplay.from_estimator(
        KnownPredictions(), -P, -Y, samples=[5], shape=(3, 4), log=True
    )
    np.testing.assert_array_equal(display.true_[0].get_array(), Y[5].reshape(3, 4))
    for images in (display.true_, display.predicted_, display.errors_):
        np.testing.assert_allclose(
            images[0].get_clim(), [1e-4 * Y[5].max(), Y[5].max()]
        )
    display.figure_.canvas.draw()


def test_matrix_of_all_samples():
    Y, P, _ = known_errors()
    display = SurrogateDisplay.from_estimator(KnownPredictions(), P, Y, kind="matrix")
    assert display.axes_.shape == (1, 3)
    np.testing.assert_array_equal(display.true_[0].get_array(), Y.T)
    np.testing.assert_array_equal(display.errors_[0].get_array(), (P - Y).T)
    assert display.rows.tolist() == list(range(7))


def test_truth_of_zeros_and_exact_predictions():
    Y = np.zeros((3, 4))
    for words in ({}, {"shape": (2, 2)}, {"shape": (2, 2), "log": True}):
        display = SurrogateDisplay.from_estimator(KnownPredictions(), Y, Y, **words)
        assert display.error_.tolist() == [0, 0, 0]
        display.figure_.canvas.draw()


def test_surrogates_that_do_not_fit(decays):
    X, Y = decays
    model = KnownPredictions()
    with pytest.raises(ValueError, match="for a single one there is PredictionError"):
        SurrogateDisplay.from_estimator(model, X, Y[:, 0])
    with pytest.raises(ValueError, match="for a single one there is PredictionError"):
        SurrogateDisplay.from_estimator(model, X, Y[:, :1])
    with pytest.raises(ValueError, match="12 outputs are not a multiple of 5 pos"):
        SurrogateDisplay.from_estimator(model, Y, Y, positions=np.arange(5))
    with pytest.raises(ValueError, match=r"not a multiple .* shape=\(5, 2\)"):
        SurrogateDisplay.from_estimator(model, Y, Y, shape=(5, 2))
    with pytest.raises(ValueError, match="kind='fields' needs the shape"):
        SurrogateDisplay.from_estimator(model, Y, Y, kind="fields")
    with pytest.raises(ValueError, match=r"kind must be one of .*, got 'lines'"):
        SurrogateDisplay.from_estimator(model, Y, Y, kind="lines")
    with pytest.raises(ValueError, match=r"predictions have the shape \(60, 2\)"):
        SurrogateDisplay.from_estimator(model, X, Y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        SurrogateDisplay.from_estimator(model, Y[:5], Y)
    with pytest.raises(NotFittedError):
        SurrogateDisplay.from_estimator(VarProNetRegressor(), X, Y)
    assert plt.get_fignums() == []


def test_pipelines_are_drawn_too(refined, decays):
    X, Y = decays
    pipeline = make_pipeline(StandardScaler(), LinearRegression()).fit(X, Y)
    display = SurrogateDisplay.from_estimator(pipeline, X, Y, samples=[0])
    drawn = display.predicted_[0].get_ydata()
    np.testing.assert_allclose(drawn, pipeline.predict(X[:1])[0], rtol=1e-12)


# -- TaylorDisplay --------------------------------------------------------------------


def orders(errors, steps, low, high):
    """Observed order between two steps."""
    errors, inside = np.asarray(errors), (steps >= low) & (steps <= high)
    return np.polyfit(np.log(steps[inside]), np.log(errors[inside]), 1)[0]


@dataclass(frozen=True)
class Residual:
    """``u + tanh(K u)``, by the convention of Flax."""

    def init(self, key, x):
        d = x.shape[1]
        return {"weight": jax.random.normal(key, (d, d), x.dtype)}

    def apply(self, params, x):
        return x + jnp.tanh(x @ params["weight"])


@pytest.mark.parametrize("network", [Residual(), MLP((4,), "tanh")])
def test_orders_of_the_expansions(network, plane):
    steps = np.logspace(0, -8, 17)
    answer = taylor_errors(
        network,
        *plane,
        tolerances=(1e-2, 1e-10),
        steps=steps,
        rank=50,
        alpha=1e-5,
        alpha_output=1e-3,
        random_state=0,
    )
    loose, tight = answer["first"]
    assert (loose, tight) == ("0.01", "1e-10")
    assert answer["inner_gradient"][loose] <= 1e-2
    assert answer["inner_gradient"][tight] <= 1e-10
    for order, errors, low, high in (
        (1, answer["zeroth"][tight], 1e-6, 1e-2),
        (2, answer["first"][tight], 1e-4, 1e-2),
        (1, answer["first"][loose], 1e-8, 1e-6),
    ):
        assert orders(errors, steps, low, high) == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_tight_inner_solution_is_that_of_the_solver(n_classes):
    X, y = rings(n_classes)
    model = Model(MLP((3,), "tanh"), "cross_entropy")
    rows = Rows(X, np.eye(n_classes)[y], np.full(len(X), 1 / len(X)))
    theta = model.network.init(np.random.RandomState(0), 2)
    alpha = np.float64(1e-3)
    with scope("float64"):
        found, _ = jax.jit(inexact_inner, static_argnums=0)(
            model, theta, rows, alpha, np.float64(1e-12), np.int32(50)
        )
        start = np.zeros(found.shape)
        solved = jax.jit(solve_inner, static_argnums=0)(
            model, theta, rows, Penalties(alpha, alpha), start
        )
    np.testing.assert_allclose(found, solved.output, atol=1e-8)


def test_lines_and_slopes_of_an_expansion():
    display = TaylorDisplay(**EXPANSION).plot()
    loose, tight = display.first_
    assert loose.get_xydata().T.tolist() == [[1, 0.1, 0.01], [1, 0.02, 0.001]]
    np.testing.assert_array_equal(tight.get_ydata(), [1, 0.01, np.nan])
    assert [line.get_linestyle() for line in display.zeroth_] == ["--", "--"]
    linear, square = (line.get_ydata() for line in display.slopes_)
    np.testing.assert_allclose(linear[0] / linear[1], 10)
    np.testing.assert_allclose(square[0] / square[1], 100)
    assert legend(display.ax_) == ["0.1", "1e-10"]


def test_errors_of_a_network_are_drawn(plane):
    words = {"tolerances": (1e-1, 1e-8), "steps": [0.1, 0.01], "random_state": 0}
    display = TaylorDisplay.from_network(MLP((3,)), *plane, **words)
    again = TaylorDisplay.from_network(MLP((3,)), *plane, **words)
    assert list(display.first) == ["0.1", "1e-08"]
    assert display.first == again.first
    display.figure_.canvas.draw()
    with pytest.warns(ConvergenceWarning, match="not the tolerance 1e-08. Raise rank"):
        TaylorDisplay.from_network(MLP((3,)), *plane, **words, rank=1)
