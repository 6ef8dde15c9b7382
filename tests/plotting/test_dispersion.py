import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn.plotting import DispersionDisplay


class KnownProbabilities(BaseEstimator):
    """A classifier whose X holds the logarithms of the probabilities."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_log_proba(self, X):
        return X


def known(classes):
    return KnownProbabilities().fit(None, classes)


def legend(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


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
    np.testing.assert_allclose(display.dispersion, expected, rtol=1e-12)
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
    np.testing.assert_allclose(display.dispersion, [0.5], rtol=1e-12)


def test_training_mean_is_that_of_the_head(head, iris):
    X, y = iris
    display = DispersionDisplay.from_estimator(head, X, y)
    assert set(display.training_mean_.get_xdata()) == {head.competitor_dispersion_}
    assert legend(display) == ["Mean of a class", "Training mean"]
    mean = display.dispersion @ np.bincount(y) / len(y)
    assert mean == pytest.approx(head.competitor_dispersion_, rel=1e-10)


def test_pipelines_have_a_dispersion_too(head, iris):
    X, y = iris
    scaler = StandardScaler().fit(X)
    whole = DispersionDisplay.from_estimator(make_pipeline(scaler, head), X, y)
    parts = DispersionDisplay.from_estimator(head, scaler.transform(X), y)
    np.testing.assert_allclose(whole.dispersion, parts.dispersion, rtol=1e-10)
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
    assert plt.get_fignums() == []
