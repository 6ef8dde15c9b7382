r"""The trust region of D-NGD, on Cholesky factors.

Of several radii the longest step is taken whose predicted reduction is achieved. The
step of a radius R minimises ``1/2 |r + J v|^2`` subject to ``|v| <= R``: it is the
damped step of the shift lambda for which ``|v(lambda)| = R``. Moré and Sorensen
("Computing a trust region step", SIAM Journal on Scientific and Statistical Computing,
1983) find that shift by Newton's method, with a factorisation for every shift tried.
Here one factorisation suffices for most radii:

- the shift is kept from iteration to iteration, and for the next radius it is moved by
  the derivative of the length;
- the radius of a candidate is the length that it has, which need not be the one that
  was aimed at;
- the gain ratio of a candidate says which length to try next. It falls steeply: one
  minus the ratio grows about like the fifth power of the length where the step is
  trusted, and like the third beyond (medians of the default steps on several problems).

The loop over radii runs in Python on :func:`trial`: a factor with its step,
acceleration, correction and loss, compiled or, where they are small, in NumPy. The
correction takes as long as half of a factor of 500 unknowns, and widens the radii that
are trusted: fits of many problems take half as many iterations.
"""

import math
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.libraries import in_either_library, namespace
from sklearn_gn.linalg.factors import factor
from sklearn_gn.linalg.jacobian import without_dense
from sklearn_gn.pinn.damped_step import (
    Candidate,
    Linearisation,
    LocalProblem,
    accelerated_step,
    by_difference,
    by_factor,
    candidate,
    corrected_candidate,
    gradient_figures,
    linearise,
    no_step,
    right_hand_side,
    shifted_solution,
    small_gramian,
)
from sklearn_gn.pinn.residuals import rows_of_jacobian

_RADII = 12  # at most, in an iteration
_SHORTEST, _LONGEST = 1 / 8, 5.0  # radii tried, relative to the last one
_AIM = 0.2  # gain ratio that the next radius is to have
_HIGH = 0.7  # from which a longer step is tried
_GAP = 1.4  # of a trusted and a longer step, up to which none between is tried
_POWER, _POWER_BEYOND = 5.0, 3.0  # of the length, with which the gain ratio falls
_LONGER, _SHORTER = 1.5, 0.8  # at most and at least, from one radius to the next
_SHRINK, _COLLAPSE = 0.5, 0.125  # where no step is trusted; where none lowers the loss
_TOLERANCE = 1.5  # length versus radius, beyond which a trial is repeated
_TRIALS = 5  # at most, for one radius
_RETRIES, _RAISE = 10, 16.0  # of a factorisation that fails, with a larger shift
_LARGEST_CHANGE = 100.0  # of the shift from one factor to the next
_LEAST_DECAY = 0.02
_FIRST_SHIFT = 1e-3  # relative to the largest diagonal element of the Gramian
_ROUNDING = 1e-6  # relative change of a step by it, above which the step is refined


class Region(NamedTuple):
    """What is remembered from one iteration to the next."""

    radius: np.ndarray
    shift: np.ndarray  # expected to lead to the first radius tried; NaN: not known


class Quadratic(NamedTuple):
    """The quadratic model of the loss."""

    linear: Linearisation
    matrix: jnp.ndarray  # the smaller Gramian
    right: jnp.ndarray  # what it is solved for
    largest: jnp.ndarray  # diagonal element
    floor: jnp.ndarray  # shift at rounding level
    start: Candidate  # the step of length zero
    gradient_norm: jnp.ndarray
    gradient_decrease: jnp.ndarray


class Trial(NamedTuple):
    """What is found of a shift."""

    candidate: Candidate
    decay: jnp.ndarray  # -d log(length) / d log(shift), between 0 and 1


def search(model, net, batches, quadratic, region, *, geodesic):
    """Find the longest step whose predicted reduction is achieved, and a new region.

    From the last radius on, longer ones are tried while the gain ratio is high, or
    shorter ones until a step is trusted, and radii between where these are far apart.
    If no step is trusted, the one with the least loss is taken, or that of length zero.
    """
    evaluate = partial(
        trial,
        *(model, net, batches, quadratic.linear, quadratic.matrix),
        *(quadratic.right, quadratic.floor),
        geodesic=geodesic,
    )
    shifts = _Shifts(evaluate, quadratic, float(region.shift))
    radius, best = float(region.radius), quadratic.start
    target, longest_trusted, shortest_untrusted = radius, 0.0, math.inf
    for _ in range(_RADII):
        within = _SHORTEST * radius <= target <= _LONGEST * radius
        found = shifts.trial_of_length(target) if within else None
        if found is None:
            break
        new, length = found.candidate, float(found.candidate.length)
        trusted, gain = bool(new.trusted), float(new.gain_ratio)
        if trusted or (not best.trusted and float(new.loss) < float(best.loss)):
            best = new
        if trusted:
            longest_trusted = max(length, longest_trusted)
        else:
            shortest_untrusted = min(length, shortest_untrusted)
        if best.trusted and (float(best.gain_ratio) < _HIGH or shifts.at_floor):
            break
        target = length * _length_ratio(gain, trusted)
        if 0 < longest_trusted and shortest_untrusted < math.inf:
            if shortest_untrusted < _GAP * longest_trusted:
                break
            target = math.sqrt(longest_trusted * shortest_untrusted)
        shifts.aim_at(target, found)
    best = best._replace(inner_iterations=np.int32(shifts.n_factors))
    if best.trusted:
        radius, shift = float(best.length), best.shift
    else:
        falls = float(best.loss) < float(quadratic.start.loss)
        radius, shift = radius * (_SHRINK if falls else _COLLAPSE), shifts.shift
    dtype = region.radius.dtype
    return best, Region(np.asarray(radius, dtype), np.asarray(shift, dtype))


def _length_ratio(gain, trusted):
    """The length to try next, relative to that of a step with this gain ratio."""
    if not math.isfinite(gain):
        return _SHORTEST
    missing = (1 - _AIM) / max(1 - gain, 1e-3)
    if trusted:
        return min(max(missing ** (1 / _POWER), 1.0), _LONGER)
    return min(max(missing ** (1 / _POWER_BEYOND), _SHORTEST), _SHORTER)


class _Shifts:
    """Moré and Sorensen's iteration for the shift that belongs to a length."""

    def __init__(self, evaluate, quadratic, shift):
        self.evaluate, self.dtype = evaluate, quadratic.matrix.dtype.type
        self.floor, self.n_factors = float(quadratic.floor), 0
        if not math.isfinite(shift):
            shift = _FIRST_SHIFT * float(quadratic.largest)
        self.shift = max(shift, self.floor)

    @property
    def at_floor(self):
        """Whether the shift is at rounding level: no step is longer."""
        return not self.shift > self.floor

    def trial_of_length(self, length):
        """The trial of a step of about this length; None without a factor."""
        for _ in range(_TRIALS):
            found = self._trial()
            if found is None:
                return None
            new = found.candidate
            size = float(new.length)
            long = size > _TOLERANCE * length
            short = size < length / _TOLERANCE and bool(new.trusted)
            if not long and (not short or self.at_floor):
                break
            self.aim_at(length, found)
        return found

    def aim_at(self, length, found):
        """Move the shift towards a length, from that of a trial."""
        self.shift = max(_moved_shift(found, length), self.floor)

    def _trial(self):
        """The trial of the shift, or of a larger one where the factorisation fails."""
        for _ in range(_RETRIES):
            self.n_factors += 1
            found = self.evaluate(self.dtype(self.shift))
            if math.isfinite(float(found.candidate.length)):
                return found
            self.shift = self.floor = _RAISE * self.shift
        return None


def _moved_shift(found, length):
    """The shift expected to lead to another length.

    To the right Newton's method for ``1/|v(lambda)|``, which does not overshoot; to the
    left, where it may leave the positive numbers, for the logarithms.
    """
    shift, size = float(found.candidate.shift), float(found.candidate.length)
    if not size > 0 or not length > 0:
        return shift
    decay = min(max(float(found.decay), _LEAST_DECAY), 1.0)
    ratio = size / length
    change = 1 + (ratio - 1) / decay if ratio > 1 else ratio ** (1 / decay)
    return shift * min(max(change, 1 / _LARGEST_CHANGE), _LARGEST_CHANGE)


# --- compiled parts ------------------------------------------------------------------


def _rows_of_model(model, net, batches, r, parts, previous_step, **options):
    """Which arrays of the quadratic model have rows: those of the residuals."""
    rows = rows_of_jacobian(model, net, batches, None)[2]
    others = (False,) * (len(Quadratic._fields) - 1)
    return Quadratic(Linearisation(True, rows, True, False), *others)


def _counted_of_model(model, net, batches, r, parts, previous_step, **options):
    return net, batches, r, without_dense(parts)


def _counted_of_trial(model, net, batches, linear, matrix, *rest, **options):
    return net, batches, matrix, linear._replace(parts=without_dense(linear.parts))


@partial(
    in_either_library,
    rows_out=_rows_of_model,
    deciding=lambda model, net, batches, r, *rest, **options: r,
    static=("model",),
    largest=2**17,
    medium=2**24,
    counted=_counted_of_model,
    static_argnames=("model", "momentum", "jacobi"),
)
def quadratic_model(model, net, batches, r, parts, previous_step, *, momentum, jacobi):
    """The Gramian, and what else the steps of all radii have in common."""
    linear = linearise(r, parts, previous_step, momentum=momentum, jacobi=jacobi)
    matrix = small_gramian(linear, net)
    right = right_hand_side(linear, net, linear.target)
    local = LocalProblem(model, net, batches, linear, geodesic=False)
    # The trace bounds the largest eigenvalue.
    floor = np.finfo(matrix.dtype).eps * matrix.trace()
    largest = matrix.diagonal().max()
    figures = gradient_figures(r, parts, net)
    return Quadratic(linear, matrix, right, largest, floor, no_step(local), *figures)


@partial(
    in_either_library,
    deciding=lambda model, net, batches, linear, matrix, *rest, **options: (
        linear.r,
        matrix,
    ),
    static=("model",),
    largest=2**19,
    medium=2**24,
    counted=_counted_of_trial,
    static_argnames=("model", "geodesic"),
)
def trial(model, net, batches, linear, matrix, right, floor, shift, *, geodesic):
    """The step of a shift and its effect on the loss; NaN where there is no factor."""
    found = factor(matrix, shift)
    refine = floor > _ROUNDING * shift
    step, slope = shifted_solution(linear, net, found, shift, right, refine)
    local = LocalProblem(model, net, batches, linear, geodesic)
    solve = by_factor(linear, net, found, refine)
    damped = accelerated_step(local, solve, shift, step, 1, by_difference)
    if geodesic:
        new = corrected_candidate(local, solve, damped, shift)
    else:
        new = candidate(local, damped, shift)
    square = new.length**2
    square = namespace(square).where(square > 0, square, 1)
    return Trial(new, shift * slope / square)
