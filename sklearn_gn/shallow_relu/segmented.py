"""The search's engine for one feature: an iteration in O(n log N), whatever N is.

With one feature the network is a continuous piecewise-linear function, see
:mod:`sklearn_gn.shallow_relu.broken_line`, and all that the search needs of the data
are running sums, see :mod:`sklearn_gn.shallow_relu.interval_sums`. Differences of these
have rounding errors of the size of the total; the last iterations therefore sum over
every interval anew.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.core.compilation import jit_by_size
from sklearn_gn.shallow_relu.broken_line import (
    descend,
    fit_exact,
    fit_running,
    fit_values,
    full_steps,
    gradient,
    hat_system,
    interval_lengths,
    solve_tridiagonal,
    spread_knots,
    to_network,
    value_at,
)
from sklearn_gn.shallow_relu.interval_sums import (
    THIN_ROWS,
    UNRESOLVED,
    interval_ends,
    locate,
    moments,
    moments_from_sums,
    thin_sums,
)
from sklearn_gn.shallow_relu.search import (
    N_CANDIDATES,
    N_KEPT,
    ROUND_STEPS,
    ROUND_TOL,
    Best,
    Outcome,
    Phase,
    RoundPlan,
    best_start,
)
from sklearn_gn.shallow_relu.sorted_rows import (
    LEFT,
    RIGHT,
    RunningSums,
    SortedRows,
    sort_rows,
)

START_STEPS = np.int32(50)  # most Gauss-Newton steps of the starts
POLISH_STEPS = 50  # most steps with sums over every interval anew, where ...
POLISH_BELOW = 1e-9  # ... the relative loss is less than this
_AT_ROUNDING = 1e-26  # relative loss at which residuals are rounding errors


class Data(NamedTuple):
    """The running sums that compiled functions read, and the rows."""

    running: RunningSums
    rows: SortedRows
    size: float  # half the weighted mean square of the targets
    thin: RunningSums  # every k-th row and the sums before it: all of few rows


# --- the engine ----------------------------------------------------------------------


class SegmentedEngine:
    """Search with the joint Gauss-Newton step of one feature.

    Its starts are an array of breakpoints of shape (n_starts, n_slots), sorted; those
    at RIGHT are not in use.
    """

    def prepare(self, rows, options, n_padded=None):
        """Sort the rows and sum them up, once."""
        del options
        running, rows = sort_rows(rows, n_padded)
        size, n = 0.5 * float(running.sums[-1, 3]), int(running.n_rows)
        device = jax.device_put(running)
        if n <= 2 * THIN_ROWS:
            return Data(device, rows, size, device)
        return Data(device, rows, size, jax.device_put(thin_sums(running, n)))

    def first_phase(self, relocations):
        """Return what the first step does: the last descent is one of its own."""
        del relocations
        return Phase.STARTS

    def start(self, data, nets, options):
        """Return the breakpoints of a stack of networks, whose losses come later."""
        del data, options
        hyperplanes = np.asarray(nets.hyperplanes, np.float64)
        knots = -hyperplanes[..., 0] / hyperplanes[..., 1]
        knots = np.where(nets.alive, np.clip(knots, LEFT, RIGHT), RIGHT)
        knots = np.sort(knots, axis=1)
        knots[1:, 0] = LEFT  # random breakpoints alone would leave out the slope there
        return knots, np.full(len(knots), np.inf), False

    def descend(self, data, state, options):
        """Descend from all starts, first on few of the running sums."""
        if state.phase == Phase.END:
            found = descend_all(state.starts, data.running, START_STEPS, options.tol)
            return _outcome(found)
        first = descend_all(state.starts, data.thin, START_STEPS, ROUND_TOL)
        knots, losses, count = _outcome(first)[:3]
        kept = np.argsort(losses, kind="stable")[:N_KEPT]
        if data.thin is data.running:
            return Outcome(knots[kept], losses[kept], count)
        found = descend_all(knots[kept], data.running, START_STEPS, ROUND_TOL)
        return _outcome(found, count)

    def relocate(self, data, state, plan, options):
        """Carry out a round for all starts."""
        found = relocate(
            SIDE_BY_SIDE,
            state.starts,
            data.running,
            np.int32(options.seed ^ state.round),
            plan,
            state.n_neurons,
        )
        return _outcome(found)

    def best_network(self, data, state, options):
        """Return the network of the best start, in the last descent a polished one."""
        knots = np.array(state.starts[best_start(state.losses)])
        resolved = bool(state.losses.min() > UNRESOLVED * data.size)
        if state.phase == Phase.END:
            knots, fitted, count = polish(knots, data, options.tol)
            loss = total_loss(fitted, data.rows)
            return Best(
                net=to_network(knots, fitted, state.n_neurons),
                loss=loss,
                rounding=loss <= _AT_ROUNDING * data.size,
                resolved=resolved,
                grad_norm=float(np.linalg.norm(gradient(knots, fitted))),
                n_steps=count,
            )
        knots = spread_knots(knots, data.rows.x)
        fitted = fit_running(knots, data.running)
        # Rounding may make this loss too small by as much as is added.
        loss = total_loss(fitted, data.rows) + UNRESOLVED * data.size
        net = to_network(knots, fitted, state.n_neurons)
        return Best(net, loss, resolved=resolved)


class Descents(NamedTuple):
    """What descents from several starts lead to."""

    knots: Any  # (n_starts, n_slots)
    penalised: Any  # (n_starts,) losses by which they are compared
    loss: Any  # (n_starts,)
    count: Any  # (n_starts,) Gauss-Newton steps


def _outcome(found, n_before=0):
    count = n_before + int(np.array(found.count).max())
    return Outcome(np.array(found.knots), np.array(found.penalised), count)


@jit_by_size
def descend_all(knots, running, n_steps, tol):
    """Descend from all starts, side by side, by at most ``n_steps`` steps."""

    def run(knots):
        found, fitted, count = descend(knots, running, n_steps, tol)
        return Descents(
            found, penalised_loss(found, fitted.loss, running), fitted.loss, count
        )

    return map_starts(run, knots)


@jit_by_size
def rearrange_all(knots, running, seed, plan):
    """Delete and add breakpoints for all starts."""
    keys = jax.random.split(jax.random.key(seed), knots.shape[0])
    return map_starts(lambda t, key: rearrange(t, running, key, plan), knots, keys)


@jit_by_size
def shrink_all(knots, running, n_neurons):
    """Delete the cheapest breakpoints of those that are too many, for all starts."""
    return map_starts(lambda t: shrink(t, running, n_neurons), knots)


def map_starts(function, *starts):
    """Call a function of one start for all; a single one is compiled in less time."""
    if len(starts[0]) > 1:
        return jax.vmap(function)(*starts)
    return jax.tree.map(lambda a: a[None], function(*(a[0] for a in starts)))


class Parts(NamedTuple):
    """The compiled parts of a round."""

    rearrange: Callable
    descend: Callable
    shrink: Callable


# A round in parts is compiled in half the time: it descends twice.
SIDE_BY_SIDE = Parts(rearrange_all, descend_all, shrink_all)


def relocate(parts, knots, running, seed, plan, n_neurons):
    """Carry out one round.

    1. Delete breakpoints at random, then by the cost of their absence.
    2. Add breakpoints where they lower the loss most.
    3. Descend, delete the cheapest of those that are too many, and descend again.
    """
    plan = RoundPlan(*map(np.int32, plan))
    found = parts.rearrange(knots, running, seed, plan)
    first = parts.descend(found, running, np.int32(ROUND_STEPS[0]), ROUND_TOL)
    found = parts.shrink(first.knots, running, np.int32(n_neurons))
    last = parts.descend(found, running, np.int32(ROUND_STEPS[1]), ROUND_TOL)
    return last._replace(count=np.array(first.count) + np.array(last.count))


def total_loss(fitted, rows):
    """Return the loss with the part that no function of x can explain."""
    return float(fitted.loss) + 0.5 * float(rows.tie_variance.sum())


def polish(knots, data, tol):
    """Take steps with exact sums, where running sums are not exact enough.

    Returns
    -------
    knots, fitted
    count : int
        Steps taken.
    """
    rows, count = data.rows, 0
    knots = spread_knots(knots, rows.x)
    fitted = fit_running(knots, data.running)
    if float(fitted.loss) < POLISH_BELOW * data.size:
        fitted, falling = fit_exact(knots, rows), True
        while falling and count < POLISH_STEPS:
            trials = [
                spread_knots(t, rows.x) for t in np.array(full_steps(knots, fitted))
            ]
            fits = [fit_exact(t, rows) for t in trials]
            best = min((0, 1), key=lambda k: float(fits[k].loss))
            before, after = float(fitted.loss), float(fits[best].loss)
            if after < before:
                knots, fitted = trials[best], fits[best]
            falling = before - after > tol * before
            count += 1
    return knots, fitted, count


# --- relocation ----------------------------------------------------------------------


def insertion_gains(knots, fitted, running, candidate):
    """Return the decrease of the squared loss by a new breakpoint, by candidate.

    Beside the hats that there are, a hat over the interval with its peak at the
    candidate does what the new breakpoint does.
    """
    inverse = inverse_mass(knots, fitted.moments)
    position = running.x[candidate]
    interval = jnp.searchsorted(knots, position, side="right")
    low, high = (end[interval] for end in interval_ends(knots))
    bounds = jnp.concatenate(
        [
            jnp.zeros_like(running.sums[:1]),
            running.sums[locate(knots, running.x)],
            running.sums[-1:],
        ]
    )
    here = running.sums[candidate]
    left = moments_from_sums(here - bounds[interval], (low, position))
    right = moments_from_sums(bounds[interval + 1] - here, (position, high))
    first = interval == 0  # constant there, and so is the new function left of its peak
    rise = jnp.where(first, 0, 1 / jnp.maximum(position - low, 1e-14))
    fall = -1 / jnp.maximum(high - position, 1e-14)
    width = jnp.where(first, 0, 1 / jnp.maximum(high - low, 1e-14))
    start = value_at(knots, fitted.values, fitted.slopes, interval_ends(knots)[0])[
        interval
    ]
    slope = fitted.slopes[interval]

    def products(part, peak):
        """Of the new function with itself, both hats and the residual."""
        new = jnp.where(first & (peak > 0), 1, 1 + peak * (part.x - position))
        hat = jnp.where(first, 0, (high - part.x) * width)
        other = 1 - hat
        residual = part.y - start - slope * (part.x - low)[:, None]
        return (
            part.weight * new**2 + part.xx * peak**2,
            part.weight * new * hat - part.xx * peak * width,
            part.weight * new * other + part.xx * peak * width,
            (part.weight * new)[:, None] * residual
            + peak[:, None] * (part.xy - part.xx[:, None] * slope),
        )

    own, with_left, with_right, drop = (
        a + b for a, b in zip(products(left, rise), products(right, fall), strict=True)
    )
    i, j = jnp.maximum(interval - 1, 0), interval
    inside = (
        inverse[i, i] * with_left**2
        + 2 * inverse[i, j] * with_left * with_right
        + inverse[j, j] * with_right**2
    )
    outside = own - inside
    new = (outside > 1e-10 * own) & (own > 0)
    gain = jnp.sum(drop**2, axis=1) / jnp.where(new, outside, 1)
    return jnp.where(new, gain, -1)


def inverse_mass(knots, m):
    """Return the inverse of the mass matrix of the hats, dense."""
    diagonal, beside, _ = hat_system(knots, m)
    identity = jnp.eye(diagonal.shape[0], dtype=knots.dtype)
    return solve_tridiagonal(diagonal, beside, identity)


def deletion_costs(knots, fitted):
    """Return the increase of the squared loss by deletion of each breakpoint.

    Without breakpoint i the change of slope c_i is zero: one linear constraint g on the
    values, whose cost is ``|g v|^2 / (g A^-1 g)``.
    """
    n = knots.shape[0]
    _, inverse = interval_lengths(knots)
    # Scaled by the shorter neighbour, so that nothing overflows.
    before = jnp.concatenate([jnp.zeros(1, knots.dtype), inverse[:-1]])
    scale = 1 / jnp.maximum(before, inverse)
    row = jnp.arange(n, dtype=jnp.int32)
    g = jnp.zeros((n, n + 1), knots.dtype)
    g = g.at[row, row + 1].add(inverse * scale)
    g = g.at[row, row].add(-(inverse + before) * scale)
    g = g.at[row[1:], row[1:] - 1].add((before * scale)[1:])
    variance = jnp.sum((g @ inverse_mass(knots, fitted.moments)) * g, axis=1)
    change = jnp.sum((g @ fitted.values) ** 2, axis=1)
    tiny = jnp.finfo(knots.dtype).tiny
    cost = change / jnp.maximum(variance, tiny)
    return jnp.where(knots < RIGHT, cost, jnp.inf)


def draw_candidates(running, key):
    """Return row numbers, a random one of every 1/M of the rows; all of fewer."""
    strata = jnp.arange(N_CANDIDATES, dtype=running.x.dtype)
    more = jax.random.uniform(key, strata.shape, strata.dtype)
    n = running.n_rows.astype(strata.dtype)
    more = jnp.where(n > N_CANDIDATES, more, 0)
    return jnp.floor((strata + more) * (n / N_CANDIDATES)).astype(jnp.int32)


def insert(knots, running, key, n_candidates):
    """Add the best of some candidates, if a slot is free."""
    key_row, key_mark = jax.random.split(key)
    candidate = draw_candidates(running, key_row)
    fitted = fit_values(knots, moments(knots, running))
    gain = insertion_gains(knots, fitted, running, candidate)
    # Of the candidates with the largest random marks, as many as are to be tried.
    mark = jax.random.uniform(key_mark, gain.shape, gain.dtype)
    least = jnp.sort(mark)[jnp.maximum(mark.shape[0] - n_candidates, 0)]
    best = jnp.argmax(jnp.where(mark >= least, gain, -1))
    position = running.x[candidate[best]]
    room = (knots[-1] == RIGHT) & (gain[best] > 0)
    return jnp.sort(knots.at[-1].set(jnp.where(room, position, knots[-1])))


def delete(knots, running, place):
    """Delete the breakpoint at a place in the order of deletion costs."""
    fitted = fit_values(knots, moments(knots, running))
    slot = jnp.argsort(deletion_costs(knots, fitted))[place]
    return jnp.sort(knots.at[slot].set(RIGHT))


def delete_random(knots, key):
    """Delete a breakpoint at random."""
    mark = jax.random.uniform(key, knots.shape, knots.dtype)
    slot = jnp.argmin(jnp.where(knots < RIGHT, mark, jnp.inf))
    return jnp.sort(knots.at[slot].set(RIGHT))


def penalised_loss(knots, loss, running):
    """Return the loss by which networks of one size are compared.

    A breakpoint left of the data gives the first line its slope, one parameter; one
    inside is two. The second has to be worth what it costs by the Bayesian information
    criterion, or noise at the left end would draw breakpoints there.
    """
    n = running.n_rows.astype(loss.dtype)
    inside = jnp.sum((knots > LEFT) & (knots < RIGHT)).astype(loss.dtype)
    return loss * jnp.exp(inside * jnp.log(n) / n)


def count_knots(knots):
    """Return the number of breakpoints in use."""
    return jnp.sum(knots < RIGHT, dtype=jnp.int32)


def rearrange(knots, running, key, plan):
    """Delete breakpoints at random and by their costs, then add where it pays most."""
    keys = [jax.random.fold_in(key, k) for k in range(2)]
    found = lax.fori_loop(
        0,
        plan.n_random,
        lambda k, t: delete_random(t, jax.random.fold_in(keys[0], k)),
        knots,
    )
    place = jnp.minimum(plan.place, jnp.maximum(count_knots(found) - 1, 0))
    found = lax.fori_loop(
        0, plan.n_cheapest, lambda k, t: delete(t, running, place), found
    )

    def add(k, t):
        return insert(t, running, jax.random.fold_in(keys[1], k), plan.n_candidates)

    return lax.fori_loop(0, plan.n_added, add, found)


def shrink(knots, running, n_neurons):
    """Delete the cheapest breakpoints until there are ``n_neurons``."""
    return lax.while_loop(
        lambda t: count_knots(t) > n_neurons, lambda t: delete(t, running, 0), knots
    )


# --- sizes ---------------------------------------------------------------------------


def settle(knots, running):
    """Descend; the first breakpoint goes left of the data where that is worth it.

    Returns
    -------
    knots : ndarray of shape (n_slots,)
    loss : float
    """
    both = np.stack([knots, knots])
    both[1, 0] = LEFT
    found = descend_all(both, running, np.int32(ROUND_STEPS[1]), ROUND_TOL)
    best = int(np.argmin(np.array(found.penalised)))
    return np.array(found.knots)[best], float(np.array(found.loss)[best])


class SegmentedSizes:
    """Networks of growing or of falling size, for the choice of one.

    Parameters
    ----------
    rows, options
    start : ndarray of shape (n, 2), default=None
        Hyperplanes of the first network. If None, it is a straight line.
    """

    def __init__(self, rows, options, start=None):
        self.data = ENGINE.prepare(rows, options)
        self.most = max(64, 0 if start is None else len(start))
        knots = np.full(self.most, RIGHT)
        if start is not None:
            knots[: len(start)] = np.clip(-start[:, 0] / start[:, 1], LEFT, RIGHT)
            knots, _ = settle(np.sort(knots), self.data.running)
        knots[0] = LEFT if knots[0] >= RIGHT else knots[0]
        self.knots = knots
        self.loss = float(fit_running(knots, self.data.running).loss)

    def grow(self):
        """Double the number of neurons."""
        n = self._n_knots()
        plan = RoundPlan(*map(np.int32, (0, 0, 0, n, N_CANDIDATES)))
        running = self.data.running
        found = rearrange_all(self.knots[None], running, np.int32(n), plan)
        self.knots, self.loss = settle(np.array(found)[0], running)

    def prune(self):
        """Delete the neuron that matters least."""
        n, running = np.int32(self._n_knots() - 1), self.data.running
        found = shrink_all(self.knots[None], running, n)
        self.knots, self.loss = settle(np.array(found)[0], running)

    def _n_knots(self):
        return np.count_nonzero(self.knots < RIGHT)

    def candidate(self):
        """Return hyperplanes of shape (size, 2), loss and number of parameters."""
        knots = self.knots[self.knots < RIGHT]
        hyperplanes = np.column_stack([-knots, np.ones(len(knots))])
        rows = self.data.rows
        # A breakpoint left of the data is no parameter, its slope is.
        free = int(np.sum(knots > LEFT))
        n_parameters = free + rows.y.shape[1] * (1 + len(knots))
        # Running sums leave rounding errors of this size.
        loss = self.loss + 0.5 * float(rows.tie_variance.sum())
        return hyperplanes, loss + UNRESOLVED * self.data.size, n_parameters


ENGINE = SegmentedEngine()
