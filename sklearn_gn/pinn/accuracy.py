"""Whether the estimated error says that a network has to grow, or a fit may end."""

import math

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.pinn import growth
from sklearn_gn.pinn.error_estimate import (
    largest_error_estimate,
    relative_error_estimate,
)
from sklearn_gn.pinn.observation_weight import hides_the_rest
from sklearn_gn.pinn.solved import SOLVED_LOSS, WELL_SOLVED_LOSS

# Estimated relative error beyond which a network that solves the equation still grows,
# and the one below which a fit ends.
_LARGE_ERROR, _SMALL_ERROR = 1e-4, 1e-7
# The same end of a fit to observations, which are hardly ever exact to more digits.
_SMALL_ERROR_OF_UNKNOWNS = 1e-5


def has_to_grow(points, state, settings, level, stop):
    """Whether a fit that is about to end needs a larger network, and has the time."""
    rules, seconds = settings.growth, state.steady_seconds
    possible = growth.may_go_on(level, rules, state.net, seconds)
    if not (possible and switches.on("pinn.growth")):
        return False
    if stop == "stalled":
        return growth.lowest_loss(level) <= SOLVED_LOSS * state.first_fresh
    return _estimated_error(points, state, settings) > _LARGE_ERROR


def ended_if_accurate(points, state, settings, level, fresh, noise=0.0):
    """Return the level after an iteration, and whether its fit is accurate enough.

    An estimate costs as much as some iterations, so it is made where the network is
    about to grow or the loss falls slowly; after one that is too large, the next is
    made where the error is small if it falls like the root of the loss.
    """
    if level is None or settings.tol == 0:
        return level, False
    if noise:
        if state.weight_waits or not hides_the_rest(
            state.fresh_losses, noise, settings.observed
        ):
            return level, False
        return growth.accurate_enough(level), True
    is_inverse = points.data is not None
    small = _SMALL_ERROR_OF_UNKNOWNS if is_inverse else _SMALL_ERROR
    reached = SOLVED_LOSS if is_inverse else WELL_SOLVED_LOSS
    if fresh > reached * state.first_fresh:
        return level, False
    if level.next is None and not (growth.is_slow(level) and fresh <= level.promising):
        return level, False
    error = _estimated_error(points, state, settings)
    if error <= small:
        return growth.accurate_enough(level), True
    promising = 0.0 if math.isnan(error) else fresh * (small / error) ** 2
    return growth.not_accurate_before(level, promising), False


def _estimated_error(points, state, settings):
    """Estimate of the (largest) relative error; NaN where observations have noise.

    It is NaN for unknown functions too: observations hardly see their fast parts.
    """
    model, batches = settings.models[-1], state.batches
    if settings.dtype != np.float64:
        return math.nan
    if points.data is None and not model.problem.unknown:
        return relative_error_estimate(model, state.net, batches, points.fresh)
    if points.data is not None and not _are_exact(state, settings):
        return math.nan
    return largest_error_estimate(model, state.net, batches, points.fresh)


def _are_exact(state, settings):
    """Whether the observations have residuals as small as those of the equation."""
    same = state.observation_weight == state.next_observation_weight == 1
    exact = settings.estimates_noise and same and not state.weight_waits
    return exact and not settings.observed.has_functions
