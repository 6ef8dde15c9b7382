"""error_estimate_: a Gauss-Newton correction in a richer network."""

import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

from sklearn_gn import PINNSolver
from sklearn_gn.pde import (
    Box,
    Condition,
    Dirichlet,
    Initial,
    Interval,
    Neumann,
    Piecewise,
    Problem,
    Unknown,
    d,
    div,
    grad,
)
from sklearn_gn.pinn import error_estimate, fitting, statement
from sklearn_gn.pinn.iteration import Sampler
from sklearn_gn.pinn.model import richer, start_parameters
from sklearn_gn.pinn.residuals import residuals
from sklearn_gn.pinn.solution import values


def bent(u, x):
    return d(u, "x", "x")(x) + jnp.pi**2 * jnp.sin(jnp.pi * x[0])


def half_wave(x):
    return jnp.sin(jnp.pi * x[0])


PROBLEM = Problem(bent, Interval(0, 1, axis="x"), [Dirichlet(0.0)], exact=half_wave)


@pytest.fixture(scope="module")
def solver():
    solver = PINNSolver(
        PROBLEM,
        hidden_layer_sizes=(6,),
        n_interior=100,
        n_boundary=2,
        max_iter=12,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return solver.fit()


def test_the_estimate_is_the_error_where_the_network_can_still_learn(solver):
    """The equation is linear: one correction leads to the solution."""
    assert solver.error_estimate_ == pytest.approx(solver.relative_error(), rel=0.1)


def test_the_estimate_is_that_of_a_dense_computation(solver):
    """Minimum-norm least squares on all fresh points at once, by LAPACK."""
    posterior = solver._posterior
    model, net = posterior.model, richer(posterior.net)
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(net)
        x = posterior.fresh[0].x[:200, 0]

        def residual(p):
            return residuals(model, unravel(p), posterior.fresh)

        def value(p):
            return values(model, unravel(p), x)[:, 0]

        def with_slopes(function):
            both = jax.jit(lambda p: (function(p), jax.jacfwd(function)(p)))
            return map(np.asarray, both(flat))

        (r, jacobian), (u, slopes) = with_slopes(residual), with_slopes(value)
        change, *_ = np.linalg.lstsq(jacobian, -r, rcond=1e-8)
        error = np.linalg.norm(slopes @ change) / np.linalg.norm(u)
        left = np.linalg.norm(r + jacobian @ change) / np.linalg.norm(r)
    expected = error / (1 - left**2) ** 0.25
    assert solver.error_estimate_ == pytest.approx(expected, rel=1e-2)


@pytest.mark.slow
def test_the_estimate_holds_for_several_outputs_in_regions():
    """A wall of two materials under a load, and a string beside it."""
    k = Piecewise(1.0, (Interval(0.5, 1, axis="x"), 10.0))

    def wall_and_string(u, x):
        return div(k * grad(u["wall"]))(x) + 1, d(u["string"], "x", "x")(x) + 1

    def exact(x):
        flux, right = (1 / 8 + 3 / 80) / (1 / 2 + 1 / 20), jnp.maximum(x[0] - 0.5, 0)
        left = jnp.minimum(x[0], 0.5)
        wall = (
            flux * left - left**2 / 2 + (flux * right - right * (x[0] + 0.5) / 2) / 10
        )
        return jnp.stack([wall, x[0] * (1 - x[0]) / 2])

    line, ends = Interval(0, 1, axis="x"), [Dirichlet([0.0, 0.0])]
    names = ("wall", "string")
    problem = Problem(wall_and_string, line, ends, outputs=names, exact=exact)
    sizes = {"n_interior": 60, "n_boundary": 4, "max_iter": 12}
    solver = PINNSolver(problem, hidden_layer_sizes=(6,), **sizes, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit()
    assert solver.error_estimate_ == pytest.approx(solver.relative_error(), rel=1)


@pytest.mark.slow
def test_the_errors_of_coefficients_are_estimated():
    """Two rates of decay from exact observations, by a network that has few neurons."""

    def decay(u, t, slow, fast):
        a, b = u(t)
        return d(u["a"], "t")(t) + slow * a, d(u["b"], "t")(t) + fast * b - slow * a

    rates = {"slow": 1.0, "fast": 3.0}
    t = np.linspace(0.1, 2, 20)[:, None]
    a, b = np.exp(-t), np.exp(-3 * t)
    y = np.hstack([a, 0.5 * (a + b)])
    problem = Problem(
        decay,
        Interval(0, 2),
        [Initial([1.0, 1.0])],
        outputs=("a", "b"),
        coefficients={"slow": Unknown(2.0), "fast": Unknown(2.0, positive=True)},
    )
    sizes = {"hidden_layer_sizes": (5,), "n_interior": 60, "n_boundary": 1}
    solver = PINNSolver(problem, **sizes, max_iter=15, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit(t, y)
    found = solver._posterior
    with jax.enable_x64(True):
        estimate = error_estimate.relative_error_estimate(
            found.model, found.net, found.batches, found.fresh, of="largest"
        )
    exact = np.hstack([np.exp(-t), 0.5 * (np.exp(-t) + np.exp(-3 * t))])
    difference = solver.predict(t) - exact
    errors = [abs(solver.coefficients_[name] / rates[name] - 1) for name in rates]
    errors += list(np.linalg.norm(difference, axis=0) / np.linalg.norm(exact, axis=0))
    assert max(errors) > 1e-5
    assert estimate == pytest.approx(max(errors), rel=0.3)


def test_outputs_count_where_they_have_an_equation():
    """Heat through two layers: each output is free in the layer of the other one."""

    def layers(u, x):
        bends = 0.1 * d(u["a"], "x", "x")(x), d(u["b"], "x", "x")(x)
        return jnp.where(x[0] < 0.4, *bends) + jnp.sin(3 * x[0])

    def joined(u, x):
        flux = 0.1 * d(u["a"], "x")(x) - d(u["b"], "x")(x)
        return u["a"](x) - u["b"](x), flux

    problem = Problem(
        layers,
        Interval(0, 1, axis="x"),
        [
            Dirichlet(0.0, on="x=min", outputs="a"),
            Dirichlet(1.0, on="x=max", outputs="b"),
            Condition(joined, on=[[0.4]]),
        ],
        outputs=("a", "b"),
    )
    sizes = {"hidden_layer_sizes": (6,), "n_interior": 100, "n_boundary": 2}
    solver = PINNSolver(problem, **sizes, max_iter=12, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit()
    # a = 10 s + p + q x and b = s + r + t x, with s = sin(3 x) / 9.
    step, slope = np.sin(1.2) / 9, np.cos(1.2) / 3
    matrix = [[0.4, -1, -0.4], [0.1, 0, -1], [0, 1, 1]]
    q, r, t = np.linalg.solve(matrix, [-9 * step, slope - slope, 1 - np.sin(3.0) / 9])
    x = np.linspace(0, 1, 201)
    s, left = np.sin(3 * x) / 9, x < 0.4
    exact = np.where(left, 10 * s + q * x, s + r + t * x)
    found = np.where(left, *solver.predict(x[:, None]).T)
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert error > 1e-7
    assert solver.error_estimate_ == pytest.approx(error, rel=0.2)


def test_factors_keep_the_changes_that_residuals_hardly_see():
    """Columns of all sizes down to 1e-10, whose squares the Gramian loses."""
    rng = np.random.RandomState(0)
    n = 12
    right, _ = np.linalg.qr(rng.standard_normal((n, n)))
    rows = rng.standard_normal((60, n)) @ (np.geomspace(1, 1e-10, n)[:, None] * right)
    wanted = rng.standard_normal(n)
    r = -rows @ wanted
    factors = [
        np.linalg.qr(np.column_stack([rows[part], r[part]]), mode="r")
        for part in (slice(0, 30), slice(30, 60))
    ]
    assert [f.shape for f in factors] == [(n + 1, n + 1)] * 2
    given = *factors, np.copy
    change, explained, difference = error_estimate.correction(*given)
    np.testing.assert_allclose(change, wanted, atol=1e-3)
    assert explained == pytest.approx(1.0, abs=1e-10)
    assert difference < 1e-3
    lossy = np.linalg.lstsq(rows.T @ rows, -rows.T @ r, rcond=None)[0]
    assert np.abs(lossy - wanted).max() > 0.1
    # Halves do not agree on residuals that are noise.
    noise = rng.standard_normal(26)
    apart = [
        np.linalg.qr(np.column_stack([rng.standard_normal((13, n)), part]), mode="r")
        for part in np.split(noise, 2)
    ]
    assert error_estimate.correction(*apart, np.copy)[2] > 0.5


def test_an_error_that_residuals_hardly_see_is_found_among_noise():
    """The least squares of LAPACK; most residuals are noise at some points."""
    rng = np.random.RandomState(0)
    rows = np.column_stack([1e-6 * rng.standard_normal(400), np.zeros((400, 40))])
    for k in range(40):  # each of a few points, so that halves explain little in common
        rows[rng.choice(400, 12), 1 + k] = rng.standard_normal(12)
    r = -rows[:, 0]
    r[rng.choice(400, 40)] += 1e-5 * rng.standard_normal(40)
    halves = slice(0, 200), slice(200, 400)
    factors = [np.linalg.qr(np.column_stack([rows, r])[h], mode="r") for h in halves]
    expected, *_ = np.linalg.lstsq(rows, -r, rcond=1e-12)

    def error_of(change):
        return change[:1] + 1e-3 * change[1:].sum()

    change, _, difference = error_estimate.correction(*factors, error_of)
    assert difference < 0.5
    np.testing.assert_allclose(error_of(change), expected[0], rtol=1e-2)
    np.testing.assert_allclose(change[0], 1.0, rtol=0.2)


@pytest.mark.slow
def test_the_estimate_knows_errors_that_grow_ahead_of_a_front():
    """Fisher's equation from a narrow peak, by SciPy on lines of constant place."""
    x, times = np.linspace(-1, 1, 1001), np.linspace(0, 1, 11)

    def rate(t, u):
        wide = np.concatenate([u[1:2], u, u[-2:-1]])
        bend = (wide[2:] - 2 * u + wide[:-2]) / (x[1] - x[0]) ** 2
        return 0.01 * bend + 10 * u * (1 - u)

    def peak(x):
        return jnp.exp(-100 * x[0] ** 2)

    exact = solve_ivp(
        *(rate, (0, 1), np.exp(-100 * x**2), "LSODA", times),
        rtol=1e-8,
        atol=1e-12,
        lband=1,
        uband=1,
    ).y.T

    def residual(u, x):
        return d(u, "t")(x) - 0.01 * d(u, "x", "x")(x) - 10 * u(x) * (1 - u(x))

    domain = Box(x=(-1, 1), t=(0, 1))
    problem = Problem(residual, domain, [Neumann(0.0), Initial(peak)])
    solver = PINNSolver(problem, max_iter=200, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit()
    points = np.column_stack([np.tile(x, 11), np.repeat(times, 1001)])
    error = np.linalg.norm(solver.predict(points) - exact.ravel())
    error /= np.linalg.norm(exact)
    assert error > 1e-3
    assert error / 1.5 < solver.error_estimate_ < 1.5 * error


@pytest.mark.parametrize("spreads", [True, False])
def test_an_equation_that_leaves_a_kink_open_has_an_estimate_if_it_is_solved(spreads):
    """Waves that spread, u = x / (1 + t), and a distance, whose sign is open, too."""

    def waves(u, x):
        return d(u, "t")(x) + u(x) * d(u, "x")(x)

    def distance(u, x):
        return d(u, "x")(x) ** 2 - 1

    start = [Initial(lambda x: x[0]), Dirichlet(0.0, on="x=min")]
    problem = Problem(waves, Box(x=(0, 1), t=(0, 1)), start)
    if not spreads:
        problem = Problem(distance, Interval(-1, 1, axis="x"), [Dirichlet(0.0)])
    sizes = {"hidden_layer_sizes": (8,), "n_interior": 60, "n_boundary": 20}
    solver = PINNSolver(problem, **sizes, max_iter=40, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solver.fit()
    said = "".join(str(warning.message) for warning in caught)
    assert ("characteristics meet" in said) != spreads
    if spreads:
        x, t = np.random.RandomState(0).rand(2, 200)
        exact = x / (1 + t)
        error = np.linalg.norm(solver.predict(np.column_stack([x, t])) - exact)
        error /= np.linalg.norm(exact)
        assert error / 3 < solver.error_estimate_ < 3 * error
    else:
        assert np.isnan(solver.error_estimate_)
        assert not solver.converged_


def test_the_estimate_is_kept(solver):
    value = solver.error_estimate_
    assert pickle.loads(pickle.dumps(solver)).error_estimate_ == value
    assert not hasattr(PINNSolver(), "error_estimate_")


def flow(u, x):
    """A pressure that drives a velocity: any function of time may be added to it."""
    return d(u["v"], "t")(x) + d(u["p"], "x")(x), d(u["v"], "x")(x)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("pinned", "free"), [((), [False, True]), (("p",), [False] * 2)]
)
def test_functions_of_time_that_are_free_do_not_count(pinned, free):
    conditions = [Dirichlet(0.0, outputs=name) for name in ("v", *pinned)]
    box = Box(x=(0, 1), t=(0, 2))
    problem = Problem(flow, box, conditions, outputs=("v", "p"))
    net = start_parameters(np.random.RandomState(0), (2, 4, 2), ())
    (model,) = fitting.models(
        [problem],
        ("tanh",),
        None,
        net.extra,
        equation=True,
        observed=None,
        device=None,
    )
    points = Sampler(40, 20, "sobol", "float64").draw(model, 0, 0, 0)
    found = statement.free_parts(model, points)[1]
    assert found.tolist() == free
    x = points[0].x[:, 0]
    v, p = x[:, 0], x[:, 1] ** 3
    left = error_estimate.without_free_parts(
        np.stack([v, p], axis=1), problem, x, np.array(free)
    )
    np.testing.assert_array_equal(left[:, 0], v)
    np.testing.assert_allclose(left[:, 1], 0 if free[1] else p, atol=1e-9)


def test_residuals_without_a_value_have_no_error_estimate():
    for value in (np.nan, np.inf):
        change, _ = error_estimate.least_squares(np.full((4, 4), value))
        assert np.isnan(change).all()
    change, _ = error_estimate.least_squares(np.diag([1.0, 1.0, 1.0, 0.0]))
    assert not change.any()

    def root(u, x):  # of a negative number at a few of the fresh points
        return d(u, "x")(x) - jnp.sqrt(x[0] - 5e-3)

    start = Condition(lambda u, x: u(x), on=[[0.5]])
    solver = PINNSolver(
        Problem(root, Interval(0, 1, axis="x"), [start]),
        hidden_layer_sizes=(6,),
        n_interior=30,
        n_boundary=2,
        max_iter=2,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit()
    assert np.isnan(solver.error_estimate_)
