"""Linear solves, line search and damping against numpy and closed forms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

from sklearn_gn.arrays import blocks
from sklearn_gn.linalg import least_squares as solve
from sklearn_gn.linalg.factors import solve_semidefinite
from sklearn_gn.optim import line_search
from sklearn_gn.optim.trust_region import SpectralModel, radius_shift

LIMITS = {
    "rank": np.int32(10**6),
    "rank_tol": np.float64(1e-12),
    "damping": np.float64(0),
}


pytestmark = pytest.mark.usefixtures("float64")


# Compiled, since every operation outside a compiled function is compiled on its own.
@jax.jit
def least_squares(a, b, **limits):
    columns = jnp.concatenate([a, b], axis=1)
    return solve.least_squares(lambda block: block, columns, b.shape[1], **limits)


@partial(jax.jit, static_argnums=(0, 1))
def grid_search(loss, dtype):
    return line_search.grid_search(partial(jax.lax.map, loss), dtype, jnp)


@pytest.fixture(params=["qr", "gram"])
def way(request, monkeypatch):
    """Either way of solving, whatever the size."""
    choose(request.param, monkeypatch)


def choose(way, monkeypatch):
    monkeypatch.setattr(solve, "QR_LIMIT", np.inf if way == "qr" else 0)


def solved(a, b, damping):
    # A function of its own, whose trace sees the limit.
    limits = {"rank": np.int32(10**6), "rank_tol": 1e-12, "damping": damping}
    own = jax.jit(lambda a, b, **limits: least_squares.__wrapped__(a, b, **limits))
    return own(a, b, **limits)


def system(m, p, q=2, seed=0):
    rng = np.random.RandomState(seed)
    return rng.randn(m, p), rng.randn(m, q)


@pytest.mark.parametrize(("m", "p"), [(50, 7), (7, 7), (4, 9), (1, 3)])
@pytest.mark.usefixtures("way")
def test_least_squares_is_the_minimum_norm_solution(m, p):
    a, b = system(m, p)
    x = solved(a, b, 0.0)
    np.testing.assert_allclose(x, np.linalg.lstsq(a, b)[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("damping", [1e-6, 1e-2, 10.0])
@pytest.mark.usefixtures("way")
def test_damping_is_a_shift_of_the_gram_matrix(damping):
    a, b = system(30, 8)
    x = solved(a, b, damping)
    expected = np.linalg.solve(a.T @ a + damping * np.eye(8), a.T @ b)
    np.testing.assert_allclose(x, expected, rtol=1e-9)


@pytest.mark.parametrize("rank", [1, 3, 8, 100])
def test_rank_keeps_the_leading_singular_directions(rank):
    a, b = system(30, 8)
    limits = {**LIMITS, "rank": np.int32(rank)}
    x = least_squares(a, b, **limits)
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    r = min(rank, 8)
    expected = vt[:r].T @ ((u[:, :r].T @ b) / s[:r, None])
    np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-10)


def test_rank_tol_drops_dependent_columns():
    a, b = system(30, 5)
    a = np.c_[a, a[:, :1], np.zeros(30)]
    x = least_squares(a, b, **LIMITS)
    np.testing.assert_allclose(x, np.linalg.lstsq(a, b, rcond=1e-12)[0], atol=1e-10)


def test_refinement_wins_digits_over_the_normal_equations(monkeypatch):
    choose("gram", monkeypatch)
    rng = np.random.RandomState(0)
    u = np.linalg.qr(rng.randn(200, 10))[0]
    v = np.linalg.qr(rng.randn(10, 10))[0]
    a = u * np.logspace(0, -6, 10) @ v.T
    truth = rng.randn(10, 1)
    b = a @ truth
    x = solved(a, b, 0.0)
    plain = np.linalg.solve(a.T @ a, a.T @ b)
    assert np.linalg.norm(x - truth) < 0.1 * np.linalg.norm(plain - truth)


@pytest.mark.parametrize("xp", [np, jnp])
def test_null_directions_of_a_semidefinite_matrix_are_left_out(xp):
    rng = np.random.RandomState(0)
    root, right = rng.normal(size=(3, 5)), rng.normal(size=(5, 2))
    matrix = root.T @ root
    found = solve_semidefinite(xp.asarray(matrix), xp.asarray(right))
    expected = np.linalg.pinv(root) @ np.linalg.pinv(root).T @ right
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("best", [0.3, 1.7, 3.0, 1e-3])
def test_grid_search_comes_near_any_minimum(best):
    gamma = grid_search(lambda g: (g - best) ** 2, jnp.float64)
    assert abs(gamma - best) <= 0.1 * best


def test_grid_search_takes_the_best_of_several_valleys_and_passes_by_nan():
    def loss(gamma):
        valleys = jnp.minimum((gamma - 0.05) ** 2, (gamma - 1.5) ** 2 + 0.1)
        return jnp.where(gamma > 1.9, jnp.nan, valleys)

    assert abs(grid_search(loss, jnp.float64) - 0.05) < 0.01


# --- products ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(23, 5), (4, 9), (7, 3), (0, 2)])
def test_symmetric_product_in_blocks_is_the_product(shape, monkeypatch):
    monkeypatch.setattr(blocks, "_SYMMETRIC_ROWS", 7)
    a = np.random.RandomState(0).standard_normal(shape)
    product = np.asarray(jax.jit(lambda a: blocks.symmetric_product(a))(a))
    np.testing.assert_allclose(product, a @ a.T, atol=1e-11)
    if shape[0] > 7:
        np.testing.assert_array_equal(product[7:, :7], product[:7, 7:].T)


# --- the trust region ----------------------------------------------------------------


@pytest.mark.parametrize("last", [0.0, 1e-17, 1e-3])
def test_shift_of_a_radius_with_a_singular_matrix(last):
    values, slopes = np.array([2.0, 1e-3, 0.0]), np.array([1.0, 0.1, last])
    model = SpectralModel(values, slopes, np.eye(3))
    shift = float(jax.jit(radius_shift)(model, 0.5))

    def excess(shift):
        return np.linalg.norm(slopes / (values + shift)) - 0.5

    assert shift == pytest.approx(brentq(excess, 1e-12, 1e3, xtol=1e-15), rel=1e-5)
