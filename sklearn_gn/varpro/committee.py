r"""The fit of a committee: an iteration is a step of every member that has not ended.

The members by the evidence take the steps of :mod:`sklearn_gn.bayes.evidence_gn`, which
choose their penalties; wide members of a classifier take an epoch of
:mod:`sklearn_gn.varpro.wide_members` each, beside them or alone.

In a regression, a feature whose weights in the first layer the evidence has switched
off leaves that layer, which makes the later steps of wide tables much cheaper. It stays
in the linear term. The members of wide tables therefore begin in two groups: the first
one of each activation, then, without the features that have left it, the others.

Noisy tables determine few parameters, and small networks are enough. Where there is
hardly any noise, these leave an error of their own: the data determine nearly all of
their parameters, and the evidence of larger ones is higher by orders of magnitude. If
next to nothing of the variance is left by the first size, or little by a member that
has used up its parameters, one network of the next size with the activation of the
member of highest evidence is fitted, and so on, as long as the evidence rises. The best
size then gets more members; those of other activations have hardly a share in the
predictions where nearly nothing is noise. The networks returned are those of the best
size that has ended. A fit that is stopped while this size gets its further members has
these as they are: one network alone would have no spread to tell how wrong it is, and
as those not yet fitted leave more noise, they have hardly a share in the predictions.
"""

import math
from functools import partial
from itertools import cycle
from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.bayes import evidence_gn, huber
from sklearn_gn.bayes.evidence_gn import EvidenceOptions, EvidenceState
from sklearn_gn.bayes.layers import Layers
from sklearn_gn.linalg.large_gram import work_of
from sklearn_gn.optim.solver import Algorithm, Report
from sklearn_gn.varpro import wide_members
from sklearn_gn.varpro.committee_plan import n_members
from sklearn_gn.varpro.members import (
    Member,
    first_member,
    is_worth_threads,
    mean_values,
    shares,
    side_by_side,
    with_features,
)
from sklearn_gn.varpro.wide_members import WideOptions, WideState

_HARDLY_ANY = 1e-3  # share of a prediction for which no member goes on
_SWITCHED_OFF = 0.01  # well-determined weights, per neuron, of a feature that is
_SAVED = 0.1  # share of the parameters for which leaving features are waited for
_PATIENCE = 5  # iterations in which the members together gain nothing
_FIRST_DROP = 6  # iteration from which features leave
_MANY = 10  # features, of which some will leave ...
_LEAD = 12  # ... in so many iterations of the first members, for which others wait
_WAITING = 1e6  # more than any criterion, of a member that has not begun

_LITTLE = 0.1  # share of the variance that is left, up to which it grows, if ...
_USED_UP = 0.8  # ... the data determine this share of the parameters
_NEXT_TO_NOTHING = 1e-4  # share that is left, up to which it grows in any case
_WORTH = 0.1  # log evidence per row that a larger network has to gain
_FAILURES = 2  # sizes in turn that do not pay, after which none is tried
# Hidden layers, as multiples of the first size. Where two pay, one layer does not.
_SIZES = ((2,), (2, 2), (4,), (8,))
_DEEP = 1  # number of the size of two layers
_MOST_WORK = 1e9  # of a step of a member, in products of the matrix's entries
_MUCH_WORK = 1e11  # of all steps of a member; from then on the tolerance rises


class CommitteeOptions(NamedTuple):
    """Settings of a run."""

    evidence: EvidenceOptions
    wide: WideOptions | None
    n_evidence: int  # members by the evidence, which stand first
    grows: bool  # whether the sizes of the networks are to be found
    seed: int  # a checkpoint brings that of its fit


class MemberRun(NamedTuple):
    """What the fit of one member has reached."""

    model: Layers
    state: EvidenceState | None  # None before it begins
    best: Member
    lowest: float  # criterion of the best
    report: Report | None = None

    @property
    def waits(self):
        """Whether the member is still to begin."""
        return self.state is None and self.report is None

    @property
    def stop(self):
        """Why it has ended; None if it has not."""
        return None if self.report is None else self.report.stop


class Growth(NamedTuple):
    """Which sizes were tried; -1 is the first one."""

    finished: tuple = ()  # members of the best size that has ended
    reason: str | None = None  # why these have ended
    size: int = -1  # of the running members in the list of sizes
    best_size: int = -1
    completes: bool = False  # whether the running members are the last ones


class CommitteeState(NamedTuple):
    """State of a fit; ``net`` is the tuple of the members' best networks."""

    net: tuple
    loss: float
    criterion: float  # minus the number of steps: the last networks are the best
    runs: tuple  # of the members by the evidence that are fitted now
    wide: WideState | None
    lowest: float = math.inf  # minus the log evidence per row, mean over the members
    waited: int = 0  # iterations in which it hardly fell
    growth: Growth = Growth()
    reports: tuple = (None, None)  # the last Report of both kinds, or None


def init(rows, members, options):
    """Return the state of a fit that starts from some members."""
    small, wide = members[: options.n_evidence], members[options.n_evidence :]
    state = CommitteeState((), math.nan, 0.0, (), None)
    if small:
        state = _with_runs(rows, state, small, options.evidence)
    if wide:
        wide = wide_members.init(rows, wide, options.wide)
        net, loss = state.net + wide.members, state.loss if small else wide.loss
        state = state._replace(net=net, loss=loss, wide=wide)
    return state


def step(rows, state, options):
    """Take a step of the members by the evidence, and an epoch of the wide ones."""
    report, of_wide = state.reports
    if state.runs and (report is None or report.stop is None):
        state, report = _evidence_step(rows, state, options.evidence)
        if options.grows and report.stop is not None and not state.growth.completes:
            state, report = _grown(rows, state, report, options)
    if state.wide and (of_wide is None or of_wide.stop is None):
        wide, of_wide = wide_members.step(rows, state.wide, options.wide, options.seed)
        state = state._replace(wide=wide)
    state = state._replace(
        net=_networks(state, options.grows),
        loss=(report or of_wide).loss,
        criterion=state.criterion - 1,
        reports=(report, of_wide),
    )
    runs_on = any(r is not None and r.stop is None for r in state.reports)
    report = report or of_wide
    return state, report._replace(stop=None if runs_on else report.stop)


def _networks(state, grows):
    """The networks that would be returned now."""
    finished, running = state.growth.finished, tuple(run.best for run in state.runs)
    if state.growth.completes:
        return finished + running
    if grows and state.growth.size >= 0:
        return finished
    return running + (state.wide.members if state.wide else ())


# --- the members by the evidence -----------------------------------------------------


def _with_runs(rows, state, members, options):
    """Return the state in which these members begin.

    Of a wide table, one of each kind begins, and of two only one. Members of a former
    fit all begin, and those from which no features will leave.
    """
    model, n_first = members[0].model, len(members)
    fitted = any(member.net.log_evidence > -math.inf for member in members)
    loses_features = model.loss == "squared" and len(model.features) >= _MANY
    if loses_features and not fitted and options.alpha is None:
        kinds = len({member.model.activations for member in members})
        n_first = kinds if n_first > kinds else 1
    first = _begun(rows, members[:n_first], options)
    waiting = []
    for model, net in members[n_first:]:
        error = evidence_gn.trial_of(model, net.theta, rows).error
        net = net._replace(beta=evidence_gn.first_beta(model, error))
        waiting.append(MemberRun(model, None, Member(model, net), _WAITING))
    runs = (*first, *waiting)
    return state._replace(
        runs=runs,
        net=tuple(run.best for run in runs),
        loss=float(np.mean([run.state.loss for run in first])),
        lowest=_mean_lowest(runs),
        waited=0,
    )


def _begun(rows, members, options):
    """The runs of members at their first parameters."""

    def begun(member):
        model, net = member
        state = evidence_gn.init_at(
            model, rows, net.theta, net.alpha, net.beta, options
        )
        return MemberRun(model, state, Member(model, state.net), state.criterion)

    return side_by_side(begun, members, is_worth_threads(members[0].model, rows))


def _mean_lowest(runs):
    return sum(run.lowest for run in runs) / len(runs)


def _evidence_step(rows, state, options):
    """Take a step of every member by the evidence that has not ended."""
    if state.growth.size >= 0:
        # Without noise the evidence never stops rising: that of a large network would
        # go on for minutes, for the last digits.
        run = state.runs[0]
        work = run.state.iteration * work_of(len(rows.x), len(run.model.groups()))
        options = options._replace(tol=options.tol * max(1.0, work / _MUCH_WORK))
    runs = _all_begun(rows, options, state.runs)
    running = [run for run in runs if not run.waits and run.stop is None]
    with_threads = is_worth_threads(runs[0].model, rows)
    take = partial(_run_after_step, rows, options)
    moved = iter(side_by_side(take, running, with_threads))
    runs = [next(moved) if not r.waits and r.stop is None else r for r in runs]
    runs = _without_idle_members(runs)
    report, lowest, waited = _report(runs, len(running)), _mean_lowest(runs), 0
    if options.tol > 0:
        # Log evidence per row; with given penalties, the loss.
        unit = 1.0 if options.alpha is None else lowest
        fell = state.lowest - lowest > options.tol * unit
        waits = any(run.waits for run in runs)
        waited = 0 if fell or waits else state.waited + 1
        if waited >= _PATIENCE and report.stop is None:
            report = report._replace(stop="tol")  # a few members go on, for little
    return state._replace(runs=tuple(runs), lowest=lowest, waited=waited), report


def _all_begun(rows, options, runs):
    """Let the members that wait begin, once the first are ahead.

    They do not see the features that have left the first member of their kind.
    """
    first = [run for run in runs if run.state is not None]
    are_ahead = all(run.stop or run.state.iteration >= _LEAD for run in first)
    if not are_ahead or not any(run.waits for run in runs):
        return runs
    members = [run.best for run in runs if run.waits]
    members = [
        with_features(member, run.model.features)
        if run.model.features != member.model.features
        else member
        for member, run in zip(members, cycle(first), strict=False)
    ]
    begun = iter(_begun(rows, members, options))
    return [next(begun) if run.waits else run for run in runs]


def _run_after_step(rows, options, run):
    """The run of a member after a step, with its best network so far."""
    state, report = evidence_gn.step(run.model, rows, run.state, options)
    run = run._replace(state=state, report=report)
    if state.criterion < run.lowest:
        best = Member(run.model, state.net)
        run = run._replace(best=best, lowest=state.criterion)
    return run if report.stop is not None else _without_dead_features(run, rows)


def _without_dead_features(run, rows):
    """Take features that the evidence has switched off out of the first layer."""
    model, state = run.model, run.state
    of_features = len(model.sizes) > 1 and model.loss == "squared"
    if state.iteration < _FIRST_DROP or not of_features:
        return run
    width = model.sizes[1]
    gamma = state.net.gamma[3:].take(model.features)
    idle = (gamma <= _SWITCHED_OFF * width) & (gamma < gamma.max())
    few = np.count_nonzero(idle) * width <= _SAVED * len(state.theta)
    if few or not switches.on("tables.feature_removal"):
        return run
    features = tuple(model.features[j] for j in np.flatnonzero(~idle))
    model, (theta, *_) = with_features(Member(model, state.net), features)
    state = state._replace(theta=theta, sums=evidence_gn.sums_at(model, theta, rows))
    return run._replace(model=model, state=state)


def _without_idle_members(runs):
    """End the members without a share in the predictions, once another is exact."""
    exact = next((run.report for run in runs if run.stop == "rounding"), None)
    if exact is None:
        return runs
    return [
        run._replace(report=(run.report or exact)._replace(stop="rounding"))
        if run.stop is None and share[0] < _HARDLY_ANY
        else run
        for run, share in zip(runs, shares([run.best for run in runs]), strict=True)
    ]


def _report(runs, n_running):
    """What the log shows: means over the members, at the last step of each."""
    reports = [run.report for run in runs if not run.waits]

    def mean(values):
        """Mean over the members for which the value means something."""
        known = [value for value in values if not math.isnan(value)]
        return float(sum(known) / len(known)) if known else math.nan

    extra = {name: mean(r.extra[name] for r in reports) for name in reports[0].extra}
    stops = [run.stop for run in runs]
    return Report(
        loss=mean(r.loss for r in reports),
        grad_norm=mean(r.grad_norm for r in reports),
        step_size=mean(r.step_size for r in reports),
        damping=mean(r.damping for r in reports),
        gain_ratio=mean(r.gain_ratio for r in reports),
        inner_iterations=max(r.inner_iterations for r in reports),
        # The reason of most members, once all have ended.
        stop=None if None in stops else max(sorted(set(stops)), key=stops.count),
        extra={**extra, "n_running": n_running},
    )


def _continued(rows, state):
    """Return a state whose members all go on with the targets of other rows."""
    runs = []
    for run in state.runs:
        if run.state is not None:  # else without a share beside one that is exact
            member = evidence_gn.continued(run.model, rows, run.state)
            run = run._replace(state=member, lowest=math.inf, report=None)
        runs.append(run)
    return state._replace(
        runs=tuple(runs), lowest=math.inf, waited=0, reports=(None, None)
    )


# --- growth --------------------------------------------------------------------------


def _grown(rows, state, report, options):
    """Return the state in which larger networks begin, or the end of the fit."""
    growth, running = state.growth, tuple(run.best for run in state.runs)
    if growth.size < 0:
        growth = growth._replace(finished=running, reason=report.stop)
    else:
        gain = _best(running).net.log_evidence - _best(growth.finished).net.log_evidence
        if gain >= _WORTH * options.evidence.n_effective:  # not if it is not a number
            growth = Growth(running, report.stop, growth.size, growth.size)
    number, which = _next_size(rows, growth, report.stop), range(1)
    if number is None:
        number, which = growth.best_size, _missing_members(rows, growth)
        if not which:
            return state._replace(growth=growth), report._replace(stop=growth.reason)
        growth = growth._replace(completes=True)
    model = _of_size(_best(growth.finished).model, number, growth.best_size)
    n_effective, seed = options.evidence.n_effective, options.seed
    members = tuple(
        first_member(model, rows, n_effective, np.random.RandomState([seed, number, k]))
        for k in which
    )
    state = _with_runs(rows, state, members, options.evidence)
    state = state._replace(growth=growth._replace(size=number))
    return state, report._replace(stop=None)


def _best(members):
    return max(members, key=lambda member: member.net.log_evidence)


def _next_size(rows, growth, stop):
    """Number of the size to be tried, or None."""
    is_last = stop == "rounding" or growth.best_size == _DEEP
    if is_last or not (growth.best_size >= 0 or _wants_more(rows, growth.finished)):
        return None
    if not switches.on("varpro.growth"):
        return None
    last = min(growth.best_size + _FAILURES, len(_SIZES) - 1)
    for number in range(growth.size + 1, last + 1):
        model = _of_size(growth.finished[0].model, number, growth.best_size)
        size = len(model.groups())
        # The data can determine it, in steps that do not take long.
        if size < rows.y.size and work_of(len(rows.x), size) <= _MOST_WORK:
            return number
    return None


def _wants_more(rows, members):
    """Whether nearly nothing is left, or little by parameters that are used up."""
    _, net = _best(members)
    variance = float(np.sum(rows.weight @ (rows.y - rows.weight @ rows.y) ** 2))
    noise = rows.y.shape[1] / net.beta
    used_up = np.sum(net.gamma) >= _USED_UP * len(net.theta)
    limit = _LITTLE if used_up else _NEXT_TO_NOTHING
    return bool(noise <= limit * variance)


def _of_size(model, number, present):
    """Return a network of a size of the list, from one of the ``present`` size."""
    factors = (1,) if present < 0 else _SIZES[present]
    first = model.sizes[1] // factors[0]
    hidden = tuple(factor * first for factor in _SIZES[number])
    return model._replace(
        sizes=(model.sizes[0], *hidden),
        activations=model.activations[:1] * len(hidden),
        features=tuple(range(model.sizes[0])),
    )


def _missing_members(rows, growth):
    """Numbers of the members that the best size still lacks."""
    if growth.best_size < 0:
        return range(0)
    size = len(growth.finished[0].model.groups())
    # Half of the default members are of one activation. The spread of two is the least
    # that error bars need.
    most = max(2, n_members(len(rows.x), size) // 2)
    return range(len(growth.finished), most)


COMMITTEE = Algorithm("gnvpro", init, step, compiled=False)
ROBUST_COMMITTEE = huber.robust(COMMITTEE, mean_values, _continued)
