"""Damping rules of D-NGD that adapt a shift: how far to go along the damped steps.

A rule is a function ``rule(local, state, rank)`` of the problem of a step, its own
state (a shift) and the rank of the preconditioner. It returns the best candidate, the
state for the next iteration, and the eigenvalues of the Gramian, ascending, or None
where they are not known. Radii in place of shifts are in ``trust_region``.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.arrays.trees import select
from sklearn_gn.optim.globalisation import Nielsen, search_damping
from sklearn_gn.pinn.damped_step import candidate, damped_step, no_step, solver_for

_N_SHIFTS, _SHIFT_RATIO = 5, 8.0
_HALVINGS = 31  # step sizes 1, 1/2, 1/4, ... of the line search
_RISES = 3  # of them in a row, after which no lower loss is expected
_LOSS_BOUND = 1e-5  # of the damping that follows the loss
_FIRST_SHIFT = {"gain_ratio": 1e-3, "shift_ladder": 1.0}
_RETRIES = 20  # of a factorisation that fails, each with four times the shift


def initial_damping(rule, damping, dtype):
    """Shift of the first step; ``damping`` is that of the rule "fixed"."""
    if rule == "gain_ratio":
        return Nielsen.start(np.asarray(_FIRST_SHIFT[rule], dtype))
    if rule == "shift_ladder":
        return np.asarray(_FIRST_SHIFT[rule], dtype)
    return np.asarray(_LOSS_BOUND if rule == "loss" else damping, dtype)


# --- a trust region without factors ---------------------------------------------------


def shift_ladder(local, state, rank):
    """Try several shifts and take the longest step that achieves what is predicted."""
    linear, net = local.linear, local.net
    solve, values, _ = solver_for(linear, net, rank)
    middle = (_N_SHIFTS - 1) / 2
    scales = _SHIFT_RATIO ** (middle - np.arange(_N_SHIFTS))

    def attempt(scale):
        shift = scale * state
        return candidate(local, damped_step(local, solve, shift), shift)

    zero_step = no_step(local)
    best = longest_trusted(attempt, scales.astype(linear.r.dtype), zero_step)
    lower = best.loss < zero_step.loss
    longer = jnp.where(lower, best.shift, state * _SHIFT_RATIO**3)
    return best, jnp.where(best.trusted, best.shift, longer), values


def longest_trusted(attempt, scales, zero_step):
    """Search for the longest trusted step, from the middle of the ascending scales.

    If none is trusted, the one with the least loss is taken, or that of length zero.
    """
    scales = jnp.asarray(scales)
    n = scales.shape[0]

    def unfinished(carry):
        k, _, alive, *_ = carry
        return alive & (k >= 0) & (k < n)

    def go_on(carry):
        k, direction, _, best, inner = carry
        new = attempt(scales[k])
        take = new.trusted | (~best.trusted & (new.loss < best.loss))
        best = select(take, new, best)
        turn = jnp.where(new.trusted, jnp.int32(1), jnp.int32(-1))
        direction = jnp.where(direction == 0, turn, direction)
        alive = new.trusted == (direction > 0)
        return k + direction, direction, alive, best, inner + new.inner_iterations

    zero = jnp.int32(0)
    start = jnp.int32(n // 2), zero, jnp.array(True), zero_step, zero
    *_, best, inner = lax.while_loop(unfinished, go_on, start)
    return best._replace(inner_iterations=inner)


# --- gain ratio ----------------------------------------------------------------------


def gain_ratio(local, state, rank):
    """Try one step, whose gain ratio decides on the next shift, after Nielsen."""
    solve, values, _ = solver_for(local.linear, local.net, rank)

    def trial(shift, _):
        new = candidate(local, damped_step(local, solve, shift), shift)
        return new, new.actual, new.predicted

    result = search_damping(trial, no_step(local), state, max_trials=1)
    return result.candidate, result.damping, values


# --- line search ---------------------------------------------------------------------


def search_along(local, state, rank, follows_loss=False):
    """Search along the step of a shift: the state, or the loss where it is less."""
    shift = jnp.minimum(no_step(local).loss, state) if follows_loss else state
    best, values = line_search(local, shift, rank)
    return best, state, values


def line_search(local, shift, rank):
    """Return the best of many lengths of a step, and eigenvalues if they are known.

    The paper tries all; here the rest is left out once the loss keeps rising.
    """
    zero_step = no_step(local)
    solve, values, floor = solver_for(local.linear, local.net, rank)

    def attempt(shift):
        return damped_step(local, solve, shift)

    full, shift = retry_failed_factorisation(attempt, shift, floor)

    def shortened(size):
        part = jax.tree.map(lambda v: size * v, full.step)
        return candidate(local, full._replace(step=part), shift)

    def unfinished(carry):
        k, _, rises = carry
        return (k < _HALVINGS) & (rises < _RISES)

    def look(carry):
        k, best, rises = carry
        new = shortened(jnp.exp2(-k.astype(local.linear.r.dtype)))
        lower, improved = new.loss < best.loss, best.loss < zero_step.loss
        rises = jnp.where(improved & ~lower, rises + 1, 0)
        best = select(lower, new, best)
        return k + 1, best, rises

    zero = jnp.int32(0)
    _, best, _ = lax.while_loop(unfinished, look, (zero, zero_step, zero))
    return best._replace(shift=shift, inner_iterations=full.inner_iterations), values


def retry_failed_factorisation(attempt, shift, floor):
    """Return the step and its shift, larger where the factorisation fails."""

    def failed(carry):
        count, _, damped = carry
        return ~jnp.isfinite(damped.predicted) & (count < _RETRIES)

    def again(carry):
        count, shift, _ = carry
        shift = 4 * jnp.maximum(shift, floor)
        return count + 1, shift, attempt(shift)

    start = jnp.int32(0), shift, attempt(shift)
    _, shift, damped = lax.while_loop(failed, again, start)
    return damped, shift


RULES = {
    "shift_ladder": shift_ladder,
    "gain_ratio": gain_ratio,
    "loss": partial(search_along, follows_loss=True),
    "fixed": search_along,
}
