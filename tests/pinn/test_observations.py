"""Observations: missing ones, derivatives, coefficient fields, warnings."""

import math
import warnings
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import curve_fit
from scipy.special import lambertw
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn import PINNSolver
from sklearn_gn.pde import (
    Box,
    Condition,
    Dirichlet,
    Initial,
    Interval,
    Neumann,
    Problem,
    Unknown,
    d,
)
from sklearn_gn.pde.residual_classes import traced_class
from sklearn_gn.pinn import control, fitting
from sklearn_gn.pinn import units as pinn_units
from sklearn_gn.pinn.data import observation_batch, without_data
from sklearn_gn.pinn.enrichment import enriched
from sklearn_gn.pinn.iteration import batch_of
from sklearn_gn.pinn.model import network
from sklearn_gn.pinn.residuals import Observed, class_residuals

pytestmark = pytest.mark.usefixtures("float64")

SMALL = dict(
    hidden_layer_sizes=(8,), n_interior=60, n_boundary=8, tol=0, random_state=0
)


def oscillation(u, x, w):
    return d(u["a"], "t")(x) - u["b"](x), d(u["b"], "t")(x) + w * u["a"](x)


OSCILLATOR = Problem(
    oscillation, Interval(0, 2), outputs=("a", "b"), coefficients={"w": Unknown(1.0)}
)
T = np.linspace(0, 2, 15)[:, None]
BOTH = np.hstack([np.sin(1.5 * T), 1.5 * np.cos(1.5 * T)])
HALF = BOTH.copy()  # each output at points of its own
HALF[::2, 0] = HALF[1::2, 1] = np.nan


def fit(X, y, **settings):
    solver = PINNSolver(OSCILLATOR, **{**SMALL, "max_iter": 1, **settings})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return solver.fit(X, y)


def test_missing_observations_are_no_residuals():
    """The loss is the mean square of the numbers that there are."""
    weight = np.linspace(1, 2, 15)
    batch = observation_batch(
        OSCILLATOR, T, HALF, weight / weight.sum(), 3.0, None, "float64"
    )
    kind = traced_class(OSCILLATOR, "data", Observed((0, 1)), n_data=2)
    field = OSCILLATOR.field(lambda x: jnp.stack([x[0], 2.0 + x[0]]))
    rho = jax.vmap(lambda x, y: kind.function((field,), x, y, {"w": 1.0}))
    r = batch.scale[:, None] * jax.jit(rho)(batch.x, batch.data)
    misfit = np.hstack([T, 2 + T]) - HALF
    there = ~np.isnan(HALF)
    numbers = (weight[:, None] * there).sum() / 2
    expected = 3.0 * (weight[:, None] * np.where(there, misfit, 0) ** 2).sum() / numbers
    np.testing.assert_allclose((r**2).sum(), expected, rtol=1e-12)


def test_rows_without_observations_change_nothing():
    empty = np.full((3, 2), np.nan)
    plain = fit(T, HALF)
    more = fit(np.vstack([T, T[:3]]), np.vstack([HALF, empty]))
    np.testing.assert_allclose(more.predict(T), plain.predict(T), rtol=1e-8)


def test_a_coefficient_is_found_from_outputs_at_their_own_points():
    solver = fit(T, HALF, max_iter=25)
    np.testing.assert_allclose(solver.coefficients_["w"], 2.25, rtol=1e-5)
    # R2 column by column, on the numbers that there are.
    error = (solver.predict(T) - HALF) ** 2
    spread = (HALF - np.nanmean(HALF, axis=0)) ** 2
    r2 = np.mean(1 - np.nansum(error, axis=0) / np.nansum(spread, axis=0))
    np.testing.assert_allclose(solver.score(T, HALF), r2, rtol=1e-10)


def test_each_output_has_a_noise_of_its_own():
    t = np.linspace(0, 2, 200)[:, None]
    noise = np.array([0.01, 0.2])
    y = np.hstack([np.sin(1.5 * t), 1.5 * np.cos(1.5 * t)])
    y += noise * np.random.default_rng(0).standard_normal(y.shape)
    solver = fit(t, y, max_iter=60)
    assert_allclose(solver.noise_std_, noise, rtol=0.2)
    lower, upper = solver.predict_interval(t)
    assert_allclose(upper - lower, np.tile(2 * 1.97 * noise, (200, 1)), rtol=0.25)
    assert np.mean((lower < y) & (y < upper)) == pytest.approx(0.95, abs=0.03)

    # They count by it: the coefficient is that of weighted least squares.
    def both(t, w, a, b):
        k = np.sqrt(w)
        first = a * np.cos(k * t) + b / k * np.sin(k * t)
        return np.concatenate([first, b * np.cos(k * t) - a * k * np.sin(k * t)])

    sigma = np.repeat(noise, 200)
    found, cov = curve_fit(both, t[:, 0], y.T.ravel(), [2.25, 0, 1.5], sigma)
    w, std = solver.coefficients_["w"], solver.coefficients_std_["w"]
    assert std == pytest.approx(np.sqrt(cov[0, 0]), rel=0.1)
    assert w == pytest.approx(found[0], abs=0.1 * std)
    # Those of a alone leave b without noise.
    alone = fit(t, y[:, :1], observed_outputs=["a"], max_iter=25)
    assert alone.noise_std_ == pytest.approx(noise[0], rel=0.2)
    lower, upper = alone.predict_interval(t)
    assert (upper - lower)[:, 1].max() < noise[1]


def acceleration(u, x, w):
    return d(u["a"], "t", "t")(x) / w


@pytest.mark.slow
def test_derivatives_are_observed():
    """Of a alone, and of a'' / w = -a, w is found from the ratio with the equation."""
    y = np.hstack([BOTH[:, 1:], -BOTH[:, :1]])
    solver = fit(T, y, observed_outputs=["b", acceleration], max_iter=25)
    np.testing.assert_allclose(solver.coefficients_["w"], 2.25, rtol=1e-4)
    second = solver.derivative(T, "t", "t")[:, 0] / solver.coefficients_["w"]
    predicted = np.column_stack([solver.predict(T)[:, 1], second])
    assert solver.score(T, predicted) == pytest.approx(1, abs=1e-15)


def diffusion(u, x):
    k = u["k"](x)
    flux = d(u["u"], "x", "x")(x) * k + d(u["k"], "x")(x) * d(u["u"], "x")(x)
    return d(u["u"], "t")(x) - flux


@pytest.mark.slow
def test_a_coefficient_field_depends_on_its_axes_alone():
    problem = Problem(
        diffusion,
        Box(x=(0, 1), t=(0, 1)),
        [Dirichlet(1.0, outputs="k")],
        outputs=("u", "k"),
        depends_on={"k": "x"},
    )
    rng = np.random.RandomState(0)
    net, _ = fitting.untrained_network(problem, None, (5,), rng, "float64", None)
    words = dict(equation=True, observed=(0, 1), device=None)
    (model,) = fitting.models([problem], ("tanh",), None, net.extra, **words)
    X = problem.domain.sample(6, rng)
    y = np.ones((6, 2))
    data = observation_batch(problem, X, y, np.full(6, 1 / 6), 1.0, None, "float64")
    points = problem.sample(6, 4, rng)
    batches = [
        batch_of(*points[kind.name], 1.0, "float64") for kind in model.classes[:-1]
    ]

    # By hand: k(x) is the network at the middle of time, its derivative in t zero.
    values = partial(network, model, net)
    middle = jax.jit(jax.vmap(lambda x: values(jnp.stack([x[0], 0.5 + 0 * x[1]]))[1]))
    slopes = jax.vmap(jax.jacfwd(values))
    bends = jax.vmap(jax.hessian(values))

    @jax.jit
    def by_hand(X):
        k = middle(X)
        at_middle = X.at[:, 1].set(0.5)
        u, k_x = slopes(X)[:, 0], slopes(at_middle)[:, 1, 0]
        return u[:, 1] - bends(X)[:, 0, 0, 0] * k - k_x * u[:, 0]

    for kind, batch in zip(model.classes, [*batches, data], strict=True):
        assert kind.rows is not None  # the quick way
        found = jax.jit(partial(class_residuals, model, kind))(net, batch)
        own = jnp.asarray(batch.x[:, 0])
        if kind.name == "interior":
            expected = by_hand(own)
        elif kind.name == "dirichlet":
            expected = middle(own) - 1
        else:
            np.testing.assert_allclose(found[:, 1], middle(own)[: len(found)] - 1)
            continue
        np.testing.assert_allclose(found[:, 0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("problem", "arguments", "match"),
    [
        (OSCILLATOR, (), r"coefficients \['w'\] are Unknown, and there are no obs"),
        (
            OSCILLATOR,
            (np.array([[0.5], [2.5]]), np.ones((2, 2))),
            r"1 of 2 different obs.* outside.*\[2.5\], and are left out.*\('t',\)",
        ),
    ],
)
def test_a_fit_says_what_the_data_lack(problem, arguments, match):
    solver = PINNSolver(problem, **SMALL, max_iter=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match=match):
            solver.fit(*arguments)


def test_observations_outside_of_the_domain_are_left_out():
    """Those outside by a thousandth, the rounding of a list of places, are not."""
    X, y = np.append(T, [[2.001]], axis=0), np.append(BOTH, BOTH[-1:], axis=0)
    weight = np.linspace(1, 2, 16)
    inside = fit(X, y, max_iter=3)
    beyond = np.append(X, [[2.01], [9.0]], axis=0), np.append(y, y[:2], axis=0)
    found = fit(*beyond, max_iter=3)
    for name in ("loss_", "noise_std_", "coefficients_", "coefficients_std_"):
        expected = pytest.approx(getattr(inside, name), rel=1e-8)
        assert getattr(found, name) == expected
    solver = PINNSolver(OSCILLATOR, **SMALL, max_iter=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = solver.fit(X, y, weight).coefficients_std_
        with_others = solver.fit(*beyond, np.append(weight, [3, 4])).coefficients_std_
        assert_allclose(with_others["w"], alone["w"], rtol=1e-4)
        alone = solver.fit(X, y, X_val=X, y_val=y).fresh_loss_
        found = solver.fit(X, y, X_val=beyond[0], y_val=beyond[1]).fresh_loss_
        assert_allclose(found, alone, rtol=1e-8)
    match = r"All 15 different observations lie outside.*\[1000.0\]\. .*check the units"
    with pytest.raises(ValueError, match=match):
        fit(1000 + T, BOTH)


@pytest.mark.slow
def test_a_condition_may_stand_for_observations():
    problem = Problem(
        lambda u, x, w: d(u, "t")(x) + w * u(x),
        Interval(0, 1),
        [Initial(1.0), Condition(lambda u, x: u(x) - 0.5, on="t=max")],
        coefficients={"w": Unknown(1.0, positive=True)},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "PINNSolver")
        solver = PINNSolver(problem, **SMALL, max_iter=20).fit()
    np.testing.assert_allclose(solver.coefficients_["w"], np.log(2), rtol=1e-6)


@pytest.mark.slow
def test_usual_conditions_may_determine_an_eigenvalue():
    """u'' + w u = 0 between two zeros: w = pi**2, as the slope fixes the size."""
    problem = Problem(
        lambda u, x, w: d(u, "x", "x")(x) + w * u(x),
        Interval(0, 1, axis="x"),
        [Dirichlet(0.0), Neumann(-1.0, on="x=min")],
        coefficients={"w": Unknown(8.0, positive=True)},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        solver = PINNSolver(problem, **{**SMALL, "n_boundary": 3}, max_iter=20).fit()
    np.testing.assert_allclose(solver.coefficients_["w"], np.pi**2, rtol=1e-5)
    assert solver.coefficients_std_["w"] < 1e-3
    fewer = replace(problem, conditions=problem.conditions[:1])
    assert without_data(fewer) == ["w"]


@pytest.mark.parametrize(
    ("y", "words", "match"),
    [
        (np.full((15, 2), np.nan), {}, r"column 0 of y holds no observation"),
        (BOTH * [1, np.inf], {}, r"infinity"),
        (BOTH, {"observed_outputs": ["a", "c"]}, r"'c' is unknown.*lambda u, x"),
        (1e40 * BOTH, {"dtype": "float32"}, r"^y holds .*e\+40, more than dtype='fl"),
        (
            BOTH,
            {"dtype": "float32", "observation_weight": 1e40},
            r"observation_weight must be at most 3.4e\+38 .* got 1e\+40",
        ),
    ],
)
def test_mistakes_with_observations_are_explained(y, words, match):
    with pytest.raises(ValueError, match=match):
        fit(T, y, **words)


# --- units ---------------------------------------------------------------------------


def decay(unit, rate, **settings):
    """Fit u' = -rate u, u(0) = 1 on times in a unit; Unknowns from exact data."""
    problem = Problem(
        lambda u, t, rate: d(u, "t")(t) + rate * u(t),
        Interval(0, 2 * unit),
        [Initial(1.0)],
        coefficients={"rate": rate},
    )
    default = dict(hidden_layer_sizes=(8,), max_iter=20, tol=0, random_state=0)
    solver = PINNSolver(problem, n_interior=40, n_boundary=1, **{**default, **settings})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return solver.fit(*((unit * T, np.exp(-T)) if problem.unknown else ()))


@pytest.mark.parametrize(
    "unit", [2.0**-20, pytest.param(2.0**20, marks=pytest.mark.slow)]
)
def test_units_of_time_change_nothing(unit):
    """The equation is a million times as large, or as small, as its condition."""
    expected = decay(1.0, 1.0, loss_weights="scaled").predict(T)
    assert_allclose(decay(unit, 1 / unit).predict(unit * T), expected, rtol=1e-9)


@pytest.mark.parametrize(
    "positive", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_coefficients_are_found_in_any_unit(positive):
    unit = 2.0**20
    solver = decay(unit, Unknown(3 / unit, positive=positive))
    assert_allclose(unit * solver.coefficients_["rate"], 1, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("inlet", [1e-9, 1e9])
def test_an_unknown_value_on_the_boundary_is_found_from_far_off(inlet):
    """Least squares, in closed form: the solution is proportional to the unknown."""
    problem = Problem(
        lambda u, x: d(u, "x")(x) + 0.7 * u(x),
        Interval(0, 3, axis="x"),
        [Dirichlet(lambda x, c: c, on="x=min")],
        coefficients={"c": Unknown(1.0, positive=True)},
    )
    x = np.linspace(0.2, 2.8, 30)
    shape = np.exp(-0.7 * x)
    y = shape + 0.01 * np.random.RandomState(0).standard_normal(30)
    solver = PINNSolver(problem, random_state=0).fit(x[:, None], inlet * y)
    best, length = y @ shape / (shape @ shape), np.linalg.norm(shape)
    deviation = np.linalg.norm(y - best * shape) / math.sqrt(29) / length
    assert_allclose(solver.coefficients_["c"], best * inlet, rtol=0.3 * deviation)
    assert_allclose(solver.coefficients_std_["c"], deviation * inlet, rtol=0.2)


def test_unknown_values_are_searched_in_units_of_their_size():
    for initial in (0.0, 2.0, -300.0, 4e9, -4e-9, (1e5, 0.5, 0.0)):
        for positive in (False, True):
            if positive and not (np.array(initial) > 0).all():
                continue
            unknown = Unknown(initial, positive=positive)
            raw = unknown.encode(initial)
            assert np.all(np.abs(raw) <= 1e3)
            assert_allclose(unknown.decode(jnp.asarray(raw)), initial, rtol=1e-12)


def circuit(second, coulomb):
    """q' = i, i' = -q, q(0) = 1, i(0) = 0, stated in other units of time and charge."""
    ampere = coulomb / second

    def equations(u, t):
        charge, current = u["q"], u["i"]
        return (
            d(charge, "t")(t) - current(t),
            second / ampere * d(current, "t")(t) + charge(t) / coulomb,
        )

    return Problem(
        equations,
        Interval(0, 6 * second),
        [Initial([coulomb, 0.0])],
        outputs=("q", "i"),
    )


def test_outputs_without_values_have_the_unit_that_balances_the_equations():
    ordinary = enriched(circuit(1.0, 1.0), [])[0]
    assert ordinary.scale == (1.0, 1.0)
    second, coulomb = 2.0**-30, 2.0**-10
    scale = enriched(circuit(second, coulomb), [])[0].scale
    # Charges of size one and i = A cos(pi t / T): both equations hold a half wave.
    wave = np.pi / 6
    balanced = math.sqrt(wave * (1 / wave))  # geometric mean of q' / i and q / i'
    assert_allclose(scale, [coulomb, balanced * coulomb / second], rtol=0.5)
    # An ordinary size is taken, too, where that of the other output is none.
    assert_allclose(enriched(circuit(64.0, 1024.0), [])[0].scale, [1024, 16], rtol=0.5)
    # Exact in the units: those of another statement, scaled.
    other = enriched(circuit(second, 4 * coulomb), [])[0].scale
    assert_allclose(other, [4 * scale[0], 4 * scale[1]], rtol=1e-10)


def test_residuals_of_a_class_that_differ_a_millionfold_count_alike():
    kind = circuit(1.0, 1.0).residual_classes()[0]
    assert pinn_units.in_units(kind, np.array([2.0, 1.0]))[0] is kind
    scaled, size = pinn_units.in_units(kind, np.array([2e-6, 1.0]))
    assert_allclose(size, math.sqrt((4e-12 + 1) / 2))
    assert_allclose(np.array(scaled.function.units) * size, [2e-6, 1.0])
    u, t = OSCILLATOR.field(lambda x: jnp.stack([x[0], 3 + x[0]])), jnp.array([0.5])
    known = OSCILLATOR.residual_classes()[0].function
    both = [
        f((u,), t[None], t[:0], {"w": 1.0})
        for f in (known, pinn_units.InUnits(known, (2.0, 1e-6)))
    ]
    assert_allclose(both[1], both[0] / np.array([2.0, 1e-6]))


@pytest.mark.parametrize("is_sequence", [False, True])
def test_a_fit_that_is_stuck_begins_anew(monkeypatch, is_sequence):
    """No real solution: all starts end at u = 0, and the best of them is returned."""
    problem = Problem(lambda u, t: u(t) ** 2 + 1, Interval(0, 1), [])
    if is_sequence:
        problem = [
            (Problem(lambda u, t: u(t) ** 2 + 2, Interval(0, 1), []), 3),
            problem,
        ]
    solver = PINNSolver(
        problem, hidden_layer_sizes=(5,), n_interior=20, resample=None, random_state=0
    )
    drawn, draw = [], control.drawn_anew
    monkeypatch.setattr(
        control,
        "drawn_anew",
        lambda *a: drawn.append(draw(*a)) or drawn[-1],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        solver.fit()
    assert solver.stop_reason_ == "stalled"
    assert len(drawn) == 2
    assert len({net.layers[0][0, 0] for net in drawn}) == 2
    assert all(net.layers[0].shape == (2, 5) for net in drawn)
    assert solver.fresh_loss_ == solver.convergence_log_["val_loss"].min()
    assert_allclose(solver.fresh_loss_, 0.5, rtol=1e-4)


def enzyme(u, t, V, K):
    return d(u, "t")(t) + V * u(t) / (K + u(t))


ENZYME = Problem(
    enzyme,
    Interval(0, 8),
    [Initial(10.0)],
    coefficients={
        "V": Unknown(1.0, positive=True),
        "K": Unknown(1.0, positive=True),
    },
)


@pytest.mark.slow
def test_a_positive_coefficient_that_vanishes_begins_anew_with_a_larger_start():
    """With K = 0 a straight line is a solution, which explains most of the data."""
    rng, t = np.random.RandomState(1001), np.linspace(0, 8, 26)[1:]
    u = 0.3 * lambertw(10 / 0.3 * np.exp((10 - 2 * t) / 0.3)).real
    y = u + 0.05 * u.std() * rng.randn(25)
    solver = PINNSolver(
        ENZYME,
        hidden_layer_sizes=(10,),
        n_interior=50,
        n_boundary=1,
        resample=None,
        max_iter=40,
        random_state=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        solver.fit(t[:, None], y)
    for name, truth in (("V", 2.0), ("K", 0.3)):
        found, std = solver.coefficients_[name], solver.coefficients_std_[name]
        assert abs(found - truth) < 3 * std < 2 * truth
    assert solver.noise_std_ < 0.06 * u.std()


def fading(u, x, k):
    return d(u, "t")(x) + k * u(x)


def noisy_fading(seed, n=30, noise=0.05):
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, 3, (n, 1))
    return t, np.exp(-t[:, 0]) + noise * rng.normal(size=n)


FADING = Problem(fading, Interval(0, 3), Initial(1.0), coefficients={"k": Unknown(2.0)})


@pytest.mark.slow
def test_coefficients_of_which_only_the_sum_is_determined_have_no_error_bar():
    """That which has little influence on the sum is as open as the other."""
    problem = Problem(
        lambda u, x, a, b: d(u, "t")(x) + (a + b) * u(x),
        Interval(0, 3),
        Initial(1.0),
        coefficients={
            "a": Unknown(1.0, positive=True),
            "b": Unknown(0.01, positive=True),
        },
    )
    solver = PINNSolver(problem, **{**SMALL, "tol": 1e-3}, max_iter=30)
    with pytest.warns(ConvergenceWarning, match=r"not determine .*\['a', 'b'\]: other"):
        solver.fit(*noisy_fading(0))
    assert solver.coefficients_std_ == {"a": np.inf, "b": np.inf}
    assert not solver.converged_
    assert_allclose(sum(solver.coefficients_.values()), 1.0, atol=0.1)


def test_observations_of_small_weight_determine_coefficients_nevertheless():
    solver = PINNSolver(FADING, **SMALL, max_iter=5, observation_weight=1e-13)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        solver.fit(*noisy_fading(0))
    assert np.isfinite(solver.coefficients_std_["k"])


@pytest.mark.parametrize("noise", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
def test_observations_of_validation_do_not_change_the_weight(noise):
    X, y = noisy_fading(0)
    alone, validated = (
        PINNSolver(FADING, **SMALL, resample=None, max_iter=30) for _ in range(2)
    )
    X_val, y_val = noisy_fading(1, noise=noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone.fit(X, y)
        validated.fit(X, y, X_val=X_val, y_val=y_val)
    before, after = (s.convergence_log_ for s in (alone, validated))
    assert before["observation_weight"][-1] < 1
    n = min(len(before["loss"]), len(after["loss"]))
    for name in ("observation_weight", "loss"):
        assert_allclose(after[name][:n], before[name][:n], rtol=1e-2)
    # The log has the misfit of validation.
    misfit = y_val - validated.predict(X_val)
    weight = after["observation_weight"]
    expected = 0.5 * np.mean(misfit**2) * weight[-1]
    assert np.nanmin(after["val_loss"]) >= 0.5 * expected


@pytest.mark.slow
def test_single_precision_has_the_error_bars_of_double_precision():
    def bent(u, x, k):
        return k * d(u, "x", "x")(x) + jnp.pi**2 * jnp.sin(jnp.pi * x[0])

    domain, coefficients = Interval(0, 1, axis="x"), {"k": Unknown(2.0)}
    problem = Problem(bent, domain, Dirichlet(0.0), coefficients=coefficients)
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (30, 1))
    y = np.sin(np.pi * X[:, 0]) + 0.05 * rng.normal(size=30)
    sizes = dict(hidden_layer_sizes=(8,), n_interior=60, n_boundary=2)
    found = []
    for dtype in ("float64", "float32"):
        solver = PINNSolver(problem, random_state=0, max_iter=20, dtype=dtype, **sizes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solver.fit(X, y)
        _, std = solver.predict([[0.3], [0.5]], return_std=True)
        found.append(np.append(std, solver.coefficients_std_["k"]))
    assert_allclose(found[1], found[0], rtol=0.02)
