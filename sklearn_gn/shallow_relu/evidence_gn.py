r"""Joint Gauss-Newton steps whose penalties and noise level the evidence chooses.

The model has a linear term,

    u(x) = c0 + S^T x + sum_i c_i relu(w_i . x + b_i),

and a penalty for each group of parameters: the slopes S, the coefficients c, the biases
b, and the weights of each feature. The intercept is free. The iteration is that of
:mod:`sklearn_gn.bayes.evidence_gn`. More neurons than the data need do no harm:
penalties switch them off, and noise-free data of a network are recovered exactly.
Neurons whose breaking hyperplane misses the data are taken into the linear term at the
end. A feature whose penalty has switched its hidden weights off leaves the matrix,
which makes it small where most features have no kinks.

The matrix has a structure: with h_0 = 1 and y = (1, x), all columns of the Jacobian are
combinations of the products ``h_i y_j``, whose Gram matrix is that of the layer in
:mod:`sklearn_gn.shallow_relu.sggn` with one neuron that is always active. It is summed
over the rows once, for all targets; for a single one, the columns themselves are
multiplied. At the sizes of tables this is all the work, in products that NumPy hands to
BLAS: nothing is compiled.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.bayes import evidence, evidence_gn, huber
from sklearn_gn.bayes.evidence_gn import Sums, Trial
from sklearn_gn.data.rows_source import row_blocks
from sklearn_gn.linalg.large_gram import (
    LargeGram,
    LayerRows,
    RowBlock,
    is_formed,
    row_slices,
)
from sklearn_gn.optim.solver import Algorithm, Rows
from sklearn_gn.shallow_relu.network import preactivations
from sklearn_gn.shallow_relu.refinement import refined_if_due

_BLOCK_ROWS = 2048  # whose products stay in the processor's cache
_START_COEF = 0.1  # standard deviation of the first coefficients
_TRIAL_ITERATIONS = 6  # of every start, and then of the two best
_TRIAL_ROWS = 2000  # at most, for them
_LONGER_TRIAL = 2  # times as many iterations, where they take a part of the rows
_HARDLY_ANY_NOISE = 1e-9  # variance, of which one trial is enough
_FIRST_REMOVAL = 12  # iteration from which features may leave the hidden layer
FIRST_UPDATE = evidence_gn.FIRST_UPDATE  # iteration from which penalties move
_SWITCHED_OFF = 0.01  # determined share of the weights of a feature that leaves


class Shape(NamedTuple):
    """Numbers of neurons, features and targets, and which features the neurons see."""

    n: int
    d: int
    q: int
    kept: tuple | None = None  # numbers of these features; all if None

    @property
    def hidden_features(self):
        """Numbers of the features that have hidden weights."""
        return (
            np.arange(self.d)
            if self.kept is None
            else np.array(self.kept, dtype=np.intp)
        )

    @property
    def n_linear(self):
        """Parameters that enter linearly: intercept, slopes and coefficients."""
        return (1 + self.d + self.n) * self.q

    @property
    def size(self):
        """Number of all parameters."""
        return self.n_linear + self.n * (1 + len(self.hidden_features))

    @property
    def loss(self):
        """Name of the loss."""
        return "squared"

    @property
    def n_targets(self):
        """Numbers that each row gives."""
        return self.q

    @lru_cache(maxsize=32)  # noqa: B019
    def groups(self):
        """Group of every parameter; -1 for the intercept, which is free."""
        hyperplane = np.concatenate([[2], 3 + self.hidden_features])
        parts = [
            np.full(self.q, -1),
            np.zeros(self.d * self.q),
            np.ones(self.n * self.q),
            np.tile(hyperplane, self.n),
        ]
        return np.concatenate(parts).astype(np.intp)

    def split(self, theta):
        """Return (c0, S) of shape (1 + d, q), c of (n, q) and (b, w) of (n, 1 + k)."""
        end = (1 + self.d) * self.q
        return (
            theta[:end].reshape(1 + self.d, self.q),
            theta[end : self.n_linear].reshape(self.n, self.q),
            theta[self.n_linear :].reshape(self.n, -1),
        )

    def hidden_input(self, x):
        """Return (1, x) for the hidden layer, of shape (m, 1 + k)."""
        seen = x if self.kept is None else x[:, list(self.kept)]
        inputs = np.empty((len(x), 1 + seen.shape[1]))
        inputs[:, 0], inputs[:, 1:] = 1, seen
        return inputs

    def trial(self, theta, rows):
        """Return the weighted sum of squares of the residuals."""
        return Trial(square_error(theta, self, rows))

    def sums(self, theta, rows, trial=None):
        """Sums over the rows."""
        if not is_formed(len(rows.x) * self.q, self.size):
            return sums_of_large_network(theta, self, rows)
        return sums_over_rows(theta, self, rows)

    def dense_sums(self, theta, rows):
        """Sums over the rows, the matrix formed."""
        return sums_over_rows(theta, self, rows)

    def jacobian_blocks(self, theta, rows):
        """Yield Jacobian and residuals of blocks of rows; there is one target."""
        return columns_of_one_target(theta, self, rows)

    def network(self, theta, alpha, beta, gamma, log_evidence):
        """Return the network that a fit returns."""
        return network_of(theta, self, alpha, beta, gamma, log_evidence)


class RegularisedNetwork(NamedTuple):
    """A network with a linear term, and the penalties that were chosen for it."""

    hyperplanes: np.ndarray  # (n, 1 + d), rows (b, w) with |w| = 1
    coef: np.ndarray  # (n, q)
    intercept: np.ndarray  # (q,)
    slope: np.ndarray  # (d, q)
    alive: np.ndarray  # (n,) bool
    kept: tuple | None  # features that theta has hidden weights for; None: all
    theta: np.ndarray  # (P,)  the parameters, with the |w| of the penalties
    alpha: np.ndarray  # (3 + d,)  precisions of the groups
    beta: float  # precision of the noise
    gamma: np.ndarray  # (3 + d,)  well-determined parameters of the groups
    log_evidence: float

    @property
    def shape(self):
        """The shape of ``theta``."""
        return Shape(len(self.hyperplanes), *self.slope.shape, self.kept)


# --- the model -----------------------------------------------------------------------


def predict(theta, shape, x):
    """Return the outputs of the network, of shape (m, q)."""
    linear, coef, hyperplanes = shape.split(theta)
    hidden = np.maximum(shape.hidden_input(x) @ hyperplanes.T, 0)
    return linear[0] + x @ linear[1:] + hidden @ coef


def jacobian_factor(theta, shape, x, root, memory=None):
    """Return (1, x) and the products ``h_i y_j`` of every row, times a number each.

    Parameters
    ----------
    root : ndarray of shape (m,)
        The numbers, such as roots of the weights.
    memory : ndarray of shape (1 + d + n (1 + k), at least m), default=None
        To write to.

    Returns
    -------
    ndarray of shape (1 + d + n (1 + k), m)
    """
    *_, hyperplanes = shape.split(theta)
    n, width = hyperplanes.shape
    y, start = shape.hidden_input(x).T, 1 + shape.d
    active = (hyperplanes @ y > 0).astype(np.float64)
    if memory is None:
        memory = np.empty((start + n * width, len(x)))
    factor = memory[:, : len(x)]
    factor[0] = root
    np.multiply(x.T, root, out=factor[1:start])
    y = y * root
    for products, of_neuron in zip(
        factor[start:].reshape(n, width, -1), active, strict=True
    ):
        np.multiply(y, of_neuron, out=products)
    return factor


def jacobian(theta, shape, x, target):
    """Return the derivatives of one target in all parameters, of shape (m, P)."""
    _, coef, hyperplanes = shape.split(theta)
    factor = jacobian_factor(theta, shape, x, np.ones(len(x))).T
    linear = factor @ linear_combinations(theta, shape)
    of_target = np.zeros((*linear.shape, shape.q))
    of_target[:, :, target] = linear
    moved = factor[:, 1 + shape.d :]
    hidden = moved * np.repeat(coef[:, target], hyperplanes.shape[1])
    return np.concatenate([of_target.reshape(len(x), -1), hidden], axis=1)


def linear_combinations(theta, shape):
    """Return U with ``factor @ U`` the columns (1, x, relu) of the Jacobian."""
    *_, hyperplanes = shape.split(theta)
    n, width = hyperplanes.shape
    n_lines = 1 + shape.d
    u = np.zeros((n_lines + n * width, n_lines + n))
    u[:n_lines, :n_lines] = np.eye(n_lines)
    neuron = np.arange(n)
    blocks = u[n_lines:, n_lines:].reshape(n, width, n)
    blocks[neuron, :, neuron] = hyperplanes
    return u


def sums_over_rows(theta, shape, rows):
    """Return the Gauss-Newton matrix, the slope and the error at some parameters."""
    if shape.q == 1:
        return _sums_of_one_target(theta, shape, rows)
    width = 1 + shape.d + shape.n * (1 + len(shape.hidden_features))
    gram, slope, error = np.zeros((width, width)), np.zeros((width, shape.q)), 0.0
    memory = np.empty((width, min(len(rows.x), _BLOCK_ROWS)))
    for start in range(0, len(rows.x), _BLOCK_ROWS):
        x, y, weight = (a[start : start + _BLOCK_ROWS] for a in rows)
        root = np.sqrt(weight)
        factor = jacobian_factor(theta, shape, x, root, memory)
        residual = root[:, None] * (y - predict(theta, shape, x))
        gram += factor @ factor.T
        slope += factor @ residual
        error += np.sum(residual**2)
    return _in_parameters(theta, shape, gram, slope, error)


def _sums_of_one_target(theta, shape, rows):
    """Return the same for one target, of which the Jacobian itself is multiplied."""
    gram, slope, error = None, 0.0, 0.0
    for columns, residual in columns_of_one_target(theta, shape, rows):
        part = columns @ columns.T
        gram = part if gram is None else gram + part
        slope += columns @ residual
        error += float(residual @ residual)
    return Sums(gram, slope, error)


def columns_of_one_target(theta, shape, rows):
    """Yield Jacobian and residuals of blocks of rows, times roots of their weights.

    Yields
    ------
    columns : ndarray of shape (P, m)
        Overwritten by those of the next block.
    residual : ndarray of shape (m,)
    """
    _, coef, hyperplanes = shape.split(theta)
    (n, width), start, n_linear = hyperplanes.shape, 1 + shape.d, shape.n_linear
    memory = np.empty((shape.size, min(len(rows.x), _BLOCK_ROWS)))
    for first in range(0, len(rows.x), _BLOCK_ROWS):
        x, y, weight = (a[first : first + _BLOCK_ROWS] for a in rows)
        root, inputs = np.sqrt(weight), shape.hidden_input(x).T
        before = hyperplanes @ inputs
        columns = memory[:, : len(x)]
        np.multiply(inputs[0], root, out=columns[0])
        np.multiply(x.T, root, out=columns[1:start])
        np.multiply(np.maximum(before, 0), root, out=columns[start:n_linear])
        residual = root * y[:, 0] - theta[:n_linear] @ columns[:n_linear]
        moved = columns[n_linear:].reshape(n, width, -1)
        slopes = coef * (before > 0)
        np.multiply(root * inputs, slopes[:, None, :], out=moved)
        yield columns, residual


def sums_of_large_network(theta, shape, rows):
    """Return the same with the matrix as products."""
    _, coef, hyperplanes = shape.split(theta)
    linear, hidden, error, blocks = 0.0, 0.0, 0.0, []
    for part in row_slices(len(rows.x)):
        x, y, weight = (a[part] for a in rows)
        inputs = shape.hidden_input(x).T
        before = hyperplanes @ inputs
        f = np.concatenate([np.ones((1, len(x))), x.T, np.maximum(before, 0)])
        g = coef.T[:, :, None] * (before > 0)
        residual = y - predict(theta, shape, x)
        down = (weight[:, None] * residual).T
        error += float(weight @ np.sum(residual**2, axis=1))
        linear = linear + f @ down.T
        hidden = hidden + np.einsum("tjm,tm->jm", g, down) @ inputs.T
        blocks.append(RowBlock(f, (LayerRows(inputs, g),), weight))
    slope = np.concatenate([linear.ravel(), hidden.ravel()])
    return Sums(LargeGram(blocks, shape.q), slope, error)


def _in_parameters(theta, shape, gram, slope, error):
    """Sums in the parameters, from those of the products ``h_i y_j``."""
    _, coef, hyperplanes = shape.split(theta)
    u = linear_combinations(theta, shape)
    moved = slice(1 + shape.d, None)  # the products of the neurons that move
    coef = np.repeat(coef, hyperplanes.shape[1], axis=0)
    half = gram @ u
    linear = u.T @ half
    if shape.q > 1:
        linear = np.kron(linear, np.eye(shape.q))
    cross = half[moved].T[:, None, :] * coef.T[None, :, :]
    cross = cross.reshape(shape.n_linear, len(coef))
    hidden = gram[moved, moved] * (coef @ coef.T)
    whole = np.block([[linear, cross], [cross.T, hidden]])
    down = np.concatenate([(u.T @ slope).ravel(), np.sum(coef * slope[moved], axis=1)])
    return Sums(whole, down, float(error))


# --- the iteration -------------------------------------------------------------------


def init(rows, nets, options):
    """Start from a network; from the best after short trials, if there are several.

    All take a few iterations, and the two best of them as many again: early on the
    evidence hardly tells where a start will end. Trials take every k-th row of a long
    table, and more iterations.
    """
    if len(nets) == 1:
        return init_one(rows, nets[0], options)
    every = -(-len(rows.x) // _TRIAL_ROWS)
    n_iterations = _TRIAL_ITERATIONS * min(every, _LONGER_TRIAL)
    few = Rows(*(a[::every] for a in rows))
    share = few.weight.sum()
    few = few._replace(weight=few.weight / share)
    few_options = options._replace(n_effective=share * options.n_effective)
    trials = [(init_one(few, net, few_options), None) for net in nets]
    for n_best in (2, 1):
        trials = [_continued(few, *pair, few_options, n_iterations) for pair in trials]
        trials = sorted(trials, key=lambda pair: pair[0].criterion)[:n_best]
        if trials[0][0].beta * _HARDLY_ANY_NOISE > 1:
            break  # at rounding errors the evidence tells nothing
    state, _ = trials[0]
    # The other rows may be noisier than those of the trial, which may be exact.
    beta = state.beta if every == 1 else None
    return evidence_gn.init_at(
        state.net.shape, rows, state.theta, state.alpha, beta, options
    )


def _continued(rows, state, stop, options, n_iterations):
    """Return the state of a trial after some iterations, and why it has stopped."""
    for _ in range(n_iterations):
        if stop is not None:
            break
        state, report = step(rows, state, options)
        stop = report.stop
    return state, stop


def init_one(rows, net, options):
    """Start with the linear fit, and with small random coefficients of the neurons.

    A network of a former fit is taken as it is, its penalties too.
    """
    if isinstance(net, RegularisedNetwork):
        shape, theta, alpha, beta = net.shape, net.theta, net.alpha, net.beta
    else:
        shape = Shape(len(net.hyperplanes), rows.x.shape[1], rows.y.shape[1])
        square = float(rows.weight @ np.sum(rows.y**2, axis=1)) / shape.q
        size = math.sqrt(square) if square > 0 else 1.0
        theta, beta = _first_parameters(rows, net, shape, size, options), None
        alpha = np.ones(3 + shape.d)
        alpha[:2] = 1 / size**2
    return evidence_gn.init_at(shape, rows, theta, alpha, beta, options)


def _first_parameters(rows, net, shape, size, options):
    """The linear fit, small random coefficients, and the hyperplanes of a network."""
    y = np.concatenate([np.ones((len(rows.x), 1)), rows.x], axis=1)
    linear = evidence_gn.linear_fit(y, rows, options.n_effective)
    rng = np.random.RandomState(options.seed)
    coef = _START_COEF * size * rng.standard_normal((shape.n, shape.q))
    return np.concatenate([linear.ravel(), coef.ravel(), net.hyperplanes.ravel()])


def step(rows, state, options):
    """One accepted step at fixed penalties, then new penalties."""
    shape = state.net.shape
    state, report = evidence_gn.step(shape, rows, state, options)
    if options.alpha is not None:
        return state, report
    state, report = refined_if_due(shape, rows, state, report, options)
    if report.stop is None and state.iteration >= _FIRST_REMOVAL:
        state = _without_switched_off(shape, rows, state)
    if state.net.kept is None:
        return state, report
    left = np.setdiff1d(np.arange(shape.d), state.net.kept)
    alpha = state.alpha.copy()
    alpha[3 + left] = evidence.LARGEST
    return state._replace(alpha=alpha, net=state.net._replace(alpha=alpha)), report


def _without_switched_off(shape, rows, state):
    """Return the state without the hidden weights of features that have no kinks."""
    features = shape.hidden_features
    on = state.net.gamma[3 + features] > _SWITCHED_OFF * shape.n
    if on.all() or not switches.on("tables.feature_removal"):
        return state
    linear, coef, hyperplanes = shape.split(state.theta)
    hyperplanes = hyperplanes[:, np.concatenate([[True], on])]
    theta = np.concatenate([a.ravel() for a in (linear, coef, hyperplanes)])
    shape = shape._replace(kept=tuple(features[on].tolist()))
    net = network_of(
        theta, shape, state.alpha, state.beta, state.net.gamma, state.net.log_evidence
    )
    sums = evidence_gn.sums_of(net.shape, theta, rows)
    return state._replace(theta=theta, net=net, sums=sums)


def square_error(theta, shape, rows):
    """Return the weighted sum of squares of the residuals."""
    residual = rows.y - predict(theta, shape, rows.x)
    return float(rows.weight @ np.sum(residual**2, axis=1))


# --- the network ---------------------------------------------------------------------


def network_of(theta, shape, alpha, beta, gamma, value):
    """Return the network with ``|w_i| = 1``; one without direction is a constant."""
    linear, coef, seen = shape.split(theta)
    hyperplanes = np.zeros((shape.n, 1 + shape.d))
    hyperplanes[:, 0], hyperplanes[:, 1 + shape.hidden_features] = (
        seen[:, 0],
        seen[:, 1:],
    )
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
        kept=shape.kept,
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
    n_rows, n_active = 0, np.zeros(len(net.hyperplanes), dtype=np.intp)
    for x, _, weight in row_blocks(rows, _BLOCK_ROWS):
        active = preactivations(net.hyperplanes, x) > 0
        n_active += active[weight > 0].sum(axis=0)
        n_rows += np.count_nonzero(weight)
    always = n_active == n_rows
    taken = np.where(always[:, None], net.coef, 0)
    return net._replace(
        coef=np.where((always | (n_active == 0))[:, None], 0, net.coef),
        intercept=net.intercept + net.hyperplanes[:, 0] @ taken,
        slope=net.slope + net.hyperplanes[:, 1:].T @ taken,
    )


def values(net, x):
    """Return the predictions of a network, of shape (m, q)."""
    return predict(net.theta, net.shape, x)


def continued(rows, state):
    """Return a state that goes on with the targets of other rows."""
    return evidence_gn.continued(state.net.shape, rows, state)


EVIDENCE_GN = Algorithm("vpgn", init, step, side_by_side=True, compiled=False)
ROBUST_GN = huber.robust(EVIDENCE_GN, values, continued)
