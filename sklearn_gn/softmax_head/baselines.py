"""Baselines for the affine softmax head: SGN and Adam, on the batches of FGN."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from sklearn_gn.core.affine import AffineHead, all_classes, columns, to_columns
from sklearn_gn.core.linear_algebra.krylov import conjugate_gradient
from sklearn_gn.core.softmax import covariance_product, margins
from sklearn_gn.core.solver import Algorithm
from sklearn_gn.softmax_head.fgn import init_with, prepare, shifts, step_with, sweep

_CG_TOL = 1e-5
_ADAM = optax.scale_by_adam()


def prepare_plain(rows, options):
    """Rows on the device; no Grams."""
    return prepare(rows, options, grams=False)


def batch_gradient(head, batch, options):
    """Gradient of the objective on a batch, and the softmax probabilities."""
    split = margins(all_classes(columns(head, batch.x)), batch.label)
    total = jnp.sum(batch.weight)
    error = (batch.weight / total * split.p_rest)[:, None] * split.gradient
    error = to_columns(error)
    gradient = AffineHead(
        batch.x.T @ error + options.alpha * head.weight,
        options.intercept * jnp.sum(error, axis=0),
    )
    true = split.gradient - split.rho  # -1 at the true class
    return gradient, split.p_rest[:, None] * split.rho - split.p_true[:, None] * true


def sgn_direction(head, batch, options, start, cg_iterations):
    """Damped Gauss-Newton step with the full softmax curvature (Gargiani et al. 2020).

    Conjugate gradients in parameter space, started from the last step.
    """
    on_weight, on_bias = shifts(options)
    gradient, p = batch_gradient(head, batch, options)
    share = (batch.weight / jnp.sum(batch.weight))[:, None]

    def product(v):
        change = to_columns(
            share * covariance_product(p, all_classes(columns(v, batch.x)))
        )
        return AffineHead(
            batch.x.T @ change + on_weight * v.weight,
            options.intercept * jnp.sum(change, axis=0) + on_bias * v.bias,
        )

    right = jax.tree.map(jnp.negative, gradient)
    tol = jnp.asarray(_CG_TOL, p.dtype)
    step, *_ = conjugate_gradient(
        product, right, start=start, tol=tol, max_iter=cg_iterations
    )
    return step


@partial(jax.jit, static_argnames=("batch_size", "rank", "cg_iterations"))
def sgn_epoch(head, memory, data, options, batch_size, rank, cg_iterations):
    """One pass of SGN steps of length ``learning_rate``."""
    del rank  # all of the curvature is kept

    def update(carry, batch):
        head, last = carry
        step = sgn_direction(head, batch, options, last, cg_iterations)
        rate = options.learning_rate
        return jax.tree.map(lambda p, d: p + rate * d, head, step), step

    return sweep(update, (head, memory), data, batch_size)


def sgn_start(net):
    """No step yet."""
    return jax.tree.map(jnp.zeros_like, net)


@partial(jax.jit, static_argnames=("batch_size", "rank", "cg_iterations"))
def adam_epoch(head, memory, data, options, batch_size, rank, cg_iterations):
    """One pass of Adam."""
    del rank, cg_iterations

    def update(carry, batch):
        head, moments = carry
        gradient, _ = batch_gradient(head, batch, options)
        with jax.numpy_dtype_promotion("standard"):
            move, moments = _ADAM.update(gradient, moments)
        rate = options.learning_rate
        return jax.tree.map(lambda p, u: p - rate * u, head, move), moments

    return sweep(update, (head, memory), data, batch_size)


@jax.jit
def adam_start(net):
    """Zero moments."""
    with jax.numpy_dtype_promotion("standard"):
        return _ADAM.init(net)


ALGORITHMS = (
    Algorithm("sgn", init_with(sgn_start), step_with(sgn_epoch), prepare=prepare_plain),
    Algorithm(
        "adam", init_with(adam_start), step_with(adam_epoch), prepare=prepare_plain
    ),
)
