"""The problem of the search: what the function is, where breakpoints may lie.

A *piece* is a function of x that is zero before some row and a polynomial from there
on: constants, x itself, ramps and steps are pieces. The inner product of two pieces is
a combination of the sums of the powers of x over the rows from the later of their first
rows on, so a least-squares problem in pieces costs nothing that grows with the number
of rows. All functions work on several series side by side: the first axis of every
array is the series.
"""

from math import comb
from typing import NamedTuple

import numpy as np

from sklearn_gn.linalg import factors

LEFT = -1.0  # where the data begin; a kink there gives the first line its slope
RIGHT = 1.0 + 2.0**-10  # beyond the data: breakpoints there are not in use
# Relative errors: of sums, of what may depend on others, and of half the digits.
EXACT = float(np.ldexp(np.finfo(float).eps, 9))
DEPENDENT = float(np.cbrt(np.finfo(float).eps ** 2))
HALF = float(np.sqrt(np.finfo(float).eps))
FEWEST_ROWS = 3  # of a segment, unless asked otherwise
_FAR = float(np.cbrt(np.finfo(float).max))  # position whose square is a number
MOST_CANDIDATES = 1000  # positions that are tried, evenly spaced among all


class Scaling(NamedTuple):
    """From the user's units to the units of the search."""

    center: np.ndarray  # (...)
    size: np.ndarray  # half the range of x
    y_center: np.ndarray
    y_size: np.ndarray  # standard deviation
    linear_center: np.ndarray  # (..., m)
    linear_size: np.ndarray

    @classmethod
    def identity(cls, n_linear=0):
        """Return the scaling of rows that have the units of the search already."""
        none, one = np.float64(0), np.float64(1)
        return cls(none, one, none, one, np.zeros(n_linear), np.ones(n_linear))

    def x(self, x):
        """Return positions in units in which the data lie in [-1, 1]."""
        with np.errstate(over="ignore"):
            t = (x - self.center[..., None]) / self.size[..., None]
        return np.clip(t, -_FAR, _FAR)

    def linear(self, linear):
        """Return the linear features in units of their deviations."""
        with np.errstate(over="ignore"):
            linear = (linear - self.linear_center) / self.linear_size
        return np.clip(linear, -_FAR, _FAR)

    def to_user(self, t):
        """Return positions in the user's units."""
        return self.center[..., None] + self.size[..., None] * t


class Table(NamedTuple):
    """Sums over the rows from each position on, of several series side by side.

    Positions are distinct and ascending. The last rows of shorter series are padding at
    RIGHT. The first m targets are fitted, the others are the linear features. Several
    targets share the breakpoints, and their sums of squares are added.
    """

    x: np.ndarray  # (B, n)
    powers: np.ndarray  # (B, n + 1, 2 d + 1) sums of w, w x, w x^2, ...
    targets: np.ndarray  # (B, n + 1, q, d + 1) sums of w t, w x t, ...
    gram: np.ndarray  # (B, q, q) of the targets
    square: np.ndarray  # (B, m) mean squares of those of the fit
    count: np.ndarray  # type: ignore[assignment] # (B, n + 1) rows before each position, by their weights
    n_rows: np.ndarray  # (B,) positions that are no padding

    @property
    def total(self):
        """Mean square of the targets of each series."""
        return self.square.sum(axis=1)


class Pieces(NamedTuple):
    """Functions of x; the last axis runs over the pieces."""

    first: np.ndarray  # position from which on the piece is not zero
    coef: np.ndarray  # (d + 1, ...) of 1, x, ...


class Solution(NamedTuple):
    """Least-squares fit in a number of pieces and in the linear features."""

    coef: np.ndarray  # (..., p, m)
    rss: np.ndarray  # (...) weighted mean of the squared residuals
    half_inverse: np.ndarray  # (..., p, p)  H with the inverse normal matrix H^T H
    end: "End | None" = None


class End(NamedTuple):
    """An element of the function space with slope one at the end of the data."""

    coef: np.ndarray  # (..., p)
    with_pieces: np.ndarray  # (..., p) its inner products with the basis
    with_target: np.ndarray  # (..., m)
    square: np.ndarray  # (...)


def make_table(rows, repeats, degree=1):
    """Return the table of several series, padded by rows of weight zero."""
    x, weight = rows.x, rows.weight
    targets = np.concatenate([rows.y[..., None], rows.linear], axis=-1)
    n_series, n, q = targets.shape
    share = weight / weight.sum(axis=1, keepdims=True)
    first = (np.diff(x, axis=1, prepend=-np.inf) > 0) & (weight > 0)
    n_rows = first.sum(axis=1)
    inside = np.arange(n_rows.max() + 1) < n_rows[:, None]
    at = np.argsort(~first, axis=1, kind="stable")[:, : n_rows.max()]
    at = np.where(inside, np.pad(at, ((0, 0), (0, 1))), n)

    weighted, n_powers = share[..., None] * targets, 2 * degree + 1
    terms, targets_by_power = [share[..., None]], [weighted]
    for _ in range(2 * degree):
        terms.append(x[..., None] * terms[-1])
    for _ in range(degree):
        targets_by_power.append(x[..., None] * targets_by_power[-1])
    terms = np.concatenate(terms + targets_by_power, axis=-1)
    sums = np.zeros((n_series, n + 1, terms.shape[-1]))
    np.cumsum(terms[:, ::-1], axis=1, out=sums[:, -2::-1])
    sums = take(sums, at)
    moments = sums[..., n_powers:].reshape(n_series, -1, degree + 1, q)
    count = np.zeros((n_series, n + 1))
    np.cumsum(repeats, axis=1, out=count[:, 1:])
    positions = take(np.pad(x, ((0, 0), (0, 1))), at[:, :-1])
    return Table(
        x=np.where(inside[:, :-1], positions, RIGHT),
        powers=np.ascontiguousarray(sums[..., :n_powers]),
        targets=np.ascontiguousarray(moments.swapaxes(-1, -2)),
        gram=np.swapaxes(weighted, 1, 2) @ targets,
        square=np.sum(share * rows.y**2, axis=1, keepdims=True),
        count=take(count, at),
        n_rows=n_rows,
    )


def rows_of(array, series):
    """Return ``array[series]``, a view where all are the same row of memory."""
    if array.strides[0] == 0 or len(array) == 1:
        shape = np.arange(len(array))[series].shape
        return np.broadcast_to(array[:1], (*shape, *array.shape[1:]))
    return array[series]


def take(array, index):
    """Return ``array[b, index[b]]`` for every series b."""
    if array.strides[0] == 0:  # one row of memory
        return array[0].take(index, axis=0)
    if not array.flags.c_contiguous:
        series = np.arange(len(array)).reshape(-1, *[1] * (index.ndim - 1))
        return array[series, index]
    n = array.shape[1]
    first = np.arange(0, len(array) * n, n).reshape(-1, *[1] * (index.ndim - 1))
    return np.take(array.reshape(-1, *array.shape[2:]), first + index, axis=0)


def locate(table, t):
    """Return the first position not left of each of some points, by series."""
    t = np.minimum(t, RIGHT)
    n = table.x.shape[1]
    if len(t) == 1 or table.x.strides[0] == 0:
        return np.searchsorted(table.x[0], t)
    first, step = np.zeros(t.shape, np.intp), 1 << (n.bit_length() - 1)
    while step:  # bisection, of all series together
        trial = np.minimum(first + step, n)
        first = np.where(take(table.x, trial - 1) < t, trial, first)
        step >>= 1
    return first


def concatenate(*parts):
    """Return the pieces of several parts together."""
    return Pieces(*(np.concatenate(each, axis=-1) for each in zip(*parts, strict=True)))


def products(table, left, right):
    """Return products of pieces (..., p_left, p_right), and of the left and targets."""
    later = np.maximum(left.first[..., :, None], right.first[..., None, :])
    sums, of_targets = take(table.powers, later), take(table.targets, left.first)
    inner, cross = 0.0, 0.0
    for i, a in enumerate(left.coef[..., None]):
        for j, b in enumerate(right.coef[..., None, :]):
            inner = inner + a * b * sums[..., i + j]
        cross = cross + a * of_targets[..., i]
    return inner, cross


def solve(table, pieces, flat_end=False, start=None):
    """Return the least-squares fit in the pieces and the linear features.

    Coefficients to ``start`` from stay as they are in directions without rows.
    """
    matrix, cross = products(table, pieces, pieces)
    lead, p, q = matrix.shape[:-2], matrix.shape[-1], table.gram.shape[-1]
    gram = table.gram.reshape(-1, *[1] * (len(lead) - 1), q, q)
    gram, m = np.broadcast_to(gram, (*lead, q, q)), table.square.shape[1]
    side = np.concatenate([cross[..., :m], gram[..., m:, :m]], axis=-2)
    if q > m:
        inner, matrix = matrix, np.empty((*lead, p + q - m, p + q - m))
        matrix[..., :p, :p] = inner
        matrix[..., :p, p:] = cross[..., m:]
        matrix[..., p:, :p] = np.swapaxes(cross[..., m:], -1, -2)
        matrix[..., p:, p:] = gram[..., m:, m:]
    # Near the end of the data, products are small differences of large sums.
    rounding = np.zeros(matrix.shape[:-1])
    rounding[..., :p] = np.sum(np.abs(pieces.coef), axis=0) ** 2
    rounding[..., :p] *= EXACT * take(table.powers, pieces.first)[..., 0]
    diagonal = np.diagonal(matrix, axis1=-2, axis2=-1) + rounding
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1))
    scaled = matrix * scale[..., :, None] * scale[..., None, :]
    shift = (EXACT if start is None else HALF) + rounding * scale**2
    half = factors.inverse_roots(scaled + shift[..., None] * np.eye(scaled.shape[-1]))
    if np.isnan(half).any():  # rounding errors of pieces that few rows determine
        values, vectors = factors.eigenpairs(scaled)
        root = np.sqrt(np.maximum(values, HALF))
        half = np.swapaxes(vectors, -1, -2) / root[..., None]
    half = half * scale[..., None, :]
    end = None
    if flat_end:
        half, end = _without_end_slope(half, side, pieces.coef[1])
    coef = np.zeros_like(side) if start is None else start
    for _ in range(1 if start is None else 2):  # the second time refines
        coef = coef + np.swapaxes(half, -1, -2) @ (half @ (side - matrix @ coef))
    explained = np.sum(coef * (2 * side - matrix @ coef), axis=(-2, -1))
    total = table.total.reshape(-1, *[1] * (len(lead) - 1))
    return Solution(coef, np.maximum(total - explained, 0), half, end)


def _without_end_slope(half, side, slope):
    """Restrict the space to functions that are level at the end of the data."""
    of_basis = np.zeros(side.shape[:-1])
    of_basis[..., : slope.shape[-1]] = slope
    z = (half @ of_basis[..., None])[..., 0]
    size = np.sum(z**2, axis=-1)
    inverse = np.where(size > 0, 1 / np.where(size > 0, size, 1), 0)
    coef = (z[..., None, :] @ half)[..., 0, :] * inverse[..., None]
    with_target = (coef[..., None, :] @ side)[..., 0, :]
    end = End(coef, of_basis * inverse[..., None], with_target, inverse)
    along = z[..., :, None] * (z * inverse[..., None])[..., None, :]
    return half - along @ half, end


# --- the problem ----------------------------------------------------------------------


class Form(NamedTuple):
    """What the function does between and at the breakpoints."""

    slope: int  # degree of the first segment: level, a straight line, or a parabola
    ramp: int  # degree of what a breakpoint adds without a jump, if anything
    step: bool  # the function jumps at a breakpoint
    flat_end: bool = False  # the last line is level
    # Of each known breakpoint whether the slope and whether the value changes. None:
    # as at the others. Of breakpoints that are searched: each has a kind of its own.
    kinds: tuple[tuple[bool, bool], ...] | None = None


class Limits(NamedTuple):
    """Where breakpoints may lie.

    A level segment at one position of many rows is the limit of those that reach into
    the gap beside it. Other lines are the same at all places in this gap.
    """

    low: np.ndarray  # (B,) least and largest position
    high: np.ndarray
    min_distance: np.ndarray  # (B,) between breakpoints, and to the ends of the data
    min_rows: np.ndarray  # (B,) rows of a segment
    # (B,) The first and the last position that all of these leave to a breakpoint.
    first: np.ndarray | float = -np.inf
    last: np.ndarray | float = np.inf


class Candidates(NamedTuple):
    """Positions at which breakpoints are tried; they run along the last axis."""

    rows: np.ndarray  # (B, c)
    t: np.ndarray  # (B, c) the breakpoints
    before: np.ndarray  # (B, c) the row before
    powers: np.ndarray  # (B, 2 d + 1, c) sums from there on
    targets: np.ndarray  # (B, q, d + 1, c)


class Problem(NamedTuple):
    """Series that are searched side by side."""

    table: Table
    form: Form
    known: np.ndarray  # (B, k) breakpoints that are kept
    limits: Limits
    candidates: Candidates | None = None

    @property
    def n_linear(self):
        """Number of features that enter linearly."""
        return self.table.gram.shape[1] - self.table.square.shape[1]

    def with_shared_breakpoints(self):
        """Return series of the same rows as the targets of one series."""
        table, one, m = self.table, self.of([0]), len(self.table.x)
        of_y, linear = table.targets[:, :, 0], one.table.targets[:, :, 1:]
        targets = np.concatenate([np.moveaxis(of_y, 0, 1)[None], linear], axis=2)
        gram = np.zeros((1, *[m + linear.shape[2]] * 2))
        gram[0, m:, m:], gram[0, m:, :m] = table.gram[0, 1:, 1:], table.gram[:, 1:, 0].T
        square = table.square.T
        table = one.table._replace(targets=targets, gram=gram, square=square)
        return one._replace(table=table).at()

    def at(self, rows=None, t=None):
        """Return the problem with candidates at or, of jumps, before rows, or at t."""
        table = self.table
        if t is not None:
            rows = np.minimum(locate(table, t), table.n_rows[:, None] - 1)
        elif rows is None:
            rows = spread(0, table.x.shape[1] - 1, MOST_CANDIDATES)
        rows = np.broadcast_to(rows, (len(table.x), np.shape(rows)[-1]))
        here, before = take(table.x, rows), take(table.x, np.maximum(rows - 1, 0))
        if t is None:
            halfway = self.form.step & (rows > 0)
            t = np.where(halfway, (before + here) / 2, here)
        powers = np.ascontiguousarray(np.moveaxis(take(table.powers, rows), 1, -1))
        targets = np.ascontiguousarray(np.moveaxis(take(table.targets, rows), 1, -1))
        return self._replace(candidates=Candidates(rows, t, before, powers, targets))

    def of(self, series):
        """Return the problem of some of the series, given in their order."""
        n, at = len(self.table.x), self.candidates
        if np.arange(n)[series].size == n:
            return self
        return self._replace(
            table=Table(*(rows_of(a, series) for a in self.table)),
            known=self.known[series],
            limits=Limits(*(a[series] for a in self.limits)),
            candidates=at and Candidates(*(rows_of(a, series) for a in at)),
        )


def spread(first, last, most):
    """Return at most so many numbers from the first to the last, evenly spaced."""
    count = max(min(last - first + 1, most), 0)
    return first + np.arange(count) * (last - first) // max(count - 1, 1)


# --- pieces --------------------------------------------------------------------------


def powers_of(t, power, degree):
    """Return the coefficients of the polynomials (x - t)^power, up to a degree."""
    each = [comb(power, j) * (-t) ** (power - j) for j in range(power + 1)]
    return np.array(each + [np.zeros_like(t)] * (degree - power))


def all_pieces(problem, knots):
    """Return the pieces of the whole function: line, then ramps, then steps.

    Ramps of the second degree, (x - t)^2, follow all of the first.
    """
    table, form, known = problem[:3]
    if known.shape[1]:
        known = known.reshape(len(known), *[1] * (knots.ndim - 2), -1)
        known = np.broadcast_to(known, (*knots.shape[:-1], known.shape[-1]))
        knots = np.concatenate([known, knots], axis=-1)
    at, k = locate(table, knots), knots.shape[-1]
    added = [(power, np.arange(k)) for power in range(1, 1 + form.ramp)]
    added += [(0, np.arange(k))] * form.step
    if form.kinds:
        others = [(form.ramp, form.step)] * (k - len(form.kinds))
        ramps, steps = np.array([*form.kinds, *others], bool).T
        added = [(1, np.flatnonzero(ramps)), (0, np.flatnonzero(steps))]
    end, degree = 1 + form.slope, table.targets.shape[-1] - 1
    shape = (*knots.shape[:-1], end + sum(len(some) for _, some in added))
    pieces = Pieces(np.zeros(shape, np.intp), np.zeros((degree + 1, *shape)))
    for power in range(end):
        pieces.coef[power, ..., power] = 1
    for power, some in added:
        own, t = slice(end, end + len(some)), knots[..., some]
        pieces.first[..., own] = at[..., some]
        for j in range(power + 1):
            pieces.coef[j, ..., own] = comb(power, j) * (-t) ** (power - j)
        end = own.stop
    return pieces


def sum_of_squares(problem, knots):
    """Return the sums of squares of functions with breakpoints (..., k)."""
    return solve(problem.table, all_pieces(problem, knots), problem.form.flat_end).rss


# --- limits ---------------------------------------------------------------------------


def feasible(problem, trials):
    """Return which sorted breakpoints keep the limits, of shape (B, T)."""
    table, form, known, limits = problem[:4]
    low, high, distance, least = np.stack(limits[:4])[..., None, None]
    inside = np.all((trials >= low) & (trials <= high), axis=-1)
    lead = trials.shape[:-1]
    known = np.broadcast_to(known[:, None], (*lead, known.shape[-1]))
    t = np.sort(np.concatenate([trials, known], axis=-1), axis=-1)
    at, n = locate(table, t), table.x.shape[1]
    on_row = take(table.x, np.minimum(at, n - 1)) == t  # which belongs to both sides
    # With the ends of the data: their positions, and no or all of the rows before.
    positions, counts = np.empty((2, *lead, t.shape[-1] + 2))
    positions[..., 1:-1], counts[..., 1:-1] = t, take(table.count, at)
    positions[..., 0], counts[..., 0] = table.x[:, :1], 0
    positions[..., -1] = take(table.x, table.n_rows[:, None] - 1)
    counts[..., -1] = take(table.count, table.n_rows[:, None])
    rows = np.diff(counts)
    rows[..., :-1] += take(table.count, at + on_row) - counts[..., 1:-1]
    inside &= np.all(rows >= least * (1 - HALF), axis=-1)
    inside &= np.all(np.diff(at) >= 2 * (form.ramp and form.step), axis=-1)
    return inside & np.all(np.diff(positions) > distance * (1 - HALF), axis=-1)


# --- criteria -------------------------------------------------------------------------


def criterion_value(criterion, loss, n_parameters, n_observations):
    """Return the criterion of a fit, to be minimised, without what all fits share."""
    share = n_parameters / np.asarray(n_observations)
    if criterion == "gcv":
        value = loss / np.where(share < 1, 1 - share, 1) ** 2
    else:
        penalty = np.log(n_observations) if criterion == "bic" else 2.0
        value = n_observations * np.log(loss) + penalty * n_parameters
    return np.where(share < 1, value, np.inf)[()]


def deviance_shift(criterion, log_mean_square, n_observations):
    """Return what a criterion lacks to minus twice a log likelihood."""
    if criterion == "gcv":
        return np.zeros_like(log_mean_square)
    return n_observations * (np.log(2 * np.pi) + log_mean_square + 1)


def count_positions(problem):
    """Return how many independent positions a breakpoint has, (B,)."""
    table, form, m = problem.table, problem.form, problem.table.square.shape[1]
    problem = problem._replace(form=form._replace(flat_end=False))
    t, rows = problem.candidates.t, problem.candidates.rows
    if form.ramp and form.step:  # two directions at each
        return 1.0 + np.count_nonzero(feasible(problem, t[..., None]), axis=1)
    none = np.empty((len(t), 0))
    pieces = all_pieces(problem, none)
    new = Pieces(rows, powers_of(t, int(form.ramp > 0), len(pieces.coef) - 1))
    half = np.swapaxes(solve(table, pieces).half_inverse, -1, -2)
    old, of_targets = products(table, new, pieces)
    old = np.concatenate([old, of_targets[..., m:]], axis=-1) @ half
    sums = [(new.first, 0), (new.first[:, 1:], 1)]  # with itself, and with the next

    def inner(first, shift):
        s0, s1, s2, *_ = np.moveaxis(take(table.powers, first), -1, 0)
        n, (level, slope, *_) = t.shape[1] - shift, new.coef
        a, b, slope = level[:, :n], level[:, shift:], slope[:, shift:]
        value = a * b * s0 + (a + b) * slope * s1 + slope * s2
        return value - np.sum(old[:, :n] * old[:, shift:], axis=-1)

    square, beside = (inner(*each) for each in sums)
    size = np.sqrt(np.maximum(square[:, 1:] * square[:, :-1], np.finfo(float).tiny))
    angle = np.arccos(np.clip(beside / size, -1, 1))
    possible = feasible(problem, t[..., None])
    return 1 + np.sum(angle, axis=1, where=possible[:, 1:] & possible[:, :-1]) / np.pi
