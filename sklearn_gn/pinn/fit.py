"""What the solvers for differential equations share: points, and an iteration's end."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.core.solver import Report
from sklearn_gn.pinn.residuals import relative_error, residuals

_ROUNDING = 30  # residuals, in units in the last place, that are rounding
_PATIENCE = 20  # iterations without a lower loss
_BALANCE_POWER = 0.05
_SMALLEST_LOSS = 1e-6  # of a class, relative to the mean


class Observed(NamedTuple):
    """What a fit is given."""

    training: Any  # Batch of observations, or None
    validation: Any


class Points(NamedTuple):
    """Points that stay. Those of an equation to train on are drawn as the fit goes."""

    data: Any  # Batch of observations, or None
    fresh: tuple  # of Batch: never trained on
    reference: Any  # (points, values) to compare with, or None


class Options(NamedTuple):
    """Settings, most of them as numpy scalars."""

    models: tuple  # one for each stage of a curriculum, the problem itself last
    stages: tuple  # iterations after which a stage ends, one less than the models
    sampler: Any  # draw(model, seed, stage, number, net) makes batches
    damping: str  # "trust_region", "gain_ratio", "loss" or "fixed"
    shift: np.ndarray  # of "fixed"
    geodesic: bool
    momentum: float
    jacobi: bool
    rank: int | None  # of the preconditioner; None: none while the Gramian is small
    balanced: bool
    resample: int | str  # iterations for which points are kept, 0: for good; "drift"
    n_single: int  # first iterations, in single precision
    learning_rate: np.ndarray
    max_iter: int
    tol: np.ndarray
    seed: np.int32


class State(NamedTuple):
    """Network, points, and what is remembered from one step to the next."""

    net: Any
    loss: float
    batches: tuple
    balance: np.ndarray  # (n_classes,)
    memory: Any = None  # of the solver: radius or shift
    before: Any = None  # the last step, for momentum
    spectrum: np.ndarray | None = None
    stage: int = 0
    draws: int = 1
    iteration: int = 0
    waited: int = 0
    lowest: float = math.inf


def begin(points, net, options, memory):
    """The state at the start, on the first points."""
    net = jax.device_put(net)
    batches = draw(points, options, 0, 0, net)
    balance = np.ones(len(options.models[0].classes), options.tol.dtype)
    loss = float(total_loss(options.models[0], net, batches))
    return State(net, loss, batches, balance, memory)


def draw(points, options, stage, number, net):
    """Points to train on."""
    model = options.models[stage]
    batches = options.sampler.draw(model, int(options.seed), stage, number, net)
    if points.data is not None:
        batches = (*batches, points.data)
    return jax.device_put(batches)


@partial(jax.jit, static_argnames="model")
def total_loss(model, net, batches):
    """Half the sum of squares of all residuals."""
    return 0.5 * jnp.sum(residuals(model, net, batches) ** 2)


def prepare(observed, options):
    """Points that stay, the same ones for the same seed, on the device."""
    model, seed = options.models[-1], int(options.seed)
    fresh = options.sampler.fresh(model, seed)
    unseen = observed.validation
    if unseen is None and fresh:
        unseen = observed.training
    if unseen is not None:
        fresh = (*fresh, unseen)
    reference = options.sampler.reference(model.problem, seed)
    return jax.device_put(Points(observed.training, fresh, reference))


def renewed(points, state, options):
    """The next stage, or new points, where it is time."""
    stage = int(np.searchsorted(options.stages, state.iteration, side="right"))
    if stage == state.stage and not _due(points, state, options):
        return state
    batches = draw(points, options, stage, state.draws, state.net)
    return state._replace(batches=batches, stage=stage, draws=state.draws + 1)


def _due(points, state, options):
    if options.resample == "drift":
        model = options.models[state.stage]
        return float(total_loss(model, state.net, points.fresh)) > 2 * state.loss
    every = int(options.resample)
    return every > 0 and state.iteration > 0 and state.iteration % every == 0


def ended(
    points,
    state,
    options,
    losses,
    *,
    slope,
    length,
    size,
    shift=math.nan,
    gain=math.nan,
    inner=1,
    stuck=None,
):
    """State and report of an iteration.

    ``losses`` are those of the classes, with the weights of the user; ``slope`` is the
    norm of the gradient, ``length`` that of the step and ``size`` that of the network.
    ``stuck`` is the reason to stop where points stay and nothing can be gained.
    """
    model = options.models[state.stage]
    loss = float(np.sum(losses))
    # Neither an easier problem nor single precision decides that nothing is gained.
    last = (
        state.stage + 1 == len(options.models) and state.iteration >= options.n_single
    )
    fell = loss < (1 - float(options.tol)) * state.lowest
    waited = state.waited + 1 if last and not fell else 0
    eps = np.finfo(options.tol.dtype).eps
    stop = None
    if not math.isfinite(loss):
        stop = "non_finite"
    elif loss <= (_ROUNDING * eps) ** 2 * size:
        stop = "rounding"
    elif stuck and last and not options.resample:
        stop = stuck
    elif waited >= _PATIENCE and options.tol > 0:
        stop = "tol"
    extra = {
        f"loss_{kind.residual.name}": float(value)
        for kind, value in zip(model.classes, losses, strict=True)
    }
    if points.reference is not None:
        extra["relative_error"] = float(
            relative_error(options.models[-1], state.net, *points.reference)
        )
    if options.balanced and stop is None:
        state = state._replace(balance=rebalanced(losses, state.balance))
    state = state._replace(
        loss=loss,
        waited=waited,
        lowest=min(loss, state.lowest) if last else math.inf,
        iteration=state.iteration + 1,
    )
    return state, Report(
        loss=loss,
        grad_norm=slope,
        step_size=length,
        damping=shift,
        gain_ratio=gain,
        inner_iterations=inner,
        stop=stop,
        extra=extra,
    )


def rebalanced(losses, balance):
    """Class weights that slowly even the classes' shares of the loss out.

    No loss counts as less than a millionth of their mean: the weight of one that is
    zero would grow until the others were lost beside it.
    """
    floor = np.maximum(_SMALLEST_LOSS * losses.mean(), np.finfo(float).tiny)
    shares = np.maximum(losses, floor) * balance
    balance = balance * (shares.mean() / shares) ** _BALANCE_POWER
    return (balance / balance.mean()).astype(balance.dtype)
