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
- It changes only while the misfit is less than half of the observations' variance:
  a larger one says that the coefficients are wrong, not that the noise is large.
- It begins with one. Exact observations have residuals as small as those of the
  equation, and keep that weight.
"""

import math

import numpy as np

SMALLEST = 1e-6
_LARGEST_FALL = 100.0  # of the weight, at once
_LEAST_FALL = 1.5  # below which it stays
_LARGEST_NOISE = 0.5  # of the variance of the observations
_PATIENCE, _FALL = 8, 0.9  # iterations, and the fall of a loss that has not settled


def next_weight(weight, class_losses, spread_loss=math.inf):
    """Return the weight for the next iterations of a fit whose loss has settled.

    Parameters
    ----------
    weight : float
    class_losses : array of shape (n_classes,)
        Losses of the classes; that of the observations, with their weight, is last.
    spread_loss : float, default=inf
        Loss of the observations if their means are all that is known of them.
    """
    equation, misfit = float(np.sum(class_losses[:-1])), float(class_losses[-1])
    if not (misfit > 0 and math.isfinite(equation + misfit)):
        return weight
    if not is_noise(misfit, spread_loss):
        return weight
    new = max(weight * equation / misfit, weight / _LARGEST_FALL, SMALLEST)
    return new if _LEAST_FALL * new < weight else weight


def is_noise(misfit, spread_loss):
    """Whether a misfit may be noise: most of the observations' spread is explained.

    If it is not, the solution, or its coefficients, are wrong, and observations of less
    weight would not correct them.
    """
    return misfit <= _LARGEST_NOISE * spread_loss


def spread_loss(data):
    """Loss of observations from the means of their columns, for the weight one.

    Parameters
    ----------
    data : Batch
    """
    square, y = np.float64(data.scale) ** 2, np.float64(data.data)
    there = ~np.isnan(y)
    weights, y = square[:, None] * there, np.where(there, y, 0)
    totals = np.maximum(np.sum(weights, axis=0), np.finfo(float).tiny)
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.sum(weights * y, axis=0) / totals
        spread = 0.5 * float(np.sum(weights * (y - means) ** 2))
    return spread if math.isfinite(spread) else math.inf


def has_settled(losses):
    """Whether the last iterations have not lowered the loss on fresh points by a tenth.

    Parameters
    ----------
    losses : sequence of float
        Those of the iterations since the weight has changed.
    """
    if len(losses) <= _PATIENCE:
        return False
    return min(losses) > _FALL * min(losses[:-_PATIENCE])


def reweighted(batches, factor):
    """The batches with the weight of the observations, the last ones, multiplied."""
    *others, data = batches
    return (*others, data._replace(scale=data.scale * math.sqrt(factor)))
