"""Vectors that are trees of arrays: inner product, norm and sum are those of optax."""

import jax
from optax.tree_utils import tree_add_scale as add
from optax.tree_utils import tree_norm as norm
from optax.tree_utils import tree_vdot as dot

__all__ = ["add", "dimension", "dot", "norm"]


def dimension(a):
    """Number of components."""
    return sum(leaf.size for leaf in jax.tree.leaves(a))
