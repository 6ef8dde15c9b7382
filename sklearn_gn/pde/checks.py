"""Checks of a problem: mistakes are found before anything large is compiled."""

from contextlib import contextmanager
from functools import partial
from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.backend import scope, to_numpy
from sklearn_gn.arrays.numpy_programs import evaluated_by_numpy
from sklearn_gn.pde.calls import check_signature, named_parameters
from sklearn_gn.pde.coefficients import as_array
from sklearn_gn.pde.conditions import BaseCondition
from sklearn_gn.pde.corner_values import check_shared_places
from sklearn_gn.pde.domains import Domain
from sklearn_gn.pde.jumps import warn_of_jumps, warn_of_lost_jumps
from sklearn_gn.pde.local_functions import expanded, fields_and_points, wave_at
from sklearn_gn.pde.mistakes import explained_errors
from sklearn_gn.pde.plausibility import (
    check_equations,
    warn_of_fluxes,
    warn_of_points_outside,
)
from sklearn_gn.pde.reference import is_reference

_POINTS = 4  # of each residual class, at which it is evaluated
_MOST_AXES = 1000  # beyond these an evaluation costs more than it tells
_LEVELS = (0.0, 2.0, -2.0)  # about which the smooth fields oscillate


def check_problem(problem, default_network=True):
    """Check names, shapes, and that residuals are finite and depend on the field.

    Equations must not contradict each other, nor must values at the same places.

    Warns of what is allowed but rarely intended: more equations than outputs,
    conditions at points outside of the domain, values that jump, or contradict each
    other where two parts of the boundary meet, or the boundary and the start of time,
    derivatives of products with coefficients that jump, and a pure Neumann problem of
    the Laplacian whose source and slopes do not cancel.

    Parameters
    ----------
    problem : Problem
    default_network : bool, default=True
        Whether to warn of no jumps that the default network follows.

    Raises
    ------
    ValueError
        With the name of the argument or condition.
    """
    _check_arguments(problem)
    problem.residual_classes()
    if problem.exact is not None and not is_reference(problem.exact):
        x = jax.ShapeDtypeStruct((problem.domain.dim,), np.float64)
        with jax.enable_x64(True), named_errors("exact"), explained_errors():
            jax.eval_shape(lambda x: problem.as_outputs(problem.exact(x), "exact"), x)
    rng = np.random.RandomState(0)
    points = problem.probes(_POINTS, rng)
    if problem.domain.dim <= _MOST_AXES:
        _check_residuals(problem, points, rng)
        check_equations(problem, points["interior"], _LEVELS, rng)
    check_shared_places(problem)
    warn_of_points_outside(problem, points)
    warn_of_jumps(problem, default_network)
    warn_of_lost_jumps(problem)
    warn_of_fluxes(problem)


@contextmanager
def named_errors(name):
    """Turn errors into ValueErrors that say where they come from."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{name}: {error}") from error


def _check_arguments(problem):
    _check_functions_and_domain(problem)
    _check_conditions(problem)
    _check_names(problem)
    directions = problem.n_laplacian_directions
    if directions is not None and not (
        isinstance(directions, Integral) and directions > 0
    ):
        raise ValueError(
            "n_laplacian_directions must be None or a positive integer, got "
            f"{directions!r}."
        )
    _check_depends_on(problem)
    _check_coefficients(problem)


def _check_functions_and_domain(problem):
    for name, wanted in (
        ("residual", "a function"),
        ("domain", "a domain such as Interval(0, 1) or Box(x=(0, 1), t=(0, 1))"),
        ("transform", "a function"),
        ("exact", "a function or a reference"),
    ):
        value = getattr(problem, name)
        fits = isinstance(value, Domain) if name == "domain" else callable(value)
        absent = name in ("transform", "exact") and value is None
        if not (fits or absent or (name == "exact" and is_reference(value))):
            raise ValueError(f"{name} must be {wanted}, got {value!r}.")


def _check_conditions(problem):
    for condition in problem.conditions:
        if not isinstance(condition, BaseCondition):
            raise ValueError(
                "conditions must hold conditions, such as Dirichlet(0.0) or "
                f"Initial(1.0), got {condition!r}."
            )
        if condition.name == "data":
            raise ValueError(
                "a condition cannot have the name 'data', which is that of the "
                "residuals of observations."
            )


def _check_names(problem):
    """Check the outputs, and what names outputs or axes."""
    names = problem.outputs
    if not names or len(set(names)) < len(names) or not _all_strings(names):
        raise ValueError(f"outputs must be different names, got {names!r}.")
    for axis in problem.periodic:
        if axis not in problem.domain.axes:
            raise ValueError(
                f"periodic={axis!r} is unknown; the axes are {problem.domain.axes}."
            )
    for output in problem.up_to_constant:
        if output not in names:
            raise ValueError(
                f"up_to_constant={output!r} is unknown; the outputs are {names}."
            )


def _check_depends_on(problem):
    for output, axes in problem.depends_on.items():
        if output not in problem.outputs or len(problem.outputs) == 1:
            raise ValueError(
                f"depends_on={{{output!r}: ...}} must name one of several outputs; the "
                f"outputs are {problem.outputs}."
            )
        for axis in axes:
            if axis not in problem.domain.axes:
                raise ValueError(
                    f"depends_on: axis {axis!r} is unknown; the axes are "
                    f"{problem.domain.axes}."
                )


def _check_coefficients(problem):
    """Check that functions name coefficients, and that each of these has a use."""
    names = tuple(problem.coefficients)
    with named_errors("residual"):
        check_signature(problem.residual, 2, names, "the field and the point")
    calls = [(problem.residual, 2)]
    for condition in problem.conditions:
        for function, n_given in condition.functions:
            what = "the field and the point" if n_given == 2 else "the point"
            extra = ("normal",) if n_given == 2 else ()
            with named_errors(condition.name or condition.kind):
                check_signature(function, n_given, (*extra, *names), what)
            calls.append((function, n_given))
    named = [named_parameters(*entry) for entry in calls]
    for name in names:
        if not any(takes_all or name in found for found, takes_all in named):
            raise ValueError(
                f"the coefficient {name!r} is a parameter of neither the residual nor "
                "the function of a condition: name it among the parameters where it is "
                "needed, or leave it out."
            )


def _all_strings(names):
    return all(isinstance(name, str) for name in names)


def _check_residuals(problem, points, rng):
    """Check that residuals are finite, and that each can be changed by the field."""
    unknown = {n: as_array(c.initial) for n, c in problem.unknown.items()}
    found = _at_smooth_fields(problem, points, unknown, rng)
    for name, values in found.items():
        failed = (~np.isfinite(values).all(axis=2)).all(axis=0)
        if failed.any():
            x = points[name].x[failed][0].tolist()
            raise ValueError(
                f"{name}: the residual is NaN or infinite at {x} for smooth fields."
            )
    stuck = {name: _without_field(values) for name, values in found.items()}
    if problem.transform is not None:  # which may fulfil conditions by itself
        stuck = {"interior": stuck["interior"]}
    if problem.unknown and any(numbers.any() for numbers in stuck.values()):
        others = {name: 1.1 * value + 0.1 for name, value in unknown.items()}
        moved = _at_smooth_fields(problem, points, others, rng)
        stuck = {
            name: numbers & _without_field(np.stack([found[name], moved[name]])[:, 0])
            for name, numbers in stuck.items()
        }
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


def _without_field(values):
    """Which residuals have the same values for all fields, and not zero.

    Of values (fields, points, residuals).
    """
    same = (values == values[0]).all(axis=(0, 1))
    return same & (values[0] != 0).any(axis=0)


def _at_smooth_fields(problem, points, unknown, rng):
    """Residuals (fields, points, k) of each class, for a field about each level."""
    found = []
    shape = len(problem.outputs), problem.n_inputs
    for level in _LEVELS:  # a logarithm or a root needs fields of one sign
        weights = rng.normal(size=shape) / np.sqrt(problem.n_inputs)
        with scope("float64"):
            found.append(
                to_numpy(
                    _residuals_of_smooth_field(
                        problem, np.float64(level), weights, unknown, points
                    )
                )
            )
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


@partial(evaluated_by_numpy, static_argnames="problem")
def _residuals_of_smooth_field(problem, level, weights, unknown, points):
    """All residuals of a smooth field about a level."""
    known_at = _smooth_field(problem, level, weights)

    def values(kind, points):
        def one(x, data):
            fields, x = fields_and_points(problem, known_at, x)
            return kind.function(fields, x, data, problem.known | unknown)

        return jax.vmap(one)(points.x, points.data)

    return {
        kind.name: values(kind, points[kind.name])
        for kind in problem.residual_classes()
    }


def _smooth_field(problem, level, weights):
    """A sine of the network's inputs, as a function of the point to know it at."""
    weights = jnp.pi * weights
    if problem.periodic:
        return partial(
            expanded, lambda x: level + jnp.sin(weights @ problem.embedding(x))
        )
    low, high = problem.domain.bounds.T
    vectors = weights * (2 / (high - low))[None]
    phase = weights @ problem.embedding(np.zeros_like(low))
    sines, cosines = jnp.cos(phase), jnp.sin(phase)
    return partial(wave_at, vectors=vectors, cosines=cosines, sines=sines, level=level)
