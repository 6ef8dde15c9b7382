"""Series of ordinary users for SegmentedRegressor, with answers found independently.

The right answers are exhaustive searches in NumPy, known by construction, or figures of
R's package segmented (1.6-2). An expected failure says what goes wrong today.
"""

import re

import numpy as np
import pytest

from sklearn_gn import SegmentedRegressor
from tests.cases.common import fit_with_warnings, squared_residuals


def fit(x, y, **parameters):
    return SegmentedRegressor(**parameters).fit(np.reshape(x, (len(x), -1)), y)


def broken_lines(x, *breakpoints):
    """Design matrices of continuous broken lines; breakpoints may be arrays."""
    kinks = [np.maximum(x - np.asarray(t)[..., None], 0) for t in breakpoints]
    columns = np.broadcast_arrays(np.ones_like(x), x, *kinks)
    return np.stack(columns, axis=-1)


def best_kink(x, y, rows=3):
    """Lowest sum of squares, and position, of a kink with enough rows on both sides.

    Between two neighbouring rows the optimum is where the least-squares lines of both
    sides meet or, if they meet elsewhere, at one of the two rows.
    """
    positions = list(x[rows - 1 : len(x) - rows])
    for i in range(rows, len(x) - rows):
        left, right = np.polyfit(x[:i], y[:i], 1), np.polyfit(x[i:], y[i:], 1)
        meeting = (right[1] - left[1]) / (left[0] - right[0])
        if x[i - 1] <= meeting <= x[i]:
            positions.append(meeting)
    sums = squared_residuals(broken_lines(x, np.array(positions)), y)
    return sums.min(), positions[sums.argmin()]


def best_two_kinks(x, y, rows=4, size=40):
    """Upper bound on the lowest sum of squares of two kinks, by nested grids.

    Every piece has at least the given number of rows.
    """
    x, y = x[np.argsort(x, kind="stable")], y[np.argsort(x, kind="stable")]
    best = np.inf
    centres, width = np.full(2, (x[rows - 1] + x[-rows]) / 2), x[-rows] - x[rows - 1]
    for _ in range(4):
        axes = [np.linspace(c - width / 2, c + width / 2, size) for c in centres]
        first, second = (axis.ravel() for axis in np.meshgrid(*axes))
        between = (x > first[:, None]) & (x < second[:, None])
        room = (between.sum(1) >= rows) & (first >= x[rows - 1]) & (second <= x[-rows])
        first, second = first[room], second[room]
        sums = squared_residuals(broken_lines(x, first, second), y)
        k = sums.argmin()
        best, centres = min(best, sums[k]), np.array([first[k], second[k]])
        width *= 2 / (size - 1)
    return best


def autoregressive(rng, n, rho):
    """Noise of variance 1 and autocorrelation rho."""
    noise = rng.normal(size=1).repeat(n)
    for i in range(1, n):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho**2) * rng.normal()
    return noise


# -- Kinks near an end


def late_rises(n, after, reverse):
    """Twenty level series that rise by 1 a row after the kink; their noise is .1."""
    rng, x = np.random.default_rng(0), np.arange(float(n))
    for _ in range(20):
        y = np.maximum(x - (n - after - 0.5), 0) + rng.normal(0, 0.1, n)
        yield x, y[::-1] if reverse else y


@pytest.mark.parametrize("reverse", [False, True], ids=["last", "first"])
@pytest.mark.parametrize(
    ("n", "after"), [(100, 8), pytest.param(400, 5, marks=pytest.mark.slow)]
)
def test_kink_close_to_an_end(n, after, reverse):
    several, level = 0, 0
    for x, y in late_rises(n, after, reverse):
        model = fit(x, y)
        slope = model.segments_["slope"][0 if reverse else -1]
        several += len(model.breakpoints_) != 1
        level += abs(abs(slope) - 1) >= 0.1
        # Ten standard deviations a row cannot be missed; segmented finds 39 of 40.
        assert several <= 2, several
        assert level <= 2, level


def test_level_outer_segments():
    x = "320 419 650 340 400 800 300 570 720 480 425 460 675 600 850 920 975 1022 450"
    x = np.array([*x.split(), 520, 780], dtype=float)
    y = "4.5 4.3 2.57 4.4 4.52 1.39 4.15 3.55 2.49 4.27 4.42 4.1 2.21 2.9 1.42 1.5 1.45"
    y = np.array([*y.split(), 1.7, 4.6, 3.8, 1.9], dtype=float)  # level, down, level
    model = fit(x, y, flat="both")
    # A grid of steps of .5 has its minimum .6405 at 450 and 800.
    assert len(model.breakpoints_) == 2
    slope = np.clip(x, *model.breakpoints_)
    A = np.column_stack([np.ones_like(x), slope])
    assert squared_residuals(A, y) < 0.6405 * 1.001
    np.testing.assert_allclose(model.breakpoints_, [450, 800], atol=2)


# -- Known errors of measurement: .1 below x = 5 and 1 above; the kink is at 6

MEASURED_X = np.linspace(0, 10, 100)
MEASURED_STD = np.where(MEASURED_X < 5, 0.1, 1.0)
MEASURED_Y = """
-.063 .018 -.084 .16 .033 -.082 .049 .074 .058 -.031 .151 .039 -.062 -.221 .112 -.004
-.002 .094 .082 .059 .092 .078 .007 -.199 .062 -.006 -.016 -.147 -.048 .042 .136 -.01
.039 -.005 -.138 -.041 -.039 -.006 .11 .076 -.016 -.025 .07 .056 -.069 -.071 .036 .077
-.011 .088 .398 -.612 .341 -1.129 1.433 1.98 -.367 -1.044 .57 -.135 2.462 .122 .952 .392
-.279 .754 -1.138 2.233 1.022 3.142 1.546 .462 1.883 .44 .221 1.867 1.233 1.779 1.953
1.39 1.512 2.047 3.461 .86 3.079 2.919 3.75 2.484 3.259 3.257 2.548 4.4 4.453 4.094
5.082 4.154 2.42 3.225 2.674 3.527
"""
MEASURED_Y = np.array(MEASURED_Y.split(), dtype=float)
# lm with weights 1 / std^2, then segmented: the same whatever the unit of the weights.
MEASURED_KINK, MEASURED_KINK_STD = 5.758, 0.294


@pytest.mark.parametrize("factor", [1.0, 1000.0, 1e-3])
def test_measurement_errors(factor):
    model = SegmentedRegressor().fit(
        MEASURED_X[:, None], MEASURED_Y, y_std=MEASURED_STD * factor
    )
    assert len(model.breakpoints_) == 1
    assert abs(model.breakpoints_[0] - MEASURED_KINK) < 0.02
    assert 0.7 < model.breakpoint_std_[0] / MEASURED_KINK_STD < 1.3


def test_weights_far_above_the_rows_are_mentioned():
    model, messages = fit_with_warnings(
        SegmentedRegressor(),
        MEASURED_X[:, None],
        MEASURED_Y,
        sample_weight=MEASURED_STD**-2,
    )
    if "weight" not in messages.lower():
        assert len(model.breakpoints_) == 1
        assert 0.7 < model.breakpoint_std_[0] / MEASURED_KINK_STD < 1.3


# -- Correlated noise


def monthly(seed, n=200):
    """One change of slope at 6, noise of autocorrelation .6."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 10, n))
    return x, 0.5 * x + np.maximum(x - 6, 0) + 0.5 * autoregressive(rng, n, 0.6)


@pytest.mark.slow
def test_number_of_breakpoints_in_correlated_noise():
    number = [len(fit(*monthly(seed)).breakpoints_) for seed in range(20)]
    assert number.count(1) >= 16, number


@pytest.mark.slow
def test_intervals_of_breakpoints_in_correlated_noise():
    intervals = [
        fit(*monthly(seed), n_breakpoints=1).breakpoint_interval_[0]
        for seed in range(40)
    ]
    held = sum(low <= 6 <= high for low, high in intervals)
    assert held >= 34, held  # of intervals of 95 %


@pytest.mark.slow
def test_correlated_residuals_are_mentioned():
    for seed in range(4):
        y = autoregressive(np.random.default_rng(seed), 300, 0.9)
        model, messages = fit_with_warnings(
            SegmentedRegressor(), np.arange(300.0)[:, None], y
        )
        assert len(model.breakpoints_) <= 2 or "correlat" in messages


# -- Optima


@pytest.mark.slow
def test_one_breakpoint_is_the_optimum():
    rng, missed, series = np.random.default_rng(200), [], 0
    while series < 40:
        x, kink = np.sort(rng.uniform(0, 10, 200)), rng.uniform(2, 8)
        clean = 0.5 * x + np.maximum(x - kink, 0)
        y = clean + rng.normal(0, 3 if series % 2 else 1, 200)
        lowest, position = best_kink(x, y)
        if not x[9] < position < x[-10]:
            continue  # ends have rules of their own
        series += 1
        found = fit(x, y, n_breakpoints=1).breakpoints_[0]
        if squared_residuals(broken_lines(x, found), y) > lowest * (1 + 1e-6):
            missed.append((position, found))
    assert not missed


# The 28 rows that R's package names "stagnant": two bends of a decreasing curve.
STAGNANT_X = """
-.8 .01 -.25 -.25 -.12 -.12 -.94 .11 .11 -.63 -.63 -1.39 -1.39 .7 .7 .34 1.19 .59 .85
.85 .99 .99 .25 -1.08 -1.08 .44 .34 .25
"""
STAGNANT_Y = """
.9 .51 .65 .67 .6 .59 .92 .43 .43 .81 .83 1.12 1.12 -.13 -.14 .25 -.65 -.01 -.3 -.33
-.46 -.43 .33 .99 1.03 .13 .24 .3
"""


def series_in_pairs(seed):
    """Rows in pairs on a curve that bends twice."""
    rng = np.random.default_rng(seed)
    x = np.repeat(np.round(rng.uniform(-1.4, 1.2, 15), 2), 2)[:28]
    clean = -0.5 * x - 0.3 * np.maximum(x + 0.1, 0) - 0.3 * np.maximum(x - 0.4, 0)
    return x, clean + rng.normal(0, 0.02, 28)


@pytest.mark.slow
def test_two_breakpoints_are_the_optimum():
    stagnant = [np.array(text.split(), float) for text in (STAGNANT_X, STAGNANT_Y)]
    missed = []
    for x, y in [stagnant, *map(series_in_pairs, range(10))]:
        found = fit(x, y, n_breakpoints=2).breakpoints_
        excess = squared_residuals(broken_lines(x, *found), y) / best_two_kinks(x, y)
        if excess > 1 + 1e-6:
            missed.append(excess)
    assert not missed


@pytest.mark.parametrize(
    ("n", "most"),
    [
        (20, 0.15),
        (50, 0.08),
    ],
)
def test_no_jumps_in_white_noise(n, most):
    rng, x = np.random.default_rng(n), np.arange(float(n))
    series = rng.normal(size=(50, n))
    broken = [len(fit(x, y, jumps=True).breakpoints_) > 0 for y in series]
    assert np.mean(broken) <= most


# -- What the user is told


def test_summary_of_seconds_since_1970():
    hours = np.arange(200)
    x = 1.6e9 + hours * 3600.0
    noise = np.random.default_rng(0).normal(0, 0.5, 200)
    model = fit(x, np.maximum(hours - 90.5, 0) * 0.2 + noise)
    text = str(model.summary()).replace(",", "")
    numbers = re.findall(r"-?\d+\.?\d*(?:e[+-]?\d+)?", text)
    printed = np.array(numbers, dtype=float)
    low, high = model.breakpoint_interval_[0]
    # A number may be printed as its distance from another one.
    readings = printed + np.append(printed, 0)[:, None]
    for value in (low, model.breakpoints_[0], high):
        assert np.abs(readings - value).min() <= 0.1 * (high - low)


@pytest.mark.parametrize(
    ("rows", "shifts"),
    [((0, 99), (8, 8)), ((0, 1, 99), (8, 8, 8)), ((20, 50, 51), (8, -6, -6))],
)
@pytest.mark.repeats
def test_outliers(rows, shifts):
    x = np.linspace(0, 10, 100)
    for seed in range(5):
        y = np.maximum(x - 6, 0) + np.random.default_rng(seed).normal(0, 0.2, 100)
        y[list(rows)] += shifts
        model, messages = fit_with_warnings(SegmentedRegressor(), x[:, None], y)
        if not re.search("outlier|huber|residual", messages, re.IGNORECASE):
            assert len(model.breakpoints_) == 1
            assert abs(model.breakpoints_[0] - 6) < 0.3


@pytest.mark.slow
def test_limit_of_the_number_of_breakpoints_is_mentioned():
    x = np.arange(340.0)
    zigzag = np.interp(x, np.arange(0, 341, 20), np.arange(18) % 2 * 5.0)
    y = zigzag + np.random.default_rng(0).normal(0, 0.3, 340)
    model, messages = fit_with_warnings(SegmentedRegressor(), x[:, None], y)
    assert len(model.breakpoints_) == 16 or "max_breakpoints" in messages


# -- Further kinds of input


def test_two_broken_features():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (300, 2))
    clean = np.maximum(X[:, 0] - 4, 0) + 2 * np.maximum(X[:, 1] - 6, 0)
    y = clean + rng.normal(0, 0.3, 300)
    model = fit(X, y, broken_features=[0, 1])
    s, t = np.meshgrid(np.arange(3.8, 4.2, 0.01), np.arange(5.9, 6.1, 0.01))
    A = np.concatenate(
        [broken_lines(X[:, 0], s), broken_lines(X[:, 1], t)[..., 1:]], axis=-1
    )
    best = np.unravel_index(squared_residuals(A, y).argmin(), s.shape)
    found = np.concatenate([np.ravel(t) for t in model.breakpoints_])  # as the features
    np.testing.assert_allclose(found, [s[best], t[best]], atol=0.012)


def test_slopes_of_one_sign():
    rng, x = np.random.default_rng(4), np.linspace(0, 10, 80)
    clean = np.maximum(x - 5, 0) - 0.15 * np.minimum(x, 5)
    y = clean + rng.normal(0, 0.5, 80)
    model = fit(x, y, n_breakpoints=1, slopes=(0, None))
    assert (model.segments_["slope"] >= -1e-9).all()
    # At the optimum each slope is free or zero.
    best = np.sum((y - y.mean()) ** 2)
    for t in np.linspace(1, 9, 1601):
        rises = np.column_stack([np.minimum(x, t), np.maximum(x - t, 0)])
        for free in ([0], [1], [0, 1]):
            A = np.column_stack([np.ones_like(x), rises[:, free]])
            c = np.linalg.lstsq(A, y, rcond=None)[0]
            if (c[1:] >= 0).all():
                best = min(best, np.sum((y - A @ c) ** 2))
    assert np.sum((y - model.predict(x[:, None])) ** 2) <= best * 1.001


def test_through_a_point():
    rng, x = np.random.default_rng(3), np.linspace(0, 10, 80)
    y = 0.3 + x - 0.7 * np.maximum(x - 4, 0) + rng.normal(0, 0.3, 80)
    model = fit(x, y, n_breakpoints=1, through=(0.0, 0.0))
    positions = np.linspace(1, 9, 8001)
    sums = squared_residuals(broken_lines(x, positions)[..., 1:], y)
    assert abs(model.predict([[0.0]])[0]) < 1e-9
    assert abs(model.breakpoints_[0] - positions[sums.argmin()]) < 0.01


def poisson_log_likelihood(A, y):
    """Maximum over the coefficients, but for a constant, by Newton's method."""
    c = np.array([np.log(y.mean()), 0.0, 0.0])
    for _ in range(30):
        mean = np.exp(A @ c)
        c += np.linalg.solve((A.T * mean) @ A, A.T @ (y - mean))
    return y @ (A @ c) - np.exp(A @ c).sum()


@pytest.mark.slow
def test_poisson_counts():
    rng, x = np.random.default_rng(0), np.arange(60.0)
    clean = np.exp(2 + 0.03 * x - 0.06 * np.maximum(x - 35, 0))
    y = rng.poisson(clean).astype(float)
    model = fit(x, y, n_breakpoints=1, family="poisson")
    positions = np.linspace(3, 56, 2121)
    heights = [poisson_log_likelihood(A, y) for A in broken_lines(x, positions)]
    assert abs(model.breakpoints_[0] - positions[np.argmax(heights)]) < 0.1
