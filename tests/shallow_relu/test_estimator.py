"""ShallowReLURegressor: exact recovery, units, weights, bad input, hard numerics."""

import pickle

import numpy as np
import pytest
from joblib import parallel_backend
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, ParameterGrid, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.solvers import LM, SHALLOW_RELU_SOLVERS, Adam, JointGN, SgGN

LOCAL = JointGN(relocations=0)  # without global search
quiet = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def kinked(n=200, scale=1.0, shift=0.0):
    """Kinks at 0.3 and 0.7 of [0, 1], in units of ``scale`` from ``shift``."""
    t = np.linspace(0, 1, n)
    return shift + scale * t[:, None], np.abs(t - 0.3) + 2 * np.abs(t - 0.7)


def inner_breakpoints(model, low, high):
    t = model.breakpoints_
    margin = 0.01 * (high - low)
    return t[(t > low + margin) & (t < high - margin)]


# The baselines of the paper have the same rows, weights and units as the others.
ALL_SOLVERS = [
    pytest.param(name, marks=pytest.mark.slow)
    if name in ("bfgs", "kfra", "lm_hidden")
    else name
    for name in sorted(SHALLOW_RELU_SOLVERS)
]


def with_rounds(name, relocations):
    """The solver of a name, with so many rounds if it has any."""
    solver = clone(SHALLOW_RELU_SOLVERS[name])
    if "relocations" in solver.get_params():
        solver.set_params(relocations=relocations)
    return solver


def noisy(n=30, d=2, q=None, seed=0):
    """Few sizes, and four neurons wherever it does not matter, compile few programs."""
    rng = np.random.RandomState(seed)
    X = rng.randn(n, d)
    y = rng.randn(n) if q is None else rng.randn(n, q)
    return X, y


# -- what is fitted -------------------------------------------------------------------


@pytest.mark.parametrize("init", ["uniform", "horizontal", "vertical", "random"])
def test_recovers_kinks_exactly(init):
    X, y = kinked()
    model = ShallowReLURegressor(3, init=init, random_state=0, alpha=0.0).fit(X, y)
    np.testing.assert_allclose(inner_breakpoints(model, 0, 1), [0.3, 0.7], atol=1e-10)
    assert model.loss_ < 1e-20
    assert model.stop_reason_ == "rounding"
    assert model.converged_


def test_recovers_a_jump_between_two_rows():
    x = np.arange(0.5, 100) / 100
    y = np.where(x < 0.4, 1.0, 3.0)
    model = ShallowReLURegressor(2, random_state=0, alpha=0.0).fit(x[:, None], y)
    assert model.loss_ < 1e-20
    assert np.all((model.breakpoints_ > 0.39) & (model.breakpoints_ < 0.41))


@pytest.mark.slow
def test_recovers_a_random_network_in_two_dimensions():
    rng = np.random.RandomState(1)
    X = rng.uniform(-1, 1, (32, 2))
    angle = rng.uniform(0, np.pi, 4)
    planes = np.c_[rng.uniform(-0.5, 0.5, 4), np.cos(angle), np.sin(angle)]
    y = np.maximum(planes[:, 0] + X @ planes[:, 1:].T, 0) @ rng.randn(4) + 0.5
    model = ShallowReLURegressor(4, init="horizontal", random_state=0, alpha=0.0).fit(
        X, y
    )
    assert model.loss_ < 1e-20
    # The same lines up to orientation and order.
    found = model.hyperplanes_ * np.sign(model.hyperplanes_[:, 2:])
    expected = planes * np.sign(planes[:, 2:])
    gap = np.abs(found[:, None] - expected[None]).max(axis=2).min(axis=0)
    np.testing.assert_allclose(gap, 0, atol=1e-8)


@quiet
def test_attributes_are_the_model_in_the_user_s_units():
    X, y = noisy()
    X = X * [1e-3, 1e4] + [5.0, -3e4]
    model = ShallowReLURegressor(
        4, solver=JointGN(relocations=1), max_iter=8, random_state=0, alpha=0.0
    ).fit(X, y)
    b, w = model.hyperplanes_[:, 0], model.hyperplanes_[:, 1:]
    np.testing.assert_allclose(np.linalg.norm(w, axis=1), 1, rtol=1e-12)
    features = np.maximum(b + X @ w.T, 0)
    np.testing.assert_allclose(model.transform(X), features, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        features @ model.output_coef_ + model.output_intercept_,
        model.predict(X),
        atol=1e-6,
    )
    assert model.output_coef_.shape == (model.active_.sum(),)
    assert model.gram_spectrum_.shape == (3 * model.active_.sum(),)
    assert np.all(np.diff(model.gram_spectrum_) <= 0)
    error = model.predict(X) - y
    assert model.loss_ == pytest.approx(0.5 * np.mean(error**2), rel=1e-10)
    assert model.loss_ == pytest.approx(model.convergence_log_["loss"].min(), rel=1e-9)


@quiet
@pytest.mark.parametrize("selector", [RFE, SelectFromModel])
@pytest.mark.parametrize("alpha", [0.0, "auto"])
def test_selectors_find_no_coefficients_of_features(selector, alpha):
    model = ShallowReLURegressor(4, alpha=alpha, random_state=0)
    if alpha == 0:
        model.set_params(solver=LOCAL, max_iter=3)
    X, y = noisy()
    with pytest.raises(ValueError, match="should have `coef_` or `feature_imp"):
        selector(model).fit(X, y).transform(X)


@quiet
def test_several_targets():
    X, y = noisy(q=3)
    model = ShallowReLURegressor(
        4, solver=LM(), max_iter=3, random_state=0, alpha=0.0
    ).fit(X, y)
    assert model.output_coef_.shape == (3, model.active_.sum())
    assert model.output_intercept_.shape == (3,)
    np.testing.assert_allclose(
        model.transform(X) @ model.output_coef_.T + model.output_intercept_,
        model.predict(X),
        atol=1e-11,
    )
    one = clone(model).fit(X, y[:, :1])
    assert one.predict(X).shape == (30, 1)


def test_breakpoints_only_with_one_feature():
    X, y = noisy()
    model = ShallowReLURegressor(
        4, solver=JointGN(relocations=1), random_state=0, alpha=0.0
    ).fit(X[:, :1], y)
    assert np.all(np.diff(model.breakpoints_) >= 0)
    model.fit(X, y)
    assert not hasattr(model, "breakpoints_")


def test_feature_names_out_and_pandas_output():
    X, y = noisy()
    model = ShallowReLURegressor(
        4, solver=JointGN(relocations=1), random_state=0, alpha=0.0
    ).fit(X, y)
    names = model.get_feature_names_out()
    assert names[0] == "shallowreluregressor0"
    frame = model.set_output(transform="pandas").transform(X)
    assert list(frame.columns) == list(names)


def test_alpha_is_the_ridge_penalty_of_the_output_layer():
    X, y = noisy()
    X = (X - X.mean(axis=0)) / X.std(axis=0)  # the units of the fit
    model = ShallowReLURegressor(
        4, alpha=1e-2, solver=JointGN(relocations=2), random_state=0
    )
    model.fit(X, y)
    # Given its hyperplanes, the network is scikit-learn's ridge regression on them.
    features = model.transform(X)
    assert features.shape[1] == 4
    ridge = Ridge(alpha=1e-2 * len(X)).fit(features, y)
    np.testing.assert_allclose(ridge.predict(features), model.predict(X), atol=1e-9)


def test_rank_larger_than_there_is_changes_nothing():
    X, y = noisy()
    small = ShallowReLURegressor(
        4, rank=2, solver=JointGN(relocations=2), random_state=0, alpha=0.0
    ).fit(X, y)
    large = ShallowReLURegressor(
        4, rank=10**12, solver=JointGN(relocations=2), random_state=0, alpha=0.0
    )
    none = clone(large).set_params(rank=None).fit(X, y)
    np.testing.assert_allclose(large.fit(X, y).predict(X), none.predict(X), atol=1e-8)
    assert small.loss_ > none.loss_


@quiet
@pytest.mark.parametrize(
    "solver", [pytest.param("sggn", marks=pytest.mark.slow), "vpgn", "lm"]
)
def test_restarts_keep_the_best(solver):
    X, y = noisy()
    one = ShallowReLURegressor(
        4, solver=with_rounds(solver, 0), tol=1e-3, random_state=1, alpha=0.0
    )
    many = clone(one).set_params(n_init=3).fit(X, y)
    assert many.loss_ < one.fit(X, y).loss_
    first, alone = (m.convergence_log_["loss"] for m in (many, one))
    assert len(first) == many.n_iter_
    if solver == "lm":  # one after the other
        assert many.n_iter_ > one.n_iter_
    else:  # side by side: the first start is the same, the best of all no worse
        assert np.all(first[: len(alone)] <= alone[: len(first)] * (1 + 1e-9))


# -- same data, same result -----------------------------------------------------------


@pytest.mark.parametrize("solver", ALL_SOLVERS)
@quiet
def test_weights_repetition_order_and_zero_weights_are_equivalent(solver):
    rng = np.random.RandomState(0)
    X, y = noisy(30, 2)
    repeats = rng.randint(0, 4, 30)
    order = rng.permutation(repeats.sum())
    model = ShallowReLURegressor(
        4,
        solver=with_rounds(solver, 2),
        init="random",
        max_iter=8,
        random_state=3,
        alpha=0.0,
    )
    weighted = clone(model).fit(X, y, sample_weight=7.0 * repeats).predict(X)
    repeated = clone(model).fit(
        np.repeat(X, repeats, axis=0)[order], np.repeat(y, repeats)[order]
    )
    np.testing.assert_allclose(repeated.predict(X), weighted, atol=1e-6)


def test_same_seed_same_bits():
    X, y = noisy()
    model = ShallowReLURegressor(
        4, solver=JointGN(relocations=3), random_state=7, alpha=0.0
    )
    a, b = clone(model).fit(X, y), clone(model).fit(X, y)
    np.testing.assert_array_equal(a.predict(X), b.predict(X))
    np.testing.assert_array_equal(a.gram_spectrum_, b.gram_spectrum_)


@pytest.mark.parametrize("solver", ["vpgn", "lm"])
def test_scale_of_the_targets_is_immaterial(solver):
    X, y = noisy()
    model = ShallowReLURegressor(
        4, solver=with_rounds(solver, 0), alpha=1e-3, damping=1e-3, random_state=0
    )
    plain = clone(model).fit(X, y)
    scaled = clone(model).fit(X, 2.0**40 * y)
    np.testing.assert_allclose(
        2.0**-40 * scaled.predict(X), plain.predict(X), rtol=1e-8, atol=1e-8
    )
    assert 2.0**-80 * scaled.loss_ == pytest.approx(plain.loss_, rel=1e-8)


def test_pickle_keeps_float64_exactly_and_holds_no_jax():
    X, y = noisy()
    model = ShallowReLURegressor(
        4, solver=JointGN(relocations=1), random_state=0, alpha=0.0
    ).fit(X, y)
    content = pickle.dumps(model)
    assert b"jax" not in content.replace(b"sklearn_gn.arrays.backend", b"")
    copy = pickle.loads(content)
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    for name, value in vars(model).items():
        if isinstance(value, np.ndarray):
            copied = getattr(copy, name)
            assert copied.dtype == value.dtype
            np.testing.assert_array_equal(copied, value)


def test_float32_is_close_and_is_float32():
    X, y = kinked()
    model = ShallowReLURegressor(3, dtype="float32", random_state=0, alpha=0.0).fit(
        X, y
    )
    # Without noise, double precision leaves errors of 1e-15.
    assert 1e-10 < np.sqrt(np.mean((model.predict(X) - y) ** 2)) < 1e-4


def test_rounds_that_find_nothing_better_do_no_harm():
    X, y = noisy()
    solver = SgGN(relocations=20)
    model = ShallowReLURegressor(4, solver=solver, random_state=0, alpha=0.0).fit(X, y)
    loss = model.convergence_log_["loss"]
    assert np.all(np.diff(loss) <= 0)
    assert 1 < len(loss) <= 20  # rounds without a gain have no row
    assert loss[-1] == pytest.approx(model.loss_, rel=1e-9)
    assert model.active_.shape == (4,)


# -- warm start, validation data ------------------------------------------------------


def test_warm_start_continues_from_the_hyperplanes():
    X, y = kinked()
    model = ShallowReLURegressor(3, warm_start=True, random_state=0, alpha=0.0).fit(
        X, y
    )
    model.set_params(solver=LOCAL).fit(X, y)
    assert model.convergence_log_["inner_iterations"].sum() <= 4
    assert model.loss_ < 1e-20


@quiet
def test_warm_start_fills_up_when_neurons_are_added():
    X, y = noisy()
    model = ShallowReLURegressor(
        2, warm_start=True, solver=LOCAL, max_iter=10, random_state=0, alpha=0.0
    )
    smaller = model.fit(X, y).loss_
    assert model.set_params(n_neurons=4).fit(X, y).loss_ < smaller
    assert model.active_.shape == (4,)


def test_given_hyperplanes_are_the_start():
    X, y = kinked()
    init = [[0.0, 5.0], [-0.31, 1.0], [0.69, -1.0]]
    model = ShallowReLURegressor(3, init=init, solver=LOCAL, alpha=0.0).fit(X, y)
    np.testing.assert_allclose(inner_breakpoints(model, 0, 1), [0.3, 0.7], atol=1e-10)


@pytest.mark.slow
def test_choice_of_the_size_starts_from_given_hyperplanes():
    rng = np.random.RandomState(1)
    X, angle = rng.uniform(-1, 1, (100, 2)), rng.uniform(0, np.pi, 3)
    planes = np.c_[rng.uniform(-0.5, 0.5, 3), np.cos(angle), np.sin(angle)]
    y = np.maximum(planes[:, 0] + X @ planes[:, 1:].T, 0) @ rng.randn(3)
    model = ShallowReLURegressor(
        "auto", init=planes, solver=LOCAL, random_state=0, alpha=0.0
    )
    model.fit(X, y)
    # It doubles twice in vain; a start of its own would have powers of two.
    assert model.selection_path_["n_neurons"].max() == 12
    assert len(model.hyperplanes_) == 3
    assert model.loss_ < 1e-20


@pytest.mark.slow
def test_choice_of_the_size_starts_from_the_previous_fit():
    x = (np.arange(200) + 0.5) / 200
    y = np.array([3.0, -1, 2, 0, 4])[(5 * x).astype(int)]
    model = ShallowReLURegressor(12, warm_start=True, random_state=0, alpha=0.0)
    n_active = len(model.fit(x[:, None], y).hyperplanes_)
    model.set_params(n_neurons="auto", solver=LOCAL).fit(x[:, None], y)
    assert model.selection_path_["n_neurons"].max() >= n_active
    assert len(model.hyperplanes_) <= n_active
    assert model.loss_ < 1e-20
    model.fit(x[:, None], np.ones(200))  # nothing is active
    assert len(model.fit(x[:, None], y).hyperplanes_) >= 5


@quiet
def test_early_stopping_returns_the_best_on_validation_data():
    X, y = noisy(62)
    model = ShallowReLURegressor(
        4, early_stopping=True, n_iter_no_change=3, random_state=1, alpha=0.0
    )
    model.fit(X[:32], y[:32], X_val=X[32:], y_val=y[32:])
    log = model.convergence_log_
    error = model.predict(X[32:]) - y[32:]
    # The initial network counts too, which has no row in the log.
    assert 0.5 * np.mean(error**2) <= log["val_loss"].min() * (1 + 1e-9)
    assert log["loss"].min() < model.loss_
    assert model.stop_reason_ == "early_stopping"


@quiet
def test_early_stopping_sets_rows_aside_and_weights_them():
    X, y = noisy()
    weight = np.random.RandomState(0).randint(0, 3, 30)
    model = ShallowReLURegressor(
        4, early_stopping=True, max_iter=5, random_state=0, alpha=0.0
    )
    a = clone(model).fit(X, y, sample_weight=weight)
    b = clone(model).fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    np.testing.assert_allclose(
        a.convergence_log_["val_loss"], b.convergence_log_["val_loss"], rtol=1e-6
    )


def test_validation_loss_is_logged_without_early_stopping():
    X, y = noisy()
    model = ShallowReLURegressor(
        4, solver=JointGN(relocations=1), random_state=0, alpha=0.0
    )
    model.fit(X, y, X_val=X[:10], y_val=y[:10])
    error = model.predict(X[:10]) - y[:10]
    assert np.isfinite(model.convergence_log_["val_loss"]).all()
    assert model.convergence_log_["val_loss"][-1] == pytest.approx(
        0.5 * np.mean(error**2)
    )


# -- inside scikit-learn --------------------------------------------------------------


@quiet
def test_grid_over_damping_and_rank_in_a_pipeline():
    X, y = noisy(60)
    model = ShallowReLURegressor(
        4, solver=LOCAL, max_iter=30, random_state=0, alpha=0.0
    )
    pipeline = make_pipeline(StandardScaler(), model)
    grid = {"damping": [None, 1e-3], "rank": [2, 1000]}
    names = {f"shallowreluregressor__{name}": values for name, values in grid.items()}
    search = GridSearchCV(pipeline, names, cv=2, refit=False).fit(X, y)
    first, second = slice(30), slice(30, None)
    scaler = StandardScaler().fit(X[second])
    scores = search.cv_results_["split0_test_score"]
    assert len(np.unique(scores.round(8))) >= 4
    for parameters, score in zip(ParameterGrid(grid), scores, strict=True):
        alone = clone(model).set_params(**parameters)
        alone.fit(scaler.transform(X[second]), y[second])
        expected = alone.score(scaler.transform(X[first]), y[first])
        assert score == pytest.approx(expected, rel=1e-7)


# Processes are tested in test_searches.py, with estimators that compile less.
@pytest.mark.parametrize(
    "backend", [pytest.param("loky", marks=pytest.mark.slow), "threading"]
)
def test_parallel_scores_equal_serial_ones(backend):
    X, y = noisy(60)
    model = ShallowReLURegressor(4, solver=LOCAL, random_state=0, alpha=0.0)
    serial = cross_val_score(model, X, y, cv=2)
    with parallel_backend(backend, n_jobs=2):
        parallel = cross_val_score(model, X, y, cv=2)
    np.testing.assert_allclose(parallel, serial, rtol=1e-8)


@quiet
@pytest.mark.slow
def test_a_grid_of_folds_compiles_each_function_once(compiled):
    X, y = noisy(61, 3)
    grid = {"alpha": [0.0, 1e-2], "solver__rank_tol": [1e-12, 1e-9]}
    # A number of features that no other test has, so that nothing is compiled yet.
    model = ShallowReLURegressor(
        4, solver=JointGN(relocations=1), tol=1e-2, random_state=0, alpha=0.0
    )
    search = GridSearchCV(model, grid, cv=2, refit=False).fit(X, y)
    assert len(compiled) >= 4
    assert len(set(compiled)) == len(compiled)
    compiled.clear()
    model.set_params(**search.best_params_, tol=1e-3, solver__relocations=2, rank=3)
    model.fit(X[:25], y[:25])
    assert compiled == []


# -- bad input ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_neurons": 0}, "'n_neurons' parameter.*Got 0"),
        ({"solver": "sgd"}, "solver='sgd' is unknown"),
        ({"init": "grid"}, "'init' parameter.*Got 'grid'"),
        (
            {"init": np.ones((2, 4))},
            r"init has shape \(2, 4\), expected .* = \(any, 3\)",
        ),
        ({"n_neurons": 1, "init": [[1.0, 0, 0]]}, "init must hold .* row 0 is not"),
        ({"damping": -1e-3}, "'damping' parameter.*Got -0.001"),
        ({"rank": 0}, "'rank' parameter.*Got 0"),
        ({"alpha": -1e-3}, "'alpha' parameter.*Got -0.001"),
        ({"n_init": 0}, "'n_init' parameter.*Got 0"),
        ({"solver": JointGN(rank_tol=1.0)}, "'rank_tol' parameter of JointGN"),
        ({"solver": JointGN(relocations=-1)}, "'relocations' parameter of JointGN"),
        ({"solver": SgGN(active_tol=2)}, "'active_tol' parameter of SgGN"),
        ({"solver": LM(hidden_only=1)}, "'hidden_only' parameter of LM"),
        ({"solver": Adam(learning_rate=0)}, "'learning_rate' parameter of Adam"),
        ({"n_neurons": "auto", "init": "random"}, "init='random' needs a number"),
        (
            {"n_neurons": "auto", "init": np.ones((2, 4))},
            r"init has shape \(2, 4\), expected .* = \(any, 3\)",
        ),
        ({"max_iter": 0}, "'max_iter' parameter"),
        ({"max_time": 0}, "'max_time' parameter"),
        ({"tol": -1}, "'tol' parameter"),
        ({"dtype": "float16"}, "'dtype' parameter"),
        ({"validation_fraction": 1.0}, "'validation_fraction' parameter"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    X, y = noisy()
    with pytest.raises(ValueError, match=message):
        ShallowReLURegressor(**{"alpha": 0.0, **parameters}).fit(X, y)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_data_are_named(bad):
    X, y = noisy()
    X_bad, y_bad = X.copy(), y.copy()
    X_bad[3, 1] = y_bad[4] = bad
    model = ShallowReLURegressor(2, alpha=0.0)
    with pytest.raises(ValueError, match="Input X contains"):
        model.fit(X_bad, y)
    with pytest.raises(ValueError, match="Input y contains"):
        model.fit(X, y_bad)
    with pytest.raises(ValueError, match="sample_weight"):
        model.fit(X, y, sample_weight=y_bad)
    with pytest.raises(ValueError, match="sample_weight"):
        model.fit(X, y, sample_weight=-np.ones(30))
    with pytest.raises(ValueError, match=r"[Ss]ample.weight.*zero|zero.*weight"):
        model.fit(X, y, sample_weight=np.zeros(30))
    with pytest.raises(ValueError, match="y_val is missing"):
        model.fit(X, y, X_val=X)
    with pytest.raises(ValueError, match=r"1 features.*2 features"):
        model.fit(X, y, X_val=X[:, :1], y_val=y)
    with pytest.raises(ValueError, match="y_val has 2 targets, y has 1"):
        model.fit(X, y, X_val=X, y_val=np.c_[y, y])
    with pytest.raises(ValueError, match="leaves none for training"):
        ShallowReLURegressor(2, early_stopping=True, alpha=0.0).fit(X[:1], y[:1])


# -- hard numerics --------------------------------------------------------------------


@pytest.mark.parametrize("solver", ALL_SOLVERS)
@pytest.mark.parametrize(
    "case",
    [
        "constant feature",
        "constant target",
        "one row",
        "duplicate rows",
        "fewer rows than neurons",
        "tiny and huge features",
        "collinear",
        "huge targets",
    ],
)
@quiet
def test_hard_data_give_finite_predictions(solver, case):
    X, y = noisy()
    if case == "constant feature":
        X[:, 1] = 4.0
    elif case == "constant target":
        y[:] = -2.5
    elif case == "one row":
        X, y = X[:1], y[:1]
    elif case == "duplicate rows":
        X, y = np.repeat(X[:3], 5, axis=0), np.repeat(y[:3], 5)
    elif case == "fewer rows than neurons":
        X, y = X[:3], y[:3]
    elif case == "tiny and huge features":
        X = X * [1e-150, 1e150]
    elif case == "collinear":
        X[:, 1] = 3 * X[:, 0] - 1
    elif case == "huge targets":
        y = y * 1e140
    model = ShallowReLURegressor(
        4, solver=with_rounds(solver, 2), max_iter=10, random_state=0, alpha=0.0
    ).fit(X, y)
    prediction = model.predict(X)
    assert np.isfinite(prediction).all()
    assert np.isfinite(model.hyperplanes_).all()
    assert np.isfinite(model.loss_)
    if case in ("constant target", "one row"):
        np.testing.assert_allclose(prediction, y, rtol=1e-10)


def test_a_linear_fit_has_no_hidden_features():
    X, y = noisy()
    model = ShallowReLURegressor(random_state=0).fit(X, np.ones(len(y)))
    assert model.transform(X).shape == (len(X), 0)


@pytest.mark.parametrize("scale", [1e-170, 1e170])
def test_targets_whose_squares_leave_the_range_of_floats(scale):
    X, y = kinked()
    model = ShallowReLURegressor(3, random_state=0, alpha=0.0).fit(X, scale * y)
    np.testing.assert_allclose(model.predict(X) / scale, y, atol=1e-10)


def test_predictions_far_outside_the_training_data_are_numbers():
    X, y = noisy()
    model = ShallowReLURegressor(
        4, solver=JointGN(relocations=1), random_state=0, alpha=0.0
    ).fit(X * 1e-200, y)
    assert not np.isnan(model.predict(X * 1e200)).any()


def test_warm_start_with_tiny_features_and_with_others():
    X, y = noisy()
    model = ShallowReLURegressor(
        4, warm_start=True, solver=JointGN(relocations=1), random_state=0, alpha=0.0
    )
    loss = model.fit(X * 1e-170, y).loss_
    assert model.fit(X * 1e-170, y).loss_ <= loss * (1 + 1e-9)
    message = r"warm_start=True continues from 2 features, X has 1"
    with pytest.raises(ValueError, match=message):
        model.fit(X[:, :1], y)


@pytest.mark.parametrize(
    ("init", "d", "factor"),
    [
        ([[0, 1e-200]], 1, 1e-200),
        ([[1e300, 1e300]], 1, 1e200),
        ([[0, 1e-200, 1e-200]], 2, 1e-200),
        ([[1e300, 1e300, 1e300]], 2, 1e200),
        ([[1e300, 1e-300, 1e-300]], 2, 1e-200),
    ],
)
def test_hyperplanes_whose_products_leave_the_range_of_floats(init, d, factor):
    X, y = noisy(d=d)
    init = np.multiply(init, [[1.0], [0.5], [-1.0], [0.25]])
    model = ShallowReLURegressor(4, init=init, solver=JointGN(relocations=1), alpha=0.0)
    model.set_params(random_state=0).fit(X * factor, y)
    for prediction in model.predict(X * factor, return_std=True):
        assert np.isfinite(prediction).all()
    assert np.isfinite(model.hyperplanes_).all()
    assert model.score(X * factor, y) > 0


def test_hyperplanes_of_the_same_ratio_are_the_same_start_in_all_units():
    X, y = noisy(d=2)
    init = np.array([[0.3, 1.0, -2.0], [-0.1, 0.5, 1.0], [0, 1, 1], [0.5, -1, 1]])
    model = ShallowReLURegressor(4, solver=LOCAL, random_state=0, alpha=0.0)
    plain = clone(model).set_params(init=init).fit(X, y)
    unit = 2.0**-660
    small = clone(model).set_params(init=init * [unit, 1, 1]).fit(unit * X, y)
    np.testing.assert_allclose(small.predict(unit * X), plain.predict(X), atol=1e-8)
    # Rows of length 2^-340 are the same hyperplanes.
    short = np.ldexp(init, [[-1000, -340, -340]] * 4)
    smallest = clone(model).set_params(init=short).fit(unit * X, y)
    np.testing.assert_allclose(smallest.predict(unit * X), plain.predict(X), atol=1e-8)


@pytest.mark.parametrize("factors", [(1e200, 1e-200), (1e-200, 1e200)])
@pytest.mark.repeats
def test_warm_start_in_other_units_gives_a_model(factors):
    X, y = noisy()
    model = ShallowReLURegressor(4, warm_start=True, random_state=0, alpha=0.0)
    for factor in factors:
        model.fit(X * factor, y)
        assert np.isfinite(model.predict(X * factor)).all()
        assert model.score(X * factor, y) > 0.3


def test_numbers_beyond_int32_are_no_limit():
    X, y = noisy()
    model = ShallowReLURegressor(
        4, max_iter=10**12, rank=10**12, random_state=0, alpha=0.0
    )
    assert model.fit(X, y).converged_


def test_scale_of_the_features_is_immaterial():
    X, y = noisy()
    model = ShallowReLURegressor(
        4, solver=JointGN(relocations=2), random_state=0, alpha=0.0
    )
    plain = clone(model).fit(X, y).predict(X)
    factor = 2.0 ** np.array([-498, 498])  # about 1e-150 and 1e150
    scaled = clone(model).fit(X * factor, y)
    np.testing.assert_allclose(scaled.predict(X * factor), plain, atol=1e-8)


def test_fits_do_not_depend_on_units_or_on_a_far_outlier_s_range():
    X, _ = noisy()
    X[0, 1] = 1e3
    y = np.abs(X[:, 0] - 0.3) + 0.1 * X[:, 0]
    scale, shift = np.array([50.0, 1e-3]), np.array([-1e3, 4.0])
    model = ShallowReLURegressor(4, solver=LOCAL, random_state=0, alpha=0.0)
    one = clone(model).fit(X, y)
    other = clone(model).fit(X * scale + shift, y)
    np.testing.assert_allclose(
        other.predict(X * scale + shift), one.predict(X), atol=1e-8
    )
    assert one.score(X, y) > 0.99


def test_an_offset_far_from_zero_costs_only_its_own_digits():
    X, y = kinked(scale=1e-3, shift=1e6)
    model = ShallowReLURegressor(3, random_state=0, alpha=0.0).fit(X, y)
    # Neighbouring floats at 1e6 are 1e-10 apart, 1e-7 of the range of X.
    np.testing.assert_allclose(model.predict(X), y, atol=1e-6)
    for kink in (1e6 + 3e-4, 1e6 + 7e-4):  # to the distance of neighbouring rows
        assert np.abs(model.breakpoints_ - kink).min() < 5.1e-6


def test_stopping_early_warns_with_the_cause():
    X, y = noisy()
    with pytest.warns(
        ConvergenceWarning, match=r"max_iter\) after 1 it.*Raise max_iter"
    ):
        ShallowReLURegressor(4, max_iter=1, alpha=0.0).fit(X, y)


def test_predictions_of_cells_beyond_their_limit():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = X[:, 0] + np.abs(X[:, 1]) + 0.1 * rng.normal(size=200)
    X[:5, 0] = 999
    model = ShallowReLURegressor(random_state=0).fit(X, y)
    rows = np.array([[999, 0.3], [1e9, 0.3], [X[5:, 0].max(), 0.3]])
    expected = np.repeat(model.predict(rows[2:]), 3)
    np.testing.assert_allclose(model.predict(rows), expected, rtol=1e-12)
    exported = model.to_sklearn().predict(X)
    np.testing.assert_allclose(exported, model.predict(X), rtol=1e-9)
