"""What the networks share: parameters that a grid search reaches, and identity."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np

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
