"""Vectors that are trees of arrays: inner product, norm, sum and dimension."""

import jax
import jax.numpy as jnp
from jax import lax


def add(a, factor, b):
    """``a + factor b``."""
    return jax.tree.map(lambda x, y: x + jnp.asarray(factor) * y, a, b)


def dot(a, b):
    """Inner product, in full precision on every device."""
    products = jax.tree.map(
        lambda x, y: jnp.vdot(x, y, precision=lax.Precision.HIGHEST), a, b
    )
    return sum(jax.tree.leaves(products))


def norm(a):
    """Euclidean norm."""
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(a)))


def dimension(a):
    """Number of components."""
    return sum(leaf.size for leaf in jax.tree.leaves(a))
