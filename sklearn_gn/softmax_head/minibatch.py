"""Mini-batch methods of the softmax head: FGN, and its baselines SGN and Adam.

A method is a function of one epoch,

    head, memory = epoch(head, memory, data, settings, batch_size, **static)

which :func:`sweep` folds over the batches. Of rows in memory, the batches are drawn
once, or again in every epoch (``shuffle``), and the loss on all rows is computed after
an epoch. Of rows that come in chunks, an epoch goes through the chunks once: the rows
of a chunk are put in random order and swept, while the next one is read. The loss of
the epoch is estimated as it goes, from the first mini-batch of each chunk before it is
swept; the last head is evaluated on all rows.

The paper's FGN steps of length 0.1 hardly hover around the minimum, but need ten times
the passes to come near it. Full steps, the default, are averaged once they are many:
the weight of a head grows with the number of its step (Shamir and Zhang, "Stochastic
gradient descent for non-smooth optimization", 2013).
"""

import math
import sys
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn._typing import Array
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.blocks import symmetric_product
from sklearn_gn.arrays.collectives import all_rows, n_devices, total
from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.trees import add
from sklearn_gn.data.chunks import prefetched
from sklearn_gn.optim import first_order
from sklearn_gn.optim.multinomial import (
    all_classes,
    hessian_product,
    margins,
    newton_direction,
    to_columns,
)
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.softmax_head.fgn import LARGEST_GRAM, Batch, fgn_direction
from sklearn_gn.softmax_head.head import (
    AffineHead,
    BatchedRows,
    batched_rows,
    evaluate,
    gradient_norms,
    head_report,
    on_devices,
    values,
    values_transposed,
)

_PATIENCE = 5  # epochs without progress after which a mini-batch method ends
_HOVER = 0.1  # distance of the last loss from the best one that is no divergence
_CG_ITERATIONS = 100
_APPROACH = 256  # steps that lead to the minimum; heads after them are averaged


class ChunkedRows(NamedTuple):
    """Checked chunks of rows."""

    chunks: Any  # of (X, class numbers, weights), gone through once an epoch
    dtype: np.dtype


class BatchData(NamedTuple):
    """Rows on the device, with the Gram matrices of the features of every batch."""

    rows: BatchedRows
    grams: Array | None  # (L / batch_size, batch_size, batch_size)


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


# --- the algorithm, of all methods ---------------------------------------------------


def mini_batch_algorithm(name, epoch, static, memory, grams=False):
    """Return a mini-batch method from the function of one epoch.

    ``static`` maps ``(options, n_classes)`` to the further arguments of ``epoch``, and
    ``memory`` a head to what the optimiser starts with.
    """

    def prepare(rows, options):
        if isinstance(rows, ChunkedRows):
            return rows  # read when they are needed
        data, b = BatchData(on_devices(rows, options), None), options.batch_size
        static = options.mesh is None and not options.solver.shuffle
        # They take no more room than the features while a batch has no more rows than
        # there are features; with more classes than rows they save too little.
        pay = b <= rows.x.shape[1] and int(np.max(rows.label)) < b
        if not (grams and static and pay):
            return data
        return data._replace(grams=feature_grams(data.rows.x, options.batch_size))

    def init(data, net, options):
        net = jax.device_put(net)
        if isinstance(data, ChunkedRows):  # of the zero head: no pass for one number
            loss, best = math.log(max(len(net.bias), 2)), sys.float_info.max
        else:
            found = evaluate(net, data.rows, options.alpha, options.intercept)
            loss = best = float(found.loss)
        return MiniBatchState(net, loss, best, memory=memory(net))

    def step(data, state, options):
        net, kept, chunked = state.net, state.memory, isinstance(data, ChunkedRows)
        n_classes, last, whole = max(net.bias.shape[0], 2), None, 0.0
        for part, size, weight in epoch_parts(data, state, options):
            if chunked:
                rows, counted = part.rows, part.rows.counted[:size]
                first = (rows.x[:size], rows.label[:size], rows.weight[:size])
                own = BatchedRows(*first, *rows[3:5], counted / counted.sum())
                found = evaluate(net, own, options.alpha, options.intercept)
                last, whole = with_chunk(last, whole, found, weight)
            words = static(options._replace(batch_size=size), n_classes)
            net, kept = epoch(net, kept, part, step_settings(options), size, **words)
        if not chunked:
            last = evaluate(net, data.rows, options.alpha, options.intercept)
        loss = float(last.loss)
        fell = state.best - loss > float(options.tol) * abs(state.best)
        waited, stop = 0 if fell else state.waited + 1, None
        if not math.isfinite(loss):
            stop = "non_finite"
        elif waited >= _PATIENCE:
            stop = "tol" if loss <= (1 + _HOVER) * state.best else "diverged"
        best = loss if fell else state.best  # slow but steady falls add up
        new = MiniBatchState(net, loss, best, waited, state.epoch + 1, kept)
        return new, head_report(last, stop, options.alpha)

    return Algorithm(name, init, step, prepare=prepare)


def epoch_parts(data, state, options):
    """Yield what is swept one after the other: data, batch size and weight of each."""
    if not isinstance(data, ChunkedRows):
        if options.solver.shuffle:
            order = epoch_order(data.rows, options, state.epoch)
            data = data._replace(rows=reorder(data.rows, order))
        yield data, options.batch_size, 1.0
        return
    rng = np.random.RandomState((int(options.seed) + state.epoch) % 2**32)
    for rows, size, weight in rows_of_chunks(data, options, rng):
        yield BatchData(rows, None), size, weight


def step_settings(options):
    """The scalars of a step from the options of the fit."""
    cast, rate = options.alpha.dtype.type, options.solver.learning_rate
    whole, damping = cast(1 if rate is None else rate), cast(options.damping)
    return StepSettings(options.alpha, damping, options.intercept, whole)


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


# --- FGN -----------------------------------------------------------------------------


class Walk(NamedTuple):
    """Where the steps have led: the head before it is averaged."""

    head: AffineHead
    n_steps: Any = np.int32(0)


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

    def update(carry, batch):
        (head, n_steps), mean = carry
        gram = batch.gram
        if gram is None:  # of the rows of this device with those of all
            x, alone = batch.x, n_devices() == 1
            gram = symmetric_product(x) if alone else x @ all_rows(x).T
        # Steps 1 to 4 of Algorithm 1.
        step = fgn_direction(
            head,
            batch,
            gram / on_weight + settings.intercept / on_bias,
            settings.alpha,
            (on_weight, on_bias),
            settings.intercept,
            n_competitors,
            cg_iterations,
        )
        # 5. Move.
        walk = Walk(add(head, settings.learning_rate, step), n_steps + 1)
        if not averaged:
            return walk, walk.head
        # The head itself while the steps are few.
        further = jnp.maximum(walk.n_steps - _APPROACH, 0)
        share = 2 / (further + 2).astype(mean.bias.dtype)
        return walk, jax.tree.map(lambda m, h: m + share * (h - m), mean, walk.head)

    # Go on where the steps have led, or from a head that is no mean of several.
    alone = (walk.n_steps <= _APPROACH) | (not averaged)
    start = jax.tree.map(partial(jnp.where, alone), head, walk.head)
    walk = Walk(start._replace(bias=settings.intercept * start.bias), walk.n_steps)
    walk, head = sweep(update, (walk, head), data, batch_size)
    return head, walk


def shifts(settings):
    """Damping plus penalty of the weights, and damping of the bias, above zero."""
    floor = float(np.sqrt(np.finfo(settings.damping.dtype).eps))
    return (
        jnp.maximum(settings.damping + settings.alpha, floor),
        jnp.maximum(settings.damping, floor),
    )


def fgn_arguments(options, n_classes):
    """Whether heads are averaged, competitor directions, how the system is solved."""
    n_competitors = min(options.rank - 1, max(n_classes - 2, 0))  # all there are
    direct = options.batch_size * (1 + n_competitors) <= LARGEST_GRAM
    return {
        "averaged": options.solver.learning_rate is None,
        "n_competitors": n_competitors,
        "cg_iterations": 0 if direct else _CG_ITERATIONS,
    }


# --- SGN -----------------------------------------------------------------------------


@partial(by_rows, compiled=jitted(static_argnames="batch_size"))
def sgn_epoch(head, memory, data, settings, batch_size, cg_iterations):
    """One pass of damped Gauss-Newton steps with the full curvature.

    Gargiani et al. (2020). Steps have the length ``learning_rate``.
    """
    on_weight, on_bias = shifts(settings)

    def update(carry, batch):
        head, last = carry
        gradient, p = batch_gradient(head, batch, settings)
        share = batch.weight / total(jnp.sum(batch.weight))
        forward = partial(values, x=batch.x), partial(values_transposed, batch.x)

        def product(v):
            image = total(hessian_product(*forward, p, share, v))
            return AffineHead(
                image.weight + on_weight * v.weight,
                settings.intercept * image.bias + on_bias * v.bias,
            )

        step, _ = newton_direction(
            product, gradient, start=last, forcing=0.0, max_iter=cg_iterations
        )
        return add(head, settings.learning_rate, step), step

    return sweep(update, (head, memory), data, batch_size)


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


# --- rows in memory ------------------------------------------------------------------


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


# --- rows in chunks ------------------------------------------------------------------


def rows_of_chunks(data, options, rng):
    """Yield the rows of each chunk in batches, the batch size, and their weight."""
    for X, label, weight in prefetched(data.chunks):
        kept = np.flatnonzero(weight > 0)
        given = X, label[:, 0], kept, weight[kept], options.batch_size, rng, data.dtype
        yield *batched_rows(*given), weight.sum()


def with_chunk(mean, before, evaluation, weight):
    """The mean evaluation of chunks of the weight ``before`` and of one more."""
    share = weight / (before + weight)
    part = jax.tree.map(lambda a: share * np.asarray(a, np.float64), evaluation)
    if before:
        part = jax.tree.map(lambda m, p: (1 - share) * m + p, mean, part)
    norm, largest = gradient_norms(part.gradient)
    separated = bool(evaluation.separated) and (not before or mean.separated)
    part = part._replace(separated=separated, grad_norm=norm, grad_max=largest)
    return part, before + weight


def evaluate_chunks(net, data, options):
    """Evaluate a head on all chunks, and return the first chunk's rows too."""
    mean, whole, first = None, 0.0, None
    for rows, _, weight in rows_of_chunks(data, options, np.random.RandomState(0)):
        if first is None:
            first = [array[: int(rows.n_rows)] for array in rows[:3]]
        rows = on_devices(rows, options)
        found = evaluate(net, rows, options.alpha, options.intercept)
        mean, whole = with_chunk(mean, whole, found, weight)
    return mean, first


sgn_start = partial(jax.tree.map, jnp.zeros_like)
adam_start = partial(first_order.start, "adam")
_METHODS = (
    mini_batch_algorithm("fgn", fgn_epoch, fgn_arguments, Walk, grams=True),
    mini_batch_algorithm(
        "sgn", sgn_epoch, lambda o, _: {"cg_iterations": np.int32(o.rank)}, sgn_start
    ),
    mini_batch_algorithm("adam", adam_epoch, lambda *_: {}, adam_start),
)
ALGORITHMS = {method.name: method for method in _METHODS}


def one_epoch(task, net, carried):
    """The head after one epoch, and solver and memory for the next one."""
    algorithm, rows, options, *_ = task
    solver = options.solver
    data = algorithm.prepare(rows, options)
    state = algorithm.init(data, net, options)
    if carried[0] == solver.name:
        state = state._replace(memory=carried[1])
    state, report = algorithm.step(data, state, options)
    if not np.isfinite(report.loss):
        raise ValueError(
            "The loss is not a finite number. Check the scale of X, raise damping "
            f"(damping={options.damping!r}), or lower the learning rate of "
            f"solver={solver!r}."
        )
    net, memory = backend.to_numpy((state.net, state.memory))
    return net, (solver.name, memory)
