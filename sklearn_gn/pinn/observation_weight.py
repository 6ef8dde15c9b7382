"""The weight of noisy observations versus the equation, estimated in a fit.

Observations have residuals of the variance of their noise; the equation's can be as
small as the network is accurate. Where both weigh the same, the network follows the
noise, away from the equation. Let w be the weight of the observations, w M their loss,
and E the loss of the equation and its conditions. Two parts of E matter:

- the deviations that follow the noise. The share E / (w M) is 2 / n times the number of
  parameters that are spent on the noise of n observations. It falls like w where these
  are few; where they are many, the solution is a smoothing spline, and the share falls
  like the 2 m-th root of w for equations of order m;
- the error that the network has without noise too. It depends on the coefficients (less
  diffusion is harder to follow) and pulls them to where it is small, against a pull of
  the observations that falls like w: its share rises like 1 / w.

So the weight begins with one, and falls until hardly a parameter is spent on the noise
and the equation is solved, as long as the share of E falls with it. It changes where
the losses have settled, and only while the misfit is less than half of the
observations' variance: a larger one says that the coefficients are wrong. The share may
have risen threefold, as E is found too small where it is still growing. The weight
never rises, so that losses on fresh points compare. Exact observations have residuals
as small as the equation's, and keep the weight one. Where outputs have different noise,
each misfit is divided by its output's standard deviation whenever the weight changes,
and again until these stay. Unknown functions follow the noise at no loss of the
equation: with them the weight falls until E is w M, the ratio of the mean squares.
"""

import math
from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.pinn.pieces import class_residuals
from sklearn_gn.pinn.windows import is_flat

_SMALLEST = 1e-6
_LARGEST_FALL = 10.0  # of the weight, at once
_LEAST_FALL = 1.5  # below which it stays
_RISE_OF_SHARE = 3.0  # of the equation, from its smallest where the weight changed
_SPENT = 0.01  # parameters on the noise, at which the weight stays
_LARGEST_NOISE = 0.5  # of the variance of the observations
_PATIENCE, _FALL = 8, 0.9  # iterations, and the fall in them of a loss not settled


class Weighing(NamedTuple):
    """Where the weight of the observations is, and what was seen since it changed."""

    weight: float = 1.0  # in place of the one of the batches
    next: float = 1.0  # for the next iteration
    waits: bool = False  # whether it is to fall, now or later
    equation: tuple = ()  # lowest fresh loss without the observations, as Level.falls
    share: float = math.inf  # of the equation, at most, to change again
    factors: tuple = ()  # of the misfits of each output; none: ones
    stays: bool = True  # whether the factors were hardly others than those before
    balances: bool = False  # whether they are to be found again

    @property
    def changes(self):
        """Whether the next iteration has another weight, or other factors."""
        return self.balances or self.next != self.weight

    def is_last(self, falls):
        """Whether the weight has reached its last value."""
        if self.weight <= _SMALLEST:
            return True
        return not (self.waits or self.changes) and has_settled(falls)


def with_next_weight(weighing, known, step, fresh, falls, solved):
    """Return the weighing with the weight for the next iteration."""
    weight, noise = weighing.weight, step.class_losses[-1]
    # Between its points an equation holds no better than at them.
    of_equation = np.fmax(np.sum(step.class_losses[:-1]), fresh - noise)
    both = np.array([of_equation, noise])
    lowest = min((of_equation, *weighing.equation[-1:]))
    equation, share = (*weighing.equation, lowest), weighing.share
    waits = next_weight(weight, both, known, solved=solved) != weight
    settled = bool(step.no_progress) or has_settled(falls, equation)
    if settled:
        weight = next_weight(weight, both, known, share, solved)
    if weight != weighing.weight:
        share = min(share, _RISE_OF_SHARE * share_of_equation(both))
    return weighing._replace(
        next=weight,
        waits=waits,
        equation=equation,
        share=share,
        balances=settled and not weighing.stays,
    )


def next_weight(weight, class_losses, known, share_before=math.inf, solved=True):
    """Return the weight for the next iterations of a fit whose loss has settled.

    The class of the observations is last; ``share_before`` is the largest share of an
    equation whose loss has fallen with the weight. If infinite, the weight is what the
    losses ask for.
    """
    share = share_of_equation(class_losses)
    falls = known.has_functions or share < share_before
    if not (falls and is_noise(float(class_losses[-1]), weight * known.spread_loss)):
        return weight
    is_told = solved and not known.has_functions  # by the share how much is spent
    spent = share * known.n / 2 if is_told else math.inf
    fall = min(spent / _SPENT, _LARGEST_FALL, 1 / share)
    falls = fall > _LEAST_FALL and switches.on("pinn.observation_weight")
    return max(weight / fall, _SMALLEST) if falls else weight


def share_of_equation(class_losses):
    """Loss of the equation and its conditions over the observations' loss."""
    equation, misfit = float(np.sum(class_losses[:-1])), float(class_losses[-1])
    if not (misfit > 0 and math.isfinite(equation + misfit)):
        return math.inf
    return max(equation / misfit, np.finfo(float).tiny)


def hides_the_rest(falls, noise, known):
    """Whether all that is left to gain is small compared with the noise.

    If the loss of the equation is 2 s / n times the loss of n observations, its errors
    pull the coefficients by less than the root of 2 s of their standard deviations.
    What further iterations may gain is what the last ones have gained.
    """
    if known.has_functions or len(falls) <= _PATIENCE or not noise > 0:
        return False
    left = max(falls[-1] - noise, falls[-1 - _PATIENCE] - falls[-1])
    return left <= 2 * _LEAST_FALL * _SPENT / known.n * noise


def is_noise(misfit, spread_loss):
    """Whether a misfit may be noise: most of the observations' spread is explained."""
    return misfit <= _LARGEST_NOISE * spread_loss


class Observations(NamedTuple):
    """What is known of the observations before a fit."""

    n: int = 0  # values
    spread_loss: float = math.inf  # loss, with weight one, of the means of the columns
    has_functions: bool = False  # whether outputs without an equation are looked for


def observed(data, n_columns, has_functions=False):
    """Number of observations, and their loss if their means are all that is known."""
    scale, y = (np.asarray(a, float) for a in (data.scale, data.data[:, :n_columns]))
    there = ~np.isnan(y)
    weights, y = scale[:, None] ** 2 * there, np.where(there, y, 0)
    totals = np.maximum(np.sum(weights, axis=0), np.finfo(float).tiny)
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.sum(weights * y, axis=0) / totals
        spread = 0.5 * float(np.sum(weights * (y - means) ** 2))
    n = int(np.count_nonzero(weights))
    return Observations(n, spread if math.isfinite(spread) else math.inf, has_functions)


def has_settled(falls, equation=()):
    """Whether the losses on fresh points, and the equation's, have stopped to fall."""
    falls_still = equation and not is_flat(equation, _PATIENCE)
    return is_flat(falls, _PATIENCE, _FALL) and not falls_still


def changed(weighing, known, model, net, batches):
    """The weighing of the next iteration, and the batches with it."""
    data, kind = batches[-1], model.classes[-1]
    factors, stays, k = weighing.factors, True, kind.n_outputs
    if data.data.shape[1] > k and not known.has_functions:
        before = np.array(factors or (1.0,) * k)
        squares = (class_residuals(model, kind, net, data).astype(float) / before) ** 2
        scale = np.asarray(data.scale, float)[:, None]
        there = ~np.isnan(data.data[:, :k]) * scale**2
        variances = np.sum(there * squares, axis=0) / np.sum(there, axis=0)
        variances = np.maximum(variances, _SMALLEST * variances.max())
        found = np.sqrt(variances.mean() / variances)
        stays = bool(np.abs(np.log(found / before)).max() < math.log(_LEAST_FALL))
        factors = tuple(found.tolist())
    # With other factors the equation has another share.
    share = weighing.share if stays else math.inf
    now = Weighing(weighing.next, weighing.next, weighing.waits, share=share)
    now = now._replace(factors=factors, stays=stays)
    return now, weighed(batches, now, weighing.weight)


def weighed(batches, weighing, before=1.0):
    """The batches with the weight of the observations, the last ones, as it is now."""
    if weighing.weight == before and not weighing.factors:
        return batches
    *others, data = batches
    columns = np.array(data.data)
    columns[:, columns.shape[1] - len(weighing.factors) :] = weighing.factors
    scale = data.scale * math.sqrt(weighing.weight / before)
    return (*others, data._replace(data=columns, scale=scale))
