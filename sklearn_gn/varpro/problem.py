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

    Equal networks, which must be hashable and not change any more, with the same loss
    ("squared" or "cross_entropy") make the same object, which compares by identity: JAX
    compares the static arguments of a compiled function in every call, and a Ctrl-C
    that falls into a comparison in Python comes out as another error.
    """

    __slots__ = ("__weakref__", "loss", "network")
    _known = weakref.WeakValueDictionary()

    def __new__(cls, network, loss):
        """Return the model with this network and loss, a new one if there is none."""
        model = cls._known.get((network, loss))
        if model is None:
            model = cls._known[network, loss] = super().__new__(cls)
            model.network, model.loss = network, loss
        return model

    def __reduce__(self):
        return Model, (self.network, self.loss)


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


def curvature_root(model, values, u):
    """Return ``R u`` of shape (m, c), where ``R^T R`` is the second derivative of L."""
    if model.loss == "squared":
        return u
    p, by_class = probabilities(values), all_classes(u)
    return jnp.sqrt(p) * (by_class - jnp.sum(p * by_class, axis=1, keepdims=True))


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


class Evaluation(NamedTuple):
    """A network on some rows."""

    output: jnp.ndarray  # (p, q)
    loss: jnp.ndarray  # the objective
    z: jnp.ndarray  # (m, p)
    values: jnp.ndarray  # (m, q)
    error: jnp.ndarray  # (m, q)  derivative of the loss in the values, weighted
    factors: Any = None  # of the inner Hessian, where the output layer is optimal


def evaluate(model, net, rows, penalties, z=None):
    """Return the :class:`Evaluation` at the given output layer.

    The features z are those of the rows unless they are given.
    """
    z = features(model, net.theta, rows.x) if z is None else z
    values = z @ net.output
    loss = total(rows.weight @ example_losses(model, values, rows.y))
    loss = loss + total_penalty(model, *net, penalties)
    error = rows.weight[:, None] * loss_gradient(model, values, rows.y)
    return Evaluation(net.output, loss, z, values, error)


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def objective(model, net, rows, penalties, z=None):
    """Return Phi(W, theta) at the given output layer."""
    return evaluate(model, net, rows, penalties, z).loss


@partial(jax.jit, static_argnames="model")
def predict_features(model, theta, x):
    """Return the features without the appended one."""
    return model.network.apply(theta, x)


@partial(jax.jit, static_argnames="model")
def predict_values(model, net, x):
    """Return the values of the output layer."""
    return features(model, net.theta, x) @ net.output
