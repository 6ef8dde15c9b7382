"""Rows that are added to a fit, one after the other or a few at a time.

Rows lie in bins of x, whose sums are kept up to date; the rows themselves are looked at
only in the bins in which a breakpoint lies. The sums from each breakpoint on are a
table of the engine with a position for each, so that a Gauss-Newton step of the kinks
costs nothing that grows with the number of rows.

Whether another breakpoint is worth its parameters, or one no longer, follows from the
same sums: from what a kink at the edge of a bin would explain, and from what the line
would lose without each of its kinks.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.linalg import factors
from sklearn_gn.segmented.inference import Fit
from sklearn_gn.segmented.least_squares import Rows
from sklearn_gn.segmented.preparation import needs_all_points, prepare
from sklearn_gn.segmented.problem import (
    Pieces,
    Table,
    concatenate,
    products,
    target_products,
)
from sklearn_gn.segmented.search import EXACT

_N_BINS = 256
_FULL = 4  # rows of a bin, over the mean, at which bins are made anew
_MOST_STEPS = 20
_LENGTHS = (1.0, 0.3)  # of the steps that are tried
_SETTLED = 1e-4  # fall of n log(rss) that a hundredth of a standard error makes
_SHIFT = 1e-12  # of a normal matrix with unit diagonal, so that it can be factored


class Found(NamedTuple):
    """A line with breakpoints, from sums, and its linearisation in the kinks.

    The columns of the line come first, then a step at each breakpoint; the inverse root
    of the normal matrix of the former is the leading part of that of all.
    """

    t: np.ndarray  # (k,)
    counts: np.ndarray  # (k + 1,) weights of the segments
    coef: np.ndarray  # (p,)
    rss: float  # weighted mean of squares
    linear: np.ndarray  # (p + k,) coefficients with the steps
    linear_rss: float
    half: np.ndarray  # (p + k, p + k) H with the inverse normal matrix H^T H
    total: float  # weighted mean of squares about the mean
    table: Table


def stream_of(model, prepared, options):
    """Return the stream of a fitted model; a ValueError if it takes no updates."""
    form = options.form
    reason = needs_all_points(model)
    if form.step or form.sign or form.flat_end or prepared.repeats is not None:
        reason = "jumps, a shape, a level last segment or y_std"
    elif prepared.rows.linear.shape[1]:
        reason = "a fit of several features"
    if reason is not None:
        raise ValueError(f"update cannot be combined with {reason}: fit all rows.")
    if not hasattr(model, "_stream"):
        model._stream = Stream(prepared.rows)
    return model._stream


class Stream:
    """Rows in bins of x, in the units of a search.

    ``before`` is the stream that a search has followed; what it could not gain then is
    no reason to search again.
    """

    def __init__(self, rows, before=None):
        self._fill(rows.x, rows.y, rows.weight)
        self.is_new, self.unavailable = before is not None, 0.0

    def _fill(self, x, y, weight):
        """Put rows in the order of x into bins of about as many rows each."""
        n = len(x)
        self.edges = np.unique(x[:: max(n // _N_BINS, 1)])[1:]
        self.n_rows, self.ends = n, [x[0], x[-1]]
        rows = np.stack([x, y, weight])
        first = np.searchsorted(x, self.edges)
        self.bins = np.split(rows, first, axis=1)
        starts = np.append(0, first)
        self.sums, self._later = np.add.reduceat(_terms(rows), starts, axis=0), None

    def follow(self, model, fit, options, scaling):
        """Return the fit and rows for its table; None if a search is worthwhile."""
        form, (low, high) = fit.form, scaling.x(np.array(options.bounds))
        distance = options.min_distance / scaling.size
        least = options.min_rows or 3.0

        def is_allowed(t):
            own = t[fit.free]
            return bool(
                np.all((own >= low) & (own <= high))
                and np.all(np.diff([self.ends[0], *t, self.ends[1]]) > distance)
            )

        redundancy = model._redundancy
        n = self.weight / redundancy
        found = self.descend(form, fit.t, fit.free, is_allowed, n)
        excess = self._excess(model, form, found, fit.free, n)
        if self.is_new:
            self.unavailable = excess + np.log(n) if excess > 0 else 0.0
            self.is_new = False
        too_few = len(found.t) and found.counts.min() < least
        if excess > self.unavailable or too_few or not np.isfinite(found.rss):
            return None
        return fit_of(self, form, found, fit.free, redundancy, scaling)

    def _excess(self, model, form, found, free, n):
        """Return what the criterion would gain by other breakpoints, if positive."""
        rss = max(found.rss, np.finfo(float).tiny)
        lost = losses(form, found)[free]
        loss = n * np.log1p(lost.min() / rss) if len(lost) else np.inf
        left = max(rss - self.largest_gain(form, found), EXACT * rss)
        gain = n * np.log(rss / left)
        if model.n_breakpoints != "auto":
            return gain - loss  # of an exchange
        charge = 2 * (1.0 if model.criterion == "aic" else np.log(n))
        more = gain - charge if len(lost) < model.max_breakpoints else -np.inf
        return max(more, charge - loss)

    def prepared(self, scaling):
        """Return all rows, scaled anew."""
        x, y, weight = self.rows()
        x = scaling.center + scaling.size * x
        y = scaling.y_center + scaling.y_size * y
        return prepare(x, y, np.empty((len(x), 0)), weight)

    def rows(self):
        """Return x, y and weight of all rows, in the order of x."""
        rows = np.concatenate(self.bins, axis=1)
        return rows[:, np.argsort(rows[0], kind="stable")]

    def add(self, x, y, weight):
        """Add rows (m,)."""
        rows = np.stack([x, y, weight])
        at = np.searchsorted(self.edges, x, side="right")
        np.add.at(self.sums, at, _terms(rows))
        self._later = None
        for b in np.unique(at):
            self.bins[b] = np.concatenate([self.bins[b], rows[:, at == b]], axis=1)
        self.n_rows += len(x)
        self.ends = [min(self.ends[0], x.min()), max(self.ends[1], x.max())]
        largest = max(self.bins[b].shape[1] for b in np.unique(at))
        if largest > _FULL * (1 + self.n_rows / len(self.bins)):
            self._fill(*self.rows())

    def later(self):
        """Return the sums over the rows from each bin on."""
        if self._later is None:
            self._later = np.zeros((len(self.sums) + 1, 6))
            np.cumsum(self.sums[::-1], axis=0, out=self._later[-2::-1])
        return self._later

    def _sums_from(self, t):
        """Return the sums over all rows, and over those from each position on."""
        later, at = self.later(), np.searchsorted(self.edges, t, side="right")
        sums = np.zeros((len(t) + 2, 6))
        sums[0], sums[1:-1] = later[0], later[at + 1]
        for k, b in enumerate(at):
            own = self.bins[b]
            sums[1 + k] += _terms(own[:, own[0] >= t[k]]).sum(axis=0)
        return sums

    @property
    def weight(self):
        """Sum of the weights."""
        return float(self.sums[:, 0].sum())

    def solve(self, form, t):
        """Return the least-squares line with breakpoints."""
        sums = self._sums_from(t)
        table = _table_of(t, sums)
        pieces = _with_steps(form, t)
        matrix = products(table, pieces, pieces)[0]
        side = target_products(table, pieces)[0, :, 0]
        scale = 1 / np.sqrt(np.maximum(np.diagonal(matrix), np.finfo(float).tiny))
        scaled = matrix * scale[:, None] * scale + _SHIFT * np.eye(len(scale))
        half = factors.inverse_roots(scaled[None])[0] * scale
        z, p, square = half @ side, len(scale) - len(t), float(table.gram[0, 0, 0])
        explained = np.cumsum(z**2)
        return Found(
            t=t,
            counts=-np.diff(sums[:, 0]),
            coef=half[:p, :p].T @ z[:p],
            rss=square - explained[p - 1],
            linear=half.T @ z,
            linear_rss=square - explained[-1],
            half=half,
            total=square - explained[0],
            table=table,
        )

    def descend(self, form, t, free, is_allowed, n):
        """Return the line whose free kinks no longer move.

        Steps end where one lowers n times the logarithm of the sum of squares by less
        than a hundredth of a standard error does.
        """
        found, first = self.solve(form, t), 1 + form.slope
        k = len(t)
        for _ in range(_MOST_STEPS if free.any() else 0):
            falls = n * (found.rss - found.linear_rss)
            if not falls > _SETTLED * found.rss:
                break
            change = found.linear[first : first + k]
            step = -found.linear[-k:] / np.where(change != 0, change, np.inf)
            best = found
            for length in _LENGTHS:
                trial = found.t + np.where(free, length * step, 0)
                new = self.solve(form, trial) if is_allowed(trial) else found
                if new.rss < found.rss:
                    best = new
                    break
            if best is found:
                break
            found = best
        return found

    def largest_gain(self, form, found):
        """Return what a kink at an edge of a bin takes from the mean of squares."""
        k, e, later = len(found.t), self.edges, self.later()
        position = np.concatenate([found.t, e])
        # In the order of x, which sums from the later of two positions ask for.
        order = np.argsort(position, kind="stable")
        place = np.empty(len(order), np.intp)
        place[order] = 1 + np.arange(len(order))
        sums = np.zeros((len(position) + 2, 6))
        sums[0], sums[place[k:]] = later[0], later[1:-1]
        sums[place[:k]] = later[0, 0] * np.column_stack(
            [
                found.table.powers[0, 1 : k + 1],
                found.table.targets[0, 1 : k + 1, 0],
                np.zeros(k),
            ]
        )
        table = _table_of(position[order], sums)
        new = Pieces(*(a[None] for a in (place[k:], -e, np.ones(len(e)))))
        cross = products(table, new, _pieces(form, found.t, place[:k]))[0]
        score = target_products(table, new)[0, :, 0] - cross @ found.coef
        powers, p = table.powers[0, place[k:]], len(found.coef)
        square = e**2 * powers[:, 0] - 2 * e * powers[:, 1] + powers[:, 2]
        left = square - np.sum((cross @ found.half[:p, :p].T) ** 2, axis=1)
        known = left > 1e-9 * square
        return float(np.max(score[known] ** 2 / left[known], initial=0))


def losses(form, found):
    """Return what the line without each of its kinks adds to the mean of squares."""
    first, k, p = 1 + form.slope, len(found.t), len(found.coef)
    own = np.sum(found.half[:p, first : first + k] ** 2, axis=0)
    return found.coef[first : first + k] ** 2 / own


def fit_of(stream, form, found, free, redundancy, scaling):
    """Return the :class:`~sklearn_gn.segmented.inference.Fit`, and rows for its table.

    The rows are one for each segment, and the ends.
    """
    t, k, weight = found.t, len(found.t), stream.weight
    n, p = weight / redundancy, len(found.coef) + int(free.sum())
    half = found.half
    if not free.all():  # known breakpoints do not move
        kept = np.append(np.ones(len(found.coef), bool), free)
        inverse = np.linalg.inv(half.T @ half)  # the normal matrix
        half = np.zeros((len(kept), p))
        half = factors.inverse_roots(inverse[np.ix_(kept, kept)][None])[0]
    change = found.coef[1 + form.slope : 1 + form.slope + k][free]
    scale = np.ones(p)
    scale[len(found.coef) :] = -1 / np.where(change != 0, change, np.nan)
    half = half * scale
    freedom = n - p if n > p else np.nan
    variance = n * found.rss / freedom
    fit = Fit(
        form=form,
        t=t,
        free=free,
        coef=found.coef,
        covariance=variance / n * (half.T @ half),
        degrees_of_freedom=np.float64(freedom),
        variance=np.float64(variance),
        n_rows=np.float64(weight),
        n_parameters=p,
        rss=np.float64(weight * found.rss),
        total=np.float64(weight * found.total),
        scaling=scaling,
    )
    ends = np.concatenate([stream.ends[:1], t, stream.ends[1:]])
    x = np.concatenate([ends[:1], (ends[:-1] + ends[1:]) / 2, ends[-1:]])
    counts = np.concatenate([[0], found.counts, [0]])
    return fit, Rows(x, 0 * x, np.empty((len(x), 0)), counts)


def _table_of(t, sums):
    """Return the sums at positions as a table of the engine, divided by the weight."""
    sums = sums / sums[0, 0]
    gram, n = sums[:1, 5:].reshape(1, 1, 1), np.array([len(t)])
    return Table(t[None], sums[None, :, :3], sums[None, :, None, 3:5], gram, None, n)


def _terms(rows):
    """Return the terms of the sums of w, w x, w x^2, w y, w x y and w y^2, (m, 6)."""
    x, y, w = rows
    return np.stack([w, w * x, w * x * x, w * y, w * x * y, w * y * y], axis=-1)


def _pieces(form, t, place=None):
    """Return the pieces of the line; breakpoint k is position k + 1 of the table."""
    place = 1 + np.arange(len(t)) if place is None else place
    line, one = int(form.slope), np.ones(len(t))
    first = np.concatenate([np.zeros(1 + line, np.intp), place])
    level = np.concatenate([[1.0], np.zeros(line), -t])
    slope = np.concatenate([[0.0], np.ones(line), one])
    return Pieces(first[None], level[None], slope[None])


def _with_steps(form, t):
    """Return the pieces of the line, and a step at each of its breakpoints."""
    one, place = np.ones((1, len(t))), 1 + np.arange(len(t))[None]
    return concatenate(_pieces(form, t), Pieces(place, one, 0 * one))
