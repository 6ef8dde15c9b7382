"""D-NGD: the residuals' Jacobian in factors, and the step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn.curvature import jacobian as operators
from sklearn_gn.networks.taylor import Rows
from sklearn_gn.pde import (
    Box,
    Dirichlet,
    Initial,
    Neumann,
    Periodic,
    Problem,
    Unknown,
    d,
    div,
    grad,
)
from sklearn_gn.pde.problems import Kovasznay
from sklearn_gn.solvers import dngd
from sklearn_gn.solvers.pinn_residuals import (
    Batch,
    ClassModel,
    Model,
    jacobian,
    needed_rows,
    residuals,
    second_derivative,
    start_parameters,
)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def burgers(u, x, nu):
    return d(u, "t") + u * d(u, "x") - nu * d(u, "x", "x")


def diffusion(u, x, a):
    return div((1 + u**2) * grad(u)) - a


def beam(u, x):
    return d(u, "x", "x", "x", "x") - 1


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
    "beam": Problem(beam, Box(x=(0.0, 1.0)), (Dirichlet(0.0),)),
}
ROWS = {
    "burgers": Rows((0, 1), (((0, 0),),)),
    "diffusion": Rows((0, 1), (((0, 0), (1, 1)),)),
    "kovasznay": Rows((0, 1), (((0, 0), (1, 1)),)),
    "beam": None,
}


def setting(name, n_interior=9, n_boundary=6):
    problem = PROBLEMS[name]
    rng = np.random.RandomState(0)
    points = problem.sample(n_interior, n_boundary, rng, "uniform")
    sizes = problem.n_inputs, 5, 4, len(problem.outputs)
    params = start_parameters(rng, sizes, problem.unknown.values())
    model, batches, classes = Model(problem, ("tanh", "sin"), ()), [], []
    for residual in problem.residual_classes():
        x, data = points[residual.name]
        batch = Batch(x, data, np.full(len(x), np.sqrt(residual.weight / len(x))))
        classes.append(
            ClassModel(residual, needed_rows(model, residual, params, batch))
        )
        batches.append(batch)
    return model._replace(classes=tuple(classes)), params, tuple(batches)


@pytest.mark.parametrize("name", PROBLEMS)
def test_jacobian_in_factors_is_that_of_automatic_differentiation(name):
    model, params, batches = setting(name)
    assert model.classes[0].rows == ROWS[name]
    r, parts = jax.jit(jacobian, static_argnames="model")(model, params, batches)
    plain = tuple(known._replace(rows=None) for known in model.classes)
    slow = model._replace(classes=plain)
    expected = jax.jit(partial(residuals, slow))(params, batches)
    np.testing.assert_allclose(r, expected, rtol=1e-12, atol=1e-13)
    derivative = jax.jit(jax.jacrev(partial(residuals, slow)))(params, batches)
    m = len(r)
    flat = [np.reshape(a, (m, -1)) for a in (*derivative.layers, derivative.extra)]
    expected = np.concatenate(flat, axis=1)
    found = np.asarray(jax.jit(operators.dense)(parts))
    np.testing.assert_allclose(found, expected, atol=1e-12 * np.abs(expected).max())
    gram = jax.jit(operators.gramian)(parts)
    np.testing.assert_allclose(gram, found @ found.T, atol=1e-12 * np.max(gram))
    rng = np.random.RandomState(1)
    v = jax.tree.map(lambda a: rng.standard_normal(a.shape), params)
    y = rng.standard_normal(m)
    flat_v = np.concatenate([np.ravel(a) for a in (*v.layers, v.extra)])
    np.testing.assert_allclose(
        jax.jit(operators.forward)(parts, v), found @ flat_v, atol=1e-10
    )
    back = jax.jit(operators.transposed)(parts, y, params)
    back = np.concatenate([np.ravel(a) for a in (*back.layers, back.extra)])
    np.testing.assert_allclose(back, y @ found, atol=1e-10)


def test_symmetric_product_in_blocks_is_the_product(monkeypatch):
    monkeypatch.setattr(operators, "_BLOCK_ROWS", 7)
    a = np.random.RandomState(0).randn(23, 5)
    product = jax.jit(lambda a: operators.symmetric_product(a))(a)
    np.testing.assert_allclose(product, a @ a.T, atol=1e-13)


@pytest.mark.parametrize("name", ["burgers"])
@pytest.mark.parametrize(("n_interior", "n_boundary"), [(9, 6), (90, 20)])
def test_damped_step_is_that_of_the_augmented_system(name, n_interior, n_boundary):
    # Fewer residuals than parameters, and more: the dual and the primal form.
    model, params, batches = setting(name, n_interior, n_boundary)
    found = dngd.spectrum(model, params, batches)
    matrix = np.asarray(jax.jit(operators.dense)(found.parts))
    solve = jax.jit(dngd.damped_solution)
    size = float(found.values[-1])
    for ratio in (1e-2, 1e-5, 1e-8):
        shift = ratio * size
        step = solve(found, params, shift, found.r)
        step = np.concatenate([np.ravel(a) for a in (*step.layers, step.extra)])
        n = matrix.shape[1]
        system = np.concatenate([matrix, np.sqrt(shift) * np.eye(n)])
        right = np.concatenate([-np.asarray(found.r), np.zeros(n)])
        expected = np.linalg.lstsq(system, right, rcond=None)[0]
        error = np.linalg.norm(step - expected) / np.linalg.norm(expected)
        assert error <= 1e-13 / ratio


def test_second_derivative_is_that_of_finite_differences():
    model, params, batches = setting("kovasznay")
    rng = np.random.RandomState(0)
    v = jax.tree.map(lambda a: rng.standard_normal(a.shape), params)
    along = jax.jit(lambda t: residuals(model, dngd.add(params, t, v), batches))
    h = 1e-4
    expected = (along(h) - 2 * along(0.0) + along(-h)) / h**2
    bent = jax.jit(second_derivative, static_argnames="model")
    found = bent(model, params, batches, v)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_radii_give_steps_of_their_length_and_honest_gains():
    model, params, batches = setting("kovasznay", 30, 20)
    found = dngd.spectrum(model, params, batches)
    radii = np.array([1e-3, 1e-2, 1e-1])
    trials = dngd.try_radii(model, params, batches, found, radii, False)
    np.testing.assert_allclose(trials.length, radii, rtol=1e-5)
    np.testing.assert_allclose(trials.gain[:1], 1, atol=0.05)
    assert (np.diff(trials.shift) < 0).all()
    for k, loss in enumerate(np.asarray(trials.loss)):
        net = jax.tree.map(lambda a, k=k: a[k], trials.net)
        assert loss == pytest.approx(float(dngd.total_loss(model, net, batches)))
