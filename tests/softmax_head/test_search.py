"""FGNSoftmaxHeadCV against scikit-learn's fits of every fold and penalty."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, KFold, LeaveOneOut, StratifiedKFold

from sklearn_gn import FGNSoftmaxHeadCV

CS = np.logspace(-2, 2, 5)


def data(n_classes=3, n=90, d=5):
    rng = np.random.RandomState(0)
    X = rng.randn(n, d) @ rng.randn(d, d) + 3
    logits = X @ rng.randn(d, n_classes)
    y = np.argmax(logits - logits.mean(0) + rng.gumbel(size=logits.shape), axis=1)
    return X, np.array(["a", "b", "c", "d"])[y]


@pytest.mark.parametrize(
    ("n_classes", "scoring", "intercept"),
    [(3, "neg_log_loss", True), (2, "accuracy", True), (3, "f1_macro", False)],
)
def test_paths_and_scores_are_those_of_refits(n_classes, scoring, intercept):
    X, y = data(n_classes)
    cv = StratifiedKFold(3)
    model = FGNSoftmaxHeadCV(
        CS[::-1], cv=cv, scoring=scoring, fit_intercept=intercept, tol=1e-9
    ).fit(X, y)
    peer = LogisticRegressionCV(
        Cs=CS,
        cv=cv,
        scoring=scoring,
        fit_intercept=intercept,
        solver="newton-cg",
        tol=1e-8,
        max_iter=1000,
        use_legacy_attributes=False,
        l1_ratios=(0.0,),
    ).fit(X, y)
    np.testing.assert_array_equal(model.Cs_, CS)
    np.testing.assert_allclose(model.scores_, np.squeeze(peer.scores_), atol=1e-5)
    paths = np.squeeze(peer.coefs_paths_).reshape(model.coefs_paths_.shape)
    np.testing.assert_allclose(model.coefs_paths_, paths, rtol=1e-4, atol=1e-4)
    assert model.C_ == pytest.approx(np.squeeze(peer.C_))
    np.testing.assert_allclose(model.coef_, peer.coef_, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.intercept_, peer.intercept_, atol=1e-3)
    np.testing.assert_array_equal(model.predict(X), peer.predict(X))
    exported = model.to_sklearn().predict_proba(X)
    np.testing.assert_allclose(exported, model.predict_proba(X), atol=1e-12)
    assert model.n_iter_.shape == (3, 5)


@pytest.mark.parametrize("size", [1.0, 100.0])
def test_minima_of_a_path_have_the_gradient_that_is_asked_for(size):
    """Also where single precision does not resolve it, as for large features."""
    X, y = data()
    X = size * (X - X.mean(axis=0))
    model = FGNSoftmaxHeadCV(np.logspace(-6, 3, 13), cv=KFold(2)).fit(X, y)
    for (rows, _), path in zip(KFold(2).split(X), model.coefs_paths_, strict=True):
        x, label = X[rows], y[rows]
        for C, coef in zip(model.Cs_, path, strict=True):
            p = softmax(x @ coef[:, :-1].T + coef[:, -1], axis=1)
            error = (p - (label[:, None] == model.classes_)) / len(x)
            gradient = error.T @ x + coef[:, :-1] / (C * len(x))
            assert np.abs(gradient).max() <= 1e-6
            assert np.abs(error.sum(axis=0)).max() <= 1e-6


def test_fewer_rows_than_features():
    X, y = data(n=30, d=50)
    model = FGNSoftmaxHeadCV([0.1], cv=2, tol=1e-10).fit(X, y)
    peer = LogisticRegression(C=0.1, tol=1e-10, max_iter=5000).fit(X, y)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-6)


def test_loo_leaves_out_every_row():
    X, y = data(n=20)
    model = FGNSoftmaxHeadCV(CS[1:3], cv="loo").fit(X, y)
    same = FGNSoftmaxHeadCV(CS[2:3], cv=LeaveOneOut()).fit(X, y)
    assert model.scores_.shape == (20, 2)
    found = -model.scores_.mean(axis=0)[1]
    assert found == pytest.approx(-same.scores_.mean(), rel=1e-5)
    peer, classes = LogisticRegression(C=1.0), np.unique(y)
    left_out = [
        peer.fit(np.delete(X, i, 0), np.delete(y, i)).predict_proba(X[i : i + 1])[0]
        for i in range(20)
    ]
    expected = log_loss(y, left_out, labels=classes)
    assert found == pytest.approx(expected, rel=1e-3)


def test_weights_are_repetitions_and_folds_belong_to_the_rows():
    X, y = data()
    weight = 1 + np.arange(90) % 3
    model = FGNSoftmaxHeadCV(CS, cv=3, tol=1e-8)
    weighted = clone(model).fit(X, y, weight)
    order = np.random.RandomState(1).permutation(np.repeat(np.arange(90), weight))
    repeated = clone(model).fit(X[order], y[order])
    assert weighted.C_ == repeated.C_
    np.testing.assert_allclose(weighted.scores_, repeated.scores_, rtol=1e-6)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-6)
    names = {"a": "z", "b": "y", "c": "x"}
    renamed = clone(model).fit(X, np.array([names[label] for label in y]), weight)
    np.testing.assert_allclose(renamed.scores_, weighted.scores_, rtol=1e-6)
    doubled = clone(model).fit(X, y, 2.0 * weight)  # scores are means
    assert doubled.scores_.shape == weighted.scores_.shape


def test_groups_and_class_weights():
    X, y = data()
    folds = list(GroupKFold(3).split(X, y, np.arange(90) // 10))
    model = FGNSoftmaxHeadCV([1.0], cv=folds, class_weight="balanced", tol=1e-9)
    peer = LogisticRegression(C=1.0, class_weight="balanced", solver="newton-cg")
    np.testing.assert_allclose(model.fit(X, y).coef_, peer.fit(X, y).coef_, atol=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"Cs": []}, r"Cs must be an integer or hold positive .*, got \[\]"),
        ({"Cs": [1.0, -2.0]}, r"Cs must be .*, got \[1.0, -2.0\]"),
        ({"Cs": [0.0]}, "Cs must be"),
        ({"Cs": [np.inf]}, "Cs must be"),
        ({"Cs": 0}, "The 'Cs' parameter"),
        ({"cv": 1}, r"The 'cv' parameter .*int in the range \[2"),
        ({"cv": "LOO"}, "The 'cv' parameter"),
        ({"scoring": "unknown"}, "The 'scoring' parameter"),
    ],
)
def test_bad_parameters_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        FGNSoftmaxHeadCV(**words).fit(*data(n=30))


def test_folds_that_leave_no_row_of_a_class_are_named():
    X, y = data(n=30)
    y[:] = np.where(np.arange(30) < 29, y, "d")
    with pytest.raises(ValueError, match=r"without fold 0 no row of class .*'d'"):
        FGNSoftmaxHeadCV(cv=[(np.arange(20), np.arange(20, 30))]).fit(X, y)
    assert FGNSoftmaxHeadCV(CS[:2], cv=2).fit(X, y).predict(X[-1:]).shape == (1,)
    with pytest.raises(ValueError, match="leaves out no row"):
        FGNSoftmaxHeadCV(cv=2).fit(X[:3], ["a", "b", "c"])
    with pytest.raises(
        ValueError, match=r"cv=StratifiedKFold\(.*cannot divide.*n_split"
    ):
        FGNSoftmaxHeadCV(cv=StratifiedKFold(2)).fit(X[:3], ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"cv=KFold\(.*no row of class 0 is left"):
        FGNSoftmaxHeadCV(cv=KFold(3)).fit(X[:3], [0, 1, 2])


def test_what_limited_a_search_is_said():
    X, y = data()
    model = FGNSoftmaxHeadCV([1e-5, 1e-4], cv=2).fit(X, y)
    assert "largest value tried" in str(model.diagnose())
    with pytest.warns(ConvergenceWarning, match="max_iter=1 Newton steps"):
        model = FGNSoftmaxHeadCV([1.0], cv=2, max_iter=1, tol=1e-12).fit(X, y)
    assert "max_iter" in str(model.diagnose())
    assert "inside the path" in str(FGNSoftmaxHeadCV(CS, cv=2).fit(X, y).diagnose())
