"""The problem of the search: what the function is, where breakpoints may lie."""

from typing import NamedTuple

import numpy as np

from sklearn_gn.segmented.products import Pieces, Table, locate, select, solve

MOST_CANDIDATES = 1000  # positions that are tried, evenly spaced among all
_COARSE = 100  # positions of kinks that are tried on the way, at least
_COARSE_PER_KINK = 8


class Form(NamedTuple):
    """What the function does between and at the breakpoints."""

    slope: bool  # straight lines, else constants
    ramp: bool  # the slope changes at a breakpoint
    step: bool  # the function jumps at a breakpoint
    flat_end: bool = False  # the last line is level
    sign: int = 0  # of all changes of slope: 1 convex, -1 concave, 0 any

    @property
    def parameters_per_breakpoint(self):
        """Number of parameters of a breakpoint, its position included."""
        return 1 + self.ramp + self.step


class Limits(NamedTuple):
    """Where breakpoints may lie."""

    low: np.ndarray  # (B,) least and largest position
    high: np.ndarray
    min_distance: np.ndarray  # (B,) between breakpoints, and to the ends of the data
    min_rows: np.ndarray  # (B,) rows of a segment


class Candidates(NamedTuple):
    """Positions at which breakpoints are tried; they run along the last axis."""

    rows: np.ndarray  # (B, c)
    t: np.ndarray  # (B, c) the breakpoints
    before: np.ndarray  # (B, c) the row before
    powers: np.ndarray  # (B, 3, c) sums from there on
    targets: np.ndarray  # (B, q, 2, c)


class Problem(NamedTuple):
    """Series that are searched side by side."""

    table: Table
    form: Form
    known: np.ndarray  # (B, k) breakpoints that are kept
    limits: Limits
    candidates: Candidates | None = None

    def at(self, rows):
        """Return the problem with candidates at some positions, for all series."""
        table = self.table
        t, before = table.x[:, rows], table.x[:, np.maximum(rows - 1, 0)]
        if self.form.step:
            t = np.where(rows > 0, (before + t) / 2, t)
        candidates = Candidates(
            np.broadcast_to(rows, t.shape),
            t,
            before,
            np.ascontiguousarray(np.moveaxis(table.powers[:, rows], 1, -1)),
            np.ascontiguousarray(np.moveaxis(table.targets[:, rows], 1, -1)),
        )
        return self._replace(candidates=candidates)

    def coarse(self, most):
        """Return the problem with fewer candidates, enough for a number of kinks.

        Kinks move from there to where they belong by Gauss-Newton steps; jumps do not.
        """
        rows = self.candidates.rows[0]
        few = max(_COARSE, _COARSE_PER_KINK * most)
        if self.form.step or len(rows) <= few:
            return self
        return self.at(rows[spread(0, len(rows) - 1, few)])

    def of(self, series):
        """Return the problem of some of the series, given in their order."""
        n = len(self.table.x)
        if np.arange(n)[series].size == n:
            return self
        return Problem(
            select(self.table, series),
            self.form,
            self.known[series],
            Limits(*(a[series] for a in self.limits)),
            self.candidates and Candidates(*(a[series] for a in self.candidates)),
        )


def spread(first, last, most):
    """Return at most so many numbers from the first to the last, evenly spaced."""
    count = min(last - first + 1, most)
    return np.unique(np.linspace(first, last, count).astype(np.intp))


# --- pieces --------------------------------------------------------------------------


def all_pieces(problem, knots):
    """Return the pieces of the whole function: line, then ramps, then steps."""
    table, form, known = problem[:3]
    if known.shape[1]:
        known = known.reshape(len(known), *[1] * (knots.ndim - 2), -1)
        known = np.broadcast_to(known, (*knots.shape[:-1], known.shape[-1]))
        knots = np.concatenate([known, knots], axis=-1)
    k, lead = knots.shape[-1], 1 + form.slope
    shape = (*knots.shape[:-1], lead + k * (form.ramp + form.step))
    pieces = Pieces(np.zeros(shape, np.intp), np.zeros(shape), np.zeros(shape))
    pieces.level[..., 0] = 1
    pieces.slope[..., 1:lead] = 1
    at = locate(table, knots)
    if form.ramp:
        pieces.first[..., lead : lead + k] = at
        pieces.level[..., lead : lead + k] = -knots
        pieces.slope[..., lead : lead + k] = 1
    if form.step:
        pieces.first[..., shape[-1] - k :] = at
        pieces.level[..., shape[-1] - k :] = 1
    return pieces


def sum_of_squares(problem, knots):
    """Return the residual sums of squares with given breakpoints, (...).

    They are infinite where a change of slope has the wrong sign.
    """
    form = problem.form
    found = solve(problem.table, all_pieces(problem, knots), form.flat_end)
    if not form.sign:
        return found.rss
    first = 1 + form.slope
    changes = found.coef[..., first : first + knots.shape[-1]]
    return np.where(np.all(form.sign * changes >= 0, axis=-1), found.rss, np.inf)
