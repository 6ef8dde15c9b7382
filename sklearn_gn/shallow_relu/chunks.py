"""Networks of rows that do not fit into memory.

Units and first networks come from a sample of the rows, and the networks are fitted to
it first. The last start of the fit goes on from the best of them with sums over all
rows, each of which goes through the chunks once. Of six iterations on a few rows, after
which a fit in memory chooses among its starts, little is seen: where the penalties are
those of the evidence, a sample finds good minima less often than all rows do, and each
start is fitted to the end.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from sklearn_gn.arrays.extremes import MOST_ROWS
from sklearn_gn.bayes.evidence_gn import FIRST_UPDATE, RISE
from sklearn_gn.data.rows_source import RowSource
from sklearn_gn.runtime.fit_loop import Continued
from sklearn_gn.shallow_relu import evidence_gn
from sklearn_gn.shallow_relu.evidence_gn import EVIDENCE_GN
from sklearn_gn.shallow_relu.problem import has_all_penalties
from sklearn_gn.solvers import JointGN

_SAMPLE_ITERATIONS = 200  # most steps of each start on the sample
_ON_SAMPLE = 1e6  # more than what criteria of two networks differ by


def reason_against_chunks(estimator, n_features):
    """Return what needs all rows at once and what to do, or None."""
    solver = type(estimator._solver_object())
    if estimator.loss != "squared_error":
        return (
            f"loss={estimator.loss!r} ranks the residuals of all rows. Set "
            "loss='squared_error'."
        )
    if n_features == 1 and not isinstance(estimator.alpha, dict):
        return (
            "With one feature, the search for breakpoints sorts all rows. "
            "SegmentedRegressor.fit_chunks finds breakpoints of rows in chunks."
        )
    if solver is not JointGN:
        return f"solver={estimator.solver!r} keeps all rows. Set solver='vpgn'."
    if not has_all_penalties(estimator, n_features):
        return (
            f"With alpha={estimator.alpha!r} and n_neurons={estimator.n_neurons!r}, "
            "the global search keeps all rows. Set alpha='auto'."
        )
    return None


def on_all_rows(problem, chunks, found):
    """Return the problem of all rows, from that of their sample."""
    share = found.sample.weight.sum() / found.total
    sample = problem.rows._replace(weight=share * problem.rows.weight)
    n_observations = max(found.total, found.n_rows)
    return problem._replace(
        solver=SAMPLE_FIRST,
        rows=RowSource(chunks, problem.scaling, found, sample),
        options=problem.options._replace(
            n_effective=min(float(n_observations), MOST_ROWS)
        ),
        starts=[*((start,) for start in problem.starts[0]), Continued()],
        n_effective=found.total,
        n_observations=n_observations,
    )


# --- the sample, then all rows -------------------------------------------------------


class SampleState(NamedTuple):
    """State of a start on the sample, and that of the iteration."""

    net: Any
    loss: float
    criterion: float  # any network of all rows is better
    inner: Any

    @classmethod
    def of(cls, inner):
        """Return the state of an iteration on the sample."""
        return cls(inner.net, inner.loss, inner.criterion + _ON_SAMPLE, inner)


def prepare(rows, options):
    """Return the sample, with weights of sum one, and all rows."""
    del options
    share = rows.sample.weight.sum()
    return rows.sample._replace(weight=rows.sample.weight / share), rows


def init(data, start, options):
    """Start on the sample; the last start goes on from there to all rows."""
    sample, rows = data
    if isinstance(start, Continued):
        return _init_by_evidence(rows, start.net, options)
    return SampleState.of(EVIDENCE_GN.init(sample, start, _of_sample(options, rows)))


def step(data, state, options):
    """Fit the sample to the end, or take an iteration on all rows."""
    sample, rows = data
    if isinstance(state, SampleState):
        few = _of_sample(options, rows)
        inner, report = _fit_by_evidence(sample, state.inner, few)
        state = SampleState.of(inner)
        n_rows = int((rows.sample.weight > 0).sum())  # others are padding
    else:
        state, report = evidence_gn.step(rows, state, options)
        n_rows = rows.n_rows
    return state, report._replace(extra={**(report.extra or {}), "n_rows": n_rows})


def _init_by_evidence(rows, net, options):
    state = evidence_gn.init_one(rows, net, options)
    if options.alpha is not None:
        return state
    # The penalties are those of the sample already, and may move at once.
    value = -state.criterion * options.n_effective
    return state._replace(iteration=FIRST_UPDATE, highest=value)


def _fit_by_evidence(rows, state, options):
    """Iterate to the end, which is one row of the log."""
    n_steps, stop = 0, None
    while stop is None and n_steps < _SAMPLE_ITERATIONS:
        state, report = evidence_gn.step(rows, state, options)
        n_steps, stop = n_steps + report.inner_iterations, report.stop
    return state, report._replace(stop=stop or "max_iter", inner_iterations=n_steps)


def _of_sample(options, rows):
    """Return the options of a fit to the sample."""
    share = rows.sample.weight.sum()
    if options.alpha is not None:  # the fit ends by its loss
        n_rows = int((rows.sample.weight > 0).sum())
        options = options._replace(tol=max(float(options.tol), RISE / n_rows))
    return options._replace(n_effective=share * options.n_effective)


SAMPLE_FIRST = replace(EVIDENCE_GN, prepare=prepare, init=init, step=step)
