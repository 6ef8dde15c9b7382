"""Regions of smooth coefficients, and what is continuous where two of them meet."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from sklearn_gn import PINNSolver
from sklearn_gn.pde import (
    Ball,
    Box,
    Dirichlet,
    Initial,
    Interval,
    Piecewise,
    Problem,
    Unknown,
    d,
    div,
    grad,
    laplacian,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RIGHT = Interval(0.5, 1, axis="x")
K = Piecewise(1.0, (RIGHT, 10.0))
LENS = Piecewise(1.0, (Ball(2, center=(0.5, 0.5), radius=0.25), lambda x: 2 + x[0]))
LINE, SQUARE = Interval(0, 1, axis="x"), Box(x=(0, 1), y=(0, 1))


def darcy(u, x):
    return div(LENS * grad(u))(x) + 1


def plate_in_time(u, x):
    return d(u, "t")(x) - div(LENS * grad(u))(x)


def beam(w, x):
    return d(K * d(w, "x", "x"), "x", "x")(x) - 1


def not_a_flux(u, x):
    return K(x) * laplacian(u)(x) + 1


def with_time(u, x):
    return K(x) * d(u, "t")(x) + 3 * d(u, "x")(x)


def mixed(u, x):
    return u["q"](x) + K(x) * d(u["u"], "x")(x), d(u["q"], "x")(x) - 1


def jumps(problem, function):
    """Points, and what must not jump there, for a function (m q,) of all regions."""
    kinds = {kind.name: kind for kind in problem.residual_classes()}
    points, data = problem.sample(8, 16, np.random.RandomState(0))["interface"]
    field, kind = problem.field(function), kinds["interface"]

    def one(x, data):
        return kind.function((field, field), x, data, problem.start)

    with jax.enable_x64(True):
        return points[:, 0], data, np.asarray(jax.jit(jax.vmap(one))(points, data))


def test_regions_are_those_of_smooth_coefficients():
    layers = Piecewise(1.0, (Interval(0.3, 0.6, axis="x"), 10.0))

    def both(u, x):
        return div(layers * grad(u))(x) + K(x)

    problem = Problem(both, LINE, [Dirichlet(0.0)])
    X = np.array([[0.1], [0.4], [0.55], [0.7], [0.9], [0.2]])
    numbers = problem.regions.numbers(X)
    assert len(problem.regions.parts) == problem.n_network_outputs == 4
    assert numbers[3] == numbers[4]
    assert numbers[0] == numbers[5]
    assert len({*numbers[:4].tolist()}) == 4
    places, _, _ = jumps(problem, lambda x: jnp.zeros(4))
    assert {*places.ravel().round(12).tolist()} == {0.3, 0.5, 0.6}
    problem = Problem(darcy, SQUARE, [Dirichlet(0.0)])
    assert len(problem.regions.parts) == 2
    again = pickle.loads(pickle.dumps(problem))
    assert again == problem == copy.deepcopy(problem)
    assert again.residual_classes() == problem.residual_classes()


def test_without_pieces_there_is_one_region():
    for residual in (lambda u, x: laplacian(u)(x), lambda u, x: d(u, "x")(x) - u(x)):
        assert Problem(residual, LINE).regions is None
    covers = Piecewise(1.0, (Interval(-1, 2, axis="x"), 10.0))
    whole = Problem(lambda u, x: div(covers * grad(u))(x), LINE)
    assert whole.regions is None


@pytest.mark.parametrize(
    ("residual", "domain"), [(darcy, SQUARE), (plate_in_time, SQUARE * Interval(0, 2))]
)
@pytest.mark.repeats
def test_value_and_flux_are_continuous_on_a_circle(residual, domain):
    problem = Problem(residual, domain, [Dirichlet(0.0)])

    def function(x):  # inside the lens, and outside
        return jnp.stack([x[0] ** 2 + x[1], 3 * x[1] ** 2 + x[0]])

    X, data, found = jumps(problem, function)
    x, y, normal = X[:, 0], X[:, 1], X[:, :2] - 0.5
    assert_allclose(np.linalg.norm(normal, axis=1), 0.25, rtol=1e-12)
    normal = normal / 0.25
    assert_allclose(data[:, :2], normal, atol=1e-12)
    k = 2 + x
    slopes = k[:, None] * np.column_stack([2 * x, np.ones_like(y)])
    slopes -= np.column_stack([np.ones_like(x), 6 * y])
    sign = -1 if domain.time else 1
    assert_allclose(found[:, 0], sign * (slopes * normal).sum(axis=1), rtol=1e-9)
    assert_allclose(
        found[:, 1],
        sign * (k + 1) / 2 * (x**2 + y - 3 * y**2 - x),
        rtol=1e-8,
        atol=1e-12,
    )


@pytest.mark.parametrize(
    ("residual", "expected"),
    [
        pytest.param(
            beam,
            lambda u, v: [
                10 * u[3] - v[3],
                10 * u[2] - v[2],
                5.5 * (u[1] - v[1]),
                5.5 * (u[0] - v[0]),
            ],
            marks=pytest.mark.slow,
        ),
        (not_a_flux, lambda u, v: [5.5 * (u[1] - v[1]), 5.5 * (u[0] - v[0])]),
    ],
)
def test_what_is_differentiated_is_continuous(residual, expected):
    problem = Problem(residual, LINE, [Dirichlet(0.0)])

    def function(x):  # in the right half, and in the left one
        return jnp.stack([jnp.exp(2 * x[0]), jnp.sin(3 * x[0])])

    _, data, found = jumps(problem, function)
    u = np.exp(1.0) * 2.0 ** np.arange(4)
    s, c = np.sin(1.5), np.cos(1.5)
    v = np.array([s, c, -s, -c]) * 3.0 ** np.arange(4)
    assert_allclose(np.delete(data, 1, axis=1), np.tile([-1.0, 0.0, 1.0], (8, 1)))
    # The normal of the right half points to the left.
    wanted = np.array(expected(u, v))
    wanted *= (-1.0) ** np.arange(1, len(wanted) + 1)
    assert_allclose(found, np.tile(wanted, (8, 1)), rtol=1e-9)


def test_only_what_is_differentiated_across_the_interface_is_joined():
    transport = Problem(with_time, Box(x=(0, 1), t=(0, 1)), [Dirichlet(0.0)])
    _, _, found = jumps(transport, lambda x: jnp.stack([x[0] + x[1], x[1] ** 2]))
    assert found.shape == (8, 1)
    system = Problem(mixed, LINE, [Dirichlet(0.0, outputs="u")], outputs=("u", "q"))
    _, _, found = jumps(system, lambda x: jnp.stack([5.0, 7.0, 2.0, 3.0]))
    assert_allclose(found, np.tile([-16.5, -4.0], (8, 1)))


def test_a_period_ends_in_the_region_in_which_it_begins():
    strip = Piecewise(1.0, (Box(x=(0, 1), y=(0.4, 0.6)), 10.0))

    def flow(u, x):
        return div(strip * grad(u))(x) + 1

    closed = Problem(flow, SQUARE, [Dirichlet(0.0, on="y=min")], periodic=("x",))
    assert len(closed.regions.parts) == 3
    with pytest.raises(ValueError, match=r"periodic='y'.*Give .* Periodic\('y'\)"):
        Problem(flow, SQUARE, periodic=("y",)).residual_classes()


def test_steps_across_axes_cut_the_domain():
    """Where the equation itself jumps, whatever it is written by; steep is no jump."""
    ends, box = [Dirichlet(0.0)], Box(x=(0, 2), y=(0, 1))

    def places(source, domain=LINE):
        problem = Problem(lambda u, x: laplacian(u)(x) + source(u, x), domain, ends)
        if problem.regions is None:
            return []
        points, _ = problem.sample(8, 64, np.random.RandomState(0))["interface"]
        found = np.round(points[:, 0], 8)
        return [sorted({*column.tolist()}) for column in found.T]

    load = jnp.where
    assert places(lambda u, x: jnp.floor(3 * x[0])) == [[0.33333333, 0.66666667]]
    assert places(lambda u, x: load(x[0] % 0.5 < 0.01, 1e-9, 0)) == [[0.01, 0.5, 0.51]]
    assert places(lambda u, x: load(x[0] > 0.3, K(x), 0) * u(x)) == [[0.3, 0.5]]
    assert places(lambda u, x: load(x[1] > 0.25, 1, 0), box)[1] == [0.25]
    for smooth in (
        lambda u, x: jnp.tanh(1e4 * (x[0] - 0.5)),
        lambda u, x: load(u(x) > 3.5, 1, 0),  # of the solution
        lambda u, x: jnp.floor(20 * x[0]),  # a table
    ):
        assert places(smooth) == []
    assert places(lambda u, x: load(x[0] > 0.3 + x[1], 1, 0), box) == []


@pytest.mark.parametrize("slope", [jax.grad, lambda u: grad(u)])
def test_derivatives_by_hand_are_refused_where_the_equation_jumps(slope):
    """What they keep continuous there is not known, and the parts would be apart."""

    def statement(k):
        def flux(u, x):
            return jax.grad(lambda y: k(y) * slope(u)(y)[0])(x)[0] + 1

        return Problem(flux, LINE, [Dirichlet(0.0)])

    for k in (K, lambda x: jnp.where(x[0] < 0.3, 1.0, 2.0)):
        with pytest.raises(ValueError, match=r"not taken by d, .* div\(k \* grad"):
            statement(k).residual_classes()
    assert statement(lambda x: 1 + x[0] ** 2).regions is None


@pytest.mark.parametrize("left", [0.0, 2.0, -0.5])
@pytest.mark.repeats
def test_what_is_joined_has_the_coefficients_of_both_sides(left):
    """Also where that of one side is zero, or has the other sign."""

    def equation(u, x):
        return jnp.where(x[0] < 0.5, left, 1.0) * d(u, "x", "x")(x)

    problem = Problem(equation, LINE, [Dirichlet(0.0)])
    _, _, found = jumps(problem, lambda x: jnp.stack([3 * x[0], x[0] ** 2]))
    factor = (abs(left) + 1) / 2
    assert_allclose(np.abs(found), np.tile([2 * factor, 1.25 * factor], (8, 1)))


@pytest.mark.slow
def test_a_load_that_begins_at_a_place():
    def loaded(w, x):
        return d(w, "x", "x")(x) - jnp.where(x[0] > 0.5, 1.0, 0.0)

    solver = fit(Problem(loaded, LINE, [Dirichlet(0.0)]))
    x = np.linspace(0, 1, 101)
    w = np.maximum(x - 0.5, 0) ** 2 / 2 - x / 8
    assert_allclose(solver.predict(x[:, None]), w, atol=1e-6)


@pytest.mark.slow
def test_doses_that_are_given_from_one_time_to_another():
    """Ordinary differential equations have regions of time, also with unknowns."""
    k = 1.3

    def dosed(u, t, k):
        return d(u, "t")(t) + k * u(t) - jnp.where((t[0] > 0.5) & (t[0] < 0.7), 2, 0)

    def exact(t):
        during = 2 / k * (1 - np.exp(-k * np.clip(t - 0.5, 0, 0.2)))
        return np.exp(-k * t) + during * np.exp(-k * np.maximum(t - 0.7, 0))

    t = np.linspace(0, 2, 101)
    problem = Problem(
        dosed, Interval(0, 2), [Initial(1.0)], coefficients={"k": Unknown(0.5)}
    )
    sizes = {"hidden_layer_sizes": (6,), "n_interior": 40}
    solver = PINNSolver(problem, **sizes, max_iter=40, random_state=0)
    solver.fit(t[::5, None], exact(t[::5]))
    assert_allclose(solver.predict(t[:, None]), exact(t), atol=1e-6)
    assert solver.coefficients_["k"] == pytest.approx(k, abs=1e-6)


def heated(u, x):
    return laplacian(u)(x) + 1


def cooled(u, x, h):
    return h * u(x) - 10 * laplacian(u)(x)


def test_each_region_has_its_equation():
    """Fluxes have their own factors, and may have opposite signs."""
    left = Interval(0, 0.5, axis="x")
    equations = {left: heated, LINE: cooled}
    problem = Problem(equations, LINE, [Dirichlet(0.0)], coefficients={"h": 3.0})
    _, _, found = jumps(problem, lambda x: jnp.stack([x[0] ** 2, jnp.exp(x[0])]))
    e = np.exp(0.5)
    assert_allclose(found, np.tile([1 - 10 * e, 5.5 * (0.25 - e)], (8, 1)))
    field = problem.field(lambda x: jnp.exp(2 * x[0]))
    interior = problem.residual_classes()[0].function
    for x, expected in ((0.2, 4 * np.exp(0.4) + 1), (0.7, -37 * np.exp(1.4))):
        x = np.array([x], np.float32)
        found = interior((field,), x[None], x[:0], problem.start)
        assert_allclose(found, [expected], rtol=1e-5)
    assert pickle.loads(pickle.dumps(problem)) == problem


@pytest.mark.parametrize(
    ("residual", "message"),
    [
        ({RIGHT: heated}, r"none of its domains contains \[0\.[0-4]"),
        ({RIGHT: heated, LINE: lambda u, x: (u(x), u(x))}, "as many equations"),
        ({"left": heated}, "map domains to functions, got 'left'"),
        ({LINE: 1.0}, "map domains to functions"),
    ],
)
def test_regions_need_equations(residual, message):
    with pytest.raises(ValueError, match=message):
        Problem(residual, LINE, [Dirichlet(0.0)]).check()


def fit(problem, **settings):
    settings = {
        "hidden_layer_sizes": (8,),
        "n_interior": 40,
        "n_boundary": 4,
    } | settings
    return PINNSolver(problem, max_iter=40, random_state=0, **settings).fit()


def test_wall_of_two_layers():
    # (k u')' = -1 with k = 1 in the left half and 10 in the right; -k u' = x - c.
    def wall(u, x):
        return div(K * grad(u))(x) + 1

    solver = fit(Problem(wall, LINE, [Dirichlet(0.0)]))
    x, c = np.linspace(0, 1, 101), (1 / 8 + 3 / 80) / (1 / 2 + 1 / 20)
    left, right = (np.clip(x, *half) for half in ((0, 0.5), (0.5, 1)))
    u = c * left - left**2 / 2 + (c * (right - 0.5) - (right**2 - 0.25) / 2) / 10
    assert_allclose(solver.predict(x[:, None]), u, atol=1e-6)
    slope = solver.derivative(np.array([[0.25], [0.75]]), "x")
    assert_allclose(slope, [c - 0.25, (c - 0.75) / 10], atol=1e-5)
    assert_allclose(solver.residual(x[:, None]), 0, atol=1e-4)


@pytest.mark.slow
def test_four_quadrants_of_different_conductivity():
    """The flux is unbounded where they meet: u grows as the distance to .39."""
    boxes = [Box(x=x, y=y) for x, y in (((0, 1), (0, 1)), ((-1, 0), (-1, 0)))]
    k = Piecewise(1.0, *((box, 10.0) for box in boxes))
    a = 4 / np.pi * np.arctan(10**-0.5)

    def exact(x):
        """Even in quadrants that conduct, and odd in the others, up to the sign."""
        angle = jnp.arctan2(x[1], x[0]) % (2 * np.pi)
        number = jnp.floor(angle / (np.pi / 2))
        t, half = a * (angle - (number + 0.5) * np.pi / 2), a * np.pi / 4
        even, odd = jnp.cos(t) / np.cos(half), jnp.sin(t) / np.sin(half)
        sign = jnp.where((number == 0) | (number == 3), -1, 1)
        return sign * jnp.hypot(*x) ** a * jnp.where(number % 2 == 0, even, odd)

    def flow(u, x):
        return div(k * grad(u))(x)

    problem = Problem(flow, Box(x=(-1, 1), y=(-1, 1)), [Dirichlet(exact)], exact=exact)
    solver = PINNSolver(problem, max_iter=60, random_state=0).fit()
    X, u = problem.reference(500, np.random.RandomState(0))
    error = solver.predict(X) - u[:, 0]
    assert np.linalg.norm(error) < 1e-6 * np.linalg.norm(u)
