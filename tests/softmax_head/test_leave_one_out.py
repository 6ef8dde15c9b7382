"""The penalty chosen by rows that are left out, against dense algebra and refits."""

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.softmax_head import newton, penalty
from sklearn_gn.softmax_head.head import AffineHead, BatchedRows, HeadOptions
from sklearn_gn.solvers import FGNNewton

N, D, ALPHA = 60, 4, 0.02


def problem(n_classes, intercept=True, d=D):
    """Rows with their weights, and the minimum of the objective for them."""
    rng = np.random.RandomState(0)
    X = rng.randn(N, d) @ rng.randn(d, d) * np.sqrt(D / d)
    logits = X @ rng.randn(d, n_classes)
    X = X + 2 * intercept
    y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    count = 1.0 + np.arange(N) % 3
    model = FGNSoftmaxHead(
        alpha=ALPHA, fit_intercept=intercept, tol=1e-10, random_state=0
    ).fit(X, y, count)
    return X, y, count, model


def found(X, y, count, model):
    rows = BatchedRows(
        X, y.astype(np.int32), count / count.sum(), np.int32(N), np.int32(1)
    )
    options = HeadOptions(
        alpha=np.float64(ALPHA),
        damping=None,
        rank=None,
        intercept=np.float64(model.fit_intercept),
        tol=np.float64(0),
        batch_size=N,
        seed=np.int32(0),
        solver=FGNNewton(),
        compiled=False,
    )
    data = newton.whitened(newton.prepare(rows, options))
    net = AffineHead(model.coef_.T, model.intercept_)
    settings = newton.newton_settings(options)
    # Without a factor of the logits.
    return penalty.log_predictive(net, data, settings, count.sum(), 0)[0]


def by_dense_algebra(X, y, count, model):
    """The same by the Hessian of all coefficients without each row, one by one."""
    coef, bias = model.coef_, model.intercept_
    m = len(coef)
    h = np.concatenate([X, np.full((N, 1), float(model.fit_intercept))], axis=1)
    logits = X @ coef.T + bias
    both = np.concatenate([0 * logits, logits], axis=1) if m == 1 else logits
    p = softmax(both, axis=1)
    curvature = p[:, :, None] * np.eye(p.shape[1]) - p[:, :, None] * p[:, None, :]
    curvature, error = curvature[:, -m:, -m:], (p - np.eye(p.shape[1])[y])[:, -m:]
    each = np.einsum("nab,ni,nj->naibj", curvature, h, h).reshape(N, h.shape[1] * m, -1)
    free = np.zeros(h.shape[1])
    free[-1] = 1e-6  # of what all classes share
    penalty = np.append(np.full(X.shape[1], count.sum() * ALPHA), 0) + free
    hessian = np.einsum("n,nab->ab", count, each) + np.diag(np.tile(penalty, m))
    value = 0.0
    for k in range(N):
        pulled = np.outer(error[k], h[k]).ravel()
        change = np.linalg.solve(hessian - each[k], pulled).reshape(m, -1) @ h[k]
        z = logits[k] + change
        z = np.append(0, z) if m == 1 else z
        value += count[k] * log_softmax(z)[y[k]]
    return value


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_it_is_that_of_dense_algebra(n_classes, intercept):
    case = problem(n_classes, intercept)
    assert found(*case) == pytest.approx(by_dense_algebra(*case), rel=1e-6)


def test_more_features_than_rows_are_as_many_coordinates():
    case = problem(3, d=N + 20)
    assert found(*case) == pytest.approx(by_dense_algebra(*case), rel=1e-5)
    assert penalty.hessian_is_affordable(N, 10**5, 3)


def test_it_is_near_that_of_refits():
    X, y, _, _ = problem(3)
    model = FGNSoftmaxHead(alpha=ALPHA, tol=1e-10, random_state=0).fit(X, y)
    value, fitted = 0.0, np.sum(np.log(model.predict_proba(X)[np.arange(N), y]))
    for k in range(N):
        rest = np.arange(N) != k
        peer = LogisticRegression(C=1 / (N * ALPHA), solver="newton-cholesky")
        value += peer.fit(X[rest], y[rest]).predict_log_proba(X[~rest])[0, y[k]]
    ours = found(X, y, np.ones(N), model)
    assert abs(ours - value) < 0.1 * abs(fitted - value)


def test_many_rows_are_computed_in_single_precision(monkeypatch):
    case = problem(3)
    exact = found(*case)
    monkeypatch.setattr(penalty, "_PRECISE", 0)
    assert found(*case) == pytest.approx(exact, rel=1e-4)


def test_the_worst_rows_are_enough(monkeypatch):
    case = problem(3)
    every = found(*case)
    monkeypatch.setattr(penalty, "_ROWS", N // 2)
    assert found(*case) == pytest.approx(every, rel=0.02)


def test_a_hessian_without_a_factor_is_told():
    X, y, count, model = problem(3)
    model.coef_ = np.nan * model.coef_
    assert found(X, y, count, model) == -np.inf


def test_logits_beyond_single_precision_warn_of_nothing(monkeypatch):
    X, y, count, model = problem(3)
    monkeypatch.setattr(penalty, "_PRECISE", 0)
    model.coef_ = 1e200 * model.coef_
    assert found(X, y, count, model) == -np.inf


def test_rows_left_out_choose_where_the_hessian_is_affordable(monkeypatch):
    X, y, _, _ = problem(3)
    model = FGNSoftmaxHead(random_state=0).fit(X, y)
    assert model.alpha_method_ == "leave-one-out"
    path = model.evidence_path_
    best = path["alpha"][np.argmin(path["leave_one_out"])]
    assert best / 10 < model.alpha_ < best * 10
    assert penalty.hessian_is_affordable(N, D, 3)
    monkeypatch.setattr(penalty, "_COEFFICIENTS", 3 * (D + 1) - 1)
    assert not penalty.hessian_is_affordable(N, D, 3)
    model.fit(X, y)
    assert model.alpha_method_ == "evidence"
    assert model.temperature_ == 1
    assert set(model.evidence_path_) == {"alpha", "log_evidence"}
    assert model.set_params(alpha=0.1).fit(X, y).alpha_method_ == "fixed"
