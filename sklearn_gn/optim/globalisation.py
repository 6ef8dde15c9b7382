"""The loop that makes a damped Gauss-Newton step safe.

A step of the quadratic model is tried; the reduction of the objective is compared with
the one that the model predicts; the step is accepted if the objective falls, and the
ratio of the two reductions, the gain ratio, adapts the damping. The methods say what a
step is and what it costs to try one; this loop is the same for all of them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class SearchResult(NamedTuple):
    """The last step that was tried, and what the search has learned."""

    candidate: Any  # what the trial function returned
    accepted: jnp.ndarray  # whether the objective falls
    actual: jnp.ndarray  # reduction of the objective
    predicted: jnp.ndarray  # reduction of the model
    gain_ratio: jnp.ndarray  # actual over predicted; 0 where none was predicted
    shift: jnp.ndarray  # that of the candidate
    damping: Any  # for the next iteration
    n_trials: jnp.ndarray

    def accepted_or(self, current):
        """Return the candidate if it was accepted, else ``current``."""
        return jax.tree.map(
            lambda new, old: jnp.where(self.accepted, new, old), self.candidate, current
        )


def search_damping(trial, current, damping, *, fixed=None, max_trials):
    """Try steps of increasing damping until one of them lowers the objective.

    To be called inside a compiled function. The search also ends where the model
    predicts no reduction, since more damping cannot change that.

    Parameters
    ----------
    trial : callable
        Maps a shift and the number of trials before this one to ``(candidate, actual,
        predicted)``: what the step leads to, and the actual and predicted reduction of
        the objective. The number serves steps that are shortened at a fixed shift.
    current : tree of arrays
        What there is without a step, of the structure of a candidate.
    damping : Nielsen, or the like
        State with the shift as ``value``, and ``update(gain_ratio)`` to the next state.
    fixed : scalar or None, default=None
        Shift of all trials in place of ``damping.value``.
    max_trials : int
        Largest number of steps tried.

    Returns
    -------
    SearchResult
    """

    def attempt(result):
        shift = result.damping.value if fixed is None else fixed
        candidate, actual, predicted = trial(shift, result.n_trials)
        usable = predicted > 0
        ratio = jnp.where(usable, actual / jnp.where(usable, predicted, 1), 0)
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
        return ~result.accepted & (result.predicted > 0) & more

    zero = jnp.zeros_like(damping.value)
    start = SearchResult(
        candidate=current,
        accepted=jnp.array(False),
        actual=zero,
        predicted=zero + 1,
        gain_ratio=zero,
        shift=zero,
        damping=damping,
        n_trials=jnp.int32(0),
    )
    if max_trials == 1:
        return attempt(start)
    return lax.while_loop(unfinished, attempt, start)
