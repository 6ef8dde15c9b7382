"""VarProNetRegressor and VarProNetClassifier."""

import itertools
import pickle
import warnings
from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import VarProNetClassifier, VarProNetRegressor
from sklearn_gn.callbacks import Checkpoint
from sklearn_gn.networks import MLP, NeuralODE
from sklearn_gn.solvers import (
    FGN,
    NETWORK_SOLVERS,
    Adam,
    FullGN,
    GNvpro,
)
from sklearn_gn.varpro import gnvpro, training
from sklearn_gn.varpro.problem import Model

EVALUATED = "evaluated_on_all_rows"  # a column of the log
ONE_SPLIT = ShuffleSplit(1, random_state=0)  # of a search


def smooth(n=60, seed=0, noise=0.0):
    """Up to 64 rows have one padded length, so tests share what is compiled."""
    rng = np.random.RandomState(seed)
    X = rng.uniform(-1, 1, (n, 2))
    y = np.stack([np.sin(3 * X[:, 0]) * X[:, 1], np.exp(X[:, 0])], axis=1)
    return X, y + noise * rng.randn(n, 2)


def rings(n=60, seed=0, n_classes=3):
    rng = np.random.RandomState(seed)
    X = rng.uniform(-1, 1, (n, 2))
    radius = np.linalg.norm(X, axis=1)
    return X, np.digitize(radius, np.linspace(0.5, 0.9, n_classes - 1))


def regressor(**words):
    settings = {"hidden_layer_sizes": (6,), "max_iter": 10, "random_state": 0}
    return VarProNetRegressor(**{**settings, "alpha": 1e-6, "tol": 1e-5, **words})


def classifier(**words):
    settings = {"hidden_layer_sizes": (6,), "max_iter": 10, "random_state": 0}
    return VarProNetClassifier(**{**settings, "alpha": 1e-4, "tol": 1e-5, **words})


def in_batches(solver, size):
    """The solver of that name, with batches that are kept for two iterations."""
    solver = clone(NETWORK_SOLVERS[solver])
    return solver.set_params(batch_size=size, iterations_per_batch=2)


class StopAfter:
    """A callback that ends a fit after some iterations."""

    def __init__(self, iterations):
        self.iterations = iterations

    def setup(self, estimator, context):
        pass

    teardown = on_fit_task_begin = setup

    def on_fit_task_end(self, estimator, context, **_):
        return context.max_subtasks == 0 and context.task_id == self.iterations - 1


def quiet(function, *args, **words):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return function(*args, **words)


# --- without hidden layers -----------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_without_hidden_layers_it_is_ridge_regression(weighted):
    X, y = load_diabetes(return_X_y=True)
    weight = 0.5 + np.random.RandomState(0).rand(len(y)) if weighted else None
    total = len(y) if weight is None else weight.sum()
    model = VarProNetRegressor(hidden_layer_sizes=(), scale=False, alpha=1e-3).fit(
        X, y, weight
    )
    Z = np.concatenate([X, np.ones((len(X), 1))], axis=1)
    ridge = Ridge(alpha=total * 1e-3, fit_intercept=False, solver="cholesky")
    ridge.fit(Z, y, weight)
    found = np.append(model.output_coef_[0], model.output_intercept_)
    np.testing.assert_allclose(found, ridge.coef_, rtol=1e-8)
    np.testing.assert_allclose(model.predict(X), ridge.predict(Z), rtol=1e-8)
    assert model.converged_


@pytest.mark.parametrize("n_classes", [2, 3])
def test_without_hidden_layers_it_is_logistic_regression(n_classes):
    X, y = load_iris(return_X_y=True)
    X, y = X[50 * (3 - n_classes) :], y[50 * (3 - n_classes) :]
    model = VarProNetClassifier(hidden_layer_sizes=(), scale=False, alpha=1e-2).fit(
        X, y
    )
    Z = np.concatenate([X, np.ones((len(X), 1))], axis=1)
    peer = LogisticRegression(
        C=1 / (len(y) * 1e-2),
        fit_intercept=False,
        solver="newton-cholesky",
        tol=1e-12,
        max_iter=500,
    ).fit(Z, y)
    found = np.concatenate(
        [model.output_coef_, model.output_intercept_[:, None]], axis=1
    )
    np.testing.assert_allclose(found, peer.coef_, atol=1e-8)
    np.testing.assert_allclose(model.predict_proba(X), peer.predict_proba(Z), atol=1e-8)


# --- accuracy ------------------------------------------------------------------------


@pytest.mark.parametrize("curvature", ["krylov", "dense"])
def test_a_smooth_function_is_found(curvature):
    X, y = smooth(64)
    model = regressor(
        hidden_layer_sizes=(12,), max_iter=30, solver=GNvpro(curvature=curvature)
    )
    quiet(model.fit, X, y)
    assert model.score(*smooth(120, seed=1)) > 0.998
    assert model.convergence_log_["loss"][-1] < 1e-2 * model.convergence_log_["loss"][0]


@pytest.mark.slow
def test_rings_are_told_apart():
    X, y = rings(64)
    model = classifier(max_iter=20, tol=1e-3)
    quiet(model.fit, X, y)
    assert model.score(*rings(400, seed=1)) > 0.8
    assert np.isfinite(model.predict_log_proba(1e6 * X)).all()


FLOW = NeuralODE(width=8, n_cells=1, n_levels=2)


@pytest.mark.slow
def test_levels_of_the_ode_follow_each_other_and_few_rows_still_move():
    X, y = smooth(20)  # whose matrix is singular
    model = quiet(regressor(network=FLOW, max_iter=6, tol=0.0).fit, X, y)
    log = model.convergence_log_
    np.testing.assert_array_equal(log["level"], [0, 0, 0, 1, 1, 1])
    assert np.isfinite(log["damping"]).all()
    for part in np.split(log["loss"], 2):
        assert np.all(np.diff(part) < 0)
    assert log["loss"][3] < log["loss"][0]  # it begins with interpolated weights
    assert model.loss_ < log["loss"][0] / 3
    assert [a.shape[0] for a in model.intercepts_] == [8, 3]


@pytest.mark.parametrize("solver", sorted(NETWORK_SOLVERS))
def test_every_regression_solver_lowers_the_objective(solver):
    X, y = smooth(120 if solver in ("adam", "sgd") else 64)
    solver = clone(NETWORK_SOLVERS[solver])
    if solver.name in ("adam", "sgd"):
        solver.set_params(batch_size=32)
    model = regressor(solver=solver, max_iter=6)
    quiet(model.fit, X, y)
    log = model.convergence_log_
    assert log["loss"][-1] < log["loss"][0]
    assert (np.diff(log["work_units"]) > 0).all()


@pytest.mark.parametrize(
    ("solver", "n_classes"),
    [
        *((name, 3) for name in NETWORK_SOLVERS),
        *((name, 2) for name in ("gnvpro", "adam")),
    ],
)
@pytest.mark.repeats
def test_every_classification_solver_lowers_the_objective(solver, n_classes):
    X, y = rings(n_classes=n_classes)
    model = classifier(solver=solver, max_iter=6)
    quiet(model.fit, X, y)
    assert model.convergence_log_["loss"][-1] < model.convergence_log_["loss"][0]
    assert model.predict_proba(X).shape == (len(X), n_classes)


def test_loss_is_the_objective_in_the_units_of_the_targets():
    X, y = smooth(noise=0.1)
    model = quiet(regressor(alpha=(1e-3, 1e-2)).fit, X, y)
    error = model.predict(X) - y
    scale = np.sqrt(np.mean(y.std(axis=0) ** 2))
    weights = sum(np.sum(a**2) for a in (*model.coefs_, *model.intercepts_))
    intercept = model.output_intercept_ - y.mean(axis=0)  # of scaled targets
    output = np.sum(model.output_coef_**2) + np.sum(intercept**2)
    expected = 0.5 * np.mean(np.sum(error**2, axis=1))
    expected += 0.5 * (scale**2 * 1e-3 * weights + 1e-2 * output)
    assert model.loss_ == pytest.approx(expected, rel=1e-9)
    assert model.loss_ == pytest.approx(model.convergence_log_["loss"][-1], rel=1e-9)


def test_a_fixed_damping_is_the_shift_of_the_step():
    X, y = smooth()
    model = quiet(regressor(damping=1e-2).fit, X, y)
    np.testing.assert_allclose(model.convergence_log_["damping"], 1e-2)


# --- equivalences --------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver", ["gnvpro", pytest.param("lbfgs_vpro", marks=pytest.mark.slow), "adam"]
)
def test_weights_equal_repetition(solver):
    X, y = rings(60)
    times = np.random.RandomState(0).randint(0, 4, size=len(y))
    model = classifier(solver=solver, max_iter=3)
    a = quiet(clone(model).fit, X, y, sample_weight=times)
    b = quiet(clone(model).fit, np.repeat(X, times, axis=0), np.repeat(y, times))
    np.testing.assert_allclose(a.output_coef_, b.output_coef_, rtol=1e-6)
    if solver in NETWORK_SOLVERS:
        X, y = smooth(50)
        times = np.random.RandomState(0).randint(0, 4, size=len(y))
        model = regressor(solver=solver, max_iter=3)
        a = quiet(clone(model).fit, X, y, sample_weight=times)
        b = quiet(
            clone(model).fit, np.repeat(X, times, axis=0), np.repeat(y, times, axis=0)
        )
        np.testing.assert_allclose(a.output_coef_, b.output_coef_, rtol=1e-6)


def test_units_of_the_data_change_nothing():
    X, y = smooth()
    a = quiet(regressor().fit, X, y)
    b = quiet(regressor().fit, 1024 * X - 2048, 4 * y)
    np.testing.assert_allclose(b.predict(1024 * X - 2048), 4 * a.predict(X), rtol=1e-5)
    assert b.loss_ == pytest.approx(16 * a.loss_, rel=1e-5)


@pytest.mark.parametrize("solver", ["gnvpro", "adam", "lbfgs_vpro"])
@pytest.mark.repeats
def test_a_resumed_fit_ends_as_an_uninterrupted_one(solver, tmp_path):
    X, y = smooth(20 if solver == "gnvpro" else 60)
    model = regressor(solver=solver, tol=0.0)
    if solver == "gnvpro":  # the place in the levels is resumed too
        model.set_params(network=FLOW)
    whole = quiet(clone(model).set_params(max_iter=8).fit, X, y)
    path = tmp_path / "fit.ckpt"
    callbacks = Checkpoint(path), StopAfter(5)
    half = clone(model).set_params(max_iter=8).set_callbacks(*callbacks)
    quiet(half.fit, X, y)
    assert half.n_iter_ < 8
    resumed = clone(model).set_params(max_iter=8).set_callbacks(Checkpoint(path))
    quiet(resumed.fit, X, y)
    np.testing.assert_array_equal(resumed.output_coef_, whole.output_coef_)


@pytest.mark.parametrize("solver", ["gnvpro", "gn", "lbfgs_vpro"])
@pytest.mark.repeats
def test_a_fit_on_batches_can_be_prolonged(solver, tmp_path):
    X, y = smooth(64)
    model = regressor(solver=in_batches(solver, 30), tol=0.0)
    whole = quiet(clone(model).set_params(max_iter=20).fit, X, y)
    evaluated = whole.convergence_log_[EVALUATED]
    between = np.flatnonzero(~evaluated)[1]
    path = tmp_path / "fit.ckpt"
    for max_iter in (between + 1, 20):
        part = clone(model).set_params(max_iter=max_iter)
        quiet(part.set_callbacks(Checkpoint(path)).fit, X, y)
    np.testing.assert_array_equal(part.output_coef_, whole.output_coef_)
    again = part.convergence_log_[EVALUATED]
    np.testing.assert_array_equal(
        np.delete(again, between), np.delete(evaluated, between)
    )


def test_warm_start_goes_on():
    X, y = smooth()
    model = quiet(regressor(warm_start=True, max_iter=4).fit, X, y)
    first = model.loss_
    quiet(model.fit, X, y)
    assert model.loss_ < first
    with pytest.raises(ValueError, match=r"warm_start=True continues .* 2 features"):
        model.fit(X[:, :1], y)
    model = quiet(classifier(warm_start=True).fit, *rings())
    with pytest.raises(ValueError, match="warm_start=True continues with the classes"):
        model.fit(*rings(n_classes=4))


def test_early_stopping_returns_the_best_network_on_validation_data():
    X, y = smooth(60, noise=1.0)
    model = regressor(alpha=(0, 1e-9), max_iter=100, tol=0.0)
    model.set_params(early_stopping=True, n_iter_no_change=4)
    model.fit(X[:40], y[:40], X_val=X[40:], y_val=y[40:])
    assert model.stop_reason_ == "early_stopping"
    log = model.convergence_log_["val_loss"]
    error = model.predict(X[40:]) - y[40:]
    found = 0.5 * np.mean(np.sum(error**2, axis=1))
    assert found <= np.min(log) * (1 + 1e-9)
    split = quiet(classifier(early_stopping=True).fit, *rings())
    assert np.isfinite(split.convergence_log_["val_loss"]).all()


def test_folds_and_dampings_compile_once(compiled):
    X, y = smooth(64)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), regressor(max_iter=2)),
        {"varpronetregressor__damping": [None, 1e-3, 1e-2]},
        cv=4,
    )
    quiet(search.fit, X, y)
    # The folds, and all rows once more for the best.
    assert max(Counter(compiled).values(), default=0) <= 2
    compiled.clear()
    quiet(
        search.set_params(param_grid={"varpronetregressor__damping": [0.1]}).fit, X, y
    )
    assert compiled == []


def test_a_grid_reaches_the_network():
    X, y = smooth(64)
    search = GridSearchCV(
        regressor(network=MLP((3,)), max_iter=2),
        {"network__hidden_layer_sizes": [(3,), (6,)]},
        cv=ONE_SPLIT,
    )
    quiet(search.fit, X, y)
    (best,) = search.best_params_.values()
    assert search.best_estimator_.coefs_[0].shape == (2, *best)


def test_fitted_estimators_pickle_and_stay_numpy():
    for model, data in ((regressor(), smooth()), (classifier(), rings())):
        quiet(model.fit, *data)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict(data[0]), model.predict(data[0]))
        assert b"jaxlib" not in pickle.dumps(model)
        assert not any(
            isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(vars(model))
        )


# --- what it returns -----------------------------------------------------------------


def test_transform_gives_the_inputs_of_the_output_layer():
    X, y = smooth()
    model = quiet(regressor().fit, X, y)
    Z = model.transform(X)
    predicted = Z @ model.output_coef_.T + model.output_intercept_
    np.testing.assert_allclose(predicted, model.predict(X), rtol=1e-9, atol=1e-9)
    assert list(model.get_feature_names_out()) == [
        f"varpronetregressor{k}" for k in range(6)
    ]


def test_error_bars_of_a_linear_model_are_those_of_theory():
    rng = np.random.RandomState(0)
    X = rng.randn(60, 3)
    y = X @ [1.0, 2.0, 3.0] + 0.5 * rng.randn(60)
    model = VarProNetRegressor(hidden_layer_sizes=(), alpha=0.0).fit(X, y)
    _, std = model.predict(X, return_std=True)
    Z = np.concatenate([X, np.ones((60, 1))], axis=1)
    residual = y - Z @ np.linalg.lstsq(Z, y, rcond=None)[0]
    covariance = np.linalg.inv(Z.T @ Z) * (residual @ residual) / (60 - 4)
    np.testing.assert_allclose(std, np.sqrt(np.einsum("ij,jk,ik->i", Z, covariance, Z)))


def test_error_bars_cover_the_truth():
    X, y = smooth(120, noise=0.1)
    dense = GNvpro(curvature="dense")
    model = regressor(hidden_layer_sizes=(12,), max_iter=60, solver=dense)
    quiet(model.fit, X, y)
    Z, truth = smooth(400, seed=1)
    mean, std = model.predict(Z, return_std=True)
    assert std.shape == (400, 2)
    assert 0.8 < np.mean(np.abs(mean - truth) < 2 * std) <= 1


# --- networks of others --------------------------------------------------------------


class Polynomial:
    """A network in the convention of Flax, without Flax."""

    def init(self, key, x):
        return {"w": jax.random.normal(key, (x.shape[1], 4), x.dtype)}

    def apply(self, params, x):
        z = x @ params["w"]
        return z + z**2


def test_any_object_with_init_and_apply_will_do(compiled):
    X, y = smooth()
    model = quiet(regressor(network=Polynomial()).fit, X, y)
    assert model.score(X, y) > 0.6
    assert model.coefs_[0].shape == (2, 4)
    assert model.intercepts_ == []
    del compiled[:]
    again = quiet(regressor(network=Polynomial()).fit, X, y)
    assert not compiled  # objects of the same content share their programs
    assert again.loss_ == model.loss_


def test_a_flax_module_will_do():
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.tanh(nn.Dense(5, param_dtype=x.dtype)(x))

    X, y = smooth()
    model = quiet(regressor(network=Net(), max_iter=20).fit, X, y)
    assert model.score(X, y) > 0.9


def test_images_must_be_square_for_the_short_name():
    rng = np.random.RandomState(0)
    X, y = rng.randn(20, 36), rng.randn(20)
    model = regressor(network="cnn", solver="adam", max_iter=1)
    quiet(model.fit, X, y)
    assert model.transform(X).shape == (20, 64)
    with pytest.raises(ValueError, match=r"network='cnn' takes square images"):
        regressor(network="cnn").fit(X[:, :35], y)


# --- bad input and hard data ---------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"solver": "gnvpr"}, r"solver='gnvpr' is unknown.*Did you mean 'gnvpro'"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": "64"}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": ("a", "b")}, "hidden_layer_sizes must hold"),
        ({"hidden_layer_sizes": (3.5,)}, "hidden_layer_sizes must hold"),
        ({"hidden_layer_sizes": [[3], [4]]}, "hidden_layer_sizes must hold"),
        (
            {"hidden_layer_sizes": ("a",), "network": "neural_ode"},
            "hidden_layer_sizes must hold",
        ),
        (
            {"hidden_layer_sizes": (3.7,), "network": "neural_ode"},
            "hidden_layer_sizes must hold",
        ),
        ({"network": MLP(3.5)}, "hidden_layer_sizes must hold"),
        ({"network": MLP("ab")}, "hidden_layer_sizes must hold"),
        (
            {"activation": ("tanh", ["relu"]), "hidden_layer_sizes": (2, 2)},
            "activation",
        ),
        ({"activation": "tan"}, "activation='tan'"),
        ({"alpha": "cv"}, "alpha"),
        ({"alpha": (1e-3, "gcv")}, "alpha must be"),
        ({"alpha": ("gcv", 1e-3)}, "alpha"),
        ({"alpha": (1e-3,)}, "alpha"),
        ({"alpha": (1e-3, -1.0)}, "alpha"),
        ({"alpha": (np.nan, 1.0)}, "alpha"),
        ({"rank": 0}, "rank"),
        ({"damping": -1.0}, "damping"),
        ({"network": "ode"}, "network"),
        ({"network": NeuralODE(width=0)}, "width"),
        ({"solver": GNvpro(curvature="lu")}, "curvature"),
        ({"solver": GNvpro(batch_size=0)}, "batch_size"),
        ({"solver": GNvpro(iterations_per_batch=0)}, "iterations_per_batch"),
        ({"solver": Adam(learning_rate=0.0)}, "learning_rate"),
        ({"solver": FGN()}, "does not fit VarProNetRegressor"),
        ({"solver": GNvpro(curvature="dense"), "rank": 3}, "rank=3 .* Krylov"),
    ],
)
def test_bad_parameters_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        regressor(**words).fit(*smooth())


def test_one_class_is_refused():
    X, y = rings()
    with pytest.raises(ValueError, match=r"at least two classes.*\[0\]"):
        classifier().fit(X, 0 * y)
    with pytest.raises(ValueError, match=r"y_val holds labels .* \[9\]"):
        classifier().fit(X, y, X_val=X[:1], y_val=[9])


HARD_FEATURES = {
    "large": lambda X: X * 1e200,
    "tiny": lambda X: X * 1e-200,
    "collinear": lambda X: X[:, [0, 0]],
    "constant": lambda X: X * [1, 0] + 7,
    "offset": lambda X: X + 1e6,
    "zero": lambda X: 0 * X,
    "few": lambda X: X[:4],
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("name", "solver"),
    [
        *((name, "gnvpro") for name in HARD_FEATURES),
        *((name, "lbfgs_vpro") for name in HARD_FEATURES if name != "few"),
        # For which all is compiled again.
        pytest.param("few", "lbfgs_vpro", marks=pytest.mark.slow),
    ],
)
def test_hard_features_give_finite_predictions(name, solver):
    X, y = smooth()
    X = HARD_FEATURES[name](X)
    y = y[: len(X)]
    model = regressor(solver=solver, max_iter=3, alpha=(1e-6, 0.0)).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    error = 0.5 * np.mean(np.sum((model.predict(X) - y) ** 2, axis=1))
    total = 0.5 * np.mean(np.sum((y - y.mean(axis=0)) ** 2, axis=1))
    assert error <= total * (1 + 1e-3) + 1e-12


def test_constant_targets_are_predicted():
    X, _ = smooth()
    model = regressor().fit(X, np.full(len(X), 3.5))
    np.testing.assert_allclose(model.predict(X), 3.5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.repeats
def test_separable_classes_give_finite_probabilities(dtype):
    X, y = rings()
    X = X + 100 * y[:, None]
    model = classifier(alpha=(0.0, 1e-12), max_iter=5, dtype=dtype).fit(X, y)
    assert np.isfinite(model.predict_log_proba(X)).all()
    assert model.score(X, y) == 1


def test_single_precision_is_near_double():
    X, y = smooth()
    single = quiet(regressor(dtype="float32", alpha=(1e-6, 1e-3)).fit, X, y)
    double = quiet(regressor(alpha=(1e-6, 1e-3)).fit, X, y)
    assert single.loss_ == pytest.approx(double.loss_, rel=0.5)
    assert single.predict(X).dtype == np.float64


# --- batches -------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["gnvpro", "gn", "lbfgs_vpro"])
@pytest.mark.repeats
def test_batches_are_evaluated_on_all_rows(solver):
    X, y = smooth(64)
    model = regressor(solver=in_batches(solver, 30), max_iter=50, tol=0.0)
    quiet(model.fit, X, y)
    log = model.convergence_log_
    assert model.loss_ == pytest.approx(np.min(log["loss"]), rel=1e-9)
    if solver != "gn":  # the output layer is the best for all rows
        z = np.c_[model.transform(X), np.ones(len(X))]
        found = np.c_[model.output_coef_, model.output_intercept_].T
        center = y.mean(axis=0)
        ridge = z.T @ z / len(X) + model.alpha_[1] * np.eye(z.shape[1])
        best = np.linalg.solve(ridge, z.T @ (y - center).reshape(len(X), -1) / len(X))
        best[-1] += center
        np.testing.assert_allclose(found, best, atol=1e-8 * y.std())
    # Looks are neither too rare nor too frequent; in between the last loss stands.
    evaluated, work = log[EVALUATED], log["work_units"]
    assert evaluated[0]
    assert evaluated[-1]
    assert not evaluated.all()
    assert np.all(np.diff(log["loss"])[~evaluated[1:]] == 0)
    gaps = np.diff(work[evaluated])[:-1]  # at the end it may be sooner
    pause = np.minimum(work[evaluated][:-2] / 4, 20)
    assert np.all(gaps >= pause)
    assert np.all(gaps <= pause + np.diff(work).max() + 1)
    # A pass over a batch of 30 counts as 30 of 64.
    parts = (np.diff(work)[:-1] - evaluated[1:-1]) * 64 / 30
    np.testing.assert_allclose(parts, np.round(parts), atol=1e-9)


@pytest.mark.parametrize("solver", ["gnvpro", "gn", "lbfgs_vpro"])
def test_a_fit_that_stops_between_looks_is_evaluated(solver):
    X, y = smooth(70)
    words = {"solver": in_batches(solver, 30), "max_iter": 40, "tol": 0.0}
    whole = quiet(regressor(**words).fit, X, y)
    between = np.flatnonzero(~whole.convergence_log_[EVALUATED])[0]  # far from the end
    stop = StopAfter(between + 1)
    stopped = regressor(**words).set_callbacks(stop)
    quiet(stopped.fit, X, y)
    log = stopped.convergence_log_
    assert stopped.stop_reason_ == "callback"
    assert log[EVALUATED][-1]
    assert log["loss"][-1] < whole.convergence_log_["loss"][between]
    assert stopped.loss_ == pytest.approx(log["loss"].min(), rel=1e-9)


def test_early_stopping_waits_for_looks():
    X, y = smooth(200, noise=0.01)
    model = regressor(
        solver=FullGN(batch_size=20),
        rank=8,
        max_iter=200,
        tol=0.0,
        early_stopping=True,
        n_iter_no_change=3,
    )
    quiet(model.fit, X[:150], y[:150], X_val=X[150:], y_val=y[150:])
    log = model.convergence_log_
    assert model.stop_reason_ == "early_stopping"
    looks = log["val_loss"][log[EVALUATED]]
    assert len(looks) - 1 - np.argmin(looks) == 3
    assert np.all(np.diff(log["val_loss"])[~log[EVALUATED][1:]] == 0)


@pytest.mark.slow
def test_a_level_ends_with_a_look():
    X, y = smooth(64)
    network = NeuralODE(width=3, n_cells=1, n_levels=2)
    solver = GNvpro(batch_size=20, iterations_per_batch=1)
    model = regressor(network=network, solver=solver, rank=3, tol=0.0)
    quiet(model.set_params(max_iter=41).fit, X, y)
    log = model.convergence_log_
    last = np.flatnonzero(log["level"] == 0)[-1]
    assert last == 20  # half of the iterations
    assert log[EVALUATED][last]
    assert not log[EVALUATED][:last].all()


def test_many_rows_come_in_batches(monkeypatch):
    words = (
        f"have {training.BATCH_ROWS} rows where more than {4 * training.BATCH_ROWS} "
    )
    assert words in " ".join(GNvpro.__doc__.split())
    monkeypatch.setattr(training, "BATCH_ROWS", 30)
    X, y = smooth(130)
    given, auto = (
        quiet(regressor(solver=GNvpro(batch_size=size), max_iter=2).fit, X, y)
        for size in (30, "auto")
    )
    np.testing.assert_allclose(auto.predict(X[:9]), given.predict(X[:9]), rtol=1e-8)
    fewer = quiet(regressor(max_iter=2).fit, X[:64], y[:64])
    whole = clone(fewer).set_params(solver=GNvpro(batch_size=None))
    quiet(whole.fit, X[:64], y[:64])
    np.testing.assert_allclose(fewer.predict(X[:9]), whole.predict(X[:9]), rtol=1e-8)
    few, many = (m.convergence_log_["work_units"][-1] for m in (given, fewer))
    assert many > 2 * few


def test_lbfgs_without_hidden_layers_is_the_output_layer():
    X, y = smooth(40)
    words = {"hidden_layer_sizes": (), "alpha": 1e-2}
    expected = quiet(regressor(**words).fit, X, y)
    found = quiet(regressor(solver="lbfgs_vpro", **words).fit, X, y)
    np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=1e-8)


# --- targets in different units ------------------------------------------------------


@pytest.mark.parametrize("solver", ["gnvpro", "gn"])
def test_targets_in_different_units_do_not_depend_on_them(solver):
    X, y = smooth()
    model = regressor(solver=solver, max_iter=3, warm_start=True)
    found = []
    for unit in np.array([[1, 2.0**14], [2.0**-30, 1.0]]):
        own = quiet(clone(model).fit, X, y * unit)
        quiet(own.fit, X, y * unit)  # goes on from the first fit
        mean, std = own.predict(X, return_std=True)
        interval = own.predict_interval(X)
        found.append(np.r_[mean, std, *interval, own.output_coef_.T] / unit)
        assert own.loss_ == pytest.approx(own.convergence_log_["loss"][-1], rel=1e-9)
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_warm_start_takes_over_the_weights_of_targets_that_change_units():
    X, y = smooth()
    model = quiet(regressor(solver="gn", max_iter=10, warm_start=True).fit, X, y)
    before = model.predict(X)
    model.set_params(max_iter=1)
    other = y * [1, 2.0**14]
    quiet(model.fit, X, other)
    after = model.convergence_log_["loss"][0] / np.mean(np.var(other, axis=0))
    assert after < 0.1
    assert np.all(np.std(before - y, axis=0) < 0.5)


# --- hard numbers --------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-170, 1e160])
def test_targets_of_any_size(size):
    X, y = smooth(50)
    expected = quiet(regressor(max_iter=3).fit, X, y).predict(X)
    found = quiet(regressor(max_iter=3).fit, X, size * y).predict(X)
    np.testing.assert_allclose(found / size, expected, rtol=1e-6, atol=1e-8)


def test_softmax_without_penalty_is_that_of_scikit_learn():
    rng = np.random.RandomState(0)
    X, y = rng.randn(150, 4), rng.randint(3, size=150)  # of the shape of load_iris
    model = VarProNetClassifier(
        hidden_layer_sizes=(), alpha=0.0, scale=False, random_state=0
    )
    quiet(model.fit, X, y)
    expected = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(
        model.predict_proba(X), expected.predict_proba(X), atol=1e-6
    )


def test_a_fitted_model_keeps_its_network():
    X, y = smooth(40)
    model = quiet(regressor(network=MLP((6,)), max_iter=2).fit, X, y)
    before = model.predict(X)
    model.set_params(network__activation="relu", network__hidden_layer_sizes=(5,))
    np.testing.assert_array_equal(model.predict(X), before)
    model.set_params(warm_start=True)
    with pytest.raises(ValueError, match="warm_start=True continues with"):
        model.fit(X, y)


def test_a_class_is_no_network():
    with pytest.raises(ValueError, match="got the class NeuralODE: call it"):
        regressor(network=NeuralODE).fit(*smooth(10))


# --- the solver and its settings -----------------------------------------------------


def test_one_penalty_stands_for_both():
    X, y = smooth(40)
    one, pair = (
        quiet(regressor(alpha=alpha, max_iter=2).fit, X, y)
        for alpha in (1e-3, np.array([1e-3, 1e-3]))
    )
    np.testing.assert_allclose(one.output_coef_, pair.output_coef_, rtol=1e-8)
    assert one.alpha_ == pair.alpha_ == (1e-3, 1e-3)
    with pytest.raises(ValueError, match="alpha must be"):
        classifier(alpha=(1e-3, "gcv")).fit(*rings())


def test_a_rank_is_the_dimension_of_the_krylov_space():
    X, y = smooth(40)
    dense, few, many, more = (
        quiet(regressor(rank=rank, max_iter=4, tol=0.0).fit, X, y)
        for rank in (None, 3, 10**3, 10**12)
    )
    n_weights = sum(a.size for a in (*dense.coefs_, *dense.intercepts_))
    assert dense.gram_spectrum_.shape == (n_weights,)
    assert few.gram_spectrum_.shape == (3,)
    assert few.convergence_log_["inner_iterations"].max() == 3
    # More than there are dimensions has no effect.
    assert many.gram_spectrum_.shape == (n_weights,)
    np.testing.assert_allclose(more.output_coef_, many.output_coef_, rtol=1e-6)
    krylov = regressor(hidden_layer_sizes=(12,), solver=GNvpro(curvature="krylov"))
    assert quiet(krylov.fit, X, y).gram_spectrum_.shape == (20,)


def test_a_grid_reaches_damping_rank_and_the_settings_of_a_solver():
    X, y = smooth(64)
    search = GridSearchCV(
        regressor(max_iter=2),
        {"damping": [None, 1e-2], "rank": [None, 3]},
        cv=ONE_SPLIT,
    )
    quiet(search.fit, X, y)
    scores = search.cv_results_["mean_test_score"]
    assert len(np.unique(scores)) == 4
    model = regressor(solver=Adam(), max_iter=2)
    search = GridSearchCV(model, {"solver__learning_rate": [1e-3, 1e-1]}, cv=ONE_SPLIT)
    quiet(search.fit, X, y)
    first, second = search.cv_results_["mean_test_score"]
    assert first != second
    again = clone(search.best_estimator_).solver
    assert again.learning_rate == search.best_params_["solver__learning_rate"]


def test_a_solver_object_is_its_short_form_and_does_not_change():
    X, y = rings(60)
    for name, solver in NETWORK_SOLVERS.items():
        before = solver.get_params()
        by_name, by_object = (
            quiet(classifier(solver=given, max_iter=2).fit, X, y)
            for given in (name, clone(solver))
        )
        np.testing.assert_allclose(
            by_name.output_coef_, by_object.output_coef_, rtol=1e-8
        )
        assert solver.get_params() == before


@pytest.mark.parametrize("solver", ["gnvpro", "gn", "lbfgs_vpro"])
def test_batches_of_any_size_and_length(solver):
    X, y = smooth(64)
    large = clone(NETWORK_SOLVERS[solver])
    large.set_params(batch_size=10**12, iterations_per_batch=10**12)
    whole = clone(large).set_params(batch_size=None)
    a, b = (quiet(regressor(solver=s, max_iter=2).fit, X, y) for s in (large, whole))
    np.testing.assert_allclose(a.output_coef_, b.output_coef_, rtol=1e-8)
    large.set_params(batch_size=30)
    model = quiet(regressor(solver=large, max_iter=8, tol=0.0).fit, X, y)
    assert np.isfinite(model.loss_)


def test_mini_batches_of_any_size():
    X, y = smooth(40)
    a, b = (
        quiet(regressor(solver=Adam(batch_size=size), max_iter=2).fit, X, y)
        for size in (10**12, 40)
    )
    np.testing.assert_allclose(a.output_coef_, b.output_coef_, rtol=1e-8)


def test_a_network_must_be_hashable():
    class Unhashable(Polynomial):
        __hash__ = None

    with pytest.raises(ValueError, match="must be hashable"):
        regressor(network=Unhashable()).fit(*smooth(10))


# --- predictions read fitted state only ----------------------------------------------


def test_parameters_of_the_device_and_precision_do_not_reach_predictions():
    X, y = smooth(40)
    fitted = quiet(regressor(max_iter=2).fit, X, y)
    before = *fitted.predict(X, return_std=True), fitted.transform(X)
    fitted.set_params(device="tpu", dtype="float32", alpha=1.0, scale=False)
    after = *fitted.predict(X, return_std=True), fitted.transform(X)
    for a, b in zip(after, before, strict=True):
        np.testing.assert_array_equal(a, b)
    X, y = rings(60)
    fitted = quiet(classifier(max_iter=2).fit, X, y)
    before = fitted.predict_proba(X)
    fitted.set_params(device="tpu", dtype="float32")
    np.testing.assert_array_equal(fitted.predict_proba(X), before)


def test_a_model_of_another_device_predicts_on_the_default_one():
    X, y = smooth(40)
    model = quiet(regressor(max_iter=2).fit, X, y)
    before = model.predict(X, return_std=True)
    model._computed_in = "float64", "tpu"  # as a pickle from such a machine has it
    again = pickle.loads(pickle.dumps(model))
    for a, b in zip(again.predict(X, return_std=True), before, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="device='tpu' is not available"):
        regressor(device="tpu").fit(X, y)


# --- error bars ----------------------------------------------------------------------


def test_error_bars_are_computed_once_and_when_asked_for(monkeypatch):
    X, y = smooth(60)
    calls = []

    def counted(*arguments):
        calls.append(1)
        return compute(*arguments)

    compute = gnvpro.posterior
    monkeypatch.setattr(gnvpro, "posterior", counted)
    model = quiet(regressor(max_iter=3).fit, X, y)
    model.predict(X)
    assert not calls
    copy = pickle.loads(pickle.dumps(model))
    _, std = model.predict(X, return_std=True)
    model.predict(X[:5], return_std=True)
    assert len(calls) == 1
    # A copy from before and one from after have the same.
    for again in (copy, pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.predict(X, return_std=True)[1], std)
    assert len(calls) == 2
    # Then the training rows are given up.
    model = regressor(hidden_layer_sizes=()).fit(X, y)
    before = len(pickle.dumps(model))
    model.predict(X[:2], return_std=True)
    assert len(pickle.dumps(model)) < before - X.nbytes


def test_error_bars_count_rows_by_their_weights():
    X, y = smooth(60, noise=0.1)
    model = regressor(max_iter=5)
    once = quiet(clone(model).fit, X, y)
    double = quiet(clone(model).fit, X, y, sample_weight=np.full(60, 2.0))
    twice = quiet(clone(model).fit, np.r_[X, X], np.r_[y, y])
    bars = [m.predict(X, return_std=True)[1] for m in (once, double, twice)]
    np.testing.assert_allclose(bars[1], bars[2], rtol=1e-6)
    # But for the degrees of freedom, of which the data have 60 and 120.
    ratio = bars[1] / bars[0]
    assert ratio.max() == pytest.approx(ratio.min(), rel=1e-6)
    assert 0.5 < ratio.max() < np.sqrt(0.5)


@pytest.mark.parametrize("most", [1000, 0])  # weights for bars of all of them
def test_error_bars_of_targets_of_any_size(most, monkeypatch):
    X, y = smooth(50, noise=0.1)
    model = regressor(max_iter=3, scale=False)
    ordinary = quiet(clone(model).fit, X, y)
    large = quiet(clone(model).fit, X, 1e200 * y)
    monkeypatch.setattr(gnvpro, "LARGEST_DENSE", most)  # bars wait until now
    expected = ordinary.predict(X, return_std=True)[1]
    mean, std = large.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()
    assert 0.1 < np.median(std / 1e200) / np.median(expected) < 10


def test_error_bars_of_tiny_targets_in_single_precision():
    X, y = smooth(50, noise=0.1)
    model = regressor(max_iter=3, scale=False, dtype="float32", alpha=1.0)
    mean, std = quiet(model.fit, X, 1e-30 * y).predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std >= 0).all()


# --- Ctrl-C --------------------------------------------------------------------------


class NotToBeCompared(MLP):
    """A network with which Python meets an interrupt where it is compared."""

    interrupted = False

    def __eq__(self, other):
        if NotToBeCompared.interrupted:
            raise KeyboardInterrupt
        return super().__eq__(other)

    def __hash__(self):
        if NotToBeCompared.interrupted:
            raise KeyboardInterrupt
        return super().__hash__()


def test_compiled_functions_do_not_compare_networks(monkeypatch):
    X, y = smooth(40)
    model = regressor(network=NotToBeCompared((4,)), max_iter=4)

    class Begin(StopAfter):
        def on_fit_task_end(self, estimator, context, **_):
            monkeypatch.setattr(NotToBeCompared, "interrupted", True)
            return False

    quiet(model.set_callbacks(Begin(0)).fit, X, y)
    assert model.n_iter_ == 4
    assert np.isfinite(model.predict(X)).all()


class Interrupted(GNvpro):
    """GNvpro that Ctrl-C meets in the given call of one of its functions."""

    def __init__(self, function, call, batch_size=None):
        super().__init__(batch_size=batch_size)
        self.function, self.call = function, call

    def algorithm(self, algorithms):
        known, count = algorithms["gnvpro"], itertools.count(1)
        original = getattr(known, self.function)

        def function(*arguments):
            if next(count) == self.call:
                raise KeyboardInterrupt
            return original(*arguments)

        return replace(known, **{self.function: function})


@pytest.mark.parametrize(("function", "call"), [("init", 1), ("prepare", 1)])
def test_an_interrupt_before_there_is_a_network_leaves_no_model(function, call):
    X, y = smooth(40)
    model = regressor(solver=Interrupted(function, call))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    with pytest.raises(NotFittedError):
        model.transform(X)
    # The model of an earlier fit is kept as it was.
    before = quiet(regressor(max_iter=2).fit, X, y)
    expected = before.predict(X)
    with pytest.raises(KeyboardInterrupt):
        before.set_params(solver=Interrupted(function, call)).fit(X[:, :1], y[:, 0])
    np.testing.assert_array_equal(before.predict(X), expected)


@pytest.mark.parametrize(("function", "call"), [("step", 4), ("evaluate_last", 1)])
def test_an_interrupt_keeps_the_best_network(function, call):
    X, y = smooth(64)
    model = regressor(solver=Interrupted(function, call, batch_size=30), tol=0.0)
    quiet(model.set_params(max_iter=11).fit, X, y)
    assert model.stop_reason_ == "interrupted"
    assert model.n_iter_ == (3 if function == "step" else 11)
    assert np.isfinite(model.predict(X)).all()
    assert model.loss_ <= np.min(model.convergence_log_["loss"]) * (1 + 1e-9)


def test_an_interrupt_after_the_last_iteration_keeps_the_network(monkeypatch):
    X, y = smooth(40)
    original, calls = training.evaluated, []

    def interrupted(*arguments):
        *_, projected = arguments  # not so the loss that is quoted
        calls.extend([] if projected else [arguments])
        if len(calls) == 1:
            raise KeyboardInterrupt
        return original(*arguments)

    model = regressor(alpha=(1e-6, 1e-6), max_iter=2)
    whole = quiet(clone(model).fit, X, y)
    monkeypatch.setattr(training, "evaluated", interrupted)
    quiet(model.fit, X, y)
    assert model.stop_reason_ == "interrupted"
    assert model.loss_ == pytest.approx(whole.loss_, rel=1e-8)
    assert model.alpha_ == pytest.approx(whole.alpha_, rel=1e-6)
    np.testing.assert_allclose(model.predict(X), whole.predict(X), rtol=1e-6)


def test_equal_networks_make_one_model():
    model = Model(MLP([3, 4]), "squared")
    assert Model(MLP((3, 4)), "squared") is model
    assert pickle.loads(pickle.dumps(model)) is model
    assert Model(MLP((3, 4)), "cross_entropy") is not model
    assert Model.__eq__ is object.__eq__
    assert Model.__hash__ is object.__hash__


@pytest.mark.parametrize("solver", ["gnvpro", "adam"])
def test_a_warm_start_with_other_targets_goes_on_with_the_features(solver):
    X, _ = smooth()
    y = X[:, 0] + np.abs(X[:, 1])
    model = regressor(solver=solver, warm_start=True, alpha=1e-2, max_iter=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        before = model.fit(X, np.c_[y, 1e4 * y]).loss_
        model.fit(X, np.c_[y, 1e4 * y, 1e8 * y])
        assert model.predict(X).shape == (60, 3)
        assert model.fit(X, np.c_[y, 1e4 * y]).loss_ < before
