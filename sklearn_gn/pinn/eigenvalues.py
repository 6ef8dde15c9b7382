"""Eigenvalue problems: coefficients that no observation determines.

The function that is zero solves such a problem for every value of the coefficients, but
for a condition that fixes the size of the solution. Of the many solutions, a fit finds
one next to its start. Therefore it begins with a function of one sign, and at first the
coefficients keep their initial values, and the conditions count more. Without that, the
network that is drawn, which is odd, would stay so on symmetric domains, the
coefficients would follow functions that are far from a solution, and some of these
would end at zero.
"""

import math
from dataclasses import dataclass, replace

import jax
import numpy as np

from sklearn_gn.pde import Points, Unknown
from sklearn_gn.pde.given_values import N_POINTS, ROUNDING
from sklearn_gn.pde.reading import constants, residuals_of_waves
from sklearn_gn.pde.residual_classes import ResidualClass
from sklearn_gn.pinn.solution import Outputs
from sklearn_gn.pinn.statement import read
from sklearn_gn.pinn.windows import FEW_ITERATIONS

_HEAVY = 100.0  # weight of the conditions meanwhile, lest the function becomes zero
_NEAR = 0.2  # relative distance of a value to the initial one, that was wanted
_CONSTANT = 1e-5  # change of a function that has none
_SMALL = 0.02  # size of a function, relative to the largest, that has no sign


@dataclass(frozen=True)
class _Held(Unknown):
    """A coefficient that a step leaves as it is."""

    def decode(self, raw):
        """The value, which does not change with ``raw`` for derivatives."""
        return jax.lax.stop_gradient(super().decode(raw))


def first_stages(problem, most_iterations):
    """Return easier problems to begin with, and their iterations, as of a sequence."""
    n_iter = int(min(2 * FEW_ITERATIONS, most_iterations // 3))
    held = {n: _Held(c.initial, c.positive) for n, c in problem.unknown.items()}
    given = {**problem.coefficients, **held}
    heavy = tuple(replace(c, weight=_HEAVY * c.weight) for c in problem.conditions)
    easier = replace(problem, coefficients=given, conditions=heavy)
    return [(easier, n_iter)] if n_iter else []


def is_eigenvalue_problem(problem):
    """Whether zero solves a problem for all coefficients, but for its size."""
    n_unknown = sum(np.size(known.initial) for known in problem.unknown.values())
    return n_unknown > 0 and 0 < _n_residuals_of_zero(problem) <= n_unknown


def _n_residuals_of_zero(problem, size=ROUNDING):
    """How many residuals of conditions zero has; infinite if the equation has one."""
    if not problem.conditions:
        return math.inf
    if problem.transform is not None:  # it has to let the solution be zero
        values = np.abs(_transformed(problem, read(problem).x))
        # Relative to an output of zero: the exponential of a large one may be any size.
        if not (values.min(axis=1) <= ROUNDING * values[:, 0]).all():
            return math.inf
    plain, number = replace(problem, transform=None), 0
    reading = read(plain)
    # Zero for two values of the coefficients, and a wave.
    q, bounds = len(plain.outputs), plain.domain.bounds
    fields = constants(np.tile([[0.0], [0.0], [2.0]], q), len(bounds))
    fields.vectors[2], fields.sines[2] = np.pi / np.ptp(bounds, axis=1), 1.0
    start, unknown = plain.start, {}
    for name in plain.unknown:
        side = np.where(np.less(start[name], 0), -1, 1)
        unknown[name] = np.stack([start[name], 2 * start[name] + side, start[name]])
    for kind in (reading.interior, *reading.conditions):
        found = reading.residuals(kind, fields, unknown)
        zero, waves = np.split(np.abs(found), [2], axis=1)
        there = ~(zero.max(axis=(1, 2)) <= size * waves.max())
        if kind.name == "interior" and there.any():
            return math.inf
        x = reading.drawn[kind.name].x
        _, one_each = np.unique(x, axis=0, return_index=True)
        number += int(there[one_each].sum())
    return number


def _transformed(problem, x):
    """Outputs (n, 3, q) where the network's are zero, and far from it."""
    far = math.log(np.finfo(float).eps)
    raw = np.repeat([[0.0], [2 * far], [-2 * far]], len(problem.outputs), axis=1)
    kind = ResidualClass("outputs", Outputs(), 1, 1.0, len(problem.outputs))
    points = Points(x[:, None], x[:, :0])
    return residuals_of_waves(problem, kind, points, constants(raw, x.shape[1]))


def other_solutions(solver):
    """What to know of a solution beside which there may be others, and if to warn."""
    problem, found = solver.problem_, solver.coefficients_
    if "loss_data" in solver.convergence_log_:
        return "", False
    x = problem.domain.sample(N_POINTS, np.random.RandomState(0), "uniform")
    values = solver.predict(x).reshape(N_POINTS, -1)
    largest = np.abs(values).max()
    if not found:
        says_more = math.isfinite(solver._solved_until) or solver._unidentified
        is_meant = says_more or not largest <= _CONSTANT
        if is_meant or _n_residuals_of_zero(problem, size=0):
            return "", False
        return (
            "The solution is zero everywhere, which satisfies the equation and all "
            "conditions. If another one was meant, state what it comes from: a source, "
            "a value other than zero, or an Unknown eigenvalue. error_estimate_ is "
            "relative to the solution, and means nothing here."
        ), True
    number, kind, far = _n_residuals_of_zero(problem), "", []
    if number <= sum(map(np.size, found.values())):
        far = [
            f"{name} = {np.array2string(np.asarray(found[name]), precision=4)}"
            for name, known in problem.unknown.items()
            if not np.allclose(known.initial, found[name], rtol=_NEAR, atol=0)
        ]
    if number == 0:
        far = []
        if largest <= _CONSTANT:
            return (
                "The solution that was found is zero, which solves the problem for all "
                f"values of {', '.join(found)}: nothing fixes its size. State a "
                "condition that does, such as a value somewhere or the norm."
            ), True
    if far and np.ptp(values, axis=0).max() <= _CONSTANT * largest:
        kind = " This one is constant."
    elif far:
        size = _SMALL * np.abs(values).max(axis=0)
        changes = np.any((values.min(axis=0) < -size) & (values.max(axis=0) > size))
        if changes and problem.transform is not None:  # which may tell the sign
            raw = _transformed(problem, x)
            changes = not np.all((raw >= 0).all(axis=1) | (raw <= 0).all(axis=1))
        if changes:
            kind = (
                " This one changes its sign inside the domain, which that of the "
                "lowest eigenvalue mostly does not."
            )
    names = far if kind else map(repr, sorted(set(found) - set(solver._undetermined)))
    text = (
        f"No observations determine {', '.join(names)}: other values may solve the "
        f"problem too, as every eigenvalue does.{kind} If you wanted another one, "
        "begin near its value, Unknown(initial), or state what singles it out, such as "
        "a transform that is positive."
    )
    says_nothing = set(found) <= set(solver._undetermined)
    return ("", False) if says_nothing else (text, bool(kind))
