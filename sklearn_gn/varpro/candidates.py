"""What the members of a regression share in predictions, by stacking.

The candidates are the networks of each activation, whose mean counts as one model, the
linear model, and the limit of infinitely many neurons. Each gives the density of rows
that it has not seen, from its Gauss-Newton matrix or its kernel, without a fit; the
weights of :mod:`sklearn_gn.bayes.stacking`, one set for each target, are the shares.
So networks that follow noise give way to the linear model, and those that are too small
to the process, without a rule of size, noise or kind.
"""

import math
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from sklearn_gn.bayes import gaussian_process, laplace, stacking
from sklearn_gn.bayes.gaussian_process import Kernel
from sklearn_gn.bayes.laplace import left_out_rows
from sklearn_gn.bayes.layers import RegularisedLayers
from sklearn_gn.varpro.members import (
    Member,
    left_out_errors,
    networks_of,
    shares,
    with_shares,
)

_FIRST_ROWS, _MORE_ROWS = 200, 600  # of the search for a kernel
_COST_OF_A_PENALTY = 2.0  # in units of the log density of all rows


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

    It is fitted to few rows first, and goes on with more if it has a share beside the
    other candidates. ``summary_of`` maps the fitted process to its summary.
    """
    rows = rows._replace(weight=n_effective * rows.weight)  # counts
    order = np.random.RandomState(seed).permutation(len(rows.x))
    order = order[: gaussian_process.MOST_ROWS]
    known = rows.x[order], rows.y[order], rows.weight[order]

    def candidate(logs):
        found = gaussian_process.fitted(Kernel.of(logs), *known)
        if found is None:
            return None
        member, summary = member_of(found), summary_of(found)
        errors = _at_left_out_rows(found, order, rows)
        return Candidate(
            (member,), (summary,), np.ones((1, 1)), *errors, summary.n_of_penalties
        )

    first, more = ([a[:n] for a in known] for n in (_FIRST_ROWS, _MORE_ROWS))
    logs = gaussian_process.first_kernel(*first)
    found = candidate(logs)
    if found is None or not np.any(weights([*others, found], rows, n_effective)[-1]):
        return None
    if len(more[0]) > len(first[0]):
        found = candidate(gaussian_process.improved_kernel(logs, *more)) or found
    return found


def member_of(found):
    """Return the member that is a FittedProcess."""
    noise = found.process.scale * found.process.kernel.noise
    net = RegularisedLayers(found.theta, None, 1 / noise, None, found.log_evidence)
    return Member(found.process, net)


def _at_left_out_rows(found, order, rows):
    """Errors and variances of observations, (m, k), at rows with their counts."""
    k, n = rows.y.shape[1], len(rows.x)
    errors, variances = np.empty((n, k)), np.empty((n, 1))
    errors[order], variances[order] = found.errors, found.variances[:, None]
    looked_at = left_out_rows(rows._replace(x=np.arange(n))).x
    unseen = np.setdiff1d(looked_at, order)
    if len(unseen):
        process, root = found.process, found.process.root()
        x = rows.x[unseen]
        errors[unseen] = process.values(found.theta, x) - rows.y[unseen]
        noise = process.scale * process.kernel.noise
        variances[unseen] = process.variances(root, x) + noise
    return errors[looked_at], np.broadcast_to(variances[looked_at], (len(looked_at), k))


def weights(candidates, rows, n_effective):
    """Return the weights of the candidates, of shape (candidates, k).

    Penalties are not chosen again without a row. Each that the rows have chosen costs a
    model two units of log density: one is what a free parameter gains on rows that it
    was fitted to and loses on others, one that of models which the rows do not tell
    apart the simpler is the better choice.
    """
    weight = left_out_rows(rows).weight

    def of_target(t):
        each = [
            stacking.log_densities(c.errors[:, t], c.variances[:, t], weight)
            - _COST_OF_A_PENALTY * c.n_penalties / n_effective
            for c in candidates
        ]
        return stacking.weights(np.transpose(each), weight)

    return np.transpose([of_target(t) for t in range(rows.y.shape[1])])


def stacked(candidates, rows, n_effective):
    """Return the members with their shares, and the summaries.

    Networks stay members without a share, as the fit may go on with them.
    """
    found = []
    share = weights(candidates, rows, n_effective)
    for candidate, own in zip(candidates, share, strict=True):
        members = with_shares(candidate.members, candidate.share * own)
        if networks_of(members) or np.any(own):
            found += zip(candidate.numbers, members, candidate.summaries, strict=True)
    _, members, summaries = zip(*sorted(found, key=itemgetter(0)), strict=True)
    return members, list(summaries)
