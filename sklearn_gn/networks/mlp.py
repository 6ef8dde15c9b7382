"""Multilayer perceptron."""

from numbers import Integral

import numpy as np

from sklearn_gn.networks._base import Network, activation_function


class MLP(Network):
    """Fully connected layers.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, default=(64, 64)
        Widths; the last one is the number of features. Empty: the inputs themselves.

    activation : str or tuple of str, default="tanh"
        One for all layers, or one a layer: "tanh", "relu", "sigmoid", "softplus",
        "silu", "gelu", "sin" or "identity".

    input_gain : float, default=1.0
        Factor of the first weights at the start.
    """

    def __init__(self, hidden_layer_sizes=(64, 64), activation="tanh", input_gain=1.0):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.input_gain = input_gain

    def _layers(self):
        sizes = self.hidden_layer_sizes
        return (sizes,) if isinstance(sizes, Integral) else tuple(sizes)

    def _activations(self):
        if isinstance(self.activation, str):
            return (self.activation,) * len(self._layers())
        return tuple(self.activation)

    def check(self):
        """Raise a ValueError where a word is out of its range."""
        for size in self._layers():
            if not isinstance(size, Integral) or size < 1:
                raise ValueError(
                    "hidden_layer_sizes must hold positive integers, got "
                    f"{self.hidden_layer_sizes!r}."
                )
        if len(self._activations()) != len(self._layers()):
            raise ValueError(
                f"activation={self.activation!r} must be one name or one a layer; "
                f"there are {len(self._layers())} hidden layers."
            )
        for name in self._activations():
            activation_function(name)
        if not self.input_gain > 0:
            raise ValueError(f"input_gain must be positive, got {self.input_gain!r}.")

    def init(self, rng, n_inputs):
        """Draw weights of variance ``1 / fan_in`` (2 for relu) and uniform biases.

        Parameters
        ----------
        rng : RandomState
        n_inputs : int

        Returns
        -------
        tuple of (weight, bias)
        """
        params, gain = [], self.input_gain
        for width, name in zip(self._layers(), self._activations(), strict=True):
            variance = (2 if name == "relu" else 1) / n_inputs
            weight = rng.standard_normal((n_inputs, width)) * np.sqrt(variance) * gain
            bias = rng.uniform(-1, 1, width) * gain
            params.append((weight, bias))
            n_inputs, gain = width, 1.0
        return tuple(params)

    def split(self, params):
        """Weights and biases, as two lists."""
        return [weight for weight, _ in params], [bias for _, bias in params]

    def apply(self, params, x):
        """Features of shape (m, width)."""
        for (weight, bias), name in zip(params, self._activations(), strict=True):
            x = activation_function(name)(x @ weight + bias[None, :])
        return x
