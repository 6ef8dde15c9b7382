"""Rules for the Levenberg-Marquardt shift."""

from typing import NamedTuple

import jax.numpy as jnp


class Nielsen(NamedTuple):
    """Damping controlled by the gain ratio, after Nielsen (IMM-REP-1999-05).

    A good step shrinks the shift smoothly by at most a factor of three; every further
    rejection in a row multiplies it by twice the factor of the one before.
    """

    value: jnp.ndarray
    growth: jnp.ndarray

    @classmethod
    def start(cls, value):
        """Begin with the shift ``value``."""
        return cls(value, jnp.full_like(value, 2))

    def update(self, gain_ratio):
        """Shift after a step of the given gain ratio; at most zero means rejected."""
        shrink = jnp.maximum(1 / 3, 1 - (2 * gain_ratio - 1) ** 3)
        good = gain_ratio > 0  # False for NaN
        return Nielsen(
            jnp.where(good, self.value * shrink, self.value * self.growth),
            jnp.where(good, jnp.full_like(self.growth, 2), 2 * self.growth),
        )
