"""Global search for shallow ReLU networks: descents, and rounds of relocation.

An iteration, the alternating one of SgGN or the joint one, ends in a local minimum
within some ten steps: neurons that left the data, or crowd together, never come back. A
growing round of relocation adds neurons where the error is, lets everything move and
deletes as many where they matter least; an exchanging round first deletes one or two
neurons. Either result is kept if the loss fell.

:func:`select_size` chooses the number of neurons by an information criterion, after
Liu, Cai and Chen, "Adaptive two-layer ReLU neural network" (2022).

All starts run side by side: the arrays of an engine,
:class:`~sklearn_gn.shallow_relu.dense.DenseEngine`, have a leading axis of starts, and
:func:`step` is the loop around it. One feature has a search of its own in
:mod:`sklearn_gn.shallow_relu.one_feature`.
"""

import math
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.optim.solver import Algorithm, Report
from sklearn_gn.segmented.problem import criterion_value
from sklearn_gn.shallow_relu.network import ShallowReLU

# Measured on the paper's step and peak problems and on random 5-neuron networks (20
# rounds): 8 neurons beat 4 and 6; many and few candidates in turn beat either alone;
# growing rounds alone recover 56 % of the random networks, with turned neurons and
# exchanging rounds all of them.
N_SPARE = 8  # neurons that a growing round adds, and deletes again
N_CANDIDATES = 256  # candidates for every neuron added
N_FEW = 8  # ... in rounds that leave more to chance
_KINDS = 4  # of rounds, in turn
N_KEPT = 8  # best starts that go on to relocation
ROUND_STEPS = (10, 30)  # Gauss-Newton steps after the additions and the deletions
# Relative decrease at which a round stops its steps. A Python number would be another
# type to JAX than ``tol`` is, and what takes either would be compiled twice.
ROUND_TOL = np.float64(1e-4)

_FLOOR = 1e-25  # relative loss below which only rounding errors differ
_PATIENCE = 2  # doublings without improvement that end the growth


class Phase(IntEnum):
    """What the next step of the search does."""

    STARTS = 0  # descend from the starts, to the tolerance of the rounds
    ROUNDS = 1  # relocate neurons
    END = 2  # descend to the tolerance of the fit


class SearchState(NamedTuple):
    """What a run remembers."""

    net: ShallowReLU  # the best so far
    loss: float  # its loss on all rows
    starts: Any  # arrays of the engine; they begin with an axis of starts
    losses: np.ndarray  # (n_starts,) by which the starts are compared
    n_neurons: int  # that a network may have after a round
    on_sample: bool  # whether the losses are those of a sample of the rows
    phase: Phase
    round: int = 0  # rounds of relocation done


class RoundPlan(NamedTuple):
    """What a round of relocation does, before it deletes neurons that are too many."""

    n_random: int  # neurons deleted at random
    n_cheapest: int  # neurons deleted by the cost of their absence
    place: int  # in the order of these costs of the first one deleted
    n_added: int  # neurons added thereafter
    n_candidates: int  # candidates for every one of them


class Outcome(NamedTuple):
    """Result of a descent or of a round, for all starts."""

    starts: Any
    losses: np.ndarray  # (n_starts,)
    n_steps: Any  # Gauss-Newton steps taken, of all or of each start
    settled: bool = True  # whether the descent has ended
    stops: tuple | None = None  # of each start, why it cannot go on, or None
    log: tuple | None = None  # gradient norms, step sizes and gain ratios of the starts


class Best(NamedTuple):
    """The best network of a state, judged on all rows."""

    net: ShallowReLU
    loss: float
    rounding: bool = False  # whether the residuals are rounding errors
    resolved: bool = True  # whether the losses of the starts tell them apart
    grad_norm: float | None = None
    n_steps: int = 0  # Gauss-Newton steps that this took


def search(name, engine):
    """Return the algorithm that searches with the iteration of an engine."""
    return Algorithm(
        name=name,
        prepare=engine.prepare,
        init=partial(init, engine=engine),
        step=partial(step, engine=engine),
        n_spare=N_SPARE,
        side_by_side=True,
    )


def init(data, nets, options, *, engine):
    """Begin with a stack of initial networks."""
    starts, losses, on_sample = engine.start(data, nets, options)
    n_neurons = int(np.sum(nets.alive[0]))
    phase = Phase.STARTS if options.relocations > 0 else Phase.END
    state = SearchState(None, math.inf, starts, losses, n_neurons, on_sample, phase)
    return _with_best(data, state, options, engine)[0]


def step(data, state, options, *, engine):
    """Take one step of the search.

    1. Let all starts descend, or relocate neurons of all and keep what is better.
    2. Once the descent from the starts has ended, keep the best few.
    3. Take the best start for the result if it is better on all rows.
    4. Decide whether to stop, and what the next step does.
    5. With many rows, go on from the best network of a sample to all of them.
    """
    before, relocates = state, state.phase == Phase.ROUNDS
    # 1. all starts
    if relocates:
        outcome = engine.relocate(data, state, round_plan(state.round), options)
        starts, losses = keep_better(
            state.starts, state.losses, outcome.starts, outcome.losses
        )
        state = state._replace(starts=starts, losses=losses, round=state.round + 1)
    else:
        outcome = engine.descend(data, state, options)
        state = state._replace(starts=outcome.starts, losses=outcome.losses)
    best = best_start(state.losses)
    unchanged = relocates and not np.any(state.losses < before.losses)
    # 2. the best few of them
    if outcome.settled and len(state.losses) > N_KEPT:
        kept = np.argsort(state.losses, kind="stable")[:N_KEPT]
        starts = backend.map_leaves(lambda a: a[kept], state.starts)
        state = state._replace(starts=starts, losses=state.losses[kept])
    # 3. the best network
    found = Best(state.net, state.loss)
    if not unchanged:
        state, found = _with_best(data, state, options, engine)
    accepted = not relocates or state.loss < before.loss
    # 4. stop, or the next phase
    stop = None if outcome.stops is None else outcome.stops[best]
    if stop in (None, "rounding"):
        at_rounding = accepted and (found.rounding or stop == "rounding")
        ended = outcome.settled and state.phase == Phase.END
        stop = "rounding" if at_rounding else "tol" if ended else None
    if outcome.settled and state.phase != Phase.END:
        more = found.resolved and state.round < options.relocations
        state = state._replace(phase=Phase.ROUNDS if more else Phase.END)
    # 5. all rows
    if stop is not None and state.on_sample:
        starts, losses = engine.start_on_all_rows(data, state.net, options)
        more = state.round < options.relocations
        phase, stop = Phase.STARTS if more else Phase.END, None
        state = state._replace(
            starts=starts, losses=losses, on_sample=False, phase=phase
        )
    # Only descents have gradients and steps.
    grad_norm, step_size, gain_ratio = (math.nan,) * 3
    if outcome.log is not None:
        grad_norm, step_size, gain_ratio = (float(c[best]) for c in outcome.log)
    return state, Report(
        loss=state.loss,
        grad_norm=grad_norm if found.grad_norm is None else found.grad_norm,
        step_size=step_size,
        gain_ratio=gain_ratio,
        inner_iterations=int(np.max(outcome.n_steps)) + found.n_steps,
        accepted=accepted,
        stop=stop,
    )


def _with_best(data, state, options, engine):
    """Return the state with its best network, if all rows find it better."""
    found = engine.best_network(data, state, options)
    if state.net is None or found.loss < state.loss:
        state = state._replace(net=found.net, loss=float(found.loss))
    return state, found


def round_plan(round_):
    """Return the plan: two kinds of growing and two of exchanging rounds in turn."""
    cycle, kind = divmod(round_, _KINDS)
    if kind < 2:
        return RoundPlan(0, 0, 0, N_SPARE, N_FEW if kind else N_CANDIDATES)
    n_random = kind - 2
    return RoundPlan(n_random, 1, cycle, n_random + 1, N_CANDIDATES)


def keep_better(starts, losses, new_starts, new_losses):
    """Return, of each start, the better of old and new, and its loss."""
    better = new_losses < losses  # False for NaN

    def choose(new, old):
        chosen = better.reshape(better.shape + (1,) * (np.ndim(new) - better.ndim))
        return np.where(chosen, np.asarray(new), np.asarray(old))

    kept = backend.map_leaves(choose, new_starts, starts)
    return kept, np.where(better, new_losses, losses)


def best_start(losses):
    """Return the number of the start with the lowest loss."""
    return int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))


# --- the number of neurons -----------------------------------------------------------


class SizePath:
    """Networks of several sizes, of which a criterion chooses one.

    ``scale`` is the loss of the mean.
    """

    def __init__(self, criterion, n_observations, scale):
        self.criterion, self.n_observations = criterion, n_observations
        self.floor = max(_FLOOR * scale, np.finfo(float).tiny)
        self.found = {}  # by size: criterion, loss, number of parameters, hyperplanes

    def visit(self, hyperplanes, loss, n_parameters):
        """Add a network; return its criterion and its size."""
        loss = max(np.inf if np.isnan(loss) else loss, self.floor)
        worth = criterion_value(self.criterion, loss, n_parameters, self.n_observations)
        n = len(hyperplanes)
        if n not in self.found or worth < self.found[n][0]:
            self.found[n] = worth, loss, n_parameters, hyperplanes
        return worth, n

    def best_size(self):
        """Return the size with the lowest criterion, the smallest of equal ones."""
        return min(sorted(self.found), key=lambda size: self.found[size][0])

    def result(self):
        """Return the hyperplanes of the best size, and the path: a dict of arrays."""
        ordered = sorted(self.found)
        columns = list(zip(*(self.found[n][:3] for n in ordered), strict=True))
        names = self.criterion, "loss", "n_parameters"
        path = dict(zip(names, map(np.array, columns), strict=True))
        return self.found[self.best_size()][3], {"n_neurons": np.array(ordered), **path}


def select_size(sizes, criterion, n_observations, scale, is_late=lambda: False):
    """Grow and prune; return the hyperplanes of the best size, and the path.

    The network doubles where the error is until the criterion gets worse; from there
    the neurons that matter least are deleted, a quarter at a time of a network of more
    than twice the best size so far, then one by one. ``sizes`` are DenseSizes,
    ``scale`` is the loss of the mean, and ``is_late`` says whether the time of the fit
    is over.
    """
    path = SizePath(criterion, n_observations, scale)
    best, n = path.visit(*sizes.candidate())
    since = 0
    while 2 * n <= sizes.most and since < _PATIENCE and not is_late():
        sizes.grow()
        worth, grown = path.visit(*sizes.candidate())
        since = 0 if worth < best else since + 1
        best = min(best, worth)
        if grown <= n:  # no place is left where a neuron lowers the loss
            break
        n = grown
    while n > 1 and not is_late():
        best_size = path.best_size()
        sizes.prune(min(n - 2 * best_size, n // 4) if n > 2 * best_size + 1 else 1)
        pruned = path.visit(*sizes.candidate())[1]
        if pruned >= n:  # without a loss no neuron matters least
            break
        n = pruned
    return path.result()
