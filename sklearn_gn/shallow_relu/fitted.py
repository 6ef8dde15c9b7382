"""A fitted network: attributes in the user's units, and standard errors.

Standard errors are those of the delta method: near its optimum the network is linear in
all parameters, and their covariance is that of the joint Gauss-Newton matrix. Under
given penalties directions that the data do not determine are left out; where the
evidence has chosen the penalties the covariance is the posterior one.

With one feature two rows for each interval between breakpoints stand for all of them.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from sklearn_gn.arrays.extremes import noise_deviation
from sklearn_gn.bayes import evidence, huber
from sklearn_gn.bayes.evidence_gn import alpha_method, at_penalties, sums_of
from sklearn_gn.bayes.laplace import (
    covariance,
    degrees_of_freedom,
    noise_ratio,
    one_or_each,
    posterior_variances,
    spectrum,
)
from sklearn_gn.bayes.layers import Layers, RegularisedLayers
from sklearn_gn.bayes.linear_evidence import beats, linear_model
from sklearn_gn.data.rows_source import BLOCK_ROWS, RowSource, reduce, row_blocks
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

_BATCH_ROWS = 65536  # of predictions, so that the hidden features stay small
_DEPENDENT = 1e-7  # relative singular value of a direction that is left out


# --- predictions, designs and their sums ---------------------------------------------


def predict_scaled(net, z):
    """Return predictions of shape (m, q), in float64 and in scaled units."""
    by_evidence = isinstance(net, RegularisedLayers)
    values = (
        partial(net.model.values, net.theta) if by_evidence else partial(predict, net)
    )
    starts = range(0, max(len(z), 1), _BATCH_ROWS)
    parts = [values(z[start : start + _BATCH_ROWS]) for start in starts]
    return np.concatenate(parts).astype(np.float64, copy=False)


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


def _network_attributes(net, slots, slope, scaling, loss):
    """Return the attributes that hold the parameters of a network, and its loss."""
    planes = net.hyperplanes[slots].astype(np.float64)
    hyperplanes, factor = hyperplanes_to_user(scaling, planes)
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
        # The scale of the loss may be infinite.
        "loss_": loss * scaling.loss_scale if loss > 0 else 0.0,
    }


# --- standard errors -----------------------------------------------------------------


class Posterior(NamedTuple):
    """Covariance of the parameters of a fitted network, in scaled units."""

    model: Layers
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
        variances = np.empty((len(z), self.model.n_values))
        for start in range(0, len(z), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            for k, variance in enumerate(variances.T):
                jacobian = self.model.jacobian(self.theta, z[rows], [k])[0]
                variance[rows] = posterior_variances(self.covariance, jacobian)
        return variances


# --- given penalties -----------------------------------------------------------------


def posterior(hyperplanes, coef, factor, mean_square, n_effective):
    """Return the posterior of active neurons, and the number of their parameters."""
    (n, q), width = coef.shape, hyperplanes.shape[1]
    mass, hidden = np.split(factor, [1 + n], axis=1)
    parts = [
        np.hstack([np.kron(mass, one), hidden * np.repeat(c, width)])
        for one, c in zip(np.eye(q)[:, None], coef.T, strict=True)
    ]
    design = np.vstack(parts)
    # Columns of unit length, so that what counts as dependent knows no units.
    length = np.linalg.norm(design, axis=0)
    length = np.where(length > 0, length, 1)
    _, s, vt = factors.singular_triplets(design / length)
    kept = s > _DEPENDENT * s[0]
    half = vt[kept].T / s[kept] / length[:, None]
    freedom = degrees_of_freedom(n_effective, q, kept.sum())
    pooled = float(np.sum(mean_square) / freedom)  # of the noise, over N
    features = tuple(range(width - 1))
    found = Posterior(
        model=Layers((width - 1, n), ("relu",), q, "squared", features, False),
        n_effective=n_effective,
        theta=np.concatenate([np.zeros(q), coef.ravel(), hyperplanes.ravel()]),
        covariance=pooled * (half @ half.T),
        noise_std=np.sqrt(mean_square * q * n_effective / freedom),
        noise_ratio=noise_ratio(mean_square),
    )
    return found, int(kept.sum())


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
    both = net.hyperplanes, net.coef
    hyperplanes, coef = (a[used].astype(np.float64) for a in both)
    width = hyperplanes.shape[1]
    penalty = float(options.alpha) * np.sum(net.coef.astype(np.float64) ** 2)
    loss = 0.5 * float(np.sum(mean_square) + penalty)
    factor = joint_factor(hyperplanes, rows)
    found, n_parameters = posterior(hyperplanes, coef, factor, mean_square, n_effective)
    mass, layer = np.split(factor, [1 + len(used)], axis=1)
    unit = coef / np.where(size[used] > 0, size[used], 1)[:, None]
    layer = np.concatenate([layer * np.repeat(c, width) for c in unit.T])
    linear = np.zeros((len(scaling.x_scale), coef.shape[1]))
    attributes = _network_attributes(net, slots, linear, scaling, loss) | {
        "active_": active[net.alive],
        "alpha_method_": "fixed",
        "gram_spectrum_": squared_singular_values(layer)[: len(slots) * width],
        "mass_spectrum_": squared_singular_values(mass)[: 1 + len(slots)],
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
    at = np.searchsorted(rows.x, knots)
    count = np.diff(at, prepend=0, append=len(rows.x))  # of distinct rows
    lines = count > 1
    # Without a neuron that points left the first one is level.
    lines[0] |= count[0] > 0 and w.min() > 0
    known = lines[1:] & lines[:-1] & np.any(coef[order] != 0, axis=1)
    std = np.where(known, std, np.inf)
    std[(knots <= -1) | (knots >= 1)] = np.nan
    return knots, std


# --- penalties of the evidence -------------------------------------------------------


def evidence_posterior(net, rows, sums, n_effective):
    """Return the posterior at the penalties of a network."""
    inverse = covariance(net.model, sums, net.alpha, net.beta, n_effective)
    ratio = noise_ratio(reduce(residual_squares, net, rows, _BATCH_ROWS))
    noise_std = noise_deviation(net.beta, ratio)
    return Posterior(net.model, n_effective, net.theta, inverse, noise_std, ratio)


def evidence_attributes(net, rows, scaling, options, *, robust=False):
    """Return the fitted attributes of a network whose penalties the evidence chose.

    They are those of the linear model if left-out rows prefer it.
    """
    n_effective, given = options.n_effective, options.alpha is not None
    observed, model = rows, net.model
    (d, n), q = model.sizes, model.n_values
    if robust:
        rows = rows._replace(y=huber.targets_of(predict_scaled(net, rows.x), rows))
    sums = sums_of(model, net.theta, rows)
    posterior = evidence_posterior(net, rows, sums, n_effective)
    linear = None if given else linear_model(rows, n_effective)
    if linear is not None and beats(
        linear, net, lambda x: net.beta * posterior.variances(x), rows, n_effective
    ):
        theta = np.zeros(len(net.theta))
        theta[: linear.coef.size] = linear.coef.ravel()
        alpha, gamma = linear.penalties(len(net.alpha))
        found = alpha, linear.beta, gamma, linear.log_evidence
        net = model.network(theta, *found)
        sums = sums_of(model, theta, rows)
        posterior = evidence_posterior(net, rows, sums, n_effective)
    found, value, loss = at_penalties(model, net, sums, n_effective)
    n_parameters = float(np.sum(found.gamma)) + q
    n_chosen = n_parameters
    if not given:
        n_chosen += evidence.parameters_of_penalties(found.gamma, model.groups())
    freedom = degrees_of_freedom(n_effective, q, n_chosen)
    if robust:
        values = predict_scaled(net, rows.x)
        noise_std = huber.noise_std(values, observed, n_effective, n_chosen / q)
    else:
        ratio = degrees_of_freedom(n_effective, q, n_parameters) / freedom
        noise_std = posterior.noise_std * math.sqrt(ratio)
    y_scale = np.broadcast_to(scaling.y_scale, q)
    scale = net.beta * n_effective  # of the objective divided by the sum of weights
    penalties = net.alpha / scale
    if not given:  # features that have left the hidden layer
        gone = np.setdiff1d(np.arange(d), model.features)
        penalties[3 + gone] = evidence.LARGEST / scale
    shown = network_of(net, rows)
    slots = np.flatnonzero(np.any(shown.coef != 0, axis=1))
    some = rows if isinstance(rows, RowSource) else model.rows_of_matrix(rows)
    gram = reduce(joint_gram, shown.hyperplanes[slots], some, BLOCK_ROWS)
    p = 1 + len(slots)
    return _network_attributes(shown, slots, shown.slope, scaling, loss) | {
        "active_": np.isin(np.arange(n), slots),
        "gram_spectrum_": spectrum(gram[p:, p:]),
        "mass_spectrum_": spectrum(gram[:p, :p]),
        "alpha_method_": "fixed" if given else alpha_method(sums.gram),
        "alpha_": {
            "slope": float(penalties[0]),
            "coef": float(penalties[1]),
            "bias": float(penalties[2]),
            "weights": penalties[3:],
        },
        "noise_std_": one_or_each(y_scale * noise_std),
        "n_effective_parameters_": n_parameters,
        "_posterior": posterior,
        "_degrees_of_freedom": freedom,
        "log_evidence_": value - n_effective * float(np.sum(np.log(y_scale))),
    }


def summarise(model):
    """Return the summary of a ShallowReLURegressor with one feature and one target."""
    t, std = model.breakpoints_, getattr(model, "breakpoint_std_", None)
    std = np.full(len(t), np.nan) if std is None else std
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
