"""Coefficients of an equation: numbers, arrays, and unknowns that are to be found."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Unknown:
    """A coefficient to be found.

    Parameters
    ----------
    initial : float or array
        Where the search begins.

    positive : bool, default=False
        Whether it must be positive: the search is then for its logarithm.
    """

    initial: float | tuple
    positive: bool = False

    def __post_init__(self):
        initial = np.asarray(self.initial, dtype=float)
        if not np.isfinite(initial).all() or (
            self.positive and not (initial > 0).all()
        ):
            wanted = "positive" if self.positive else "finite"
            raise ValueError(f"initial must be {wanted}, got {self.initial!r}.")
        object.__setattr__(self, "initial", _nested(initial))

    def encode(self, value: Any) -> Any:
        """What the search is for: the value, or its logarithm. In numpy."""
        value = np.asarray(value, dtype=float)
        return np.log(value) if self.positive else value

    def decode(self, raw: Any) -> Any:
        """The inverse of ``encode``, in JAX."""
        return jnp.exp(raw) if self.positive else raw


def frozen_coefficient(name, value):
    """The coefficient as a number, as nested tuples or as an Unknown.

    Raises
    ------
    ValueError
        If it is none of these, or not finite.
    """
    if isinstance(value, Unknown):
        return value
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if not np.isfinite(array).all():
        raise ValueError(
            f"coefficient {name!r} must be a finite number, an array or Unknown, got "
            f"{value!r}."
        )
    return _nested(array)


def as_array(value):
    """Nested tuples as an array; a number as it is."""
    return np.array(value) if isinstance(value, tuple) else value


def _nested(array):
    """A number, or tuples of tuples, which have a hash."""
    return tuple(map(_nested, array)) if array.ndim else float(array)
