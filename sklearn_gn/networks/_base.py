"""What the networks share: parameters that a grid search reaches, and equality."""

import copy
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.runtime.fingerprint import known

ACTIVATIONS = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "sin": jnp.sin,
    "identity": lambda x: x,
}


def activation_function(name):
    """Return the activation function of a name; a ValueError if there is none."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(
            f"activation={name!r} is unknown; there are {sorted(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]


def checked_network(network):
    """Return a valid network that stays as it is, the first of this content."""
    if isinstance(network, type):
        raise ValueError(
            f"network must be an object, got the class {network.__name__}: call it."
        )
    if isinstance(network, Network):
        network.check()
        # What is fitted does not change with the user's object.
        network = copy.deepcopy(network)
    try:
        hash(network)
    except TypeError as error:
        raise ValueError(
            f"network={network!r} must be hashable, as compiled functions are kept by "
            "network: give its class __eq__ and __hash__."
        ) from error
    return known(network)


def checked_sizes(name, value):
    """Return positive integers, or one, as a tuple; else raise a ValueError."""
    try:
        sizes = (value,) if isinstance(value, Integral | str) else tuple(value)
    except TypeError:
        sizes = (value,)
    for size in sizes:
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must hold positive integers, got {value!r}.")
    return tuple(map(int, sizes))


def check_positive(name, value, kind=Real):
    """Raise a ValueError where a parameter is no positive number, or no Integral."""
    if not isinstance(value, kind) or isinstance(value, bool) or not value > 0:
        what = "positive" if kind is Real else "a positive integer"
        raise ValueError(f"{name} must be {what}, got {value!r}.")


def initial_parameters(network, rng, x):
    """Draw parameters by ``init(rng, n_inputs)``, or Flax's ``init(key, x)``."""
    if isinstance(network, Network):
        return network.init(rng, x.shape[1])
    seed = rng.randint(np.iinfo(np.int32).max)
    return network.init(jax.random.key(seed), jnp.asarray(x))


def n_features(network, params, x):
    """Return the number of features of each row; another shape is an error."""
    shape = jax.eval_shape(network.apply, params, x).shape
    if len(shape) != 2 or shape[0] != len(x):
        raise ValueError(
            f"network={network!r} must map rows of shape {np.shape(x)} to features of "
            f"shape ({len(x)}, width), got {shape}."
        )
    return shape[1]


@dataclass(eq=False)
class Network:
    """A feature extractor ``x -> z(x; theta)``, described by constructor parameters.

    Two networks of the same parameters are equal, and share compiled functions.
    Subclasses have ``init(rng, n_inputs)``, which draws parameters in numpy,
    ``apply(params, x)``, ``split(params)``, weights and biases as two lists, and
    ``check()``. Those with ``n_levels`` have ``level_of(params)`` and
    ``refine(params)``, parameters of the next level; those whose penalty is not that of
    the parameters have ``roughness(params)``, and ``plain_penalty`` is False.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor parameters and their values.

        Parameters
        ----------
        deep : bool, default=True
            Without effect; scikit-learn passes it.

        Returns
        -------
        dict
            By name.
        """
        del deep
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Change constructor parameters.

        Parameters
        ----------
        **params : dict
            Names and new values.

        Returns
        -------
        Network
            The network itself.
        """
        names = list(self.get_params())
        for name, value in params.items():
            if name not in names:
                raise ValueError(f"there is no parameter {name!r}, only {names}.")
            setattr(self, name, value)
        return self

    def _key(self):
        return type(self), *map(_hashable, self.get_params().values())

    def __eq__(self, other):
        return isinstance(other, Network) and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())


def _hashable(value):
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return tuple(_hashable(v) for v in value) if isinstance(value, list) else value
