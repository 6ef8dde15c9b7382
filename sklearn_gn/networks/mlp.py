"""Multilayer perceptron."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_gn.networks._base import (
    Network,
    activation_function,
    check_positive,
    checked_sizes,
)


@dataclass(eq=False)
class MLP(Network):
    """Fully connected layers.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, default=(64, 64)
        Widths of the layers; the last one is the number of features. If empty, the
        features are the inputs.
    activation : str or tuple of str, default="tanh"
        Activation of all layers, or one for each: "tanh", "relu", "sigmoid",
        "softplus", "silu", "gelu", "sin" or "identity".
    input_gain : float, default=1.0
        Factor of the first layer's weights at the start.
    """

    hidden_layer_sizes: tuple[int, ...] = (64, 64)
    activation: str | tuple[str, ...] = "tanh"
    input_gain: float = 1.0

    def _layers(self):
        return checked_sizes("hidden_layer_sizes", self.hidden_layer_sizes)

    def _activations(self):
        if isinstance(self.activation, str) or not np.iterable(self.activation):
            return (self.activation,) * len(self._layers())
        return tuple(self.activation)

    def check(self) -> None:
        """Raise a ValueError where a parameter is out of its range."""
        if len(self._activations()) != len(self._layers()):
            raise ValueError(
                "activation must be one name, or one for each of the "
                f"{len(self._layers())} hidden layers; got {self.activation!r}."
            )
        for name in self._activations():
            activation_function(name)
        check_positive("input_gain", self.input_gain)

    def init(self, rng: np.random.RandomState, n_inputs: int) -> Any:
        """Draw weights of variance ``1 / fan_in`` (2 for relu) and uniform biases.

        They are returned as pairs, one a layer.
        """
        params, gain = [], self.input_gain
        for width, name in zip(self._layers(), self._activations(), strict=True):
            variance = (2 if name == "relu" else 1) / n_inputs
            weight = rng.standard_normal((n_inputs, width)) * np.sqrt(variance) * gain
            bias = rng.uniform(-1, 1, width) * gain
            params.append((weight, bias))
            n_inputs, gain = width, 1.0
        return tuple(params)

    def split(self, params: Any) -> Any:
        """Return weights and biases, as two lists."""
        return [weight for weight, _ in params], [bias for _, bias in params]

    def apply(self, params: Any, x: Any) -> Any:
        """Return the features, of shape (m, width)."""
        for (weight, bias), name in zip(params, self._activations(), strict=True):
            x = activation_function(name)(x @ weight + bias[None, :])
        return x
