"""What the demos share: their parts, the points at which they are compared."""

from typing import Any, NamedTuple

import numpy as np

N_TEST = 2000


class Demo(NamedTuple):
    """A problem with all that is known of its solution."""

    problem: Any
    data: tuple = ()  # X and y, where it is an inverse problem
    solver: dict = {}  # what the statement needs: observed outputs
    truth: dict = {}  # coefficients that are to be found
    points: Any = None  # (N, d)  where the solution is compared; None: problem.exact
    values: Any = None  # (N, q)  NaN for outputs that are not compared
    field: bool = False  # whether an unknown function is what is looked for


def test_points(demo):
    """Points and values at which a solution is compared, with NaN where it is not."""
    if demo.points is not None:
        return np.asarray(demo.points), np.asarray(demo.values)
    if demo.truth:
        return None
    rng = np.random.RandomState(12345)
    return demo.problem.reference(N_TEST, rng, "uniform")


def relative_error(problem, found, values):
    """Relative L2 error over all outputs together, without means that are free."""
    found, values = np.asarray(found, float), np.asarray(values, float)
    found = found.reshape(values.shape)
    error, size = 0.0, 0.0
    for k, name in enumerate(problem.outputs):
        known = ~np.isnan(values[:, k])
        if not known.any():
            continue
        e, v = found[known, k] - values[known, k], values[known, k]
        if name in problem.up_to_constant:
            e, v = e - e.mean(), v - v.mean()
        error, size = error + e @ e, size + v @ v
    return float(np.sqrt(error / size))


def largest_error(found, truth):
    """Largest relative error of the coefficients."""
    return float(max(abs(found[name] / value - 1) for name, value in truth.items()))
