"""Networks of rows that do not fit into memory, with penalties from the evidence.

The fit has two starts. The first one ends on a sample of the rows, from which units and
first networks come, too. The second one goes on from there with sums over all rows,
each of which goes through the chunks once.
"""

from typing import Any, NamedTuple

from sklearn_gn.core.chunked_rows import ChunkedRows
from sklearn_gn.core.extremes import MOST_ROWS
from sklearn_gn.core.fit_loop import THE_BEST
from sklearn_gn.core.solver import Algorithm
from sklearn_gn.shallow_relu import evidence_gn
from sklearn_gn.shallow_relu.evidence_gn import EVIDENCE_GN, RegularisedNetwork
from sklearn_gn.solvers import JointGN

_RISE = 0.1  # of the log posterior in an iteration on the sample that is progress
_ON_SAMPLE = 1e6  # more than what criteria of two networks differ by


class SampleState(NamedTuple):
    """State of the first start: that of the iteration on the sample."""

    inner: Any

    @property
    def net(self):
        """The network."""
        return self.inner.net

    @property
    def loss(self):
        """Its loss."""
        return self.inner.loss

    @property
    def criterion(self):
        """That of the sample; any network of all rows is better."""
        return self.inner.criterion + _ON_SAMPLE


def reason_against_chunks(estimator, n_features):
    """Return what needs all rows at once and what to do, or None.

    Parameters
    ----------
    estimator : ShallowReLURegressor
    n_features : int
    """
    if estimator.loss != "squared_error":
        return (
            f"loss={estimator.loss!r} ranks the residuals of all rows. Set "
            "loss='squared_error'."
        )
    if type(estimator._solver_object()) is not JointGN:
        return (
            f"solver={estimator.solver!r} keeps all rows. Set solver='vpgn' and "
            "alpha='auto'."
        )
    if isinstance(estimator.alpha, dict):
        return None
    if estimator.alpha != "auto":
        return (
            f"The global search of alpha={estimator.alpha!r} keeps all rows. Set "
            "alpha='auto', or give all penalties as a dict."
        )
    if n_features == 1:
        return (
            "With one feature, the choice of the breakpoints sorts all rows. "
            "SegmentedRegressor.fit_chunks finds breakpoints of rows in chunks."
        )
    return None


def on_all_rows(problem, chunks, found):
    """Return the problem of all rows, from that of their sample.

    Parameters
    ----------
    problem : Problem
    chunks : CheckedChunks
    found : Survey
    """
    share = found.sample.weight.sum() / found.total
    sample = problem.rows._replace(weight=share * problem.rows.weight)
    n_observations = max(found.total, found.n_rows)
    n_effective = min(float(n_observations), MOST_ROWS)
    return problem._replace(
        solver=CHUNKED_GN,
        rows=ChunkedRows(chunks, problem.scaling, found, sample),
        options=problem.options._replace(n_effective=n_effective),
        starts=[*problem.starts, THE_BEST],
        n_effective=found.total,
        n_observations=n_observations,
    )


# --- the iteration -------------------------------------------------------------------


def init(rows, start, options):
    """Start on the sample from networks, and on all rows from one of the sample."""
    if not isinstance(start, RegularisedNetwork):
        return SampleState(evidence_gn.init(*_of_sample(rows, start, options)))
    state = evidence_gn.init_one(rows, start, options)
    if options.alpha is not None:
        return state
    # The penalties are those of the sample already, and may move at once.
    value = -state.criterion * options.n_effective
    return state._replace(iteration=evidence_gn.FIRST_UPDATE, highest=value)


def step(rows, state, options):
    """One iteration, on the sample at first."""
    if isinstance(state, SampleState):
        sample, inner, few = _of_sample(rows, state.inner, options)
        inner, report = evidence_gn.step(sample, inner, few)
        return SampleState(inner), _with_number(report, len(sample.x))
    state, report = evidence_gn.step(rows, state, options)
    return state, _with_number(report, rows.n_rows)


def _of_sample(rows, start, options):
    """The sample, a start or state, and the options of a fit to the sample."""
    share = rows.sample.weight.sum()
    sample = rows.sample._replace(weight=rows.sample.weight / share)
    n_effective = share * options.n_effective
    tol = max(options.tol, _RISE / n_effective)
    return sample, start, options._replace(n_effective=n_effective, tol=tol)


def _with_number(report, n_rows):
    return report._replace(extra={**report.extra, "n_rows": n_rows})


CHUNKED_GN = Algorithm(EVIDENCE_GN.name, init, step, side_by_side=True, compiled=False)
