"""The split softmax curvature and the steps built on it, against dense algebra.

A call of ``partial_fit`` with a batch of all rows is one step, whatever it does to the
loss.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.softmax_head import head as heads
from sklearn_gn.softmax_head.head import AffineHead
from sklearn_gn.solvers import FGN, SGN

N_ROWS, N_FEATURES = 12, 3
ALPHA = 0.1


def data(n_classes):
    rng = np.random.RandomState(n_classes)
    X = rng.randn(N_ROWS, N_FEATURES)
    label = np.append(np.arange(n_classes), rng.randint(n_classes, size=N_ROWS))
    m = 1 if n_classes == 2 else n_classes
    coef, intercept = rng.randn(m, N_FEATURES), rng.randn(m)
    return X, label[:N_ROWS], 1 + 0.3 * rng.rand(N_ROWS), coef, intercept


def probabilities(X, coef, intercept):
    values = X @ coef.T + intercept
    if values.shape[1] == 1:
        values = np.append(0 * values, values, axis=1)
    return softmax(values, axis=1)


def kept_covariance(p, label, n_competitors):
    """True class against the rest, then competitors against the others, for a row."""
    n_classes, rest = len(p), np.delete(np.arange(len(p)), label)
    p_rest = p[rest].sum()
    rho = np.zeros(n_classes)
    rho[rest] = p[rest] / p_rest
    a = rho - np.eye(n_classes)[label]
    found = p[label] * p_rest * np.outer(a, a)
    left, mass = rho.copy(), 1.0
    for k in np.argsort(-rho)[:n_competitors]:
        share, left[k] = rho[k], 0.0
        remainder = mass - share
        v = np.eye(n_classes)[k] - left / remainder
        found += p_rest * share * remainder / mass * np.outer(v, v)
        mass = remainder
    return found


def dense_step(problem, damping, covariances, intercept=True):
    """``-(H + damping)^-1 gradient`` from the covariances of the logits of each row."""
    X, label, weight, coef, bias = problem
    m, share = len(bias), weight / weight.sum()
    h = np.append(X, np.full((len(X), 1), float(intercept)), axis=1)
    p = probabilities(X, coef, bias)
    error = (p - np.eye(p.shape[1])[label])[:, -m:]
    blocks = np.asarray(covariances)[:, -m:, -m:]
    hessian = np.einsum("n,ni,nj,nab->iajb", share, h, h, blocks)
    size = h.shape[1] * m
    shift = np.full((h.shape[1], m), damping)
    shift[:-1] += ALPHA
    gradient = h.T @ (share[:, None] * error)
    gradient[:-1] += ALPHA * coef.T
    matrix = hessian.reshape(size, size) + np.diag(shift.ravel())
    step = -np.linalg.solve(matrix, gradient.ravel()).reshape(h.shape[1], m)
    return np.append(step[:-1].T, step[-1][:, None], axis=1)


def step_of(model, problem):
    """What one step adds to coefficients and intercepts."""
    X, label, weight, coef, intercept = problem
    model.partial_fit(X, label, np.arange(label.max() + 1), weight)
    model.coef_, model.intercept_ = coef.copy(), intercept.copy()
    model.partial_fit(X, label, sample_weight=weight)
    change = model.coef_ - coef, (model.intercept_ - intercept)[:, None]
    return np.append(*change, axis=1)


def model_of(solver, damping=0.3, **words):
    return FGNSoftmaxHead(solver, alpha=ALPHA, damping=damping, random_state=0, **words)


def assert_same_step(found, expected, rtol=1e-9):
    if len(found) > 1:  # a shift that all classes share means nothing
        found = found - found.mean(axis=0)
        expected = expected - expected.mean(axis=0)
    size = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * size)


@pytest.mark.parametrize(
    ("n_classes", "n_competitors", "damping"),
    [(2, 0, 1e-4), (2, 0, 10.0), (5, 0, 1e-4), (5, 0, 10.0), (5, 2, 0.3), (5, 3, 0.3)],
)
def test_a_step_is_the_dense_damped_step(n_classes, n_competitors, damping):
    problem = X, label, _, *head = data(n_classes)
    rows = zip(probabilities(X, *head), label, strict=True)
    kept = [kept_covariance(p, t, n_competitors) for p, t in rows]
    model = model_of(FGN(), damping, rank=1 + n_competitors)
    assert_same_step(step_of(model, problem), dense_step(problem, damping, kept))


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("solver", [FGN(), SGN(learning_rate=1.0)])
def test_the_highest_rank_gives_the_full_gauss_newton_step(solver, n_classes):
    problem = X, _, _, *head = data(n_classes)
    whole = [np.diag(p) - np.outer(p, p) for p in probabilities(X, *head)]
    model = model_of(solver, rank=200)
    assert_same_step(step_of(model, problem), dense_step(problem, 0.3, whole), 1e-8)


def test_a_step_without_intercept_leaves_the_bias():
    X, label, weight, coef, bias = data(5)
    problem = X, label, weight, coef, 0 * bias
    rows = zip(probabilities(X, coef, 0 * bias), label, strict=True)
    kept = [kept_covariance(p, t, 0) for p, t in rows]
    found = step_of(model_of(FGN(), fit_intercept=False), problem)
    assert (found[:, -1] == 0).all()
    assert_same_step(found, dense_step(problem, 0.3, kept, intercept=False))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_at_margins_of_a_thousand_are_finite(dtype):
    X, label, weight, coef, bias = data(5)
    problem = X, label, weight, 1e3 * coef, 1e3 * bias
    rows = zip(probabilities(X, *problem[3:]), label, strict=True)
    kept = [kept_covariance(p, t, 0) for p, t in rows]
    found = step_of(model_of(FGN(), dtype=dtype), problem)
    rtol = 1e-3 if dtype == "float32" else 1e-9
    assert_same_step(found, dense_step(problem, 0.3, kept), rtol)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_objective_and_gradient_by_automatic_differentiation(n_classes, float64):
    x, label, weight, coef, bias = data(n_classes)
    head, label = AffineHead(coef.T, bias), label.astype(np.int32)
    counted, one = np.where(np.arange(N_ROWS) < N_ROWS - 2, weight, 0), np.int32(1)
    share = counted / counted.sum()
    rows = heads.BatchedRows(x, label, weight, one, one, share)
    found = heads.evaluate(head, rows, np.full((1, 1), ALPHA), np.float64(1))

    def objective(head):
        logits = all_classes(heads.values(head, jnp.asarray(x)))
        log_p = jax.nn.log_softmax(logits, axis=1)[jnp.arange(N_ROWS), label]
        return -share @ log_p + ALPHA / 2 * jnp.sum(head.weight**2)

    value, gradient = jax.jit(jax.value_and_grad(objective))(head)
    assert float(found.loss) == pytest.approx(float(value), rel=1e-11)
    for a, b in zip(found.gradient, gradient, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)
