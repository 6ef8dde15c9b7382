"""What the networks share: parameters that a grid search reaches, and identity."""

import copy
import inspect

import jax
import jax.numpy as jnp
import numpy as np

_LARGEST_SEED = np.iinfo(np.int32).max

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
    """The function of that name.

    Raises
    ------
    ValueError
        If there is none.
    """
    if name not in ACTIVATIONS:
        raise ValueError(
            f"activation={name!r} is unknown; the activations are "
            f"{sorted(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]


def checked_network(network):
    """A network whose words are in range, and stay as they are.

    Raises
    ------
    ValueError
        If a word is out of its range, or if it is a class.
    """
    if isinstance(network, type):
        raise ValueError(
            f"network must be an object, got the class {network.__name__}: call it."
        )
    if isinstance(network, Network):
        network.check()
        # What is fitted does not change with the user's object.
        network = copy.copy(network)
    return network


def initial_parameters(network, rng, x):
    """Parameters to start from: of a network of ours, or of one by Flax's convention.

    Parameters
    ----------
    network : object
        Ours have ``init(rng, n_inputs)``, others ``init(key, x)``.
    rng : RandomState
    x : array of shape (m, n_inputs)
    """
    if isinstance(network, Network):
        return network.init(rng, x.shape[1])
    return network.init(jax.random.key(rng.randint(_LARGEST_SEED)), jnp.asarray(x))


def n_features(network, params, x):
    """Number of features that a network makes of the rows of x.

    Raises
    ------
    ValueError
        If it does not make a row of features of every row.
    """
    shape = jax.eval_shape(network.apply, params, x).shape
    if len(shape) != 2 or shape[0] != len(x):
        raise ValueError(
            f"network={network!r} must map rows of shape {np.shape(x)} to features of "
            f"shape ({len(x)}, width), got {shape}."
        )
    return shape[1]


class Network:
    """A feature extractor ``x -> z(x; theta)``, described by the words of ``__init__``.

    Two networks of the same words are equal, so that compiled functions are shared.
    Subclasses have ``init(rng, n_inputs)``, which draws parameters in numpy,
    ``apply(params, x)``, and ``split(params)``, weights and biases as two lists; those
    with levels also ``refine(params)``, parameters of the next level.
    """

    n_levels = 1
    plain_penalty = True  # whether B is the identity

    @classmethod
    def _words(cls):
        return [name for name in inspect.signature(cls.__init__).parameters][1:]

    def get_params(self, deep=True):
        """Constructor words and their values.

        Parameters
        ----------
        deep : bool, default=True
            Without effect; scikit-learn passes it.

        Returns
        -------
        dict
        """
        del deep
        return {name: getattr(self, name) for name in self._words()}

    def set_params(self, **params):
        """Change constructor words.

        Parameters
        ----------
        **params : dict
            Words and their new values.

        Returns
        -------
        Network
        """
        for name, value in params.items():
            if name not in self._words():
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}; it has "
                    f"{self._words()}."
                )
            setattr(self, name, value)
        return self

    def _key(self):
        return (
            type(self),
            *(_hashable(value) for value in self.get_params().values()),
        )

    def __eq__(self, other):
        return isinstance(other, Network) and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def __repr__(self):
        words = ", ".join(f"{k}={v!r}" for k, v in self.get_params().items())
        return f"{type(self).__name__}({words})"

    def check(self):
        """Raise a ValueError where a word is out of its range."""

    def roughness(self, params):
        """``B theta``, whose square is penalised: here the parameters themselves."""
        return params

    def level_of(self, params):
        """Number of the level that parameters belong to."""
        del params
        return 0


def _hashable(value):
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return tuple(_hashable(v) for v in value) if isinstance(value, list) else value
