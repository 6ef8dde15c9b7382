"""Mini-batch methods of the softmax head on rows that come in chunks.

An epoch goes through the chunks once. The rows of a chunk are put in random order and
swept in mini-batches, as those of a fit in memory; the next chunk is read meanwhile.
The loss of an epoch is estimated as it goes, from the first mini-batch of each chunk
before it is swept; the last head is evaluated on all rows.
"""

import math
import sys
from typing import Any, NamedTuple

import jax
import numpy as np

from sklearn_gn.data.chunks import prefetched
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.softmax_head.batches import batched_rows
from sklearn_gn.softmax_head.head import (
    BatchedRows,
    gradient_norms,
    head_report,
    objective,
    on_devices,
)
from sklearn_gn.softmax_head.minibatch import (
    BatchData,
    step_settings,
    stop_reason,
)


class ChunkedState(NamedTuple):
    """Head, its estimated loss, and how long that has not fallen."""

    net: Any
    loss: float
    best: float
    waited: int = 0
    epoch: int = 0
    memory: Any = None


def chunked_algorithm(name, epoch, static, memory=lambda net: None):
    """Return a mini-batch method on chunks from the function of one epoch."""

    def init(data, net, options):
        del data, options
        net = jax.device_put(net)
        loss = math.log(max(len(net.bias), 2))  # of the zero head
        return ChunkedState(net, loss, sys.float_info.max, memory=memory(net))

    def step(data, state, options):
        n_classes = max(state.net.bias.shape[0], 2)
        settings = step_settings(options)
        rng = np.random.RandomState((int(options.seed) + state.epoch) % 2**32)
        net, kept, found = state.net, state.memory, _Mean()
        for X, label, weight in prefetched(data.chunks):
            rows, size = _batches(data, X, label, weight, options, rng)
            first = on_devices(first_rows(rows, size), options)
            found.add(objective(net, first, options), weight.sum())
            words = static(options._replace(batch_size=size), n_classes)
            net, kept = epoch(net, kept, BatchData(rows, None), settings, size, **words)
        mean = found.evaluation()
        stop, best, waited = stop_reason(state, float(mean.loss), options)
        new = ChunkedState(net, float(mean.loss), best, waited, state.epoch + 1, kept)
        return new, head_report(mean, stop, options)

    return Algorithm(name, init, step)


class _Mean:
    """Weighted mean of what is found of several chunks."""

    def __init__(self):
        self._sum, self._weight = None, 0.0

    def add(self, evaluation, weight):
        part = jax.tree.map(lambda a: weight * np.asarray(a, np.float64), evaluation)
        if self._sum is not None:
            part = jax.tree.map(np.add, self._sum, part)
        self._sum, self._weight = part, self._weight + weight

    def evaluation(self):
        mean = jax.tree.map(lambda a: a / self._weight, self._sum)
        norm, largest = gradient_norms(mean.gradient)
        separated = mean.separated >= 1
        return mean._replace(separated=separated, grad_norm=norm, grad_max=largest)


def evaluate_chunks(net, data, options):
    """Evaluate a head on the rows of all chunks."""
    found, rng = _Mean(), np.random.RandomState(0)
    for X, label, weight in prefetched(data.chunks):
        rows, _ = _batches(data, X, label, weight, options, rng)
        found.add(objective(net, on_devices(rows, options), options), weight.sum())
    return found.evaluation()


def first_rows(rows, n):
    """Return the first mini-batch, as rows of their own."""
    x, label, weight = (a[:n] for a in (rows.x, rows.label, rows.weight))
    n_rows = np.minimum(rows.n_rows, np.int32(n))
    return BatchedRows(x, label, weight, n_rows, np.int32(1))


def first_chunk(data, options):
    """Return the first chunk as rows of their own."""
    X, label, weight = next(iter(data.chunks))
    return _batches(data, X, label, weight, options, np.random.RandomState(0))[0]


def _batches(data, X, label, weight, options, rng):
    kept = np.flatnonzero(weight > 0)
    size = options.batch_size
    return batched_rows(X, label, kept, weight[kept], size, rng, data.dtype)
