"""A fitted network: attributes in the user's units, and standard errors.

Standard errors come from the delta method: near its optimum the network is linear in
all parameters, and their covariance follows from the joint Gauss-Newton matrix. Under
given penalties directions that the data do not determine are left out; where the
evidence has chosen the penalties the covariance is the posterior one.

With one feature two rows for each interval between breakpoints stand for all of them.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from sklearn_gn.bayes import huber
from sklearn_gn.bayes.evidence_gn import RegularisedLayers
from sklearn_gn.bayes.laplace import (
    Deferred,
    degrees_of_freedom,
    left_out_errors,
    left_out_rows,
    noise_ratio,
    one_or_each,
    spectrum,
    summary_of,
    value_variances,
    want_of_penalties,
)
from sklearn_gn.bayes.layers import Layers
from sklearn_gn.bayes.linear_evidence import beats, linear_model, noise_scale
from sklearn_gn.data.rows_source import BLOCK_ROWS, RowSource, blockwise, reduce
from sklearn_gn.findings import rows_at_ends
from sklearn_gn.linalg import factors
from sklearn_gn.linalg.low_rank import LowRank
from sklearn_gn.optim.solver import Rows
from sklearn_gn.runtime.summary import Summary, digits
from sklearn_gn.shallow_relu.evidence_gn import network_of
from sklearn_gn.shallow_relu.lines import SortedRows, condensed_rows, sort_rows
from sklearn_gn.shallow_relu.network import (
    hyperplanes_to_user,
    predict,
    rescale,
    weighted_tangent,
)

# --- predictions, designs and their sums ---------------------------------------------


def predict_scaled(net, z):
    """Return predictions of shape (m, q), in float64 and in scaled units."""
    values = partial(predict, net)
    if isinstance(net, RegularisedLayers):
        values = partial(net.model.values, net.theta)
    return blockwise(values, z).astype(np.float64, copy=False)


def validation_loss(validation, scaling):
    """Return the function from a network to its loss on (X, y, weight)."""
    X, y, weight = validation
    z, t = scaling.x(X), scaling.y(y)
    return lambda net: (
        0.5 * float(weight @ np.sum((predict_scaled(net, z) - t) ** 2, axis=1))
    )


# --- the attributes that all fits have -----------------------------------------------


def _network_attributes(net, slots, slope, rows, scaling):
    """Return the attributes that hold the parameters of a network."""
    planes, coef = (a[slots].astype(np.float64) for a in (net.hyperplanes, net.coef))
    hyperplanes, factor = hyperplanes_to_user(scaling, planes)
    slope = (slope * scaling.y_scale / scaling.x_scale[:, None]).T
    # What the units of x take from the constant is in the centre of the features.
    intercept = net.intercept * scaling.y_scale + scaling.y_center
    of_layer = Deferred(_layer_spectrum, planes, coef, rows)
    if isinstance(rows, RowSource):  # which may be gone later
        of_layer.get()
    return {
        "_network": (net, scaling),
        "_active_slots": slots,
        "_n_features_out": len(slots),
        "hyperplanes_": hyperplanes,
        "output_coef_": (coef * scaling.y_scale).T * factor,
        "linear_coef_": slope,
        "output_intercept_": intercept - slope @ scaling.x_center,
        "_spectrum": of_layer,
    }


def _layer_spectrum(hyperplanes, coef, rows):
    """Return the eigenvalues of the Gauss-Newton matrix of the hidden layer."""

    def gram_of(hyperplanes, rows):
        _, hidden = weighted_tangent(hyperplanes, rows)
        return hidden.T @ hidden

    gram = reduce(gram_of, hyperplanes, rows, BLOCK_ROWS)
    # All targets share the layer, each with the coefficients of its own.
    unit = coef / np.linalg.norm(coef, axis=1, keepdims=True)
    shared = np.kron(unit @ unit.T, np.ones((hyperplanes.shape[1],) * 2))
    return spectrum(gram * shared)


# --- standard errors -----------------------------------------------------------------


class Posterior(NamedTuple):
    """Covariance of the parameters of a fitted network, in scaled units."""

    model: Layers
    theta: np.ndarray  # (P,)
    covariance: np.ndarray | LowRank  # (P, P)  at the mean noise of all targets
    precision: float  # of that noise; zero without any
    noise_ratio: np.ndarray  # (q,)  variance of the noise of each, over their mean


def noise_scale_of(net, scaling, found, rows, n_effective, are_means=False):
    """Return the noise scale of a network with a posterior, from left-out rows.

    Rows that count several times are repetitions of one observation, or means of many.
    """
    values = predict_scaled(net, rows.x)
    leverage = found.precision * value_variances(*found[:3], rows.x)
    errors, variances = left_out_errors(values, leverage, rows, n_effective)
    if are_means:
        variances = variances / np.maximum(rows.weight * n_effective, 1)[:, None]
    return noise_scale(values, (errors, variances), rows, n_effective, scaling)


# --- given penalties -----------------------------------------------------------------


def posterior(hyperplanes, coef, rows, mean_square, n_effective):
    """Return posterior, noise and number of parameters of active neurons."""
    (n, q), d = coef.shape, hyperplanes.shape[1] - 1
    model = Layers((d, n), ("relu",), q, "squared", tuple(range(d)), False)
    theta = np.concatenate([np.zeros(q), coef.ravel(), hyperplanes.ravel()])
    gram = model.dense_sums(theta, rows).gram
    # Columns of unit length, so that what counts as dependent knows no units.
    length = np.sqrt(gram.diagonal())
    length = np.where(length > 0, length, 1)
    gram = gram / length[:, None] / length
    inverse = factors.solve_semidefinite(gram, np.eye(len(gram)))
    n_parameters = round(float(np.sum(inverse * gram)))  # the rank
    freedom = degrees_of_freedom(n_effective, q, n_parameters)
    pooled = float(np.sum(mean_square) / freedom)  # of the noise, over N
    inverse = pooled * inverse / length[:, None] / length
    precision = 1 / (pooled * n_effective) if pooled > 0 else 0.0
    found = Posterior(model, theta, inverse, precision, noise_ratio(mean_square))
    return found, np.sqrt(mean_square * q * n_effective / freedom), n_parameters


def fitted_attributes(net, data, scaling, options, *, n_effective):
    """Return the fitted attributes of a network under given penalties, by name."""
    net, rows, ties = rescale(net), data, 0.0
    one_feature = len(scaling.x_scale) == 1
    if one_feature:
        host = data if isinstance(data, SortedRows) else sort_rows(data)
        knots = -net.hyperplanes[:, 0] / net.hyperplanes[:, 1]
        rows, _ = condensed_rows(np.sort(knots), host)
        data, ties = Rows(host.x[:, None], host.y, host.weight), host.tie_variance
    residual = predict_scaled(net, data.x) - data.y
    mean_square = data.weight.astype(np.float64) @ residual**2 + ties
    size = np.linalg.norm(net.coef, axis=1)
    active = net.alive & (size > 0) & (size >= options.active_tol * size.max())
    slots = np.flatnonzero(active)
    planes, coef = (a[slots].astype(np.float64) for a in (net.hyperplanes, net.coef))
    penalty = float(options.alpha) * np.sum(net.coef.astype(np.float64) ** 2)
    loss = 0.5 * float(np.sum(mean_square) + penalty)
    given = planes, coef, rows, mean_square, n_effective
    found, noise_std, n_parameters = posterior(*given)
    linear = np.zeros((len(scaling.x_scale), coef.shape[1]))
    attributes = _network_attributes(net, slots, linear, rows, scaling) | {
        "active_": active[net.alive],
        "alpha_method_": "fixed",
        # The scale of the loss may be infinite.
        "loss_": loss * scaling.loss_scale if loss > 0 else 0.0,
        "noise_std_": noise_std * scaling.y_scale,
        "_posterior": found,
        "_n_parameters": n_parameters,
        "_degrees_of_freedom": n_effective * coef.shape[1] - n_parameters,
    }
    if one_feature:
        given, are_means = (net, scaling, found, left_out_rows(data), n_effective), True
        attributes["_noise_of_rows"] = Deferred(noise_scale_of, *given, are_means)
        of_lines = np.arange(len(slots)), coef, host, scaling, n_effective
        attributes |= breakpoint_attributes(found, *of_lines)
    return attributes


# --- breakpoints of one feature ------------------------------------------------------


def breakpoint_attributes(found, slots, coef, rows, scaling, n_effective):
    """Return the breakpoints of active neurons, ascending, and their standard errors.

    These are NaN outside the data, which lie in [-1, 1], and infinite where the rows
    beside a breakpoint do not determine two lines.
    """
    planes = found.model.split(found.theta)[1][0]
    n, (b, w) = len(planes), planes[slots].T
    knots, start = -b / w, len(found.theta) - 2 * n
    order = np.argsort(knots, kind="stable")
    of_planes = found.covariance[start:, start:].reshape(n, 2, n, 2)[slots, :, slots]
    along = np.stack([np.ones(len(slots)), knots], axis=1) / w[:, None]
    variance = np.einsum("ni,nij,nj->n", along, of_planes, along)
    knots, std = knots[order], np.sqrt(np.maximum(variance, 0))[order]
    at = np.searchsorted(rows.x, knots)
    count = np.diff(at, prepend=0, append=len(rows.x))  # of distinct rows
    lines = count > 1
    if not found.model.linear_term:
        # Without a neuron that points left the first one is level.
        lines[0] |= count[0] > 0 and np.all(w > 0)
    known = lines[1:] & lines[:-1] & np.any(coef[order] != 0, axis=1)
    std = np.where(known, std, np.inf)
    std[(knots <= -1) | (knots >= 1)] = np.nan
    return {
        "breakpoints_": knots * scaling.x_scale[0] + scaling.x_center[0],
        "breakpoint_std_": std * scaling.x_scale[0],
        "_rows_at_ends": rows_at_ends(rows, n_effective, knots),
    }


# --- penalties of the evidence -------------------------------------------------------


def evidence_attributes(net, rows, scaling, options, *, robust=False):
    """Return the fitted attributes of a network whose penalties the evidence chose.

    They describe the linear model if left-out rows prefer it.
    """
    n_effective, given = options.n_effective, options.alpha is not None
    observed, model = rows, net.model
    q, y_scale = model.n_values, scaling.y_scale
    if robust:
        rows = rows._replace(y=huber.targets_of(predict_scaled(net, rows.x), rows))
    known = summary_of(model, net, rows, scaling, options)
    linear = None if given else linear_model(rows, n_effective)
    against = net, known.covariance.get(), rows, n_effective
    if linear is not None and beats(linear, *against):
        net = linear.network(model)
        known = summary_of(model, net, rows, scaling, options)
    n_parameters = known.n_effective_parameters
    n_chosen = n_parameters + known.n_of_penalties
    freedom = degrees_of_freedom(n_effective, q, n_chosen)
    if robust:
        values = predict_scaled(net, rows.x)
        noise_std = huber.noise_std(values, observed, n_effective, n_chosen / q)
        noise_std = y_scale * noise_std
    else:
        ratio = degrees_of_freedom(n_effective, q, n_parameters) / freedom
        noise_std = known.noise_std * math.sqrt(ratio)
    covariance = known.covariance.get()
    found = Posterior(model, net.theta, covariance, net.beta, known.noise_ratio)
    shown = network_of(net, rows)
    active = np.any(shown.coef != 0, axis=1)
    slots = np.flatnonzero(active)
    some = rows
    if not isinstance(rows, RowSource):
        some, _ = rows.every(len(rows.x) // model.n_rows_of_matrix(len(rows.x)))
    attributes = _network_attributes(shown, slots, shown.slope, some, scaling)
    if not (given or robust):
        of_rows = net, scaling, found, left_out_rows(rows), n_effective
        attributes["_noise_of_rows"] = Deferred(noise_scale_of, *of_rows)
    if len(scaling.x_scale) == 1:
        host = sort_rows(rows.sample if isinstance(rows, RowSource) else rows)
        of_lines = slots, shown.coef[slots], host, scaling, n_effective
        attributes |= breakpoint_attributes(found, *of_lines)
    return attributes | {
        "active_": active,
        "alpha_method_": "fixed" if given else known.alpha_method,
        "alpha_": {name: a for name, a in known.alpha.items() if name != "layers"},
        "loss_": known.loss,
        "noise_std_": one_or_each(noise_std),
        "n_effective_parameters_": n_parameters,
        "_posterior": found,
        "_degrees_of_freedom": freedom,
        "_n_parameters": n_chosen,
        "_want_of_penalties": want_of_penalties(net),
        "log_evidence_": known.log_evidence,
    }


def summarise(model):
    """Return the summary of a ShallowReLURegressor with one feature and one target."""
    t, std = model.breakpoints_, model.breakpoint_std_
    lower, upper = t + np.outer(ndtri([0.025, 0.975]), std)
    width = np.append(std, np.diff(t))
    breakpoints = {
        "number": np.arange(1, len(t) + 1),
        "position": digits(t, width),
        "std err": std,
        "[0.025": digits(lower, width),
        "0.975]": digits(upper, width),
    }
    # A neuron is active from its own breakpoint on, or up to it.
    ends = np.concatenate([[-np.inf], t, [np.inf]])
    b, w = model.hyperplanes_.T
    active = (w > 0) & (-b / w <= ends[:-1, None])
    active |= (w < 0) & (-b / w >= ends[1:, None])
    slope = np.ravel(model.linear_coef_)[0] + active @ (model.output_coef_ * w)
    segments = {
        "number": np.arange(1, len(t) + 2),
        "start": digits(ends[:-1], width),
        "end": digits(ends[1:], width),
        "intercept": model.output_intercept_ + active @ (model.output_coef_ * b),
        "slope": slope,
    }
    facts = {"Noise std": model.noise_std_, "Loss": model.loss_}
    facts = {"Neurons": len(t), "Iterations": model.n_iter_} | facts
    tables = {"Breakpoints": breakpoints} if len(t) else {}
    notes = ["Outside the data, the first and the last line are extended."]
    if np.isnan(std).any():
        notes.append("Breakpoints outside the data have no standard error.")
    tables["Segments"] = segments
    return Summary("Shallow ReLU regression", facts, tables, notes)
