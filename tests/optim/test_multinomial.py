"""The multinomial cross-entropy and Newton's method for it, against dense algebra."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import expit, log_softmax

from sklearn_gn.optim import multinomial

N_ROWS, N_FEATURES = 12, 3

pytestmark = pytest.mark.usefixtures("float64")

# Compiled, since every operation outside a compiled function is compiled on its own.
cross_entropy, margins, root_curvature = map(
    jax.jit,
    (multinomial.cross_entropy, multinomial.margins, multinomial.root_curvature),
)


def draw_logits(n_classes, scale=2.0):
    rng = np.random.RandomState(n_classes)
    logits = scale * rng.randn(N_ROWS, n_classes)
    return logits, rng.randint(n_classes, size=N_ROWS).astype(np.int32)


# --- the cross-entropy ---------------------------------------------------------------


def test_cross_entropy_and_gradient_are_those_of_the_softmax():
    logits, label = draw_logits(5)
    split = margins(logits, label)
    log_p = log_softmax(logits, axis=1)
    expected = -log_p[np.arange(N_ROWS), label]
    np.testing.assert_allclose(cross_entropy(split.margin), expected, 1e-12)
    gradient = np.asarray(split.p_rest)[:, None] * split.gradient
    np.testing.assert_allclose(
        gradient, np.exp(log_p) - np.eye(5)[label], atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("library", [np, jnp])
def test_both_shares_of_a_margin_are_exact_to_rounding(library):
    margin = np.array([-700.0, -40.0, -1.5, 0.0, 0.3, 40.0, 700.0])
    logits = library.asarray(np.stack([np.zeros(7), margin], axis=1))
    split = multinomial.margins(logits, library.zeros(7, np.int32))
    for found, expected in ((split.p_rest, margin), (split.p_true, -margin)):
        np.testing.assert_allclose(found, expit(expected), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("margin", [1e3, -1e3, 88.0, 0.0])
def test_extreme_margins_are_finite_and_exact(dtype, margin):
    logits = np.asarray([[0.0, margin, margin - 1]], dtype)
    split = margins(logits, np.array([0], np.int32))
    expected = np.logaddexp(0, margin + np.log1p(np.exp(-1)))
    found = float(cross_entropy(split.margin)[0])
    assert found == pytest.approx(expected, rel=16 * float(np.finfo(dtype).eps))
    for part in split:
        assert np.isfinite(part).all()
    root = root_curvature(split.margin)
    product = np.sqrt(np.multiply(split.p_true, split.p_rest, dtype=np.float64))
    if product > 0:
        np.testing.assert_allclose(root, product, rtol=1e-5)


# --- Newton's method -----------------------------------------------------------------


def regression(n_classes, alpha=0.3):
    """Objective, gradient and product with the Hessian of a weighted regression."""
    rng = np.random.RandomState(0)
    x = jnp.asarray(rng.randn(N_ROWS, N_FEATURES))
    label = rng.randint(n_classes, size=N_ROWS).astype(np.int32)
    weight = jnp.asarray(rng.rand(N_ROWS))
    m = 1 if n_classes == 2 else n_classes
    here = {"w": jnp.asarray(rng.randn(N_FEATURES, m)), "b": jnp.asarray(rng.randn(m))}

    def forward(v):
        return x @ v["w"] + v["b"][None, :]

    def transposed(change):
        return {"w": x.T @ change, "b": jnp.sum(change, axis=0)}

    def objective(v):
        split = multinomial.margins(multinomial.all_classes(forward(v)), label)
        mean = weight @ multinomial.cross_entropy(split.margin)
        return mean + 0.5 * alpha * sum(jnp.sum(a**2) for a in v.values())

    def product_at(here):
        p = jax.nn.softmax(multinomial.all_classes(forward(here)), axis=1)

        def product(v):
            image = multinomial.hessian_product(forward, transposed, p, weight, v)
            return jax.tree.map(lambda a, b: a + alpha * b, image, v)

        return product

    return here, objective, product_at


@pytest.mark.parametrize("n_classes", [2, 5])
def test_hessian_product_is_that_of_automatic_differentiation(n_classes):
    here, objective, product_at = regression(n_classes)
    direction = jax.tree.map(np.cos, here)
    along = partial(jax.jvp, jax.grad(objective))
    _, expected = jax.jit(along)((here,), (direction,))
    found = jax.jit(lambda *at: product_at(at[0])(at[1]))(here, direction)
    for name in here:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10)


def test_newton_direction_solves_the_newton_system():
    here, objective, product_at = regression(4)
    flat, unravel = ravel_pytree(here)
    hessian = jax.jit(jax.hessian(lambda flat: objective(unravel(flat))))(flat)
    gradient = jax.jit(jax.grad(objective))(here)
    expected = -np.linalg.solve(hessian, ravel_pytree(gradient)[0])

    @jax.jit
    def direction(here, gradient, start, forcing):
        words = {"start": start, "forcing": forcing, "max_iter": 200}
        return multinomial.newton_direction(product_at(here), gradient, **words)

    found, count = direction(here, gradient, None, 1e-11)
    np.testing.assert_allclose(ravel_pytree(found)[0], expected, rtol=1e-8)
    again, none = direction(here, gradient, found, 1e-8)
    assert int(none) == 0 < int(count)
    np.testing.assert_array_equal(ravel_pytree(again)[0], ravel_pytree(found)[0])
