"""The Newton step in whitened coordinates, against dense algebra."""

import jax
import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.softmax_head import head, newton, whitening
from sklearn_gn.softmax_head.whitening import newton_direction
from sklearn_gn.solvers import FGNNewton

N_ROWS, N_FEATURES, ALPHA = 64, 5, 0.05

pytestmark = pytest.mark.usefixtures("float64")


def problem(n_classes, **changes):
    rng = np.random.RandomState(0)
    m = 1 if n_classes == 2 else n_classes
    x = rng.randn(N_ROWS, N_FEATURES) @ rng.randn(N_FEATURES, N_FEATURES)
    weight = 0.5 + rng.rand(N_ROWS)
    x = x - weight @ x / weight.sum()
    rows = head.BatchedRows(
        x,
        rng.randint(n_classes, size=N_ROWS).astype(np.int32),
        weight / weight.sum(),
        np.int32(N_ROWS),
        np.int32(1),
    )
    options = head.HeadOptions(
        alpha=np.float64(ALPHA),
        damping=0.0,
        rank=100,
        intercept=np.float64(1),
        tol=np.float64(0),
        batch_size=N_ROWS,
        seed=np.int32(0),
        solver=FGNNewton(),
    )
    net = head.AffineHead(0.3 * rng.randn(N_FEATURES, m), rng.randn(m))
    return rows, options._replace(**changes), net


def dense_direction(rows, net, damping):
    """``-(H + damping I)^-1 gradient``, the Hessian whole, whole."""
    m = len(net.bias)
    h = np.concatenate([rows.x, np.ones((N_ROWS, 1))], axis=1)
    logits = rows.x @ net.weight + net.bias
    logits = logits if m > 1 else np.concatenate([0 * logits, logits], axis=1)
    p = softmax(logits, axis=1)
    share = rows.weight / rows.weight.sum()
    covariance = p[:, :, None] * np.eye(p.shape[1]) - p[:, :, None] * p[:, None, :]
    hessian = np.einsum(
        "n,ni,nj,nab->iajb", share, h, h, covariance[:, -m:, -m:]
    ).reshape(h.shape[1] * m, -1)
    shift = np.full((h.shape[1], m), damping)
    shift[:-1] += ALPHA
    error = (p - np.eye(p.shape[1])[rows.label])[:, -m:]
    gradient = h.T @ (share[:, None] * error)
    gradient[:-1] += ALPHA * net.weight
    solved = -np.linalg.solve(hessian + np.diag(shift.ravel()), gradient.ravel())
    return solved.reshape(h.shape[1], m)


def whitened(rows, options, net, put=np.asarray):
    """The data of the method, the head in its coordinates, and the gradient."""
    rows = jax.tree.map(lambda a: put(a.copy()), rows)  # NumPy writes into them
    data = newton.prepare(rows, options, axis=1)
    weight = np.asarray(data.space.dual).T @ net.weight
    net = jax.tree.map(put, head.AffineHead(weight, net.bias))
    return data, net, newton.objective(data, net, float(options.alpha)).gradient


@pytest.mark.parametrize(
    ("n_classes", "put"), [(2, np.asarray), (4, np.asarray), (4, jax.device_put)]
)
def test_damping_is_the_shift_of_the_hessian(n_classes, put, monkeypatch):
    monkeypatch.setattr(whitening, "forcing_of", lambda size, settings: 1e-6)
    for damping in (0.01, 1.0):
        rows, options, net = problem(n_classes, damping=damping)
        expected = dense_direction(rows, net, damping)
        options = options._replace(compiled=put is not np.asarray)
        data, net, gradient = whitened(rows, options, net, put)
        direction, slope, count = newton_direction.__wrapped__(  # not compiled before
            net,
            gradient,
            data.space,
            newton.NewtonSettings(
                options.alpha,
                np.float64(damping),
                options.intercept,
                np.int32(options.rank),
                options.tol,
            ),
        )
        weight = data.space.basis @ direction.weight
        found = np.concatenate([weight, direction.bias[None, :]])
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
        assert float(slope) < 0
        assert int(count) > 1


@pytest.mark.parametrize("alike", [False, True])
def test_a_damped_step_takes_the_one_before_into_account(alike):
    rng = np.random.RandomState(0)
    root = rng.randn(6, 6)
    hessian, (right, step, last) = root @ root.T, rng.randn(3, 6)
    last = 2 * step if alike else last

    def as_head(v):
        return head.AffineHead(v[:4].reshape(2, 2), v[4:])

    def as_vector(net):
        return np.concatenate([net.weight.ravel(), net.bias])

    found = as_vector(
        whitening.least_of_both(
            lambda net: as_head(hessian @ as_vector(net)),
            as_head(right),
            as_head(step),
            as_head(last),
        )
    )
    basis = np.stack([step] if alike else [step, last], axis=1)
    lengths = np.linalg.solve(basis.T @ hessian @ basis, basis.T @ right)
    np.testing.assert_allclose(found, basis @ lengths, rtol=1e-9)


def clusters(n=60, d=5, n_classes=4):
    rng = np.random.default_rng(0)
    y = np.arange(n) % n_classes
    return rng.normal(size=(n_classes, d))[y] + rng.normal(size=(n, d)), y


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("rank", [1, 3, 10**12])
def test_rank_bounds_the_iterations_of_conjugate_gradients(rank):
    model = FGNSoftmaxHead(alpha=1e-4, rank=rank, tol=1e-9).fit(*clusters())
    iterations = model.convergence_log_["inner_iterations"]
    assert 1 <= iterations.max() <= rank
    assert model.loss_ < 1.0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_classes_do_not_move_all_alike():
    """It changes no probability: no part of a step is spent on it."""
    model = FGNSoftmaxHead(alpha=1e-6, rank=1, max_iter=2).fit(*clusters())
    mean = model.coef_.mean(axis=0)
    np.testing.assert_allclose(mean, 0, atol=1e-5 * np.abs(model.coef_).max())


@pytest.mark.parametrize("device", [None, "cpu"])
def test_optimum_of_fewer_rows_than_features(device):
    rng = np.random.default_rng(1)
    y = np.arange(40) % 4
    X = rng.normal(size=(4, 100))[y] + rng.normal(size=(40, 100))
    model = FGNSoftmaxHead(alpha=0.1, tol=1e-9, device=device).fit(X, y)
    peer = LogisticRegression(C=1 / (0.1 * 40), tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-7)
