"""What a fit of PINNSolver is given: problems and observations, validated."""

from collections.abc import Iterable
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from sklearn_gn._caller import warn_user
from sklearn_gn.arrays import backend
from sklearn_gn.data.rows import (
    canonical_rows,
    check_sample_weight,
    validate_data,
    validation_split,
)
from sklearn_gn.data.units import Units
from sklearn_gn.pde import Box, Condition, Problem
from sklearn_gn.pde.checks import check_problem, warn_of_missing_equations
from sklearn_gn.pde.given_values import JUMP
from sklearn_gn.pinn.iteration import batch_of
from sklearn_gn.pinn.statement import read, warn_of_redundant_derivatives
from sklearn_gn.runtime.fingerprint import known


class FitData(NamedTuple):
    """What is fitted: an equation, observations, or both."""

    problem: Problem | None  # None: plain regression
    frame: Problem  # the problem, or what stands in for it
    observed: tuple  # numbers of the outputs that y holds, or functions
    single_target: bool  # whether predictions have one dimension
    callback_data: dict
    training: Any = None  # Batch of observations, or None
    validation: Any = None
    n_observations: float = 0.0  # sum of their weights
    scaling: Units | None = None  # of plain regression


def problem_sequence(problem, default_network):
    """Split the parameter ``problem`` into pairs (Problem, n_iter) and the last one."""
    if problem is None:
        return [], None
    if isinstance(problem, Problem):
        problem = [problem]
    if isinstance(problem, str) or not isinstance(problem, Iterable):
        raise ValueError(
            "problem must be a Problem, None, or a list of pairs (Problem, n_iter) "
            f"that ends in the Problem to solve, got {problem!r}."
        )
    *stages, problem = [*problem] or [None]
    for entry in stages:
        pair = isinstance(entry, (tuple, list)) and len(entry) == 2
        pair = pair and isinstance(entry[0], Problem)
        if not (pair and isinstance(entry[1], Integral) and entry[1] >= 1):
            raise ValueError(
                "problem must hold pairs (Problem, n_iter) before the Problem to "
                f"solve, got {entry!r}."
            )
    if not isinstance(problem, Problem):
        raise ValueError(f"problem must end in the Problem to solve, got {problem!r}.")
    # In place of equal ones: what is compiled belongs to the functions of a problem.
    stages, problem = [(known(stage), n) for stage, n in stages], known(problem)
    check_problem(problem, default_network)
    for stage, _ in stages:
        check_problem(stage, default_network)
        names = [[kind.name for kind in p.residual_classes()] for p in (stage, problem)]
        frames = [(p.outputs, p.n_inputs, list(p.unknown)) for p in (stage, problem)]
        if frames[0] != frames[1] or names[0] != names[1]:
            raise ValueError(
                "problem must be a sequence of problems with the outputs, axes, "
                "conditions and unknown coefficients of the last one; "
                f"{stage!r} differs."
            )
    return stages, problem


def checked_data(estimator, problem, X, y, sample_weight, X_val, y_val, rng):
    """Validate the data of a fit, and set ``n_features_in_``."""
    if X is None and y is None:
        others = {"sample_weight": sample_weight, "X_val": X_val, "y_val": y_val}
        return _equation_alone(estimator, problem, others)
    if X is None:
        raise ValueError("y needs the points of its observations: call fit(X, y).")
    missing = missing_val = None
    if problem is not None:
        X, X_val = (in_order_of_axes(a, problem) for a in (X, X_val))
        (y, missing), (y_val, missing_val) = map(_without_missing, (y, y_val))
    X, y = validate_data(
        estimator, X, y, multi_output=True, y_numeric=True, dtype=np.float64
    )
    weight = check_sample_weight(sample_weight, X)
    metadata = None if sample_weight is None else {"sample_weight": weight}
    callback_data = {"X": X, "y": y, "metadata": metadata}
    n_targets = 1 if y.ndim == 1 else y.shape[1]
    validation = estimator._check_validation(X_val, y_val, n_targets)
    if validation is not None:
        X_val, y_val, _ = validation
        if missing_val is not None:
            y_val = np.where(missing_val, np.nan, y_val)
        validation = X_val, y_val
    single_target = y.ndim == 1 if problem is None else len(problem.outputs) == 1
    y = y.reshape(len(y), -1).astype(np.float64)
    content = y
    if missing is not None:
        content, weight = np.hstack([y, missing]), weight * ~missing.all(axis=1)
        y = np.where(missing, np.nan, y)
        _check_observed(y[weight > 0])
    # Distinct rows in order, their shares, and the sum of all weights.
    kept, share = canonical_rows(X, content, weight)
    with np.errstate(over="ignore"):
        X, y, n_observations = X[kept], y[kept], weight.sum()
    scaling, frame = None, problem
    if problem is None:
        if estimator.early_stopping and validation is None:
            train, val = validation_split(len(X), 0.1, rng)
            train, val = np.sort(train), np.sort(val)
            validation = X[val], y[val]
            X, y, share = X[train], y[train], share[train]
            n_observations *= share.sum()
            share = share / share.sum()
        scaling = Units.of(X, y, share)
        frame = Problem(  # no equation, axes in standard units
            _no_residual,
            Box(**{f"x{k}": (-1.0, 1.0) for k in range(X.shape[1])}),
            outputs=tuple(f"y{k}" for k in range(n_targets)),
        )
    observed = _observed_outputs(estimator.observed_outputs, frame)
    dim = frame.domain.dim
    if len(observed) != n_targets:
        names = [k if callable(k) else frame.outputs[k] for k in observed]
        raise ValueError(
            f"y has {n_targets} columns; observed are the outputs {names}. Name "
            "those that y holds by observed_outputs."
        )
    if X.shape[1] != dim:
        raise ValueError(
            f"X has {X.shape[1]} columns; the problem has the {dim} axes "
            f"{frame.domain.axes}."
        )
    if problem is not None:
        X, y, share = _only_inside(problem, X, y, share)
        _check_observed(y)
        n_observations, share = n_observations * share.sum(), share / share.sum()
        if validation is not None:
            validation = _only_inside(problem, *validation)
    # The precision of the fit has to hold the data and their weight.
    largest, weight = float(np.finfo(estimator.dtype).max), estimator.observation_weight
    if weight != "auto" and weight > largest:
        raise ValueError(
            f"observation_weight must be at most {largest:.3g} with "
            f"dtype={estimator.dtype!r}, got {weight!r}."
        )
    for name, values in (("X", X), ("y", y)):
        size = np.nanmax(np.abs(values))
        if problem is not None and size > largest:
            raise ValueError(
                f"{name} holds a number of size {size:.3g}, more than "
                f"dtype={estimator.dtype!r} can: choose other units, or "
                "dtype='float64'."
            )
    weight = 1.0 if weight == "auto" else weight  # to begin with
    given = {"total_weight": weight, "scaling": scaling, "dtype": estimator.dtype}
    batch = partial(observation_batch, frame, **given)
    if validation is not None:
        n_val = len(validation[0])
        validation = batch(*validation, np.full(n_val, 1 / n_val))
    return FitData(
        problem=problem,
        frame=frame,
        observed=observed,
        single_target=single_target,
        training=batch(X, y, share),
        validation=validation,
        n_observations=n_observations,
        scaling=scaling,
        callback_data=callback_data,
    )


def _no_residual(u, x):
    return u(x) - u(x)


def observation_batch(problem, X, y, weight, total_weight, scaling, dtype):
    """Observations, NaN where missing, padded by their last row with weight zero."""
    if scaling is not None:
        X, y = scaling.x(X), (y - scaling.y_center) / scaling.y_scale
        limits = np.finfo(dtype)  # rows of hardly any weight may be very far
        y = np.clip(y, limits.min, limits.max)
    n = backend.row_bucket(len(X))
    # Zeros may lie outside of a domain.
    rows = np.minimum(np.arange(n), len(X) - 1)
    weight = n * total_weight * backend.pad_rows(weight, n)
    there = ~np.isnan(y)
    if y.shape[1] > 1 and scaling is None:
        y = np.hstack([y, np.ones_like(y)])  # with factors of the misfits
    if not there.all():  # the mean square is that of the numbers that are there
        weight = weight * weight.sum() / (weight[: len(y)] @ there.mean(axis=1))
    return batch_of(problem._all_points(X[rows, None]), y[rows], weight, dtype)


def _equation_alone(estimator, problem, others):
    """Return the data of a fit without observations, and without what they need."""
    if problem is None:
        raise ValueError(
            "fit() without data needs an equation: PINNSolver(problem=Problem(...)). "
            "Without one, fit(X, y) is plain regression."
        )
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} needs observations: X and y are missing.")
    if problem.unknown and (unknown := without_data(problem)):
        warn_user(
            f"The coefficients {unknown} are Unknown, and there are no observations "
            "and no Condition to find them from: call fit(X, y). If they are "
            "eigenvalues, add a Condition that fixes the size of the solution, such as "
            "its value at a point or its norm."
        )
    warn_of_missing_equations(problem)
    has_orders = any(condition.order for condition in problem.conditions)
    if has_orders and not problem.unknown:
        warn_of_redundant_derivatives(problem)
    estimator.n_features_in_ = problem.domain.dim
    observed = _observed_outputs(estimator.observed_outputs, problem)
    given = {"X": None, "y": None, "metadata": None}
    return FitData(problem, problem, observed, len(problem.outputs) == 1, given)


def _without_missing(y):
    """Observations with zeros for NaN, and where these were, or None."""
    if y is None:
        return y, None
    try:
        values = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):  # refused elsewhere
        return y, None
    missing = np.isnan(values)
    if not missing.any():
        return y, None
    return np.where(missing, 0.0, values), missing.reshape(len(values), -1)


def _check_observed(y):
    """Check that every column has an observation."""
    empty = np.isnan(y).all(axis=0)
    if empty.any():
        raise ValueError(
            f"column {int(np.argmax(empty))} of y holds no observation, only NaN. Name "
            "the columns that there are by observed_outputs."
        )


def _only_inside(problem, X, *columns):
    """Points of observations in the domain, and what belongs to them."""
    outside = problem.domain._is_outside(X, JUMP)  # of the longest axis
    if outside.any():
        n = "All" if outside.all() else f"{outside.sum()} of"
        found = (
            f"{n} {len(X)} different observations lie outside of the domain, such as "
            f"that at {X[outside][0].tolist()}"
        )
        cure = (
            "Enlarge the domain, or check the units and the order of the columns, "
            f"which is {problem.domain.axes}."
        )
        if outside.all():
            raise ValueError(f"{found}. {cure}")
        warn_user(
            f"{found}, and are left out: the equation says nothing about them. {cure}"
        )
    return [rows[~outside] for rows in (X, *columns)]


def without_data(problem):
    """Names of unknown coefficients that only observations could determine."""
    if any(isinstance(condition, Condition) for condition in problem.conditions):
        return []
    n_unknown = sum(np.size(known.initial) for known in problem.unknown.values())
    if problem.domain.dim == 1:
        for n_given, n_needed in read(problem).numbers_of_conditions.values():
            if n_given >= n_needed + n_unknown:
                return []
    return list(problem.unknown)


def in_order_of_axes(X, problem):
    """Columns in the order of the axes; a ValueError where they do not fit."""
    axes, columns = problem.domain.axes, getattr(X, "columns", None)
    if columns is None or not all(isinstance(name, str) for name in columns):
        return X
    if set(columns) != set(axes):
        raise ValueError(
            f"X has the columns {list(columns)}; the axes are {list(axes)}. Give the "
            "columns the names of the axes, or give an array in their order."
        )
    return X[list(axes)].to_numpy()


def _observed_outputs(names, problem):
    """Numbers of the outputs that y holds; functions by their content."""
    if names is None:
        return tuple(range(len(problem.outputs)))
    names = [names] if isinstance(names, str) or callable(names) else list(names)
    found = []
    for name in names:
        if not callable(name) and name not in problem.outputs:
            raise ValueError(
                f"observed_outputs={name!r} is unknown; the outputs are "
                f"{problem.outputs}. What else is observed is given as a function, "
                "such as lambda u, x: d(u, 'x')(x)."
            )
        found.append(known(name) if callable(name) else problem.outputs.index(name))
    return tuple(found)
