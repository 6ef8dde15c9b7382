"""Whether the targets are linear in pieces, to rounding errors.

The evidence takes what a network misses for noise. A jump without noise needs two
neurons that are steep and close to each other; penalties hold them apart, and what is
left of the jump looks like noise. Neighbouring rows tell the difference: on a piece,
the plane through as many of them as a plane has coefficients passes through the next
one, which noise never does.

Rows without noise lie on few lines, whose partition finds all jumps. Descents from
evenly spaced breakpoints rarely find many: each needs a breakpoint at the last row
before it and one at the first row behind, and a loss that a breakpoint lowers only
there. :func:`exact_knots` are the breakpoints of such rows.
"""

from itertools import pairwise

import numpy as np

from sklearn_gn.segmented.partition import Segments, exact_partition
from sklearn_gn.segmented.problem import LEFT
from sklearn_gn.shallow_relu.sorted_rows import THIN_ROWS

_LOOKED_AT = 200  # rows
_ROUNDING = 1e-10  # of the targets' size
_AGREE = 0.7  # share of these rows that lie on a plane of their neighbours
_ALONE = 0.02  # share of rows that do not, although the neighbours lie on one plane
_LOCAL = 0.25  # squared distance of neighbours, over the median of all rows
_ON_LINE = 1e-9  # of a target on a line with its neighbours, in standard deviations
_BLOCK = 20  # rows whose distances to all others are computed together


def has_exact_pieces(rows):
    """Whether most rows lie on planes of their neighbours, and hardly any beside one.

    A constant with exceptions, such as counts that are mostly zero or labels, has rows
    that none of their neighbours agrees with.

    Parameters
    ----------
    rows : Rows
        Distinct rows in the units of a fit.
    """
    n, d = rows.x.shape
    if n < 4 * (d + 2):
        return False
    looked_at = np.linspace(0, n - 1, min(n, _LOOKED_AT)).astype(np.intp)
    square = np.sum(rows.x**2, axis=1)
    agree, alone = [], []
    for start in range(0, len(looked_at), _BLOCK):
        some = looked_at[start : start + _BLOCK]
        distance = square - 2 * rows.x[some] @ rows.x.T
        distance[np.arange(len(some)), some] = np.inf
        near = np.argpartition(distance, d + 2, axis=1)[:, : d + 2]
        order = np.argsort(np.take_along_axis(distance, near, 1), axis=1)
        near = np.take_along_axis(near, order, 1)
        # In many dimensions the nearest rows are about as far as any.
        far = np.median(distance, axis=1)
        local = np.take_along_axis(distance, near[:, -1:], 1)[:, 0] < _LOCAL * far
        on_plane = _on_plane(rows, some, near[:, :-1])
        agree.append(local & on_plane)
        alone.append(~on_plane & _on_plane(rows, near[:, -1], near[:, :-1]))
    agree, alone = (np.mean(np.concatenate(parts)) for parts in (agree, alone))
    return bool(agree > _AGREE and alone <= _ALONE)


def _on_plane(rows, some, others):
    """Whether rows lie on the planes through others, of shape (len(some), 1 + d)."""
    x, y = rows.x[others], rows.y[others]
    ones = np.ones((*others.shape, 1))
    design = np.concatenate([ones, x - rows.x[some][:, None]], axis=2)
    plane = np.linalg.pinv(design, rcond=1e-9)  # its first row is the value at the row
    left = np.einsum("ij,ijk->ik", plane[:, 0], y) - rows.y[some]
    size = 1 + np.sum(np.abs(plane[:, 0]), axis=1)
    return np.max(np.abs(left), axis=1) < _ROUNDING * size


# --- rows without noise ------------------------------------------------------------


def exact_knots(data, most):
    """Return the breakpoints of a function that goes through all rows, or None."""
    n = int(data.running.n_rows)
    if most < 2 or not 3 <= n <= 2 * THIN_ROWS or not _on_lines(data.rows):
        return None
    sums = np.delete(data.running.sums[: n + 1].T, 3, axis=0)
    for slope in (True, False):
        segments = Segments(data.rows.x, sums, slope)
        path = exact_partition(segments, 2 * data.size, most - slope)
        if path is not None:
            knots = [LEFT] * slope + _knots(data.rows, path, slope)
            if len(knots) <= most:
                return np.array(knots)
    return None


def _on_lines(rows):
    """Return whether most rows lie on a line with their neighbours."""
    n = len(rows.x)
    at = np.unique(np.linspace(1, n - 2, min(n - 2, 10 * _LOOKED_AT)).astype(np.intp))
    share = ((rows.x[at] - rows.x[at - 1]) / (rows.x[at + 1] - rows.x[at - 1]))[:, None]
    off = rows.y[at] - (1 - share) * rows.y[at - 1] - share * rows.y[at + 1]
    size = np.sqrt(rows.weight @ rows.y**2).max()
    return np.median(np.abs(off).max(axis=1)) <= _ON_LINE * size


def _knots(rows, path, slope):
    """Return one breakpoint where neighbouring lines meet, and two at a jump."""
    lines = [_line(rows, *ends, slope) for ends in pairwise(path)]
    knots = []
    for at, before, after in zip(path[1:-1], lines, lines[1:], strict=False):
        low, high = rows.x[at - 1], rows.x[at]
        change, jump = after[1] - before[1], after[0] - before[0]
        flat = np.abs(change) <= 1e-300
        meet = -jump / np.where(flat, np.inf, change)
        if (
            not flat.any()
            and np.ptp(meet) <= 1e-6 * (high - low)
            and low <= meet[0] <= high
        ):
            knots.append(meet[0])
        else:
            knots += [low, high]
    return sorted(set(knots))


def _line(rows, start, end, slope):
    """Return intercepts and slopes of the lines through some rows, of shape (2, q)."""
    x, y = rows.x[start:end], rows.y[start:end]
    rise = np.zeros(y.shape[1])
    if slope:
        rise = (y[-1] - y[0]) / (x[-1] - x[0])
    return y[0] - rise * x[0], rise
