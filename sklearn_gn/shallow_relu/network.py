"""The shallow ReLU network ``u(x) = c0 + sum_i c_i relu(w_i . x + b_i)``."""

import jax.numpy as jnp


def preactivations(hyperplanes, x):
    """``w_i . x_k + b_i`` for all rows and neurons, of shape (m, n)."""
    return hyperplanes[:, 0][None, :] + x @ hyperplanes[:, 1:].T


def hidden_features(hyperplanes, x):
    """``relu(w_i . x_k + b_i)``, of shape (m, n)."""
    return jnp.maximum(preactivations(hyperplanes, x), 0)


def heaviside(preactivation):
    """Derivative of relu, 1 where the argument is positive, in the same dtype."""
    return (preactivation > 0).astype(preactivation.dtype)


def predict(net, x):
    """Network outputs of shape (m, q)."""
    return net.intercept[None, :] + hidden_features(net.hyperplanes, x) @ net.coef


def unit_normals(hyperplanes, fallback):
    """Rescale every row (b, w) to ``|w| = 1``.

    A row whose normal vanished, or is not finite, has no hyperplane: the row of
    ``fallback`` stays in its place.
    """
    norm = jnp.linalg.norm(hyperplanes[:, 1:], axis=1, keepdims=True)
    usable = (norm > jnp.finfo(hyperplanes.dtype).tiny) & jnp.isfinite(hyperplanes).all(
        axis=1, keepdims=True
    )
    return jnp.where(usable, hyperplanes / jnp.where(usable, norm, 1), fallback)


def rescale(net):
    """The same function with ``|w_i| = 1``, the factors moved to the coefficients."""
    norm = jnp.linalg.norm(net.hyperplanes[:, 1:], axis=1, keepdims=True)
    unit = unit_normals(net.hyperplanes, fallback=net.hyperplanes)
    usable = norm > jnp.finfo(norm.dtype).tiny
    return net._replace(
        hyperplanes=unit, coef=jnp.where(usable, net.coef * norm, net.coef)
    )


def output_weights(net):
    """``c_i |w_i|``, which a rescaling of (w_i, b_i) against c_i leaves as it is."""
    return net.coef * jnp.linalg.norm(net.hyperplanes[:, 1:], axis=1, keepdims=True)
