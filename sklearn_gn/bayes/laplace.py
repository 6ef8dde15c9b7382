r"""The Laplace approximation: error bars, intervals, and rows that a fit has not seen.

Near a minimum the residuals are linear in the parameters, with the Jacobian J. The
covariance of the parameters is then the variance of the noise times
:math:`(J^T J + P)^{-1}`, where P is the second derivative of the penalties, and a
function of the parameters with the gradient t has the variance
:math:`\sigma^2\, t^T (J^T J + P)^{-1} t`. Where the evidence chose the penalties, the
covariance is H^-1 of :mod:`sklearn_gn.bayes.evidence`, dense or of low rank. Where the
noise differs from residual to residual, with standard deviations s, the deviation is
:math:`|t^T J^+ \mathrm{diag}(s)|`, with :math:`J^+ = (J^T J)^{-1} J^T`.

Rows count by their weights: a row of weight two is two rows. Weights that sum to one go
into J and P, their sum N as it was given into the degrees of freedom: N rows of q
targets less the parameters that the data determine; the covariance of one row is then
divided by N.

The matrices are shifted by rounding errors of their trace before they are factored: a
direction about which the data say nothing keeps a variance that is large, not infinite.

With the variance :math:`v_i` of a prediction in units of the noise's, the error at row
i, left out once, is :math:`r_i / (1 - v_i)`, exactly so for a linear model whose
penalties stay, and to first order for a network.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.arrays import extremes
from sklearn_gn.arrays.libraries import namespace
from sklearn_gn.arrays.trees import Record
from sklearn_gn.bayes import evidence, evidence_gn, low_rank
from sklearn_gn.bayes.layers import block_size, curvatures, residuals
from sklearn_gn.data.rows_source import BLOCK_ROWS, RowSource, reduce, row_blocks
from sklearn_gn.linalg import factors
from sklearn_gn.linalg.large_gram import LargeGram
from sklearn_gn.optim.solver import Rows

# --- the covariance of the parameters ------------------------------------------------


def factor_with_floor(matrix, penalty=None, *, ulps):
    """Factor of a Gauss-Newton matrix (k, k) with its penalty (k, k)."""
    xp = namespace((matrix, penalty))
    floor = ulps * xp.finfo(matrix.dtype).eps * xp.trace(matrix)
    total = matrix if penalty is None else matrix + penalty
    return factors.factor_with_floor(total, floor)


def covariance(model, sums, alpha, beta, n_effective):
    """Posterior covariance H^-1 of the parameters, an array (P, P) or a LowRank."""
    scale = beta * n_effective
    precision = evidence.prior_precision(model.groups(), alpha)
    if isinstance(sums.gram, LargeGram):
        floor = evidence_gn.ROUNDING * scale * sums.gram.trace()
        diagonal = low_rank.positive_precision(precision, scale) + floor
        return low_rank.approximation(sums.gram, diagonal, scale)
    hessian = scale * sums.gram + np.diag(precision)
    floor = evidence_gn.ROUNDING * np.trace(hessian)
    return factors.factor_with_floor(hessian, floor).inverse()


class Deferred(Record):
    """What a function returns for some arguments, computed at the first access."""

    def __init__(self, *call, found=None):
        self._call, self._found = call, found

    def get(self):
        """Return it; the arguments are kept until then."""
        call = self._call
        if call:  # two threads may both compute it
            function, *arguments = call
            self._found, self._call = function(*arguments), ()
        return self._found

    def fields(self):
        """Return what a checkpoint stores in the place of the function."""
        return {"found": self.get()}


def value_variances(model, theta, covariance, x):
    """Return variances of a network's values at rows, (m, k), at the mean noise."""
    k, n_output = model.n_values, model.n_values * model.n_linear
    hidden, found = np.arange(n_output, len(theta)), np.empty((len(x), k))
    size = block_size(k * len(theta))
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        jacobian = model.jacobian(theta, x[rows])
        for t in range(k):  # the other targets' output weights have no part in it
            used = slice(None) if k == 1 else np.r_[t:n_output:k, hidden]
            found[rows, t] = posterior_variances(covariance, jacobian[t, used], used)
    return found


def posterior_variances(found, gradients, used=slice(None)):
    """Variances of linear functions of the parameters ``used``, one a column (p, m)."""
    if isinstance(found, low_rank.LowRank):
        return found.variances(gradients, used)
    part = found[used][:, used]
    return np.maximum(np.einsum("pm,pm->m", gradients, part @ gradients), 0)


def spectrum(gram):
    """Eigenvalues of a Gauss-Newton matrix, descending; the leading ones of a large."""
    if isinstance(gram, LargeGram):
        factor = low_rank.factor_of(gram, np.full(len(gram), low_rank.FREE))
        gram = factor.T @ factor
    return factors.spectrum(gram)


class PseudoInverse(NamedTuple):
    """``J^+``, by the smaller one of the two Gramians of J, scaled to size one."""

    jacobian: Any  # (m, n)
    size: Any  # of its largest entry, whose square may be no float
    factor: factors.Factor  # of the smaller Gramian, with a floor

    @classmethod
    def of(cls, jacobian):
        """The pseudo-inverse of an array of shape (m, n)."""
        xp, (m, n) = namespace(jacobian), jacobian.shape
        size = xp.max(xp.abs(jacobian))
        size = xp.where(size > 0, size, 1)
        scaled = jacobian / size
        gramian = scaled @ scaled.T if m < n else scaled.T @ scaled
        return cls(jacobian, size, factor_with_floor(gramian, ulps=1))

    def influence(self, gradients):
        """Rows ``t^T J^+``: what residuals do to functions (k, n) of the parameters."""
        jacobian, gradients = self.jacobian / self.size, gradients / self.size
        if jacobian.shape[0] < jacobian.shape[1]:
            return self.factor.solve(jacobian @ gradients.T).T
        return self.factor.solve(gradients.T).T @ jacobian.T

    def leverages(self, rows):
        """Diagonal of ``J J^+`` at a slice of the rows, without the matrix itself."""
        jacobian = self.jacobian / self.size
        if jacobian.shape[0] < jacobian.shape[1]:
            return self.factor.solve(jacobian @ jacobian[rows].T)[rows].diagonal()
        return self.factor.variances(jacobian[rows].T)


# --- the noise -----------------------------------------------------------------------


def degrees_of_freedom(n_rows, n_targets, n_parameters):
    """Residuals that are left to estimate the noise from; one at least."""
    return np.maximum(n_rows * n_targets - n_parameters, 1.0)


def noise_ratio(squares):
    """Variance of the noise of each target over the mean, of sums of squares (k,)."""
    mean = np.mean(squares)
    return squares / mean if mean > 0 else np.ones(len(squares))


def one_or_each(noise_std):
    """Return the noise of one target as a number, of several as the array (k,)."""
    return noise_std if len(noise_std) > 1 else float(noise_std[0])


class PredictionIntervalMixin:
    """Intervals of new observations, for regressors that estimate the noise."""

    predict: Any
    noise_std_: Any
    _degrees_of_freedom: float
    _noise_scale: Any = None  # of noise that is not the same everywhere

    def predict_interval(
        self, X: ArrayLike, level: float = 0.95
    ) -> tuple[Array, Array]:
        """Return intervals in which new observations lie with a given probability.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        level : float, default=0.95
            Probability, between 0 and 1.

        Returns
        -------
        lower, upper : ndarrays of shape (n_samples,) or (n_samples, n_targets)
            Prediction minus and plus a quantile of Student's t distribution times the
            standard deviation of an observation, which combines the noise and the
            standard error of the mean. The noise varies about ``noise_std_`` with
            features and predictions, as far as rows that are left out tell that it
            does; it is ``noise_std_`` everywhere where penalties or weights are given
            or the loss is robust.

        Raises
        ------
        ValueError
            If ``level`` is not between 0 and 1.
        """
        if not (isinstance(level, Real) and 0 < level < 1):
            raise ValueError(f"level must lie between 0 and 1, got {level!r}.")
        y, std = self.predict(X, return_std=True)
        with np.errstate(over="ignore"):
            noise, freedom = self._noise()
            if self._noise_scale is not None:
                noise = noise * self._noise_scale.at(self._noise_features(X), y)
            deviation = np.hypot(std, noise)
            largest = np.finfo(np.float64).max
            width = stdtrit(np.maximum(freedom, 1), (1 + level) / 2) * deviation
            width = np.minimum(width, largest)
            return np.maximum(y - width, -largest), np.minimum(y + width, largest)

    def _noise(self):
        """Standard deviation of the noise, one or one a target, and its freedom."""
        return self.noise_std_, self._degrees_of_freedom

    def _noise_features(self, X):
        """Features as numbers, with which the noise varies."""
        return np.asarray(X, np.float64)


def safe_norm(values, axis):
    """Euclidean norms of numbers whose squares may leave the range of floats."""
    size = np.max(np.abs(values), axis=axis, keepdims=True)
    size = np.where(size > 0, size, 1)
    norms = np.sqrt(np.sum((values / size) ** 2, axis=axis, keepdims=True))
    return np.squeeze(size * norms, axis=axis)


# --- rows that are left out ----------------------------------------------------------


def left_out_rows(rows):
    """Return the rows that are looked at; of rows in chunks, some of their sample."""
    rows = rows.sample if isinstance(rows, RowSource) else rows
    every = max(1, -(-len(rows.x) // evidence_gn.SOME_ROWS))
    some = np.arange(0, len(rows.x), every)
    return Rows(*(array[some] for array in rows))


def left_out_errors(values, leverage, rows, n_effective):
    """Return the errors (m, k) at left-out rows, and their variances over the noise's.

    The weights of all rows have the sum one. The ``leverage``, (m,) or (m, k), is the
    derivative of a prediction in an observation that counts once.
    """
    # A row that stands for several is left out once only.
    once = np.minimum(rows.weight * n_effective, 1)[:, None]
    left = 1 - once * leverage.reshape(len(leverage), -1)
    left = np.maximum(left, np.finfo(np.float64).eps)
    return (values - rows.y) / left, np.broadcast_to(1 / left, values.shape)


def left_out_values(model, theta, covariance, rows, n_effective):
    r"""Return the values of a network at rows that are left out once, of shape (m, k).

    Nothing is fitted again. One Newton step with the curvature H of the fit moves the
    values of a row that is left out by

    .. math::
        V (I - \Lambda V)^{-1} (p - y), \qquad V = J H^{-1} J^T,

    with the derivatives J of its values, and Lambda the second derivative of its loss.
    For the squared loss of a linear model this is exact. A weight of the output layer
    moves only the value it belongs to, by the same feature whichever that is.
    """
    k, free, n = model.n_values, model.n_free, model.n_linear - 1
    own, size = np.arange(free, free + n * k), len(theta)
    shared = np.setdiff1d(np.arange(size), own)
    of_own = covariance[np.ix_(own, own)].reshape(n, k, n, k)
    of_own = of_own.swapaxes(1, 2).reshape(n, -1)
    of_shared = covariance[np.ix_(shared, shared)]
    between = covariance[np.ix_(own, shared)].reshape(n, -1)
    moved = []
    for x, y, weight in row_blocks(rows, block_size(k * size)):  # they stay in cache
        u, jacobian, m = model.values(theta, x), model.jacobian(theta, x), len(x)
        features = jacobian[0, own[::k]].T
        slopes = jacobian[:, shared].transpose(2, 1, 0)
        spread = features[:, None] @ (features @ of_own).reshape(m, n, k * k)
        half = (of_shared @ slopes).swapaxes(1, 2) / 2
        half = (half + (features @ between).reshape(m, k, -1)) @ slopes
        spread = spread.reshape(m, k, k) + half + half.swapaxes(1, 2)
        # A row that stands for several is left out once only.
        once = np.minimum(weight * n_effective, 1)[:, None, None]
        share = once * (curvatures(model, u) @ spread)
        pull = -once * residuals(model, u, y)[:, :, None]
        without = factors.solve_general(np.eye(u.shape[1]) - share, pull)
        moved.append(u + (spread @ without)[:, :, 0])
    return np.concatenate(moved)


# --- what is known of a network ------------------------------------------------------


class Summary(NamedTuple):
    """What is known of a model, in the user's units; the first two of any."""

    alpha: dict
    loss: float
    covariance: Deferred | None = None
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
            ratio = noise_ratio(squares)
    of_network = Deferred(covariance, model, sums, net.alpha, net.beta, n_effective)
    if isinstance(sums.gram, LargeGram):  # which holds all rows
        of_network.get()
    n_of_penalties = 0.0
    if options.alpha is None:
        n_of_penalties = evidence.parameters_of_penalties(found.gamma, model.groups())
    return Summary(
        alpha=penalties_by_name(model, penalties),
        loss=float(loss) * float(scaling.loss_scale) if loss > 0 else 0.0,
        covariance=of_network,
        noise_ratio=ratio,
        gram=sums.gram,
        alpha_method=evidence_gn.alpha_method(sums.gram),
        noise_std=y_scale * extremes.noise_deviation(net.beta, ratio),
        n_effective_parameters=float(np.sum(found.gamma)) + model.n_free,
        n_of_penalties=n_of_penalties,
        log_evidence=float(value),
        n_rows=n_effective,
    )


def _residual_squares(network, rows):
    model, theta = network
    return rows.weight @ (model.values(theta, rows.x) - rows.y) ** 2


def want_of_penalties(net):
    """Return by what factor the evidence would raise all penalties, and for how many.

    These are well-determined parameters beyond the energy, times their share in all: a
    network that its penalties have switched off follows no noise.
    """
    groups = net.model.groups()
    energy = evidence.prior_precision(groups, net.alpha) @ net.theta**2
    gamma, tiny = float(np.sum(net.gamma)), np.finfo(np.float64).tiny
    share = gamma / np.count_nonzero(groups >= 0)
    return gamma / max(energy, tiny), max(gamma - energy, 0.0) * share


def penalties_by_name(model, penalties):
    """Return penalties of the groups of a network, as a dict."""
    weights, layers = np.split(penalties[3:], [model.n_feature_groups])
    named = dict(zip(("slope", "coef", "bias"), penalties[:3].tolist(), strict=True))
    return {**named, "weights": weights, "layers": layers}
