"""Units of outputs, coefficients and residuals, from all that is stated about them.

The level of a problem is the constant that its conditions come nearest to. About it,
each row of the equation and of the conditions has a source, the residual of the level,
and answers, what slow waves of the outputs change in it. The size of an output is the
size of its given values where these vary; else its answer to the sources, or what
balances the terms of outputs of known size. The level is the center of an output that
varies little about it. No step of this depends on the units of the axes, of the outputs
or of the rows.

A fit that finds its network counts each residual in units of its size, so that the
units of the statement change nothing. Where layers are given, residuals count as they
are stated, unless their sizes are more than a factor of 1,000 apart, as for volts and
coulombs: one would hardly count next to the other.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.pde import Condition, Dirichlet, Initial, Neumann, Robin, Unknown
from sklearn_gn.pde.coefficients import VISIBLE
from sklearn_gn.pde.given_values import JUMP, ROUNDING, values_of
from sklearn_gn.pde.reading import PlaneWaves, constants
from sklearn_gn.pinn.statement import read

_LITTLE = 0.25  # variation, relative to the level, of what has a center
_SECANTS, _POWERS = 20, (0.25, 4.0)  # steps to the size of terms that are no lines
_FASTER = np.concatenate([[0.0], 2.0 ** (np.arange(25) / 2)])  # waves in time


def units(problem, y=None, observed=(), waves=()):
    """Return center and size of each output, tuples of numbers."""
    q = len(problem.outputs)
    reading = read(problem)
    given = _given_values(reading, y is not None)
    for k, entry in enumerate(observed if y is not None else ()):
        if not callable(entry):
            given[entry] = np.concatenate([given[entry], y[:, k][np.isfinite(y[:, k])]])
    level = _level(reading, given)
    # Centers and half ranges of values that vary; zeros for a constant.
    centers, ranges = np.zeros((2, q))
    for k, values in enumerate(given):
        low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
        largest = max(abs(low), abs(high))
        if not np.isfinite(largest) or high - low <= ROUNDING * largest:
            continue
        ranges[k] = largest if low < 0 < high else max(high - low, largest) / 2
        if high - low < largest / 2:  # far from zero, and differing little
            centers[k], ranges[k] = (low + high) / 2, (high - low) / 2
    sizes = _sizes(reading, level, ranges, waves)
    stays = (sizes == 0) | (sizes >= _LITTLE * np.abs(level))
    has_level = stays & [len(values) > 0 for values in given]
    known = np.where(ranges > 0, ranges, np.where(has_level, np.abs(level), 0.0))
    sizes = _sizes(reading, level, known, waves)
    if not switches.on("pinn.units"):
        return (0.0,) * q, (1.0,) * q
    centers = np.where(ranges > 0, centers, np.where(stays, 0.0, level))
    return tuple(centers.tolist()), tuple(np.where(sizes, sizes, 1.0).tolist())


def level_of_outputs(problem):
    """The level of a problem in the outputs of its network, of shape (q,)."""
    if not problem.scale:
        return np.zeros(len(problem.outputs))
    level = _level(read(problem), _given_values(read(problem)))
    return (level - np.array(problem.center)) / np.array(problem.scale)


def _given_values(reading, with_data=False):
    """Values of each output that conditions give: with data, not by an unknown one."""
    problem, given = reading.problem, {}
    for kind in reading.conditions if problem.transform is None else ():
        condition = kind.condition
        if isinstance(condition, (Dirichlet, Initial)) and not condition.order:
            given[kind.name] = condition
    places = [reading.drawn[name].x[:, 0] for name in given]
    # Its start may be far off: what another one changes is not given.
    starts, other = problem.unknown if with_data else {}, problem
    if starts:
        moved = {k: Unknown(2 * np.array(c.initial) + 1) for k, c in starts.items()}
        other = replace(problem, coefficients=problem.coefficients | moved)
    zero = np.zeros(len(problem.outputs))
    both = (values_of(one, given.values(), places) for one in (problem, other))
    values, again = (np.concatenate([np.empty((0, len(zero))), *v]) for v in both)
    known = np.isfinite(values) & (values == again)
    found = [column[own] for column, own in zip(values.T, known.T, strict=True)]
    if any(map(len, found)):  # values that are rounding, compared with the answer
        source, answers = _terms(reading, reading.interior, zero, zero + 1)
        least = ROUNDING * _ratios(source, answers[0]).max(axis=1)
        pairs = zip(found, least, strict=True)
        found = [np.where(np.abs(own) < limit, 0.0, own) for own, limit in pairs]
    return found


def _level(reading, given):
    """Constants (q,) that are the means of given values and solve the conditions."""
    level = np.array([np.mean(values) if len(values) else 0.0 for values in given])
    free = np.array([not len(values) for values in given])
    if not (free.any() and reading.conditions):
        return level
    # Residuals about it, and their slopes in the outputs that are free.
    units = np.eye(len(level))[free]
    values = level + np.concatenate([0 * level[None], units, -units])
    fields = constants(values, reading.problem.domain.dim)
    found = [reading.residuals(kind, fields) for kind in reading.conditions]
    found = [np.swapaxes(r, 1, 2).reshape(-1, len(values)) for r in found]
    sources, above, below = np.split(np.concatenate(found), [1, 1 + len(units)], axis=1)
    with np.errstate(invalid="ignore"):
        matrix, sources = (above - below) / 2, sources[:, 0]
    usual = np.isfinite(matrix).all(axis=1) & np.isfinite(sources) & matrix.any(axis=1)
    if not usual.any():
        return level
    # Of rows and columns in units of their own, so that all count alike.
    matrix, sources = matrix[usual], sources[usual]
    columns = np.abs(matrix).max(axis=0)
    columns[columns == 0] = 1
    size = np.linalg.norm(matrix / columns, axis=1)
    matrix = matrix / columns / size[:, None]
    solved = np.linalg.lstsq(matrix, -sources / size, ROUNDING)[0]
    level[free] += solved / columns
    return level


# --- sizes ---------------------------------------------------------------------------


def _sizes(reading, level, known, waves):
    """Sizes (q,) of the outputs; 0 where nothing is known.

    Amplitudes of waves with the fluxes and the tractions that are given, and what
    balances the equation.
    """
    known, ones = np.array(known), np.ones(len(level))
    has_values, fluxes = known > 0, np.zeros(len(level))
    for kind in reading.conditions if reading.problem.transform is None else ():
        faster = 1.0
        if kind.condition.order:
            # Than a slow wave, until derivatives in time prevail in the equation.
            _, answers = _terms(reading, reading.interior, level, ones, _FASTER)
            total = np.linalg.norm(answers, axis=(1, 2))
            prevails = np.flatnonzero(total[1:] - total[0] >= total[0])
            faster = _FASTER[1 + prevails[0]] if len(prevails) else 1.0
        elif not isinstance(kind.condition, (Neumann, Robin, Condition)):
            continue
        source, (answers,) = _terms(reading, kind, level, ones, faster)
        answers[has_values] *= ~(answers[~has_values] > 0).any(axis=0)
        fluxes = np.maximum(fluxes, _ratios(source, answers).max(axis=1))
    # Fluxes by an unknown coefficient are as far off as its start.
    is_told = has_values & bool(reading.problem.unknown)
    sizes = np.where(is_told, known, np.maximum(known, fluxes))
    if len(sizes) == 1:
        balanced = 0.0 if known[0] else _balanced(reading, level, known, waves)
        return np.maximum(sizes, balanced)
    for _ in sizes:  # each may need the size of another one first
        before = sizes > 0
        sizes = _balanced(reading, level, sizes)
        if ((sizes > 0) == before).all():
            break
    return sizes


def _balanced(reading, level, sizes, waves=()):
    """Give outputs without a size that with which they balance the rows."""
    known, kinds, number, share = sizes > 0, [reading.interior], 0, 1.0
    if len(sizes) == 1:
        _, answers = _terms(reading, reading.interior, level, np.ones(1), waves=waves)
        answers = np.linalg.norm(answers[:, 0], axis=1)
        number = np.argmax(answers > JUMP * answers.max(initial=0))
        share = np.sqrt(2)  # the mean square of a wave is half of its amplitude's
    elif reading.problem.transform is None:
        kinds += [k for k in reading.conditions if isinstance(k.condition, Condition)]
    reached = np.zeros(len(sizes), bool)

    def lack(trial):
        found = [[] for _ in trial]
        for kind in kinds:
            others = known * trial
            source, terms = _terms(reading, kind, level, trial, 1.0, waves, others)
            wanted = np.max([share * source, *terms[number, known]], axis=0)
            for k in np.flatnonzero(~known):
                ratios = _ratios(wanted, terms[number, k])
                found[k].extend(np.log(ratios[ratios > 0]))
        reached[:] = [bool(logs) for logs in found]
        return np.array([np.mean(logs) if logs else 0.0 for logs in found])

    trial = _secant(lack, np.where(known, sizes, 1.0))
    return np.where(known | reached, trial, 0.0)


def _secant(lack, sizes):
    """Sizes (q,) at which the logarithm that terms lack is zero, by secants."""
    power, missing = np.ones(len(sizes)), lack(sizes)
    for _ in range(_SECANTS):
        step = missing / power
        if np.abs(step).max() < 0.01:
            break
        sizes, before = sizes * np.exp(step), missing
        missing = lack(sizes)
        moved = np.abs(step) > 0
        power = np.where(moved, (before - missing) / np.where(moved, step, 1), power)
        power = np.clip(power, *_POWERS)
    return sizes


def _ratios(source, answers):
    """Sizes (q, k) that balance sources (k,) where answers (q, k) are any."""
    there = (answers > 0) & (source > 0) & np.isfinite(source) & np.isfinite(answers)
    return np.where(there, source, 0) / np.where(there, answers, 1)


def coefficient_starts(problem, center, scale):
    """Unknown coefficients of another start, where theirs is far off."""
    reading, found = read(problem), {}
    vectors = np.repeat(reading.slow, 2, axis=0)[:, None]
    vectors = np.repeat(vectors, len(problem.outputs), axis=1)
    waves = PlaneWaves(vectors, *(np.tile(a, (4, 1)) for a in (scale, scale, center)))

    def share(name, value):
        """Size of the terms with a coefficient over all other terms; 0: unknown."""
        largest, unknown = 0.0, {name: np.array([0.0, value, 0.0, value])}
        for kind in (reading.interior, *reading.conditions):
            r = reading.residuals(kind, waves, unknown)
            r = r[np.isfinite(r).all(axis=(1, 2))]
            others = np.sum(r[:, ::2] ** 2)
            if others > 0:
                terms = np.sum((r[:, 1::2] - r[:, ::2]) ** 2)
                largest = max(largest, np.sqrt(terms / others))
        return largest

    for name, known in problem.unknown.items():
        first = np.asarray(known.initial, float)
        if first.ndim:
            continue
        first = float(first) or 1.0  # a start of zero, which has no size
        begin, eps = 1.0, np.finfo(float).eps
        while (size := share(name, first * begin)) == 0 and begin * eps < 1 / eps:
            begin /= eps  # a term that is lost by rounding has no share
        if size == 0 or (begin == 1 and 1 / VISIBLE <= size <= VISIBLE):
            continue
        lack = partial(lambda own, start: -np.log([share(own, float(start[0]))]), name)
        start = float(_secant(lack, np.full(1, first * begin))[0])
        if np.isfinite(start):
            found[name] = Unknown(start, known.positive)
    return found


def _terms(reading, kind, level, sizes, faster=1.0, waves=(), moved=0.0):
    """Root mean squares of residuals of a level (k,), and of changes (m, q, k)."""
    domain, n = reading.problem.domain, np.size(faster)
    slow = np.repeat(reading.slow, n, axis=0)
    if domain.time is not None:
        slow[:, domain.axes.index(domain.time)] *= np.tile(faster, 2)
    vectors = np.concatenate([np.reshape(waves, (-1, domain.dim)), slow])
    m, q = len(vectors), len(level)
    # Zero, the level; none, a cosine, a sine of each output, next to those of others.
    others = np.sqrt(0.5) * (1 - np.eye(q)) * moved
    own = others + np.diag(sizes)
    both = np.array([[others, own, others], [others, others, own]])
    both = np.tile(np.moveaxis(both, 1, 2).reshape(2, -1, q), (1, m, 1))
    vectors = np.concatenate([vectors[[0, 0]], np.repeat(vectors, 3 * q, axis=0)])
    waves = PlaneWaves(
        np.repeat(vectors[:, None], q, axis=1),
        *np.pad(both, ((0, 0), (2, 0), (0, 0))),
        np.concatenate([np.zeros((1, q)), np.tile(level, (1 + 3 * m * q, 1))]),
    )
    found = reading.residuals(kind, waves)
    found = found[np.isfinite(found[:, 1:]).all(axis=(1, 2))]
    n_points, _, k = found.shape
    if n_points == 0:
        return np.zeros(k), np.zeros((m - n, q, k))
    before, *after = np.moveaxis(found[:, 2:].reshape(-1, m, q, 3, k), 3, 0)
    changes = np.stack(after) - before
    with np.errstate(over="ignore", invalid="ignore"):
        at_zero, source = np.sqrt(np.mean(found[:, :2] ** 2, axis=0))
        terms = np.sqrt(np.mean(np.sum(changes**2, axis=0), axis=0))
        terms, slower = np.split(terms, [-n])
        terms[-n:] = np.maximum(terms[-n:], slower)
        # Terms of the level, which may cancel.
        whole = at_zero + np.max(terms[0] * (np.abs(level) / sizes)[:, None], axis=0)
    is_rounding = np.isfinite(whole) & (source <= ROUNDING * whole)
    return np.where(is_rounding, 0.0, source), terms


@dataclass(frozen=True)
class InUnits:
    """Residuals of a class, each divided by a unit."""

    function: Callable
    units: tuple

    def __call__(self, fields, points, data, coefficients):
        """Residuals of a row, of shape (k,)."""
        found = self.function(fields, points, data, coefficients)
        return found / np.array(self.units, found.dtype)


def in_units(kind, sizes, each=False):
    """A class of residuals of sizes that are close, or equal, and its size."""
    finite = np.isfinite(sizes) & (sizes > 0)
    if not finite.any():
        return kind, 1.0
    size = float(np.sqrt(np.sum(sizes[finite] ** 2) / len(sizes)))
    sizes = np.where(finite, sizes, size)
    divides = (each and np.ptp(sizes) > 0) or are_apart(sizes)
    if not (divides and switches.on("pinn.balance")):
        return kind, size
    units = tuple(map(float, sizes / size))
    return kind._replace(function=InUnits(kind.function, units)), size


def are_apart(sizes):
    """Whether the smallest of some sizes would hardly count beside the largest."""
    return sizes.max() > VISIBLE * sizes.min()
