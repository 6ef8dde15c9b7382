"""Whether the estimated error says that a network has to grow, or need not."""

import math

import numpy as np

from sklearn_gn.pinn import growth
from sklearn_gn.pinn.error_estimate import relative_error_estimate
from sklearn_gn.pinn.solved import WELL_SOLVED_LOSS

# Estimated relative error beyond which a network that solves the equation still grows,
# and the one below which it no longer does.
_LARGE_ERROR, _SMALL_ERROR = 1e-4, 1e-7


def has_large_error(points, state, settings):
    """Whether the estimated error is large, and there is time for a larger network."""
    rules = settings.growth
    if not growth.may_go_on(state.level, rules, state.net, state.steady_seconds):
        return False
    return _estimated_error(points, state, settings) > _LARGE_ERROR


def is_accurate(points, state, settings, level, fresh):
    """Whether a network that is about to grow has a small error already.

    A larger network takes several times as long as all before, and most of its digits
    are of no use.
    """
    if level is None or level.next is None or settings.tol == 0:
        return False
    if fresh > WELL_SOLVED_LOSS * state.first_fresh:
        return False
    return _estimated_error(points, state, settings) <= _SMALL_ERROR


def _estimated_error(points, state, settings):
    """Estimate of the relative error; NaN where it does not tell.

    That is where observations have noise, or there are unknowns.
    """
    model = settings.models[-1]
    if points.data is not None or model.problem.unknown or settings.dtype != np.float64:
        return math.nan
    return relative_error_estimate(model, state.net, state.batches, points.fresh)
