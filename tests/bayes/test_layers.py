"""The sums of a multilayer perceptron, against automatic differentiation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax

from sklearn_gn.bayes import layers
from sklearn_gn.bayes.layers import Layers, sum_zero_basis
from sklearn_gn.networks._base import ACTIVATIONS
from sklearn_gn.optim.solver import Rows

SIZES = [
    ((4,), ()),
    ((4, 5), ("tanh",)),
    ((4, 3), ("relu",)),
    ((3, 4, 3), ("relu", "silu")),
    ((3, 2, 2, 2, 2, 2), ("softplus", "sin", "gelu", "sigmoid", "identity")),
]


def problem(sizes, activations, n_values, loss, m=30):
    # The first layer does not see the first feature; the deepest network has no
    # linear term.
    features, linear_term = tuple(range(1, sizes[0])), len(sizes) < 3
    model = Layers(sizes, activations, n_values, loss, features, linear_term)
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(len(model.groups()))
    y = rng.standard_normal((m, n_values))
    if loss == "cross_entropy":
        k = max(n_values, 2)
        y = np.eye(k)[rng.integers(k, size=m)]
    weight = rng.uniform(size=m)
    x = rng.standard_normal((m, sizes[0]))
    return model, theta, Rows(x, y, weight / weight.sum())


def values_by_jax(model, theta, x):
    """The network, written once more."""
    k, free = model.n_values, model.n_free
    d = model.sizes[0] * model.linear_term
    constants = theta[:free]
    if free < k:
        constants = sum_zero_basis(k) @ constants
    start = free + (model.n_linear - 1) * k
    output = theta[free:start].reshape(-1, k)
    values = constants[None] + x[:, :d] @ output[:d]
    a = x[:, jnp.array(model.features, dtype=int)]
    for (width, n_inputs), name in zip(model.shapes(), model.activations, strict=True):
        layer = theta[start : start + width * n_inputs].reshape(width, n_inputs)
        start += width * n_inputs
        a = ACTIVATIONS[name](a @ layer[:, 1:].T + layer[:, :1].T)
    return values + a @ output[d:] if model.shapes() else values


def mean_loss(model, theta, rows):
    u = values_by_jax(model, theta, rows.x)
    if model.loss == "squared":
        return rows.weight @ jnp.sum((u - rows.y) ** 2, axis=1) / 2
    if model.n_values == 1:
        u = jnp.concatenate([jnp.zeros_like(u), u], axis=1)
    return -rows.weight @ jnp.sum(rows.y * jax.nn.log_softmax(u, axis=1), axis=1)


@partial(jax.jit, static_argnums=0)
def by_jax(model, theta, rows):
    """Values and mean loss, with their derivatives by the parameters."""

    def values(theta):
        return values_by_jax(model, theta, rows.x)

    loss = partial(mean_loss, model, rows=rows)
    return values(theta), jax.jacfwd(values)(theta), *jax.value_and_grad(loss)(theta)


@pytest.mark.parametrize(
    ("loss", "n_values"),
    [(loss, k) for loss in ("squared", "cross_entropy") for k in (1, 3)]
    + [("squared", 5)],  # which are no longer few
)
@pytest.mark.parametrize(("sizes", "activations"), SIZES)
def test_sums_are_those_of_automatic_differentiation(
    float64, sizes, activations, n_values, loss
):
    model, theta, rows = problem(sizes, activations, n_values, loss)
    found = model.sums(theta, rows)
    values, jacobian, value, gradient = map(np.asarray, by_jax(model, theta, rows))
    np.testing.assert_allclose(
        model.values(theta, rows.x), values, rtol=1e-10, atol=1e-10
    )
    np.testing.assert_allclose(
        model.jacobian(theta, rows.x), jacobian.transpose(1, 2, 0), atol=1e-10
    )
    curvature = np.broadcast_to(np.eye(n_values), (30, n_values, n_values))
    if loss == "cross_entropy":
        p = softmax(values, axis=1) if n_values > 1 else expit(values)
        curvature = p[:, :, None] * (np.eye(n_values) - p[:, None, :])
    gram = np.einsum("itp,i,its,isq->pq", jacobian, rows.weight, curvature, jacobian)
    np.testing.assert_allclose(found.gram, gram, rtol=1e-10, atol=1e-10)
    found_gradient = -found.negative_gradient
    np.testing.assert_allclose(found_gradient, gradient, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose([found.error, model.error(theta, rows)], 2 * value)


@pytest.mark.parametrize("n_values", [1, 3, 5])
def test_blocks_of_rows_change_nothing(monkeypatch, n_values):
    model, theta, rows = problem((4, 5), ("tanh",), n_values, "squared", m=200)
    whole = model.sums(theta, rows)
    monkeypatch.setattr(layers, "BLOCK_FLOATS", 1)
    assert layers.block_size(1) < 200
    for a, b in zip(model.sums(theta, rows), whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
