"""A head of few rows by NumPy: the same as compiled."""

import jax
import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from sklearn.base import clone

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.arrays.libraries import NumPy, forced_jax
from sklearn_gn.softmax_head import head, newton
from sklearn_gn.softmax_head.fgn import row_spectrum
from sklearn_gn.softmax_head.head import AffineHead, BatchedRows, HeadOptions
from sklearn_gn.softmax_head.penalty import Judges, left_out_loss
from sklearn_gn.softmax_head.whitening import second_moments
from sklearn_gn.solvers import FGNNewton

N, D = 96, 4


def examples(n_classes):
    rng = np.random.RandomState(0)
    X = rng.randn(N, D) @ rng.randn(D, D)
    return X, rng.randint(n_classes, size=N), 0.5 + rng.rand(N)


def minimised(compiled, n_classes, damping, intercept):
    """The head and what is said of it after some steps, the start among them."""
    X, y, weight = examples(n_classes)
    counts = np.int32(N), np.int32(1)
    rows = BatchedRows(X, y.astype(np.int32), weight / weight.sum(), *counts)
    options = HeadOptions(
        alpha=np.float64(3),
        damping=damping,
        rank=100,
        intercept=np.float64(intercept),
        tol=np.float64(0),
        batch_size=N,
        seed=np.int32(0),
        solver=FGNNewton(),
        compiled=compiled,
    )
    m = 1 if n_classes == 2 else n_classes
    data = newton.prepare(rows, options, axis=1)
    state = newton.init(data, AffineHead(np.zeros((D, m)), np.zeros(m)), options)
    stop = None
    while stop is None:
        state, report = newton.step(data, state, options)
        stop = report.stop
    # Of the loss, or a gradient of zero.
    assert stop in ("rounding", "tol", "line_search")
    return data, options, state


def quantities(data, options, net):
    """What is computed in the precision of the fit."""
    rows, intercept = data.space.rows, options.intercept
    logits, gram = head.values(net, rows.x[:40]), rows.x[:40] @ rows.x[:40].T
    few = logits, gram + intercept, rows.label[:40], rows.weight[:40]
    fold, shift = np.arange(N) % 2, np.zeros((2, len(net.bias)))
    judges = Judges(rows.x, rows.label, rows.weight, fold, shift)
    left_out = left_out_loss((net, net), judges, True)
    spectrum = row_spectrum(*few, n_competitors=1)
    return jax.tree.leaves(
        [
            head.objective(net, rows, options),
            second_moments(rows, axis=1),
            second_moments(rows, axis=0),
            left_out,
            spectrum[:-1],
        ]
    )


@pytest.mark.parametrize(
    ("n_classes", "damping", "intercept"),
    [(3, 0.0, 1), pytest.param(2, 0.1, 0, marks=pytest.mark.slow)],
)
def test_both_libraries_find_the_same_head(n_classes, damping, intercept, float64):
    with np.errstate(all="ignore"):
        found, expected = (
            minimised(compiled, n_classes, damping, intercept)
            for compiled in (False, True)
        )
    # The minimum, as near as the loss resolves it,
    assert found[-1].loss == pytest.approx(expected[-1].loss, rel=1e-11)
    assert isinstance(expected[-1].net.bias, jax.Array)
    assert isinstance(found[-1].net.bias, np.ndarray)
    np.testing.assert_allclose(found[-1].net[0], expected[-1].net[0], atol=1e-7)
    # and all that is not only approximate, at the same head.
    net = found[-1].net
    ours = quantities(*found[:-1], net)
    theirs = quantities(*expected[:-1], jax.device_put(net))
    for one, other in zip(ours, theirs, strict=True):
        assert isinstance(other, jax.Array | float)
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11)


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
    [(3, {}), (2, {"fit_intercept": False}), (3, {"n": 40, "d": 60})],
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
