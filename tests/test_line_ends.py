"""First and last segments of a few rows, whose lines follow the noise."""

import warnings

import numpy as np
import pytest

from sklearn_gn import SegmentedRegressor, ShallowReLURegressor
from sklearn_gn.findings import note_on_ends, rows_at_ends
from sklearn_gn.optim.solver import Rows


def test_rows_are_counted_by_weight_before_and_after_the_breakpoints():
    weight = np.array([0, 1, 1, 2, 2, 4]) / 10
    rows = Rows(np.arange(6.0)[:, None], None, weight)
    outside = [0.5, 9.0]  # the first row has no weight
    assert rows_at_ends(rows, 10, np.array([3.5, 1.5, *outside])) == (1, 6, 10)
    assert rows_at_ends(rows, 10, np.array(outside)) == (10, 10, 10)


@pytest.mark.parametrize(
    ("rows", "start"),
    [
        ((1, 80, 200), "The first segment has only 1 of 200 rows"),
        ((80, 9, 200), "The last segment has only 9 of 200 rows"),
        ((80, 10, 200), ""),
        ((4, 4, 50), "The last segment has only 4 of 50 rows"),
        ((5, 5, 50), ""),
    ],
)
def test_few_rows_are_less_than_ten_and_a_tenth(rows, start):
    note = note_on_ends(*rows)
    assert note.startswith(start)
    assert bool(note) == bool(start)


@pytest.mark.parametrize("model", [ShallowReLURegressor(), SegmentedRegressor()])
def test_an_outlier_at_the_end_of_noisy_data_is_told_from_a_kink(model):
    x = np.linspace(0, 1, 150)
    y = np.abs(x - 0.5) + 0.02 * np.random.RandomState(0).randn(150)
    assert "segment has only" not in str(model.fit(x[:, None], y).diagnose())
    y[-2:] += 0.4, 1.0
    with warnings.catch_warnings():  # SegmentedRegressor warns of the outliers, too
        warnings.simplefilter("ignore", UserWarning)
        text = str(model.fit(x[:, None], y).diagnose())
    assert "The last segment has only" in text
    assert "of 150 rows" in text
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
