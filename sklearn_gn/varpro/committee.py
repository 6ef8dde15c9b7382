r"""The default: a committee of networks, the problem they are fitted to, and the fit.

:func:`plan` chooses the networks, :func:`fit` makes the problem and runs :func:`init`
and :func:`step`; each is a step of every member that has not ended. Members by the
evidence take the steps of :mod:`sklearn_gn.bayes.evidence_gn`, which choose their
penalties; wide members of a classifier take epochs of
:mod:`sklearn_gn.varpro.wide_members`, beside them or alone.

Members begin in rounds. The first one has two networks, of both activations. Where the
size is not given, and the rows determine most parameters of the one of higher evidence,
another one follows with a further hidden layer, as wide as the first. If the log
evidence rises by more than ten times ``tol`` a row, it takes the place of the others,
and then wider ones that of each other: neurons join that explain what is left
(:func:`~sklearn_gn.bayes.selection.grown_network`), until the evidence rises no more,
or would not by those that explain anything, if the gain of each were to the last as
that to the one before. A wider network stays alone.
Then further members are added as long as the log density of a new row rises by as much:
where :math:`\tau = s^2 / \sigma^2` is their variance over a row's, the mean of m
+ 1 members is better than the mean of m by

.. math:: \frac12 \log \frac{1 + \tau (1 + 1 / m)}{1 + \tau (1 + 1 / (m + 1))}.

That gain counts by the share that networks have beside a linear model and a Gaussian
process (:mod:`sklearn_gn.varpro.candidates`). A fit that is stopped returns no larger
network that has not ended.

A member of many rows is fitted to some of them first, ten a parameter, and takes its
last steps on all rows. In a regression, a feature that the evidence has switched off
leaves the first layer, not the linear term.
"""

import math
from functools import partial
from itertools import cycle, islice
from numbers import Real
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from sklearn_gn import _switches as switches
from sklearn_gn.arrays.extremes import MOST_ROWS
from sklearn_gn.arrays.threads import side_by_side
from sklearn_gn.bayes import evidence, evidence_gn, huber
from sklearn_gn.bayes.device_rows import warn_of_cpu
from sklearn_gn.bayes.evidence_gn import EvidenceOptions, EvidenceState
from sklearn_gn.bayes.laplace import left_out_rows
from sklearn_gn.bayes.layers import Layers, first_network
from sklearn_gn.bayes.selection import grown_network
from sklearn_gn.data.units import Units, moments
from sklearn_gn.linalg.factors import LARGEST_DENSE, affordable, is_formed, work_of
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.optim.solver import Algorithm, Report, Rows
from sklearn_gn.varpro import wide_members
from sklearn_gn.varpro.candidates import beside_process, set_fitted
from sklearn_gn.varpro.members import Member, mean_values, networks_of
from sklearn_gn.varpro.wide_members import N_PARTS, WideState

ACTIVATIONS = ("relu", "tanh")  # of the members by turns
_NEURONS = {"squared": 10, "cross_entropy": 4}
_MOST_WORK_OF_ALL_ROWS = 5e8  # of a default classifier; else mini-batches
_WIDTH = 100  # of the members by mini-batches
_WORTH = 10  # times tol: gain of log density a row that larger or more networks need
_ROWS_OF_GROWTH = 20000  # that tell which further neurons a network needs


# --- the networks --------------------------------------------------------------------


def plan(estimator, X, y, weight):
    """Return the networks of a committee, or None where there is none.

    They are :class:`~sklearn_gn.bayes.layers.Layers`, with the number of those whose
    penalties the evidence chooses, which stand first; the others' are fixed.

    It has fully connected networks that the default solver fits. One number as
    ``alpha`` with layers of given sizes is the problem of variable projection as it is
    published. The default members of a classifier are wide where small ones have too
    large a matrix; in smaller tables four of them are.
    """
    alpha, loss, n_init = estimator.alpha, estimator._loss, estimator.n_init
    solver, plain = estimator._solver_object(), estimator._short_forms["gnvpro"]
    squared, settings = loss == "squared", plain.get_params()
    if squared:  # which may be Huber's
        settings["loss"] = getattr(solver, "loss", None)
    is_plain = solver.name == plain.name and solver.get_params() == settings
    default = isinstance(estimator.hidden_layer_sizes, str)
    given = isinstance(alpha, Real) and alpha < math.inf and default
    has_penalties = isinstance(alpha, str | dict) or given
    is_mlp = isinstance(estimator.network, str) and estimator.network == "mlp"
    if not (is_mlp and has_penalties and is_plain):
        return None
    (n_rows, n_features), n_values = X.shape, y.shape[1]
    n_values = 1 if n_values == 2 and not squared else n_values
    # The neurons of one target serve two, and each further one adds a quarter of them,
    # as long as there are rows enough and the Gauss-Newton matrix stays dense. Targets
    # count by the participation ratio of their correlations: copies are one.
    n_independent = 1.0
    if default and squared and n_values > 1:
        center, size = moments(y, weight)
        t = np.sqrt(weight)[:, None] * (y - center) / size
        products = t.T @ t if n_values < n_rows else t @ t.T
        n_independent = np.sum(t**2) ** 2 / max(1.0, np.sum(products**2))
    wanted = round(_NEURONS[loss] * (2 + max(2.0, n_independent)) / 4)
    most = LARGEST_DENSE - n_values * (1 + n_features)
    most = min(most // (1 + n_features + n_values), n_rows)
    sizes = (max(_NEURONS[loss], min(wanted, most)),)
    if isinstance(alpha, dict):  # as many layers as there are penalties
        sizes *= 1 + np.size(alpha.get("layers", ()))
    names = estimator.activation
    by_turns = isinstance(names, str) and names == "auto"
    if not (default and by_turns):
        # The networks load JAX, which fits with default settings do without.
        from sklearn_gn.networks import MLP
        from sklearn_gn.networks._base import checked_network, checked_sizes

        sizes = sizes if default else estimator.hidden_layer_sizes
        sizes = checked_sizes("hidden_layer_sizes", sizes)
        names = names if isinstance(names, str) else (*names,)
        checked_network(MLP(sizes, "tanh" if by_turns else names))
    kinds, features = [], tuple(range(n_features))
    for name in ACTIVATIONS if by_turns else (names,):
        own = (name,) * len(sizes) if isinstance(name, str) else name
        kinds.append(Layers((n_features, *sizes), own, n_values, loss, features))
    first, of_classes = kinds[0], default and not squared
    if estimator.warm_start and hasattr(estimator, "_fitted"):
        before, members, _ = estimator._fitted
        members = networks_of(members) if before is None else ()
        models = [member.model.with_all_features() for member in members]
        asked = []
        for model in models:
            sizes, own = first.sizes, first.activations
            if default:
                sizes = (n_features, *model.sizes[1:])
                own = own[:1] * len(model.activations)
            own = model.activations if by_turns else own
            asked.append(first._replace(sizes=sizes, activations=own))
        n_wide = sum(of_classes and model.sizes[1:] == (_WIDTH,) for model in models)
        n = len(models) - n_wide or n_wide
        if not models or asked != models or n_init not in ("auto", n):
            raise ValueError(
                "warm_start=True continues with the networks of the previous fit; the "
                f"parameters and X now ask for n_init={n_init!r} networks with chosen "
                f"penalties, hidden_layer_sizes={estimator.hidden_layer_sizes!r} and "
                f"activation={estimator.activation!r} on {n_features} features. "
                "Fit a new estimator."
            )
        return models, len(models) - n_wide
    wide, size = first._replace(sizes=(n_features, _WIDTH)), first.n_parameters
    if of_classes and work_of(n_rows, size) > _MOST_WORK_OF_ALL_ROWS:
        return [wide] * (N_PARTS if n_init == "auto" else n_init), 0
    # One network is fitted by variable projection where a matrix would be too large,
    # or where the parameters of the last layer, which it eliminates, are most of many.
    of_output = first.n_linear * n_values if squared else size
    is_large = size > LARGEST_DENSE and 2 * of_output > size
    if is_large or not affordable(n_rows, size):
        return None
    n = len(ACTIVATIONS) if n_init == "auto" else n_init
    small = [kinds[number % len(kinds)] for number in range(n)]
    return small + [wide] * N_PARTS * (of_classes and n_init == "auto"), n


class CommitteeOptions(NamedTuple):
    """Settings of a run."""

    evidence: EvidenceOptions
    wide: EvidenceOptions | None  # of wide members, whose penalties stay
    n_evidence: int  # members by the evidence, which stand first
    robust: bool  # whether the loss is Huber's
    adds: bool  # whether the number of the members by the evidence is to be found
    deepens: bool  # whether the number of their layers and neurons is
    is_open: bool  # whether all candidates are, not networks that are asked for
    half_time: float  # on the clock, if there is a budget
    features: tuple  # numbers of those that say anything
    scaling: Units
    seed: int  # a checkpoint brings that of its fit


def fit(estimator, plan, X, y, weight, n_effective, factors, rng, **words):
    """Fit the committee that :func:`plan` returns and set the fitted attributes."""
    models, n_evidence = plan
    # 1. The rows in the units of the fit.
    for name, values in () if estimator.scale else (("X", X), ("y", y)):
        largest = float(np.max(np.abs(values)))
        if largest > np.sqrt(np.finfo(np.float64).max / values.size):
            raise ValueError(
                f"scale=False: numbers of size {largest:.3g} in {name} overflow when "
                f"squared. Set scale=True, or choose other units of {name}."
            )
    scaling = estimator._units(X, y, weight, each_target=True)
    rows = Rows(scaling.x(X), scaling.y(y), weight)
    features = Units.varying(*rows)
    warm = estimator.warm_start and hasattr(estimator, "_fitted")
    # 2. Penalties that are given, and the settings of both kinds of members.
    model, alpha, lengths = models[0], None, dict.fromkeys(("slope", "coef", "bias"))
    if not isinstance(estimator.alpha, str):
        lengths["weights"] = model.n_feature_groups
        lengths["layers"] = max(0, len(model.sizes) - 2)
        alpha = evidence.given_penalties(estimator.alpha, lengths)
    of_evidence = EvidenceOptions(
        n_effective=min(max(n_effective, len(X)), MOST_ROWS),
        damping=None if estimator.damping is None else float(estimator.damping),
        rank=estimator.rank,
        tol=float(estimator.tol),
        seed=int(rng.randint(np.iinfo(np.int32).max)),
        alpha=alpha,
    )
    wide = None
    if n_evidence:
        rows = model.rows_on(estimator.device, rows)
    if n_evidence < len(models):
        if estimator.device is not None:
            warn_of_cpu(estimator.device, "wide members by mini-batches")
        # A dict has no penalties of wide members beside small ones.
        both = n_evidence and isinstance(estimator.alpha, dict)
        wide = of_evidence._replace(alpha=None) if both else of_evidence
        if warm and wide.damping is None:  # that of the last epochs
            wide = wide._replace(damping=1.0)
    robust = estimator._solver_object().loss == "huber"
    given = estimator.hidden_layer_sizes, estimator.alpha, estimator.n_init
    is_open = not robust and all(isinstance(value, str) for value in given)  # "auto"
    # The validation loss does not change while a size is tried.
    adds = given[2] == "auto" and not (warm or estimator.early_stopping or robust)
    options = CommitteeOptions(
        evidence=of_evidence,
        wide=wide,
        n_evidence=n_evidence,
        robust=robust,
        adds=adds,
        deepens=adds and is_open and estimator._loss == "squared",
        is_open=is_open and estimator.activation == "auto",
        half_time=words["began"] + (estimator.max_time or math.inf) / 2,
        features=features,
        scaling=scaling,
        seed=of_evidence.seed,
    )
    # 3. The networks to start from.
    seeds = rng.randint(np.iinfo(np.int32).max, size=len(models))
    if warm:
        _, members, former = estimator._fitted
        same, starts = scaling.same_as(former), []
        for net in (member.net for member in networks_of(members)):
            theta = net.model.in_units(net.theta, former, scaling)
            beta = net.beta if same else None
            starts.append(Member(net._replace(theta=theta, beta=beta)))
    else:
        n, starts = of_evidence.n_effective, []
        for number, (model, seed) in enumerate(zip(models, seeds, strict=True)):
            own, rng = model._replace(features=features), np.random.RandomState(seed)
            # Penalties that stay would not take back slopes that follow noise.
            slopes = number < n_evidence
            net = first_network(own, rows, n, rng, slopes=slopes)
            starts.append(Member(net))
    # 4. The loop.
    estimator._run_from(
        [tuple(starts)],
        ROBUST_COMMITTEE if robust else COMMITTEE,
        (rows, options),
        (None, scaling),
        mean_values,
        lambda run: set_fitted(estimator, run, rows, options, factors),
        **words,
    )


class MemberRun(NamedTuple):
    """What the fit of one member has reached."""

    state: EvidenceState
    best: Member
    lowest: float  # criterion of the best
    every: int  # of the rows it is fitted to: every so-manyth
    report: Report = Report(math.nan, math.nan)  # of the last step


class CommitteeState(NamedTuple):
    """State of a fit."""

    runs: tuple = ()  # of the members by the evidence that are fitted now
    wide: WideState | None = None
    loss: float = math.inf
    criterion: float = 0.0  # minus the number of steps: the last networks are the best
    ended: tuple = ()  # members of rounds that have ended
    reason: str | None = None  # why the last of them has
    smaller: tuple = ()  # networks that the larger one took the place of
    gain: float = 0.0  # of log evidence for each new neuron, by which it did
    tries: bool = False  # whether this round tries a larger network
    reports: tuple = (None, None)  # the last Report of both kinds, or None
    process: tuple | None = None  # a FittedProcess or (), once it was looked for
    share: float = 1.0  # of the networks beside other candidates

    @property
    def net(self):
        """The members with their best networks, which would be returned now."""
        running = () if self.tries else tuple(run.best for run in self.runs)
        return (*self.ended, *running, *(self.wide.members if self.wide else ()))


def init(rows, members, options):
    """Return the state of a fit that starts from some members."""
    state, n = CommitteeState(), options.n_evidence
    if n > 0:
        state = _with_round(rows, state, members[:n], options.evidence)
    if n < len(members) and (n == 0 or switches.on("varpro.wide_members")):
        state = state._replace(wide=wide_members.init(members[n:], options.wide))
    return state


def step(rows, state, options):
    """Take a step of the members by the evidence, an epoch of the wide, or both."""
    (report, of_wide), wide = state.reports, state.wide
    if state.runs and (report is None or report.stop is None):
        state, report = _evidence_step(rows, state, options.evidence)
        if report.stop is not None and (options.adds or options.is_open):
            state, report = _next_round(rows, state, report, options)
    if wide and (of_wide is None or of_wide.stop is None):
        wide, of_wide = wide_members.step(rows, wide, options.wide, options.seed)
        if of_wide.stop == "tol" and not options.n_evidence:
            given = (), rows, options, wide.members, wide.lacking
            state = beside_process(state, *given)
    reports, shown = (report, of_wide), report or of_wide
    runs_on = any(r is not None and r.stop is None for r in reports)
    state = state._replace(wide=wide, loss=shown.loss, reports=reports)
    state = state._replace(criterion=state.criterion - 1)
    return state, shown._replace(stop=None if runs_on else shown.stop)


# --- rounds of the members by the evidence -------------------------------------------


def _with_round(rows, state, members, options):
    """Return the state in which these members begin."""

    def begun(member):
        n, net = len(rows.x), member.net
        every = max(1, n // net.model.n_rows_of_matrix(n))
        some, of_some = _some_rows(rows, every, options)
        state = evidence_gn.init_at(some, net, of_some)
        return MemberRun(state, Member(state.net), state.criterion, every)

    work = work_of(len(rows.x), len(members[0].net.theta))
    runs = tuple(side_by_side(begun, members, work))
    loss = float(np.mean([run.state.loss for run in runs]))
    return state._replace(runs=runs, loss=loss)


def _some_rows(rows, every, options):
    """Return rows of first steps and their options: these steps cost little."""
    if every == 1:
        return rows, options
    some, share = rows.every(every)
    n_effective, tol = share * options.n_effective, options.tol / 10
    return some, options._replace(n_effective=n_effective, tol=tol)


def _next_round(rows, state, report, options):
    """Return the state in which further members begin, or the end of the fit."""
    running, before = tuple(run.best for run in state.runs), state.ended
    n, tol = options.evidence.n_effective, options.evidence.tol
    now, highest = (
        max((member.net.log_evidence for member in members), default=-math.inf)
        for members in (running, before)
    )
    # 1. The members of this round; a larger network takes the place of the others.
    worth, gain, ended, expected = _WORTH * tol * n, now - highest, before, 0.0
    if gain > worth or not state.tries:
        ended = running if state.tries else before + running
        if state.tries:  # the next gain is to this one as this one is to the last
            more, fewer = (sum(m[0].model.sizes[1:]) for m in (running, before))
            rate = gain / (more - fewer)
            expected = rate**2 / max(rate, state.gain)
            state = state._replace(smaller=before, gain=rate)
        state = state._replace(ended=ended, reason=report.stop)
        if report.stop != "rounding":
            state = beside_process(state, ended, rows, options)
    # 2. A larger network, or as many further members as are worth it.
    n_neurons = sum(ended[0].model.sizes[1:])
    rng = np.random.RandomState([options.seed, len(ended), n_neurons])
    by_evidence = sorted(ended, key=lambda m: -m.net.log_evidence)
    net, larger, starts = by_evidence[0].net, None, []
    # One whose parameters are mostly idle is large enough.
    grows = options.deepens and 2 * np.sum(net.gamma) > len(net.theta)
    if grows and state.reason != "rounding" and switches.on("varpro.growth"):
        model = net.model
        if not before:
            sizes, names = (*model.sizes, model.sizes[-1]), 2 * model.activations
            own = sizes, names, model.n_values, model.loss, options.features
            larger = first_network(Layers(*own), rows, n, rng)
        elif expected * n_neurons > worth:  # at most as many join
            least = math.ceil(worth / expected / len(model.activations))
            some, share = rows.every(max(1, len(rows.x) // _ROWS_OF_GROWTH))
            larger = grown_network(net, options.features, some, n * share, rng, least)
    # How the starts of one deeper network will differ, those before it tell.
    alike = ended if len(ended) > 1 else state.smaller
    if larger is not None and is_formed(rows.y.size, len(larger.theta)):
        starts = [larger]
    elif options.adds and state.reason != "rounding" and len(alike) > 1:
        kinds = list(dict.fromkeys(member.model for member in by_evidence))
        n_more = _n_members(alike, rows, tol, state.share) - len(ended)
        for model in islice(cycle(kinds), max(0, n_more)):
            kept = tuple(j for j in options.features if j in model.features)
            starts.append(first_network(model._replace(features=kept), rows, n, rng))
    if not starts:
        return state._replace(tries=True), report._replace(stop=state.reason)
    state, members = state._replace(tries=starts[0] is larger), [*map(Member, starts)]
    state = _with_round(rows, state, members, options.evidence)
    return state, report._replace(stop=None)


def _n_members(members, rows, tol, share):
    """Return the number for which one more is hardly any better, if they differ so."""
    some = left_out_rows(rows)
    values = np.array([member.values(some.x) for member in members])
    if members[0].model.loss == "squared":
        noise = np.mean([1 / member.net.beta for member in members])
        variance = np.mean(np.var(values, axis=0, ddof=1), axis=1) / noise
    else:
        p = np.sum(some.y * [softmax(all_classes(u), axis=1) for u in values], axis=2)
        variance = np.var(p, axis=0, ddof=1) / np.mean(p, axis=0) ** 2
    variance = some.weight @ variance / np.sum(some.weight)
    of_mean = 1 + variance * (1 + 1 / np.arange(1, N_PARTS + 1))
    gain = np.log(of_mean[:-1] / of_mean[1:]) / 2
    return 1 + int(np.count_nonzero(share * gain > _WORTH * tol))


def _evidence_step(rows, state, options):
    """Take a step of every member by the evidence that has not ended."""
    running = [run.state.net.model for run in state.runs if run.report.stop is None]
    take = partial(_run_after_step, rows, options)
    work = work_of(len(rows.x), running[0].n_parameters)
    runs = side_by_side(take, state.runs, work)
    reports = [run.report for run in runs]
    if any(r.stop == "rounding" for r in reports):  # beside it others do not count
        reports = [r._replace(stop=r.stop or "rounding") for r in reports]
        runs = [r._replace(report=e) for r, e in zip(runs, reports, strict=True)]

    def mean(values):
        """Mean over the members for which the value means something."""
        known = [value for value in values if not math.isnan(value)]
        return float(sum(known) / len(known)) if known else math.nan

    names = "loss", "grad_norm", "step_size", "damping", "gain_ratio"
    means = {name: mean(getattr(r, name) for r in reports) for name in names}
    extra = {name: mean(r.extra[name] for r in reports) for name in reports[0].extra}
    stops = [report.stop for report in reports]
    report = Report(
        **means,
        inner_iterations=max(r.inner_iterations for r in reports),
        # The reason of most members, once all have ended.
        stop=None if None in stops else max(sorted(set(stops)), key=stops.count),
        extra={**extra, "n_running": len(running)},
    )
    return state._replace(runs=tuple(runs)), report


def _run_after_step(rows, options, run):
    """The run of a member after a step, unless it has ended, with its best network."""
    if run.report.stop is not None:
        return run
    some, of_some = _some_rows(rows, run.every, options)
    state, report = evidence_gn.step(some, run.state, of_some)
    run = run._replace(state=state, report=report)
    if state.criterion < run.lowest:
        run = run._replace(best=Member(state.net), lowest=state.criterion)
    if report.stop is None:
        state = evidence_gn.without_idle_features(some, state, of_some)
        return run._replace(state=state)
    return run if run.every == 1 or report.stop == "non_finite" else _again(rows, run)


def _again(rows, run):
    """The run of a member that goes on, with all rows or other targets."""
    return run._replace(
        state=evidence_gn.continued(rows, run.state),
        lowest=math.inf,
        every=1,
        report=run.report._replace(stop=None),
    )


def _continued(rows, state):
    """Return a state whose members all go on with the targets of other rows."""
    runs = tuple(_again(rows, run) for run in state.runs)
    return state._replace(runs=runs, reports=(None, None))


COMMITTEE = Algorithm("gnvpro", init, step, compiled=False)
ROBUST_COMMITTEE = huber.robust(COMMITTEE, mean_values, _continued)
