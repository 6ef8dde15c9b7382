"""Plain regression by a network whose penalties and noise level the evidence chooses.

Without an equation the network is one of :class:`~sklearn_gn.bayes.layers.Layers`,
without a linear term, and each step is one of :mod:`sklearn_gn.bayes.evidence_gn`. Its
penalties belong to the output layer, the biases, the weights of each feature in the
first layer, and the weights of each further layer.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sklearn_gn.arrays.extremes import MOST_ROWS, noise_deviation
from sklearn_gn.bayes import evidence_gn, laplace
from sklearn_gn.bayes.evidence_gn import EvidenceOptions, RegularisedLayers
from sklearn_gn.bayes.laplace import degrees_of_freedom
from sklearn_gn.bayes.layers import Layers
from sklearn_gn.linalg.jacobian import Parameters
from sklearn_gn.optim.solver import Algorithm, Rows
from sklearn_gn.pinn.control import LEAST_FALL
from sklearn_gn.pinn.fitting import set_layers
from sklearn_gn.pinn.predictions import Fitted
from sklearn_gn.runtime.fit_loop import FitRun

REGRESSION = Algorithm("dngd", evidence_gn.init_at, evidence_gn.step, compiled=False)


def fit(solver, model, start, data, seed):
    """Fit a network to rows and set the fitted attributes."""
    # No hidden layers are a linear regression.
    widths = [len(start.layers[0]) - 1, *(m.shape[1] for m in start.layers[:-1])]
    layers = Layers(
        sizes=tuple(widths),
        activations=tuple(model.activations),
        n_values=start.layers[-1].shape[1],
        loss="squared",
        features=tuple(range(widths[0])),
        linear_term=len(widths) == 1,
    )
    # The parameters as one vector, of matrices with the biases in the first row.
    *hidden, output = (
        np.concatenate([matrix[-1:], matrix[:-1]]).astype(np.float64)
        for matrix in start.layers
    )
    theta, alpha = layers.join(output, [m.T for m in hidden]), np.ones(layers.n_groups)
    net = RegularisedLayers(theta, alpha, None, 0 * alpha, -np.inf, layers)
    rows, validation = _rows_of(data.training), data.validation
    n_effective = min(max(data.n_observations, len(rows.x)), MOST_ROWS)
    options = EvidenceOptions(
        n_effective=n_effective,
        damping=None if solver.damping is None else float(solver.damping),
        rank=solver.rank,
        tol=LEAST_FALL if solver.tol is None else float(solver.tol),
        seed=int(seed),
    )

    def fitted(net):
        output, hidden = layers.split(net.theta)
        matrices = tuple(
            np.concatenate([matrix[1:], matrix[:1]]).astype(solver.dtype)
            for matrix in (*(layer.T for layer in hidden), output)
        )
        parameters = Parameters(matrices, np.zeros(0, solver.dtype))
        given = data.observed, data.single_target, data.scaling
        return Fitted(model, parameters, None, *given)

    val_loss = None
    if validation is not None:
        val_rows = _rows_of(validation)
        val_loss = lambda net: layers.error(net.theta, val_rows) / 2  # noqa: E731
    run = FitRun(
        solver,
        REGRESSION,
        rows,
        options,
        [net],
        loss_scale=data.scaling.loss_scale,
        val_loss=val_loss,
        validation=validation,
    )
    solver._run(
        run,
        max_steps=solver._most_iterations(),
        data=data.callback_data,
        attributes=lambda net: {"_fitted": fitted(net), "problem_": None},
        set_fitted=lambda: _set_fitted(solver, run, fitted(run.best_net)),
    )


def _rows_of(batch):
    """The observations that have a weight; the others pad them."""
    kept = batch.scale > 0
    weight = np.asarray(batch.scale[kept], np.float64) ** 2
    x, y = (np.asarray(a[kept], np.float64) for a in (batch.x[:, 0], batch.data))
    return Rows(x, y, weight / weight.sum())


class EvidencePosterior(NamedTuple):
    """Standard deviations of the outputs, from the posterior of the parameters."""

    layers: Layers
    theta: np.ndarray
    covariance: Any  # of laplace.covariance, made at the first access
    noise_freedom: float  # its degrees of freedom

    def output_deviations(self, x):
        """Standard deviations of the outputs at points, of shape (n, q)."""
        jacobian = self.layers.jacobian(self.theta, np.asarray(x, np.float64))
        variance_of = partial(laplace.posterior_variances, self.covariance.get())
        return np.sqrt(np.stack([variance_of(rows) for rows in jacobian], axis=1))


def _set_fitted(solver, run, fitted):
    rows, options, net, scaling = run.rows, run.options, run.best_net, fitted.scaling
    layers, n_effective = net.model, options.n_effective
    y_scale = np.asarray(scaling.y_scale)
    known = laplace.summary_of(layers, net, rows, scaling, options)
    solver._fitted, solver.problem_, solver._error_estimate = fitted, None, None
    set_layers(solver, fitted)
    solver._sizes = len(net.theta), len(rows.x) * layers.n_values
    n_parameters = known.n_effective_parameters
    solver._posterior = EvidencePosterior(
        layers,
        net.theta,
        known.covariance,
        float(degrees_of_freedom(n_effective, layers.n_values, n_parameters)),
    )
    solver.loss_ = known.loss
    solver.fresh_loss_ = math.nan
    if run.val_loss is not None:
        solver.fresh_loss_ = run.val_loss(net) * scaling.loss_scale
    solver.gram_spectrum_ = laplace.spectrum(known.gram)
    solver.coefficients_, solver.coefficients_std_ = {}, {}
    solver.window_ends_, solver.enrichment_ = np.zeros(0), {}
    noise_std = y_scale * noise_deviation(net.beta)
    solver.noise_std_ = noise_std if y_scale.ndim else float(noise_std)
    penalties = known.alpha
    if layers.linear_term:
        solver.alpha_ = {"output": penalties["slope"]}
    else:
        names = "bias", "weights", "layers"
        solver.alpha_ = {"output": penalties["coef"]}
        solver.alpha_ |= {name: penalties[name] for name in names}
    solver.n_effective_parameters_ = n_parameters
    solver.log_evidence_ = known.log_evidence
