r"""Joint Gauss-Newton steps whose penalties and noise level the evidence chooses.

The model has a linear term,

    u(x) = c0 + S^T x + sum_i c_i relu(w_i . x + b_i),

and a penalty for each group of parameters: the slopes S, the coefficients c, the biases
b, and the weights of each feature. The intercept is free. The iteration is that of
:mod:`sklearn_gn.bayes.evidence_gn`. More neurons than the data need do no harm:
penalties switch them off, and noise-free data of a network are recovered exactly.
Neurons whose breaking hyperplane misses the data are taken into the linear term at the
end. A feature whose penalty has switched its hidden weights off leaves the matrix,
which makes it small where most features have no kinks.

The model is a network of :mod:`sklearn_gn.bayes.layers` with one hidden layer.

The Gauss-Newton matrix has the square of the condition number of the Jacobian. Steep
neighbouring neurons, as at a jump, make it so large that its Cholesky factor knows the
last directions to no digit: a fit of exact data then stops above rounding errors. The
orthogonal factors of MINPACK's Levenberg-Marquardt method know them, and refine such a
fit.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from sklearn_gn import _switches as switches
from sklearn_gn.bayes import evidence, evidence_gn, huber
from sklearn_gn.bayes.evidence_gn import NEARLY_EXACT
from sklearn_gn.bayes.layers import Layers
from sklearn_gn.data.rows_source import RowSource, row_blocks
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.shallow_relu.network import preactivations

_TRIAL_ITERATIONS = 6  # of every start, and then of the two best; features leave later
_LONGER_TRIAL = 2  # times as many iterations, where they take a part of the rows
_BESIDE = 1e-9  # distance of the first hyperplanes from rows that they would go through
_LITTLE_NOISE = (
    1e-10  # variance below which it may be none of the data, and one trial enough
)
_REFINED_AFTER = 50  # iterations after which a fit that goes on is refined
_MOST_WORK = 3e9  # numbers of rows times squared number of parameters


class Shape(Layers):
    """A network of one hidden layer; its ``features`` have hidden weights."""

    __slots__ = ()

    @property
    def n(self):
        """Number of neurons."""
        return self.sizes[1]

    @property
    def d(self):
        """Number of features."""
        return self.sizes[0]

    @property
    def q(self):
        """Number of targets."""
        return self.n_values

    @property
    def size(self):
        """Number of all parameters."""
        return len(self.groups())

    def parts(self, theta):
        """Return (c0, S) of shape (1 + d, q), c of (n, q) and (b, w) of (n, 1 + k)."""
        output, (hyperplanes,) = self.split(theta)
        return output[: 1 + self.d], output[1 + self.d :], hyperplanes

    def network(self, theta, alpha, beta, gamma, log_evidence):
        """Return the network that a fit returns."""
        return network_of(theta, self, alpha, beta, gamma, log_evidence)


def shape_of(n, d, q, features=None, linear_term=True):
    """Return the shape of n neurons, which see all of the d features if None."""
    features = range(d) if features is None else features
    return Shape((d, n), ("relu",), q, "squared", tuple(features), linear_term)


class RegularisedNetwork(NamedTuple):
    """A network with a linear term, and the penalties that were chosen for it."""

    hyperplanes: np.ndarray  # (n, 1 + d), rows (b, w) with |w| = 1
    coef: np.ndarray  # (n, q)
    intercept: np.ndarray  # (q,)
    slope: np.ndarray  # (d, q)
    alive: np.ndarray  # (n,) bool
    features: tuple  # that theta has hidden weights for
    theta: np.ndarray  # (P,)  the parameters, with the |w| of the penalties
    alpha: np.ndarray  # (3 + d,)  precisions of the groups
    beta: float  # precision of the noise
    gamma: np.ndarray  # (3 + d,)  well-determined parameters of the groups
    log_evidence: float

    @property
    def shape(self):
        """The shape of ``theta``."""
        return shape_of(len(self.hyperplanes), *self.slope.shape, self.features)

    def values(self, x):
        """Return the predictions, of shape (m, q)."""
        return self.shape.values(self.theta, x)


# --- the iteration -------------------------------------------------------------------


def init(rows, nets, options):
    """Start from a network; from the best after short trials, if there are several.

    All take a few iterations, and the two best of them as many again: early on the
    evidence hardly tells where a start will end. Trials take every k-th row of a long
    table, and more iterations.
    """
    if len(nets) == 1:
        return init_one(rows, nets[0], options)
    every = -(-len(rows.x) // evidence_gn.SOME_ROWS)
    n_iterations = _TRIAL_ITERATIONS * min(every, _LONGER_TRIAL)
    share = rows.weight[::every].sum()
    few = rows
    if every > 1:
        x, y, weight = (a[::every] for a in rows)
        few = rows._replace(x=x, y=y, weight=weight / share)
    few_options = options._replace(n_effective=share * options.n_effective)
    trials = [(init_one(few, net, few_options), None) for net in nets]
    for n_best in (2, 1):
        trials = [_continued(few, *pair, few_options, n_iterations) for pair in trials]
        trials = sorted(trials, key=lambda pair: pair[0].criterion)[:n_best]
        if trials[0][0].beta * _LITTLE_NOISE > 1:
            break  # at rounding errors the evidence tells nothing
    state, _ = trials[0]
    # The other rows may be noisier than those of the trial, which may be exact.
    beta = state.beta if every == 1 else None
    return evidence_gn.init_at(
        state.net.shape, rows, state.theta, state.alpha, beta, options
    )


def _continued(rows, state, stop, options, n_iterations):
    """Return the state of a trial after some iterations, and why it has stopped."""
    for _ in range(n_iterations):
        if stop is not None:
            break
        state, report = step(rows, state, options)
        stop = report.stop
    return state, stop


def init_one(rows, net, options):
    """Start with the linear fit, and with small random coefficients of hyperplanes."""
    if isinstance(net, RegularisedNetwork):
        shape, theta, alpha, beta = net.shape, net.theta, net.alpha, net.beta
    else:
        q = rows.y.shape[1]
        shape = shape_of(len(net), rows.x.shape[1], q)
        square = float(rows.weight @ np.sum(rows.y**2, axis=1)) / q
        size = math.sqrt(square) if square > 0 else 1.0
        y = np.concatenate([np.ones((len(rows.x), 1)), rows.x], axis=1)
        linear = evidence_gn.linear_fit(y, rows, options.n_effective)
        rng = np.random.RandomState(options.seed)
        coef = evidence_gn.START_COEF * size * rng.standard_normal((len(net), q))
        # Rounding errors would decide on which side of a hyperplane a row is that it
        # was drawn through.
        hyperplanes = net.copy()
        hyperplanes[:, 0] -= _BESIDE
        parts = linear.ravel(), coef.ravel(), hyperplanes.ravel()
        theta, beta = np.concatenate(parts), None
        alpha = np.ones(3 + rows.x.shape[1])
        alpha[:2] = 1 / size**2
    return evidence_gn.init_at(shape, rows, theta, alpha, beta, options)


def step(rows, state, options):
    """One accepted step at fixed penalties, then new penalties."""
    shape = state.net.shape
    state, report = evidence_gn.step(shape, rows, state, options)
    if options.alpha is not None:
        return state, report
    state, report = refined_if_due(shape, rows, state, report, options)
    if report.stop is None and state.iteration >= 2 * _TRIAL_ITERATIONS:
        state = _without_switched_off(shape, rows, state)
    left = np.setdiff1d(np.arange(shape.d), state.net.features)
    if not len(left):
        return state, report
    alpha = state.alpha.copy()
    alpha[3 + left] = evidence.LARGEST
    return state._replace(alpha=alpha, net=state.net._replace(alpha=alpha)), report


def _without_switched_off(shape, rows, state):
    """Return the state without the hidden weights of features that have no kinks."""
    features = np.array(shape.features, dtype=np.intp)
    on = state.net.gamma[3 + features] > evidence.SWITCHED_OFF * shape.n
    if on.all() or not switches.on("tables.feature_removal"):
        return state
    output, (hyperplanes,) = shape.split(state.theta)
    hyperplanes = hyperplanes[:, np.concatenate([[True], on])]
    theta = np.concatenate([output.ravel(), hyperplanes.ravel()])
    shape = shape._replace(features=tuple(features[on].tolist()))
    net = network_of(
        theta, shape, state.alpha, state.beta, state.net.gamma, state.net.log_evidence
    )
    sums = evidence_gn.sums_at(net.shape, theta, rows)
    return state._replace(theta=theta, net=net, sums=sums)


def refined_if_due(shape, rows, state, report, options):
    """Return state and report of a fit, refined if there is little noise."""
    due = report.stop == "tol" or state.iteration % _REFINED_AFTER == 0
    little = NEARLY_EXACT < 1 / state.beta < _LITTLE_NOISE
    possible = shape.q == 1 and not isinstance(rows, RowSource)
    possible &= options.damping is None and options.rank is None
    if not (due and little and possible):
        return state, report
    if len(rows.x) * shape.size**2 > _MOST_WORK:
        return state, report
    precision = evidence.prior_precision(shape.groups(), state.alpha)
    penalty = np.sqrt(precision * state.sums.error / options.n_effective)
    theta = refined(state.theta, rows, penalty, shape)
    sums = evidence_gn.sums_of(shape, theta, rows)
    if not sums.error < state.sums.error:
        return state, report
    after = state._replace(theta=theta, sums=sums)
    after, last = evidence_gn.updated(shape, after, options)
    if last.stop == "non_finite":
        return state, report
    return after, report._replace(
        loss=last.loss,
        grad_norm=last.grad_norm,
        stop=last.stop or report.stop,
        extra=last.extra,
    )


def refined(theta, rows, penalty, model):
    """Return parameters that minimise |residuals|^2 + |penalty theta|^2."""

    def residuals(theta):
        parts = [r for _, r in model.jacobian_blocks(theta, rows)]
        return np.concatenate([*parts, -penalty * theta])

    def jacobian(theta):
        parts = [-columns.T for columns, _ in model.jacobian_blocks(theta, rows)]
        return np.concatenate([*parts, -np.diag(penalty)])

    tolerances = dict.fromkeys(("ftol", "xtol", "gtol"), 1e-15)
    return least_squares(
        residuals,
        theta,
        jacobian,
        method="lm",
        x_scale="jac",
        max_nfev=40,
        **tolerances,
    ).x


# --- the network ---------------------------------------------------------------------


def network_of(theta, shape, alpha, beta, gamma, value):
    """Return the network with ``|w_i| = 1``; one without direction is a constant."""
    linear, coef, seen = shape.parts(theta)
    hyperplanes = np.zeros((shape.n, 1 + shape.d))
    hyperplanes[:, [0, *(1 + j for j in shape.features)]] = seen
    norm = np.linalg.norm(hyperplanes[:, 1:], axis=1, keepdims=True)
    usable = norm > np.finfo(np.float64).tiny
    unit = hyperplanes / np.where(usable, norm, 1)
    unit[~usable[:, 0], 1] = 1.0  # any direction: its coefficient is zero
    constant = np.where(usable[:, 0], 0, np.maximum(hyperplanes[:, 0], 0)) @ coef
    return RegularisedNetwork(
        hyperplanes=unit,
        coef=np.where(usable, coef * norm, 0),
        intercept=linear[0] + constant,
        slope=linear[1:].copy(),
        alive=np.ones(shape.n, dtype=bool),
        features=shape.features,
        theta=theta,
        alpha=alpha,
        beta=beta,
        gamma=gamma,
        log_evidence=value,
    )


def pruned(net, rows):
    """Return the network without neurons whose hyperplane misses the rows.

    A neuron that is active in all rows of positive weight is linear there, and joins
    the linear term; one that is active in none of them is left out. Predictions for the
    rows stay the same.
    """
    n_rows, n_active = 0, np.zeros(len(net.hyperplanes), dtype=np.intp)
    for x, _, weight in row_blocks(rows):
        active = preactivations(net.hyperplanes, x) > 0
        n_active += active[weight > 0].sum(axis=0)
        n_rows += np.count_nonzero(weight)
    always = n_active == n_rows
    taken = np.where(always[:, None], net.coef, 0)
    return net._replace(
        coef=np.where((always | (n_active == 0))[:, None], 0, net.coef),
        intercept=net.intercept + net.hyperplanes[:, 0] @ taken,
        slope=net.slope + net.hyperplanes[:, 1:].T @ taken,
    )


EVIDENCE_GN = Algorithm("vpgn", init, step, side_by_side=True, compiled=False)
ROBUST_GN = huber.robust(
    EVIDENCE_GN,
    lambda net, x: net.values(x),
    lambda rows, state: evidence_gn.continued(state.net.shape, rows, state),
)
