import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from sklearn.base import BaseEstimator
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn.plotting import SurrogateDisplay


class KnownPredictions(BaseEstimator):
    """A regressor whose X holds the predictions."""

    def fit(self, X, y):
        return self

    def predict(self, X):
        return X


def legend(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


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


def test_few_outputs_have_a_panel_each():
    Y, P, _ = known_errors(n_outputs=5)
    names = ["a", "b", "c", "d", "e"]
    frame = pd.DataFrame(Y, columns=names)
    display = SurrogateDisplay.from_estimator(KnownPredictions(), P, frame)
    assert display.axes_.shape == (2, 3)
    for k, points in enumerate(display.predicted_):
        np.testing.assert_array_equal(points.get_offsets(), np.c_[Y[:, k], P[:, k]])
        panel = display.axes_.flat[k]
        r2 = 1 - np.sum((P - Y)[:, k] ** 2) / np.sum((Y[:, k] - Y[:, k].mean()) ** 2)
        assert panel.get_title() == f"{names[k]}, R2 {r2:.4g}"
        assert (panel.get_xlabel(), panel.get_ylabel()) == ("True", "Predicted")
        x, y = display.true_[k].get_data()
        np.testing.assert_array_equal(x, y)
    ten = SurrogateDisplay.from_estimator(
        KnownPredictions(), *known_errors(9, 10)[1::-1]
    )
    assert len(ten.true_) == 3  # curves of three samples
    of_time = {"positions": np.arange(5.0), "samples": [1]}
    curve = SurrogateDisplay.from_estimator(KnownPredictions(), P, Y, **of_time)
    np.testing.assert_array_equal(curve.true_[0].get_ydata(), Y[1])


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
    assert legend(display) == ["True", "Predicted"]
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
    field = {"shape": (2, 2), "samples": [0]}
    for words in ({}, field, {**field, "log": True}):
        display = SurrogateDisplay.from_estimator(KnownPredictions(), Y, Y, **words)
        assert set(display.error_) == {0}
        display.figure_.draw_without_rendering()


def test_surrogates_that_do_not_fit(decays):
    X, Y = decays
    model = KnownPredictions()
    with pytest.raises(ValueError, match="For a single one use PredictionError"):
        SurrogateDisplay.from_estimator(model, X, Y[:, 0])
    with pytest.raises(ValueError, match="For a single one use PredictionError"):
        SurrogateDisplay.from_estimator(model, X, Y[:, :1])
    classifier = DummyClassifier().fit(X, np.full(len(X), "a"))
    with pytest.raises(ValueError, match="draws regressors, got a classifier"):
        SurrogateDisplay.from_estimator(classifier, X, np.full(len(X), "a"))
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
    assert plt.get_fignums() == []


def test_pipelines_are_drawn_too(decays):
    X, Y = decays
    pipeline = make_pipeline(StandardScaler(), LinearRegression()).fit(X, Y)
    display = SurrogateDisplay.from_estimator(pipeline, X, Y, samples=[0])
    drawn = display.predicted_[0].get_ydata()
    np.testing.assert_allclose(drawn, pipeline.predict(X[:1])[0], rtol=1e-10)


def test_long_names_of_outputs_do_not_overlap():
    names = [
        "mean wall shear stress at the outlet [Pa]",
        "pressure drop, inlet to outlet",
    ]
    true = np.arange(8.0).reshape(4, 2)
    display = SurrogateDisplay(
        true=true, predicted=true, rows=np.arange(4), output_names=names
    ).plot()
    display.figure_.canvas.draw()
    first, second = (panel.title.get_window_extent() for panel in display.axes_[0])
    assert first.x1 < second.x0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"samples": 0}, "samples must be a number of samples, or a list .* got 0"),
        ({"samples": 2.5}, "list of rows from 0 to 6"),
        ({"samples": [7]}, r"rows from 0 to 6, got \[7\]"),
        ({"samples": []}, "samples must be a number"),
        ({"samples": [True] * 7}, "samples must be a number"),
        ({"positions": []}, "not a multiple of 0 positions"),
        ({"shape": (12,)}, r"shape must be height and width .* shape=\(12,\)"),
        ({"shape": (0, 3)}, "shape must be height and width"),
    ],
)
def test_samples_and_grids_that_are_none_are_named(words, message):
    Y, P, _ = known_errors()
    with pytest.raises(ValueError, match=message):
        SurrogateDisplay.from_estimator(KnownPredictions(), P, Y, **words)
