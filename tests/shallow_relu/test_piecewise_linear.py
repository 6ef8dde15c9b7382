"""ShallowReLURegressor with one feature: exact recovery, hard data, weights."""

import pickle

import numpy as np
import pytest
from scipy.optimize import least_squares
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.solvers import JointGN

SMALL = ShallowReLURegressor(
    6, solver=JointGN(relocations=8), random_state=0, alpha=0.0
)


def kinked(n=32, n_kinks=5, seed=0, q=None):
    """A function of level start with random kinks, two rows or more between them."""
    rng = np.random.RandomState(seed)
    x = np.linspace(0, 1, n)
    room = np.arange(n_kinks + 1) * (n - 1) / (n_kinks + 1)
    kinks = (room[1:] + rng.uniform(-1, 1, n_kinks)) / (n - 1)
    bend = rng.choice([-1, 1], (n_kinks, q or 1)) * rng.uniform(
        3, 10, (n_kinks, q or 1)
    )
    slope = rng.uniform(-3, 3, q or 1)
    y = slope * x[:, None] + np.maximum(x[:, None] - kinks, 0) @ bend
    return x, y if q else y[:, 0], kinks


def noisy(n=32, seed=0, q=None):
    rng = np.random.RandomState(seed)
    x = np.sort(rng.uniform(-3, 5, n))
    y = np.abs(x[:, None] - np.arange(q or 1)) + 0.3 * rng.randn(n, q or 1)
    return x[:, None], y if q else y[:, 0]


def mean_square(model, X, y, weight=None):
    error = (model.predict(X) - y).reshape(len(X), -1)
    return np.average(np.sum(error**2, axis=1), weights=weight)


# -- exact recovery -------------------------------------------------------------------


def test_recovers_ten_pieces_of_a_step_function():
    """The step problem of the SgGN paper: every step takes two breakpoints."""
    x = (np.arange(1000) + 0.5) / 1000
    y = np.array([3.0, -1, 2, 0, 4, -2, 1, 5, -3, 2])[(10 * x).astype(int)]
    model = ShallowReLURegressor(30, random_state=0, alpha=0.0).fit(x[:, None], y)
    assert model.loss_ < 1e-20
    np.testing.assert_allclose(model.predict(x[:, None]), y, atol=1e-9)
    edges = np.arange(1, 10) / 10
    # Both ends of the gap that a step is in.
    found = np.abs(model.breakpoints_[:, None] - edges).min(axis=0)
    np.testing.assert_allclose(found, 0, atol=5.01e-4)


@pytest.mark.parametrize("seed", range(6))
def test_recovers_random_functions_with_five_kinks(seed):
    x, y, kinks = kinked(seed=seed)
    model = clone(SMALL).set_params(solver__relocations=30).fit(x[:, None], y)
    assert model.loss_ < 1e-20
    inside = model.breakpoints_[model.breakpoints_ > 0]
    np.testing.assert_allclose(inside, kinks, atol=1e-9)
    grid = np.linspace(-0.5, 1.5, 501)
    slope = (y[1] - y[0]) / (x[1] - x[0])
    # The bends from the data alone, by least squares.
    design = np.c_[np.ones(32), x, np.maximum(x[:, None] - kinks, 0)]
    coef, *_ = np.linalg.lstsq(design, y)
    assert coef[1] == pytest.approx(slope)
    expected = np.c_[np.ones(501), grid, np.maximum(grid[:, None] - kinks, 0)] @ coef
    np.testing.assert_allclose(model.predict(grid[:, None]), expected, atol=1e-8)


def test_constant_targets_need_no_neurons():
    x, y = np.arange(40.0)[:, None], np.ones((40, 2)) * [1, 2]
    model = ShallowReLURegressor("auto", alpha=0.0).fit(x, y)
    np.testing.assert_allclose(model.predict(x), y)


def test_several_targets_share_their_breakpoints():
    x, y, kinks = kinked(q=3, seed=3)
    start = np.c_[[1, *-np.round(kinks, 2)], np.ones(6)]
    model = ShallowReLURegressor(
        6, init=start, solver=JointGN(relocations=0), random_state=0, alpha=0.0
    )
    model.fit(x[:, None], y)
    assert model.loss_ < 1e-20
    assert model.output_coef_.shape == (3, 6)
    np.testing.assert_allclose(model.breakpoints_[1:], kinks, atol=1e-10)
    noise = y + 0.05 * np.random.RandomState(0).randn(*y.shape)
    model.fit(x[:, None], noise)
    features = np.maximum(x[:, None] - model.breakpoints_, 0)
    line = LinearRegression().fit(features, noise)
    np.testing.assert_allclose(
        model.predict(x[:, None]), line.predict(features), atol=1e-9
    )
    expected = np.sum((line.predict(features) - noise) ** 2, axis=1).mean() / 2
    assert model.loss_ == pytest.approx(expected, rel=1e-10)


def test_breakpoints_do_not_depend_on_the_units_of_targets():
    x = np.linspace(0, 10, 32)
    noise = 0.05 * np.random.RandomState(0).randn(32, 2)
    y = np.abs(x[:, None] - [3, 7]) + noise
    found = []
    for unit in np.array([[1, 2.0**14], [2.0**-30, 1.0]]):
        model = ShallowReLURegressor(random_state=0).fit(x[:, None], y * unit)
        mean, std = model.predict(x[:, None], return_std=True)
        of_targets = (
            np.r_[mean, std, model.noise_std_[None], model.output_coef_.T] / unit
        )
        spread = model.breakpoint_std_[model.breakpoints_ > 0]
        found.append(np.r_[of_targets.ravel(), model.breakpoints_, spread])
    np.testing.assert_allclose(*found, rtol=1e-8)
    for kink in (3, 7):
        assert np.min(np.abs(model.breakpoints_ - kink)) < 0.2


def test_descent_ends_in_scipy_s_optimum():
    x, y, kinks = kinked(seed=0)
    y = y + 0.02 * np.random.RandomState(0).randn(32)

    def design(t):
        return np.c_[np.ones(32), np.maximum(x[:, None] - np.r_[-1, t], 0)]

    first = np.round(kinks, 2)
    coef, *_ = np.linalg.lstsq(design(first), y)
    oracle = least_squares(
        lambda p: design(p[7:]) @ p[:7] - y,
        np.r_[coef, first],
        **dict.fromkeys(("xtol", "ftol", "gtol"), 1e-15),
    )
    start = np.c_[[1, *-first], np.ones(6)]
    model = ShallowReLURegressor(
        6, init=start, solver=JointGN(relocations=0), random_state=0, alpha=0.0
    )
    model.fit(x[:, None], y)
    assert model.loss_ == pytest.approx(oracle.cost / 32, rel=1e-10)
    np.testing.assert_allclose(model.breakpoints_[1:], oracle.x[7:], atol=1e-6)
    assert model.convergence_log_["grad_norm"][-1] < 1e-6 * model.loss_


def test_the_spectrum_is_that_of_all_rows():
    X, y = noisy()
    weight = np.random.RandomState(1).uniform(0.5, 2, 32)
    # A fit without a segment of one row, which lies at a breakpoint.
    model = clone(SMALL).set_params(n_neurons=3).fit(X, y, sample_weight=weight)
    z = (X[:, 0] - 0.5 * (X.min() + X.max())) / (0.5 * (X.max() - X.min()))
    t = (model.breakpoints_ - 0.5 * (X.min() + X.max())) / (0.5 * np.ptp(X))
    w = weight[:, None] / weight.sum()
    # Rows at a breakpoint belong to the interval right of it.
    on = z[:, None] >= t - 1e-12
    layer = (on[:, :, None] * np.c_[np.ones(32), z][:, None, :]).reshape(32, -1)
    expected = np.linalg.eigvalsh(layer.T @ (w * layer))[::-1]
    np.testing.assert_allclose(model.gram_spectrum_, expected, atol=1e-10)


# -- hard data ------------------------------------------------------------------------


HARD = {
    "one row": lambda x, y: (x[:1], y[:1]),
    "two rows": lambda x, y: (x[:2], y[:2]),
    "all x equal": lambda x, y: (np.full(25, 7.0), y),
    "two positions": lambda x, y: (np.sign(x), y),
    "more neurons than positions": lambda x, y: (np.round(2 * x), y),
    "constant target": lambda x, y: (x, np.full(25, -2.5)),
    "huge x": lambda x, y: (2.0**660 * x, y),
    "tiny x": lambda x, y: (2.0**-660 * x, y),
    "huge y": lambda x, y: (x, 2.0**460 * y),
    "tiny y": lambda x, y: (x, 2.0**-460 * y),
    "far from zero": lambda x, y: (1e6 + 1e-3 * x, y),
    "few digits": lambda x, y: (1e14 + np.random.RandomState(1).randn(25), y),
    "one row far away": lambda x, y: (np.r_[x[1:], 1e8], y),
    "neighbouring floats": lambda x, y: (1 + np.arange(25) * np.spacing(1.0), y),
}


@pytest.mark.parametrize("case", HARD)
def test_hard_data(case):
    rng = np.random.RandomState(0)
    plain = rng.uniform(-1, 1, 25), rng.randn(25)
    x, y = HARD[case](*plain)
    model = clone(SMALL).fit(x[:, None], y)
    prediction = model.predict(x[:, None])
    assert np.isfinite(prediction).all()
    assert np.isfinite(model.breakpoints_).all()
    assert not np.isnan(model.predict(np.array([[-1e300], [1e300]]))).any()
    size = np.abs(y).max()
    square = np.mean(((prediction - y) / size) ** 2) / 2
    assert model.loss_ / size**2 == pytest.approx(square, rel=1e-7, abs=1e-25)
    # The means at all positions are the best that a function of x can be.
    means = np.array([np.mean(y[x == position]) for position in x])
    bound = np.mean(((means - y) / size) ** 2) / 2
    assert square >= bound * (1 - 1e-10) - 1e-25
    if len(np.unique(x)) <= 5 or case == "constant target":
        np.testing.assert_allclose(prediction, means, atol=1e-10 * size)
    if case.startswith(("huge", "tiny")):  # by powers of two
        expected = clone(SMALL).fit(plain[0][:, None], plain[1])
        ratio = y[0] / plain[1][0]
        np.testing.assert_allclose(
            prediction / ratio, expected.predict(plain[0][:, None]), atol=1e-8
        )
        assert expected.loss_ < 0.5 * np.var(plain[1]) / 2


@pytest.mark.parametrize("decimals", [0, 1, 9])
@pytest.mark.parametrize("n", [5, 12, 32])
def test_the_loss_is_that_of_the_predictions(n, decimals):
    """Jumps take two breakpoints in a gap, whose coefficients must not cancel."""
    for seed in range(3):
        rng = np.random.RandomState(seed)
        x, y = np.round(rng.randn(n), decimals), rng.randn(n)
        if np.ptp(x) == 0:
            continue
        weight = rng.uniform(0.5, 2, n)
        model = clone(SMALL).set_params(solver__relocations=3, random_state=seed)
        model.fit(x[:, None], y, sample_weight=weight)
        square = mean_square(model, x[:, None], y, weight)
        assert model.loss_ == pytest.approx(square / 2, rel=1e-8, abs=1e-16)
        # The output layer is the best for these breakpoints.
        reach = max(0.0, model.breakpoints_.max(initial=0) - x.max())
        assert reach <= 1e-12  # a rounding of the units
        features = np.maximum(x[:, None] - model.breakpoints_, 0)
        features /= np.maximum(features.max(axis=0), 1e-300)
        line = LinearRegression().fit(features, y, weight)
        best = np.average((line.predict(features) - y) ** 2, weights=weight)
        assert square <= best * (1 + 1e-7) + 1e-16


def test_no_more_rows_than_parameters_warn():
    # Two rows a segment, and a segment for each of six neurons.
    edges = np.arange(7) / 6
    x = np.sort(np.r_[edges[:-1] + 0.03, edges[1:] - 0.03])
    y = np.maximum(x[:, None] - edges[:-1], 0) @ [3.0, -5, 4, -6, 5, -4]
    start = np.c_[[1, *-edges[1:-1]], np.ones(6)]
    model = ShallowReLURegressor(
        6, init=start, solver=JointGN(relocations=0), random_state=0, alpha=0.0
    )
    model.fit(x[:, None], y)
    np.testing.assert_allclose(model.breakpoints_[1:], edges[1:-1])
    message = "rows sum to 12, and the network has 12 parameters:.*Lower n_neurons"
    with pytest.warns(UserWarning, match=message):
        _, std = model.predict(x[:, None], return_std=True)
    assert np.isfinite(std).all()
    model.predict(x[:, None])  # without standard errors there is nothing to warn of


# -- same data, same result -----------------------------------------------------------


def test_weights_are_repetition_and_the_order_is_irrelevant():
    rng = np.random.RandomState(0)
    X, y = noisy()
    times = rng.randint(1, 4, 32)
    order = rng.permutation(times.sum())
    weighted = clone(SMALL).fit(X, y, sample_weight=times)
    repeated = clone(SMALL).fit(
        np.repeat(X, times, axis=0)[order], np.repeat(y, times)[order]
    )
    np.testing.assert_allclose(repeated.breakpoints_, weighted.breakpoints_, rtol=1e-9)
    np.testing.assert_allclose(repeated.predict(X), weighted.predict(X), atol=1e-10)
    assert repeated.loss_ == pytest.approx(weighted.loss_, rel=1e-11)
    np.testing.assert_allclose(
        repeated.breakpoint_std_, weighted.breakpoint_std_, rtol=1e-7
    )


def test_rows_of_weight_zero_are_as_good_as_none():
    X, y = noisy()
    weight = np.r_[np.ones(32), 0]
    model = clone(SMALL).fit(np.r_[X, [[50.0]]], np.r_[y, 1e9], sample_weight=weight)
    other = clone(SMALL).fit(X, y)
    np.testing.assert_allclose(model.predict(X), other.predict(X), atol=1e-8)


def test_targets_at_equal_x_are_their_mean_and_add_their_variance():
    X, y = noisy(16)
    apart = np.random.RandomState(0).uniform(0, 1, 16)
    both = clone(SMALL).fit(np.r_[X, X], np.r_[y + apart, y - apart])
    mean = clone(SMALL).fit(X, y)
    np.testing.assert_allclose(both.predict(X), mean.predict(X), atol=1e-10)
    assert both.loss_ == pytest.approx(mean.loss_ + np.mean(apart**2) / 2, rel=1e-10)


def test_same_seed_same_bits_and_pickle():
    X, y = noisy()
    a, b = clone(SMALL).fit(X, y), clone(SMALL).fit(X, y)
    np.testing.assert_array_equal(a.breakpoints_, b.breakpoints_)
    np.testing.assert_array_equal(a.predict(X), b.predict(X))
    data = pickle.dumps(a)
    assert b"jax" not in data
    copy = pickle.loads(data)
    for one, two in zip(
        a.predict(X, return_std=True), copy.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(one, two)
    # Copies can be fitted again.
    np.testing.assert_array_equal(copy.fit(X, y).predict(X), a.predict(X))


def test_warm_start_continues_from_the_breakpoints():
    X, y = noisy()
    model = clone(SMALL).set_params(warm_start=True).fit(X, y)
    before, loss = model.breakpoints_, model.loss_
    model.set_params(solver__relocations=0).fit(X, y)
    np.testing.assert_allclose(model.breakpoints_, before, rtol=1e-6)
    assert model.loss_ == pytest.approx(loss, rel=1e-9)
    assert model.convergence_log_["inner_iterations"].sum() <= 6
    cold = clone(SMALL).set_params(solver__relocations=0).fit(X, y)
    assert cold.loss_ > 1.01 * loss


def test_the_log_falls_to_the_loss():
    X, y = noisy()
    model = clone(SMALL).fit(X, y)
    log = model.convergence_log_
    assert np.all(np.diff(log["loss"]) <= 0)
    assert log["loss"][-1] == pytest.approx(model.loss_, rel=1e-9)
    assert model.loss_ == pytest.approx(mean_square(model, X, y) / 2, rel=1e-10)
    assert model.stop_reason_ == "tol"
    assert np.all(log["inner_iterations"] >= 1)


def test_early_stop_returns_a_network_with_its_loss():
    X, y = noisy()
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model = clone(SMALL).set_params(max_iter=1).fit(X, y)
    assert model.loss_ == pytest.approx(mean_square(model, X, y) / 2, rel=1e-10)
