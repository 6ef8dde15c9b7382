r"""Joint Gauss-Newton steps whose penalties and noise level the evidence chooses.

The model has a linear term,

    u(x) = c0 + S^T x + sum_i c_i relu(w_i . x + b_i),

and a penalty for each group of parameters: the slopes S, the coefficients c, the biases
b, and the weights of each feature. The intercept is free. One iteration:

1. the Gauss-Newton matrix and the gradient, from the sums of the layer;
2. a Levenberg-Marquardt step on the energy E of :mod:`sklearn_gn.core.evidence` at the
   present penalties and noise: the damping is raised until E falls, then follows the
   gain ratio by Nielsen's rule;
3. the number of well-determined parameters of each group, and from it new penalties
   and a new noise level.

A fit ends when the log evidence has stopped rising, or when the noise is that of
rounding errors. More neurons than the data need do no harm: penalties switch them off,
and noise-free data of a network are recovered exactly. Neurons whose breaking
hyperplane misses the data are taken into the linear term at the end.

The matrix has a structure: with h_0 = 1 and y = (1, x), all columns of the Jacobian are
combinations of the products ``h_i y_j``, whose Gram matrix is that of the layer in
:mod:`sklearn_gn.shallow_relu.sggn` with one neuron that is always active. It is summed
over the rows once, for all targets. At the sizes of tables this is all the work, in
products that NumPy hands to BLAS: nothing is compiled.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from sklearn_gn.core import evidence
from sklearn_gn.core.solver import Algorithm, Report

_BLOCK_ROWS = 2048  # whose products stay in the processor's cache
ROUNDING = 1e-13  # shift of a matrix at rounding level, relative to its trace
_EXACT = 8 * np.finfo(np.float64).eps ** 2  # variance of the noise that is rounding
_FIRST_UPDATE = 3  # iteration from which penalties move: before it they would run away
_RISE = 0.1  # of the log evidence in an iteration that counts as progress
_PATIENCE = 3  # iterations without it after which a fit ends
_MAX_TRIALS = 20  # dampings that one iteration tries
_START_COEF = 0.1  # standard deviation of the first coefficients
_START_RIDGE = 1e-3  # of the first linear fit, in rows
_FLAT = 1e-3  # predicted reduction of the energy that is none


class Shape(NamedTuple):
    """Numbers of neurons, features and targets."""

    n: int
    d: int
    q: int

    @property
    def n_linear(self):
        """Parameters that enter linearly: intercept, slopes and coefficients."""
        return (1 + self.d + self.n) * self.q

    @property
    def size(self):
        """Number of all parameters."""
        return self.n_linear + self.n * (1 + self.d)

    def groups(self):
        """Group of every parameter; -1 for the intercept, which is free."""
        n, d, q = self
        hyperplane = np.concatenate([[2], 3 + np.arange(d)])
        parts = [
            np.full(q, -1),
            np.zeros(d * q),
            np.ones(n * q),
            np.tile(hyperplane, n),
        ]
        return np.concatenate(parts).astype(np.intp)

    def split(self, theta):
        """Return (c0, S) of shape (1 + d, q), c of (n, q) and (b, w) of (n, 1 + d)."""
        n, d, q = self
        linear, coef, hyperplanes = np.split(theta, [(1 + d) * q, self.n_linear])
        return (
            linear.reshape(1 + d, q),
            coef.reshape(n, q),
            hyperplanes.reshape(n, 1 + d),
        )


class Sums(NamedTuple):
    """What an iteration needs of all rows."""

    gram: np.ndarray  # (P, P)  J^T W J
    slope: np.ndarray  # (P,)  J^T W r
    error: float  # weighted sum of squares of the residuals


class EvidenceOptions(NamedTuple):
    """Settings of a run."""

    n_effective: float  # number of rows, counted by their weights
    damping: float | None  # fixed shift of the Gauss-Newton matrix
    rank: int | None  # most eigenvectors along which a step goes
    tol: float  # rise of the log evidence, per row, that counts as progress
    seed: int


class RegularisedNetwork(NamedTuple):
    """A network with a linear term, and the penalties that were chosen for it."""

    hyperplanes: np.ndarray  # (n, 1 + d), rows (b, w) with |w| = 1
    coef: np.ndarray  # (n, q)
    intercept: np.ndarray  # (q,)
    slope: np.ndarray  # (d, q)
    alive: np.ndarray  # (n,) bool
    theta: np.ndarray  # (P,)  the parameters, with the |w| of the penalties
    alpha: np.ndarray  # (3 + d,)  precisions of the groups
    beta: float  # precision of the noise
    gamma: np.ndarray  # (3 + d,)  well-determined parameters of the groups
    log_evidence: float


class EvidenceState(NamedTuple):
    """State of a run.

    Losses at different penalties do not compare: the ``criterion`` chooses the best.
    """

    net: RegularisedNetwork
    loss: float
    theta: np.ndarray
    alpha: np.ndarray
    beta: float
    sums: Sums  # at theta
    shift: float  # Levenberg-Marquardt damping, of the energy
    criterion: float = math.inf  # minus the log evidence, per row
    highest: float = -math.inf  # log evidence so far
    waited: int = 0
    iteration: int = 0
    restarted: bool = False  # whether the damping was lowered once more


# --- the model -----------------------------------------------------------------------


def predict(theta, shape, x):
    """Return the outputs of the network, of shape (m, q)."""
    linear, coef, hyperplanes = shape.split(theta)
    hidden = np.maximum(x @ hyperplanes[:, 1:].T + hyperplanes[:, 0], 0)
    return linear[0] + x @ linear[1:] + hidden @ coef


def jacobian_factor(theta, shape, x):
    """Return the products ``h_i y_j`` of every row, of shape (m, (1 + n)(1 + d))."""
    *_, hyperplanes = shape.split(theta)
    y = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    active = np.ones((len(x), 1 + shape.n))
    active[:, 1:] = y @ hyperplanes.T > 0
    return (active[:, :, None] * y[:, None, :]).reshape(len(x), -1)


def jacobian(theta, shape, x, target):
    """Return the derivatives of one target in all parameters, of shape (m, P)."""
    n, d, q = shape
    _, coef, _ = shape.split(theta)
    factor = jacobian_factor(theta, shape, x)
    linear = factor @ linear_combinations(theta, shape)
    of_target = np.zeros((len(x), 1 + d + n, q))
    of_target[:, :, target] = linear
    hidden = factor[:, 1 + d :] * np.repeat(coef[:, target], 1 + d)
    return np.concatenate([of_target.reshape(len(x), -1), hidden], axis=1)


def linear_combinations(theta, shape):
    """Return U with ``factor @ U`` the columns (1, x, relu) of the Jacobian."""
    n, d, _ = shape
    *_, hyperplanes = shape.split(theta)
    u = np.zeros((1 + n, 1 + d, 1 + d + n))
    u[0, :, : 1 + d] = np.eye(1 + d)
    neuron = np.arange(n)
    u[1 + neuron, :, 1 + d + neuron] = hyperplanes
    return u.reshape((1 + n) * (1 + d), -1)


def sums_over_rows(theta, shape, rows):
    """Return the Gauss-Newton matrix, the slope and the error at some parameters."""
    width = (1 + shape.n) * (1 + shape.d)
    gram, slope, error = np.zeros((width, width)), np.zeros((width, shape.q)), 0.0
    for start in range(0, len(rows.x), _BLOCK_ROWS):
        x, y, weight = (a[start : start + _BLOCK_ROWS] for a in rows)
        root = np.sqrt(weight)[:, None]
        factor = root * jacobian_factor(theta, shape, x)
        residual = root * (y - predict(theta, shape, x))
        gram += factor.T @ factor
        slope += factor.T @ residual
        error += np.sum(residual**2)
    return _in_parameters(theta, shape, gram, slope, error)


def _in_parameters(theta, shape, gram, slope, error):
    """Sums in the parameters, from those of the products ``h_i y_j``."""
    n, d, q = shape
    _, coef, _ = shape.split(theta)
    u = linear_combinations(theta, shape)
    moved = slice(1 + d, None)  # the products of the neurons that move
    coef = np.repeat(coef, 1 + d, axis=0)
    half = gram @ u
    linear = np.kron(u.T @ half, np.eye(q))
    cross = half[moved].T[:, None, :] * coef.T[None, :, :]
    cross = cross.reshape(shape.n_linear, n * (1 + d))
    hidden = gram[moved, moved] * (coef @ coef.T)
    whole = np.block([[linear, cross], [cross.T, hidden]])
    down = np.concatenate([(u.T @ slope).ravel(), np.sum(coef * slope[moved], axis=1)])
    return Sums(whole, down, float(error))


# --- the iteration -------------------------------------------------------------------


def init(rows, net, options):
    """Start with the linear fit, and with small random coefficients of the neurons.

    A network of a former fit is taken as it is, its penalties too.
    """
    shape = Shape(len(net.hyperplanes), rows.x.shape[1], rows.y.shape[1])
    if isinstance(net, RegularisedNetwork):
        theta, alpha, beta = net.theta, net.alpha, net.beta
        sums = sums_over_rows(theta, shape, rows)
    else:
        square = float(rows.weight @ np.sum(rows.y**2, axis=1)) / shape.q
        size = math.sqrt(square) if square > 0 else 1.0
        theta = _first_parameters(rows, net, shape, size, options)
        sums = sums_over_rows(theta, shape, rows)
        alpha = np.ones(3 + shape.d)
        alpha[:2] = 1 / size**2
        beta = 1 / max(sums.error / shape.q, _EXACT)
    state = EvidenceState(None, sums.error / 2, theta, alpha, beta, sums, shift=1.0)
    gamma, value = evidence_at(state, shape, options.n_effective)
    net = network_of(theta, shape, alpha, beta, gamma, value)
    return state._replace(net=net, criterion=-value / options.n_effective)


def _first_parameters(rows, net, shape, size, options):
    """The linear fit, small random coefficients, and the hyperplanes of a network."""
    y = np.concatenate([np.ones((len(rows.x), 1)), rows.x], axis=1)
    weighted = rows.weight[:, None] * y
    gram = y.T @ weighted
    ridge = _START_RIDGE / options.n_effective + ROUNDING * np.trace(gram)
    gram[np.diag_indices_from(gram)] += ridge
    linear = np.linalg.solve(gram, weighted.T @ rows.y)
    rng = np.random.RandomState(options.seed)
    coef = _START_COEF * size * rng.standard_normal((shape.n, shape.q))
    return np.concatenate([linear.ravel(), coef.ravel(), net.hyperplanes.ravel()])


def step(rows, state, options):
    """One accepted step at fixed penalties, then new penalties."""
    shape = Shape(len(state.net.hyperplanes), rows.x.shape[1], rows.y.shape[1])
    # 1. a step with the Gauss-Newton matrix at the present penalties
    found = accepted_step(rows, shape, state, options)
    if found.theta is None:
        # Where hardly any reduction was predicted, this is the minimum.
        stop = "tol" if found.predicted < _FLAT else "line_search"
        stop = "rounding" if 1 / state.beta <= 100 * _EXACT else stop
        return state, _report(state, shape, options.n_effective, stop)
    # 2. the Gauss-Newton matrix at the new point
    sums = sums_over_rows(found.theta, shape, rows)
    after = state._replace(theta=found.theta, sums=sums, shift=found.next_shift)
    # 3. the penalties that the evidence chooses there
    after, report = updated(shape, after, options)
    return after, report._replace(
        step_size=found.length,
        damping=found.shift / (state.beta * options.n_effective),
        gain_ratio=found.gain_ratio,
        inner_iterations=found.n_trials,
    )


class Step(NamedTuple):
    """A step that lowers the energy; without ``theta`` there is none."""

    theta: np.ndarray | None
    predicted: float  # reduction of the energy by the model
    shift: float = math.nan  # damping of the step
    next_shift: float = math.nan
    length: float = 0.0
    gain_ratio: float = math.nan
    n_trials: int = 0


def accepted_step(rows, shape, state, options):
    """Return the first :class:`Step` that lowers the energy."""
    sums = state.sums
    precision = evidence.prior_precision(shape.groups(), state.alpha)
    scale = state.beta * options.n_effective
    down = scale * sums.slope - precision * state.theta
    matrix = scale * sums.gram + np.diag(precision)
    floor = ROUNDING * scale * np.trace(sums.gram)
    subspace = _leading_directions(sums.gram, options.rank)
    solve = _solver(matrix, floor, subspace)
    before = _energy(sums.error, state.theta, precision, scale)
    fixed = options.damping is not None
    shift, share = (scale * options.damping if fixed else state.shift), 1.0
    first_predicted = None
    for n_trials in range(1, _MAX_TRIALS + 1):
        move = solve(shift, down)
        if move is not None:
            move = share * move
            predicted = float(move @ down - move @ (matrix @ move) / 2)
            if first_predicted is None:
                first_predicted = predicted
            theta = state.theta + move
            error = _error(theta, shape, rows)
            actual = before - _energy(error, theta, precision, scale)
            if actual > 0:
                gain = actual / predicted
                after = shift * max(1 / 3, 1 - (2 * gain - 1) ** 3)  # Nielsen's rule
                length = float(np.linalg.norm(move))
                return Step(theta, predicted, shift, after, length, gain, n_trials)
        shift, share = (shift, share / 2) if fixed else (4 * shift, 1.0)
    return Step(None, math.inf if first_predicted is None else first_predicted)


def _leading_directions(gram, rank):
    """Return the ``rank`` leading eigenvectors of the matrix; None for all."""
    if rank is None or rank >= len(gram):
        return None
    _, vectors = np.linalg.eigh(gram)
    return vectors[:, -rank:]


def _solver(matrix, floor, subspace):
    """Return the function ``(shift, right) -> (matrix + shift)^-1 right``, or None.

    Parameters
    ----------
    matrix : ndarray of shape (P, P)
    floor : float
        Least shift, at rounding level.
    subspace : ndarray of shape (P, k) or None
        Orthonormal columns, along which alone a solution goes.
    """
    if subspace is not None:
        small = subspace.T @ matrix @ subspace
        inner = _solver(small, floor, None)

        def projected(shift, right):
            found = inner(shift, subspace.T @ right)
            return None if found is None else subspace @ found

        return projected

    def solve(shift, right):
        damped = matrix.copy()
        damped[np.diag_indices_from(damped)] += shift + floor
        try:
            factor = cho_factor(damped, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            return None
        return cho_solve(factor, right, check_finite=False)

    return solve


def evidence_at(state, shape, n_effective):
    """Return gamma and the log evidence at the parameters and penalties of a state."""
    sums, groups = state.sums, shape.groups()
    found = curvature(sums, groups, state.alpha, state.beta, n_effective)
    precision = evidence.prior_precision(groups, state.alpha)
    energy = _energy(sums.error, state.theta, precision, state.beta * n_effective)
    n_numbers = n_effective * shape.q
    value = float(evidence.log_evidence(found, energy, n_numbers, state.beta))
    return found.gamma, value


def updated(shape, state, options):
    """Return state and report with the penalties that the evidence chooses here."""
    n_effective, groups = options.n_effective, shape.groups()
    gamma, value = evidence_at(state, shape, n_effective)
    if not math.isfinite(value):
        return state, _report(state, shape, n_effective, "non_finite")
    state = state._replace(
        criterion=-value / n_effective, iteration=state.iteration + 1
    )
    found = evidence.Curvature(gamma, shape.q, None)
    square_error = n_effective * state.sums.error
    n_numbers = n_effective * shape.q
    beta = float(evidence.updated_beta(found, square_error, n_numbers, _EXACT))
    stop = None
    if state.iteration >= _FIRST_UPDATE:
        squares = evidence.group_sums(state.theta**2, groups, len(state.alpha))
        rose = value > state.highest + max(_RISE, options.tol * n_effective)
        state = state._replace(
            alpha=evidence.updated_alpha(found, squares),
            beta=beta,
            waited=0 if rose else state.waited + 1,
            highest=max(value, state.highest),
        )
        if state.waited >= _PATIENCE and state.shift > 1 and not state.restarted:
            # The damping may be what holds the fit: once more with little of it.
            state = state._replace(shift=1.0, waited=0, restarted=True)
        stop = "tol" if state.waited >= _PATIENCE else None
        stop = "rounding" if 1 / beta <= _EXACT else stop
    net = network_of(state.theta, shape, state.alpha, beta, gamma, value)
    state = state._replace(net=net)
    report = _report(state, shape, n_effective, stop)
    return state._replace(loss=report.loss), report


def curvature(sums, groups, alpha, beta, n_effective):
    """Return the curvature that the evidence takes."""
    gram = n_effective * sums.gram
    floor = ROUNDING * np.trace(gram)
    return evidence.primal_curvature(gram, groups, alpha, beta, floor)


def _report(state, shape, n_effective, stop):
    net = state.net
    precision = evidence.prior_precision(shape.groups(), state.alpha)
    scale = state.beta * n_effective
    down = state.sums.slope - precision * state.theta / scale
    return Report(
        loss=_energy(state.sums.error, state.theta, precision, scale) / scale,
        grad_norm=float(np.linalg.norm(down)),
        stop=stop,
        extra={
            "log_evidence": net.log_evidence,
            "n_effective_parameters": float(np.sum(net.gamma)) + shape.q,
            "noise_std": math.sqrt(1 / state.beta),
        },
    )


def _energy(error, theta, precision, scale):
    return scale * error / 2 + float(np.sum(precision * theta**2)) / 2


def _error(theta, shape, rows):
    """Weighted sum of squares of the residuals."""
    residual = rows.y - predict(theta, shape, rows.x)
    return float(rows.weight @ np.sum(residual**2, axis=1))


# --- the network ---------------------------------------------------------------------


def network_of(theta, shape, alpha, beta, gamma, value):
    """Return the network with ``|w_i| = 1``; one without direction is a constant."""
    linear, coef, hyperplanes = shape.split(theta)
    norm = np.linalg.norm(hyperplanes[:, 1:], axis=1, keepdims=True)
    usable = norm > np.finfo(np.float64).tiny
    unit = hyperplanes / np.where(usable, norm, 1)
    unit[~usable[:, 0], 1] = 1.0  # any direction: its coefficient is zero
    constant = np.where(usable[:, 0], 0, np.maximum(hyperplanes[:, 0], 0)) @ coef
    return RegularisedNetwork(
        hyperplanes=unit,
        coef=np.where(usable, coef * norm, 0),
        intercept=linear[0] + constant,
        slope=linear[1:].copy(),
        alive=np.ones(shape.n, dtype=bool),
        theta=theta,
        alpha=alpha,
        beta=beta,
        gamma=gamma,
        log_evidence=value,
    )


def pruned(net, rows):
    """Return the network without neurons whose hyperplane misses the rows.

    A neuron that is active in all rows of positive weight is linear there, and joins
    the linear term; one that is active in none of them is left out. Predictions for the
    rows stay the same.
    """
    x = rows.x[rows.weight > 0]
    n_active = np.zeros(len(net.hyperplanes), dtype=np.intp)
    for start in range(0, len(x), _BLOCK_ROWS):
        block = x[start : start + _BLOCK_ROWS]
        active = net.hyperplanes[:, 0] + block @ net.hyperplanes[:, 1:].T > 0
        n_active += active.sum(axis=0)
    always = n_active == len(x)
    taken = np.where(always[:, None], net.coef, 0)
    return net._replace(
        coef=np.where((always | (n_active == 0))[:, None], 0, net.coef),
        intercept=net.intercept + net.hyperplanes[:, 0] @ taken,
        slope=net.slope + net.hyperplanes[:, 1:].T @ taken,
    )


EVIDENCE_GN = Algorithm("vpgn", init, step)
