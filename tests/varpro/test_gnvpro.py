"""GNvpro: the inner problem, the reduced Jacobian, the step."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.bayes.layers import residuals
from sklearn_gn.networks import CNN, MLP, NeuralODE
from sklearn_gn.optim.solver import Rows
from sklearn_gn.optim.trust_region import (
    damped_coordinates,
    decrease,
    lanczos,
    radius_shift,
)
from sklearn_gn.solvers import Adam, GNvpro
from sklearn_gn.varpro import gnvpro, problem, training
from sklearn_gn.varpro.gnvpro import posterior
from sklearn_gn.varpro.problem import Model, Net, Penalties
from sklearn_gn.varpro.training import current_batch, shuffled_epochs

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
    return compiled_inner(problem.LARGEST_DENSE, model, *arguments)


@partial(jax.jit, static_argnums=(0, 1))
def compiled_inner(limit, *arguments):
    del limit  # a constant of the module, which tests change
    return problem.solve_inner(*arguments)


def solved(loss, n_classes, **words):
    """An example with its best output layer, computed once."""
    return solved_with(problem.LARGEST_DENSE, loss, n_classes, **words)


@cache
def solved_with(limit, loss, n_classes, **words):
    del limit  # read by the module
    model, net, rows, penalties = example(loss, n_classes, **words)
    inner = solve_inner(model, net, rows, penalties)
    return model, net._replace(output=inner.output), rows, penalties, inner


@partial(jax.jit, static_argnames="model")
def forward(model, net, inner, rows, penalties, directions):
    """Images of some directions, and the reduced gradient."""
    found = gnvpro.reduced_jacobian(model, net.theta, inner, rows, penalties)
    along, _, gradient = found
    values, change = jax.vmap(along)(directions)
    return (values, change.output), gradient


@partial(jax.jit, static_argnames="model")
def transposed(model, net, inner, rows, penalties, values, output):
    found = gnvpro.reduced_jacobian(model, net.theta, inner, rows, penalties)
    _, back, _ = found
    return back(values, Net(jax.tree.map(jnp.zeros_like, net.theta), output))


# --- the inner problem ---------------------------------------------------------------


def test_inner_newton_survives_margins_of_a_thousand():
    model, net, rows, penalties = example("cross_entropy", 4)
    start = 1e3 * np.random.RandomState(0).randn(*net.output.shape)
    inner = solve_inner(model, net._replace(output=start), rows, penalties)
    again = solve_inner(model, net, rows, penalties)
    np.testing.assert_allclose(inner.output, again.output, atol=1e-8)


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
        net = Net(jax.lax.stop_gradient(theta), start)
        inner = problem.solve_inner(model, net, rows, penalties)
        here = jax.lax.stop_gradient(inner.output)

        def gradient(output, theta):
            z = problem.features(model, theta, rows.x)
            e = -rows.weight[:, None] * residuals(model, z @ output, rows.y)
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


# --- the step ------------------------------------------------------------------------


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


def test_the_flow_is_antisymmetric():
    network = NeuralODE(width=4, n_cells=1, final_time=1e-5)
    rng = np.random.RandomState(0)
    theta, x = network.init(rng, 3), rng.randn(5, 3)
    upper = np.zeros((4, 4))
    upper[np.triu_indices(4, 1)] = theta["triangle"][0]
    start = np.tanh(x @ theta["opening_weight"] / np.sqrt(3))
    slope = (np.asarray(jax.jit(network.apply)(theta, x)) - start) / 1e-5
    expected = np.tanh(start @ (upper.T - upper - 1e-4 * np.eye(4)))
    np.testing.assert_allclose(slope, expected, atol=1e-4)


@pytest.mark.parametrize("size", [2, 3])
def test_derivatives_of_a_convolution_are_those_of_xla(size):
    rng = np.random.RandomState(0)
    network = CNN((5, 4, 2), channels=(3,), kernel_size=size)
    x, kernel = jnp.array(rng.randn(3, 40)), jnp.array(rng.randn(size, size, 2, 3))
    others = jnp.array(rng.randn(2, *kernel.shape))

    def plain(kernel, x):
        y = lax.conv_general_dilated(
            x.reshape(-1, 5, 4, 2),
            kernel,
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return jnp.mean(jax.nn.relu(y), axis=(1, 2))

    def derivatives(f):
        y, back = jax.vjp(f, kernel, x)
        _, forth = jax.linearize(lambda kernel: f(kernel, x), kernel)
        slope = jax.grad(lambda kernel: jnp.sum(jnp.sin(f(kernel, x))))
        return {
            "values": y,
            "tangents": jax.jvp(f, (kernel, x), (others[0], 2 * x))[1],
            "cotangents": back(y**2),
            "several tangents": jax.vmap(forth)(others),
            "several cotangents": jax.vmap(back)(jnp.stack([y, y**2])),
            "curvature": jax.jvp(slope, (kernel,), (others[1],))[1],
        }

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10),
        jax.jit(lambda: derivatives(lambda k, x: network.apply((k,), x)))(),
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
        (MLP((3, 3), ("tanh",)), "each of the 2 hidden layers; got .'tanh',."),
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


def test_batches_sweep_over_all_rows_and_hold_no_padding():
    rows = Rows(np.arange(16.0)[:, None], np.zeros((16, 1)), np.full(16, 0.1))
    rows.weight[10:] = 0
    rows = jax.device_put(rows)
    settings = settings_of(rows, GNvpro(batch_size=4, iterations_per_batch=2))
    batches = [current_batch(rows, settings, k) for k in range(8)]
    assert batches[0][1] == 0.4
    for batch, _ in batches:
        np.testing.assert_allclose(batch.weight, 0.25, rtol=1e-12)
    seen = [np.asarray(batch.x)[:, 0] for batch, _ in batches]
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(np.unique(seen[:6]), np.arange(10.0))
    assert not np.array_equal(seen[0], seen[6])
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
    of_batch = solve_inner(model, net, batch, penalties)
    np.testing.assert_allclose(state.net.output, of_batch.output, rtol=1e-8)
    on_all = problem.objective(model, state.net, rows, penalties)
    assert state.loss == pytest.approx(float(on_all), rel=1e-10)
    assert state.work == 2 + share
    # Alone it is the solution of the whole problem.
    alone = Net((), np.zeros((4, 2)))
    model_alone = Model(MLP(()), "squared")
    state = start(rows, alone, settings._replace(model=model_alone))
    of_all = solve_inner(model_alone, alone, rows, penalties)
    np.testing.assert_allclose(state.net.output, of_all.output, rtol=1e-8)
    # The layer of a former fit is kept if it suits all rows better.
    best = solve_inner(model, net, rows, penalties)
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
    assert size == 4
    mean = shuffled.weight[:12] @ shuffled.y[:12] / 3
    np.testing.assert_allclose(mean, rows.weight @ rows.y, rtol=1e-10)
