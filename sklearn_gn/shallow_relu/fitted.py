"""A fitted network: attributes in the user's units, and standard errors.

Standard errors are those of the delta method: near its optimum the network is linear in
all parameters, and their covariance is that of the joint Gauss-Newton matrix, whose
blocks are the mass matrix A of the output layer, the layer matrix H and the cross block
B. Under given penalties directions that the data do not determine are left out; where
the evidence has chosen the penalties the covariance is the posterior one.

With one feature two rows for each interval between breakpoints stand for all of them.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from sklearn_gn.arrays.extremes import noise_deviation
from sklearn_gn.bayes import evidence, huber
from sklearn_gn.bayes.evidence_gn import alpha_method, at_last_penalties, sums_of
from sklearn_gn.bayes.laplace import (
    covariance,
    degrees_of_freedom,
    noise_ratio,
    one_or_each,
    posterior_variances,
    spectrum,
)
from sklearn_gn.bayes.linear_evidence import beats, linear_model
from sklearn_gn.data.rows_source import BLOCK_ROWS, reduce, row_blocks
from sklearn_gn.findings import rows_at_ends
from sklearn_gn.linalg import factors
from sklearn_gn.linalg.low_rank import LowRank
from sklearn_gn.optim.solver import Rows
from sklearn_gn.runtime.summary import Summary, digits
from sklearn_gn.segmented.inference import LEVEL
from sklearn_gn.shallow_relu import evidence_gn
from sklearn_gn.shallow_relu.evidence_gn import shape_of
from sklearn_gn.shallow_relu.lines import (
    SortedRows,
    condensed_rows,
    moments,
    sort_rows,
)
from sklearn_gn.shallow_relu.network import hidden_features, rescale, weighted_tangent
from sklearn_gn.shallow_relu.starts import hyperplanes_to_user

_BATCH_ROWS = 65536  # of predictions, so that the hidden features stay small
_DEPENDENT = 1e-7  # relative singular value of a direction that is left out


# --- predictions, designs and their sums ---------------------------------------------


def predict_scaled(net, z):
    """Return predictions of shape (m, q), in float64 and in scaled units."""
    y = np.empty((len(z), net.coef.shape[1]))
    for start in range(0, len(z), _BATCH_ROWS):
        rows = slice(start, start + _BATCH_ROWS)
        y[rows] = hidden_features(net.hyperplanes, z[rows]) @ net.coef + net.intercept
        if hasattr(net, "slope"):  # a linear term
            y[rows] += z[rows] @ net.slope
    return y


def validation_loss(validation, scaling):
    """Return the function from a network to its loss on (X, y, weight)."""
    X, y, weight = validation
    z, t = scaling.x(X), scaling.y(y)
    return lambda net: (
        0.5 * float(weight @ np.sum((predict_scaled(net, z) - t) ** 2, axis=1))
    )


def residual_squares(net, rows):
    """Return the weighted sums of the squared residuals of each target."""
    residual = predict_scaled(net, rows.x) - rows.y
    return rows.weight.astype(np.float64) @ residual**2


def joint_gram(hyperplanes, rows):
    """Return the Gram matrix of the columns of both layers for a block, without c."""
    design = np.concatenate(weighted_tangent(hyperplanes, rows), axis=1)
    return design.T @ design


def joint_factor(hyperplanes, rows):
    """Return a matrix W with ``W^T W`` the Gram matrix of all rows."""
    width = 1 + hyperplanes.size + len(hyperplanes)
    if len(rows.x) * width**2 > factors.QR_LIMIT:
        gram = reduce(joint_gram, hyperplanes, rows, BLOCK_ROWS)
        values, vectors = factors.eigenpairs(gram)
        return np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    factor = np.zeros((0, width))
    for block in row_blocks(rows):
        columns = np.concatenate(weighted_tangent(hyperplanes, block), axis=1)
        factor = factors.upper_factor(factor, columns)
    return factor


# --- the attributes that all fits have -----------------------------------------------


def _network_attributes(net, slots, slope, scaling):
    """Return the attributes that hold the parameters of a network."""
    hyperplanes, factor = hyperplanes_to_user(
        scaling, net.hyperplanes[slots].astype(np.float64)
    )
    slope = (slope * scaling.y_scale / scaling.x_scale[:, None]).T
    # What the units of x take from the constant is in the centre of the features.
    intercept = net.intercept * scaling.y_scale + scaling.y_center
    return {
        "_network": (net, scaling),
        "_active_slots": slots,
        "_n_features_out": len(slots),
        "hyperplanes_": hyperplanes,
        "output_coef_": (net.coef[slots] * scaling.y_scale).T * factor,
        "linear_coef_": slope,
        "output_intercept_": intercept - slope @ scaling.x_center,
    }


def _loss(loss, scaling):
    """Return a loss in the user's units; the scale may be infinite."""
    return loss * scaling.loss_scale if loss > 0 else 0.0


# --- standard errors -----------------------------------------------------------------


class Posterior(NamedTuple):
    """Covariance of the parameters of a fitted network, in scaled units."""

    shape: tuple  # arguments of shape_of; skops knows named tuples, not their children
    n_effective: float  # sum of the sample weights: a weight of two counts as two rows
    theta: np.ndarray  # (P,)
    covariance: np.ndarray | LowRank  # (P, P)  at the mean noise of all targets
    noise_std: np.ndarray  # (q,)  of an observation of each target
    # (q,)  variance of the noise of each target, over the mean of all, which is that of
    # the covariance
    noise_ratio: np.ndarray

    def standard_errors(self, z):
        """Return standard errors of predictions of shape (m, q)."""
        return np.sqrt(self.noise_ratio * self.variances(z))

    def variances(self, z):
        """Return variances of predictions, at the mean noise of all targets."""
        shape = shape_of(*self.shape)
        variances = np.empty((len(z), shape.q))
        for start in range(0, len(z), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            for k in range(shape.q):
                jacobian = shape.jacobian(self.theta, z[rows], [k])[0]
                variances[rows, k] = posterior_variances(self.covariance, jacobian)
        return variances


# --- given penalties -----------------------------------------------------------------


def posterior(hyperplanes, coef, factor, mean_square, n_effective):
    """Return the posterior of active neurons, and the number of their parameters."""
    (n, q), width = coef.shape, hyperplanes.shape[1]
    mass, hidden = factor[:, : 1 + n], factor[:, 1 + n :]
    u, s, vt = factors.singular_triplets(mass)
    kept = s > _DEPENDENT * s[0]
    u, root = u[:, kept], vt[kept].T / s[kept]
    hidden_in_mass = u.T @ hidden
    scale = np.repeat(coef, width, axis=0).T[:, :, None]
    outside = (hidden - u @ hidden_in_mass)[None] * np.swapaxes(scale, 1, 2)
    reference = np.linalg.norm(hidden * np.abs(scale[..., 0]).max(axis=0), 2)
    _, t, wt = factors.singular_triplets(outside.reshape(-1, n * width))
    free = t > _DEPENDENT * reference
    moved = wt[free].T / t[free]
    with_output = -root @ hidden_in_mass @ (scale * moved)  # (q, 1 + n, :)
    with_output = with_output.transpose(1, 0, 2).reshape(q * (1 + n), free.sum())
    of_output = np.kron(root, np.eye(q))
    below = np.zeros((n * width, of_output.shape[1]))
    whole = np.block([[of_output, with_output], [below, moved]])
    n_parameters = q * kept.sum() + free.sum()
    freedom = degrees_of_freedom(n_effective, q, n_parameters)
    pooled = float(np.sum(mean_square) / freedom)  # of the noise, over N
    theta = np.concatenate([np.zeros(q), coef.ravel(), hyperplanes.ravel()])
    found = Posterior(
        shape=(n, width - 1, q, None, False),
        n_effective=n_effective,
        theta=theta,
        covariance=pooled * (whole @ whole.T),
        noise_std=np.sqrt(mean_square * q * n_effective / freedom),
        noise_ratio=noise_ratio(mean_square),
    )
    return found, int(n_parameters)


def fitted_attributes(net, data, scaling, options, *, n_effective):
    """Return the fitted attributes of a network under given penalties, by name."""
    net, one_feature = rescale(net), len(scaling.x_scale) == 1
    if one_feature:
        host = data if isinstance(data, SortedRows) else sort_rows(data)
        knots = -net.hyperplanes[:, 0] / net.hyperplanes[:, 1]
        rows, _ = condensed_rows(np.sort(knots), host)
        whole = Rows(host.x[:, None], host.y, host.weight)
        mean_square = residual_squares(net, whole) + host.tie_variance
    else:
        rows, mean_square = data, reduce(residual_squares, net, data, _BATCH_ROWS)
    size = np.linalg.norm(net.coef, axis=1)
    active = net.alive & (size > 0) & (size >= options.active_tol * size.max())
    slots = np.flatnonzero(active)
    used = slots if len(slots) else np.zeros(1, np.intp)  # no array is empty
    hyperplanes, coef = (
        a[used].astype(np.float64) for a in (net.hyperplanes, net.coef)
    )
    width = hyperplanes.shape[1]
    penalty = float(options.alpha) * np.sum(net.coef.astype(np.float64) ** 2)
    loss = 0.5 * float(np.sum(mean_square) + penalty)
    factor = joint_factor(hyperplanes, rows)
    found, n_parameters = posterior(hyperplanes, coef, factor, mean_square, n_effective)
    mass, layer = np.split(factor, [1 + len(used)], axis=1)
    unit = coef / np.where(size[used] > 0, size[used], 1)[:, None]
    layer = np.concatenate([layer * np.repeat(c, width) for c in unit.T])
    linear = np.zeros((len(scaling.x_scale), coef.shape[1]))
    attributes = _network_attributes(net, slots, linear, scaling) | {
        "active_": active[net.alive],
        "alpha_method_": "fixed",
        "gram_spectrum_": squared_singular_values(layer)[: len(slots) * width],
        "mass_spectrum_": squared_singular_values(mass)[: 1 + len(slots)],
        "loss_": _loss(loss, scaling),
        "noise_std_": found.noise_std * scaling.y_scale,
        "_posterior": found,
        "_degrees_of_freedom": n_effective * coef.shape[1] - n_parameters,
    }
    if one_feature:
        knots, std = fitted_breakpoints(found, hyperplanes, coef, host)
        knots, std = knots[: len(slots)], std[: len(slots)]
        attributes |= {
            "breakpoints_": knots * scaling.x_scale[0] + scaling.x_center[0],
            "breakpoint_std_": std * scaling.x_scale[0],
            "_rows_at_ends": rows_at_ends(host, n_effective, knots),
        }
    return attributes


def squared_singular_values(factor):
    """Return the eigenvalues of ``factor^T factor``, descending."""
    values = factors.singular_values(factor) ** 2
    return np.pad(values, (0, max(factor.shape[1] - len(values), 0)))


# --- breakpoints of one feature ------------------------------------------------------


def fitted_breakpoints(found, hyperplanes, coef, rows):
    """Return the breakpoints of active neurons, ascending, and their standard errors.

    These are those of -b / w. They are NaN outside the data, which lie in [-1, 1], and
    infinite where the rows beside a breakpoint do not determine two lines.
    """
    (b, w), n = hyperplanes.T, len(hyperplanes)
    knots, own = -b / w, np.arange(n)
    order = np.argsort(knots, kind="stable")
    of_planes = found.covariance[-2 * n :, -2 * n :].reshape(n, 2, n, 2)[own, :, own]
    along = np.stack([np.ones(n), knots], axis=1) / w[:, None]
    variance = np.einsum("ni,nij,nj->n", along, of_planes, along)
    knots, std = knots[order], np.sqrt(np.maximum(variance, 0))[order]
    m = moments(knots, rows)
    lines = m.xx > 0
    # Without a neuron that points left the first one is level.
    lines[0] |= m.weight[0] > 0 and w.min() > 0
    known = lines[1:] & lines[:-1] & np.any(coef[order] != 0, axis=1)
    std = np.where(known, std, np.inf)
    std[(knots <= -1) | (knots >= 1)] = np.nan
    return knots, std


# --- penalties of the evidence -------------------------------------------------------


def evidence_posterior(net, rows, sums, n_effective):
    """Return the posterior at the penalties of a network."""
    shape = net.shape
    inverse = covariance(shape, sums, net.alpha, net.beta, n_effective)
    squares = reduce(residual_squares, net, rows, _BATCH_ROWS)
    ratio = noise_ratio(squares)
    noise_std = noise_deviation(net.beta, ratio)
    size = shape.n, shape.d, shape.q, shape.features
    return Posterior(size, n_effective, net.theta, inverse, noise_std, ratio)


def linear_network_if_better(net, found, rows, n_effective):
    """Return the linear model if it is as good as a network, or None."""

    def leverages(x):
        return net.beta * found.variances(x)

    linear = linear_model(rows, n_effective)
    if linear is None or not beats(
        linear, net, leverages, net.values, rows, n_effective
    ):
        return None
    theta = np.zeros(net.shape.size)
    theta[: linear.coef.size] = linear.coef.ravel()
    alpha, gamma = linear.penalties(len(net.alpha))
    return evidence_gn.network_of(
        theta, net.shape, alpha, linear.beta, gamma, linear.log_evidence
    )


def evidence_attributes(net, rows, scaling, options, *, robust=False):
    """Return the fitted attributes of a network whose penalties the evidence chose."""
    n_effective, given = options.n_effective, options.alpha is not None
    observed, n_neurons = rows, net.shape.n
    if robust:
        rows = rows._replace(y=huber.targets_of(net.values(rows.x), rows))
    sums = sums_of(net.shape, net.theta, rows)
    posterior = evidence_posterior(net, rows, sums, n_effective)
    linear = None
    if not given:
        linear = linear_network_if_better(net, posterior, rows, n_effective)
    if linear is not None:
        net, sums = linear, sums_of(linear.shape, linear.theta, rows)
        posterior = evidence_posterior(net, rows, sums, n_effective)
    shape = net.shape
    y_scale = np.broadcast_to(scaling.y_scale, shape.q)
    found, value, loss = at_last_penalties(shape, net, sums, n_effective)
    scale = net.beta * n_effective  # of the objective divided by the sum of weights
    n_parameters = float(np.sum(found.gamma)) + shape.q
    n_chosen = n_parameters
    if not given:
        n_chosen += evidence.parameters_of_penalties(found.gamma, shape.groups())
    freedom = degrees_of_freedom(n_effective, shape.q, n_chosen)
    if robust:
        fitted_values = net.values(rows.x)
        noise_std = huber.noise_std(
            fitted_values, observed, n_effective, n_chosen / shape.q
        )
    else:
        ratio = degrees_of_freedom(n_effective, shape.q, n_parameters) / freedom
        noise_std = posterior.noise_std * math.sqrt(ratio)
    shown = evidence_gn.pruned(net, rows)
    slots = np.flatnonzero(np.any(shown.coef != 0, axis=1))
    gram = reduce(joint_gram, shown.hyperplanes[slots], rows, BLOCK_ROWS)
    p = 1 + len(slots)
    return _network_attributes(shown, slots, shown.slope, scaling) | {
        "active_": np.isin(np.arange(n_neurons), slots),
        "gram_spectrum_": spectrum(gram[p:, p:]),
        "mass_spectrum_": spectrum(gram[:p, :p]),
        "loss_": _loss(loss, scaling),
        "alpha_method_": "fixed" if given else alpha_method(sums.gram),
        "alpha_": {
            "slope": float(net.alpha[0] / scale),
            "coef": float(net.alpha[1] / scale),
            "bias": float(net.alpha[2] / scale),
            "weights": net.alpha[3:] / scale,
        },
        "noise_std_": one_or_each(y_scale * noise_std),
        "n_effective_parameters_": n_parameters,
        "_posterior": posterior,
        "_degrees_of_freedom": freedom,
        "log_evidence_": value - n_effective * float(np.sum(np.log(y_scale))),
    }


# --- one feature as lines -------------------------------------------------------------


def summarise(model):
    """Return the summary of a ShallowReLURegressor with one feature and one target."""
    t, std = model.breakpoints_, getattr(model, "breakpoint_std_", None)
    std = np.full(len(t), np.nan) if std is None else std
    width = ndtri((1 + LEVEL) / 2) * std
    lower, upper = t - width, t + width
    slope, intercept = _lines(model, t)
    facts = {
        "Neurons": len(t),
        "Iterations": model.n_iter_,
        "Noise std": model.noise_std_,
        "Loss": model.loss_,
    }
    width = np.append(std, np.diff(t))
    breakpoints = {
        "number": np.arange(1, len(t) + 1),
        "position": digits(t, width),
        "std err": std,
        "[0.025": digits(lower, width),
        "0.975]": digits(upper, width),
    }
    segments = {
        "number": np.arange(1, len(t) + 2),
        "start": digits(np.append(-np.inf, t), width),
        "end": digits(np.append(t, np.inf), width),
        "intercept": intercept,
        "slope": slope,
    }
    tables = {"Breakpoints": breakpoints} if len(t) else {}
    notes = ["Outside the data, the first and the last line are extended."]
    if np.isnan(std).any():
        notes.append("Breakpoints outside the data have no standard error.")
    return Summary(
        "Shallow ReLU regression", facts, tables | {"Segments": segments}, notes
    )


def _lines(model, t):
    """Return slopes and intercepts of the lines between breakpoints."""
    ends = np.concatenate([[-np.inf], t, [np.inf]])
    b, w = model.hyperplanes_.T
    knots = -b / w
    # A neuron is active from its knot on, or up to it.
    right = (w > 0) & (knots <= ends[:-1, None])
    left = (w < 0) & (knots >= ends[1:, None])
    active = right | left
    slope = float(np.ravel(model.linear_coef_)[0]) + active @ (model.output_coef_ * w)
    intercept = model.output_intercept_ + active @ (model.output_coef_ * b)
    return slope, intercept
