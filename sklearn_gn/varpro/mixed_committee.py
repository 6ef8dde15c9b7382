"""Committees of small classifiers by the evidence and wide ones by mini-batches.

The two kinds err differently. The evidence finds how noisy the classes are, but takes
classes that are nearly separable for noisier than they are; wide networks with priors
of fixed size do well there, and fit noise where classes overlap. Rows that are left out
tell which of these the data are (:mod:`sklearn_gn.varpro.weighing`).

An iteration is one of :mod:`sklearn_gn.varpro.committee` and one epoch of
:mod:`sklearn_gn.varpro.batch_committee`, until either has ended.
"""

from typing import NamedTuple

from sklearn_gn.bayes.evidence_gn import EvidenceOptions
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.varpro import batch_committee, committee
from sklearn_gn.varpro.batch_committee import BatchOptions, BatchState
from sklearn_gn.varpro.committee import CommitteeState


class MixedOptions(NamedTuple):
    """Settings of a run."""

    evidence: EvidenceOptions
    batches: BatchOptions
    n_evidence: int  # members by the evidence, which stand first
    seed: int  # of the mini-batches; a checkpoint brings that of its fit

    @property
    def n_effective(self):
        """Number of rows, counted by their weights."""
        return self.evidence.n_effective

    @property
    def alpha(self):
        """Given penalties of the members by the evidence, or None."""
        return self.evidence.alpha


class MixedState(NamedTuple):
    """State of a fit; the last networks are the best."""

    net: tuple  # of Member
    loss: float
    criterion: float
    evidence: CommitteeState
    batches: BatchState
    reports: tuple = (None, None)  # the last Report of both, or None


def init(rows, members, options):
    """Return the state of a fit that starts from some members."""
    k = options.n_evidence
    evidence = committee.init(rows, members[:k], options.evidence)
    batches = batch_committee.init(rows, members[k:], options.batches)
    return MixedState(evidence.net + batches.net, evidence.loss, 0.0, evidence, batches)


def step(rows, state, options):
    """Take a step of the members by the evidence, and an epoch of the others."""
    evidence, batches = state.evidence, state.batches
    report, of_batches = state.reports
    if _runs(report):
        evidence, report = committee.step(rows, evidence, options.evidence)
    if _runs(of_batches):
        settings = options.batches._replace(seed=options.seed)
        batches, of_batches = batch_committee.step(rows, batches, settings)
    state = MixedState(
        net=evidence.net + batches.net,
        loss=report.loss,
        criterion=state.criterion - 1,
        evidence=evidence,
        batches=batches,
        reports=(report, of_batches),
    )
    ended = not (_runs(report) or _runs(of_batches))
    return state, report._replace(stop=report.stop if ended else None)


def _runs(report):
    return report is None or report.stop is None


MIXED_COMMITTEE = Algorithm("gnvpro", init, step, compiled=False)
