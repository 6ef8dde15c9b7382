"""What the solvers of networks share: settings, state, levels, the loss on all rows."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from sklearn_gn.core.solver import Report
from sklearn_gn.varpro import batches
from sklearn_gn.varpro.inner import cross_validated_penalty, with_optimal_output
from sklearn_gn.varpro.problem import Model, Net, Penalties, objective

PATIENCE = 3  # iterations with hardly any decrease after which a level ends
EVALUATED_EVERY = 20  # work units on batches after which all rows are evaluated


class Settings(NamedTuple):
    """What a solver is told beside the rows."""

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

    @property
    def cross_validated(self):
        """Whether the output penalty is chosen by generalised cross-validation."""
        return self.penalties.output is None

    @property
    def dtype(self):
        """Precision of the fit."""
        return self.tol.dtype


class TrainingState(NamedTuple):
    """Network, objective, trust region, and the place in the schedule."""

    net: Net
    loss: float
    radius: float = math.nan
    waited: int = 0
    lowest: float = math.inf  # loss of the level, for methods whose loss may rise
    level: int = 0
    iteration: int = 0
    work: float = 0.0
    judged: float = 0.0  # work when all rows judged last
    looked: int = 0  # and the iteration
    spectrum: np.ndarray | None = None
    memory: Any = None  # what an optimiser carries from step to step


def prepare(rows, settings):
    """Put the rows on the device."""
    del settings
    return jax.device_put(rows)


def init(rows, net, settings):
    """Return the start; its output layer is optimal for all rows or the first batch."""
    return init_from(batches.batch_size(settings), rows, net, settings)


def init_from(size, rows, net, settings):
    """Return the start; its output layer is optimal for ``size`` rows, None for all."""
    net, model = jax.device_put(net), settings.model
    if not jax.tree.leaves(net.theta):  # then it is the solution
        size = None
    batch, share = batches.draw_batch(rows, size, 0, settings)
    penalties = current_penalties(net.theta, batch, settings, share)
    started, loss = with_optimal_output(model, net, batch, penalties)
    work = share
    if batch is not rows:  # all of them may prefer that of a former fit
        given, loss = (objective(model, n, rows, penalties) for n in (net, started))
        net, loss = (started, loss) if loss < given else (net, given)
        work = share + 2
    else:
        net = started
    level_of = getattr(model.network, "level_of", None)
    level = 0 if level_of is None else level_of(net.theta)
    return TrainingState(net, float(loss), work=work, level=level)


def current_penalties(theta, rows, settings, share=1.0):
    """Return the penalties, the output penalty as a share of all rows suggests it.

    ``rows`` are that share. The suggestion is that of generalised cross-validation, if
    it is asked for.
    """
    penalties = settings.penalties
    if not settings.cross_validated:
        return penalties
    n_samples = (settings.n_samples * share).astype(settings.dtype)
    chosen = cross_validated_penalty(settings.model, theta, rows, n_samples)
    return penalties._replace(output=chosen)


def patience_of(settings, state):
    """Iterations without a lower loss after which a level ends.

    With batches they make a sweep at least, in which all rows judge a few times.
    """
    count = batches.n_batches(settings)
    if count == 1:
        return PATIENCE
    between = EVALUATED_EVERY * state.iteration / max(1.0, state.work)
    return max(count * settings.solver.iterations_per_batch, PATIENCE * between)


def evaluate_when_due(rows, before, state, report, settings, *, evaluate=None):
    """State and report of an iteration on a batch, with the loss on all rows.

    Losses of different batches do not compare, nor does the end of one end a fit: that
    does a sweep without a lower loss on all rows. These judge when the work has grown
    by a quarter, later whenever ``EVALUATED_EVERY`` units are spent, and before a finer
    level. Until then the last loss stands.

    Parameters
    ----------
    rows : Rows
    before : TrainingState
        That before the iteration.
    state : TrainingState
    report : Report
    settings : Settings
    evaluate : callable, default=None
        What makes the network of all rows; if None, :func:`evaluate_last`.
    """
    evaluate = evaluate or evaluate_last
    finite = math.isfinite(state.loss)
    state = state._replace(loss=before.loss, waited=before.waited)
    due = state.work - before.judged >= min(EVALUATED_EVERY, before.judged / 4)
    due = due or level_ends(state, settings, patience_of(settings, state))
    if finite and not due:
        extra = {**log_columns(state), "judged": False}
        return state, report._replace(loss=before.loss, stop=None, extra=extra)
    net, loss = evaluate(rows, state, settings)
    tol = float(settings.tol)
    fell = loss < (1 - tol) * before.lowest or tol == 0
    waited = 0 if fell else before.waited + state.iteration - before.looked
    tired = waited >= patience_of(settings, state) and on_last_level(state, settings)
    stop = "tol" if tired else None
    stop = stop if math.isfinite(loss) else "non_finite"
    work = state.work + 1
    state = state._replace(
        net=net,
        loss=loss,
        lowest=min(loss, before.lowest),
        waited=waited,
        work=work,
        judged=work,
        looked=state.iteration,
    )
    return state, report._replace(loss=loss, stop=stop, extra=log_columns(state))


def evaluate_last(rows, state, settings, *, optimal=with_optimal_output):
    """The network that all rows make of that of a batch, and its loss; None if known.

    ``optimal(model, net, rows, penalties)`` returns both.
    """
    if batches.batch_size(settings) is None or state.judged == state.work:
        return None
    penalties = current_penalties(state.net.theta, rows, settings)
    net, loss = optimal(settings.model, state.net, rows, penalties)
    return net, float(loss)


def n_levels(settings):
    """Number of levels of the network; one for networks that do not say."""
    return getattr(settings.model.network, "n_levels", 1)


def on_last_level(state, settings):
    """Whether there is no finer network to come."""
    return state.level + 1 >= n_levels(settings)


def level_ends(state, settings, patience):
    """Whether the next iteration belongs to a finer level."""
    if on_last_level(state, settings):
        return False
    share = -(-settings.max_iter // n_levels(settings))
    return state.waited >= patience or state.iteration >= share * (state.level + 1)


def enter_level(state, settings, patience=None):
    """Return the state, on a finer network where a level ends, and whether it does.

    ``patience`` is the number of iterations without a lower loss after which a level
    ends; if None, :func:`patience_of` says.
    """
    patience = patience_of(settings, state) if patience is None else patience
    ends = level_ends(state, settings, patience)
    return (_refined(state, settings) if ends else state), ends


def _refined(state, settings):
    """The same function on a finer network; its loss differs a little."""
    theta = settings.model.network.refine(jax.tree.map(np.asarray, state.net.theta))
    net = Net(jax.device_put(theta), state.net.output)
    return state._replace(
        net=net,
        level=state.level + 1,
        waited=0,
        lowest=math.inf,
        radius=math.nan,
        memory=None,
    )


def nothing_to_train(state):
    """Return state and report where W is all there is: the start is the solution."""
    report = Report(
        loss=state.loss, grad_norm=0.0, stop="tol", extra=log_columns(state)
    )
    return state, report


def log_columns(state):
    """Further columns of the log."""
    return {"work_units": state.work, "level": state.level, "judged": True}
