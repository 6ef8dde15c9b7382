"""The rows of a fit: batches of them, shuffled epochs, and rows that come in chunks.

Large batches are kept for several iterations; first-order methods go through shuffled
epochs of small ones.

Of rows that come in chunks, batches are drawn from a random sample of the distinct
ones. Where its batches are used up, the next sample is drawn in a pass over the chunks.
So they do not depend on the order of the rows. The objective on all rows and the output
layer that is optimal for them come from sums over blocks of rows:

-   For the squared loss, the weighted features and targets of all rows are replaced by
    the triangular factor of ``sqrt(w) (z, y)``, to which blocks are joined one by one.
    Its rows have the same least-squares problem, which is solved as that of rows in
    memory.
-   For the cross-entropy a pass gives the loss and its gradient in W. L-BFGS starts at
    the output layer that is optimal for a large batch, in coordinates in which the
    Hessian there is the identity, and so takes few passes.
"""

import math
from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.optimize import minimize

from sklearn_gn.arrays.backend import pad_rows
from sklearn_gn.arrays.devices import put_rows
from sklearn_gn.data.chunks import prefetched
from sklearn_gn.data.rows_source import even_parts, part_length
from sklearn_gn.linalg.factors import upper_factor
from sklearn_gn.optim.solver import Rows
from sklearn_gn.varpro import inner, problem
from sklearn_gn.varpro.problem import Net, example_losses, features, loss_gradient

BATCH_ROWS = 2048  # of "auto", where there are more than four such batches
_MINI_BATCH = 64  # of first-order methods that leave it open


# --- batches -------------------------------------------------------------------------


class DividedRows(Rows):
    """Rows on several devices. The attribute ``host`` has them as they were given."""


def on_devices(rows, mesh):
    """Return the rows with a share on each device, padded by weights of zero."""
    n = len(rows.x)
    padded = [pad_rows(np.asarray(a), n + -n % mesh.size) for a in rows]
    divided = DividedRows(*put_rows(padded, mesh))
    divided.host = rows
    return divided


def batch_size(settings):
    """Return the number of rows of a batch; None takes all rows."""
    size = settings.solver.batch_size
    if size == "auto":
        size = BATCH_ROWS if settings.n_rows > 4 * BATCH_ROWS else None
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
    """Return the batch of a given size and number, and its share of all rows."""
    if size is None or size >= settings.n_rows:
        return rows, 1.0
    if not isinstance(rows, Rows):  # they come in chunks
        return rows.batch(size, number, settings.seed)
    x, y, weight = map(np.asarray, getattr(rows, "host", rows))
    counted = np.flatnonzero(weight)
    _, chosen = _drawn(counted, size, number, settings.seed)
    factor = weight.dtype.type(1 / np.sum(weight[chosen]))
    if settings.mesh is None:
        batch = take_rows(rows, chosen.astype(np.int32), factor)
    else:
        few = Rows(x[chosen], y[chosen], factor * weight[chosen])
        batch = on_devices(few, settings.mesh)
    return batch, size / len(counted)


def _drawn(numbers, size, batch, seed):
    """The sweep that a batch belongs to, and which of the numbers are in it."""
    sweep, place = divmod(batch, -(-len(numbers) // size))
    rng = np.random.RandomState((int(seed) + sweep) % 2**32)
    part = np.arange(place * size, (place + 1) * size) % len(numbers)
    return sweep, rng.permutation(numbers)[part]


@jax.jit
def take_rows(rows, order, factor):
    """Return the rows in an order, with their weights times a factor."""
    x, y, weight = (a[order] for a in rows)
    return Rows(x, y, weight * factor)


# --- epochs --------------------------------------------------------------------------


def shuffled_epochs(rows, settings, iteration):
    """Yield shuffled rows in mini-batches, the number of these, and their size."""
    rng = np.random.RandomState((int(settings.seed) + iteration) % 2**32)
    for block in [rows] if isinstance(rows, Rows) else rows.blocks():
        weight = np.asarray(block.weight)
        counted = np.flatnonzero(weight > 0)
        size = min(settings.solver.batch_size or _MINI_BATCH, len(counted))
        n_batches = -(-len(counted) // size)
        order = np.zeros(-(-len(weight) // size) * size, np.int32)
        filled = order[: n_batches * size]
        filled[:] = np.resize(rng.permutation(counted), len(filled))
        factor = weight.dtype.type(n_batches * settings.n_rows / len(counted))
        yield take_rows(block, order, factor), np.int32(n_batches), size


def mini_batch(rows, k, size):
    """Return a batch of shuffled rows."""
    return Rows(*(lax.dynamic_slice_in_dim(a, k * size, size) for a in rows))


# --- chunks --------------------------------------------------------------------------


class ChunkedRows:
    """Rows that are read again and again, in place of :class:`Rows` in memory.

    ``chunks`` are checked ones, in the user's units; ``scaled`` maps X and y to the
    units of the fit; ``found`` is their Survey; ``draw_sample`` maps a number other
    than 0, that of the first survey, to another one.
    """

    def __init__(self, chunks, scaled, found, draw_sample, dtype):
        self._chunks, self._scaled, self._found = chunks, scaled, found
        self._draw_sample = draw_sample
        self._sample, self._draw = found.sample, 0
        self._size, self._dtype = len(found.sample.X), np.dtype(dtype)
        self._squares = None, None  # weights of a network, and the factor of its rows
        # That of later samples would depend on where a fit was resumed.
        self.large_batch = self._of_sample(
            slice(0, part_length(found.sample.X.shape[1]))
        )

    def batch(self, size, number, seed):
        """Return the batch of a given number, and its share of all rows."""
        sweep, chosen = _drawn(np.arange(self._size), size, number, seed)
        draw = 0 if self._found.sample.is_complete else sweep
        if draw != self._draw:
            found = self._draw_sample(draw) if draw else self._found
            self._sample, self._draw = found.sample, draw
        return self._of_sample(chosen), size / self._found.n_rows

    def blocks(self):
        """Yield all rows, in blocks of equal length whose weights sum to one."""
        length = part_length(self._found.sample.X.shape[1])

        def blocks():
            for X, y, weight in even_parts(self._chunks):
                rows = self._in_units(X, y, weight / self._found.total)
                yield Rows(*(pad_rows(a, length) for a in rows))

        return prefetched(blocks())

    def _of_sample(self, part):
        _, weight, X, y, _ = self._sample
        weight = weight[part]
        return self._in_units(X[part], y[part], weight / weight.sum())

    def _in_units(self, X, y, weight):
        x, t = self._scaled(X, y)
        with np.errstate(over="ignore"):  # large numbers may be infinite
            return Rows(*(a.astype(self._dtype) for a in (x, t, weight)))

    def least_squares(self, model, theta):
        """Return features (p + q, p) and Rows with the least-squares problem of all."""
        key = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(theta)]
        if key != self._squares[0]:
            x, y, _ = self._of_sample(slice(0, 1))
            p = jax.eval_shape(lambda theta: features(model, theta, x), theta).shape[1]
            factor = jnp.zeros(2 * (p + y.shape[1],), self._dtype)
            for rows in self.blocks():
                # Blocks that wait for a computation would fill the memory.
                factor = joined_factor(model, theta, factor, rows).block_until_ready()
            self._squares = key, (factor[:, :p], factor[:, p:])
        z, y = self._squares[1]
        return z, Rows(None, y, jnp.ones(len(y), y.dtype))

    def cross_entropy(self, model, net, penalties):
        """Return the objective and its gradient in W, in double precision."""
        loss, gradient = 0.0, np.zeros(net.output.shape)
        for rows in self.blocks():
            of_block = entropy_and_gradient(model, net, rows)
            loss += float(of_block[0])
            gradient += np.asarray(of_block[1], np.float64)
        loss += float(problem.total_penalty(model, *net, penalties))
        gradient += float(penalties.output) * np.asarray(net.output, np.float64)
        return loss, gradient


# --- sums over rows in memory or in chunks --------------------------------------------


def objective(model, net, rows, penalties):
    """Return the objective at the given output layer."""
    if not isinstance(rows, ChunkedRows):
        return problem.objective(model, net, rows, penalties)
    if model.loss == "squared":
        few = rows.least_squares(model, net.theta)
        return _squared_objective(model, net, *few, penalties)
    return rows.cross_entropy(model, net, penalties)[0]


def with_optimal_output(model, net, rows, penalties):
    """Return the network with its optimal output layer, and the objective."""
    if not isinstance(rows, ChunkedRows):
        return inner.with_optimal_output(model, net, rows, penalties)
    if model.loss == "squared":
        few = rows.least_squares(model, net.theta)
        return _with_least_squares(model, net, *few, penalties)
    return _with_least_cross_entropy(model, net, rows, penalties)


@partial(jax.jit, static_argnames="model")
def joined_factor(model, theta, factor, rows):
    """Return the triangular factor of the rows of a factor and some more."""
    z = features(model, theta, rows.x)
    new = jnp.sqrt(rows.weight)[:, None] * jnp.concatenate([z, rows.y], axis=1)
    return upper_factor(factor, new)


@partial(jax.jit, static_argnames="model")
def _squared_objective(model, net, z, rows, penalties):
    loss = rows.weight @ example_losses(model, z @ net.output, rows.y)
    return loss + problem.total_penalty(model, *net, penalties)


@partial(jax.jit, static_argnames="model")
def _with_least_squares(model, net, z, rows, penalties):
    output, _ = inner.solve_squares(z, rows, penalties.output)
    net = Net(net.theta, output)
    return net, _squared_objective(model, net, z, rows, penalties)


@partial(jax.jit, static_argnames="model")
def entropy_and_gradient(model, net, rows):
    """Return the cross-entropy of some rows, and its gradient in W."""
    z = features(model, net.theta, rows.x)
    values = z @ net.output
    error = rows.weight[:, None] * loss_gradient(model, values, rows.y)
    return rows.weight @ example_losses(model, values, rows.y), z.T @ error


@partial(jax.jit, static_argnames="model")
def _optimal_for_batch(model, net, rows, penalties):
    found = inner.solve_inner(model, net.theta, rows, penalties, net.output)
    return found.output, found.factors.root


def _with_least_cross_entropy(model, net, rows, penalties):
    """Return the network with its optimal output layer, and the objective.

    Near the optimum the loss does not resolve a step, and line searches refuse good
    ones. The problem is convex: the least gradient of all that were seen is the best.
    """
    batch, dtype = rows.large_batch, net.output.dtype
    start, root = _optimal_for_batch(model, net, batch, penalties)
    start, root = (np.asarray(a, np.float64) for a in (start, root))
    if root.ndim == 2:
        root = root[None]  # one block of all classes

    def moved(coordinates):
        """The output layer, class by class in the coordinates."""
        step = np.einsum("cji,cj->ci", root, coordinates.reshape(root.shape[:2]))
        return start + step.reshape(start.shape[::-1]).T

    least = math.inf, math.nan, start.astype(dtype)

    def evaluate(coordinates):
        nonlocal least
        output = moved(coordinates).astype(dtype)
        loss, slope = rows.cross_entropy(model, net._replace(output=output), penalties)
        slope = np.einsum("cji,ci->cj", root, slope.T.reshape(len(root), -1)).ravel()
        least = min(least, (np.abs(slope).max(), loss, output), key=itemgetter(0))
        return loss, slope

    options = {"ftol": 0.0, "gtol": inner.INNER_TOL}
    first = np.zeros(start.size)
    minimize(evaluate, first, jac=True, method="L-BFGS-B", options=options)
    _, loss, output = least
    return Net(net.theta, jnp.asarray(output)), loss
