"""Networks of rows that do not fit into memory.

Units and first networks come from a sample of the rows, and the networks are fitted to
it first. The last start of the fit goes on from the best of them with sums over all
rows; each sum goes through the chunks once. Of six iterations on a few rows, after
which a fit in memory chooses among its starts, little is seen: where the evidence
chooses the penalties, a sample finds good minima less often than all rows do, and each
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
from sklearn_gn.shallow_relu.problem import algorithm_of
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
    if algorithm_of(estimator, n_features) is not EVIDENCE_GN:
        return (
            f"With alpha={estimator.alpha!r} and n_neurons={estimator.n_neurons!r}, "
            "the global search keeps all rows. Set alpha='auto'."
        )
    return None


def on_all_rows(problem, chunks, found):
    """Return the problem of all rows, from the problem of their sample."""
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
    """State of a start on the sample, and state of the iteration."""

    net: Any
    loss: float
    criterion: float  # any network of all rows is better
    inner: Any


def _on_sample(inner):
    return SampleState(inner.net, inner.loss, inner.criterion + _ON_SAMPLE, inner)


def prepare(rows, options):
    """Return sample and options of a fit to it, and all rows and their number."""
    share, few = rows.sample.weight.sum(), rows.sample
    n_rows = int((few.weight > 0).sum())  # others are padding
    if options.alpha is not None:  # the fit ends by its loss
        options = options._replace(tol=max(float(options.tol), RISE / n_rows))
    options = options._replace(n_effective=share * options.n_effective)
    return few._replace(weight=few.weight / share), options, rows, n_rows


def init(data, start, options):
    """Start on the sample; the last start goes on from there to all rows."""
    sample, of_sample, rows, _ = data
    if not isinstance(start, Continued):
        return _on_sample(evidence_gn.init(sample, start, of_sample))
    state = evidence_gn.init(rows, (start.net,), options)
    if options.alpha is not None:
        return state
    # The penalties are those of the sample already, and may move at once.
    value = -state.criterion * options.n_effective
    return state._replace(iteration=FIRST_UPDATE, highest=value)


def step(data, state, options):
    """Fit the sample to the end, one row of the log, or take a step on all rows."""
    sample, of_sample, rows, n_rows = data
    if isinstance(state, SampleState):
        inner, n_steps, stop = state.inner, 0, None
        while stop is None and n_steps < _SAMPLE_ITERATIONS:
            inner, report = evidence_gn.step(sample, inner, of_sample)
            n_steps, stop = n_steps + report.inner_iterations, report.stop
        state, stop = _on_sample(inner), stop or "max_iter"
        report = report._replace(stop=stop, inner_iterations=n_steps)
    else:
        state, report = evidence_gn.step(rows, state, options)
        n_rows = rows.n_rows
    return state, report._replace(extra={**(report.extra or {}), "n_rows": n_rows})


SAMPLE_FIRST = replace(EVIDENCE_GN, prepare=prepare, init=init, step=step)
