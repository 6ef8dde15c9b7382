r"""FGN: fast Gauss-Newton for the multiclass cross-entropy.

The method of Korbit and Zanon ("Fast Gauss-Newton for multiclass cross-entropy",
Algorithm 1). In the softmax curvature of every example only the part of true class
against the rest is retained (:mod:`sklearn_gn.softmax_head.curvature`), which has rank
one:

    H = 1/omega J^T Q J,   Q = diag(w_i p_true p_rest),   omega = sum w_i,

with one row of J, the gradient of the margin, for each example of a mini-batch. An
epoch takes for every mini-batch the five steps numbered in :func:`fgn_direction` and
:func:`fgn_epoch`. The damped step is solved in the space of the rows; for an affine
head their Gram matrix has a closed form, the elementwise product of two small ones.
Beyond the paper, more rows for each example bring back the leading part of what was
dropped.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.core.compilation import jit_by_size
from sklearn_gn.core.devices import (
    all_rows,
    by_rows,
    jitted,
    n_devices,
    own_rows,
    total,
)
from sklearn_gn.core.fgn import solve_rows
from sklearn_gn.core.linear_algebra.blocks import symmetric_product
from sklearn_gn.core.multinomial import (
    all_classes,
    margins,
    root_curvature,
    to_columns,
)
from sklearn_gn.softmax_head.curvature import curvature_rows
from sklearn_gn.softmax_head.head import AffineHead, scalar_penalty, values
from sklearn_gn.softmax_head.minibatch import mini_batch_algorithm, sweep

_CHOLESKY_ROWS = 1024  # of the Gram: what is larger is left to conjugate gradients
_CG_ITERATIONS = 100


@partial(
    by_rows,
    compiled=jitted(static_argnames=("batch_size", "n_competitors", "cg_iterations")),
)
def fgn_epoch(head, memory, data, settings, batch_size, n_competitors, cg_iterations):
    """One pass over the mini-batches by FGN steps of length ``learning_rate``."""
    on_weight, on_bias = shifts(settings)
    penalty = scalar_penalty(settings.alpha)

    def update(head, batch):
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
        return jax.tree.map(lambda p, d: p + settings.learning_rate * d, head, step)

    return sweep(update, head, data, batch_size), memory


def fgn_direction(
    head,
    batch,
    features,
    penalty,
    shifts,
    intercept,
    n_competitors,
    cg_iterations,
    root_of=root_curvature,
):
    """The damped FGN step of an affine head, ``-(H + D)^-1 gradient``.

    Parameters
    ----------
    head : AffineHead
    batch : Batch
    features : array of shape (b, b), or (b of this device, b)
        Gram matrix ``h_i^T D^-1 h_j`` of the features with a one for the bias.
    penalty : array of shape (d, 1) or (1, 1)
        Factor of the squares of each row of the weights in the objective.
    shifts : tuple of two scalars
        The diagonal D, for the weights, where it may be of shape (d, 1), and for the
        bias.
    intercept : scalar
        1, or 0 where the bias stays zero.
    n_competitors : int
        Competitor directions of each example.
    cg_iterations : int
        Most steps of CG on the system; 0: Cholesky.
    root_of : callable, default=root_curvature
        Maps margins to the square roots of their curvatures.

    Returns
    -------
    AffineHead
    """
    on_weight, on_bias = shifts
    # 1. Margins: probabilities, curvatures, and the direction of each row.
    logits = values(head, batch.x)
    split = margins(all_classes(logits), batch.label)
    root, slope, by_class = curvature_rows(split, batch.weight, n_competitors, root_of)
    direction = to_columns(by_class)
    # What the gradient of the penalty adds, seen from row space: J D^-1 penalty W.
    if penalty.shape[0] == 1:
        pulled = penalty * (logits - head.bias[None, :]) / on_weight
    else:
        pulled = batch.x @ (penalty / on_weight * head.weight)
    if n_competitors:
        rows = 1 + n_competitors
        pulled = jnp.repeat(pulled, rows, axis=0)
        features = jnp.repeat(jnp.repeat(features, rows, 0), rows, 1)
    slope = slope - root * root * jnp.sum(direction * pulled, axis=1)
    # 2. Gram matrix of the rows, of which each device computes its own.
    gram = all_rows(features * (direction @ all_rows(direction).T))
    # 3. The system in row space.
    size = total(jnp.sum(batch.weight))
    y = solve_rows(gram, all_rows(root), all_rows(slope), size, cg_iterations)
    y = own_rows(y)
    # 4. Back to the parameters.
    back = (y[:, None] * direction).reshape(len(batch.label), 1 + n_competitors, -1)
    back = jnp.sum(back, axis=1)
    return AffineHead(
        -(penalty * head.weight + total(batch.x.T @ back)) / on_weight,
        -intercept / on_bias * total(jnp.sum(back, axis=0)),
    )


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
    """Competitor directions, and how the system is solved."""
    n_competitors = n_competitors_of(options.rank, n_classes)
    direct = options.batch_size * (1 + n_competitors) <= _CHOLESKY_ROWS
    return {
        "n_competitors": n_competitors,
        "cg_iterations": 0 if direct else _CG_ITERATIONS,
    }


def n_competitors_of(rank, n_classes):
    """Directions of an example beside that of its margin; C - 2 are all there are."""
    return 0 if rank is None else min(rank - 1, max(n_classes - 2, 0))


@partial(jit_by_size, static_argnames=("n_examples", "n_competitors"))
def row_spectrum(head, rows, intercept, n_examples, n_competitors):
    """Eigenvalues of the Gauss-Newton matrix of the first examples, descending.

    Those of the row Gram ``K / omega``, which has the same ones but for zeros.
    """
    x, label, weight = (a[:n_examples] for a in (rows.x, rows.label, rows.weight))
    split = margins(all_classes(values(head, x)), label)
    root, _, by_class = curvature_rows(split, weight, n_competitors)
    direction = root[:, None] * to_columns(by_class)
    repeats = 1 + n_competitors
    features = jnp.repeat(jnp.repeat(x @ x.T + intercept, repeats, 0), repeats, 1)
    gram = features * (direction @ direction.T) / jnp.sum(weight)
    return jnp.linalg.eigvalsh(gram)[::-1]


FGN = mini_batch_algorithm("fgn", fgn_epoch, static_arguments, grams=True)
