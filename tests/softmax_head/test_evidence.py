"""The penalty that the evidence chooses, against dense algebra and other ways."""

import math
import warnings

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.callbacks import Checkpoint
from sklearn_gn.softmax_head import penalty, problem

AUTO = FGNSoftmaxHead(alpha="auto", tol=1e-9, random_state=0)


@pytest.fixture(autouse=True, params=["evidence"])
def method(request, monkeypatch):
    """How penalties are chosen: here by the evidence, unless a test has both ways."""
    if request.param == "evidence":
        monkeypatch.setattr(penalty, "_WORK", 0)
        monkeypatch.setattr(penalty, "left_out", lambda rows: None)
    return request.param


in_both_ways = pytest.mark.parametrize(
    "method", ["evidence", "leave-one-out"], indirect=True
)


def data(n_classes=2, n=60, d=4):
    rng = np.random.RandomState(0)
    X = rng.randn(n, d)
    logits = X @ rng.randn(d, n_classes)
    y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return X, y


def dense(head, X, y, alpha, weight=None, intercept=True):
    """Log evidence of W, and its determined parameters, from one block a class."""
    weight = np.ones(len(X)) if weight is None else weight
    logits = X @ head.coef_.T + head.intercept_
    if logits.shape[1] == 1:
        logits = np.concatenate([0 * logits, logits], axis=1)
    p, n = softmax(logits, axis=1), weight.sum()
    n_classes, d = p.shape[1], X.shape[1]
    h = np.concatenate([X, np.ones((len(X), 1))], axis=1) if intercept else X
    energy = -weight @ np.log(p[np.arange(len(X)), y])
    energy += n * alpha / 2 * np.sum(head.coef_**2)
    columns, share = range(n_classes), (n_classes - 1) / n_classes
    if n_classes == 2:
        columns, share = [1], 1
    log_det = gamma = 0
    for c in columns:
        gram = (h * (weight * p[:, c] * (1 - p[:, c]))[:, None]).T @ h
        penalty = np.zeros(len(gram))
        penalty[:d] = n * alpha
        matrix = gram + np.diag(penalty)
        log_det += np.linalg.slogdet(matrix)[1] - d * math.log(n * alpha)
        gamma += d - n * alpha * np.trace(np.linalg.inv(matrix)[:d, :d])
    n_free = (n_classes - 1) * intercept
    return -energy - share * log_det / 2, share * gamma + n_free


# --- the evidence --------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_log_evidence_is_that_of_dense_algebra(n_classes, intercept):
    X, y = data(n_classes)
    X = X + 3.0  # features that are not centred
    weight = 1.0 + np.arange(len(X)) % 3
    model = clone(AUTO).set_params(fit_intercept=intercept)
    model.fit(X, y, sample_weight=weight)
    value, gamma = dense(model, X, y, model.alpha_, weight, intercept)
    assert model.log_evidence_ == pytest.approx(value, rel=1e-8)
    assert model.n_effective_parameters_ == pytest.approx(gamma, rel=1e-8)


def test_alpha_maximises_the_evidence():
    X, y = data(2, n=200)
    model = clone(AUTO).fit(X, y)

    def value(alpha):
        peer = LogisticRegression(C=1 / (alpha * len(X)), tol=1e-10).fit(X, y)
        return dense(peer, X, y, alpha)[0]

    best = value(model.alpha_)
    assert best == pytest.approx(model.log_evidence_, rel=1e-6)
    assert best > max(value(model.alpha_ * 2), value(model.alpha_ / 2))


def test_few_rows_that_a_head_separates_keep_a_penalty():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 5)
    X = 1.2 * rng.normal(size=(3, 6))[y] + rng.normal(size=(15, 6))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    model = clone(AUTO).fit(X, y)
    path = model.evidence_path_
    assert path["alpha"][np.argmax(path["log_evidence"])] < model.alpha_
    assert 1e-2 < 15 * model.alpha_ < 1


# --- the path ------------------------------------------------------------------------


def followed(value):
    """The end of a path from 1, with the log posterior ``value`` of a step."""
    path = []
    alpha, last = 1.0, False
    while not last:
        step = math.log10(alpha)
        path.append((alpha, value(step) + (step + 1) ** 2 / 2, None))
        alpha, last = penalty.next_alpha(path)
    return alpha, len(path)


@pytest.mark.parametrize("top", [-3.3, -0.4, 0.0, 2.2])
def test_the_top_of_a_parabola_is_found(top):
    alpha, n_values = followed(lambda step: -((step - top) ** 2))
    assert math.log10(alpha) == pytest.approx(top, abs=1e-6)
    assert n_values <= 5 + abs(top)


def test_an_evidence_without_a_maximum_ends_the_path():
    assert followed(lambda step: step)[0] == pytest.approx(1e8)
    assert followed(lambda step: -step)[0] == pytest.approx(1e-8)
    assert followed(lambda step: -math.inf)[0] == 1.0


def test_the_head_is_that_of_the_penalty_found():
    X, y = data(3)
    model = clone(AUTO).fit(X, y)
    fixed = clone(AUTO).set_params(alpha=model.alpha_).fit(X, y)
    np.testing.assert_allclose(model.coef_, fixed.coef_, atol=1e-6)
    assert model.loss_ == pytest.approx(fixed.loss_, rel=1e-10)
    assert model.converged_
    assert model.convergence_log_["alpha"][-1] == model.alpha_
    path = model.evidence_path_
    assert np.all(np.diff(path["alpha"]) > 0)
    assert model.log_evidence_ >= path["log_evidence"].max() - 1e-3
    assert not hasattr(fixed, "log_evidence_")


@in_both_ways
def test_weights_equal_repetition():
    X, y = data(3)
    weight = 1 + np.arange(len(X)) % 2
    weighted = clone(AUTO).fit(X, y, sample_weight=weight)
    repeated = clone(AUTO).fit(np.repeat(X, weight, 0), np.repeat(y, weight))
    assert weighted.alpha_ == pytest.approx(repeated.alpha_, rel=1e-6)
    assert weighted.log_evidence_ == pytest.approx(repeated.log_evidence_, rel=1e-9)
    none = np.append(weight, 0)
    padded = clone(AUTO).fit(np.append(X, X[:1], 0), np.append(y, y[0]), none)
    assert padded.alpha_ == pytest.approx(weighted.alpha_, rel=1e-6)


@in_both_ways
def test_weights_that_sum_to_one_are_shares():
    X, y = data()
    head = clone(AUTO).fit(X, y)
    shares = clone(AUTO).fit(X, y, np.full(60, 1 / 60))
    assert shares.alpha_ == pytest.approx(head.alpha_)
    assert shares.log_evidence_ == pytest.approx(head.log_evidence_)


@in_both_ways
def test_units_of_the_features_change_no_probability():
    X, y = data(3)
    model, scaled = clone(AUTO).fit(X, y), clone(AUTO).fit(1000 * X, y)
    assert scaled.alpha_ == pytest.approx(1e6 * model.alpha_, rel=1e-3)
    np.testing.assert_allclose(
        scaled.predict_proba(1000 * X), model.predict_proba(X), atol=1e-4
    )


@in_both_ways
def test_a_resumed_search_ends_as_an_uninterrupted_one(tmp_path):
    X, y = data(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = clone(AUTO).fit(X, y)
        short = clone(AUTO).set_params(max_iter=4)
        short.set_callbacks(Checkpoint(tmp_path / "fit.ckpt")).fit(X, y)
        resumed = clone(AUTO).set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
        resumed.fit(X, y)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


@pytest.mark.parametrize("max_iter", [1, 4, 7, 100])
def test_a_search_that_is_cut_short_leaves_the_best_head_so_far(max_iter):
    X, y = data(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(AUTO).set_params(max_iter=max_iter).fit(X, y)
    log, path = model.convergence_log_, model.evidence_path_
    assert model.log_evidence_ == pytest.approx(path["log_evidence"].max(), abs=1e-6)
    # The last step at its penalty is the one that is returned.
    last = np.flatnonzero(np.isclose(log["alpha"], model.alpha_, rtol=1e-12))[-1]
    assert model.loss_ == pytest.approx(log["loss"][last], rel=1e-10)


def test_validation_data_choose_along_the_path():
    X, y = data(3, n=120)
    model = clone(AUTO).set_params(early_stopping=True, n_iter_no_change=50)
    model.fit(X[:60], y[:60], X_val=X[60:], y_val=y[60:])
    log = model.convergence_log_
    assert model.alpha_ == log["alpha"][np.argmin(log["val_loss"])]
    assert model.loss_ == pytest.approx(log["loss"][np.argmin(log["val_loss"])])


@pytest.mark.parametrize("scale", [1e-30, 1e18])
def test_a_path_stays_within_single_precision(scale):
    X, y = data(3)
    model = clone(AUTO).set_params(dtype="float32", tol=1.0).fit(scale * X, y)
    assert 0 < model.alpha_ < np.inf
    assert np.isfinite(model.predict_proba(scale * X)).all()


# --- a part of the rows --------------------------------------------------------------


def many_rows(n=8192):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    y = np.argmax(X @ rng.normal(size=(4, 3)) + rng.gumbel(size=(n, 3)), axis=1)
    return X, y


@pytest.mark.parametrize("small", [2**21, pytest.param(0, marks=pytest.mark.slow)])
def test_many_rows_choose_a_penalty_by_a_part_of_them(small, monkeypatch):
    monkeypatch.setattr(problem, "_SMALL", small)  # NumPy, and compiled
    X, y = many_rows()
    model = clone(AUTO).fit(X, y)
    fixed = clone(AUTO).set_params(alpha=model.alpha_).fit(X, y)
    np.testing.assert_allclose(model.coef_, fixed.coef_, atol=5e-6)
    assert model.loss_ == pytest.approx(fixed.loss_, rel=1e-10)
    log, path = model.convergence_log_, model.evidence_path_
    assert log["alpha"][-1] == model.alpha_ not in path["alpha"]
    # The evidence of the path is that of a quarter of the rows.
    assert path["log_evidence"].max() == pytest.approx(model.log_evidence_ / 4, rel=0.1)
    monkeypatch.setattr(penalty, "_FEWEST", len(X))
    whole = clone(AUTO).fit(X, y)
    assert whole.alpha_ in whole.evidence_path_["alpha"]
    assert abs(math.log10(model.alpha_ / whole.alpha_)) < 0.2


def test_a_search_on_a_part_resumes_bit_by_bit(tmp_path):
    X, y = many_rows()
    whole = clone(AUTO).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        short = clone(AUTO).set_params(max_iter=4)
        short.set_callbacks(Checkpoint(tmp_path / "fit.ckpt")).fit(X, y)
    resumed = clone(AUTO).set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    resumed.fit(X, y)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_a_part_has_enough_rows_of_each_class():
    X, y = many_rows()
    y[y == 2] = 0
    y[:3] = 2
    model = clone(AUTO).fit(X, y)
    assert model.alpha_ in model.evidence_path_["alpha"]


def separable():
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X[:100]), y[:100]


def hard_cases():
    X, y = data(3)
    constant = X * [1.0, 0.0, 1.0, 1.0] + [0.0, 1e3, 0.0, 0.0]
    sparse_ish = X * (np.random.RandomState(1).rand(*X.shape) < 0.1)
    return {
        "separable": separable(),
        "one row a class": (X[:5], np.arange(5)),
        "constant column": (constant, y),
        "only constant columns": (np.ones((60, 2)), y),
        "mostly zero": (sparse_ish, y),
        "equal columns": (np.repeat(X, 2, axis=1), y),
        "more features than rows": (data(2, n=20, d=64)[0], np.arange(20) % 2),
    }


@in_both_ways
@pytest.mark.parametrize("case", hard_cases())
def test_hard_data_give_finite_penalties(case, method):
    X, y = hard_cases()[case]
    model = FGNSoftmaxHead(alpha="auto", random_state=0).fit(X, y)
    assert model.alpha_method_ == method
    assert 0 < model.alpha_ < np.inf
    assert np.isfinite(model.log_evidence_)
    assert np.isfinite(model.predict_log_proba(X)).all()


@pytest.mark.parametrize("solver", ["fgn", "sgn", "adam"])
def test_mini_batch_solvers_take_the_usual_number(solver):
    X, y = data(3)
    model = FGNSoftmaxHead(solver, alpha="auto", random_state=0)
    model.partial_fit(X, y, classes=[0, 1, 2])
    fixed = clone(model).set_params(alpha=1e-3).partial_fit(X, y, classes=[0, 1, 2])
    np.testing.assert_array_equal(model.coef_, fixed.coef_)
    assert model.alpha_ == 1e-3
