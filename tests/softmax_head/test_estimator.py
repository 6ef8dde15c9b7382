"""FGNSoftmaxHead: optima, equivalences, hard data."""

import pickle
import time
import warnings

import jax
import numpy as np
import pytest
from scipy import sparse
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.callbacks import Checkpoint
from sklearn_gn.softmax_head import (
    head,
    minibatch,
    whitening,
)
from sklearn_gn.solvers import FGN, SGN, SOFTMAX_HEAD_SOLVERS, Adam, FGNNewton
from tests._libraries import forced_jax

SOLVERS = ("fgn_newton", "fgn", "sgn", "adam")


def solver_object(name, **settings):
    """The solver of a short form, with those of the settings that it has."""
    solver = clone(SOFTMAX_HEAD_SOLVERS[name])
    known = solver.get_params()
    return solver.set_params(**{k: v for k, v in settings.items() if k in known})


def standardised(load):
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def thirty_classes(return_X_y=True):
    rng = np.random.RandomState(0)
    means = rng.randn(30, 12)
    y = np.repeat(np.arange(30), 12)
    return means[y] + rng.randn(len(y), 12), y


def small(n_classes=3, n=40, seed=0):
    rng = np.random.RandomState(seed)
    y = np.arange(n) % n_classes
    return rng.randn(n, 4) + 0.5 * y[:, None], y


def objective(model, X, y, alpha, weight=None):
    logits = X @ model.coef_.T + model.intercept_
    if logits.shape[1] == 1:
        logits = np.concatenate([0 * logits, logits], axis=1)
    code = np.searchsorted(model.classes_, y)
    losses = -log_softmax(logits, axis=1)[np.arange(len(y)), code]
    return np.average(losses, weights=weight) + 0.5 * alpha * np.sum(model.coef_**2)


# --- the optimum ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "alpha", "weighted"),
    [
        (load_wine, 1e-3, False),
        (load_wine, 1e-3, True),
        (load_digits, 1e-3, True),
        (load_breast_cancer, 1e-2, False),
        (thirty_classes, 1e-3, True),
    ],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_optimum_is_that_of_logistic_regression(load, alpha, weighted):
    X, y = standardised(load)
    weight = 0.5 + np.random.RandomState(1).rand(len(y)) if weighted else None
    total = len(y) if weight is None else weight.sum()
    oracle = LogisticRegression(
        C=1 / (alpha * total), solver="newton-cholesky", tol=1e-12, max_iter=200
    ).fit(X, y, weight)
    model = FGNSoftmaxHead(alpha=alpha, tol=1e-9, random_state=0).fit(X, y, weight)
    expected = objective(oracle, X, y, alpha, weight)
    assert objective(model, X, y, alpha, weight) == pytest.approx(expected, rel=1e-9)
    assert model.loss_ == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(model.coef_, oracle.coef_, atol=1e-5)
    offset = (
        (model.intercept_ - oracle.intercept_).mean() if len(oracle.coef_) > 1 else 0
    )
    np.testing.assert_allclose(model.intercept_ - offset, oracle.intercept_, atol=1e-5)
    np.testing.assert_allclose(
        model.predict_proba(X), oracle.predict_proba(X), atol=1e-6
    )
    assert model.converged_
    assert model.stop_reason_ == "tol"


def test_features_that_are_scaled_only_have_the_same_optimum(monkeypatch):
    X, y = standardised(load_wine)
    rotated = FGNSoftmaxHead(alpha=1e-3, tol=1e-9, random_state=0).fit(X, y)
    monkeypatch.setattr(whitening, "ROTATED", 0)
    scaled = FGNSoftmaxHead(alpha=1e-3, tol=1e-9, random_state=0).fit(X, y)
    np.testing.assert_allclose(scaled.coef_, rotated.coef_, atol=1e-6)


def test_without_intercept_the_optimum_is_that_of_logistic_regression():
    X, y = standardised(load_wine)
    oracle = LogisticRegression(
        C=1 / (1e-2 * len(y)), fit_intercept=False, solver="newton-cg", tol=1e-12
    ).fit(X + 0.3, y)
    model = FGNSoftmaxHead(alpha=1e-2, tol=1e-9, fit_intercept=False, random_state=0)
    model.fit(X + 0.3, y)
    np.testing.assert_allclose(model.coef_, oracle.coef_, atol=1e-5)
    assert (model.intercept_ == 0).all()


def test_single_precision_reaches_the_optimum_to_its_digits():
    X, y = standardised(load_digits)
    double = FGNSoftmaxHead(alpha=1e-3).fit(X, y)
    single = FGNSoftmaxHead(alpha=1e-3, dtype="float32", tol=1e-5).fit(X, y)
    assert single.converged_
    assert single.loss_ == pytest.approx(double.loss_, rel=1e-5)
    assert single.coef_.dtype == np.float64


@pytest.mark.parametrize("solver", ["fgn", "sgn"])
def test_full_batch_method_without_damping_is_newtons(solver):
    """Two classes, one batch, step one: both are Newton's method."""
    X, y = small(2)
    model = FGNSoftmaxHead(
        solver_object(solver, learning_rate=1.0),
        alpha=0.1,
        damping=1e-6,
        tol=0.0,
        max_iter=25,
    )
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model.set_params(max_iter=5).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.set_params(max_iter=25).fit(X, y)
    optimum = FGNSoftmaxHead(alpha=0.1, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(model.coef_, optimum.coef_, atol=1e-6)


def test_sgn_and_fgn_of_full_rank_take_the_same_path():
    X, y = small(4, n=60)
    own = {"batch_size": 16, "learning_rate": 0.5}
    words = {"max_iter": 3, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        a = FGNSoftmaxHead(FGN(**own), rank=3, **words).fit(X, y)
        b = FGNSoftmaxHead(FGN(**own), rank=10**12, **words).fit(X, y)
        c = FGNSoftmaxHead(SGN(**own), **words).fit(X, y)
    np.testing.assert_allclose(a.coef_, b.coef_, rtol=1e-8)
    np.testing.assert_allclose(a.coef_, c.coef_, atol=1e-3)  # five steps of CG


# --- full steps ----------------------------------------------------------------------


def test_heads_after_the_approach_count_by_their_number(monkeypatch):
    monkeypatch.setattr(minibatch, "_APPROACH", 3)  # read when a batch size is new
    X, y = small(4, n=61)

    def coefficients(rate, n_steps):
        solver = FGN(learning_rate=rate, batch_size=61)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return FGNSoftmaxHead(solver, max_iter=n_steps, tol=0).fit(X, y).coef_

    path = [coefficients(1.0, n_steps) for n_steps in range(1, 9)]
    np.testing.assert_allclose(coefficients(None, 3), path[2], rtol=1e-10)
    expected = np.average(path[2:], axis=0, weights=np.arange(1, 7))
    np.testing.assert_allclose(coefficients(None, 8), expected, rtol=1e-10)


def test_many_full_steps_do_not_hover():
    X, y = small(4, n=4096)
    losses = []
    for rate in (None, 1.0):
        model = FGNSoftmaxHead(
            FGN(learning_rate=rate, batch_size=8), max_iter=2, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            losses.append(model.fit(X, y).loss_)
            pieces = clone(model).set_params(max_iter=1).fit_chunks([(X, y), (X, y)])
            losses.append(pieces.loss_)
    least = FGNSoftmaxHead(alpha=1e-3, random_state=0).fit(X, y).loss_
    averaged, full = np.array(losses[:2]) - least, np.array(losses[2:]) - least
    assert (averaged < full / 2).all()


# --- damping and rank ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("solver", "damping", "rank"),
    [("fgn_newton", 0.0, 100), ("fgn", 1.0, 1), ("sgn", 1.0, 5)],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_none_is_the_solvers_own_choice(solver, damping, rank):
    X, y = small(4)
    model = FGNSoftmaxHead(solver, max_iter=4, random_state=0)
    a = clone(model).fit(X, y)
    b = clone(model).set_params(damping=damping, rank=rank).fit(X, y)
    np.testing.assert_allclose(a.coef_, b.coef_, rtol=1e-8)


def test_damping_and_rank_shorten_newton_steps_and_keep_the_optimum():
    X, y = standardised(load_wine)
    plain, damped, one = (
        FGNSoftmaxHead(alpha=0.1, tol=1e-8, random_state=0, **words).fit(X, y)
        for words in ({}, {"damping": 0.03}, {"rank": 1})
    )
    assert plain.convergence_log_["inner_iterations"].max() > 1
    assert np.isnan(plain.convergence_log_["damping"]).all()
    assert (one.convergence_log_["inner_iterations"] == 1).all()
    assert (damped.convergence_log_["damping"] == 0.03).all()
    for model in (damped, one):
        assert model.converged_
        assert model.n_iter_ > plain.n_iter_
        np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-5)


@pytest.mark.parametrize("damping", [pytest.param(0.1, marks=pytest.mark.slow), 1.0])
def test_much_damping_neither_halts_a_fit_nor_changes_the_penalty(damping):
    X, y = load_digits(return_X_y=True)
    X, y = X[::3] / 16, y[::3]
    fixed = FGNSoftmaxHead(alpha=1e-3, damping=damping, random_state=0).fit(X, y)
    assert fixed.converged_
    assert fixed.n_iter_ < 50  # twice as many without the step before
    plain, damped = (
        FGNSoftmaxHead(damping=value, random_state=0).fit(X, y)
        for value in (None, damping)
    )
    assert damped.converged_
    assert damped.alpha_ == pytest.approx(plain.alpha_, rel=1e-6)
    np.testing.assert_allclose(damped.loss_, plain.loss_, rtol=1e-4)


def test_a_grid_over_damping_and_rank_searches_the_default_solver():
    X, y = small(n=60)
    grid = {"damping": [None, 0.01], "rank": [None, 1]}
    search = GridSearchCV(
        FGNSoftmaxHead(alpha=1e-3, max_iter=4, random_state=0), grid, cv=3
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search.set_params(scoring="neg_log_loss").fit(X, y)
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 4


def test_settings_of_a_solver_are_searched_and_cloned():
    X, y = small(n=60)
    model = FGNSoftmaxHead(FGN(batch_size=16), max_iter=2, random_state=0)
    rates = [0.1, 0.9]
    grid = {"solver__learning_rate": rates, "solver__batch_size": [8, 16]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search = GridSearchCV(model, grid, cv=2, scoring="neg_log_loss").fit(X, y)
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 4
    assert model.solver.get_params() == FGN(batch_size=16).get_params()
    again = clone(search.best_estimator_)
    assert again.solver is not search.best_estimator_.solver
    assert again.solver.get_params() == search.best_estimator_.solver.get_params()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", SOLVERS)
def test_an_object_of_default_settings_is_the_short_form(solver):
    X, y = small()
    a = FGNSoftmaxHead(solver, max_iter=3, random_state=0).fit(X, y)
    b = FGNSoftmaxHead(solver_object(solver), max_iter=3, random_state=0).fit(X, y)
    np.testing.assert_array_equal(a.coef_, b.coef_)


# --- equivalences --------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_weights_equal_repetition(solver):
    X, y = small()
    times = np.random.RandomState(0).randint(0, 4, size=len(y))
    model = FGNSoftmaxHead(
        solver_object(solver, batch_size=16),
        alpha=1e-3,  # that of the evidence depends on the sum of the weights
        max_iter=8,
        random_state=0,
        class_weight="balanced",
    )
    a = clone(model).fit(X, y, sample_weight=times)
    b = clone(model).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
    c = clone(model).fit(X[::-1], y[::-1], sample_weight=3.5 * times[::-1])
    for other in (b, c):
        np.testing.assert_allclose(other.coef_, a.coef_, rtol=1e-7, atol=1e-9)


def test_wide_rows_are_merged_and_ordered_by_content():
    X, y = small()
    X = np.tile(X, 6)
    X[0, 0] = 0.0
    weight = np.ones(len(y))
    weight[::2] = 2
    twice = np.flatnonzero(weight == 2)
    model = FGNSoftmaxHead(FGN(batch_size=16), max_iter=3, random_state=0)
    with pytest.warns(ConvergenceWarning):
        a = clone(model).fit(X, y, weight)
    Z, t = np.concatenate([X, X[twice]]), np.concatenate([y, y[twice]])
    Z[Z == 0] = -0.0
    with pytest.warns(ConvergenceWarning):
        b = clone(model).fit(Z[::-1], t[::-1])
    np.testing.assert_allclose(a.coef_, b.coef_, rtol=1e-8)


def test_sparse_and_frames_equal_dense():
    pd = pytest.importorskip("pandas")
    X, y = small()
    X[np.abs(X) < 0.5] = 0
    dense = FGNSoftmaxHead(random_state=0).fit(X, y)
    loose = FGNSoftmaxHead(random_state=0).fit(sparse.csr_matrix(X), y)
    np.testing.assert_allclose(dense.coef_, loose.coef_, rtol=1e-6)
    np.testing.assert_allclose(
        dense.predict_proba(sparse.csr_matrix(X)), dense.predict_proba(X), rtol=1e-10
    )
    frame = pd.DataFrame(X, columns=list("abcd"))
    named = FGNSoftmaxHead(random_state=0).fit(frame, y)
    np.testing.assert_allclose(named.coef_, dense.coef_, rtol=1e-6)
    assert named.feature_names_in_.tolist() == list("abcd")


def test_labels_of_any_kind():
    X, y = small()
    numbers = FGNSoftmaxHead(random_state=0).fit(X, y)
    names = np.array(["b", "a", "c"], dtype=object)
    words = FGNSoftmaxHead(random_state=0).fit(X, names[y])
    assert words.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(words.coef_, numbers.coef_[[1, 0, 2]], atol=1e-6)
    assert (words.predict(X) == names[numbers.predict(X)]).all()


def test_feature_grams_change_nothing(monkeypatch):
    X, y = small(3, n=64)
    X = np.tile(X, 8)  # more features than rows in a batch: the Grams are kept
    model = FGNSoftmaxHead(FGN(batch_size=16), max_iter=3, random_state=0)
    kept, real = [], minibatch.feature_grams
    monkeypatch.setattr(
        minibatch, "feature_grams", lambda x, b: kept.append(b) or real(x, b)
    )
    with pytest.warns(ConvergenceWarning):
        with_grams = clone(model).fit(X, y)
    assert kept == [16]
    monkeypatch.setattr(minibatch, "feature_grams", lambda x, b: None)
    with pytest.warns(ConvergenceWarning):
        without = clone(model).fit(X, y)
    assert kept == [16]
    np.testing.assert_allclose(with_grams.coef_, without.coef_, rtol=1e-10)


# --- going on ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_path_of_penalties_in_a_loop_ends_at_the_minima_of_single_fits(dtype):
    """In any order, of the rows as they are then, and in fewer steps."""
    X, y = small(n_classes=4, n=120)
    weight = np.arange(120) % 3
    words = {"tol": 1e-9 if dtype == "float64" else 1e-5, "dtype": dtype}
    path = FGNSoftmaxHead(warm_start=True, **words)
    steps = []
    for k, alpha in enumerate([1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-1, 1e-1, 2e-4, 0]):
        if k == 7:
            X[:, 0] *= 2
        path.set_params(alpha=alpha).fit(X, y, weight)
        single = FGNSoftmaxHead(alpha=alpha, **words).fit(X, y, weight)
        off = np.abs(path.predict_proba(X) - single.predict_proba(X)).max()
        assert off <= (1e-5 if dtype == "float64" else 1e-2)
        steps.append((path.n_iter_, single.n_iter_))
    assert sum(n for n, _ in steps[:7]) < sum(n for _, n in steps[:7]) / 1.5
    assert len(pickle.dumps(path)) < 1.1 * len(pickle.dumps(single)) + 1000


def test_warm_start_at_the_optimum_ends_at_once():
    X, y = small()
    model = FGNSoftmaxHead(alpha=1e-3, warm_start=True, random_state=0).fit(X, y)
    coef, steps = model.coef_, model.n_iter_
    model.fit(X, y)
    assert model.n_iter_ == 1 < steps
    np.testing.assert_allclose(model.coef_, coef, atol=1e-5)
    with pytest.raises(ValueError, match=r"warm_start=True.*classes"):
        model.fit(X, y + 1)
    with pytest.raises(ValueError, match="warm_start=True continues from 4 features"):
        model.fit(X[:, :3], y)


@pytest.mark.parametrize("solver", ["fgn", "sgn", "adam"])
def test_partial_fit_is_an_epoch_of_fit(solver):
    X, y = small()
    model = FGNSoftmaxHead(
        solver_object(solver, batch_size=16, learning_rate=0.1),
        random_state=0,
        max_iter=1,
    )
    with pytest.warns(ConvergenceWarning):
        whole = clone(model).fit(X, y)
    part = clone(model).partial_fit(X, y, classes=[0, 1, 2])
    np.testing.assert_allclose(part.coef_, whole.coef_, rtol=1e-8)
    first = part.loss_
    for _ in range(3):
        part.partial_fit(X, y)
    assert part.loss_ < first
    assert part.n_iter_ == 4


def test_partial_fit_with_classes_missing_from_the_batch():
    X, y = small(4)
    model = FGNSoftmaxHead("fgn", random_state=0)
    with pytest.raises(ValueError, match="classes must be given"):
        model.partial_fit(X, y)
    model.partial_fit(X[y < 2], y[y < 2], classes=[0, 1, 2, 3])
    assert model.predict_proba(X).shape == (len(X), 4)
    model.partial_fit(X, y)
    assert np.isfinite(model.coef_).all()
    with pytest.raises(ValueError, match=r"y holds labels .* \[9\]"):
        model.partial_fit(X[:1], [9])
    with pytest.raises(ValueError, match=r"classes=\[0, 1\] differ"):
        model.partial_fit(X, y, classes=[0, 1])


def test_a_refit_keeps_nothing_of_the_former_fit():
    X, y = load_iris(return_X_y=True)
    model = FGNSoftmaxHead(random_state=0).fit(X, y)
    assert len(model.alpha_path_["alpha"]) > 2
    fixed = FGNSoftmaxHead(alpha=0.1, random_state=0).fit(X, y)
    assert set(vars(model.set_params(alpha=0.1).fit(X, y))) == set(vars(fixed))
    model.set_params(solver="fgn").partial_fit(X, y)
    assert "partial_fit keeps no log" in str(model.diagnose())


def test_partial_fit_needs_a_mini_batch_solver():
    assert not hasattr(FGNSoftmaxHead(), "partial_fit")
    assert not hasattr(FGNSoftmaxHead(FGNNewton()), "partial_fit")
    assert hasattr(FGNSoftmaxHead("adam"), "partial_fit")
    assert hasattr(FGNSoftmaxHead(Adam()), "partial_fit")
    with pytest.raises(ValueError, match="solver='fng' is unknown"):
        FGNSoftmaxHead("fng").partial_fit([[0.0], [1.0]], [0, 1], classes=[0, 1])
    with pytest.raises(AttributeError, match=r"Set solver to 'fgn', 'sgn' or 'adam'"):
        FGNSoftmaxHead().partial_fit([[0.0], [1.0]], [0, 1], classes=[0, 1])


@pytest.mark.parametrize("solver", ["fgn_newton", "sgn"])
def test_a_resumed_fit_ends_as_an_uninterrupted_one(solver, tmp_path):
    X, y = small()
    model = FGNSoftmaxHead(
        solver_object(solver, batch_size=16, shuffle=True),
        max_iter=12,
        tol=1e-9,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        whole = clone(model).fit(X, y)
        path = tmp_path / "fit.ckpt"
        half = clone(model).set_params(max_iter=7).set_callbacks(Checkpoint(path))
        half.fit(X, y)
        resumed = clone(model).set_callbacks(Checkpoint(path)).fit(X, y)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    assert resumed.n_iter_ == whole.n_iter_


def test_early_stopping_returns_the_best_head_on_validation_data():
    X, y = small(3, n=90, seed=3)
    noisy = np.random.RandomState(0).permutation(y)
    model = FGNSoftmaxHead(
        alpha=1e-6, early_stopping=True, n_iter_no_change=1, random_state=0
    )
    model.fit(X[:60], noisy[:60], X_val=X[60:], y_val=noisy[60:])
    log = model.convergence_log_["val_loss"]
    assert model.stop_reason_ == "early_stopping"
    found = -np.mean(model.predict_log_proba(X[60:])[np.arange(30), noisy[60:]])
    assert found == pytest.approx(min(*log, np.log(3)), rel=1e-9)
    split = FGNSoftmaxHead(early_stopping=True, random_state=0).fit(X, y)
    assert np.isfinite(split.convergence_log_["val_loss"]).all()
    with pytest.raises(ValueError, match=r"y_val holds labels .* \[7\]"):
        model.fit(X, y, X_val=X[:2], y_val=[0, 7])


@pytest.mark.slow
def test_a_search_over_damping_and_rank_compiles_each_rank_once(compiled):
    X, y = small(4, n=100)
    search = GridSearchCV(
        make_pipeline(
            StandardScaler(),
            FGNSoftmaxHead(FGN(batch_size=16), max_iter=2, random_state=0),
        ),
        {
            "fgnsoftmaxhead__damping": [0.1, 10.0],
            "fgnsoftmaxhead__rank": [None, 2],
        },
        cv=2,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search.fit(X, y)
        # The folds share a size; the refit on all rows has its own.
        assert sum("fgn_epoch" in name for name in compiled) <= 4
        compiled.clear()
        search.fit(X, y)
    assert compiled == []
    assert search.best_score_ > 0.25


@pytest.fixture
def with_jax():
    with forced_jax():
        yield


@pytest.mark.slow
def test_a_first_fit_compiles_twelve_functions_and_folds_none(compiled, with_jax):
    rng = np.random.RandomState(0)
    # A shape that no other test has.
    X, y = rng.randn(100, 11), rng.randint(3, size=100)
    model = FGNSoftmaxHead(random_state=0)
    model.fit(X[:70, :10], y[:70])  # what does not depend on it
    compiled.clear()
    model.fit(X[:70], y[:70])
    assert len(compiled) <= 12, compiled
    FGNSoftmaxHead(alpha=0.01).fit(X[:70], y[:70])  # which has no preconditioner yet
    compiled.clear()
    for n in (68, 80, 100):
        FGNSoftmaxHead(alpha=n * 1e-4, random_state=0).fit(X[:n], y[:n])
    assert not any("newton_direction" in n or "evaluate" in n for n in compiled)


def test_fitted_estimators_pickle_and_stay_numpy():
    X, y = small()
    model = FGNSoftmaxHead(random_state=0).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    arrays = [v for v in vars(model).values() if hasattr(v, "shape")]
    assert all(isinstance(v, np.ndarray | np.generic) for v in arrays)
    assert not any(isinstance(v, jax.Array) for v in vars(model).values())


# --- fitted attributes ---------------------------------------------------------------


def test_dispersion_and_traces_are_those_of_the_fitted_probabilities():
    X, y = small(5, n=80)
    weight = 1 + np.random.RandomState(0).rand(len(y))
    model = FGNSoftmaxHead(alpha=0.01).fit(X, y, weight)
    p = model.predict_proba(X)
    true = p[np.arange(len(y)), y]
    rho = p / (1 - true)[:, None]
    rho[np.arange(len(y)), y] = 0
    xi = 1 - np.sum(rho**2, axis=1)
    share = weight / weight.sum()
    retained = share @ (true * (1 - true) * (2 - xi))
    assert model.competitor_dispersion_ == pytest.approx(share @ xi, rel=1e-10)
    log, dropped = model.convergence_log_, share @ ((1 - true) * xi)
    assert log["retained_trace"][-1] == pytest.approx(retained, rel=1e-6)
    assert log["dropped_trace"][-1] == pytest.approx(dropped, rel=1e-6)
    assert len(log["competitor_dispersion"]) == model.n_iter_


def test_gram_spectrum_is_that_of_the_dense_matrix():
    X, y = small(3, n=30)
    model = FGNSoftmaxHead(alpha=0.1, random_state=0).fit(X, y)
    p = model.predict_proba(X)
    true = p[np.arange(30), y]
    a = p / (1 - true)[:, None]
    a[np.arange(30), y] = -1
    h = np.concatenate([X, np.ones((30, 1))], axis=1)
    rows = np.sqrt(true * (1 - true))[:, None, None] * h[:, :, None] * a[:, None, :]
    expected = np.linalg.eigvalsh(
        np.cov(rows.reshape(30, -1).T, bias=True) * 0
        + (rows.reshape(30, -1).T @ rows.reshape(30, -1)) / 30
    )[::-1]
    found = model.gram_spectrum_
    n = min(len(found), len(expected))
    np.testing.assert_allclose(found[:n], expected[:n], atol=1e-10)


def test_partial_fit_takes_eigenvalues_when_they_are_asked_for(monkeypatch):
    X, y = small(3, n=30)
    model = FGNSoftmaxHead(solver="fgn", alpha=0.1, random_state=0)
    with monkeypatch.context() as patch:
        name = "sklearn_gn.softmax_head.problem.row_spectrum"
        patch.setattr(name, None)  # a call would fail
        for _ in range(2):
            model.partial_fit(X, y, classes=[0, 1, 2])
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(again.gram_spectrum_, model.gram_spectrum_, atol=1e-10)
    p, h = model.predict_proba(X), np.concatenate([X, np.ones((30, 1))], axis=1)
    true = p[np.arange(30), y]
    direction = p / (1 - true)[:, None]
    direction[np.arange(30), y] = -1
    direction *= np.sqrt(true * (1 - true) / 30)[:, None]
    gram = (h @ h.T) * (direction @ direction.T)
    np.testing.assert_allclose(
        model.gram_spectrum_, np.linalg.eigvalsh(gram)[::-1], atol=1e-10
    )
    assert not hasattr(FGNSoftmaxHead(), "gram_spectrum_")


def test_a_stored_head_holds_no_rows():
    X = np.random.default_rng(0).normal(size=(200, 50))
    model = FGNSoftmaxHead(alpha=0.1).fit(X, np.arange(200) % 3)
    stored = pickle.dumps(model)
    assert len(stored) < X.nbytes / 4
    again = pickle.loads(stored)
    np.testing.assert_array_equal(again.gram_spectrum_, model.gram_spectrum_)


# --- hard data -----------------------------------------------------------------------


def test_one_class_is_refused():
    X, y = small()
    with pytest.raises(ValueError, match=r"at least two classes.*\[0\]"):
        FGNSoftmaxHead().fit(X, 0 * y)
    with pytest.raises(ValueError, match=r"at least two classes.*\[1\]"):
        FGNSoftmaxHead().fit(X, y, sample_weight=(y == 1).astype(float))


def test_a_class_without_weight_is_no_class():
    X, y = small(4)
    model = FGNSoftmaxHead(random_state=0).fit(X, y, (y != 2).astype(float))
    assert model.classes_.tolist() == [0, 1, 3]
    other = FGNSoftmaxHead(random_state=0).fit(X[y != 2], y[y != 2])
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=1e-6)


def test_a_class_of_one_sample():
    X, y = small(2)
    y[0] = 2
    model = FGNSoftmaxHead(random_state=0, early_stopping=False).fit(X, y)
    assert model.converged_
    split = FGNSoftmaxHead(random_state=0, early_stopping=True, validation_fraction=0.3)
    assert np.isfinite(split.fit(X, y).predict_proba(X)).all()


def test_separable_classes_without_penalty_are_named():
    X, y = small()
    X = X + 100 * np.eye(3)[y] @ np.eye(3, 4)
    model = FGNSoftmaxHead(alpha=0.0, random_state=0)
    with pytest.warns(
        ConvergenceWarning, match=r"separates the classes and alpha is 0"
    ):
        model.fit(X, y)
    assert model.stop_reason_ == "separable"
    assert not model.converged_
    assert model.score(X, y) == 1
    assert np.isfinite(model.coef_).all()


@pytest.mark.parametrize(
    "extend",
    [
        lambda X: np.concatenate([X, X], axis=1),
        lambda X: np.concatenate([X, 0 * X + 7], axis=1),
        lambda X: np.concatenate([X, 0 * X], axis=1),
    ],
    ids=["twice", "constant", "zero"],
)
@pytest.mark.parametrize("n_rotated", [4096, 0])
def test_dependent_features_without_penalty_change_no_optimum(
    extend, n_rotated, monkeypatch
):
    monkeypatch.setattr(whitening, "ROTATED", n_rotated)
    X, y = small(3, n=60)
    plain = FGNSoftmaxHead(alpha=0.0, tol=1e-8, random_state=0).fit(X, y)
    more = FGNSoftmaxHead(alpha=0.0, tol=1e-8, random_state=0).fit(extend(X), y)
    assert plain.converged_
    assert more.converged_
    assert more.loss_ == pytest.approx(plain.loss_, rel=1e-8)
    p = more.predict_proba(extend(X))
    np.testing.assert_allclose(p, plain.predict_proba(X), atol=1e-5)


def test_fewer_rows_than_features_are_separable():
    X, y = np.random.RandomState(0).randn(30, 50), np.arange(30) % 3
    with pytest.warns(ConvergenceWarning, match="separates the classes"):
        model = FGNSoftmaxHead(alpha=0.0, random_state=0).fit(X, y)
    assert model.stop_reason_ == "separable"
    assert model.score(X, y) == 1


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda X: X * 1e3,
        lambda X: X * 1e-8,
        lambda X: np.concatenate([X, X, X[:, :1] * 0 + 7], axis=1),
        lambda X: X + 1e6,
        lambda X: X * np.array([1e8, 1, 1e-8, 0]),
        lambda X: X[:5],
    ],
    ids=["large", "tiny", "collinear", "offset", "mixed", "few"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_hard_features_give_finite_predictions(solver, spoil):
    X, y = small()
    X = spoil(X)
    y = y[: len(X)]
    model = FGNSoftmaxHead(solver, max_iter=30, random_state=0).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    assert model.loss_ <= np.log(3) * (1 + 1e-9)
    if solver == "fgn_newton":
        assert model.stop_reason_ in ("tol", "rounding")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_absurd_scales_do_not_spoil_predictions(scale):
    X, y = small()
    model = FGNSoftmaxHead(random_state=0).fit(X * scale, y)
    assert np.isfinite(model.predict_proba(X * scale)).all()


def test_predictions_of_huge_rows_are_finite():
    X, y = small()
    for n_classes in (2, 3):
        model = FGNSoftmaxHead(random_state=0).fit(X, np.minimum(y, n_classes - 1))
        huge = np.array([[1e308, -1e308, 1e308, -1e308]])
        assert np.isfinite(model.predict_proba(huge)).all()
        assert np.isfinite(model.predict_log_proba(huge)).all()


def test_large_sparse_input_is_refused_with_advice():
    X = sparse.eye_array(200_000, 100_000, format="csr")
    with pytest.raises(ValueError, match=r"149\.0 GiB.*TruncatedSVD"):
        FGNSoftmaxHead("fgn").fit(X, np.arange(200_000) % 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"alpha": -1}, "alpha"),
        ({"rank": 0}, "rank"),
        ({"solver": FGN(batch_size=0)}, "batch_size"),
        ({"solver": SGN(learning_rate=0)}, "learning_rate"),
        ({"solver": Adam(shuffle=2)}, "shuffle"),
        ({"solver": "fng"}, r"solver='fng' is unknown.*Did you mean 'fgn'"),
        ({"damping": -0.5}, "damping"),
    ],
)
def test_bad_parameters_are_named(words, message):
    X, y = small()
    with pytest.raises(ValueError, match=message):
        FGNSoftmaxHead(**words).fit(X, y)


def test_steps_that_are_too_long_are_no_convergence():
    X, y = small()
    solver = FGN(learning_rate=1.0, batch_size=8)
    model = FGNSoftmaxHead(solver, damping=1e-6, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"diverged(.|\n)*raise damping"):
        model.fit(X, y)
    assert not model.converged_
    assert model.loss_ <= np.log(3) * (1 + 1e-9)


def test_divergence_keeps_the_best_head_and_says_so():
    X, y = small()
    model = FGNSoftmaxHead(Adam(learning_rate=1e306), max_iter=5, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    assert model.loss_ <= np.log(3) * (1 + 1e-9)
    assert np.isfinite(model.predict_proba(X)).all()


@pytest.mark.parametrize("alpha", [1e-5, "auto"])
def test_no_step_begins_that_would_end_after_max_time(alpha, monkeypatch):
    X, y = standardised(load_digits)
    now, real = [0.0], whitening.newton_direction

    def a_second(*given):
        now[0] += 1.0
        return real(*given)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(whitening, "newton_direction", a_second)
    model = FGNSoftmaxHead(alpha=alpha, tol=1e-12, max_time=5.5)
    with pytest.warns(ConvergenceWarning, match="max_time"):
        model.fit(X, y)
    assert model.stop_reason_ == "max_time"
    assert 4 <= now[0] <= 1.1 * 5.5
    assert model.score(X, y) > 0.9


# --- changes between fits ------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", SOLVERS)
def test_warm_start_without_intercept_has_none(solver):
    X, y = small()
    words = {"alpha": 1e-3, "tol": 1e-9, "random_state": 0}
    model = FGNSoftmaxHead(solver, warm_start=True, max_iter=20, **words)
    assert model.fit(X, y).intercept_.any()
    model.set_params(fit_intercept=False, max_iter=60).fit(X, y)
    assert (model.intercept_ == 0).all()
    if solver == "fgn_newton":
        cold = FGNSoftmaxHead(fit_intercept=False, **words).fit(X, y)
        np.testing.assert_allclose(model.coef_, cold.coef_, atol=1e-5)


def test_partial_fit_without_intercept_has_none():
    X, y = small()
    model = FGNSoftmaxHead("fgn", random_state=0).partial_fit(X, y, classes=[0, 1, 2])
    assert model.intercept_.any()
    model.set_params(fit_intercept=False).partial_fit(X, y)
    assert (model.intercept_ == 0).all()


def test_partial_fit_does_not_balance_pieces():
    X, y = small()
    model = FGNSoftmaxHead("fgn", class_weight="balanced", random_state=0)
    with pytest.raises(ValueError, match=r"class_weight='balanced'.*dict.*sample_w"):
        model.partial_fit(X, y, classes=[0, 1, 2])
    model.set_params(class_weight={0: 2.0}).partial_fit(X, y, classes=[0, 1, 2])
    weighted = FGNSoftmaxHead("fgn", random_state=0)
    weighted.partial_fit(X, y, [0, 1, 2], sample_weight=np.where(y == 0, 2.0, 1.0))
    np.testing.assert_allclose(model.coef_, weighted.coef_, rtol=1e-8)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_predictions_read_no_parameter(n_classes):
    X, y = small(n_classes)
    model = FGNSoftmaxHead(random_state=0).fit(X, y)
    before = model.decision_function(X), model.predict(X), model.predict_log_proba(X)
    nonsense = {name: object() for name in model.get_params(deep=False)}
    vars(model).update(nonsense)
    after = model.decision_function(X), model.predict(X), model.predict_log_proba(X)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


# --- sizes ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["fgn", "sgn", "adam"])
def test_batches_of_more_rows_than_there_are_take_all(solver):
    X, y = small()
    model = FGNSoftmaxHead(max_iter=3, random_state=0)
    huge, all_rows = (
        clone(model).set_params(solver=solver_object(solver, batch_size=size)).fit(X, y)
        for size in (10**12, 64)
    )
    np.testing.assert_allclose(huge.coef_, all_rows.coef_, rtol=1e-8)


def test_batches_of_any_size_are_evaluated_in_blocks(float64):
    n_features, n_classes = 4, 5000

    def temporary_bytes(n_rows):
        def shape(*sizes, dtype=np.float64):
            return jax.ShapeDtypeStruct(sizes, dtype)

        scalar = shape(dtype=np.int32)
        rows = head.BatchedRows(
            shape(n_rows, n_features),
            shape(n_rows, dtype=np.int32),
            shape(n_rows),
            scalar,
            scalar,
        )
        net = head.AffineHead(shape(n_features, n_classes), shape(n_classes))
        lowered = head.evaluate.compiled.lower(net, rows, shape(1, 1), shape())
        return lowered.compile().memory_analysis().temp_size_in_bytes

    even = temporary_bytes(2**13)
    logits = 2**13 * n_classes * 8
    assert even < logits / 10
    for n_rows in (33 * 255, 8191):  # odd, and prime
        assert temporary_bytes(n_rows) < 2.5 * even


@pytest.mark.parametrize("n_rows", [1, 2, 31, 32, 97])
def test_blocks_cover_every_row_once(float64, monkeypatch, n_rows):
    monkeypatch.setattr(head, "_BLOCK_OF_NUMPY", 10)
    monkeypatch.setattr(head, "_ROWS_OF_NUMPY", 1)
    blocks = []

    def collect(total, x):
        blocks.append(x.shape[0])
        return total + x.sum()

    x = 3.0 ** -np.arange(n_rows)
    total = head.over_blocks(collect, np.float64(0), (x,), 2)
    assert float(total) == pytest.approx(x.sum(), rel=1e-12)
    assert max(blocks) <= 5


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_odd_batch_size_gives_the_loss_of_the_coefficients():
    X, y = thirty_classes()
    model = FGNSoftmaxHead(FGN(batch_size=255), max_iter=2, random_state=0).fit(X, y)
    assert model.loss_ == pytest.approx(objective(model, X, y, 1e-3), rel=1e-10)
