"""The loop that makes a Gauss-Newton step safe.

A step of the quadratic model is tried; the actual reduction of the objective is
compared with the predicted one; the step is accepted if the objective falls, and the
ratio of the two reductions, the gain ratio, adapts the damping or the trust region. The
methods say what a step is and what it costs to try one; this loop is the same for all.
"""

from typing import Any, NamedTuple

from sklearn_gn.arrays.libraries import library_of, namespace


def nielsen_shift(shift, gain_ratio):
    """Shift after an accepted step, at most three times smaller.

    H. B. Nielsen, "Damping parameter in Marquardt's method", IMM-REP-1999-05.
    """
    xp = namespace((shift, gain_ratio))
    bounded = xp.clip(gain_ratio, -1.0, 1.0)  # beyond these it would only overflow
    return shift * xp.maximum(1 / 3, 1 - (2 * bounded - 1) ** 3)


class Nielsen(NamedTuple):
    """A shift by Nielsen's rule, which rejections in a row raise ever faster."""

    value: Any
    growth: Any

    @classmethod
    def start(cls, largest, share=1e-3):
        """Begin with a share of the largest eigenvalue, or diagonal element."""
        return cls(share * largest, 2 * namespace(largest).ones_like(largest))

    def update(self, gain_ratio, _):
        """Shift after a step of the given gain ratio; at most zero means rejected."""
        where = namespace((self.value, gain_ratio)).where
        good = gain_ratio > 0  # False for NaN
        shrunk = nielsen_shift(self.value, gain_ratio)
        return Nielsen(
            where(good, shrunk, self.value * self.growth),
            where(good, 2.0, 2 * self.growth),
        )


class Damping(NamedTuple):
    """A shift that is raised where a step fails; or a fixed one, with shorter steps."""

    shift: float
    fixed: bool
    share: float = 1.0  # of the step

    def update(self, gain_ratio, _):
        """Shift, or share, after a step of the given gain ratio."""
        if gain_ratio > 0:
            return self._replace(shift=float(nielsen_shift(self.shift, gain_ratio)))
        if self.fixed:
            return self._replace(share=self.share / 2)
        return self._replace(shift=4 * self.shift)


class TrustRadius(NamedTuple):
    """A trust radius; where the shift is fixed, the share of the step."""

    radius: float  # NaN before the first step
    fixed: bool
    share: float = 1.0

    def update(self, gain_ratio, step):
        """Radius and share after a step, which has a length and the radius it took."""
        if gain_ratio > 0:
            return self._replace(radius=float(step.radius))
        radius = min(float(step.radius), float(step.length)) / 2
        return self._replace(radius=radius, share=self.share / 2 if self.fixed else 1.0)


class SearchResult(NamedTuple):
    """The last step that was tried, and what the search has learned."""

    candidate: Any  # what the trial function returned
    accepted: Any  # whether the objective falls
    actual: Any  # reduction of the objective
    predicted: Any  # reduction of the model
    promised: Any  # that of the first step with a finite one
    gain_ratio: Any  # actual over predicted; 0 where none was predicted
    tried: Any  # control of the candidate
    control: Any  # for the next iteration
    n_trials: Any


def search_step(trial, current, control, *, floor=0.0, max_trials=20):
    """Try steps, each more careful than the one before, until the objective falls.

    The search also ends after ``max_trials``, and where the model predicts no more than
    ``floor``: smaller steps cannot change that. ``trial`` maps a control and the number
    of trials before this one to ``(candidate, actual, predicted)``: what the step leads
    to, and the actual and predicted reduction of the objective; an infinite one means
    that there is no step yet. ``control.update(gain_ratio, candidate)`` is the next
    control, a rule of this module. ``current`` is what there is without a step, of the
    structure of a candidate. Returns the :class:`SearchResult`.
    """
    library = library_of(control)
    xp = library.xp

    def attempt(result):
        candidate, actual, predicted = trial(result.control, result.n_trials)
        usable = predicted > 0
        ratio = xp.where(usable, actual / xp.where(usable, predicted, 1), 0)
        return SearchResult(
            candidate=candidate,
            accepted=actual > 0,
            actual=actual,
            predicted=predicted,
            promised=xp.where(xp.isinf(result.promised), predicted, result.promised),
            gain_ratio=ratio,
            tried=result.control,
            control=result.control.update(ratio, candidate),
            n_trials=result.n_trials + 1,
        )

    def unfinished(result):
        more = (result.predicted > floor) & (result.n_trials < max_trials)
        return (result.n_trials == 0) | xp.logical_not(result.accepted) & more

    zero = xp.zeros_like(control[0])
    start = SearchResult(
        candidate=current,
        accepted=xp.bool_(False),
        actual=zero,
        predicted=zero + xp.inf,
        promised=zero + xp.inf,
        gain_ratio=zero,
        tried=control,
        control=control,
        n_trials=xp.int32(0),
    )
    return library.while_loop(unfinished, attempt, start)
