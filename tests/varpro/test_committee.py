"""Committees whose penalties the evidence chooses."""

import copy
import pickle
import time
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from sklearn_gn import (
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)
from sklearn_gn.arrays import threads
from sklearn_gn.bayes import laplace
from sklearn_gn.callbacks import Checkpoint
from sklearn_gn.data.units import Units
from sklearn_gn.varpro import committee, members


def smooth(m=120, d=3, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (m, d))
    return X, np.sin(3 * X[:, 0]) + X[:, 1] + noise * rng.standard_normal(m)


def rings(m=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (m, 2))
    radius = np.linalg.norm(X, axis=1) + 0.1 * rng.standard_normal(m)
    return X, np.digitize(radius, [0.5, 0.9])


def shares(model):
    """Shares of the members in predictions."""
    return np.array([member.share_ for member in model.estimators_])


def networks(model):
    """Members with hidden layers."""
    return [member for member in model.estimators_ if member.coefs_]


@pytest.fixture(scope="module")
def fitted():
    X, y = smooth()  # a number of networks: without the infinitely wide one
    return VarProNetRegressor(n_init=6, random_state=0).fit(X, y), X, y


def test_defaults_fit_a_noisy_function(fitted):
    model, *_ = fitted
    assert model.converged_
    assert model.noise_std_ == pytest.approx(0.1, rel=0.2)
    X, y = smooth(seed=1, m=400)
    assert model.score(X, y) > 0.97
    lower, upper = model.predict_interval(X)
    assert 0.9 < np.mean((lower < y) & (y < upper)) < 0.99


def test_prediction_is_the_mean_of_the_members(fitted):
    model, X, _ = fitted
    y = model.predict(X)
    share = shares(model)
    assert_allclose(share @ [e.predict(X) for e in model.estimators_], y)
    values = model.transform(X) @ model.output_coef_.T + X @ model.linear_coef_.T
    assert_allclose(values[:, 0] + model.output_intercept_, y, rtol=1e-8, atol=1e-10)


def test_defaults_settle_on_exact_data_and_quote_the_loss_of_what_predicts():
    X, _ = smooth()
    y = np.sin(3 * X[:, 0]) * X[:, 1]
    short = VarProNetRegressor(n_init=6, random_state=0, max_iter=5)
    with pytest.warns(ConvergenceWarning) as caught:
        short.fit(X, y)
    assert f"at loss {short.loss_:.6g}." in str(caught[0].message)
    model = VarProNetRegressor(n_init=6, random_state=0).fit(X, y)  # without a warning
    assert model.converged_
    assert model.n_iter_ > 100
    assert [f.cause for f in model.diagnose().findings] == ["noise"]
    losses = model.convergence_log_["loss"]
    assert model.loss_ < np.mean(losses[-1:])  # which counts all members alike


def test_evidence_is_that_of_a_mixture_of_the_members(fitted):
    model, *_ = fitted
    each = [e.log_evidence_ for e in model.estimators_]
    mean = np.mean(np.exp(each - np.max(each)))
    assert model.log_evidence_ == pytest.approx(np.max(each) + np.log(mean))


def test_members_that_do_not_suit_exact_data_hardly_count():
    X = np.random.default_rng(0).uniform(-1, 1, (150, 2))
    y = np.sin(3 * X[:, 0]) * X[:, 1]
    model = VarProNetRegressor(random_state=0, max_iter=60, tol=0)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model.fit(X, y)
    of_relu = [e.activations_ == ("relu",) for e in model.estimators_]
    assert shares(model)[of_relu].sum() < 0.05
    X = np.random.default_rng(1).uniform(-1, 1, (400, 2))
    error = [
        np.mean((e.predict(X) - np.sin(3 * X[:, 0]) * X[:, 1]) ** 2)
        for e in model.estimators_
    ]
    mean = np.mean((model.predict(X) - np.sin(3 * X[:, 0]) * X[:, 1]) ** 2)
    assert mean < np.median(error)


def test_exact_linear_data_end_without_a_warning():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 10))
    y = X @ rng.normal(size=10) + 1
    model = VarProNetRegressor(random_state=0).fit(X, y)
    assert model.stop_reason_ == "rounding"
    assert model.convergence_log_["n_running"].sum() < 100 * len(model.estimators_)
    assert_allclose(model.predict(X), y, rtol=1e-8, atol=1e-8)


def test_members_take_both_activations(fitted):
    model, *_ = fitted
    names = [member.activations_ for member in model.estimators_]
    assert set(names) == {("relu",), ("tanh",)}


def test_standard_error_holds_the_spread_of_the_members(fitted):
    model, X, _ = fitted
    far = 3 * X[:20]
    _, std = model.predict(far, return_std=True)
    values, share = np.array([e.predict(far) for e in model.estimators_]), shares(model)
    spread = np.sqrt(share @ (values - share @ values) ** 2)
    assert (std > spread).all()


def test_interval_is_that_of_a_new_observation(fitted):
    model, X, target = fitted
    y, std = model.predict(X, return_std=True)
    lower, upper = model.predict_interval(X, level=0.9)
    # The noise is that of the residuals of the mean, by its degrees of freedom: those
    # of the parameters, and less than two for each of the six penalties.
    freedom = np.sum((target - y) ** 2) / model.noise_std_**2
    of_penalties = len(X) - model.n_effective_parameters_ - freedom
    assert 0 < of_penalties < 12
    quantile = stats.t.ppf(0.95, freedom)
    assert_allclose(upper - y, quantile * np.hypot(std, model.noise_std_), rtol=1e-9)
    assert_allclose(y - lower, upper - y, rtol=1e-9)
    with pytest.raises(ValueError, match=r"level must lie between 0 and 1, got 1\.5"):
        model.predict_interval(X, level=1.5)


def test_without_neurons_the_evidence_is_that_of_bayesian_ridge():
    X, y = smooth(noise=0.5)
    X, y = X - X.mean(axis=0), y - y.mean()
    model = VarProNetRegressor(hidden_layer_sizes=(), scale=False, tol=0, n_init=1)
    model.fit(X, y)
    peer = BayesianRidge(
        alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0, fit_intercept=False, tol=1e-14
    )
    peer.fit(X, y)
    assert_allclose(model.linear_coef_[0], peer.coef_, rtol=1e-2)
    # The constant is one more parameter here.
    assert model.noise_std_ == pytest.approx(peer.alpha_**-0.5, rel=1e-2)


def test_weights_are_repetitions():
    X, y = smooth(m=60)
    count = 1 + np.arange(60) % 3
    repeated = np.repeat(np.arange(60), count)
    # The sum of weights counts the rows, as long as it is at least their number.
    settings = {"random_state": 0, "n_init": 2, "max_iter": 10}
    a = VarProNetRegressor(**settings)
    b = VarProNetRegressor(**settings)
    with pytest.warns(UserWarning, match="max_iter"):
        a.fit(X, y, sample_weight=count)
    with pytest.warns(UserWarning, match="max_iter") as caught:
        b.fit(X[repeated], y[repeated])
    assert caught[0].filename == __file__
    assert_allclose(a.predict(X), b.predict(X), rtol=1e-7)
    assert a.log_evidence_ == pytest.approx(b.log_evidence_)


@pytest.mark.parametrize("of_classes", [False, True])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_rows_set_aside_are_not_counted(of_classes):
    X, y = smooth(m=60)
    order = np.argsort(X[:, 0])  # the order in which a fit of one feature takes them
    X, y, weight = X[order, :1], y[order], 1.0 + np.arange(60) ** 2
    y = (y > 0).astype(int) if of_classes else y
    rng, labels = np.random.RandomState(0), y if of_classes else None
    given = {"test_size": 21, "random_state": rng, "stratify": labels}
    train, val = map(np.sort, train_test_split(np.arange(60), **given))
    weight[val] = 7.0
    kind = VarProNetClassifier if of_classes else VarProNetRegressor
    model = kind(n_init=1, max_iter=2, early_stopping=True, validation_fraction=0.35)
    model.set_params(random_state=np.random.RandomState(0)).fit(X, y, weight)
    other = clone(model).set_params(random_state=rng)
    other.fit(X[train], y[train], weight[train], X_val=X[val], y_val=y[val])
    assert_allclose(other.loss_, model.loss_, rtol=1e-8)
    assert_allclose(other.log_evidence_, model.log_evidence_, rtol=1e-8)


def test_units_change_nothing():
    X, y = smooth(m=60)
    settings = {"random_state": 0, "n_init": 2}
    a = VarProNetRegressor(**settings).fit(X, y)
    b = VarProNetRegressor(**settings).fit(1024 * X, 2 * y)
    assert_allclose(2 * a.predict(X), b.predict(1024 * X), rtol=1e-7)
    assert b.noise_std_ == pytest.approx(2 * a.noise_std_)
    for size in (2.0**-600, 2.0**600):  # whose squares leave the range of floats
        c = VarProNetRegressor(**settings).fit(X, size * y)
        assert_allclose(c.predict(X) / size, a.predict(X), rtol=1e-7)
        assert c.noise_std_ / size == pytest.approx(a.noise_std_, rel=1e-7)
        assert c.loss_ == (0 if size < 1 else np.inf)


def test_threads_of_blas_change_nothing():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 30)) @ rng.standard_normal((30, 30))
    y = np.tanh(X[:, 0]) + rng.standard_normal(3000)
    spectra = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads):
            model = VarProNetRegressor(random_state=0, n_init=1, max_time=1e-9)
            with pytest.warns(UserWarning, match="max_time"):
                spectra.append(model.fit(X, y).gram_spectrum_)
    np.testing.assert_array_equal(*spectra)


def test_members_run_side_by_side_as_one_by_one(fitted, monkeypatch):
    model, X, y = fitted  # whose members are too small for threads
    monkeypatch.setattr(threads, "_LEAST", 0)
    other = VarProNetRegressor(n_init=6, random_state=0).fit(X, y)
    assert_allclose(other.predict(X), model.predict(X), rtol=1e-8)


def test_useless_features_leave_the_first_layer():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, 12))
    y = np.sin(3 * X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(300)
    model = VarProNetRegressor(random_state=0, n_init=2).fit(X, y)
    for member in model.estimators_[:2]:
        used = np.flatnonzero(member.coefs_[0].any(axis=1))
        assert {0, 1} <= set(used)
        assert len(used) < 12
    relevance = 1 / model.alpha_["weights"]
    assert set(np.argsort(relevance)[-2:]) == {0, 1}


def test_warm_start_continues(fitted):
    model, X, y = fitted
    again = pickle.loads(pickle.dumps(model)).set_params(warm_start=True)
    again.fit(X, y)
    assert again.log_evidence_ >= model.log_evidence_ - 0.1
    again.set_params(n_init=2)
    with pytest.raises(ValueError, match="warm_start=True continues with the networks"):
        again.fit(X, y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_warm_start_keeps_the_number_of_members():
    X, y = smooth(m=60)
    model = VarProNetRegressor(random_state=0, n_init=3, warm_start=True, max_iter=2)
    assert len(networks(model.fit(X, y))) == 3
    model.set_params(n_init="auto")
    assert len(networks(model.fit(X, y))) == 3
    model.set_params(activation="sin")
    with pytest.raises(ValueError, match="activation='sin'"):
        model.fit(X, y)


def test_nothing_of_another_kind_of_fit_stays():
    X, y = smooth(m=40)
    model = VarProNetRegressor(random_state=0, n_init=1).fit(X, y)
    model.set_params(alpha=1.0, hidden_layer_sizes=()).fit(X, y)
    first = VarProNetRegressor(alpha=1.0, hidden_layer_sizes=()).fit(X, y)
    assert vars(model).keys() == vars(first).keys()
    model.set_params(alpha="auto", n_init=1).fit(X, y)
    assert not hasattr(model, "_error_bars")  # which holds the training rows


def test_a_former_member_is_the_same_function_in_other_units(fitted):
    model, X, _ = fitted
    _, former, before = model._fitted
    center, scale = np.array([1.0, -2.0, 0.5]), np.array([2.0, 0.3, 1.0])
    after = Units(center, scale, np.array([3.0]), 0.7, before.limits)
    for member in former:
        theta = member.model.in_units(member.net.theta, before, after)
        found = member.model.values(theta, after.x(X))
        known = member.model.values(member.net.theta, before.x(X))
        assert_allclose(
            found * after.y_scale + after.y_center,
            known * before.y_scale + before.y_center,
            rtol=1e-8,
            atol=1e-10,
        )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_independent_targets_have_more_neurons_than_copies_of_one():
    X, _ = smooth(m=50)
    rng = np.random.RandomState(0)
    y = rng.randn(50, 8) - 0.5
    y = np.linalg.qr(y - y.mean(axis=0))[0]
    several = y * 10.0 ** np.arange(8)  # uncorrelated, in any units
    copies = y[:, [0] * 5] * [1, -2, 3, 1e3, 0]  # a constant is no target
    model = VarProNetRegressor(random_state=0, max_iter=1)
    for targets, n_neurons in ((several + 3, 25), (copies, 10)):
        (network, *_) = model.fit(X, targets).estimators_
        assert len(network.intercepts_[0]) == n_neurons


@pytest.mark.parametrize(
    ("n_rows", "n_targets", "n_independent", "width"),
    [
        (200, 8, 1, 10),
        (200, 8, 2, 10),
        (200, 8, 4, 15),
        (200, 8, 8, 25),
        (8, 8, 8, 10),  # a row for each neuron
        (18, 8, 8, 18),
        (51, 8, 8, 25),
        # The matrix stays dense: 26 (1 + 4 + 60) + 60 (1 + 4).
        pytest.param(200, 60, 60, 26, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_first_networks_have_a_width_that_suits_the_targets(
    n_rows, n_targets, n_independent, width
):
    rng = np.random.RandomState(0)
    y = rng.standard_normal((n_rows, n_independent))
    y = np.linalg.qr(y - y.mean(axis=0))[0][:, np.arange(n_targets) % n_independent]
    X = rng.standard_normal((n_rows, 4))
    model = VarProNetRegressor(max_iter=1, random_state=0).fit(X, y)
    assert len(model.estimators_[0].intercepts_[0]) == width


def test_a_constant_target_beside_noisy_ones_is_exact():
    X, y = smooth()
    noisy = y + np.random.RandomState(0).randn(len(y))
    model = VarProNetRegressor(random_state=0, n_init=2)
    mean, std = model.fit(X, np.c_[noisy, np.full(len(X), 0.1)]).predict(
        X, return_std=True
    )
    np.testing.assert_allclose(mean[:, 1], 0.1, rtol=1e-12)
    np.testing.assert_allclose(std[:, 1], 0, atol=1e-12)
    assert np.all(std[:, 0] > 0)


def test_several_targets():
    X, y = smooth()
    model = VarProNetRegressor(random_state=0, n_init=2).fit(X, np.c_[y, X[:, 1]])
    y, std = model.predict(X, return_std=True)
    assert y.shape == std.shape == (120, 2)
    assert model.output_coef_.shape == (2, model.transform(X).shape[1])
    _, networks, scaling = model._fitted
    x, own = scaling.x(X), []
    for net, _, known in networks:
        jacobian, covariance = net.model.jacobian(net.theta, x), known.covariance.get()
        own.append(np.einsum("tpm,pq,tqm->mt", jacobian, covariance, jacobian))
    values, share = [e.predict(X) for e in model.estimators_], shares(model)
    noise = np.array([e.noise_std_**2 for e in model.estimators_])
    beta = np.array([member.net.beta for member in networks])
    own = np.array(own) * (beta[:, None] * noise)[:, None] + (values - y) ** 2
    assert_allclose(std**2, np.einsum("st,smt->mt", share, own), rtol=1e-9)


def counted_covariance(*arguments, covariance=laplace.covariance):
    counted_covariance.computed.append(arguments)
    return covariance(*arguments)


def test_covariances_wait_until_standard_deviations_are_asked_for(monkeypatch):
    X, y = smooth()
    model = VarProNetRegressor(random_state=0, n_init=2, max_iter=5, alpha=0.1)
    computed = []
    monkeypatch.setattr(laplace, "covariance", counted_covariance)
    monkeypatch.setattr(counted_covariance, "computed", computed, raising=False)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    model.predict(X)
    assert not computed
    again = pickle.loads(pickle.dumps(model))
    std = model.predict(X, return_std=True)[1]
    assert len(computed) == 2
    np.testing.assert_array_equal(model.predict(X, return_std=True)[1], std)
    assert len(computed) == 2
    np.testing.assert_array_equal(again.predict(X, return_std=True)[1], std)


def test_units_of_one_target_change_nothing():
    X, y = smooth()
    Y = np.c_[y, X[:, 1] + 0.01 * np.cos(50 * X[:, 2])]
    factor, shift = np.array([1e4, 1e-5]), np.array([-3.0, 1.0])
    model = VarProNetRegressor(random_state=0, n_init=2).fit(X, Y)
    other = VarProNetRegressor(random_state=0, n_init=2).fit(X, factor * Y + shift)
    (y, std), (z, other_std) = (m.predict(X, return_std=True) for m in (model, other))
    assert_allclose((z - shift) / factor, y, rtol=1e-6, atol=1e-6)
    assert_allclose(other_std, factor * std, rtol=1e-5)
    assert_allclose(other.noise_std_, factor * model.noise_std_, rtol=1e-6)


def test_noise_of_each_target_is_that_of_its_residuals():
    X, y = smooth(noise=0.3)
    rng = np.random.default_rng(1)
    Y = np.c_[y, X @ [1, 2, 0] + 0.03 * rng.standard_normal(len(X))]
    model = VarProNetRegressor(random_state=0, n_init=1).fit(X, Y)
    squares = np.sum((Y - model.predict(X)) ** 2, axis=0)
    ratio = model.noise_std_[1] / model.noise_std_[0]
    assert ratio**2 == pytest.approx(squares[1] / squares[0], rel=1e-9)
    assert model.noise_std_ == pytest.approx([0.3, 0.03], rel=0.3)


def test_given_penalties_stay_at_the_fit_they_come_from():
    X, y = smooth()
    model = VarProNetRegressor(
        hidden_layer_sizes=(6, 4),
        activation="tanh",
        n_init=1,
        max_iter=1000,
        random_state=0,
    )
    chosen, std = model.fit(X, y).predict(X, return_std=True)
    model.set_params(alpha=model.alpha_, warm_start=True, tol=1e-14)
    found = model.fit(X, y).predict(X)
    assert model.alpha_method_ == "fixed"
    # The evidence ends once it hardly rises, which is not quite a minimum.
    assert np.mean((found - chosen) ** 2) < 0.5 * np.mean(std**2)
    assert_allclose(model.fit(X, y).predict(X), found, atol=1e-6)


def test_a_number_is_every_penalty(fitted):
    model, X, y = fitted
    every = {name: np.full_like(value, 0.02) for name, value in model.alpha_.items()}
    by_name = VarProNetRegressor(alpha=every, random_state=0).fit(X, y)
    by_number = VarProNetRegressor(alpha=0.02, random_state=0).fit(X, y)
    assert_allclose(by_number.predict(X), by_name.predict(X), rtol=1e-8)
    assert by_number.alpha_method_ == "fixed"
    for value in by_number.alpha_.values():
        assert_allclose(value, 0.02)


def test_with_given_penalties_tol_is_a_share_of_the_loss():
    X = np.random.default_rng(0).uniform(-1, 1, (150, 2))
    y = np.exp(-2 * np.sum(X**2, axis=1))  # whose loss is far below tol
    words = {"alpha": 1e-6, "n_init": 6, "random_state": 0}
    model = VarProNetRegressor(**words).fit(X, y)
    settled = VarProNetRegressor(tol=1e-6, **words).fit(X, y)
    assert model.loss_ < 1.5 * settled.loss_
    assert model.n_iter_ < settled.n_iter_


def test_without_penalty_the_fit_is_finite(fitted):
    _, X, y = fitted
    model = VarProNetRegressor(alpha=0, random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()


def test_a_number_is_every_penalty_of_both_kinds_of_classifiers():
    X, y = rings()
    model = VarProNetClassifier(alpha=0.5, random_state=0).fit(X, y)
    assert len({len(member.coefs_[0].T) for member in networks(model)}) == 2
    for member in networks(model):
        for value in member.alpha_.values():
            assert_allclose(value, 0.5)


def test_penalties_of_mini_batches_are_those_given(monkeypatch):
    monkeypatch.setattr(committee, "_MOST_WORK_OF_ALL_ROWS", 1)
    X, y = rings()
    given = {"slope": 2.0, "coef": 3.0, "bias": 4.0, "weights": [5.0], "layers": []}
    model = VarProNetClassifier(alpha=given, n_init=1, max_iter=2, tol=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    for name, value in given.items():
        assert_allclose(model.alpha_[name], value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": np.ones(2)}, r"\['weights'\] must have shape \(3,\), got shape"),
        ({"layers": np.ones(1)}, r"\['layers'\] must have shape \(0,\), got shape"),
        ({"coef": 0.0}, "penalties in alpha must be positive"),
        ({"offset": 1.0}, "must have the entries slope, coef, bias, weights, layers"),
    ],
)
def test_wrong_penalties_are_named(fitted, change, message):
    model, X, y = fitted
    with pytest.raises(ValueError, match=message):
        VarProNetRegressor("mlp", 10, alpha={**model.alpha_, **change}).fit(X, y)


def test_penalties_by_name_need_a_committee(fitted):
    model, X, y = fitted
    with pytest.raises(ValueError, match="of committees"):
        VarProNetRegressor(alpha=model.alpha_, solver="adam").fit(X, y)


def test_without_neurons_the_features_are_the_inputs():
    X, y = smooth(m=40)
    model = VarProNetRegressor(hidden_layer_sizes=(), random_state=0, n_init=2)
    features = model.fit(X, y).set_output(transform="pandas").transform(X)
    assert features.shape == (40, 3)
    values = features.to_numpy() @ model.output_coef_.T + X @ model.linear_coef_.T
    assert_allclose(values[:, 0] + model.output_intercept_, model.predict(X), rtol=1e-9)


def test_members_that_found_no_step_leave_the_log_finite():
    X, _ = smooth(m=40)
    noise = 1e-12 * np.random.default_rng(0).standard_normal(40)
    settings = {"activation": "relu", "n_init": 3, "random_state": 1}
    model = VarProNetRegressor(hidden_layer_sizes=(3,), **settings)
    log = model.fit(X, np.abs(X[:, 0]) + noise).convergence_log_
    for name in ("step_size", "damping", "gain_ratio"):
        assert np.isfinite(log[name][:-1]).all()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_are_means_over_the_members(n_classes):
    X, y = rings()
    y = np.minimum(y, n_classes - 1)
    model = VarProNetClassifier(random_state=0).fit(X, y)
    mean = sum(e.share_ * e.predict_proba(X) for e in model.estimators_)
    assert_allclose(model.predict_proba(X), mean, rtol=1e-9)
    assert model.score(X, y) > 0.8


def test_separable_classes_have_finite_penalties():
    X = np.linspace(-1, 1, 40)[:, None]
    model = VarProNetClassifier(random_state=0).fit(X, X[:, 0] > 0)
    assert model.score(X, X[:, 0] > 0) == 1
    assert all(np.isfinite(value).all() for value in model.alpha_.values())
    assert np.isfinite(model.predict_log_proba(100 * X)).all()


@pytest.mark.parametrize("class_weight", [None, {0: 0.0, 1: 1.0, 2: 1.0}])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_class_may_be_without_training_rows(class_weight):
    X, y = rings(m=60)
    if class_weight is None:  # the validation rows hold its only one
        y = np.where(np.arange(60) == 7, 2, y > 0)
    settings = {"early_stopping": class_weight is None, "validation_fraction": 0.6}
    for seed in range(4):
        model = VarProNetClassifier(
            class_weight=class_weight, random_state=seed, n_init=2, **settings
        )
        p = model.fit(X, y).predict_proba(X)
        assert p.shape == (60, 3)
        assert_allclose(p.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (smooth(m=20)[0], np.full(20, 3.0)),
        (smooth(m=20)[0], smooth(m=20)[0][:, 0]),
        (np.random.default_rng(0).standard_normal((12, 30)), np.arange(12.0)),
        (np.ones((1, 2)), np.ones(1)),
        (np.repeat(smooth(m=20)[0][:, :1], 3, axis=1), smooth(m=20)[1]),
        (1e150 * smooth(m=20)[0], 1e-150 * smooth(m=20)[1]),
    ],
    ids=["constant", "exact", "wide", "one row", "equal columns", "scales"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_degenerate_data(X, y):
    model = VarProNetRegressor(random_state=0, n_init=2).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    lower, upper = model.predict_interval(X)
    for value in (mean, std, lower, upper, *model.alpha_.values(), model.noise_std_):
        assert np.isfinite(value).all()
    assert np.abs(mean - y).max() <= 3 * np.abs(y - y.mean()).max() + 1e-9


@pytest.mark.parametrize(
    "words",
    [
        {"alpha": 1e-3, "hidden_layer_sizes": (10,)},
        {"alpha": (1e-3, 1e-3)},
        {"alpha": 1e-3, "solver": "adam"},
        {"solver": "gn"},
        {"hidden_layer_sizes": (2000, 2000)},
        {"network": "neural_ode"},
    ],
)
def test_other_fits_are_of_one_network(words):
    model = VarProNetRegressor(**words)
    assert committee.plan(model, np.ones((100, 3)), np.ones((100, 1)), None) is None


def test_large_networks_are_committees_of_two():
    model = VarProNetRegressor(hidden_layer_sizes=(60, 60))
    plan = committee.plan(model, np.ones((5000, 50)), np.ones((5000, 1)), None)
    assert len(plan[0]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"activation": "sine"}, "sine"),
        ({"n_init": 0}, "n_init"),
        ({"alpha": "best"}, "alpha"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes"),
    ],
)
def test_bad_parameters_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        VarProNetRegressor(**words).fit(*smooth(m=10))


def test_early_stopping_watches_the_mean_of_the_members():
    X, y = smooth()
    X_val, y_val = smooth(seed=1)
    model = VarProNetRegressor(
        activation="tanh",  # networks of one kind, whose shares the rows do not decide
        random_state=0,
        n_init=2,
        early_stopping=True,
        n_iter_no_change=2,
    )
    model.fit(X, y, X_val=X_val, y_val=y_val)
    error = np.mean((model.predict(X_val) - y_val) ** 2) / 2
    assert np.nanmin(model.convergence_log_["val_loss"]) == pytest.approx(
        error,
        rel=0.1,  # the linear model may have a small share
    )


@pytest.mark.parametrize("warm_start", [False, True])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_is_resumed_bit_for_bit(tmp_path, warm_start):
    X, y = smooth(m=60)
    settings = {"random_state": 0, "n_init": 2}
    before = VarProNetRegressor(**settings, max_iter=3).fit(X, y)
    before.set_params(warm_start=warm_start)
    whole = copy.deepcopy(before).set_params(max_iter=12).fit(X, y)
    file = Checkpoint(tmp_path / "fit.ckpt")
    copy.deepcopy(before).set_callbacks(file).set_params(max_iter=5).fit(X, y)
    resumed = copy.deepcopy(before).set_callbacks(file).set_params(max_iter=12)
    resumed.fit(X, y)
    np.testing.assert_array_equal(resumed.predict(X), whole.predict(X))
    loss = whole.convergence_log_["loss"]
    np.testing.assert_array_equal(resumed.convergence_log_["loss"], loss)


@pytest.mark.parametrize("most", [2000, 30], ids=["few_rows", "many_rows"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_by_products_is_resumed_bit_for_bit(tmp_path, largest_dense, most):
    # More parameters than the rows give numbers: no Gauss-Newton matrix is formed.
    largest_dense(most)
    X, y = smooth(m=50, d=20)
    model = VarProNetRegressor(random_state=0, n_init=2, max_iter=6)
    whole = clone(model).fit(X, y)
    file = Checkpoint(tmp_path / "fit.ckpt")
    first = clone(model).set_callbacks(file).set_params(max_iter=3).fit(X, y)
    resumed = clone(model).set_callbacks(file).fit(X, y)
    np.testing.assert_array_equal(resumed.predict(X), whole.predict(X))
    assert resumed.log_evidence_ == whole.log_evidence_
    times = [fit.convergence_log_["time"] for fit in (first, resumed)]
    np.testing.assert_array_equal(times[1][:3], times[0])


def test_an_interrupt_keeps_the_members_so_far(monkeypatch):
    X, y = smooth(m=60)
    take_step, calls = committee.evidence_gn.step, []

    def interrupted(*arguments):
        calls.append(None)
        if len(calls) > 8:
            raise KeyboardInterrupt
        return take_step(*arguments)

    monkeypatch.setattr(committee.evidence_gn, "step", interrupted)
    model = VarProNetRegressor(random_state=0, n_init=2)
    with pytest.warns(UserWarning, match="interrupted"):
        model.fit(X, y)
    assert model.n_iter_ == 4
    assert model.score(X, y) > 0.5


@pytest.mark.parametrize("name", ["X", "y"])
def test_data_whose_squares_overflow_need_scaling(name):
    X = np.arange(8.0)[:, None]
    data = {"X": X, "y": X[:, 0]}
    data[name] = 1e200 * data[name]
    with pytest.raises(ValueError, match=rf"numbers of size 7e\+200 in {name} over"):
        VarProNetRegressor(scale=False).fit(**data)


def test_large_features_are_multiplied_in_double_precision():
    rng = np.random.default_rng(0)
    X = 1e30 * rng.standard_normal((70, 2))
    model = VarProNetClassifier(scale=False, max_iter=3, tol=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, X[:, 0] > 0)
    assert np.isfinite(model.decision_function(X)).all()


@pytest.mark.parametrize(
    ("precisions", "expected"), [((1.0, 1.0), np.inf), ((1e-200, 1e200), 3.0)]
)
def test_variances_beyond_the_floats_are_infinite(monkeypatch, precisions, expected):
    # Members that disagree by 2e200; the second ones' shares are one half and one.
    model = SimpleNamespace(
        values=lambda theta, x: np.full((len(x), 1), theta), loss="squared"
    )
    disagreeing = [
        members.Member(
            SimpleNamespace(theta=value, beta=beta, model=model),
            known=SimpleNamespace(noise_ratio=np.ones(1)),
        )
        for value, beta in zip((1e200, -1e200), precisions, strict=True)
    ]
    monkeypatch.setattr(members, "posterior_variances", lambda *a: np.full((5, 1), 3))
    found = members.variances(disagreeing, np.ones((5, 2)))
    assert_allclose(found, np.full((5, 1), expected))


def wide(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((200, 12))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(200)


def test_members_are_added_where_starts_differ_by_more_than_the_noise():
    X, y = wide()
    model = VarProNetRegressor(random_state=0).fit(X, y)
    n_running = model.convergence_log_["n_running"]
    assert n_running[0] == 2
    for member in networks(model):
        used = np.flatnonzero(member.coefs_[0].any(axis=1))
        assert 0 in used
        assert len(used) < 12  # others have left the first layer
    assert model.score(*wide(1)) > 0.95
    of_noise = VarProNetRegressor(random_state=0).fit(X, X[:, 0] + 9 * wide(1)[1])
    assert len(networks(of_noise)) == 2


@pytest.mark.parametrize("cls", [VarProNetRegressor, ShallowReLURegressor])
@pytest.mark.parametrize("number", [0, 2, 4])
def test_columns_that_say_nothing_and_their_order_change_little(cls, number):
    X, y = smooth(300, 4)
    new, _ = smooth(200, 4, seed=1)
    constant = np.insert(X, number, 7.0, axis=1), np.insert(new, number, 7.0, axis=1)
    before = np.insert(X, number, X[:, 1], axis=1), np.insert(new, number, new[:, 1], 1)
    copied = np.c_[X, X[:, 1]], np.c_[new, new[:, 1]]
    turned = np.roll(X, number - 1, axis=1), np.roll(new, number - 1, axis=1)

    def predicted(X, new, seed=0):
        return cls(random_state=seed).fit(X, y).predict(new)

    plain, others = predicted(X, new), [predicted(X, new, seed) for seed in (1, 2, 3)]
    spread = np.sqrt(np.mean((np.array(others) - plain) ** 2))
    for data in (constant, before, copied, turned):
        moved = np.sqrt(np.mean((predicted(*data) - plain) ** 2))
        assert moved < spread / 10
    # What a copy is elsewhere plays no part.
    model = cls(random_state=0).fit(copied[0], y)
    elsewhere = np.c_[new, new[:, 1] + 9]
    assert_allclose(model.predict(elsewhere), model.predict(copied[1]))


@pytest.mark.parametrize("cls", [VarProNetRegressor, ShallowReLURegressor])
@pytest.mark.parametrize("rank", [2, 5])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_steps_of_a_small_rank_move_the_neurons(cls, rank):
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (200, 2))
    y = np.abs(X[:, 0]) + np.maximum(X[:, 1], 0) + 0.05 * rng.standard_normal(200)
    model = cls(n_init=2, rank=rank, random_state=0).fit(X[:150], y[:150])
    # Rounding decides whether a step in so few directions still lowers the loss.
    assert model.stop_reason_ in ("tol", "rounding", "line_search")
    assert model.score(X[150:], y[150:]) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    "cls", [VarProNetRegressor, VarProNetClassifier, ShallowReLURegressor]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_max_time_holds_for_many_rows(cls, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100_000, 20))
    y = np.sin(X[:, 0] * X[:, 1]) + np.abs(X[:, 2]) + rng.standard_normal(100_000)
    y = np.digitize(y, [0, 1]) if cls is VarProNetClassifier else y
    cls(random_state=0).fit(X[:200], y[:200])
    monkeypatch.setattr(time, "perf_counter", time.process_time)  # of this process only
    began = time.process_time()
    cls(max_time=1.5, random_state=0).fit(X, y)
    assert time.process_time() - began < 1.8


@pytest.mark.parametrize("cls", [VarProNetRegressor, ShallowReLURegressor])
def test_intervals_follow_noise_that_grows(cls):
    inside, widths = [], []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = rng.uniform(size=(2400, 3))
        e = rng.standard_normal(2400)
        y = np.sin(4 * X[:, 0]) + X[:, 1]
        for noise in (0.1 + 0.4 * X[:, 2], 0.3):
            model = cls(random_state=0).fit(X[:400], (y + noise * e)[:400])
            lower, upper = model.predict_interval(X[400:])
            held = (
                np.abs((y + noise * e)[400:] - (lower + upper) / 2)
                < (upper - lower) / 2
            )
            inside.append(
                [held[X[400:, 2] < 0.5].mean(), held[X[400:, 2] >= 0.5].mean()]
            )
            widths.append(np.std(upper - lower) / np.mean(upper - lower))
    for halves in (inside[::2], inside[1::2]):  # of unequal noise, and of equal one
        halves = np.mean(halves, axis=0)
        assert 0.9 < halves.min() <= halves.max() < 0.98
    assert np.mean(widths[1::2]) < 0.1 < np.min(widths[::2])


def test_class_weights_multiply_the_odds():
    X, y = rings(90)
    plain = VarProNetClassifier(random_state=0, n_init=2).fit(X, y)
    weights = {0: 5.0, 2: 0.1}
    model = VarProNetClassifier(random_state=0, n_init=2, class_weight=weights)
    chunks = [(X[:50], y[:50]), (X[50:], y[50:])]
    for fit in (lambda: model.fit(X, y), lambda: model.fit_chunks(chunks)):
        for member, other in zip(fit().estimators_, plain.estimators_, strict=True):
            p = other.predict_proba(X) * [5.0, 1.0, 0.1]
            expected = p / p.sum(axis=1, keepdims=True)
            assert_allclose(member.predict_proba(X), expected, rtol=1e-6, atol=1e-9)
        assert model.loss_ == pytest.approx(plain.loss_, rel=1e-9)


@pytest.mark.parametrize("k", [2, 4])
def test_networks_of_classes_start_from_what_is_linear(k):
    rng = np.random.default_rng(0)
    X = rng.standard_t(3, (400, 5))
    values = 2 * X @ rng.standard_normal((5, k)) - 3 * np.eye(1, k)
    y = np.argmax(values + rng.gumbel(size=(400, k)), axis=1)
    model = VarProNetClassifier(n_init=2, max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    entropy = stats.entropy(np.bincount(y))
    # From class frequencies alone an iteration leaves three fifths of it.
    assert -np.mean(model.predict_log_proba(X)[np.arange(400), y]) < 0.55 * entropy


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (VarProNetRegressor, (50, 200)),
        (VarProNetClassifier, (80, 100)),
        (VarProNetClassifier, (60, 200)),
        (VarProNetClassifier, (200, 400)),
    ],
)
def test_few_rows_with_many_columns(kind, shape):
    # Two columns matter. What they allow if they are known tells how good a fit can be.
    rng = np.random.default_rng(0)
    X, X_test = rng.standard_normal(shape), rng.standard_normal((1000, shape[1]))
    y, truth = (2 * a[:, 0] - a[:, 1] for a in (X, X_test))
    y = y + 0.3 * rng.standard_normal(len(y))
    if kind is VarProNetClassifier:
        y, truth = y > 0, truth > 0
    model = kind(random_state=0).fit(X, y)
    known = kind(random_state=0).fit(X[:, :2], y)
    assert model.score(X_test, truth) > known.score(X_test[:, :2], truth) - 0.03
    process = model.estimators_[-1]
    assert process.share_ > 0.5
    seen = np.flatnonzero(process.length_scales_ < np.inf)
    assert set(seen) >= {0, 1}
    assert len(seen) <= 4
