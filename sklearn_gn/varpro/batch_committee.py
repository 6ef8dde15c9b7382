r"""Committees of wide classifiers, in mini-batches of fast Gauss-Newton steps.

Where a Gauss-Newton matrix of all rows would be too dear, the members are wider
networks (:class:`~sklearn_gn.bayes.layers.Layers`), and an iteration is an epoch of
mini-batches of every member. The penalties are those of normal priors of fixed size.

The cross-entropy of a row with the true class t is ``log(1 + exp(-f))`` of its margin

    f = u_t - log sum_{j != t} exp(u_j).

Fast Gauss-Newton (Korbit and Zanon) keeps the curvature along the margin alone, so that
the system of a step has one row an example. In place of the curvature itself, which is
nearly zero for rows that are far on the wrong side, there stands the least one of a
parabola that touches the loss at f and lies nowhere below it (Jaakkola and Jordan,
"Bayesian parameter estimation via variational methods", 2000),

    h(f) = tanh(f / 2) / (2 f).

So no step is too long for the margins, linear in the parameters, that it is taken for.
With Q the derivatives of the margins of a batch, weights w that sum to one, the
residuals r = w sigmoid(-f), R^2 = w h and D the damping and penalties, the step is

    D^-1 (Q^T z - A theta),   z = r - R (1 + R K R)^-1 R Q D^-1 (Q^T r - A theta),

with K = Q D^-1 Q^T. The derivatives in an affine map are products of its inputs and of
what is propagated back to it, and K is a sum of products of their Gram matrices.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from sklearn_gn.bayes import evidence
from sklearn_gn.bayes.layers import forward, linear_inputs, with_one
from sklearn_gn.bayes.low_rank import positive_precision
from sklearn_gn.optim.multinomial import bounding_curvature
from sklearn_gn.optim.solver import Algorithm, Report
from sklearn_gn.varpro.committee import side_by_side
from sklearn_gn.varpro.weighing import rows_without

EPOCHS = 20  # in which the damping rises
_MORE_EPOCHS = 10  # the last ones once more on all rows, by members that lacked a part
_DAMPINGS = (0.1, 1.0)  # in the first epoch and from the last one on
_BATCH = 128
_PRECISIONS = {"slope": 10.0, "others": 1.0}  # of the priors, in scaled units


class BatchOptions(NamedTuple):
    """Settings of a run."""

    n_effective: float  # number of rows, counted by their weights
    damping: float | None  # of all epochs; None: it rises
    tol: float  # if zero, the fit goes on after the last epoch of the schedule
    seed: int
    continues: bool  # whether the members come from a former fit
    alpha: np.ndarray | None  # given penalties of the groups, over n_effective
    dtype: type = np.float32
    lacks_part: bool = False  # whether each member lacks a part of the rows at first


class BatchState(NamedTuple):
    """State of a fit; the last networks are the best."""

    net: tuple  # of Member
    loss: float
    criterion: float
    epoch: int = 0
    lacking: tuple = ()  # members that have not seen their part, once all see all rows


def prior_precisions(model):
    """Return the precisions of the groups of parameters."""
    alpha = np.full(model.n_groups, _PRECISIONS["others"])
    alpha[0] = _PRECISIONS["slope"]
    return alpha


def init(rows, members, options):
    """Return the state of a fit that starts from some members."""
    alpha = prior_precisions(members[0].model)
    if options.alpha is not None:
        alpha = options.n_effective * options.alpha
    members = tuple(
        m._replace(net=m.net._replace(alpha=alpha, beta=1.0)) for m in members
    )
    loss = float(np.mean([objective(m, rows, options.n_effective) for m in members]))
    return BatchState(members, loss, 0.0)


def step(rows, state, options):
    """An epoch of every member.

    Members that lack a part of the rows end with epochs on all of them: networks of
    three quarters of the rows predict worse where the classes are nearly separable.
    """
    lacks_part = options.lacks_part and state.epoch < EPOCHS
    sees_all_now = options.lacks_part and not lacks_part
    damping = damping_of(state.epoch - _MORE_EPOCHS * sees_all_now, options)
    now = options._replace(lacks_part=lacks_part)
    jobs = list(enumerate(state.net))
    run = partial(_epoch_of_member, rows, now, state.epoch, damping)
    members, losses = zip(*side_by_side(run, jobs), strict=True)
    loss, epoch = float(np.mean(losses)), state.epoch + 1
    last = EPOCHS + (_MORE_EPOCHS if options.lacks_part else 0)
    stop = "tol" if epoch == last and options.tol > 0 else None
    if not math.isfinite(loss):
        return state, Report(loss, math.nan, stop="non_finite")
    lacking = members if lacks_part and epoch == EPOCHS else state.lacking
    state = BatchState(members, loss, state.criterion - 1, epoch, lacking)
    return state, Report(loss, math.nan, step_size=1.0, damping=damping, stop=stop)


def damping_of(epoch, options):
    """Return the damping of an epoch."""
    if options.damping is not None:
        return options.damping
    if options.continues or epoch >= EPOCHS:
        return _DAMPINGS[1]
    first, last = _DAMPINGS
    return first * (last / first) ** (epoch / (EPOCHS - 1))


def objective(member, rows, n_effective):
    """Return the mean cross-entropy of a member with its penalties."""
    model, net = member
    squares = evidence.weighted_squares(net.theta, model.groups(), net.alpha)
    return (model.error(net.theta, rows) + squares / n_effective) / 2


def _epoch_of_member(rows, options, epoch, damping, job):
    number, member = job
    model, net = member
    if options.lacks_part:
        rows = rows_without(rows, options.n_effective, number)
    rng = np.random.RandomState([options.seed, number, epoch])
    theta, loss = run_epoch(model, net, rows, options, damping, rng)
    return member._replace(net=net._replace(theta=theta)), loss


def run_epoch(model, net, rows, options, damping, rng):
    """Return the parameters after an epoch, and the objective on the way."""
    dtype = options.dtype
    output, layers = model.split(net.theta)
    maps = [a.astype(dtype) for a in (output.T, *layers)]
    penalties = [
        (a / options.n_effective).astype(dtype)
        for a in precisions_of_inputs(model, net.alpha)
    ]
    n, total = len(rows.x), 0.0
    for index in np.array_split(rng.permutation(n), max(1, round(n / _BATCH))):
        share = np.sum(rows.weight[index])
        batch = (
            with_one(rows.x[index]).astype(dtype),
            rows.y[index].T.astype(dtype),
            (rows.weight[index] / share).astype(dtype),
        )
        maps, loss = batch_step(model, maps, batch, penalties, damping)
        total += share * loss
    output, *layers = (a.astype(np.float64) for a in maps)
    theta = model.join(output.T, layers)
    squares = evidence.weighted_squares(theta, model.groups(), net.alpha)
    return theta, float(total) + squares / options.n_effective / 2


def precisions_of_inputs(model, alpha):
    """Return the prior precision of the weights of each input of each affine map."""
    d, last = model.n_slopes, model.n_linear - 1 - model.n_slopes
    found = [np.repeat([0.0, alpha[0], alpha[1]], [1, d, last])]
    of_layers = alpha[2 + model.n_feature_groups :]
    for number, (_, n_inputs) in enumerate(model.shapes()):
        own = alpha[3] if number == 0 else of_layers[number]
        found.append(np.repeat([alpha[2], own], [1, n_inputs - 1]))
    return found


def batch_step(model, maps, batch, penalties, damping):
    """Return the affine maps after the step of a batch, and the loss before it.

    Parameters
    ----------
    model : Layers
    maps : list of ndarrays of shape (values, inputs)
        The output layer, then the hidden layers.
    batch : tuple of ndarrays
        A one and the features, of shape (1 + d, b); probabilities of the classes, of
        shape (C, b); weights that sum to one.
    penalties : list of ndarrays
        Of the weights of each input of each map.
    damping : float
    """
    x, y, weight = batch
    output, *layers = maps
    trace = forward(model, layers, x)
    inputs = [linear_inputs(model, x, trace), *(layer.inputs for layer in trace)]
    margin, gradient = margins(output @ inputs[0], y)
    back = [gradient, *_propagated_back(model, output, layers, trace, gradient)]
    damping = maps[0].dtype.type(damping)
    # Without damping, free weights have the least one that the arithmetic stands.
    shifts = [positive_precision(a + damping, scale=1.0) for a in penalties]
    pulls = [
        penalty / shift * a
        for penalty, shift, a in zip(penalties, shifts, maps, strict=True)
    ]
    kernel = sum(
        (q.T @ q) * (h.T @ (h / shift[:, None]))
        for q, h, shift in zip(back, inputs, shifts, strict=True)
    )
    residual = weight * expit(-margin)
    root = np.sqrt(weight * bounding_curvature(margin))
    along = kernel @ residual - sum(
        np.sum(q * (pull @ h), axis=0)
        for q, h, pull in zip(back, inputs, pulls, strict=True)
    )
    system = root[:, None] * kernel * root
    # Beside a kernel of 1e16, the one alone would be lost to rounding.
    floor = np.finfo(system.dtype).eps * np.trace(system)
    system[np.diag_indices_from(system)] += 1 + floor
    factor = cho_factor(system, overwrite_a=True, check_finite=False)
    z = residual - root * cho_solve(factor, root * along, check_finite=False)
    moved = [
        a + ((z * q) @ h.T) / shift - pull
        for a, q, h, shift, pull in zip(maps, back, inputs, shifts, pulls, strict=True)
    ]
    return moved, float(weight @ np.logaddexp(0, -margin))


def margins(u, y):
    """Return the margins of the true classes, and their derivatives in the values.

    Parameters
    ----------
    u : ndarray of shape (k, b)
        One row of values stands for two classes.
    y : ndarray of shape (C, b)
        One for the true class, zero elsewhere.

    Returns
    -------
    margin : ndarray of shape (b,)
    gradient : ndarray of shape (k, b)
    """
    if len(u) == 1:
        sign = y[1:] - y[:1]
        return (sign * u)[0], sign
    rest = np.where(y > 0, -np.inf, u)
    top = np.max(rest, axis=0)
    rest = np.exp(rest - top)
    total = np.sum(rest, axis=0)
    margin = np.sum(y * u, axis=0) - (top + np.log(total))
    return margin, y - rest / total


def _propagated_back(model, output, layers, trace, gradient):
    """The derivatives of the margins in the neurons of each layer, (n, b)."""
    found, upper = [], output[:, 1 + model.n_slopes :].T @ gradient
    for number in reversed(range(len(layers))):
        found.append(trace[number].slopes * upper)
        upper = layers[number][:, 1:].T @ found[-1]
    return found[::-1]


BATCH_COMMITTEE = Algorithm("gnvpro", init, step, compiled=False)
