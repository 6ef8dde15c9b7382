"""Joint steps with the penalties of the evidence, against dense formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn.bayes import evidence
from sklearn_gn.bayes import evidence_gn as core_gn
from sklearn_gn.bayes.evidence_gn import EvidenceOptions
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu import evidence_gn
from sklearn_gn.shallow_relu.evidence_gn import shape_of
from sklearn_gn.shallow_relu.starts import random_hyperplanes


def problem(m=60, shape=(4, 3, 2), seed=0):
    shape = shape_of(*shape)
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(shape.size)
    weight = rng.uniform(size=m)
    rows = Rows(
        rng.standard_normal((m, shape.d)),
        rng.standard_normal((m, shape.q)),
        weight / weight.sum(),
    )
    return shape, theta, rows


def options(rows, **changes):
    settings = EvidenceOptions(
        n_effective=float(len(rows.x)), damping=None, rank=None, tol=0.0, seed=0
    )
    return settings._replace(**changes)


def start(rows, n=8, seed=0):
    rng = np.random.RandomState(seed)
    return random_hyperplanes(rows, n, rng)


def run(rows, net, opt, n_steps=200):
    state = evidence_gn.init(rows, [net], opt)
    for _ in range(n_steps):
        state, report = evidence_gn.step(rows, state, opt)
        if report.stop is not None:
            break
    return state, report


@pytest.mark.parametrize(
    "shape",
    [(4, 3, 1), (5, 1, 1), (3, 2, 2), (3, 4, 1, (0, 2)), (3, 4, 2, (0, 2))],
)
def test_sums_are_those_of_automatic_differentiation(float64, shape):
    shape, theta, rows = problem(shape=shape)

    def outputs(theta):
        linear, coef, hyperplanes = shape.parts(theta)
        seen = rows.x[:, np.array(shape.features, dtype=int)]
        hidden = jnp.maximum(seen @ hyperplanes[:, 1:].T + hyperplanes[:, :1].T, 0)
        return linear[:1] + rows.x @ linear[1:] + hidden @ coef

    both = jax.jit(lambda theta: (outputs(theta), jax.jacfwd(outputs)(theta)))
    expected, jacobian = map(np.asarray, both(theta))
    np.testing.assert_allclose(
        shape.values(theta, rows.x), expected, rtol=1e-10, atol=1e-10
    )
    residual = rows.y - expected
    found = shape.dense_sums(theta, rows)
    gram = np.einsum("kqi,k,kqj->ij", jacobian, rows.weight, jacobian)
    slope = np.einsum("kqi,k,kq->i", jacobian, rows.weight, residual)
    np.testing.assert_allclose(found.gram, gram, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.slope, slope, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        found.error, rows.weight @ residual**2 @ np.ones(shape.q)
    )


def noisy(m=120, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (m, 2))
    y = np.abs(x[:, :1] - 0.2) + 0.5 * x[:, 1:] + 0.1 * rng.standard_normal((m, 1))
    return Rows(x, y, np.full(m, 1 / m))


def test_step_lowers_the_energy_at_its_penalties():
    rows = noisy()
    opt = options(rows)
    state = evidence_gn.init(rows, [start(rows)], opt)
    shape = shape_of(8, 2, 1)
    for _ in range(12):
        precision = evidence.prior_precision(shape.groups(), state.alpha)
        scale = state.beta * opt.n_effective

        def energy(theta, precision=precision, scale=scale):
            error = shape.dense_sums(theta, rows).error
            return scale * error / 2 + np.sum(precision * theta**2) / 2

        before = state.theta
        state, _ = evidence_gn.step(rows, state, opt)
        assert energy(state.theta) < energy(before)


def test_a_damping_that_exact_steps_have_lowered_is_raised_far_enough():
    shape, theta, rows = problem(m=200, shape=(20, 2, 1))
    y = np.where(rows.x.sum(axis=1) > 0, 1.0, -1.0)[:, None]  # a jump is no network
    rows, opt = rows._replace(y=y), options(rows)
    state = core_gn.init_at(shape, rows, theta, np.ones(5), 1e6, opt)
    needed = core_gn.accepted_step(shape, rows, state, opt)
    assert needed.shift > 1e3  # from one
    low = state._replace(shift=1e-14)
    found = core_gn.accepted_step(shape, rows, low, opt)
    assert found.theta is not None
    assert needed.shift / 64 < found.shift < 64**2 * needed.shift


def test_end_is_a_fixed_point_of_the_penalties():
    rows = noisy()
    opt = options(rows)
    state, report = run(rows, start(rows), opt)
    assert report.stop == "tol"
    for _ in range(300):  # until penalties no longer move
        state, report = evidence_gn.step(rows, state, opt)
    groups = state.net.shape.groups()
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


def test_without_kinks_the_model_is_linear():
    _, _, rows = problem(shape=(4, 3, 1))
    state = evidence_gn.init(rows, [start(rows, n=4)], options(rows))
    gamma = state.net.gamma.copy()
    gamma[3:] = 0.0  # every feature switched off among the hidden weights
    state = state._replace(net=state.net._replace(gamma=gamma))
    state = evidence_gn._without_switched_off(state.net.shape, rows, state)
    assert state.net.shape.features == ()
    for _ in range(3):
        state, _ = evidence_gn.step(rows, state, options(rows))
    residual = rows.y - state.net.intercept - rows.x @ state.net.slope
    error = state.net.shape.error(state.theta, rows)
    np.testing.assert_allclose(rows.weight @ residual[:, 0] ** 2, error, rtol=1e-10)


def test_pruning_leaves_predictions_as_they_are():
    rows = noisy()
    state, _ = run(rows, start(rows), options(rows), 5)
    net = state.net._replace(
        hyperplanes=np.concatenate(
            [state.net.hyperplanes[:6], [[9.0, 1.0, 0.0], [-9.0, 1.0, 0.0]]]
        )
    )

    def outputs(net):
        hidden = rows.x @ net.hyperplanes[:, 1:].T + net.hyperplanes[:, 0]
        return net.intercept + rows.x @ net.slope + np.maximum(hidden, 0) @ net.coef

    found = evidence_gn.pruned(net, rows)
    np.testing.assert_allclose(outputs(found), outputs(net), atol=1e-10)
    assert not found.coef[6:].any()


def test_fixed_damping_is_the_shift_of_the_matrix_of_the_loss():
    rows = noisy()
    opt = options(rows, damping=0.3)
    state = evidence_gn.init(rows, [start(rows)], opt)
    shape = shape_of(8, 2, 1)
    scale = state.beta * opt.n_effective
    precision = evidence.prior_precision(shape.groups(), state.alpha) / scale
    matrix = state.sums.gram + np.diag(precision + 0.3)
    expected = np.linalg.solve(matrix, state.sums.slope - precision * state.theta)
    new, report = evidence_gn.step(rows, state, opt)
    assert report.damping == pytest.approx(0.3)
    np.testing.assert_allclose(new.theta - state.theta, expected, rtol=1e-8, atol=1e-10)


def test_rank_bounds_the_directions_of_a_step():
    rows = noisy()
    opt = options(rows, rank=3)
    state = evidence_gn.init(rows, [start(rows)], opt)
    scale = state.beta * opt.n_effective
    precision = evidence.prior_precision(state.net.shape.groups(), state.alpha)
    matrix = scale * state.sums.gram + np.diag(precision)
    down = scale * state.sums.slope - precision * state.theta
    scaled = matrix / np.diag(matrix)[:, None]
    krylov = np.empty((len(down), 3))
    krylov[:, 0] = down / np.diag(matrix)
    for k in range(2):
        krylov[:, k + 1] = scaled @ krylov[:, k]
    basis, _ = np.linalg.qr(krylov)
    new, report = evidence_gn.step(rows, state, opt)
    shift = scale * report.damping
    inner = basis.T @ matrix @ basis + shift * np.eye(3)
    expected = basis @ np.linalg.solve(inner, basis.T @ down)
    np.testing.assert_allclose(
        new.theta - state.theta, expected, atol=1e-9 * np.linalg.norm(expected)
    )
