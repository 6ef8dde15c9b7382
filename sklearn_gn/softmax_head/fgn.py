r"""FGN: fast Gauss-Newton for the multiclass cross-entropy.

The method of Korbit and Zanon ("Fast Gauss-Newton for multiclass cross-entropy",
Algorithm 1). In the softmax curvature of every example only the part of true class
against the rest is retained (:mod:`sklearn_gn.softmax_head.curvature`), which has rank
one:

    H = 1/omega J^T Q J,   Q = diag(w_i p_true p_rest),   omega = sum w_i,

with one row of J, the gradient of the margin, for each example of a mini-batch. An
epoch takes for every mini-batch the five steps numbered in
:func:`~sklearn_gn.softmax_head.direction.fgn_direction` and :func:`fgn_epoch`. The
damped step is solved in the space of the rows; for an affine head their Gram matrix has
a closed form, the elementwise product of two small ones. Beyond the paper, more rows
for each example bring back the leading part of what was dropped.

The paper's steps of length 0.1 hardly hover around the minimum, but need ten times the
passes to come near it. Full steps, the default, are averaged once they are many: the
weight of a head grows with the number of its step (Shamir and Zhang, "Stochastic
gradient descent for non-smooth optimization", 2013).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.arrays.blocks import symmetric_product
from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.parts import all_rows, n_devices
from sklearn_gn.softmax_head.direction import fgn_direction, n_competitors_of
from sklearn_gn.softmax_head.head import AffineHead, scalar_penalty
from sklearn_gn.softmax_head.minibatch import mini_batch_algorithm, sweep

_CHOLESKY_ROWS = 1024  # of the Gram: what is larger is left to conjugate gradients
_CG_ITERATIONS = 100
_APPROACH = 256  # steps that lead to the minimum; heads after them are averaged


class Walk(NamedTuple):
    """Where the steps have led: the head before it is averaged."""

    head: AffineHead
    n_steps: Array


def walk_from(net):
    """No step yet."""
    return Walk(net, jnp.int32(0))


@partial(
    by_rows,
    compiled=jitted(
        static_argnames=("batch_size", "averaged", "n_competitors", "cg_iterations")
    ),
)
def fgn_epoch(
    head, walk, data, settings, batch_size, averaged, n_competitors, cg_iterations
):
    """One pass over the mini-batches by FGN steps of length ``learning_rate``."""
    on_weight, on_bias = shifts(settings)
    penalty = scalar_penalty(settings.alpha)

    def update(carry, batch):
        (head, n_steps), mean = carry
        gram = row_gram(batch.x) if batch.gram is None else batch.gram
        features = gram / on_weight + settings.intercept / on_bias
        # Steps 1 to 4.
        step = fgn_direction(
            head,
            batch,
            features,
            penalty,
            (on_weight, on_bias),
            settings.intercept,
            n_competitors,
            cg_iterations,
        )
        # 5. Move.
        head = jax.tree.map(lambda p, d: p + settings.learning_rate * d, head, step)
        walk = Walk(head, n_steps + 1)
        return walk, averaged_over(walk, mean) if averaged else head

    walk = continued(walk, head, settings.intercept) if averaged else walk_from(head)
    walk, head = sweep(update, (walk, head), data, batch_size)
    return head, walk


def continued(walk, mean, intercept):
    """Go on where the steps have led, or from a head that is no mean of several."""
    few = walk.n_steps <= _APPROACH
    weight, bias = jax.tree.map(partial(jnp.where, few), mean, walk.head)
    return Walk(AffineHead(weight, intercept * bias), walk.n_steps)


def averaged_over(walk, mean):
    """The mean head after a step, or the head itself while the steps are few."""
    further = walk.n_steps - _APPROACH

    def moved(mean, head):
        share = 2 / (jnp.maximum(further, 0) + 2).astype(head.dtype)
        return jnp.where(further > 0, mean + share * (head - mean), head)

    return jax.tree.map(moved, mean, walk.head)


def row_gram(x):
    """Gram matrix of the rows of this device with those of all."""
    return symmetric_product(x) if n_devices() == 1 else x @ all_rows(x).T


def shifts(settings):
    """Damping plus penalty of the weights, and damping of the bias.

    Kept above zero, which a bias without damping needs.
    """
    floor = float(np.sqrt(np.finfo(settings.damping.dtype).eps))
    return (
        jnp.maximum(settings.damping + settings.alpha, floor),
        jnp.maximum(settings.damping, floor),
    )


def static_arguments(options, n_classes):
    """Whether heads are averaged, competitor directions, how the system is solved."""
    n_competitors = n_competitors_of(options.rank, n_classes)
    direct = options.batch_size * (1 + n_competitors) <= _CHOLESKY_ROWS
    return {
        "averaged": options.solver.learning_rate is None,
        "n_competitors": n_competitors,
        "cg_iterations": 0 if direct else _CG_ITERATIONS,
    }


FGN = mini_batch_algorithm(
    "fgn", fgn_epoch, static_arguments, memory=walk_from, grams=True
)
