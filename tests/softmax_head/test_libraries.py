"""A head of few rows by NumPy: the same as compiled."""

import jax
import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from sklearn.base import clone

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.arrays.libraries import NumPy
from tests._libraries import forced_jax

N, D = 96, 4


def examples(n_classes):
    rng = np.random.RandomState(0)
    X = rng.randn(N, D) @ rng.randn(D, D)
    return X, rng.randint(n_classes, size=N), 0.5 + rng.rand(N)


def default_fits(n_classes, n=N, d=D, **words):
    """The same fit by NumPy and by JAX on the CPU."""
    rng = np.random.RandomState(0)
    X = rng.randn(n, d) @ rng.randn(d, d)
    y = np.argmax(X @ rng.randn(d, n_classes) + rng.gumbel(size=(n, n_classes)), axis=1)
    model = FGNSoftmaxHead(random_state=0, **words)
    ours = clone(model).fit(X, y, 1.0 + np.arange(n) % 3)
    with forced_jax():
        theirs = clone(model).fit(X, y, 1.0 + np.arange(n) % 3)
    assert theirs._is_compiled
    assert not ours._is_compiled
    return ours, theirs, X


@pytest.mark.parametrize(
    ("n_classes", "words"),
    [
        (3, {}),
        (2, {"fit_intercept": False}),
        (2, {"damping": 0.1}),
        (3, {"n": 40, "d": 60}),
    ],
)
@pytest.mark.repeats
def test_jax_finds_the_coefficients_of_numpy(n_classes, words):
    ours, theirs, _ = default_fits(n_classes, alpha=0.01, tol=1e-13, **words)
    size = np.abs(ours.coef_).max()
    np.testing.assert_allclose(theirs.coef_, ours.coef_, atol=1e-10 * size)
    np.testing.assert_allclose(theirs.gram_spectrum_, ours.gram_spectrum_, atol=1e-10)


@pytest.mark.parametrize(
    ("n_classes", "words"),
    [
        (3, {}),
        (2, {}),
        pytest.param(3, {"n": 8192}, marks=pytest.mark.slow),
        (3, {"n": 40, "d": 60}),
    ],
)
@pytest.mark.repeats
def test_jax_chooses_the_penalty_of_numpy(n_classes, words):
    # It is judged at minima that conjugate gradients leave as rough as they may be.
    ours, theirs, X = default_fits(n_classes, **words)
    assert theirs.alpha_method_ == ours.alpha_method_
    assert theirs.alpha_ == pytest.approx(ours.alpha_, rel=0.05)
    assert theirs.temperature_ == pytest.approx(ours.temperature_, rel=0.02)
    p, q = theirs.predict_proba(X), ours.predict_proba(X)
    np.testing.assert_allclose(p, q, atol=1e-2)


@pytest.mark.parametrize("far", [0.0, 40.0, 1e3, -1e3])
def test_rows_of_logits_far_apart_keep_their_digits(far):
    logits = np.random.RandomState(0).randn(5, 3)
    logits[1] += far
    logits[2, 0] = -np.inf
    shares, log_sum = softmax(logits, axis=1), logsumexp(logits, axis=1)
    np.testing.assert_allclose(NumPy.softmax(logits), shares, rtol=1e-12)
    found = NumPy.logsumexp_and_softmax(logits)
    np.testing.assert_allclose(found[0], log_sum, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[1], shares, rtol=1e-12)


def test_numpy_computes_on_a_cpu(monkeypatch):
    X, y, _ = examples(3)
    monkeypatch.setattr(jax, "device_put", None)
    FGNSoftmaxHead().fit(X, y)


def test_classes_that_no_factor_exists_for_do_no_harm():
    X, y, _ = examples(3)
    X = np.repeat(X, 2, axis=1) * 1e150  # collinear, and of any size
    model = FGNSoftmaxHead(alpha=1e-300, max_iter=20, random_state=0)
    assert np.isfinite(model.fit(X, y).predict_proba(X)).all()
