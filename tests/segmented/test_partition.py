"""Partitions into lines of their own are the best, and start networks without noise."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sklearn_gn import SegmentedRegressor, ShallowReLURegressor


def rest_of(x, y, weight, ends, degree):
    """Weighted sum of squares about the lines or constants between positions."""
    rest = 0.0
    for i, j in pairwise(ends):
        root = np.sqrt(weight[i:j])
        A = root[:, None] * np.vander(x[i:j], degree + 1)
        b = root * y[i:j]
        rest += np.sum((b - A @ np.linalg.lstsq(A, b)[0]) ** 2)
    return rest


@pytest.mark.parametrize("degree", [0, 1])
def test_best_partitions_are_those_of_all_subsets(degree):
    rng = np.random.default_rng(0)
    x, y = np.sort(rng.uniform(-1, 1, 18)), rng.standard_normal(18)
    weight = rng.integers(1, 4, 18).astype(float)
    model = SegmentedRegressor(3, degree=degree, jumps=True, min_rows=1)
    model.fit(x[:, None], y, sample_weight=weight)
    for k, found in enumerate(model.selection_path_["rss"][:4]):
        least = min(
            rest_of(x, y, weight, (0, *ends, 18), degree)
            for ends in combinations(range(1, 18), k)
            if np.diff((0, *ends, 18)).min() > degree
        )
        scale = model.statistics_["rss"] / model.selection_path_["rss"][3]
        assert_allclose(found * scale, least, rtol=1e-9)
    ends = np.searchsorted(x, model.breakpoints_)
    assert_allclose(rest_of(x, y, weight, (0, *ends, 18), degree), least, rtol=1e-9)


def test_limits_are_kept():
    x = np.linspace(-1, 1, 40)
    limits = {"min_rows": 5, "min_distance": 0.4, "bounds": (-0.5, 0.5)}
    y = np.random.default_rng(2).standard_normal(40)
    for k in (1, 2):
        model = SegmentedRegressor(k, degree=0, **limits).fit(x[:, None], y)
        t = model.breakpoints_
        assert len(t) == k
        assert np.diff([-1, *t, 1]).min() >= 0.4 * (1 - 1e-9)
        assert np.abs(t).max() <= 0.5
        assert model.segments_["n_rows"].min() >= 5
    with pytest.warns(UserWarning, match="no room for more"):
        model = SegmentedRegressor(4, degree=0, **limits).fit(x[:, None], y)
    assert len(model.breakpoints_) < 4


@pytest.mark.parametrize("targets", [1, 2])
def test_network_goes_through_jumps_and_kinks_without_noise(targets):
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(-5, 7, 1200))
    at = np.sort(rng.choice(np.arange(30, 1170, 20), 20, replace=False))
    segment = np.searchsorted(at, np.arange(1200), side="right")
    y = rng.standard_normal((21, targets))[segment]
    y += np.abs(x - 1.3)[:, None]
    model = ShallowReLURegressor(n_neurons=42, random_state=0).fit(x[:, None], y)
    residual = model.predict(x[:, None]).reshape(y.shape) - y
    assert np.sum(residual**2) < 1e-20 * np.sum((y - y.mean(axis=0)) ** 2)
