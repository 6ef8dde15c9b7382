"""First and last segments of a few rows, where the number of breakpoints is free."""

import numpy as np
import pandas as pd
import pytest

from sklearn_gn import SegmentedRegressor, fit_groups

N = 60


def points(seed, shift):
    """A noisy constant whose last two rows are shifted."""
    x, y = np.arange(float(N)), np.random.default_rng(seed).normal(size=N)
    y[-2:] += shift
    return x[:, None], y


@pytest.mark.parametrize("settings", [{}, {"jumps": True}, {"degree": 0}])
@pytest.mark.parametrize("n", [12, 20, 60])
def test_noise_alone_has_no_breakpoint(settings, n):
    n_series = 200
    data = pd.DataFrame({"series": np.repeat(np.arange(n_series), n)})
    data["x"] = np.tile(np.arange(float(n)), n_series)
    data["y"] = np.random.default_rng(n).normal(size=len(data))
    table = fit_groups(SegmentedRegressor(**settings), data, group="series", target="y")
    broken = np.sum(table.groupby("series").size() > 1)
    assert broken <= 0.05 * n_series + 2 * np.sqrt(0.05 * n_series)


@pytest.mark.parametrize("kink", [3.3, 2.0, N - 4.6])
def test_a_short_end_without_noise_is_found(kink):
    x = np.arange(float(N))
    model = SegmentedRegressor().fit(x[:, None], np.abs(x - kink))
    np.testing.assert_allclose(model.breakpoints_, [kink], rtol=1e-9)


@pytest.mark.filterwarnings("ignore:Breakpoints follow")
def test_weights_are_repetition():
    x, y = points(0, 20.0)
    weight = np.tile([2, 1, 3], N // 3)
    weighted = SegmentedRegressor().fit(x, y, weight)
    repeated = SegmentedRegressor().fit(np.repeat(x, weight, 0), np.repeat(y, weight))
    assert weighted.breakpoints_[-1] > 56
    # A kink in the last gap is a parameter of the last row, wherever it lies there.
    first, other = weighted.breakpoints_[:-1], repeated.breakpoints_[:-1]
    np.testing.assert_allclose(first, other, atol=1e-4)
    np.testing.assert_allclose(weighted.predict(x), repeated.predict(x), atol=1e-4)
    rss = [model.statistics_["rss"] for model in (weighted, repeated)]
    np.testing.assert_allclose(*rss, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:Breakpoints follow")
def test_series_are_fitted_as_alone():
    shifts = [0.0, 5.0, 20.0, 4.0]
    pairs = [points(seed, shift) for seed, shift in enumerate(shifts)]
    data = pd.concat(
        pd.DataFrame({"series": k, "x": x[:, 0], "y": y})
        for k, (x, y) in enumerate(pairs)
    )
    table = fit_groups(SegmentedRegressor(), data, group="series", target="y")
    for k, (x, y) in enumerate(pairs):
        starts = table.loc[table["series"] == k, "start"].to_numpy()[1:]
        alone = SegmentedRegressor().fit(x, y)
        np.testing.assert_allclose(starts, alone.breakpoints_, rtol=1e-8)
