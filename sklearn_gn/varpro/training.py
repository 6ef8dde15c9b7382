"""What the solvers of networks share: settings, state, levels, the loss on all rows."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from sklearn_gn.core.solver import Report
from sklearn_gn.varpro.batches import current_batch, n_batches
from sklearn_gn.varpro.inner import cross_validated_penalty, with_optimal_output
from sklearn_gn.varpro.problem import Model, Net, Penalties, objective

PATIENCE = 3  # iterations with hardly any decrease after which a level ends
EVALUATED_EVERY = 20  # work units on batches after which all rows are evaluated


class Settings(NamedTuple):
    """What the solvers are told, most of it as numpy scalars."""

    model: Model
    curvature_solver: str
    alpha: np.ndarray
    alpha_output: np.ndarray
    gcv: bool  # whether alpha_output is chosen by generalised cross-validation
    n_samples: np.ndarray  # that this needs: the sum of the weights as given
    damping: np.ndarray  # fixed shift; negative: the trust region
    rank: np.int32
    tol: np.ndarray
    max_iter: np.int32
    learning_rate: np.ndarray
    batch_size: np.int32  # 0: all rows
    iterations_per_batch: np.int32
    seed: np.int32


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
    net, model = jax.device_put(net), settings.model
    if not jax.tree.leaves(net.theta):  # then it is the solution
        settings = settings._replace(batch_size=np.int32(0))
    batch, share = current_batch(rows, settings, 0)
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
    """The penalties as given, or with the better one for a share of the rows."""
    alpha_output = settings.alpha_output
    if settings.gcv:
        n_samples = (settings.n_samples * share).astype(alpha_output.dtype)
        alpha_output = cross_validated_penalty(settings.model, theta, rows, n_samples)
    return Penalties(settings.alpha, alpha_output)


def patience_of(rows, settings, state):
    """Iterations without a lower loss after which a level ends.

    With batches they make a sweep at least, in which all rows judge a few times.
    """
    count = n_batches(rows, settings)
    if count == 1:
        return PATIENCE
    between = EVALUATED_EVERY * state.iteration / max(1.0, state.work)
    return max(count * int(settings.iterations_per_batch), PATIENCE * between)


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
    due = due or level_ends(state, settings, patience_of(rows, settings, state))
    if finite and not due:
        extra = {**log_columns(state), "judged": False}
        return state, report._replace(loss=before.loss, stop=None, extra=extra)
    net, loss = evaluate(rows, state, settings)
    tol = float(settings.tol)
    fell = loss < (1 - tol) * before.lowest or tol == 0
    waited = 0 if fell else before.waited + state.iteration - before.looked
    tired = waited >= patience_of(rows, settings, state) and on_last_level(
        state, settings
    )
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
    if n_batches(rows, settings) == 1 or state.judged == state.work:
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
    share = -(-int(settings.max_iter) // n_levels(settings))
    return state.waited >= patience or state.iteration >= share * (state.level + 1)


def enter_level(rows, state, settings, patience=None):
    """Return the state, on a finer network where a level ends, and whether it does.

    ``patience`` is the number of iterations without a lower loss after which a level
    ends; if None, :func:`patience_of` says.
    """
    patience = patience_of(rows, settings, state) if patience is None else patience
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


def output_layer_only(state):
    """Return state and report where W is all there is: the start is the solution."""
    report = Report(
        loss=state.loss, grad_norm=0.0, stop="tol", extra=log_columns(state)
    )
    return state, report


def log_columns(state):
    """Further columns of the log."""
    return {"work_units": state.work, "level": state.level, "judged": True}
