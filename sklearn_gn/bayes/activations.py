"""Activations with their derivatives, in NumPy or JAX, by the names of the networks."""

import numpy as np

from sklearn_gn.arrays.libraries import library_of, namespace


def _relu(z):
    active = (z > 0).astype(z.dtype)
    return z * active, active


def _tanh(z):
    a = namespace(z).tanh(z)
    return a, 1 - a * a


def _sigmoid(z):
    a = library_of(z).sigmoid(z)
    return a, a * (1 - a)


def _softplus(z):
    library = library_of(z)
    return library.softplus(z), library.sigmoid(z)


def _silu(z):
    a = library_of(z).sigmoid(z)
    return z * a, a * (1 + z * (1 - a))


def _gelu(z):
    # The normal distribution function by the tanh that JAX takes by default.
    inner = np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)
    a = (1 + namespace(z).tanh(inner)) / 2
    slope = 2 * a * (1 - a) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * z**2)
    return z * a, a + z * slope


def _sin(z):
    xp = namespace(z)
    return xp.sin(z), xp.cos(z)


def _identity(z):
    return z, namespace(z).ones_like(z)


ACTIVATIONS = {
    "relu": _relu,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "silu": _silu,
    "gelu": _gelu,
    "sin": _sin,
    "identity": _identity,
}
