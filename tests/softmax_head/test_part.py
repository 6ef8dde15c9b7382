"""Rows that are left out of the path of penalties, which judge it."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.softmax_head import penalty, problem
from sklearn_gn.softmax_head.head import BatchedRows
from sklearn_gn.softmax_head.penalty import best_factor


@pytest.fixture
def neither(monkeypatch):
    """No Hessian and no block of it is affordable."""
    monkeypatch.setattr(penalty, "_WORK", 0)
    monkeypatch.setattr(penalty, "evidence_is_affordable", lambda *shape: False)


def data(n=600, d=12, n_classes=3):
    rng = np.random.RandomState(0)
    X = rng.randn(n, d)
    logits = X[:, :4] @ rng.randn(4, n_classes)
    return X, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


def batched(X, y, weight):
    rows = X, y.astype(np.int32), weight / weight.sum()
    return BatchedRows(*rows, np.int32(len(y)), np.int32(1))


def test_one_row_in_five_of_each_class_is_left_out():
    X, y = data()
    out = penalty.left_out(batched(X, y, np.ones(600)))
    np.testing.assert_array_equal(np.bincount(y[out]), np.bincount(y) // 5)
    assert penalty.left_out(batched(X[:300], y[:300], np.ones(300))) is None  # too few


def test_copies_of_a_row_are_left_out_together():
    X, y = data()
    twice, weight = np.append(np.arange(600), np.arange(300)), np.ones(900)
    weight[300:600] = 2
    out = penalty.left_out(batched(X[twice], y[twice], weight))
    np.testing.assert_array_equal(out[:300], out[600:])
    assert 100 < out[:600].sum() < 120


@pytest.mark.parametrize("small", [2**21, 0])  # NumPy, and compiled
def test_rows_left_out_choose_the_penalty(neither, small, monkeypatch):
    monkeypatch.setattr(problem, "_SMALL", small)
    seen, chosen = [], penalty.left_out

    def left_out(rows):
        out = chosen(rows)
        seen.append((rows, out))
        return out

    monkeypatch.setattr(penalty, "left_out", left_out)
    X, y = data()
    model = FGNSoftmaxHead(tol=1e-9, random_state=0).fit(X, y)
    assert model.alpha_method_ == "held-out"
    path = model.evidence_path_
    assert set(path) == {"alpha", "held_out"}
    (rows, out), count = seen[0], slice(600)
    x, label, out = rows.x[count], rows.label[count], out[count]

    def held_out(alpha):
        peer = LogisticRegression(C=1 / (alpha * 600), max_iter=1000)
        logits = peer.fit(x[~out], label[~out]).decision_function(x[out])
        loss, factor = best_factor(logits, label[out], np.ones(out.sum()))
        return loss / out.sum(), factor

    for alpha, value in zip(path["alpha"], path["held_out"], strict=True):
        assert value == pytest.approx(held_out(alpha)[0], rel=0.02)  # rough minima
    loss, factor = held_out(model.alpha_)
    assert loss < 1.02 * min(path["held_out"])
    assert model.temperature_ == pytest.approx(1 / factor, rel=0.1)
    fixed = FGNSoftmaxHead(alpha=model.alpha_, tol=1e-9, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.coef_, fixed.coef_, atol=1e-6)


def test_weights_are_repetitions(neither):
    X, y = data()
    weight = 1 + np.arange(600) % 3
    weighted = FGNSoftmaxHead(random_state=0).fit(X, y, weight)
    repeated = FGNSoftmaxHead(random_state=0).fit(
        np.repeat(X, weight, 0), y.repeat(weight)
    )
    assert weighted.alpha_method_ == "held-out"
    assert weighted.alpha_ == pytest.approx(repeated.alpha_, rel=1e-6)
