"""Checks of a problem, before anything large is compiled.

What certainly has no solution is an error, such as two equations whose difference is a
number other than zero whatever the field is, or a residual that does not depend on the
field. What may be meant is a warning: a least-squares fit of more equations than
outputs is a method.
"""

from itertools import combinations
from numbers import Integral

import jax
import numpy as np

from sklearn_gn._caller import warn_user
from sklearn_gn.pde import reading
from sklearn_gn.pde.conditions import BaseCondition, Neumann, Points
from sklearn_gn.pde.domains import Domain, PointCloud, measured
from sklearn_gn.pde.given_values import MANY_POINTS, ROUNDING, is_reference, values_of
from sklearn_gn.pde.jumps import MOST_AXES, check_fluxes, check_shared_places, jumps
from sklearn_gn.pde.regions import RegionalResidual
from sklearn_gn.pde.residual_classes import (
    check_signature,
    explained_errors,
    named_parameters,
)

_POINTS = 4  # of each residual class, at which it is evaluated
_MOST_AXES = 1000  # beyond these an evaluation costs more than it tells


def check_problem(problem, default_network=True):
    """Check a problem, and warn of what is rarely meant: see :meth:`Problem.check`."""
    _check_arguments(problem)
    _check_coefficients(problem)
    if isinstance(problem.residual, RegionalResidual):
        problem.residual.check(problem.domain)
    problem.residual_classes()
    if problem.exact is not None and not is_reference(problem.exact):
        x = jax.ShapeDtypeStruct((problem.domain.dim,), np.float64)
        with jax.enable_x64(True), explained_errors("exact"):
            jax.eval_shape(lambda x: problem._as_outputs(problem.exact(x), "exact"), x)
    rng = np.random.RandomState(0)
    points = problem.probes(_POINTS, rng)
    if problem.domain.dim <= _MOST_AXES:
        _check_residuals(problem, points, rng)
    check_fluxes(problem)
    check_shared_places(problem)
    if problem._is_placed:
        _warn_of_points_outside(problem, points)
    for message in jumps(problem, default_network):
        warn_user(message)
    if [type(condition) for condition in problem.conditions] == [Neumann]:
        _warn_of_fluxes(problem)


def _check_arguments(problem):
    """Check the types of all arguments, and the names of axes and outputs in them."""
    domain = "a domain such as Interval(0, 1) or Box(x=(0, 1), t=(0, 1))"
    exact, transform = problem.exact, problem.transform
    known = exact is None or callable(exact) or is_reference(exact)
    for name, wanted, fits in (
        ("residual", "a function", callable(problem.residual)),
        ("domain", domain, isinstance(problem.domain, Domain)),
        ("transform", "a function", transform is None or callable(transform)),
        ("exact", "a function or a reference", known),
    ):
        if not fits:
            given = getattr(problem, name)
            raise ValueError(f"{name} must be {wanted}, got {given!r}.")
    for condition in problem.conditions:
        if not isinstance(condition, BaseCondition):
            raise ValueError(
                "conditions must hold conditions, such as Dirichlet(0.0) or "
                f"Initial(1.0), got {condition!r}."
            )
        if condition.name == "data":
            raise ValueError(
                "a condition cannot have the name 'data', which belongs to "
                "the residuals of observations."
            )
    names, axes = problem.outputs, problem.domain.axes
    strings = all(isinstance(name, str) for name in names)
    if not names or len(set(names)) < len(names) or not strings:
        raise ValueError(f"outputs must be different names, got {names!r}.")
    for argument, given, known in (
        ("periodic=", problem.periodic, axes),
        ("up_to_constant=", problem.up_to_constant, names),
        ("depends_on: axis ", sum(problem.depends_on.values(), ()), axes),
    ):
        what = "axes" if known is axes else "outputs"
        for name in set(given) - set(known):
            raise ValueError(f"{argument}{name!r} is unknown; the {what} are {known}.")
    n = problem.n_laplacian_directions
    if n is not None and not (isinstance(n, Integral) and n > 0):
        raise ValueError(
            f"n_laplacian_directions must be None or a positive integer, got {n!r}."
        )
    for output in problem.depends_on:
        if output not in names or len(names) == 1:
            raise ValueError(
                f"depends_on={{{output!r}: ...}} must name one of several outputs; the "
                f"outputs are {names}."
            )


def _check_coefficients(problem):
    """Check that functions name coefficients, and that each of these has a use."""
    names, both = tuple(problem.coefficients), "the field and the point"
    calls = [("residual", problem.residual, 2, both, names)]
    for condition in problem.conditions:
        own = condition.name or type(condition).__name__.lower()
        for argument in ("value", "a", "b"):
            value = getattr(condition, argument, None)
            calls.append((own, value, 1, "the point", names))
        equation = getattr(condition, "residual", None)
        calls.append((own, equation, 2, both, ("normal", *names)))
    named = []
    for own, function, n_given, what, given in calls:
        if callable(function):
            with explained_errors(own):
                check_signature(function, n_given, given, what)
            named.append(named_parameters(function, n_given))
    for name in names:
        if not any(takes_all or name in found for found, takes_all in named):
            raise ValueError(
                f"the coefficient {name!r} is a parameter of neither the residual nor "
                "the function of a condition: name it among the parameters where it is "
                "needed, or leave it out."
            )


def _check_residuals(problem, points, rng):
    """Check that residuals are finite, and that smooth fields change each of them."""
    # Three smooth fields, and the first one with other coefficients.
    size = np.ptp(problem.domain.bounds, axis=1)
    levels = np.tile([[0.0], [2.0], [-2.0], [0.0]], len(problem.outputs))
    vectors = rng.normal(size=(3, levels.shape[1], len(size)))[[0, 1, 2, 0]]
    vectors = 2 * np.pi * vectors / size / np.sqrt(len(size))
    ones = np.ones(levels.shape)
    waves = reading.PlaneWaves(vectors, 0 * ones, ones, levels)
    given = {name: problem.start[name] for name in problem.unknown}
    given = {n: np.stack([a, a, a, 1.1 * a + 0.1]) for n, a in given.items()}
    stuck, equations = {}, None
    for kind in problem.residual_classes():
        own = points[kind.name]
        rows = reading.residuals_of_waves(problem, kind, own, waves, given)
        values, changed = np.moveaxis(rows[:, :3], 1, 0), np.moveaxis(rows, 1, 0)[::3]
        failed = (~np.isfinite(values).all(axis=2)).all(axis=0)
        if failed.any():
            raise ValueError(
                f"{kind.name}: the residual is NaN or infinite at "
                f"{own.x[failed][0].tolist()} for smooth fields."
            )
        equations = values if equations is None else equations
        # A transform may fulfil conditions by itself.
        if problem.transform is None or kind.name == "interior":
            stuck[kind.name] = _without_field(values)
            if problem.unknown:
                stuck[kind.name] &= _without_field(changed)
    for name, numbers in stuck.items():
        if numbers.any():
            what = "the residual does"
            if len(numbers) > 1:
                listed = ", ".join(str(k + 1) for k in np.flatnonzero(numbers))
                what = f"of its {len(numbers)} residuals, number {listed} does"
            raise ValueError(
                f"{name}: {what} not depend on the field u, so that no solution can "
                "make it vanish. Is u(x) or d(u, ...)(x) missing?"
            )
    if equations.shape[2] > len(problem.outputs):
        _check_equations(problem, equations)


@np.errstate(invalid="ignore")  # of exponentials that overflow for some fields
def _without_field(values, rounding=None):
    """Which residuals (fields, points, k) are the same for all fields, and not zero."""
    rounding = 0 * values if rounding is None else rounding
    same = (np.abs(values - values[0]) <= rounding).all(axis=(0, 1))
    return same & (np.abs(values[0]) > np.max(rounding, axis=0)).any(axis=0)


def _check_equations(problem, values):
    """Find two of too many equations that differ by a number that is not zero."""
    n_equations, outputs = values.shape[2], problem.outputs
    for i, j in combinations(range(n_equations), 2):
        a, b = values[..., i], values[..., j]
        rounding = ROUNDING * (np.abs(a) + np.abs(b))[..., None]
        if not problem.unknown and _without_field((a - b)[..., None], rounding).any():
            raise ValueError(
                f"interior: the equations {i + 1} and {j + 1} of {n_equations} "
                "contradict each other: their difference is not zero, whatever the "
                f"field is.{_hint_at_the_point(problem)}"
            )
    named = f"one output {outputs[0]!r}"
    if len(outputs) > 1:
        named = f"{len(outputs)} outputs {outputs}"
    warn_user(
        f"The residual has {n_equations} equations for the {named}. They hold together "
        "only if they agree; else the fit is a compromise between them."
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


def warn_of_missing_equations(problem):
    """Warn if there are fewer equations than outputs, and nothing to make up for it."""
    n_equations, outputs = problem.residual_classes()[0].n_outputs, problem.outputs
    if n_equations >= len(outputs) or problem.depends_on or problem._is_placed:
        return
    plural = "s" * (n_equations > 1)
    warn_user(
        f"The residual has {n_equations} equation{plural} for the {len(outputs)} "
        f"outputs {outputs}, and there are no observations: the outputs are not "
        "determined. Return a residual for each of them, as a tuple."
    )


def _warn_of_points_outside(problem, points):
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


def _warn_of_fluxes(problem):
    """Warn if source and slopes of a Neumann problem of the Laplacian do not cancel."""
    domain, (condition,) = problem.domain, problem.conditions
    rng = np.random.RandomState(0)
    others = problem.transform, problem.periodic, problem.unknown, domain.time
    if any(others) or problem.n_laplacian_directions is not None:
        return
    kind = problem.residual_classes()[0]
    sampled = not isinstance(domain, PointCloud) and domain.dim <= MOST_AXES
    single = len(problem.outputs) == kind.n_outputs == 1
    if not (sampled and single and condition.on == "boundary"):
        return
    inside, _, area = measured(domain.interior(), MANY_POINTS, rng)
    rim, _, length = measured(domain.boundary(), MANY_POINTS, rng)
    slopes = reading.slopes_of_equation(problem, inside, 0.0)[:, 0, :, 0]
    inside = Points(inside[:, None], inside[:, :0])
    zero = reading.constants([[0.0]], domain.dim)
    source = reading.residuals_of_waves(problem, kind, inside, zero)[:, 0, 0]
    known = reading.derivatives(domain.dim)
    second = [known.index((k, k)) for k in range(domain.dim)]
    c, expected = slopes[0, second[0]], np.zeros_like(slopes)
    expected[:, second] = c
    if not np.allclose(slopes, expected, rtol=0, atol=ROUNDING * abs(slopes).max()):
        return
    flux = c * values_of(problem, [condition], [rim])[0][:, 0]
    total = area * source.mean() + length * flux.mean()
    size = area * np.abs(source).mean() + length * np.abs(flux).mean()
    if np.abs(total) > size / np.sqrt(MANY_POINTS):  # the error of the means
        warn_user(
            "No solution exists: integrated over the domain, the equation without u is "
            f"{area * source.mean():.3g}, and the slopes of the Neumann condition "
            f"contribute {length * flux.mean():.3g}; the sum of both must be zero."
        )
