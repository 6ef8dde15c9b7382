"""ShallowReLURegressor with the penalties of the evidence, its default."""

import pickle
import warnings

import numpy as np
import pytest
from numpydoc.docscrape import ClassDoc
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import train_test_split

from sklearn_gn import ShallowReLURegressor, VarProNetRegressor
from sklearn_gn.bayes import evidence
from sklearn_gn.callbacks import Checkpoint


def data(m=150, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (m, 3))
    y = np.abs(X[:, 0] - 0.2) + 0.5 * X[:, 1] + noise * rng.standard_normal(m)
    return X, y


def make(n_neurons=8, **changes):
    return ShallowReLURegressor(n_neurons, **{"random_state": 0, **changes})


@pytest.fixture(scope="module")
def fitted():
    X, y = data()
    return make().fit(X, y)


def test_an_ordinary_table_converges_without_a_warning():
    X, y = load_diabetes(return_X_y=True)
    model = ShallowReLURegressor(random_state=0).fit(X, y)
    assert model.converged_
    assert model.stop_reason_ == "tol"
    assert 45 < model.noise_std_ < 60
    assert len(model.active_) == 442 // 2 // (2 + 10)


@pytest.mark.parametrize("seed", [0, 1, 11])
def test_neurons_that_were_of_no_use_leave_no_trace(seed):
    """The evidence is that of the best iteration, for each size in the same units."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 4))
    y = np.exp(-np.sum(X[:, :3] ** 2, axis=1)) + 0.2 * rng.normal(size=300)
    units = []
    for n_neurons in ("auto", 20):
        model = make(n_neurons, random_state=seed).fit(X, y)
        best = model.convergence_log_["log_evidence"].max()
        units.append(model.log_evidence_ - best)
    assert units[0] == pytest.approx(units[1], abs=0.1)


def test_networks_grow_where_the_evidence_rises():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (800, 3))
    y = np.exp(X[:, 0]) * np.sin(3 * X[:, 1]) + X[:, 2] ** 2
    of_20 = make(20, n_init=3).fit(X[:600], y[:600])
    model = make("auto").fit(X[:600], y[:600])
    assert len(model.hyperplanes_) > 20
    assert model.converged_
    assert model.log_evidence_ > of_20.log_evidence_ + 100
    left = 1 - np.array([one.score(X[600:], y[600:]) for one in (model, of_20)])
    assert left[0] < left[1] / 2
    # Noise of one in twenty leaves less to be seen, and pure noise nothing.
    noisy = make("auto").fit(X[:600], y[:600] + 0.05 * rng.standard_normal(600))
    assert len(noisy.hyperplanes_) < len(model.hyperplanes_)


def test_prediction_is_that_of_the_attributes(fitted):
    X, _ = data()
    found = fitted.transform(X) @ fitted.output_coef_ + X @ fitted.linear_coef_
    np.testing.assert_allclose(
        found + fitted.output_intercept_, fitted.predict(X), rtol=1e-9
    )


def test_every_neuron_has_its_kink_inside_the_data(fitted):
    X, _ = data()
    active = fitted.hyperplanes_[:, :1] + fitted.hyperplanes_[:, 1:] @ X.T > 0
    assert not np.any(active.all(axis=1) | ~active.any(axis=1))


def test_attributes_are_documented_and_exist(fitted):
    entries = ClassDoc(ShallowReLURegressor)["Attributes"]
    described = {name for e in entries for name in e.name.split(", ")}
    found = {a for a in dir(fitted) if a.endswith("_") and not a.startswith("_")}
    assert found <= described
    others = {"breakpoints_", "breakpoint_std_", "selection_path_", "feature_names_in_"}
    assert described - found == others


def test_log_holds_what_the_evidence_chooses(fitted):
    log = fitted.convergence_log_
    assert np.isfinite(log["log_evidence"]).all()
    assert len(log["noise_std"]) == fitted.n_iter_
    # Neurons that are switched off at the end had parameters in the last iteration.
    freedom = log["n_effective_parameters"][-1]
    assert 0.7 * freedom < fitted.n_effective_parameters_ < 1.05 * freedom
    assert set(fitted.alpha_) == {"slope", "coef", "bias", "weights"}
    assert fitted.alpha_["weights"].shape == (3,)


def test_a_feature_of_noise_is_switched_off(fitted):
    X, y = data()
    model = make().fit(np.c_[X, np.random.default_rng(1).standard_normal(len(X))], y)
    weights = model.alpha_["weights"]
    assert weights[3] > 10 * weights[0]


def test_weights_are_repetitions():
    X, y = data(60)
    count = np.arange(60) % 3
    repeated = np.repeat(np.arange(60), count)
    weighted = make(5).fit(X, y, sample_weight=count)
    plain = make(5).fit(X[repeated], y[repeated])
    np.testing.assert_allclose(weighted.predict(X), plain.predict(X), rtol=1e-6)
    for name in ("noise_std_", "log_evidence_", "n_effective_parameters_", "loss_"):
        assert getattr(weighted, name) == pytest.approx(getattr(plain, name), rel=1e-6)
    for a, b in zip(
        weighted.predict_interval(X), plain.predict_interval(X), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("factor", [2.0**-40, 2.0**30])
def test_units_change_nothing(fitted, factor):
    X, y = data()
    other = make().fit(X * [factor, 1, 1], y * factor)
    found = other.predict(X * [factor, 1, 1]) / factor
    np.testing.assert_allclose(found, fitted.predict(X), rtol=1e-6)
    assert other.noise_std_ / factor == pytest.approx(fitted.noise_std_, rel=1e-6)
    evidence_there = other.log_evidence_ + len(y) * np.log(factor)
    assert evidence_there == pytest.approx(fitted.log_evidence_, rel=1e-6)
    np.testing.assert_allclose(
        other.alpha_["weights"], fitted.alpha_["weights"], rtol=1e-4
    )


def test_a_fit_with_given_penalties_stays_where_it_ends(fitted):
    X, y = data()
    model = make(warm_start=True).fit(X, y)
    alpha, noise = model.alpha_, model.noise_std_
    first = model.set_params(alpha=alpha).fit(X, y).predict(X)
    assert np.abs(first - fitted.predict(X)).max() < 0.1 * noise
    np.testing.assert_allclose(model.alpha_["weights"], alpha["weights"], rtol=1e-9)
    model.fit(X, y)
    assert model.stop_reason_ == "tol"
    np.testing.assert_allclose(model.predict(X), first, rtol=0, atol=1e-5 * noise)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": np.ones(2)}, r"\['weights'\] must have shape \(3,\), got shape"),
        ({"coef": -1.0}, "penalties in alpha must be positive"),
        ({"offset": 1.0}, "must have the entries slope, coef, bias, weights, got"),
    ],
)
def test_wrong_penalties_are_named(fitted, change, message):
    X, y = data()
    with pytest.raises(ValueError, match=message):
        make(alpha={**fitted.alpha_, **change}).fit(X, y)
    with pytest.raises(ValueError, match="needs the solver 'vpgn'"):
        make(alpha=fitted.alpha_, solver="lm").fit(X, y)


def test_rows_far_from_all_others_change_little():
    X, y = data(500)
    X = np.c_[X, X[:, 0] + 0.01 * X[:, 2]]
    far = X.copy()
    far[0, 3] = 1e6
    clean, found = make().fit(X, y), make().fit(far, y)
    # Other starts move predictions by as much.
    assert np.abs(found.predict(X[1:]) - clean.predict(X[1:])).max() < 0.08
    assert abs(found.predict(far[:1])[0]) < 2 * np.ptp(y)


def test_standard_errors_are_those_of_the_inverse_matrix(fitted):
    X, _ = data()
    (*_, net), scaling = fitted._network
    shape, z = net.model, scaling.x(X)
    jacobian = shape.jacobian(net.theta, z)[0].T
    precision = evidence.prior_precision(shape.groups(), net.alpha)
    hessian = net.beta * jacobian.T @ jacobian + np.diag(precision)
    variance = np.sum(jacobian @ np.linalg.inv(hessian) * jacobian, axis=1)
    _, std = fitted.predict(X, return_std=True)
    np.testing.assert_allclose(std, np.sqrt(variance) * scaling.y_scale, rtol=1e-6)


def test_intervals_hold_noise_and_error(fitted):
    X, target = data()
    y, std = fitted.predict(X, return_std=True)
    lower, upper = fitted.predict_interval(X, level=0.9)
    # Degrees of freedom of the residuals: the penalties count, too.
    freedom = np.sum((target - y) ** 2) / fitted.noise_std_**2
    assert freedom < len(X) - fitted.n_effective_parameters_ - 0.1
    width = stats.t.ppf(0.95, freedom) * np.hypot(std, fitted.noise_std_)
    np.testing.assert_allclose(lower, y - width, rtol=1e-3)
    np.testing.assert_allclose(upper, y + width, rtol=1e-3)
    np.testing.assert_allclose(upper - y, y - lower, rtol=1e-9)
    with pytest.raises(ValueError, match=r"level must lie between 0 and 1, got 95"):
        fitted.predict_interval(X, level=95)
    with pytest.raises(ValueError, match=r"level must lie between 0 and 1, got '95'"):
        fitted.predict_interval(X, level="95")


def test_intervals_cover_new_observations():
    X, y = data(4000, seed=5)
    model = make(12).fit(X[:1000], y[:1000])
    lower, upper = model.predict_interval(X[1000:], level=0.95)
    inside = np.mean((lower <= y[1000:]) & (y[1000:] <= upper))
    assert 0.93 < inside < 0.97  # 0.0034 is one standard deviation of the share


def test_a_linear_function_needs_no_neurons():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    y = X @ [1.0, -2.0, 0.5, 3.0] + 0.5 * rng.standard_normal(300)
    model = make(10).fit(X, y)
    peer = BayesianRidge().fit(X, y)
    # Four slopes, a constant, and hardly anything for kinks.
    assert model.n_effective_parameters_ < 9
    assert model.noise_std_ == pytest.approx(peer.alpha_**-0.5, rel=0.01)
    error = np.abs(model.predict(X) - peer.predict(X)).max()
    assert error < 0.5 * model.noise_std_


@pytest.mark.parametrize("estimator", [ShallowReLURegressor, VarProNetRegressor])
def test_few_features_of_many_are_found(estimator):
    rng = np.random.default_rng(2)
    X, noise = rng.standard_normal((300, 100)), 0.3 * rng.standard_normal(300)
    y = X[:, 0] + X[:, 1]
    model = estimator(random_state=0).fit(X[:60], (y + noise)[:60])
    assert 0.2 < model.noise_std_ < 0.4
    assert model.score(X[60:], y[60:]) > 0.95  # a linear fit has 0.5


@pytest.mark.parametrize("n_neurons", ["auto", 12])
def test_networks_without_noise_are_recovered(n_neurons):
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, (1000, 2))
    y = np.maximum(X @ [0.6, 0.8] - 0.1, 0) - 2 * np.maximum(X @ [1.0, 0.0] + 0.3, 0)
    model = ShallowReLURegressor(n_neurons, random_state=0).fit(X, y)
    assert model.stop_reason_ == "rounding"
    new = rng.uniform(-1, 1, (500, 2))
    truth = np.maximum(new @ [0.6, 0.8] - 0.1, 0)
    truth -= 2 * np.maximum(new @ [1.0, 0.0] + 0.3, 0)
    # Where no row tells kinks apart, they may lie elsewhere.
    assert np.quantile(np.abs(model.predict(new) - truth), 0.95) < 1e-10


def test_a_bad_start_is_not_gone_on_with():
    X, truth = make_friedman1(300, noise=0.0, random_state=0)
    y = truth + 0.2 * truth.std() * np.random.default_rng(0).standard_normal(300)
    some, rest = train_test_split(np.arange(300), test_size=1 / 3, random_state=0)
    fits = [
        ShallowReLURegressor(random_state=k).fit(X[some], y[some]) for k in range(12)
    ]
    assert min(fit.score(X[rest], truth[rest]) for fit in fits) > 0.95


def test_warm_start_continues():
    X, y = data()
    model = make(warm_start=True).fit(X, y)
    before = model.log_evidence_
    model.fit(X, y)
    assert model.n_iter_ <= 15
    assert model.log_evidence_ >= before - 0.1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_rows_set_aside_are_not_counted():
    X, y = data(m=60)
    y += 9 * X[:, 0]  # a fit sorts the rows by the feature that tells most
    order = np.argsort(X[:, 0])
    X, y, weight = X[order], y[order], 1.0 + np.arange(60) ** 2
    rng = np.random.RandomState(0)
    parts = train_test_split(np.arange(60), test_size=21, random_state=rng)
    train, val = map(np.sort, parts)
    weight[val] = 7.0
    model = make(n_init=1, max_iter=2, early_stopping=True, validation_fraction=0.35)
    model.set_params(random_state=np.random.RandomState(0)).fit(X, y, weight)
    other = clone(model).set_params(random_state=rng)
    other.fit(X[train], y[train], weight[train], X_val=X[val], y_val=y[val])
    np.testing.assert_allclose(other.loss_, model.loss_, rtol=1e-8)
    np.testing.assert_allclose(other.log_evidence_, model.log_evidence_, rtol=1e-8)


def test_resumed_fit_equals_the_whole_one(tmp_path):
    X, y = data()
    whole = make().fit(X, y)
    model = make(max_iter=5).set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model.fit(X, y)
    model.set_params(max_iter=200).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    assert model.n_iter_ == whole.n_iter_


def test_several_targets_share_noise_and_hyperplanes():
    X, y = data()
    Y = np.c_[y, -2 * y + 1]
    model = make().fit(X, Y)
    assert model.linear_coef_.shape == (2, 3)
    pred, std = model.predict(X, return_std=True)
    assert pred.shape == std.shape == (150, 2)
    found = model.transform(X) @ model.output_coef_.T + X @ model.linear_coef_.T
    np.testing.assert_allclose(
        found + model.output_intercept_, pred, rtol=1e-8, atol=1e-8
    )


def test_units_of_one_target_change_nothing():
    X, y = data()
    rng = np.random.default_rng(0)
    Y = np.c_[y, X @ [1, 2, 0] + 0.03 * rng.standard_normal(len(X))]
    factor, shift = np.array([1e4, 1e-5]), np.array([-3.0, 1.0])
    model, other = make().fit(X, Y), make().fit(X, factor * Y + shift)
    pred, std = other.predict(X, return_std=True)
    np.testing.assert_allclose((pred - shift) / factor, model.predict(X), atol=1e-6)
    np.testing.assert_allclose(
        std / factor, model.predict(X, return_std=True)[1], rtol=1e-5
    )
    np.testing.assert_allclose(other.noise_std_, factor * model.noise_std_, rtol=1e-6)
    squares = np.sum((Y - model.predict(X)) ** 2, axis=0)
    ratio = model.noise_std_[1] / model.noise_std_[0]
    assert ratio**2 == pytest.approx(squares[1] / squares[0], rel=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda X, y: (X, np.full(len(y), 3.0)),
        lambda X, y: (X[:1], y[:1]),
        lambda X, y: (X[:2], y[:2]),
        lambda X, y: (np.repeat(X, 60, axis=1)[:20], y[:20]),
        lambda X, y: (np.c_[X, X], y),
        lambda X, y: (X * [1, 0, 1], y),
        lambda X, y: (0 * X, y),
        lambda X, y: (X * 1e-200, y * 1e-200),
        lambda X, y: (X * 1e150, y * 1e150),
        lambda X, y: (np.round(X), np.round(y)),
    ],
    ids=[
        "constant",
        "row",
        "rows",
        "wide",
        "twice",
        "zero",
        "same",
        "tiny",
        "huge",
        "ties",
    ],
)
def test_hard_data_give_numbers(change):
    X, y = change(*data(40))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = make(4).fit(X, y)
    lower, upper = model.predict_interval(X)
    assert np.isfinite(model.predict(X)).all()
    assert np.isfinite(lower).all()
    assert np.isfinite(upper).all()
    assert np.isfinite(model.noise_std_)
    assert np.isfinite(
        np.concatenate([np.ravel(a) for a in model.alpha_.values()])
    ).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [ShallowReLURegressor, VarProNetRegressor])
def test_huge_weights_give_numbers(kind):
    X, y = data(40)
    model = kind(n_init=1, random_state=0).fit(X, y, np.full(40, 1e308))
    assert np.isfinite(model.predict_interval(X)).all()
    assert np.isfinite(model.log_evidence_)


def test_pickle_holds_no_jax(fitted):
    content = pickle.dumps(fitted)
    assert b"jax" not in content
    X, _ = data()
    np.testing.assert_array_equal(pickle.loads(content).predict(X), fitted.predict(X))


def test_the_spectrum_is_that_of_the_dense_matrix():
    X, target = data()
    X = (X - X.mean(axis=0)) / X.std(axis=0)  # the units of the fit
    fitted = make().fit(X, target)
    y, planes = np.c_[np.ones(len(X)), X], fitted.hyperplanes_
    active = (y @ planes.T > 0).astype(float)
    design = (active[:, :, None] * y[:, None, :]).reshape(len(X), -1)
    values = np.linalg.eigvalsh(design.T @ design / len(X))[::-1]
    np.testing.assert_allclose(fitted.gram_spectrum_, values, rtol=1e-8, atol=1e-10)


def test_other_rows_change_no_standard_error(fitted):
    X, _ = data()
    expected = fitted.predict(X, return_std=True)[1]
    many = np.tile(X, (10_000 // len(X), 1))  # more than a block of them
    found = fitted.predict(many, return_std=True)[1].reshape(-1, len(X))
    np.testing.assert_allclose(found, np.tile(expected, (len(found), 1)), rtol=1e-9)


def test_a_number_is_every_penalty_of_the_default_model():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    y = X[:, 0] + np.abs(X[:, 1]) + 0.1 * rng.normal(size=90)
    model = ShallowReLURegressor(alpha=0.1, random_state=0).fit(X, y)
    assert model.alpha_method_ == "fixed"
    same = {"slope": 0.1, "coef": 0.1, "bias": 0.1, "weights": np.full(3, 0.1)}
    for name, value in model.alpha_.items():
        np.testing.assert_allclose(value, same[name], rtol=1e-10)
    # The gradient of the objective vanishes, in units of its terms.
    net, scaling = model.set_params(alpha=same, tol=1e-12).fit(X, y)._network
    residual = model.predict(X) - y
    z = np.c_[np.ones(90), scaling.x(X)].T @ residual / 90 / scaling.y_scale
    z[1:] += 0.1 * net.found.theta[1:4]
    np.testing.assert_allclose(z, 0, atol=1e-6)
    # Higher penalties make the function smaller.
    stiff = ShallowReLURegressor(alpha=100.0, random_state=0).fit(X, y)
    assert np.ptp(stiff.predict(X)) < np.ptp(model.predict(X)) / 5
