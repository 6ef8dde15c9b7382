r"""The fit of a committee: an iteration is a step of every member that has not ended.

The members by the evidence take the steps of :mod:`sklearn_gn.bayes.evidence_gn`, which
choose their penalties; wide members of a classifier take an epoch of
:mod:`sklearn_gn.varpro.wide_members` each, beside them or alone.

Members begin in rounds. The first one has two networks, of both activations. Where the
size is not given, a network with twice as many neurons follows if its step, on ten rows
a parameter, is no dearer than half a step of one of the first on all rows. It begins as
the network of highest evidence, with new neurons of small coefficients. As long as the
log evidence rises by more than ten times ``tol`` a row, it takes the place of the
smaller ones, and a larger one is tried. Then further members are added as long as the
log density of a new row rises by as much: the mean of m + 1 members of the relative
variance :math:`\tau = s^2 / \sigma^2` is better than that of m by

.. math:: \frac{\tau}{2 m (m + 1)},

where s is their spread and :math:`\sigma` the deviation of a row. So tables in which
starts differ by less than the noise have two members.

A member of many rows is fitted to some of them first, ten a parameter; its last steps
are taken on all rows, with the Gauss-Newton matrix of these
(:meth:`~sklearn_gn.bayes.layers.Layers.sums`).

In a regression, a feature whose weights in the first layer the evidence has switched
off leaves that layer, which makes the later steps and rounds of wide tables much
cheaper. It stays in the linear term.

A fit that is stopped returns the members that are fitted, without a larger network that
has not ended.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from sklearn_gn import _switches as switches
from sklearn_gn.bayes import evidence_gn, huber
from sklearn_gn.bayes.evidence_gn import EvidenceOptions, EvidenceState
from sklearn_gn.bayes.laplace import left_out_rows
from sklearn_gn.bayes.layers import Layers
from sklearn_gn.linalg.large_gram import work_of
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.optim.solver import Algorithm, Report, Rows
from sklearn_gn.varpro import wide_members
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
_MOST_MEMBERS = 4
_WORTH = 10  # times tol: gain of log density a row that larger or more networks need
_MUCH_WORK = 1e11  # of all steps of a member; from then on the tolerance rises


class CommitteeOptions(NamedTuple):
    """Settings of a run."""

    evidence: EvidenceOptions
    wide: WideOptions | None
    n_evidence: int  # members by the evidence, which stand first
    adds: bool  # whether the number of the members by the evidence is to be found
    most_work: float  # of a step of a larger network; zero where the size is given
    seed: int  # a checkpoint brings that of its fit


class MemberRun(NamedTuple):
    """What the fit of one member has reached."""

    model: Layers
    state: EvidenceState
    best: Member
    lowest: float  # criterion of the best
    on_sample: bool  # whether it is fitted to some of the rows
    report: Report | None = None

    @property
    def stop(self):
        """Why it has ended; None if it has not."""
        return None if self.report is None else self.report.stop


class CommitteeState(NamedTuple):
    """State of a fit; ``net`` is the tuple of the members' best networks."""

    net: tuple
    loss: float
    criterion: float  # minus the number of steps: the last networks are the best
    runs: tuple  # of the members by the evidence that are fitted now
    wide: WideState | None
    lowest: float = math.inf  # minus the log evidence per row, mean over the members
    waited: int = 0  # iterations in which it hardly fell
    ended: tuple = ()  # members of rounds that have ended
    reason: str | None = None  # why the last of them has
    tries: bool = False  # whether this round tries a larger network
    reports: tuple = (None, None)  # the last Report of both kinds, or None


def init(rows, members, options):
    """Return the state of a fit that starts from some members."""
    small, wide = members[: options.n_evidence], members[options.n_evidence :]
    state = CommitteeState((), math.nan, 0.0, (), None)
    if small:
        state = _with_round(rows, state, small, options.evidence)
    if wide:
        wide = wide_members.init(rows, wide, options.wide)
        loss = state.loss if small else wide.loss
        state = state._replace(loss=loss, wide=wide)
    return state._replace(net=_networks(state))


def step(rows, state, options):
    """Take a step of the members by the evidence, and an epoch of the wide ones."""
    report, of_wide = state.reports
    if state.runs and (report is None or report.stop is None):
        state, report = _evidence_step(rows, state, options.evidence)
        if options.adds and report.stop is not None:
            state, report = _next_round(rows, state, report, options)
    if state.wide and (of_wide is None or of_wide.stop is None):
        wide, of_wide = wide_members.step(rows, state.wide, options.wide, options.seed)
        state = state._replace(wide=wide)
    state = state._replace(
        net=_networks(state),
        loss=(report or of_wide).loss,
        criterion=state.criterion - 1,
        reports=(report, of_wide),
    )
    runs_on = any(r is not None and r.stop is None for r in state.reports)
    report = report or of_wide
    return state, report._replace(stop=None if runs_on else report.stop)


def _networks(state):
    """The networks that would be returned now."""
    running = () if state.tries else tuple(run.best for run in state.runs)
    return state.ended + running + (state.wide.members if state.wide else ())


# --- rounds of the members by the evidence -------------------------------------------


def _with_round(rows, state, members, options):
    """Return the state in which these members begin."""

    def begun(member):
        model, net = member
        some, of_some = _sample(rows, model, options)
        state = evidence_gn.init_at(
            model, some, net.theta, net.alpha, net.beta, of_some
        )
        best = Member(model, state.net)
        return MemberRun(model, state, best, state.criterion, some is not rows)

    with_threads = is_worth_threads(members[0].model, rows)
    runs = tuple(side_by_side(begun, members, with_threads))
    loss = float(np.mean([run.state.loss for run in runs]))
    return state._replace(runs=runs, loss=loss, lowest=_mean_lowest(runs), waited=0)


def _sample(rows, model, options):
    """Return the rows that the first steps of a network take, and their options."""
    some = model.rows_of_matrix(rows) if isinstance(rows, Rows) else rows
    if some is rows:
        return rows, options
    weight = np.sum(some.weight)
    options = options._replace(n_effective=options.n_effective * weight)
    return some._replace(weight=some.weight / weight), options


def _next_round(rows, state, report, options):
    """Return the state in which further members begin, or the end of the fit."""
    running, n = tuple(run.best for run in state.runs), options.evidence.n_effective
    grows = options.most_work > 0 and report.stop != "rounding"
    worth = _WORTH * options.evidence.tol
    if state.tries:
        gain = _best(running).net.log_evidence - _best(state.ended).net.log_evidence
        grows = grows and gain > worth * n
        ended = running if gain > worth * n else state.ended
    else:
        grows = grows and not state.ended
        ended = state.ended + running
    if state.ended is not ended:
        state = state._replace(ended=ended, reason=report.stop)
    number = [options.seed, len(ended), ended[0].model.sizes[-1]]
    rng, tries = np.random.RandomState(number), False
    if grows and switches.on("varpro.growth"):
        larger = _larger(_best(ended), rows, n, rng, options.most_work)
        tries = larger is not None
    if tries:
        members = (larger,)
    else:
        n_lacking = _n_members(ended, rows, worth) - len(ended)
        if n_lacking <= 0 or state.reason == "rounding":
            return state._replace(tries=True), report._replace(stop=state.reason)
        by_evidence = sorted(ended, key=lambda m: -m.net.log_evidence)
        kinds = list(dict.fromkeys(member.model for member in by_evidence))
        members = tuple(
            first_member(kinds[i % len(kinds)], rows, n, rng) for i in range(n_lacking)
        )
    state = _with_round(rows, state._replace(tries=tries), members, options.evidence)
    return state, report._replace(stop=None)


def _best(members):
    return max(members, key=lambda member: member.net.log_evidence)


def _larger(member, rows, n_effective, rng, most_work):
    """Return a member with as many new neurons, or None where it costs too much."""
    model, net = member
    first = model.sizes[1]
    larger = model._replace(sizes=(model.sizes[0], 2 * first))
    size = len(larger.groups())
    if work_of(larger.n_rows_of_matrix(len(rows.x)), size) > most_work:
        return None
    fresh = first_member(larger, rows, n_effective, rng).net
    output, (layer,) = larger.split(fresh.theta)
    output, layer, end = output.copy(), layer.copy(), larger.n_linear - first
    before, (layer_before,) = model.split(net.theta)
    output[:end], layer[:first] = before, layer_before
    output[end:] /= math.sqrt(net.beta)  # a small part of the noise
    theta = larger.join(output, [layer])
    return Member(larger, net._replace(theta=theta, log_evidence=-math.inf))


def _n_members(members, rows, worth):
    """Return the number of members for which one more would be hardly any better."""
    if len(members) < 2:
        return 2
    rows = left_out_rows(rows)
    values = np.array([m.model.values(m.net.theta, rows.x) for m in members])
    if members[0].model.loss == "squared":
        noise = np.mean([1 / member.net.beta for member in members])
        variance = np.mean(np.var(values, axis=0, ddof=1), axis=1) / noise
    else:
        p = [np.sum(rows.y * softmax(all_classes(u), axis=1), axis=1) for u in values]
        variance = np.var(p, axis=0, ddof=1) / np.mean(p, axis=0) ** 2
    gain = rows.weight @ variance / (2 * np.sum(rows.weight))
    ratio = np.nan_to_num(gain / max(worth, np.finfo(float).tiny))
    return int(np.clip(math.sqrt(ratio + 0.25) + 0.5, 2, _MOST_MEMBERS))


def _mean_lowest(runs):
    return sum(run.lowest for run in runs) / len(runs)


def _evidence_step(rows, state, options):
    """Take a step of every member by the evidence that has not ended."""
    model, iteration = state.runs[0].model, state.runs[0].state.iteration
    # Without noise the evidence never stops rising: that of a large network would go on
    # for minutes, for the last digits.
    work = iteration * work_of(len(rows.x), len(model.groups()))
    options = options._replace(tol=options.tol * max(1.0, work / _MUCH_WORK))
    running = [run for run in state.runs if run.stop is None]
    take = partial(_run_after_step, rows, options)
    moved = iter(side_by_side(take, running, is_worth_threads(model, rows)))
    runs = [next(moved) if run.stop is None else run for run in state.runs]
    runs = _without_idle_members(runs)
    report, lowest, waited = _report(runs, len(running)), _mean_lowest(runs), 0
    if options.tol > 0:
        # Log evidence per row; with given penalties, the loss.
        unit = 1.0 if options.alpha is None else lowest
        fell = state.lowest - lowest > options.tol * unit
        waited = 0 if fell or any(r.on_sample for r in runs) else state.waited + 1
        if waited >= _PATIENCE and report.stop is None:
            report = report._replace(stop="tol")  # a few members go on, for little
    return state._replace(runs=tuple(runs), lowest=lowest, waited=waited), report


def _run_after_step(rows, options, run):
    """The run of a member after a step, with its best network so far."""
    some, of_some = (
        _sample(rows, run.model, options) if run.on_sample else (rows, options)
    )
    state, report = evidence_gn.step(run.model, some, run.state, of_some)
    run = run._replace(state=state, report=report)
    if state.criterion < run.lowest:
        best = Member(run.model, state.net)
        run = run._replace(best=best, lowest=state.criterion)
    if report.stop is None:
        return _without_dead_features(run, some)
    if run.on_sample and report.stop != "non_finite":
        state = evidence_gn.continued(run.model, rows, state)
        report = report._replace(stop=None)
        return run._replace(
            state=state, lowest=math.inf, on_sample=False, report=report
        )
    return run


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
    reports = [run.report for run in runs]

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
    runs = [
        run._replace(
            state=evidence_gn.continued(run.model, rows, run.state),
            lowest=math.inf,
            on_sample=False,
            report=None,
        )
        for run in state.runs
    ]
    return state._replace(
        runs=tuple(runs), lowest=math.inf, waited=0, reports=(None, None)
    )


COMMITTEE = Algorithm("gnvpro", init, step, compiled=False)
ROBUST_COMMITTEE = huber.robust(COMMITTEE, mean_values, _continued)
