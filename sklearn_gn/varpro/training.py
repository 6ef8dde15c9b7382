"""What the solvers of networks share: settings, state, levels, the loss on all rows."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from sklearn_gn.bayes.evidence_gn import PATIENCE
from sklearn_gn.optim.solver import Report, has_mini_batches
from sklearn_gn.varpro import batches
from sklearn_gn.varpro.batches import (
    ChunkedRows,
    objective,
    with_optimal_output,
)
from sklearn_gn.varpro.problem import Model, Net, Penalties

_EPOCHS = 10  # with hardly any decrease after which a level ends
_EVALUATED_EVERY = 20  # work units on batches after which all rows are evaluated


class Settings(NamedTuple):
    """The settings of a fit: what a solver is given besides the rows."""

    model: Model
    solver: Any  # solver object of the estimator, with what only this solver needs
    penalties: Penalties
    damping: np.ndarray | None  # shift of the Gauss-Newton matrix; None: trust region
    rank: int | None  # dimension of the Krylov space; None: the solver decides
    tol: np.ndarray
    max_iter: int
    n_rows: int  # that have weight
    n_samples: np.ndarray  # sum of the sample weights as they were given
    seed: np.int32
    mesh: Any = None  # of the devices among which the rows are divided

    @property
    def dtype(self):
        """Precision of the fit."""
        return self.tol.dtype


class TrainingState(NamedTuple):
    """Network, loss, trust region, and the place in the schedule."""

    net: Net
    loss: float
    radius: float = math.nan
    n_stalled: int = 0
    lowest: float = math.inf  # loss of the level, for methods whose loss may rise
    level: int = 0
    iteration: int = 0
    work: float = 0.0
    work_at_evaluation: float = 0.0  # of all rows, the last one
    iteration_at_evaluation: int = 0
    spectrum: np.ndarray | None = None
    memory: Any = None  # what an optimiser carries from step to step


def needed_bytes(rows, net, settings):
    """Return the bytes that a fit needs besides its data: mostly values of neurons."""
    n = batches.batch_size(settings) or len(rows.x)
    # Features, their SVD, and those of a trial; of layers inside, about as many numbers
    # as they have biases, which wait for the backward pass.
    inner = sum(leaf.shape[-1] for leaf in jax.tree.leaves(net.theta) if leaf.ndim)
    numbers = n * (4 * (net.output.shape[0] + net.output.shape[1]) + 2 * inner)
    return settings.dtype.itemsize * numbers


def prepare(rows, settings):
    """Put the rows on the device, or on the devices; chunks stay where they are."""
    if isinstance(rows, ChunkedRows):
        return rows
    if settings.mesh is None:
        return jax.device_put(rows)
    return batches.on_devices(rows, settings.mesh)


def init(rows, net, settings):
    """Return the start; its output layer is optimal for all rows or a batch."""
    net, model = jax.device_put(net), settings.model
    size = batches.batch_size(settings)
    if has_mini_batches(settings.solver):
        size = batches.BATCH_ROWS  # all may cost many epochs
    if not jax.tree.leaves(net.theta):  # then it is the solution
        size = None
    batch, work = batches.draw_batch(rows, size, 0, settings)
    penalties = settings.penalties
    started, loss = with_optimal_output(model, net, batch, penalties)
    if batch is not rows:  # all of them may prefer that of a former fit
        given, loss = (objective(model, n, rows, penalties) for n in (net, started))
        started, loss = (started, loss) if loss < given else (net, given)
        work += 2
    level = getattr(model.network, "level_of", lambda theta: 0)(started.theta)
    loss = float(loss)
    return TrainingState(started, loss, lowest=loss, work=work, level=level)


# --- the end of an iteration ---------------------------------------------------------


def after_iteration(rows, batch, before, state, report, settings, at_rows=None):
    """Return state and report of an iteration with the loss on all rows, and its stop.

    The report of the batch says so where no further iteration on it would move. Losses
    of different batches cannot be compared, and a batch that is fitted does not end the
    fit; a sweep without a lower loss on all rows does. All rows are evaluated when the
    work has grown by a quarter, later after every 20 units, and before a finer level.
    In between the last loss stands. ``before`` is the state before the iteration, and
    ``at_rows`` makes the network of all rows.
    """
    state = state._replace(iteration=before.iteration + 1, loss=before.loss)
    loss, stop, since = report.loss, report.stop, 1
    if batch is not rows:
        last = before.work_at_evaluation
        due = state.work - last >= min(_EVALUATED_EVERY, last / 4)
        if math.isfinite(loss) and not (due or level_ends(state, settings)):
            extra = {**log_columns(state), "evaluated_on_all_rows": False}
            return state, report._replace(loss=before.loss, stop=None, extra=extra)
        net, loss = evaluate_last(rows, state, settings, at_rows)
        stop, since = None, state.iteration - before.iteration_at_evaluation
        state = state._replace(
            net=net,
            work=state.work + 1,
            work_at_evaluation=state.work + 1,
            iteration_at_evaluation=state.iteration,
        )
    tol, patience = float(settings.tol), patience_of(settings, state)
    fell = loss < (1 - tol) * before.lowest or tol == 0
    n_stalled = 0 if fell else before.n_stalled + since
    if stop is not None:
        n_stalled = patience
    lowest = min(loss, before.lowest)
    state = state._replace(loss=loss, lowest=lowest, n_stalled=n_stalled)
    if not math.isfinite(loss):
        stop = "non_finite"
    elif n_stalled >= patience and state.level + 1 >= n_levels(settings):
        stop = stop or "tol"
    else:
        stop = None
    return state, report._replace(loss=loss, stop=stop, extra=log_columns(state))


def evaluate_last(rows, state, settings, at_rows=with_optimal_output):
    """Return the network of all rows, and its loss; None if they are known."""
    if batches.batch_size(settings) is None or state.work_at_evaluation == state.work:
        return None
    net, loss = at_rows(settings.model, state.net, rows, settings.penalties)
    return net, float(loss)


def patience_of(settings, state):
    """Return the number of iterations without a lower loss after which a level ends."""
    if has_mini_batches(settings.solver):
        return _EPOCHS
    count = batches.n_batches(settings)
    if count == 1:
        return PATIENCE
    between = _EVALUATED_EVERY * state.iteration / max(1.0, state.work)
    return max(count * settings.solver.iterations_per_batch, PATIENCE * between)


def nothing_to_train(state):
    """Return state and report if W is all there is: the start is the solution."""
    extra = log_columns(state)
    return state, Report(loss=state.loss, grad_norm=0.0, stop="tol", extra=extra)


def log_columns(state):
    """Return further columns of the log."""
    columns = {"work_units": state.work, "level": state.level}
    return {**columns, "evaluated_on_all_rows": True}


# --- levels --------------------------------------------------------------------------


def n_levels(settings):
    """Return the number of levels of the network, 1 if it defines none."""
    return getattr(settings.model.network, "n_levels", 1)


def level_ends(state, settings):
    """Whether the next iteration belongs to a finer level."""
    if state.level + 1 >= n_levels(settings):
        return False
    share = -(-settings.max_iter // n_levels(settings))
    tired = state.n_stalled >= patience_of(settings, state)
    return tired or state.iteration >= share * (state.level + 1)


def enter_level(state, settings):
    """Return the state, on a finer network where a level ends, and whether it does."""
    if not level_ends(state, settings):
        return state, False
    theta = settings.model.network.refine(jax.tree.map(np.asarray, state.net.theta))
    state = state._replace(
        net=Net(jax.device_put(theta), state.net.output),
        level=state.level + 1,
        n_stalled=0,
        lowest=math.inf,
        radius=math.nan,
        memory=None,
    )
    return state, True
