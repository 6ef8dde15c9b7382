import numpy as np
import pytest

from sklearn_gn.arrays import threads
from sklearn_gn.linalg import factors


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
    monkeypatch.setattr(factors, "_PANEL", 8)


@pytest.mark.parametrize(
    ("n", "panel"), [(1, 8), (32, 8), (33, 8), (50, 8), (1100, factors._PANEL)]
)
@pytest.mark.parametrize("shift", [0.5, 2.5])
def test_factor_in_blocks_is_that_of_numpy(n_threads, n, panel, shift, monkeypatch):
    monkeypatch.setattr(factors, "_PANEL", panel)
    matrix = matrix_of(n)
    kept = matrix.copy()
    found = factors.factor(matrix, shift).root
    exact = np.linalg.cholesky(matrix + shift * np.eye(n))
    np.testing.assert_allclose(found, exact, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(matrix, kept)
    single = factors.factor(matrix.astype("float32"), shift).root
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, exact, rtol=0.01, atol=1e-3)


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
