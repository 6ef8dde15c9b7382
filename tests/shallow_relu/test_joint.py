"""The joint step against dense variable projection, and sums in blocks of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.arrays import blocks
from sklearn_gn.linalg import least_squares
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu import dense, network, sggn
from sklearn_gn.shallow_relu.network import ShallowReLU
from sklearn_gn.shallow_relu.problem import FitOptions
from sklearn_gn.solvers import JointGN

pytestmark = pytest.mark.usefixtures("float64")


fit_output_layer = jax.jit(sggn.fit_output_layer)
reduced_model = jax.jit(sggn.reduced_model)


def iteration(net, rows, opt, n=1):
    """The result of some iterations."""
    memory = dense.JOINT.start(net, rows)
    given = np.int32(n), np.float64(0)
    # A function of its own, whose trace sees limits that are changed.
    return jax.jit(lambda *a: dense.descend(*a, update=sggn.joint_update))(
        net, memory, rows, opt, *given
    )[0]


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


def make(m=80, d=2, n=4, q=1, n_spare=0, seed=0, opt=None):
    """Random rows and a network with the best output layer."""
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
    net = ShallowReLU(
        jnp.array(hyperplanes),
        jnp.zeros((n + n_spare, q)),
        jnp.zeros(q),
        jnp.arange(n + n_spare) < n,
    )
    return fit_output_layer(net, rows, opt or options()), rows


@jax.jit
def linearised(net, rows):
    """The residual, its derivative by the hyperplanes, and the output layer's rows."""

    def residual(r):
        return sggn.residual(net._replace(hyperplanes=r), rows).T.ravel()

    r = net.hyperplanes
    return residual(r), jax.jacobian(residual)(r), network.mass_design(net, rows)


def dense_model(net, rows, alpha):
    """K and the gradient by automatic differentiation and an explicit projector."""
    q, n = net.coef.shape[1], net.coef.shape[0]
    m = rows.x.shape[0]
    residual, jacobian, design = map(np.asarray, linearised(net, rows))
    jacobian = jacobian.reshape(q * m, -1)
    jacobian = np.r_[jacobian, np.zeros((q * n, jacobian.shape[1]))]
    output = np.r_[
        np.kron(np.eye(q), design),
        np.kron(np.eye(q), np.sqrt(alpha) * np.eye(1 + n)[1:]),
    ]
    error = np.r_[residual, np.sqrt(alpha) * np.ravel(np.transpose(net.coef))]
    projected = jacobian - output @ (np.linalg.pinv(output) @ jacobian)
    return projected.T @ projected, projected.T @ error


def matrix_of(model):
    return np.asarray((model.basis * model.values[None, :]) @ model.basis.T)


@pytest.mark.parametrize("alpha", [0.0, 0.05])
@pytest.mark.parametrize(("q", "n_spare"), [(1, 0), (2, 3)])
def test_reduced_model_is_the_projected_gauss_newton_matrix(q, alpha, n_spare):
    opt = options(alpha=np.float64(alpha))
    net, rows = make(q=q, n_spare=n_spare, opt=opt)
    model = reduced_model(net, rows, opt)
    matrix, gradient = dense_model(net, rows, alpha)
    np.testing.assert_allclose(matrix_of(model), matrix, atol=1e-10)
    np.testing.assert_allclose(model.basis @ model.slopes, gradient, atol=1e-10)


def test_model_from_the_gram_matrix_is_the_same_in_single_precision(monkeypatch):
    net, rows = make(m=200, q=2)
    monkeypatch.setattr(sggn.factors, "QR_LIMIT", 0)
    # A function of its own, whose trace sees the limit.
    model = jax.jit(lambda *a: sggn.reduced_model(*a))(net, rows, options())
    matrix, gradient = dense_model(net, rows, 0.0)
    # Rounding times the condition of the mass matrix.
    size = np.abs(matrix).max()
    np.testing.assert_allclose(matrix_of(model), matrix, atol=2e-3 * size)
    # The gradient is that of double precision, where a direction is not left out.
    slopes = np.asarray(model.slopes)
    kept = slopes != 0
    expected = np.asarray(model.basis).T @ gradient
    np.testing.assert_allclose(slopes[kept], expected[kept], atol=1e-10)
    assert kept.sum() >= 6


def optimal_loss(hyperplanes, rows):
    """Half the weighted squared error with the best output layer, by dense algebra."""
    x, y, root = (np.asarray(a) for a in (rows.x, rows.y, jnp.sqrt(rows.weight)))
    features = np.maximum(hyperplanes[:, 0] + x @ hyperplanes[:, 1:].T, 0)
    design = root[:, None] * np.c_[np.ones(len(x)), features]
    coef, *_ = np.linalg.lstsq(design, root[:, None] * y)
    return 0.5 * np.sum((design @ coef - root[:, None] * y) ** 2)


@pytest.mark.parametrize("damping", [1e-7, 1e-3, 0.1])
def test_numeric_damping_is_the_shift_of_the_matrix_and_steps_are_halved(damping):
    opt = options(damping=np.float64(damping))
    halved = []
    for seed in range(4):
        net, rows = make(seed=seed)
        result = iteration(net, rows, opt)
        matrix, gradient = dense_model(net, rows, 0.0)
        shifted = matrix + damping * np.eye(len(matrix))
        step = np.linalg.solve(shifted, -gradient).reshape(net.hyperplanes.shape)
        start = optimal_loss(np.asarray(net.hyperplanes), rows)
        for count in range(20):
            moved = np.asarray(net.hyperplanes) + 0.5**count * step
            moved /= np.linalg.norm(moved[:, 1:], axis=1, keepdims=True)
            loss = optimal_loss(moved, rows)
            if loss < start:
                break
        np.testing.assert_allclose(result.net.hyperplanes, moved, rtol=1e-6, atol=1e-8)
        assert float(result.loss) == pytest.approx(loss, rel=1e-8)
        halved.append(count)
    assert min(halved) == 0
    assert max(halved) > 0 or damping == 0.1


def test_rank_keeps_the_leading_eigenvectors_of_a_step():
    net, rows = make()
    # More than the output layer has.
    opt = options(rank=np.int32(5), damping=np.float64(1e-2))
    result = iteration(net, rows, opt)
    matrix, gradient = dense_model(net, rows, 0.0)
    values, basis = np.linalg.eigh(matrix)
    leading = basis[:, -5:]
    step = -leading @ ((leading.T @ gradient) / (values[-5:] + 1e-2))
    moved = np.asarray(net.hyperplanes) + step.reshape(net.hyperplanes.shape)
    moved /= np.linalg.norm(moved[:, 1:], axis=1, keepdims=True)
    np.testing.assert_allclose(result.net.hyperplanes, moved, atol=1e-10)


def test_fewer_rows_than_columns_leave_no_direction_out():
    net, rows = make(m=12, n=4, n_spare=8)
    model = reduced_model(net, rows, options())
    matrix, gradient = dense_model(net, rows, 0.0)
    np.testing.assert_allclose(matrix_of(model), matrix, atol=1e-10)
    np.testing.assert_allclose(model.basis @ model.slopes, gradient, atol=1e-10)


def test_null_directions_are_the_lengths_of_the_normals():
    net, rows = make()
    matrix = matrix_of(reduced_model(net, rows, options()))
    for i in range(4):
        direction = np.zeros((4, 3))
        direction[i] = net.hyperplanes[i]
        np.testing.assert_allclose(matrix @ direction.ravel(), 0, atol=1e-10)


# -- blocks of rows -------------------------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 16)
    monkeypatch.setattr(blocks, "LEAST_ROWS", 8)


def test_sums_over_blocks_equal_those_over_all_rows(small_blocks):
    rng = np.random.RandomState(0)
    a = rng.randn(48, 5)
    assert len(blocks.split(jnp.array(a))) == 3
    assert len(blocks.split(jnp.array(a[:20]))) == 1  # no power of two divides it
    r = np.asarray(least_squares.triangular_factor(lambda b: b, jnp.array(a)))
    np.testing.assert_allclose(r.T @ r, a.T @ a, atol=1e-10)
    squares = blocks.sum_rows(lambda b: b.T @ b, jnp.array(a))
    np.testing.assert_allclose(squares, a.T @ a)
    total = blocks.sum_rows(lambda b: b.sum(axis=0), jnp.array(a))
    np.testing.assert_allclose(total, a.sum(axis=0))


def test_an_iteration_in_blocks_equals_one_with_all_rows(monkeypatch):
    net, rows = make(m=64, q=2)
    whole = iteration(net, rows, options())
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 16)
    monkeypatch.setattr(blocks, "LEAST_ROWS", 8)
    parts = iteration(net, rows, options())
    np.testing.assert_allclose(parts.net.hyperplanes, whole.net.hyperplanes, atol=1e-9)
    assert float(parts.loss) == pytest.approx(float(whole.loss), rel=1e-10)


# -- search on a sample ---------------------------------------------------------------


@pytest.mark.slow
def test_many_rows_are_searched_on_a_sample_and_fitted_whole(monkeypatch):
    monkeypatch.setattr(dense, "SAMPLE_ROWS", 64)
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (250, 2))
    y = np.abs(X[:, 0] + 0.5 * X[:, 1]) + np.maximum(X[:, 1] - 0.3, 0)
    model = ShallowReLURegressor(
        4, solver=JointGN(relocations=6), random_state=0, alpha=0.0
    )
    model.fit(X, y)
    log = model.convergence_log_["loss"]
    assert np.all(np.diff(log) <= 0)  # of all rows, whatever the search looked at
    assert log[-1] == pytest.approx(model.loss_, rel=1e-6)
    assert model.loss_ < 1e-20


def test_sample_has_the_rows_once_and_none_of_weight_zero(monkeypatch):
    monkeypatch.setattr(dense, "SAMPLE_ROWS", 64)
    _, rows = make(m=256)
    rows = rows._replace(weight=rows.weight.at[200:].set(0))
    sample = dense.draw_sample(rows, options())
    assert sample.x.shape == (64, 2)
    assert len(np.unique(sample.x[:, 0])) == 64
    assert np.all(np.isin(sample.x[:, 0], np.asarray(rows.x[:200, 0])))
    assert float(np.sum(sample.weight)) == pytest.approx(1, rel=1e-12)
    few = Rows(*(a[:100] for a in rows))
    assert dense.draw_sample(few, options()) is few
