"""GNvpro: Gauss-Newton-Krylov variable projection for deep networks.

The method of Newman, Ruthotto, Hart and van Bloemen Waanders ("Train like a (Var)Pro").
A network ``x -> W^T z(x; theta)`` ends in an affine layer, for which the objective
``Phi(W, theta)`` of :mod:`sklearn_gn.varpro.problem` is convex. It is solved for W, and
a Gauss-Newton method minimises what is left, ``Phi_red(theta) = Phi(W(theta), theta)``.
An iteration

1.  solves the inner problem (:mod:`sklearn_gn.varpro.inner`), for all rows or a batch;
2.  linearises the values ``z W(theta)``, in which W moves with theta, and
3.  projects or forms the reduced Gauss-Newton matrix
    (:mod:`sklearn_gn.varpro.reduced`);
4.  tries trust-region steps in its eigenvectors until one is accepted. The Krylov space
    or the eigenvectors stay while the radius shrinks, so that a rejected step costs
    only the next trial.

Without the projection it is Gauss-Newton in all weights together. The loop
(:func:`iterate`), with its batches and levels, is that of all solvers of networks.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import linalg

from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.bayes.evidence_gn import PATIENCE
from sklearn_gn.optim.solver import Report, has_mini_batches
from sklearn_gn.optim.trust_region import damped_coordinates, decrease, radius_shift
from sklearn_gn.varpro import batches
from sklearn_gn.varpro.inner import solve_inner
from sklearn_gn.varpro.problem import Model, Net, Penalties, objective
from sklearn_gn.varpro.reduced import quadratic_model

_EVALUATED_EVERY = 20  # work units on batches after which all rows are evaluated
_GROW = 0.75  # gain ratio from which the trust region grows; it shrinks below 0.25


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


def needed_bytes(rows, net, settings):
    """Return the bytes that a fit needs besides its data: mostly values of neurons."""
    n = batches.batch_size(settings) or len(rows.x)
    # Features, their SVD, and those of a trial; of layers inside, about as many numbers
    # as they have biases, which wait for the backward pass.
    inner = sum(leaf.shape[-1] for leaf in jax.tree.leaves(net.theta) if leaf.ndim)
    return settings.dtype.itemsize * n * (4 * sum(net.output.shape) + 2 * inner)


def init(rows, net, settings):
    """Return the start; its output layer is optimal for all rows or a batch."""
    net, model, penalties = jax.device_put(net), settings.model, settings.penalties
    size = batches.batch_size(settings)
    if not jax.tree.leaves(net.theta):  # then it is the solution
        size = None
    batch, work = batches.draw_batch(rows, size, 0, settings)
    started, loss = batches.evaluated(model, net, batch, penalties, True)
    if batch is not rows:  # all of them may prefer that of a former fit
        given, loss = (
            batches.objective(model, one, rows, penalties) for one in (net, started)
        )
        started, loss = (started, loss) if loss < given else (net, given)
        work += 2
    loss = float(loss)
    level = getattr(model.network, "level_of", lambda theta: 0)(started.theta)
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
    # 1. The level, the rows, and what the network is worth on them.
    if projected and not jax.tree.leaves(state.net.theta):  # the start is the solution
        done = Report(state.loss, 0.0, stop="tol", extra=log_columns(state))
        return state, done
    refined, former_loss = level_ends(state, settings), state.loss
    if refined:
        state = on_finer_level(state, settings)
    batch, share = batches.current_batch(rows, settings, state.iteration)
    if refined or batch is not rows:
        given = settings.model, state.net, batch, settings.penalties
        net, loss = batches.evaluated(*given, projected)
        state = state._replace(net=net, loss=float(loss), work=state.work + share)
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
    # 4. What it says of further iterations.
    tol = float(settings.tol)
    if loss < (1 - tol) * state.lowest or tol == 0:
        state = state._replace(n_stalled=0, lowest_at=iteration)
    else:
        state = state._replace(n_stalled=state.n_stalled + 1)
    seen = iteration - state.lowest_at >= sweep_length(settings)
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
    elif state.level + 1 < n_levels(settings):
        stop = None
    return state, report._replace(loss=loss, stop=stop, extra=log_columns(state))


def evaluate_last(rows, state, settings, projected):
    """Return the network of all rows, and its loss; None if they are known."""
    if batches.is_whole(settings) or state.work_at_evaluation == state.work:
        return None
    given = settings.model, state.net, rows, settings.penalties
    net, loss = batches.evaluated(*given, projected)
    return net, float(loss)


def sweep_length(settings):
    """Return the number of iterations that are no sign of the end: a sweep of batches.

    Of epochs, of which each takes two units of work, as many as between evaluations.
    """
    if batches.is_whole(settings):
        return _EVALUATED_EVERY // 2 if has_mini_batches(settings.solver) else 1
    n_batches = -(-settings.n_rows // batches.batch_size(settings))
    return n_batches * settings.solver.iterations_per_batch


def log_columns(state, evaluated=True):
    """Return further columns of the log."""
    columns = {"work_units": state.work, "level": state.level}
    return {**columns, "evaluated_on_all_rows": evaluated}


# --- levels --------------------------------------------------------------------------


def n_levels(settings):
    """Return the number of levels of the network, 1 if it defines none."""
    return getattr(settings.model.network, "n_levels", 1)


def level_ends(state, settings):
    """Whether the next iteration belongs to a finer level."""
    if state.level + 1 >= n_levels(settings):
        return False
    share = -(-settings.max_iter // n_levels(settings))
    return state.n_stalled == math.inf or state.iteration >= share * (state.level + 1)


def on_finer_level(state, settings):
    """Return the state on the next level, with the same function of the rows."""
    theta = settings.model.network.refine(jax.tree.map(np.asarray, state.net.theta))
    return state._replace(
        net=Net(jax.device_put(theta), state.net.output),
        lowest=math.inf,
        radius=math.nan,
        lowest_at=state.iteration,
        n_stalled=0,
        level=state.level + 1,
        memory=None,
    )


# --- the step ------------------------------------------------------------------------


class TrialStep(NamedTuple):
    """A step that was tried."""

    net: Net  # after the step
    loss: jnp.ndarray
    predicted: jnp.ndarray  # decrease of the loss
    length: jnp.ndarray
    shift: jnp.ndarray  # of the Gauss-Newton matrix
    radius: jnp.ndarray


def gauss_newton(rows, state, settings, projected):
    """Take a step from a network whose loss is known, as :func:`iterate` asks for."""
    # 2. and 3. Linearisation, and the spectral form of the Gauss-Newton matrix.
    found, passes = quadratic_model(state.net, rows, settings, projected)
    # 4. Trust-region steps, until one is accepted.
    given = rows, settings.penalties, projected
    attempt = partial(try_step, settings.model, state.net, found.spectral)
    attempt = partial(attempt, found.factors, *given)
    trial, gain_ratio, radius, n_trials = find_step(state, attempt, settings)
    stop = None
    if trial is None:  # no further iteration would find one
        stop = "rounding" if gain_ratio == 0 else "line_search"
        trial = TrialStep(state.net, state.loss, 0.0, 0.0, math.nan, radius)
    report = Report(
        loss=float(trial.loss),
        # That of BLAS, whose squares do not overflow.
        grad_norm=float(linalg.norm(np.asarray(found.gradient), check_finite=False)),
        step_size=float(trial.length),
        damping=float(trial.shift),
        gain_ratio=gain_ratio,
        inner_iterations=int(found.inner_iterations),
        stop=stop,
    )
    spectrum = np.sort(np.asarray(found.spectral.values))[::-1]
    state = state._replace(net=trial.net, radius=radius, spectrum=spectrum)
    return state, report, passes + n_trials


@partial(
    by_rows, compiled=jitted(static_argnames=("model", "projected")), static=("model",)
)
def try_step(
    model,
    net,
    spectral,
    factors,
    rows,
    penalties,
    projected,
    radius,
    damping,
    fraction,
):
    """Return a fraction of the step by a quadratic model, and the objective after it.

    The shift is ``damping``, or with None that with which the step is as long as the
    radius. Without a radius yet, which is NaN, the step may be as long as the
    parameters are: the model says nothing about steps that saturate the activations.
    """
    flat, unravel = ravel_pytree(net.theta if projected else net)
    size = jnp.maximum(jnp.linalg.norm(flat), 1)
    radius = jnp.where(jnp.isnan(radius), size, radius)
    shift = radius_shift(spectral, radius) if damping is None else damping
    coordinates = fraction * damped_coordinates(spectral, shift)
    moved = unravel(flat + spectral.basis @ coordinates)
    if projected:
        start = Net(moved, net.output)
        inner = solve_inner(model, start, rows, penalties, factors)
        moved, loss = Net(moved, inner.output), inner.loss
    else:
        loss = objective(model, moved, rows, penalties)
    predicted, length = decrease(spectral, coordinates), jnp.linalg.norm(coordinates)
    return TrialStep(moved, loss, predicted, length, shift, radius)


def find_step(state, attempt, settings):
    """Try steps until one lowers the loss enough; None where none does.

    The trust region adapts to them; with a fixed shift ``settings.damping`` rejected
    steps are halved. ``attempt(radius, damping, fraction)`` makes a :class:`TrialStep`,
    of which ``fraction`` is taken. The gain ratio, actual over predicted decrease, the
    next radius and the number of trials are returned too; without a step the ratio is
    0 if the loss is at rounding.
    """
    cast = settings.dtype.type
    # Half of a step as often as it has digits is none.
    eps, most = float(np.finfo(cast).eps), np.finfo(cast).nmant
    radius, fraction, promised = state.radius, 1.0, None
    for n_trials in range(1, most + 1):
        trial = attempt(cast(radius), settings.damping, cast(fraction))
        predicted, length = float(trial.predicted), float(trial.length)
        actual = state.loss - float(trial.loss)
        gain = actual / predicted if predicted > 0 else math.nan
        promised = predicted if promised is None else promised
        if not predicted > eps * abs(state.loss) or not length > 0:
            break
        radius = float(trial.radius)
        if not gain > 0:
            radius = min(radius, length) / 2
            fraction = 1.0 if settings.damping is None else fraction / 2
            continue
        # A step that did better than predicted is doubled while that lowers the loss;
        # with less, doubling never paid in fits of six kinds.
        while settings.damping is None and gain > 1 and n_trials < most:
            fraction *= 2
            longer = attempt(cast(radius), settings.damping, cast(fraction))
            n_trials += 1
            if not float(longer.loss) < float(trial.loss):
                break
            trial = longer
        if gain < 1 - _GROW:
            radius = length / 2
        elif gain > _GROW:
            radius = max(radius, 1.5 * float(trial.length))
        return trial, gain, radius, n_trials
    # Where even the first step promised next to nothing, the loss is at rounding.
    flat = promised <= eps ** (2 / 3) * abs(state.loss)
    return None, 0.0 if flat else math.nan, radius, n_trials
