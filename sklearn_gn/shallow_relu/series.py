"""Piecewise-linear fits of many separate series at once.

The search is that of one feature, for all series together, each from its own starts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from sklearn.base import clone

from sklearn_gn._typing import ArrayLike
from sklearn_gn.arrays import backend
from sklearn_gn.data.rows import weights_of
from sklearn_gn.runtime.fit_loop import LOG_COLUMNS
from sklearn_gn.shallow_relu.estimator import ShallowReLURegressor
from sklearn_gn.shallow_relu.one_feature import (
    ENGINE,
    START_STEPS,
    Draws,
    descend_all,
    relocate,
)
from sklearn_gn.shallow_relu.problem import problem_of
from sklearn_gn.shallow_relu.search import (
    N_KEPT,
    ROUND_TOL,
    Phase,
    SearchState,
    keep_better,
    round_plan,
)
from sklearn_gn.shallow_relu.sorted_rows import LEFT, RIGHT, stack_sums
from sklearn_gn.solvers import JointGN

_TOGETHER = 64  # series fitted side by side, which bounds the memory
_NEEDED = {  # values of parameters
    "alpha": (0, "auto"),
    "loss": ("squared_error",),
    "damping": (None,),
    "rank": (None,),
    "early_stopping": (False,),
    "max_time": (None,),
    "warm_start": (False,),
    "dtype": ("float64",),
}


def fit_series(
    estimator: Any,
    X: Sequence[ArrayLike],
    y: Sequence[ArrayLike],
    sample_weight: Sequence[ArrayLike] | None = None,
) -> list[Any]:
    """Fit a clone of an estimator to each of many series, side by side.

    The search runs for many series together, in half the time of separate fits or less.
    Lengths may differ; the model of a series is the one that ``fit`` finds for it, up
    to rounding.

    Parameters
    ----------
    estimator : ShallowReLURegressor
        Estimator to clone; it is not changed. It needs a number for ``n_neurons`` and
        the default solver, which may be ``JointGN(relocations=...)`` with another
        number of rounds. ``alpha``, ``loss``, ``damping``, ``rank``,
        ``early_stopping``, ``max_time``, ``warm_start`` and ``dtype`` must have their
        defaults.
        ``max_iter`` is not read: the number of rounds ends the search.

    X : list of array-likes of shape (n_samples_k,) or (n_samples_k, 1)
        Positions of the points of every series.

    y : list of array-likes of shape (n_samples_k,) or (n_samples_k, n_targets)
        Values of every series.

    sample_weight : list of array-likes of shape (n_samples_k,), default=None
        Non-negative weights of the points.

    Returns
    -------
    list of ShallowReLURegressor
        Fitted clones, one for each series.

    Raises
    ------
    ValueError
        If the lists differ in length, if a series cannot be fitted, with its number,
        or if the estimator asks for something else than plain least squares.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import ShallowReLURegressor, fit_series
    >>> X = [np.linspace(0, 1, n) for n in (80, 120)]
    >>> y = [np.abs(X[0] - 0.3), np.abs(X[1] - 0.6)]
    >>> models = fit_series(ShallowReLURegressor(2, random_state=0), X, y)
    >>> [float(model.breakpoints_[-1].round(6)) for model in models]
    [0.3, 0.6]
    """
    _check_estimator(estimator)
    weights = [None] * len(X) if sample_weight is None else list(sample_weight)
    if not len(X) == len(y) == len(weights):
        raise ValueError(
            "X, y and sample_weight hold one entry for each series; they have "
            f"{len(X)}, {len(y)} and {len(weights)}."
        )
    models = [clone(estimator) for _ in X]
    problems = [
        _problem(k, *each)
        for k, each in enumerate(zip(models, X, y, weights, strict=True))
    ]
    # Series of like length together, so that padding stays small.
    keys = [(p.rows.y.shape[1], backend.row_bucket(len(p.rows.x))) for p in problems]
    order = sorted(range(len(X)), key=lambda k: keys[k])
    for _, group in groupby(order, key=lambda k: keys[k][0]):
        numbers = list(group)
        for start in range(0, len(numbers), _TOGETHER):
            some = numbers[start : start + _TOGETHER]
            _fit_group([models[k] for k in some], [problems[k] for k in some])
    return models


def _check_estimator(estimator):
    if not isinstance(estimator, ShallowReLURegressor):
        raise ValueError(
            f"estimator={estimator!r} is no ShallowReLURegressor: fit_series takes one."
        )
    estimator._validate_params()
    if not isinstance(estimator._solver_object(), JointGN):
        raise ValueError(
            "fit_series needs solver='vpgn' or a JointGN object, got "
            f"{estimator.solver!r}."
        )
    for name, values in _NEEDED.items():
        given = getattr(estimator, name)
        if given not in values:
            needed = " or ".join(map(repr, values))
            raise ValueError(f"fit_series needs {name}={needed}, got {given!r}.")
    if estimator.n_neurons == "auto":
        raise ValueError("fit_series needs a number for n_neurons, got 'auto'.")


def _problem(number, model, X, y, weight):
    """The problem of one series; errors name its number."""
    X = np.asarray(X)
    try:
        X = X[:, None] if X.ndim == 1 else X
        X, y = model._check_data(X, y)
        weight, *_ = weights_of(weight, None, X)
        if X.shape[1] != 1:
            raise ValueError(f"X has {X.shape[1]} features, expected 1.")
        return problem_of(model, X, y, weight, None)
    except ValueError as error:
        raise ValueError(f"Series {number}: {error}") from error


def _fit_group(models, problems):
    """Fit series of like length, and set the fitted attributes."""
    begin = time.perf_counter()
    n_padded = max(backend.row_bucket(len(p.rows.x)) for p in problems)
    with backend.scope("float64", models[0].device):
        prepared = [ENGINE.prepare(p.rows, p.options, n_padded) for p in problems]
        starts = [p.starts[0] for p in problems]
        found = fit_many(prepared, starts, [p.options for p in problems])
    seconds = time.perf_counter() - begin
    for model, problem, data, (best, losses, counts) in zip(
        models, problems, prepared, found, strict=True
    ):
        scale = problem.scaling.loss_scale
        log = {name: np.full(len(losses), np.nan) for name in LOG_COLUMNS}
        log["iteration"] = 1 + np.arange(len(losses))
        log["time"] = np.full(len(losses), seconds)
        log["loss"] = losses * scale
        log["inner_iterations"] = counts
        log["grad_norm"][-1] = best.grad_norm * scale
        model.convergence_log_ = log
        model.n_iter_ = len(losses)
        model.stop_reason_ = "rounding" if best.rounding else "tol"
        model.converged_ = True
        model._set_fitted(best.net, problem, data)


def fit_many(prepared, nets, options):
    """Return the best network of every series, and losses and steps of all rounds.

    ``prepared`` is the data of the engine, of one padded length; ``nets`` are stacks of
    as many starts for each series; ``options`` differ in their seeds only.
    """
    common, n_neurons = options[0], int(np.sum(nets[0].alive[0]))
    pairs = zip(prepared, nets, strict=True)
    starts = [ENGINE.start(data, net, common)[0] for data, net in pairs]
    running, n = [p.running for p in prepared], len(prepared)

    def separated(outcome):
        """Breakpoints, losses and steps by series."""
        knots, losses, count = outcome.starts, outcome.losses, outcome.n_steps
        knots = knots.reshape(n, -1, knots.shape[1])
        return knots, losses.reshape(n, -1), count.reshape(n, -1).max(axis=1)

    def all_starts(knots):
        sums = stack_sums(running, knots.shape[1])
        return knots.reshape(-1, knots.shape[2]), sums

    found = descend_all(*all_starts(np.stack(starts)), START_STEPS, ROUND_TOL)
    knots, losses, counts = separated(found)
    kept = np.argsort(losses, axis=1, kind="stable")[:, :N_KEPT]
    knots = np.take_along_axis(knots, kept[:, :, None], axis=1)
    losses = np.take_along_axis(losses, kept, axis=1)
    history = [(_lowest_losses(knots, losses, prepared), counts)]
    for round_ in range(int(common.relocations)):
        random = Draws([o.seed ^ round_ for o in options], kept.shape[1])
        found = relocate(*all_starts(knots), random, round_plan(round_), n_neurons)
        *moved, counts = separated(found)
        knots, losses = keep_better(knots, losses, *moved)
        history.append((_lowest_losses(knots, losses, prepared), counts))
    found = descend_all(*all_starts(knots), START_STEPS, common.tol)
    knots, losses, counts = separated(found)
    lowest, steps = (np.array(column).T for column in zip(*history, strict=True))
    for k, data in enumerate(prepared):
        end = None, math.inf, knots[k], losses[k], n_neurons, False, Phase.END
        best = ENGINE.best_network(data, SearchState(*end), common)
        n_steps = np.append(steps[k], counts[k] + best.n_steps)
        yield best, np.append(lowest[k], best.loss), n_steps


def _lowest_losses(knots, values, prepared):
    """Return the losses of the best starts of all series, without the penalties."""
    best = np.argmin(values, axis=1)
    t = knots[np.arange(len(best)), best]
    inside = np.sum((t > LEFT) & (t < RIGHT), axis=1)
    n = np.array([len(p.rows.x) for p in prepared])
    ties = 0.5 * np.array([p.rows.tie_variance.sum() for p in prepared])
    return values.min(axis=1) / np.exp(inside * np.log(n) / n) + ties
