"""The fitted attributes of PINNSolver."""

import math
from functools import partial

import numpy as np

from sklearn_gn.core import backend
from sklearn_gn.pinn import solution
from sklearn_gn.pinn.data import without_data
from sklearn_gn.pinn.dngd import gramian_eigenvalues
from sklearn_gn.pinn.error_estimate import in_double_precision
from sklearn_gn.pinn.growth import may_grow
from sklearn_gn.pinn.left_open import what_is_left_open
from sklearn_gn.pinn.losses import fresh_misfit, total_loss
from sklearn_gn.pinn.observation_weight import SMALLEST, has_settled, reweighted
from sklearn_gn.pinn.posterior import Posterior
from sklearn_gn.pinn.predictions import n_weights
from sklearn_gn.pinn.unknown_functions import FunctionPosterior, unknown_functions
from sklearn_gn.pinn.verdict import (
    solved_until,
    take_back_convergence,
    why_early,
)
from sklearn_gn.pinn.windows import Pieces, last_network

_JACOBIAN_FLOATS = 2**27
_SPECTRAL = 3000  # unknowns up to which eigenvalues are computed after a fit


def set_fitted(solver, run, fitted, n_observations):
    """Set the attributes that only this estimator has.

    Parameters
    ----------
    solver : PINNSolver
    run : FitRun
    fitted : Fitted
        What predictions need.
    n_observations : float
        Sum of the weights of the observations.
    """
    solver._fitted, solver.problem_ = fitted, fitted.problem
    solver._error_estimate = None
    solver.alpha_, solver.log_evidence_ = {}, math.nan
    solver.n_effective_parameters_ = math.nan
    set_layers(solver, fitted)
    model, net, state = fitted.model, fitted.net, run.final_state
    scale = run.loss_scale
    fresh = run.val_loss(net) if run.val_loss is not None else math.nan
    solver.fresh_loss_ = fresh * scale
    net, in_windows = last_network(net), isinstance(net, Pieces)
    solver.window_ends_ = fitted.net.ends if in_windows else np.zeros(0)
    n_residuals = sum(
        len(batch.x) * kind.residual.n_outputs
        for kind, batch in zip(model.classes, state.batches, strict=True)
    )
    is_dngd = run.solver.name == "dngd"
    solver._sizes, solver._untrained_loss = (n_weights(net), n_residuals), math.nan
    if fitted.problem is not None:
        solver._untrained_loss = state.first_fresh
    solver._why_early, solver._has_settled_weight = why_early(run), None
    if run.options.estimates_noise:
        solver._has_settled_weight = has_settled_weight(state)
    rules = run.options.growth
    solver._may_grow = rules is not None and may_grow(state.level, rules, net)
    solver._estimated_at_end, solver._solved_until = math.nan, math.inf
    if in_windows:
        solver._solved_until = solved_until(
            fitted.net, fitted.problem.domain, state.first_fresh
        )
    solver._fresh_noise = 0.0  # known once the weight of the observations has fallen
    with backend.scope(solver.dtype, solver.device):
        if state.observation_weight != 1:
            solver._fresh_noise = fresh_misfit(state, run.data, run.options, net)
        solver.loss_ = float(total_loss(model, net, state.batches)) * scale
        solver.gram_spectrum_ = np.zeros(0)
        if state.spectrum is not None:
            solver.gram_spectrum_ = np.array(state.spectrum)
        elif is_dngd and min(n_residuals, n_weights(net)) <= _SPECTRAL:
            solver.gram_spectrum_ = gramian_eigenvalues(model, net, state.batches)
        solver._posterior = solver._window_points = None
        sampler, seed = run.options.sampler, int(run.options.seed)
        solver._draw_fresh = partial(sampler.fresh, model, seed)
        if n_residuals * n_weights(net) <= _JACOBIAN_FLOATS:
            points = run.data.fresh
            if points and state.observation_weight != 1:
                points = reweighted(points, state.observation_weight)
            batches, points = backend.to_numpy((state.batches, points))
            if in_windows:
                solver._window_points = points
            else:
                # Rounding errors of single precision would pass for information.
                known = in_double_precision((net, batches, points or batches))
                posterior = Posterior(model, *known, n_observations)
                solver._posterior = _with_functions(posterior, fitted)
    with backend.scope("float64", solver.device):
        _set_coefficients(solver, n_observations)
        solver.noise_std_ = math.nan
        if n_observations and fitted.scaling is None and solver._posterior:
            solver.noise_std_ = float(solver._posterior.noise_deviation())
    if fitted.problem is not None:
        solver._left_open = what_is_left_open(solver, run)
        take_back_convergence(solver, run)


def has_settled_weight(state):
    """Whether the weight of the observations has reached its last value.

    Parameters
    ----------
    state : PINNState
    """
    weight = state.observation_weight
    if weight <= SMALLEST:
        return True
    waits = state.weight_waits or state.next_observation_weight != weight
    return not waits and has_settled(state.fresh_losses)


def _with_functions(posterior, fitted):
    """The posterior, or that of the unknown functions where observations tell some."""
    if fitted.problem is None or not posterior.n_observations:
        return posterior
    n_equations = fitted.model.classes[0].residual.n_outputs
    functions = unknown_functions(fitted.problem, fitted.observed, n_equations)
    return FunctionPosterior(posterior, functions) if functions else posterior


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
    values = _plain(solution.unknown_coefficients(model, net))
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
