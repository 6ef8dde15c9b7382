"""The fitted attributes of PINNSolver."""

import math
from functools import partial

import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.pinn.control import may_grow
from sklearn_gn.pinn.data import without_data
from sklearn_gn.pinn.determination import what_is_left_open
from sklearn_gn.pinn.dngd import gramian_eigenvalues
from sklearn_gn.pinn.error_estimate import in_double_precision
from sklearn_gn.pinn.findings import (
    solved_until,
    take_back_convergence,
    why_early,
)
from sklearn_gn.pinn.growth import MOST_WEIGHTS
from sklearn_gn.pinn.iteration import fresh_misfit, total_loss
from sklearn_gn.pinn.model import coefficient_values
from sklearn_gn.pinn.observation_weight import reweighted
from sklearn_gn.pinn.posterior import Posterior
from sklearn_gn.pinn.predictions import n_weights
from sklearn_gn.pinn.residuals import residual_counts
from sklearn_gn.pinn.unknown_functions import FunctionPosterior, unknown_functions
from sklearn_gn.pinn.windows import Pieces, last_network

_JACOBIAN_FLOATS = 2**27


def set_fitted(solver, run, fitted, n_observations):
    """Set the attributes that only this estimator has."""
    solver._fitted, solver.problem_ = fitted, fitted.problem
    solver._error_estimate = None
    solver.alpha_, solver.log_evidence_ = {}, math.nan
    solver.n_effective_parameters_ = math.nan
    set_layers(solver, fitted)
    n_residuals = sum(residual_counts(fitted.model.classes, run.final_state.batches))
    solver._sizes = n_weights(last_network(fitted.net)), n_residuals
    _set_course(solver, run, fitted)
    with backend.scope(solver.dtype, solver.device):
        _set_losses(solver, run, fitted)
        solver.gram_spectrum_ = _spectrum(solver, run, fitted)
        _set_posterior(solver, run, fitted, n_observations)
    with backend.scope("float64", solver.device):
        _set_coefficients(solver, n_observations)
        solver.noise_std_ = math.nan
        if n_observations and fitted.scaling is None and solver._posterior:
            solver.noise_std_ = float(solver._posterior.noise_deviation())
    if fitted.problem is not None:
        solver._left_open = what_is_left_open(solver, run)
        take_back_convergence(solver, run)


def _set_course(solver, run, fitted):
    """Set what the findings take from the course of the fit."""
    state, in_windows = run.final_state, isinstance(fitted.net, Pieces)
    rules, has_problem = run.options.growth, fitted.problem is not None
    solver._untrained_loss = state.control.first_fresh if has_problem else math.nan
    solver._why_early, solver._has_settled_weight = why_early(run), None
    if run.options.observed is not None:
        solver._has_settled_weight = state.control.weighing.has_settled
    solver._may_grow = rules is not None and may_grow(
        state.control.level, rules, last_network(fitted.net)
    )
    solver._estimated_at_end, solver._solved_until = math.nan, math.inf
    solver.window_ends_ = fitted.net.ends if in_windows else np.zeros(0)
    counts = getattr(fitted.model.problem, "function_counts", dict)
    solver.enrichment_ = counts()
    if in_windows:
        solver._solved_until = solved_until(
            fitted.net, fitted.problem.domain, state.control.first_fresh
        )


def _set_losses(solver, run, fitted):
    """Set the losses of the network: in training, on fresh points, and of noise."""
    state, net, scale = run.final_state, last_network(fitted.net), run.loss_scale
    fresh = run.val_loss(fitted.net) if run.val_loss is not None else math.nan
    solver.fresh_loss_ = fresh * scale
    solver.loss_ = float(total_loss(fitted.model, net, state.batches)) * scale
    solver._fresh_noise = 0.0  # known once the weight of the observations has fallen
    if state.control.weighing.weight != 1:
        solver._fresh_noise = fresh_misfit(state, run.data, run.options, net)


def _spectrum(solver, run, fitted):
    """Eigenvalues of the Gramian, empty if they are not known and too many."""
    if run.solver.name != "dngd":
        return np.zeros(0)
    if run.options.steps.rank is None and min(solver._sizes) > MOST_WEIGHTS:
        return np.zeros(0)
    net = last_network(fitted.net)
    return gramian_eigenvalues(run.options, net, run.final_state.batches)


def _set_posterior(solver, run, fitted, n_observations):
    """Set what standard deviations and the estimated error are computed from."""
    state, (n, n_residuals) = run.final_state, solver._sizes
    sampler, seed = run.options.sampler, int(run.options.seed)
    solver._draw_fresh = partial(sampler.fresh, fitted.model, seed)
    solver._posterior = solver._window_points = None
    if n_residuals * n > _JACOBIAN_FLOATS:
        return
    points = run.data.fresh
    if points and state.control.weighing.weight != 1:
        points = reweighted(points, state.control.weighing.weight)
    batches, points = backend.to_numpy((state.batches, points))
    if isinstance(fitted.net, Pieces):
        solver._window_points = points
        return
    # Rounding errors of single precision would pass for information.
    known = in_double_precision((fitted.net, batches, points or batches))
    solver._posterior = Posterior(fitted.model, *known, n_observations)
    if fitted.problem is not None and n_observations:
        n_equations = fitted.model.classes[0].residual.n_outputs
        functions = unknown_functions(fitted.problem, fitted.observed, n_equations)
        if functions:
            solver._posterior = FunctionPosterior(solver._posterior, functions)


def set_layers(solver, fitted):
    """Set the weights and biases of the layers."""
    layers = [matrix.astype(np.float64) for matrix in last_network(fitted.net).layers]
    inner = []
    if fitted.model.features is not None:
        inner, layers = layers[:-1], layers[-1:]
    solver.coefs_ = inner + [matrix[:-1] for matrix in layers]
    solver.intercepts_ = [matrix[-1] for matrix in layers]


def _set_coefficients(solver, n_observations):
    """The coefficients that were to be found, with their standard deviations.

    These are infinite where no residual depends on a coefficient, and where nothing but
    an equation and its usual conditions do, which have a solution for each value.
    """
    fitted, posterior = solver._fitted, solver._posterior
    model, net = fitted.model, last_network(fitted.net)
    values = _plain(coefficient_values(model.problem, net.extra))
    free = without_data(fitted.problem) if values and not n_observations else []
    deviations = {name: np.nan * value for name, value in values.items()}
    if values and posterior is not None:
        found = _plain(posterior.coefficient_deviations())
        for name in deviations:
            known = np.logical_and(found[name] != 0, name not in free)
            deviations[name] = np.where(known, found[name], np.inf)[()]
    solver._undetermined = [n for n, s in deviations.items() if np.isinf(s).any()]
    solver._said_undetermined = free  # before the fit
    solver.coefficients_, solver.coefficients_std_ = values, deviations


def _plain(values):
    """Numbers and arrays of numpy by name."""
    return {name: np.asarray(value, np.float64)[()] for name, value in values.items()}
