r"""The objective of networks with an affine output layer.

For a network ``x -> W^T z(x; theta)`` it is

    Phi(W, theta) = sum_i w_i L(W^T z_i, y_i) + alpha/2 |B theta|^2
                    + alpha_out/2 |W|^2,       sum_i w_i = 1.

The features z have a one appended, so that the last row of W is the bias; it is
penalised like the other rows. L is half of the squared error, or the cross-entropy.
"""

import weakref
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.parts import total
from sklearn_gn.optim.multinomial import (
    all_classes,
    covariance_product,
    probabilities,
    to_columns,
)


class Net(NamedTuple):
    """Parameters of a network."""

    theta: Any  # weights of the feature extractor
    output: jnp.ndarray  # (p, q)  output layer W; the last row is the bias


class Model:
    """The feature extractor and the loss, fixed when functions are compiled.

    Equal networks with the same loss make the same object, which compares by identity:
    JAX compares the static arguments of a compiled function in every call, and a Ctrl-C
    that falls into a comparison in Python comes out as another error.

    Parameters
    ----------
    network : object
        With ``apply``, and hashable. It must not change any more.
    loss : {"squared", "cross_entropy"}
    """

    __slots__ = ("__weakref__", "loss", "network")
    _known = weakref.WeakValueDictionary()

    def __new__(cls, network, loss):
        """Return the model with this network and loss, a new one if there is none."""
        model = cls._known.get((network, loss))
        if model is None:
            model = super().__new__(cls)
            model.network, model.loss = network, loss
            cls._known[network, loss] = model
        return model

    def __reduce__(self):
        return Model, (self.network, self.loss)

    def __repr__(self):
        return f"Model({self.network!r}, {self.loss!r})"


class Penalties(NamedTuple):
    """Factors of the two penalties in the objective."""

    hidden: jnp.ndarray  # alpha
    output: jnp.ndarray  # alpha_out


def features(model, theta, x):
    """Return the features with a one appended, of shape (m, p)."""
    z = model.network.apply(theta, x)
    return jnp.concatenate([z, jnp.ones((z.shape[0], 1), z.dtype)], axis=1)


def example_losses(model, values, y):
    """Return L of each row, of shape (m,)."""
    if model.loss == "squared":
        return 0.5 * jnp.sum((values - y) ** 2, axis=1)
    return -jnp.sum(y * jax.nn.log_softmax(all_classes(values), axis=1), axis=1)


def loss_gradient(model, values, y):
    """Return the derivative of L with respect to the values, of shape (m, q)."""
    if model.loss == "squared":
        return values - y
    return to_columns(probabilities(values) - y)


def loss_curvature(model, values, u):
    """Return the second derivative of L times u; both have the shape (m, q)."""
    if model.loss == "squared":
        return u
    return to_columns(covariance_product(probabilities(values), all_classes(u)))


def total_penalty(model, theta, output, penalties):
    """Return the sum of the penalties of theta and W."""
    rough = sum(jnp.sum(r**2) for r in jax.tree.leaves(roughness(model, theta)))
    return 0.5 * (penalties.hidden * rough + penalties.output * jnp.sum(output**2))


def roughness(model, theta):
    """Return ``B theta``; theta itself if the network defines no roughness."""
    known = getattr(model.network, "roughness", None)
    return theta if known is None else known(theta)


def penalty_product(model, direction):
    """Return ``B^T B d`` for a direction of the structure of theta."""
    apply = partial(roughness, model)
    transposed = jax.linear_transpose(apply, direction)
    (image,) = transposed(apply(direction))
    return image


def penalty_matrix(model, theta):
    """Return ``B^T B``, of shape (n, n)."""
    flat, unravel = ravel_pytree(theta)
    product = jax.vmap(lambda d: ravel_pytree(penalty_product(model, unravel(d)))[0])
    return product(jnp.eye(flat.size, dtype=flat.dtype))


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def objective(model, net, rows, penalties):
    """Return Phi(W, theta) at the given output layer."""
    values = features(model, net.theta, rows.x) @ net.output
    mean = total(rows.weight @ example_losses(model, values, rows.y))
    return mean + total_penalty(model, net.theta, net.output, penalties)


@partial(jax.jit, static_argnames="model")
def predict_features(model, theta, x):
    """Return the features without the appended one."""
    return model.network.apply(theta, x)


@partial(jax.jit, static_argnames="model")
def predict_values(model, net, x):
    """Return the values of the output layer."""
    return features(model, net.theta, x) @ net.output
