"""First and last segments of a few rows, where the number of breakpoints is free."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from sklearn_gn import SegmentedRegressor, fit_groups

N = 60
FIRST, LAST = 9, N - 10  # positions that leave ten rows at the ends


def points(seed, shift, n_shifted=2):
    """A noisy constant whose last rows are shifted."""
    x, y = np.arange(float(N)), np.random.default_rng(seed).normal(size=N)
    y[N - n_shifted :] += shift
    return x[:, None], y


@pytest.mark.parametrize(
    ("seed", "criterion"), [(0, "bic"), (1, "bic"), (0, "bic-ar1"), (1, "cv")]
)
def test_a_few_rows_at_an_end_need_to_explain_two_thirds(seed, criterion):
    x, y = points(seed, 5.0)
    model = SegmentedRegressor(criterion=criterion, max_breakpoints=3)
    free = clone(model).set_params(min_rows=3).fit(x, y)
    bounded = clone(model).set_params(bounds=(FIRST, LAST)).fit(x, y)
    model.fit(x, y)
    assert free.breakpoints_[-1] > LAST
    np.testing.assert_allclose(model.breakpoints_, bounded.breakpoints_, rtol=1e-8)
    np.testing.assert_allclose(
        model.selection_path_[criterion],
        bounded.selection_path_[criterion],
        rtol=1e-8,
    )


@pytest.mark.parametrize("shift", [20.0, 1e3])
def test_an_end_that_explains_more_stays(shift):
    x, y = points(0, shift)
    model = SegmentedRegressor().fit(x, y)
    free = SegmentedRegressor(min_rows=3).fit(x, y)
    assert free.breakpoints_[-1] > LAST
    np.testing.assert_allclose(model.breakpoints_, free.breakpoints_, rtol=1e-8)


@pytest.mark.parametrize("kink", [3.3, 2.0, N - 4.6])
def test_a_short_end_without_noise_is_found(kink):
    x = np.arange(float(N))
    model = SegmentedRegressor().fit(x[:, None], np.abs(x - kink))
    np.testing.assert_allclose(model.breakpoints_, [kink], rtol=1e-9)


def test_a_given_number_or_given_limits_decide():
    x, y = points(0, 5.0)
    for words in ({"n_breakpoints": 1}, {"bounds": (0, N)}, {"min_rows": 3}):
        assert SegmentedRegressor(**words).fit(x, y).breakpoints_[-1] > LAST


def test_weights_are_repetition():
    x, y = points(0, 4.0)
    weight = np.tile([2, 1, 3], N // 3)
    weighted = SegmentedRegressor().fit(x, y, weight)
    repeated = SegmentedRegressor().fit(np.repeat(x, weight, 0), np.repeat(y, weight))
    assert SegmentedRegressor(min_rows=3).fit(x, y, weight).breakpoints_[-1] > 56
    np.testing.assert_allclose(
        weighted.breakpoints_, repeated.breakpoints_, rtol=1e-8, atol=1e-8
    )
    np.testing.assert_allclose(
        weighted.predict(x), repeated.predict(x), rtol=1e-8, atol=1e-8
    )


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


@pytest.mark.parametrize("seed", [63, 138])
def test_a_robust_loss_keeps_the_ends_that_the_search_has_found(seed):
    """Steps that clip the residuals by turns moved breakpoints on to the first rows."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 10, N))
    y = np.maximum(x - 6, 0) + 0.5 * rng.standard_t(3, N)
    y[:4] += rng.choice([0, 1.5]) * np.array([1, 0.8, 0.6, 0.3])
    model = SegmentedRegressor(loss="huber").fit(x[:, None], y)
    assert len(model.breakpoints_) > 0
    assert model.breakpoints_.min() > x[FIRST] - 1e-9
    assert model.breakpoints_.max() < x[LAST] + 1e-9
