"""Committees that find the size of their networks."""

import copy

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer

from sklearn_gn import VarProNetRegressor
from sklearn_gn.callbacks import Checkpoint


def networks(**words):
    """Networks that may grow, without the infinitely wide one."""
    return VarProNetRegressor(**{"activation": "tanh", **words})


def bump(n, d, noise=0.0, seed=0):
    """Rows of a smooth function, the first n with noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n + 500, d))
    y = np.exp(-4 * np.sum(X**2, axis=1) / d)
    target = y.copy()
    target[:n] += noise * y.std() * rng.normal(size=n)
    return X[:n], target[:n], X[n:], y[n:]


def error(model, X, y):
    """Root mean square error over the standard deviation."""
    return np.sqrt(1 - model.score(X, y))


def widths(model):
    """Hidden layers of each member."""
    return [tuple(len(b) for b in one.intercepts_) for one in model.estimators_]


@pytest.fixture(scope="module")
def grown():
    X, y, X_test, y_test = bump(150, 2)
    return networks(random_state=0).fit(X, y), X, y, X_test, y_test


def test_networks_grow_where_there_is_no_noise(grown):
    model, X, y, X_test, y_test = grown
    first = networks(n_init=4, random_state=0).fit(X, y)
    assert set(widths(first)) == {(10,)}
    assert set(widths(model)) == {(10, 10)}
    assert model.log_evidence_ > first.log_evidence_ + 0.01 * len(X)
    assert error(model, X_test, y_test) < error(first, X_test, y_test) / 2


def test_networks_of_two_layers_start_apart():
    X, y, *_ = bump(300, 4, noise=0.03)
    model = VarProNetRegressor(random_state=0, tol=1e-6).fit(X, y)
    first = [one.coefs_[0] for one in model.estimators_ if one.coefs_]
    assert len(first) == 4
    pairs = [(a, b) for i, a in enumerate(first) for b in first[:i]]
    assert not any(np.array_equal(a, b) for a, b in pairs)


def test_networks_stay_small_in_noise():
    X, y, *_ = bump(200, 3, noise=0.5)
    model = networks(random_state=0).fit(X, y)
    assert set(widths(model)) == {(10,)}


@pytest.mark.slow
def test_many_rows_are_learnt_to_their_noise():
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (28000, 3))
    truth = np.sin(6 * X[:, 0]) * np.cos(5 * X[:, 1]) + X[:, 2]
    y = truth + 0.1 * rng.standard_normal(28000)
    model = networks(random_state=0).fit(X[:24000], y[:24000])
    assert error(model, X[24000:], truth[24000:]) < 0.025
    assert model.noise_std_ == pytest.approx(0.1, rel=0.1)


def test_wider_networks_find_a_step_that_smaller_ones_take_for_noise():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((6000, 20))
    truth = 10 * np.sin(X[:, 0] * X[:, 1]) + 5 * np.abs(X[:, 2]) + 2 * (X[:, 4] > 0)
    truth += 3 * X[:, 3]
    y = truth[:4000] + rng.standard_normal(4000)
    model = networks(random_state=0).fit(X[:4000], y)
    assert min(len(layer) for layer in widths(model)) == 2
    assert max(max(layer) for layer in widths(model)) > 10
    assert model.score(X[4000:], truth[4000:]) > 0.99
    assert model.noise_std_ == pytest.approx(1, rel=0.05)
    assert np.any(model.estimators_[0].coefs_[0][4])


def test_a_given_number_of_networks_is_kept():
    X, y, *_ = bump(150, 2)
    model = networks(n_init=3, random_state=0).fit(X, y)
    assert widths(model) == [(10,)] * 3


@pytest.mark.parametrize(
    "words",
    [
        {"hidden_layer_sizes": (10,)},
        {"hidden_layer_sizes": np.array([10])},
        {"early_stopping": True},
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sizes_are_kept(words):
    X, y, *_ = bump(150, 2)
    model = networks(random_state=0, **words).fit(X, y)
    assert set(widths(model)) == {(10,)}


def test_sizes_of_several_layers_may_be_an_array():
    X, y, *_ = bump(40, 2)
    model = VarProNetRegressor(hidden_layer_sizes=np.array([3, 2]), random_state=0)
    model.fit(X, y)
    assert set(widths(model)) - {()} == {(3, 2)}  # of the linear model


def test_warm_start_keeps_the_size(grown):
    complete, X, y, X_test, y_test = grown
    model = copy.deepcopy(complete).set_params(warm_start=True)
    before, sizes = error(model, X_test, y_test), widths(model)
    model.fit(X, y)
    assert widths(model) == sizes
    assert error(model, X_test, y_test) < 1.5 * before


def test_penalties_of_other_layers_are_refused():
    X, y, *_ = bump(60, 2)
    deep = VarProNetRegressor(hidden_layer_sizes=(3, 3), random_state=0).fit(X, y)
    with pytest.raises(ValueError, match=r"'layers'.*as many hidden layers"):
        VarProNetRegressor(hidden_layer_sizes=3, alpha=deep.alpha_).fit(X, y)


def test_given_penalties_have_as_many_layers(grown):
    complete, X, y, X_test, y_test = grown
    model = networks(alpha=complete.alpha_, random_state=0).fit(X, y)
    assert set(widths(model)) == {(10, 10)}
    assert error(model, X_test, y_test) < 3 * error(complete, X_test, y_test)


@pytest.mark.parametrize("share", [0.3, pytest.param(0.6, marks=pytest.mark.slow), 0.9])
@pytest.mark.repeats
def test_a_fit_goes_on_from_a_checkpoint(share, grown, tmp_path):
    complete, X, y, X_test, _ = grown
    file = Checkpoint(tmp_path / "fit.ckpt")
    part = networks(random_state=0, max_iter=int(share * complete.n_iter_))
    with pytest.warns(ConvergenceWarning):
        part.set_callbacks(file).fit(X, y)
    model = networks(random_state=0).set_callbacks(file).fit(X, y)
    assert model.n_iter_ == complete.n_iter_
    assert_array_equal(model.predict(X_test), complete.predict(X_test))


@pytest.mark.parametrize("n_useless", [4, 12])
def test_an_oscillation_is_found_among_other_features(n_useless):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (1400, 2 + n_useless))
    truth = np.sin(8 * X[:, 0]) + X[:, 1]
    y = truth[:400] + 0.2 * rng.standard_normal(400)
    model = VarProNetRegressor(random_state=0).fit(X[:400], y)
    assert model.score(X[400:], truth[400:]) > 0.99


@pytest.mark.parametrize("law", [lambda x: np.sin(4 * x), lambda x: 2.0 * (x > 0.2)])
def test_a_sum_of_functions_of_single_features_is_found(law):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1500, 8))
    truth = np.sum(law(X), axis=1)
    y = truth[:500] + 0.2 * rng.standard_normal(500)
    model = VarProNetRegressor(random_state=0).fit(X[:500], y)
    # A network that is told the form: splines of each feature, by least squares.
    splines = SplineTransformer(8, extrapolation="linear")
    told = make_pipeline(splines, RidgeCV(np.logspace(-4, 2, 7))).fit(X[:500], y)
    expected = told.score(X[500:], truth[500:])
    assert model.score(X[500:], truth[500:]) > expected - 0.01
    exported = model.to_sklearn().predict(X)
    assert_allclose(exported, model.predict(X), rtol=1e-6, atol=1e-8)


def test_useless_features_do_not_let_the_process_fit_the_noise():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((1400, 60))
    truth = np.tanh(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3]
    y = truth[:400] + 0.5 * rng.standard_normal(400)
    model = VarProNetRegressor(random_state=0).fit(X[:400], y)
    *_, process = model.estimators_
    found = np.argsort(process.length_scales_)[:4]
    assert sorted(found) == [0, 1, 2, 3]
    assert model.score(X[400:], truth[400:]) > 0.95
