"""Standard errors against curve_fit and dense formulas, and the choice of a size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import curve_fit
from sklearn.base import clone

from sklearn_gn import ShallowReLURegressor, _jax
from sklearn_gn.networks.shallow_relu import predict

KINKS = np.array([0.2, 0.45, 0.7])
START = np.c_[-np.r_[-1, KINKS], np.ones(4)]
# One size for all data with one feature: at most 256 rows, four segments.
MODEL = ShallowReLURegressor(4, init=START, relocations=0, random_state=0)


def broken_line(n=200, noise=0.1, seed=0):
    rng = np.random.RandomState(seed)
    x = np.sort(rng.uniform(0, 1, n))
    y = x + np.maximum(x[:, None] - KINKS, 0) @ [-4.0, 6.0, -5.0]
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

    t = model.breakpoints_[1:]
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


def test_standard_errors_with_several_targets_are_joint():
    """Two copies of one problem are one problem of twice the rows."""
    x, y = broken_line()
    one = clone(MODEL).fit(x[:, None], y)
    two = clone(MODEL).fit(x[:, None], np.c_[y, -y])
    np.testing.assert_allclose(two.breakpoints_, one.breakpoints_, atol=1e-9)
    # Residuals count twice, and so do the parameters but for the breakpoints.
    ratio = np.sqrt(2 * (200 - 8) / (400 - 10 - 3)) / np.sqrt(2)
    np.testing.assert_allclose(
        two.breakpoint_std_[1:], ratio * one.breakpoint_std_[1:], rtol=1e-6
    )


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


def test_neurons_that_point_left_have_the_standard_errors_of_their_breakpoints():
    x, y = broken_line()
    # The slope of the first segment comes from the right end of the data.
    start = np.array([[1.5, -1], *np.c_[-KINKS, np.ones(3)]])
    model = ShallowReLURegressor(
        4, solver="sggn", init=start, relocations=0, random_state=0, tol=1e-14
    ).fit(x[:, None], y)
    assert model.hyperplanes_[:, 1].min() == -1
    inside = (model.breakpoints_ > 0) & (model.breakpoints_ < 1)
    assert inside.sum() == 3
    t = model.breakpoints_[inside]
    coef, *_ = np.linalg.lstsq(design(x, t), y)
    jacobian = np.c_[design(x, t), -(x[:, None] > t) * coef[2:]]
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
    for low, high in zip(bounds[:-1], bounds[1:], strict=True):
        mine = x[(x > low) & (x < high)]
        points = np.linspace(max(low, x[0]) + 1e-6, min(high, x[-1]) - 1e-6, 9)
        expected = variance * (
            1 / len(mine)
            + (points - mine.mean()) ** 2 / np.sum((mine - mine.mean()) ** 2)
        )
        _, std = model.predict(points[:, None], return_std=True)
        np.testing.assert_allclose(std, np.sqrt(expected), rtol=1e-7)


def dense_deviation(model, X, y, points):
    """Delta method with the Jacobian in (c_0, c, r) and its pseudoinverse."""
    net, scaling = model._network
    alive = np.flatnonzero(net.alive)
    q = net.coef.shape[1]
    with _jax.scope("float64"):
        parameters = (
            jnp.array(net.intercept),
            jnp.array(net.coef[alive]),
            jnp.array(net.hyperplanes[alive]),
        )

        def function(parameters, z):
            intercept, coef, hyperplanes = parameters
            used = net._replace(intercept=intercept, coef=coef, hyperplanes=hyperplanes)
            return predict(used, z).T.ravel()

        def jacobian(X):
            z = jnp.array(scaling.x(X))
            parts = jax.jacobian(function)(parameters, z)
            return np.concatenate(
                [np.asarray(part).reshape(len(X) * q, -1) for part in parts], axis=1
            )

        rows, at = jacobian(X), jacobian(points)
    u, s, vt = np.linalg.svd(rows, full_matrices=False)
    kept = s > 1e-9 * s[0]
    error = (model.predict(X) - y).ravel()
    variance = error @ error / (error.size - kept.sum())
    root = at @ vt[kept].T / s[kept]
    return np.sqrt(variance * np.sum(root**2, axis=1)).reshape(q, -1).T


def plane_data(n=60, q=None):
    rng = np.random.RandomState(3)
    X = rng.uniform(-1, 1, (n, 2)) * [2.0, 30.0]
    bend = np.abs(X[:, 0]) + np.maximum(X[:, 1] / 15 + X[:, 0], 0)
    return X, bend + 0.1 * rng.randn(n)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("targets", [1, 2])
def test_standard_errors_with_two_features_equal_the_dense_delta_method(targets):
    X, y = plane_data()
    if targets == 2:
        # Of one size, which the formula with one variance asks for.
        y = np.c_[y, -y]
    model = ShallowReLURegressor(3, relocations=0, max_iter=20, random_state=0)
    model.fit(X, y)
    assert model.active_.all()
    points = np.r_[X[:10], plane_data(40)[0] / 2]
    std = model.predict(points, return_std=True)[1].reshape(len(points), -1)
    expected = dense_deviation(model, X, y, points)
    np.testing.assert_allclose(std, expected, rtol=1e-6)
    assert model.predict(points, return_std=True)[1].shape == y[:1].shape[1:] or (
        targets == 1
    )


def test_no_more_rows_than_parameters_warn():
    x, y = broken_line(8)
    model = clone(MODEL).fit(x[:, None], y)
    message = "rows fewer than the network has parameters.*Lower n_neurons"
    with pytest.warns(UserWarning, match=message):
        _, std = model.predict(x[:, None], return_std=True)
    assert np.isfinite(std).all()
    model.predict(x[:, None])  # without standard errors there is nothing to warn of


# -- the number of neurons ------------------------------------------------------------


AUTO = ShallowReLURegressor("auto", relocations=0, random_state=0)


def criterion_of(name, loss, p, n):
    if name == "gcv":
        return loss / (1 - p / n) ** 2
    return n * np.log(loss) + p * {"bic": np.log(n), "aic": 2.0}[name]


@pytest.fixture(scope="module", params=["bic", "aic", "gcv"])
def selected(request):
    x, y = broken_line()
    times = np.random.RandomState(0).randint(1, 3, 200)
    model = clone(AUTO).set_params(criterion=request.param)
    return model.fit(x[:, None], y, sample_weight=times), x, y, times


def test_selection_path_holds_the_criterion(selected):
    model, x, y, times = selected
    path, n = model.selection_path_, times.sum()
    sizes = path["n_neurons"]
    np.testing.assert_array_equal(sizes, np.arange(1, sizes[-1] + 1))
    # c_0, a slope and a breakpoint each, but that the first slope has no breakpoint.
    inside = path["n_parameters"] - 1 - sizes
    assert np.all((inside == sizes) | (inside == sizes - 1))
    expected = criterion_of(model.criterion, path["loss"], path["n_parameters"], n)
    np.testing.assert_allclose(path[model.criterion], expected, rtol=1e-9)
    assert set(path) == {"n_neurons", "loss", "n_parameters", model.criterion}
    # The sizes compete with losses that fits of these sizes have.
    variance = np.average((y - np.average(y, weights=times)) ** 2, weights=times)
    assert np.all(np.diff(path["loss"]) < 0.02 * variance / 2)
    best = sizes[np.argmin(path[model.criterion])]
    assert len(model.active_) == best
    assert model.loss_ <= path["loss"][best - 1] * (1 + 1e-6)
    error = model.predict(x[:, None]) - y
    assert model.loss_ == pytest.approx(np.average(error**2, weights=times) / 2)
    if model.criterion == "bic":
        assert best == 4
    else:
        assert best >= 4  # these aim at prediction and keep more


@pytest.mark.parametrize("segments", [2, 3, 5])
def test_bic_recovers_the_number_of_segments(segments):
    rng = np.random.RandomState(segments)
    x = np.sort(rng.uniform(-2, 2, 200))
    kinks = np.linspace(-2, 2, segments + 1)[1:-1]
    y = np.maximum(x[:, None] - kinks, 0) @ (5.0 * (-1) ** np.arange(segments - 1)) + x
    model = clone(AUTO).fit(x[:, None], y + 0.1 * rng.randn(200))
    assert len(model.breakpoints_) == segments
    np.testing.assert_allclose(model.breakpoints_[1:], kinks, atol=0.1)


def test_one_segment_for_a_line_and_selection_is_forgotten():
    x = np.linspace(0, 1, 150)
    y = 3 * x + 0.1 * np.random.RandomState(0).randn(150)
    model = clone(AUTO).fit(x[:, None], y)
    assert model.active_.shape == (1,)
    slope, intercept = np.polyfit(x, y, 1)
    np.testing.assert_allclose(model.predict(x[:, None]), slope * x + intercept)
    model.set_params(n_neurons=4, init=START).fit(x[:, None], y)
    assert not hasattr(model, "selection_path_")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_size_with_two_features():
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (60, 2))
    y = np.abs(X[:, 0] + 0.5 * X[:, 1]) + 0.01 * rng.randn(60)
    model = clone(AUTO).set_params(max_iter=20).fit(X, y)
    path = model.selection_path_
    np.testing.assert_array_equal(path["n_parameters"], 1 + 3 * path["n_neurons"])
    finite = path["n_parameters"] < 60
    expected = criterion_of("bic", path["loss"], path["n_parameters"], 60)
    np.testing.assert_allclose(path["bic"][finite], expected[finite], rtol=1e-6)
    assert np.all(np.isinf(path["bic"][~finite]))
    best = path["n_neurons"][np.argmin(path["bic"])]
    assert len(model.active_) == best
    assert best in (2, 3)  # |z| is two neurons, or three with a plane
    assert model.loss_ < 2 * 0.5 * 0.01**2
