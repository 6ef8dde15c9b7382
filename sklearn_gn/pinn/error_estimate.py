r"""How far a solution is from the exact one, estimated from its residuals.

The exact solution is ``u + e`` with an error e that the linearised equation ties to
the residuals, ``L e = -r``. It is looked for among the changes of a network to first
order in its weights, ``e = T v`` with v the least-squares solution of ``J v = -r``: one
step of Gauss-Newton, on fresh points, and in a richer network. That is the given one
with more neurons, which have outgoing weights of zero: the same function, and more
directions in which it can change.

Where the network is at its minimum, the richer one explains only a part of the
residuals, ``1 - |r + J v|^2 / |r|^2``. What is left of them is taken to go along with
as much error: the estimate is divided by the root of that part.
"""

import math

import jax
import numpy as np
from scipy.linalg import cho_factor, cho_solve

from sklearn_gn.core import backend
from sklearn_gn.core.compilation import jit_by_size
from sklearn_gn.core.linear_algebra import jacobian as operators
from sklearn_gn.pinn.damped_step import weighted_jacobian
from sklearn_gn.pinn.determination import (
    free_functions_of_time,
    output_slopes,
    pieces,
)
from sklearn_gn.pinn.growth import wider
from sklearn_gn.pinn.model import n_waves

N_POINTS = 200  # at which the error is taken
MOST_WEIGHTS = 6000  # of the richer network
_LEAST_EXPLAINED = 1e-4  # part of the residuals
_DEGREE = 8  # of functions of time that are taken off


def relative_error_estimate(model, net, batches, fresh):
    """Estimate of the relative L2 error; NaN for networks that are too large.

    Outputs that are determined up to a constant count without their means, those to
    which the equation lets any function of time be added without one. To be called in
    double precision.

    Parameters
    ----------
    model : Model
    net : Parameters
    batches, fresh : tuple of Batch
        Points of training, which give the shape of the pieces, and fresh ones.
    """
    net, batches, fresh = in_double_precision((net, batches, fresh))
    if model.features is None:
        net = wider(net, np.random.RandomState(0), n_waves(model.problem))
    if sum(leaf.size for leaf in backend.leaves(net)) > MOST_WEIGHTS:
        return math.nan
    balance = even_weights(model, net, batches)
    sums = sums_over_pieces(model, net, fresh, batches, balance)
    change, explained = correction(*sums)
    x = fresh[0].x[:N_POINTS, 0]
    values, slopes = backend.to_numpy(output_slopes(model, net, x))
    error = (slopes @ change).reshape(values.shape)
    in_time = free_functions_of_time(model, net, fresh)
    parts = [_without_free_parts(a, model.problem, x, in_time) for a in (error, values)]
    error, values = parts
    size = np.linalg.norm(values)
    if not size > 0:
        return math.nan
    return float(np.linalg.norm(error) / size / math.sqrt(explained))


def sums_over_pieces(model, net, points, batches, balance):
    """``J^T J``, ``J^T r`` and ``|r|^2`` of all points, in pieces like the batches."""
    gramian = gradient = square = 0.0
    for piece in pieces(points, batches):
        sums = _sums(*weighted_jacobian(model, net, piece, balance)[1:])
        matrix, slope, part = backend.to_numpy(sums)
        gramian, gradient, square = gramian + matrix, gradient + slope, square + part
    return gramian, gradient, square


def even_weights(model, net, batches):
    """Weights of the residual classes with which their Jacobians are of one size.

    In physical units they differ by many orders of magnitude, and the squares of the
    small ones would be lost to rounding in the Gramian. Observations have noise, which
    their weights know of: with these, all keep the weights that they have.
    """
    ones = np.ones(len(batches))
    if any(kind.residual.name == "data" for kind in model.classes):
        return ones
    rows = np.asarray(_row_squares(weighted_jacobian(model, net, batches, ones)[2]))
    ends = np.cumsum(
        [
            len(batch.x) * kind.residual.n_outputs
            for kind, batch in zip(model.classes, batches, strict=True)
        ]
    )
    squares = np.array([part.sum() for part in np.split(rows, ends[:-1])])
    usual = (squares > 0) & np.isfinite(squares)
    return np.where(usual, 1 / np.where(usual, squares, 1), 1)


def _without_free_parts(values, problem, x, in_time):
    """Outputs (n, q) without constants, and functions of time, that may be added."""
    constant = np.isin(problem.outputs, problem.up_to_constant)
    values = values - np.where(constant, values.mean(axis=0), 0)
    if in_time.any():
        axis = problem.domain.axes.index(problem.domain.time)
        low, high = problem.domain.bounds[axis]
        share = 2 * (np.asarray(x)[:, axis] - low) / (high - low) - 1
        powers = np.polynomial.legendre.legvander(share, _DEGREE)
        fitted = powers @ np.linalg.lstsq(powers, values, rcond=None)[0]
        values = values - np.where(in_time, fitted, 0)
    return values


def correction(gramian, gradient, square):
    """Least-squares solution, and the part of the residuals' square it explains."""
    if not (square > 0 and np.isfinite(gramian).all()):
        return np.zeros(len(gramian)), 1.0
    matrix = np.array(gramian)
    floor = len(matrix) * np.finfo(float).eps * matrix.diagonal().max()
    matrix[np.diag_indices_from(matrix)] += floor
    change = cho_solve(cho_factor(matrix, lower=True), -gradient)
    fall = -2 * gradient @ change - change @ gramian @ change
    return change, min(max(fall / square, _LEAST_EXPLAINED), 1.0)


def in_double_precision(tree):
    """The arrays of a tree in numpy, floats in double precision."""
    return backend.map_leaves(_double, tree)


def _double(leaf):
    leaf = np.asarray(leaf)
    return leaf.astype(np.float64) if leaf.dtype.kind == "f" else leaf


@jit_by_size
def _row_squares(parts):
    return operators.row_squares(parts)


@jit_by_size
def _sums(r, parts):
    matrix = operators.dense(parts)
    return matrix.T @ matrix, matrix.T @ r, jax.numpy.sum(r**2)
