import matplotlib.pyplot as plt
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import VarProNetClassifier
from sklearn_gn.callbacks import LogWriter
from sklearn_gn.plotting import FeatureDisplay

# The fits end by their number of iterations.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def classifier(**words):
    words = {"hidden_layer_sizes": (4, 2), "alpha": 1e-3, "random_state": 0, **words}
    return VarProNetClassifier(**words)


def test_panels_are_the_iterates_of_the_fit(rings):
    X, y = rings
    display = FeatureDisplay.from_estimator(classifier(), X, y, iterations=(3, 1))
    assert display.iterations == [1, 3]
    for k, n_iter in enumerate(display.iterations):
        fitted = classifier(max_iter=n_iter).fit(X, y)
        z, output = fitted.transform(X), display.output[k]
        assert_allclose(display.features[k], z, rtol=1e-8, atol=1e-8)
        assert_allclose(output[:-1].T, fitted.output_coef_, rtol=1e-8)
        assert_allclose(output[-1], fitted.output_intercept_, rtol=1e-8)
        assert_array_equal(display.points_[k].get_offsets(), display.features[k])
        assert display.accuracy_[k] == fitted.score(X, y)
        title = display.axes_[0, k].get_title()
        assert title == f"Iteration {n_iter}\naccuracy {fitted.score(X, y):.1%}"


def test_before_the_first_iteration_the_classifier_is_the_best(rings):
    X, y = rings
    display = FeatureDisplay.from_estimator(classifier(), X, y, iterations=[0])
    (z,), (output,) = display.features, display.output
    ones = np.ones((len(z), 1))
    peer = LogisticRegression(
        C=1 / (1e-3 * len(y)), fit_intercept=False, tol=1e-10, max_iter=1000
    ).fit(np.hstack([z, ones]), y)
    assert_allclose(
        np.hstack([z, ones]) @ (output - output.mean(axis=1, keepdims=True)),
        peer.decision_function(np.hstack([z, ones])),
        atol=1e-4,
    )


@pytest.mark.parametrize("n_classes", [3, 2])
@pytest.mark.repeats
def test_regions_are_the_predictions(rings, n_classes):
    X, y = rings
    names = np.array(["a", "b", "c"])[np.minimum(y, n_classes - 1)]
    model = classifier(max_iter=4).fit(X, names)
    display = FeatureDisplay.from_estimator(model, X, names, iterations=(20,))
    z, predicted = model.transform(X), model.predict(X)
    for name, region in zip("abc", display.regions_[0].get_paths(), strict=False):
        assert_array_equal(region.contains_points(z), predicted == name)
    assert [
        t.get_text() for t in display.axes_[0, -1].get_legend().get_texts()
    ] == model.classes_.tolist()
    colors = display.points_[0].get_facecolors()
    assert len(np.unique(colors[names == "a"], axis=0)) == 1


def test_fit_ends_after_the_last_panel(rings):
    X, y = rings
    rows = []
    model = classifier().set_callbacks(LogWriter(rows.append))
    FeatureDisplay.from_estimator(model, X, y, iterations=(0, 2))
    assert rows == []
    assert not hasattr(model, "classes_")


def test_panels_beyond_the_end_are_the_end(rings):
    X, y = rings
    model = classifier(max_iter=2)
    display = FeatureDisplay.from_estimator(model, X, y, iterations=(0, 1, 10, 20))
    assert display.iterations == [0, 1, 2]
    fitted = clone(model).fit(X, y)
    assert_allclose(display.features[-1], fitted.transform(X), rtol=1e-8, atol=1e-8)


def test_features_that_cannot_be_drawn(rings):
    X, y = rings
    wide = classifier(hidden_layer_sizes=(3,), solver="adam")
    with pytest.raises(ValueError, match="last hidden layer of this network has 3"):
        FeatureDisplay.from_estimator(wide, X, y)
    with pytest.raises(ValueError, match="iterations must be non-negative"):
        FeatureDisplay.from_estimator(classifier(), X, y, iterations=(-1, 2))
    with pytest.raises(ValueError, match="iterations must be non-negative"):
        FeatureDisplay.from_estimator(classifier(), X, y, iterations=())
    pipeline = make_pipeline(StandardScaler(), classifier())
    with pytest.raises(ValueError, match=r"got Pipeline\. Give the last step"):
        FeatureDisplay.from_estimator(pipeline, X, y)
    assert plt.get_fignums() == []


def test_many_classes_have_colours_and_no_legend(rings):
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


def test_a_committee_says_how_to_get_one_network(rings):
    X, y = rings
    with pytest.raises(ValueError, match="hidden_layer_sizes to widths"):
        FeatureDisplay.from_estimator(VarProNetClassifier(random_state=0), X, y)
    FeatureDisplay.from_estimator(classifier(), X, y, iterations=(0, 1))
