"""Heads of sparse features that are never made dense."""

import tracemalloc
import warnings

import numpy as np
import pytest
from scipy import sparse
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import (
    check_estimator_sparse_array,
    check_estimator_sparse_matrix,
    check_sample_weight_equivalence_on_sparse_data,
)

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.callbacks import Checkpoint
from sklearn_gn.datasets import load_udhr
from sklearn_gn.softmax_head import problem, whitening


@pytest.fixture
def stays_sparse(monkeypatch):
    monkeypatch.setattr(problem, "_DENSE_NUMBERS", 0)
    monkeypatch.setattr(problem, "_DENSE_SHARE", 1.0)


def text(n_classes, n=120, d=70):
    """Words at random, with one that the class uses more often; empty columns."""
    rng = np.random.default_rng(n_classes)
    y = rng.integers(n_classes, size=n)
    X = sparse.random(n, d, 0.08, random_state=0, format="lil")
    X[:, ::7] = 0
    often = rng.random(n) < 0.7
    X[np.flatnonzero(often), y[often] + 1] = 1.0
    return sparse.csr_matrix(X), y, rng.integers(1, 4, n).astype(float)


@pytest.mark.parametrize(
    ("n_classes", "intercept"), [(2, True), (2, False), (5, True), (5, False)]
)
def test_optimum_is_that_of_the_dense_fit(stays_sparse, n_classes, intercept):
    X, y, weight = text(n_classes)
    model = FGNSoftmaxHead(alpha=0.01, tol=1e-11, fit_intercept=intercept)
    loose = clone(model).fit(X, y, weight)
    dense = clone(model).fit(X.toarray(), y, weight)
    assert loose.stop_reason_ == "tol"
    assert loose.loss_ == pytest.approx(dense.loss_, rel=1e-10)
    difference = np.linalg.norm(loose.coef_ - dense.coef_)
    assert difference <= 1e-7 * np.linalg.norm(dense.coef_)
    np.testing.assert_allclose(
        loose.predict_log_proba(X), dense.predict_log_proba(X), atol=1e-8
    )
    for name in ("competitor_dispersion", "retained_trace", "dropped_trace"):
        values = [m.convergence_log_[name][-1] for m in (loose, dense)]
        assert values[0] == pytest.approx(values[1], abs=1e-8)
    # Fewer rows than a batch: the spectrum is that of the same rows.
    np.testing.assert_allclose(loose.gram_spectrum_, dense.gram_spectrum_, atol=1e-8)
    peer = LogisticRegression(
        C=1 / (0.01 * weight.sum()), tol=1e-12, fit_intercept=intercept
    )
    peer.set_params(max_iter=10_000).fit(X, y, weight)
    np.testing.assert_allclose(loose.predict_proba(X), peer.predict_proba(X), atol=1e-6)


def test_a_start_that_is_no_combination_of_rows(stays_sparse):
    X, y, _ = text(3)
    cold = FGNSoftmaxHead(alpha=0.02, tol=1e-11).fit(X, y)
    warm = FGNSoftmaxHead(alpha=0.02, tol=1e-11, warm_start=True).fit(X[:40], y[:40])
    rng = np.random.default_rng(0)
    warm.coef_ = rng.normal(size=warm.coef_.shape)
    warm.fit(X, y)
    np.testing.assert_allclose(warm.coef_, cold.coef_, atol=1e-8)
    # Unused columns are left by the penalty alone.
    np.testing.assert_allclose(warm.coef_[:, ::7], 0, atol=1e-8)
    warm.fit(X, y)
    assert warm.n_iter_ <= 2


@pytest.mark.parametrize("scale", [1e-200, 1e-6, 1e6, 1e12, 1e20])
def test_features_of_any_scale_give_finite_heads(stays_sparse, scale):
    X, y, _ = text(3)
    model = FGNSoftmaxHead(alpha=1e-3, max_iter=50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(scale * X, y)
    assert np.isfinite(model.coef_).all()
    assert model.loss_ <= np.log(3)
    assert model.score(scale * X, y) == (1.0 if scale > 1 else model.score(X, y))


def test_another_device_is_no_use(stays_sparse):
    X, y, _ = text(3)
    with (
        pytest.raises(ValueError, match="not available"),  # on a machine without one
        pytest.warns(UserWarning, match="device='tpu'.* fitted on the CPU"),
    ):
        FGNSoftmaxHead(alpha=0.1, device="tpu").fit(X, y)


def test_no_dense_copy_is_made():
    rng = np.random.default_rng(0)
    n, d = 300, 2**18
    X = sparse.csr_matrix(
        (np.ones(20 * n), rng.integers(d, size=20 * n), np.arange(0, 20 * n + 1, 20)),
        (n, d),
    )
    y = np.arange(n) % 3
    FGNSoftmaxHead(alpha=0.1).fit(X, y)  # loads the modules
    tracemalloc.start()
    model = FGNSoftmaxHead().fit(X, y)
    assert np.mean(model.predict(X) == y) > 0.9
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    coefficients = 8 * 3 * d
    assert peak < 6 * coefficients < n * d  # the dense array has 8 n d bytes


@pytest.mark.parametrize(
    "check",
    [
        check_estimator_sparse_array,
        check_estimator_sparse_matrix,
        check_sample_weight_equivalence_on_sparse_data,
    ],
)
def test_checks_of_scikit_learn(stays_sparse, check):
    check("FGNSoftmaxHead", FGNSoftmaxHead(alpha=0.1, tol=1e-10))


@pytest.mark.slow
def test_rows_left_out_choose_the_penalty(stays_sparse):
    X, y, _ = text(3, n=1000)
    model = FGNSoftmaxHead(tol=1e-10).fit(X, y)
    again = FGNSoftmaxHead(alpha=model.alpha_, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(again.coef_, model.coef_, atol=1e-6)
    assert again.temperature_ == 1
    # The units of the features do not matter.
    scaled = FGNSoftmaxHead().fit(8 * X, y)
    assert scaled.alpha_ == pytest.approx(64 * model.alpha_, rel=1e-6)
    assert scaled.temperature_ == pytest.approx(model.temperature_, rel=1e-3)
    np.testing.assert_allclose(8 * scaled.coef_, model.coef_, rtol=1e-3, atol=1e-4)
    # Labels that the words do not tell are not learnt.
    rng = np.random.default_rng(0)
    noise = FGNSoftmaxHead().fit(X, rng.permutation(y))
    assert np.ptp(noise.predict_proba(X), axis=0).max() < 0.25


@pytest.mark.slow
def test_few_texts_of_many_languages_need_a_temperature():
    texts, languages = load_udhr(return_X_y=True)
    chosen = np.random.RandomState(0).choice(np.unique(languages), 100, replace=False)
    kept = np.isin(languages, chosen)
    T, T_test, y, y_test = train_test_split(
        texts[kept],
        languages[kept],
        test_size=0.3,
        stratify=languages[kept],
        random_state=0,
    )
    words = TfidfVectorizer().fit(T)
    model = FGNSoftmaxHead().fit(words.transform(T), y)
    p = model.predict_proba(words.transform(T_test))
    assert model.temperature_ < 0.5
    assert log_loss(y_test, p) < 0.6
    one = softmax(model.decision_function(words.transform(T_test)), axis=1)
    assert log_loss(y_test, one) > 0.8


def test_rows_left_out_agree_with_a_grid_search(stays_sparse):
    X, y, _ = text(4, n=1500, d=300)
    unseen, y_unseen = X[1000:], y[1000:]
    X, y = X[:1000], y[:1000]

    def loss(alpha):
        head = FGNSoftmaxHead(alpha=alpha).fit(X, y)
        return log_loss(y_unseen, head.predict_proba(unseen))

    assert loss("auto") < 1.05 * min(loss(a) for a in 10.0 ** np.arange(-6, 0))


@pytest.mark.parametrize("n", [5, 200])
def test_one_row_of_a_class_leaves_the_penalty_to_the_prior(stays_sparse, n):
    X, y, _ = text(2, n=n)
    y = np.arange(n) if n == 5 else np.arange(n) < 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = FGNSoftmaxHead().fit(X, y)
    assert 0 < model.alpha_ < np.inf
    assert np.isfinite(model.predict_log_proba(X)).all()


def test_many_rows_choose_the_penalty_that_few_would(stays_sparse, monkeypatch):
    X, y, _ = text(4, n=600, d=700)
    few = FGNSoftmaxHead().fit(X, y)
    monkeypatch.setattr(whitening, "ROTATED", 0)  # as if the rows were very many
    many = FGNSoftmaxHead().fit(X, y)
    assert many.alpha_method_ == "left-out"
    assert abs(np.log10(many.alpha_ / few.alpha_)) < 0.1
    assert many.temperature_ == pytest.approx(few.temperature_, rel=0.05)
    np.testing.assert_allclose(many.predict_proba(X), few.predict_proba(X), atol=0.02)


@pytest.mark.parametrize("intercept", [True, False])
def test_few_rows_have_the_optimum_of_many(stays_sparse, intercept, monkeypatch):
    X, y, weight = text(3, n=50)
    model = FGNSoftmaxHead(alpha=0.01, tol=1e-10, fit_intercept=intercept)
    few = clone(model).fit(X, y, weight)
    again = clone(few).set_params(warm_start=True).fit(X, y, weight).fit(X, y, weight)
    monkeypatch.setattr(whitening, "ROTATED", 0)
    many = clone(model).fit(X, y, weight)
    np.testing.assert_allclose(few.coef_, many.coef_, atol=1e-7)
    np.testing.assert_allclose(again.coef_, few.coef_, atol=1e-7)
    assert again.n_iter_ <= 2


@pytest.mark.slow
def test_interrupted_fits_go_on(stays_sparse, tmp_path):
    X, y, weight = text(4)
    model = FGNSoftmaxHead(tol=1e-10)
    whole = clone(model).fit(X, y, weight)
    assert not hasattr(whole, "log_evidence_")  # rows left out have chosen alpha
    path = tmp_path / "fit.ckpt"
    part = clone(model).set_params(max_iter=3).set_callbacks(Checkpoint(path))
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        part.fit(X, y, weight)
    again = clone(model).set_callbacks(Checkpoint(path)).fit(X, y, weight)
    np.testing.assert_array_equal(again.coef_, whole.coef_)


def test_early_stopping_returns_the_best_head(stays_sparse):
    X, y, _ = text(3)
    model = FGNSoftmaxHead(alpha=1e-5, early_stopping=True, n_iter_no_change=2)
    model.fit(X[:80], y[:80], X_val=X[80:], y_val=y[80:])
    log_p = model.predict_log_proba(X[80:])
    loss = -np.mean(log_p[np.arange(40), y[80:]])
    best = min(*model.convergence_log_["val_loss"], np.log(3))
    assert loss == pytest.approx(best, rel=1e-9)
    assert model.stop_reason_ == "early_stopping"


@pytest.mark.parametrize("shift", [-20.0, -40.0, -1000.0])
def test_a_class_that_has_no_probability_gets_it_back(stays_sparse, shift):
    """Its intercept has a gradient and no curvature: a Newton step of 1e6."""
    X, y, weight = text(5)
    model = FGNSoftmaxHead(alpha=0.01, warm_start=True).fit(X, y, weight)
    loss = model.loss_
    model.intercept_ = model.intercept_ + np.array([0, 0, shift, 0, 0])
    model.fit(X, y, weight)
    assert model.converged_
    assert model.loss_ == pytest.approx(loss, abs=1e-8)
    peer = LogisticRegression(C=1 / (0.01 * weight.sum()), tol=1e-8, max_iter=10_000)
    peer.fit(X, y, weight)
    np.testing.assert_allclose(model.predict_proba(X), peer.predict_proba(X), atol=1e-4)


def counts_of_mixed_classes(n_classes, n, d, repeated, seed=0):
    """Word counts, some of whose rows come again under another class."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    words = rng.dirichlet(np.full(d, 0.05), size=n_classes)
    words = 0.5 * words + 0.5 * rng.dirichlet(np.full(d, 0.3))
    X = np.stack([rng.multinomial(60, words[k]) for k in y]).astype(float)
    again = rng.choice(n, int(repeated * n), replace=False)
    other = (y[again] + rng.integers(1, n_classes, len(again))) % n_classes
    return sparse.csr_matrix(np.r_[X, X[again]]), np.r_[y, other]


@pytest.mark.parametrize(
    ("shape", "alpha"),
    [
        pytest.param((10, 300, 100, 0.3), 1e-8, marks=pytest.mark.slow),
        ((10, 150, 60, 0.3), 1e-6),
    ],
)
def test_small_penalties_of_unscaled_counts_reach_the_optimum(
    stays_sparse, shape, alpha
):
    # Factors of the rows are large here, and cancel in the logits.
    X, y = counts_of_mixed_classes(*shape)
    model = FGNSoftmaxHead(alpha=alpha, tol=1e-8).fit(X, y)
    assert model.stop_reason_ == "tol"
    # Newton's method from there, with the dense Hessian, finds nothing lower.
    peer = LogisticRegression(
        C=1 / (alpha * len(y)), solver="newton-cholesky", tol=1e-9, warm_start=True
    )
    peer.coef_, peer.intercept_ = model.coef_, model.intercept_
    peer.fit(X.toarray(), y)
    log_p = peer.predict_log_proba(X)[np.arange(len(y)), y]
    optimum = -log_p.mean() + alpha / 2 * np.sum(peer.coef_**2)
    assert model.loss_ <= optimum * (1 + 1e-8)
