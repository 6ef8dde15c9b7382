"""A network fitted by the evidence: attributes in the user's units, standard errors."""

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sklearn_gn.arrays.extremes import noise_deviation
from sklearn_gn.bayes import evidence, huber
from sklearn_gn.bayes.evidence_gn import alpha_method, at_last_penalties, sums_of
from sklearn_gn.bayes.laplace import (
    covariance,
    degrees_of_freedom,
    left_out_errors,
    noise_ratio,
    one_or_each,
    posterior_variances,
    spectrum,
)
from sklearn_gn.bayes.linear_evidence import beats, linear_model
from sklearn_gn.data.rows_source import row_blocks
from sklearn_gn.linalg.low_rank import LowRank
from sklearn_gn.shallow_relu import evidence_gn
from sklearn_gn.shallow_relu.evidence_gn import Shape

_BATCH_ROWS = 2048


class EvidencePosterior(NamedTuple):
    """Covariance of the parameters of a fitted network, in scaled units."""

    shape: Shape
    theta: np.ndarray  # (P,)
    covariance: np.ndarray | LowRank  # (P, P)  H^-1
    noise_std: np.ndarray  # (q,)  of an observation of each target
    # (q,)  variance of the noise of each target, over the mean of all, which is that of
    # the covariance
    noise_ratio: np.ndarray


class Fitted:
    """A network, and what is computed at the first access.

    Parameters
    ----------
    net : RegularisedNetwork
    rows : Rows
    n_effective : float
        Number of rows, counted by their weights.
    """

    def __init__(self, net, rows, n_effective):
        self.net, self._rows, self._n_effective = net, rows, n_effective

    @cached_property
    def sums(self):
        """The sums over the rows at its parameters."""
        return sums_of(self.net.shape, self.net.theta, self._rows)

    @cached_property
    def posterior(self):
        """The covariance of its parameters."""
        return posterior(self.net, self._rows, self.sums, self._n_effective)


def posterior(net, rows, sums, n_effective):
    """Return the covariance H^-1 of the parameters, at the penalties of the network."""
    shape = net.shape
    inverse = covariance(shape, sums, net.alpha, net.beta, n_effective)
    squares = np.zeros(shape.q)
    for x, y, weight in row_blocks(rows, _BATCH_ROWS):
        squares += weight @ (evidence_gn.predict(net.theta, shape, x) - y) ** 2
    ratio = noise_ratio(squares)
    noise_std = noise_deviation(net.beta, ratio)
    return EvidencePosterior(shape, net.theta, inverse, noise_std, ratio)


def prediction_errors(found, z):
    """Return standard errors of predictions of shape (m, q), in scaled units."""
    return np.sqrt(found.noise_ratio * _variances(found, z))


def _variances(found, z):
    """Variances of predictions, at the mean noise of all targets."""
    variances = np.empty((len(z), found.shape.q))
    for start in range(0, len(z), _BATCH_ROWS):
        rows = slice(start, start + _BATCH_ROWS)
        for k in range(found.shape.q):
            jacobian = evidence_gn.jacobian(found.theta, found.shape, z[rows], k)
            variances[rows, k] = posterior_variances(found.covariance, jacobian.T)
    return variances


def best_of_network_and_linear_model(fitted, rows, n_effective):
    """Return the fitted network, or the linear model if that is as good.

    A network that finds structure in noise does not pay for its parameters.
    """
    net = fitted.net

    def errors_of_network(some):
        residuals = evidence_gn.predict(net.theta, net.shape, some.x) - some.y
        leverage = net.beta * _variances(fitted.posterior, some.x)
        return left_out_errors(residuals, leverage, some.weight, n_effective)

    linear, value = linear_model(rows, n_effective), net.log_evidence
    if linear is None or not beats(
        linear, value, net.gamma, rows, n_effective, errors_of_network
    ):
        return fitted
    shape = net.shape
    theta = np.zeros(shape.size)
    theta[: linear.coef.size] = linear.coef.ravel()
    alpha, gamma = linear.penalties(len(net.alpha))
    net = evidence_gn.network_of(
        theta, shape, alpha, linear.beta, gamma, linear.log_evidence
    )
    return Fitted(net, rows, n_effective)


def fitted_attributes(net, rows, scaling, options, *, robust=False):
    """Return the fitted attributes of a network, by name.

    They are those of the linear model where the evidence prefers it.

    Parameters
    ----------
    net : RegularisedNetwork
    rows : Rows
    scaling : Scaling
    options : EvidenceOptions
    robust : bool, default=False
        Whether the loss is Huber's.
    """
    n_effective, given = options.n_effective, options.alpha is not None
    observed = rows
    if robust:
        rows = rows._replace(y=huber.targets_of(evidence_gn.values(net, rows.x), rows))
    fitted = Fitted(net, rows, n_effective)
    if not given:
        fitted = best_of_network_and_linear_model(fitted, rows, n_effective)
    net, sums, shape = fitted.net, fitted.sums, fitted.net.shape
    y_scale = np.broadcast_to(scaling.y_scale, shape.q)
    found, value, loss = at_last_penalties(shape, net, sums, n_effective)
    scale = net.beta * n_effective  # of the objective divided by the sum of weights
    n_parameters = float(np.sum(found.gamma)) + shape.q
    n_chosen = n_parameters
    if not given:
        n_chosen += evidence.parameters_of_penalties(found.gamma, shape.groups())
    freedom = degrees_of_freedom(n_effective, shape.q, n_chosen)
    if robust:
        fitted_values = evidence_gn.values(net, rows.x)
        noise_std = huber.noise_std(
            fitted_values, observed, n_effective, n_chosen / shape.q
        )
    else:
        ratio = degrees_of_freedom(n_effective, shape.q, n_parameters) / freedom
        noise_std = fitted.posterior.noise_std * math.sqrt(ratio)
    return _network_attributes(net, rows, scaling) | {
        "_posterior": fitted.posterior,
        "loss_": loss * scaling.loss_scale if loss > 0 else 0.0,
        "alpha_method_": "fixed" if given else alpha_method(sums.gram),
        "alpha_": {
            "slope": net.alpha[0] / scale,
            "coef": net.alpha[1] / scale,
            "bias": net.alpha[2] / scale,
            "weights": net.alpha[3:] / scale,
        },
        "noise_std_": one_or_each(y_scale * noise_std),
        "n_effective_parameters_": n_parameters,
        "_degrees_of_freedom": freedom,
        "log_evidence_": value - n_effective * float(np.sum(np.log(y_scale))),
    }


def _network_attributes(net, rows, scaling):
    """Attributes that hold the parameters of a network, and spectra of its layers."""
    shown = evidence_gn.pruned(net, rows)
    slots = np.flatnonzero(np.any(shown.coef != 0, axis=1))
    hyperplanes, factor = scaling.hyperplanes_to_user(shown.hyperplanes[slots])
    slope = (shown.slope * scaling.y_scale / scaling.x_scale[:, None]).T
    # What the units of x take from the constant is in the centre of the features.
    intercept = shown.intercept * scaling.y_scale + scaling.y_center
    intercept = intercept - slope @ scaling.x_center
    gram, mass = spectra(shown, slots, rows)
    return {
        "_network": (shown, scaling),
        "_active_slots": slots,
        "_n_features_out": len(slots),
        "active_": np.isin(np.arange(net.shape.n), slots),
        "hyperplanes_": hyperplanes,
        "output_coef_": (shown.coef[slots] * scaling.y_scale).T * factor,
        "linear_coef_": slope,
        "output_intercept_": intercept,
        "gram_spectrum_": gram,
        "mass_spectrum_": mass,
    }


def spectra(net, slots, rows):
    """Return the eigenvalues of the layer and of the mass matrix, descending."""
    n, d = len(slots), len(net.slope)
    layer, mass = np.zeros((n * (1 + d),) * 2), np.zeros((1 + n,) * 2)
    for x, _, weight in row_blocks(rows, _BATCH_ROWS):
        root = np.sqrt(weight)[:, None]
        y = np.concatenate([np.ones((len(x), 1)), x], axis=1)
        pre = y @ net.hyperplanes[slots].T
        columns = (root * (pre > 0))[:, :, None] * y[:, None, :]
        columns = columns.reshape(len(x), -1)
        features = root * np.concatenate([y[:, :1], np.maximum(pre, 0)], axis=1)
        layer += columns.T @ columns
        mass += features.T @ features
    return spectrum(layer), spectrum(mass)
