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

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.extremes import MOST_ROWS
from sklearn_gn.data.rows_source import RowSource
from sklearn_gn.runtime.fit_loop import Continued
from sklearn_gn.shallow_relu import evidence_gn
from sklearn_gn.shallow_relu.evidence_gn import EVIDENCE_GN
from sklearn_gn.solvers import JointGN, SgGN

_SAMPLE_ITERATIONS = 200  # most steps of each start on the sample
_RISE = 0.1  # of the log posterior in an iteration on the sample that is progress
_ON_SAMPLE = 1e6  # more than what criteria of two networks differ by


class SampleState(NamedTuple):
    """State of a start on the sample: that of the iteration."""

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
        return getattr(self.inner, "criterion", self.loss) + _ON_SAMPLE


def reason_against_chunks(estimator, n_features):
    """Return what needs all rows at once and what to do, or None.

    Parameters
    ----------
    estimator : ShallowReLURegressor
    n_features : int
    """
    solver = type(estimator._solver_object())
    if estimator.loss != "squared_error":
        return (
            f"loss={estimator.loss!r} ranks the residuals of all rows. Set "
            "loss='squared_error'."
        )
    if solver not in (JointGN, SgGN):
        return (
            f"solver={estimator.solver!r} keeps all rows. Set solver='vpgn' or 'sggn'."
        )
    by_evidence = estimator.alpha == "auto" and solver is JointGN and n_features > 1
    by_evidence |= isinstance(estimator.alpha, dict)
    if not by_evidence and backend.mesh_of(estimator.device) is not None:
        return (
            f"device={estimator.device!r}: chunks are fitted on one device. Give its "
            "name."
        )
    if n_features == 1 and not isinstance(estimator.alpha, dict):
        return (
            "With one feature, the search for breakpoints sorts all rows. "
            "SegmentedRegressor.fit_chunks finds breakpoints of rows in chunks."
        )
    return None


def on_all_rows(problem, chunks, found):
    """Return the problem of all rows, from that of their sample.

    Parameters
    ----------
    problem : Problem
    chunks : CheckedRows
    found : Survey
    """
    share = found.sample.weight.sum() / found.total
    sample = problem.rows._replace(weight=share * problem.rows.weight)
    n_observations = max(found.total, found.n_rows)
    n_effective = min(float(n_observations), MOST_ROWS)
    options, starts = problem.options, problem.starts
    if problem.solver is EVIDENCE_GN:
        options = options._replace(n_effective=n_effective)
        starts = [(start,) for start in starts[0]]
    return problem._replace(
        solver=_sample_first(problem.solver),
        rows=RowSource(chunks, problem.scaling, found, sample),
        options=options,
        starts=[*starts, Continued()],
        n_effective=found.total,
        n_observations=n_observations,
    )


# --- the sample, then all rows -------------------------------------------------------


def _sample_first(algorithm):
    """Return the algorithm whose last start goes on from the sample to all rows."""
    init_on_all, step_on_all = _on_all_rows(algorithm)
    step_on_sample = algorithm.step
    if algorithm is EVIDENCE_GN:
        step_on_sample = _fit_by_evidence

    def prepare(rows, options):
        share = rows.sample.weight.sum()
        sample = rows.sample._replace(weight=rows.sample.weight / share)
        return algorithm.prepare(sample, _of_sample(options, rows)), rows

    def init(data, start, options):
        sample, rows = data
        if isinstance(start, Continued):
            return init_on_all(rows, start.net, options)
        return SampleState(algorithm.init(sample, start, _of_sample(options, rows)))

    def step(data, state, options):
        sample, rows = data
        if not isinstance(state, SampleState):
            state, report = step_on_all(rows, state, options)
            return state, _with_number(report, rows.n_rows)
        few = _of_sample(options, rows)
        inner, report = step_on_sample(sample, state.inner, few)
        return SampleState(inner), _with_number(report, _number_of_rows(rows.sample))

    return replace(algorithm, prepare=prepare, init=init, step=step)


def _on_all_rows(algorithm):
    """Return how to begin with a network and all rows, and how to go on."""
    if algorithm is EVIDENCE_GN:
        return _init_by_evidence, evidence_gn.step
    from sklearn_gn.shallow_relu import chunked_descent

    return chunked_descent.init, chunked_descent.STEPS[algorithm.name]


def _init_by_evidence(rows, net, options):
    state = evidence_gn.init_one(rows, net, options)
    if options.alpha is not None:
        return state
    # The penalties are those of the sample already, and may move at once.
    value = -state.criterion * options.n_effective
    return state._replace(iteration=evidence_gn.FIRST_UPDATE, highest=value)


def _fit_by_evidence(rows, state, options):
    """Iterate to the end, which is one row of the log."""
    n_steps, stop = 0, None
    while stop is None and n_steps < _SAMPLE_ITERATIONS:
        state, report = evidence_gn.step(rows, state, options)
        n_steps, stop = n_steps + report.inner_iterations, report.stop
    return state, report._replace(stop=stop or "max_iter", inner_iterations=n_steps)


def _of_sample(options, rows):
    """Return the options of a fit to the sample."""
    share, n_rows = rows.sample.weight.sum(), _number_of_rows(rows.sample)
    if getattr(options, "alpha", None) is not None:  # the fit ends by its loss
        tol = max(float(options.tol), _RISE / n_rows)
        options = options._replace(tol=type(options.tol)(tol))
    if hasattr(options, "n_effective"):
        options = options._replace(n_effective=share * options.n_effective)
    return options


def _number_of_rows(sample):
    return int((sample.weight > 0).sum())  # others are padding


def _with_number(report, n_rows):
    return report._replace(extra={**(report.extra or {}), "n_rows": n_rows})
