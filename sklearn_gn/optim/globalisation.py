"""The loop that makes a damped Gauss-Newton step safe.

A step of the quadratic model is tried; the actual reduction of the objective is
compared with the predicted one; the step is accepted if the objective falls, and the
ratio of the two reductions, the gain ratio, adapts the damping. The methods say what a
step is and what it costs to try one; this loop is the same for all of them.
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
    """A shift by Nielsen's rule.

    Every further rejection in a row multiplies it by twice the factor of the one
    before.
    """

    value: Any
    growth: Any

    @classmethod
    def start(cls, largest, share=1e-3):
        """Begin with a share of the largest eigenvalue, or diagonal element."""
        return cls(share * largest, 2 * namespace(largest).ones_like(largest))

    def update(self, gain_ratio):
        """Shift after a step of the given gain ratio; at most zero means rejected."""
        where = namespace((self.value, gain_ratio)).where
        good = gain_ratio > 0  # False for NaN
        shrunk = nielsen_shift(self.value, gain_ratio)
        return Nielsen(
            where(good, shrunk, self.value * self.growth),
            where(good, 2.0, 2 * self.growth),
        )


class SearchResult(NamedTuple):
    """The last step that was tried, and what the search has learned."""

    candidate: Any  # what the trial function returned
    accepted: Any  # whether the objective falls
    actual: Any  # reduction of the objective
    predicted: Any  # reduction of the model
    gain_ratio: Any  # actual over predicted; 0 where none was predicted
    shift: Any  # that of the candidate
    damping: Nielsen  # for the next iteration
    n_trials: Any


def search_damping(trial, current, damping, *, max_trials=20):
    """Try steps of increasing damping until one of them lowers the objective.

    The search also ends after ``max_trials``, and where the model predicts no
    reduction, since more damping cannot change that. ``trial`` maps a shift and the
    number of trials before this one to ``(candidate, actual, predicted)``: what the
    step leads to, and the actual and predicted reduction of the objective; the number
    serves steps that are shortened at a fixed shift. ``current`` is what there is
    without a step, of the structure of a candidate. Returns the :class:`SearchResult`.
    """
    library = library_of(damping)
    xp = library.xp

    def attempt(result):
        shift = result.damping.value
        candidate, actual, predicted = trial(shift, result.n_trials)
        usable = predicted > 0
        ratio = xp.where(usable, actual / xp.where(usable, predicted, 1), 0)
        return SearchResult(
            candidate=candidate,
            accepted=actual > 0,
            actual=actual,
            predicted=predicted,
            gain_ratio=ratio,
            shift=shift,
            damping=result.damping.update(ratio),
            n_trials=result.n_trials + 1,
        )

    def unfinished(result):
        more = result.n_trials < max_trials
        return xp.logical_not(result.accepted) & (result.predicted > 0) & more

    zero = xp.zeros_like(damping.value)
    start = SearchResult(
        candidate=current,
        accepted=xp.bool_(False),
        actual=zero,
        predicted=zero + 1,
        gain_ratio=zero,
        shift=zero,
        damping=damping,
        n_trials=xp.int32(0),
    )
    if max_trials == 1:
        return attempt(start)
    return library.while_loop(unfinished, attempt, start)
