"""What the members share in predictions, by stacking.

The candidates of a regression are the networks of each activation, whose mean counts as
one model, the linear model, and the limit of infinitely many neurons. Each gives the
density of rows that it has not seen, from its Gauss-Newton matrix or its kernel; the
weights of :mod:`sklearn_gn.bayes.stacking`, one set for each target, are the shares.
So networks that follow noise give way to the linear model, and those that are too small
to the process, without a rule of size, noise or kind.

Those of a classification are the small networks by the evidence, the wide ones, and the
frequencies of the classes. Of the small networks
:func:`~sklearn_gn.varpro.members.left_out_values` tells the values at left-out rows,
and each wide one has been fitted without a part of them. One factor t of the logits of
the wide ones is chosen with the weights, at the cost ``2 log^2 t`` in units of the log
density of all rows, which keeps few rows from deciding.
"""

import math
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from sklearn_gn.bayes import evidence, gaussian_process, laplace, stacking
from sklearn_gn.bayes.gaussian_process import Kernel
from sklearn_gn.bayes.laplace import left_out_rows
from sklearn_gn.bayes.layers import RegularisedLayers
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.optim.solver import Rows
from sklearn_gn.varpro.members import (
    Member,
    left_out_errors,
    left_out_values,
    networks_of,
    shares,
    with_shares,
)
from sklearn_gn.varpro.wide_members import left_out_shares

_FIRST_ROWS, _MORE_ROWS = 200, 600  # of the search for a kernel
_LARGEST_FACTOR = 4.0  # of the logits of wide members, its inverse the smallest
_PRIOR_COUNT = 0.5  # rows of each class that count beside those there are


class Candidate(NamedTuple):
    """Members that count as one model, and their errors at rows that are left out."""

    members: tuple
    summaries: tuple
    share: np.ndarray  # (members, 1)  of the members among themselves
    errors: np.ndarray  # (m, k)  of the mean, at laplace.left_out_rows
    variances: np.ndarray  # (m, k)  of observations
    n_penalties: float  # that the rows have chosen, as parameters
    numbers: Any = (math.inf,)  # of the members; those of others than networks are last


def of_networks(members, summaries, rows, n_effective):
    """Return the :class:`Candidate` of networks of each activation."""
    found, some = [], left_out_rows(rows)
    for kind in dict.fromkeys(member.model.activations for member in members):
        numbers = [i for i, m in enumerate(members) if m.model.activations == kind]
        own = tuple(members[i] for i in numbers)
        share, known = shares(own), tuple(summaries[i] for i in numbers)
        errors, variances = np.swapaxes(
            [
                left_out_errors(member, summary.covariance, n_effective, some)
                for member, summary in zip(own, known, strict=True)
            ],
            0,
            1,
        )
        mean = np.tensordot(share[:, 0], errors, axes=1)
        spread = variances + (errors - mean) ** 2
        variances = np.tensordot(share[:, 0], spread, axes=1)
        n_penalties = float(share[:, 0] @ [s.n_of_penalties for s in known])
        found.append(
            Candidate(own, known, share, mean, variances, n_penalties, numbers)
        )
    return found


def of_linear(linear, member, summary, rows, n_effective):
    """Return the :class:`Candidate` of a LinearModel."""
    some = left_out_rows(rows)
    residuals = linear.coef[0] + some.x @ linear.coef[1:] - some.y
    leverage = linear.leverage(some.x)
    errors, factors = (
        laplace.left_out_errors(a, leverage, some.weight, n_effective)
        for a in (residuals, np.ones_like(residuals))
    )
    return Candidate(
        (member,),
        (summary,),
        np.ones((1, 1)),
        errors,
        factors / linear.beta,
        summary.n_of_penalties,
    )


def of_process(rows, n_effective, others, summary_of, seed):
    """Return the :class:`Candidate` of a Gaussian process, or None.

    It is fitted to some of the rows that are left out, and to all of them if it then
    has a share beside the other candidates. ``summary_of`` maps the fitted process to
    its summary.
    """
    some = left_out_rows(rows)
    some = some._replace(weight=n_effective * some.weight)  # counts
    order = np.random.RandomState(seed).permutation(len(some.x))

    def candidate(logs, part):
        found = gaussian_process.fitted(Kernel.of(logs), *(a[part] for a in some))
        if found is None:
            return None
        variances = np.broadcast_to(found.variances[:, None], found.errors.shape)
        return Candidate(
            (member_of(found),),
            (summary_of(found),),
            np.ones((1, 1)),
            found.errors,
            variances,
            found.process.kernel.n_determined(),
        )

    few = order[:_FIRST_ROWS]
    logs = gaussian_process.first_kernel(*(a[few] for a in some))
    few = order[:_MORE_ROWS]
    found = candidate(logs, few)
    if found is None:
        return None
    at_few = [
        c._replace(errors=c.errors[few], variances=c.variances[few]) for c in others
    ]
    if not np.any(weights([*at_few, found], some.weight[few], n_effective)[-1]):
        return None
    if len(order) > _FIRST_ROWS:
        logs = gaussian_process.best_kernel(logs, *(a[few] for a in some)).x
    return candidate(logs, slice(None))


def member_of(found):
    """Return the member that is a FittedProcess."""
    noise = found.process.scale * found.process.kernel.noise
    net = RegularisedLayers(found.theta, None, 1 / noise, None, found.log_evidence)
    return Member(found.process, net)


# --- classes --------------------------------------------------------------------------


def of_classes(small, summaries, wide, lacking, rows, n_effective):
    """Return the members of a classification with their shares, and a constant.

    ``lacking`` are the wide members before they saw all rows, the first of them without
    the first part; empty if they have not.
    """
    some = left_out_rows(rows)
    counts, log_p = n_effective * rows.weight @ rows.y, []
    constant = _constant((small or wide)[0].model, counts)
    # A row that stands for several is left out once only.
    once = np.minimum(n_effective * some.weight, 1)[:, None] * some.y
    log_p.append(_log_p_of_shares(counts - once, some.y))
    if small:
        values = [
            left_out_values(member, summary.covariance.get(), n_effective, some)
            for member, summary in zip(small, summaries, strict=True)
        ]
        if not np.isfinite(values).all():
            return small + wide
        p = np.mean([np.exp(_log_p(u, some.y)) for u in values], axis=0)
        cost = stacking.COST_OF_A_PENALTY * np.mean(
            [s.n_of_penalties for s in summaries]
        )
        log_p.append(np.log(p) - cost / n_effective)
    of_wide = [model.values(net.theta, some.x) for model, net in lacking or wide]
    share, factor = shares_and_factor(log_p, of_wide, rows, n_effective)
    kinds = [
        (small, share[-2] if wide else share[-1]),
        (tuple(_with_factor(member, factor) for member in wide), share[-1]),
        ((constant,) if share[0] > 0 else (), share[0]),
    ]
    found: tuple = ()
    for members, own in kinds:
        found += with_shares(members, len(members) * [own / max(1, len(members))])
    return found


def _constant(model, counts):
    """Return the member that predicts the frequencies of the classes."""
    log_p = np.log((counts + _PRIOR_COUNT) / np.sum(counts + _PRIOR_COUNT))
    output = np.zeros((model.n_linear, model.n_values))
    two = model.n_values == 1
    output[0] = log_p[1] - log_p[0] if two else log_p - np.mean(log_p)
    theta = model.join(output, [np.zeros(shape) for shape in model.shapes()])
    alpha = np.full(model.n_groups, evidence.LARGEST)
    gamma = np.zeros(model.n_groups)
    return Member(model, RegularisedLayers(theta, alpha, 1.0, gamma, math.nan))


def _with_factor(member, factor):
    """Return a member whose logits are multiplied by a factor."""
    model, net = member
    output, layers = model.split(net.theta)
    return member._replace(net=net._replace(theta=model.join(factor * output, layers)))


def shares_and_factor(log_p, wide, rows, n_effective):
    """Return the weights of candidates, the wide members last, and their factor.

    ``log_p`` has log probabilities of the true classes, (m,), of each other candidate
    at laplace.left_out_rows; ``wide`` has the values (m, k) of each wide member.
    """
    if not wide:
        weight = left_out_rows(rows).weight
        return stacking.weights(np.transpose(log_p), weight, n_effective), 1.0
    part = left_out_shares(rows, n_effective)[: len(wide)] * rows.weight
    some = left_out_rows(Rows(rows.x, rows.y, part.T))
    lacking = n_effective * some.weight.T
    looked_at = lacking > 0  # pairs of a wide member and a row that it has not seen
    weight = lacking[looked_at]
    others = [np.broadcast_to(p, lacking.shape)[looked_at] for p in log_p]
    logits = [all_classes(values) for values in wide]

    def densities(log_factor):
        q = [_log_p(math.exp(log_factor) * values, some.y) for values in logits]
        return np.transpose([*others, np.array(q)[looked_at]])

    def loss(log_factor):
        each = densities(log_factor)
        share = stacking.weights(each, weight, n_effective)
        with np.errstate(divide="ignore"):
            mixed = logsumexp(each, axis=1, b=share)
        return -float(weight @ mixed) + 2 * log_factor**2

    limit = math.log(_LARGEST_FACTOR)
    best = minimize_scalar(loss, bounds=(-limit, limit), method="bounded").x
    return stacking.weights(densities(best), weight, n_effective), math.exp(best)


def _log_p(values, y):
    """Logarithm of the probability of the true class; 1e-12 is as bad as less."""
    log_p = np.sum(y * log_softmax(all_classes(values), axis=1), axis=1)
    return np.maximum(log_p, math.log(1e-12))


def _log_p_of_shares(counts, y):
    """The same of frequencies, from counts of the classes (m, C) of each row."""
    counts = counts + _PRIOR_COUNT
    return np.sum(y * np.log(counts / np.sum(counts, axis=1, keepdims=True)), axis=1)


# --- weights --------------------------------------------------------------------------


def weights(candidates, weight, n_effective):
    """Return the weights of the candidates, (candidates, k), from rows of some weight.

    Penalties are not chosen again without a row. Each that the rows have chosen costs a
    model two units of log density: one is what a free parameter gains on rows that it
    was fitted to and loses on others, one that of models which the rows do not tell
    apart the simpler is the better choice.
    """

    def of_target(t):
        each = [
            stacking.log_densities(c.errors[:, t], c.variances[:, t], weight)
            - stacking.COST_OF_A_PENALTY * c.n_penalties / n_effective
            for c in candidates
        ]
        return stacking.weights(np.transpose(each), weight, n_effective)

    return np.transpose([of_target(t) for t in range(len(candidates[0].errors[0]))])


def stacked(candidates, rows, n_effective):
    """Return the members with their shares, and the summaries.

    Networks stay members without a share, as the fit may go on with them.
    """
    found = []
    share = weights(candidates, left_out_rows(rows).weight, n_effective)
    for candidate, own in zip(candidates, share, strict=True):
        members = with_shares(candidate.members, candidate.share * own)
        if networks_of(members) or np.any(own):
            found += zip(candidate.numbers, members, candidate.summaries, strict=True)
    _, members, summaries = zip(*sorted(found, key=itemgetter(0)), strict=True)
    return members, list(summaries)
