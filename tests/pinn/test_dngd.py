"""D-NGD: the residuals' Jacobian in factors, and the step."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from benchmarks._literature import PoissonBall
from sklearn_gn.arrays import backend, blocks
from sklearn_gn.arrays.trees import add
from sklearn_gn.linalg import jacobian as operators
from sklearn_gn.networks import MLP
from sklearn_gn.optim import first_order
from sklearn_gn.optim.first_order import ssbroyden
from sklearn_gn.optim.radius_search import Region, Shifts, longest_trusted
from sklearn_gn.pde import (
    Box,
    Dirichlet,
    Initial,
    Neumann,
    Periodic,
    Problem,
    Robin,
    Unknown,
    d,
    div,
    grad,
    hessian,
)
from sklearn_gn.pde.problems import Kovasznay
from sklearn_gn.pinn import dngd, pieces
from sklearn_gn.pinn.iteration import batch_of, losses_of_classes
from sklearn_gn.pinn.model import (
    DerivativeRows,
    Features,
    Model,
    start_parameters,
)
from sklearn_gn.pinn.residuals import jacobian, residuals, rows_and_sizes

pytestmark = pytest.mark.usefixtures("float64")


def burgers(u, x, nu):
    return d(u, "t") + u * d(u, "x") - nu * d(u, "x", "x")


def diffusion(u, x, a):
    return div((1 + u**2) * grad(u)) - a


def logistic(u, x, k):
    return d(u, "t") - k * u * (1 - u)


def hunt(u, x, k):
    prey, hunters = u["u"], u["v"]
    return d(prey, "t") - prey + k * prey * hunters, d(hunters, "t") + hunters - prey


def third(u, x):
    return d(u, "x", "x", "x") - 1


def twisted(u, x):
    bend = hessian(u)(x)
    return bend[0, 0] + bend[0, 1] + u(x) * bend[1, 1]


SQUARE = Box(x=(0.0, 1.0), y=(-1.0, 1.0))
PROBLEMS = {
    "burgers": Problem(
        burgers,
        Box(x=(-1.0, 1.0), t=(0.0, 1.0)),
        (Initial(lambda x: jnp.sin(x[0])), Periodic("x")),
        coefficients={"nu": Unknown(0.1, positive=True)},
    ),
    "diffusion": Problem(
        diffusion,
        SQUARE,
        (Dirichlet(0.0, on="x=min"), Neumann(1.0, on="y=max")),
        coefficients={"a": 2.0},
        transform=lambda x, u: u * x[0] + 1,
    ),
    "kovasznay": Kovasznay(),
    "third": Problem(third, Box(x=(0.0, 1.0)), (Dirichlet(0.0),)),
    "twisted": Problem(twisted, SQUARE, (Robin(1.0, 2.0, 0.5),)),
    "ball": PoissonBall(4),
}
ROWS = {
    "burgers": DerivativeRows((0, 1), (((0, 0),),)),
    "diffusion": DerivativeRows((0, 1), (((0, 0), (1, 1)),)),
    "kovasznay": DerivativeRows((0, 1), (((0, 0), (1, 1)),)),
    "third": None,
    "twisted": DerivativeRows((0, 1), (((0, 0), (0, 1)), ((1, 1),))),
    "ball": DerivativeRows((0, 1, 2, 3), (((0, 0), (1, 1), (2, 2), (3, 3)),)),
}


# Steps of the optimiser and products of Jacobians are those of any residuals: here of
# some that compile quickly.
LOGISTIC = Problem(
    logistic,
    Box(t=(0.0, 2.0)),
    (Initial(0.1),),
    coefficients={"k": Unknown(0.5, positive=True)},
)
HUNTERS = Problem(
    hunt,
    Box(t=(0.0, 2.0)),
    (Initial(0.1),),
    outputs=("u", "v"),
    coefficients={"k": Unknown(0.5)},
)
QUICK = {"logistic": LOGISTIC, "hunters": HUNTERS}


@cache
def setting(name, n_interior=9, n_boundary=6):
    problem = QUICK[name] if name in QUICK else PROBLEMS[name]
    rng = np.random.RandomState(0)
    points = problem.sample(n_interior, n_boundary, rng, "uniform")
    sizes = problem.n_inputs, 5, 4, len(problem.outputs)
    params = start_parameters(rng, sizes, problem.unknown.values())
    kinds = problem.residual_classes()
    batches = tuple(batch_of(*points[k.name], k.weight, "float64") for k in kinds)
    rows = rows_and_sizes(problem, params.extra)[0]
    model = Model(
        problem,
        ("tanh", "sin"),
        tuple(k._replace(rows=r) for k, r in zip(kinds, rows, strict=False)),
    )
    return model, params, batches


def dense(parts):
    """J itself."""
    rows = [jnp.hstack([operators.multiplied(part), part.extra]) for part in parts]
    return jnp.concatenate(rows)


# What is traced in one test is used in others.
jacobian_of = jax.jit(jacobian, static_argnames="model")
residuals_of = jax.jit(residuals, static_argnames="model")
dense_of = jax.jit(dense)


def test_the_size_of_a_residual_is_its_change_with_a_solution_of_size_one():
    def residual(u, x, k):
        return 3 * d(u, "x", "x")(x) - k * d(u, "y")(x) + 7 * u(x) - 1000.0

    box = Box(x=(0.0, 0.5), y=(2.0, 6.0))
    conditions = [Dirichlet(5.0), Neumann(1.0, on="x=min")]
    problem = Problem(residual, box, conditions, coefficients={"k": 2.0})
    _, sizes = rows_and_sizes(problem, np.zeros(0))
    # One unit of [-1, 1] is 1/4 of x and 2 of y; random normals have length one.
    interior = np.sqrt((3 * 4**2) ** 2 + (2 / 2) ** 2 + 7**2)
    np.testing.assert_allclose(np.ravel(sizes[:2]), [interior, 1.0], rtol=1e-10)
    assert 1 / 2 < sizes[2][0] < 4


@pytest.mark.parametrize(
    "name", ["logistic", pytest.param("third", marks=pytest.mark.slow)]
)
def test_a_network_of_the_user_has_the_same_residuals_and_gramian(name):
    model, params, batches = setting(name)
    own = tuple((matrix[:-1], matrix[-1]) for matrix in params.layers[:-1])
    features = Features(MLP((5, 4), ("tanh", "sin")), jax.tree.structure(own))
    classes = tuple(known._replace(rows=None) for known in model.classes)
    theirs = Model(model.problem, (), classes, features)
    layers = (*jax.tree.leaves(own), params.layers[-1])

    @partial(jax.jit, static_argnames="model")
    def find(model, params):
        r, parts = jacobian(model, params, batches)
        return r, operators.gramian(parts)

    r, matrix = map(np.asarray, find(model, params))
    again, found = find(theirs, params._replace(layers=layers))
    np.testing.assert_allclose(again, r, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(found, matrix, atol=1e-10 * np.abs(matrix).max())


def flat(params):
    return np.concatenate([np.ravel(a) for a in (*params.layers, params.extra)])


@pytest.mark.slow
def test_laplacians_from_all_axes_are_exact_and_sparse_inputs_are_dense_ones():
    model, params, (batch,) = setting("ball")
    rng = np.random.RandomState(0)
    every = batch._replace(axes=rng.permutation(4).astype(np.int32))
    exact = residuals_of(model, params, (batch,))
    kind = model.classes[0]
    (rows,) = rows_and_sizes(model.problem, params.extra, every.axes)[0]
    assert rows == DerivativeRows((0, 1, 2, 3), (((0, 0), (1, 1), (2, 2), (3, 3)),))
    sparse = model._replace(classes=(kind._replace(rows=rows),))
    r = residuals_of(sparse, params, (every,))
    np.testing.assert_allclose(r, exact, rtol=1e-10)
    some = batch._replace(axes=np.array([2, 0], np.int32))
    (rows,) = rows_and_sizes(model.problem, params.extra, some.axes)[0]
    sparse = model._replace(classes=(kind._replace(rows=rows),))
    plain = sparse._replace(classes=(kind,))
    y, v = rng.standard_normal(len(batch.x)), jax.tree.map(np.ones_like, params)

    @jax.jit
    def find(params, batches, v):
        expected, whole = jacobian(plain, params, batches)
        r, parts = jacobian(sparse, params, batches)
        products = (
            dense(parts),
            operators.gramian(parts),
            operators.transposed(parts, y, params),
            operators.forward(parts, v),
        )
        return r, expected, dense(whole), products

    r, expected_r, expected, (found, gram, back, pushed) = find(params, (some,), v)
    np.testing.assert_allclose(r, expected_r, rtol=1e-10)
    expected = np.asarray(expected)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, atol=1e-10 * scale)
    np.testing.assert_allclose(gram, expected @ expected.T, atol=1e-10 * np.max(gram))
    np.testing.assert_allclose(flat(back), y @ expected, atol=1e-10 * scale)
    np.testing.assert_allclose(pushed, expected.sum(axis=1), atol=1e-10 * scale)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.repeats
def test_rows_are_the_derivatives_that_an_equation_has(name):
    assert setting(name)[0].classes[0].rows == ROWS[name]


# Sums of second derivatives and a transform are those of the ball above, normals those
# of the Robin condition.
SAME = ("diffusion", "kovasznay", "ball")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SAME else name
        for name in PROBLEMS
    ],
)
@pytest.mark.repeats
def test_jacobian_in_factors_is_that_of_finite_differences(name):
    model, params, batches = setting(name)
    r, parts = jacobian_of(model, params, batches)
    plain = tuple(known._replace(rows=None) for known in model.classes)
    slow = model._replace(classes=plain)
    unravel = ravel_pytree(params)[1]
    at = jax.jit(jax.vmap(lambda theta: residuals(slow, unravel(theta), batches)))
    theta = flat(params)
    np.testing.assert_allclose(r, at(theta[None])[0], rtol=1e-10, atol=1e-11)
    m, steps = len(r), 1e-3 * np.eye(len(theta))
    far, near = (at(theta + k * steps) - at(theta - k * steps) for k in (2, 1))
    expected = np.asarray(8 * near - far).T / 12e-3
    rng = np.random.RandomState(1)
    v = jax.tree.map(lambda a: rng.standard_normal(a.shape), params)
    y = rng.standard_normal(m)

    @jax.jit
    def in_factors(parts, v, y):
        return (
            dense(parts),
            operators.gramian(parts),
            operators.forward(parts, v),
            operators.transposed(parts, y, params),
        )

    found, gram, pushed, back = in_factors(parts, v, y)
    np.testing.assert_allclose(found, expected, atol=1e-8 * np.abs(expected).max())
    (whole,) = operators.multiplied_out(backend.views(parts))
    rows = np.concatenate([whole.dense, whole.extra], axis=1)
    np.testing.assert_allclose(rows, found, atol=1e-10 * np.abs(found).max())
    np.testing.assert_allclose(gram, found @ found.T, atol=1e-10 * np.max(gram))
    np.testing.assert_allclose(pushed, found @ flat(v), atol=1e-10)
    np.testing.assert_allclose(flat(back), y @ found, atol=1e-10)


@pytest.mark.parametrize("name", ["hunters", "third"])
@pytest.mark.repeats
def test_products_in_blocks_are_those_of_the_whole_jacobian(name, monkeypatch):
    monkeypatch.setattr(blocks, "_SYMMETRIC_ROWS", 7)
    monkeypatch.setattr(operators, "BLOCK_ROWS", 4)
    monkeypatch.setattr(operators, "LEAST_ROWS", 4)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 4)
    monkeypatch.setattr(blocks, "LEAST_ROWS", 4)
    _, parts = jacobian_of(*setting(name))
    assert max(part.extra.shape[0] for part in parts) > 7

    @jax.jit
    def products(parts):
        return (
            dense(parts),
            # Not the functions themselves, whose compiled forms have other blocks.
            operators.gramian(parts),
            operators.normal_matrix(parts),
        )

    rows, gramian, found = map(np.asarray, products(parts))
    np.testing.assert_allclose(gramian, rows @ rows.T, atol=1e-10 * gramian.max())
    expected = rows.T @ rows
    np.testing.assert_allclose(found, expected, atol=1e-10 * expected.max())


# Errors of the step, which in the primal form grow with the condition of J, one over
# the root of the damping. A factor is refined where they would be larger; conjugate
# gradients have a tolerance.
ERROR = {None: 1e-6, 10: 1e-8}
GROWTH = {None: 3e-12, 10: 2e-13}


def trial_of(model, params, batches, shift, rank=None, **options):
    system = pieces.linear_system(model, params, batches)
    known = dngd.quadratic_model(model, *system, rank=rank)
    words = {"geodesic": False, "corrected": False, **options}
    return dngd.trial(model, *system[:2], known, np.float64(shift), **words)


@pytest.mark.parametrize("rank", [None, 10])
@pytest.mark.parametrize(
    ("n_interior", "n_boundary"),
    [pytest.param(9, 6, marks=pytest.mark.slow), (90, 20)],
)
@pytest.mark.repeats
def test_damped_step_is_that_of_the_augmented_system(n_interior, n_boundary, rank):
    # Fewer residuals than parameters, and more: the dual and the primal form.
    model, params, batches = setting("burgers", n_interior, n_boundary)
    r, parts = jacobian_of(model, params, batches)
    r, matrix = np.asarray(r), np.asarray(dense_of(parts))
    size, n = np.linalg.norm(matrix, 2) ** 2, matrix.shape[1]
    for ratio in (1e-2, 1e-5, 1e-8, 1e-12):
        shift = ratio * size
        system = np.concatenate([matrix, np.sqrt(shift) * np.eye(n)])
        right = np.concatenate([-r, np.zeros(n)])
        expected = np.linalg.lstsq(system, right, rcond=None)[0]
        found = trial_of(model, params, batches, shift, rank)
        assert found.length == pytest.approx(np.linalg.norm(expected), rel=1e-2)
        error = np.linalg.norm(flat(found.step) - expected) / np.linalg.norm(expected)
        growth = GROWTH[rank] / np.sqrt(ratio) if len(r) > n else 0
        assert error <= ERROR[rank] + growth
        linear_loss = 0.5 * np.sum((r + matrix @ flat(found.step)) ** 2)
        fall = 0.5 * r @ r - linear_loss
        assert found.predicted == pytest.approx(fall, rel=1e-10)


def test_correction_is_the_damped_answer_to_what_the_linear_model_has_not_foreseen():
    model, params, batches = setting("logistic", 90, 6)
    r, parts = jacobian_of(model, params, batches)
    matrix, r = np.asarray(dense_of(parts)), np.asarray(r)
    shift = np.max(matrix.T @ matrix)
    found = trial_of(model, params, batches, shift, geodesic=True, corrected=True)

    def answer(right):
        m = len(matrix)
        inverse = matrix @ matrix.T + shift * np.eye(m)
        return -matrix.T @ np.linalg.solve(inverse, right)

    def residuals_after(step):
        change = ravel_pytree(params)[1](step)
        return np.asarray(residuals_of(model, add(params, 1, change), batches))

    plain = answer(r)
    there = residuals_after(0.1 * plain)
    bent = answer(200 * (there - r - 0.1 * matrix @ plain)) / 2
    assert 2 * np.linalg.norm(2 * bent) <= 0.75 * np.linalg.norm(plain)
    accelerated = plain + bent
    rest = residuals_after(accelerated) - (r + matrix @ plain)
    expected = accelerated + answer(rest)
    np.testing.assert_allclose(flat(found.step), expected, rtol=1e-6, atol=1e-9)
    losses = [np.sum(residuals_after(s) ** 2) / 2 for s in (expected, accelerated)]
    assert losses[0] < losses[1]
    assert found.loss == pytest.approx(losses[0], rel=1e-8)
    found = trial_of(model, params, batches, shift, geodesic=True)
    np.testing.assert_allclose(flat(found.step), accelerated, rtol=1e-6, atol=1e-9)
    # The difference is the second derivative of the residuals along the step.
    v, h = ravel_pytree(params)[1](plain), 1e-4
    ahead, back = (
        np.asarray(residuals_of(model, add(params, t, v), batches)) for t in (h, -h)
    )
    exact = answer((ahead - 2 * r + back) / h**2) / 2
    np.testing.assert_allclose(bent, exact, atol=0.1 * np.abs(exact).max())


def updated_in_region(model, params, batches, radius, shift=np.nan, rank=None):
    """The best step, and the next region."""
    system = pieces.linear_system(model, params, batches)
    quadratic = dngd.quadratic_model(model, *system, rank=rank)
    region = Region(np.float64(radius), np.float64(shift))
    evaluate = partial(dngd.trial, model, *system[:2], quadratic, geodesic=False)
    shifts = Shifts(evaluate, shift, quadratic.floor, quadratic.largest)
    return longest_trusted(shifts, region, float(quadratic.losses.sum()))


def test_trust_region_takes_the_longest_step_that_keeps_its_promise():
    model, params, batches = setting("logistic", 30, 20)
    start = float(losses_of_classes(model, params, batches).sum())
    best, region = updated_in_region(model, params, batches, 1e-3)
    # So short a step that the linearised residuals hold: the widest radius is taken.
    size = np.linalg.norm(flat(best.step))
    assert 3.2e-3 < size < 5.5e-3
    assert region.radius == pytest.approx(size, rel=1e-10)
    assert best.gain_ratio == pytest.approx(1, abs=0.05)
    loss = float(losses_of_classes(model, add(params, 1, best.step), batches).sum())
    assert loss < start
    assert loss == pytest.approx(float(best.loss), rel=1e-10)
    assert best.losses.sum() == pytest.approx(loss, rel=1e-10)
    # Far too long: nothing is taken, and the next radius is an eighth.
    best, region = updated_in_region(model, params, batches, 1e3)
    assert best is None
    assert float(region.radius) == 125


@pytest.mark.parametrize(
    ("n_interior", "rank"), [(12, None), (90, None), (12, 10)], ids=str
)
@pytest.mark.repeats
def test_the_step_of_a_radius_is_the_damped_step_of_its_length(n_interior, rank):
    model, params, batches = setting("logistic", n_interior, 6)
    best, region = updated_in_region(model, params, batches, 0.05, rank=rank)
    r, parts = jacobian_of(model, params, batches)
    matrix, r = np.asarray(dense_of(parts)), np.asarray(r)
    values, vectors = np.linalg.eigh(matrix.T @ matrix)
    slopes = vectors.T @ (matrix.T @ r)

    def length(shift):
        return np.linalg.norm(slopes / (np.maximum(values, 0) + shift))

    shift = float(best.shift)
    assert length(shift) == pytest.approx(float(best.length), rel=1e-6)
    expected = -vectors @ (slopes / (values + shift))
    error = np.linalg.norm(flat(best.step) - expected)
    assert error <= 1e-6 * np.linalg.norm(expected)
    # Shift and radius are kept for the next iteration.
    assert region.shift == best.shift
    assert region.radius == best.length
    # The derivative of the length by the shift.
    h = 1e-4
    slope = np.log(length(shift * (1 - h)) / length(shift * (1 + h))) / (2 * h)
    assert float(best.decay) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize(
    ("n_interior", "dtype", "shift", "tolerance"),
    [
        (12, "float64", 1e-3, 1e-8),
        (90, "float64", 1e-3, 1e-8),
        pytest.param(90, "float32", 1, 1e-2, marks=pytest.mark.slow),
    ],
)
@pytest.mark.repeats
def test_numpy_and_compiled_functions_make_the_same_step(
    n_interior, dtype, shift, tolerance
):
    model, *drawn = setting("logistic", n_interior, 6)
    params, batches = jax.tree.map(lambda a: np.asarray(a, dtype), drawn)
    one = np.ones((), dtype)
    whole = batches, *pieces.compiled_jacobian(model, params, batches)
    found = []
    for net, weighted, r, parts in (
        (params, *whole),
        pieces.linear_system(model, params, batches),
    ):
        quadratic = dngd.quadratic_model(model, net, weighted, r, parts)
        for floor in (0.0, 1.0):  # without refinement and with it
            given = model, net, weighted, quadratic._replace(floor=one * floor)
            trial = dngd.trial(*given, one * shift, geodesic=True)
            found.append((quadratic._replace(r=None, parts=None), trial))
    assert isinstance(parts[0].dense, np.ndarray)
    assert isinstance(trial.loss, np.generic)
    for compiled, numpy in zip(found[:2], found[2:], strict=True):
        for a, b in zip(jax.tree.leaves(compiled), jax.tree.leaves(numpy), strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance / 100)
            assert a.dtype == b.dtype


def test_a_gramian_that_cannot_be_factored_leaves_the_network():
    model, params, batches = setting("logistic", 12, 6)
    broken = jax.tree.map(lambda a: a * np.nan, params)
    assert updated_in_region(model, broken, batches, 1.0)[0] is None


def test_self_scaled_broyden_minimises_a_quadratic_function():
    rng = np.random.RandomState(0)
    factor = rng.standard_normal((12, 12))
    matrix = factor @ factor.T + np.eye(12)
    goal = rng.standard_normal(12)

    def loss(x):
        return 0.5 * (x - goal) @ matrix @ (x - goal)

    method = ssbroyden()

    @jax.jit
    def run(x):
        def step(carry, _):
            x, memory = carry
            value, gradient = jax.value_and_grad(loss)(x)
            move, memory = first_order.line_search_step(
                method, x, value, gradient, memory, loss
            )
            return (x + move, memory), None

        start = x, first_order.start(method, x)
        return jax.lax.scan(step, start, None, length=40)[0][0]

    np.testing.assert_allclose(run(np.zeros(12)), goal, atol=1e-8)
