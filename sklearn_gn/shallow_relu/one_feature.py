"""The search's engine for one feature: an iteration in O(n log N), whatever N is.

With one feature the network is a continuous piecewise-linear function, see
:mod:`sklearn_gn.shallow_relu.broken_line`, and all that the search needs of the data
are running sums, see :mod:`sklearn_gn.shallow_relu.sorted_rows`. Differences of these
have rounding errors of the size of the total; the last iterations therefore sum over
every interval again.

The arrays are small whatever the number of rows, so NumPy computes all of this; nothing
is compiled.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from sklearn_gn.shallow_relu.broken_line import (
    between_ends,
    deletion_costs,
    descend,
    fit_exact,
    fit_running,
    fit_with_inverse,
    full_steps,
    gradient,
    insertion_gains,
    spread_knots,
    to_network,
)
from sklearn_gn.shallow_relu.partition import exact_knots
from sklearn_gn.shallow_relu.search import (
    N_CANDIDATES,
    N_KEPT,
    N_KINDS,
    ROUND_STEPS,
    ROUND_TOL,
    Best,
    Outcome,
    Phase,
    RoundPlan,
    best_start,
    repeats,
    round_plan,
    search,
)
from sklearn_gn.shallow_relu.sorted_rows import (
    LEFT,
    RIGHT,
    THIN_ROWS,
    UNRESOLVED,
    RunningSums,
    SortedRows,
    sort_rows,
    thin_sums,
)

START_STEPS = 50  # most Gauss-Newton steps of the starts
POLISH_STEPS = 50  # most steps with sums over every interval again, where ...
POLISH_BELOW = 1e-9  # ... the relative loss is less than this
_AHEAD = 250  # breakpoints up to which rounds are carried out ahead of their turn
_AT_ROUNDING = 1e-26  # relative loss at which residuals are rounding errors


class Data(NamedTuple):
    """Running sums, and the rows."""

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

    compiled = False

    def prepare(self, rows, options, n_padded=None):
        """Sort the rows and sum them up, once."""
        running, rows = sort_rows(rows, n_padded)
        if options is not None:
            running = running._replace(ends=options.ends)
        size, n = 0.5 * float(running.sums[-1, 3]), int(running.n_rows)
        thin = running if n <= 2 * THIN_ROWS else thin_sums(running, n)
        return Data(running, rows, size, thin)

    def first_phase(self, relocations):
        """Return what the first step does: the last descent is one of its own."""
        del relocations
        return Phase.STARTS

    def start(self, data, nets, options):
        """Return the breakpoints of a stack of networks, whose losses come later.

        Those of rows without noise on few lines take the place of the first ones.
        """
        del options
        hyperplanes = np.asarray(nets.hyperplanes, np.float64)
        knots = -hyperplanes[..., 0] / hyperplanes[..., 1]
        knots = np.where(nets.alive, np.clip(knots, LEFT, RIGHT), RIGHT)
        knots = np.sort(knots, axis=1)
        knots[1:, 0] = LEFT  # random breakpoints alone would leave out the slope there
        exact = exact_knots(data, int(np.sum(nets.alive[0])))
        if exact is not None:
            knots[0] = RIGHT
            knots[0, : len(exact)] = exact
        return knots, np.full(len(knots), np.inf), False

    def descend(self, data, state, options):
        """Descend from all starts, first on few of the running sums."""
        if state.phase == Phase.END:
            return descend_all(state.starts, data.running, START_STEPS, options.tol)
        first = descend_all(state.starts, data.thin, START_STEPS, ROUND_TOL)
        kept = np.argsort(first.losses, kind="stable")[:N_KEPT]
        first = first._replace(starts=first.starts[kept], losses=first.losses[kept])
        if data.thin is data.running:
            return first
        found = descend_all(first.starts, data.running, START_STEPS, ROUND_TOL)
        return found._replace(n_steps=first.n_steps.max() + found.n_steps)

    def relocate(self, data, state, plan, options):
        """Carry out a round for all starts, and later ones with it.

        Small arrays cost what the calls cost, whatever their number. The later rounds
        count as long as no earlier one has changed the starts.
        """
        del plan
        most = max(1, _AHEAD // state.starts.size)
        rounds = range(state.round, max(options.relocations, state.round + 1))[:most]
        n, groups, position = len(state.starts), [], {}
        for kind in range(N_KINDS):
            mine = [r for r in rounds if r % N_KINDS == kind]
            carried_out = mine
            if repeats(kind) and data.running.n_rows <= N_CANDIDATES:
                carried_out = mine[:1]  # all rows are candidates: nothing is random
            if not mine:
                continue
            first = groups[-1].sets[-1] + 1 if groups else 0
            for k, r in enumerate(mine):
                position[r] = first + n * min(k, len(carried_out) - 1)
            place = np.repeat([round_plan(r).place for r in carried_out], n)
            groups.append(
                Group(
                    first + np.arange(len(place)),
                    Draws([options.seed ^ r for r in carried_out], n),
                    round_plan(kind)._replace(place=place),
                )
            )
        knots = np.tile(state.starts, (1 + groups[-1].sets[-1] // n, 1))
        found = rearrange(knots, data.running, groups)
        found = improve(found, data.running, state.n_neurons)
        outcomes = {
            r: Outcome(*(a[k : k + n] for a in found[:3])) for r, k in position.items()
        }
        return outcomes.pop(state.round)._replace(later=outcomes)

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


class Draws:
    """Random numbers of a round, for all starts of one series or of several."""

    def __init__(self, seeds, n_starts):
        self._seeds, self._n_starts = seeds, n_starts

    @cached_property
    def _generators(self):
        return [np.random.default_rng(int(seed)) for seed in self._seeds]

    def uniform(self, n, *times):
        """Return numbers from [0, 1) of shape (*times, n_series * n_starts, n)."""
        shape = *times, self._n_starts, n
        return np.concatenate([g.random(shape) for g in self._generators], axis=-2)


class Group(NamedTuple):
    """Sets of breakpoints that are rearranged by one plan."""

    sets: np.ndarray  # their numbers
    random: Draws
    plan: RoundPlan


def descend_all(knots, running, n_steps, tol):
    """Descend from all starts by at most ``n_steps`` steps."""
    knots, losses, count = descend(knots, running, n_steps, tol)
    return Outcome(knots, penalised_loss(knots, losses, running), count)


def relocate(knots, running, random, plan, n_neurons):
    """Carry out one round.

    1. Delete breakpoints at random, then by the cost of their absence.
    2. Add breakpoints where they lower the loss most.
    3. Descend, delete the cheapest of those that are too many, and descend again.
    """
    groups = [Group(np.arange(len(knots)), random, plan)]
    return improve(rearrange(knots, running, groups), running, n_neurons)


def improve(knots, running, n_neurons):
    """Descend, delete the cheapest breakpoints that are too many, descend again."""
    first = descend_all(knots, running, ROUND_STEPS[0], ROUND_TOL)
    knots = shrink(first.starts, running, n_neurons)
    last = descend_all(knots, running, ROUND_STEPS[1], ROUND_TOL)
    return last._replace(n_steps=first.n_steps + last.n_steps)


def total_loss(fitted, rows):
    """Return the loss with the part that no function of x can explain."""
    return float(fitted.loss) + 0.5 * float(rows.tie_variance.sum())


def polish(knots, data, tol):
    """Take steps with exact sums, where running sums are not exact enough."""
    rows, count = data.rows, 0
    knots = spread_knots(knots, rows.x)
    fitted = fit_running(knots, data.running)
    if float(fitted.loss) < POLISH_BELOW * data.size:
        fitted, falling = fit_exact(knots, rows), True
        while falling and count < POLISH_STEPS:
            trials = [spread_knots(t, rows.x) for t in full_steps(knots, fitted)]
            fits = [fit_exact(t, rows) for t in trials]
            best = min((0, 1), key=lambda k: float(fits[k].loss))
            before, after = float(fitted.loss), float(fits[best].loss)
            if after < before:
                knots, fitted = trials[best], fits[best]
            falling = before - after > tol * before
            count += 1
    return knots, fitted, count


# --- relocation ----------------------------------------------------------------------


def candidate_rows(running, uniform, part=None):
    """Return row numbers, a random one of every 1/M of the rows; all of fewer.

    ``uniform`` are numbers from [0, 1) of shape (..., M); ``part`` says which of the M
    parts to take, all if None.
    """
    m, n = uniform.shape[-1], running.size(2)
    if part is None:
        part = np.arange(m)
    else:
        uniform = np.take_along_axis(uniform, part, axis=-1)
    more = np.where(n > m, uniform, 0)
    return np.floor((part + more) * (n / m)).astype(np.intp)


def candidates_of(n_sets, running, random, plan):
    """Return the candidates of every addition to some sets of breakpoints.

    They are ``plan.n_added`` arrays of row numbers, of shape (n_sets, c).
    """
    n = running.size(0)
    if plan.n_candidates < N_CANDIDATES:
        drawn = random.uniform(N_CANDIDATES, plan.n_added, 2)
        order = drawn[:, 1].argpartition(plan.n_candidates, axis=-1)
        return [*candidate_rows(running, drawn[:, 0], order[..., : plan.n_candidates])]
    if np.ndim(n) == 0 and n <= N_CANDIDATES:  # all rows
        return [np.broadcast_to(np.arange(n), (n_sets, n))] * plan.n_added
    found = []
    for rows in candidate_rows(running, random.uniform(N_CANDIDATES, plan.n_added)):
        new = np.any(rows[:, 1:] > rows[:, :-1], axis=0)  # no columns that repeat
        found.append(rows[:, np.concatenate([[True], new])])
    return found


def insert(knots, running, candidates):
    """Add the best of some candidates, if a slot is free."""
    ends = np.cumsum([c.size for c in candidates])
    candidate = np.concatenate([c.ravel() for c in candidates])
    n_each = np.concatenate([np.full(len(c), c.shape[1]) for c in candidates])
    which = np.repeat(np.arange(len(knots)), n_each)
    fitted = fit_with_inverse(knots, running)
    gain = insertion_gains(knots, *fitted, running, candidate, which)
    if running.ends is not None:
        new = running.position(candidate)
        gain[between_ends(new, running) != new] = 0
    parts = zip(np.split(gain, ends[:-1]), candidates, strict=True)
    best = np.concatenate([part.reshape(c.shape).argmax(axis=1) for part, c in parts])
    best += np.cumsum(n_each) - n_each
    room = (knots[:, -1] == RIGHT) & (gain[best] > 0)
    knots = knots.copy()
    new = running.of(which[best]).position(candidate[best])
    knots[room, -1] = new[room]
    return np.sort(knots, axis=-1)


def delete(knots, running, place):
    """Delete the breakpoints at a place in the order of deletion costs."""
    costs = deletion_costs(knots, *fit_with_inverse(knots, running))
    order = np.argsort(costs, axis=-1, kind="stable")
    return _without(knots, np.take_along_axis(order, place[:, None], axis=-1))


def delete_random(knots, random):
    """Delete a breakpoint of each start at random."""
    mark = np.where(knots < RIGHT, random.uniform(knots.shape[-1]), np.inf)
    return _without(knots, np.argmin(mark, axis=-1)[:, None])


def _without(knots, slot):
    knots = knots.copy()
    np.put_along_axis(knots, slot, RIGHT, axis=-1)
    return np.sort(knots, axis=-1)


def penalised_loss(knots, loss, running):
    """Return the losses by which networks of one size are compared.

    A breakpoint left of the data gives the first line its slope, one parameter; one
    inside is two. The second has to be worth what it costs by the Bayesian information
    criterion, or noise at the left end would draw breakpoints there.
    """
    n = running.size(loss.ndim)
    inside = np.sum((knots > LEFT) & (knots < RIGHT), axis=-1)
    return loss * np.exp(inside * np.log(n) / n)


def count_knots(knots):
    """Return the numbers of breakpoints in use."""
    return np.sum(knots < RIGHT, axis=-1)


def rearrange(knots, running, groups):
    """Delete breakpoints at random and by their costs, then add where it pays most."""
    knots = knots.copy()
    for sets, random, plan in groups:
        for _ in range(plan.n_random):
            knots[sets] = delete_random(knots[sets], random)
    most = np.maximum(count_knots(knots) - 1, 0)
    place = np.concatenate([np.minimum(plan.place, most[s]) for s, _, plan in groups])
    for k in range(max(plan.n_cheapest for *_, plan in groups)):
        some = np.concatenate([s for s, _, plan in groups if plan.n_cheapest > k])
        knots[some] = delete(knots[some], running.of(some), place[some])
    candidates = [
        candidates_of(len(s), running.of(s), random, plan) for s, random, plan in groups
    ]
    for k in range(max(plan.n_added for *_, plan in groups)):
        some = np.concatenate([s for s, _, plan in groups if plan.n_added > k])
        added = [found[k] for found in candidates if len(found) > k]
        knots[some] = insert(knots[some], running.of(some), added)
    return knots


def shrink(knots, running, n_neurons):
    """Delete the cheapest breakpoints until no start has more than ``n_neurons``."""
    knots = knots.copy()
    while len(many := np.flatnonzero(count_knots(knots) > n_neurons)):
        first = np.zeros(len(many), np.intp)
        knots[many] = delete(knots[many], running.of(many), first)
    return knots


# --- sizes ---------------------------------------------------------------------------


def settle(knots, running):
    """Descend; the first breakpoint goes left of the data where that is worth it."""
    both = np.stack([knots, knots] if knots[0] > LEFT else [knots])
    both[-1, 0] = LEFT
    both, losses, _ = descend(both, running, ROUND_STEPS[1], ROUND_TOL)
    best = np.argmin(penalised_loss(both, losses, running))
    return both[best], float(losses[best])


class SegmentedSizes:
    """Networks of growing or of falling size, for the choice of one."""

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
        plan = RoundPlan(0, 0, 0, n, N_CANDIDATES)
        running = self.data.running
        groups = [Group(np.zeros(1, np.intp), Draws([n], 1), plan)]
        found = rearrange(self.knots[None], running, groups)
        self.knots, self.loss = settle(found[0], running)

    def prune(self, n_deleted):
        """Delete the neurons that matter least."""
        n, running = self._n_knots() - n_deleted, self.data.running
        self.knots, self.loss = settle(shrink(self.knots[None], running, n)[0], running)

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
SEGMENTED = search("vpgn", ENGINE)  # the joint step with one feature
