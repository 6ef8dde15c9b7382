"""First and last segments of a few rows, whose lines follow the noise."""

import re
import warnings

import numpy as np
import pytest

from sklearn_gn import SegmentedRegressor, ShallowReLURegressor


@pytest.mark.parametrize("model", [ShallowReLURegressor(), SegmentedRegressor()])
def test_an_outlier_at_the_end_of_noisy_data_is_told_from_a_kink(model):
    x = np.linspace(0, 1, 150)
    y = np.abs(x - 0.5) + 0.02 * np.random.RandomState(0).randn(150)
    assert "segment has only" not in str(model.fit(x[:, None], y).diagnose())
    y[-2:] += 0.4, 1.0
    with warnings.catch_warnings():  # SegmentedRegressor warns of the outliers, too
        warnings.simplefilter("ignore", UserWarning)
        text = str(model.fit(x[:, None], y).diagnose())
        twice = str(model.fit(x[:, None], y, np.full(150, 2.0)).diagnose())
    assert re.search(r"The last segment has only \d of 150 rows", text)
    assert re.search(r"The last segment has only \d of 300 rows", twice)
    assert "min_rows=10" in text
    exact = np.maximum(x - x[-4], 0)
    assert "segment has only" not in str(model.fit(x[:, None], exact).diagnose())


def test_a_given_breakpoint_and_given_min_rows_are_meant():
    x = np.linspace(0, 1, 150)
    y = np.abs(x - 0.5) + 0.02 * np.random.RandomState(0).randn(150)
    y[-2:] += 0.4, 1.0
    known = SegmentedRegressor(1, breakpoints=[x[-3]]).fit(x[:, None], y)
    assert "segment has only" not in str(known.diagnose())
    with pytest.warns(UserWarning, match="may be outliers"):
        few = SegmentedRegressor(min_rows=2).fit(x[:, None], y)
    assert "segment has only" not in str(few.diagnose())
