"""The split softmax curvature and the steps built on it, against dense algebra."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from sklearn_gn.optim import fgn as core_fgn
from sklearn_gn.optim import multinomial
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.softmax_head import fgn, minibatch
from sklearn_gn.softmax_head import head as heads
from sklearn_gn.softmax_head.head import AffineHead

N_ROWS, N_FEATURES = 12, 3


pytestmark = pytest.mark.usefixtures("float64")


def retained_part(split):
    """``p_true p_rest a a^T`` of each example, of shape (n, C, C)."""
    a = split.gradient
    return (split.p_true * split.p_rest)[:, None, None] * a[:, :, None] * a[:, None, :]


def dropped_part(split):
    """``p_rest (diag(rho) - rho rho^T)`` of each example, of shape (n, C, C)."""
    rho = split.rho
    eye = jnp.eye(rho.shape[1], dtype=rho.dtype)
    covariance = rho[:, :, None] * eye[None] - rho[:, :, None] * rho[:, None, :]
    return split.p_rest[:, None, None] * covariance


# Compiled, since every operation outside a compiled function is compiled on its own.
dropped_part, margins, retained_part, traces, with_reference = map(
    jax.jit,
    (
        dropped_part,
        multinomial.margins,
        retained_part,
        heads.traces,
        all_classes,
    ),
)
competitor_directions = jax.jit(fgn.competitor_directions, static_argnums=1)


def draw_logits(n_classes, scale=2.0):
    rng = np.random.RandomState(n_classes)
    logits = scale * rng.randn(N_ROWS, n_classes)
    return logits, rng.randint(n_classes, size=N_ROWS).astype(np.int32)


def softmax_covariance(logits):
    p = softmax(logits, axis=1)
    return p[:, :, None] * np.eye(p.shape[1]) - p[:, :, None] * p[:, None, :]


# --- identities ----------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 7])
def test_covariance_is_kept_plus_dropped(n_classes):
    logits, label = draw_logits(n_classes)
    split = margins(logits, label)
    whole = retained_part(split) + dropped_part(split)
    np.testing.assert_allclose(whole, softmax_covariance(logits), atol=1e-12, rtol=0)
    for part in (retained_part(split), dropped_part(split)):
        assert np.linalg.eigvalsh(part).min() > -1e-10


def test_nothing_is_dropped_with_two_classes():
    logits, label = draw_logits(2)
    split = margins(logits, label)
    assert np.abs(dropped_part(split)).max() == 0


def test_traces_are_those_of_the_parts():
    logits, label = draw_logits(7)
    split = margins(logits, label)
    xi, retained, dropped = traces(split)
    for trace, part in [
        (retained, retained_part(split)),
        (dropped, dropped_part(split)),
    ]:
        np.testing.assert_allclose(trace, np.trace(part, axis1=1, axis2=2), atol=1e-12)
    p = split.p_true, split.p_rest
    full = 2 * p[0] * p[1] + p[1] ** 2 * xi
    np.testing.assert_allclose(retained + dropped, full, rtol=1e-12)


@pytest.mark.parametrize("rank", [0, 1, 3, 5])
def test_competitor_directions_leave_a_positive_remainder(rank):
    logits, label = draw_logits(7)
    split = margins(logits, label)
    weight, v = competitor_directions(split, rank)
    part = np.einsum("nr,nri,nrj->nij", weight, v, v)
    rest = dropped_part(split) - part
    assert np.linalg.eigvalsh(rest).min() > -1e-10
    if rank == 5:  # C - 2
        assert np.abs(rest).max() < 1e-10


# --- steps ---------------------------------------------------------------------------


def problem(n_classes, seed=0):
    rng = np.random.RandomState(seed)
    m = 1 if n_classes == 2 else n_classes
    head = AffineHead(rng.randn(N_FEATURES, m), rng.randn(m))
    x = rng.randn(N_ROWS, N_FEATURES)
    label = rng.randint(n_classes, size=N_ROWS).astype(np.int32)
    return head, x, label, 0.5 + rng.rand(N_ROWS)


def settings(alpha=0.1, damping=0.3, intercept=1.0, dtype=np.float64):
    scalars = (dtype(v) for v in (alpha, damping, intercept, 1.0))
    return minibatch.StepSettings(*scalars)


def dense_step(problem, settings, covariance):
    """Damped step from the dense curvature, with a given covariance of the logits."""
    head, x, label, weight = problem
    m = head.bias.shape[0]
    h = np.concatenate([x, np.ones((N_ROWS, 1))], axis=1)
    values = x @ head.weight + head.bias[None]
    logits = values if m > 1 else np.concatenate([0 * values, values], axis=1)
    p = softmax(logits, axis=1)
    error = (p - np.eye(p.shape[1])[label])[:, -m:]
    covariance = np.asarray(covariance)[:, -m:, -m:]
    share = weight / weight.sum()
    hessian = np.einsum("n,ni,nj,nab->iajb", share, h, h, covariance)
    size = h.shape[1] * m
    shift = np.full((h.shape[1], m), float(settings.damping))
    shift[:-1] += float(settings.alpha)
    gradient = h.T @ (share[:, None] * error)
    gradient[:-1] += float(settings.alpha) * head.weight
    matrix = hessian.reshape(size, size) + np.diag(shift.ravel())
    step = -np.linalg.solve(matrix, gradient.ravel()).reshape(h.shape[1], m)
    return AffineHead(step[:-1], step[-1])


def assert_same_step(found, expected, rtol):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())


def split_of(problem):
    head, x, label, _ = problem
    values = x @ head.weight + head.bias[None]
    return margins(with_reference(values), label)


@partial(jax.jit, static_argnums=(2, 3))
def row_space_step(problem, settings, n_competitors=0, cg_iterations=0):
    head, x, label, weight = problem
    shifts = minibatch.shifts(settings)
    return fgn.fgn_direction(
        head,
        minibatch.Batch(x, label, weight, None),
        x @ x.T / shifts[0] + settings.intercept / shifts[1],
        settings.alpha.reshape(1, 1),
        shifts,
        settings.intercept,
        n_competitors,
        cg_iterations,
    )


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("damping", [1e-4, 0.3, 10.0])
def test_row_space_step_is_the_dense_damped_step(n_classes, damping):
    given = problem(n_classes)
    chosen = settings(damping=damping)
    expected = dense_step(given, chosen, retained_part(split_of(given)))
    assert_same_step(row_space_step(given, chosen), expected, 1e-10)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_full_rank_gives_the_full_gauss_newton_step(n_classes):
    given, chosen = problem(n_classes), settings()
    whole = retained_part(split_of(given)) + dropped_part(split_of(given))
    expected = dense_step(given, chosen, whole)
    assert_same_step(row_space_step(given, chosen, n_classes - 2), expected, 1e-10)


def test_a_number_between_keeps_the_leading_directions():
    given, chosen = problem(5), settings()
    split = split_of(given)
    weight, v = competitor_directions(split, 2)
    part = retained_part(split) + np.einsum("nr,nri,nrj->nij", weight, v, v)
    expected = dense_step(given, chosen, part)
    assert_same_step(row_space_step(given, chosen, 2), expected, 1e-10)


def test_step_without_intercept_leaves_the_bias():
    head, *rest = problem(5)
    head = head._replace(bias=0 * head.bias)
    found = row_space_step((head, *rest), settings(intercept=0.0))
    assert (np.asarray(found.bias) == 0).all()

    @jax.jit
    def with_held_bias(head, x, label, weight):  # by an infinite damping
        split = split_of((head, x, label, weight))
        gram = x @ x.T / 0.4 * (split.gradient @ split.gradient.T)
        root, slope, a = fgn.curvature_rows(split, weight, 0)
        pull = 0.1 / 0.4 * jnp.sum(a * (x @ head.weight), axis=1)
        y = core_fgn.solve_rows(gram, root, slope - root**2 * pull, jnp.sum(weight), 0)
        return -(0.1 * head.weight + x.T @ (y[:, None] * a)) / 0.4

    expected = with_held_bias(head, *rest)
    np.testing.assert_allclose(found.weight, expected, rtol=1e-9)


def test_conjugate_gradients_reach_the_direct_step():
    given, chosen = problem(5), settings(damping=1.0)
    direct = row_space_step(given, chosen)
    assert_same_step(row_space_step(given, chosen, 0, 60), direct, 1e-4)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_sgn_step_is_the_dense_gauss_newton_step(n_classes):
    given, chosen = problem(n_classes), settings()

    @jax.jit
    def direction(head, x, label, weight):
        batch = minibatch.Batch(x, label, weight, None)
        start = minibatch.sgn_start(head)
        return minibatch.sgn_direction(head, batch, chosen, start, 200)

    found = direction(*given)
    logits = np.asarray(with_reference(given[1] @ given[0].weight + given[0].bias))
    assert_same_step(
        found, dense_step(given, chosen, softmax_covariance(logits)), 1e-10
    )


@pytest.mark.parametrize("n_classes", [2, 5])
def test_objective_and_gradient_by_automatic_differentiation(n_classes):
    head, x, label, weight = problem(n_classes)
    rows = heads.BatchedRows(x, label, weight, np.int32(N_ROWS - 2), np.int32(1))
    found = heads.evaluate(head, rows, np.full((1, 1), 0.1), np.float64(1))

    def objective(head):
        counted = slice(0, N_ROWS - 2)
        logits = all_classes(heads.values(head, jnp.asarray(x)))
        log_p = jax.nn.log_softmax(logits, axis=1)[jnp.arange(N_ROWS), label]
        share = jnp.asarray(weight[counted] / weight[counted].sum())
        return -share @ log_p[counted] + 0.05 * jnp.sum(head.weight**2)

    value, gradient = jax.jit(jax.value_and_grad(objective))(head)
    assert float(found.loss) == pytest.approx(float(value), rel=1e-11)
    for a, b in zip(found.gradient, gradient, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cg_iterations", [0, 5])
def test_steps_at_margins_of_a_thousand_are_finite(dtype, cg_iterations):
    given = problem(5)
    head = AffineHead(*(1e3 * p for p in given[0]))
    cast = partial(jax.tree.map, lambda a: jnp.asarray(a, dtype))
    x, label, weight = cast(given[1]), jnp.asarray(given[2]), cast(given[3])
    step = row_space_step(
        (cast(head), x, label, weight), settings(dtype=dtype), 0, cg_iterations
    )
    expected = dense_step(
        (head, *given[1:]),
        settings(),
        retained_part(split_of((head, *given[1:]))),
    )
    rtol = 1e-3 if dtype == np.float32 else 1e-9
    assert_same_step(step, expected, rtol)
