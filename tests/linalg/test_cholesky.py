import numpy as np
import pytest

from sklearn_gn.arrays import threads
from sklearn_gn.linalg import cholesky, factors


def matrix_of(n):
    rows = np.random.RandomState(n).standard_normal((n + 5, n))
    return rows.T @ rows


@pytest.fixture(params=[1, 2])
def n_threads(monkeypatch, request):
    count = request.param
    monkeypatch.setattr(threads, "share", lambda: count)
    return count


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(cholesky, "LEAST", 1)
    monkeypatch.setattr(cholesky, "_WIDTH", 8)
    monkeypatch.setattr(cholesky, "_ROWS", 16)


@pytest.mark.parametrize("n", [1, 8, 9, 24, 50])
@pytest.mark.parametrize("shift", [0.0, 2.5])
def test_factor_in_blocks_is_that_of_numpy(small_blocks, n_threads, n, shift):
    matrix = matrix_of(n)
    kept = matrix.copy()
    found = factors.factor(matrix, shift).root
    exact = np.linalg.cholesky(matrix + shift * np.eye(n))
    np.testing.assert_allclose(found, exact, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(matrix, kept)


def test_factor_of_a_large_matrix(n_threads):
    matrix = matrix_of(1100)
    found = factors.factor(matrix, 1.0).root
    exact = np.linalg.cholesky(matrix + np.eye(1100))
    np.testing.assert_allclose(found, exact, rtol=1e-8, atol=1e-10)


def test_factor_does_not_depend_on_the_number_of_threads(small_blocks, monkeypatch):
    matrix, found = matrix_of(45), []
    for count in 1, 2, 4:
        monkeypatch.setattr(threads, "share", lambda n=count: n)
        found.append(factors.factor(matrix, 0.1).root)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("place", [0, 20, 44])
def test_nan_where_there_is_no_factor(small_blocks, n_threads, place):
    matrix = matrix_of(45)
    matrix[place, place] = -1.0
    assert np.isnan(factors.factor(matrix).root).all()


def test_single_precision(small_blocks):
    matrix = matrix_of(30).astype("float32")
    found = factors.factor(matrix, 1.0).root
    assert found.dtype == np.float32
    exact = np.linalg.cholesky(matrix + np.eye(30, dtype="float32"))
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-4)
