"""Mini-batch methods of the softmax head: batches, epochs, when they end.

A method is a function of one epoch,

    head, memory = epoch(head, memory, data, settings, batch_size, **static)

which :func:`sweep` folds over the batches. What is here is the same for all of them.
Batches are drawn once, or again in every epoch (``shuffle``).
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.arrays.blocks import symmetric_product
from sklearn_gn.arrays.parts import n_devices
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.softmax_head.head import (
    AffineHead,
    Batch,
    BatchedRows,
    head_report,
    objective,
    on_devices,
)

_DAMPING = 1.0  # for features of size one
_LEARNING_RATE = 1.0
_PATIENCE = 5  # epochs without progress after which a mini-batch method ends
_HOVER = 0.1  # distance of the last loss from the best one that is no divergence


class BatchData(NamedTuple):
    """Rows on the device, with the Gram matrices of the features of every batch."""

    rows: BatchedRows
    grams: jnp.ndarray | None  # (L / batch_size, batch_size, batch_size)


class StepSettings(NamedTuple):
    """What a compiled step needs, as scalars."""

    alpha: np.ndarray
    damping: np.ndarray
    intercept: np.ndarray
    learning_rate: np.ndarray


class MiniBatchState(NamedTuple):
    """Head, its loss, and how long it has not fallen."""

    net: AffineHead
    loss: float
    best: float
    waited: int = 0
    epoch: int = 0
    memory: Any = None  # what an optimiser carries from step to step


def mini_batch_algorithm(name, epoch, static, *, memory=lambda net: None, grams=False):
    """Return a mini-batch method from the function of one epoch.

    Parameters
    ----------
    name : str
    epoch : callable
        See the top of this module.
    static : callable
        Maps ``(options, n_classes)`` to the further arguments of ``epoch``.
    memory : callable, default=None
        Maps a head to what the optimiser starts with.
    grams : bool, default=False
        Whether the method needs the Gram matrices of the features.

    Returns
    -------
    Algorithm
    """

    def init(data, net, options):
        net = jax.device_put(net)
        loss = float(objective(net, data.rows, options).loss)
        return MiniBatchState(net, loss, loss, memory=memory(net))

    def step(data, state, options):
        batches = data
        if options.solver.shuffle:
            order = epoch_order(data.rows, options, state.epoch)
            batches = data._replace(rows=reorder(data.rows, order))
        n_classes = max(state.net.bias.shape[0], 2)
        net, memory = epoch(
            state.net,
            state.memory,
            batches,
            step_settings(options),
            options.batch_size,
            **static(options, n_classes),
        )
        return finish_epoch(data, state, options, net, memory)

    prepare = prepare_with_grams if grams else prepare_rows
    return Algorithm(name, init, step, prepare=prepare)


def step_settings(options):
    """The scalars of a step from the options of the fit."""
    cast = options.alpha.dtype.type
    damping = _DAMPING if options.damping is None else options.damping
    rate = options.solver.learning_rate
    return StepSettings(
        alpha=options.alpha,
        damping=cast(damping),
        intercept=options.intercept,
        learning_rate=cast(_LEARNING_RATE if rate is None else rate),
    )


def finish_epoch(data, state, options, net, memory):
    """State and report after an epoch: the loss on all rows decides."""
    evaluation = objective(net, data.rows, options)
    loss = float(evaluation.loss)
    stop, best, waited = stop_reason(state, loss, options)
    new = MiniBatchState(net, loss, best, waited, state.epoch + 1, memory)
    return new, head_report(evaluation, stop, options)


def stop_reason(state, loss, options):
    """Why to end after an epoch, or None; the loss to beat, and epochs without."""
    fell = state.best - loss > float(options.tol) * abs(state.best)
    waited = 0 if fell else state.waited + 1
    stop = None
    if not math.isfinite(loss):
        stop = "non_finite"
    elif waited >= _PATIENCE:
        stop = "tol" if loss <= (1 + _HOVER) * state.best else "diverged"
    # Slow but steady falls add up.
    return stop, loss if fell else state.best, waited


# --- batches -------------------------------------------------------------------------


def sweep(update, carry, data, batch_size):
    """Fold ``update(carry, batch)`` over the batches."""
    rows, batch_size = data.rows, batch_size // n_devices()

    def step(k, carry):
        x, label, weight = (
            lax.dynamic_slice_in_dim(a, k * batch_size, batch_size)
            for a in (rows.x, rows.label, rows.weight)
        )
        gram = None
        if data.grams is not None:
            gram = lax.dynamic_index_in_dim(data.grams, k, keepdims=False)
        return update(carry, Batch(x, label, weight, gram))

    return lax.fori_loop(jnp.int32(0), rows.n_batches, step, carry)


def prepare_rows(rows, options):
    """Put the rows on the device."""
    return BatchData(on_devices(rows, options), None)


def prepare_with_grams(rows, options):
    """Put the rows on the device, with the feature Grams where batches stay the same.

    The Grams take no more room than the features while a batch has no more rows than
    there are features; with more classes than rows they save too little to be kept.
    """
    b, d = options.batch_size, rows.x.shape[1]
    n_classes = int(np.max(rows.label)) + 1
    rows = on_devices(rows, options)
    keep = (
        options.mesh is None
        and not options.solver.shuffle
        and b <= d
        and n_classes <= b
    )
    return BatchData(rows, feature_grams(rows.x, b) if keep else None)


@partial(jax.jit, static_argnames="batch_size")
def feature_grams(x, batch_size):
    """Gram matrices of the features of all batches, which the weights do not change."""
    batches = x.reshape(-1, batch_size, x.shape[1])
    return lax.map(symmetric_product, batches)


@jax.jit
def reorder(rows, order):
    """The rows in another order."""
    x, label, weight = (a[order] for a in (rows.x, rows.label, rows.weight))
    return rows._replace(x=x, label=label, weight=weight)


def epoch_order(rows, options, epoch):
    """Row numbers of a shuffled epoch, the last batch filled from its start."""
    n, length = int(rows.n_rows), rows.x.shape[0]
    rng = np.random.RandomState((int(options.seed) + epoch) % 2**32)
    order = np.arange(length, dtype=np.int32)
    order[:n] = rng.permutation(n)
    used = int(rows.n_batches) * options.batch_size
    if n < used and n > options.batch_size:
        order[n:used] = order[: used - n]
    return order
