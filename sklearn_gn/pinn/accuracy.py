"""Whether the estimated error says that a network has to grow, or a fit may end."""

import math

import numpy as np

from sklearn_gn.pinn import growth
from sklearn_gn.pinn.error_estimate import relative_error_estimate
from sklearn_gn.pinn.solved import WELL_SOLVED_LOSS

# Estimated relative error beyond which a network that solves the equation still grows,
# and the one below which a fit ends.
_LARGE_ERROR, _SMALL_ERROR = 1e-4, 1e-7


def has_large_error(points, state, settings):
    """Whether the estimated error is large, and there is time for a larger network."""
    rules = settings.growth
    if not growth.may_go_on(state.level, rules, state.net, state.steady_seconds):
        return False
    return _estimated_error(points, state, settings) > _LARGE_ERROR


def ended_if_accurate(points, state, settings, level, fresh):
    """Return the level after an iteration, and whether its fit is accurate enough.

    That is asked where the network is about to grow, and where the loss falls slowly.
    Both take several times as long as all before for digits that are mostly of no use.
    An estimate costs as much as some iterations: after one that is too large, the next
    one is made where the error is small if it falls like the root of the loss.
    """
    if level is None or settings.tol == 0:
        return level, False
    if fresh > WELL_SOLVED_LOSS * state.first_fresh:
        return level, False
    if level.next is None and not (growth.is_slow(level) and fresh <= level.promising):
        return level, False
    error = _estimated_error(points, state, settings)
    if error <= _SMALL_ERROR:
        return growth.accurate_enough(level), True
    promising = 0.0 if math.isnan(error) else fresh * (_SMALL_ERROR / error) ** 2
    return growth.not_accurate_before(level, promising), False


def _estimated_error(points, state, settings):
    """Estimate of the relative error; NaN where it does not tell.

    That is where observations have noise, or there are unknowns.
    """
    model = settings.models[-1]
    if points.data is not None or model.problem.unknown or settings.dtype != np.float64:
        return math.nan
    return relative_error_estimate(model, state.net, state.batches, points.fresh)
