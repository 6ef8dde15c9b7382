"""The sum of squares that a search for breakpoints ends at."""

from itertools import combinations, product

import numpy as np
import pytest

from sklearn_gn import SegmentedRegressor


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


def least_sum_of_squares(x, y, k, rows=3):
    """Least sum of squares of k kinks, by enumeration, three rows to each segment.

    A kink is at the row before or after its gap, or where the lines of both sides meet.
    """
    n, best = len(x), np.inf
    gaps = np.array([*combinations(range(rows, n - rows + 1), k)])
    gaps = gaps[np.all(np.diff(gaps, axis=1) >= rows, axis=1)]
    for places in product((-1, 0, "free"), repeat=k):
        free = [j for j, place in enumerate(places) if place == "free"]
        t = x[gaps + [0 if place == "free" else place for place in places]]
        ramps = np.maximum(x[:, None] - t[:, None], 0)
        steps = 1.0 * (np.arange(n)[:, None] >= gaps[:, None, free])
        line = np.broadcast_to(np.column_stack([np.ones(n), x]), (len(t), n, 2))
        A = np.concatenate([line, ramps, steps], axis=2)
        coef = (np.linalg.pinv(A) @ y[:, None])[..., 0]
        meet = t[:, free] - coef[:, 2 + k :] / coef[:, 2:][:, free]
        low, high = x[gaps[:, free] - 1], x[gaps[:, free]]
        inside = np.all((low <= meet) & (meet <= high), axis=1)
        rss = np.sum((y - (A @ coef[..., None])[..., 0]) ** 2, axis=1)
        best = min(best, np.min(rss[inside], initial=np.inf))
    return best


@pytest.mark.parametrize(("k", "n"), [(1, 40), (2, 30), (3, 22)])
def test_up_to_three_kinks_are_at_their_best_of_all_places(k, n):
    rng = np.random.default_rng(k)
    for noise in (0.1, 0.5, 1.0) if k < 3 else (0.5,):
        x = np.sort(rng.uniform(0, 10, n))
        kinks = np.linspace(0, 10, k + 2)[1:-1]
        y = np.maximum(x[:, None] - kinks, 0) @ rng.standard_normal(k)
        y += noise * rng.standard_normal(n)
        model = SegmentedRegressor(k).fit(x[:, None], y)
        assert (model.segments_["n_rows"] >= 3).all()
        best = least_sum_of_squares(x, y, k)
        assert model.statistics_["rss"] == pytest.approx(best, rel=1e-6)


def test_errors_of_many_rows_are_those_of_all_of_them():
    rng, n = np.random.default_rng(0), 70_001
    x, y = np.sort(rng.uniform(size=n)), rng.standard_normal(n)
    known = SegmentedRegressor(0, breakpoints=[0.3, 0.6], autocorrelation=None)
    found = known.fit(x[:, None], y).parameters_
    A = np.column_stack([np.ones(n), x, *np.maximum(x - [[0.3], [0.6]], 0)])
    coef, (rss,), *_ = np.linalg.lstsq(A, y)
    errors = np.sqrt(np.diagonal(np.linalg.inv(A.T @ A)) * rss / (n - 4))
    np.testing.assert_allclose(found["estimate"], coef, rtol=1e-8)
    np.testing.assert_allclose(found["std_error"], errors, rtol=1e-8)


def test_one_kink_of_many_positions_is_at_its_best():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(size=3000))
    y = np.abs(x - 0.37) + 0.3 * rng.standard_normal(3000)
    model = SegmentedRegressor(1).fit(x[:, None], y)
    least = min(
        np.linalg.lstsq(np.c_[np.ones(3000), x, np.maximum(x - t, 0)], y)[1][0]
        for t in x[3:-3:10]
    )
    assert model.statistics_["rss"] <= least


def parabolas(x, t):
    beyond = np.maximum(x[:, None] - t, 0)
    return np.column_stack([np.ones_like(x), x, x**2, beyond, beyond**2])


def lines(x, t):
    return np.column_stack([np.ones_like(x), x, np.maximum(x[:, None] - t, 0)])


# Known places of minima: at a bound or a distance, beside a gap that is closed, and
# between rows where parabolas nearly touch.
@pytest.mark.parametrize(
    ("columns", "k", "settings"),
    [
        (lines, 1, {"bounds": (2.0, 6.5)}),
        (lines, 2, {"bounds": (2.0, 6.5)}),
        (lines, 1, {"min_distance": 1.5}),
        (lines, 2, {"min_distance": 1.5}),
        (lines, 3, {}),
        (parabolas, 1, {}),
        (parabolas, 2, {}),
        (parabolas, 1, {"min_rows": 1}),
    ],
)
def test_no_places_on_a_grid_are_better(columns, k, settings):
    degree = 2 if columns is parabolas else 1
    low, high = settings.get("bounds", (0.0, 10.0))
    apart = settings.get("min_distance", 0.0)
    least = settings.get("min_rows", 2 + degree)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = np.sort(rng.uniform(0, 10, 34))
        y = columns(x, [3.0, 6.0]) @ rng.standard_normal(1 + 3 * degree)
        y += rng.choice([0.3, 3.0]) * rng.standard_normal(34)
        ends = [low, high, x[0] + apart, x[-1] - apart]
        inner = np.concatenate([x, (x[1:] + x[:-1]) / 2, ends])
        grid = np.unique(inner[(inner >= low) & (inner <= high)])
        grid = grid[:: 1 if k < 3 else 2]
        trials = np.array([*combinations(grid, k)])
        ends = np.pad(trials, ((0, 0), (1, 1)), constant_values=x[0])
        ends[:, -1] = x[-1]
        rows = (x >= ends[:, :-1, None]) & (x <= ends[:, 1:, None])
        length = np.diff(ends, axis=1)
        fits = np.all((length > 0) & (length >= apart - 1e-12), axis=1)
        trials = trials[fits & np.all(rows.sum(axis=2) >= least, axis=1)]
        A = np.array([columns(x, t) for t in trials])
        q, _ = np.linalg.qr(A)
        rss = y @ y - np.sum((np.swapaxes(q, 1, 2) @ y) ** 2, axis=1)
        model = SegmentedRegressor(k, degree=degree, **settings).fit(x[:, None], y)
        assert len(model.breakpoints_) == k
        assert model.statistics_["rss"] <= rss.min() * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_level_ends_of_rows_with_ties_are_the_best(seed):
    # The best level segment may be a single position with several rows.
    rng = np.random.default_rng(seed)
    x = np.sort(np.concatenate([rng.integers(0, 20, 42) / 2, [0] * 4, [10] * 4]))
    y = 0.2 * x + 0.5 * rng.standard_normal(50)
    places = np.unique(x)
    places = np.append(places[:-1] + 1e-4, (places[1:] + places[:-1]) / 2)
    places = np.unique(np.concatenate([places, x[x > x[0]] - 1e-4]))
    t = np.array([*combinations(places, 2)])
    rows = [np.sum((x >= low) & (x <= high)) for low, high in t]
    few = np.minimum(rows, [np.sum(x <= low) for low, _ in t])
    t = t[np.minimum(few, [np.sum(x >= high) for _, high in t]) >= 3]
    bent = np.clip(x, t[:, :1], t[:, 1:])
    bent -= bent.mean(axis=1, keepdims=True)
    rss = np.sum((y - y.mean()) ** 2) - (bent @ y) ** 2 / np.sum(bent**2, axis=1)
    model = SegmentedRegressor(2, flat="both").fit(x[:, None], y)
    assert model.statistics_["rss"] <= rss.min() * (1 + 1e-6)


def test_a_column_of_noise_leaves_the_best_jumps():
    rng, n = np.random.default_rng(0), 40
    x, column = np.arange(float(n)), rng.standard_normal(n)
    y = 2 * (x > 12) - 3 * (x > 27) + 0.1 * x + rng.standard_normal(n)
    model = SegmentedRegressor(2, jumps=True).fit(np.column_stack([x, column]), y)
    best = np.inf
    for a, b in combinations(range(4, n - 3), 2):
        if b - a >= 4:
            own = np.array([x < a, (x >= a) & (x < b), x >= b]).T * 1.0
            A = np.column_stack([own, own * x[:, None], column])
            best = min(best, np.linalg.lstsq(A, y)[1][0])
    assert model.statistics_["rss"] == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_columns_of_noise_hardly_change_the_number_of_jumps(seed):
    rng, x = np.random.default_rng(seed), np.arange(208.0)  # four years of weeks
    y = 2 * np.sin(2 * np.pi * x / 52) + 3 * (x > 70) - 2 * (x > 140) + 0.01 * x
    y += 0.5 * rng.standard_normal(208)
    alone = SegmentedRegressor(jumps=True, autocorrelation=None).fit(x[:, None], y)
    X = np.column_stack([x, rng.standard_normal((208, 2))])
    model = SegmentedRegressor(jumps=True, autocorrelation=None).fit(X, y)
    assert len(model.breakpoints_) == len(alone.breakpoints_)
    np.testing.assert_allclose(model.breakpoints_, alone.breakpoints_, atol=3)
