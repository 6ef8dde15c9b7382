"""Gauss-Newton steps whose penalties and noise level the evidence chooses.

One iteration:

1. a Levenberg-Marquardt step on the energy E of :mod:`sklearn_gn.bayes.evidence` at the
   present penalties and noise: the damping is raised until E falls, then follows the
   gain ratio by Nielsen's rule;
2. the Gauss-Newton matrix and the gradient at the new parameters, which the model sums
   over the rows;
3. the number of well-determined parameters of each group, and from it new penalties
   and a new noise level.

A fit ends when the log evidence has stopped rising, or when the noise is at the level
of rounding errors. What differs between networks stands in a model,
:class:`~sklearn_gn.bayes.layers.Layers`. A method wraps :func:`init_at` and
:func:`step` into its algorithm. The matrices of tables are some hundred parameters
wide, for which NumPy is quick and nothing is compiled; on a GPU, and on several
devices, JAX computes with the same formulas (:mod:`sklearn_gn.bayes.device_rows`). Of
more than 2,000 parameters NumPy forms only products
(:class:`~sklearn_gn.linalg.large_gram.LargeGram`), and gamma and the log evidence are
estimates.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.bayes import evidence, low_rank
from sklearn_gn.bayes.device_rows import DeviceGram, DeviceRows
from sklearn_gn.data.rows_source import RowSource
from sklearn_gn.linalg.factors import factor, solution
from sklearn_gn.linalg.krylov import krylov_basis
from sklearn_gn.linalg.large_gram import LargeGram
from sklearn_gn.optim.globalisation import Damping, search_step
from sklearn_gn.optim.solver import Report

ROUNDING = 1e-13  # shift of a matrix at rounding level, relative to its trace
EXACT = 8 * np.finfo(np.float64).eps ** 2  # variance of the noise that is rounding
NEARLY_EXACT = 1e-20  # the same where large terms cancel, and no step lowers it
_TINY = np.finfo(np.float64).tiny
SOME_ROWS = 2000  # of many, that are enough for a matrix, a trial, or left-out errors
FIRST_UPDATE = 3  # iteration from which penalties move: before it they would run away
RISE = 0.1  # of the log evidence, or fall of the energy, that counts as progress
PATIENCE = 3  # iterations without it after which a fit ends
_PATIENCE_OF_ESTIMATES = 10  # where the log evidence is an estimate


class Sums(NamedTuple):
    """What an iteration needs of all rows, whose weights sum to one."""

    # (P, P)  J^T W Lambda J; Lambda is one for the squared loss
    gram: np.ndarray | LargeGram | DeviceGram
    negative_gradient: np.ndarray  # (P,)  of the mean loss
    error: float  # twice the mean loss: the weighted sum of squares, if squared


class EvidenceOptions(NamedTuple):
    """Settings of a run."""

    n_effective: float  # number of rows, counted by their weights
    damping: float | None  # fixed shift of the Gauss-Newton matrix
    rank: int | None  # most eigenvectors along which a step goes
    tol: float  # rise of the log evidence, per row, that counts as progress
    seed: int
    # Penalties of the groups, of the energy over beta and n_effective, that stay; None:
    # the evidence chooses. Then tol is a share by which the loss falls.
    alpha: np.ndarray | None = None
    # Parameters of the first of networks that grow; None: they stay as they are.
    first_size: int | None = None


class RegularisedLayers(NamedTuple):
    """Parameters of a network, and the penalties that were chosen for it."""

    theta: np.ndarray  # (P,)
    alpha: np.ndarray  # (G,) precisions of the groups
    beta: float  # precision of the noise; one for classes
    gamma: np.ndarray  # (G,) well-determined parameters of the groups
    log_evidence: float
    model: Any


class Progress(NamedTuple):
    """How far the log evidence has risen."""

    highest: float = -math.inf  # of the present network so far
    waited: int = 0  # iterations without a rise that counts
    restarted: bool = False  # whether the damping was lowered once more
    before_growth: float = -math.inf  # of the network that had fewer neurons
    when_examined: float = -math.inf  # whether neurons would raise it
    planes: np.ndarray | None = None  # of the neurons that join before the next step


class EvidenceState(NamedTuple):
    """State of a run."""

    net: RegularisedLayers
    loss: float
    theta: np.ndarray  # (P,)
    alpha: np.ndarray  # (G,) precisions of the groups
    beta: float  # precision of the noise; one for the cross-entropy
    sums: Sums  # at theta
    shift: float  # Levenberg-Marquardt damping, of the energy
    criterion: float = math.inf  # minus the log evidence, per row
    iteration: int = 0
    progress: Progress = Progress()


# --- sums ----------------------------------------------------------------------------


def sums_of(model, theta, rows):
    """Return the :class:`Sums` of a model, with a matrix of NumPy or products."""
    sums = sums_at(model, theta, rows)
    on_device = isinstance(sums.gram, DeviceGram)
    return sums._replace(gram=sums.gram.numpy()) if on_device else sums


def sums_at(model, theta, rows):
    """Return the :class:`Sums` of a model where its rows are, also on a device."""
    if isinstance(rows, DeviceRows):
        return Sums(*rows.sums(model, theta))
    if isinstance(rows, RowSource):
        return Sums(*rows.reduce(partial(_dense_sums, model), theta))
    return model.sums(theta, rows)


def error_at(model, theta, rows):
    """Return twice the mean loss of a model where its rows are."""
    if isinstance(rows, DeviceRows):
        return rows.error(model, theta)
    if isinstance(rows, RowSource):
        return rows.reduce(partial(error_at, model), theta)
    return float(model.error(theta, rows))


def _dense_sums(model, theta, rows):
    on_device = isinstance(rows, DeviceRows)
    sums = sums_of(model, theta, rows) if on_device else model.dense_sums(theta, rows)
    return tuple(sums)


# --- the iteration -------------------------------------------------------------------


def init_at(rows, net, options):
    """Return the state at a network with its penalties, and its noise or None."""
    theta, alpha, beta, model = net.theta, net.alpha, net.beta, net.model
    sums = sums_at(model, theta, rows)
    if model.loss != "squared":
        beta = 1.0
    elif beta is None:
        beta = 1 / max(sums.error / model.n_values, EXACT)
    if options.alpha is not None:
        alpha = options.alpha * beta * options.n_effective
    state = EvidenceState(None, sums.error / 2, theta, alpha, beta, sums, shift=1.0)
    n_effective = options.n_effective
    found, value, loss = at_penalties(model, state, sums, n_effective, 0.05)
    net = RegularisedLayers(theta, alpha, beta, found.gamma, value, model)
    state = state._replace(net=net)
    if options.alpha is not None:
        return state._replace(loss=loss, criterion=loss)
    return state._replace(criterion=-value / n_effective)


def step(rows, state, options):
    """One accepted step at fixed penalties, then new penalties."""
    model = state.net.model
    # 1. a step with the Gauss-Newton matrix at the present penalties
    found = accepted_step(model, rows, state, options)
    chooses = options.alpha is None and state.beta * NEARLY_EXACT < 1
    if not found.accepted and found.promised < RISE and chooses:
        # The minimum at these penalties; at others it may lie elsewhere.
        return updated(model, state, options)
    if not found.accepted:
        stop = "tol" if found.promised < RISE else "line_search"
        if options.alpha is not None and options.damping is None:
            stop = "tol"  # the loss falls in no direction, however short the step
        stop = "rounding" if state.beta * NEARLY_EXACT >= 1 else stop
        return state, _report(state, model, options.n_effective, stop)
    # 2. the Gauss-Newton matrix at the new point
    theta, length = found.candidate
    sums = sums_at(model, theta, rows)
    after = state._replace(theta=theta, sums=sums, shift=found.control.shift)
    # 3. the penalties that the evidence chooses there
    after, report = updated(model, after, options)
    return after, report._replace(
        step_size=length,
        damping=found.tried.shift / (state.beta * options.n_effective),
        gain_ratio=float(found.gain_ratio),
        inner_iterations=found.n_trials,
    )


def accepted_step(model, rows, state, options):
    """Search for a step that lowers the energy, until rounding errors are predicted.

    The candidate of the result is a pair of parameters and the length of the step.
    """
    sums = state.sums
    precision = evidence.prior_precision(model.groups(), state.alpha)
    scale = state.beta * options.n_effective
    rhs = scale * sums.negative_gradient - precision * state.theta
    solve = _solver(sums.gram, precision, scale, options.rank, rhs)
    penalty = float(precision * state.theta @ state.theta)
    before = (scale * sums.error + penalty) / 2

    def trial(damping, _):
        move = damping.share * solve(damping.shift, rhs)
        if not np.isfinite(move).all():  # with a fixed shift it stays so
            ended = damping.fixed or not math.isfinite(damping.shift)
            return None, -1.0, 0.0 if ended else math.inf
        hessian_move = scale * (sums.gram @ move) + precision * move
        predicted = float(move @ rhs - move @ hessian_move / 2)
        theta = state.theta + move
        penalty = float(precision * theta @ theta)
        after = (scale * error_at(model, theta, rows) + penalty) / 2
        return (theta, math.sqrt(move @ move)), before - after, predicted

    # Less would be lost in the floor of the matrix.
    shift = max(state.shift, ROUNDING * scale * sums.gram.trace(), _TINY)
    fixed = options.damping is not None
    damping = Damping(scale * options.damping if fixed else shift, fixed)
    floor = np.finfo(np.float64).eps * before
    return search_step(trial, None, damping, floor=floor, max_trials=math.inf)


def _solver(gram, precision, scale, rank, rhs):
    """Return the function ``(shift, right) -> (H + shift)^-1 right``, or NaN."""
    floor = ROUNDING * scale * gram.trace()
    if rank is not None and rank < len(gram):
        diagonal = scale * gram.diagonal() + precision + floor

        def product(v):
            return scale * (gram @ v) + (precision * v.T).T

        subspace = krylov_basis(product, diagonal, rhs, rank)
        inner = subspace.T @ product(subspace)

        def projected(shift, right):
            found = factor(inner, shift + floor)
            return subspace @ found.solve(subspace.T @ right)

        return projected
    if isinstance(gram, LargeGram):
        if not math.isfinite(floor):
            return lambda shift, right: np.full_like(right, np.nan)
        return low_rank.solver(gram, precision, scale, floor)

    diagonal = precision + floor
    if isinstance(gram, DeviceGram):
        return lambda shift, right: gram.computed(
            solution, scale, right, diagonal=diagonal + shift
        )
    return lambda shift, right: solution(gram, scale, right, diagonal + shift)


def at_penalties(model, net, sums, n_effective, error=0.005):
    """Return curvature, log evidence and loss of parameters at their penalties.

    The curvature of a :class:`LargeGram` is an estimate with a relative ``error``.
    ``net`` is a network, or a state; the log has those before the last penalties.
    """
    given = sums.gram, model.groups(), net.alpha
    floor = ROUNDING * sums.gram.trace()
    if isinstance(sums.gram, LargeGram):
        found = low_rank.curvature(*given, net.beta, n_effective, floor, error)
    else:
        found = evidence.primal_curvature(*given, net.beta * n_effective, floor)
    loss = objective(model, net, sums.error, n_effective)
    # Classes have no noise level.
    n_numbers = n_effective * model.n_values if model.loss == "squared" else 0
    energy = net.beta * n_effective * loss
    value = float(evidence.log_evidence(found, energy, n_numbers, net.beta))
    return found, value, loss


def updated(model, state, options):
    """Return state and report with the penalties that the evidence chooses here."""
    n_effective, groups = options.n_effective, model.groups()
    found, value, _ = at_penalties(model, state, state.sums, n_effective, 0.05)
    if not math.isfinite(value):
        stop = "rounding" if state.beta * NEARLY_EXACT >= 1 else "non_finite"
        return state, _report(state, model, n_effective, stop)
    criterion = -value / n_effective
    state = state._replace(criterion=criterion, iteration=state.iteration + 1)
    squares = evidence.group_sums(state.theta**2, groups, len(state.alpha))
    errors = n_effective * state.sums.error, n_effective * model.n_values
    chosen, beta = evidence.updated(found, squares, *errors, EXACT)
    beta, stop = float(beta) if model.loss == "squared" else 1.0, None
    if options.alpha is not None:  # they stay; a new noise level goes with them
        alpha = options.alpha * beta * n_effective
        state = state._replace(alpha=alpha, beta=beta)
        loss = objective(model, state, state.sums.error, n_effective)
        stop = "tol" if state.loss - loss <= options.tol * loss else None
        state = state._replace(criterion=loss)
    elif state.iteration >= FIRST_UPDATE:
        progress, rise = state.progress, least_rise(state, options)
        waited = 0 if value > progress.highest + rise else progress.waited + 1
        highest = max(value, progress.highest)
        progress = progress._replace(highest=highest, waited=waited)
        estimated = alpha_method(state.sums.gram) == "lanczos"
        if waited >= (_PATIENCE_OF_ESTIMATES if estimated else PATIENCE):
            # The damping may be what holds the fit: once more with little of it.
            again = state.shift > 1 and not progress.restarted
            stop = None if again else "tol"
            if again:
                state = state._replace(shift=1.0)
                progress = progress._replace(waited=0, restarted=True)
        state = state._replace(alpha=chosen, beta=beta, progress=progress)
    stop = "rounding" if 1 / beta <= EXACT else stop
    given = state.theta, state.alpha, beta, found.gamma, value, model
    net = RegularisedLayers(*given)
    state = state._replace(net=net)
    report = _report(state, model, n_effective, stop)
    return state._replace(loss=report.loss), report


def least_rise(state, options):
    """Return the rise of the log evidence that is worth an iteration.

    A network that has grown must rise by more, as its iterations take longer: their
    work is that of sums of squared size.
    """
    work = 1.0 if options.first_size is None else len(state.theta) / options.first_size
    return max(RISE, options.tol * options.n_effective * max(1.0, work) ** 2)


def alpha_method(gram):
    """Return how gamma is computed: "dense", or "lanczos" where it is estimated."""
    large = isinstance(gram, LargeGram) and not gram.has_few_rows
    return "lanczos" if large else "dense"


def without_idle_features(rows, state, options):
    """Return the state without features that the evidence has switched off.

    They leave the first layer and stay in the linear term. Penalties that are given
    switch nothing off, and others move for some iterations before a feature leaves.
    """
    net, model = state.net, state.net.model
    of_features = model.loss == "squared" and len(model.sizes) > 1
    waits = options.alpha is not None or state.iteration < 2 * FIRST_UPDATE
    if waits or not of_features or not switches.on("tables.feature_removal"):
        return state
    gamma = net.gamma[3:].take(model.features)
    idle = (gamma <= evidence.SWITCHED_OFF * model.sizes[1]) & (gamma < gamma.max())
    if not idle.any():
        return state
    kept = np.flatnonzero(~idle)
    output, (first, *others) = model.split(state.theta)
    theta = model.join(output, [first[:, [0, *(1 + kept)]], *others])
    model = model._replace(features=tuple(model.features[j] for j in kept))
    return state._replace(
        theta=theta,
        net=net._replace(theta=theta, model=model),
        sums=sums_at(model, theta, rows),
    )


def continued(rows, state):
    """Return a state that goes on with the targets of other rows."""
    sums = sums_at(state.net.model, state.theta, rows)
    progress = state.progress._replace(waited=0, highest=-math.inf)
    return state._replace(sums=sums, shift=1.0, criterion=math.inf, progress=progress)


def _report(state, model, n_effective, stop):
    net, precision = state.net, evidence.prior_precision(model.groups(), state.alpha)
    shrinkage = precision * state.theta / (state.beta * n_effective)
    rhs = state.sums.negative_gradient - shrinkage
    extra = {
        "log_evidence": net.log_evidence,
        "n_effective_parameters": float(net.gamma.sum()) + model.n_free,
    }
    if model.loss == "squared":
        extra["noise_std"] = 1 / math.sqrt(state.beta) if state.beta > 0 else math.inf
    return Report(
        loss=objective(model, state, state.sums.error, n_effective),
        grad_norm=math.sqrt(rhs @ rhs),
        stop=stop,
        extra=extra,
    )


def objective(model, net, error, n_effective):
    """Energy over beta and the number of rows: half the mean error, and penalties."""
    precision = evidence.prior_precision(model.groups(), net.alpha)
    return (error + float(precision @ net.theta**2) / (net.beta * n_effective)) / 2
