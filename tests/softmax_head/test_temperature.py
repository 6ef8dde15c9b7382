"""The factor of the logits, against SciPy's minimum."""

import jax
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.softmax_head.penalty import best_factor

N = 400


def problem(n_classes, size):
    rng = np.random.RandomState(0)
    logits = rng.randn(N, n_classes)
    label = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    columns = logits if n_classes > 2 else logits[:, 1:] - logits[:, :1]
    return size * columns, label.astype(np.int32), 1.0 + np.arange(N) % 3


def posterior(log_factor, logits, label, weight):
    logits = np.exp(log_factor) * logits
    if logits.shape[1] == 1:
        logits = np.append(0 * logits, logits, axis=1)
    log_p = log_softmax(logits, axis=1)[np.arange(N), label]
    return -weight @ log_p + 5 * log_factor**2


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_it_is_the_least_cross_entropy(library, n_classes, size):
    data = problem(n_classes, size)
    best = minimize_scalar(posterior, args=data, bounds=(0, 5), method="bounded")
    if library == "numpy":
        loss, factor = best_factor(*data)
    else:
        with jax.enable_x64(True):
            loss, factor = jax.jit(best_factor)(*data)
    assert np.log(float(factor)) == pytest.approx(best.x, abs=2e-3)
    assert float(loss) == pytest.approx(best.fun, rel=1e-5)


def test_without_iterations_it_is_one():
    data = problem(3, 2.0)
    loss, factor = best_factor(*data, iterations=0)
    assert factor == 1
    assert loss == pytest.approx(posterior(0.0, *data), rel=1e-11)


def test_rows_without_errors_have_a_finite_factor():
    logits = 5.0 * np.eye(3)
    _, factor = best_factor(logits, np.arange(3, dtype=np.int32), np.ones(3))
    assert 1 < factor < 1.2


def test_probabilities_are_those_of_the_divided_logits():
    rng = np.random.RandomState(0)
    X, y = rng.randn(200, 20), rng.randint(3, size=200)
    X[:, :3] += 3 * np.eye(3)[y]
    model = FGNSoftmaxHead(random_state=0).fit(X, y)
    assert model.temperature_ != 1
    p = softmax(model.decision_function(X) / model.temperature_, axis=1)
    np.testing.assert_allclose(model.predict_proba(X), p, rtol=1e-12)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), p, rtol=1e-12)
    np.testing.assert_allclose(model.to_sklearn().predict_proba(X), p, rtol=1e-9)
    np.testing.assert_array_equal(model.predict(X), p.argmax(axis=1))
    assert model.set_params(alpha=0.1).fit(X, y).temperature_ == 1


def test_probabilities_are_finite_where_the_logits_are_huge():
    rng = np.random.RandomState(0)
    X, y = rng.randn(200, 20), rng.randint(3, size=200)
    X[:, :3] += 3 * np.eye(3)[y]
    model = FGNSoftmaxHead(random_state=0).fit(X, y)
    assert model.temperature_ < 1
    model.temperature_ = 0.1
    far = 1e308 * np.sign(rng.randn(4, 20))
    np.testing.assert_allclose(model.predict_proba(far).sum(axis=1), 1)
    assert np.isfinite(model.predict_log_proba(far)).all()
    np.testing.assert_array_equal(
        model.predict(far), model.predict_proba(far).argmax(axis=1)
    )
