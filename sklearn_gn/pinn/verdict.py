"""Whether a solution is to be trusted, and what a warning says if it is not.

All of it is about the network that is returned, which is the best one on fresh points.
"""

import math
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn.core import backend
from sklearn_gn.core.fit_loop import level_of_the_user
from sklearn_gn.core.stop import StopReason
from sklearn_gn.pinn import determination
from sklearn_gn.pinn.windows import Pieces

_OVERFITTED = 100.0  # fresh over training loss, beyond which a fit warns
_FAR = 10.0  # the same, beyond which points are what a fit lacks
_NEGLECTED = 0.9  # share of a condition in the loss
_LAST, _AS_PREDICTED = 10, 0.5  # iterations; gain ratio of a fit in a minimum
_SOLVED = 1e-6  # of an untrained network's fresh loss, below which the equation holds
_FALLING = 0.5  # of the lowest fresh loss, by the last quarter of a fit
_FREE, _SURELY_FREE = 200.0, 1e4  # changes that residuals do not see


def advice(solver, reason):
    """What a warning says about the reason of the stop."""
    if reason.value == "stalled":
        return f"{reason.advice} {_limit(solver)}"
    if reason.value not in ("max_iter", "max_time") or _may_go_on(solver):
        return reason.advice
    budget = "iterations" if reason.value == "max_iter" else "seconds"
    return (
        f"{reason.value} is reached, but more {budget} alone would not help: the loss "
        f"on fresh points has not halved lately, and the equation does not hold. "
        f"{_limit(solver)}"
    )


def _may_go_on(solver):
    """Whether a fit that ran out of budget is solved, or on its way."""
    losses = solver.convergence_log_["val_loss"]
    if solver._fitted.problem is None or not np.isfinite(losses).any():
        return True
    if solver.fresh_loss_ <= _SOLVED * solver._untrained_loss:
        return True
    before = losses[: 3 * len(losses) // 4]
    lowest = np.nanmin(before) if np.isfinite(before).any() else math.inf
    return np.nanmin(losses) <= _FALLING * lowest


def _limit(solver):
    """What limits the network that is returned, and what to change."""
    log, best = solver.convergence_log_, _best_row(solver)
    loss = log["loss"][best]
    # Where later networks overfit, the best one is an early one.
    overfitted = log["val_loss"][-1] > _FAR * log["loss"][-1]
    if overfitted or solver.fresh_loss_ > _FAR * loss:
        n_weights, n_residuals = solver._sizes
        if n_weights > n_residuals:
            return (
                f"It holds better at the points of training: the network is too large "
                f"for them, {n_weights} weights for {n_residuals} residuals. Take a "
                "smaller one (hidden_layer_sizes), or more points (n_interior, "
                "n_boundary)."
            )
        cure = solver._cure_of_overfitting[-1]
        return f"It holds better at the points of training. {cure}"
    shares = {
        name.removeprefix("loss_"): values[best] / loss
        for name, values in log.items()
        if name.startswith("loss_")
    }
    worst = max(shares, key=shares.get)
    if worst not in ("interior", "data") and shares[worst] > _NEGLECTED:
        return (
            f"{shares[worst]:.0%} of the loss are those of the condition {worst!r}: "
            "check its values, raise its weight, or state it by transform."
        )
    if np.median(log["gain_ratio"][max(0, best + 1 - _LAST) : best + 1]) > (
        _AS_PREDICTED
    ):
        return (
            "The network is in a minimum, too small for this solution: take a larger "
            "one (hidden_layer_sizes), or activation='sin' for a solution that "
            "oscillates."
        )
    return (
        "The fit is stuck: state the problem in units in which axes and solution are "
        "of size one, try another random_state, or begin with easier problems, by a "
        "sequence."
    )


def _best_row(solver):
    """The row of the log that the network returned belongs to."""
    losses = solver.convergence_log_["val_loss"]
    return int(np.nanargmin(losses)) if np.isfinite(losses).any() else -1


def warn_if_not_solved(solver, untrained_loss):
    """Warn of a solution, and of coefficients, that are not to be trusted."""
    fresh, log = solver.fresh_loss_, solver.convergence_log_
    solved = math.isfinite(untrained_loss) and fresh < _SOLVED * untrained_loss
    loss = log["loss"][_best_row(solver)] if len(log["loss"]) else math.inf
    said = StopReason(solver.stop_reason_).is_warned_about
    if fresh > _OVERFITTED * loss and not solved and not said:
        _warn(
            f"On fresh points the loss of the network is {fresh:.3g}, on its points of "
            f"training {loss:.3g}. Between these the equation does not hold, and the "
            "solution is not to be trusted. Raise n_interior and n_boundary, or lower "
            "resample."
        )
    vague = [
        name
        for name, value in solver.coefficients_.items()
        if np.any(solver.coefficients_std_[name] > np.abs(value))
    ]
    if vague:
        _warn(
            f"The standard deviations of the coefficients {vague} exceed their "
            "values: the observations do not determine them. Give more "
            "observations, or other places."
        )


def warn_if_not_determined(solver, run, untrained_loss):
    """Warn of a solution that equation, conditions and observations leave open."""
    fitted, state = solver._fitted, run.final_state
    model, net, problem = fitted.model, fitted.net, fitted.problem
    if isinstance(net, Pieces):  # windows of time go on from an initial condition
        return
    free = determination.free_constants(run.val_loss, net, problem, untrained_loss)
    if free:
        place = problem.domain.bounds.mean(axis=1).round(6).tolist()
        _warn(
            f"Any constant may be added to {_listed(free)}: no residual changes. State "
            f"a value somewhere, such as Condition(lambda u, x: u(x), on=[{place}]), "
            "or name the output in up_to_constant of the problem if the constant does "
            "not matter."
        )
        return
    missing = determination.missing_conditions(model, np.random.RandomState(0))
    small = len(missing) and problem.domain.dim <= determination.MOST_AXES
    if not small or solver._sizes[0] > determination.LARGEST_NETWORK:
        return
    with backend.scope(solver.dtype, solver.device):
        change = determination.largest_free_change(
            model, net, state.batches, run.data.fresh, untrained_loss
        )
    known = any(order is not None for order, _ in missing.values())
    if change > (_FREE if known else _SURELY_FREE):
        _warn(
            f"The solution is not determined: it can change by as much as it is, and "
            f"residuals change by {1 / change:.1g} of those of an untrained network. "
            f"{' '.join(_missing(*entry) for entry in missing.items())}"
        )


def _missing(axis, entry):
    order, ends = entry
    held = f"{len(ends)} hold ({', '.join(ends)})" if ends else "none holds"
    if order is None:
        return f"At the ends of the axis {axis!r}, {held}: state what is missing."
    return (
        f"The equation has {order} derivative{'s' * (order > 1)} along {axis!r} and "
        f"needs as many conditions at the ends of this axis; {held}. State the "
        "missing ones, such as Dirichlet, Neumann or Initial with its order."
    )


def _listed(names):
    return ", ".join(f"the output {name!r}" for name in names)


def _warn(message):
    warnings.warn(message, ConvergenceWarning, stacklevel=level_of_the_user())
