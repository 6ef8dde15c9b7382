r"""FGN: fast Gauss-Newton for the multiclass cross-entropy.

The method of Korbit and Zanon ("Fast Gauss-Newton for multiclass cross-entropy",
Algorithm 1). In the softmax curvature of every example only the part of true class
against the rest is kept (:mod:`sklearn_gn.core.softmax`), which has rank one:

    H = 1/omega J^T Q J,   Q = diag(w_i p_true p_rest),   omega = sum w_i,

with one row of J, the gradient of the margin, for each example of a mini-batch. The
damped step is solved in the space of these rows; for an affine head their Gram matrix
has a closed form, the elementwise product of two small ones. Beyond the paper,
``rank`` more rows for each example bring back the leading part of what was dropped.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.core.affine import AffineHead, all_classes, columns, to_columns
from sklearn_gn.core.fgn import curvature_rows, solve_rows
from sklearn_gn.core.linear_algebra.blocks import symmetric_product
from sklearn_gn.core.softmax import (
    cross_entropy,
    margins,
    traces,
)
from sklearn_gn.core.solver import Algorithm, Report

_PATIENCE = 5  # epochs without progress after which a mini-batch method ends
_HOVER = 0.1  # distance of the last loss from the best one that is no divergence
_BLOCK_ELEMENTS = 2**21  # logits of a row block: what fits into the processor's cache


class Rows(NamedTuple):
    """Weighted examples in the order of the batches.

    The first ``n_rows`` are the data, each once. What follows up to a whole number of
    batches begins again from the start, so that no batch is short; the rest is padding
    of weight zero.
    """

    x: jnp.ndarray  # (L, d)
    label: jnp.ndarray  # (L,) int32
    weight: jnp.ndarray  # (L,)
    n_rows: jnp.ndarray  # int32
    n_batches: jnp.ndarray  # int32


class Options(NamedTuple):
    """Settings, as numpy scalars; those that decide shapes become static."""

    alpha: np.ndarray
    damping: np.ndarray
    intercept: np.ndarray  # 1 with an intercept, 0 without
    learning_rate: np.ndarray
    tol: np.ndarray
    rank: np.int32
    batch_size: np.int32
    cg_iterations: np.int32  # 0: Cholesky
    shuffle: np.bool_
    seed: np.int32


class Data(NamedTuple):
    """Rows on the device, with the Gram matrices of the features of every batch."""

    rows: Rows
    grams: jnp.ndarray | None  # (L / batch_size, batch_size, batch_size)


class State(NamedTuple):
    """Head, its loss, and how long it has not fallen."""

    net: AffineHead
    loss: float
    best: float
    waited: int = 0
    epoch: int = 0
    memory: object = None  # what an optimiser carries from step to step


# --- the objective -------------------------------------------------------------------


class Evaluation(NamedTuple):
    """Objective, gradient and mean curvature split of a head on all rows."""

    loss: jnp.ndarray
    gradient: AffineHead
    dispersion: jnp.ndarray
    retained: jnp.ndarray
    dropped: jnp.ndarray
    separated: jnp.ndarray  # whether every example beats its competitors together


def block_rows(n_rows, n_classes):
    """Rows handled at a time: a divisor of ``n_rows``."""
    block = n_rows
    while block % 2 == 0 and block * n_classes > _BLOCK_ELEMENTS:
        block //= 2
    return block


def over_blocks(body, start, arrays, n_classes):
    """Fold ``body(carry, blocks of the arrays)`` over blocks of rows."""
    n = arrays[0].shape[0]
    block = block_rows(n, n_classes)

    def step(k, carry):
        parts = (lax.dynamic_slice_in_dim(a, k * block, block) for a in arrays)
        return body(carry, *parts)

    return lax.fori_loop(jnp.int32(0), jnp.int32(n // block), step, start)


@jax.jit
def evaluate(head, rows, penalty, intercept):
    """Mean cross-entropy ``+ 1/2 sum penalty |W|^2``, its gradient, the mean traces.

    Parameters
    ----------
    head : AffineHead
    rows : Rows
    penalty : array of shape (d, 1)
        Factor of the squares of each row of the weights.
    intercept : scalar
        1, or 0 where the bias stays zero.

    Returns
    -------
    Evaluation
    """
    n_classes = max(head.bias.shape[0], 2)
    mask = jnp.arange(rows.weight.shape[0], dtype=jnp.int32) < rows.n_rows
    weight = jnp.where(mask, rows.weight, 0)

    def body(carry, x, label, weight):
        split = margins(all_classes(columns(head, x)), label)
        error = (weight * split.p_rest)[:, None] * to_columns(split.gradient)
        means = (cross_entropy(split.margin), *traces(split))
        return (
            carry[0] + x.T @ error,
            carry[1] + jnp.sum(error, axis=0),
            carry[2] + jnp.stack([weight @ mean for mean in means]),
            carry[3] & jnp.all((split.margin < 0) | (weight == 0)),
        )

    zeros = jnp.zeros_like(head.weight), jnp.zeros_like(head.bias)
    start = (*zeros, jnp.zeros(4, head.bias.dtype), jnp.bool_(True))
    arrays = rows.x, rows.label, weight
    by_weight, by_bias, means, separated = over_blocks(body, start, arrays, n_classes)
    total = jnp.sum(weight)
    means = means / total
    gradient = AffineHead(
        by_weight / total + penalty * head.weight, intercept * by_bias / total
    )
    loss = means[0] + 0.5 * jnp.sum(penalty * head.weight**2)
    return Evaluation(loss, gradient, means[1], means[2], means[3], separated)


def uniform(alpha):
    """The penalty ``alpha`` on every feature, of shape (1, 1)."""
    return jnp.reshape(jnp.asarray(alpha), (1, 1))


def gradient_norms(gradient):
    """Euclidean norm and largest component."""
    size = jnp.sqrt(sum(jnp.sum(g**2) for g in gradient))
    return size, jnp.maximum(*(jnp.max(jnp.abs(g)) for g in gradient))


# --- the step in row space -----------------------------------------------------------


def shifts(options):
    """Damping plus penalty of the weights, and damping of the bias.

    Kept above zero, which a bias without damping needs.
    """
    floor = float(np.sqrt(np.finfo(options.damping.dtype).eps))
    return (
        jnp.maximum(options.damping + options.alpha, floor),
        jnp.maximum(options.damping, floor),
    )


def head_direction(head, x, label, weight, feature_gram, options, rank, cg_iterations):
    """The damped FGN step of an affine head (Algorithm 1 with the closed-form Gram).

    ``-(H + D)^-1 (gradient)`` for the objective with penalty, whose curvature is in D.
    """
    on_weight, on_bias = shifts(options)
    values = columns(head, x)
    split = margins(all_classes(values), label)
    root, slope, by_class = curvature_rows(split, weight, rank)
    direction = to_columns(by_class)
    # What the penalty's gradient adds, seen from row space: J D^-1 alpha W.
    pull = (
        options.alpha
        / on_weight
        * jnp.sum(
            direction * jnp.repeat(values - head.bias[None, :], 1 + rank, axis=0),
            axis=1,
        )
    )
    slope = slope - root * root * pull
    features = feature_gram / on_weight + options.intercept / on_bias
    if rank:
        features = jnp.repeat(jnp.repeat(features, 1 + rank, 0), 1 + rank, 1)
    gram = features * (direction @ direction.T)
    y = solve_rows(gram, root, slope, jnp.sum(weight), cg_iterations)
    back = y[:, None] * direction
    by_example = jnp.sum(back.reshape(x.shape[0], 1 + rank, -1), axis=1)
    return AffineHead(
        -(options.alpha * head.weight + x.T @ by_example) / on_weight,
        -options.intercept / on_bias * jnp.sum(by_example, axis=0),
    )


# --- epochs --------------------------------------------------------------------------


class Batch(NamedTuple):
    """One mini-batch."""

    x: jnp.ndarray
    label: jnp.ndarray
    weight: jnp.ndarray
    gram: jnp.ndarray | None


def sweep(update, carry, data, batch_size):
    """Fold ``update(carry, batch)`` over the batches."""
    rows = data.rows

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


@partial(jax.jit, static_argnames=("batch_size", "rank", "cg_iterations"))
def fgn_epoch(head, memory, data, options, batch_size, rank, cg_iterations):
    """One pass of FGN steps of length ``learning_rate``."""

    def update(head, batch):
        gram = symmetric_product(batch.x) if batch.gram is None else batch.gram
        step = head_direction(
            head, batch.x, batch.label, batch.weight, gram, options, rank, cg_iterations
        )
        return jax.tree.map(lambda p, d: p + options.learning_rate * d, head, step)

    return sweep(update, head, data, batch_size), memory


@partial(jax.jit, static_argnames="batch_size")
def feature_grams(x, batch_size):
    """Gram matrices of the features of all batches, which the weights do not change."""
    batches = x.reshape(-1, batch_size, x.shape[1])
    return lax.map(symmetric_product, batches)


def prepare(rows, options, *, grams=True):
    """Put the rows on the device, with the feature Grams where batches stay the same.

    The Grams take no more room than the features while a batch has no more rows than
    there are features; with more classes than rows they save too little to be kept.
    """
    rows = jax.device_put(rows)
    b, d = int(options.batch_size), rows.x.shape[1]
    n_classes = int(np.max(rows.label)) + 1
    keep = grams and not options.shuffle and b <= d and n_classes <= b
    return Data(rows, feature_grams(rows.x, b) if keep else None)


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
    used = int(rows.n_batches) * int(options.batch_size)
    if n < used and n > int(options.batch_size):
        order[n:used] = order[: used - n]
    return order


# --- solver --------------------------------------------------------------------------


def init_with(start):
    """The ``init`` of a mini-batch method whose optimiser starts as ``start(net)``."""

    def init(data, net, options):
        net = jax.device_put(net)
        found = evaluate(net, data.rows, uniform(options.alpha), options.intercept)
        loss = float(found.loss)
        return State(net, loss, loss, memory=start(net))

    return init


def step_with(epoch):
    """The ``step`` of a mini-batch method: an epoch, and an evaluation on all rows."""

    def step(data, state, options):
        if options.shuffle:
            order = epoch_order(data.rows, options, state.epoch)
            batches = data._replace(rows=reorder(data.rows, order))
        else:
            batches = data
        net, memory = epoch(
            state.net,
            state.memory,
            batches,
            options,
            int(options.batch_size),
            int(options.rank),
            int(options.cg_iterations),
        )
        found = evaluate(net, data.rows, uniform(options.alpha), options.intercept)
        loss = float(found.loss)
        fell = state.best - loss > float(options.tol) * abs(state.best)
        waited = 0 if fell else state.waited + 1
        stop = None
        if not math.isfinite(loss):
            stop = "non_finite"
        elif waited >= _PATIENCE:
            stop = "tol" if loss <= (1 + _HOVER) * state.best else "diverged"
        report = head_report(found, stop, options)
        # Slow but steady falls add up.
        best = loss if fell else state.best
        new = State(net, loss, best, waited, state.epoch + 1, memory)
        return new, report

    return step


def head_report(found, stop, options, **columns):
    """Log row of an evaluated head.

    Without penalty a separating head is the end of no convergence: the loss has no
    minimum.
    """
    ended = stop in ("tol", "rounding", "line_search")
    if ended and float(options.alpha) == 0 and found.separated:
        stop = "separable"
    size, _ = gradient_norms(found.gradient)
    return Report(
        loss=float(found.loss),
        grad_norm=float(size),
        stop=stop,
        extra={
            "competitor_dispersion": float(found.dispersion),
            "retained_trace": float(found.retained),
            "dropped_trace": float(found.dropped),
        },
        **columns,
    )


@partial(jax.jit, static_argnames=("batch_size", "rank"))
def row_spectrum(head, rows, intercept, batch_size, rank):
    """Eigenvalues of the Gauss-Newton matrix of the first batch, descending.

    Those of the row Gram ``K / omega``, which has the same ones but for zeros.
    """
    x, label, weight = (a[:batch_size] for a in (rows.x, rows.label, rows.weight))
    split = margins(all_classes(columns(head, x)), label)
    root, _, by_class = curvature_rows(split, weight, rank)
    direction = root[:, None] * to_columns(by_class)
    features = jnp.repeat(jnp.repeat(x @ x.T + intercept, 1 + rank, 0), 1 + rank, 1)
    gram = features * (direction @ direction.T) / jnp.sum(weight)
    return jnp.linalg.eigvalsh(gram)[::-1]


FGN = Algorithm(
    "fgn", init_with(lambda net: None), step_with(fgn_epoch), prepare=prepare
)
