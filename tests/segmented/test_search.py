"""The sum of squares that a search for breakpoints ends at."""

import numpy as np
import pytest

from sklearn_gn import SegmentedRegressor


@pytest.mark.parametrize("seed", range(8))
def test_a_minimum_in_a_row_is_reached(seed):
    # The sum of squares has corners at the rows, and some minima lie there.
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(size=60))
    y = np.maximum(x - 0.5, 0) + 0.1 * rng.standard_normal(60)

    def rss(t):
        columns = np.c_[np.ones(60), x, np.maximum(x - t, 0)]
        return np.linalg.lstsq(columns, y, rcond=None)[1][0]

    lowest = min(map(rss, [*x[3:-3], *np.linspace(x[3], x[-4], 500)]))
    model = SegmentedRegressor(1).fit(x[:, None], y)
    assert model.statistics_["rss"] <= lowest * (1 + 1e-9)
