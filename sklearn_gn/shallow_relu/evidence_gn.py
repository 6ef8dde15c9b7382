r"""Joint Gauss-Newton steps whose penalties and noise level the evidence chooses.

The model has a linear term,

    u(x) = c0 + S^T x + sum_i c_i relu(w_i . x + b_i),

and a penalty for each group of parameters: the slopes S, the coefficients c, the biases
b, and the weights of each feature. The intercept is free. The iteration is in
:mod:`sklearn_gn.bayes.evidence_gn`. More neurons than the data need do no harm:
penalties switch them off, and noise-free data of a network are recovered exactly.
Neurons whose breaking hyperplane misses the data are taken into the linear term at the
end. A feature whose penalty has switched its hidden weights off leaves the matrix,
which makes it small where most features have no kinks.

A network of "auto" neurons grows as long as the evidence rises: neurons are added that
would raise it most, of many that are drawn from their prior.

Rows that do not fit into memory are fitted to a sample of them first. The last start
goes on from the best of these fits with sums over all rows; each sum goes through the
chunks once.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sklearn_gn.bayes import evidence_gn, huber
from sklearn_gn.bayes.evidence_gn import EvidenceState, RegularisedLayers
from sklearn_gn.data.rows_source import row_blocks
from sklearn_gn.linalg.factors import factor
from sklearn_gn.optim.solver import Algorithm, Continued
from sklearn_gn.shallow_relu.network import preactivations

_SETTLED = 12  # iterations after which features may leave and neurons come
_SAMPLE_ITERATIONS = 200  # most steps of each start on a sample of rows in chunks
_ON_SAMPLE = 1e6  # more than what criteria of two networks differ by
_N_CANDIDATES = 256  # hyperplanes of which new neurons are taken


class RegularisedNetwork(NamedTuple):
    """A fitted network with a linear term."""

    hyperplanes: np.ndarray  # (n, 1 + d), rows (b, w) with |w| = 1
    coef: np.ndarray  # (n, q), zero where a hyperplane misses the rows
    intercept: np.ndarray  # (q,)
    slope: np.ndarray  # (d, q)
    found: RegularisedLayers  # with the |w| of the penalties, and these


# --- the iteration -------------------------------------------------------------------


def init(rows, nets, options):
    """Start from the network of highest evidence after some iterations on some rows."""
    if len(nets) == 1:
        return evidence_gn.init_at(rows, *nets, options)
    every, tried = -(-len(rows.x) // evidence_gn.SOME_ROWS), []
    few, share = rows.every(every)
    of_few = options._replace(n_effective=share * options.n_effective, first_size=None)
    for net in nets:
        state, stop = evidence_gn.init_at(few, net, of_few), None
        while stop is None and state.iteration < _SETTLED:
            state, report = step(few, state, of_few)
            stop = report.stop
        tried.append(state)
    best = min(tried, key=lambda state: state.criterion)
    # The other rows may be noisier than those of the trial, which may be exact.
    beta = best.beta if every == 1 else None
    net = best.net._replace(theta=best.theta, alpha=best.alpha, beta=beta)
    return evidence_gn.init_at(rows, net, options)


def step(rows, state, options):
    """One accepted step at fixed penalties, then new penalties."""
    if state.progress.planes is not None:
        state = with_neurons(rows, state, options)
    state, report = evidence_gn.step(rows, state, options)
    if options.alpha is not None:
        return state, report
    if report.stop is None and state.iteration >= _SETTLED:
        state = evidence_gn.without_idle_features(rows, state, options)
    if options.first_size is not None and state.iteration > evidence_gn.FIRST_UPDATE:
        return growing_if_worthwhile(rows, state, report, options)
    return state, report


def growing_if_worthwhile(rows, state, report, options):
    """Return state and report, with neurons to come if the evidence would rise.

    Others come once its own bring less than they promise, if the last ones raised it.
    """
    progress, value = state.progress, state.net.log_evidence
    due = report.stop == "tol" or state.iteration % evidence_gn.PATIENCE == 0
    least = evidence_gn.least_rise(state, options)
    highest, gained = max(progress.highest, value), value - progress.when_examined
    confirmed = highest > progress.before_growth + least
    if not (due and confirmed and report.stop in (None, "tol")):
        return state, report
    planes, promised = promising_hyperplanes(rows, state, options)
    if promised <= (least if report.stop else max(least, gained)):
        return state._replace(progress=progress._replace(when_examined=value)), report
    progress = evidence_gn.Progress(before_growth=highest, planes=planes)
    return state._replace(progress=progress), report._replace(stop=None)


def with_neurons(rows, state, options):
    """Return the state with the neurons that join; a step gives them coefficients."""
    net, planes = state.net, state.progress.planes
    output, (first,) = net.model.split(state.theta)
    d, n = net.model.sizes
    model = net.model._replace(sizes=(d, n + len(planes)))
    output = np.pad(output, ((0, len(planes)), (0, 0)))
    theta = model.join(output, [np.concatenate([first, planes])])
    net = net._replace(theta=theta, model=model, alpha=state.alpha, beta=state.beta)
    progress = state.progress._replace(planes=None)
    state = evidence_gn.init_at(rows, net, options)._replace(iteration=state.iteration)
    return state._replace(progress=progress)


def promising_hyperplanes(rows, state, options):
    """Return hyperplanes that would raise the log evidence, and by how much in all.

    Candidates are drawn from the prior that the penalties state. A column with the
    squared length S and the product Q with the residuals, both in units of the noise
    and without what the output layer explains, raises the log evidence by
    (T - 1 - log T) / 2 for T = Q^2 / S at its best penalty [1]_. The columns are taken
    one after the other, as long as the best of m raises it by more than log m, which
    the best of m columns of noise stays below.

    .. [1] M. Tipping and A. Faul, "Fast marginal likelihood maximisation for sparse
       Bayesian models", AISTATS 2003.
    """
    model, (_, (first,)) = state.net.model, state.net.model.split(state.theta)
    few, share = rows.every(max(1, len(rows.x) // model.n_rows_of_matrix(len(rows.x))))
    x, seen = few.x, list(model.features)
    rng = np.random.RandomState(options.seed % 2**31 + model.sizes[1])
    m, q = _N_CANDIDATES, model.n_values
    normal = state.alpha[3:].take(seen) ** -0.5 * rng.standard_normal((m, len(seen)))
    through = rng.choice(len(x), m, p=few.weight / few.weight.sum())
    bias = -np.sum(normal * x[through][:, seen], axis=1)
    planes = np.column_stack([bias, normal])
    root = np.sqrt(share * options.n_effective * state.beta * few.weight)[:, None]
    hidden = [np.maximum(0, p[:, 0] + x[:, seen] @ p[:, 1:].T) for p in (first, planes)]
    output_layer = root * np.column_stack([np.ones(len(x)), x, hidden[0]])
    gram = output_layer.T @ output_layer
    of_layer = factor(gram, evidence_gn.ROUNDING * np.trace(gram))
    rest = root * np.column_stack([hidden[1], few.y - model.values(state.theta, x)])
    # Less of a column is no new direction.
    least = 1e-6 * np.sum(rest[:, :m] ** 2, axis=0)
    rest -= output_layer @ of_layer.solve(output_layer.T @ rest)
    gram = rest.T @ rest
    taken, promised = [], 0.0
    while len(taken) < model.sizes[1]:
        squares = gram.diagonal()[:m]
        ratio = np.sum(gram[:m, m:] ** 2, axis=1) / q
        ratio = np.maximum(1, ratio / np.where(squares > least, squares, math.inf))
        rises = q * (ratio - 1 - np.log(ratio)) / 2
        best = int(np.argmax(rises))
        if rises[best] <= math.log(m):
            break
        taken.append(best)
        promised += rises[best] - math.log(m)
        gram -= np.outer(gram[best] / squares[best], gram[best])
    return planes[taken], promised / share


# --- the network ---------------------------------------------------------------------


def network_of(found, rows):
    """Return the network with ``|w_i| = 1``, the same function at rows with weight.

    Neurons without direction join the constant, those that are active in all rows the
    linear term; those that are active in none are left out.
    """
    model = found.model
    (d, n), (output, (seen,)) = model.sizes, model.split(found.theta)
    (intercept, slope), coef = np.split(output[: 1 + d], [1]), output[1 + d :]
    hyperplanes = np.zeros((n, 1 + d))
    hyperplanes[:, [0, *(1 + j for j in model.features)]] = seen
    norm = np.linalg.norm(hyperplanes[:, 1:], axis=1, keepdims=True)
    usable = norm > np.finfo(np.float64).tiny
    unit = hyperplanes / np.where(usable, norm, 1)
    unit[~usable[:, 0], 1] = 1.0  # any direction: its coefficient is zero
    constant = np.where(usable[:, 0], 0, np.maximum(hyperplanes[:, 0], 0)) @ coef
    coef = np.where(usable, coef * norm, 0)
    n_rows, n_active = 0, np.zeros(n, dtype=np.intp)
    for x, _, weight in row_blocks(rows):
        n_active += (preactivations(unit, x) > 0)[weight > 0].sum(axis=0)
        n_rows += np.count_nonzero(weight)
    always = n_active == n_rows
    taken = np.where(always[:, None], coef, 0)
    return RegularisedNetwork(
        hyperplanes=unit,
        coef=np.where((always | (n_active == 0))[:, None], 0, coef),
        intercept=intercept[0] + constant + unit[:, 0] @ taken,
        slope=slope + unit[:, 1:].T @ taken,
        found=found,
    )


# --- rows that do not fit into memory ------------------------------------------------


class SampleState(EvidenceState):
    """State of a start on the sample."""

    @property
    def criterion(self):
        """That of the sample, raised: any network of all rows is better."""
        return super().criterion + _ON_SAMPLE


def prepare_sample(rows, options):
    """Return sample and options of a fit to it, and all rows and their number."""
    share, few = rows.sample.weight.sum(), rows.sample
    n_rows = int((few.weight > 0).sum())  # others are padding
    if options.alpha is not None:  # the fit ends by its loss
        tol = max(float(options.tol), evidence_gn.RISE / n_rows)
        options = options._replace(tol=tol)
    options = options._replace(n_effective=share * options.n_effective)
    return few._replace(weight=few.weight / share), options, rows, n_rows


def init_on_sample(data, start, options):
    """Start on the sample; the last start goes on from there to all rows."""
    sample, of_sample, rows, _ = data
    if not isinstance(start, Continued):
        return SampleState(*init(sample, start, of_sample))
    state = evidence_gn.init_at(rows, start.net, options)
    if options.alpha is not None:
        return state
    # The penalties are those of the sample already, and may move at once.
    progress = evidence_gn.Progress(highest=state.net.log_evidence)
    return state._replace(iteration=evidence_gn.FIRST_UPDATE, progress=progress)


def step_from_sample(data, state, options):
    """Fit the sample to the end, one row of the log, or take a step on all rows."""
    sample, of_sample, rows, n_rows = data
    if isinstance(state, SampleState):
        inner, n_steps, stop = EvidenceState(*state), 0, None
        while stop is None and n_steps < _SAMPLE_ITERATIONS:
            inner, report = step(sample, inner, of_sample)
            n_steps, stop = n_steps + report.inner_iterations, report.stop
        state, stop = SampleState(*inner), stop or "max_iter"
        report = report._replace(stop=stop, inner_iterations=n_steps)
    else:
        as_it_is = options._replace(first_size=None)  # it has grown on the sample
        state, report = step(rows, state, as_it_is)
        n_rows = rows.n_rows
    return state, report._replace(extra={**(report.extra or {}), "n_rows": n_rows})


EVIDENCE_GN = Algorithm("vpgn", init, step, compiled=False)
ROBUST_GN = huber.robust(
    EVIDENCE_GN, lambda net, x: net.model.values(net.theta, x), evidence_gn.continued
)
SAMPLE_FIRST = replace(
    EVIDENCE_GN, prepare=prepare_sample, init=init_on_sample, step=step_from_sample
)
