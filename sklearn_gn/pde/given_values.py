"""Where conditions hold, and the values that they give their outputs there."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.backend import scope, to_numpy
from sklearn_gn.arrays.numpy_programs import evaluated_by_numpy
from sklearn_gn.pde.calls import call
from sklearn_gn.pde.operators import Field


def faces_of(domain, condition):
    """Axes and values of the faces of a box that a condition holds on."""
    on = condition.where(domain)
    if callable(on) or not isinstance(on, (str, tuple)):
        return []
    names = domain.faces if on == "boundary" else (on,) if isinstance(on, str) else on
    known = {
        f"{axis}={side}": (k, domain.bounds[k, number])
        for k, axis in enumerate(domain.axes)
        for number, side in enumerate(("min", "max"))
    }
    if on == "boundary":
        names = [n for n in names if not n.startswith(f"{domain.time}=")]
    return [known[name] for name in names if name in known]


def values_of(problem, conditions, places):
    """Return names of outputs and their values (n, k), for each of some conditions.

    Their functions are compiled together.

    Parameters
    ----------
    problem : Problem
    conditions : sequence of Dirichlet, Initial or Neumann
    places : sequence of ndarray of shape (n, d)
        Points, for each of the conditions.
    """
    domain = problem.domain
    field = Field(None, domain.axes, domain.time, problem.outputs)
    names = [
        (field if c.outputs is None else field[c.outputs]).outputs for c in conditions
    ]
    functions, at = [], []
    for condition, known, X in zip(conditions, names, places, strict=True):
        if callable(condition.value):
            functions.append((condition.value, len(known)))
            at.append(X)
    found = iter(())
    if functions:
        with scope("float64"):
            found = iter(to_numpy(_given_at(problem, tuple(functions), at)))
    return [
        (
            known,
            next(found)
            if callable(condition.value)
            else np.broadcast_to(condition.value, (len(X), len(known))),
        )
        for condition, known, X in zip(conditions, names, places, strict=True)
    ]


@partial(evaluated_by_numpy, static_argnames=("problem", "functions"))
def _given_at(problem, functions, places):
    """What functions of conditions give at their points."""

    def values(value, k, X):
        def at(x):
            given = call(value, (x,), problem.start)
            return jnp.broadcast_to(jnp.asarray(given, x.dtype), (k,))

        return jax.vmap(at)(X)

    pairs = zip(functions, places, strict=True)
    return [values(value, k, X) for (value, k), X in pairs]
