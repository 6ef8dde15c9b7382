"""The affine softmax head: logits ``z = h W + b`` of frozen features ``h``."""

from typing import NamedTuple

import jax.numpy as jnp


class AffineHead(NamedTuple):
    """Parameters of a head.

    For two classes one column is enough: it holds the logit of the second class, that
    of the first is zero. This is the parametrisation of ``LogisticRegression``, in
    which the penalty on ``weight`` has its usual meaning.
    """

    weight: jnp.ndarray  # (d, m), m = 1 for two classes, else the number of classes
    bias: jnp.ndarray  # (m,)


def columns(head, x):
    """Values of the m columns, of shape (n, m)."""
    return x @ head.weight + head.bias[None, :]


def all_classes(values):
    """Logits of all C classes from the m columns."""
    if values.shape[1] > 1:
        return values
    return jnp.concatenate([jnp.zeros_like(values), values], axis=1)


def to_columns(by_class):
    """Transpose of :func:`all_classes`: what falls on the free columns.

    Takes arrays of shape (..., C) and returns shape (..., m).
    """
    return by_class if by_class.shape[-1] > 2 else by_class[..., 1:]
