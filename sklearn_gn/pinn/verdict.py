"""Whether a solution is to be trusted, and what a warning says if it is not."""

import math
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn.core.fit_loop import level_of_the_user

_OVERFITTED = 100.0  # fresh over training loss, beyond which a fit warns
_FAR = 10.0  # the same, beyond which points are what a stalled fit lacks
_NEGLECTED = 0.9  # share of a condition in the loss
_LAST, _AS_PREDICTED = 10, 0.5  # iterations; gain ratio of a fit in a minimum
_SOLVED = 1e-6  # of an untrained network's fresh loss, below which it does not


def advice(solver, reason):
    """What a warning says about the reason of the stop."""
    if reason.value != "stalled":
        return reason.advice
    log, cure = solver.convergence_log_, solver._cure_of_overfitting[-1]
    if log["val_loss"][-1] > _FAR * log["loss"][-1]:
        return f"{reason.advice} It holds better at the points of training. {cure}"
    shares = {
        name.removeprefix("loss_"): values[-1] / log["loss"][-1]
        for name, values in log.items()
        if name.startswith("loss_")
    }
    worst = max(shares, key=shares.get)
    if worst not in ("interior", "data") and shares[worst] > _NEGLECTED:
        return (
            f"{reason.advice} {shares[worst]:.0%} of the loss are those of the "
            f"condition {worst!r}: check its values, raise its weight, or state it "
            "by transform."
        )
    if np.median(log["gain_ratio"][-_LAST:]) > _AS_PREDICTED:
        return (
            f"{reason.advice} The network is in a minimum: take a larger one "
            "(hidden_layer_sizes), or activation='sin' for a solution that "
            "oscillates."
        )
    return (
        f"{reason.advice} The fit is stuck: state the problem in units in which "
        "axes and solution are of size one, try another random_state, or begin "
        "with easier problems, by a sequence."
    )


def warn_if_not_solved(solver, untrained_loss):
    """Warn of a solution, and of coefficients, that are not to be trusted."""
    fresh, log = solver.fresh_loss_, solver.convergence_log_
    solved = math.isfinite(untrained_loss) and fresh < _SOLVED * untrained_loss
    far = len(log["loss"]) and log["val_loss"][-1] > _OVERFITTED * log["loss"][-1]
    if far and not solved and solver.stop_reason_ != "stalled":
        warnings.warn(
            f"On fresh points the loss of the network, the best one there, is "
            f"{fresh:.3g}; that of the last one on its points of training is "
            f"{log['loss'][-1]:.3g}. Between these the equation does not hold, and "
            "the solution is not to be trusted. Raise n_interior and n_boundary, "
            "or lower resample.",
            ConvergenceWarning,
            stacklevel=level_of_the_user(),
        )
    vague = [
        name
        for name, value in solver.coefficients_.items()
        if np.any(solver.coefficients_std_[name] > np.abs(value))
    ]
    if vague:
        warnings.warn(
            f"The standard deviations of the coefficients {vague} exceed their "
            "values: the observations do not determine them. Give more "
            "observations, or other places.",
            ConvergenceWarning,
            stacklevel=level_of_the_user(),
        )
