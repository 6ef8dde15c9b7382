r"""The limit of infinitely many neurons: a Gaussian process, fitted by the evidence.

A network with normal priors on its weights tends to a Gaussian process as its layer
grows (Neal, "Bayesian Learning for Neural Networks", 1996). With functions of single
features, as in additive models, a linear term, one length scale for each feature, and
noise, the covariance of the targets is v C with

.. math::
    C = e^{-\frac12 \sum_j \rho_j (x_j - x'_j)^2}
        + \mu \sum_j e^{-\frac12 \nu (x_j - x'_j)^2}
        + \lambda (1 + x^T x') + \sigma / c,

where c is the number of observations that a row stands for (Duvenaud, Nickisch and
Rasmussen, "Additive Gaussian Processes", 2011, whose first and last orders these are: a
product alone learns a sum of many functions from very many rows only). One length
serves all functions of single features. The scale v has the closed form
:math:`y^T C^{-1} y / N` of highest evidence; all other parameters are found by L-BFGS
on their logarithms, from the best of several starting values: the evidence of
oscillations has many maxima. Inverse lengths :math:`\rho_j^{1/2}` have the prior
density :math:`(1 + \rho_j / \rho_0)^{-1/2}`, which prefers no scale, but lengths
beyond the range of the rows to all others: many useless features would else fit the
noise. The derivatives of the log evidence are sums over one matrix,

.. math::
    W = \sum_t \alpha_t \alpha_t^T / v - k C^{-1}, \qquad \alpha_t = C^{-1} y_t,

so that all length scales of the product together cost one product with the features.
The error at row i that is left out is :math:`\alpha_i / (C^{-1})_{ii}`, and its
variance :math:`v / (C^{-1})_{ii}` (Rasmussen and Williams, "Gaussian Processes for
Machine Learning", 2006, section 5.4.2); of several equal rows, one is left out.
"""

import math
from itertools import product
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebvander
from scipy.optimize import minimize
from scipy.spatial.distance import pdist, squareform

from sklearn_gn.arrays.threads import side_by_side
from sklearn_gn.bayes.evidence import SWITCHED_OFF
from sklearn_gn.bayes.layers import BLOCK_FLOATS
from sklearn_gn.bayes.selection import chosen_columns
from sklearn_gn.bayes.stacking import COST_OF_A_PENALTY
from sklearn_gn.linalg.factors import factor

_FIRST_ROWS = 200  # of the search for a kernel, which ends with three times as many
_LENGTHS = (2.0, 0.7, 0.25, 0.08, 0.03)  # first length scales, over the root of d
NOISES = (1e-4, 0.1)  # first variances of the noise
_FIRST = 0.1  # first variances of functions of single features and of the linear term
_LEAST_LOG_NOISE = math.log(1e-10)  # relative variance, that of rounding errors of C
_FIRST_STEPS, _MOST_STEPS = 10, 60  # of the search, of all starts and of the best
_LAST_STEPS = 12  # with more rows
_DEGREE = 14  # of the polynomials in place of functions of single features
_TINY = np.finfo(np.float64).tiny  # square of a constant target


class Kernel(NamedTuple):
    """Parameters of C; see the module."""

    rho: np.ndarray  # (d,)
    nu: float
    additive: float  # mu
    slope: float
    noise: float

    @classmethod
    def of(cls, logs):
        """The kernel with logarithms of rho, nu, mu, slope and noise, (d + 4,)."""
        *rho, nu, additive, slope, noise = np.exp(logs).tolist()
        return cls(np.array(rho), nu, additive, slope, noise)

    def n_determined(self):
        """Return how many parameters the rows have chosen.

        A length scale beyond the range of the rows does not count.
        """
        others = 2 + 2 * (self.additive > 0)
        return others + float(np.sum(self.rho / (self.rho + SWITCHED_OFF)))

    def smooth(self, x, z, out=None):
        """Return the part that decays with the distance, (m, n)."""
        x, z = x * np.sqrt(self.rho), z * np.sqrt(self.rho)
        of_x, of_z = (np.sum(a**2, axis=1) / -2 for a in (x, z))
        left = np.column_stack([x, of_x, np.ones_like(of_x)])
        right = np.column_stack([z, np.ones_like(of_z), of_z])
        found = np.matmul(left, right.T, out=out)
        np.minimum(found, 0, out=found)
        return np.exp(found, out=found)

    def between(self, x, z):
        """Return the covariances of the values at rows, over v, (m, n)."""
        found = self.smooth(x, z) + self.slope * (1 + x @ z.T)
        if self.additive > 0:
            # One feature and the sum of all stay in the cache.
            n_rows = max(1, BLOCK_FLOATS // 2 // len(z))
            alone = Kernel(self.nu, 0.0, 0.0, 0.0, 0.0)
            for start in range(0, len(x), n_rows):
                rows = slice(start, start + n_rows)
                pairs = zip(x[rows].T[:, :, None], z.T[:, :, None], strict=True)
                found[rows] += self.additive * sum(
                    alone.smooth(*pair) for pair in pairs
                )
        return found


class GaussianProcess(NamedTuple):
    """A fitted process, in the units of the fit."""

    kernel: Kernel  # of the columns
    x: np.ndarray  # (n, p)  rows
    counts: np.ndarray  # (n,)  observations of each
    scale: float  # v
    columns: tuple | slice = slice(None)  # of the features that it sees
    loss: str = "squared"
    center: np.ndarray | float = 0.0  # (k,)  of the targets

    def values(self, theta, x):
        """Return the means of the targets at rows, (m, k)."""
        x, kernel = x[:, self.columns], self.kernel
        found = kernel._replace(additive=0.0).between(x, self.x) @ theta + self.center
        if kernel.additive > 0:
            for own, z in zip(x.T, self.x.T, strict=True):
                found += kernel.additive * sums_of_single(kernel.nu, own, z, theta)
        return found

    def root(self):
        """Return the factor of C."""
        c = self.kernel.between(self.x, self.x)
        return factor(c, self.kernel.noise / self.counts, overwrite=True)

    def variances(self, root, x):
        """Return the variances of the values at rows, (m, 1)."""
        x, kernel = x[:, self.columns], self.kernel
        before = kernel.slope * (1 + np.sum(x**2, axis=1))
        before += 1 + kernel.additive * len(kernel.rho)
        known = root.variances(kernel.between(self.x, x))
        return self.scale * np.maximum(before - known, 0)[:, None]


def sums_of_single(nu, x, z, theta):
    """Return the sums over j of ``exp(-nu (x - z_j)^2 / 2) theta_j``, (m, k).

    They are one smooth function of x: in pieces as long as its length scale the
    polynomial through Chebyshev's points differs by less than 1e-13 of the sizes.
    """
    place = math.sqrt(nu) * x
    pieces, piece = np.unique(np.floor(place), return_inverse=True)
    points = np.cos(math.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
    nodes = ((pieces[:, None] + (1 + points) / 2) / math.sqrt(nu)).ravel()
    at = nodes if len(nodes) < len(x) else x
    alone = Kernel(nu, 0.0, 0.0, 0.0, 0.0)
    table = alone.smooth(at[:, None], z[:, None]) @ theta
    if at is x:
        return table
    basis = chebvander(2 * (place - np.floor(place)) - 1, _DEGREE)
    basis = basis @ np.linalg.inv(chebvander(points, _DEGREE))
    table = table.reshape(len(pieces), _DEGREE + 1, -1)
    return np.einsum("mj,mjk->mk", basis, table[piece])


class FittedProcess(NamedTuple):
    """A process with what the evidence and left-out rows say of it."""

    process: GaussianProcess
    theta: np.ndarray  # (n, k)  C^-1 y
    gamma: float  # parameters that the data determine, of all targets
    log_evidence: float
    loss: float  # half the mean error, and the penalties
    errors: np.ndarray  # (n, k)  prediction less target where a row is left out
    variances: np.ndarray  # (n,)  of an observation that is left out


def fitted(kernel, x, y, count, **words):
    """Return the :class:`FittedProcess`; None where C is singular to rounding.

    ``words`` are further fields of its :class:`GaussianProcess`.
    """
    n, k = y.shape
    c = kernel.between(x, x)
    noise = kernel.noise / count
    root = factor(c, noise, overwrite=True)
    a = root.solve(y)
    square = float(np.sum(a * y))
    v = square / (n * k)
    if not (math.isfinite(v) and v > 0):
        return None
    inverse_root = root.inverse_root()
    # Less than one.
    unexplained = noise * np.einsum("ij,ij->j", inverse_root, inverse_root)
    # A row that stands for several is left out once only.
    once = np.minimum(count, 1)
    left = (count - once + once * unexplained) / count
    return FittedProcess(
        process=GaussianProcess(kernel, x, count, v, **words),
        theta=a,
        gamma=k * float(n - np.sum(unexplained)),
        log_evidence=-(n * k * (math.log(2 * math.pi * v) + 1) + k * root.log_det) / 2,
        loss=kernel.noise * square / (2 * np.sum(count)),
        errors=-a * (noise / left)[:, None],
        variances=v * kernel.noise / left,
    )


def search(rows, order, features, noises, is_worth, picks, **words):
    """Return the :class:`FittedProcess` of highest evidence, or ``()``.

    The rows, with counts as weights, are searched in a random ``order``. The process
    sees ``features``, unless it ``picks`` from very many, or those of them that
    :func:`selected` returns. The ``noises`` are first variances. A process of some rows
    and the numbers of these are handed to ``is_worth``: if it is, the search goes on,
    and a process of all rows is asked too.
    """
    choices = () if picks else tuple(sorted(features)), selected(*rows, features)
    choices = list(filter(None, dict.fromkeys(choices)))
    if not choices:
        return ()
    first, few = order[:_FIRST_ROWS], np.sort(order[: 3 * _FIRST_ROWS])
    logs, columns = first_kernel(*(a[first] for a in rows), choices, noises)
    words["columns"], rows = columns, (rows[0][:, columns], *rows[1:])
    part = [a[few] for a in rows]
    found = fitted(Kernel.of(logs), *part, **words)
    if not (found and is_worth(found, few)):
        return ()
    kernel = Kernel.of(best_kernel(logs, *part, _LAST_STEPS).x)
    found = fitted(kernel, *rows, **words)
    return found if found and is_worth(found, np.arange(len(order))) else ()


def selected(x, y, count, features):
    """Return the numbers of the features that a linear model needs, in their order."""
    features, root = np.sort(features), np.sqrt(count)[:, None]
    z, rest = (root * (a - count @ a / np.sum(count)) for a in (x[:, features], y))
    most = min(len(features), len(x) - 2)
    found = chosen_columns(z, rest, float(np.sum(count)), most)
    return tuple(features[np.sort(found)].tolist()) if found else ()


def first_kernel(x, y, count, choices, noises):
    """Return logarithms and features of the kernel of highest evidence for few rows.

    Of ``choices`` of features the second has the cost of being picked. All features
    have one of some lengths at first, or each the one at which it explains most alone:
    where one of many oscillates, all short lengths together tell nothing. Beside it
    the first evidence decides about functions of single features, and the noise.
    """
    starts = []
    for columns in choices:
        z, d, value = x[:, columns], len(columns), np.zeros(len(_LENGTHS))
        density = LogDensity(z, y, count, singles=True)
        lengths, own = np.array(_LENGTHS) * math.sqrt(d), []
        linear = np.eye(len(z)) + _FIRST * density.linear
        for squares in density.squares:
            for i, rho in enumerate(lengths**-2.0):
                alone = linear + squareform(np.exp(-rho / 2 * squares), checks=False)
                root = factor(alone, NOISES[-1] / count, overwrite=True)
                square = max(np.sum(root.solve(y) * y), _TINY)
                value[i] = y.size * math.log(square) + y.shape[1] * root.log_det
            own.append(lengths[np.argmin(value)])
        cost = d * math.log(x.shape[1]) / len(x) if starts else 0.0
        kinds = (-math.inf, math.log(_FIRST))[:d]  # one has its function already
        for tried in (np.tile(lengths, (d, 1)).T, [own]):
            tried, found = -2 * np.log(tried), []
            for mu, noise in product(kinds, noises[::-1]):
                for rho in tried:
                    others = np.mean(rho) + math.log(d), mu, *np.log([_FIRST, noise])
                    logs = np.append(rho, others)
                    least = density(logs, value_only=True) + cost
                    found.append((least, logs, columns, cost))
                best = min(found, key=itemgetter(0))
                tried = [best[1][:d]]  # the other parameters follow beside it
            starts.append(best)
    # Picked features are tried where they begin better than all of them, and a kernel
    # that is the best of both kinds of lengths once.
    least = min(start[0] for start in starts[:2])
    starts = starts[:2] + [start for start in starts[2:] if start[0] <= least]
    starts = list({start[0]: start for start in starts}.values())

    def searched(start, steps=_FIRST_STEPS):
        _, logs, columns, cost = start
        found = best_kernel(logs, x[:, columns], y, count, steps)
        return found.fun + cost, found.x, columns, cost

    # Most end at the same kernel: after some steps the best one goes on alone.
    found = side_by_side(searched, starts, _FIRST_STEPS * len(x) ** 3)
    return searched(min(found, key=itemgetter(0)), _MOST_STEPS)[1:3]


def best_kernel(start, x, y, count, steps):
    """Return the result of a search from a kernel, given by logarithms.

    It ends when three iterations raise the log density of all rows by less than a
    chosen penalty costs. One says little: the first step is short, whatever it gains.
    """
    singles = start[-3] > -math.inf
    least = [-20.0] * (x.shape[1] + 1) + [-16.0, -16.0, _LEAST_LOG_NOISE]
    bounds = [(log, 12.0) for log in least]
    start = np.clip(start, *np.transpose(bounds))
    values = []

    def after_step(intermediate_result):
        values.append(len(x) * intermediate_result.fun)
        if len(values) > 3 and values[-4] - values[-1] < COST_OF_A_PENALTY:
            raise StopIteration

    given = {"bounds": bounds, "options": {"maxiter": steps}, "callback": after_step}
    density = LogDensity(x, y, count, singles)
    found = minimize(density, start, method="L-BFGS-B", jac=True, **given)
    if not singles:
        found.x[-3] = -math.inf
    return found


class LogDensity:
    """Minus the log density per row, and its derivatives, of logarithms of a kernel.

    It is that of the targets, and of the length scales by their prior. Large arrays are
    kept: new memory would take longer to get than to fill, and kernels with the lengths
    of the one before have its exponentials.
    """

    def __init__(self, x, y, count, singles):
        self.x, self.y, self.count = x, y, count
        self.linear, self.memory = 1 + x @ x.T, np.empty((2, len(x), len(x)))
        columns = x.T[:, :, None] if singles else ()
        self.squares = [pdist(own, "sqeuclidean") for own in columns]  # (d, pairs)
        self.lengths, self.of_singles = None, None  # of the last kernel

    def __call__(self, logs, value_only=False):
        """Return both; with ``value_only`` most of the work is spared."""
        kernel, (n, k), (smooth, c) = Kernel.of(logs), self.y.shape, self.memory
        # 1. The covariance of the targets.
        if not np.array_equal(logs[:-3], self.lengths):
            kernel.smooth(self.x, self.x, out=smooth)
            self.lengths = logs[:-3].copy()
            self.of_singles = None
        if self.squares and kernel.additive > 0 and self.of_singles is None:
            self.of_singles = self._of_singles(kernel.nu)
        np.multiply(self.linear, kernel.slope, out=c)
        c += smooth
        if self.of_singles is not None:
            of_pairs, moments = self.of_singles
            c += squareform(kernel.additive * of_pairs, checks=False)
            np.einsum("ii->i", c)[...] += kernel.additive * len(self.squares)
        found = factor(c, kernel.noise / self.count, overwrite=True)
        if not np.isfinite(found.root[-1, -1]):
            return math.inf if value_only else (math.inf, np.zeros_like(logs))
        # 2. The density at the scale v at which it is highest.
        a = found.solve(self.y)
        v = max(np.sum(a * self.y) / (n * k), _TINY)
        value = n * k * math.log(v) + k * found.log_det
        value = (value + np.sum(np.log1p(kernel.rho / SWITCHED_OFF))) / (2 * n)
        if value_only:
            return value
        # 3. Its derivatives, sums over half of W: w + w^T is the whole.
        w = found.density_slope(a / math.sqrt(v))
        diagonal = 2 * np.einsum("ii->i", w)
        of_nu = of_additive = 0.0
        if self.of_singles is not None:
            halves = 2 * kernel.additive * squareform(w.T, checks=False)
            of_additive = kernel.additive * len(self.squares) * np.sum(diagonal)
            of_additive += of_pairs @ halves
            of_nu = -kernel.nu / 2 * (moments @ halves)
        of_slope = 2 * kernel.slope * np.vdot(w.T, self.linear)
        w *= smooth.T
        row = np.sum(w, axis=0) + np.sum(w, axis=1)
        of_rho = 2 * np.sum(self.x * (w @ self.x), axis=0) - row @ self.x**2
        of_rho = kernel.rho * of_rho - kernel.rho / (kernel.rho + SWITCHED_OFF)
        of_noise = kernel.noise * np.sum(diagonal / self.count)
        slope = np.concatenate([of_rho, [of_nu, of_additive, of_slope, of_noise]])
        return value, -slope / (2 * n)

    def _of_singles(self, nu):
        """Return the sums over the features of ``exp(-nu s / 2)`` and ``s`` times it.

        Pairs with the squared distances s of a feature are as many as stay in cache.
        """
        n, size = len(self.squares[0]), BLOCK_FLOATS // 8
        found, part = np.zeros((2, n)), np.empty(size)
        for start in range(0, n, size):
            values, moments = found[:, start : start + size]
            of_block = part[: len(values)]
            for squares in self.squares:
                own = squares[start : start + size]
                np.exp(np.multiply(own, -nu / 2, out=of_block), out=of_block)
                values += of_block
                of_block *= own
                moments += of_block
        return found
