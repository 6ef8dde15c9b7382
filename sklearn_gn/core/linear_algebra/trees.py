"""Vectors that are trees of arrays."""

import jax
import jax.numpy as jnp


def dot(a, b):
    """Inner product."""
    parts = jax.tree.leaves(jax.tree.map(lambda u, v: jnp.sum(u * v), a, b))
    return sum(parts[1:], parts[0])


def norm(a):
    """Euclidean norm."""
    return jnp.sqrt(dot(a, a))


def dimension(a):
    """Number of components."""
    return sum(leaf.size for leaf in jax.tree.leaves(a))


def add(a, factor, b):
    """``a + factor b``."""
    return jax.tree.map(lambda u, v: u + factor * v, a, b)
