"""GNvpro: the inner problem, the reduced Jacobian, the step."""

from functools import cache, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree
from sklearn.linear_model import LogisticRegression, Ridge

from sklearn_gn.networks import CNN, MLP, NeuralODE
from sklearn_gn.networks.cnn import convolve
from sklearn_gn.optim.multinomial import all_classes, to_columns
from sklearn_gn.optim.solver import Rows
from sklearn_gn.optim.trust_region import (
    SpectralModel,
    damped_coordinates,
    decrease,
    lanczos,
    radius_shift,
)
from sklearn_gn.solvers import Adam, GNvpro
from sklearn_gn.varpro import baselines, problem, reduced, training
from sklearn_gn.varpro import inner as inner_problem
from sklearn_gn.varpro.batches import current_batch, mini_batch, shuffled_epochs
from sklearn_gn.varpro.posterior import posterior
from sklearn_gn.varpro.problem import Model, Net, Penalties

pytestmark = pytest.mark.usefixtures("float64")


def example(loss, n_classes=3, m=23, seed=0, network=None, alpha=1e-2, padding=0):
    """Network, rows with a few of weight zero, penalties."""
    rng = np.random.RandomState(seed)
    network = network or MLP((5, 4), ("tanh", "sin"))
    x = rng.randn(m, 3)
    if loss == "squared":
        y = rng.randn(m, n_classes)
    else:
        y = rng.rand(m, n_classes) ** 3  # soft labels
        y /= y.sum(axis=1, keepdims=True)
    weight = rng.rand(m)
    weight[::7] = 0
    pad = [(0, padding), (0, 0)]
    rows = Rows(
        np.pad(x, pad), np.pad(y, pad), np.pad(weight / weight.sum(), (0, padding))
    )
    theta = network.init(rng, 3)
    width = jax.eval_shape(network.apply, theta, x).shape[1]
    q = 1 if loss == "cross_entropy" and n_classes == 2 else n_classes
    net = Net(theta, np.zeros((width + 1, q)))
    penalties = Penalties(np.float64(alpha), np.float64(alpha / 3))
    return Model(network, loss), net, jax.tree.map(jnp.asarray, rows), penalties


CASES = [("squared", 3), ("cross_entropy", 2), ("cross_entropy", 4)]


def solve_inner(model, *arguments):
    return compiled_inner(inner_problem.LARGEST_DENSE, model, *arguments)


@partial(jax.jit, static_argnums=(0, 1))
def compiled_inner(limit, *arguments):
    del limit  # a constant of the module, which tests change
    return inner_problem.solve_inner(*arguments)


def solved(loss, n_classes, **words):
    """An example with its best output layer, computed once."""
    return solved_with(inner_problem.LARGEST_DENSE, loss, n_classes, **words)


@cache
def solved_with(limit, loss, n_classes, **words):
    del limit  # read by the module
    model, net, rows, penalties = example(loss, n_classes, **words)
    inner = solve_inner(model, net.theta, rows, penalties, net.output)
    return model, net._replace(output=inner.output), rows, penalties, inner


@partial(jax.jit, static_argnames="model")
def forward(model, net, inner, rows, penalties, directions):
    """Images of some directions, and the reduced gradient."""
    jacobian = reduced.reduced_jacobian(model, net.theta, inner, rows, penalties)
    return jax.vmap(jacobian.forward)(directions), jacobian.gradient


@partial(jax.jit, static_argnames="model")
def transposed(model, net, inner, rows, penalties, values, output):
    jacobian = reduced.reduced_jacobian(model, net.theta, inner, rows, penalties)
    return jacobian.transposed(values, output)


# --- the inner problem ---------------------------------------------------------------


@pytest.mark.parametrize("m", [23, 3])
def test_least_squares_is_ridge_regression(m):
    *_, rows, penalties, inner = solved("squared", 2, m=m)
    z = np.asarray(inner.z)
    ridge = Ridge(alpha=float(penalties.output), fit_intercept=False)
    ridge.fit(z, rows.y, rows.weight)
    np.testing.assert_allclose(inner.output, ridge.coef_.T, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("limit", [pytest.param(2000, marks=pytest.mark.slow), 0])
def test_cross_entropy_is_logistic_regression(limit, monkeypatch):
    monkeypatch.setattr(inner_problem, "LARGEST_DENSE", limit)
    for n_classes in (2, 4):
        model, net, rows, penalties = example("cross_entropy", n_classes)
        label = np.arange(23) % n_classes
        rows = rows._replace(y=jnp.eye(n_classes)[label])
        inner = solve_inner(model, net.theta, rows, penalties, net.output)
        z = np.asarray(inner.z)
        peer = LogisticRegression(
            C=1 / float(penalties.output),
            fit_intercept=False,
            solver="newton-cholesky" if limit else "newton-cg",
            tol=1e-12,
            max_iter=1000,
        ).fit(z, label, rows.weight)
        atol = 1e-8 if limit else 1e-5
        np.testing.assert_allclose(inner.output, peer.coef_.T, atol=atol)
        gradient = inner.z.T @ inner.error + penalties.output * inner.output
        assert float(jnp.max(jnp.abs(gradient))) <= inner_problem.INNER_TOL


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.repeats
def test_inner_hessian_is_the_second_derivative(n_classes):
    model, _net, rows, penalties, inner = solved("cross_entropy", n_classes)

    def mean_loss(columns):
        return rows.weight @ problem.example_losses(model, inner.z @ columns.T, rows.y)

    by_class = inner.output.T
    expected = jax.jit(jax.hessian(mean_loss))(by_class)
    hessian = jax.jit(inner_problem.entropy_hessian)(inner.z, inner.values, rows.weight)
    expected = expected.reshape(hessian.shape)
    np.testing.assert_allclose(hessian, expected, rtol=0, atol=1e-11)
    right = np.random.RandomState(1).randn(*inner.output.shape)
    damped = expected + penalties.output * np.eye(len(expected))
    solution = np.linalg.solve(damped, right.T.ravel()).reshape(by_class.shape).T
    found = jax.jit(lambda factors: factors.solve(right))(inner.factors)
    np.testing.assert_allclose(found, solution, rtol=1e-8)


@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.repeats
def test_inner_hessian_is_exact_in_several_blocks(q):
    rng = np.random.RandomState(0)
    z, values, weight = rng.randn(20, 301), rng.randn(20, q), np.full(20, 0.05)
    probability = to_columns(jax.nn.softmax(all_classes(values), axis=1))
    covariance = -probability[:, :, None] * probability[:, None, :]
    covariance += probability[:, :, None] * np.eye(q)[None]
    expected = np.einsum("i,icd,ij,ik->cjdk", weight, covariance, z, z, optimize=True)
    found = jax.jit(inner_problem.entropy_hessian)(z, values, weight)
    np.testing.assert_allclose(found, expected.reshape(found.shape), atol=1e-11)


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_factors_are_finite_where_the_network_is_certain(precision):
    rng = np.random.RandomState(0)
    z, weight = rng.randn(200, 33), np.full(200, 1 / 200)
    values = 1e3 * z @ rng.randn(33, 10)
    arrays = (a.astype(precision) for a in (z, values, weight, np.zeros(())))
    (root,) = jax.jit(inner_problem.entropy_factors)(*arrays)
    assert np.isfinite(root).all()


@pytest.mark.slow
def test_newton_gives_up_reused_factors_that_are_of_no_use():
    model, net, rows, penalties = example("cross_entropy", 4)
    fresh = solve_inner(model, net.theta, rows, penalties, net.output)
    broken = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), fresh.factors)
    found = solve_inner(model, net.theta, rows, penalties, net.output, broken)
    np.testing.assert_allclose(found.output, fresh.output, atol=1e-8)


@pytest.mark.parametrize("limit", [2000, 0])
def test_inner_solution_does_not_depend_on_the_factors_it_starts_with(
    limit, monkeypatch
):
    monkeypatch.setattr(inner_problem, "LARGEST_DENSE", limit)
    model, net, rows, penalties = example("cross_entropy", 4)
    near = solve_inner(model, net.theta, rows, penalties, net.output)
    theta = jax.tree.map(lambda leaf: 1.1 * leaf, net.theta)
    fresh = solve_inner(model, theta, rows, penalties, near.output)
    reused = solve_inner(model, theta, rows, penalties, near.output, near.factors)
    np.testing.assert_allclose(reused.output, fresh.output, atol=1e-8)
    # Those of the solution are always its own.
    for other, own in zip(reused.factors, fresh.factors, strict=True):
        np.testing.assert_allclose(other, own, rtol=1e-6, atol=1e-7)


def test_inner_newton_survives_margins_of_a_thousand():
    model, net, rows, penalties = example("cross_entropy", 4)
    start = 1e3 * np.random.RandomState(0).randn(*net.output.shape)
    inner = solve_inner(model, net.theta, rows, penalties, start)
    again = solve_inner(model, net.theta, rows, penalties, net.output)
    np.testing.assert_allclose(inner.output, again.output, atol=1e-8)


def test_padding_changes_nothing():
    for case in CASES[::2]:
        *_, inner = solved(*case)
        *_, padded = solved(*case, padding=9)
        np.testing.assert_allclose(padded.output, inner.output, atol=1e-8)
        assert float(padded.loss) == pytest.approx(float(inner.loss), rel=1e-10)


# --- the reduced Jacobian ------------------------------------------------------------


def reduced_values(model, rows, penalties, start):
    """Values and W as functions of theta, through the inner solve."""

    def values(theta):
        z = problem.features(model, theta, rows.x)
        if model.loss == "squared":
            gram = z.T @ (rows.weight[:, None] * z)
            gram = gram + penalties.output * jnp.eye(z.shape[1])
            output = jnp.linalg.solve(gram, z.T @ (rows.weight[:, None] * rows.y))
        else:
            output = implicit(theta)
        return z @ output, output

    def implicit(theta):
        # One differentiable Newton step from the solution has the derivative of it.
        inner = inner_problem.solve_inner(
            model, jax.lax.stop_gradient(theta), rows, penalties, start
        )
        here = jax.lax.stop_gradient(inner.output)

        def gradient(output, theta):
            z = problem.features(model, theta, rows.x)
            e = rows.weight[:, None] * problem.loss_gradient(model, z @ output, rows.y)
            return (z.T @ e + penalties.output * output).ravel()

        hessian = jax.jacobian(gradient)(here, jax.lax.stop_gradient(theta))
        hessian = hessian.reshape(here.size, here.size)
        return here - jnp.linalg.solve(hessian, gradient(here, theta)).reshape(
            here.shape
        )

    return values


@pytest.mark.parametrize("case", CASES)
@pytest.mark.repeats
def test_reduced_jacobian_is_the_derivative_through_the_inner_solve(case):
    model, net, rows, penalties, inner = solved(*case)
    flat, unravel = ravel_pytree(net.theta)
    values = reduced_values(model, rows, penalties, inner.output)
    directions = np.random.RandomState(0).randn(3, flat.size)

    @jax.jit
    def expected(directions):
        along = partial(jax.jvp, lambda f: values(unravel(f)), (flat,))
        return jax.vmap(lambda d: along((d,))[1])(directions)

    found, _ = forward(model, net, inner, rows, penalties, directions)
    for a, b in zip(found, expected(directions), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9 * np.abs(b).max())


@pytest.mark.parametrize("case", CASES)
def test_jacobian_and_its_transpose_are_transposes(case):
    model, net, rows, penalties, inner = solved(*case)
    flat, _ = ravel_pytree(net.theta)
    rng = np.random.RandomState(0)
    d = rng.randn(flat.size)
    v, w = rng.randn(*inner.values.shape), rng.randn(*inner.output.shape)
    given = model, net, inner, rows, penalties
    images, _ = forward(*given, d[None])
    images = [np.asarray(image[0]) for image in images]
    left = np.sum(images[0] * v) + np.sum(images[1] * w)
    right = d @ np.asarray(transposed(*given, v, w))
    size = np.linalg.norm(images[0]) * np.linalg.norm(v)
    size += np.linalg.norm(images[1]) * np.linalg.norm(w)
    assert abs(left - right) <= 1e-10 * size


@pytest.mark.parametrize("case", CASES)
@pytest.mark.repeats
def test_taylor_remainder_of_the_reduced_gradient_has_slope_two(case):
    model, net, rows, penalties, inner = solved(*case, alpha=1e-1)
    flat, unravel = ravel_pytree(net.theta)
    flat = np.asarray(flat)
    d = np.random.RandomState(1).randn(flat.size)
    d /= np.linalg.norm(d)

    @jax.jit
    def solve(flat):
        theta = unravel(flat)
        return inner_problem.solve_inner(
            model, theta, rows, penalties, inner.output
        ).loss

    def loss(h):
        return float(solve(flat + h * d))

    steps = 10.0 ** -np.arange(0.5, 5.51, 0.5)
    _, gradient = forward(model, net, inner, rows, penalties, d[None])
    slope = float(np.asarray(gradient) @ d)
    remainder = [abs(loss(h) - loss(0) - h * slope) for h in steps]
    slopes = np.diff(np.log10(remainder)) / np.diff(np.log10(steps))
    np.testing.assert_allclose(slopes, 2, atol=0.1)


# --- the Gauss-Newton matrix ---------------------------------------------------------


def dense_matrix(model, net, rows, penalties, inner):
    """H_red from the columns of the reduced Jacobian."""
    flat, unravel = ravel_pytree(net.theta)
    eye = np.eye(flat.size)
    (jv, jw), gradient = forward(model, net, inner, rows, penalties, eye)
    jv, jw = np.asarray(jv), np.asarray(jw).reshape(len(jv), -1)
    q = inner.values.shape[1]

    @jax.jit
    def bends(values):
        def one(v, u):
            return problem.loss_curvature(model, v[None], u[None])[0]

        return jax.vmap(lambda v: jax.vmap(partial(one, v))(np.eye(q)))(values)

    @jax.jit
    def smooths(eye):
        def one(e):
            return ravel_pytree(problem.penalty_product(model, unravel(e)))[0]

        return jax.vmap(one)(eye)

    matrix = np.einsum("i,aip,ipq,biq->ab", rows.weight, jv, bends(inner.values), jv)
    matrix += float(penalties.output) * jw @ jw.T
    return matrix + float(penalties.hidden) * np.asarray(smooths(eye)), gradient


NETWORKS = {"mlp": MLP((4,)), "ode": NeuralODE(width=4, n_cells=2)}


@pytest.mark.parametrize(
    ("case", "network"),
    [
        *((case, "mlp") for case in [("squared", 1), *CASES[1:], ("squared", 12)]),
        pytest.param(("squared", 7), "mlp", marks=pytest.mark.slow),
        pytest.param(("cross_entropy", 4), "ode", marks=pytest.mark.slow),
    ],
)
@pytest.mark.repeats
def test_every_form_of_the_curvature_is_the_dense_matrix(case, network, monkeypatch):
    monkeypatch.setattr(reduced, "KRYLOV_TOL", 0.0)
    words = {"network": NETWORKS[network], "m": 9 if network == "mlp" else 23}
    model, net, rows, penalties, inner = solved(*case, **words)
    matrix, gradient = dense_matrix(model, net, rows, penalties, inner)
    n = len(gradient)
    forms = [reduced.primal_model(model, net, rows, penalties)]
    if case == CASES[1]:  # products are tested as derivatives too
        krylov = jax.jit(reduced.krylov_model.__wrapped__, static_argnums=(0, 4))
        forms.append(krylov(model, net, rows, penalties, n))
    if network == "mlp":
        forms.append(reduced.dual_model(model, net, rows, penalties))
    scale = np.linalg.eigvalsh(matrix)[-1]
    for form, (spectral, found, *_) in enumerate(forms):
        np.testing.assert_allclose(found, gradient, atol=1e-9)
        for shift in (1e-1, 1e-4):
            coordinates = jax.jit(damped_coordinates)(spectral, shift * scale)
            step = np.asarray(spectral.basis @ coordinates)
            system = matrix + shift * scale * np.eye(n)
            expected = -np.linalg.solve(system, gradient)
            size = np.linalg.norm(expected)
            assert np.linalg.norm(step - expected) <= 1e-8 * size, form


@pytest.mark.parametrize("radius", [1e-6, 1e-2, 1.0, 1e6])
def test_step_in_the_ball_is_the_minimiser_of_the_model(radius):
    rng = np.random.RandomState(0)
    root = rng.randn(12, 8)  # singular
    matrix, gradient = root @ root.T, root @ rng.randn(8)

    @jax.jit
    def minimise(matrix, gradient, radius):
        spectral, _ = lanczos(lambda v: matrix @ v, gradient, rank=12, tol=1e-13)
        shift = radius_shift(spectral, radius)
        coordinates = damped_coordinates(spectral, shift)
        promised = decrease(spectral, coordinates)
        return spectral.basis @ coordinates, shift, promised

    step, shift, found = map(np.asarray, minimise(matrix, gradient, np.float64(radius)))
    assert np.linalg.norm(step) <= radius * (1 + 1e-5)
    # Optimality: (H + shift) d = -g, shift (|d| - radius) = 0.
    np.testing.assert_allclose(
        matrix @ step + float(shift) * step,
        -gradient,
        atol=1e-7 * np.abs(gradient).max(),
    )
    slack = radius - np.linalg.norm(step)
    assert abs(float(shift) * slack) <= 1e-5 * np.linalg.norm(gradient)
    promised = -(gradient @ step + 0.5 * step @ matrix @ step)
    assert float(found) == pytest.approx(promised, rel=1e-7)


def test_krylov_space_is_as_large_as_the_rows_determine():
    model, net, rows, penalties = example("squared", 1, m=2)
    settings = SimpleNamespace(rank=10**9, model=model)
    dimension = reduced.krylov_dimension(settings, net, net, rows)
    n = ravel_pytree(net)[0].size
    assert dimension == 16 < n == 49
    steps = []
    for rank in (dimension, n):
        found = baselines.full_model(model, net, rows, penalties, rank).spectral
        coordinates = jax.jit(damped_coordinates)(found, 1e-3)
        steps.append(found.basis @ coordinates)
    np.testing.assert_allclose(*steps, atol=1e-9 * np.linalg.norm(steps[0]))


def test_directions_without_slope_take_no_step():
    spectral = SpectralModel(
        jnp.array([1.0, 0.0]), jnp.array([2.0, 0.0]), jnp.eye(2, dtype=float)
    )
    np.testing.assert_allclose(damped_coordinates(spectral, 0.0), [-2, 0], rtol=1e-12)


@pytest.mark.slow
def test_full_gauss_newton_model_is_the_dense_one():
    model, net, rows, penalties, _ = solved("cross_entropy", 2, m=9)
    flat, unravel = ravel_pytree(net)

    def values(flat):
        net = unravel(flat)
        return problem.features(model, net.theta, rows.x) @ net.output

    jv = jax.jit(jax.jacfwd(values))(flat)
    here = jax.jit(values)(flat)
    bend = partial(problem.loss_curvature, model, here)
    bent = jax.jit(jax.vmap(bend, in_axes=-1, out_axes=-1))(jv)
    matrix = np.einsum("i,iqa,iqb->ab", rows.weight, jv, bent)
    n_theta = flat.size - net.output.size
    shift = np.r_[
        np.full(n_theta, penalties.hidden),
        np.full(net.output.size, penalties.output),
    ]
    matrix += np.diag(shift)
    objective = partial(problem.objective, model, rows=rows, penalties=penalties)
    of_flat = jax.jit(jax.grad(lambda flat: objective(unravel(flat))))
    expected = of_flat(flat)
    spectral, gradient, *_ = baselines.full_model(
        model, net, rows, penalties, flat.size
    )
    np.testing.assert_allclose(gradient, expected, atol=1e-9)
    coordinates = jax.jit(damped_coordinates)(spectral, 1e-2)
    step = np.asarray(spectral.basis @ coordinates)
    dense = -np.linalg.solve(matrix + 1e-2 * np.eye(flat.size), gradient)
    assert np.linalg.norm(step - dense) <= 3e-2 * np.linalg.norm(dense)


# --- networks ------------------------------------------------------------------------


def test_refined_ode_is_the_same_flow_more_finely():
    rng = np.random.RandomState(0)
    network = NeuralODE(width=6, n_cells=4, input_gain=1.0, final_time=1.0)
    theta, x = network.init(rng, 3), rng.randn(5, 3)
    theta["triangle"] += 0.3 * rng.randn(*theta["triangle"].shape)
    apply = jax.jit(network.apply)
    coarse = np.asarray(apply(theta, x))
    errors = []
    for level in range(1, 5):
        theta = network.refine(theta)
        assert network.level_of(theta) == level
        fine = np.asarray(apply(theta, x))
        errors.append(np.max(np.abs(fine - coarse)))
        coarse = fine
    # Runge-Kutta of order four on weights that are linear within a cell.
    assert errors[-1] < errors[0] / 16**2.5
    nodes = network.n_cells * 2**4 + 1
    assert theta["triangle"].shape == (nodes, 15)


def test_ode_penalty_is_the_integral_of_the_squared_derivative():
    network = NeuralODE(width=3, n_cells=5, final_time=2.0)
    theta = network.init(np.random.RandomState(0), 2)
    time = np.linspace(0, 2, 6)
    theta["bias"] = np.outer(time, [1.0, 2.0, 0.0])
    rough = jax.tree.map(np.asarray, jax.jit(network.roughness)(theta))
    assert np.sum(rough["bias"] ** 2) == pytest.approx(2 * 5.0)
    assert np.sum(rough["triangle"] ** 2) == 0
    np.testing.assert_array_equal(rough["opening_weight"], theta["opening_weight"])


def test_kernel_of_the_flow_is_antisymmetric():
    network = NeuralODE(width=4)
    kernels = jax.jit(network._kernels)(np.random.RandomState(0).randn(3, 6))
    kernels = np.asarray(kernels)
    np.testing.assert_allclose(
        kernels + np.swapaxes(kernels, 1, 2),
        -2e-4 * np.eye(4) * np.ones((3, 1, 1)),
        atol=1e-12,
    )


@pytest.mark.parametrize("size", [2, 3])
def test_derivatives_of_a_convolution_are_those_of_xla(size):
    rng = np.random.RandomState(0)
    x, kernel = jnp.array(rng.randn(3, 5, 4, 2)), jnp.array(rng.randn(size, size, 2, 3))
    others = jnp.array(rng.randn(2, *kernel.shape))
    cotangents = jnp.array(rng.randn(2, 3, 5, 4, 3))

    def plain(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def derivatives(f):
        y, back = jax.vjp(f, x, kernel)
        _, forth = jax.linearize(partial(f, x), kernel)
        of_each = jax.vmap(
            lambda image: jax.grad(lambda k: jnp.sum(f(image[None], k)))(kernel)
        )
        return {
            "values": y,
            "tangents": jax.jvp(f, (x, kernel), (2 * x, others[0]))[1],
            "cotangents": back(cotangents[0]),
            "several tangents": jax.vmap(forth)(others),
            "several cotangents": jax.vmap(back)(cotangents),
            "images": of_each(x),
            "curvature": jax.jvp(
                jax.grad(lambda k: jnp.sum(jnp.sin(f(x, k)))), (kernel,), (others[1],)
            )[1],
        }

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10),
        jax.jit(lambda: derivatives(convolve))(),
        jax.jit(lambda: derivatives(plain))(),
    )


def test_cnn_is_a_sum_over_shifted_pixels():
    network = CNN((7, 6), channels=(2, 3), kernel_size=3)
    rng = np.random.RandomState(0)
    theta, x = network.init(rng, 42), rng.randn(4, 42)

    def convolve(image, kernel):
        h, w, _ = image.shape
        padded = np.pad(image, [(1, 1), (1, 1), (0, 0)])
        out = np.zeros((h, w, kernel.shape[-1]))
        for i in range(3):
            for j in range(3):
                out += padded[i : i + h, j : j + w] @ kernel[i, j]
        return np.maximum(out, 0)

    for row, found in zip(x, jax.jit(network.apply)(theta, x), strict=True):
        first = convolve(row.reshape(7, 6, 1), theta[0])[:6]
        pooled = first.reshape(3, 2, 3, 2, 2).mean(axis=(1, 3))
        expected = convolve(pooled, theta[1]).mean(axis=(0, 1))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)
    with pytest.raises(
        ValueError, match=r"image_shape=\(7, 6\) has 42 values, X has 41"
    ):
        network.init(rng, 41)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (MLP((3, 0)), "hidden_layer_sizes"),
        (MLP((3,), "tan"), r"activation='tan' is unknown"),
        (MLP((3,), None), "activation=None is unknown"),
        (MLP((3, 3), ("tanh",)), "of which there are 2; got .'tanh',."),
        (NeuralODE(width=0), "width"),
        (NeuralODE(final_time=-1.0), "final_time"),
        (CNN((0, 3)), "image_shape"),
        (CNN((3,)), "image_shape"),
        (CNN((2, 2), channels=(3, 3, 3)), "need at least 4 pixels on each side"),
        (CNN((4, 4), kernel_size=0), "kernel_size must be a positive integer, got 0"),
    ],
)
def test_bad_networks_are_named(network, message):
    with pytest.raises(ValueError, match=message):
        network.check()


def test_networks_of_equal_words_are_equal():
    assert MLP([3, 4]) == MLP((3, 4))
    assert hash(NeuralODE(width=3)) == hash(NeuralODE(width=3))
    assert MLP((3,)) != MLP((4,))
    network = NeuralODE().set_params(width=5)
    assert network.get_params()["width"] == 5
    assert repr(MLP((2,))) == (
        "MLP(hidden_layer_sizes=(2,), activation='tanh', input_gain=1.0)"
    )
    with pytest.raises(ValueError, match="no parameter 'wide'"):
        network.set_params(wide=3)


@pytest.mark.parametrize("network", [MLP((3,)), NeuralODE(2, n_cells=2, n_levels=1)])
@pytest.mark.slow
def test_posterior_has_the_penalties_of_the_objective(network):
    model, net, rows, penalties, inner = solved("squared", 3, network=network)
    net = Net(net.theta, inner.output)
    flat, unravel = ravel_pytree(net)

    def values(flat):
        net = unravel(flat)
        return problem.features(model, net.theta, rows.x) @ net.output

    def penalty(flat):
        net = unravel(flat)
        return problem.total_penalty(model, net.theta, net.output, penalties)

    rows_of = np.asarray(jax.jit(jax.jacobian(values))(flat))
    expected = np.einsum("i,iqa,iqb->ab", rows.weight, rows_of, rows_of)
    expected = expected + np.asarray(jax.jit(jax.hessian(penalty))(flat))
    root = np.asarray(posterior(model, net, rows, penalties, True)[0].root)
    np.testing.assert_allclose(
        np.tril(root) @ np.tril(root).T, expected, atol=1e-9 * np.max(expected)
    )


# --- the schedule --------------------------------------------------------------------


def settings_of(rows, solver, **words):
    """What the schedule of batches needs to know."""
    n_rows = int(np.count_nonzero(rows.weight))
    nothing = training.Settings(*[None] * len(training.Settings._fields))
    return nothing._replace(solver=solver, n_rows=n_rows, seed=0, **words)


def test_batches_sweep_over_all_rows():
    rows = Rows(np.arange(10.0)[:, None], np.zeros((10, 1)), np.full(10, 0.1))
    rows = jax.device_put(rows)
    settings = settings_of(rows, GNvpro(batch_size=5, iterations_per_batch=2))
    seen = [np.asarray(current_batch(rows, settings, k)[0].x)[:, 0] for k in range(6)]
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(np.sort(np.r_[seen[0], seen[2]]), np.arange(10.0))
    assert not np.array_equal(seen[0], seen[4])
    batch, share = current_batch(rows, settings, 0)
    assert float(jnp.sum(batch.weight)) == pytest.approx(1)
    assert share == 0.5


def test_batches_hold_no_padding_and_miss_no_row():
    rows = Rows(np.arange(16.0)[:, None], np.zeros((16, 1)), np.full(16, 0.1))
    rows.weight[10:] = 0
    settings = settings_of(rows, GNvpro(batch_size=4, iterations_per_batch=1))
    batches = [current_batch(rows, settings, k)[0] for k in range(3)]
    seen = np.concatenate([np.asarray(batch.x)[:, 0] for batch in batches])
    np.testing.assert_array_equal(np.unique(seen), np.arange(10.0))
    for batch in batches:
        np.testing.assert_allclose(batch.weight, 0.25, rtol=1e-12)
    settings = settings_of(rows, GNvpro(batch_size=10, iterations_per_batch=1))
    whole, share = current_batch(rows, settings, 0)
    assert whole is rows
    assert share == 1


def test_many_rows_start_with_the_output_layer_of_some():
    start = training.init
    model, net, rows, penalties = example("squared", 2, m=70)
    rows = rows._replace(y=jnp.sin(rows.x[:, :2]))
    solver = GNvpro(batch_size=30, iterations_per_batch=1)
    settings = settings_of(rows, solver, model=model, penalties=penalties)
    state = start(rows, net, settings)
    batch, share = current_batch(rows, settings, 0)
    of_batch = solve_inner(model, net.theta, batch, penalties, net.output)
    np.testing.assert_allclose(state.net.output, of_batch.output, rtol=1e-8)
    on_all = problem.objective(model, state.net, rows, penalties)
    assert state.loss == pytest.approx(float(on_all), rel=1e-10)
    assert state.work == 2 + share
    # Alone it is the solution of the whole problem.
    alone = Net((), np.zeros((4, 2)))
    model_alone = Model(MLP(()), "squared")
    state = start(rows, alone, settings._replace(model=model_alone))
    of_all = solve_inner(model_alone, (), rows, penalties, alone.output)
    np.testing.assert_allclose(state.net.output, of_all.output, rtol=1e-8)
    # The layer of a former fit is kept if it suits all rows better.
    best = solve_inner(model, net.theta, rows, penalties, net.output)
    former = start(rows, net._replace(output=best.output), settings)
    np.testing.assert_array_equal(former.net.output, best.output)
    assert former.loss == pytest.approx(float(best.loss), rel=1e-10)


def test_mini_batches_make_up_the_weighted_objective():
    rng = np.random.RandomState(0)
    weight = np.append(rng.rand(12), np.zeros(4))
    rows = Rows(rng.randn(16, 2), rng.randn(16, 1), weight / weight.sum())
    settings = settings_of(rows, Adam(batch_size=4))
    ((shuffled, count, size),) = shuffled_epochs(jax.device_put(rows), settings, 0)
    assert int(count) == 3
    batches = [mini_batch(shuffled, k, size) for k in range(3)]
    mean = sum(batch.weight @ batch.y for batch in batches) / 3
    np.testing.assert_allclose(mean, rows.weight @ rows.y, rtol=1e-10)
