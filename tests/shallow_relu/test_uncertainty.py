"""Standard errors against curve_fit and dense formulas, and the choice of a size."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import norm
from sklearn.base import clone

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.solvers import JointGN, SgGN

KINKS = np.array([0.2, 0.45, 0.7])
BENDS = np.array([-4.0, 6.0, -5.0])
START = np.c_[-np.r_[-1, KINKS], np.ones(4)]
# One size for all data with one feature: at most 256 rows, four segments.
LOCAL = JointGN(relocations=0)
MODEL = ShallowReLURegressor(4, init=START, solver=LOCAL, random_state=0, alpha=0.0)


def broken_line(n=200, noise=0.1, seed=4):
    rng = np.random.RandomState(seed)
    x = np.sort(rng.uniform(0, 1, n))
    y = x + np.maximum(x[:, None] - KINKS, 0) @ BENDS
    return x, y + noise * rng.randn(n)


def design(x, t):
    return np.c_[np.ones(len(x)), x, np.maximum(x[:, None] - t, 0)]


def curve_fit_of(model, x, y, weight=None):
    """Parameters c_0, s, c_1 .. c_3, t_1 .. t_3 of a broken line and their errors."""

    def function(x, *p):
        return design(x, np.array(p[5:])) @ p[:5]

    def jacobian(x, *p):
        behind = (x[:, None] > p[5:]).astype(float)
        return np.c_[design(x, np.array(p[5:])), -behind * p[2:5]]

    t = model.breakpoints_[-3:]
    coef, *_ = np.linalg.lstsq(design(x, t), y)
    sigma = None if weight is None else 1 / np.sqrt(weight)
    p, covariance = curve_fit(
        function, x, y, p0=np.r_[coef, t], jac=jacobian, sigma=sigma, xtol=1e-15
    )
    return p, np.sqrt(np.diag(covariance))


@pytest.fixture(scope="module")
def fitted():
    x, y = broken_line()
    return x, y, clone(MODEL).fit(x[:, None], y)


# -- breakpoints ----------------------------------------------------------------------


def test_standard_errors_of_breakpoints_equal_curve_fit(fitted):
    x, y, model = fitted
    p, std = curve_fit_of(model, x, y)
    assert len(model.breakpoints_) == 4
    np.testing.assert_allclose(model.breakpoints_[1:], p[5:], atol=1e-7)
    np.testing.assert_allclose(model.breakpoint_std_[1:], std[5:], rtol=1e-6)


def test_descent_ends_where_curve_fit_does_not_lower_the_loss():
    for seed in (0, 3, 5, 9, 10, 14, 25, 28, 31, 32):
        x, y = broken_line(seed=seed)
        model = clone(MODEL).fit(x[:, None], y)
        p, _ = curve_fit_of(model, x, y)
        best = np.sum((design(x, p[5:]) @ p[:5] - y) ** 2) / 400
        assert model.loss_ <= best * (1 + 1e-8), seed


def test_standard_errors_take_weights_for_repetitions(fitted):
    x, y, _ = fitted
    times = np.random.RandomState(1).randint(1, 4, 200)
    weighted = clone(MODEL).fit(x[:, None], y, sample_weight=times)
    repeated = clone(MODEL).fit(np.repeat(x, times)[:, None], np.repeat(y, times))
    _, std = curve_fit_of(weighted, np.repeat(x, times), np.repeat(y, times))
    for model in (weighted, repeated):
        np.testing.assert_allclose(model.breakpoint_std_[1:], std[5:], rtol=1e-6)
    inside = np.linspace(0, 1, 50)[:, None]
    np.testing.assert_allclose(
        weighted.predict(inside, return_std=True)[1],
        repeated.predict(inside, return_std=True)[1],
        rtol=1e-7,
    )


@pytest.mark.parametrize("weight", [0.25, 1.0, 3.0])
def test_standard_errors_count_rows_by_their_weights(fitted, weight):
    x, y, model = fitted
    X, n = x[:, None], 200
    weighted = clone(MODEL).fit(X, y, sample_weight=np.full(n, weight))
    # Eight parameters: the variance is |residual|^2 / (N (N - 8)) times the same.
    ratio = np.sqrt((n - 8) / (weight * n - 8))
    for name in ("breakpoint_std_", "predict"):
        one, other = getattr(model, name), getattr(weighted, name)
        if name == "predict":
            one, other = one(X, return_std=True)[1], other(X, return_std=True)[1]
        np.testing.assert_allclose(other[1:], ratio * one[1:], rtol=1e-6)
    # Rows given twice with half the weight are the same data.
    halves = np.full(2 * n, weight / 2)
    twice = clone(MODEL).fit(np.r_[X, X], np.r_[y, y], sample_weight=halves)
    np.testing.assert_allclose(
        twice.predict(X, return_std=True)[1],
        weighted.predict(X, return_std=True)[1],
        rtol=1e-7,
    )


def test_standard_errors_of_huge_targets_are_numbers(fitted):
    x, y, model = fitted
    huge = clone(MODEL).fit(x[:, None], 2.0**660 * y)
    expected = model.predict(x[:, None], return_std=True)[1]
    found = huge.predict(x[:, None], return_std=True)[1]
    np.testing.assert_allclose(found, 2.0**660 * expected, rtol=1e-9)


def test_standard_errors_have_the_units_of_their_breakpoints(fitted):
    x, y, model = fitted
    start = np.c_[-1e4 * np.r_[-1, KINKS] - 3e5, np.ones(4)]
    moved = clone(MODEL).set_params(init=start).fit((1e4 * x + 3e5)[:, None], 1e-3 * y)
    std = model.breakpoint_std_[1:]
    np.testing.assert_allclose(moved.breakpoint_std_[1:], 1e4 * std, rtol=1e-6)
    np.testing.assert_allclose(
        moved.predict((1e4 * x + 3e5)[:, None], return_std=True)[1],
        1e-3 * model.predict(x[:, None], return_std=True)[1],
        rtol=1e-6,
    )


@pytest.mark.parametrize("q", [1, 2, 3])
def test_standard_errors_of_shared_breakpoints_equal_the_dense_formula(q):
    rng = np.random.RandomState(q)
    x, weight = np.sort(rng.uniform(0, 1, 200)), rng.uniform(0.5, 2, 200)
    bends = rng.uniform(2, 3, (3, q)) * np.array([[-1], [1], [-1]])
    y = np.maximum(x[:, None] - KINKS, 0) @ bends + 0.02 * rng.randn(200, q)
    model = clone(MODEL).fit(x[:, None], y, sample_weight=weight)
    t, root = model.breakpoints_[1:], np.sqrt(weight)[:, None]
    coef, *_ = np.linalg.lstsq(root * design(x, t), root * y)
    behind = (x[:, None] >= t).astype(float)
    jacobian = np.concatenate(
        [
            root * np.c_[np.kron(np.eye(q)[k], design(x, t)), -behind * coef[2:, k]]
            for k in range(q)
        ]
    )
    error = root * (design(x, t) @ coef - y)
    variance = np.sum(error**2) / (q * weight.sum() - jacobian.shape[1])
    expected = np.sqrt(variance * np.diag(np.linalg.inv(jacobian.T @ jacobian)))[-3:]
    np.testing.assert_allclose(model.breakpoint_std_[1:], expected, rtol=1e-5)


def test_breakpoints_without_a_standard_error(fitted):
    *_, model = fitted
    assert np.isnan(model.breakpoint_std_[0])  # left of the data
    assert model.breakpoints_[0] < 0
    x = np.linspace(0, 1, 200)
    y = np.abs(x - 0.25) + np.where(x > 0.6, 2.0, 0.0)
    y = y + 0.01 * np.random.RandomState(0).randn(200)
    start = np.c_[-np.r_[-1, 0.3, 0.599, 0.602], np.ones(4)]
    model = clone(MODEL).set_params(init=start).fit(x[:, None], y)
    left, kink, *jump = model.breakpoint_std_
    assert np.isnan(left)
    assert 0 < kink < 0.01
    assert np.all(np.isinf(jump))  # nothing lies between the two


@pytest.mark.slow
def test_neurons_that_point_left_have_the_standard_errors_of_their_breakpoints():
    x, y = broken_line()
    # The slope of the first segment comes from the right end of the data.
    start = np.array([[1.5, -1], *np.c_[-KINKS, np.ones(3)]])
    model = ShallowReLURegressor(
        4, solver=SgGN(relocations=0), init=start, random_state=0, tol=1e-14, alpha=0.0
    ).fit(x[:, None], y)
    assert model.hyperplanes_[:, 1].min() == pytest.approx(-1)
    inside = (model.breakpoints_ > 0) & (model.breakpoints_ < 1)
    assert inside.sum() == 3
    t = model.breakpoints_[inside]
    coef, *_ = np.linalg.lstsq(design(x, t), y)
    jacobian = np.c_[design(x, t), np.where(x[:, None] > t, -coef[2:], 0)]
    error = design(x, t) @ coef - y
    covariance = error @ error / (200 - 8) * np.linalg.inv(jacobian.T @ jacobian)
    np.testing.assert_allclose(
        model.breakpoint_std_[inside], np.sqrt(np.diag(covariance))[5:], rtol=1e-6
    )


# -- predictions ----------------------------------------------------------------------


def test_standard_errors_of_predictions_are_those_of_independent_lines(fitted):
    x, y, model = fitted
    error = model.predict(x[:, None]) - y
    variance = error @ error / (200 - 8)
    bounds = [-np.inf, *model.breakpoints_[1:], np.inf]
    for low, high in pairwise(bounds):
        mine = x[(x > low) & (x < high)]
        points = np.linspace(max(low, x[0]) + 1e-6, min(high, x[-1]) - 1e-6, 9)
        expected = variance * (
            1 / len(mine)
            + (points - mine.mean()) ** 2 / np.sum((mine - mine.mean()) ** 2)
        )
        _, std = model.predict(points[:, None], return_std=True)
        np.testing.assert_allclose(std, np.sqrt(expected), rtol=1e-7)


def test_deviation_equals_the_dense_delta_method():
    rng = np.random.RandomState(0)
    X, points = rng.uniform(-1, 1, (200, 2)), rng.uniform(-1.5, 1.5, (30, 2))
    planes = np.array([[0.1, 1.0, 0.3], [0.2, -0.4, 1.0], [0.0, -1.0, -1.0]])
    kinks = np.maximum(X @ planes[:, 1:].T + planes[:, 0], 0)
    y = kinks @ rng.uniform(1, 2, (3, 2)) + 0.1 * rng.randn(200, 2)
    model = ShallowReLURegressor(3, init=planes, solver=LOCAL, alpha=0.0).fit(X, y)
    b, w = model.hyperplanes_[:, 0], model.hyperplanes_[:, 1:]

    def jacobian(z):
        """Derivatives of both targets in (c_0, c, r), of shape (2, len(z), 17)."""
        z1 = np.c_[np.ones(len(z)), z]
        features = np.c_[z1[:, :1], np.maximum(z @ w.T + b, 0)]
        on = (z @ w.T + b > 0).astype(float)
        hidden = [(on * c)[:, :, None] * z1[:, None, :] for c in model.output_coef_]
        return np.array(
            [
                np.c_[np.kron(one, features), own.reshape(len(z), -1)]
                for one, own in zip(np.eye(2), hidden, strict=True)
            ]
        )

    whole = np.concatenate(jacobian(X))
    _, s, vt = np.linalg.svd(whole, full_matrices=False)
    root = vt[s > 1e-9 * s[0]].T / s[s > 1e-9 * s[0]]
    assert root.shape[1] == 2 * 4 + 6  # the length of (b, w) is no parameter
    error = model.predict(X) - y
    noise = np.sum(error**2, axis=0) * 2 / (2 * 200 - root.shape[1])
    expected = np.sqrt(noise[:, None] * np.sum((jacobian(points) @ root) ** 2, axis=2))
    _, std = model.predict(points, return_std=True)
    np.testing.assert_allclose(std, expected.T, rtol=1e-7)


# -- the number of neurons ------------------------------------------------------------


def criterion_of(name, loss, p, n):
    if name == "gcv":
        return loss / (1 - p / n) ** 2
    return n * np.log(loss) + p * {"bic": np.log(n), "aic": 2.0}[name]


def assert_criterion(path, name, n):
    """The formula, up to what all sizes share: the unit of the loss."""
    p = path["n_parameters"]
    possible = p < n
    expected = criterion_of(name, path["loss"][possible], p[possible], n)
    found = path[name][possible]
    unit = found / expected if name == "gcv" else found - expected
    np.testing.assert_allclose(unit, unit[0], rtol=1e-9)
    assert np.all(np.isinf(path[name][~possible]))
    assert np.ptp(found) > 0


@pytest.mark.parametrize("name", ["bic", "aic", "gcv"])
def test_selection_path_holds_the_criterion(name):
    x, y = broken_line()
    times = np.random.RandomState(0).randint(1, 3, 200)
    model = ShallowReLURegressor(criterion=name, random_state=0)
    path = model.fit(x[:, None], y, sample_weight=times).selection_path_
    assert_criterion(path, name, times.sum())
    sizes, parameters = path["n_neurons"], path["n_parameters"]
    total = path[name] + path.get("search_penalty", 0)
    assert sizes[0] == 1
    assert np.all(np.diff(sizes) > 0)
    # c_0, a slope and a breakpoint each, but that the first slope needs no breakpoint.
    np.testing.assert_array_equal(parameters, 2 * sizes)
    assert len(model.breakpoints_) == sizes[np.argmin(total)] >= 4
    assert model.loss_ == pytest.approx(path["loss"][np.argmin(total)], rel=1e-4)


@pytest.mark.parametrize("segments", [1, 2, 3, 5, 8])
def test_bic_recovers_the_number_of_segments(segments):
    rng = np.random.RandomState(segments)
    x = np.sort(np.r_[0, rng.uniform(0, 1, 198), 1])
    kinks = np.arange(1, segments) / segments
    y = np.maximum(x[:, None] - kinks, 0) @ (40.0 * (-1) ** np.arange(segments - 1))
    y = y + 3 * x + 0.1 * rng.randn(200)
    model = ShallowReLURegressor(random_state=0).fit(x[:, None], y)
    np.testing.assert_allclose(model.breakpoints_[1:], kinks, atol=0.02)
    assert model.selection_path_["n_neurons"][-1] > segments  # it looked further


def test_auto_fits_the_best_size():
    x, y = broken_line()
    auto = ShallowReLURegressor("auto", solver=LOCAL, random_state=0, alpha=0.0)
    model = clone(auto).fit(1e3 * x[:, None], 0.1 * y)
    path = model.selection_path_
    assert_criterion(path, "bic", 200)
    likelihood = norm.logpdf(0, 0, np.sqrt(2 * path["loss"])) - 0.5  # of a row
    expected = np.log(200) * path["n_parameters"] - 2 * 200 * likelihood
    np.testing.assert_allclose(path["bic"], expected, rtol=1e-9)
    names = {"n_neurons", "loss", "n_parameters", "bic", "search_penalty"}
    assert set(path) == names
    assert path["n_neurons"][np.argmin(path["bic"])] == 4
    np.testing.assert_allclose(model.breakpoints_[1:], 1e3 * KINKS, atol=25)
    assert model.loss_ == pytest.approx(path["loss"][3], rel=1e-4)
    assert model.loss_ <= path["loss"][3] * (1 + 1e-9)
    error = model.predict(1e3 * x[:, None]) - 0.1 * y
    assert model.loss_ == pytest.approx(np.mean(error**2) / 2)
    model.set_params(n_neurons=4).fit(x[:, None], y)
    assert not hasattr(model, "selection_path_")


SMALL = {"slope": 1e-6, "coef": 1e-6, "bias": 1e-6, "weights": [1e-6]}


def test_given_penalties_of_one_feature_have_breakpoints_too():
    x, y = broken_line()
    model = ShallowReLURegressor(3, alpha=SMALL, init=START[1:]).fit(x[:, None], y)
    values, errors = curve_fit_of(model, x, y)
    np.testing.assert_allclose(model.breakpoints_, values[5:], atol=1e-3)
    np.testing.assert_allclose(model.breakpoint_std_, errors[5:], rtol=0.05)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"alpha": 0.0, "n_neurons": 2},
        {"alpha": SMALL, "n_neurons": 2},
        {"loss": "huber", "n_neurons": 2},
    ],
)
def test_summary_of_one_feature_shows_its_lines(parameters):
    x = np.linspace(0, 10, 100)
    y = np.maximum(x - 4, 0) - 0.5 * x
    y = y + np.random.default_rng(0).normal(0, 0.2, 100)
    model = ShallowReLURegressor(random_state=0, **parameters).fit(x[:, None], y)
    tables = model.summary().tables
    lines = tables["Segments"]
    at = np.searchsorted(model.breakpoints_, x)
    value = lines["intercept"][at] + lines["slope"][at] * x
    np.testing.assert_allclose(value, model.predict(x[:, None]), atol=1e-10)
    assert len(tables["Breakpoints"]["position"]) == len(model.breakpoints_)
    assert "Breakpoints" in str(model.summary())
    with pytest.raises(ValueError, match=r"one target\. diagnose\(\) and Rel"):
        ShallowReLURegressor(1).fit(x[:, None], np.c_[y, y]).summary()
