r"""The error of a solution in windows of time, carried from window to window.

In each window the error solves the linearised equation, ``L e = -r``, and begins as the
error at the end of the window before. As in :mod:`sklearn_gn.pinn.error_estimate` it is
looked for among the changes of a richer network to first order in its weights: the
least-squares solution v of

    J v = -r + c,

where c is what the error of the window before does to the conditions at the start. The
part of v that comes from the window's own residuals is enlarged for those that it does
not explain; what is carried on is the same, so that the linearised flow lets errors
grow or decay as the equation does.
"""

import math
from functools import partial

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.pinn.determination import output_slopes
from sklearn_gn.pinn.error_estimate import (
    MOST_WEIGHTS,
    N_POINTS,
    correction,
    even_weights,
    for_all_residuals,
    in_double_precision,
    sums_over_pieces,
)
from sklearn_gn.pinn.residuals import class_residuals
from sklearn_gn.pinn.windows import SinceBefore, marches, wider_in_window, within


def relative_error_in_windows(model, solution, fresh):
    """Estimate of the relative L2 error over all windows; NaN if they end early."""
    solution, fresh = map(in_double_precision, (solution, fresh))
    nets = solution.nets
    before, error_square, square = None, 0.0, 0.0
    for march, net in zip(marches(model, solution), nets, strict=True):
        net = wider_in_window(model, net, march)
        if sum(leaf.size for leaf in backend.leaves(net)) > MOST_WEIGHTS:
            return math.nan
        points = within(model, fresh, march)
        change = _change(model, net, points, before)
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


def _change(model, net, points, before):
    """Change of the weights of a window that leads to the exact solution."""
    balance = even_weights(model, net, points)
    gramian, own, square = sums_over_pieces(model, net, points, balance)
    change, explained = correction(gramian, own, square)
    change = change * for_all_residuals(explained)
    if before is None:
        return change
    moved = _with_error_of_start(model, points, *before)
    _, both, _ = sums_over_pieces(model, net, moved, balance)
    return change + correction(gramian, both - own, 1.0)[0]


def _with_error_of_start(model, points, net, change):
    """The points, with the values at the start corrected by an error before it."""
    moved = []
    for kind, batch in zip(model.classes, points, strict=True):
        if isinstance(kind.residual.function, SinceBefore):
            shift = _change_of_residuals(model, kind, net, change, batch)
            batch = batch._replace(data=np.asarray(batch.data) + np.asarray(shift))
        moved.append(batch)
    return tuple(moved)


@partial(jit_by_size, static_argnames=("model", "kind"))
def _change_of_residuals(model, kind, net, change, batch):
    flat, unravel = ravel_pytree(net)

    def rows(flat):
        return class_residuals(model, kind, unravel(flat), batch)

    return jax.jvp(rows, (flat,), (change,))[1]
