r"""Joint Gauss-Newton steps whose penalties and noise level the evidence chooses.

The model has a linear term,

    u(x) = c0 + S^T x + sum_i c_i relu(w_i . x + b_i),

and a penalty for each group of parameters: the slopes S, the coefficients c, the biases
b, and the weights of each feature. The intercept is free. The iteration is that of
:mod:`sklearn_gn.core.evidence_gn`. More neurons than the data need do no harm:
penalties switch them off, and noise-free data of a network are recovered exactly.
Neurons whose breaking hyperplane misses the data are taken into the linear term at the
end.

The matrix has a structure: with h_0 = 1 and y = (1, x), all columns of the Jacobian are
combinations of the products ``h_i y_j``, whose Gram matrix is that of the layer in
:mod:`sklearn_gn.shallow_relu.sggn` with one neuron that is always active. It is summed
over the rows once, for all targets. At the sizes of tables this is all the work, in
products that NumPy hands to BLAS: nothing is compiled.
"""

import math
from typing import NamedTuple

import numpy as np

from sklearn_gn.core import evidence_gn
from sklearn_gn.core.evidence_gn import Sums
from sklearn_gn.core.solver import Algorithm

_BLOCK_ROWS = 2048  # whose products stay in the processor's cache
_START_COEF = 0.1  # standard deviation of the first coefficients
_START_RIDGE = 1e-3  # of the first linear fit, in rows


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

    @property
    def loss(self):
        """Name of the loss."""
        return "squared"

    @property
    def n_targets(self):
        """Numbers that each row gives."""
        return self.q

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

    def sums(self, theta, rows):
        """Sums over the rows."""
        return sums_over_rows(theta, self, rows)

    def error(self, theta, rows):
        """Weighted sum of squares of the residuals."""
        return square_error(theta, self, rows)

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
    theta: np.ndarray  # (P,)  the parameters, with the |w| of the penalties
    alpha: np.ndarray  # (3 + d,)  precisions of the groups
    beta: float  # precision of the noise
    gamma: np.ndarray  # (3 + d,)  well-determined parameters of the groups
    log_evidence: float


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
    else:
        square = float(rows.weight @ np.sum(rows.y**2, axis=1)) / shape.q
        size = math.sqrt(square) if square > 0 else 1.0
        theta, beta = _first_parameters(rows, net, shape, size, options), None
        alpha = np.ones(3 + shape.d)
        alpha[:2] = 1 / size**2
    return evidence_gn.init_at(shape, rows, theta, alpha, beta, options)


def _first_parameters(rows, net, shape, size, options):
    """The linear fit, small random coefficients, and the hyperplanes of a network."""
    y = np.concatenate([np.ones((len(rows.x), 1)), rows.x], axis=1)
    weighted = rows.weight[:, None] * y
    gram = y.T @ weighted
    ridge = _START_RIDGE / options.n_effective + evidence_gn.ROUNDING * np.trace(gram)
    gram[np.diag_indices_from(gram)] += ridge
    linear = np.linalg.solve(gram, weighted.T @ rows.y)
    rng = np.random.RandomState(options.seed)
    coef = _START_COEF * size * rng.standard_normal((shape.n, shape.q))
    return np.concatenate([linear.ravel(), coef.ravel(), net.hyperplanes.ravel()])


def step(rows, state, options):
    """One accepted step at fixed penalties, then new penalties."""
    shape = Shape(len(state.net.hyperplanes), rows.x.shape[1], rows.y.shape[1])
    return evidence_gn.step(shape, rows, state, options)


def square_error(theta, shape, rows):
    """Return the weighted sum of squares of the residuals."""
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


EVIDENCE_GN = Algorithm("vpgn", init, step, compiled=False)
