"""Statements that are complete and yet cannot be meant, or are seldom meant.

What certainly has no solution is an error: two equations whose difference is a number
other than zero whatever the field is. (:mod:`sklearn_gn.pde.checks` finds a residual
that does not depend on the field.) What may be
meant is a warning: a least-squares fit of more equations than outputs is a method.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn._caller import warn_user
from sklearn_gn.arrays.backend import scope, to_numpy
from sklearn_gn.arrays.numpy_programs import evaluated_by_numpy
from sklearn_gn.pde.conditions import Neumann
from sklearn_gn.pde.domains import Domain
from sklearn_gn.pde.given_values import values_of
from sklearn_gn.pde.operators import laplacian
from sklearn_gn.pde.outlines import Ellipse, PointCloud, Polygon
from sklearn_gn.pde.patches import draw
from sklearn_gn.pde.shapes import Ball, Box

_SAME = 1e-9  # the same of numbers that differ by rounding errors
_QUADRATURE = 1024  # points of an integral over the domain, and over its boundary
_UNBALANCED = 0.02  # what is left of two integrals, relative to their absolute values


# --- equations and outputs -----------------------------------------------------------


def check_equations(problem, points, levels, rng):
    """Check that equations do not contradict each other.

    Parameters
    ----------
    problem : Problem
    points : Points
        Of the interior.
    levels : sequence of float
        About which the fields oscillate.
    rng : RandomState

    Raises
    ------
    ValueError
        If two equations differ by a number that the field cannot change.
    """
    n_equations, outputs = problem.residual_classes()[0].n_outputs, problem.outputs
    if n_equations <= len(outputs):
        return
    if not problem.unknown:
        shape = len(levels), len(outputs), problem.n_inputs
        weights = rng.normal(size=shape) / np.sqrt(problem.n_inputs)
        with scope("float64"):
            found = [
                to_numpy(_with_slopes(problem, np.float64(level), one, points))
                for level, one in zip(levels, weights, strict=True)
            ]
        rows = np.concatenate([r for r, _ in found])
        slopes = np.concatenate([s for _, s in found])
        if np.isfinite(rows).all() and np.isfinite(slopes).all():
            _check_contradictions(problem, rows, slopes)
    warn_user(
        f"The residual has {n_equations} equations for the {_named(outputs)}. They "
        "hold together only if they agree; else the fit is a compromise between them."
        f"{_hint_at_the_point(problem)}",
    )


def _check_contradictions(problem, rows, slopes):
    """Of values (n, k) and their slopes (n, k, m) in the parameters of the fields."""
    k = rows.shape[1]
    for i, j in zip(*np.triu_indices(k, 1), strict=True):
        differ = np.abs(rows[:, i] - rows[:, j])
        apart = differ > _SAME * (np.abs(rows[:, i]) + np.abs(rows[:, j]))
        moved = np.abs(slopes[:, i] - slopes[:, j]).max()
        if apart.any() and moved <= _SAME * np.abs(slopes[:, [i, j]]).max():
            raise ValueError(
                f"interior: the equations {i + 1} and {j + 1} of {k} contradict each "
                "other: their difference is not zero, whatever the field is."
                f"{_hint_at_the_point(problem)}"
            )


def _hint_at_the_point(problem):
    """What to write where the point seems to have been taken as a number."""
    domain = problem.domain
    if problem.residual_classes()[0].n_outputs != domain.dim or domain.dim < 2:
        return ""
    axes = ", ".join(f"x[{k}] is {name!r}" for k, name in enumerate(domain.axes[:3]))
    return (
        f" Is the point x taken for a number? It has {domain.dim}: write one of them, "
        f"such as jnp.sin(x[0]), not jnp.sin(x); {axes}."
    )


@partial(evaluated_by_numpy, static_argnames="problem")
def _with_slopes(problem, level, weights, points):
    """Residuals of the equation, and their slopes in level and weights of the field."""
    kind = problem.residual_classes()[0]

    def residual(parameters, x, data):
        level, weights = parameters
        field = problem.field(
            lambda x: level + jnp.sin(jnp.pi * (weights @ problem.embedding(x)))
        )
        return kind.function((field,) * kind.n_points, x, data, problem.start)

    def one(x, data):
        given = level, weights
        slopes = jax.jacfwd(residual)(given, x, data)
        flat = [s.reshape(kind.n_outputs, -1) for s in slopes]
        return residual(given, x, data), jnp.concatenate(flat, axis=1)

    return jax.vmap(one)(points.x, points.data)


def warn_of_missing_equations(problem):
    """Warn if there are fewer equations than outputs, and nothing to make up for it.

    To be asked where there are no observations. Conditions inside of the domain may
    determine an output, and those on the boundary an unknown function of some axes.
    """
    n_equations, outputs = problem.residual_classes()[0].n_outputs, problem.outputs
    inside = any(
        isinstance(getattr(c, "on", None), (Domain, PointCloud))
        for c in problem.conditions
    )
    if n_equations >= len(outputs) or problem.depends_on or inside:
        return
    plural = "s" * (n_equations > 1)
    warn_user(
        f"The residual has {n_equations} equation{plural} for the {_named(outputs)}, "
        "and there are no observations: the outputs are not determined. Return a "
        "residual for each of them, as a tuple.",
    )


def warn_of_points_outside(problem, points):
    """Warn of conditions at points where the equation does not hold."""
    domain = problem.domain
    for name, (x, _) in points.items():
        x = x.reshape(-1, domain.dim)
        outside = domain._is_outside(x)
        if outside.any():
            warn_user(
                f"{name}: {outside.sum()} of {len(x)} points lie outside of the "
                f"domain, such as {x[outside][0].tolist()}: the equation does not hold "
                "there, and the condition says nothing about it. Enlarge the domain, "
                "or check the units and the order of the coordinates, which is "
                f"{domain.axes}."
            )


def _named(outputs):
    if len(outputs) == 1:
        return f"one output {outputs[0]!r}"
    return f"{len(outputs)} outputs {outputs}"


# --- the source and the flux of a Laplacian ------------------------------------------


def warn_of_fluxes(problem):
    """Warn if a pure Neumann problem of the Laplacian has no solution.

    By Gauss' theorem ``c laplacian(u) + f = 0`` with the slopes g on the whole boundary
    needs the integral of f and c times that of g to cancel out.
    """
    domain, rng = problem.domain, np.random.RandomState(0)
    if not _is_pure_neumann(problem):
        return
    (inside, _), (rim, _) = (
        draw(patch, _QUADRATURE, rng)
        for patch in (domain.interior(), domain.boundary())
    )
    weights = rng.normal(size=(2 * domain.dim, domain.dim)) / np.sqrt(domain.dim)
    with scope("float64"):
        source, change, curvature = to_numpy(_laplacian_parts(problem, weights, inside))
    c = curvature @ change / (curvature @ curvature)
    if not np.allclose(change, c * curvature, rtol=0, atol=_SAME * abs(change).max()):
        return
    flux = c * values_of(problem, problem.conditions[:1], [rim])[0][1][:, 0]
    area, length = (
        np.exp(p.log_measure) for p in (domain.interior(), domain.boundary())
    )
    total = area * source.mean() + length * flux.mean()
    size = area * np.abs(source).mean() + length * np.abs(flux).mean()
    if np.abs(total) > _UNBALANCED * size:
        warn_user(
            "No solution exists: integrated over the domain, the equation without u is "
            f"{area * source.mean():.3g}, and the slopes of the Neumann condition "
            f"contribute {length * flux.mean():.3g}; the sum of both must be zero.",
        )


def _is_pure_neumann(problem):
    plain = not (problem.transform or problem.periodic or problem.unknown)
    plain = plain and problem.n_laplacian_directions is None
    if not plain or len(problem.outputs) > 1 or len(problem.conditions) != 1:
        return False
    (condition,) = problem.conditions
    whole = isinstance(condition, Neumann) and condition.on == "boundary"
    one = problem.residual_classes()[0].n_outputs == 1
    shape = isinstance(problem.domain, (Ball, Box, Ellipse, Polygon))  # known measures
    return whole and one and shape and problem.domain.time is None


@partial(evaluated_by_numpy, static_argnames="problem")
def _laplacian_parts(problem, weights, X):
    """Residual of zero, its change by a smooth field, and the field's Laplacian."""

    def zero(x):
        return jnp.zeros(1, x.dtype)

    def waves(x):  # of all directions, and no eigenfunction of the Laplacian
        return jnp.sum(jnp.exp(jnp.sin(2.0 + weights @ problem.embedding(x))))[None]

    def one(x):
        of_zero, of_waves = (problem._equation_at(u, x)[0] for u in (zero, waves))
        return of_zero, of_waves - of_zero, laplacian(problem.field(waves))(x)

    return jax.vmap(one)(X)
