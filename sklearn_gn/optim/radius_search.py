r"""A trust region for steps that take a factorisation each: the longest trusted one.

Of several radii the longest step is taken whose predicted reduction is achieved. The
step of a radius R is the damped step of the shift lambda for which ``|v(lambda)| = R``.
Moré and Sorensen ("Computing a trust region step", SIAM Journal on Scientific and
Statistical Computing, 1983) find that shift by Newton's method, with a factorisation
for every shift tried. Here one suffices for most radii: the shift is kept from
iteration to iteration, and moved to the next radius by the derivative of the length;
and the radius of a candidate is the length that it has, whatever was aimed at. Its gain
ratio says which length to try next: one minus the ratio grows about like the fifth
power of the length where the step is trusted, and like the third beyond (medians of the
default steps of PINNSolver on several problems).

The method says what a candidate is: ``evaluate(shift)`` returns a NamedTuple with
``length``, ``loss``, ``gain_ratio``, ``trusted``, ``shift``, ``inner_iterations`` and
``decay``, minus the derivative of log length by log shift. Its length is not finite
where there is no factor.
"""

import math
from typing import NamedTuple

import numpy as np

_RADII = 12  # at most, in an iteration
_SHORTEST, _LONGEST = 1 / 8, 5.0  # radii tried, relative to the last one; the first
# is also what is left of it where no step lowers the loss
_AIM = 0.2  # gain ratio that the next radius is to have
_HIGH = 0.7  # from which a longer step is tried
_GAP = 1.4  # of a trusted and a longer step, up to which none between is tried
_POWER, _POWER_BEYOND = 5.0, 3.0  # of the length, with which the gain ratio falls
# From one radius to the next, at most and at least; a trial whose length differs more
# from its radius is repeated.
_LONGER, _SHORTER = 1.5, 0.8
_SHRINK = 0.5  # of the radius, where no step is trusted
_TRIALS = 5  # at most, for one radius
_RAISE = 16.0  # of the shift, where a factorisation fails
_LARGEST_CHANGE = 100.0  # of the shift from one factor to the next
_FIRST_SHIFT = 1e-3  # relative to the largest diagonal element of the Gramian


class Region(NamedTuple):
    """What is remembered from one iteration to the next."""

    radius: np.ndarray
    shift: np.ndarray  # expected to lead to the first radius tried; NaN: not known


def longest_trusted(shifts, region, lowest):
    """Find the longest step whose predicted reduction is achieved, and a new region.

    From the last radius on, longer ones are tried while the gain ratio is high, or
    shorter ones until a step is trusted, and radii between where these are far apart.
    If no step is trusted, the one with the least loss is taken; None if none has less
    than ``lowest``.
    """
    shifts.shift = max(shifts.shift, shifts.floor)
    radius, best = float(region.radius), None
    target, longest_trusted, shortest_untrusted = radius, 0.0, math.inf
    for _ in range(_RADII):
        within = _SHORTEST * radius <= target <= _LONGEST * radius
        found = shifts.trial_of_length(target) if within else None
        if found is None:
            break
        length, loss = float(found.length), float(found.loss)
        trusted, gain = bool(found.trusted), float(found.gain_ratio)
        if trusted or (not longest_trusted and loss < lowest):
            best, lowest = found, loss
        if trusted:
            longest_trusted = max(length, longest_trusted)
        else:
            shortest_untrusted = min(length, shortest_untrusted)
        at_floor = not shifts.shift > shifts.floor  # no step is longer
        if longest_trusted and (float(best.gain_ratio) < _HIGH or at_floor):
            break
        # The gain ratio says which length is to be tried next.
        missing = (1 - _AIM) / max(1 - gain, 1e-3) if math.isfinite(gain) else 0.0
        power, most = (_POWER, _LONGER) if trusted else (_POWER_BEYOND, _SHORTER)
        ratio = max(missing ** (1 / power), 1.0 if trusted else _SHORTEST)
        target = length * min(ratio, most)
        if 0 < longest_trusted and shortest_untrusted < math.inf:
            if shortest_untrusted < _GAP * longest_trusted:
                break
            target = math.sqrt(longest_trusted * shortest_untrusted)
        shifts.aim_at(target, found)
    if longest_trusted:
        radius, shift = float(best.length), best.shift
    else:
        radius, shift = radius * (_SHORTEST if best is None else _SHRINK), shifts.shift
    dtype = region.radius.dtype
    return best, Region(np.asarray(radius, dtype), np.asarray(shift, dtype))


class Shifts:
    """Moré and Sorensen's iteration for the shift that belongs to a length.

    ``evaluate`` makes the candidate of a shift, ``floor`` is the shift at rounding
    level, ``largest`` the largest diagonal element; a first ``shift`` of NaN is not
    known.
    """

    def __init__(self, evaluate, shift, floor, largest):
        self.evaluate, self.dtype = evaluate, floor.dtype.type
        self.floor, self.largest = float(floor), float(largest)
        self.inner_iterations = 0
        if not math.isfinite(shift):
            shift = _FIRST_SHIFT * self.largest
        self.shift = float(shift)

    def trial_of_length(self, length):
        """The candidate of about this length; None without a factor."""
        for _ in range(_TRIALS):
            found = self.trial()
            if found is None:
                return None
            size = float(found.length)
            long = size > _LONGER * length
            short = size < length / _LONGER and bool(found.trusted)
            if not long and not (short and self.shift > self.floor):
                break
            self.aim_at(length, found)
        return found

    def aim_at(self, length, found):
        """Move the shift of a candidate towards a length.

        To the right Newton's method for ``1/|v(lambda)|``, which does not overshoot; to
        the left, where it may leave the positive numbers, for the logarithms.
        """
        size = float(found.length)
        if size > 0 and length > 0:
            decay = min(max(float(found.decay), float(np.finfo(float).eps)), 1.0)
            ratio = size / length
            change = 1 + (ratio - 1) / decay if ratio > 1 else ratio ** (1 / decay)
            change = min(max(change, 1 / _LARGEST_CHANGE), _LARGEST_CHANGE)
            self.shift = max(float(found.shift) * change, self.floor)

    def trial(self):
        """The candidate of the shift, or of a larger one if the factorisation fails."""
        while True:
            found = self.evaluate(self.dtype(self.shift))
            self.inner_iterations += max(int(found.inner_iterations), 1)
            if math.isfinite(float(found.length)):
                return found
            if not self.shift < self.largest:  # rounding errors are smaller
                return None
            self.shift = self.floor = _RAISE * max(self.shift, self.floor)
