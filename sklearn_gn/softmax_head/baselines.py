"""Baselines for the affine softmax head: SGN and Adam, on the batches of FGN."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.parts import total
from sklearn_gn.optim import first_order
from sklearn_gn.optim.multinomial import (
    all_classes,
    hessian_product,
    margins,
    newton_direction,
    to_columns,
)
from sklearn_gn.softmax_head.fgn import shifts
from sklearn_gn.softmax_head.head import AffineHead, values, values_transposed
from sklearn_gn.softmax_head.minibatch import mini_batch_algorithm, sweep

_CG_TOL = 1e-5
_SGN_CG_ITERATIONS = 5


# --- SGN -----------------------------------------------------------------------------


@partial(by_rows, compiled=jitted(static_argnames="batch_size"))
def sgn_epoch(head, memory, data, settings, batch_size, cg_iterations):
    """One pass of SGN steps of length ``learning_rate``."""

    def update(carry, batch):
        head, last = carry
        step = sgn_direction(head, batch, settings, last, cg_iterations)
        rate = settings.learning_rate
        return jax.tree.map(lambda p, d: p + rate * d, head, step), step

    return sweep(update, (head, memory), data, batch_size)


def sgn_direction(head, batch, settings, start, cg_iterations):
    """Damped Gauss-Newton step with the full softmax curvature (Gargiani et al. 2020).

    Conjugate gradients in parameter space, started from the last step.
    """
    on_weight, on_bias = shifts(settings)
    gradient, p = batch_gradient(head, batch, settings)
    share = batch.weight / total(jnp.sum(batch.weight))

    def product(v):
        image = hessian_product(
            partial(values, x=batch.x),
            partial(values_transposed, batch.x),
            p,
            share,
            v,
        )
        image = total(image)
        return AffineHead(
            image.weight + on_weight * v.weight,
            settings.intercept * image.bias + on_bias * v.bias,
        )

    step, _ = newton_direction(
        product, gradient, start=start, forcing=_CG_TOL, max_iter=cg_iterations
    )
    return step


def batch_gradient(head, batch, settings):
    """Gradient of the objective on a batch, and the softmax probabilities."""
    split = margins(all_classes(values(head, batch.x)), batch.label)
    share = batch.weight / total(jnp.sum(batch.weight))
    error = (share * split.p_rest)[:, None] * split.gradient
    gradient = total(values_transposed(batch.x, to_columns(error)))
    gradient = AffineHead(
        gradient.weight + settings.alpha * head.weight,
        settings.intercept * gradient.bias,
    )
    true = split.gradient - split.rho  # -1 at the true class
    return gradient, split.p_rest[:, None] * split.rho - split.p_true[:, None] * true


def sgn_start(net):
    """No step yet."""
    return jax.tree.map(jnp.zeros_like, net)


def krylov_dimension(options, n_classes):
    """Iterations of the conjugate gradients."""
    del n_classes
    rank = _SGN_CG_ITERATIONS if options.rank is None else options.rank
    return {"cg_iterations": np.int32(rank)}


# --- Adam ----------------------------------------------------------------------------


@partial(by_rows, compiled=jitted(static_argnames="batch_size"))
def adam_epoch(head, memory, data, settings, batch_size):
    """One pass of Adam."""

    def update(carry, batch):
        head, moments = carry
        gradient, _ = batch_gradient(head, batch, settings)
        return first_order.gradient_step(
            "adam", head, gradient, moments, settings.learning_rate
        )

    return sweep(update, (head, memory), data, batch_size)


def no_arguments(options, n_classes):
    """Nothing but the settings."""
    del options, n_classes
    return {}


adam_start = partial(first_order.start, "adam")

ALGORITHMS = (
    mini_batch_algorithm("sgn", sgn_epoch, krylov_dimension, memory=sgn_start),
    mini_batch_algorithm("adam", adam_epoch, no_arguments, memory=adam_start),
)
