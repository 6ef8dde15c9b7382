"""Axes that the default network closes to circles, in place of a Periodic condition.

The sine and cosine of an axis as inputs make all derivatives of a network periodic, and
leave one condition less to meet. An equation with more than second derivatives needs
that: the condition equates values and first derivatives only.

The solution has to be smooth where the ends of the axis meet. It is not where the
equation differs there, such as by a source, or where the initial values break.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.pde.conditions import Periodic
from sklearn_gn.pde.initial_breaks import initial_breaks

_N_POINTS = 8
_SAME = 1e-8  # relative difference of residuals at both ends


def on_circles(problem, stages):
    """Return problems whose periodic axes are circles, without their conditions."""
    everywhere = [_conditions(one) for one in (problem, *stages)]
    shared = set.intersection(*map(set, everywhere))
    plain = problem.transform is None and not problem.depends_on
    if not (shared and plain) or initial_breaks(problem):
        return problem, list(stages)
    closed = tuple(
        axis
        for axis in problem.domain.axes
        if axis in shared and _is_smooth(problem, everywhere[0][axis])
    )
    closed = switches.kept("pinn.circles", closed)

    def close(one):
        if not closed:
            return one
        kept = [c for c in one.conditions if not _closes(c, closed)]
        return replace(_closed(one, closed), conditions=tuple(kept))

    return close(problem), [close(stage) for stage in stages]


def _closed(problem, axes):
    both = {*problem.periodic, *axes}
    return replace(problem, periodic=tuple(a for a in problem.domain.axes if a in both))


def _conditions(problem):
    """Periodic conditions of values and derivatives of all outputs, by their axes."""
    return {c.axis: c for c in problem.conditions if _closes(c, problem.domain.axes)}


def _closes(condition, axes):
    whole = isinstance(condition, Periodic) and condition.derivatives
    return whole and condition.outputs is None and condition.axis in axes


def _is_smooth(problem, condition):
    """Whether the equation is the same at both ends of an axis, as is its slope."""
    regions = problem.regions
    if regions is not None and not regions.is_closed(problem.domain, condition.axis):
        return False
    with backend.scope("float64"):
        pairs = condition.sample(problem.domain, _N_POINTS, np.random.RandomState(0)).x
        found = backend.to_numpy(_residuals(problem, condition.axis, pairs))
    for values in found:
        low, high = values[:, 0], values[:, 1]
        if not np.abs(high - low).max() <= _SAME * np.abs(values).max():
            return False
    return True


@partial(jit_by_size, static_argnames=("problem", "axis"))
def _residuals(problem, axis, pairs):
    """Residuals (n, 2, k) of a smooth periodic field, and slopes along the axis."""
    closed = _closed(problem, (axis,))
    q, unit = len(problem.outputs), np.array(problem.domain.axes) == axis

    def field(x):
        inputs = closed.embedding(x)
        weights = jnp.arange(1, len(inputs) + 1, dtype=x.dtype) / len(inputs)
        return 2 + jnp.cos(inputs @ weights + jnp.arange(q, dtype=x.dtype))

    def with_slope(x):
        equation = partial(problem._equation_at, field)
        return jax.jvp(equation, (x,), (unit.astype(x.dtype),))

    return jax.vmap(jax.vmap(with_slope))(pairs)
