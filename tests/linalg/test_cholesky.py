import numpy as np
import pytest

from sklearn_gn.arrays import threads
from sklearn_gn.linalg import factors


def matrix_of(n):
    rows = np.random.RandomState(n).standard_normal((n + 5, n))
    return rows.T @ rows


def roots(matrix, shift, monkeypatch):
    """The factor by one, two and four threads: the same, bit for bit."""
    found = []
    for count in (1, 2, 4):
        monkeypatch.setattr(threads, "share", lambda n=count: n)
        found.append(factors.factor(matrix, shift).root)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    return found[0]


@pytest.mark.parametrize(
    ("n", "panel"), [(1, 8), (32, 8), (33, 8), (50, 8), (1100, factors._PANEL)]
)
@pytest.mark.parametrize("shift", [0.5, 2.5])
def test_factor_in_blocks_is_that_of_numpy(n, panel, shift, monkeypatch):
    monkeypatch.setattr(factors, "_PANEL", panel)
    matrix = matrix_of(n)
    kept = matrix.copy()
    found = roots(matrix, shift, monkeypatch)
    exact = np.linalg.cholesky(matrix + shift * np.eye(n))
    np.testing.assert_allclose(found, exact, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(matrix, kept)
    single = roots(matrix.astype("float32"), shift, monkeypatch)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, exact, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("place", [0, 20, 44])
def test_nan_where_there_is_no_factor(place, monkeypatch):
    monkeypatch.setattr(factors, "_PANEL", 8)
    matrix = matrix_of(45)
    matrix[place, place] = -1.0
    assert np.isnan(roots(matrix, 0.0, monkeypatch)).all()
