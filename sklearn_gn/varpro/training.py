"""The fit of one network: the loop of all solvers, and the rows that it takes.

Large batches are kept for several iterations; first-order methods go through shuffled
epochs of small ones. A network may have levels, such as cells of an ODE; each begins
with the function of the one before.

Of rows that come in chunks, batches are drawn from a random sample of the distinct
ones. Where its batches are used up, the next sample is drawn in a pass over the chunks.
So they do not depend on the order of the rows. The objective on all rows and the output
layer that is optimal for them come from sums over blocks of rows:

- For the squared loss, the weighted features and targets of all rows are replaced by
    the triangular factor of ``sqrt(w) (z, y)``, to which blocks are joined one by one.
    Its rows have the same least-squares problem, which is solved as for rows in memory.
-   For the cross-entropy a pass gives the loss and its gradient in W. L-BFGS starts at
    the output layer that is optimal for a large batch, in coordinates in which the
    Hessian there is the identity, and so takes few passes.
"""

import math
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from sklearn_gn.arrays.backend import pad_rows
from sklearn_gn.arrays.devices import put_rows
from sklearn_gn.bayes.evidence_gn import PATIENCE
from sklearn_gn.data.chunks import prefetched
from sklearn_gn.data.rows_source import even_parts, part_length
from sklearn_gn.linalg.factors import upper_factor
from sklearn_gn.optim.solver import Report, Rows, has_mini_batches
from sklearn_gn.varpro import problem
from sklearn_gn.varpro.problem import INNER_TOL, Model, Net, Penalties, features

BATCH_ROWS = 2048  # of "auto", where there are more than four such batches
_MINI_BATCH = 64  # of first-order methods that leave it open
_EVALUATED_EVERY = 20  # work units on batches after which all rows are evaluated


class Settings(NamedTuple):
    """The settings of a fit: what a solver is given besides the rows."""

    model: Model
    solver: Any  # solver object of the estimator, with what only this solver needs
    penalties: Penalties
    damping: np.ndarray | None  # shift of the Gauss-Newton matrix; None: trust region
    rank: int | None  # dimension of the Krylov space; None: the solver decides
    tol: np.ndarray  # in the precision of the fit
    max_iter: int
    n_levels: int  # of the network
    n_rows: int  # that have weight
    seed: np.int32
    mesh: Any = None  # of the devices among which the rows are divided


class TrainingState(NamedTuple):
    """Network, loss, trust region, and the place in the schedule."""

    net: Net
    loss: float
    lowest: float  # loss of the level, for methods whose loss may rise
    radius: float = math.nan
    lowest_at: int = 0  # iteration
    n_stalled: float = 0  # evaluations since then; infinite at the end of a level
    level: int = 0
    iteration: int = 0
    work: float = 0.0
    work_at_evaluation: float = 0.0  # of all rows, the last one
    spectrum: np.ndarray | None = None
    memory: Any = None  # what an optimiser carries from step to step


# --- the loop ------------------------------------------------------------------------


def init(rows, net, settings):
    """Return the start; its output layer is optimal for all rows or a batch."""
    net = jax.device_put(net)
    # Without hidden weights the optimal layer of all rows is the solution.
    size = batch_size(settings) if jax.tree.leaves(net.theta) else None
    batch, work = draw_batch(rows, size, 0, settings)
    started, loss = evaluated(net, batch, settings, True)
    if batch is not rows:  # all of them may prefer that of a former fit
        both = (evaluated(one, rows, settings, False) for one in (net, started))
        started, loss = min(both, key=itemgetter(1))
        work += 2
    level = getattr(settings.model.network, "level_of", lambda theta: 0)
    level = level(started.theta)
    return TrainingState(started, loss, loss, work=work, level=level)


def iterate(rows, state, settings, update, projected):
    """One iteration, on all rows or on a batch of them, and the loss on all rows.

    ``update(rows, state, settings)`` returns the state with another network, the report
    with its loss on these rows, and the number of passes over them. The output layer is
    ``projected`` out if it is optimal for the rows at hand.

    Losses of different batches cannot be compared, and a batch that is fitted does not
    end the fit. All rows are evaluated when the work has grown by a quarter, later
    after every 20 units, and before a finer level. In between the last loss stands.
    """
    former_loss = state.loss
    # 1. The level, the rows, and what the network is worth on them.
    if projected and not jax.tree.leaves(state.net.theta):  # the start is the solution
        done = Report(state.loss, 0.0, stop="tol", extra=log_columns(state))
        return state, done
    refined = level_ends(state, settings)
    if refined:
        theta = jax.tree.map(np.asarray, state.net.theta)
        theta = jax.device_put(settings.model.network.refine(theta))
        state = state._replace(
            net=Net(theta, state.net.output),
            lowest=math.inf,
            radius=math.nan,
            lowest_at=state.iteration,
            n_stalled=0,
            level=state.level + 1,
            memory=None,
        )
    batch, share = current_batch(rows, settings, state.iteration)
    if refined or batch is not rows:
        net, loss = evaluated(state.net, batch, settings, projected)
        state = state._replace(net=net, loss=loss, work=state.work + share)
    # 2. A step.
    state, report, passes = update(batch, state, settings)
    iteration, work = state.iteration + 1, state.work + share * passes
    state = state._replace(iteration=iteration, work=work, loss=former_loss)
    # 3. The loss on all rows.
    loss, stop = report.loss, report.stop
    if batch is not rows:
        last = state.work_at_evaluation
        due = work - last >= min(_EVALUATED_EVERY, last / 4)
        if math.isfinite(loss) and not (due or level_ends(state, settings)):
            extra = log_columns(state, evaluated=False)
            return state, report._replace(loss=former_loss, stop=None, extra=extra)
        net, loss = evaluate_last(rows, state, settings, projected)
        work, stop = work + 1, None
        state = state._replace(net=net, work=work)
    # 4. What it says of further iterations: a sweep of batches without progress is no
    # sign of the end, nor are as many epochs as there are between two evaluations.
    tol, patience = float(settings.tol), 1
    if not is_whole(settings):
        n_batches = -(-settings.n_rows // batch_size(settings))
        patience = n_batches * settings.solver.iterations_per_batch
    elif has_mini_batches(settings.solver):
        patience = _EVALUATED_EVERY // 2  # an epoch takes two units of work
    if loss < (1 - tol) * state.lowest or tol == 0:
        state = state._replace(n_stalled=0, lowest_at=iteration)
    else:
        state = state._replace(n_stalled=state.n_stalled + 1)
    seen = iteration - state.lowest_at >= patience
    if stop is None and state.n_stalled >= PATIENCE and seen:
        stop = "tol"
    state = state._replace(
        loss=loss,
        lowest=min(loss, state.lowest),
        n_stalled=state.n_stalled if stop is None else math.inf,
        work_at_evaluation=work,
    )
    if not math.isfinite(loss):
        stop = "non_finite"
    elif state.level + 1 < settings.n_levels:
        stop = None
    return state, report._replace(loss=loss, stop=stop, extra=log_columns(state))


def evaluate_last(rows, state, settings, projected):
    """Return the network of all rows, and its loss; None if they are known."""
    if is_whole(settings) or state.work_at_evaluation == state.work:
        return None
    return evaluated(state.net, rows, settings, projected)


def log_columns(state, evaluated=True):
    """Return further columns of the log."""
    columns = {"work_units": state.work, "level": state.level}
    return {**columns, "evaluated_on_all_rows": evaluated}


def level_ends(state, settings):
    """Whether the next iteration belongs to a finer level."""
    if state.level + 1 >= settings.n_levels:
        return False
    share = -(-settings.max_iter // settings.n_levels)
    return state.n_stalled == math.inf or state.iteration >= share * (state.level + 1)


# --- batches -------------------------------------------------------------------------


class DividedRows(Rows):
    """Rows on several devices. The attribute ``host`` has them as they were given."""


def prepare(rows, mesh):
    """Put the rows on the device, or a share, padded by weights of zero, on each.

    Chunks stay where they are.
    """
    if isinstance(rows, ChunkedRows):
        return rows
    if mesh is None:
        return jax.device_put(rows)
    divided = DividedRows(*put_rows(rows, mesh))
    divided.host = rows
    return divided


def batch_size(settings):
    """Return the number of rows of a batch; None takes all rows.

    Methods of mini-batches begin with one of that size, as all rows may cost epochs.
    """
    size = settings.solver.batch_size
    if has_mini_batches(settings.solver):
        size = BATCH_ROWS
    elif size == "auto":
        size = BATCH_ROWS if settings.n_rows > 4 * BATCH_ROWS else None
    return None if size is None or size >= settings.n_rows else size


def is_whole(settings):
    """Whether every iteration takes all rows."""
    return has_mini_batches(settings.solver) or batch_size(settings) is None


def current_batch(rows, settings, iteration):
    """Return the rows of an iteration, all or a batch, and their share of all rows."""
    if is_whole(settings):
        return rows, 1.0
    number = iteration // settings.solver.iterations_per_batch
    return draw_batch(rows, batch_size(settings), number, settings)


def draw_batch(rows, size, number, settings):
    """Return the batch of a given size and number, and its share of all rows."""
    if size is None:
        return rows, 1.0
    if isinstance(rows, ChunkedRows):
        return rows.batch(size, number, settings.seed)
    rows = getattr(rows, "host", rows)
    counted = np.flatnonzero(np.asarray(rows.weight))
    _, chosen = _drawn(counted, size, number, settings.seed)
    x, y, weight = (np.asarray(a)[chosen] for a in rows)
    batch = prepare(Rows(x, y, weight / weight.sum()), settings.mesh)
    return batch, size / len(counted)


def _drawn(numbers, size, batch, seed):
    """The sweep that a batch belongs to, and which of the numbers are in it."""
    sweep, place = divmod(batch, -(-len(numbers) // size))
    rng = np.random.RandomState((int(seed) + sweep) % 2**32)
    part = np.arange(place * size, (place + 1) * size) % len(numbers)
    return sweep, rng.permutation(numbers)[part]


def shuffled_epochs(rows, settings, iteration):
    """Yield shuffled rows in mini-batches, the number of these, and their size."""
    rng = np.random.RandomState((int(settings.seed) + iteration) % 2**32)
    for block in rows.blocks() if isinstance(rows, ChunkedRows) else [rows]:
        counted = np.flatnonzero(np.asarray(block.weight))
        size = min(settings.solver.batch_size or _MINI_BATCH, len(counted))
        n_batches = -(-len(counted) // size)
        # As many as there are rows, so that the shape tells nothing of their weights.
        order = rng.permutation(counted)
        order = np.resize(order, -(-len(block.weight) // size) * size)
        x, y, weight = (np.asarray(a)[order] for a in block)
        factor = weight.dtype.type(n_batches * settings.n_rows / len(counted))
        yield Rows(x, y, factor * weight), np.int32(n_batches), size


# --- chunks --------------------------------------------------------------------------


class ChunkedRows:
    """Rows that are read again and again, in place of :class:`Rows` in memory.

    ``chunks`` are checked ones, in the user's units; ``scaled`` maps X and y to the
    units of the fit; ``found`` is their Survey; ``draw_sample`` maps a number other
    than 0, the first survey's, to another one.
    """

    def __init__(self, chunks, scaled, found, draw_sample, dtype):
        self._chunks, self._scaled, self._found = chunks, scaled, found
        self._draw_sample = draw_sample
        self._sample, self._draw = found.sample, 0
        self._length, self._dtype = part_length(found.sample.X.shape[1]), dtype
        self._squares = None, None  # weights of a network, and the factor of its rows
        # That of later samples would depend on where a fit was resumed.
        self.large_batch = self._of_sample(slice(0, self._length))

    def batch(self, size, number, seed):
        """Return the batch of a given number, and its share of all rows."""
        numbers = np.arange(len(self._found.sample.X))
        sweep, chosen = _drawn(numbers, size, number, seed)
        if sweep != self._draw:
            found = self._draw_sample(sweep) if sweep else self._found
            self._sample, self._draw = found.sample, sweep
        return self._of_sample(chosen), size / self._found.n_rows

    def blocks(self):
        """Yield all rows, in blocks of equal length whose weights sum to one."""

        def block(X, y, weight):
            rows = self._in_units(X, y, weight / self._found.total)
            return Rows(*(pad_rows(a, self._length) for a in rows))

        return prefetched(block(*part) for part in even_parts(self._chunks))

    def _of_sample(self, part):
        _, weight, X, y, _ = self._sample
        weight = weight[part]
        return self._in_units(X[part], y[part], weight / weight.sum())

    def _in_units(self, X, y, weight):
        x, t = self._scaled(X, y)
        with np.errstate(over="ignore"):  # large numbers may be infinite
            return Rows(*(a.astype(self._dtype) for a in (x, t, weight)))

    def least_squares(self, model, net):
        """Return features (p + q, p) and Rows with the least-squares problem of all."""
        key = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(net.theta)]
        p, q = net.output.shape
        if key != self._squares[0]:
            factor = jnp.zeros((p + q, p + q), self._dtype)
            for rows in self.blocks():
                factor = joined_factor(model, net.theta, factor, rows)
                factor.block_until_ready()  # blocks that wait would fill the memory
            self._squares = key, factor
        z, y = jnp.split(self._squares[1], [p], axis=1)
        return z, Rows(None, y, jnp.ones(p + q, y.dtype))

    def cross_entropy(self, model, net, penalties):
        """Return the objective and its gradient in W, in double precision."""
        loss, gradient = 0.0, np.zeros(net.output.shape)
        for rows in self.blocks():
            of_block = loss_and_gradient(model, net, rows, penalties)
            loss += float(of_block[0])
            gradient += np.asarray(of_block[1], np.float64)
        return loss, gradient


@partial(jax.jit, static_argnames="model")
def joined_factor(model, theta, factor, rows):
    """Return the triangular factor of the rows of a factor and some more."""
    z = features(model, theta, rows.x)
    new = jnp.sqrt(rows.weight)[:, None] * jnp.concatenate([z, rows.y], axis=1)
    return upper_factor(factor, new)


@partial(jax.jit, static_argnames="model")
def loss_and_gradient(model, net, rows, penalties):
    """Return what rows add to the objective, and to its gradient in W."""
    own = jax.tree.map(lambda alpha: alpha * jnp.sum(rows.weight), penalties)
    found = problem.evaluate(model, net, rows, own)
    return found.loss, own.output * net.output + found.z.T @ found.error


def evaluated(net, rows, settings, projected):
    """Return the network and its objective, with the optimal output layer if asked."""
    z, model, penalties = None, settings.model, settings.penalties
    if isinstance(rows, ChunkedRows):
        if model.loss == "cross_entropy" and projected:
            return _with_least_cross_entropy(model, net, rows, penalties)
        if model.loss == "cross_entropy":
            return net, rows.cross_entropy(model, net, penalties)[0]
        z, rows = rows.least_squares(model, net)
    if projected:
        net, loss, _ = problem.with_optimal_output(model, net, rows, penalties, z)
        return net, float(loss)
    return net, float(problem.objective(model, net, rows, penalties, z))


def _with_least_cross_entropy(model, net, rows, penalties):
    """Return the network with its optimal output layer, and the objective.

    Near the optimum the loss does not resolve a step, and line searches refuse good
    ones. The problem is convex: the least gradient of all that were seen is the best.
    """
    found = problem.with_optimal_output(model, net, rows.large_batch, penalties)
    in_double = partial(np.asarray, dtype=np.float64)
    (_, start), _, factors = jax.tree.map(in_double, found)
    least = math.inf, math.nan, net.output

    def evaluate(coordinates):
        nonlocal least
        image = coordinates.reshape(len(factors.root), -1)
        output = start + (factors.root.T @ image).reshape(start.shape)
        output = output.astype(net.output.dtype)
        loss, slope = rows.cross_entropy(model, net._replace(output=output), penalties)
        slope = (factors.root @ slope.reshape(len(image), -1)).ravel()
        least = min(least, (np.abs(slope).max(), loss, output), key=itemgetter(0))
        return loss, slope

    words = {"ftol": 0.0, "gtol": INNER_TOL}
    minimize(evaluate, np.zeros(start.size), jac=True, method="L-BFGS-B", options=words)
    _, loss, output = least
    return Net(net.theta, jnp.asarray(output)), loss
