r"""Conditions on a broken line, and least squares under them.

Slopes may be given, equal to each other, or bounded, and the line may go through given
points. For given breakpoints all are linear in the coefficients. The least-squares fit
under :math:`E z = e` and :math:`C z \ge d` is that in the null space of E, where the
inequalities are a problem of least distance, which non-negative least squares solves
(Lawson and Hanson, "Solving least squares problems", 1974, chapter 23).
"""

from itertools import combinations
from numbers import Real
from typing import NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

from sklearn_gn.linalg import factors
from sklearn_gn.segmented.problem import DEPENDENT, HALF


class Condition(NamedTuple):
    """One linear condition on the coefficients: ``row z = value``, or at least that."""

    name: str  # in the words of the user
    row: np.ndarray
    value: float
    is_equal: bool


def parse_slopes(slopes, n_segments):
    """Return the conditions on slopes: (name, segments, sign, value, is_equal).

    The slope, or the difference of the slopes of two segments, times the sign is equal
    to the value times the sign, or at least that.
    """
    of_all = isinstance(slopes, tuple)
    entries = [slopes] * n_segments if of_all else list(slopes)
    if len(entries) != n_segments:
        raise ValueError(
            f"slopes={slopes!r} has {len(entries)} entries, but the line has "
            f"{n_segments} segments: give one for each, or a tuple (low, high)."
        )
    found, first = [], {}
    for j, entry in enumerate(entries):
        name = f"slopes={slopes!r}" if of_all else f"slopes[{j}]={entry!r}"
        if isinstance(entry, str):
            if entry in first:
                found.append((name, (first[entry], j), 1, 0.0, True))
            first.setdefault(entry, j)
        elif entry is not None and isinstance(entry, Real) and np.isfinite(entry):
            found.append((name, (j,), 1, float(entry), True))
        elif isinstance(entry, (tuple, list)) and len(entry) == 2:
            for sign, bound in zip((1, -1), entry, strict=True):
                if bound is not None and np.isfinite(bound):
                    found.append((name, (j,), sign, float(bound), False))
        elif entry is not None:
            raise ValueError(
                f"{name} must be None, a slope, a pair (low, high), or a text that "
                "names segments with the same slope."
            )
    return found


def parse_points(through):
    """Return the points (x, y) that the line goes through, of shape (m, 2)."""
    try:
        points = np.atleast_2d(np.asarray(through, dtype=np.float64))
    except (TypeError, ValueError):
        points = np.empty(0)
    if points.ndim != 2 or points.shape[1] != 2 or not np.isfinite(points).all():
        raise ValueError(
            f"through must be a point (x, y) or a list of points, got {through!r}."
        )
    return points


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
    n = len(conditions[0].row)

    def is_feasible(some):
        return least_squares_under(np.eye(n), np.zeros(n), some) is not None

    by_name = {}
    for each in conditions:
        by_name.setdefault(each.name, []).append(each)
    for name, own in by_name.items():
        if not is_feasible(own):
            return [name]
    for a, b in combinations(by_name, 2):
        if not is_feasible(by_name[a] + by_name[b]):
            return [a, b]
    return list(by_name)
