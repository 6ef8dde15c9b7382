"""What the solvers of networks share: settings, state, levels, the loss on all rows."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from sklearn_gn.optim.solver import Report
from sklearn_gn.varpro import batches
from sklearn_gn.varpro.batches import (
    ChunkedRows,
    objective,
    with_optimal_output,
)
from sklearn_gn.varpro.problem import Model, Net, Penalties

PATIENCE = 3  # iterations with hardly any decrease after which a level ends
EVALUATED_EVERY = 20  # work units on batches after which all rows are evaluated


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
    """Return the start; its output layer is optimal for all rows or the first batch."""
    return init_from(batches.batch_size(settings), rows, net, settings)


def init_from(size, rows, net, settings):
    """Return the start; its output layer is optimal for ``size`` rows, None for all."""
    net, model = jax.device_put(net), settings.model
    if not jax.tree.leaves(net.theta):  # then it is the solution
        size = None
    batch, share = batches.draw_batch(rows, size, 0, settings)
    penalties = settings.penalties
    started, loss = with_optimal_output(model, net, batch, penalties)
    work = share
    if batch is not rows:  # all of them may prefer that of a former fit
        given, loss = (objective(model, n, rows, penalties) for n in (net, started))
        started, loss = (started, loss) if loss < given else (net, given)
        work += 2
    level_of = getattr(model.network, "level_of", None)
    level = 0 if level_of is None else level_of(started.theta)
    return TrainingState(started, float(loss), work=work, level=level)


# --- the end of an iteration ---------------------------------------------------------


def after_iteration(state, settings, loss, fell, patience=PATIENCE):
    """Return the state after an iteration, in which the loss fell or did not; its stop.

    A level ends after ``patience`` iterations without a lower loss.
    """
    n_stalled = 0 if fell else state.n_stalled + 1
    iteration = state.iteration + 1
    state = state._replace(loss=loss, n_stalled=n_stalled, iteration=iteration)
    return state, _stop(state, settings, patience)


def _stop(state, settings, patience):
    """Why a fit ends here, or None."""
    if not math.isfinite(state.loss):
        return "non_finite"
    tired = state.n_stalled >= patience and on_last_level(state, settings)
    return "tol" if tired else None


def evaluate_when_due(rows, before, state, report, settings, at_rows):
    """Return state and report of an iteration on a batch, with the loss on all rows.

    Losses of different batches cannot be compared, and a batch that is fitted does not
    end the fit; a sweep without a lower loss on all rows does. All rows are evaluated
    when the work has grown by a quarter, later after every ``EVALUATED_EVERY`` units,
    and before a finer level. In between the last loss stands. ``before`` is the state
    before the iteration, and ``at_rows`` makes the network of all rows.
    """
    finite, last = math.isfinite(state.loss), before.work_at_evaluation
    state = state._replace(loss=before.loss, n_stalled=before.n_stalled)
    patience = patience_of(settings, state)
    due = state.work - last >= min(EVALUATED_EVERY, last / 4)
    due = due or level_ends(state, settings, patience)
    if finite and not due:
        extra = {**log_columns(state), "evaluated_on_all_rows": False}
        return state, report._replace(loss=before.loss, stop=None, extra=extra)
    net, loss = evaluate_last(rows, state, settings, at_rows)
    tol = float(settings.tol)
    fell = loss < (1 - tol) * before.lowest or tol == 0
    since = state.iteration - before.iteration_at_evaluation
    n_stalled = 0 if fell else before.n_stalled + since
    state = state._replace(
        net=net,
        loss=loss,
        lowest=min(loss, before.lowest),
        n_stalled=n_stalled,
        work=state.work + 1,
        work_at_evaluation=state.work + 1,
        iteration_at_evaluation=state.iteration,
    )
    stop = _stop(state, settings, patience)
    return state, report._replace(loss=loss, stop=stop, extra=log_columns(state))


def evaluate_last(rows, state, settings, at_rows=with_optimal_output):
    """Return the network of all rows, and its loss; None if they are known."""
    if batches.batch_size(settings) is None or state.work_at_evaluation == state.work:
        return None
    net, loss = at_rows(settings.model, state.net, rows, settings.penalties)
    return net, float(loss)


def patience_of(settings, state):
    """Return the number of iterations without a lower loss after which a level ends.

    With batches it is a sweep at least, in which all rows are evaluated a few times.
    """
    count = batches.n_batches(settings)
    if count == 1:
        return PATIENCE
    between = EVALUATED_EVERY * state.iteration / max(1.0, state.work)
    return max(count * settings.solver.iterations_per_batch, PATIENCE * between)


def nothing_to_train(state):
    """Return state and report if W is all there is: the start is the solution."""
    report = Report(
        loss=state.loss, grad_norm=0.0, stop="tol", extra=log_columns(state)
    )
    return state, report


def log_columns(state):
    """Return further columns of the log."""
    return {
        "work_units": state.work,
        "level": state.level,
        "evaluated_on_all_rows": True,
    }


# --- levels --------------------------------------------------------------------------


def n_levels(settings):
    """Return the number of levels of the network, 1 if it defines none."""
    return getattr(settings.model.network, "n_levels", 1)


def on_last_level(state, settings):
    """Whether no finer network follows."""
    return state.level + 1 >= n_levels(settings)


def level_ends(state, settings, patience):
    """Whether the next iteration belongs to a finer level."""
    if on_last_level(state, settings):
        return False
    share = -(-settings.max_iter // n_levels(settings))
    return state.n_stalled >= patience or state.iteration >= share * (state.level + 1)


def enter_level(state, settings, patience=None):
    """Return the state, on a finer network where a level ends, and whether it does.

    The finer network is nearly the same function. ``patience`` is the number of
    iterations without a lower loss after which a level ends; if None,
    :func:`patience_of` says.
    """
    patience = patience_of(settings, state) if patience is None else patience
    if not level_ends(state, settings, patience):
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
