r"""Curvature of the softmax cross-entropy, split into true class against the rest.

With the true class t, its competitors j and the margin

    s = log sum_{j != t} exp(z_j) - z_t,

the cross-entropy is softplus(s): ``p_rest = sigmoid(s)`` is the probability of an
error, ``rho`` the softmax over the competitors, and ``a`` (-1 at t, rho elsewhere) the
gradient of s. The covariance of the softmax splits into two positive semidefinite
parts,

    diag(p) - p p^T = p_true p_rest a a^T  +  p_rest (diag(rho) - rho rho^T),
                      kept by FGN              dropped

(Korbit and Zanon, Theorem 3.1). All is computed from log-sum-exp, so that margins of
either sign and any size are exact to rounding.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Margins(NamedTuple):
    """The loss of n examples as true class against the rest."""

    margin: jnp.ndarray  # (n,)  s
    p_true: jnp.ndarray  # (n,)  sigmoid(-s)
    p_rest: jnp.ndarray  # (n,)  sigmoid(s)
    rho: jnp.ndarray  # (n, C)  softmax over the competitors, 0 at the true class
    gradient: jnp.ndarray  # (n, C)  a, the gradient of the margin in the logits


def is_true_class(label, n_classes):
    """Mask of shape (n, C)."""
    return label[:, None] == jnp.arange(n_classes, dtype=label.dtype)[None, :]


def margins(logits, label):
    """Split the examples of the given logits (n, C) and labels (n,)."""
    true = is_true_class(label, logits.shape[1])
    competitors = jnp.where(true, -jnp.inf, logits)
    log_sum = jax.nn.logsumexp(competitors, axis=1)
    rho = jnp.exp(competitors - log_sum[:, None])
    margin = log_sum - jnp.sum(jnp.where(true, logits, 0), axis=1)
    return Margins(
        margin=margin,
        p_true=jax.nn.sigmoid(-margin),
        p_rest=jax.nn.sigmoid(margin),
        rho=rho,
        gradient=rho - true.astype(rho.dtype),
    )


def cross_entropy(margin):
    """softplus(s), exactly the cross-entropy."""
    return jax.nn.softplus(margin)


def root_curvature(margin):
    """``sqrt(p_true p_rest)``, which does not underflow before it has to."""
    half = jnp.exp(-jnp.abs(margin) / 2)
    return half / (1 + half * half)


def dispersion(rho):
    """``xi = 1 - |rho|^2`` in [0, 1 - 1/(C - 1)]: how widely the error is spread."""
    return jnp.sum(rho * (1 - rho), axis=1)


def traces(split):
    """Dispersion and traces of the kept and the dropped part, each of shape (n,)."""
    xi = dispersion(split.rho)
    retained = split.p_true * split.p_rest * (2 - xi)
    return xi, retained, split.p_rest * xi


def kept(split):
    """The kept part ``p_true p_rest a a^T``, of shape (n, C, C)."""
    a = split.gradient
    return (split.p_true * split.p_rest)[:, None, None] * a[:, :, None] * a[:, None, :]


def dropped(split):
    """The dropped part ``p_rest (diag(rho) - rho rho^T)``, of shape (n, C, C)."""
    rho = split.rho
    eye = jnp.eye(rho.shape[1], dtype=rho.dtype)
    covariance = rho[:, :, None] * eye[None] - rho[:, :, None] * rho[:, None, :]
    return split.p_rest[:, None, None] * covariance


def competitor_directions(split, rank):
    r"""Leading directions of the dropped part, one more competitor at a time.

    The covariance of rho splits like that of the softmax: the likeliest competitor
    against the others, and what is left among the others, in which the next splits off.
    With ``r_k`` the mass before competitor k is taken away,

        diag(rho) - rho rho^T = sum_k  rho_k r_{k+1} / r_k  v_k v_k^T,
        v_k = e_k - rho[the others] / r_{k+1},

    ends after C - 2 terms, so ``rank = C - 2`` gives the whole covariance.

    Parameters
    ----------
    split : Margins
    rank : int
        Number of directions; terms beyond C - 2 are zero.

    Returns
    -------
    weight : array of shape (n, rank)
        Curvature along each direction, the factor ``p_rest`` included.
    direction : array of shape (n, rank, C)
    """
    n, n_classes = split.rho.shape
    left = split.rho
    weights, directions = [], []
    for _ in range(rank):
        first = is_true_class(jnp.argmax(left, axis=1), n_classes)
        mass = jnp.sum(left, axis=1)
        share = jnp.max(left, axis=1)
        left = jnp.where(first, 0, left)
        # Summed again: mass - share would lose the digits of a small remainder.
        remainder = jnp.sum(left, axis=1)
        safe = jnp.where(remainder > 0, remainder, 1)
        weights.append(split.p_rest * share * remainder / jnp.where(mass > 0, mass, 1))
        directions.append(first.astype(left.dtype) - left / safe[:, None])
    if not rank:
        empty = jnp.zeros((n, 0), split.rho.dtype)
        return empty, jnp.zeros((n, 0, n_classes), split.rho.dtype)
    return jnp.stack(weights, axis=1), jnp.stack(directions, axis=1)


def covariance_product(p, u):
    """``(diag(p) - p p^T) u`` for each example, arrays of shape (n, C)."""
    pu = p * u
    return pu - p * jnp.sum(pu, axis=1, keepdims=True)
