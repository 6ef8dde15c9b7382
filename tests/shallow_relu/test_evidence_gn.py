"""Joint steps with the penalties of the evidence, against dense formulas."""

import numpy as np
import pytest

from sklearn_gn.bayes import evidence
from sklearn_gn.bayes import evidence_gn as core_gn
from sklearn_gn.bayes.evidence_gn import EvidenceOptions, RegularisedLayers
from sklearn_gn.bayes.layers import Layers, first_network
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu import evidence_gn


def neurons(n, d):
    return Layers((d, n), ("relu",), 1, "squared", tuple(range(d)))


def options(rows, **changes):
    settings = EvidenceOptions(
        n_effective=float(len(rows.x)), damping=None, rank=None, tol=0.0, seed=0
    )
    return settings._replace(**changes)


def start(rows, n=8, seed=0):
    rng = np.random.RandomState(seed)
    return first_network(neurons(n, rows.x.shape[1]), rows, len(rows.x), rng)


def run(rows, net, opt, n_steps=200):
    state = evidence_gn.EVIDENCE_GN.init(rows, [net], opt)
    for _ in range(n_steps):
        state, report = evidence_gn.step(rows, state, opt)
        if report.stop is not None:
            break
    return state, report


def noisy(m=120, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (m, 2))
    y = np.abs(x[:, :1] - 0.2) + 0.5 * x[:, 1:] + 0.1 * rng.standard_normal((m, 1))
    return Rows(x, y, np.full(m, 1 / m))


def test_a_damping_that_exact_steps_have_lowered_is_raised_far_enough():
    shape, rng = neurons(20, 2), np.random.default_rng(0)
    theta, x = rng.standard_normal(len(shape.groups())), rng.standard_normal((200, 2))
    y = np.where(x.sum(axis=1) > 0, 1.0, -1.0)[:, None]  # a jump is no network
    rows = Rows(x, y, np.full(200, 1 / 200))
    opt = options(rows)
    net = RegularisedLayers(theta, np.ones(5), 1e6, np.ones(5), 0.0, shape)
    state = core_gn.init_at(rows, net, opt)
    needed = core_gn.accepted_step(shape, rows, state, opt).tried.shift
    assert needed > 1e3  # from one
    low = state._replace(shift=1e-14)
    found = core_gn.accepted_step(shape, rows, low, opt)
    assert found.accepted
    assert needed / 64 < found.tried.shift < 64**2 * needed


def test_end_is_a_fixed_point_of_the_penalties():
    rows = noisy()
    opt = options(rows)
    state, report = run(rows, start(rows), opt)
    assert report.stop == "tol"
    for _ in range(300):  # until penalties no longer move
        state, report = evidence_gn.step(rows, state, opt)
    groups = state.net.model.groups()
    gram = opt.n_effective * state.sums.gram
    hessian = state.beta * gram + np.diag(evidence.prior_precision(groups, state.alpha))
    inverse = np.linalg.inv(hessian)
    for g, alpha in enumerate(state.alpha):
        own = groups == g
        gamma = own.sum() - alpha * np.trace(inverse[np.ix_(own, own)])
        square = np.sum(state.theta[own] ** 2)
        if alpha < evidence.LARGEST:
            assert alpha * square == pytest.approx(gamma, rel=1e-2, abs=1e-2)
    freedom = len(rows.x) - 1 - np.sum(state.net.gamma)
    noise = opt.n_effective * state.sums.error / freedom
    assert 1 / state.beta == pytest.approx(noise, rel=1e-3)


def test_fixed_damping_is_the_shift_of_the_matrix_of_the_loss():
    rows = noisy()
    opt = options(rows, damping=0.3)
    state = evidence_gn.EVIDENCE_GN.init(rows, [start(rows)], opt)
    shape = neurons(8, 2)
    scale = state.beta * opt.n_effective
    precision = evidence.prior_precision(shape.groups(), state.alpha) / scale
    matrix = state.sums.gram + np.diag(precision + 0.3)
    rhs = state.sums.negative_gradient - precision * state.theta
    expected = np.linalg.solve(matrix, rhs)
    new, report = evidence_gn.step(rows, state, opt)
    assert report.damping == pytest.approx(0.3)
    np.testing.assert_allclose(new.theta - state.theta, expected, rtol=1e-8, atol=1e-10)


def test_rank_bounds_the_directions_of_a_step():
    rows = noisy()
    opt = options(rows, rank=3)
    state = evidence_gn.EVIDENCE_GN.init(rows, [start(rows)], opt)
    scale = state.beta * opt.n_effective
    precision = evidence.prior_precision(state.net.model.groups(), state.alpha)
    matrix = scale * state.sums.gram + np.diag(precision)
    rhs = scale * state.sums.negative_gradient - precision * state.theta
    scaled = matrix / np.diag(matrix)[:, None]
    krylov = np.empty((len(rhs), 3))
    krylov[:, 0] = rhs / np.diag(matrix)
    for k in range(2):
        krylov[:, k + 1] = scaled @ krylov[:, k]
    basis, _ = np.linalg.qr(krylov)
    new, report = evidence_gn.step(rows, state, opt)
    shift = scale * report.damping
    inner = basis.T @ matrix @ basis + shift * np.eye(3)
    expected = basis @ np.linalg.solve(inner, basis.T @ rhs)
    np.testing.assert_allclose(
        new.theta - state.theta, expected, atol=1e-9 * np.linalg.norm(expected)
    )
