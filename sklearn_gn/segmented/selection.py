r"""The search for the number of breakpoints that a criterion prefers.

Where breakpoints may be kinks, jumps or both, the search begins where all are kinks,
where all are both, and where all are jumps between constants. From each, every
breakpoint in turn is taken out, and comes back where and as what it lowers the
criterion most, or not at all; then one more is tried, and the kinks move together,
until nothing helps. A line without kinks loses its slope where the criterion prefers
that. Rows of correlated noise count as in the best first fit.

A breakpoint is the best of many positions, and noise alone has a best one too: of few
rows it lowers the sum of squares by more than "bic" charges. As the position moves, the
direction in which a breakpoint shows moves on the unit sphere, along a curve of length
L. Of noise in m dimensions with a share of more than s of its square along the curve,
the probability is at most :math:`(1 + L / \pi) (1 - s)^{m / 2 - 1}` (Hotelling, "Tubes
and spheres in n-spaces", 1939; the one is for the end of the curve). A breakpoint costs
what noise reaches in one series of twenty, where this is more than "bic" charges.
"""

from functools import partial
from itertools import compress
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, logsumexp

from sklearn_gn.segmented.inference import LEVEL
from sklearn_gn.segmented.noise import find_robustly, noise_of, with_own_precisions
from sklearn_gn.segmented.preparation import problem_of, warn_of_room
from sklearn_gn.segmented.problem import (
    EXACT,
    HALF,
    Form,
    Problem,
    count_positions,
    criterion_value,
    deviance_shift,
    sum_of_squares,
    take,
)
from sklearn_gn.segmented.search import (
    PATIENCE,
    descend,
    insert,
    refine,
    residuals_in_order,
    search,
    separable,
    through_rows,
)

CRITERIA = ("bic", "aic", "gcv")
_COEFFICIENTS = np.tanh(np.linspace(0, 3.5, 29))  # of an autoregression


def n_parameters(problem, n_breakpoints):
    """Return the numbers of parameters with so many breakpoints besides known ones."""
    form, n_linear, m = problem.form, problem.n_linear, problem.table.square.shape[1]
    known = problem.known.shape[1] * (form.ramp + form.step)
    has_slope = form.slope | (known > 0) | (form.ramp & (np.asarray(n_breakpoints) > 0))
    base = 1 + form.slope + n_linear + known - (form.flat_end & has_slope)
    return m * base + n_breakpoints * (1 + m * (form.ramp + form.step))


def search_penalty(criterion, problem, positions, n_rows, most):
    """Return what 0 to ``most`` breakpoints cost beyond "bic", by series, (B, k).

    Other criteria have no such cost. The breakpoints were searched among so many
    independent ``positions`` (B,). A breakpoint may have several directions, whose
    share of the square is a beta variable.
    """
    form = problem.form
    numbers, is_both = n_parameters(problem, np.arange(most)), form.ramp * form.step
    directions = problem.table.square.shape[1] * (form.ramp + form.step)
    shown = max(directions, 2)  # the least number that the bound of a curve is that of
    left = np.maximum(n_rows - numbers - is_both, shown + 1) - shown
    rest = betaincinv(left / 2, shown / 2, (1 - LEVEL) / positions[:, None])
    charged = (1 + directions) * np.log(n_rows)
    excess = np.maximum(-n_rows * np.log(rest) - charged, 0) * (criterion == "bic")
    return np.cumsum(np.pad(excess, ((0, 0), (1, 0))), axis=1)


def path_columns(problem, found, n_rows, prepared, options):
    """Return the figures of all fits by name."""
    criterion = options.criterion
    numbers = np.arange(found.rss.shape[1])
    counts = n_parameters(problem, numbers)
    columns = {"n_breakpoints": numbers, "n_parameters": counts, "rss": found.rss}
    floor = EXACT * problem.table.total[:, None] + np.finfo(float).tiny
    rss = np.maximum(found.rss, floor)
    sizes = np.log([each.scaling.y_size for each in prepared])
    sizes = sizes.reshape(len(n_rows), -1).mean(axis=1)
    shift = deviance_shift(criterion, 2 * sizes, n_rows)
    of_rss = criterion_value(criterion, rss, counts, n_rows[:, None])
    columns[criterion] = shift[:, None] + of_rss
    return columns


# Whether the slope, and whether the value changes.
KINK, JUMP, BOTH = (True, False), (False, True), (True, True)
_FIRST = Form(True, *KINK), Form(True, *BOTH), Form(False, *JUMP)
_NONE = np.empty((1, 0))


def find_breakpoints(model, prepared, options, shared=False):
    """Return the answers of :func:`choose` by a model, the series, and the problem."""
    number = None if model.n_breakpoints == "auto" else model.n_breakpoints
    most = max([len(each.rows.x) for each in prepared])
    limits = number and min(number, most), min(model.max_breakpoints, most)
    find = partial(choose_kinds, options=options, limits=limits)
    if options.form.kinds is None:
        find = partial(choose, options=options, limits=limits, shared=shared)
    is_open = number is None and options.criterion == "bic" and not shared
    change = is_open and partial(_change_numbers_by_noise, find, options, limits[1])
    if model.loss == "huber":
        found, clipped = find_robustly(find, change, prepared, options)
        return found, clipped, problem_of(clipped, options)
    found, problem, fits = find(prepared)
    if change:
        change(prepared, found, problem, fits)
    return found, prepared, problem


def find_of_one(model, prepared, options):
    """Return options with the form, path, breakpoints, clipped series, and problem."""
    found, (clipped,), problem = find_breakpoints(model, [prepared], options)
    ((t, path, form),) = found
    warn_of_room(model, prepared, options, len(t))
    return options._replace(form=form), path, t, clipped, problem


def _change_numbers_by_noise(find, options, most, prepared, answers, _, found):
    """Change answers where the noise varies, and another number is better for that.

    The rows are searched again, weighted by the precisions of their own noise about the
    lines that were found, unless no number can change: of two fits with residuals e and
    f, precisions between 1 - s and 1 + s change the difference of the sums of squares
    by at most s |e - f| |e + f|. The lines are those for equal precisions.
    """
    weighted, varying = list(prepared), []
    for b, (own, (t, path, form)) in enumerate(zip(prepared, answers, strict=True)):
        new = with_own_precisions(own, options._replace(form=form), t)
        precision = np.log(new.rows.weight / own.rows.weight)
        at = np.searchsorted(path["n_breakpoints"], len(t))
        total, rss = path["bic"] + path["search_penalty"], path["rss"]
        least = np.minimum(rss, rss[at]) + np.finfo(float).tiny
        change = np.sqrt(np.abs(rss - rss[at])) * (np.sqrt(rss) + np.sqrt(rss[at]))
        change *= own.rows.weight.sum() * np.ptp(precision) / 2 / least
        if np.any(change > total - total[at]):
            weighted[b] = new
            varying.append(b)
    if varying:
        most = min(PATIENCE + max(len(answers[b][0]) for b in varying), most)
        again, *_ = find(weighted, start=found, limits=(None, most))
    for b in varying:
        own, (t, other, _) = weighted[b], again[b]
        if len(t) != len(answers[b][0]):
            (answers[b],), *_ = find([prepared[b]], limits=(len(t), 0))
        t, path, form = answers[b]
        # The deviance of the precisions is common to all numbers.
        shift = own.repeats @ np.log(own.repeats / own.rows.weight)
        numbers = path["n_breakpoints"], other["n_breakpoints"]
        _, here, there = np.intersect1d(*numbers, return_indices=True)
        path = {name: column[here] for name, column in path.items()}
        total = shift + (other["bic"] + other["search_penalty"])[there]
        path["search_penalty"] = total - path["bic"]
        answers[b] = t, path, form


def choose(prepared, options, limits, shared=False, start=None):
    """Return breakpoints, path and form of each of several series, problem and fits.

    The ``limits`` are the number of breakpoints, and the most that are tried where it
    is None: the criterion chooses then, and the breakpoints of the number that it
    chooses are refined, until it chooses a refined one.
    """
    (n_breakpoints, most), criterion = limits, options.criterion
    problem = problem_of(prepared, options)
    n_rows = np.array([each.rows.weight.sum() for each in prepared])
    if shared:
        problem, n_rows = problem.with_shared_breakpoints(), n_rows.sum(keepdims=True)
    is_open, value = n_breakpoints is None, None
    largest = most if is_open else n_breakpoints + PATIENCE if n_breakpoints else 0
    positions = count_positions(problem)
    extra = search_penalty(criterion, problem, positions, n_rows[:, None], largest)
    if is_open:

        def value(rss, k, series):
            number, n = n_parameters(problem, k), n_rows[series]
            return criterion_value(criterion, rss, number, n) + extra[series, k]

    # Where there are rows, and no sums alone, their noise may be correlated.
    allows = is_open and criterion == "bic" and bool(options.autocorrelation)
    are_rows = np.array([allows and not each.rows.rest > 0 for each in prepared])
    found = search(problem, largest, value, start)
    is_best = start is not None or (separable(problem) and not problem.n_linear)
    refined = np.full(found.rss.shape, is_best)
    refined[:, 0], residuals = True, [None] * (largest + 1)
    while True:
        columns = path_columns(problem, found, n_rows, prepared, options)
        columns["search_penalty"] = extra
        if are_rows.any():
            for k in np.flatnonzero([e is None for e in residuals]):
                knots = np.nan_to_num(found.knots[k])
                residuals[k] = residuals_in_order(problem, knots)[..., 0]
            given = residuals, columns, positions, n_rows, options.autocorrelation
            of_noise = _penalties_of_noise(problem, *given)
            columns["search_penalty"] = np.where(are_rows[:, None], of_noise, extra)
        near = np.isfinite(found.rss)
        if is_open:
            total = columns[criterion] + columns["search_penalty"]
            chosen = np.argmin(np.where(near, total, np.inf), axis=1)
        else:
            near[:, n_breakpoints + 1 :] = False
            chosen = near.shape[1] - 1 - np.argmax(near[:, ::-1], axis=1)
        near &= (np.arange(near.shape[1]) == chosen[:, None]) & ~refined
        if not near.any():
            break
        refined |= near
        for k in np.flatnonzero(near.any(axis=0)):
            series, residuals[k] = np.flatnonzero(near[:, k]), None
            found.knots[k][series], found.rss[series, k] = refine(
                problem.of(series), found.knots[k][series], found.rss[series, k]
            )
    answers = []
    for b, k in enumerate(chosen):
        kept, shape = np.flatnonzero(np.isfinite(found.rss[b])), found.rss.shape
        path = {n: np.broadcast_to(own, shape)[b, kept] for n, own in columns.items()}
        answers.append((found.knots[k][b], path, options.form))
        # Waves that need more breakpoints than were tried pass for correlated noise.
        if are_rows[b] and k < kept[-1] and np.argmin(path["bic"]) == len(kept) - 1:
            white = options._replace(autocorrelation=None)
            again = partial(choose, [prepared[b]], white)
            ((_, more, _),), *_ = again((None, 2 * kept[-1]))
            totals = [each["bic"] + each["search_penalty"] for each in (path, more)]
            if min(totals[1]) < min(totals[0]):
                (answers[-1],), _, better = again((None, kept[-1]))
                for knots, rss in zip(better.knots, better.rss.T, strict=True):
                    found.keep(np.array([b]), knots, rss)
    return answers, problem, found


def _penalties_of_noise(problem, residuals, columns, positions, n_rows, asked):
    """Return what is added to "bic" for noise that may be correlated, (B, k).

    The likelihood of residuals e as an autoregression of first order is averaged over
    its coefficient r: few breakpoints in correlated noise compete with many in
    independent noise. It is the restricted likelihood, so that a fit is not rewarded
    for the slow waves that it takes away: the variance has the degrees of freedom of
    the fit, and each of its p columns, smooth over n / p rows, the square under the
    autoregression, (1 - r + r p / n)^2 times that under independent noise.

    A number is refused where its own noise speaks against it: rows of correlated noise
    count less, and with so many the criterion would take fewer breakpoints.
    """
    n, penalty = problem.table.n_rows, columns["search_penalty"].copy()
    bic = np.where(np.isfinite(columns["rss"]), columns["bic"], np.inf)
    floor = EXACT * problem.table.total
    r = _COEFFICIENTS[:, None]
    for k, e in enumerate(residuals):
        p = columns["n_parameters"][k] - k * problem.form.step  # jumps stay
        ends = e[:, 0] ** 2 + take(e, n[:, None] - 1)[:, 0] ** 2
        square, together = np.sum(e**2, axis=1), np.sum(e[:, 1:] * e[:, :-1], axis=1)
        known = (columns["rss"][:, k] > floor) & (square > 0)
        left = 1 + r**2 - (2 * r * together + r**2 * ends) / np.where(known, square, 1)
        value = n * np.log(np.maximum(left, EXACT)) - np.log(1 - r**2)
        smooth = p - problem.n_linear
        value += 2 * smooth * np.log(1 - r + r * smooth / n)
        average = -2 * (logsumexp(-value / 2, axis=0) - np.log(len(r)))
        share = np.minimum(p / n_rows, 1 - EXACT)
        penalty[:, k] += np.where(known, average - n_rows * np.log1p(-share), 0)
    numbers = columns["n_parameters"]
    for b, n in enumerate(problem.table.n_rows):
        while True:
            k = int(np.argmin(bic[b] + penalty[b]))
            if not k or columns["rss"][b, k] <= floor[b]:
                break
            noise = noise_of(residuals[k][b, :n], asked, numbers[k])
            if noise.redundancy * (numbers[k] + 1) >= n:
                break  # of so few independent rows, none can tell
            n_independent = n_rows[b] / noise.redundancy
            value = (bic[b] - np.log(n_rows[b]) * numbers) / noise.redundancy
            value += np.log(n_independent) * numbers
            own = positions[[b]]
            if problem.form.ramp and problem.form.step:  # whose positions are the rows
                own = own / noise.redundancy
            given = own, n_independent, len(value) - 1
            extra = search_penalty("bic", problem, *given)
            if np.argmin(value + extra[0]) >= k:
                break
            penalty[b, k] = np.inf
    return penalty


# --- kinks and jumps in one series ----------------------------------------------------


class Mixture(NamedTuple):
    """What the criterion of one series is computed from."""

    problems: dict[tuple[bool, bool], Problem]  # by the kind of a new breakpoint
    criterion: str
    n_rows: float  # that are independent
    excess: dict  # by kind, what each breakpoint costs beyond the parameters


class State(NamedTuple):
    """A fit with breakpoints of several kinds."""

    value: float  # of the criterion
    t: np.ndarray  # (k,) ascending
    form: Form  # with their kinds
    rss: float


def choose_kinds(prepared, options, limits, start=(None,) * 3):
    """Return breakpoints, path and form of each of several series, problem and fits."""
    (n_breakpoints, most), criterion = limits, options.criterion
    searched = [
        choose(prepared, options._replace(form=form), limits, start=own)
        for form, own in zip(_FIRST, start, strict=True)
    ]

    def total(found):
        t, path, *_ = found
        at = np.searchsorted(path["n_breakpoints"], len(t))
        return path[criterion][at] + path["search_penalty"][at]

    answers, room = [], most if n_breakpoints is None else 0
    largest = max(most, n_breakpoints or 0)
    for b, own in enumerate(prepared):
        found = [(*each[b], problem.of([b])) for each, problem, _ in searched]
        n_rows = float(own.rows.weight.sum())
        if options.autocorrelation and criterion == "bic" and not own.rows.rest > 0:
            t, _, _, problem = min(found, key=total)
            residual = residuals_in_order(problem, t[None])[0, :, 0]
            number = n_parameters(problem, len(t))
            n_rows /= noise_of(residual, options.autocorrelation, number).redundancy
        # By the kind of a new breakpoint, with its cost beyond the parameters.
        problems, excess = {}, {}
        for kind, (*_, one) in zip((KINK, BOTH, JUMP), found, strict=True):
            one = problems[kind] = one._replace(form=one.form._replace(slope=True))
            given = one, count_positions(one), n_rows, 2 * largest + 1
            excess[kind] = np.diff(search_penalty(criterion, *given)[0])
        mixture, best = Mixture(problems, criterion, n_rows, excess), None
        for t, path, form, _ in found:
            start = _state(mixture, t, ((form.ramp, form.step),) * len(t), form.slope)
            state = _improved(mixture, start, room)
            # Of a number that is given, there may be room for fewer.
            rank = (n_breakpoints or len(t)) - len(t), state.value
            if best is None or rank < best[0]:
                best = rank, (state.t, path, state.form)
        answers.append(best[1])
    return answers, searched[1][1], [found for *_, found in searched]


def _state(mixture, t, kinds, slope):
    """Return the fit with breakpoints (k,), in any order."""
    order, n = np.argsort(t, kind="stable"), mixture.n_rows
    kinds = tuple(kinds[j] for j in order)
    form = Form(slope, *BOTH, kinds=kinds)
    problem = mixture.problems[KINK]._replace(form=form, known=t[order][None])
    rss = float(sum_of_squares(problem, _NONE)[0])
    number = 1 + slope + problem.n_linear + len(t) + int(np.sum(kinds))
    least = EXACT * problem.table.total[0] + np.finfo(float).tiny
    value = criterion_value(mixture.criterion, max(rss, least), number, n)
    value += sum(mixture.excess[kind][j] for j, kind in enumerate(kinds))
    return State(float(value), t[order], form, rss)


def _best_with(mixture, t, kinds, is_open):
    """Return the best fit with one more breakpoint, or without where that is open."""
    slopes = (True, False)[: 2 - any(ramp for ramp, _ in kinds)]
    found = [_state(mixture, t, kinds, slope) for slope in slopes if is_open]
    for kind, problem in mixture.problems.items():
        for slope in slopes[: 2 - kind[0]]:
            form = Form(slope, *kind, kinds=kinds)
            at, rss = insert(problem._replace(form=form, known=t[None]), _NONE)
            if np.isfinite(rss[0]):
                at = np.append(t, at)
                found.append(_state(mixture, at, (*kinds, kind), slope))
    return min(found, key=lambda each: each.value, default=None)


def _improved(mixture, state, room):
    """Return the fit when no breakpoint that is put back, left out or new helps."""

    def better(new):
        return state if new is None or not new.value < state.value else new

    while True:
        before = state.value
        for at in state.t:
            others = state.t != at
            if not others.all():  # it has not moved
                kinds = tuple(compress(state.form.kinds, others))
                state = better(_best_with(mixture, state.t[others], kinds, room > 0))
        if len(state.t) < room:
            state = better(_best_with(mixture, state.t, state.form.kinds, False))
        # The kinks move together.
        kinds, slope = state.form.kinds, state.form.slope
        is_kink = np.array([kind == KINK for kind in kinds], bool)
        others, known = tuple(compress(kinds, ~is_kink)), state.t[None, ~is_kink]
        form = Form(slope, *KINK, kinds=others)
        problem = mixture.problems[KINK]._replace(form=form, known=known)
        start = state.t[None, is_kink], np.array([state.rss])
        (moved,), _ = through_rows(problem, *descend(problem, *start))
        kinds, t = (KINK,) * len(moved) + others, np.append(moved, known)
        state = better(_state(mixture, t, kinds, slope))
        if not state.value < before - HALF * mixture.n_rows:
            return state
