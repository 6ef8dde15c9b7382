"""Joint Gauss-Newton with one feature: an iteration in O(n log N), whatever N is.

With one feature the shallow ReLU network is a continuous piecewise-linear function,
constant left of its first breakpoint,

    u(x) = c_0 + sum_i c_i max(0, x - t_i),    t_1 <= ... <= t_n .

All that least squares needs to know of the data are sums of (1, x, x^2, t, x t, t^2)
over the intervals between breakpoints: differences of running sums, found by bisection.

- Given the breakpoints, the values v_i at them solve a tridiagonal system: hats in
  place of the ReLU functions, whose mass matrix has a condition number of order n^4.
- The tangent space at (c, t), all parameters together, holds the piecewise-linear
  functions that may jump at the breakpoints. The joint Gauss-Newton step is hence a
  straight-line fit on every interval, and moves t_i by minus the jump of the lines
  there over c_i. With the slope change of the fitted lines in place of c_i the
  breakpoint goes to where the lines meet (Muggeo, "Estimating regression models with
  unknown break-points", 2003); both are tried, in several lengths.
- The lines' variances at their ends are those of the jumps, hence of the breakpoints.

Around this, starts and rounds of relocation as in
:mod:`sklearn_gn.shallow_relu.sggn`, all starts side by side. Differences of running
sums have rounding errors of the size of the
total; the last iterations therefore sum over every interval anew.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.core import backend
from sklearn_gn.core.solver import Algorithm, Report
from sklearn_gn.shallow_relu.network import ShallowReLU

LEFT = -1.0  # where the data begin; a breakpoint there gives the first line its slope
RIGHT = 1.0 + 2.0**-10  # beyond the data: breakpoints there are not in use
_OUTSIDE = -3.0  # where the networks have the breakpoint that is at LEFT here

N_SPARE = 8  # breakpoints that a growing round adds, and deletes again
N_CANDIDATES = 256  # positions tried for a new breakpoint
N_FEW = 8  # ... in rounds that leave more to chance
N_KEPT = 8  # best starts that go on to relocation
THIN_ROWS = 32768  # running sums, evenly spaced, that the starts look at
ROUND_STEPS = (10, 30)  # Gauss-Newton steps after the additions and the deletions
# Relative decrease at which a round stops its steps. A Python number would be another
# type to JAX than ``tol`` is, and what takes either would be compiled twice.
ROUND_TOL = np.float64(1e-4)
START_STEPS = 50  # Gauss-Newton steps of the starts
POLISH_STEPS = 50  # most steps with sums over every interval anew, where ...
POLISH_BELOW = 1e-9  # ... the relative loss is less than this
SHORTENED = (1.0, 0.5, 0.2, 0.05)  # lengths of either step that are tried

_BLOCK_ROWS = 65536  # summed up together
_UNRESOLVED = 1e3 * np.finfo(np.float64).eps  # of a variance, from running sums
_AT_ROUNDING = 1e-26  # relative loss at which residuals are rounding errors
_CHAIN = 1e-15  # ties values that no row determines to those of their neighbours
_CLOSE = 2.0**-30  # breakpoints closer than this are one, at which the function jumps


class Series(NamedTuple):
    """Rows sorted by x, with running sums; the weights sum to one.

    Padded at the end: x by infinity, the sums by their last row.
    """

    x: jnp.ndarray  # (N,) distinct, ascending, in [-1, 1]
    sums: jnp.ndarray  # (N + 1, 4 + 2 q) of w, w x, w x^2, w |t|^2, w t, w x t
    n_rows: jnp.ndarray  # () number of rows that are no padding


class Host(NamedTuple):
    """The rows themselves, without padding, for sums over every interval anew."""

    x: np.ndarray  # (N,)
    y: np.ndarray  # (N, q) means of the targets of equal x
    weight: np.ndarray  # (N,)
    apart: np.ndarray  # (q,) what no function of x explains: variance of equal x


class Moments(NamedTuple):
    """Centred sums over the intervals; first that left of all breakpoints."""

    weight: jnp.ndarray  # (n + 1,)
    x: jnp.ndarray  # (n + 1,) means, inside the interval
    y: jnp.ndarray  # (n + 1, q) means
    xx: jnp.ndarray  # (n + 1,) sums of squares about the means; 0 if not resolved
    xy: jnp.ndarray  # (n + 1, q)
    rest: jnp.ndarray  # (n + 1,) of squares about the straight line fitted to y


class Fit(NamedTuple):
    """The best function with given breakpoints."""

    values: jnp.ndarray  # (n + 1, q) at the breakpoints and at RIGHT
    slopes: jnp.ndarray  # (n + 1, q) of the intervals; the first is zero
    loss: jnp.ndarray
    moments: Moments


class State(NamedTuple):
    """What a run remembers."""

    net: ShallowReLU  # the best function so far
    loss: float
    knots: jnp.ndarray  # (n_starts, n_slots) breakpoints, sorted; RIGHT: not in use
    losses: jnp.ndarray  # (n_starts,)
    n_neurons: int  # breakpoints that the result may have
    round: int = 0  # relocation rounds done
    phase: str = "starts"  # then "rounds" and "end"


class Draw(NamedTuple):
    """What happens in a round of relocation."""

    n_random: int  # breakpoints deleted at random,
    n_cheapest: int  # ... by their cost,
    place: int  # ... beginning with this place of the price list,
    n_added: int  # and breakpoints added thereafter,
    n_tried: int  # ... each the best of so many positions


# --- the data ------------------------------------------------------------------------


def sorted_series(rows, n_padded=None):
    """Sort the rows, merge those of equal x, and sum up.

    Parameters
    ----------
    rows : sggn.Rows
        Of one feature, in any order; rows of weight zero are left out.
    n_padded : int, default=None
        Length to pad to; None takes a bucket.

    Returns
    -------
    Series
        ``host``: without padding. Both share their memory.
    """
    x, y, weight = _sorted_rows(*(np.asarray(a, np.float64) for a in rows))
    first = np.flatnonzero(np.concatenate([[True], x[1:] > x[:-1]]))
    apart = np.zeros(y.shape[1])
    if len(first) < len(x):
        total = np.add.reduceat(weight, first)
        mean = np.add.reduceat(weight[:, None] * y, first, axis=0) / total[:, None]
        inside = y - np.repeat(mean, np.diff(first, append=len(x)), axis=0)
        apart = weight @ inside**2
        x, y, weight = x[first], mean, total
    n = len(x)
    n_padded = n_padded or backend.row_bucket(n)
    long = backend.aligned_zeros((n_padded,), np.float64)
    long[:n], long[n:] = x, np.inf
    sums = backend.aligned_zeros((n_padded + 1, 4 + 2 * y.shape[1]), np.float64)
    _running_sums(long[:n], y, weight, sums)
    return Series(long, sums, np.int32(n)), Host(long[:n], y, weight, apart)


def _sorted_rows(x, y, weight):
    x = x[:, 0]
    if weight.min() == 0:
        kept = weight > 0
        x, y, weight = x[kept], y[kept], weight[kept]
    if np.any(x[1:] < x[:-1]):
        order = np.argsort(x)
        x, y, weight = x[order], y[order], weight[order]
    return x, y, weight / weight.sum()


def _batches(n):
    starts = range(0, n, _BLOCK_ROWS)
    return (slice(start, min(start + _BLOCK_ROWS, n)) for start in starts)


def _running_sums(x, y, weight, sums):
    n = len(x)
    # In blocks, whose sums begin anew: quick, and little is lost to rounding.
    for rows in _batches(n):
        w, u, t = weight[rows], x[rows], y[rows].T
        wu, wt = w * u, w * t
        table = np.concatenate([[w, wu, wu * u, np.sum(wt * t, axis=0)], wt, u * wt])
        np.cumsum(table, axis=1, out=table)
        np.add(table.T, sums[rows.start], out=sums[rows.start + 1 : rows.stop + 1])
    sums[n + 1 :] = sums[n]


# --- sums over the intervals ---------------------------------------------------------


def locate(knots, x):
    """Number of rows left of each breakpoint."""
    return jnp.searchsorted(x, knots, side="left").astype(jnp.int32)


def moments(knots, series):
    """Centred sums over the intervals from the running sums."""
    at = series.sums[locate(knots, series.x)]
    return centred(_between(at, series.sums[-1]), _ends(knots))


def _between(at, total):
    """Differences of running sums at the breakpoints, with both ends."""
    rows = jnp.concatenate([jnp.zeros_like(total)[None], at, total[None]])
    return rows[1:] - rows[:-1]


def _ends(knots):
    """Left and right ends of all intervals."""
    low = jnp.concatenate([jnp.full(1, LEFT, knots.dtype), knots])
    high = jnp.concatenate([knots, jnp.full(1, RIGHT, knots.dtype)])
    return low, high


def centred(sums, ends):
    """Moments about the means, from sums over intervals with given ends."""
    q = (sums.shape[-1] - 4) // 2
    weight, sx, sxx, syy = (sums[..., k] for k in range(4))
    sy, sxy = sums[..., 4 : 4 + q], sums[..., 4 + q :]
    weight = jnp.maximum(weight, 0)
    safe = jnp.where(weight > 0, weight, 1)
    x = jnp.clip(sx / safe, *ends)
    y = sy / safe[..., None]
    xx = sxx - sx * x
    wide = xx > _UNRESOLVED
    xy = jnp.where(wide[..., None], sxy - sx[..., None] * y, 0)
    rest = syy - jnp.sum(sy * y, axis=-1)
    rest -= jnp.sum(xy**2, axis=-1) / jnp.where(wide, xx, 1)
    return Moments(
        weight=weight,
        x=x,
        y=jnp.where(weight[..., None] > 0, y, 0),
        xx=jnp.where(wide, xx, 0),
        xy=xy,
        rest=jnp.maximum(rest, 0),
    )


def exact_moments(knots, series):
    """The same, summed over every interval anew: exact where differences cancel."""
    n = len(series.x)
    first = np.searchsorted(series.x, knots, side="left")
    bounds = np.concatenate([[0], first, [n]])
    count = np.diff(bounds)
    full = count > 0

    def total(column):
        out = np.zeros((len(count), *column.shape[1:]))
        out[full] = np.add.reduceat(column, bounds[:-1][full], axis=0)
        return out

    weight = total(series.weight)
    safe = np.where(full, weight, 1.0)
    x = total(series.weight * series.x) / safe
    y = total(series.weight[:, None] * series.y) / safe[:, None]
    dx = series.x - np.repeat(x, count)
    dy = series.y - np.repeat(y, count, axis=0)
    wdx = series.weight * dx
    wide = count > 1
    xx = np.where(wide, total(wdx * dx), 0.0)
    xy = np.where(wide[:, None], total(wdx[:, None] * dy), 0.0)
    slope = xy / np.where(xx > 0, xx, 1.0)[:, None]
    off = dy - np.repeat(slope, count, axis=0) * dx[:, None]
    return Moments(
        weight=weight,
        x=np.where(full, x, np.concatenate([[LEFT], knots])),
        y=y,
        xx=xx,
        xy=xy,
        rest=total(series.weight * np.einsum("kq,kq->k", off, off)),
    )


# --- the function with given breakpoints ---------------------------------------------


def hats(knots, m):
    """Mass matrix and right-hand side of the hats at the breakpoints and at RIGHT.

    Returns
    -------
    diagonal : array of shape (n + 1,)
    beside : array of shape (n,)
        Entries next to the diagonal.
    target : array of shape (n + 1, q)
    """
    h, inverse = lengths(knots)
    share = jnp.clip((m.x[1:] - knots) * inverse, 0, 1)  # of the right hat, at the mean
    bend = m.xx[1:] * inverse**2
    tilt = m.xy[1:] * inverse[:, None]
    weight, y = m.weight[1:], m.y[1:]
    diagonal = jnp.zeros(h.shape[0] + 1, h.dtype)
    diagonal = diagonal.at[0].add(m.weight[0])
    diagonal = diagonal.at[:-1].add(weight * (1 - share) ** 2 + bend + _CHAIN)
    diagonal = diagonal.at[1:].add(weight * share**2 + bend + _CHAIN)
    beside = weight * share * (1 - share) - bend - _CHAIN
    target = jnp.zeros((h.shape[0] + 1, y.shape[1]), h.dtype)
    target = target.at[0].add(m.weight[0] * m.y[0])
    target = target.at[:-1].add((weight * (1 - share))[:, None] * y - tilt)
    target = target.at[1:].add((weight * share)[:, None] * y + tilt)
    return diagonal, beside, target


def merged(knots):
    """Sorted breakpoints in the range, those that nearly coincide moved together.

    An interval then has no length and no row, or a length that divides differences of
    values without making the coefficients of the network so large that they cancel.
    """
    knots = jnp.sort(jnp.clip(knots, LEFT, RIGHT), axis=-1)
    last = jnp.full((*knots.shape[:-1], 1), jnp.inf, knots.dtype)
    apart = jnp.diff(knots, axis=-1, append=last) >= _CLOSE
    kept = jnp.where(apart, knots, RIGHT)
    return lax.cummin(kept, axis=knots.ndim - 1, reverse=True)


def lengths(knots):
    """Lengths of the intervals right of each breakpoint, and their inverses.

    An interval without length holds no row; its inverse is cut to stay finite.
    """
    h = jnp.diff(knots, append=jnp.full(1, RIGHT, knots.dtype))
    return h, 1 / jnp.maximum(h, 1e-14)


def solve_tridiagonal(diagonal, beside, target):
    """Solve a positive definite tridiagonal system by elimination."""

    def down(carry, row):
        pivot, value = carry
        d, e, f = row
        factor = e / pivot
        pivot = d - factor * e
        value = f - factor * value
        return (pivot, value), (pivot, value)

    first = (diagonal[0], target[0])
    rest = (diagonal[1:], beside, target[1:])
    _, (pivots, values) = lax.scan(down, first, rest)
    pivots = jnp.concatenate([diagonal[:1], pivots])
    values = jnp.concatenate([target[:1], values])

    def up(after, row):
        pivot, value, e = row
        here = (value - e * after) / pivot
        return here, here

    last = values[-1] / pivots[-1]
    _, before = lax.scan(up, last, (pivots[:-1], values[:-1], beside), reverse=True)
    return jnp.concatenate([before, last[None]])


def fit(knots, m):
    """The best function with given breakpoints, and its loss."""
    values = solve_tridiagonal(*hats(knots, m))
    slopes = jnp.diff(values, axis=0) * lengths(knots)[1][:, None]
    slopes = jnp.concatenate([jnp.zeros_like(slopes[:1]), slopes])
    beyond = value_at(knots, values, slopes, m.x) - m.y
    tilt = slopes - own_slopes(m)
    # How far the function is from the lines, which adds to their own residuals.
    off = m.weight * jnp.sum(beyond**2, axis=1) + m.xx * jnp.sum(tilt**2, axis=1)
    loss = 0.5 * jnp.sum(m.rest + off)
    return Fit(values, slopes, loss, m)


def value_at(knots, values, slopes, x):
    """Values at one point x of every interval."""
    start = jnp.concatenate([knots[:1], knots])
    at_start = jnp.concatenate([values[:1], values[:-1]])
    return at_start + slopes * (x - start)[:, None]


def own_slopes(m):
    """Slopes of the straight lines fitted to the intervals; 0 without two rows."""
    wide = m.xx > 0
    return jnp.where(wide[:, None], m.xy / jnp.where(wide, m.xx, 1)[:, None], 0)


# --- one iteration -------------------------------------------------------------------


def steps(knots, fitted):
    """Joint Gauss-Newton step of the breakpoints, and the step to where lines meet."""
    m = fitted.moments
    wide = (m.xx > 0)[:, None]
    slopes = jnp.where(wide, own_slopes(m), fitted.slopes)
    # An interval without rows keeps the line that it has.
    model = value_at(knots, fitted.values, fitted.slopes, m.x)
    means = jnp.where((m.weight > 0)[:, None], m.y, model)
    slopes = slopes.at[0].set(0)
    right = means[1:] + slopes[1:] * (knots - m.x[1:])[:, None]
    left = means[:-1] + slopes[:-1] * (knots - m.x[:-1])[:, None]
    jump = right - left
    usable = (knots < RIGHT) & (jnp.cumsum(m.weight[:-1]) > 0)

    def along(change):
        if jump.shape[1] == 1:
            size = change[:, 0]
            step = -jump[:, 0] / jnp.where(size != 0, size, 1)
            return jnp.where(usable & (size != 0), step, 0)
        return jnp.where(usable, shared_step(jump, change, knots, m), 0)

    return along(jnp.diff(fitted.slopes, axis=0)), along(jnp.diff(slopes, axis=0))


def shared_step(jump, change, knots, m):
    """The step that several targets share: least squares in the jumps' own metric.

    The jumps of all targets have one covariance matrix V. The step minimises the sum
    over targets of ``|j + D(c) delta|^2`` in the metric of V^-1.
    """
    n = knots.shape[0]
    metric = jnp.linalg.inv(jump_covariance(knots, m))
    matrix = metric * (change @ change.T)
    shift = 1e-12 * jnp.max(jnp.diagonal(matrix)) + jnp.finfo(metric.dtype).tiny
    gradient = jnp.sum(change * (metric @ jump), axis=1)
    return -jnp.linalg.solve(matrix + shift * jnp.eye(n, dtype=metric.dtype), gradient)


def jump_covariance(knots, m):
    """Covariance of the jumps between lines fitted to neighbouring intervals.

    For rows of unit variance and weights that sum to one. Neighbouring jumps share a
    line, others are independent.
    """
    low, high = _ends(knots)
    mass = 1 / jnp.maximum(m.weight, 1e-12)
    wide = m.xx > 0
    spread = jnp.where(wide, 1 / jnp.where(wide, m.xx, 1), 0).at[0].set(0)
    at_low = mass + spread * (low - m.x) ** 2
    at_high = mass + spread * (high - m.x) ** 2
    across = mass + spread * (low - m.x) * (high - m.x)
    off = jnp.diag(-across[1:-1], 1)
    return jnp.diag(at_low[1:] + at_high[:-1]) + off + off.T


def iterate(knots, fitted, series):
    """Try both steps in several lengths; the best trial and its fit."""
    lengths_ = jnp.asarray(SHORTENED, knots.dtype)
    moves = jnp.stack(steps(knots, fitted))
    trials = lengths_[:, None, None] * moves[None]
    trials = merged(knots[None] + trials.reshape(-1, len(knots)))
    fits = jax.vmap(lambda t: fit(t, moments(t, series)))(trials)
    losses = jnp.where(jnp.isfinite(fits.loss), fits.loss, jnp.inf)
    best = jnp.argmin(losses)
    return trials[best], jax.tree.map(lambda a: a[best], fits)


def descend(knots, series, n_steps, tol):
    """Iterate until the loss no longer falls by ``tol`` times itself.

    Returns
    -------
    knots, fitted
    count : int
        Iterations done.
    """

    def going(carry):
        *_, improving, count = carry
        return improving & (count < n_steps)

    def step(carry):
        knots, fitted, _, count = carry
        trial, found = iterate(knots, fitted, series)
        better = found.loss < fitted.loss
        improving = fitted.loss - found.loss > tol * fitted.loss
        kept = jax.tree.map(partial(jnp.where, better), (trial, found), (knots, fitted))
        return *kept, improving, count + 1

    knots = merged(knots)
    start = fit(knots, moments(knots, series))
    carry = (knots, start, jnp.bool_(True), jnp.int32(0))
    knots, fitted, _, count = lax.while_loop(going, step, carry)
    return knots, fitted, count


# --- relocation ----------------------------------------------------------------------


def insertion_gains(knots, fitted, series, candidate):
    """Decrease of the squared loss by a new breakpoint, for every candidate position.

    Beside the hats that there are, a hat over the interval with its peak at the
    candidate does what the new breakpoint does.
    """
    inverse = inverse_mass(knots, fitted.moments)
    position = series.x[candidate]
    interval = jnp.searchsorted(knots, position, side="right")
    low, high = (end[interval] for end in _ends(knots))
    bounds = jnp.concatenate(
        [
            jnp.zeros_like(series.sums[:1]),
            series.sums[locate(knots, series.x)],
            series.sums[-1:],
        ]
    )
    here = series.sums[candidate]
    left = centred(here - bounds[interval], (low, position))
    right = centred(bounds[interval + 1] - here, (position, high))
    first = interval == 0  # constant there, and so is the new function left of its peak
    rise = jnp.where(first, 0, 1 / jnp.maximum(position - low, 1e-14))
    fall = -1 / jnp.maximum(high - position, 1e-14)
    width = jnp.where(first, 0, 1 / jnp.maximum(high - low, 1e-14))
    start = value_at(knots, fitted.values, fitted.slopes, _ends(knots)[0])[interval]
    slope = fitted.slopes[interval]

    def products(part, peak):
        """Of the new function with itself, both hats and the residual."""
        new = jnp.where(first & (peak > 0), 1, 1 + peak * (part.x - position))
        hat = jnp.where(first, 0, (high - part.x) * width)
        other = 1 - hat
        residual = part.y - start - slope * (part.x - low)[:, None]
        return (
            part.weight * new**2 + part.xx * peak**2,
            part.weight * new * hat - part.xx * peak * width,
            part.weight * new * other + part.xx * peak * width,
            (part.weight * new)[:, None] * residual
            + peak[:, None] * (part.xy - part.xx[:, None] * slope),
        )

    own, with_left, with_right, drop = (
        a + b for a, b in zip(products(left, rise), products(right, fall), strict=True)
    )
    i, j = jnp.maximum(interval - 1, 0), interval
    inside = (
        inverse[i, i] * with_left**2
        + 2 * inverse[i, j] * with_left * with_right
        + inverse[j, j] * with_right**2
    )
    outside = own - inside
    new = (outside > 1e-10 * own) & (own > 0)
    gain = jnp.sum(drop**2, axis=1) / jnp.where(new, outside, 1)
    return jnp.where(new, gain, -1)


def inverse_mass(knots, m):
    """Inverse of the mass matrix of the hats, dense."""
    diagonal, beside, _ = hats(knots, m)
    identity = jnp.eye(diagonal.shape[0], dtype=knots.dtype)
    return solve_tridiagonal(diagonal, beside, identity)


def deletion_costs(knots, fitted):
    """Increase of the squared loss when one breakpoint is deleted.

    Without breakpoint i the change of slope c_i is zero: one linear constraint g on the
    values, whose price is ``|g v|^2 / (g A^-1 g)``.
    """
    n = knots.shape[0]
    _, inverse = lengths(knots)
    # Scaled by the shorter neighbour, so that nothing overflows.
    before = jnp.concatenate([jnp.zeros(1, knots.dtype), inverse[:-1]])
    scale = 1 / jnp.maximum(before, inverse)
    row = jnp.arange(n, dtype=jnp.int32)
    g = jnp.zeros((n, n + 1), knots.dtype)
    g = g.at[row, row + 1].add(inverse * scale)
    g = g.at[row, row].add(-(inverse + before) * scale)
    g = g.at[row[1:], row[1:] - 1].add((before * scale)[1:])
    variance = jnp.sum((g @ inverse_mass(knots, fitted.moments)) * g, axis=1)
    change = jnp.sum((g @ fitted.values) ** 2, axis=1)
    tiny = jnp.finfo(knots.dtype).tiny
    cost = change / jnp.maximum(variance, tiny)
    return jnp.where(knots < RIGHT, cost, jnp.inf)


def draw_candidates(series, key):
    """Numbers of rows, one at random of every 1/M of the rows; all of fewer rows."""
    strata = jnp.arange(N_CANDIDATES, dtype=series.x.dtype)
    more = jax.random.uniform(key, strata.shape, strata.dtype)
    n = series.n_rows.astype(strata.dtype)
    more = jnp.where(n > N_CANDIDATES, more, 0)
    return jnp.floor((strata + more) * (n / N_CANDIDATES)).astype(jnp.int32)


def insert(knots, series, key, n_tried):
    """Add the best of some candidates, if a slot is free."""
    key_row, key_mark = jax.random.split(key)
    candidate = draw_candidates(series, key_row)
    fitted = fit(knots, moments(knots, series))
    gain = insertion_gains(knots, fitted, series, candidate)
    # Of the candidates with the largest random marks, as many as are to be tried.
    mark = jax.random.uniform(key_mark, gain.shape, gain.dtype)
    least = jnp.sort(mark)[jnp.maximum(mark.shape[0] - n_tried, 0)]
    best = jnp.argmax(jnp.where(mark >= least, gain, -1))
    position = series.x[candidate[best]]
    room = (knots[-1] == RIGHT) & (gain[best] > 0)
    return jnp.sort(knots.at[-1].set(jnp.where(room, position, knots[-1])))


def delete(knots, series, place):
    """Delete the breakpoint at a place of the price list."""
    fitted = fit(knots, moments(knots, series))
    slot = jnp.argsort(deletion_costs(knots, fitted))[place]
    return jnp.sort(knots.at[slot].set(RIGHT))


def delete_random(knots, key):
    """Delete a breakpoint at random."""
    mark = jax.random.uniform(key, knots.shape, knots.dtype)
    slot = jnp.argmin(jnp.where(knots < RIGHT, mark, jnp.inf))
    return jnp.sort(knots.at[slot].set(RIGHT))


def price(knots, loss, series):
    """The loss by which networks of one size are compared.

    A breakpoint left of the data gives the first line its slope, one parameter; one
    inside is two. The second has to be worth what it costs by the Bayesian information
    criterion, or noise at the left end would draw breakpoints there.
    """
    n = series.n_rows.astype(loss.dtype)
    inside = jnp.sum((knots > LEFT) & (knots < RIGHT)).astype(loss.dtype)
    return loss * jnp.exp(inside * jnp.log(n) / n)


def in_use(knots):
    """Number of breakpoints in use."""
    return jnp.sum(knots < RIGHT, dtype=jnp.int32)


def relocate(knots, loss, series, key, draw, n_neurons):
    """One round: delete, add, descend, delete what is too many, descend."""
    keys = [jax.random.fold_in(key, k) for k in range(2)]
    found = lax.fori_loop(
        0,
        draw.n_random,
        lambda k, t: delete_random(t, jax.random.fold_in(keys[0], k)),
        knots,
    )
    place = jnp.minimum(draw.place, jnp.maximum(in_use(found) - 1, 0))
    found = lax.fori_loop(
        0, draw.n_cheapest, lambda k, t: delete(t, series, place), found
    )
    found = lax.fori_loop(
        0,
        draw.n_added,
        lambda k, t: insert(t, series, jax.random.fold_in(keys[1], k), draw.n_tried),
        found,
    )
    found, _, first = descend(found, series, ROUND_STEPS[0], ROUND_TOL)
    found = lax.while_loop(
        lambda t: in_use(t) > n_neurons, lambda t: delete(t, series, 0), found
    )
    found, fitted, second = descend(found, series, ROUND_STEPS[1], ROUND_TOL)
    value = price(found, fitted.loss, series)
    better = value < loss
    knots = jnp.where(better, found, knots)
    return knots, jnp.where(better, value, loss), first + second


@jax.jit
def descend_all(knots, series, tol):
    """Descend from all starts, side by side."""
    found, fitted, count = jax.vmap(lambda t: descend(t, series, START_STEPS, tol))(
        knots
    )
    losses = jax.vmap(lambda t, loss: price(t, loss, series))(found, fitted.loss)
    return found, losses, jnp.max(count)


@jax.jit
def relocate_all(knots, losses, series, seed, draw, n_neurons):
    """One round of relocation for all starts, side by side."""
    keys = jax.random.split(jax.random.key(seed), knots.shape[0])
    found, losses, count = jax.vmap(
        lambda t, loss, key: relocate(t, loss, series, key, draw, n_neurons)
    )(knots, losses, keys)
    return found, losses, jnp.max(count)


def draw_of(round_):
    """Two kinds of growing rounds and two of exchanging rounds in turn."""
    cycle, kind = divmod(round_, 4)
    if kind < 2:
        draw = Draw(0, 0, 0, N_SPARE, N_FEW if kind else N_CANDIDATES)
    else:
        n_random = kind - 2
        draw = Draw(n_random, 1, cycle, n_random + 1, N_CANDIDATES)
    return Draw(*(np.int32(a) for a in draw))


# --- exact sums ----------------------------------------------------------------------


fit_moments = jax.jit(fit)


@jax.jit
def fit_running(knots, series):
    """The best function with given breakpoints, from running sums."""
    return fit(knots, moments(knots, series))


@jax.jit
def gradient(knots, fitted):
    """Derivatives of the loss with respect to the breakpoints."""
    m = fitted.moments
    error = value_at(knots, fitted.values, fitted.slopes, m.x) - m.y
    beyond = jnp.cumsum((m.weight[:, None] * error)[::-1], axis=0)[::-1]
    return -jnp.sum(jnp.diff(fitted.slopes, axis=0) * beyond[1:], axis=1)


@jax.jit
def moves(knots, fitted):
    """Both full steps, as new sorted breakpoints."""
    return merged(knots[None] + jnp.stack(steps(knots, fitted)))


def exact_fit(knots, series):
    """The best function with given breakpoints, from sums over every interval."""
    return fit_moments(knots, exact_moments(knots, series))


def polish(knots, data, tol):
    """Gauss-Newton steps with exact sums, where running sums are not exact enough.

    Returns
    -------
    knots, fitted
    count : int
        Steps done.
    """
    host, count = data.host, 0
    knots = spread(knots, host.x)
    fitted = fit_running(knots, data.device)
    if float(fitted.loss) < POLISH_BELOW * data.size:
        fitted, going = exact_fit(knots, host), True
        while going and count < POLISH_STEPS:
            trials = [spread(t, host.x) for t in np.array(moves(knots, fitted))]
            fits = [exact_fit(t, host) for t in trials]
            best = min((0, 1), key=lambda k: float(fits[k].loss))
            before, after = float(fitted.loss), float(fits[best].loss)
            if after < before:
                knots, fitted = trials[best], fits[best]
            going = before - after > tol * before
            count += 1
    return knots, fitted, count


def spread(knots, x):
    """Move breakpoints that share a gap between rows to its ends.

    The function stays the same at all rows, and is not steeper than it has to be:
    breakpoints that nearly coincide have coefficients that nearly cancel. Left of all
    rows one breakpoint is enough, in a gap with its ends two.
    """
    knots, before = np.sort(knots), None
    while not np.array_equal(knots, before):
        before = knots.copy()
        used = np.flatnonzero(knots < RIGHT)
        gap = np.searchsorted(x, knots[used], side="left")
        for at in np.unique(gap):
            slots = used[gap == at]
            if at == 0:
                knots[slots[:-1]] = RIGHT
                knots[slots[-1]] = min(LEFT, x[0])
            elif at == len(x):
                knots[slots] = RIGHT
            elif x[at - 1] in knots or (at == 1 and knots[0] < x[0]):
                knots[slots[:-1]] = RIGHT
                knots[slots[-1]] = x[at]
            elif len(slots) > 1:
                knots[slots[1:-1]] = RIGHT
                knots[slots[[0, -1]]] = x[at - 1], x[at]
        knots = np.sort(knots)
    return knots


def to_network(knots, fitted, n_slots):
    """The network of a function; breakpoints that are not in use lie at the end."""
    knots, values = np.asarray(knots), np.asarray(fitted.values)
    slopes = np.asarray(fitted.slopes)
    coef = np.diff(slopes, axis=0)
    coef[knots >= RIGHT] = 0
    intercept = values[0].copy()
    at_left = knots <= LEFT
    # Where the first line begins is free: far enough out, it goes on as a line.
    intercept -= coef[at_left].sum(axis=0) * (LEFT - _OUTSIDE)
    position = np.where(at_left, _OUTSIDE, knots)
    hyperplanes = np.column_stack([-position, np.ones(len(position))])
    return ShallowReLU(hyperplanes, coef, intercept, np.arange(len(knots)) < n_slots)


def condensed(net, host):
    """What a fit knows of its data, for a network that it returns.

    Returns
    -------
    rows : tuple of x of shape (k, 1), y of shape (k, q) and weights
        Two rows for every interval, inside it, with the same sums of (1, x, x^2) as all
        of it: whatever is linear on the intervals has the same Gram matrix. The targets
        are those of the straight lines through the intervals.
    mean_square : ndarray of shape (q,)
        Of the residuals.
    """
    knots = np.sort(-net.hyperplanes[:, 0])
    m = exact_moments(knots, host)
    bounds = np.concatenate([[0], np.searchsorted(host.x, knots), [len(host.x)]])
    used = m.weight > 0
    first, last = host.x[bounds[:-1][used]], host.x[bounds[1:][used] - 1]
    mean, total = m.x[used], m.weight[used]
    deviation = np.sqrt(m.xx[used] / total)
    slope = _line_slopes(m)[used]
    below, above = mean - first, last - mean
    wide = (below > 0) & (above > 0)
    ratio = np.sqrt(np.where(wide, below, 1) / np.where(wide, above, 1))
    share = 1 / (1 + ratio**2)
    parts = (
        (-deviation * ratio, total * share),
        (deviation / ratio, total * (1 - share)),
    )
    x, y, weight = (
        np.concatenate(columns)
        for columns in zip(
            *((mean + dx, m.y[used] + slope * dx[:, None], w) for dx, w in parts),
            strict=True,
        )
    )
    return (x[:, None], y, weight), _mean_square(net, m, host)


def _line_slopes(m):
    """:func:`own_slopes` on the host."""
    return m.xy / np.where(m.xx > 0, m.xx, 1.0)[:, None]


def _mean_square(net, m, host):
    """Weighted mean squares of the residuals of all targets."""
    if host.y.shape[1] == 1:
        order = np.argsort(-net.hyperplanes[:, 0])
        slopes = np.concatenate([np.zeros((1, 1)), np.cumsum(net.coef[order], axis=0)])
        value = np.maximum(m.x[:, None] + net.hyperplanes[:, 0], 0) @ net.coef
        beyond = value + net.intercept - m.y
        off = m.weight[:, None] * beyond**2
        off += m.xx[:, None] * (slopes - _line_slopes(m)) ** 2
        return m.rest.sum() + off.sum(axis=0) + host.apart
    square = np.zeros(host.y.shape[1])
    for rows in _batches(len(host.x)):
        hidden = np.maximum(host.x[rows, None] + net.hyperplanes[:, 0], 0)
        error = hidden @ net.coef + net.intercept - host.y[rows]
        square += host.weight[rows] @ error**2
    return square + host.apart


# --- sizes ---------------------------------------------------------------------------


@jax.jit
def grow(knots, series):
    """Add as many breakpoints as there are, where they gain most, and descend."""

    def add(_, t):
        return insert(t, series, jax.random.key(0), N_CANDIDATES)

    return _settled(lax.fori_loop(0, in_use(knots), add, knots), series)


@jax.jit
def prune(knots, series):
    """Delete the cheapest breakpoint and descend."""
    return _settled(delete(knots, series, 0), series)


def _settled(knots, series):
    """Descend; the first breakpoint goes left of the data where that is worth it."""
    both = jnp.stack([knots, knots.at[0].set(LEFT)])
    found, fitted, _ = jax.vmap(
        lambda t: descend(t, series, ROUND_STEPS[1], ROUND_TOL)
    )(both)
    value = jax.vmap(lambda t, loss: price(t, loss, series))(found, fitted.loss)
    best = jnp.argmin(value)
    return found[best], fitted.loss[best]


class Sizes:
    """Networks of growing or of falling size, for the choice of one."""

    most = 64

    def __init__(self, rows, options):
        self.data = prepare(rows, options)
        knots = np.full(self.most, RIGHT)
        knots[0] = LEFT
        self.knots = knots
        self.loss = fit_running(knots, self.data.device).loss

    def grow(self):
        """Double the number of neurons."""
        self.knots, self.loss = grow(self.knots, self.data.device)

    def prune(self):
        """Delete a neuron."""
        self.knots, self.loss = prune(self.knots, self.data.device)

    def candidate(self):
        """Hyperplanes of shape (size, 2), the loss, and the number of parameters."""
        knots = np.array(self.knots)
        knots = knots[knots < RIGHT]
        hyperplanes = np.column_stack([-knots, np.ones(len(knots))])
        # A breakpoint left of the data is no parameter, its slope is.
        free = int(np.sum(knots > LEFT))
        parameters = free + self.data.host.y.shape[1] * (1 + len(knots))
        apart = 0.5 * float(self.data.host.apart.sum())
        # Running sums leave rounding errors of this size.
        return (
            hyperplanes,
            float(self.loss) + apart + _UNRESOLVED * self.data.size,
            parameters,
        )


# --- the solver ----------------------------------------------------------------------


class Prepared(NamedTuple):
    """The series as compiled functions read it, and its rows."""

    device: Series
    host: Host
    size: float  # half the weighted mean square of the targets
    thin: Series  # every k-th row and the sums before it: all of few rows


def prepare(rows, options, n_padded=None):
    """Sort and sum up, once."""
    del options
    series, host = sorted_series(rows, n_padded)
    device, size = jax.device_put(series), 0.5 * float(series.sums[-1, 3])
    n = int(series.n_rows)
    if n <= 2 * THIN_ROWS:
        return Prepared(device, host, size, device)
    return Prepared(device, host, size, jax.device_put(thinned(series, n)))


def thinned(series, n):
    """Running sums at every k-th row, which stay in the cache.

    The rows between two of them go with the first: a breakpoint is known to a share
    1 / THIN_ROWS of the rows, which is enough to choose among starts.
    """
    kept = np.arange(0, n, -(-n // THIN_ROWS))
    x = np.full(THIN_ROWS, np.inf)
    sums = np.tile(series.sums[-1], (THIN_ROWS + 1, 1))
    x[: len(kept)], sums[: len(kept)] = series.x[kept], series.sums[kept]
    return Series(x, sums, np.int32(len(kept)))


def init(data, net, options):
    """Start from the breakpoints of a stack of networks, side by side."""
    del options
    return _with_best(_start(net), data)


def _start(net):
    hyperplanes = np.asarray(net.hyperplanes, np.float64)  # (n_starts, n_slots, 2)
    knots = -hyperplanes[..., 0] / hyperplanes[..., 1]
    knots = np.where(net.alive, np.clip(knots, LEFT, RIGHT), RIGHT)
    knots = np.sort(knots, axis=1)
    knots[1:, 0] = LEFT  # random breakpoints alone would leave out the slope there
    n_neurons = int(np.sum(net.alive[0]))
    return State(None, math.inf, knots, np.full(len(knots), np.inf), n_neurons)


def _with_best(state, data):
    """The state with the network of its best start."""
    knots = spread(np.array(state.knots[np.argmin(state.losses)]), data.host.x)
    fitted = fit_running(knots, data.device)
    # Rounding may make this loss too small by as much as is added.
    loss = loss_of(fitted, data.host) + _UNRESOLVED * data.size
    if state.net is not None and not loss < state.loss:
        return state
    return state._replace(net=to_network(knots, fitted, state.n_neurons), loss=loss)


def loss_of(fitted, series):
    """The loss, with the part that no function of x can explain."""
    return float(fitted.loss) + 0.5 * float(series.apart.sum())


def step(data, state, options):
    """All descents from the starts, a round of relocation, or the last descent."""
    take = {"starts": _start_step, "rounds": _round_step, "end": _last_step}
    return take[state.phase](data, state, options)


def _start_step(data, state, options):
    knots, losses, count = descend_all(state.knots, data.thin, ROUND_TOL)
    kept = np.argsort(np.array(losses), kind="stable")[:N_KEPT]
    knots, losses = np.array(knots)[kept], np.array(losses)[kept]
    if data.thin is not data.device:
        knots, losses, more = descend_all(knots, data.device, ROUND_TOL)
        count += more
    state = state._replace(knots=np.array(knots), losses=np.array(losses))
    return _next(data, state, options, count)


def _round_step(data, state, options):
    draw, seed = draw_of(state.round), np.int32(options.seed ^ state.round)
    knots, losses, count = relocate_all(
        state.knots, state.losses, data.device, seed, draw, np.int32(state.n_neurons)
    )
    state = state._replace(
        knots=np.array(knots), losses=np.array(losses), round=state.round + 1
    )
    return _next(data, state, options, count)


def _next(data, state, options, count):
    """The state with its best network, and what comes next."""
    before = state.loss
    state = _with_best(state, data)
    resolved = state.losses.min() > _UNRESOLVED * data.size
    more = resolved and state.round < options.relocations
    report = Report(
        loss=state.loss,
        grad_norm=math.nan,
        inner_iterations=int(count),
        accepted=state.round == 0 or state.loss < before,
    )
    return state._replace(phase="rounds" if more else "end"), report


def _last_step(data, state, options):
    knots, losses, first = descend_all(state.knots, data.device, options.tol)
    state = state._replace(knots=np.array(knots), losses=np.array(losses))
    return finish_best(data, state, options, int(first))


def finish_best(data, state, options, count):
    """Polish the best start; ``count`` steps were taken before."""
    knots = state.knots[np.argmin(state.losses)]
    knots, fitted, more = polish(knots, data, options.tol)
    loss = loss_of(fitted, data.host)
    if loss < state.loss:
        net = to_network(knots, fitted, state.n_neurons)
        state = state._replace(net=net, loss=loss)
    rounding = state.loss <= _AT_ROUNDING * data.size
    return state, Report(
        loss=state.loss,
        grad_norm=float(np.linalg.norm(gradient(knots, fitted))),
        inner_iterations=count + more,
        stop="rounding" if rounding else "tol",
    )


# --- many series ---------------------------------------------------------------------


@jax.jit
def _descend_many(knots, series, tol):
    return jax.vmap(lambda t, s: descend_all(t, s, tol))(knots, series)


@jax.jit
def _relocate_many(knots, losses, series, seeds, draw, n_neurons):
    return jax.vmap(
        lambda t, loss, s, seed: relocate_all(t, loss, s, seed, draw, n_neurons)
    )(knots, losses, series, seeds)


def fit_many(prepared, nets, options):
    """Fit series of one padded length side by side, each from its own starts.

    Parameters
    ----------
    prepared : list of Prepared
    nets : list of ShallowReLU
        Stacks of as many starts for each series.
    options : list of Options
        They differ in their seeds only.

    Returns
    -------
    list of pairs
        The last state of every series, and its reports.
    """
    states = [_start(net) for net in nets]
    # Numbers of series up to a power of two share what is compiled.
    padding = (1 << (len(nets) - 1).bit_length()) - len(nets)
    padded = [*prepared, *prepared[:1] * padding]
    series = jax.tree.map(lambda *a: np.stack(a), *(p.device for p in padded))
    series = jax.device_put(series)
    common, n_neurons = options[0], states[0].n_neurons
    all_seeds = np.array([o.seed for o in options] + [0] * padding, np.int32)
    knots = np.stack([s.knots for s in [*states, *states[:1] * padding]])
    knots, losses, counts = _descend_many(knots, series, ROUND_TOL)
    kept = np.argsort(np.array(losses), axis=1, kind="stable")[:, :N_KEPT]
    knots = np.take_along_axis(np.array(knots), kept[:, :, None], axis=1)
    losses = np.take_along_axis(np.array(losses), kept, axis=1)
    history = [(_lowest(knots, losses, padded), np.array(counts))]
    for round_ in range(int(common.relocations)):
        draw, seeds = draw_of(round_), all_seeds ^ np.int32(round_)
        knots, losses, counts = _relocate_many(
            knots, losses, series, seeds, draw, np.int32(n_neurons)
        )
        lowest = _lowest(np.array(knots), np.array(losses), padded)
        history.append((lowest, np.array(counts)))
    knots, losses, counts = _descend_many(knots, series, common.tol)
    knots, losses, counts = (np.array(a) for a in (knots, losses, counts))
    answers = []
    for k, (p, o) in enumerate(zip(prepared, options, strict=True)):
        state = states[k]._replace(knots=knots[k], losses=losses[k])
        state, last = finish_best(p, state, o, int(counts[k]))
        apart = 0.5 * float(p.host.apart.sum())
        rows = [
            Report(float(loss[k]) + apart, math.nan, inner_iterations=int(count[k]))
            for loss, count in history
        ]
        answers.append((state, [*rows, last]))
    return answers


def _lowest(knots, values, prepared):
    """Losses of the best starts of all series, without their :func:`price`."""
    best = np.argmin(values, axis=1)
    t = knots[np.arange(len(best)), best]
    inside = np.sum((t > LEFT) & (t < RIGHT), axis=1)
    n = np.array([len(p.host.x) for p in prepared])
    return values.min(axis=1) / np.exp(inside * np.log(n) / n)


SEGMENTED = Algorithm(
    name="vpgn",
    init=init,
    step=step,
    n_spare=N_SPARE,
    side_by_side=True,
    prepare=prepare,
)
