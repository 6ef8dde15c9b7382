r"""Lines in several features, of counts, and under conditions: the joint problem.

With breakpoints t and coefficients c of the columns D(t), the deviance of
:math:`\eta = D(t) c + \text{offset}` is minimised over both, under linear conditions on
c. The mean of y is :math:`\mu = \eta` ("gaussian"), :math:`e^\eta` ("poisson") or
:math:`1 / (1 + e^{-\eta})` ("binomial"). With these canonical links the Gauss-Newton
matrix of half the deviance weighs rows by the variance of y, and a step is a
least-squares fit to :math:`\eta + (y - \mu) / V(\mu)` (McCullagh and Nelder,
"Generalized linear models", 1989) by D and by the derivatives of :math:`\eta` by the
kinks, a step function at each, all features together; of several lengths of the way the
best is taken.

Starts come from the engine of one feature: it searches the breakpoints of one feature
while the lines of the others enter linearly, by turns, on the working targets at the
fit so far.

Slopes may be given, equal to each other, or bounded, and the line may go through given
points. For given breakpoints all are linear in the coefficients. The least-squares fit
under :math:`E z = e` and :math:`C z \ge d` is that in the null space of E, where the
inequalities are a problem of least distance, which non-negative least squares solves
(Lawson and Hanson, "Solving least squares problems", 1974, chapter 23).
"""

from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
from scipy.optimize import lsq_linear
from scipy.special import expit, gammaln, logit, xlog1py, xlogy

from sklearn_gn.data.rows import check_sample_weight
from sklearn_gn.linalg import factors
from sklearn_gn.segmented import least_squares
from sklearn_gn.segmented.least_squares import Rows
from sklearn_gn.segmented.preparation import Options, Prepared, problem_of
from sklearn_gn.segmented.problem import (
    DEPENDENT,
    HALF,
    Scaling,
    count_positions,
    feasible,
)
from sklearn_gn.segmented.programme import kinks_at_rows
from sklearn_gn.segmented.search import EXACT, PATIENCE, search
from sklearn_gn.segmented.selection import choose, search_penalty

FAMILIES = ("gaussian", "poisson", "binomial")


class Family(NamedTuple):
    """A distribution of the targets."""

    name: str

    @property
    def has_known_variance(self):
        """Whether the mean determines the variance."""
        return self.name != "gaussian"

    def mean(self, eta):
        """Return the means."""
        if self.name == "gaussian":
            return eta
        largest = np.log(EXACT * np.finfo(float).max)  # whose sums are numbers, too
        eta = np.clip(eta, -largest, largest)
        return np.exp(eta) if self.name == "poisson" else expit(eta)

    def variance(self, mean):
        """Return the variances, which are also the derivatives of the means."""
        if self.name == "gaussian":
            return np.ones_like(mean)
        variance = mean if self.name == "poisson" else mean * (1 - mean)
        return np.maximum(variance, EXACT)

    def start(self, y, weight):
        """Return linear predictors near the targets, from which iterations start."""
        if self.name == "gaussian":
            return y
        if self.name == "poisson":
            return np.log(y + 0.1)
        return logit((weight * y + 0.5) / (weight + 1))

    def deviance(self, y, mean, weight):
        """Return the deviance of means, of "gaussian" the sum of squares."""
        if self.name == "gaussian":
            return float(weight @ (y - mean) ** 2)
        if self.name == "poisson":
            each = xlogy(y, y) - xlogy(y, mean) - (y - mean)
        else:
            each = xlogy(y, y) + xlog1py(1 - y, -y)
            each -= xlogy(y, mean) + xlog1py(1 - y, -mean)
        return 2 * float(weight @ each)

    def explained(self, y, mean, weight):
        """Return the share of the deviance about the mean of y that means explain."""
        y = np.asarray(y, dtype=np.float64)
        weight = check_sample_weight(weight, y)
        null = self.deviance(y, np.full_like(y, np.average(y, weights=weight)), weight)
        return 1 - self.deviance(y, mean, weight) / null

    def saturated(self, y, weight):
        """Return the log likelihood of means that equal the counts."""
        if self.name == "poisson":
            return float(weight @ (xlogy(y, y) - y - gammaln(y + 1)))
        ways = gammaln(weight + 1) - gammaln(weight * y + 1)
        ways -= gammaln(weight * (1 - y) + 1)
        return float(np.sum(ways) + weight @ (xlogy(y, y) + xlog1py(1 - y, -y)))

    def check(self, y):
        """Raise a ValueError for targets that the family does not have."""
        if self.name == "poisson" and y.min() < 0:
            raise ValueError(
                'family="poisson" is for counts: y must not be negative, but its '
                f"smallest value is {y.min():.6g}."
            )
        if self.name == "poisson" and not y.max() > 0:
            raise ValueError('family="poisson": all counts in y are zero.')
        if self.name == "binomial" and (y.min() < 0 or y.max() > 1):
            raise ValueError(
                'family="binomial" is for shares between 0 and 1, with the numbers of '
                f"trials as sample_weight: y ranges from {y.min():.6g} to "
                f"{y.max():.6g}."
            )
        if self.name == "binomial" and (not y.max() > 0 or not y.min() < 1):
            raise ValueError('family="binomial": all shares in y are equal.')


def check_offset(offset, X):
    """Return the offsets of the rows, zero where there are none."""
    if offset is None:
        return np.zeros(len(X))
    offset = np.asarray(offset, dtype=np.float64)
    if offset.shape != (len(X),) or not np.isfinite(offset).all():
        raise ValueError(
            f"offset must be {len(X)} finite numbers, one for each row, got an array "
            f"of shape {offset.shape}."
        )
    return offset


# --- conditions -----------------------------------------------------------------------


class Condition(NamedTuple):
    """One linear condition on the coefficients: ``row z = value``, or at least that."""

    name: str  # in the words of the user
    row: np.ndarray
    value: float
    is_equal: bool


def least_squares_under(matrix, target, conditions):
    """Return the z that minimises ``|matrix z - target|``, or None if there is none."""
    equal = [c for c in conditions if c.is_equal]
    at_least = [c for c in conditions if not c.is_equal]
    base, space = np.zeros(matrix.shape[1]), np.eye(matrix.shape[1])
    if equal:
        rows, values = np.array([c.row for c in equal]), [c.value for c in equal]
        base = factors.least_norm_solution(rows, np.array(values))
        if np.abs(rows @ base - values).max() > HALF * (1 + np.abs(base).max()):
            return None
        space = null_space(rows)
    left, size, right = factors.singular_triplets(matrix @ space)
    kept = size > DEPENDENT * size.max(initial=0)
    back = space @ (right[kept].T / size[kept])
    z = base + back @ (left[:, kept].T @ (target - matrix @ base))
    if not at_least:
        return z
    rows = np.array([c.row for c in at_least])
    missing = np.array([c.value for c in at_least]) - rows @ z
    if np.all(missing <= 0):
        return z
    # The shortest step v with rows back v >= missing.
    rows = rows @ back
    system = np.vstack([rows.T, missing])
    unit = np.eye(len(system))[-1]
    multiplier = lsq_linear(system, unit, (0, np.inf), "bvls", np.finfo(float).eps).x
    residual = system @ multiplier - unit
    if not residual[-1] < 0:
        return None
    step = -residual[:-1] / residual[-1]
    if np.max(missing - rows @ step) > HALF * (1 + np.abs(missing).max()):
        return None
    return z + back @ step


def null_space(rows):
    """Return an orthonormal basis of the null space of rows, as columns."""
    values, vectors = factors.eigenpairs(rows.T @ rows)
    return vectors[:, values <= DEPENDENT * max(values[-1], 1e-300)]


def contradiction(conditions):
    """Return the names of two conditions that exclude each other; of all, if no two."""
    n, by_name = len(conditions[0].row), {}
    for each in conditions:
        by_name.setdefault(each.name, []).append(each)
    for names in chain(combinations(by_name, 1), combinations(by_name, 2)):
        some = [each for name in names for each in by_name[name]]
        if least_squares_under(np.eye(n), np.zeros(n), some) is None:
            return list(names)
    return list(by_name)


_LENGTHS = np.ldexp(1.0, -np.arange(5))  # of the steps that are tried
_MOST_TURNS = 10  # of the features, and of the searches of a family
_STARTS = 3  # best of them from which steps are taken


# --- columns --------------------------------------------------------------------------


class Joint(NamedTuple):
    """The problem, in the units of the search; rows in the order of the first x."""

    x: list  # (n,) of each broken feature, in [-1, 1]
    linear: np.ndarray  # (n, m)
    y: np.ndarray
    offset: np.ndarray
    weight: np.ndarray  # repeats times precisions
    repeats: np.ndarray
    family: Family
    slopes: list  # of the first feature, see parse_slopes of preparation
    points: list  # (x, y, name) through which its line goes
    options: Options  # of the engine; known breakpoints are those of the first feature
    limits: list  # of each feature, the problem of the engine that says what is allowed

    def deviance(self, eta):
        """Return the deviance at linear predictors without the offset."""
        mean = self.family.mean(eta + self.offset)
        return self.family.deviance(self.y, mean, self.weight)

    def working(self, eta):
        """Return the working targets and weights at linear predictors."""
        mean = self.family.mean(eta + self.offset)
        variance = self.family.variance(mean)
        return eta + (self.y - mean) / variance, self.weight * variance

    def allowed(self, trials):
        """Return which breakpoints leave every segment enough rows, and room."""
        fine = np.ones(len(trials), bool)
        for f, problem in enumerate(self.limits):
            free = np.array([t[f][~np.isin(t[f], problem.known)] for t in trials])
            if free.size:
                fine &= feasible(problem, free[None])[0]
        return fine


class State(NamedTuple):
    """A fit with breakpoints."""

    t: list  # (k,) of each feature, ascending
    coef: np.ndarray
    eta: np.ndarray  # without the offset
    deviance: float


class Layout(NamedTuple):
    """Where the parameters are; those of the breakpoints feature by feature."""

    columns: list  # of each feature, in the design
    feature: np.ndarray  # of each breakpoint
    ramps: np.ndarray  # its change of slope among the columns
    free: np.ndarray  # whether it is not known
    kinks: np.ndarray  # numbers of those that are parameters of the linear model
    tangents: np.ndarray  # (n, kinks) derivatives by these, if there is a fit


def block(form, x, t):
    """Return the columns of one feature without the constant."""
    return least_squares.design(form, x, np.empty((len(x), 0)), t)[:, 1:]


def linearised(joint, t, coef=None):
    """Return 1, each feature's columns and the linear ones, and the layout."""
    form, n, sizes = joint.options.form, len(joint.y), [*map(len, t)]
    blocks = [block(form, x, own) for x, own in zip(joint.x, t, strict=True)]
    columns = np.hstack([np.ones((n, 1)), *blocks, joint.linear])
    where = np.split(
        np.arange(1, len(columns.T)), np.cumsum([b.shape[1] for b in blocks])
    )
    where, feature = where[: len(t)], np.repeat(np.arange(len(t)), sizes)
    every = np.concatenate([np.empty(0), *t])
    free = ~np.isin(every, joint.options.known)
    kinks = np.flatnonzero(free & (not form.step))
    # Those of jumps have none, and nothing asks for them.
    changes = [own[form.slope :] for own in where]
    ramps = [own[:k] for own, k in zip(changes, sizes, strict=True)]
    ramps, tangents = np.concatenate([np.empty(0, np.intp), *ramps]), [columns[:, :0]]
    for f, own in enumerate(changes if coef is not None else ()):
        at = kinks[feature[kinks] == f] - sum(sizes[:f])
        own = coef[own[: form.ramp * sizes[f]]]
        tangents.append(least_squares.tangents(joint.x[f], t[f], own, at))
    return columns, Layout(where, feature, ramps, free, kinks, np.hstack(tangents))


def conditions(joint, t, where, n_columns, coef=None):
    """Return the conditions on the coefficients and, with ``coef``, on the kinks."""
    form, found = joint.options.form, []

    def slope(f, n_changes=None):
        row = np.zeros(n_columns)
        row[where.columns[f][: form.slope]] = 1
        row[where.ramps[where.feature == f][:n_changes]] = 1
        return row

    if form.flat_end:
        name = f"flat={'last' if form.slope else 'both'!r}"
        found += [Condition(name, slope(f), 0.0, True) for f in range(len(t))]
    for name, segments, sign, value, is_equal in joint.slopes:
        if segments[-1] <= len(t[0]):
            row, *other = (sign * slope(0, j) for j in segments)
            found.append(Condition(name, row - sum(other), sign * value, is_equal))
    for x, y, name in joint.points:
        row = np.zeros(n_columns)
        row[0], row[where.columns[0]] = 1, block(form, np.array([x]), t[0])[0]
        if coef is not None:
            passed = x >= t[0][where.kinks]
            row[n_columns - len(passed) :] = -coef[where.ramps[where.kinks]] * passed
        found.append(Condition(name, row, y, True))
    return [each for each in found if each.row.any() or each.value]


# --- fits ----------------------------------------------------------------------------


def _solve(columns, z, w, limits):
    """Return the least-squares fit of working targets under conditions, or None."""
    root = np.sqrt(w)[:, None]
    triangle = factors.upper_factor(root * np.column_stack([columns, z]))
    p = columns.shape[1]
    return least_squares_under(triangle[:p, :p], triangle[:p, p], limits)


def fit_at(joint, t, z, w):
    """Return the state of one weighted least-squares fit with breakpoints, or None."""
    columns, where = linearised(joint, t)
    found = _solve(columns, z, w, conditions(joint, t, where, columns.shape[1]))
    if found is None:
        return None
    return State(t, found, columns @ found, joint.deviance(columns @ found))


def descend(joint, state):
    """Take joint Gauss-Newton steps until the deviance no longer falls."""
    while True:
        z, w = joint.working(state.eta)
        columns, where = linearised(joint, state.t, state.coef)
        both, n = np.hstack([columns, where.tangents]), columns.shape[1]
        limits = conditions(joint, state.t, where, both.shape[1], state.coef)
        found = _solve(both, z, w, limits)
        if found is None:
            return state
        kinks = where.kinks
        ramps = where.ramps[kinks]
        size = np.where(found[ramps] != 0, found[ramps], np.inf)
        steps = found[n:], found[n:] * state.coef[ramps] / size  # the other Muggeo's
        moves = [length * step for length in _LENGTHS for step in steps if len(step)]
        best = _best_of(joint, state, kinks, [np.zeros(len(kinks)), *moves])
        aim = None
        if best is state and joint.family.has_known_variance:
            aim = fit_at(joint, state.t, z, w)
        for length in _LENGTHS[1:] if aim is not None else ():  # of the way to the fit
            eta = state.eta + length * (aim.eta - state.eta)
            if joint.deviance(eta) < best.deviance:
                coef = state.coef + length * (aim.coef - state.coef)
                best = State(state.t, coef, eta, joint.deviance(eta))
        if not best.deviance < state.deviance * (1 - EXACT):  # perhaps at a corner
            moves, at = [], np.concatenate([np.empty(0), *best.t])[kinks]
            each = zip(where.feature[kinks], at, np.eye(len(at)), strict=True)
            for f, t, unit in each:
                rows = joint.limits[f].table.x[0]
                k = np.searchsorted(rows, t)
                moves += list((rows[max(k - 1, 0) : k + 2] - t)[:, None] * unit)
            best = _best_of(joint, best, kinks, moves)
        if not best.deviance < state.deviance * (1 - EXACT):
            return best
        state = best


def _best_of(joint, state, kinks, moves):
    """Return the best state with the kinks moved in one of some ways."""
    best, (z, w), trials = state, joint.working(state.eta), []
    ends = np.cumsum([len(own) for own in state.t])[:-1]
    for move in moves:
        at = np.concatenate([np.empty(0), *state.t])
        at[kinks] += move
        trials.append([np.sort(own) for own in np.split(at, ends)][: len(state.t)])
    for t, fine in zip(trials, joint.allowed(trials), strict=True):
        new = fit_at(joint, t, z, w) if fine else None
        best = new if _is_better(new, best) else best
    return best


def _is_better(state, other):
    if state is None or other is None:
        return state is not None
    return state.deviance < other.deviance * (1 - DEPENDENT)


# --- the number ----------------------------------------------------------------------


def prepared_for(joint, f, t, z, w, extra=()):
    """Return the rows for the engine, feature f broken, the others and more linear."""
    every = enumerate(zip(joint.x, t, strict=True))
    others = [block(joint.options.form, x, own) for g, (x, own) in every if g != f]
    linear = np.hstack([np.empty((len(z), 0)), *others, joint.linear, *extra])
    order = np.argsort(joint.x[f], kind="stable")
    rows = Rows(*(each[order] for each in (joint.x[f], z, linear, w)))
    return Prepared(rows, Scaling.identity(linear.shape[1]), joint.repeats[order])


def _with(joint, t, f, knots):
    """Return breakpoints where one feature has these, and the known ones."""
    own = np.sort(np.concatenate([knots, joint.limits[f].known[0]]))
    return [*t[:f], own, *t[f + 1 :]]


def without_breakpoints(joint):
    """Return the fit of a straight line, or None if conditions allow none."""
    eta = joint.family.start(joint.y, joint.weight)
    t = [problem.known[0] for problem in joint.limits]
    return descend(joint, fit_at(joint, t, *joint.working(eta - joint.offset)))


def find(joint, numbers, most, criterion):
    """Return the best fit, and by feature the path over the numbers of breakpoints."""
    form = joint.options.form._replace(flat_end=False)
    options = joint.options._replace(form=form)
    free = joint._replace(slopes=[], points=[], options=options)
    state, paths = without_breakpoints(free), [None] * len(joint.x)
    is_plain = not (joint.family.has_known_variance or joint.slopes or joint.points)
    options = joint.options._replace(criterion=criterion)
    for _ in range(_MOST_TURNS):
        before = state
        for f, number in enumerate(numbers):
            if is_plain:  # the engine's breakpoints are the best
                rows = joint.y, joint.weight
                prepared = prepared_for(joint, f, state.t, *rows)
                ((knots, paths[f], _),), *_ = choose(
                    [prepared], options, (number, most)
                )
                t = _with(joint, state.t, f, knots)
                state = fit_at(joint, t, *rows) if joint.allowed([t])[0] else None
            else:
                state, paths[f] = _choose(joint, state, f, number, most, criterion)
            if state is None:
                _refuse(joint, numbers)
        same = [*map(len, state.t)] == [*map(len, before.t)]
        if len(joint.x) == 1 or (same and not _is_better(state, before)):
            break
    return descend(joint, state) if is_plain else state, paths


def _choose(joint, state, f, number, most, criterion):
    """Return the best fit over the numbers of one feature's breakpoints, and a path."""
    n_rows = float(joint.repeats.sum())
    charge = 2.0 if criterion == "aic" else float(np.log(n_rows))
    most = most if number is None else number + PATIENCE
    best, at, chosen = {}, state, None
    for _ in range(_MOST_TURNS):
        z, w = joint.working(at.eta)
        problem = problem_of([prepared_for(joint, f, at.t, z, w)], joint.options)
        positions = count_positions(problem)
        extra = search_penalty(criterion, problem, positions, n_rows, most)[0]
        knots, since, before = search(problem, most).knots, 0, chosen
        values, total = {}, {}
        for k in range(most + 1) if number is None else [number]:
            own = knots[k][np.isfinite(knots[k]).all(axis=1)]
            if k and (joint.slopes or joint.points):
                even = np.linspace(-1, 1, k + 2)[None, 1:-1]
                own = np.concatenate([own, kinks_at_rows(problem, even)])
            trials = [_with(joint, at.t, f, t) for t in own]
            each = zip(trials, joint.allowed(trials), strict=True)
            starts = [fit_at(joint, t, z, w) for t, fine in each if fine]
            starts = [each for each in starts if each is not None]
            starts.sort(key=lambda each: each.deviance)
            for each in starts[:_STARTS]:
                new = descend(joint, each)
                best[k] = new if _is_better(new, best.get(k)) else best[k]
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
        at = chosen = best[min(total, key=total.get)]
        if not joint.family.has_known_variance or not _is_better(chosen, before):
            break
    names = "n_parameters", "deviance", criterion, "search_penalty"
    columns = map(np.array, zip(*values.values(), strict=True))
    path = {"n_breakpoints": np.array([*values])}
    return chosen, path | dict(zip(names, columns, strict=True))


def count_parameters(joint, state):
    """Return the number of parameters, breakpoints included.

    Bounds that the fit reaches take none away: where it reaches them is chosen, too.
    """
    columns, where = linearised(joint, state.t, state.coef)
    columns = np.hstack([columns, where.tangents])
    columns = columns @ free_space(joint, state, columns.shape[1], with_bounds=False)
    root = np.sqrt(joint.working(state.eta)[1])[:, None]
    size = factors.singular_values(factors.upper_factor(root * columns))
    jumps = where.free.sum() - len(where.kinks)
    return int(np.sum(size > 1e-10 * size.max(initial=0)) + jumps)


def free_space(joint, state, n_columns, with_bounds=True):
    """Return a basis of the parameters that the active conditions leave free."""
    _, where = linearised(joint, state.t, state.coef)
    z = np.pad(state.coef, (0, n_columns - len(state.coef)))
    rows = [
        each.row
        for each in conditions(joint, state.t, where, n_columns, state.coef)
        if each.is_equal or (with_bounds and each.row @ z - each.value < HALF)
    ]
    return null_space(np.array(rows)) if rows else np.eye(n_columns)


def _refuse(joint, numbers):
    """Raise a ValueError that names the conditions which exclude each other."""
    t = [problem.known[0] for problem in joint.limits]
    for f, number in enumerate(numbers):
        t = _with(joint, t, f, np.linspace(-1, 1, (number or 0) + 2)[1:-1])
    columns, where = linearised(joint, t)
    limits = conditions(joint, t, where, columns.shape[1])
    names = contradiction(limits) if limits else []
    if not names:
        raise ValueError(
            "The data have no room for the breakpoints: lower n_breakpoints."
        )
    if len(names) == 1 and not joint.options.form.slope:
        names.append("flat='both'" if joint.options.form.flat_end else "flat='first'")
    end = ": these conditions contradict each other." if len(names) > 1 else "."
    raise ValueError(f"No broken line satisfies {' and '.join(names)}{end}")
