"""The start of Newton's method, against dense algebra and SciPy's minimum."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.arrays.extremes import largest_size
from sklearn_gn.softmax_head import head, start

N, D, M, ALPHA = 128, 5, 4, 0.05


def problem(n=N):
    rng = np.random.RandomState(0)
    x = 3 + rng.randn(n, D) * [1.0, 2.0, 30.0, 0.1, 1e-3]
    label = rng.randint(M, size=n).astype(np.int32)
    return head.BatchedRows(x, label, 0.5 + rng.rand(n), np.int32(n), np.int32(1))


def dense_step(x, label, weight, scale):
    """The step from zero by the normal equations, in coordinates of size one."""
    n = len(x)
    weight = weight / weight.sum()
    h = np.concatenate([x, np.ones((n, 1))], axis=1)
    true = np.eye(M)[label]
    a = (1 - true) / (M - 1) - true  # gradient of the margin log(M - 1)
    s = np.log(M - 1)
    curvature = weight * np.tanh(s / 2) / (2 * s)
    jacobian = np.einsum("ni,nc->nic", h, a).reshape(n, -1)
    shift = np.append(0.1 + ALPHA / scale**2, 0.1)
    matrix = jacobian.T @ (curvature[:, None] * jacobian)
    matrix += np.diag(np.repeat(shift, M))
    gradient = jacobian.T @ (weight / (1 + np.exp(-s)))
    return -np.linalg.solve(matrix, gradient).reshape(D + 1, M)


@pytest.mark.parametrize("intercept", [0, 1])
def test_a_pass_of_one_batch_solves_the_damped_system(float64, intercept):
    rows = problem()
    scaling = start.feature_scaling(rows, bool(intercept))
    net = head.AffineHead(np.zeros((D, M)), np.zeros(M))
    options = SimpleNamespace(alpha=np.float64(ALPHA), intercept=np.float64(intercept))
    found, damping = start.run_pass(net, rows, scaling, 0, options)
    assert damping == pytest.approx(0.1)
    x = (rows.x - scaling.center) / scaling.scale
    if intercept:
        expected = dense_step(x, rows.label, rows.weight, scaling.scale)
        bias = found.bias + scaling.center @ found.weight
        np.testing.assert_allclose(bias, expected[-1], atol=2e-4)
        scaled = np.asarray(found.weight) * scaling.scale[:, None]
        np.testing.assert_allclose(scaled, expected[:-1], atol=2e-4)
    else:
        np.testing.assert_array_equal(scaling.center, 0)
        np.testing.assert_array_equal(found.bias, 0)


def test_passes_take_all_batches_in_turn(float64, monkeypatch):
    taken = []

    def fgn_pass(net, rows, scaling, alpha, intercept, batches):
        first, count, total = map(int, batches)
        taken.append({(first + k) % total for k in range(count)})
        return net

    monkeypatch.setattr(start, "fgn_pass", fgn_pass)
    monkeypatch.setattr(start, "_BATCHES", 3)
    monkeypatch.setattr(start, "_FEW_BATCHES", 2)
    rows, options = problem(10 * N + 1), SimpleNamespace(alpha=0.0, intercept=1.0)
    wide = head.AffineHead(np.zeros((500, M)), np.zeros(M))
    for number in range(start.n_passes(wide)):
        start.run_pass(wide, rows, None, number, options)
    assert [len(batches) for batches in taken] == [3] * 4
    assert set.union(*taken) == set(range(10))
    # With few features the Newton steps are as cheap.
    narrow = head.AffineHead(np.zeros((D, M)), np.zeros(M))
    assert start.n_passes(narrow) == 1
    start.run_pass(narrow, rows, None, 0, options)
    assert taken[-1] == set(range(2 * M))  # two batches a class


def test_the_damping_is_in_proportion_to_the_number_of_the_step():
    found = [start.damping_of(step) for step in (0, 32, 64, 320)]
    np.testing.assert_allclose(found, [0.1, 0.1, 0.2, 1.0], rtol=1e-6)


def objective(model, X, y, alpha):
    logits = X @ model.coef_.T + model.intercept_
    loss = logsumexp(logits, axis=1) - logits[np.arange(len(y)), y]
    return loss.mean() + alpha / 2 * np.sum(model.coef_**2)


def test_the_start_leads_to_the_minimum_of_newton_steps_alone(monkeypatch):
    rng = np.random.RandomState(0)
    X = rng.randn(1100, 3) @ rng.randn(3, 3)
    p = softmax(X @ rng.randn(3, M), axis=1)
    y = (p.cumsum(axis=1) < rng.rand(len(X), 1)).sum(axis=1)
    alone = FGNSoftmaxHead(alpha=1e-3, tol=1e-10, random_state=0).fit(X, y)
    monkeypatch.setattr(start, "_LEAST_WORK", 0)
    started = FGNSoftmaxHead(alpha=1e-3, tol=1e-10, random_state=0).fit(X, y)
    minimum = objective(alone, X, y, 1e-3)
    assert started.loss_ == pytest.approx(minimum, rel=1e-8)
    np.testing.assert_allclose(started.coef_, alone.coef_, atol=1e-6)
    log = started.convergence_log_
    # One pass comes nearer than the first Newton step, which the line search cuts.
    assert log["inner_iterations"][0] == 1
    assert log["loss"][0] - minimum < (alone.convergence_log_["loss"][0] - minimum) / 2


def test_a_start_is_made_at_zero_only(monkeypatch):
    monkeypatch.setattr(start, "_LEAST_WORK", 0)
    rows = problem(1100)
    model = FGNSoftmaxHead(alpha=1e-2, warm_start=True, random_state=0)
    for passes in (1, 0):
        log = model.fit(rows.x, rows.label).convergence_log_
        assert np.isfinite(log["damping"]).sum() == passes


def test_a_start_needs_many_rows():
    zero = head.AffineHead(np.zeros((64, 100)), np.zeros(100))
    assert start.pays(zero, 2000)
    assert not start.pays(zero, 500)


def test_huge_features_are_scaled_before_single_precision():
    rows = problem()
    huge = rows._replace(x=rows.x * 1e150)
    scale = start.feature_scaling(huge, True).scale
    assert largest_size((huge.x - huge.x.mean(axis=0)) / scale) < 100
