"""Partitions into lines of their own are the best, and start networks without noise."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.segmented import partition


def segments_of(x, y, weight, slope, **limits):
    terms = np.stack([weight, weight * x, weight * x**2, weight * y, weight * x * y])
    sums = np.zeros((5, len(x) + 1))
    np.cumsum(terms, axis=1, out=sums[:, 1:])
    return partition.Segments(x, sums, slope, **limits)


def rest_of(x, y, weight, ends, slope):
    """Weighted sum of squares about the lines or constants between positions."""
    rest = 0.0
    for i, j in pairwise(ends):
        root = np.sqrt(weight[i:j])
        A = root[:, None] * np.stack([np.ones(j - i), x[i:j]][: 1 + slope], axis=1)
        b = root * y[i:j]
        rest += np.sum((b - A @ np.linalg.lstsq(A, b)[0]) ** 2)
    return rest


@pytest.mark.parametrize("slope", [False, True])
def test_best_partitions_are_those_of_all_subsets(slope):
    rng = np.random.default_rng(0)
    x, y = np.sort(rng.uniform(-1, 1, 18)), rng.standard_normal(18)
    weight = rng.integers(1, 4, 18).astype(float)
    segments = segments_of(x, y, weight, slope)
    explained, paths = partition.best_partitions(segments, 3)
    total = weight @ y**2
    for k in range(4):
        least = min(
            rest_of(x, y, weight, (0, *ends, 18), slope)
            for ends in combinations(range(1, 18), k)
            if np.diff((0, *ends, 18)).min() > slope
        )
        assert_allclose(total - explained[k], least, rtol=1e-9)
        assert_allclose(rest_of(x, y, weight, paths[k], slope), least, rtol=1e-9)


@pytest.mark.parametrize("slope", [False, True])
def test_few_places_are_enough_for_many_jumps(slope, monkeypatch):
    rng = np.random.default_rng(1)
    n, at = 2001, 50 + 60 * np.arange(30) + rng.integers(0, 40, 30)
    x, segment = np.linspace(-1, 1, n), np.searchsorted(at, np.arange(n), side="right")
    y = rng.standard_normal(31)[segment] + slope * rng.uniform(-9, 9, 31)[segment] * x
    monkeypatch.setattr(partition, "EVEN_PLACES", 100)
    _, paths = partition.best_partitions(segments_of(x, y, np.ones(n), slope), 30)
    assert paths[30] == [0, *at, n]


def test_limits_are_kept():
    x = np.linspace(-1, 1, 40)
    limits = {"min_rows": 5, "min_distance": 0.4, "bounds": (-0.5, 0.5)}
    y = np.random.default_rng(2).standard_normal(40)
    segments = segments_of(x, y, np.ones(40), False, **limits)
    explained, paths = partition.best_partitions(segments, 5)
    for path in paths[:3]:
        t = segments.t[path]
        assert np.diff(t).min() >= 0.4 * (1 - 1e-9)
        assert np.diff(path).min() >= 5
        assert np.all(np.abs(t[1:-1]) <= 0.5)
    assert np.all(np.isneginf(explained[4:]))


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
