r"""How far a solution is from the exact one, estimated from its residuals.

The exact solution is ``u + e`` with an error e that the linearised equation ties to
the residuals, ``L e = -r``. It is looked for among the changes of a network to first
order in its weights, ``e = T v`` with v the least-squares solution of ``J v = -r``: one
step of Gauss-Newton, on fresh points, and in a richer network. That is the given one
with more neurons in the first layer, which have outgoing weights of zero: the same
function, and more directions in which it can change. The new neurons vary on many
scales, since what a network has missed is mostly finer than what it has found. The
system is solved by triangular factors of J: sums ``J^T J`` would lose the changes that
residuals hardly see, and a small error may consist of these.

Where the richer network explains only a part of the residuals,
``1 - |r + J v|^2 / |r|^2``, what is left of them goes along with error as well. It is
rougher, and rough residuals cause less error: the estimate is divided by the fourth
root of that part, where the square root would count them like the others.

Residuals that are large at a few points, such as those at a kink of initial values, can
be explained at these alone, by changes that are wild between them. So both halves of
the points have to find about the error that all of them find; where they do not, three
times as many points are drawn. The halves need not explain the residuals of each other:
where an equation lets errors grow, such as ahead of a front, the error comes from a
small part of the residuals, and the rest may be noise.
"""

import math

import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.trees import dimension
from sklearn_gn.linalg.factors import joined_triangles, triangular_solution
from sklearn_gn.pde.given_values import N_POINTS
from sklearn_gn.pde.reading import slopes_of_equation
from sklearn_gn.pinn.model import (
    MOST_WEIGHTS,
    cast,
    coefficient_values,
    richer,
)
from sklearn_gn.pinn.pieces import cut, dense_jacobian_of_piece, factor_over_pieces
from sklearn_gn.pinn.residuals import residual_counts
from sklearn_gn.pinn.solution import output_slopes
from sklearn_gn.pinn.statement import free_parts, read
from sklearn_gn.pinn.windows import SinceBefore, marches, time_of, with_time, within

_LEAST_EXPLAINED = 1e-4  # part of the residuals
_PARTS = 10  # of the time, in which errors are compared
_DEGREE = 8  # of functions of time that are taken off
_FEW = 8  # points of a class that both halves need
_TIMES, _ENOUGH = 3, 10  # as many points; residuals for each weight that suffice
_AGREED = 0.5  # difference of errors that halves find, relative to that of all points


def relative_error_estimate(model, net, batches, fresh, draw=None, of="solution"):
    """Estimate of the relative L2 error; NaN if it is not known, as of large networks.

    The error is that of the "solution", of all outputs "in units" of their sizes, or
    the "largest" of each output and each unknown coefficient. ``draw`` makes further
    fresh points, where the halves do not agree.
    """
    if dimension(net) > MOST_WEIGHTS:
        return math.nan
    net, batches, fresh = cast(backend.to_numpy((net, batches, fresh)), np.float64)
    if model.features is None:
        net = richer(net, model.problem.n_functions)
    roots = even_roots(model, net, batches)
    fresh = _times(fresh, roots)
    problem, x = model.problem, np.asarray(fresh[0].x)[:N_POINTS, 0]
    values, slopes = backend.to_numpy(output_slopes(model, net, x))
    center, scale = np.array(problem.center or 0.0), np.array(problem.scale or 1.0)
    # What is known of each output, (n, q): where the equation depends on it.
    in_time, counts, q = free_parts(model, fresh)[1], 1, len(problem.outputs)
    if q > 1 and read(problem).factors is not None:
        of_outputs = slopes_of_equation(read(problem).problem, x, np.ones(q))
        counts = (of_outputs != 0).any(axis=(1, 2))

    def determined(a):
        return counts * without_free_parts(a, problem, x, in_time)

    def error_of(change):
        return determined((slopes @ change).reshape(values.shape) / scale)

    def corrected(points):
        parts = (factor_over_pieces(model, net, p, batches) for p in halves(points))
        return correction(*parts, error_of)

    # What the residuals make of the solution, to first order: the change of weights.
    change, explained, difference = corrected(fresh)
    n_residuals = sum(residual_counts(model.classes, fresh))
    too_few = n_residuals < _ENOUGH * dimension(net)
    if draw is not None and difference > _AGREED and too_few:
        drawn = _times(cast(draw(times=_TIMES), np.float64), roots)
        change, explained, _ = corrected((*drawn, *fresh[len(drawn) :]))
    scales = scale if of == "solution" else 1.0
    squares = np.sum((scales * error_of(change)) ** 2, axis=0)
    sizes = values if of == "solution" else (values - center) / scale
    sizes = np.sum(determined(sizes) ** 2, axis=0)
    if of != "largest":  # all outputs together
        squares, sizes = np.sum(squares, keepdims=True), np.sum(sizes, keepdims=True)
    else:
        extra = net.extra
        changed = extra + change[len(change) - extra.size :]
        before, after = (
            backend.to_numpy(coefficient_values(problem, values))
            for values in (extra, changed)
        )
        for name, value in before.items():
            squares = np.append(squares, np.sum((after[name] - value) ** 2))
            sizes = np.append(sizes, np.sum(value**2))
    # Divided by the root of the part of the residuals that changes explain.
    sizes = np.where(sizes > 0, sizes, np.nan)
    return float(explained**-0.25 * np.sqrt(np.max(squares / sizes)))


def halves(points):
    """Two halves of the points of each class; both have all of one that has few."""
    found = ([], [])
    for batch in points:
        n = len(batch.x)
        few, middle = n <= _FEW, n // 2
        rows = np.arange(n)
        parts = (rows, rows) if few else (rows[:middle], rows[middle:])
        share = math.sqrt(0.5) if few else 1.0
        for half, part in zip(found, parts, strict=True):
            own = batch.at(part)
            half.append(own._replace(scale=share * own.scale))
    return found


def even_roots(model, net, batches):
    """Factors of the residual classes with which their Jacobians are of one size."""
    if any(kind.name == "data" for kind in model.classes):
        return np.ones(len(batches))
    squares = np.zeros(len(batches))
    for piece in cut(model.classes, batches):
        _, rows = dense_jacobian_of_piece(model, net, piece)
        ends = np.cumsum(residual_counts(model.classes, piece))
        squares += [np.sum(own**2) for own in np.split(rows, ends[:-1])]
    usual = (squares > 0) & np.isfinite(squares)
    return np.sqrt(1 / np.where(usual, squares, 1))


def _times(batches, factors):
    """The batches with the residuals of each class multiplied."""
    pairs = zip(batches, factors, strict=False)
    return tuple(batch._replace(scale=k * batch.scale) for batch, k in pairs)


def without_free_parts(values, problem, x, in_time):
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


def correction(first, second, error_of):
    """Least-squares change of the weights by the factors of two halves of the points.

    Also the part of the residuals that it explains, and how far the errors of the
    halves are from that of all points, relative to it.
    """
    change, explained = least_squares(joined_triangles(first, second))
    error = np.linalg.norm(error_of(change))
    parts = [least_squares(half)[0] - change for half in (first, second)]
    difference = max(np.linalg.norm(error_of(part)) for part in parts)
    return change, explained, difference / error if error > 0 else 0.0


def least_squares(root):
    """Solution of ``J v = -r`` by a factor of both, and the part of r it explains."""
    n, r = len(root) - 1, root[:, -1]
    if not (np.isfinite(root).all() and r.any()):
        return np.full(n, 0.0 if np.isfinite(root).all() else math.nan), 1.0
    change = -triangular_solution(root)
    left = np.sum((r + root[:, :n] @ change) ** 2) / np.sum(r**2)
    return change, min(max(1 - left, _LEAST_EXPLAINED), 1.0)


def loses_track(model, net, batches, fresh):
    """Whether the error grows along time, until nothing is known of the solution.

    It is then as large as the solution in the last of ten parts of the time, and more
    than ten times as large as in the first.
    """
    net, batches, fresh = cast(backend.to_numpy((net, batches, fresh)), np.float64)
    net = richer(net, model.problem.n_functions)
    fresh = _times(fresh, even_roots(model, net, batches))
    change, _ = least_squares(factor_over_pieces(model, net, fresh, batches))
    x = np.asarray(fresh[0].x)[:N_POINTS, 0]
    values, slopes = backend.to_numpy(output_slopes(model, net, x))
    errors = (slopes @ change).reshape(values.shape)
    axis, *_ = time_of(model.problem)
    first, *_, last = np.array_split(np.argsort(x[:, axis]), _PARTS)
    size = np.linalg.norm(errors[last])
    known = np.linalg.norm(values[last]), _PARTS * np.linalg.norm(errors[first])
    return bool(size > max(known))


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
    before, change, error_square, square = None, None, 0.0, 0.0
    for march, net in zip(marches(solution), solution.nets, strict=True):
        if dimension(net) > MOST_WEIGHTS:
            return math.nan
        # More neurons, which vary within the window.
        net = richer(with_time(model, net, march, back=True), model.problem.n_functions)
        net = with_time(model, net, march)
        points = within(model, fresh, march)
        points = _times(points, even_roots(model, net, points))
        own, explained = least_squares(factor_over_pieces(model, net, points))
        enlarged = own * explained**-0.25
        if before is not None:
            moved = []  # values at the start are corrected by the error there
            for kind, batch in zip(model.classes, points, strict=True):
                if isinstance(kind.function, SinceBefore):
                    alone = model._replace(classes=(kind,))
                    piece = (batch._replace(scale=np.ones(len(batch.x))),)
                    _, rows = dense_jacobian_of_piece(alone, before, piece)
                    shift = (rows @ change).reshape(batch.data.shape)
                    batch = batch._replace(data=batch.data + shift)
                moved.append(batch)
            both = least_squares(factor_over_pieces(model, net, moved))[0]
            enlarged = enlarged + both - own
        before, change = net, enlarged
        values, slopes = backend.to_numpy(
            output_slopes(model, net, points[0].x[:N_POINTS, 0])
        )
        length = march.stop - march.start
        error_square += length * np.mean(np.sum((slopes @ change) ** 2, axis=1))
        square += length * np.mean(np.sum(values**2, axis=1))
    reaches_the_end = march.stop >= 1 - np.finfo(float).eps * 8
    if not (square > 0 and reaches_the_end):
        return math.nan
    return math.sqrt(error_square / square)
