"""What is known of the members after a fit, and what they share in predictions.

The shares come from stacking. The candidates of a regression are the networks of each
activation, whose mean counts as one model, the linear model, and the limit of
infinitely many neurons. Each gives the density of rows that it has not seen, from its
Gauss-Newton matrix or its kernel; the weights of :mod:`sklearn_gn.bayes.stacking`, one
set for each target, are the shares. So networks that follow noise give way to the
linear model, and those that are too small to the process, without a rule of size, noise
or kind.

Those of a classification are the small networks by the evidence, the wide ones, and the
frequencies of the classes. Of the small networks
:func:`~sklearn_gn.varpro.members.left_out_values` tells the values at left-out rows,
and each wide one has been fitted without a part of them. One factor t of the logits of
the wide ones is chosen with the weights, at the cost ``2 log^2 t`` in units of the log
density of all rows, which keeps few rows from deciding.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from sklearn_gn.arrays.extremes import noise_deviation
from sklearn_gn.bayes import evidence, evidence_gn, gaussian_process, laplace, stacking
from sklearn_gn.bayes.gaussian_process import Kernel
from sklearn_gn.bayes.laplace import left_out_rows
from sklearn_gn.bayes.layers import Layers, RegularisedLayers, sum_over_blocks
from sklearn_gn.bayes.linear_evidence import linear_model
from sklearn_gn.data.units import Units
from sklearn_gn.linalg.large_gram import LargeGram
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.optim.solver import Rows
from sklearn_gn.varpro.members import (
    Member,
    is_worth_threads,
    left_out_errors,
    left_out_values,
    log_odds,
    shares,
    side_by_side,
)
from sklearn_gn.varpro.wide_members import left_out_part

_FIRST_ROWS = 200  # of the search for a kernel, which ends with three times as many


# --- what is known of a member --------------------------------------------------------


class Summary(NamedTuple):
    """What is known of a member, in the user's units; of wide ones the first two."""

    alpha: dict
    loss: float
    covariance: laplace.Deferred | None = None
    # (k,)  variance of the noise of each target, over the mean of all
    noise_ratio: np.ndarray | None = None
    gram: np.ndarray | LargeGram | None = None  # Gauss-Newton matrix
    alpha_method: str = "prior"
    noise_std: np.ndarray | None = None  # (k,)
    n_effective_parameters: float = math.nan
    n_of_penalties: float = math.nan  # parameters that their choice amounts to
    log_evidence: float = math.nan
    n_rows: float = math.nan  # that it was fitted to, counted by weights


def with_summaries(members, rows, options):
    """Return members by the evidence with their summaries."""
    heavy = bool(members) and is_worth_threads(members[0].model, rows)
    return tuple(side_by_side(partial(_with_summary, rows, options), members, heavy))


def _with_summary(rows, options, member):
    model, net, n_effective = member.model, member.net, options.evidence.n_effective
    y_scale = np.broadcast_to(options.scaling.y_scale, model.n_values)
    sums = evidence_gn.sums_of(model, net.theta, rows)
    found, value, loss = evidence_gn.at_penalties(model, net, sums, n_effective)
    scale = net.beta * n_effective  # of the objective divided by the sum of weights
    penalties, noise_ratio = net.alpha / scale, np.ones(model.n_values)
    if model.loss == "squared":  # of features that have left the first layer
        gone = np.setdiff1d(np.arange(model.sizes[0]), model.features)
        penalties[3 + gone] = evidence.LARGEST / scale
        value -= n_effective * float(np.sum(np.log(y_scale)))
        if model.n_values > 1:
            squares = sum_over_blocks(
                lambda x, y, weight: weight @ (model.values(net.theta, x) - y) ** 2,
                rows,
                model.n_linear + model.n_values,
            )
            noise_ratio = laplace.noise_ratio(squares)
    of_penalties = 0.0
    if options.evidence.alpha is None:
        of_penalties = evidence.parameters_of_penalties(found.gamma, model.groups())
    known = Summary(
        alpha=by_name(model, penalties),
        loss=loss * options.scaling.loss_scale if loss > 0 else 0.0,
        covariance=laplace.deferred_covariance(
            model, sums, net.alpha, net.beta, n_effective
        ),
        noise_ratio=noise_ratio,
        gram=sums.gram,
        alpha_method=evidence_gn.alpha_method(sums.gram),
        noise_std=y_scale * noise_deviation(net.beta, noise_ratio),
        n_effective_parameters=float(np.sum(found.gamma)) + model.n_free,
        n_of_penalties=of_penalties,
        log_evidence=value,
        n_rows=n_effective,
    )
    return member._replace(known=known)


def by_name(model, penalties):
    """Return penalties of the groups by their names."""
    weights, layers = np.split(penalties[3:], [model.n_feature_groups])
    named = dict(zip(("slope", "coef", "bias"), penalties[:3].tolist(), strict=True))
    return {**named, "weights": weights, "layers": layers}


# --- regression -----------------------------------------------------------------------


class Candidate(NamedTuple):
    """Members that count as one model, and its density at rows that are left out."""

    members: tuple
    log_p: np.ndarray  # (m, k)  log densities at laplace.left_out_rows

    @classmethod
    def of(cls, members, errors, variances, weight, n_effective):
        """Return the candidate of left-out errors and variances, (members, m, k).

        Penalties are not chosen again without a row. Each that the rows have chosen
        costs a model two units of log density: one is what a free parameter gains on
        rows that it was fitted to and loses on others, one that of models which the
        rows do not tell apart the simpler is the better choice.
        """
        share = shares(members)[:, 0]
        mean = np.tensordot(share, errors, axes=1)
        variance = np.tensordot(share, variances + (errors - mean) ** 2, axes=1)
        pairs = zip(mean.T, variance.T, strict=True)
        log_p = np.transpose([stacking.log_densities(*p, weight) for p in pairs])
        n_penalties = float(share @ [m.known.n_of_penalties for m in members])
        cost = stacking.COST_OF_A_PENALTY * n_penalties / n_effective
        return cls(members, log_p - cost)


def of_kinds(members, rows, n_effective):
    """Return the :class:`Candidate` of the networks of each activation."""
    found, some = [], left_out_rows(rows)
    for kind in dict.fromkeys(member.model.activations for member in members):
        own = tuple(m for m in members if m.model.activations == kind)
        pairs = [left_out_errors(member, n_effective, some) for member in own]
        both = np.swapaxes(pairs, 0, 1)
        found.append(Candidate.of(own, *both, some.weight, n_effective))
    return found


def of_regression(members, rows, options, is_open):
    """Return the members of all candidates with their shares, networks first.

    A Gaussian process is one of them if ``is_open``.
    """
    n_effective = options.evidence.n_effective
    linear, line = linear_model(rows, n_effective), ()
    if linear is not None:
        d, k = members[0].model.sizes[0], rows.y.shape[1]
        model = Layers((d,), (), k, "squared", tuple(range(d)))
        alpha, gamma = linear.penalties(model.n_groups)
        theta, beta = linear.coef.ravel(), linear.beta
        net = RegularisedLayers(theta, alpha, beta, gamma, linear.log_evidence)
        line = with_summaries((Member(model, net),), rows, options)
    candidates = of_kinds((*members, *line), rows, n_effective)
    process = of_process(rows, options, candidates) if is_open else None
    candidates += [] if process is None else [process]
    found, share = [], weights(candidates, left_out_rows(rows).weight, n_effective)
    for candidate, own in zip(candidates, share, strict=True):
        parts = zip(candidate.members, shares(candidate.members), strict=True)
        found += [member._replace(share=part * own) for member, part in parts]
    others = (member for member in found[len(members) :] if np.any(member.share))
    return (*found[: len(members)], *others)


def weights(candidates, weight, n_effective):
    """Return the weights of the candidates, (candidates, k), by weighted rows."""
    of_targets = np.transpose([candidate.log_p for candidate in candidates], (2, 1, 0))
    return np.transpose([stacking.weights(p, weight, n_effective) for p in of_targets])


def of_process(rows, options, others):
    """Return the :class:`Candidate` of a Gaussian process, or None.

    It is fitted to some of the rows that are left out, and to all of them if it then
    has a share beside the other candidates.
    """
    some, n_effective = left_out_rows(rows), options.evidence.n_effective
    counts = some._replace(weight=n_effective * some.weight)
    order = np.random.RandomState(options.seed).permutation(len(some.x))
    first, few = order[:_FIRST_ROWS], order[: 3 * _FIRST_ROWS]
    few_rows, features = (a[first] for a in counts), Units.varying(some.x)
    logs = gaussian_process.first_kernel(*few_rows, features)
    part = Rows(*(a[few] for a in counts))
    found = _process(logs, part, options)
    if found is None:
        return None
    beside = [other._replace(log_p=other.log_p[few]) for other in others]
    if not np.any(weights([*beside, found], part.weight, n_effective)[-1]):
        return None
    if len(order) > _FIRST_ROWS:
        logs = gaussian_process.best_kernel(logs, *part).x
    return _process(logs, counts, options)


def _process(logs, counts, options):
    """The :class:`Candidate` of a process of some rows, or None."""
    found = gaussian_process.fitted(Kernel.of(logs), *counts)
    if found is None:
        return None
    process, n_effective = found.process, options.evidence.n_effective
    noise, ones = process.scale * process.kernel.noise, np.ones(counts.y.shape[1])
    y_scale = options.scaling.y_scale * ones
    value = found.log_evidence - n_effective * float(np.sum(np.log(y_scale)))
    sees_all = math.isclose(np.sum(counts.weight), n_effective)
    known = Summary(
        alpha={},
        loss=found.loss * options.scaling.loss_scale,
        covariance=laplace.Deferred(process.root),
        noise_ratio=ones,
        noise_std=y_scale * noise_deviation(1 / noise, ones),
        n_effective_parameters=found.gamma,
        n_of_penalties=process.kernel.n_determined(),
        log_evidence=value if sees_all else math.nan,  # that of other data
        n_rows=float(np.sum(counts.weight)),
    )
    net = RegularisedLayers(found.theta, None, 1 / noise, None, found.log_evidence)
    variances = np.broadcast_to(found.variances[:, None], found.errors.shape)
    member, both = Member(process, net, known=known), (found.errors, variances)
    return Candidate.of((member,), *(a[None] for a in both), counts.weight, n_effective)


# --- classes --------------------------------------------------------------------------


def of_classes(small, wide, lacking, rows, n_effective):
    """Return the members of a classification with their shares, and a constant.

    ``lacking`` are the wide members before they saw all rows, the first of them without
    the first part; empty if they have not.
    """
    some, k = left_out_rows(rows), rows.y.shape[1]
    # The prior counts as one row, in all classes alike.
    counts = n_effective * rows.weight @ rows.y + 1 / k
    # A row that stands for several is left out once only.
    left = counts - np.minimum(n_effective * some.weight, 1)[:, None] * some.y
    left /= np.sum(left, axis=1, keepdims=True)
    log_p = [np.sum(some.y * np.log(left), axis=1)]
    if small:
        values = [left_out_values(member, n_effective, some) for member in small]
        if not np.isfinite(values).all():
            return small + wide
        p = np.mean([np.exp(_log_p(all_classes(u), some.y)) for u in values], axis=0)
        n_penalties = np.mean([member.known.n_of_penalties for member in small])
        cost = stacking.COST_OF_A_PENALTY * n_penalties
        log_p.append(np.log(p) - cost / n_effective)
    of_wide = [member.values(some.x) for member in lacking or wide]
    share, factor = shares_and_factor(log_p, of_wide, rows, n_effective)
    wide = tuple(one.with_output(lambda output: factor * output) for one in wide)
    # The constant is a network without hidden layers, whose slopes are zero.
    model = (small or wide)[0].model
    model = model._replace(sizes=model.sizes[:1], activations=()).with_all_features()
    output = np.zeros((model.n_linear, model.n_values))
    output[0] = log_odds(counts, model.n_values)
    alpha, gamma = np.full(model.n_groups, evidence.LARGEST), np.zeros(model.n_groups)
    net = RegularisedLayers(model.join(output, []), alpha, 1.0, gamma, math.nan)
    constant = (Member(model, net),) if share[0] > 0 else ()
    kinds = [kind for kind in (small, wide) if kind]
    return tuple(
        member._replace(share=own / len(members))
        for members, own in zip([*kinds, constant], [*share[1:], share[0]], strict=True)
        for member in members
    )


def shares_and_factor(log_p, wide, rows, n_effective):
    """Return the weights of candidates, the wide members last, and their factor."""
    some = left_out_rows(rows)
    if not wide:
        return stacking.weights(np.transpose(log_p), some.weight, n_effective), 1.0
    part = left_out_rows(rows._replace(y=left_out_part(rows))).y
    kept = np.flatnonzero(part < len(wide))
    y, weight = some.y[kept], n_effective * some.weight[kept]
    logits = all_classes(np.array(wide)[part[kept], kept])
    others = [p[kept] for p in log_p]

    def densities(log_factor):
        return np.transpose([*others, _log_p(math.exp(log_factor) * logits, y)])

    def loss(log_factor):
        each = densities(log_factor)
        share = stacking.weights(each, weight, n_effective)
        with np.errstate(divide="ignore"):
            mixed = logsumexp(each, axis=1, b=share)
        return -float(weight @ mixed) + 2 * log_factor**2

    best = minimize_scalar(loss).x
    return stacking.weights(densities(best), weight, n_effective), math.exp(best)


def _log_p(logits, y):
    """Logarithm of the probability of the true class; 1e-12 is as bad as less."""
    return np.maximum(np.sum(y * log_softmax(logits, axis=1), axis=1), math.log(1e-12))
