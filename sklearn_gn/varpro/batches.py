"""Batches: large ones, kept for several iterations, and shuffled mini-batches."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.arrays.backend import pad_rows
from sklearn_gn.arrays.devices import put_rows
from sklearn_gn.optim.solver import Rows

_FEW_ROWS = 8192  # up to which "auto" batches are all rows
_BATCH_ROWS = 2048
_MINI_BATCH = 64  # of first-order methods that leave it open


class DividedRows(Rows):
    """Rows on several devices. The attribute ``host`` has them as they were given."""


def on_devices(rows, mesh):
    """Return the rows with a share of them on each device, padded by weights of zero.

    Parameters
    ----------
    rows : Rows
        In the memory of the host.
    mesh : Mesh
    """
    n = len(rows.x)
    padded = [pad_rows(np.asarray(a), n + -n % mesh.size) for a in rows]
    divided = DividedRows(*put_rows(padded, mesh))
    divided.host = rows
    return divided


def batch_size(settings):
    """Return the number of rows of a batch; None takes all rows."""
    size = settings.solver.batch_size
    if size == "auto":
        size = _BATCH_ROWS if settings.n_rows > _FEW_ROWS else None
    return None if size is None or size >= settings.n_rows else size


def n_batches(settings):
    """Return the number of batches of a sweep over the rows."""
    size = batch_size(settings)
    return 1 if size is None else -(-settings.n_rows // size)


def current_batch(rows, settings, iteration):
    """Return the rows of an iteration, all or a batch, and their share of all rows."""
    size = batch_size(settings)
    if size is None:
        return rows, 1.0
    number = iteration // settings.solver.iterations_per_batch
    return draw_batch(rows, size, number, settings)


def draw_batch(rows, size, number, settings):
    """Return the batch of a given size and number, and its share of all rows.

    Sweeps draw new batches from the rows that have weight; the last batch of a sweep is
    filled up from the first.
    """
    if size is None or size >= settings.n_rows:
        return rows, 1.0
    if not isinstance(rows, Rows):  # they come in chunks
        return rows.batch(size, number, settings.seed)
    sweep, batch = divmod(number, -(-settings.n_rows // size))
    rng = np.random.RandomState((int(settings.seed) + sweep) % 2**32)
    source = getattr(rows, "host", rows)
    order = rng.permutation(np.flatnonzero(source.weight))
    chosen = order[np.arange(batch * size, (batch + 1) * size) % len(order)]
    if settings.mesh is not None:
        x, y, weight = (np.asarray(a)[chosen] for a in source)
        batch = on_devices(Rows(x, y, weight / weight.sum()), settings.mesh)
        return batch, size / len(order)
    return take_rows(rows, chosen.astype(np.int32)), size / len(order)


@jax.jit
def take_rows(rows, order):
    """Return some of the rows, with weights of sum one."""
    x, y, weight = (a[order] for a in rows)
    return Rows(x, y, weight / jnp.sum(weight))


class Epoch(NamedTuple):
    """A shuffled pass over the rows, which are in the order of the mini-batches."""

    rows: Rows
    n_batches: jnp.ndarray


def shuffled_epochs(rows, settings, iteration):
    """Yield a shuffled pass over the rows with weight, and the size of a batch.

    Rows that come in chunks are shuffled in blocks, each of which is a pass of its own.
    """
    rng = np.random.RandomState((int(settings.seed) + iteration) % 2**32)
    if isinstance(rows, Rows):
        yield _shuffled(rows, settings, rng)
        return
    for block in rows.blocks():
        share = np.count_nonzero(block.weight) / settings.n_rows
        weight = block.weight / block.weight.dtype.type(share)
        yield _shuffled(block._replace(weight=weight), settings, rng)


def _shuffled(rows, settings, rng):
    weight = np.asarray(rows.weight)
    counted = np.flatnonzero(weight > 0)
    b = min(settings.solver.batch_size or _MINI_BATCH, len(counted))
    order = rng.permutation(counted)
    n_batches = -(-len(order) // b)
    order = np.append(order, order[: n_batches * b - len(order)])
    length = -(-len(weight) // b) * b
    order = np.append(order, np.zeros(length - len(order), order.dtype))
    return _reordered(rows, order.astype(np.int32), np.int32(n_batches)), b


def mini_batch(epoch, k, batch_size):
    """Return a batch; the objectives of all batches have that of all rows as mean."""
    x, y, weight = (
        lax.dynamic_slice_in_dim(a, k * batch_size, batch_size) for a in epoch.rows
    )
    return Rows(x, y, weight * epoch.n_batches.astype(weight.dtype))


@jax.jit
def _reordered(rows, order, n_batches):
    """The rows in another order, filled up to a whole number of batches."""
    return Epoch(Rows(*(a[order] for a in rows)), n_batches)
