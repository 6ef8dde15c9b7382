"""Residuals with the network in NumPy: those of the compiled network."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn.arrays import backend
from sklearn_gn.linalg import jacobian as operators
from sklearn_gn.pde import Box, Dirichlet, Initial, Periodic, Problem, Unknown, d
from sklearn_gn.pinn import damped_step, numpy_residuals, residuals, solution
from sklearn_gn.pinn.enrichment.dispersion import MOST_WAVES
from sklearn_gn.pinn.enrichment.posed import posed
from sklearn_gn.pinn.model import ClassModel, Model, start_parameters
from sklearn_gn.pinn.needed_rows import rows_and_sizes
from sklearn_gn.pinn.points import batch_of

pytestmark = pytest.mark.usefixtures("float64")


def coupled(u, x, c):
    """Two equations, with first and mixed derivatives and a sum of second ones."""
    u, v = u["u"], u["v"]
    waves = d(u, "t", "t")(x) - d(u, "x", "x")(x) + d(v, "x", "t")(x)
    return d(u, "t")(x) - c * v(x) * d(v, "x")(x), waves


def start(x):
    return jnp.array([jnp.sin(x[0]), 0.0])


def helmholtz(u, x):
    return d(u, "x", "x")(x) + d(u, "t", "t")(x) + 400 * u(x)


@cache
def problem_of(case):
    box = Box(x=(0, 1), t=(0, 2))
    if case == "waves":
        problem, _ = posed(Problem(helmholtz, box, [Dirichlet(0.0)]), [])
        assert 0 < problem.n_functions <= 2 * MOST_WAVES
        return problem
    conditions = [Initial(start)]
    if case == "values":
        conditions.append(Dirichlet(0.0, on="x=min", outputs="v"))
    elif case == "pairs":
        conditions.append(Periodic("x"))
    return Problem(
        coupled,
        box,
        conditions,
        outputs=("u", "v"),
        coefficients={"c": Unknown(2.0)},
        periodic=("x",) if case == "circle" else (),
    )


@cache
def setting(case, activation="tanh", widths=(4, 3)):
    """Model, parameters and weighted points of a problem."""
    problem, rng = problem_of(case), np.random.RandomState(0)
    waves = getattr(problem, "n_functions", 0)
    sizes = problem.n_inputs - waves, *widths, len(problem.outputs)
    net = start_parameters(rng, sizes, problem.unknown.values(), waves)
    net = jax.tree.map(lambda a: a + 0.1 * rng.standard_normal(a.shape), net)
    kinds, rows = problem.residual_classes(), rows_and_sizes(problem, net.extra)[0]
    points = problem.sample(13, 6, rng, "uniform")
    batches = tuple(batch_of(*points[k.name], k.weight, "float64") for k in kinds)
    classes = tuple(map(ClassModel, kinds, rows))
    return Model(problem, (activation,) * len(widths), classes), net, batches


@pytest.mark.parametrize(
    ("case", "activation"),
    [("values", "tanh"), ("pairs", "sin"), ("circle", "tanh"), ("waves", "tanh")],
)
@pytest.mark.repeats
def test_they_are_those_of_the_compiled_network(case, activation):
    model, net, batches = setting(case, activation)
    assert numpy_residuals.serve(model, batches)
    compiled = jax.jit(residuals.jacobian, static_argnums=0)
    whole, expected = compiled(model, net, batches)
    size = np.abs(whole).max()
    found = numpy_residuals.residuals(model, net, batches)
    np.testing.assert_allclose(found, whole, rtol=1e-10, atol=1e-11 * size)
    r, parts = numpy_residuals.jacobian(model, net, batches)
    np.testing.assert_allclose(r, found, rtol=1e-10, atol=1e-11 * size)
    (one,), (other,) = map(operators.multiplied_out, (parts, backend.views(expected)))
    for a, b in zip(one[1:], other[1:], strict=True):
        size = np.abs(other.dense).max()
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11 * size)
    interior = numpy_residuals.class_residuals(model, model.classes[0], net, batches[0])
    weighted = np.ravel(batches[0].scale[:, None] * interior)
    size = np.abs(weighted).max()
    np.testing.assert_allclose(found[: len(weighted)], weighted, atol=1e-11 * size)


def test_a_larger_network_compiles_nothing(compiled):
    numpy_residuals.jacobian(*setting("values"))
    numpy_residuals.residuals(*setting("values"))
    larger = setting("values", widths=(5, 4, 3))
    compiled.clear()
    numpy_residuals.jacobian(*larger)
    numpy_residuals.residuals(*larger)
    assert compiled == []


def test_activations_without_formulas_are_compiled():
    model, _, batches = setting("values", activation="gelu")
    assert not numpy_residuals.serve(model, batches)


def test_a_difference_is_the_second_derivative_where_residuals_are_quadratic():
    """They are along the last layer; elsewhere the third derivative comes to it."""
    model, net, batches = setting("values")
    rng = np.random.RandomState(1)
    last = rng.standard_normal(net.layers[-1].shape)
    linear = damped_step.Linearisation(
        *numpy_residuals.jacobian(model, net, batches), None, None
    )
    local = damped_step.LocalProblem(model, net, batches, linear, geodesic=True)
    step = jax.tree.map(np.zeros_like, net)
    step = step._replace(layers=(*step.layers[:-1], last))
    matrix = operators.multiplied_out(linear.parts)
    image = operators.forward(matrix, step)
    expected = jax.jit(lambda v: damped_step.by_derivative(local, v, image))(step)
    assert np.abs(expected).max() > 0.1
    found = damped_step.by_difference(local, step, image)
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("case", ["waves", "values", "pairs", "circle"])
def test_values_of_a_solution_are_those_of_the_compiled_network(case):
    model, net, batches = setting(case)
    net = backend.views(net)
    x = np.asarray(batches[0].x)[:, 0]
    found = solution.values(model, net, x)
    expected = jax.jit(solution.values, static_argnums=0)(model, net, x)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
