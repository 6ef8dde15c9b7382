"""Classifiers whose members stand beside a Gaussian process."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer
from sklearn.svm import SVC

from sklearn_gn import VarProNetClassifier


def chessboard(X):
    return np.sum(np.floor(X), axis=1).astype(int) % 2


def rings(X):
    return np.floor(2 * np.hypot(*X.T)).astype(int) % 3


def product(X):
    return (X[:, 0] * X[:, 1] > 0).astype(int)


def shares(model):
    """Shares of the process and of all others."""
    is_process = [hasattr(member, "length_scales_") for member in model.estimators_]
    share = np.array([member.share_ for member in model.estimators_])
    return share[is_process].sum(), share[np.logical_not(is_process)].sum()


@pytest.mark.parametrize("law", [chessboard, rings, product])
def test_classes_that_alternate_are_found(law):
    n_features = 12 if law is product else 2
    X = np.random.default_rng(0).uniform(-2, 2, (2400, n_features))
    y = law(X)
    model = VarProNetClassifier(random_state=0).fit(X[:400], y[:400])
    grid = {"C": [1, 10, 100], "gamma": [0.1, 1, 3]}
    kernel = GridSearchCV(SVC(), grid, cv=3).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > kernel.score(X[400:], y[400:]) - 0.02
    assert shares(model)[0] > 0.5


@pytest.mark.parametrize("n", [300, 3000])
def test_labels_of_chance_leave_the_process_no_share(n):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((n + 1000, 3)), rng.integers(0, 3, n + 1000)
    model = VarProNetClassifier(random_state=0).fit(X[:n], y[:n])
    known = DummyClassifier().fit(X[:n], y[:n]).predict_proba(X[n:])
    assert log_loss(y[n:], model.predict_proba(X[n:])) < log_loss(y[n:], known) + 0.01


def test_weights_of_classes_move_the_odds_of_a_process():
    X = np.random.default_rng(0).uniform(-2, 2, (300, 2))
    y = chessboard(X)
    plain = VarProNetClassifier(random_state=0).fit(X, y)
    moved = VarProNetClassifier(random_state=0, class_weight={1: 3.0}).fit(X, y)
    assert shares(plain)[0] > 0.99
    (a, b), (c, d) = plain.predict_proba(X).T, moved.predict_proba(X).T
    assert_allclose(d / c, 3 * b / a, rtol=1e-6)


def test_weights_of_rows_are_repetitions_for_a_process():
    X = np.random.default_rng(0).uniform(-2, 2, (150, 2))
    y, count = rings(X), np.tile([1, 2, 1], 50)
    weighted = VarProNetClassifier(random_state=0).fit(X, y, count)
    X_all, y_all = np.repeat(X, count, axis=0), np.repeat(y, count)
    repeated = VarProNetClassifier(random_state=0).fit(X_all, y_all)
    assert shares(weighted)[0] > 0.1
    assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-8)


def test_odds_that_are_a_sum_of_functions_of_single_features():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2600, 6))
    odds = 1.5 * np.sum(np.sin(5 * X), axis=1)
    y = (rng.uniform(size=len(X)) < expit(odds)).astype(int)
    model = VarProNetClassifier(random_state=0).fit(X[:600], y[:600])
    splines = SplineTransformer(8, extrapolation="linear")
    told = make_pipeline(splines, LogisticRegression(max_iter=1000))
    told.fit(X[:600], y[:600])
    loss, expected = (
        log_loss(y[600:], one.predict_proba(X[600:])) for one in (model, told)
    )
    assert loss < expected + 0.02
    exported = model.to_sklearn().predict_proba(X)
    assert_allclose(exported, model.predict_proba(X), rtol=1e-6, atol=1e-9)
