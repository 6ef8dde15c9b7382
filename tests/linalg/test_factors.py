"""Factors against dense algebra, in NumPy and compiled by JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import linalg

from sklearn_gn.linalg import factors, low_rank
from sklearn_gn.linalg.krylov import column_dot, conjugate_gradient, tridiagonal

pytestmark = pytest.mark.usefixtures("float64")


def positive(n, seed=0):
    rows = np.random.RandomState(seed).standard_normal((n + 3, n))
    return rows.T @ rows


@pytest.fixture(params=["numpy", "jax"])
def run(request):
    """Call a function of arrays in one library or the other."""
    return (lambda f, *arrays: f(*arrays)) if request.param == "numpy" else _compiled


def _compiled(function, *arrays):
    return jax.tree.map(np.asarray, jax.jit(function)(*map(jnp.asarray, arrays)))


@pytest.mark.parametrize("n", [1, 5, 70, 150])
def test_a_factor_solves_and_inverts(run, n):
    matrix, right = positive(n), np.random.RandomState(1).standard_normal((n, 3))
    shift = np.linspace(0.5, 2, n)

    def all_of_it(matrix, shift, right):
        found = factors.factor(matrix, shift)
        return (
            found.log_det,
            found.solve(right),
            found.variances(right),
            found.inverse(),
        )

    kept = matrix.copy()
    log_det, solved, variances, inverse = run(all_of_it, matrix, shift, right)
    np.testing.assert_array_equal(matrix, kept)
    exact = matrix + np.diag(shift)
    assert_allclose(log_det, np.linalg.slogdet(exact)[1], rtol=1e-10)
    assert_allclose(solved, np.linalg.solve(exact, right), rtol=1e-8)
    assert_allclose(variances, np.sum(right * solved, axis=0), rtol=1e-8)
    assert_allclose(inverse, np.linalg.inv(exact), rtol=1e-8, atol=1e-12)


def test_without_a_factor_all_is_nan(run):
    matrix = np.diag([1.0, -1.0, 2.0])

    def all_of_it(matrix):
        found = factors.factor(matrix)
        return found.log_det, found.solve(matrix[0]), found.inverse()

    for array in run(all_of_it, matrix):
        assert np.isnan(array).all()
    diagonal, log_det = run(factors.determined, matrix, np.float64(1), np.zeros(3))
    assert np.isnan(diagonal).all()
    assert np.isnan(log_det)


def test_the_floor_is_raised_until_there_is_a_factor(run):
    matrix = np.diag([1.0, 3.0, -1e-14])
    found = run(factors.factor_with_floor, matrix, np.float64(1e-15))
    assert_allclose(found.root[2, 2] ** 2, 1.6e-14 - 1e-14, rtol=1e-6)


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
def test_eigenpairs_of_rows(shape):
    rows = np.random.RandomState(0).standard_normal(shape)
    values, vectors = factors.eigenpairs_of_rows(rows)
    assert len(values) == 4
    assert_allclose(values[::-1], linalg.svdvals(rows) ** 2, rtol=1e-10)
    assert_allclose((vectors * values) @ vectors.T, rows.T @ rows, atol=1e-10)


def test_singular_systems_and_others(run):
    matrix, right = positive(4)[:, :2], np.arange(4.0)
    found = run(factors.least_norm_solution, matrix, right)
    assert_allclose(found, linalg.lstsq(matrix, right)[0], rtol=1e-8)
    upper = run(lambda a: factors.upper_factor(a, 2 * a), matrix)
    assert_allclose(upper.T @ upper, 5 * matrix.T @ matrix, rtol=1e-10)
    stack = np.stack([positive(3), positive(3, seed=1)])
    solved = run(factors.solve_general, stack, np.ones((2, 3, 1)))
    assert_allclose(stack @ solved, np.ones((2, 3, 1)), rtol=1e-10)
    assert np.isnan(factors.solve_general(np.zeros((2, 2)), np.ones(2))).all()


@pytest.mark.parametrize("last", [2.0, 0.0])
def test_inverse_roots_of_a_stack(last):
    diagonal = np.array([[2.0, 3.0, 2.5], [1.0, 4.0, last]])
    beside = np.array([[0.5, -1.0], [0.2, 0.0]])
    dense = np.stack(
        [
            np.diag(d) + np.diag(b, 1) + np.diag(b, -1)
            for d, b in zip(diagonal, beside, strict=True)
        ]
    )
    roots = factors.inverse_roots(dense)
    if last == 0:  # the second is singular
        assert np.isnan(roots).all()
        dense = dense[:1]
        roots = factors.inverse_roots(dense)
    assert_allclose(np.swapaxes(roots, 1, 2) @ roots, np.linalg.inv(dense), atol=1e-10)


def test_what_is_not_finite_gives_nan_of_the_same_shape():
    matrix = np.full((2, 3, 3), np.nan)
    for function in (
        factors.eigenpairs,
        factors.singular_triplets,
        factors.singular_values,
    ):
        found, exact = function(matrix), function(np.stack([np.eye(3)] * 2))
        for one, other in zip(found, exact, strict=True):
            assert one.shape == other.shape
            assert np.isnan(one).all()
    assert np.isnan(factors.spectrum(matrix[0])).all()
    assert np.isnan(factors.least_norm_solution(matrix[0], np.ones(3))).all()


@pytest.mark.parametrize("xp", [np, jnp])
def test_nystrom_of_a_matrix_of_low_rank_is_exact(xp):
    rows = np.random.RandomState(0).standard_normal((3, 8))
    matrix = rows.T @ rows
    found = low_rank.nystrom(xp.asarray(matrix[:, :5]), np.arange(5))
    values, vectors = map(np.asarray, found)
    approximation = (vectors * values) @ vectors.T
    assert_allclose(approximation, matrix, atol=1e-9)


def test_low_rank_solves_and_samples():
    rng = np.random.RandomState(0)
    diagonal, part = rng.uniform(1, 2, 9), rng.standard_normal((9, 3))
    matrix = np.diag(diagonal) + part @ part.T
    found = low_rank.LowRank.of(diagonal, part)
    right = rng.standard_normal((9, 2))
    assert_allclose(found.solve(right), np.linalg.solve(matrix, right), rtol=1e-10)
    assert_allclose(found.log_det, np.linalg.slogdet(matrix)[1], rtol=1e-10)
    draws = found.sample(200_000, np.random.default_rng(0))
    assert_allclose(np.cov(draws), matrix, atol=0.05)


def test_conjugate_gradients_of_columns_are_those_of_each():
    matrix, right = positive(12), np.random.RandomState(1).standard_normal((12, 3))
    right[:, 1] = 0  # solved from the beginning
    steps = []
    x, *_ = conjugate_gradient(
        lambda v: matrix @ v,
        right,
        tol=1e-10,
        max_iter=60,
        dot=column_dot,
        record=steps.append,
    )
    assert_allclose(x, np.linalg.solve(matrix, right), rtol=1e-6, atol=1e-12)
    lengths, ratios = np.transpose(steps, (1, 0, 2))
    # Lanczos: the tridiagonal matrix has the moments of the right side.
    diagonal, beside = tridiagonal(lengths[:, 0], ratios[:, 0])
    small = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    unit = right[:, 0] / np.linalg.norm(right[:, 0])
    for power in (1, 2, 3):
        moment = unit @ np.linalg.matrix_power(matrix, power) @ unit
        found = np.linalg.matrix_power(small, power)[0, 0]
        assert found == pytest.approx(moment, rel=1e-8)
