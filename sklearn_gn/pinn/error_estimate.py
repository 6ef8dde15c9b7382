r"""How far a solution is from the exact one, estimated from its residuals.

The exact solution is ``u + e`` with an error e that the linearised equation ties to
the residuals, ``L e = -r``. It is looked for among the changes of a network to first
order in its weights, ``e = T v`` with v the least-squares solution of ``J v = -r``: one
step of Gauss-Newton, on fresh points, and in a richer network. That is the given one
with more neurons in the first layer, which have outgoing weights of zero: the same
function, and more directions in which it can change. The new neurons vary on many
scales, since what a network has missed is mostly finer than what it has found.

Where the richer network explains only a part of the residuals,
``1 - |r + J v|^2 / |r|^2``, what is left of them goes along with error as well. It is
rougher, and rough residuals cause less error: the estimate is divided by the fourth
root of that part, where the square root would count them like the others.

Residuals that are large at a few points, such as those at a kink of initial values, can
be explained at these alone, by changes that are wild between them. So both halves of
the points have to find about the error that all of them find; where they do not, ``v``
is damped by sums. They need not explain the residuals of each other: where an equation
lets errors grow, such as ahead of a front, the error comes from a small part of the
residuals, and the rest may be noise.

The sums ``J^T J`` lose the changes that residuals hardly see, and a small error may
consist of these. Triangular factors of J keep them, and take longer: they are used for
``error_estimate_``, not within a fit, and on three times as many points where the
halves of the first ones do not agree.
"""

import math

import numpy as np
from scipy.linalg import lapack, solve_triangular

from sklearn_gn.arrays import backend
from sklearn_gn.linalg.factors import factor
from sklearn_gn.pde.given_values import N_POINTS
from sklearn_gn.pde.reading import slopes_of_equation
from sklearn_gn.pinn import pieces
from sklearn_gn.pinn.model import (
    MOST_WEIGHTS,
    cast,
    coefficient_values,
    n_weights,
    richer,
)
from sklearn_gn.pinn.residuals import residual_counts
from sklearn_gn.pinn.solution import output_slopes
from sklearn_gn.pinn.statement import free_parts, read
from sklearn_gn.pinn.windows import SinceBefore, marches, with_time, within

_LEAST_EXPLAINED = 1e-4  # part of the residuals
_DEGREE = 8  # of functions of time that are taken off
_FEW = 8  # points of a class that both halves need
_TIMES, _ENOUGH = 3, 10  # as many points; residuals for each weight that suffice
_AGREED = 0.5  # difference of errors that halves find, relative to that of all points


def relative_error_estimate(model, net, batches, fresh, draw=None, of="solution"):
    """Estimate of the relative L2 error; NaN if it is not known, as of large networks.

    The error is that of the "solution", of all outputs "in units" of their sizes, or
    the "largest" of each output and each unknown coefficient. ``draw`` makes further
    fresh points for triangular factors; None: sums serve.
    """
    if n_weights(net) > MOST_WEIGHTS:
        return math.nan
    given = backend.to_numpy((net, batches, fresh))
    net, batches, fresh = cast(given, np.float64)
    if model.features is None:
        net = richer(net, model.problem.n_functions)
    roots = np.sqrt(even_weights(model, net, batches))
    fresh = _weighted(fresh, roots)
    sizes, physical, scale, error_of = _outputs(model, net, fresh)

    def solved(method, points, solution):
        parts = [method(model, net, half, batches) for half in halves(points)]
        return solution(*parts, error_of)

    # What the residuals make of the solution, to first order: the change of weights.
    if draw is None or n_weights(net) > MOST_WEIGHTS:
        found = solved(pieces.sums_over_pieces, fresh, correction_of_halves)
    else:
        found = solved(factor_over_pieces, fresh, correction_by_factors)
        n_residuals = sum(residual_counts(model.classes, fresh))
        if found[2] > _AGREED and n_residuals < _ENOUGH * n_weights(net):
            drawn = draw(times=_TIMES)
            drawn = _weighted(cast(drawn, np.float64), roots[: len(drawn)])
            fresh = *drawn, *fresh[len(drawn) :]
            found = solved(factor_over_pieces, fresh, correction_by_factors)
    change, explained, _ = found
    squares = np.sum(error_of(change) ** 2, axis=0)
    rest = explained**-0.25  # of the residuals that no change explains
    if of == "solution":
        return rest * _relative(np.sum(squares * scale**2), np.sum(physical))
    if of == "in units":
        return rest * _relative(np.sum(squares), np.sum(sizes))
    errors, extra = list(map(_relative, squares, sizes)), net.extra
    changed = extra + change[len(change) - extra.size :]
    before, after = (
        backend.to_numpy(coefficient_values(model.problem, values))
        for values in (extra, changed)
    )
    for name, value in before.items():
        errors.append(_relative(np.sum((after[name] - value) ** 2), np.sum(value**2)))
    return float(rest * np.max(errors))


def _outputs(model, net, fresh):
    """Squares of outputs, in units and as they are, units, and what changes do."""
    x = np.asarray(fresh[0].x)[:N_POINTS, 0]
    values, slopes = backend.to_numpy(output_slopes(model, net, x))
    in_time = free_parts(model, fresh)[1]
    has_equation = _has_equation(model.problem, x)

    def determined(a):
        return has_equation * _without_free_parts(a, model.problem, x, in_time)

    def error_of(change):
        return determined((slopes @ change).reshape(values.shape) / scale)

    # Those of a default network; others have none.
    problem = model.problem
    center, scale = np.array(problem.center or 0.0), np.array(problem.scale or 1.0)
    both = (values - center) / scale, values
    sizes, physical = (np.sum(determined(a) ** 2, axis=0) for a in both)
    return sizes, physical, scale, error_of


def _has_equation(problem, x):
    """Whether the equation at points depends on each output, (n, q) or a number."""
    reading, q = read(problem), len(problem.outputs)
    if q == 1 or reading.factors is None:
        return 1
    return (slopes_of_equation(reading.problem, x, np.ones(q)) != 0).any(axis=(1, 2))


def _relative(square, size):
    return float(np.sqrt(square / size)) if size > 0 else math.nan


def halves(points):
    """Two halves of the points of each class; both have all of one that has few."""
    found = ([], [])
    for batch in points:
        n = len(batch.x)
        few, middle = n <= _FEW, n // 2
        parts = [slice(0, n)] * 2 if few else [slice(0, middle), slice(middle, n)]
        share = math.sqrt(0.5) if few else 1.0
        for half, part in zip(found, parts, strict=True):
            x, data, scale = (a[part] for a in (batch.x, batch.data, batch.scale))
            half.append(batch._replace(x=x, data=data, scale=share * scale))
    return tuple(map(tuple, found))


def even_weights(model, net, batches):
    """Weights of the residual classes with which their Jacobians are of one size."""
    ones = np.ones(len(batches))
    if any(kind.residual.name == "data" for kind in model.classes):
        return ones
    squares = np.zeros(len(batches))
    for piece in pieces.cut(model.classes, batches):
        _, rows = pieces.dense_jacobian_of_piece(model, net, piece)
        ends = np.cumsum(residual_counts(model.classes, piece))
        squares += [np.sum(own**2) for own in np.split(rows, ends[:-1])]
    usual = (squares > 0) & np.isfinite(squares)
    return np.where(usual, 1 / np.where(usual, squares, 1), 1)


def _weighted(batches, roots):
    """The batches with the residuals of each class multiplied."""
    pairs = zip(batches, roots, strict=True)
    return tuple(batch._replace(scale=root * batch.scale) for batch, root in pairs)


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


def correction_of_halves(first, second, error_of):
    """:func:`correction` by both halves, so damped that they agree on the error.

    Also returns how far the errors that they find differ, relative to all points.
    """
    both = [a + b for a, b in zip(first, second, strict=True)]
    for root in range(1, 5):  # of rounding, relative to the largest of the diagonal
        damping = np.finfo(float).eps ** (1 / root)
        change, explained = correction(*both, damping)
        parts = [correction(*half, damping)[0] for half in (first, second)]
        difference = _largest_difference(error_of, change, parts)
        if difference <= _AGREED:
            break
    return change, explained, difference


def _largest_difference(error_of, change, parts):
    """Difference of the errors that parts of the points find, relative to the error."""
    error = np.linalg.norm(error_of(change))
    difference = max(np.linalg.norm(error_of(part - change)) for part in parts)
    return difference / error if error > 0 else 0.0


def correction(gramian, gradient, square, damping=0.0):
    """Least-squares solution, and the part of the residuals' square it explains."""
    if square == 0:
        return np.zeros(len(gramian)), 1.0
    if not (np.isfinite(square) and np.isfinite(gramian).all()):
        return np.full(len(gramian), math.nan), 1.0
    shift = max(len(gramian) * np.finfo(float).eps, damping) * gramian.diagonal().max()
    change = -factor(gramian, shift).solve(gradient)
    fall = -2 * gradient @ change - change @ gramian @ change
    return change, min(max(fall / square, _LEAST_EXPLAINED), 1.0)


def factor_over_pieces(model, net, points, like):
    """Triangular factor (n + 1, n + 1) of the Jacobian with the residuals appended."""
    root = np.zeros((n_weights(net) + 1,) * 2)
    for piece in pieces.cut(model.classes, points, like):
        r, rows = pieces.dense_jacobian_of_piece(model, net, piece)
        root = _with_rows(root, np.column_stack([rows, r]))
    return root


def correction_by_factors(first, second, error_of):
    """What :func:`correction_of_halves` returns, to rounding and without damping."""
    both = _with_rows(first, second, n_triangular=len(second))
    square = np.sum(both[:, -1] ** 2)
    if square == 0 or not np.isfinite(both).all():
        return np.full(both.shape[1] - 1, 0 * square), 1.0, 0 * square
    change = _least_squares(both)
    fall = square - np.sum((both[:, -1] + both[:, :-1] @ change) ** 2)
    explained = min(max(fall / square, _LEAST_EXPLAINED), 1.0)
    parts = [_least_squares(half) for half in (first, second)]
    return change, explained, _largest_difference(error_of, change, parts)


def _least_squares(root):
    """Solution of ``J v = -r`` for a factor of both; as good as one of least norm."""
    n = len(root) - 1
    shift = n * np.finfo(float).eps * np.linalg.norm(root[:, :n], axis=0).max()
    root = _with_rows(root, shift * np.eye(n, n + 1), n_triangular=n)
    return -solve_triangular(root[:n, :n], root[:n, n])


def _with_rows(root, rows, n_triangular=0):
    """Triangular factor of more rows; the last ones may be a triangle."""
    n_columns = math.isqrt(len(root))  # of a block
    return np.triu(lapack.dtpqrt(n_triangular, n_columns, root, rows)[0])


# --- in windows of time, carried from window to window --------------------------------
#
# In each window the error solves the linearised equation, and begins as the error at
# the end of the window before. It is the least-squares solution v, in a richer network,
# of
#
#     J v = -r + c,
#
# where c is what the error of the window before does to the conditions at the start.
# The part of v that comes from the window's own residuals is enlarged for those that it
# does not explain; what is carried on is the same, so that the linearised flow lets
# errors grow or decay as the equation does.


def relative_error_in_windows(model, solution, fresh):
    """Estimate of the relative L2 error over all windows; NaN if they end early."""
    solution, fresh = cast(backend.to_numpy((solution, fresh)), np.float64)
    nets = solution.nets
    before, error_square, square = None, 0.0, 0.0
    for march, net in zip(marches(solution), nets, strict=True):
        if n_weights(net) > MOST_WEIGHTS:
            return math.nan
        # More neurons, which vary within the window.
        net = richer(with_time(net, march, back=True), model.problem.n_functions)
        net = with_time(net, march)
        points = within(model, fresh, march)
        change = _change_in_window(model, net, points, before)
        before = net, change
        x = points[0].x[:N_POINTS, 0]
        values, slopes = backend.to_numpy(output_slopes(model, net, x))
        length = march.stop - march.start
        error = slopes.reshape(-1, len(change)) @ change
        error_square += length * float(np.sum(error**2)) / len(x)
        square += length * float(np.sum(values**2)) / len(x)
    reaches_the_end = march.stop >= 1 - np.finfo(float).eps * 8
    if not (square > 0 and reaches_the_end):
        return math.nan
    return math.sqrt(error_square / square)


def _change_in_window(model, net, points, before):
    """Change of the weights of a window that leads to the exact solution."""
    points = _weighted(points, np.sqrt(even_weights(model, net, points)))
    gramian, own, square = pieces.sums_over_pieces(model, net, points)
    change, explained = correction(gramian, own, square)
    change = change * explained**-0.25
    if before is None:
        return change
    moved = []  # the points, with the values at the start corrected by the error there
    for kind, batch in zip(model.classes, points, strict=True):
        if isinstance(kind.residual.function, SinceBefore):
            alone = model._replace(classes=(kind,))
            piece = (batch._replace(scale=np.ones(len(batch.x))),)
            _, rows = pieces.dense_jacobian_of_piece(alone, before[0], piece)
            shift = (rows @ before[1]).reshape(batch.data.shape)
            batch = batch._replace(data=batch.data + shift)
        moved.append(batch)
    _, both, _ = pieces.sums_over_pieces(model, net, moved)
    return change + correction(gramian, both - own, 1.0)[0]
