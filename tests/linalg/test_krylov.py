"""Krylov methods against dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn.linalg import krylov

pytestmark = pytest.mark.usefixtures("float64")


def conjugate_gradient(product, right, start=None, **words):
    """Compiled, since every operation elsewhere is compiled on its own."""

    def solve(right, start):
        return krylov.conjugate_gradient(product, right, start=start, **words)

    return jax.jit(solve)(right, start)


def test_conjugate_gradients_solve_and_count():
    rng = np.random.RandomState(0)
    a = rng.randn(6, 6)
    matrix = jnp.asarray(a @ a.T + np.eye(6))
    right = jnp.asarray(rng.randn(6))
    expected = np.linalg.solve(matrix, right)
    x, count, residual = conjugate_gradient(
        lambda v: matrix @ v, right, tol=jnp.float64(1e-11), max_iter=50
    )
    np.testing.assert_allclose(x, expected, rtol=1e-8)
    assert float(residual) <= 1e-11
    inverse = jnp.asarray(np.linalg.inv(matrix))
    _, one, _ = conjugate_gradient(
        lambda v: matrix @ v,
        right,
        precondition=lambda r: inverse @ r,
        tol=jnp.float64(1e-8),
        max_iter=50,
    )
    assert int(one) == 1
    _, none, _ = conjugate_gradient(
        lambda v: matrix @ v,
        right,
        start=jnp.asarray(expected),
        tol=jnp.float64(1e-8),
        max_iter=50,
    )
    assert int(none) == 0 < int(count) <= 8


def test_basis_spans_the_krylov_space_of_the_scaled_matrix():
    rng = np.random.RandomState(0)
    a = rng.randn(7, 7)
    matrix, right = a @ a.T, rng.randn(7)
    diagonal = matrix.diagonal()
    basis = krylov.krylov_basis(lambda v: matrix @ v, diagonal, right, 4)
    np.testing.assert_allclose(basis.T @ basis, np.eye(4), atol=1e-10)
    power = right / diagonal
    for _ in range(4):
        outside = power - basis @ (basis.T @ power)
        assert np.linalg.norm(outside) < 1e-10 * np.linalg.norm(power)
        power = matrix @ power / diagonal
