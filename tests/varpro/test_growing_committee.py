"""Committees that find the size of their networks."""

import copy

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn import VarProNetRegressor
from sklearn_gn.callbacks import Checkpoint
from sklearn_gn.varpro import committee


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


@pytest.fixture(scope="module")
def small(grown):
    """Networks of the first size only, on the same rows."""
    _, X, y, *_ = grown
    return networks(n_init=6, random_state=0).fit(X, y)


def test_networks_grow_where_there_is_no_noise():
    X, y, X_test, y_test = bump(200, 3)
    first = networks(n_init=6, random_state=0).fit(X, y)
    model = networks(random_state=0).fit(X, y)
    assert set(widths(first)) == {(10,)}
    assert len(model.estimators_) == 3
    assert min(map(sum, widths(model))) >= 20
    assert model.log_evidence_ > first.log_evidence_ + 0.1 * len(X)
    assert error(model, X_test, y_test) < error(first, X_test, y_test) / 4


def test_networks_stay_small_in_noise():
    X, y, X_test, _ = bump(200, 3, noise=0.5)
    first = networks(n_init=6, random_state=0).fit(X, y)
    model = networks(random_state=0).fit(X, y)
    assert_allclose(model.predict(X_test), first.predict(X_test), rtol=1e-8)


@pytest.mark.slow
def test_networks_grow_where_ten_neurons_are_too_few():
    # How far a robot's arm of three links reaches. No noise, but a tenth is left.
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (1600, 6))
    lengths, angle = (1 + X[:, :3]) / 2, np.cumsum(np.pi * (1 + X[:, 3:]), axis=1)
    y = np.abs(np.sum(lengths * np.exp(1j * angle), axis=1))
    first = networks(n_init=6, random_state=0).fit(X[:600], y[:600])
    model = networks(random_state=0).fit(X[:600], y[:600])
    assert set(widths(first)) == {(10,)}
    assert min(map(sum, widths(model))) >= 20
    assert error(model, X[600:], y[600:]) < error(first, X[600:], y[600:]) / 2


@pytest.mark.slow
def test_much_work_ends_with_a_greater_tolerance(grown, monkeypatch):
    complete, X, y, X_test, y_test = grown
    monkeypatch.setattr(committee, "_MUCH_WORK", 1e7)
    model = networks(random_state=0).fit(X, y)
    assert widths(model) == widths(complete)
    assert model.stop_reason_ == "tol"
    assert model.n_iter_ < complete.n_iter_ / 2
    assert error(model, X_test, y_test) < 100 * error(complete, X_test, y_test)


@pytest.mark.slow
def test_size_that_does_not_pay_is_not_taken(grown, small, monkeypatch):
    _, X, y, X_test, _ = grown
    monkeypatch.setattr(committee, "_WORTH", np.inf)
    model = networks(random_state=0).fit(X, y)
    assert model.n_iter_ > small.n_iter_
    assert_allclose(model.predict(X_test), small.predict(X_test), rtol=1e-8)


def test_a_given_number_of_networks_is_kept(small):
    assert widths(small) == [(10,)] * 6


@pytest.mark.parametrize(
    "words",
    [
        {"hidden_layer_sizes": (10,)},
        {"hidden_layer_sizes": np.array([10])},
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_given_sizes_are_kept(words):
    X, y, *_ = bump(150, 2)
    model = networks(random_state=0, max_iter=3, **words).fit(X, y)
    assert widths(model) == [(10,)] * 6


def test_early_stopping_does_not_wait_for_larger_networks():
    X, y, X_test, _ = bump(150, 2)
    words = {"early_stopping": True, "random_state": 0}
    model = networks(**words).fit(X, y)
    fixed = networks(n_init=6, **words).fit(X, y)
    assert model.n_iter_ == fixed.n_iter_
    assert_allclose(model.predict(X_test), fixed.predict(X_test), rtol=1e-8)


def test_sizes_of_several_layers_may_be_an_array():
    X, y, *_ = bump(40, 2)
    model = VarProNetRegressor(hidden_layer_sizes=np.array([3, 2]), random_state=0)
    model.fit(X, y)
    assert set(widths(model)) == {(3, 2)}


def test_networks_have_fewer_parameters_than_there_are_targets(monkeypatch):
    X, y, *_ = bump(60, 2)
    monkeypatch.setattr(committee, "_USED_UP", 0.0)
    monkeypatch.setattr(committee, "_WORTH", -np.inf)
    model = networks(random_state=0).fit(X, y)
    assert widths(model) == [(10,)] * 6  # the next size has 83


def test_a_fit_that_is_interrupted_has_the_best_size_that_has_ended(grown, small):
    complete, X, y, X_test, y_test = grown
    with pytest.warns(ConvergenceWarning):
        model = networks(random_state=0, max_iter=small.n_iter_ + 5).fit(X, y)
    assert_allclose(model.predict(X_test), small.predict(X_test), rtol=1e-8)
    assert error(complete, X_test, y_test) < error(small, X_test, y_test)


def test_a_fit_that_is_stopped_by_its_last_members_knows_how_wrong_it_is(grown):
    complete, X, y, X_test, y_test = grown
    model = networks(random_state=0, max_iter=complete.n_iter_ - 100)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    assert widths(model) == widths(complete)
    mean, std = model.predict(X_test, return_std=True)
    assert np.mean(np.abs(mean - y_test) < 1.96 * std) > 0.9


def test_warm_start_keeps_the_size(grown):
    complete, X, y, X_test, y_test = grown
    model = copy.deepcopy(complete).set_params(warm_start=True)
    before, sizes = error(model, X_test, y_test), widths(model)
    model.fit(X, y)
    assert widths(model) == sizes
    assert error(model, X_test, y_test) < 1.5 * before


def test_warm_start_has_the_activation_in_every_layer(monkeypatch):
    monkeypatch.setattr(committee, "_SIZES", ((1, 1),))
    monkeypatch.setattr(committee, "_USED_UP", 0.0)
    monkeypatch.setattr(committee, "_WORTH", -np.inf)
    X, y, *_ = bump(150, 1)
    words = {"activation": ("tanh",), "warm_start": True, "tol": 0.1}
    model = networks(random_state=0, **words).fit(X, y)
    assert set(widths(model)) == {(10, 10)}
    sizes = widths(model)
    assert widths(model.fit(X, y)) == sizes
    assert model.estimators_[0].activations_ == ("tanh", "tanh")


def test_penalties_of_other_layers_are_refused():
    X, y, *_ = bump(60, 2)
    deep = VarProNetRegressor(hidden_layer_sizes=(3, 3), random_state=0).fit(X, y)
    with pytest.raises(ValueError, match=r"'layers'.*as many hidden layers"):
        VarProNetRegressor(alpha=deep.alpha_).fit(X, y)


def test_the_reason_is_that_of_the_networks_returned(grown, small, monkeypatch):
    _, X, y, X_test, _ = grown
    monkeypatch.setattr(committee, "_WORTH", np.inf)
    step = committee._evidence_step

    def failing(rows, state, options):
        """A larger network that cannot be fitted."""
        state, report = step(rows, state, options)
        is_larger = state.runs[0].model.sizes[1] > 10
        return state, report._replace(stop="line_search") if is_larger else report

    monkeypatch.setattr(committee, "_evidence_step", failing)
    model = networks(random_state=0).fit(X, y)
    assert model.n_iter_ > small.n_iter_
    assert model.stop_reason_ == small.stop_reason_
    assert_allclose(model.predict(X_test), small.predict(X_test), rtol=1e-8)


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
