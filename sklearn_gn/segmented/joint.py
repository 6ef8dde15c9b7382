r"""Lines in several features, of counts, and under conditions: the joint problem.

With breakpoints t and coefficients c of the columns D(t), the deviance of
:math:`\eta = D(t) c + \text{offset}` is minimised over both, under linear conditions on
c (:mod:`sklearn_gn.segmented.conditions`). A step fits the working targets of the
family (:mod:`sklearn_gn.segmented.families`) by D and by the derivatives of
:math:`\eta` by the kinks, a step function at each, all features together; of several
lengths of the way the best is taken.

Starts come from the engine of one feature: it searches the breakpoints of one feature
while the lines of the others enter linearly, by turns, on the working targets at the
fit so far.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.linalg import factors
from sklearn_gn.segmented import least_squares
from sklearn_gn.segmented.conditions import (
    Condition,
    contradiction,
    least_squares_under,
    null_space,
)
from sklearn_gn.segmented.criteria import search_penalty
from sklearn_gn.segmented.families import Family
from sklearn_gn.segmented.least_squares import Rows
from sklearn_gn.segmented.preparation import Options, Prepared, prepare, problem_of
from sklearn_gn.segmented.problem import (
    DEPENDENT,
    HALF,
    Form,
    Scaling,
    count_positions,
)
from sklearn_gn.segmented.programme import kinks_at_rows
from sklearn_gn.segmented.search import EXACT, PATIENCE, search
from sklearn_gn.segmented.selection import choose

_LENGTHS = np.ldexp(1.0, -np.arange(5))  # of the steps that are tried
_MOST_TURNS = 10  # of the features, and of the searches of a family
_STARTS = 3  # best of them from which steps are taken


class Joint(NamedTuple):
    """The problem, in the units of the search; rows in the order of the first x."""

    form: Form
    x: list  # (n,) of each broken feature, in [-1, 1]
    linear: np.ndarray  # (n, m)
    y: np.ndarray
    offset: np.ndarray
    weight: np.ndarray  # repeats times precisions
    repeats: np.ndarray
    family: Family
    slopes: list  # of the first feature, (name, segments, kind, value)
    points: list  # (x, y, name) through which its line goes
    options: Options  # of the engine; known breakpoints are those of the first feature

    @property
    def has_conditions(self):
        """Whether least squares alone does not tell the coefficients."""
        return bool(self.slopes or self.points or self.form.sign)


class State(NamedTuple):
    """A fit with breakpoints."""

    t: list  # (k,) of each feature
    coef: np.ndarray
    eta: np.ndarray  # without the offset
    deviance: float


# --- columns and conditions ----------------------------------------------------------


def block(form, x, t):
    """Return the columns of one feature without the constant."""
    return least_squares.design(form, x, np.empty((len(x), 0)), t)[:, 1:]


def design(joint, t):
    """Return the columns: 1, each broken feature's columns, and the linear features."""
    own = [block(joint.form, x, at) for x, at in zip(joint.x, t, strict=True)]
    return np.hstack([np.ones((len(joint.y), 1)), *own, joint.linear])


class Layout(NamedTuple):
    """Where the parameters of one broken feature are."""

    columns: np.ndarray  # of the design
    ramps: np.ndarray  # the changes of slope among them
    free: np.ndarray  # (k,) breakpoints that are not known
    kinks: np.ndarray  # (k,) those that are parameters of the linear model


def layouts(joint, t):
    """Return the :class:`Layout` of each broken feature."""
    form, first, found = joint.form, 1, []
    for own in t:
        each = form.slope + len(own) * (form.ramp + form.step)
        columns = np.arange(first, first + each)
        ramps = columns[form.slope :][: len(own) if form.ramp else 0]
        free = ~np.isin(own, joint.options.known)
        found.append(Layout(columns, ramps, free, free & (not form.step)))
        first += each
    return found


def tangents(joint, t, coef):
    """Return the derivatives by the kinks that move of each feature, (n, k) of each."""
    found = []
    for x, knots, own in zip(joint.x, t, layouts(joint, t), strict=True):
        changes = coef[own.columns[joint.form.slope :]][: joint.form.ramp * len(knots)]
        at = np.flatnonzero(own.kinks)
        found.append(least_squares.tangents(x, knots, changes, at))
    return found


def conditions(joint, t, n_columns, coef=None):
    """Return the conditions on the coefficients and, with ``coef``, on the kinks."""
    form, found = joint.form, []
    name = f"flat={'last' if form.slope else 'both'!r}"
    where = layouts(joint, t)
    for own in where:
        if form.flat_end:
            row = np.zeros(n_columns)
            row[own.columns[: form.slope]] = row[own.ramps] = 1
            found.append(Condition(name, row, 0.0, True))
        for k in own.ramps if form.sign else ():
            row = np.zeros(n_columns)
            row[k] = form.sign
            found.append(Condition("shape", row, 0.0, False))
    if not (joint.slopes or joint.points):
        return [c for c in found if c.row.any() or c.value]
    first = where[0]

    def slope(j):
        row = np.zeros(n_columns)
        row[first.columns[: form.slope]] = row[first.ramps[:j]] = 1
        return row

    for name, segments, kind, value in joint.slopes:
        if segments[-1] > len(t[0]):
            continue
        row = slope(segments[0])
        if kind == "equal":
            found.append(Condition(name, row - slope(segments[1]), 0.0, True))
        elif kind == "given":
            found.append(Condition(name, row, value, True))
        else:
            found.append(Condition(name, kind * row, kind * value, False))
    for x, y, name in joint.points:
        row, at = np.zeros(n_columns), np.array([x])
        row[0], row[first.columns] = 1, block(form, at, t[0])[0]
        if coef is not None:
            change = coef[first.ramps[first.kinks]]
            row[n_columns - len(change) :] = -change * (x >= t[0][first.kinks])
        found.append(Condition(name, row, y, True))
    return [c for c in found if c.row.any() or c.value]


# --- fits ----------------------------------------------------------------------------


def working(joint, eta):
    """Return the working targets and weights at linear predictors."""
    mean = joint.family.mean(eta + joint.offset)
    variance = joint.family.variance(mean)
    return eta + (joint.y - mean) / variance, joint.weight * variance


def deviance(joint, eta):
    """Return the deviance of linear predictors."""
    mean = joint.family.mean(eta + joint.offset)
    return joint.family.deviance(joint.y, mean, joint.weight)


def _solve(columns, z, w, limits):
    """Return the least-squares fit of working targets under conditions, or None."""
    root = np.sqrt(w)[:, None]
    triangle = factors.upper_factor(root * np.column_stack([columns, z]))
    p = columns.shape[1]
    return least_squares_under(triangle[:p, :p], triangle[:p, p], limits)


def fit_at(joint, t, z, w):
    """Return the state of one weighted least-squares fit with breakpoints, or None."""
    columns = design(joint, t)
    found = _solve(columns, z, w, conditions(joint, t, columns.shape[1]))
    if found is None:
        return None
    eta = columns @ found
    return State(t, found, eta, deviance(joint, eta))


def is_allowed(joint, t):
    """Return whether every segment has enough rows, and room."""
    _, known, (low, high), distance, least, *_ = joint.options
    for x, own in zip(joint.x, t, strict=True):
        gaps = np.diff([-1.0, *own, 1.0])
        if np.any(gaps <= 0) or np.any(gaps < distance):
            return False
        inside = (own >= low) & (own <= high) | np.isin(own, known)
        at = np.searchsorted(own, x, side="right")
        rows = np.bincount(at, joint.repeats, minlength=len(own) + 1)
        rows[:-1] += (x == own[:, None]) @ joint.repeats  # which belong to both sides
        if len(own) > len(known) and (rows.min() < least or not inside.all()):
            return False
    return True


def descend(joint, state):
    """Take joint Gauss-Newton steps until the deviance no longer falls."""
    where = layouts(joint, state.t)
    own = [each.kinks for each in where]
    while True:
        z, w = working(joint, state.eta)
        columns = design(joint, state.t)
        both = np.hstack([columns, *tangents(joint, state.t, state.coef)])
        limits = conditions(joint, state.t, both.shape[1], state.coef)
        found, n = _solve(both, z, w, limits), columns.shape[1]
        if found is None:
            return state
        before, ways = state.deviance, np.zeros((1, len(found) - n))
        if ways.shape[1]:
            step = found[n:]
            ramps = np.concatenate([each.ramps[each.kinks] for each in where])
            size = np.where(found[ramps] != 0, found[ramps], np.inf)
            muggeo = step * state.coef[ramps] / size
            ahead = np.outer(_LENGTHS, np.stack([step, muggeo])).reshape(-1, len(step))
            ways = np.concatenate([ways, ahead])
        state = _best_at(joint, state, own, ways, z, w)
        if state.deviance == before and joint.family.has_known_variance:
            state = _part_of_the_way(joint, state, z, w)
        if not state.deviance < before * (1 - EXACT):
            rows = _to_rows(joint, state.t, own)
            state = _best_at(joint, state, own, rows, *working(joint, state.eta))
        if not state.deviance < before * (1 - EXACT):
            return state


def _best_at(joint, best, own, ways, z, w):
    """Return the best state with the kinks moved one of some ways."""
    sizes, start = np.cumsum([each.sum() for each in own])[:-1], best.t
    for way in ways:
        t = [each.copy() for each in start]
        for each, some, part in zip(t, own, np.split(way, sizes), strict=False):
            each[some] += part
        new = fit_at(joint, t, z, w) if is_allowed(joint, t) else None
        if new is not None and new.deviance < best.deviance:
            best = new
    return best


def _to_rows(joint, t, own):
    """Return the ways of one kink to each of the rows beside it."""
    each = zip(joint.x, t, own, strict=True)
    kinks = [(np.unique(x), at) for x, knots, some in each for at in knots[some]]
    ways = []
    for (x, at), unit in zip(kinks, np.eye(len(kinks)), strict=True):
        k = np.searchsorted(x, at)
        ways += [(row - at) * unit for row in x[max(k - 1, 0) : k + 2]]
    return ways


def _part_of_the_way(joint, state, z, w):
    """Return a state between this and the least-squares fit, if it is better."""
    aim = fit_at(joint, state.t, z, w)
    for length in _LENGTHS[1:] if aim is not None else ():
        eta = state.eta + length * (aim.eta - state.eta)
        value = deviance(joint, eta)
        if value < state.deviance:
            coef = state.coef + length * (aim.coef - state.coef)
            return aim._replace(coef=coef, eta=eta, deviance=value)
    return state


# --- search --------------------------------------------------------------------------


def prepared_for(joint, f, t, z, w, extra=None):
    """Return the rows for the engine, feature f broken and the others linear."""
    others = [
        block(joint.form, x, own)
        for g, (x, own) in enumerate(zip(joint.x, t, strict=True))
        if g != f
    ]
    linear = np.hstack([np.empty((len(z), 0)), *others, joint.linear, *(extra or ())])
    if extra is None:
        weight = w * (joint.repeats.sum() / w.sum())
        return prepare(joint.x[f], z, linear, weight, joint.repeats)
    order = np.argsort(joint.x[f], kind="stable")
    m = linear.shape[1]
    one, none = np.float64(1), np.float64(0)
    scaling = Scaling(none, one, none, one, np.zeros(m), np.ones(m))
    rows = Rows(joint.x[f][order], z[order], linear[order], w[order])
    return Prepared(rows, scaling, joint.repeats[order])


def _with_known(joint, f, knots):
    """Return the breakpoints of a feature that are found, and the known ones."""
    known = joint.options.known if f == 0 else joint.options.known[:0]
    return np.sort(np.concatenate([knots, known]))


def without_breakpoints(joint):
    """Return the fit of a straight line, or None if conditions allow none."""
    eta = joint.family.start(joint.y, joint.weight)
    z, w = working(joint, eta - joint.offset)
    t = [_with_known(joint, f, np.empty(0)) for f in range(len(joint.x))]
    state = fit_at(joint, t, z, w)
    return None if state is None else descend(joint, state)


def _least_squares(joint, state, f, number, most, criterion):
    """Return the fit with the engine's breakpoints of one feature, and its path."""
    prepared = prepared_for(joint, f, state.t, joint.y, joint.weight)
    options = joint.options._replace(criterion=criterion)
    ((knots, path, _),), *_ = choose([prepared], options, (number, most))
    t = [*state.t[:f], _with_known(joint, f, knots), *state.t[f + 1 :]]
    found = fit_at(joint, t, *working(joint, state.eta))
    return found if is_allowed(joint, t) else None, path


# --- the number ----------------------------------------------------------------------


def find(joint, numbers, most, criterion):
    """Return the best fit, and by feature the path over the numbers of breakpoints."""
    state, paths = without_breakpoints(joint), [None] * len(joint.x)
    if state is None:  # the search may start where no condition holds
        form = joint.form._replace(flat_end=False, sign=0)
        state = without_breakpoints(joint._replace(slopes=[], points=[], form=form))
    is_plain = not (joint.family.has_known_variance or joint.has_conditions)
    fit_one = _least_squares if is_plain else _choose
    for _ in range(_MOST_TURNS):
        before = state
        for f, number in enumerate(numbers):
            state, paths[f] = fit_one(joint, state, f, number, most, criterion)
            if state is None:
                _refuse(joint, numbers)
        same = [*map(len, state.t)] == [*map(len, before.t)]
        if len(joint.x) == 1 or (same and not _is_better(state, before)):
            break
    return descend(joint, state) if is_plain else state, paths


def _is_better(state, other):
    return other is None or state.deviance < other.deviance * (1 - DEPENDENT)


def _choose(joint, state, f, number, most, criterion):
    """Return the best fit over the numbers of one feature's breakpoints, and a path."""
    n_rows, is_aic = float(joint.repeats.sum()), criterion == "aic"
    charge = 2.0 if is_aic else float(np.log(n_rows))
    most = most if number is None else number + PATIENCE
    best, at, chosen = {}, state, None
    for _ in range(_MOST_TURNS):
        z, w = working(joint, at.eta)
        prepared = prepared_for(joint, f, at.t, z, w)
        problem = problem_of([prepared], joint.options)
        positions = count_positions(problem)
        extra = search_penalty(problem, positions, n_rows, most)[0]
        extra = 0 * extra if is_aic else extra
        knots, since, before = search(problem, most).knots, 0, chosen
        values, total = {}, {}
        numbers = range(most + 1) if number is None else [number]
        for k in numbers:
            own = knots[k][np.isfinite(knots[k]).all(axis=1)]
            if k and joint.has_conditions:
                own = np.concatenate(
                    [own, kinks_at_rows(problem, np.linspace(-1, 1, k + 2)[None, 1:-1])]
                )
            starts = []
            for each in own:
                t = [*at.t[:f], _with_known(joint, f, each), *at.t[f + 1 :]]
                starts.append(fit_at(joint, t, z, w) if is_allowed(joint, t) else None)
            starts = [each for each in starts if each is not None]
            starts.sort(key=lambda each: each.deviance)
            for each in starts[:_STARTS]:
                new = descend(joint, each)
                if _is_better(new, best.get(k)):
                    best[k] = new
            if k not in best:
                continue
            n_parameters = count_parameters(joint, best[k])
            value = best[k].deviance  # minus twice the log likelihood
            if not joint.family.has_known_variance:
                value = n_rows * np.log(max(value, EXACT * joint.weight.sum()))
            value += charge * n_parameters
            values[k] = n_parameters, best[k].deviance, value, extra[k]
            total[k] = value + extra[k]
            since = 0 if k == min(total, key=total.get) else since + 1
            if since > PATIENCE:
                break
        if not values:
            _refuse(joint, [number if g == f else 0 for g in range(len(joint.x))])
        chosen = best[min(total, key=total.get)]
        if not joint.family.has_known_variance or not _is_better(chosen, before):
            break
        at = chosen
    names = "n_parameters", "deviance", criterion, "search_penalty"
    columns = map(np.array, zip(*values.values(), strict=True))
    path = {"n_breakpoints": np.array([*values])}
    return chosen, path | dict(zip(names, columns, strict=True))


def count_parameters(joint, state):
    """Return the number of parameters, breakpoints included.

    Bounds that the fit reaches take none away: where it reaches them is chosen, too.
    """
    columns = np.hstack([design(joint, state.t), *tangents(joint, state.t, state.coef)])
    space = free_space(joint, state, columns.shape[1], with_bounds=False)
    _, w = working(joint, state.eta)
    size = factors.singular_values(
        factors.upper_factor(np.sqrt(w)[:, None] * (columns @ space))
    )
    jumps = sum(np.sum(own.free > own.kinks) for own in layouts(joint, state.t))
    return int(np.sum(size > 1e-10 * size.max(initial=0))) + jumps


def free_space(joint, state, n_columns, with_bounds=True):
    """Return a basis of the parameters that the active conditions leave free."""
    limits = conditions(joint, state.t, n_columns, state.coef)
    z = np.zeros(n_columns)
    z[: len(state.coef)] = state.coef
    rows = [
        c.row
        for c in limits
        if c.is_equal or (with_bounds and c.row @ z - c.value < HALF)
    ]
    return null_space(np.array(rows)) if rows else np.eye(n_columns)


def _refuse(joint, numbers):
    """Raise a ValueError that names the conditions which exclude each other."""
    even = [np.linspace(-1, 1, (number or 0) + 2)[1:-1] for number in numbers]
    t = [_with_known(joint, f, knots) for f, knots in enumerate(even)]
    limits = conditions(joint, t, design(joint, t).shape[1])
    names = contradiction(limits) if limits else []
    if not names:
        raise ValueError(
            "The data have no room for the breakpoints: lower n_breakpoints."
        )
    if len(names) == 1 and not joint.form.slope:
        names.append("flat='both'" if joint.form.flat_end else "flat='first'")
    several = len(names) > 1
    raise ValueError(
        f"No broken line satisfies {' and '.join(names)}"
        + (": these conditions contradict each other." if several else ".")
    )
