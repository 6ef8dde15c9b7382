"""Networks of rows that do not fit into memory.

Units and first networks come from a sample of the rows, and the networks are fitted to
it first. The last start of the fit goes on from the best of them with sums over all
rows, each of which goes through the chunks once. Of six iterations on a few rows, after
which a fit in memory chooses among its starts, little is seen: where the penalties are
those of the evidence, a sample finds good minima less often than all rows do, and each
start is fitted to the end.

Under given penalties the iterations are those of :mod:`.joint` and :mod:`.sggn`, with
the products of matrices for the hidden layer that these form of many rows. What they
need comes from passes over the rows, in NumPy: the triangular factor of the output
layer, the sums of the model at a network, and losses along a line.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.extremes import MOST_ROWS
from sklearn_gn.data.rows_source import RowSource, reduce, row_blocks
from sklearn_gn.linalg import factors
from sklearn_gn.optim.globalisation import nielsen_shift
from sklearn_gn.optim.line_search import grid_search
from sklearn_gn.optim.solver import Report
from sklearn_gn.runtime.fit_loop import Continued
from sklearn_gn.shallow_relu import evidence_gn
from sklearn_gn.shallow_relu.evidence_gn import EVIDENCE_GN
from sklearn_gn.shallow_relu.network import (
    ShallowReLU,
    active_set,
    hidden_features,
    joint_design,
    mass_design,
    preactivations,
    unit_normals,
)
from sklearn_gn.shallow_relu.problem import has_all_penalties
from sklearn_gn.solvers import JointGN, SgGN

_SAMPLE_ITERATIONS = 200  # most steps of each start on the sample
_RISE = 0.1  # of the log posterior in an iteration on the sample that is progress
_ON_SAMPLE = 1e6  # more than what criteria of two networks differ by
_BLOCK_ROWS = 2048
_FIRST_SHIFT = 1e-3  # relative to the largest eigenvalue
_MAX_TRIALS = 20  # steps tried in one iteration
_EPS = np.finfo(np.float64).eps


def reason_against_chunks(estimator, n_features):
    """Return what needs all rows at once and what to do, or None."""
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
    by_evidence = solver is JointGN and has_all_penalties(estimator, n_features)
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
    """Return the problem of all rows, from that of their sample."""
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


def _sample_first(algorithm):
    """Return the algorithm whose last start goes on from the sample to all rows."""
    if algorithm is EVIDENCE_GN:
        init_on_all, step_on_all = _init_by_evidence, evidence_gn.step
        step_on_sample = _fit_by_evidence
    else:
        init_on_all, step_on_all = init_descent, STEPS[algorithm.name]
        step_on_sample = algorithm.step

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
        return SampleState(inner), _with_number(report, _n_rows(rows.sample))

    return replace(algorithm, prepare=prepare, init=init, step=step)


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
    share, n_rows = rows.sample.weight.sum(), _n_rows(rows.sample)
    if getattr(options, "alpha", None) is not None:  # the fit ends by its loss
        tol = max(float(options.tol), _RISE / n_rows)
        options = options._replace(tol=type(options.tol)(tol))
    if hasattr(options, "n_effective"):
        options = options._replace(n_effective=share * options.n_effective)
    return options


def _n_rows(sample):
    return int((sample.weight > 0).sum())  # others are padding


def _with_number(report, n_rows):
    return report._replace(extra={**(report.extra or {}), "n_rows": n_rows})


# --- descents with given penalties ---------------------------------------------------


class DescentState(NamedTuple):
    """A network with the best output layer, its loss, and the damping."""

    net: ShallowReLU
    loss: float
    shift: float = _FIRST_SHIFT


class Model(NamedTuple):
    """Sums over the rows at a network."""

    mass: np.ndarray  # (1 + n, 1 + n)
    cross: np.ndarray  # (1 + n, n (1 + d))
    layer: np.ndarray  # (n (1 + d), n (1 + d)), without the coefficients
    slopes: np.ndarray  # (n (1 + d), q), of each target, without the coefficients
    rounding: float  # largest loss that is rounding errors


def init_descent(rows, net, options):
    """Begin with the alive neurons of a network."""
    hyperplanes, coef, intercept = (np.asarray(a, np.float64) for a in net[:3])
    alive = np.asarray(net.alive)
    net = ShallowReLU(hyperplanes[alive], coef[alive], intercept, alive[alive])
    return DescentState(*fit_output_layer(net, rows, options))


# --- passes over the rows ------------------------------------------------------------


def fit_output_layer(net, rows, options):
    """Return the network with the best output layer, and its loss."""
    n, q = net.coef.shape
    factor = np.zeros((0, 1 + n + q))
    for block in row_blocks(rows, _BLOCK_ROWS):
        targets = np.sqrt(block.weight)[:, None] * block.y
        design = np.concatenate([mass_design(net, block), targets], axis=1)
        factor = factors.upper_factor(factor, design)
    # Below the row of the intercept all columns are centred.
    features, targets = factor[1 : 1 + n, 1 : 1 + n], factor[1:, 1 + n :]
    u, s, vt = factors.singular_triplets(features)
    kept = _leading(s, options.rank_tol, options.rank)
    safe = np.where(kept, s, 1)
    inverse = np.where(kept, 1 / (safe + options.alpha / safe), 0)
    coef = vt.T @ (inverse[:, None] * (u.T @ targets[:n]))
    intercept = (factor[0, 1 + n :] - factor[0, 1 : 1 + n] @ coef) / factor[0, 0]
    targets[:n] -= features @ coef
    loss = (np.sum(targets**2) + options.alpha * np.sum(coef**2)) / 2
    return net._replace(coef=coef, intercept=intercept), float(loss)


def model_at(net, rows):
    """Return the :class:`Model` at a network."""
    p = 1 + len(net.coef)
    gram, slopes, of_terms, of_targets = reduce(_sums, net, rows, _BLOCK_ROWS)
    rounding = min((30 * _EPS) ** 2 * of_terms, _EPS * of_targets) / 2
    return Model(gram[:p, :p], gram[:p, p:], gram[p:, p:], slopes, float(rounding))


def _sums(net, block):
    """Products of all columns and with residuals; squares of terms and of targets."""
    mass_columns, columns, error = joint_design(net, block)
    design = np.concatenate([mass_columns, columns], axis=1)
    terms = hidden_features(net.hyperplanes, block.x) @ np.abs(net.coef)
    terms += np.abs(net.intercept) + np.abs(block.y)
    squares = (block.weight @ np.sum(a**2, axis=1) for a in (terms, block.y))
    return design.T @ design, columns.T @ error, *squares


def _along(theta, block):
    """Squares and means of the errors at ``hyperplanes - gamma p``, for all gamma."""
    net, p, gammas = theta
    z, dz = preactivations(net.hyperplanes, block.x), preactivations(p, block.x)
    target = block.y - net.intercept
    errors = [np.maximum(z - gamma * dz, 0) @ net.coef - target for gamma in gammas]
    squares = [block.weight @ np.sum(error**2, axis=1) for error in errors]
    return np.array(squares), np.array([block.weight @ error for error in errors])


# --- an iteration --------------------------------------------------------------------


def joint_step(rows, state, options):
    """Take a step of both layers, the output layer projected out."""
    net, scale = state.net, _coefficients(state.net, options)
    model = model_at(net, rows)
    penalty = np.append(0, np.full(len(net.coef), float(options.alpha)))
    mass = model.mass + np.diag(penalty)
    explained = factors.solve_semidefinite(mass, model.cross)
    reduced = model.layer - model.cross.T @ explained
    values, basis = _eigenpairs(reduced * (scale @ scale.T))
    values += len(values) * _EPS * values[0]  # what rounding may have taken
    slopes = basis.T @ np.sum(model.slopes * scale, axis=1)
    slopes *= _leading(np.sqrt(values), options.rank_tol, options.rank)
    shift, growth, fixed = state.shift, 2.0, options.damping is not None
    for n_trials in range(1, _MAX_TRIALS + 1):
        damping = options.damping if fixed else shift * values[0]
        length = 0.5 ** (n_trials - 1) if fixed else 1.0
        along = -length * slopes / np.maximum(values + damping, np.finfo(float).tiny)
        predicted = -float(slopes @ along + values @ along**2 / 2)
        if not predicted > 0:
            break
        moved = net.hyperplanes + (basis @ along).reshape(net.hyperplanes.shape)
        found, loss = _refitted(net, moved, rows, options)
        gain = (state.loss - loss) / predicted
        if gain > 0:
            new = DescentState(found, loss, nielsen_shift(shift, gain))
            return _state_and_report(state, new, model, slopes, gain, n_trials, options)
        shift, growth = shift * growth, 2 * growth
    return _state_and_report(state, state, model, slopes, 0.0, n_trials, options)


def sggn_step(rows, state, options):
    """Take a step of the hidden layer, then of the output layer (Algorithm 1)."""
    net, model = state.net, model_at(state.net, rows)
    coef = _coefficients(net, options)
    size = np.linalg.norm(coef, axis=1, keepdims=True)
    size[size == 0] = np.inf
    unit = coef / size  # the direction of the neuron among the targets
    matrix, gradient = model.layer * (unit @ unit.T), np.sum(model.slopes * unit, 1)
    intercept_moves = options.relocations > 0
    if intercept_moves:  # centred, as the error is
        means = model.cross[0][:, None] * unit
        matrix = matrix - means @ means.T
    values, vectors = _eigenpairs(matrix)
    tol = max(float(options.rank_tol), math.sqrt(len(values) * _EPS))
    kept = _leading(np.sqrt(values), tol, options.rank)
    damping = 0.0 if options.damping is None else options.damping
    slopes = kept * (vectors.T @ gradient)
    along = slopes / np.where(kept, values + damping, 1)
    p = ((vectors @ along) / size[:, 0]).reshape(net.hyperplanes.shape)
    predicted = float(slopes @ along - values @ along**2 / 2)

    def losses(gammas):
        squares, means = reduce(_along, (net, p, gammas), rows, _BLOCK_ROWS)
        return squares - np.sum(means**2, axis=1) * intercept_moves

    gamma = grid_search(losses, np.dtype(float), np)
    found, loss = _refitted(net, net.hyperplanes - gamma * p, rows, options)
    new = DescentState(found, loss) if loss < state.loss else state
    gain = max(state.loss - loss, 0) / predicted if predicted > 0 else 0.0
    slopes = np.sum(model.slopes * coef, axis=1)
    return _state_and_report(state, new, model, slopes, gain, 1, options, gamma)


def _refitted(net, hyperplanes, rows, options):
    """The network with other hyperplanes and the best output layer, and its loss."""
    moved = unit_normals(hyperplanes, fallback=net.hyperplanes)
    found, loss = fit_output_layer(net._replace(hyperplanes=moved), rows, options)
    return found, loss if math.isfinite(loss) else math.inf


def _state_and_report(state, new, model, slopes, gain, n_trials, options, length=1.0):
    """State and report after an iteration."""
    small = state.loss - new.loss <= options.tol * new.loss
    stop = "rounding" if new.loss <= model.rounding else "tol" if small else None
    return new, Report(
        loss=new.loss,
        grad_norm=float(np.linalg.norm(slopes)),
        step_size=0.0 if new is state else float(length),
        gain_ratio=float(gain),
        inner_iterations=n_trials,
        stop=stop,
    )


def _coefficients(net, options):
    """The coefficient of the neuron of every hidden parameter, (n (1 + d), q)."""
    active = active_set(net, options.active_tol)[:, None]
    return np.repeat(np.where(active, net.coef, 0), net.hyperplanes.shape[1], axis=0)


def _eigenpairs(matrix):
    """Eigenvalues, descending, none negative, and eigenvectors."""
    values, vectors = factors.eigenpairs(matrix)
    return np.maximum(values[::-1], 0), vectors[:, ::-1]


def _leading(singular_values, tol, rank):
    """Which directions are kept."""
    large = singular_values > tol * np.max(singular_values, initial=0)
    return large & (np.arange(len(singular_values)) < rank)


STEPS = {"vpgn": joint_step, "sggn": sggn_step}
