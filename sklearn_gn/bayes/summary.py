"""What is known of a network whose penalties the evidence chose, or were given."""

from typing import NamedTuple

import numpy as np

from sklearn_gn.arrays.extremes import noise_deviation
from sklearn_gn.bayes import evidence, evidence_gn, laplace
from sklearn_gn.data.rows_source import BLOCK_ROWS, reduce
from sklearn_gn.linalg.large_gram import LargeGram


class Summary(NamedTuple):
    """What is known of a model, in the user's units; the first two of any."""

    alpha: dict
    loss: float
    covariance: laplace.Deferred | None = None
    # (k,)  variance of the noise of each target, over the mean of all
    noise_ratio: np.ndarray | None = None
    gram: np.ndarray | LargeGram | None = None  # Gauss-Newton matrix
    alpha_method: str = "prior"
    noise_std: np.ndarray | None = None  # (k,)
    n_effective_parameters: float = np.nan
    n_of_penalties: float = np.nan  # parameters that their choice amounts to
    log_evidence: float = np.nan
    n_rows: float = np.nan  # that it was fitted to, counted by weights
    left_out: tuple | None = None  # errors (m, k) at left-out rows, and their variances


def summary_of(model, net, rows, scaling, options):
    """Return the :class:`Summary` of a network at its penalties.

    ``rows`` are those of the fit, in the units ``scaling``, and ``options`` the
    :class:`~sklearn_gn.bayes.evidence_gn.EvidenceOptions`.
    """
    n_effective, ratio = options.n_effective, np.ones(model.n_values)
    y_scale = np.broadcast_to(scaling.y_scale, model.n_values)
    sums = evidence_gn.sums_of(model, net.theta, rows)
    found, value, loss = evidence_gn.at_penalties(model, net, sums, n_effective)
    scale = net.beta * n_effective  # of the objective divided by the sum of weights
    penalties = net.alpha / scale
    if model.loss == "squared":  # of features that have left the first layer
        gone = np.setdiff1d(np.arange(model.sizes[0]), model.features)
        penalties[3 + gone] = evidence.LARGEST / scale
        value -= n_effective * float(np.sum(np.log(y_scale)))
        if model.n_values > 1:
            squares = reduce(_residual_squares, (model, net.theta), rows, BLOCK_ROWS)
            ratio = laplace.noise_ratio(squares)
    n_of_penalties = 0.0
    if options.alpha is None:
        groups = model.groups()
        n_of_penalties = evidence.parameters_of_penalties(found.gamma, groups)
    return Summary(
        alpha=penalties_by_name(model, penalties),
        loss=loss * scaling.loss_scale if loss > 0 else 0.0,
        covariance=laplace.deferred_covariance(
            model, sums, net.alpha, net.beta, n_effective
        ),
        noise_ratio=ratio,
        gram=sums.gram,
        alpha_method=evidence_gn.alpha_method(sums.gram),
        noise_std=y_scale * noise_deviation(net.beta, ratio),
        n_effective_parameters=float(np.sum(found.gamma)) + model.n_free,
        n_of_penalties=n_of_penalties,
        log_evidence=value,
        n_rows=n_effective,
    )


def _residual_squares(network, rows):
    model, theta = network
    return rows.weight @ (model.values(theta, rows.x) - rows.y) ** 2


def penalties_by_name(model, penalties):
    """Return penalties of the groups of a network, as a dict."""
    weights, layers = np.split(penalties[3:], [model.n_feature_groups])
    named = dict(zip(("slope", "coef", "bias"), penalties[:3].tolist(), strict=True))
    return {**named, "weights": weights, "layers": layers}
