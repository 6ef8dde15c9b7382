"""Fits of one feature: dynamic programming, and descents in O(n log N) a step.

With one feature the network is a continuous piecewise-linear function, see
:mod:`sklearn_gn.shallow_relu.broken_line`, and all that the search needs of the data
are running sums, see :mod:`sklearn_gn.shallow_relu.sorted_rows`. All starts descend
together: those that are given, and then those that the dynamic programme of
:mod:`sklearn_gn.segmented.programme` finds. Differences of running sums have rounding
errors of the size of the total; the last steps therefore sum over every interval again.

The arrays are small whatever the number of rows, so NumPy computes all of this; nothing
is compiled.
"""

import math
from typing import NamedTuple

import numpy as np

from sklearn_gn.optim.solver import Algorithm, Report
from sklearn_gn.segmented.problem import spread
from sklearn_gn.segmented.programme import STARTS, kinks_at_positions
from sklearn_gn.shallow_relu.broken_line import (
    between_ends,
    descend,
    fit_exact,
    fit_running,
    full_steps,
    gradient,
    spread_knots,
)
from sklearn_gn.shallow_relu.exact_pieces import exact_knots
from sklearn_gn.shallow_relu.network import ShallowReLU
from sklearn_gn.shallow_relu.search import (
    ROUND_STEPS,
    ROUND_TOL,
    Phase,
    SizePath,
    best_start,
)
from sklearn_gn.shallow_relu.sorted_rows import (
    LEFT,
    RIGHT,
    THIN_ROWS,
    UNRESOLVED,
    RunningSums,
    SortedRows,
    sort_rows,
    thin_sums,
)

START_STEPS = 50  # most Gauss-Newton steps of the starts
POLISH_STEPS = 50  # most steps with sums over every interval again, where ...
POLISH_BELOW = 1e-9  # ... the relative loss is less than this
_OUTSIDE = -3.0  # where the networks have the breakpoint that is at LEFT here
_AT_ROUNDING = 1e-26  # relative loss at which residuals are rounding errors
_PLACES = 100  # rows that may have breakpoints where the descents begin, at least
MOST_NEURONS = 64  # that the programme places
_FURTHER = 6  # neurons beyond the best number that are tried


class Data(NamedTuple):
    """Running sums, and the rows."""

    running: RunningSums
    rows: SortedRows
    size: float  # half the weighted mean square of the targets
    thin: RunningSums  # every k-th row and the sums before it: all of few rows


class State(NamedTuple):
    """What a run remembers."""

    net: ShallowReLU  # the best so far
    loss: float  # its loss on all rows
    knots: np.ndarray  # (n_starts, n_neurons) sorted; those at RIGHT are not in use
    phase: Phase = Phase.STARTS
    round: int = 0  # rounds of dynamic programming


def prepare(rows, options):
    """Sort the rows and sum them up, once."""
    running, rows = sort_rows(rows)
    if options is not None:
        running = running._replace(ends=options.ends)
    size, n = 0.5 * float(running.sums[-1, 3]), int(running.n_rows)
    thin = running if n <= 2 * THIN_ROWS else thin_sums(running, n)
    return Data(running, rows, size, thin)


def init(data, nets, options):
    """Begin with the breakpoints of a stack of networks.

    Those of rows without noise on few lines take the place of the first ones.
    """
    del options
    hyperplanes = np.asarray(nets.hyperplanes, np.float64)
    knots = -hyperplanes[..., 0] / hyperplanes[..., 1]
    knots = np.sort(np.clip(knots, LEFT, RIGHT), axis=1)
    knots[1:, 0] = LEFT  # random breakpoints alone would leave out the slope there
    exact = exact_knots(data, knots.shape[1])
    if exact is not None:
        knots[0] = RIGHT
        knots[0, : len(exact)] = exact
    return with_best(data, State(None, math.inf, knots))[0]


def step(data, state, options):
    """Let the starts descend, those of the programme too, and then to the end."""
    knots, ends = state.knots, state.phase == Phase.END
    if state.phase == Phase.ROUNDS:
        knots = np.concatenate([knots, *round_of_programme(data, state)])
    # On few of the running sums first.
    n_steps, losses = 0, np.zeros(len(knots))
    sums = [data.thin, data.running]
    sums = sums[1:] if ends or data.thin is data.running else sums
    for running in sums:
        knots, losses, counts = descend(
            knots, running, START_STEPS, options.tol if ends else ROUND_TOL
        )
        losses = penalised_loss(knots, losses, running)
        kept = np.argsort(losses, kind="stable")[:STARTS]
        knots, n_steps = knots[kept], n_steps + int(counts.max())
    before = state.loss
    state, found = with_best(data, state._replace(knots=knots))
    resolved = losses.min() > 10 * UNRESOLVED * data.size
    done = state.round + (state.phase == Phase.ROUNDS)
    falls = done == 0 or state.loss < (1 - ROUND_TOL) * before or done == 1
    more = falls and resolved and not ends and done < options.relocations
    state = state._replace(phase=Phase.ROUNDS if more else Phase.END, round=done)
    at_rounding = state.loss <= _AT_ROUNDING * data.size
    return state, Report(
        loss=state.loss,
        grad_norm=float(np.linalg.norm(found)),
        step_size=math.nan,
        gain_ratio=math.nan,
        inner_iterations=max(n_steps, 1),
        accepted=state.loss < before or ends,
        stop="rounding" if at_rounding else "tol" if ends else None,
    )


def with_best(data, state):
    """Return the state with the best network, and the gradient of its breakpoints.

    The last network is a polished one.
    """
    fits = fit_running(state.knots, data.running)
    values = penalised_loss(state.knots, fits.loss, data.running)
    knots = np.array(state.knots[best_start(values)])
    if state.phase == Phase.END:
        knots, fitted = polish(knots, data)
        loss = total_loss(fitted, data.rows)
    else:
        knots = spread_knots(knots, data.rows.x)
        fitted = fit_running(knots, data.running)
        # Rounding may make this loss too small by as much as is added.
        loss = total_loss(fitted, data.rows) + UNRESOLVED * data.size
    if state.net is None or loss < state.loss:
        net = to_network(knots, fitted, len(knots))
        state = state._replace(net=net, loss=loss)
    return state, gradient(knots, fitted)


def total_loss(fitted, rows):
    """Return the loss with the part that no function of x can explain."""
    return float(fitted.loss) + 0.5 * float(rows.tie_variance.sum())


def polish(knots, data):
    """Take steps with exact sums, where running sums are not exact enough."""
    rows = data.rows
    knots = spread_knots(knots, rows.x)
    fitted, count = fit_exact(knots, rows), 0
    falling = float(fitted.loss) < POLISH_BELOW * data.size
    while falling and count < POLISH_STEPS:
        trials = [spread_knots(t, rows.x) for t in full_steps(knots, fitted)]
        fits = [fit_exact(t, rows) for t in trials]
        best = min((0, 1), key=lambda k: float(fits[k].loss))
        falling = float(fits[best].loss) < float(fitted.loss)
        if falling:
            knots, fitted = trials[best], fits[best]
        count += 1
    return knots, fitted


def to_network(knots, fitted, n_slots):
    """Return the network of a function; breakpoints not in use lie at the end."""
    values, slopes = fitted.values, fitted.slopes
    coef = np.diff(slopes, axis=0)
    coef[knots >= RIGHT] = 0
    intercept = values[0].copy()
    at_left = knots <= LEFT
    # Where the first line begins is free: far enough out, it goes on as a line.
    intercept -= coef[at_left].sum(axis=0) * (LEFT - _OUTSIDE)
    position = np.where(at_left, _OUTSIDE, knots)
    hyperplanes = np.column_stack([-position, np.ones(len(position))])
    return ShallowReLU(hyperplanes, coef, intercept, np.arange(len(knots)) < n_slots)


def penalised_loss(knots, loss, running):
    """Return the losses by which networks of one size are compared.

    A breakpoint left of the data gives the first line its slope, one parameter; one
    inside is two. The second has to be worth what it costs by the Bayesian information
    criterion, or noise at the left end would draw breakpoints there.
    """
    n = running.n_rows
    inside = np.sum((knots > LEFT) & (knots < RIGHT), axis=-1)
    return loss * np.exp(inside * np.log(n) / n)


def round_of_programme(data, state):
    """Return sets of breakpoints that dynamic programming finds.

    In the first round kinks may be at rows evenly spread, and the first line may be
    level or not. Later ones put together breakpoints of all starts.
    """
    running, knots = data.thin, state.knots
    n, last = knots.shape[1], int(running.n_rows) - 1
    most = min(n, MOST_NEURONS)
    if state.round == 0:
        rows, slopes = spread(0, last, max(_PLACES, 2 * most)), (True, False)
    else:
        rows = np.minimum(running.x.searchsorted(knots[knots < RIGHT]), last)
        rows = np.unique(np.concatenate([rows, spread(0, last, _PLACES // 4)]))
        rows = rows[spread(0, len(rows) - 1, max(_PLACES, 2 * most))]
        slopes = (knots[0, 0] == LEFT,)
    for slope in slopes:
        for found in [*starts_of_programme(running, rows, most, slope)][-1:]:
            unused = np.full((len(found), n - found.shape[1]), RIGHT)
            yield np.hstack([found, unused])


def starts_of_programme(running, rows, most, slope):
    """Yield breakpoints (m, k) at rows, of networks of 1, 2, ... neurons, best first.

    With ``slope`` the first of them is left of the data.
    """
    x, later = running.x[rows], running.sums[running.n_rows] - running.sums[rows]
    later[-1] = 0  # the last segment holds the last row
    found = kinks_at_positions(
        x,
        np.delete(later, 3, axis=1),
        slope,
        min(most - slope, len(x)),
        inner=between_ends(x, running) == x,
    )
    if slope:
        yield np.full((1, 1), LEFT)
    for places in found:
        left = np.full((len(places), int(slope)), LEFT)
        yield np.hstack([left, x[places]])


# --- sizes ---------------------------------------------------------------------------


def settle(knots, running):
    """Return the best breakpoints of a few descents, and their loss."""
    knots, losses, _ = descend(knots, running, ROUND_STEPS[1], ROUND_TOL)
    best = int(np.argmin(penalised_loss(knots, losses, running)))
    return knots[best], float(losses[best])


def select_size(data, first, criterion, n_numbers, scale, is_late=lambda: False):
    """Return the hyperplanes of the best size by a criterion, and the path.

    ``first`` are hyperplanes that are a candidate, too, or None.
    """
    running, rows, path = data.running, data.rows, SizePath(criterion, n_numbers, scale)

    def visit(knots):
        knots, loss = settle(knots, running)
        knots = knots[knots < RIGHT]
        hyperplanes = np.column_stack([-knots, np.ones(len(knots))])
        # A breakpoint left of the data is no parameter, its slope is.
        free = int(np.sum(knots > LEFT))
        n_parameters = free + rows.y.shape[1] * (1 + len(knots))
        # Running sums leave rounding errors of this size.
        loss += 0.5 * float(rows.tie_variance.sum()) + UNRESOLVED * data.size
        path.visit(hyperplanes, loss, n_parameters)

    if first is not None:
        knots = np.clip(-first[:, 0] / first[:, 1], LEFT, RIGHT)
        visit(np.sort(knots)[None])
    places = spread(0, int(data.thin.n_rows) - 1, 2 * MOST_NEURONS)
    for knots in starts_of_programme(data.thin, places, MOST_NEURONS, slope=True):
        far = path.found and knots.shape[1] > path.best_size() + _FURTHER
        if not len(knots) or far or (is_late() and path.found):
            break
        visit(knots)
    return path.result()


SEGMENTED = Algorithm(  # the joint step with one feature
    "vpgn", init, step, prepare=prepare, side_by_side=True, compiled=False
)
