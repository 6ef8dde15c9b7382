"""Problems of the package and of the benchmarks, and their computed references."""

import copy
import pickle
import shutil
from dataclasses import replace
from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial import chebyshev
from scipy.integrate import solve_ivp
from scipy.special import ive

from benchmarks import _computed, _literature
from benchmarks._allen_cahn import AllenCahn, AllenCahnReference
from benchmarks._burgers import Burgers, ColeHopf
from benchmarks._cavity import CavityReference, LidDrivenCavity
from benchmarks._literature import (
    Heat,
    LogFokkerPlanck,
    Poisson,
    PoissonBall,
    PoissonCosine,
)
from sklearn_gn.pde import Field, Unknown
from sklearn_gn.pde.problems import HeatSine, Kovasznay

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    """Where references are stored: not in the user's home."""
    path = tmp_path_factory.mktemp("references")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCIKIT_LEARN_DATA", str(path))
        yield path


CLOSED = {
    "kovasznay": Kovasznay(),
    "kovasznay-1000": Kovasznay(reynolds=1000),
    "poisson": Poisson(),
    "poisson-cosine": PoissonCosine(),
    "poisson-ball": PoissonBall(dim=70, seed=3),
    "heat": Heat(),
    "heat-1": Heat(dim=1),
    "heat-sine": HeatSine(),
    "fokker-planck": LogFokkerPlanck(),
    "burgers-viscous": Burgers(nu=0.5),
    "burgers-shock": Burgers(nu=0.01 / np.pi),
}
ALL = {
    **CLOSED,
    "burgers-hard": Burgers(hard=True),
    "allen-cahn": AllenCahn(),
    "cavity": LidDrivenCavity(),
}


def exact_field(problem):
    domain = problem.domain
    return Field(problem.exact, domain.axes, domain.time, problem.outputs)


def residuals(problem, n=64):
    """Residuals of the exact solution at random points, by class."""
    field = exact_field(problem)
    points = problem.sample(n, n, np.random.RandomState(0), "uniform")

    def of(kind, x, data):
        def one(x, data):
            fields = (field,) * kind.n_points
            return kind.function(fields, x, data, problem.known)

        return jax.vmap(one)(x, data)

    @jax.jit
    def of_all(points):
        return {kind.name: of(kind, *points[kind.name]) for kind in kinds}

    kinds = problem.residual_classes()
    found = of_all({kind.name: tuple(points[kind.name]) for kind in kinds})
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.repeats
def test_closed_forms_solve_their_problems(name):
    found = residuals(CLOSED[name])
    for kind, values in found.items():
        assert np.abs(values).max() < 1e-10, kind


def test_wrong_coefficient_is_seen():
    """The residual of the exact solution is not zero for all coefficients."""
    problem = Kovasznay(viscosity=Unknown(0.1, positive=True))
    assert problem.unknown.keys() == {"nu"}
    field = exact_field(problem)
    x = jnp.array([0.1, 0.2])
    momentum, divergence = jax.jit(lambda x: problem.residual(field, x, nu=0.1))(x)
    assert np.abs(momentum).max() > 0.1
    assert abs(divergence) < 1e-10


@pytest.mark.parametrize("name", ALL)
def test_problems_are_complete_and_copies_equal(name):
    problem = ALL[name]
    problem.check()
    for other in (copy.deepcopy(problem), pickle.loads(pickle.dumps(problem))):
        assert other == problem
        assert hash(other) == hash(problem)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Kovasznay(reynolds=0), "reynolds must be a positive number, got 0"),
        (lambda: LidDrivenCavity(reynolds=-1), "reynolds must be a positive number"),
        (lambda: Poisson(dim=3), "dim must be a multiple of 2, at least 2, got 3"),
        (lambda: Heat(dim=0), "dim must be an integer, at least 1, got 0"),
        (lambda: PoissonBall(dim=1), "dim must be an integer, at least 2, got 1"),
        (lambda: Burgers(nu=1e-6), "nu must be from 1e-05 to 1.0, got 1e-06"),
        (lambda: Burgers(nu="low"), "nu must be a positive number, got 'low'"),
        (lambda: AllenCahnReference(n_modes=1000), "n_modes must be a multiple of 512"),
        (lambda: CavityReference(100.0, n_modes=4), "n_modes must be an integer, at"),
    ],
)
def test_bad_parameters_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# --- conditions that hold exactly ----------------------------------------------------


def wave(x):
    return jnp.atleast_1d(jnp.sin(3 * jnp.sum(x)) + 0.7)


def test_hard_constraints_hold_up_to_rounding():
    rng = np.random.RandomState(1)

    problem = LogFokkerPlanck(dim=3)
    x = jnp.array([*rng.uniform(-5, 5, 3), 0.0])
    exact = float(problem.exact(x))
    assert problem.field(wave)(x) == pytest.approx(exact, rel=1e-12)
    x = x.at[-1].set(0.4)
    exact = float(problem.exact(x))
    assert problem.field(wave)(x) != pytest.approx(exact, rel=1e-3)

    burgers = Burgers(hard=True)
    field = burgers.field(wave)
    start = field(jnp.array([0.3, 0.0]))
    assert start == pytest.approx(-np.sin(0.3 * np.pi), rel=1e-12)
    assert abs(field(jnp.array([-1.0, 0.7]))) < 1e-12
    assert abs(field(jnp.array([1.0, 0.7]))) < 1e-12

    field = PoissonBall(dim=5).field(wave)
    assert abs(field(jnp.array([0.0, -1.0, 0.0, 0.0, 0.0]))) < 1e-12
    assert abs(field(jnp.array([0.0, -0.5, 0.0, 0.0, 0.0]))) > 1e-3


def test_kovasznay_is_accurate_at_high_reynolds_numbers():
    """The rate is a difference of nearly equal numbers, written without it."""
    with localcontext(prec=40):
        half = Decimal(500_000_000)
        rate = float(half - (half**2 + 4 * Decimal(np.pi) ** 2).sqrt())
    u = Kovasznay(reynolds=1e9).exact(jnp.array([1.0, 0.25]))
    expected = rate / (2 * np.pi) * np.exp(rate)
    assert u[1] == pytest.approx(expected, rel=1e-10)


# --- high dimension ------------------------------------------------------------------


def test_ball_in_100_000_dimensions():
    problem = PoissonBall()
    (x,) = PoissonBall().domain.sample(1, np.random.RandomState(0))
    c = _literature.weights_of(100_000, 0)
    a, b = x[:-1], x[1:]
    expected = (1 - x @ x) * c @ (np.sin(a + np.cos(b)) + b * np.cos(a))
    solution = problem.exact
    np.testing.assert_allclose(jax.jit(solution)(jnp.asarray(x)), expected, rtol=1e-10)

    # The Laplacian, written out.
    s, k = np.sin(a + np.cos(b)), np.cos(a + np.cos(b))
    pair = s + b * np.cos(a)
    slope_a, slope_b = k - b * np.sin(a), -k * np.sin(b) + np.cos(a)
    bend = -s - b * np.cos(a) - s * np.sin(b) ** 2 - k * np.cos(b)
    radial = c @ (a * slope_a + b * slope_b)
    expected = (1 - x @ x) * c @ bend - 4 * radial - 2 * x.size * c @ pair
    found = jax.jit(solution.laplacian)(jnp.asarray(x))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_distances_from_the_centre_are_uniform():
    x = PoissonBall(50).domain.sample(2000, np.random.RandomState(0), "uniform")
    radius = np.linalg.norm(x, axis=1)
    np.testing.assert_allclose(
        np.quantile(radius, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.03
    )
    assert np.abs(x.mean(axis=0)).max() < 0.01


# --- Burgers -------------------------------------------------------------------------


def bessel_series(nu, x, t):
    """Cole-Hopf by Fourier series, whose terms cancel where nu is small."""
    n = np.arange(1, 60)
    weight = (
        (-1.0) ** n
        * ive(n, 1 / (2 * np.pi * nu))
        * np.exp(-((np.pi * n) ** 2) * nu * t)
    )
    angle = np.pi * n * x[:, None]
    below = ive(0, 1 / (2 * np.pi * nu)) + 2 * np.cos(angle) @ weight
    return 4 * np.pi * nu * (np.sin(angle) @ (n * weight)) / below


@pytest.mark.parametrize("nu", [1.0, 0.1])
def test_cole_hopf_is_the_fourier_series(nu):
    x = np.linspace(-1, 1, 41)
    solution = jax.jit(jax.vmap(ColeHopf(nu)))
    for t in (0.05, 0.5, 1.0):
        values = solution(np.column_stack([x, np.full_like(x, t)]))
        np.testing.assert_allclose(values, bessel_series(nu, x, t), atol=1e-10)


@pytest.mark.parametrize("nu", [0.5, 1e-4])
def test_cole_hopf_converges(nu):
    differences = ColeHopf(nu).convergence((0.8, 0.1))
    assert differences[0.1] < 1e-11
    assert differences[0.8] > differences[0.1]


# --- Allen-Cahn ----------------------------------------------------------------------


def test_allen_cahn_reference():
    reference = AllenCahnReference(n_modes=2048, n_steps=400)
    points, values = reference.points, reference.values
    assert points.shape == (512 * 201, 2)
    assert values.shape == (512 * 201, 1)
    start = points[:, 1] == 0
    x = points[start, 0]
    np.testing.assert_allclose(values[start, 0], x**2 * np.cos(np.pi * x), atol=1e-12)
    table = values.reshape(512, 201)
    np.testing.assert_allclose(table[1:], table[:0:-1], atol=1e-10)  # even in x
    differences = reference.convergence(n_modes=(512, 1024), n_steps=(200,))
    assert differences["n_modes"][512] < 5e-6
    assert differences["n_modes"][1024] < 3e-7
    assert differences["n_steps"][200] < 5e-8


def test_allen_cahn_steps_agree_with_another_integrator():
    n = 512
    linear = 5 - 1e-4 * (np.pi * np.arange(n // 2 + 1)) ** 2

    def slope(_, u):
        modes = linear * np.fft.rfft(u) - 5 * np.fft.rfft(u**3)
        return np.fft.irfft(modes, n)

    x = -1 + 2 * np.arange(n * 4096) / (n * 4096)  # so many that no mode has an alias
    modes = np.fft.rfft(x**2 * np.cos(np.pi * x))[: n // 2 + 1] / 4096
    start, times = np.fft.irfft(modes, n), np.linspace(0, 1, 11)
    found = solve_ivp(slope, (0, 1), start, "DOP853", times, rtol=1e-10, atol=1e-12)
    table = AllenCahnReference(n_modes=n, n_steps=2000).values.reshape(n, 201)
    np.testing.assert_allclose(table[:, 20::20], found.y[:, 1:], atol=1e-8)


# --- lid-driven cavity ---------------------------------------------------------------


def test_cavity_converges():
    reference = CavityReference(100.0, n_modes=32)
    differences = reference.convergence(n_modes=(16, 24))["n_modes"]
    assert differences[16] < 2e-4
    assert differences[24] < 1e-5
    steeper = CavityReference(1000.0, n_modes=24)
    assert steeper.convergence(n_modes=(16,))["n_modes"][16] < 1e-2


def test_cavity_values_on_the_walls():
    problem = LidDrivenCavity(reynolds=100.0)
    reference = replace(problem.exact, n_modes=24)
    points, values = reference.points, reference.values
    assert np.isnan(values[:, 2]).all()
    (condition,) = problem.conditions
    wall = (points == 0).any(axis=1) | (points == 1).any(axis=1)
    expected = jax.vmap(condition.value)(jnp.asarray(points[wall]))
    np.testing.assert_allclose(values[wall, :2], expected, atol=1e-10)
    assert values[:, 0].max() == pytest.approx(1 - 1 / np.cosh(5))


def test_cavity_balances_vorticity_inside():
    """Velocity alone, differentiated on a patch: v . grad z = Laplacian of z / Re."""
    n, low, width, reynolds = 25, 0.25, 0.5, 100.0
    nodes = np.cos(np.pi * np.arange(n + 1) / n)
    to_series = np.linalg.inv(chebyshev.chebvander(nodes, n))
    slope = chebyshev.chebval(nodes, chebyshev.chebder(np.eye(n + 1))).T @ to_series
    slope *= 2 / width
    ticks = low + width * (nodes + 1) / 2
    velocity = CavityReference(reynolds, n_modes=40).velocity(
        _computed.grid(ticks, ticks)
    )
    u, v = velocity.T.reshape(2, n + 1, n + 1)
    np.testing.assert_allclose(slope @ u + v @ slope.T, 0, atol=1e-7)
    z = slope @ v - u @ slope.T
    convection = u * (slope @ z) + v * (z @ slope.T)
    diffusion = (slope @ slope @ z + z @ slope.T @ slope.T) / reynolds
    np.testing.assert_allclose(convection, diffusion, atol=1e-3)
    assert np.abs(convection).max() > 1


# --- stored references ---------------------------------------------------------------


calls = []


def counted(n):
    calls.append(1)
    return np.arange(float(n))


def test_references_are_stored(monkeypatch, tmp_path):
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    calls.clear()

    def from_disk():
        monkeypatch.setattr(_computed, "_memory", {})
        return _computed.stored("name_1", counted, n=3)

    from_disk()
    np.testing.assert_array_equal(from_disk(), [0, 1, 2])
    assert len(calls) == 1
    (path,) = (tmp_path / "sklearn_gn" / "name_1").rglob("output.pkl")
    path.write_bytes(b"broken")
    np.testing.assert_array_equal(from_disk(), [0, 1, 2])
    assert len(calls) == 2
    from_disk()
    assert len(calls) == 2
    shutil.rmtree(tmp_path / "sklearn_gn")
    _computed.stored("name_1", counted, n=3)  # from memory
    assert len(calls) == 2
    _computed.stored("name_1", counted, n=4)
    assert len(calls) == 3


def test_a_folder_that_cannot_be_written_is_no_obstacle(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(blocked))
    monkeypatch.setattr(_computed, "_memory", {})
    with pytest.warns(UserWarning, match="folder of stored results"):
        result = _computed.stored("name_1", counted, n=2)
    np.testing.assert_array_equal(result, [0, 1])
