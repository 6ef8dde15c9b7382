r"""Right angles at which values on the boundary contradict the equation.

On the two sides of a right angle, values g and h give the second derivatives along
them. Where the equation does not hold with these, as for a constant source and a
boundary at zero, the solution has a term ``r^2 log(r)`` there, and its second
derivatives jump from one side to the other. The edges of a box of three axes are right
angles of its planes.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.numpy_programs import evaluated_by_numpy
from sklearn_gn.pde.calls import call
from sklearn_gn.pde.conditions import Dirichlet
from sklearn_gn.pde.given_values import faces_of
from sklearn_gn.pde.shapes import Box

_N_POINTS = 64  # that show the size of the residuals
_AGREE = 1e-3  # residual at a corner, relative to the largest one


def contradicted_corners(problem, corners):
    """Return those of the corners at which values contradict the equation, as a tuple.

    Looked for in problems of one output without unknowns, on a rectangle or a box,
    whose values are given on both sides. Elsewhere there are none, as where the values
    agree.

    Parameters
    ----------
    problem : Problem
    corners : sequence of Corner
        Right angles of its domain; of a box those of its edges.
    """
    domain = problem.domain
    plain = problem.transform is None and not (problem.periodic or problem.unknown)
    is_box = isinstance(domain, Box) and domain.time is None
    if not (is_box and plain and len(problem.outputs) == 1):
        return ()
    sides = {}
    for _, condition in problem._named_conditions():
        if isinstance(condition, Dirichlet):
            sides |= dict.fromkeys(faces_of(domain, condition), condition)
    faces = [tuple(zip(corner.axes, corner.place, strict=True)) for corner in corners]
    found = [
        (corner, tuple((axis, sides[axis, place]) for axis, place in both))
        for corner, both in zip(corners, faces, strict=True)
        if all(face in sides for face in both)
    ]
    if not found:
        return ()
    corners, pairs = zip(*found, strict=True)
    x = domain.sample(_N_POINTS, np.random.RandomState(0), "sobol")
    with backend.scope("float64"):
        places = np.tile(domain.bounds.mean(axis=1), (len(corners), 1))  # of edges
        for place, corner in zip(places, corners, strict=True):
            place[list(corner.axes)] = corner.place
        residuals = backend.to_numpy(_residuals_of_values(problem, pairs, places, x))
    at_corner, inside = np.abs(residuals[:, 0]), np.abs(residuals[:, 1:]).max(axis=1)
    contradicted = at_corner > _AGREE * inside
    return tuple(c for c, wrong in zip(corners, contradicted, strict=True) if wrong)


@partial(evaluated_by_numpy, static_argnames=("problem", "pairs"))
def _residuals_of_values(problem, pairs, places, x):
    """Residuals (n, 1 + m), at each corner and at points, of a function for each.

    It is the sum of the values on the two sides, ``g(y) + h(x)``, without the ones that
    they share.
    """

    def value(condition, x):
        given = condition.value
        if callable(given):
            given = call(given, (x,), problem.start)
        return jnp.ravel(jnp.asarray(given, x.dtype))

    def at(x, place, first, second):
        (i, of_first), (j, of_second) = first, second

        def both(x):
            on_first, on_second = x.at[i].set(place[i]), x.at[j].set(place[j])
            shared = value(of_first, on_first.at[j].set(place[j]))
            return value(of_first, on_first) + value(of_second, on_second) - shared

        return jnp.ravel(problem._equation_at(both, x))

    rows = []
    for place, (first, second) in zip(places, pairs, strict=True):
        points = jnp.concatenate([place[None], x])
        rows.append(
            jax.vmap(partial(at, place=place, first=first, second=second))(points)
        )
    return jnp.stack(rows)[..., 0]
