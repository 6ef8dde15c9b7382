"""The sum of squares that a search for breakpoints ends at."""

import numpy as np
import pytest

from sklearn_gn import SegmentedRegressor
from sklearn_gn.segmented import least_squares


@pytest.mark.parametrize("seed", [5, 11, 17, 24])
def test_a_minimum_in_a_row_is_reached(seed):
    # The sum of squares has corners at the rows, and these minima lie there.
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(size=150))
    y = 4 * np.maximum(x - 0.5, 0) + 0.3 * rng.standard_normal(150)

    def rss(t):
        columns = np.c_[np.ones(150), x, np.maximum(x - t, 0)]
        return np.linalg.lstsq(columns, y, rcond=None)[1][0]

    model = SegmentedRegressor(1).fit(x[:, None], y)
    assert model.statistics_["rss"] <= min(map(rss, x[3:-3])) * (1 + 1e-9)


def test_triangular_factors_of_long_matrices_have_their_normal_matrices():
    matrix = np.random.default_rng(0).standard_normal((2, 9001, 3))
    factor = least_squares._triangle(matrix)
    assert factor.shape == (2, 3, 3)
    normal = np.swapaxes(matrix, 1, 2) @ matrix
    np.testing.assert_allclose(
        np.swapaxes(factor, 1, 2) @ factor, normal, rtol=1e-10, atol=1e-9
    )
