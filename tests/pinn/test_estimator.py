"""PINNSolver: answers that are known, inverse problems, resuming, errors."""

import math
import pickle
import shutil
import warnings
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import curve_fit
from scipy.stats import t as student
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, ParameterGrid

from benchmarks._burgers import Burgers
from sklearn_gn import PINNSolver
from sklearn_gn.callbacks import Checkpoint
from sklearn_gn.networks import MLP
from sklearn_gn.pde import (
    Box,
    Dirichlet,
    Initial,
    Interval,
    Problem,
    Reference,
    Unknown,
    d,
    laplacian,
)
from sklearn_gn.pde.problems import Kovasznay
from sklearn_gn.pinn.observation_weight import (
    Observations,
    has_settled,
    next_weight,
    share_of_equation,
)
from sklearn_gn.solvers import DNGD, PINN_SOLVERS, SGD, Adam

pd = pytest.importorskip("pandas")


def quiet(function, *arguments, **words):
    """Call without the warning that a short fit has not converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return function(*arguments, **words)


def decay(u, t, rate):
    return d(u, "t") + rate * u


def one_at_start(x):
    return 1.0


def exponential(x):
    return jnp.exp(-2 * x)


def membrane(u, x):
    return laplacian(u)(x) + 1


def oscillator(u, t, mass, stiffness):
    return mass * d(u, "t", "t") + d(u, "t") + stiffness * u


def radial(u, x):
    return d(u, "r", "r")(x) + d(u, "r")(x) / x[0]


def vanishing_inside(x, u):
    return jnp.log(x[0]) * u


class Summing:
    """One number for all points."""

    def init(self, key, x):
        return {"shift": jnp.zeros(1, x.dtype)}

    def apply(self, params, x):
        return jnp.sum(x) + params["shift"]


DECAY = Problem(
    decay,
    Box(t=(0.0, 1.0)),
    (Initial(one_at_start),),
    coefficients={"rate": 2.0},
    exact=exponential,
)
UNKNOWN_DECAY = Problem(
    decay,
    Box(t=(0.0, 1.0)),
    (Initial(one_at_start),),
    coefficients={"rate": Unknown(0.5, positive=True)},
)
MEMBRANE = Problem(membrane, Box(x=(0.0, 1.0), y=(0.0, 1.0)), (Dirichlet(0.0),))
SMALL = {
    "hidden_layer_sizes": (8,),
    "n_interior": 20,
    "n_boundary": 1,
    "max_iter": 10,
    "random_state": 0,
}


def small(problem=DECAY, **words):
    """With an unknown rate there are always as many points, to compile once."""
    points = {"n_interior": 60} if problem is UNKNOWN_DECAY else {}
    return PINNSolver(problem, **{**SMALL, **points, **words})


# --- answers that are known ----------------------------------------------------------


def test_exponential_decay_is_solved():
    solver = quiet(small(max_iter=40).fit)
    t = np.linspace(0, 1, 11)[:, None]
    np.testing.assert_allclose(solver.predict(t), np.exp(-2 * t[:, 0]), atol=1e-5)
    slope = solver.derivative(t, "t")
    np.testing.assert_allclose(slope, -2 * np.exp(-2 * t[:, 0]), atol=1e-3)
    left = solver.residual(t)
    np.testing.assert_allclose(left[:, 0], slope + 2 * solver.predict(t), atol=1e-10)
    assert solver.relative_error() < 1e-5
    assert solver.relative_error(t) == pytest.approx(
        np.linalg.norm(solver.predict(t) - np.exp(-2 * t[:, 0]))
        / np.linalg.norm(np.exp(-2 * t)),
        rel=1e-6,
    )
    assert solver.score() == pytest.approx(-np.log10(solver.fresh_loss_))
    assert solver.score(t, np.exp(-2 * t[:, 0])) > 1 - 1e-8
    assert solver.gram_spectrum_.shape == (21,)
    assert (np.diff(solver.gram_spectrum_) <= 0).all()


def test_a_flax_module_will_do():
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.tanh(nn.Dense(8, param_dtype=x.dtype)(x))

    solver = quiet(small(network=Net(), max_iter=40).fit)
    t = np.linspace(0, 1, 11)[:, None]
    np.testing.assert_allclose(solver.predict(t), np.exp(-2 * t[:, 0]), atol=1e-5)
    assert sorted(a.shape for a in solver.coefs_) == [(1, 8), (8,), (8, 1)]
    assert [a.shape for a in solver.intercepts_] == [(1,)]
    assert (solver.predict(t, return_std=True)[1] < 1e-3).all()


@pytest.mark.slow
def test_a_network_of_the_package_survives_pickling_and_goes_on():
    words = {"network": MLP((6,), "sin"), "resample": None, "warm_start": True}
    solver = quiet(small(UNKNOWN_DECAY, **words, max_iter=2).fit, *noisy_decay())
    again = pickle.loads(pickle.dumps(solver))
    np.testing.assert_array_equal(again.predict([[0.3]]), solver.predict([[0.3]]))
    before = solver.loss_
    assert quiet(again.fit, *noisy_decay()).loss_ <= before
    again.set_params(network=MLP((5,), "sin"))
    with pytest.raises(ValueError, match="warm_start=True continues"):
        again.fit(*noisy_decay())


def test_the_losses_are_means_of_squares():
    solver = quiet(small(max_iter=3, resample=None).fit)
    log = solver.convergence_log_
    np.testing.assert_allclose(
        log["loss"], log["loss_interior"] + log["loss_initial"], rtol=1e-12
    )
    start = solver.predict([[0.0]])[0]
    assert log["loss_initial"][-1] == pytest.approx(0.5 * (start - 1) ** 2, rel=1e-9)
    best = np.argmin(log["val_loss"])
    assert solver.fresh_loss_ == log["val_loss"][best]
    assert solver.loss_ == pytest.approx(log["loss"][best], rel=1e-9)


def test_residuals_count_in_units_of_their_class():
    # Of u' + 2 u on (0, 1): 2 for the slope, since [-1, 1] is twice as long, and 2.
    solver = quiet(small(max_iter=3, resample=None, loss_weights="scaled").fit)
    again = quiet(small(max_iter=3, resample=None).fit)
    for model, square in ((solver, 8.0), (again, 1.0)):
        rho = model._fitted.model.classes[0].size
        assert rho == pytest.approx(np.sqrt(8), rel=1e-10)
        batch = model._posterior.batches[0]
        np.testing.assert_allclose(batch.scale**2 * len(batch.x), 1 / square)


@pytest.mark.slow
def test_kovasznay_flow_reaches_three_digits_in_seconds():
    solver = PINNSolver(
        Kovasznay(),
        hidden_layer_sizes=(12, 12),
        n_interior=100,
        n_boundary=40,
        resample=None,
        max_iter=60,
        random_state=0,
    )
    quiet(solver.fit)
    u, v, p = solver.relative_error(multioutput="raw_values")
    assert max(u, v) < 1e-3
    assert p < 1e-2
    assert solver.relative_error() < 1e-3
    log = solver.convergence_log_
    assert log["relative_error"].min() < 1e-3
    # Once compiled, seconds: the first iteration contains the compilation.
    assert log["time"][-1] - log["time"][0] < 30
    X = Kovasznay().domain.sample(50, np.random.RandomState(0))
    exact = Kovasznay().exact_values(X)
    error = solver.predict(X) - exact
    assert np.linalg.norm(error[:, :2]) < 1e-3 * np.linalg.norm(exact[:, :2])
    # The pressure is free up to a constant.
    error = error[:, 2] - error[:, 2].mean()
    assert np.linalg.norm(error) < 1e-2 * np.linalg.norm(exact[:, 2])


def linear_data(n=40, noise=0.1):
    rng = np.random.RandomState(0)
    X = rng.normal(size=(n, 3)) * [1.0, 10.0, 0.1] + 5
    y = X @ [1.0, -0.2, 3.0] + 2 + noise * rng.normal(size=n)
    return X, y


def test_without_hidden_layers_it_is_linear_regression():
    X, y = linear_data()
    solver = PINNSolver(hidden_layer_sizes=(), observation_weight=1, max_iter=60)
    solver.fit(X, y)
    expected = LinearRegression().fit(X, y)
    np.testing.assert_allclose(solver.predict(X), expected.predict(X), rtol=1e-8)
    assert solver.loss_ == pytest.approx(
        0.5 * np.mean((y - expected.predict(X)) ** 2), rel=1e-8
    )


@pytest.mark.parametrize("damping", [None, 1.0])
def test_error_bars_of_a_linear_model_are_the_textbook_ones(damping):
    # The damping is not part of what is minimised.
    X, y = linear_data()
    settings = {"observation_weight": 1, "max_iter": 80}
    solver = PINNSolver(hidden_layer_sizes=(), damping=damping, **settings)
    solver.fit(X, y)
    design = np.column_stack([X, np.ones(len(X))])
    residual = y - design @ np.linalg.lstsq(design, y)[0]
    noise = residual @ residual / (len(X) - 4)
    new = np.column_stack([X[:5] + 1, np.ones(5)])
    expected = np.sqrt(
        noise * np.sum(new @ np.linalg.inv(design.T @ design) * new, axis=1)
    )
    _, std = solver.predict(X[:5] + 1, return_std=True)
    np.testing.assert_allclose(std, expected, rtol=1e-6)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_weights_are_repetitions(n_targets):
    X, y = linear_data(20)
    y = np.column_stack([y, y**2])[:, :n_targets]
    weight = np.arange(20) % 3
    model = PINNSolver(hidden_layer_sizes=(4,), max_iter=5, random_state=0)
    weighted = quiet(clone(model).fit, X, y, weight)
    repeated = quiet(clone(model).fit, np.repeat(X, weight, 0), np.repeat(y, weight, 0))
    assert weighted.predict(X).shape == (20, n_targets)
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-9)


def test_targets_in_different_units_count_alike():
    X, y = linear_data(20)
    y, unit = np.column_stack([y, y**2]), np.array([1.0, 2.0**20])
    model = PINNSolver(hidden_layer_sizes=(4,), max_iter=5, random_state=0)
    one, other = (quiet(clone(model).fit, X, y * u) for u in (unit, 4 * unit))
    mean, std = one.predict(X, return_std=True)
    assert one.noise_std_.shape == (2,)
    np.testing.assert_allclose(other.noise_std_, 4 * one.noise_std_, rtol=1e-8)
    at, bars = other.predict(X, return_std=True)
    np.testing.assert_allclose(at, 4 * mean, rtol=1e-8)
    np.testing.assert_allclose(bars, 4 * std, rtol=1e-6)
    np.testing.assert_allclose(
        other.log_evidence_, one.log_evidence_ - 2 * 20 * np.log(4), rtol=1e-8
    )


def test_hundreds_of_features_are_no_hundreds_of_derivatives():
    X = np.random.RandomState(0).normal(size=(20, 300))
    solver = PINNSolver(hidden_layer_sizes=(2,), max_iter=10, random_state=0)
    quiet(solver.fit, X, X[:, 0])
    assert solver.score(X, X[:, 0]) > 0.5


@pytest.mark.slow
def test_observations_stay_where_the_transform_is_finite():
    problem = Problem(
        radial,
        Box(r=(1.0, 2.0)),
        (Dirichlet(np.log(2), on="r=max"),),
        transform=vanishing_inside,
    )
    r = np.linspace(1.1, 1.9, 5)
    solver = quiet(small(problem).fit, r[:, None], np.log(r))
    assert solver.stop_reason_ != "non_finite"
    np.testing.assert_allclose(solver.predict(r[:, None]), np.log(r), atol=1e-3)


# --- inverse problems ----------------------------------------------------------------


def noisy_decay(noise=0.01, n=40):
    rng = np.random.RandomState(1)
    t = np.sort(rng.uniform(0, 1, n))
    return t[:, None], np.exp(-2 * t) + noise * rng.normal(size=n)


def test_intervals_of_observations_need_observations():
    solver = quiet(small(DECAY, max_iter=2).fit)
    with pytest.raises(ValueError, match="predict_interval: noise_std_ is NaN"):
        solver.predict_interval([[0.5]])
    x = np.linspace(0, 1, 9)[:, None]
    words = {"hidden_layer_sizes": (3,), "solver": "adam", "max_iter": 2}
    solver = quiet(PINNSolver(None, **words).fit, x, x[:, 0])
    with pytest.raises(ValueError, match="regressions whose penalties"):
        solver.predict_interval(x)


def test_an_unknown_rate_and_its_error_bar_are_those_of_curve_fit():
    t, y = noisy_decay()
    solver = small(UNKNOWN_DECAY, max_iter=25, observation_weight=1e-2)
    quiet(solver.fit, t, y)
    (rate,), cov = curve_fit(lambda t, a: np.exp(-a * t), t[:, 0], y, p0=[1.0])
    std = float(np.sqrt(cov[0, 0]))
    found, bar = solver.coefficients_["rate"], solver.coefficients_std_["rate"]
    assert abs(found - rate) < 0.1 * std
    assert bar == pytest.approx(std, rel=0.1)
    assert abs(found - 2) < 1.96 * bar
    y_mean, y_std = solver.predict(t, return_std=True)
    expected = np.abs(t[:, 0] * np.exp(-rate * t[:, 0])) * std
    inside = t[:, 0] > 0.2
    np.testing.assert_allclose(y_std[inside], expected[inside], rtol=0.2)
    np.testing.assert_allclose(y_mean, np.exp(-rate * t[:, 0]), atol=0.2 * std)


def test_the_weight_of_noisy_observations_gives_the_fit_and_noise_of_curve_fit():
    t, y = noisy_decay(noise=0.05)
    solver = small(UNKNOWN_DECAY, max_iter=40, observation_weight="auto")
    quiet(solver.fit, t, y)
    (rate,), cov = curve_fit(lambda t, a: np.exp(-a * t), t[:, 0], y, p0=[1.0])
    std = float(np.sqrt(cov[0, 0]))
    assert solver.coefficients_["rate"] == pytest.approx(rate, abs=0.02 * std)
    assert solver.coefficients_std_["rate"] == pytest.approx(std, rel=0.02)
    misfit = y - np.exp(-rate * t[:, 0])
    noise = np.sqrt(misfit @ misfit / (len(y) - 1))
    assert solver.noise_std_ == pytest.approx(noise, rel=0.01)
    # One coefficient is determined: the quantile is that of n - 1 degrees of freedom.
    (at, bar), (lower, upper) = (
        solver.predict(t, return_std=True),
        solver.predict_interval(t, level=0.9),
    )
    width = student.ppf(0.95, len(y) - 1) * np.hypot(bar, noise)
    np.testing.assert_allclose(upper - at, width, rtol=0.01)
    np.testing.assert_allclose(at - lower, width, rtol=0.01)
    weights = solver.convergence_log_["observation_weight"]
    assert weights[0] == 1
    assert (np.diff(weights) <= 0).all()
    assert weights[-1] < 0.1


def test_the_weight_of_exact_observations_stays():
    solver = small(UNKNOWN_DECAY, max_iter=40, observation_weight="auto")
    quiet(solver.fit, *noisy_decay(noise=0.0))
    assert (solver.convergence_log_["observation_weight"] > 1e-2).all()
    assert solver.coefficients_["rate"] == pytest.approx(2, rel=1e-5)
    assert solver.noise_std_ < 1e-4


def test_the_weight_falls_with_the_share_of_the_equation():
    losses = np.array([1e-5, 3e-5, 1e-3])  # interior, a condition, observations
    assert share_of_equation(losses) == pytest.approx(0.04)
    assert share_of_equation(np.array([1e-5, 3e-5, 0.0])) == np.inf
    many, one = Observations(1000), Observations(1)
    assert next_weight(0.5, losses, many) == pytest.approx(0.05)
    # Until a hundredth of a parameter is spent on the noise: a share of 0.02 / n.
    assert next_weight(0.5, losses, one) == pytest.approx(0.5 / 2)
    assert next_weight(0.5, 0.6 * losses + [0, 0, 4e-4], one) == 0.5
    assert next_weight(0.5, losses, one, solved=False) == pytest.approx(0.05)
    assert next_weight(5e-6, losses, many) == 1e-6
    # At most to the ratio of the mean squares.
    assert next_weight(0.5, np.array([0.5, 1.0]), many) == pytest.approx(0.25)
    # As long as the share has not risen more than threefold since the last change.
    at_most = 3 * share_of_equation(np.array([1.4e-5, 1e-3]))
    assert at_most == pytest.approx(0.042)
    assert next_weight(0.5, losses, many, at_most) == pytest.approx(0.05)
    assert next_weight(0.5, losses, many, 0.9 * at_most) == 0.5
    for kept in ([1e-3, 3e-5, 1e-5], [1e-3, 3e-5, 0.0], [np.nan, 1.0, 1.0]):
        assert next_weight(0.5, np.array(kept), many) == 0.5
    # With unknown functions, whatever the share is.
    free = Observations(1000, has_functions=True)
    assert next_weight(0.5, losses, free, 0.01) == pytest.approx(0.05)
    assert has_settled([1.0] * 9)
    assert not has_settled([1.0] * 8)
    assert not has_settled([0.98**k for k in range(9)])
    assert has_settled([1.0] * 9, [0.93**k for k in range(9)])
    assert not has_settled([1.0] * 9, [0.9**k for k in range(9)])


@pytest.mark.parametrize("unit", [1.0, pytest.param(30.0, marks=pytest.mark.slow)])
def test_the_rates_of_an_epidemic_are_those_of_least_squares(unit):
    # The infected alone are observed, with noise; days and months give the same.
    end, start = 40.0, [0.99, 0.01]
    t = np.linspace(1, end, 40)

    def infected(t, beta, gamma):
        def flow(t, y):
            return [-beta * y[0] * y[1], beta * y[0] * y[1] - gamma * y[1]]

        options = {"t_eval": t, "rtol": 1e-9, "atol": 1e-11}
        return solve_ivp(flow, (0, end), start, **options).y[1]

    rng = np.random.RandomState(0)
    y = infected(t, 0.5, 0.2)
    y = y + 0.05 * y.max() * rng.normal(size=len(t))
    expected, covariance = curve_fit(infected, t, y, p0=[0.3, 0.1])
    deviations = np.sqrt(np.diag(covariance))

    def epidemic(u, x, beta, gamma):
        well, ill = u(x)
        return (
            d(u["S"], "t")(x) + beta * well * ill,
            d(u["I"], "t")(x) - beta * well * ill + gamma * ill,
        )

    problem = Problem(
        epidemic,
        Interval(0, end / unit),
        [Initial(start)],
        outputs=("S", "I"),
        coefficients={"beta": Unknown(0.3 * unit), "gamma": Unknown(0.1 * unit)},
    )
    words = {"hidden_layer_sizes": (8, 8), "random_state": 0}
    solver = PINNSolver(problem, observed_outputs=["I"], **words)
    solver.fit(t[:, None] / unit, y)  # without a warning
    found, bars = solver.coefficients_, solver.coefficients_std_
    assert solver.stop_reason_ == "tol"
    for name, value, std in zip(("beta", "gamma"), expected, deviations, strict=True):
        assert found[name] / unit == pytest.approx(value, abs=0.15 * std)
        assert bars[name] / unit == pytest.approx(std, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_error_of_the_network_does_not_bias_a_coefficient(seed):
    # A peak that spreads is the harder to follow the less it diffuses. The weight of
    # the observations stays where they determine the rate, as by the exact solution.
    def peak(at, rate):
        x, t = at
        width = 0.01 + 2 * rate * t
        return np.sqrt(0.01 / width) * np.exp(-(x**2) / (2 * width))

    rng = np.random.RandomState(seed)
    at = rng.uniform(-1, 1, 200), rng.uniform(0, 0.5, 200)
    y = peak(at, 0.05) + 0.02 * rng.normal(size=200)
    problem = Problem(
        lambda u, x, D: d(u, "t")(x) - D * d(u, "x", "x")(x),
        Box(x=(-1, 1), t=(0, 0.5)),
        [Initial(lambda x: jnp.exp(-(x[0] ** 2) / 0.02)), Dirichlet(0.0)],
        coefficients={"D": Unknown(0.1, positive=True)},
    )
    sizes = {"hidden_layer_sizes": (16, 16), "n_interior": 300, "n_boundary": 40}
    solver = PINNSolver(
        problem, **sizes, resample=None, max_iter=120, tol=0.0, random_state=0
    )
    quiet(solver.fit, np.stack(at, axis=1), y)
    (rate,), ((variance,),) = curve_fit(peak, at, y, p0=[0.1])
    assert abs(solver.coefficients_["D"] - rate) < 0.5 * math.sqrt(variance)


@pytest.mark.parametrize("resample", [5, pytest.param(None, marks=pytest.mark.slow)])
def test_a_fit_is_resumed_with_its_weight(resample, tmp_path):
    t, y = noisy_decay(noise=0.05)
    model = small(
        UNKNOWN_DECAY,
        max_iter=36,
        tol=0.0,
        resample=resample,
        observation_weight="auto",
    )
    whole, path = quiet(clone(model).fit, t, y), tmp_path / "fit.ckpt"
    quiet(
        clone(model).set_params(max_iter=30).set_callbacks(Checkpoint(path)).fit, t, y
    )
    resumed = quiet(clone(model).set_callbacks(Checkpoint(path)).fit, t, y)
    assert whole.convergence_log_["observation_weight"][29] < 1
    for name in ("loss", "val_loss", "observation_weight"):
        np.testing.assert_array_equal(
            resumed.convergence_log_[name], whole.convergence_log_[name]
        )
    assert resumed.coefficients_ == whole.coefficients_
    assert resumed.fresh_loss_ == whole.fresh_loss_


def test_error_bars_stand_a_gramian_that_rounding_makes_indefinite():
    t, y = noisy_decay()
    solver = quiet(small(UNKNOWN_DECAY, max_iter=30).fit, t, y)
    _, std = solver.predict(t, return_std=True)
    assert (std > 0).all()
    assert 0 < solver.coefficients_std_["rate"] < 0.1


@pytest.mark.slow
def test_a_viscosity_is_recovered_from_some_noisy_velocities():
    problem = Kovasznay(viscosity=Unknown(0.1, positive=True))
    rng = np.random.RandomState(0)
    X = problem.domain.sample(60, rng)
    y = problem.exact_values(X)[:, :2] + 0.01 * rng.normal(size=(60, 2))
    solver = PINNSolver(
        problem,
        hidden_layer_sizes=(20, 20),
        n_interior=100,
        n_boundary=40,
        observed_outputs=("u", "v"),
        max_iter=60,
        random_state=0,
    )
    # Columns are known by their names, in any order.
    table = pd.DataFrame(X, columns=["x", "y"])[["y", "x"]]
    quiet(solver.fit, table, y)
    nu, std = solver.coefficients_["nu"], solver.coefficients_std_["nu"]
    assert std < 0.1 * nu
    assert abs(nu - 1 / 40) < 1.96 * std
    assert solver.noise_std_ == pytest.approx(0.01, rel=0.25)
    assert solver.predict(table).shape == (60, 3)
    np.testing.assert_allclose(solver.predict(table), solver.predict(X), rtol=1e-10)
    assert solver.score(table, y) > 0.99


def test_coefficients_are_found_from_zero():
    problem = Problem(
        oscillator,
        Box(t=(0.0, 2.0)),
        coefficients={"stiffness": Unknown(0.0), "mass": Unknown(0.0)},
    )
    t = np.linspace(0, 2, 30)
    y = np.exp(-t) + np.exp(-3 * t)
    solver = quiet(small(problem, max_iter=30, random_state=2).fit, t[:, None], y)
    assert solver.coefficients_["mass"] == pytest.approx(1 / 4, rel=1e-3)
    assert solver.coefficients_["stiffness"] == pytest.approx(3 / 4, rel=1e-3)
    assert all(std > 0 for std in solver.coefficients_std_.values())
    assert list(solver.coefficients_) == ["stiffness", "mass"]
    assert list(solver.coefficients_std_) == ["stiffness", "mass"]


# --- settings ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({"solver": DNGD(damping_rule="loss")}, marks=pytest.mark.slow),
        {"damping": 1e-6, "loss_weights": "scaled"},
        {"rank": 8},
        {"dtype": "float32", "sampling": "residual", "resample": 2},
        {"sampling": "uniform", "resample": 3, "activation": "sin"},
        {"solver": DNGD(geodesic_acceleration=False, single_precision_iter=3)},
        {"n_interior": 80},  # more residuals than weights: the primal form
    ],
    ids=str,
)
@pytest.mark.repeats
def test_every_setting_solves_the_decay(words):
    solver = quiet(small(**{"max_iter": 25, **words}).fit)
    assert solver.relative_error() < 2e-3
    log = solver.convergence_log_
    assert len({len(column) for column in log.values()}) == 1
    assert len(solver.gram_spectrum_) in (8, 21, 25)  # rank, residuals, weights
    assert (np.diff(solver.gram_spectrum_) <= 0).all()
    assert np.isfinite(log["loss"]).all()


# "sgd" and "ssbroyden" run in the loops of "adam" and "lbfgs".
@pytest.mark.parametrize(
    "solver",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("sgd", "lbfgs") else name
        for name in sorted(set(PINN_SOLVERS) - {"dngd"})
    ],
)
@pytest.mark.repeats
def test_other_solvers_lower_the_loss(solver):
    fitted = quiet(small(solver=solver, max_iter=15, resample=None).fit)
    log = fitted.convergence_log_
    assert log["loss"][-1] < 0.1 * log["loss"][0] or log["loss"][-1] < 1e-5
    assert fitted.relative_error() < 0.2
    assert fitted.gram_spectrum_.size == 0


@pytest.mark.slow
def test_single_precision_does_not_end_a_fit_that_goes_on_in_double():
    solver = small(solver=DNGD(single_precision_iter=50), max_iter=70, resample=None)
    quiet(solver.fit)
    loss = solver.convergence_log_["loss"]
    assert loss[50:].min() < 1e-2 * loss[:50].min()


@pytest.mark.parametrize(
    ("name", "other", "default"),
    [("adam", Adam, 1e-3), pytest.param("sgd", SGD, 1e-2, marks=pytest.mark.slow)],
)
def test_learning_rate_is_that_of_the_solver_object(name, other, default):
    def final(solver):
        model = quiet(small(solver=solver, max_iter=2).fit)
        return model.convergence_log_["loss"][-1]

    assert other().learning_rate == default
    by_name, faster = final(name), final(other(learning_rate=10 * default))
    assert by_name == final(other(learning_rate=default))
    assert by_name != faster


def test_learning_rates_are_searched():
    X, y = linear_data(20)
    model = PINNSolver(hidden_layer_sizes=(3,), solver=Adam(), max_iter=1)
    grid = {"solver__learning_rate": [1e-2]}
    search = quiet(GridSearchCV(model, grid, cv=2).fit, X, y)
    assert search.best_estimator_.solver.learning_rate == 1e-2
    assert model.solver.learning_rate == 1e-3


def test_a_number_as_damping_is_the_shift_of_every_step():
    solver = DNGD(damping_rule="loss")
    for rule in ("dngd", solver):
        fitted = quiet(small(solver=rule, damping=1e-4, max_iter=3).fit)
        np.testing.assert_allclose(fitted.convergence_log_["damping"], 1e-4)
    assert solver.get_params() == DNGD(damping_rule="loss").get_params()


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (DNGD(damping_rule="fixed"), "'damping_rule' parameter of DNGD"),
        (DNGD(single_precision_iter=-1), "'single_precision_iter' parameter of DNGD"),
        (Adam(learning_rate=0.0), "'learning_rate' parameter of Adam"),
    ],
)
def test_parameters_of_the_solver_are_checked(solver, message):
    with pytest.raises(ValueError, match=message):
        small(solver=solver).fit()


# The loops of "adam" and "lbfgs" are those of "sgd" and "ssbroyden", too.
@pytest.mark.slow
@pytest.mark.parametrize("solver", ["dngd", "adam", "lbfgs"])
def test_laplacians_from_random_axes_are_for_all_solvers(solver):
    problem = replace(MEMBRANE, n_laplacian_directions=1)
    words = {"n_boundary": 8, "max_iter": 2, "solver": solver}
    estimated = quiet(small(problem, **words).fit)
    exact = quiet(small(MEMBRANE, **words).fit)
    loss = estimated.convergence_log_["loss"]
    assert np.isfinite(loss).all()
    assert (loss != exact.convergence_log_["loss"]).all()


def test_the_number_of_random_axes_is_checked():
    with pytest.raises(ValueError, match="n_laplacian_directions must be None or a"):
        small(replace(MEMBRANE, n_laplacian_directions=0)).fit()


def decay_of(rate):
    return Problem(
        decay, DECAY.domain, DECAY.conditions, coefficients={"rate": float(rate)}
    )


def test_a_sequence_begins_with_other_problems():
    solver = small([(decay_of(1), 2), decay_of(3)], max_iter=6)
    quiet(solver.fit)
    assert solver.n_iter_ == 6
    first = quiet(small(decay_of(1), max_iter=2).fit)
    log = solver.convergence_log_
    np.testing.assert_allclose(
        log["loss"][:2], first.convergence_log_["loss"], rtol=1e-8
    )
    assert solver.problem_ == decay_of(3)
    for problem, message in (
        ([(DECAY, 3), Kovasznay()], "sequence of problems with the outputs"),
        ([(DECAY, 0), DECAY], r"pairs \(Problem, n_iter\) .* got \(.*, 0\)"),
        ([DECAY, DECAY], r"pairs \(Problem, n_iter\) .* got Problem"),
        ([(DECAY, 3)], r"must end in the Problem to solve, got \("),
        ([], "must end in the Problem to solve, got None"),
    ):
        with pytest.raises(ValueError, match=message):
            small(problem).fit()


def test_grids_search_damping_and_rank():
    X, y = linear_data(30)
    model = PINNSolver(hidden_layer_sizes=(3,), max_iter=3, random_state=0)
    grid = {"damping": [None, 1e-3], "rank": [None, 5]}
    search = quiet(GridSearchCV(model, grid, cv=2).fit, X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    scores = [
        quiet(small(max_iter=3).set_params(**words).fit).score()
        for words in ParameterGrid({"damping": [1e-3, 1e-1]})
    ]
    assert scores[0] != scores[1]


# --- the life of a fit ---------------------------------------------------------------


def test_folds_and_seeds_compile_once(compiled):
    X, y = linear_data(40)
    settings = {"max_iter": 2, "random_state": 0, "observation_weight": 1}
    model = PINNSolver(hidden_layer_sizes=(3,), **settings)
    quiet(model.fit, X[:35], y[:35])
    compiled.clear()
    quiet(clone(model).set_params(random_state=1).fit, 2 * X[4:], y[4:] - 1)
    assert compiled == []
    quiet(small(max_iter=2).fit)
    compiled.clear()
    quiet(small(max_iter=7, random_state=3, resample=2, tol=1e-9).fit)
    assert compiled == []


@pytest.mark.parametrize(
    "words",
    [
        {"resample": 2},
        {"sampling": "residual", "resample": 3},
        {"solver": "adam"},
        {"solver": "ssbroyden"},
    ],
    ids=["trust_region", "residual", "adam", "ssbroyden"],
)
def test_a_resumed_fit_is_the_uninterrupted_one_bit_for_bit(words, tmp_path):
    model = small(tol=0.0, max_iter=8, **words)
    whole = quiet(clone(model).fit)
    path = tmp_path / "fit.ckpt"
    quiet(clone(model).set_params(max_iter=5).set_callbacks(Checkpoint(path)).fit)
    resumed = clone(model).set_callbacks(Checkpoint(path))
    quiet(resumed.fit)
    assert resumed.n_iter_ == 8
    for a, b in zip(resumed.coefs_, whole.coefs_, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(
        resumed.convergence_log_["loss"], whole.convergence_log_["loss"]
    )


def test_a_fit_without_a_seed_is_resumed_with_its_own_points(tmp_path):
    def fit(seed, *callbacks, max_iter=8):
        model = small(tol=0.0, resample=2, max_iter=max_iter, random_state=seed)
        return quiet(model.set_callbacks(*callbacks).fit)

    whole = fit(np.random.RandomState(0))
    path = tmp_path / "fit.ckpt"
    fit(np.random.RandomState(0), Checkpoint(path), max_iter=5)
    for k, seed in enumerate((None, np.random.RandomState(1))):
        copied = shutil.copy(path, tmp_path / f"{k}.ckpt")
        resumed = fit(seed, Checkpoint(copied))
        for name in ("loss", "val_loss", "relative_error"):
            np.testing.assert_array_equal(
                resumed.convergence_log_[name], whole.convergence_log_[name]
            )
        np.testing.assert_array_equal(resumed.coefs_[0], whole.coefs_[0])
        assert resumed.fresh_loss_ == whole.fresh_loss_


def equation(rate):
    source = f"def residual(u, x):\n    return d(u, 't') + {rate} * u"
    names = {"d": d}
    exec(source, names)
    return Problem(names["residual"], Box(t=(0, 1)), (Initial(1.0),))


def test_a_checkpoint_belongs_to_the_code_of_the_residual(tmp_path):
    def fit(problem):
        solver = small(problem).set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
        return quiet(solver.fit).predict([[0.5]])

    first = fit(equation(1.0))
    np.testing.assert_array_equal(fit(equation(1.0)), first)
    with pytest.raises(ValueError, match=r"has changed: the parameter 'problem'\."):
        fit(equation(2.0))


@pytest.mark.parametrize(
    ("settings", "n_most"),
    [
        ({}, 1000),
        ({"max_time": 1000}, None),
        ({"max_time": 1000, "max_iter": 5}, 5),
        ({"max_time": 1000, "solver": "sgd"}, 1000),
    ],
)
@pytest.mark.repeats
def test_without_max_iter_a_fit_goes_on_until_max_time(settings, n_most):
    found = []

    class OneIteration:
        def setup(self, estimator, context):
            found.append(context.max_subtasks)

        def teardown(self, estimator, context):
            pass

        on_fit_task_begin = teardown

        def on_fit_task_end(self, estimator, context, **_):
            return context.task_name == "iteration"

    solver = small(**{"max_iter": None, "tol": 0.0, **settings})
    quiet(solver.set_callbacks(OneIteration()).fit)
    assert found == [n_most]
    assert solver.stop_reason_ == "callback"


def test_an_equation_that_is_not_defined_for_negative_values_says_so():
    """The values of the network to start from have both signs."""
    problem = Problem(
        lambda u, t: d(u, "t")(t) - jnp.sqrt(u(t) - 0.5), Box(t=(0.0, 1.0)), ()
    )
    with pytest.raises(ValueError, match=r"is NaN .* \[0\..*sqrt\(-.*jnp.maximum"):
        small(problem).fit()


def test_a_term_that_overflows_is_named():
    problem = Problem(
        lambda u, x: d(u, "x", "x")(x) + jnp.exp(10 * u(x)),
        Box(x=(0.0, 1.0)),
        [Dirichlet(100.0)],
    )
    with pytest.raises(ValueError, match=r"too large .* term exp\((9[89]\d|1\d{3})"):
        small(problem, hidden_layer_sizes="auto").fit()


def test_ctrl_c_keeps_the_best_network():
    class Interrupt:
        def setup(self, estimator, context):
            pass

        teardown = on_fit_task_begin = setup

        def on_fit_task_end(self, estimator, context, **_):
            if context.max_subtasks == 0 and context.task_id == 3:
                raise KeyboardInterrupt

    solver = small().set_callbacks(Interrupt())
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        solver.fit()
    assert solver.stop_reason_ == "interrupted"
    assert np.isfinite(solver.predict([[0.5]])).all()


def test_warm_start_goes_on_and_refuses_other_networks():
    solver = quiet(small(warm_start=True, resample=None, max_iter=5).fit)
    first = solver.convergence_log_["loss"]
    quiet(solver.fit)
    second = solver.convergence_log_["loss"]
    assert second[0] <= first[-1] * (1 + 1e-9)
    assert second[-1] < first[-1]
    with pytest.raises(ValueError, match="warm_start=True continues"):
        solver.set_params(hidden_layer_sizes=(5,)).fit()


def test_a_fitted_solver_survives_pickling():
    solver = quiet(small(UNKNOWN_DECAY, max_iter=3).fit, *noisy_decay())
    again = pickle.loads(pickle.dumps(solver))
    t = [[0.1], [0.7]]
    for a, b in zip(
        solver.predict(t, return_std=True),
        again.predict(t, return_std=True),
        strict=True,
    ):
        assert a.dtype == np.float64
        np.testing.assert_array_equal(a, b)
    assert again.coefficients_ == solver.coefficients_


# --- predictions read the fitted state only ------------------------------------------


@pytest.mark.slow
def test_predictions_do_not_change_with_the_problem():
    X = MEMBRANE.domain.sample(5, np.random.RandomState(0))
    table = pd.DataFrame(X, columns=["x", "y"])[["y", "x"]]
    solver = quiet(small(MEMBRANE, n_boundary=8, max_iter=2).fit)
    decay = quiet(small(max_iter=2).fit)
    t = X[:, :1]

    def answers():
        return (
            solver.predict(table),
            *solver.predict(X, return_std=True),
            solver.derivative(table, "y"),
            solver.residual(table),
            decay.relative_error(),
            decay.relative_error(t),
            decay.score(),
            decay.score(t, np.exp(-2 * t[:, 0])),
        )

    before = answers()
    for other in (DECAY, Kovasznay(), None):
        solver.set_params(problem=other, observed_outputs=["v"])
        decay.set_params(problem=None if other is DECAY else other)
        for now, then in zip(answers(), before, strict=True):
            np.testing.assert_allclose(now, then, rtol=1e-10)
    assert solver.problem_ == MEMBRANE
    X, y = linear_data(20)
    plain = quiet(PINNSolver(hidden_layer_sizes=(2,), max_iter=2).fit, X, y[:, None])
    assert plain.problem_ is None
    before = plain.predict(X)
    plain.set_params(problem=DECAY)
    np.testing.assert_allclose(plain.predict(X), before, rtol=1e-10)
    assert before.shape == (20, 1)
    with pytest.raises(ValueError, match="needs a differential equation"):
        plain.derivative(X, "t")


def test_predictions_do_not_change_with_device_and_precision():
    solver = quiet(small(UNKNOWN_DECAY, max_iter=2).fit, *noisy_decay())
    t = [[0.1], [0.7]]
    before = solver.predict(t, return_std=True)
    solver.set_params(device="gpu", dtype="float32")
    for now, then in zip(solver.predict(t, return_std=True), before, strict=True):
        np.testing.assert_allclose(now, then, rtol=1e-10)
    solver.residual(t)
    solver.derivative(t, "t")
    # A fit on a machine with another device.
    solver._computed_in = "float64", "gpu"
    np.testing.assert_allclose(solver.predict(t), before[0], rtol=1e-10)


def test_a_fit_that_fails_is_no_fit():
    solver = small(n_boundary=0)
    with pytest.raises(ValueError, match="n_boundary=0 is too few"):
        solver.fit()
    with pytest.raises(NotFittedError):
        solver.predict([[0.5]])


# --- error bars ----------------------------------------------------------------------


@pytest.mark.parametrize("problem", [None, UNKNOWN_DECAY], ids=["plain", "equation"])
@pytest.mark.repeats
def test_observations_count_by_their_weights(problem):
    t, y = noisy_decay(noise=0.05)
    equation = {"n_interior": 40, "observation_weight": 1e-2}
    plain = {"observation_weight": 1}
    model = small(problem, max_iter=24, **(equation if problem else plain))
    model.set_params(resample=None, hidden_layer_sizes=(3,) if problem else ())

    def deviations(*data):
        fitted = quiet(clone(model).fit, *data)
        return fitted.predict(t, return_std=True)[1], fitted

    once, first = deviations(t, y)
    n = len(t)
    twice, second = deviations(np.repeat(t, 2, 0), np.repeat(y, 2))
    weighted, third = deviations(t, y, np.full(n, 2.0))
    np.testing.assert_allclose(weighted, twice, rtol=1e-6)
    if problem is None:
        freedom = 2  # a straight line
        expected = np.sqrt((n - freedom) / (2 * n - freedom))
        np.testing.assert_allclose(twice / once, expected, rtol=1e-6)
        return
    # Nearly all of the error bar is due to the observations.
    ratio = second.coefficients_std_["rate"] / first.coefficients_std_["rate"]
    assert ratio == pytest.approx(np.sqrt(0.5), rel=0.05)
    assert third.coefficients_std_["rate"] == pytest.approx(
        second.coefficients_std_["rate"], rel=1e-6
    )


def test_error_bars_of_large_numbers_are_finite():
    X, y = linear_data(20)
    model = PINNSolver(hidden_layer_sizes=(), max_iter=20)
    _, std = quiet(model.fit, X, 0 * y + 1e200).predict(X, return_std=True)
    assert np.isfinite(std).all()
    _, one = quiet(model.fit, X, y).predict(X, return_std=True)
    _, std = quiet(model.fit, X, 1e200 * y).predict(X, return_std=True)
    np.testing.assert_allclose(std / 1e200, one, rtol=1e-9)
    t, y = noisy_decay()
    model = quiet(small(UNKNOWN_DECAY, max_iter=2).fit, t, 1e200 * y)
    mean, std = model.predict(t, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()


def test_error_bars_of_tiny_weights_are_finite():
    """The weights of the rows are squares whose own squares are zero."""
    t, y = noisy_decay()
    model = small(UNKNOWN_DECAY, max_iter=2, observation_weight=1e-315)
    _, std = quiet(model.fit, t, y).predict(t, return_std=True)
    assert np.isfinite(std).all()
    assert np.isfinite([model.noise_std_, *model.coefficients_std_.values()]).all()


def test_error_bars_are_those_of_the_rows_and_of_the_stored_model():
    solver = quiet(small(max_iter=2).fit)
    t = np.linspace(0, 1, 100)[:, None]
    before = len(pickle.dumps(solver))
    _, std = solver.predict(t, return_std=True)
    some = solver.predict(t[:32], return_std=True)[1]
    np.testing.assert_allclose(some, std[:32], rtol=1e-8)
    stored = pickle.dumps(solver)  # without the factor
    assert len(stored) == before
    np.testing.assert_array_equal(
        pickle.loads(stored).predict(t, return_std=True)[1], std
    )


# --- warnings and errors -------------------------------------------------------------


@pytest.mark.slow
def test_a_loss_that_is_small_on_training_points_only_warns():
    solver = small(Burgers(), n_interior=6, n_boundary=6, resample=None, max_iter=30)
    with pytest.warns(ConvergenceWarning, match="does not hold. .* more points"):
        solver.fit()
    log = solver.convergence_log_
    assert log["loss"][-1] < 1e-20
    assert log["val_loss"][-1] > 0.1
    # What is returned is the best on fresh points.
    assert solver.fresh_loss_ <= log["val_loss"].min()


def contradictory(u, x):
    return jnp.stack([u(x), 2 * u(x) - 2])


@pytest.mark.filterwarnings("ignore:The residual has 2 equations")
def test_an_equation_without_a_solution_stalls():
    solver = small(Problem(contradictory, Box(t=(0.0, 1.0))), max_iter=200)
    with pytest.warns(ConvergenceWarning, match="the equation does not hold. .*larger"):
        solver.fit()
    assert solver.stop_reason_ == "stalled"
    assert not solver.converged_
    assert solver.fresh_loss_ == pytest.approx(0.4, rel=1e-2)  # u is 4 / 5


@pytest.mark.parametrize(
    ("solver", "data", "message"),
    [
        (PINNSolver(), (), "without data needs an equation"),
        (small(solver="dgnd"), (), "Did you mean 'dngd'"),
        (small(activation="tan"), (), "activation='tan' is unknown"),
        (small(activation=("tanh", "sin")), (), "names 2 activations for 1 hidden"),
        (small(observed_outputs=["w"]), ([[0.5]], [1.0]), "observed_outputs='w'"),
        (small(), ([[0.5]], [[1.0, 2.0]]), "y has 2 columns; observed are"),
        (small(), ([[0.5, 1.0]], [1.0]), "X has 2 columns; the problem has the 1"),
        (
            small(),
            (pd.DataFrame({"s": [0.5]}), [1.0]),
            r"X has the columns \['s'\]; the axes are \['t'\]",
        ),
        (small(n_boundary=0), (), "n_boundary=0 is too few"),
        (small(), (None, None, [1.0]), "sample_weight needs observations"),
        (small(network=MLP), (), "network must be an object, got the class MLP"),
        (small(hidden_layer_sizes=()), (), r"hidden_layer_sizes=\(\) makes a solution"),
        (small(network=MLP((0,))), (), "hidden_layer_sizes must hold positive"),
        (small(network=Summing()), (), r"features of shape \(1, width\), got \(1,\)"),
        (
            small(hidden_layer_sizes=(50.7,)),
            (),
            r"hidden_layer_sizes must hold positive integers, got \(50.7,\)",
        ),
        (
            small(hidden_layer_sizes=(-3,)),
            (),
            r"hidden_layer_sizes must hold positive integers, got \(-3,\)",
        ),
    ],
)
def test_bad_input_is_named(solver, data, message):
    with pytest.raises(ValueError, match=message):
        solver.fit(*data)


def test_validation_data_alone_are_refused():
    with pytest.raises(ValueError, match="X_val needs observations: X and y"):
        small().fit(X_val=[[0.5]], y_val=[1.0])


def test_bad_questions_are_named():
    solver = quiet(small(max_iter=1).fit)
    with pytest.raises(ValueError, match="axis 'x' is unknown; the axes are"):
        solver.derivative([[0.5]], "x")
    with pytest.raises(ValueError, match="multioutput must be"):
        solver.relative_error(multioutput="each")
    X, y = linear_data(10)
    plain = quiet(PINNSolver(hidden_layer_sizes=(2,), max_iter=1).fit, X, y)
    with pytest.raises(ValueError, match=r"residual\(\) needs a differential equation"):
        plain.residual(X)
    with pytest.raises(ValueError, match="no exact solution"):
        plain.relative_error()


def test_computed_references_are_compared_at_their_own_points():
    t = np.linspace(0, 1, 30)[:, None]
    problem = Problem(
        decay,
        Box(t=(0.0, 1.0)),
        (Initial(one_at_start),),
        coefficients={"rate": 2.0},
        exact=Reference(t, np.exp(-2 * t)),
    )
    solver = quiet(small(problem, max_iter=2).fit)
    expected = np.linalg.norm(solver.predict(t) - np.exp(-2 * t[:, 0]))
    expected /= np.linalg.norm(np.exp(-2 * t))
    assert solver.relative_error() == pytest.approx(expected, rel=1e-10)
    best = np.argmin(solver.convergence_log_["val_loss"])
    found = solver.convergence_log_["relative_error"][best]
    assert found == pytest.approx(expected, rel=1e-10)


# -- functions of the user ------------------------------------------------------------


def decay_in(namespace, rate="rate"):
    """A problem whose equation reads the global number ``rate``, or has a number."""
    source = f"def decay(u, t): return d(u, 't') + {rate} * u"
    exec(source, namespace)
    return Problem(namespace["decay"], Box(t=(0.0, 1.0)), (Initial(1.0),))


def test_a_problem_that_is_stated_again_compiles_nothing(compiled):
    first, again = (
        PINNSolver(decay_in({"d": d, "rate": 2.0}), **SMALL) for _ in range(2)
    )
    quiet(first.fit)
    del compiled[:]
    quiet(again.fit)
    assert not compiled
    t = np.linspace(0, 1, 5)[:, None]
    np.testing.assert_array_equal(again.predict(t), first.predict(t))


@pytest.mark.slow
def test_a_global_number_of_an_equation_may_change_between_fits():
    names, t = {"d": d, "rate": 1.0}, np.linspace(0, 1, 5)[:, None]
    problem, words = decay_in(names), {**SMALL, "max_iter": 3}
    quiet(PINNSolver(problem, **words).fit)
    names["rate"] = 3.0
    solver = quiet(PINNSolver(problem, **words).fit)
    written = quiet(PINNSolver(decay_in({"d": d}, 3.0), **words).fit)
    np.testing.assert_allclose(solver.predict(t), written.predict(t), rtol=1e-6)
