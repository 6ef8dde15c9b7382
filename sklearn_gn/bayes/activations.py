"""Activations with their derivatives, in NumPy, by the names of the networks."""

import numpy as np
from scipy.special import expit


def _relu(z):
    active = z > 0
    return z * active, active.astype(z.dtype)


def _tanh(z):
    a = np.tanh(z)
    return a, 1 - a * a


def _sigmoid(z):
    a = expit(z)
    return a, a * (1 - a)


def _softplus(z):
    return np.logaddexp(0, z), expit(z)


def _silu(z):
    a = expit(z)
    return z * a, a * (1 + z * (1 - a))


def _gelu(z):
    # The normal distribution function by the tanh that JAX takes by default.
    inner = np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)
    a = (1 + np.tanh(inner)) / 2
    slope = 2 * a * (1 - a) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * z**2)
    return z * a, a + z * slope


def _sin(z):
    return np.sin(z), np.cos(z)


def _identity(z):
    return z, np.ones_like(z)


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
