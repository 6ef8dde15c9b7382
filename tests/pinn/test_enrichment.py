"""Units of the outputs, and waves that the problem shows."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn import PINNSolver
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.trees import dimension
from sklearn_gn.pde import (
    Box,
    Dirichlet,
    Initial,
    Interval,
    Neumann,
    Problem,
    d,
    laplacian,
)
from sklearn_gn.pinn.enrichment import enriched, units, waves
from sklearn_gn.pinn.enrichment.singular import corner_functions, rough_corners
from sklearn_gn.pinn.model import (
    Model,
    network,
    start_parameters,
    wider,
)
from sklearn_gn.solvers import DNGD

SQUARE = Box(x=(0, 2), y=(1, 2))


def source(*waves, kind=Dirichlet):
    """A Poisson problem with the sum of sines of these wave vectors."""

    def residual(u, x):
        return laplacian(u)(x) - sum(jnp.sin(jnp.array(k) @ x) for k in waves)

    return Problem(residual, SQUARE, kind(0.0))


def test_waves_are_those_of_the_source():
    wanted = [(3.3, 14.2), (9.1, -21.5)]  # of no whole number of periods
    found = waves.wave_vectors(source(*wanted))
    found = sorted(tuple(np.array(k) * np.sign(k[0])) for k in found)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_modulated_wave_is_seen_and_a_slow_source_shows_none():
    def problem(source):
        return Problem(
            lambda u, x: d(u, "x", "x")(x) - source(x[0]), Interval(0, 1, axis="x")
        )

    def modulated(x):
        return jnp.exp(x) * jnp.sin(40 * np.pi * x)

    ((k,),) = waves.wave_vectors(problem(modulated))
    assert k == pytest.approx(40 * np.pi)
    for slow in (jnp.exp, lambda x: 5 * x, lambda x: 1 / (1 + 30 * x**2), jnp.sqrt):
        assert waves.wave_vectors(problem(slow)) == ()


def test_waves_of_conditions_lie_in_their_face():
    start = Initial(lambda x: jnp.cos(8 * np.pi * x[0]))
    problem = Problem(lambda u, x: d(u, "t"), Box(x=(0, 1), t=(0, 3)), start)
    ((kx, kt),) = waves.wave_vectors(problem)
    assert (kx, kt) == (pytest.approx(8 * np.pi), 0.0)


def cube(dim, **more):
    return Box(**{f"x{k}": (0.0, 1.0) for k in range(dim)}, **more)


def test_units_are_those_of_the_values():
    problem = Problem(
        lambda u, x: (d(u["a"], "t")(x) - 1, d(u["b"], "t")(x), d(u["c"], "t")(x) - 1),
        Box(x=(0, 1), t=(0, 1)),
        [
            Initial(lambda x: 300 + x[0], outputs="a"),
            Dirichlet(-7.0, outputs="b"),
            Dirichlet(lambda x: 1e-17 * x[0], outputs="c"),  # rounding
        ],
        outputs=("a", "b", "c"),
    )
    center, scale = units(problem)
    np.testing.assert_allclose(center, [300.5, 0, 0], atol=0.01)
    np.testing.assert_allclose(scale, [0.5, 7, 1 / np.pi], rtol=0.05)
    y = np.array([[np.nan, 20.0], [2.0, 10.0]])
    center, scale = units(problem, y, (1, 2))
    assert (center[1:], scale[1:]) == ((0.0, 0.0), (7.0, 10.0))
    fast = source((0.0, 40.0))
    ((size,),) = units(fast, waves=[(0.0, 40.0)])[1:]
    assert size == pytest.approx(40.0**-2, rel=0.2)


def test_units_take_the_axes_of_estimated_laplacians():
    seen = []

    def residual(u, x):
        seen.append(u.directions)
        return laplacian(u)(x) - 1.0

    problem = Problem(residual, cube(50), n_laplacian_directions=4)
    problem.residual_classes()  # counts the residuals
    seen.clear()
    ((center,), (size,)) = units(problem)
    assert center == 0
    # A half wave of all axes, whose Laplacian is -50 pi^2 cos.
    assert 1 / (50 * np.pi**2) < size < 4 / (50 * np.pi**2)
    assert seen
    assert all(np.shape(directions) == (4,) for directions in seen)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("power", "size"), [(1, 1e-8), (2, 1e-4), (3, 1e-8 ** (1 / 3))]
)
def test_an_output_without_values_has_the_size_that_balances_its_terms(power, size):
    def residual(u, t):
        a, b = u(t)
        return d(u["A"], "t")(t) + a, 1e8 * b**power - a

    problem = Problem(
        residual, Interval(0, 1), Initial(1.0, outputs="A"), outputs=("A", "B")
    )
    assert units(problem)[1] == pytest.approx((1.0, size), rel=0.2)


def test_the_field_has_physical_units_and_the_waves():
    problem, _ = enriched(source((0.0, 40.0), kind=Neumann), [])
    assert pickle.loads(pickle.dumps(problem.scale)) == problem.scale
    (wave,) = problem.added["waves"]
    rng = np.random.RandomState(0)
    net = start_parameters(rng, (2, 3, 3, 1), (), n_waves=2)
    assert [m.shape for m in net.layers] == [(5, 3), (4, 3), (6, 1)]
    model, x = Model(problem, ("tanh", "tanh"), ()), np.array([0.3, 1.2])
    plain = network(model, net, x)
    net.layers[-1][3, 0], net.layers[-1][4, 0] = 2.0, 3.0
    phase = np.array(wave) @ (x - [1.0, 1.5])
    expected = plain + 2 * np.cos(phase) + 3 * np.sin(phase)
    np.testing.assert_allclose(network(model, net, x), expected, rtol=1e-10)
    more = wider(net, rng, n_waves=2)
    assert [m.shape for m in more.layers] == [(5, 5), (6, 5), (8, 1)]
    np.testing.assert_allclose(network(model, more, x), expected, rtol=1e-10)
    assert dimension(wider(net, None)) == dimension(more)


@pytest.mark.slow
def test_a_default_fit_solves_what_oscillates_fast():
    def exact(x):
        return 50 * jnp.sin(30 * np.pi * x[0])

    def residual(u, x):
        return d(u, "x", "x")(x) + (30 * np.pi) ** 2 * exact(x)

    problem = Problem(residual, Interval(0, 1, axis="x"), Dirichlet(0.0), exact=exact)
    with pytest.warns(Warning, match="max_iter"):
        solver = PINNSolver(problem, max_iter=7, random_state=0).fit()
    assert solver.relative_error() < 1e-4
    assert solver.enrichment_ == {"waves": 2}


def test_known_functions_are_chosen_by_name():
    problem = source((3.3, 14.2))
    solver = PINNSolver(problem, solver=DNGD(enrichment=["similarity"]), max_iter=1)
    with pytest.warns(Warning, match="max_iter"):
        assert solver.fit().enrichment_ == {}
    with pytest.raises(ValueError, match="enrichment contains"):
        PINNSolver(problem, solver=DNGD(enrichment=["eddies"])).fit()


def test_functions_of_corners_have_derivatives_at_the_corners():
    domain = Box(x=(-1, 1), y=(-1, 1)) - Box(x=(0, 1), y=(0, 1))
    corners = rough_corners(Problem(lambda u, x: laplacian(u)(x), domain))

    def functions(x):
        return corner_functions(corners, domain, x)

    def right_angle(x):  # z^2 log z of the corner at (-1, -1), turned to its bisector
        z = ((x[0] + 1) + 1j * (x[1] + 1)) / 2 * np.exp(-0.25j * np.pi)
        return np.array([(z**2 * np.log(z)).real, (z**2 * np.log(z)).imag])

    number = [c.place for c in corners].index((-1.0, -1.0))
    near, step = np.array([-0.9, -0.7]), 1e-6
    with backend.scope("float64"):
        slopes = jax.jit(jax.jacfwd(functions))
        for corner in corners:
            assert np.isfinite(slopes(jnp.array(corner.place))).all()
        own = slice(2 * number, 2 * number + 2)
        at_corner = np.asarray(slopes(jnp.array([-1.0, -1.0])))[own]
        found = np.asarray(slopes(jnp.array(near)))[own]
    np.testing.assert_allclose(at_corner, 0, atol=1e-9)
    differences = [
        (right_angle(near + e) - right_angle(near - e)) / (2 * step)
        for e in step * np.eye(2)
    ]
    np.testing.assert_allclose(found, np.transpose(differences), atol=1e-8)


def test_a_well_in_a_wide_aquifer_is_a_logarithm():
    def drawdown(u, x):
        return d(u, "r", "r")(x) + d(u, "r")(x) / x[0]

    ends = [Dirichlet(0.0, on="r=min"), Dirichlet(10.0, on="r=max")]
    aquifer = Problem(drawdown, Interval(0.1, 100.0, "r"), ends)
    solver = PINNSolver(aquifer, random_state=0).fit()
    r = np.geomspace(0.1, 100, 50)
    np.testing.assert_allclose(
        solver.predict(r[:, None]), 10 * np.log(r / 0.1) / np.log(1000), atol=1e-6
    )
    assert solver.enrichment_ == {"logarithms": 1}


@pytest.mark.parametrize(
    ("residual", "low", "count"),
    [
        (lambda u, x: x[0] ** 2 * d(u, "r", "r")(x) + 3 * x[0] * d(u, "r")(x), 1.0, 1),
        (lambda u, x: d(u, "r", "r")(x) + 2 * d(u, "r")(x) / x[0], -1.0, 0),
        (lambda u, x: d(u, "r", "r")(x) + 2 * d(u, "r")(x), 1.0, 0),
        (lambda u, x: d(u, "r", "r")(x) + u(x) / x[0], 1.0, 0),
    ],
)
def test_logarithms_are_for_axes_of_symmetry(residual, low, count):
    problem = Problem(residual, Interval(low, 3, "r"), [Dirichlet(lambda x: x[0])])
    solver = PINNSolver(problem, solver=DNGD(enrichment=["logarithms"]), max_iter=1)
    with pytest.warns(ConvergenceWarning):
        solver.fit()
    assert solver.enrichment_.get("logarithms", 0) == count
