"""The weight of noisy observations versus the equation, estimated in a fit.

Observations have residuals of the variance of their noise; those of the equation can be
as small as the network is accurate. Weighted by the inverses of these variances, the
equation is nearly a constraint, and the noise no longer bends the solution away from
it. With the weight w, both variances are estimated by the mean squares that are left,
and w becomes their ratio: the loss of the equation is then that of the observations.

- The weight changes where the loss has settled: before that, a large misfit says
  nothing about noise.
- It never rises, so that losses on fresh points before and after a change compare: the
  same network has a lower one after.
- It is at most one. Exact observations have residuals as small as those of the
  equation, and keep that weight.
"""

import math

import numpy as np

LARGEST, SMALLEST = 1.0, 1e-6
_LARGEST_FALL = 100.0  # of the weight, at once
_LEAST_FALL = 1.5  # below which it stays
_PATIENCE, _FALL = 8, 0.5  # iterations, and the fall of a loss that has not settled


def next_weight(weight, class_losses, fresh_losses):
    """Return the weight for the next iterations.

    Parameters
    ----------
    weight : float
    class_losses : array of shape (n_classes,)
        Losses of the classes; that of the observations, with their weight, is last.
    fresh_losses : sequence of float
        Losses on fresh points in the iterations since the last change.
    """
    if not has_settled(fresh_losses) or not np.isfinite(class_losses).all():
        return weight
    equation, misfit = float(np.sum(class_losses[:-1])), float(class_losses[-1])
    if not misfit > 0:
        return weight
    ratio = weight * equation / misfit
    new = max(ratio, weight / _LARGEST_FALL, SMALLEST)
    return new if _LEAST_FALL * new < weight else weight


def has_settled(losses):
    """Whether the last iterations have not lowered a loss by half."""
    if len(losses) <= _PATIENCE:
        return False
    return min(losses) > _FALL * min(losses[:-_PATIENCE])


def reweighted(batches, factor):
    """The batches with the weight of the observations, the last ones, multiplied."""
    *others, data = batches
    return (*others, data._replace(scale=data.scale * math.sqrt(factor)))
