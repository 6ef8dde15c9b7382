"""A fit of PINNSolver, from the data of the user to the fitted attributes."""

import math
import time

import numpy as np
from sklearn.utils import check_random_state

from sklearn_gn.arrays import backend
from sklearn_gn.pinn import baselines, eigenvalues, preparation, regression
from sklearn_gn.pinn.data import checked_data, problem_sequence
from sklearn_gn.pinn.dngd import DNGD
from sklearn_gn.pinn.fitted import set_fitted
from sklearn_gn.pinn.losses import fresh_loss, fresh_loss_in
from sklearn_gn.pinn.predictions import Fitted
from sklearn_gn.pinn.verdict import (
    warn_if_not_determined,
    warn_if_not_solved,
    warn_of_other_values,
)
from sklearn_gn.runtime.fit_loop import FitRun

ALGORITHMS = {a.name: a for a in (DNGD, *baselines.ALGORITHMS)}

_LARGEST_INT = np.iinfo(np.int32).max


def fit(solver, X, y, sample_weight, X_val, y_val):
    """Fit a solver to its problem, to observations, or to both."""
    began = time.perf_counter()
    deadline = began + (math.inf if solver.max_time is None else solver.max_time)
    backend.mesh_of(solver.device)  # a device that there is not is an error
    method = solver._solver_object()
    rng = check_random_state(solver.random_state)
    stages, problem = problem_sequence(
        solver.problem, preparation.has_default_network(solver, solver.problem)
    )
    data = checked_data(solver, problem, X, y, sample_weight, X_val, y_val, rng)
    seed = rng.randint(_LARGEST_INT)
    is_eigen = preparation.is_new_eigenvalue_problem(solver, stages, data)
    if is_eigen:
        stages = eigenvalues.first_stages(problem, solver._most_iterations())
    untrained, models = preparation.network_and_models(solver, stages, data, rng)
    if is_eigen:
        untrained = eigenvalues.of_one_sign(untrained)
    data = preparation.weighted_data(solver, models, data)
    start = preparation.network_to_begin_with(solver, untrained)
    chosen = regression.has_chosen_penalties(solver, problem)
    if chosen and regression.is_affordable(start, data):
        regression.fit(solver, models[-1], start, data, seed)
        return solver
    networks = untrained, start
    settings = preparation.settings(
        solver, models, stages, data, networks, seed, deadline
    )
    preparation.check_memory(settings, start, data)
    run = _new_run(solver, method.algorithm(ALGORITHMS), data, settings, start)
    run.began = began

    def fitted(net):
        return Fitted(
            models[-1], net, problem, data.observed, data.single_target, data.scaling
        )

    solver._run(
        run,
        max_steps=solver._most_iterations(),
        data=data.callback_data,
        attributes=lambda net: {"_fitted": fitted(net), "problem_": problem},
        set_fitted=lambda: set_fitted(
            solver, run, fitted(run.best_net), data.n_observations
        ),
    )
    if problem is not None:
        warn_if_not_solved(solver, solver._untrained_loss)
        warn_if_not_determined(solver)
        warn_of_other_values(solver)
    return solver


def _new_run(solver, algorithm, data, settings, start):
    """The run of an algorithm, which the loss on fresh points monitors."""

    def loss_on_fresh_points(net):
        # A resumed fit has the points of the seed that it began with.
        with backend.scope(solver.dtype, solver.device):
            if not run.log:
                return fresh_loss(run.data, settings, net)
            return fresh_loss_in(run.final_state, run.data, settings, net)

    has_fresh = data.problem is not None or data.observations.validation is not None
    run = FitRun(
        solver,
        algorithm,
        (data.observations, settings),
        [start],
        loss_scale=1.0 if data.scaling is None else data.scaling.loss_scale,
        val_loss=loss_on_fresh_points if has_fresh else None,
        validation=data.observations.validation,
    )
    if data.problem is not None:
        run.monitor = "val_loss"
    return run
