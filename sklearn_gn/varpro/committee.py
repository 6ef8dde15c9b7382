r"""Committees of networks whose penalties the evidence chooses.

Several small networks (:class:`~sklearn_gn.bayes.layers.Layers`) are fitted from
different starts, and with different activations; their mean predicts better than the
one of highest evidence. Each takes the steps of :mod:`sklearn_gn.bayes.evidence_gn`. An
iteration is one step of every member that has not ended. Large members run side by side
in threads, as nearly all of their time is spent in BLAS and LAPACK; small ones would
only wait for each other.

In a regression, a feature whose weights in the first layer the evidence has switched
off leaves that layer, which makes the later steps of wide tables much cheaper. It stays
in the linear term. The members of wide tables therefore begin in two groups: the first
one of each activation, then, without the features that have left it, the others.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from itertools import cycle
from typing import NamedTuple

import joblib
import numpy as np
from scipy.special import log_softmax, logsumexp

from sklearn_gn import _switches as switches
from sklearn_gn.base import all_logits
from sklearn_gn.bayes import evidence_gn, evidence_posterior, huber
from sklearn_gn.bayes.evidence_gn import EvidenceState
from sklearn_gn.bayes.layers import Layers, RegularisedLayers, forward, with_one
from sklearn_gn.linalg.large_gram import work_of
from sklearn_gn.optim.solver import Algorithm, Report

_START_COEF = 0.1  # standard deviation of the first coefficients
_BESIDE = 1e-9  # distance of kinks from rows: on which side is not left to rounding
_HARDLY_ANY = 1e-3  # share of a prediction for which no member goes on
_SWITCHED_OFF = 0.01  # well-determined weights, per neuron, of a feature that is
_SAVED = 0.1  # share of the parameters for which leaving features are waited for
_PATIENCE = 5  # iterations in which the members together gain nothing
_FIRST_DROP = 6  # iteration from which features leave
_MANY = 10  # features, of which some will leave ...
_LEAD = 12  # ... in so many iterations of the first members, for which others wait
_WAITING = 1e6  # more than any criterion, of a member that has not begun
_WORK_OF_A_THREAD = 3e7  # products of matrix entries in a step that a thread pays for


class Member(NamedTuple):
    """One network of a committee."""

    model: Layers
    net: RegularisedLayers


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


class CommitteeState(NamedTuple):
    """State of a fit; ``net`` is the tuple of the members' best networks."""

    net: tuple
    loss: float
    runs: tuple
    criterion: float  # minus the log evidence per row, mean over the members
    waited: int = 0  # iterations in which it hardly fell


# --- starts --------------------------------------------------------------------------


def first_member(model, rows, n_effective, rng):
    """Return a member with random hyperplanes and small coefficients.

    The linear term is that of the data for the squared loss; for classes, the constants
    are the logarithms of their shares.

    Parameters
    ----------
    model : Layers
    rows : Rows
    n_effective : float
        Number of rows, counted by their weights.
    rng : RandomState
    """
    d, k = model.sizes[0], model.n_values
    output = np.zeros((model.n_linear, k))
    size = 1.0  # of the values
    if model.loss == "squared":
        size = math.sqrt(float(rows.weight @ np.sum(rows.y**2, axis=1)) / k)
        inputs = with_one(rows.x).T
        output[: 1 + d] = evidence_gn.linear_fit(inputs, rows, n_effective)
    else:
        # A class may be without weight here; its share is that of half a row then.
        share = np.log(np.maximum(rows.weight @ rows.y, 0.5 / n_effective))
        output[0] = share[1] - share[0] if k == 1 else share - np.mean(share)
    coef = rng.standard_normal((model.n_linear - 1 - d, k))
    if model.loss == "squared":
        coef *= np.ptp(rows.y, axis=0) > 0  # a target that is constant needs no neurons
    output[1 + d :] = _START_COEF * size * coef
    theta = model.join(output, _first_layers(model, rows, rng))
    alpha, gamma = np.ones(model.n_groups), np.zeros(model.n_groups)
    alpha[:2] = 1 / size**2 if size > 0 else 1.0
    return Member(model, RegularisedLayers(theta, alpha, None, gamma, -math.inf))


def linear_member(model, linear):
    """Return the member that is a linear model: its neurons are switched off.

    Parameters
    ----------
    model : Layers
    linear : LinearModel
    """
    output = np.zeros((model.n_linear, model.n_values))
    output[: len(linear.coef)] = linear.coef
    theta = model.join(output, [np.zeros(shape) for shape in model.shapes()])
    alpha, gamma = linear.penalties(model.n_groups)
    return Member(
        model, RegularisedLayers(theta, alpha, linear.beta, gamma, linear.log_evidence)
    )


def is_linear(member):
    """Whether a member has hidden layers without any weight."""
    _, layers = member.model.split(member.net.theta)
    return bool(layers) and not any(np.any(layer) for layer in layers)


def _first_layers(model, rows, rng):
    """Random directions, and thresholds at the inputs of random rows."""
    cumulated, layers = np.cumsum(rows.weight), []
    x = with_one(rows.x)
    for number, (width, n_inputs) in enumerate(model.shapes()):
        direction = rng.standard_normal((width, n_inputs - 1))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        part = model._replace(activations=model.activations[:number])
        inputs = forward(part, layers, x)[-1].values if layers else x[1:]
        drawn = np.searchsorted(cumulated, rng.uniform(size=width) * cumulated[-1])
        point = inputs[:, np.minimum(drawn, inputs.shape[1] - 1)]
        if number == 0:
            point = point[list(model.features)]
        bias = -_BESIDE - np.sum(direction * point.T, axis=1)
        layers.append(np.concatenate([bias[:, None], direction], axis=1))
    return layers


# --- the iteration -------------------------------------------------------------------


def init(rows, members, options):
    """Return the state of a fit that starts from some members."""
    n_first = len(members) if options.alpha is not None else _n_first(members)
    with_threads = is_worth_threads(members[0].model, rows)
    first = side_by_side(
        partial(_begun, rows, options), members[:n_first], with_threads
    )
    waiting = [_run_to_begin(rows, member) for member in members[n_first:]]
    return _state(first + waiting, float(np.mean([run.state.loss for run in first])))


def _begun(rows, options, member):
    net = member.net
    state = evidence_gn.init_at(
        member.model, rows, net.theta, net.alpha, net.beta, options
    )
    best = Member(member.model, state.net)
    return MemberRun(member.model, state, best, state.criterion)


def _run_to_begin(rows, member):
    """Return the run of a member that begins later; until then it is its start."""
    model, net = member
    error = evidence_gn.trial_of(model, net.theta, rows).error
    net = net._replace(beta=evidence_gn.first_beta(model, error))
    return MemberRun(model, None, Member(model, net), _WAITING)


def _n_first(members):
    """Number of members that begin: one of each kind, and of two only one.

    Members of a former fit all begin, and those from which no features will leave.
    """
    model = members[0].model
    fitted = any(member.net.log_evidence > -math.inf for member in members)
    if fitted or model.loss != "squared" or len(model.features) < _MANY:
        return len(members)
    kinds = len({member.model.activations for member in members})
    return kinds if len(members) > kinds else 1


def _all_begun(rows, options, runs):
    """Let the members that wait begin, once the first are ahead.

    They do not see the features that have left the first member of their kind.
    """
    waiting = [run.best for run in runs if run.waits]
    first = [run for run in runs if run.state is not None]
    if not waiting or not all(map(_is_ahead, first)):
        return runs
    members = [
        member
        if run.model.features == member.model.features
        else _with_features(member, run.model.features)
        for member, run in zip(waiting, cycle(first), strict=False)
    ]
    with_threads = is_worth_threads(runs[0].model, rows)
    begun = iter(side_by_side(partial(_begun, rows, options), members, with_threads))
    return [next(begun) if run.waits else run for run in runs]


def _is_ahead(run):
    return _stop(run) is not None or run.state.iteration >= _LEAD


def _with_features(member, features):
    """Return a member whose first layer sees only some of its features."""
    model, net = member
    output, layers = model.split(net.theta)
    layers[0] = layers[0][:, [0, *(1 + model.features.index(j) for j in features)]]
    theta = model.join(output, layers)
    return Member(model._replace(features=features), net._replace(theta=theta))


def step(rows, state, options):
    """Take a step of every member that has not ended."""
    runs = _all_begun(rows, options, state.runs)
    running = [run for run in runs if _is_running(run)]
    with_threads = is_worth_threads(runs[0].model, rows)
    moved = iter(
        side_by_side(partial(_run_after_step, rows, options), running, with_threads)
    )
    runs = [next(moved) if _is_running(run) else run for run in runs]
    runs = _without_idle_members(runs)
    report = _report(runs, len(running))
    after = _state(runs, report.loss)
    if options.tol > 0:
        # Log evidence per row; with given penalties, the loss.
        unit = 1.0 if options.alpha is None else after.criterion
        fell = state.criterion - after.criterion > options.tol * unit
        waits = any(run.waits for run in runs)
        after = after._replace(waited=0 if fell or waits else state.waited + 1)
        if after.waited >= _PATIENCE and report.stop is None:
            report = report._replace(stop="tol")  # a few members go on, for little
    return after, report


def is_worth_threads(model, rows):
    """Whether a step of a network is long enough for a thread of its own."""
    size = len(model.groups())
    return work_of(len(rows.x), size) > _WORK_OF_A_THREAD


def side_by_side(function, members, with_threads=True):
    """Return a function of every member, computed in threads where these pay."""
    n_threads = min(len(members), joblib.effective_n_jobs(-1)) if with_threads else 1
    if n_threads < 2:
        return [function(member) for member in members]
    with ThreadPoolExecutor(n_threads) as pool:
        # Each in the context of this thread, to which the settings of NumPy belong.
        contexts = [copy_context() for _ in members]
        return list(pool.map(lambda c, m: c.run(function, m), contexts, members))


def _run_after_step(rows, options, run):
    state, report = evidence_gn.step(run.model, rows, run.state, options)
    run = run._replace(state=state, report=report)
    if state.criterion < run.lowest:
        best = Member(run.model, state.net)
        run = run._replace(best=best, lowest=state.criterion)
    return run if report.stop is not None else _without_dead_features(run, rows)


def _without_idle_members(runs):
    """End the members without a share in the predictions, once another is exact."""
    exact = next((run.report for run in runs if _stop(run) == "rounding"), None)
    if exact is None:
        return runs
    return [
        run._replace(report=(run.report or exact)._replace(stop="rounding"))
        if _stop(run) is None and share < _HARDLY_ANY
        else run
        for run, share in zip(runs, shares([run.best for run in runs]), strict=True)
    ]


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
    model, (theta, *_) = _with_features(Member(model, state.net), features)
    state = state._replace(theta=theta, sums=evidence_gn.sums_at(model, theta, rows))
    return run._replace(model=model, state=state)


def _state(runs, loss):
    criterion = sum(run.lowest for run in runs) / len(runs)
    return CommitteeState(tuple(run.best for run in runs), loss, tuple(runs), criterion)


def _stop(run):
    return None if run.report is None else run.report.stop


def _is_running(run):
    return not run.waits and _stop(run) is None


def _report(runs, n_running):
    """What the log shows: means over the members, at the last step of each."""
    reports = [run.report for run in runs if not run.waits]

    def mean(values):
        """Mean over the members for which the value means something."""
        known = [value for value in values if not math.isnan(value)]
        return float(sum(known) / len(known)) if known else math.nan

    extra = {name: mean(r.extra[name] for r in reports) for name in reports[0].extra}
    return Report(
        loss=mean(r.loss for r in reports),
        grad_norm=mean(r.grad_norm for r in reports),
        step_size=mean(r.step_size for r in reports),
        damping=mean(r.damping for r in reports),
        gain_ratio=mean(r.gain_ratio for r in reports),
        inner_iterations=max(r.inner_iterations for r in reports),
        stop=_common_stop([_stop(run) for run in runs]),
        extra={**extra, "n_running": n_running},
    )


def _common_stop(stops):
    """The reason of most members, once all have ended."""
    if None in stops:
        return None
    return max(sorted(set(stops)), key=stops.count)


def continued(rows, state):
    """Return a state whose members all go on with the targets of other rows."""
    runs = []
    for run in state.runs:
        if run.state is None:  # without a share beside a member that is exact
            runs.append(run)
            continue
        member = evidence_gn.continued(run.model, rows, run.state)
        runs.append(run._replace(state=member, lowest=math.inf, report=None))
    return state._replace(runs=tuple(runs), criterion=math.inf, waited=0)


COMMITTEE = Algorithm("gnvpro", init, step, compiled=False)


# --- predictions ---------------------------------------------------------------------


def shares(members):
    """Return the shares of the members in a prediction, which sum to one.

    They are inverse to the noise that each member leaves, as in a mean of measurements
    of different precision. On noisy tables they are nearly equal; on exact data the
    members that cannot represent the function have hardly any. Members that predict
    classes have equal shares, unless they are of two kinds
    (:mod:`sklearn_gn.varpro.weighing`).
    """
    precision = np.array([member.net.beta or 1.0 for member in members])
    precision = precision / np.max(precision)
    return precision / np.sum(precision)


def mean_values(members, x):
    """Return the mean of the members' values, or the logits of mean probabilities.

    Parameters
    ----------
    members : tuple of Member
    x : ndarray of shape (m, d)
        In the units of the fit.

    Returns
    -------
    values : ndarray of shape (m, k)
        One column stands for two classes.
    """
    values = [member.model.values(member.net.theta, x) for member in members]
    if members[0].model.loss == "squared":
        return np.tensordot(shares(members), values, axes=1)
    log_p = [
        log_softmax(all_logits(v), axis=1) + math.log(len(members) * share)
        for v, share in zip(values, shares(members), strict=True)
    ]
    logits = logsumexp(log_p, axis=0) - math.log(len(members))
    return logits[:, 1:] - logits[:, :1] if values[0].shape[1] == 1 else logits


ROBUST_COMMITTEE = huber.robust(COMMITTEE, mean_values, continued)


def hidden_features(members, x):
    """Return the last hidden layers of all members side by side; else the inputs."""
    if not members[0].model.activations:
        return x
    x, parts = with_one(x), []
    for model, net in members:
        _, layers = model.split(net.theta)
        trace = forward(model, layers, x)
        parts.append(trace[-1].values.T)
    return np.concatenate(parts, axis=1)


def variances(members, covariances, noise_ratios, x):
    """Return the variances of the mean of the members, of shape (m, k).

    They are those of the posterior, in the mean over the members, and the spread of the
    members: two that disagree do not know. The posterior takes all targets for equally
    noisy; ``noise_ratios``, of shape (k,) for each member, correct it.
    """
    values = [model.values(net.theta, x) for model, net in members]
    own = [
        ratio * posterior_variances(model, net, covariance, x)
        for (model, net), covariance, ratio in zip(
            members, covariances, noise_ratios, strict=True
        )
    ]
    share = shares(members)
    mean = np.tensordot(share, values, axes=1)
    with np.errstate(over="ignore"):  # squares beyond the floats are infinite
        squares = own + (values - mean) ** 2
        squares[share == 0] = 0  # and no part of infinity is none
        return np.tensordot(share, squares, axes=1)


def posterior_variances(model, net, covariance, x):
    """Return the variances of a member's values, of shape (m, k)."""
    jacobian, found = model.jacobian(net.theta, x), np.empty((len(x), model.n_values))
    if model.n_values == 1:
        one = evidence_posterior.posterior_variances(covariance, jacobian[0])
        return one[:, None]
    k, n_output = model.n_values, model.n_values * model.n_linear
    hidden = np.arange(n_output, len(net.theta))
    for t in range(k):  # the other targets' output weights have no part in it
        used = np.concatenate([np.arange(t, n_output, k), hidden])
        found[:, t] = evidence_posterior.posterior_variances(
            covariance, jacobian[t, used], used
        )
    return found
