"""Descents with given penalties over rows that do not fit into memory.

The iterations are those of :mod:`sklearn_gn.shallow_relu.joint` and of
:mod:`sklearn_gn.shallow_relu.sggn`, with the products of matrices for the hidden layer
that these form of many rows. What they need of the rows comes from passes over them, in
NumPy: the triangular factor of the output layer, the sums of the model at a network,
and losses along a line.
"""

import math
from typing import NamedTuple

import numpy as np

from sklearn_gn.data.rows_source import row_blocks
from sklearn_gn.linalg.factors import solve_semidefinite
from sklearn_gn.optim.globalisation import nielsen_shift
from sklearn_gn.optim.line_search import grid_search
from sklearn_gn.optim.solver import Report
from sklearn_gn.shallow_relu.network import (
    active_set,
    activity,
    hidden_features,
    joint_parts,
    layer_columns,
    mass_design,
    preactivations,
    unit_normals,
)
from sklearn_gn.shallow_relu.parameters import ShallowReLU

_BLOCK_ROWS = 2048
_FIRST_SHIFT = 1e-3  # relative to the largest eigenvalue
_MAX_TRIALS = 20  # steps tried in one iteration
_EPS = np.finfo(np.float64).eps


class DescentState(NamedTuple):
    """A network with the best output layer, its loss, and the damping."""

    net: ShallowReLU
    loss: float
    shift: float = _FIRST_SHIFT
    growth: float = 2.0  # of the shift where a step is rejected


class Model(NamedTuple):
    """Sums over the rows at a network."""

    mass: np.ndarray  # (1 + n, 1 + n)
    cross: np.ndarray  # (1 + n, n (1 + d))
    layer: np.ndarray  # (n (1 + d), n (1 + d)), without the coefficients
    slopes: np.ndarray  # (n (1 + d), q), of each target, without the coefficients
    rounding: float  # largest loss that is rounding errors


def init(rows, net, options):
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
        factor = np.linalg.qr(np.concatenate([factor, design]), mode="r")
    # Below the row of the intercept all columns are centred.
    features, targets = factor[1 : 1 + n, 1 : 1 + n], factor[1:, 1 + n :]
    u, s, vt = np.linalg.svd(features)
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
    gram, slopes, of_terms, of_targets = 0.0, 0.0, 0.0, 0.0
    for block in row_blocks(rows, _BLOCK_ROWS):
        active, y, error = joint_parts(net, block)
        columns = layer_columns(active, y)
        design = np.concatenate([mass_design(net, block), columns], axis=1)
        gram = gram + design.T @ design
        slopes = slopes + columns.T @ error
        terms = hidden_features(net.hyperplanes, block.x) @ np.abs(net.coef)
        terms += np.abs(net.intercept) + np.abs(block.y)
        of_terms += block.weight @ np.sum(terms**2, axis=1)
        of_targets += block.weight @ np.sum(block.y**2, axis=1)
    rounding = min((30 * _EPS) ** 2 * of_terms, _EPS * of_targets) / 2
    return Model(gram[:p, :p], gram[:p, p:], gram[p:, p:], slopes, float(rounding))


def losses_along(net, p, rows, gammas, intercept_moves):
    """Return the squares at ``hyperplanes - gamma p``, the coefficients held."""
    squares, means = np.zeros(len(gammas)), np.zeros((len(gammas), net.coef.shape[1]))
    for block in row_blocks(rows, _BLOCK_ROWS):
        z, dz = preactivations(net.hyperplanes, block.x), preactivations(p, block.x)
        target = block.y - net.intercept
        for k, gamma in enumerate(gammas):
            error = np.maximum(z - gamma * dz, 0) @ net.coef - target
            squares[k] += block.weight @ np.sum(error**2, axis=1)
            means[k] += block.weight @ error
    return squares - np.sum(means**2, axis=1) * intercept_moves


# --- an iteration --------------------------------------------------------------------


def joint_step(rows, state, options):
    """Take a step of both layers, the output layer projected out."""
    net, scale = state.net, _coefficients(state.net, options)
    model = model_at(net, rows)
    penalty = np.append(0, np.full(len(net.coef), float(options.alpha)))
    mass = model.mass + np.diag(penalty)
    reduced = model.layer - model.cross.T @ solve_semidefinite(mass, model.cross)
    values, basis = np.linalg.eigh(reduced * (scale @ scale.T))
    values, basis = np.maximum(values[::-1], 0), basis[:, ::-1]
    values += len(values) * _EPS * values[0]  # what rounding may have taken
    slopes = basis.T @ np.sum(model.slopes * scale, axis=1)
    slopes *= _leading(np.sqrt(values), options.rank_tol, options.rank)
    shift, growth, fixed = state.shift, state.growth, options.damping is not None
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
            shift, growth = nielsen_shift(shift, gain), 2.0
            new = DescentState(found, loss, shift, growth)
            return _state_and_report(state, new, model, slopes, gain, n_trials, options)
        shift, growth = shift * growth, 2 * growth
    return _state_and_report(state, state, model, slopes, 0.0, n_trials, options)


def sggn_step(rows, state, options):
    """Take a step of the hidden layer, then of the output layer (Algorithm 1)."""
    net, model = state.net, model_at(state.net, rows)
    unit = unit_coefficients(net, options.active_tol)
    matrix, gradient = model.layer * (unit @ unit.T), np.sum(model.slopes * unit, 1)
    intercept_moves = options.relocations > 0
    if intercept_moves:  # centred, as the error is
        means = model.cross[0][:, None] * unit
        matrix = matrix - means @ means.T
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    tol = max(float(options.rank_tol), math.sqrt(len(values) * _EPS))
    kept = _leading(np.sqrt(values), tol, options.rank)
    damping = 0.0 if options.damping is None else options.damping
    slopes = kept * (vectors.T @ gradient)
    along = slopes / np.where(kept, values + damping, 1)
    size = np.where(active_set(net, options.active_tol), activity(net), np.inf)
    p = (vectors @ along).reshape(net.hyperplanes.shape) / size[:, None]
    predicted = float(slopes @ along - values @ along**2 / 2)

    def losses(gammas):
        return losses_along(net, p, rows, gammas, intercept_moves)

    gamma = grid_search(losses, np.dtype(float), np)
    found, loss = _refitted(net, net.hyperplanes - gamma * p, rows, options)
    new = DescentState(found, loss) if loss < state.loss else state
    gain = max(state.loss - loss, 0) / predicted if predicted > 0 else 0.0
    slopes = np.sum(model.slopes * _coefficients(net, options), axis=1)
    return _state_and_report(state, new, model, slopes, gain, 1, options, gamma)


def _refitted(net, hyperplanes, rows, options):
    """The network with other hyperplanes and the best output layer, and its loss."""
    moved = unit_normals(hyperplanes, fallback=net.hyperplanes)
    found, loss = fit_output_layer(net._replace(hyperplanes=moved), rows, options)
    return found, loss if math.isfinite(loss) else math.inf


def _state_and_report(state, new, model, slopes, gain, n_trials, options, length=1.0):
    """State and report after an iteration."""
    stop = None
    if state.loss - new.loss <= options.tol * new.loss:
        stop = "tol"
    if new.loss <= model.rounding:
        stop = "rounding"
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


def unit_coefficients(net, active_tol):
    """The same with ``|c_i| = 1``, the direction of the neuron among the targets."""
    active = active_set(net, active_tol)
    size = np.where(active, activity(net), np.inf)[:, None]
    return np.repeat(net.coef / size, net.hyperplanes.shape[1], axis=0)


def _leading(singular_values, tol, rank):
    """Which directions are kept."""
    large = singular_values > tol * np.max(singular_values, initial=0)
    return large & (np.arange(len(singular_values)) < rank)


STEPS = {"vpgn": joint_step, "sggn": sggn_step}
