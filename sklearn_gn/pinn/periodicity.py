"""Periodic conditions of a whole solution, which the network fulfils exactly.

Where all outputs and their slopes agree on two opposite faces, and the equation is the
same on both, the solution goes on periodically. The network then has the cosine and
sine of the angle along this axis as inputs, and there is one condition less.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.core import backend
from sklearn_gn.core.compilation import jit_by_size
from sklearn_gn.pde import Periodic

_POINTS = 16  # pairs on the two faces
_SAME = 1e-9  # residuals that differ by rounding, relative to the largest


def with_exact_periods(problem, stages):
    """Return problems without the periodic conditions that the network can fulfil.

    Parameters
    ----------
    problem : Problem
    stages : sequence of Problem
        Easier ones, with the same conditions.

    Returns
    -------
    problem : Problem
    stages : list of Problem
    """
    axes = [
        condition.axis
        for condition in problem.conditions
        if _is_of_all(problem, condition) and _has_period(problem, condition.axis)
    ]

    def embedded(entry):
        kept = [c for c in entry.conditions if getattr(c, "axis", None) not in axes]
        return replace(entry, conditions=kept, periodic=(*entry.periodic, *axes))

    if not axes:
        return problem, list(stages)
    return embedded(problem), [embedded(stage) for stage in stages]


def _is_of_all(problem, condition):
    """Whether all that the network makes is periodic by a condition."""
    if not (isinstance(condition, Periodic) and condition.derivatives):
        return False
    if problem.transform is not None or condition.axis in problem.periodic:
        return False
    names = condition.outputs
    names = problem.outputs if names is None else names
    names = (names,) if isinstance(names, (str, int)) else names
    numbers = {problem.outputs[n] if isinstance(n, int) else n for n in names}
    return numbers == set(problem.outputs)


def _has_period(problem, axis):
    """Whether the equation is the same on both faces of an axis."""
    both = replace(problem, periodic=(*problem.periodic, axis))
    rng = np.random.RandomState(0)
    points = problem.probes(_POINTS, rng)["interior"]
    weights = rng.standard_normal((len(problem.outputs), both.n_inputs))
    number = problem.domain.axes.index(axis)
    residuals = []
    for end in problem.domain.bounds[number]:
        x = np.array(points.x)
        x[..., number] = end
        with backend.scope("float64"):
            at = points._replace(x=x)
            residuals.append(backend.to_numpy(_residuals(both, weights, at)))
    low, high = residuals
    largest = np.abs(low).max(initial=0)
    return bool(np.abs(low - high).max(initial=0) <= _SAME * largest)


@partial(jit_by_size, static_argnames="problem")
def _residuals(problem, weights, points):
    """Residuals of the equation of a smooth periodic field, of shape (n, k)."""
    kind = problem.residual_classes()[0]
    field = problem.field(lambda x: jnp.sin(1.0 + weights @ problem.embedding(x)))

    def one(x, data):
        return kind.function((field,) * kind.n_points, x, data, problem.start)

    return jax.vmap(one)(points.x, points.data)
