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
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from sklearn_gn.bayes import evidence, gaussian_process, laplace, stacking
from sklearn_gn.bayes.gaussian_process import Kernel
from sklearn_gn.bayes.laplace import left_out_rows
from sklearn_gn.bayes.layers import RegularisedLayers
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.varpro.members import (
    Member,
    left_out_errors,
    left_out_values,
    networks_of,
    shares,
    with_shares,
)
from sklearn_gn.varpro.wide_members import left_out_part

_FIRST_ROWS = 200  # of the search for a kernel, which ends with three times as many


class Candidate(NamedTuple):
    """Members that count as one model, and its density at rows that are left out."""

    members: tuple
    summaries: tuple
    share: np.ndarray  # (members, 1)  of the members among themselves
    log_p: np.ndarray  # (m, k)  log densities at laplace.left_out_rows
    numbers: tuple = (math.inf,)  # of the members; those of other than networks last

    @classmethod
    def of(cls, members, summaries, share, errors, variances, rows, n_effective):
        """Return the candidate of left-out errors and variances, of shape (m, k).

        Penalties are not chosen again without a row. Each that the rows have chosen
        costs a model two units of log density: one is what a free parameter gains on
        rows that it was fitted to and loses on others, one that of models which the
        rows do not tell apart the simpler is the better choice.
        """
        n_penalties = float(share[:, 0] @ [s.n_of_penalties for s in summaries])
        of_targets = [
            stacking.log_densities(*pair, rows.weight)
            for pair in zip(errors.T, variances.T, strict=True)
        ]
        log_p = (
            np.transpose(of_targets)
            - stacking.COST_OF_A_PENALTY * n_penalties / n_effective
        )
        return cls(members, summaries, share, log_p)


def of_networks(members, summaries, rows, n_effective):
    """Return the :class:`Candidate` of networks of each activation."""
    found, some = [], left_out_rows(rows)
    for kind in dict.fromkeys(member.model.activations for member in members):
        numbers = [i for i, m in enumerate(members) if m.model.activations == kind]
        own = tuple(members[i] for i in numbers)
        share, known = shares(own), tuple(summaries[i] for i in numbers)
        pairs = [
            left_out_errors(member, summary.covariance, n_effective, some)
            for member, summary in zip(own, known, strict=True)
        ]
        errors, variances = np.swapaxes(pairs, 0, 1)
        mean = np.tensordot(share[:, 0], errors, axes=1)
        spread = variances + (errors - mean) ** 2
        variances = np.tensordot(share[:, 0], spread, axes=1)
        one = Candidate.of(own, known, share, mean, variances, some, n_effective)
        found.append(one._replace(numbers=tuple(numbers)))
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
    share, variances = np.ones((1, 1)), factors / linear.beta
    return Candidate.of(
        (member,), (summary,), share, errors, variances, some, n_effective
    )


def of_process(rows, n_effective, others, summary_of, seed, logs=None):
    """Return the :class:`Candidate` of a Gaussian process, or None.

    It is fitted to some of the rows that are left out, and to all of them if it then
    has a share beside the other candidates. ``summary_of`` maps the fitted process to
    its summary; ``logs`` is the kernel of some rows, if it is known.
    """
    share, logs = share_of_process(rows, n_effective, others, summary_of, seed, logs)
    if not np.any(share):
        return None
    counts, order = _counts(rows, n_effective, seed)
    if len(order) > _FIRST_ROWS:
        few = order[: 3 * _FIRST_ROWS]
        logs = gaussian_process.best_kernel(logs, *(a[few] for a in counts)).x
    return _process(logs, counts, n_effective, summary_of)


def share_of_process(rows, n_effective, others, summary_of, seed, logs=None):
    """Return the share of a process of some rows beside others, and its kernel."""
    counts, order = _counts(rows, n_effective, seed)
    if logs is None:
        few = order[:_FIRST_ROWS]
        logs = gaussian_process.first_kernel(*(a[few] for a in counts))
    few = order[: 3 * _FIRST_ROWS]
    part = type(counts)(*(a[few] for a in counts))
    found = _process(logs, part, n_effective, summary_of)
    if found is None:
        return 0.0, logs
    at_few = [other._replace(log_p=other.log_p[few]) for other in others]
    return weights([*at_few, found], part.weight, n_effective)[-1], logs


def _counts(rows, n_effective, seed):
    """The rows that are left out, with counts as weights, and an order of them."""
    some = left_out_rows(rows)
    order = np.random.RandomState(seed).permutation(len(some.x))
    return some._replace(weight=n_effective * some.weight), order


def _process(logs, counts, n_effective, summary_of):
    """The :class:`Candidate` of a process of some rows, or None."""
    found = gaussian_process.fitted(Kernel.of(logs), *counts)
    if found is None:
        return None
    noise = found.process.scale * found.process.kernel.noise
    net = RegularisedLayers(found.theta, None, 1 / noise, None, found.log_evidence)
    known = (Member(found.process, net),), (summary_of(found),), np.ones((1, 1))
    variances = np.broadcast_to(found.variances[:, None], found.errors.shape)
    return Candidate.of(*known, found.errors, variances, counts, n_effective)


def weights(candidates, weight, n_effective):
    """Return the weights of the candidates, (candidates, k), by weighted rows."""
    log_p = np.array([candidate.log_p for candidate in candidates])
    of_targets = np.transpose(log_p, (2, 1, 0))
    return np.transpose([stacking.weights(p, weight, n_effective) for p in of_targets])


def stacked(candidates, rows, n_effective):
    """Return the members with their shares, and the summaries."""
    found = []
    share = weights(candidates, left_out_rows(rows).weight, n_effective)
    for candidate, own in zip(candidates, share, strict=True):
        members = with_shares(candidate.members, candidate.share * own)
        if networks_of(members) or np.any(own):
            found += zip(candidate.numbers, members, candidate.summaries, strict=True)
    _, members, summaries = zip(*sorted(found, key=itemgetter(0)), strict=True)
    return members, list(summaries)


# --- classes --------------------------------------------------------------------------


def of_classes(small, summaries, wide, lacking, rows, n_effective):
    """Return the members of a classification with their shares, and a constant.

    ``lacking`` are the wide members before they saw all rows, the first of them without
    the first part; empty if they have not.
    """
    some = left_out_rows(rows)
    # The prior counts as one row, in all classes alike.
    counts = n_effective * rows.weight @ rows.y + 1 / rows.y.shape[1]
    # A row that stands for several is left out once only.
    left = counts - np.minimum(n_effective * some.weight, 1)[:, None] * some.y
    left /= np.sum(left, axis=1, keepdims=True)
    log_p = [np.sum(some.y * np.log(left), axis=1)]
    if small:
        values = [
            left_out_values(member, summary.covariance.get(), n_effective, some)
            for member, summary in zip(small, summaries, strict=True)
        ]
        if not np.isfinite(values).all():
            return small + wide
        p = np.mean([np.exp(_log_p(all_classes(u), some.y)) for u in values], axis=0)
        cost = stacking.COST_OF_A_PENALTY * np.mean(
            [s.n_of_penalties for s in summaries]
        )
        log_p.append(np.log(p) - cost / n_effective)
    of_wide = [member.values(some.x) for member in lacking or wide]
    share, factor = shares_and_factor(log_p, of_wide, rows, n_effective)
    wide = tuple(one.with_output(lambda output: factor * output) for one in wide)
    constant = (_constant((small or wide)[0].model, counts),) if share[0] > 0 else ()
    kinds = [kind for kind in (small, wide) if kind]
    found: tuple = ()
    for members, own in zip([*kinds, constant], [*share[1:], share[0]], strict=True):
        found += with_shares(members, len(members) * [own / max(1, len(members))])
    return found


def _constant(model, counts):
    """Return the member that predicts the frequencies of the classes."""
    log_p = np.log(counts / np.sum(counts))
    output = np.zeros((model.n_linear, model.n_values))
    two = model.n_values == 1
    output[0] = log_p[1] - log_p[0] if two else log_p - np.mean(log_p)
    theta = model.join(output, [np.zeros(shape) for shape in model.shapes()])
    alpha = np.full(model.n_groups, evidence.LARGEST)
    gamma = np.zeros(model.n_groups)
    return Member(model, RegularisedLayers(theta, alpha, 1.0, gamma, math.nan))


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
