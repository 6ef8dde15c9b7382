"""Breakpoints that are kinks, jumps or both, as the criterion prefers.

It begins with the breakpoints that are found where all are kinks, where every segment
has a line of its own, and where all are jumps between constants. From each, every
breakpoint in turn is taken out, and comes back where and as what it lowers the
criterion most, or not at all; then one more is tried, and the kinks move together,
until nothing helps. Beyond "bic" a kind costs what it costs where all are of that kind.
A line without kinks loses its slope where the criterion prefers that. Rows of
correlated noise count as they do in the best fit that it begins with.
"""

from functools import partial
from itertools import compress
from typing import NamedTuple

import numpy as np

from sklearn_gn.segmented import robust
from sklearn_gn.segmented.autocorrelation import noise_of
from sklearn_gn.segmented.preparation import problem_of
from sklearn_gn.segmented.problem import (
    EXACT,
    HALF,
    Form,
    Problem,
    criterion_value,
    sum_of_squares,
)
from sklearn_gn.segmented.search import (
    descend,
    insert,
    residuals_in_order,
    through_rows,
)
from sklearn_gn.segmented.selection import (
    choose,
    count_positions,
    n_parameters,
    search_penalty,
)

# Whether the slope, and whether the value changes.
KINK, JUMP, BOTH = (True, False), (False, True), (True, True)
_FIRST = Form(True, *KINK), Form(True, *BOTH), Form(False, *JUMP)
_NONE = np.empty((1, 0))


def find_breakpoints(model, prepared, options, folds=None, shared=False):
    """Return the answers of :func:`choose` by the parameters of a model, and more.

    These are the series that were searched, whose residuals Huber's loss clips, and the
    problem.
    """
    number = None if model.n_breakpoints == "auto" else model.n_breakpoints
    most = max([len(each.rows.x) for each in prepared])
    own = {"folds": folds, "shared": shared}
    search = partial(
        choose if options.form.kinds is None else choose_kinds,
        options=options,
        n_breakpoints=number and min(number, most),
        most=min(model.max_breakpoints, most),
        criterion=options.criterion,
        **(own if options.form.kinds is None else {}),
    )
    if model.loss == "huber":
        found, clipped = robust.find_robustly(search, prepared, options)
        return found, clipped, problem_of(clipped, options)
    found, problem = search(prepared)
    return found, prepared, problem


class Mixture(NamedTuple):
    """What the criterion of one series is computed from."""

    problems: dict[tuple[bool, bool], Problem]  # by the kind of a new breakpoint
    criterion: str
    n_rows: float  # that are independent
    excess: dict  # by kind, what each breakpoint costs beyond the parameters


class State(NamedTuple):
    """A fit with breakpoints, and where its search began."""

    value: float  # of the criterion
    t: np.ndarray  # (k,) ascending
    form: Form  # with their kinds
    rss: float


def choose_kinds(prepared, options, *, n_breakpoints, most, criterion):
    """Return breakpoints, path and form of each of several series, and the problem."""
    words = {"n_breakpoints": n_breakpoints, "most": most, "criterion": criterion}
    searched = [
        choose(prepared, options._replace(form=form), **words) for form in _FIRST
    ]

    def total(found):
        t, path, *_ = found
        at = np.searchsorted(path["n_breakpoints"], len(t))
        return path[criterion][at] + path.get("search_penalty", 0 * path["rss"])[at]

    answers, room = [], most if n_breakpoints is None else 0
    for b, own in enumerate(prepared):
        found = [(*each[b], problem.of([b])) for each, problem in searched]
        n_rows = float(own.rows.weight.sum())
        if options.autocorrelation and criterion == "bic" and not own.rows.rest > 0:
            t, _, _, problem = min(found, key=total)
            residual = residuals_in_order(problem, t[None])[0, :, 0]
            number = n_parameters(problem, len(t))
            n_rows /= noise_of(residual, options.autocorrelation, number).redundancy
        mixture = _mixture([problem for *_, problem in found], criterion, n_rows, most)
        best = None
        for t, path, form, _ in found:
            start = _state(mixture, t, ((form.ramp, form.step),) * len(t), form.slope)
            state = _improved(mixture, start, room)
            # Of a number that is given, there may be room for fewer.
            rank = (n_breakpoints or len(t)) - len(t), state.value
            if best is None or rank < best[0]:
                best = rank, (state.t, path, state.form)
        answers.append(best[1])
    return answers, searched[1][1]


def _mixture(problems, criterion, n_rows, most):
    """Return the criterion of one series, whose problems are those of the starts."""
    form = problems[2].form._replace(slope=True)
    problems = dict(zip((KINK, BOTH, JUMP), problems, strict=True))
    problems[JUMP], excess = problems[JUMP]._replace(form=form), {}
    for kind, problem in problems.items():
        positions = count_positions(problem)
        each = np.diff(search_penalty(problem, positions, n_rows, 2 * most + 1)[0])
        excess[kind] = each * (criterion == "bic")
    return Mixture(problems, criterion, n_rows, excess)


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
    value = n * np.log(value) if mixture.criterion == "gcv" else value
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
                more = np.append(t, at), (*kinds, kind)
                found.append(_state(mixture, *more, slope))
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
        state = better(_kinks_moved(mixture, state))
        if not state.value < before - HALF * mixture.n_rows:
            return state


def _kinks_moved(mixture, state):
    """Return the fit with all kinks moved together."""
    kinds, slope = state.form.kinds, state.form.slope
    is_kink = np.array([kind == KINK for kind in kinds], bool)
    others, known = tuple(compress(kinds, ~is_kink)), state.t[None, ~is_kink]
    form = Form(slope, *KINK, kinds=others)
    problem = mixture.problems[KINK]._replace(form=form, known=known)
    start = state.t[None, is_kink], np.array([state.rss])
    (moved,), _ = through_rows(problem, *descend(problem, *start))
    kinds = (KINK,) * len(moved) + others
    return _state(mixture, np.append(moved, known), kinds, slope)
