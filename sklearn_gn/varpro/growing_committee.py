"""Committees of regressions that find the size of their networks.

Noisy tables determine few parameters, and small networks are enough. Where there is
hardly any noise, these leave an error of their own: the data determine nearly all of
their parameters, and the evidence of larger ones is higher by orders of magnitude.

A committee of the first size is fitted as in :mod:`sklearn_gn.varpro.committee`. If
next to nothing of the variance is left, or little by a member that has used up its
parameters, one of the next size with the activation of the member of highest evidence
is fitted, and so on, as long as the evidence rises. The best size then gets more
members; those of other activations have hardly a share in the predictions where nearly
nothing is noise. The networks returned are those of the best size that has ended. A fit
that is stopped while this size gets its further members has these as they are: one
network alone would have no spread to tell how wrong it is, and as those not yet fitted
leave more noise, they have hardly a share in the predictions.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.linalg.large_gram import work_of
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.varpro import committee
from sklearn_gn.varpro.committee import CommitteeState
from sklearn_gn.varpro.committee_plan import n_members

_LITTLE = 0.1  # share of the variance that is left, up to which it grows, if ...
_USED_UP = 0.8  # ... the data determine this share of the parameters
_HARDLY_ANY = 1e-4  # share that is left, up to which it grows in any case
_WORTH = 0.1  # log evidence per row that a larger network has to gain
_FAILURES = 2  # sizes in turn that do not pay, after which none is tried
# Hidden layers, as multiples of the first size. Where two pay, one layer does not.
_SIZES = ((2,), (2, 2), (4,), (8,))
_DEEP = 1  # number of the size of two layers
_MOST_WORK = 1e9  # of a step of a member, in products of the matrix's entries
_MUCH_WORK = 1e11  # of all steps of a member; from then on the tolerance rises


class GrowthState(NamedTuple):
    """State of a fit; ``net`` has the members of the best size that has ended."""

    net: tuple  # if the running members are the last ones, these stand last
    loss: float
    criterion: float  # the last networks are the best
    running: CommitteeState
    reason: str | None = None  # why the members of the best size have ended
    size: int = -1  # of the running members in the list of sizes; -1 is the first
    best_size: int = -1
    completes: bool = False  # whether the running members are the last ones


def init(rows, members, options):
    """Return the state of a fit that starts from some members of the first size."""
    running = committee.init(rows, members, options)
    return GrowthState(running.net, running.loss, 0.0, running)


def step(rows, state, options):
    """Take a step of every running member; when they have ended, grow or end."""
    if state.size >= 0:
        options = options._replace(tol=_tolerance(rows, state.running, options.tol))
    running, report = committee.step(rows, state.running, options)
    state = state._replace(
        running=running, loss=report.loss, criterion=state.criterion - 1
    )
    if state.size < 0:
        state = state._replace(net=running.net)
    if state.completes:
        finished = len(state.net) - len(running.net)
        return state._replace(net=state.net[:finished] + running.net), report
    if report.stop is None:
        return state, report
    state = _with_the_better(state, report.stop, options.n_effective)
    size = _next_size(rows, state, report.stop)
    if size is not None:
        state = _with_random_members(rows, state, options, size, (0,))
        return state, report._replace(stop=None)
    missing = _missing_members(rows, state)
    if not missing:
        return state, report._replace(stop=state.reason)
    state = _with_random_members(rows, state, options, state.best_size, missing)
    state = state._replace(net=state.net + state.running.net, completes=True)
    return state, report._replace(stop=None)


def _tolerance(rows, running, tol):
    """The tolerance of larger networks, greater once they have taken much work.

    Without noise the evidence never stops rising: that of a large network would go on
    for minutes, for the last digits.
    """
    run = running.runs[0]
    work = run.state.iteration * work_of(len(rows.x), len(run.model.groups()))
    return tol * max(1.0, work / _MUCH_WORK)


def _with_the_better(state, stop, n_effective):
    """The state with the members of the higher evidence as the best."""
    if state.size < 0:
        return state._replace(reason=stop)
    gain = _best(state.running.net).net.log_evidence
    gain -= _best(state.net).net.log_evidence
    if not gain >= _WORTH * n_effective:  # nor if it is not a number
        return state
    return state._replace(net=state.running.net, reason=stop, best_size=state.size)


def _best(members):
    return max(members, key=lambda member: member.net.log_evidence)


def _next_size(rows, state, stop):
    """Number of the size to be tried, or None."""
    is_last = stop == "rounding" or state.best_size == _DEEP
    if is_last or not (state.best_size >= 0 or _wants_more(rows, state.net)):
        return None
    if not switches.on("varpro.growth"):
        return None
    last = min(state.best_size + _FAILURES, len(_SIZES) - 1)
    for number in range(state.size + 1, last + 1):
        if is_affordable(rows, _of_size(state.net[0].model, number, state.best_size)):
            return number
    return None


def is_affordable(rows, model):
    """Whether the data can determine a network, in steps that do not take long."""
    size = len(model.groups())
    return size < rows.y.size and work_of(len(rows.x), size) <= _MOST_WORK


def _wants_more(rows, members):
    """Whether nearly nothing is left, or little by parameters that are used up."""
    _, net = _best(members)
    variance = float(np.sum(rows.weight @ (rows.y - rows.weight @ rows.y) ** 2))
    noise = rows.y.shape[1] / net.beta
    if noise <= _HARDLY_ANY * variance:
        return True
    used_up = np.sum(net.gamma) >= _USED_UP * len(net.theta)
    return bool(used_up and noise <= _LITTLE * variance)


def _of_size(model, number, present=-1):
    """Return a network of a size of the list, from one of the ``present`` size."""
    factors = (1,) if present < 0 else _SIZES[present]
    first = model.sizes[1] // factors[0]
    hidden = tuple(factor * first for factor in _SIZES[number])
    return model._replace(
        sizes=(model.sizes[0], *hidden),
        activations=model.activations[:1] * len(hidden),
        features=tuple(range(model.sizes[0])),
    )


def _with_random_members(rows, state, options, number, which):
    """Return the state with running members of a size, some of the numbered ones."""
    model = _of_size(_best(state.net).model, number, state.best_size)
    members = tuple(
        committee.first_member(
            model,
            rows,
            options.n_effective,
            np.random.RandomState([options.seed, number, k]),
        )
        for k in which
    )
    running = committee.init(rows, members, options)
    return state._replace(running=running, size=number)


def _missing_members(rows, state):
    """Numbers of the members that the best size still lacks."""
    if state.best_size < 0:
        return ()
    size = len(state.net[0].model.groups())
    # Half of the default members are of one activation. The spread of two is the least
    # that error bars need.
    return range(len(state.net), max(2, n_members(len(rows.x), size) // 2))


GROWING_COMMITTEE = Algorithm("gnvpro", init, step, compiled=False)
