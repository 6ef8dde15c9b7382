"""The SgGN iteration against automatic differentiation and dense formulas."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import least_squares
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, Ridge

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.arrays import backend
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu import baselines, dense, network, sggn
from sklearn_gn.shallow_relu.dense import ALGORITHMS
from sklearn_gn.shallow_relu.network import ShallowReLU
from sklearn_gn.shallow_relu.problem import FitOptions
from sklearn_gn.solvers import FGN, SHALLOW_RELU_SOLVERS

pytestmark = pytest.mark.usefixtures("float64")

# Compiled, since every operation outside a compiled function is compiled on its own.
delete, insert = map(jax.jit, (dense.delete, dense.insert))
direction, fit_output_layer, objective, residual = map(
    jax.jit,
    (sggn.direction, sggn.fit_output_layer, sggn.objective, sggn.residual),
)
descend = jax.jit(partial(dense.descend, update=sggn.sggn_update))
active_set, layer_design, mass_design = map(
    jax.jit,
    (network.active_set, network.layer_design, network.mass_design),
)
hidden_features, predict, rescale = map(
    jax.jit, (network.hidden_features, network.predict, network.rescale)
)
lm_update = jax.jit(baselines.lm_update, static_argnames="hidden_only")


def iterate(net, rows, opt, n=1):
    """The result of some iterations."""
    return descend(net, (), rows, opt, np.int32(n), np.float64(0))[0]


def start_shift(value):
    return baselines.Nielsen.start(jnp.array(value), 1)


@partial(jax.jit, static_argnums=3)
def draw_hyperplanes(draw, rows, error, n):
    """As in an insertion with the seed 0."""
    key = jax.random.fold_in(jax.random.key(np.int32(0)), draw)
    return dense.draw_hyperplanes(key, rows, error, n)


def options(**changes):
    defaults = {
        "alpha": np.float64(0),
        "damping": None,
        "rank": np.int32(10**6),
        "rank_tol": np.float64(1e-12),
        "active_tol": np.float64(1e-10),
        "tol": np.float64(1e-10),
        "relocations": np.int32(0),
        "max_iter": np.int32(100),
        "learning_rate": np.float64(0.01),
        "seed": np.int32(0),
    }
    return FitOptions(**{**defaults, **changes})


def make(m=60, d=2, n=5, q=1, n_spare=0, seed=0):
    """Random rows and a random network; the second neuron is inactive."""
    rng = np.random.RandomState(seed)
    weight = rng.rand(m)
    rows = Rows(
        jnp.array(rng.uniform(-1, 1, (m, d))),
        jnp.array(rng.randn(m, q)),
        jnp.array(weight / weight.sum()),
    )
    hyperplanes = rng.randn(n + n_spare, 1 + d)
    hyperplanes[:, 0] *= 0.3
    hyperplanes /= np.linalg.norm(hyperplanes[:, 1:], axis=1, keepdims=True)
    coef = rng.randn(n + n_spare, q)
    coef[1] = 0
    coef[n:] = 0
    net = ShallowReLU(
        jnp.array(hyperplanes),
        jnp.array(coef),
        jnp.array(rng.randn(q)),
        jnp.arange(n + n_spare) < n,
    )
    return net, rows


def stacked(*nets):
    """Networks as one, with a leading axis."""
    return ShallowReLU(*(jnp.stack(leaves) for leaves in zip(*nets, strict=True)))


@jax.jit
def derivatives(net, rows):
    """Jacobian of the residual, and gradient of the objective, by the hyperplanes."""

    def with_hyperplanes(function):
        return lambda r: function(net._replace(hyperplanes=r), rows)

    jacobian = jax.jacfwd(with_hyperplanes(sggn.residual))(net.hyperplanes)
    loss = with_hyperplanes(lambda net, rows: sggn.objective(net, rows, 0.0))
    return jacobian, jax.grad(loss)(net.hyperplanes)


# -- matrices -------------------------------------------------------------------------


def test_mass_matrix_equals_the_sum_over_rows():
    net, rows = make()
    design = np.asarray(mass_design(net, rows))
    s = np.c_[np.ones(60), hidden_features(net.hyperplanes, rows.x)]
    expected = sum(w * np.outer(a, a) for w, a in zip(rows.weight, s, strict=True))
    np.testing.assert_allclose(design.T @ design, expected, atol=1e-10)


def test_layer_matrix_equals_the_kronecker_sum():
    net, rows = make()
    active = active_set(net, 1e-10)
    design = np.asarray(layer_design(net, rows, active))
    r, x = np.asarray(net.hyperplanes), np.asarray(rows.x)
    expected = 0
    for w, xk in zip(np.asarray(rows.weight), x, strict=True):
        y = np.r_[1, xk]
        h = (r @ y > 0) * np.asarray(active)
        expected = expected + w * np.kron(np.outer(h, h), np.outer(y, y))
    # D(sign c) on both sides is what the design leaves in for one output.
    sign = np.repeat(np.sign(np.asarray(net.coef[:, 0])), 3)
    found = design.T @ design * np.outer(sign, sign)
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_gauss_newton_matrix_and_gradient_equal_automatic_differentiation():
    net, rows = make(q=3)
    jacobian, expected = map(np.asarray, derivatives(net, rows))
    jacobian = jacobian.reshape(60 * 3, -1)
    size = np.repeat(np.linalg.norm(net.coef, axis=1), 3)
    design = np.asarray(layer_design(net, rows, active_set(net, 1e-10)))
    scaled = design * size
    np.testing.assert_allclose(scaled.T @ scaled, jacobian.T @ jacobian, atol=1e-10)
    _, gradient, _ = direction(net, rows, options())
    np.testing.assert_allclose(gradient, expected, atol=1e-10)


@pytest.mark.parametrize("q", [1, 3])
def test_direction_equals_the_dense_gauss_newton_step(q):
    net, rows = make(q=q)
    p, _, decrease = direction(net, rows, options())
    jacobian = np.asarray(derivatives(net, rows)[0])
    active = [0, 2, 3, 4]
    dense = jacobian[..., active, :].reshape(60 * q, -1)
    error = np.asarray(residual(net, rows)).ravel()
    step, *_ = np.linalg.lstsq(dense, error)
    np.testing.assert_allclose(np.asarray(p)[active].ravel(), step, rtol=1e-9)
    assert np.all(np.asarray(p)[1] == 0)
    model = 0.5 * (error @ error - np.sum((error - dense @ step) ** 2))
    assert float(decrease) == pytest.approx(model, rel=1e-9)


def test_damped_direction_shifts_the_layer_matrix():
    net, rows = make()
    p, *_ = direction(net, rows, options(damping=np.float64(0.1)))
    active = active_set(net, 1e-10)
    design = np.asarray(layer_design(net, rows, active))
    error = np.asarray(residual(net, rows)).ravel()
    s = np.linalg.solve(design.T @ design + 0.1 * np.eye(15), design.T @ error)
    c = np.where(active, np.linalg.norm(net.coef, axis=1), np.inf)
    np.testing.assert_allclose(p, s.reshape(5, 3) / c[:, None], atol=1e-10)


# -- output layer ---------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.05])
@pytest.mark.parametrize("q", [1, 2])
def test_output_layer_equals_scikit_learn(alpha, q):
    net, rows = make(q=q)
    net = fit_output_layer(net, rows, options(alpha=np.float64(alpha)))
    features = np.asarray(hidden_features(net.hyperplanes, rows.x))
    oracle = Ridge(alpha=alpha) if alpha else LinearRegression()
    oracle.fit(features, np.asarray(rows.y), sample_weight=np.asarray(rows.weight))
    np.testing.assert_allclose(net.coef.T, np.atleast_2d(oracle.coef_), rtol=1e-8)
    np.testing.assert_allclose(net.intercept, oracle.intercept_, rtol=1e-8)


@pytest.mark.slow
def test_padding_rows_and_spare_neurons_change_nothing():
    net, rows = make()
    wide, _ = make(n_spare=3)
    padded = Rows(*(jnp.array(backend.pad_rows(np.asarray(a), 128)) for a in rows))
    wide = wide._replace(
        hyperplanes=wide.hyperplanes.at[:5].set(net.hyperplanes),
        coef=wide.coef.at[:5].set(net.coef),
        intercept=net.intercept,
    )
    a, b = (
        iterate(net, rows, options()),
        iterate(wide, padded, options()),
    )
    np.testing.assert_allclose(a.net.hyperplanes, b.net.hyperplanes[:5], atol=1e-11)
    np.testing.assert_allclose(a.net.coef, b.net.coef[:5], atol=1e-9)
    assert np.all(np.asarray(b.net.coef[5:]) == 0)
    np.testing.assert_allclose(float(a.loss), float(b.loss), rtol=1e-10)


# -- iteration ------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 1e-3])
@pytest.mark.parametrize("damping", [None, 1e-3])
def test_iterations_never_raise_the_loss_and_keep_unit_normals(alpha, damping):
    net, rows = make()
    opt = options(alpha=np.float64(alpha), damping=damping)
    net = sggn.fit_output_layer(net, rows, opt)
    loss = sggn.objective(net, rows, opt.alpha)
    for _ in range(10):
        result = iterate(net, rows, opt)
        expected = objective(net, rows, alpha) - result.loss
        assert float(result.decrease) == pytest.approx(float(expected), abs=1e-11)
        assert result.loss <= loss
        net, loss = result.net, result.loss
        norms = np.linalg.norm(np.asarray(net.hyperplanes)[:, 1:], axis=1)
        np.testing.assert_allclose(norms, 1, rtol=1e-12)


# -- relocation -----------------------------------------------------------------------


def projected_loss(hyperplanes, rows):
    root = np.sqrt(np.asarray(rows.weight))[:, None]
    x = np.asarray(rows.x)
    features = np.maximum(hyperplanes[:, 0] + x @ hyperplanes[:, 1:].T, 0)
    design = root * np.c_[np.ones(len(root)), features]
    target = root * np.asarray(rows.y)
    solution, *_ = np.linalg.lstsq(design, target)
    return 0.5 * np.sum((design @ solution - target) ** 2)


@pytest.mark.slow
def test_insertion_takes_the_candidate_of_largest_least_squares_gain():
    net, rows = make(m=80, d=2, n=4, q=2, n_spare=1)
    net = fit_output_layer(net, rows, options())
    grown = insert(net, rows, options(), np.int32(0), np.int32(8))
    old = np.asarray(net.hyperplanes)[:4]
    drawn = draw_hyperplanes(np.int32(0), rows, residual(net, rows), 256)[:8]
    losses = [projected_loss(np.r_[old, h[None]], rows) for h in np.asarray(drawn)]
    new = np.asarray(grown.hyperplanes)[4]
    np.testing.assert_allclose(new, drawn[np.argmin(losses)], rtol=1e-12)
    assert bool(grown.alive[4])
    assert float(objective(grown, rows, 0.0)) == pytest.approx(min(losses), rel=1e-10)


@pytest.mark.parametrize("place", [0, 1, 4])
def test_deletion_goes_by_the_least_squares_cost_over_all_turns(place):
    net, rows = make(m=80, d=2, n=6, q=2)
    net = fit_output_layer(net, rows, options())
    pruned = delete(net, rows, options(), np.int32(place))
    r = np.asarray(net.hyperplanes)
    losses = np.empty((7, 6))
    for turn in range(-1, 6):
        signs = np.where(np.arange(6) == turn, -1, 1)[:, None]
        for i in range(6):
            left = np.delete(signs * r, i, axis=0)
            losses[turn + 1, i] = projected_loss(left, rows)
    order = np.argsort(losses.min(axis=0))
    assert list(np.flatnonzero(~np.asarray(pruned.alive))) == [order[place]]
    assert float(objective(pruned, rows, 0.0)) == pytest.approx(
        losses.min(axis=0)[order[place]], rel=1e-10
    )


def test_deletion_turns_a_neuron_that_another_had_to_make_up_for():
    _, rows = make(m=200, d=2, seed=5)
    planes = np.array([[0.1, 0.6, 0.8], [-0.2, -0.8, 0.6], [0.0, 0.0, 1.0]])
    rows = rows._replace(y=hidden_features(jnp.array(planes), rows.x) @ np.ones((3, 1)))
    # The first neuron turned round, and one outside the data that is linear there.
    wrong = np.r_[planes * [[-1], [1], [1]], [[5.0, 0.6, 0.8]]]
    net = ShallowReLU(
        jnp.array(wrong), jnp.zeros((4, 1)), jnp.zeros(1), jnp.ones(4, bool)
    )
    net = fit_output_layer(net, rows, options())
    assert float(objective(net, rows, 0.0)) < 1e-24
    pruned = delete(net, rows, options(), np.int32(0))
    assert float(objective(pruned, rows, 0.0)) < 1e-24
    assert int(np.asarray(pruned.alive).sum()) == 3


def test_drawn_hyperplanes_pass_through_rows_with_residual():
    net, rows = make(m=80, d=3)
    error = np.array(residual(net, rows))
    error[20:] = 0
    drawn = np.asarray(draw_hyperplanes(np.int32(1), rows, error, 64))
    distance = np.abs(drawn[:, :1] + drawn[:, 1:] @ np.asarray(rows.x[:20]).T)
    np.testing.assert_allclose(distance.min(axis=1), 0, atol=1e-10)
    # The second smallest too, unless both draws were the same row.
    assert np.mean(np.sort(distance, axis=1)[:, 1] < 1e-10) > 0.8


# -- baselines ------------------------------------------------------------------------


def small_regression():
    """A noisy problem with two well separated kinks and one clear optimum."""
    rng = np.random.RandomState(0)
    x = np.sort(rng.uniform(-1, 1, 100))
    y = np.abs(x + 0.4) - 2 * np.maximum(x - 0.3, 0) + 0.01 * rng.randn(100)
    hyperplanes = np.array([[3.0, 1.0], [0.45, 1.0], [-0.25, 1.0]])
    net = ShallowReLU(hyperplanes, np.zeros((3, 1)), np.zeros(1), np.ones(3, bool))
    return net, Rows(x[:, None], y[:, None], np.full(100, 1 / 100))


def run(name, net, rows, opt, n):
    solver = ALGORITHMS[name]
    data = solver.prepare(rows, opt)
    state = solver.init(data, stacked(net), opt)
    for _ in range(n):
        state, report = solver.step(data, state, opt)
        if report.stop:
            break
    return jax.tree.map(lambda a: a[0], state.nets), report


def fitted(name, **settings):
    """A fit from the hyperplanes of the problem, without a search."""
    net, rows = small_regression()
    solver = clone(SHALLOW_RELU_SOLVERS[name])
    if hasattr(solver, "relocations"):
        solver.relocations = 0
    # With a rank, one feature takes the step of several.
    words = {"alpha": 0.0, "rank": 100, "random_state": 0, **settings}
    model = ShallowReLURegressor(3, init=net.hyperplanes, solver=solver, **words)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(rows.x, np.ravel(rows.y))


@pytest.fixture(scope="module")
def oracle():
    """The loss at the start, and the optimum from there by SciPy.

    The first neuron, which lies left of the data, is a line.
    """
    _, rows = small_regression()
    x, y = rows.x[:, 0], rows.y[:, 0]

    def design(t):
        return np.c_[np.ones(100), x, np.maximum(x[:, None] - t, 0)] / 10

    def error(p):
        return design(p[:2]) @ p[2:] - y / 10

    t = np.array([-0.45, 0.25])
    p0 = np.r_[t, np.linalg.lstsq(design(t), y / 10)[0]]
    tolerances = dict.fromkeys(("ftol", "xtol", "gtol"), 1e-15)
    return np.sum(error(p0) ** 2) / 2, least_squares(error, p0, **tolerances)


@pytest.mark.parametrize("name", ["lm", "lm_hidden", "bfgs", "sggn", "vpgn"])
def test_second_order_solvers_reach_scipy_s_optimum(name, oracle):
    _, optimum = oracle
    model = fitted(name, tol=1e-14, max_iter=300)
    assert model.loss_ == pytest.approx(optimum.cost, rel=1e-8)
    np.testing.assert_allclose(model.breakpoints_[-2:], optimum.x[:2], atol=1e-5)


@pytest.mark.parametrize("name", sorted(SHALLOW_RELU_SOLVERS))
def test_every_solver_lowers_the_loss_from_the_same_start(name, oracle):
    start, _ = oracle
    assert fitted(name, max_iter=20).convergence_log_["loss"].min() < start


def test_lm_step_equals_the_dense_damped_step():
    net, rows = make(q=2)
    shift = 0.3

    def error(p):
        return residual(baselines.with_parameters(net, p), rows).ravel()

    error = jax.jit(error)
    blocks = jax.jit(jax.jacfwd(error))(baselines.trainable(net))
    dense = np.concatenate([np.asarray(b).reshape(120, -1) for b in blocks], axis=1)
    gradient = dense.T @ np.asarray(error(baselines.trainable(net)))
    step = np.linalg.solve(dense.T @ dense + shift * np.eye(dense.shape[1]), gradient)
    moved = lm_update(net, start_shift(shift), rows, options(), hidden_only=False)
    start, unravel = jax.flatten_util.ravel_pytree(baselines.trainable(net))
    expected = rescale(baselines.with_parameters(net, unravel(start - step)))
    for a, b in zip(moved.net, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)
    assert float(moved.decrease) > 0
    assert 0 < float(moved.gain_ratio) < 2


@pytest.mark.parametrize("hidden_only", [False, True])
def test_lm_with_a_numeric_damping_halves_the_step_until_the_loss_falls(hidden_only):
    damping, halved = 1e-6, []
    for seed in range(3):
        net, rows = make(seed=seed)
        net = fit_output_layer(net, rows, options())
        residuals, moving, _ = baselines.lm_residuals(net, rows, 0.0, hidden_only)
        dense = np.asarray(jax.jit(jax.jacrev(residuals))(moving))
        error = np.asarray(residuals(moving))
        shifted = dense.T @ dense + damping * np.eye(dense.shape[1])
        step = np.linalg.solve(shifted, dense.T @ error)
        flat, unravel = jax.flatten_util.ravel_pytree(baselines.trainable(net))
        start = float(objective(net, rows, 0.0))
        opt = options(damping=np.float64(damping))
        moved = lm_update(net, start_shift(9.0), rows, opt, hidden_only=hidden_only)
        assert float(moved.damping) == damping
        for k in range(30):
            new = np.asarray(flat).copy()
            new[: len(step)] -= 0.5**k * step
            trial = baselines.with_parameters(net, unravel(jnp.array(new)))
            if hidden_only:
                trial = fit_output_layer(trial, rows, options())
            if float(objective(trial, rows, 0.0)) < start:
                break
        loss = float(objective(trial, rows, 0.0))
        found = float(objective(moved.net, rows, 0.0))
        assert found == pytest.approx(loss, rel=1e-6)
        halved.append(k)
    assert max(halved) > 0


def test_kfra_solves_its_kronecker_blocks():
    rng = np.random.RandomState(0)
    left, right = rng.randn(20, 4), rng.randn(20, 3)
    left, right = left.T @ left, right.T @ right
    gradient = rng.randn(4, 3)
    found = jax.jit(baselines._kronecker_solve)(left, right, gradient, 0.01)
    pi = np.sqrt((np.trace(left) / 4) / (np.trace(right) / 3))
    dense = np.kron(left + 0.1 * pi * np.eye(4), right + 0.1 / pi * np.eye(3))
    expected = np.linalg.solve(dense, gradient.ravel()).reshape(4, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("sggn", "lm") else pytest.mark.slow)
        for name in sorted(ALGORITHMS)
    ],
)
def test_penalty_does_not_depend_on_the_length_of_the_normals(name):
    net, rows = small_regression()
    opt = options(alpha=np.float64(0.05), learning_rate=np.float64(1e-2))
    found, report = run(name, net, rows, opt, 15)
    unit = rescale(found)
    assert float(objective(unit, rows, 0.05)) == pytest.approx(report.loss)
    np.testing.assert_allclose(predict(unit, rows.x), predict(found, rows.x))


def test_registry_names_the_nearest_solver():
    with pytest.raises(ValueError, match=r"solver='sgn'.*Did you mean 'sggn'\?"):
        ShallowReLURegressor(solver="sgn", n_neurons=20, alpha=0.0).fit(
            [[0.0], [1.0]], [0.0, 1.0]
        )
    with pytest.raises(ValueError, match=r"FGN\(\) does not fit ShallowReLURegressor"):
        ShallowReLURegressor(solver=FGN(), n_neurons=20, alpha=0.0).fit(
            [[0.0], [1.0]], [0.0, 1.0]
        )


def test_matrices_are_the_same_in_numpy_and_compiled():
    rng = np.random.RandomState(0)
    x, weight = rng.uniform(-1, 1, (30, 2)), rng.uniform(0.5, 1, 30)
    rows = Rows(x, rng.randn(30, 2), weight / weight.sum())
    alive = np.arange(5) < 4
    coef = np.where(alive[:, None], rng.randn(5, 2), 0)
    net = ShallowReLU(rng.randn(5, 3), coef, rng.randn(2), alive)

    def matrices(net, rows):
        active = network.active_set(net, 1e-10)
        return (
            network.mass_design(net, rows),
            network.layer_design(net, rows, active),
            *network.joint_design(net, rows),
            *network.rescale(net),
        )

    for one, other in zip(
        matrices(net, rows), jax.jit(matrices)(net, rows), strict=True
    ):
        assert type(one) is np.ndarray
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
