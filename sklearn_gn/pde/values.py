"""What the user's functions return, as arrays."""

import jax.numpy as jnp

from sklearn_gn.pde.operators import Field


def flat(result, x):
    """What a residual returns, as one array of shape (k,)."""
    if isinstance(result, (tuple, list)):
        parts = [flat(part, x) for part in result]
        return jnp.concatenate(parts) if parts else jnp.zeros(0, x.dtype)
    if isinstance(result, Field):
        result = result(x)
    if isinstance(result, (str, bytes, dict, type(None))) or callable(result):
        raise ValueError(
            "residual must return numbers, arrays, fields, or a tuple of them, got "
            f"{type(result).__name__}."
        )
    if jnp.iscomplexobj(result):
        raise ValueError("residual is complex: return its real and imaginary parts.")
    return jnp.ravel(jnp.asarray(result, x.dtype))
