r"""Error bars of unknown functions, which a network alone makes too narrow.

Observations with noise say little about the fast parts of an unknown function: a source
is seen through the solution, its second integral. A network that was fitted to them is
smooth by its construction, and what it cannot follow is missing from error bars among
its own changes. Here a function f may change by any sum of waves. What it is before it
is observed is said by a Gaussian process on its axes z, with the Matern covariance

    tau^2 (c + (1 + a + a^2 / 3) exp(-a)),   a = sqrt(5) |z - z'| / l,

whose mean is nearly free. With changes w of the functions, and of coefficients that
are to be found, the other outputs change by what the equation and its conditions,
linearised about the fit, make of them, and by h where these leave them free. The most
probable changes minimise

    |r + H (w, h)|^2 / sigma^2 + (f + T w)' K^-1 (f + T w) + |J h|^2 / s^2,

where r are the misfits of the observations, H their slopes, K is the covariance of f
at some points, T its slopes there, and s what the equation's residuals are on fresh
points. The noise sigma, and the tau and l of each function, are those of the largest
evidence,

    - n log sigma - (least + log det A - least_0 + log det A_0) / 2,

where A is the matrix of this form, and 0 is the form without the observations.

The error bar of an output is the root of its variance, by the inverse of A, and of the
square of its most probable change: the fit is not the most probable function, and its
bias counts as error.
"""

import itertools
import math
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.caches import StoredWithoutCaches
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.pinn.model import coefficient_values, network
from sklearn_gn.pinn.residuals import row_residuals

_WAVES = {1: 30, 2: 8, 3: 4}  # largest wave number, by the number of axes
_PERIOD = 1.3  # of the longest wave, in lengths of the domain
_N_POINTS = 128  # at which a function is smooth
_MEAN = 100.0  # variance of the mean of a function, in units of tau^2
_JITTER = 1e-8
_LEAST_SLACK = 1e-3  # of the equation, in units of the noise
_TOLD = 1e-4  # by observations, of what the equation says
_RCOND = 1e-10
_FLAT = 1e-2  # of a function, whose deviation begins as that share of it
_SHORTEST, _LONGEST, _LENGTH = 0.03, 3.0, 0.3  # of a domain of length one; the first
_MOST_TRIALS, _WORST = 80, 1e300  # of the simplex method, for each parameter


def unknown_functions(problem, observed, n_equations):
    """Numbers of the outputs that are unknown functions, without an equation."""
    n_free = len(problem.outputs) - n_equations
    named = [problem.outputs.index(name) for name in problem.depends_on]
    unseen = [k for k in range(len(problem.outputs)) if k not in observed]
    for found in (named, unseen):
        if 0 < len(found) == n_free:
            return tuple(sorted(found))
    return ()


# --- changes of the solution, to first order -----------------------------------------


class Waves(NamedTuple):
    """Cosines and sines of which the changes of the outputs are sums."""

    numbers: tuple  # arrays (k, d), one for each output: angles a unit of length
    center: np.ndarray  # (d,)

    @classmethod
    def of(cls, problem):
        """Waves along the axes of each output; None if these are too many."""
        axes, bounds = problem.domain.axes, problem.domain.bounds
        found = []
        for name in problem.outputs:
            own = [axes.index(a) for a in problem.depends_on.get(name, axes)]
            if len(own) not in _WAVES:
                return None
            found.append(_wave_numbers(own, np.ptp(bounds, axis=1)))
        return cls(tuple(found), bounds.mean(axis=1))

    @property
    def sizes(self):
        """Number of the waves of each output."""
        return [2 * len(numbers) for numbers in self.numbers]

    def values(self, x, changes):
        """Changes of the outputs at a point, of shape (q,)."""
        found = []
        for numbers, change in zip(self.numbers, changes, strict=True):
            angles = numbers.astype(x.dtype) @ (x - self.center.astype(x.dtype))
            found.append(jnp.concatenate([jnp.cos(angles), jnp.sin(angles)]) @ change)
        return jnp.stack(found)


def _wave_numbers(own, lengths):
    """Wave vectors in half of a ball, since the others have the same waves."""
    most = _WAVES[len(own)]
    grid = np.array(list(itertools.product(range(-most, most + 1), repeat=len(own))))
    first = np.array([next((k for k in row if k), 0) for row in grid])
    kept = (np.sum(grid**2, axis=1) <= most**2) & (first >= 0)
    numbers = np.zeros((kept.sum(), len(lengths)))
    numbers[:, own] = grid[kept] * 2 * np.pi / (_PERIOD * lengths[own])
    return numbers


@partial(jit_by_size, static_argnames=("model", "kind"))
def _residual_slopes(model, kind, net, waves, batch):
    """Residuals (n, k) of a class, and their slopes in the changes and coefficients."""

    def one(x, data, scale):
        def residual(changes, extra):
            def function(x):
                return network(model, net, x) + waves.values(x, changes)

            functions = [function] * x.shape[0]
            return row_residuals(model, kind, functions, x, data, extra, batch.axes)

        start = _no_change(waves, net), net.extra
        slopes = jax.jacrev(residual, argnums=(0, 1))(*start)
        return scale * residual(*start), jax.tree.map(lambda a: scale * a, slopes)

    r, (changes, extra) = jax.vmap(one)(batch.x, batch.data, batch.scale)
    return r, jnp.concatenate([*changes, extra], axis=-1)


@partial(jit_by_size, static_argnames="model")
def _output_slopes(model, net, waves, x):
    """Outputs (n, q), and their slopes in the changes."""

    def one(x):
        def outputs(changes):
            def function(x):
                return network(model, net, x) + waves.values(x, changes)

            return jnp.atleast_1d(model.problem.field(function)(x))

        start = _no_change(waves, net)
        return outputs(start), jnp.concatenate(jax.jacrev(outputs)(start), axis=-1)

    return jax.vmap(one)(x)


def _no_change(waves, net):
    return [jnp.zeros(2 * len(n), net.extra.dtype) for n in waves.numbers]


def _stacked(model, kind, net, waves, batch):
    """Rows of a class, in numpy."""
    r, slopes = backend.to_numpy(_residual_slopes(model, kind, net, waves, batch))
    return np.ravel(np.float64(r)), np.float64(slopes).reshape(r.size, -1)


# --- the evidence --------------------------------------------------------------------


class Prior(NamedTuple):
    """What is known before the observations are, with their noise."""

    noise: float  # sigma
    deviations: tuple  # tau of each function
    lengths: tuple


class Form(NamedTuple):
    """The quadratic form of the changes, in units in which J h / s is h."""

    misfits: np.ndarray  # (n,) r
    slopes: np.ndarray  # (n, m) H
    values: np.ndarray  # (k, p) of the functions
    function_slopes: np.ndarray  # (k, p, m) T
    distances: tuple  # (p, p) of the points, along the axes of each function
    known: np.ndarray  # (m,) one for h, zero for w

    def before(self, prior):
        """Matrix, slope and square of the form without the observations."""
        matrix = np.diag(self.known)
        slope, square = np.zeros(len(matrix)), 0.0
        for apart, values, slopes, deviation, length in zip(
            self.distances,
            self.values,
            self.function_slopes,
            prior.deviations,
            prior.lengths,
            strict=True,
        ):
            root = cholesky(covariance(apart, deviation, length), lower=True)
            values = solve_triangular(root, values, lower=True)
            rows = solve_triangular(root, slopes, lower=True)
            matrix, slope = matrix + rows.T @ rows, slope + rows.T @ values
            square += values @ values
        return matrix, slope, square

    def after(self, prior, before):
        """The same with the observations."""
        weight, (matrix, slope, square) = 1 / prior.noise**2, before
        return (
            matrix + weight * self.slopes.T @ self.slopes,
            slope + weight * self.slopes.T @ self.misfits,
            square + weight * self.misfits @ self.misfits,
        )

    def minus_log_evidence(self, prior):
        """Minus the logarithm of the evidence, but for a constant."""
        before = self.before(prior)
        (least_0, log_det_0), (least, log_det) = (
            _minimum(*form) for form in (before, self.after(prior, before))
        )
        change = least - least_0 + log_det - log_det_0
        return len(self.misfits) * math.log(prior.noise) + change / 2

    def most_probable_prior(self, prior):
        """The prior of the largest evidence, by the simplex method."""
        k = len(self.values)

        def of(p):
            lengths = np.clip(np.exp(p[1 + k :]), _SHORTEST, _LONGEST)
            return Prior(math.exp(p[0]), tuple(np.exp(p[1 : 1 + k])), tuple(lengths))

        def cost(p):
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    return self.minus_log_evidence(of(p))
            except np.linalg.LinAlgError:
                return _WORST

        start = np.log([prior.noise, *prior.deviations, *prior.lengths])
        options = {"xatol": 0.02, "fatol": 0.01, "maxfev": _MOST_TRIALS * (1 + k)}
        return of(minimize(cost, start, method="Nelder-Mead", options=options).x)

    def solution(self, prior):
        """Most probable changes, and a root of their covariance."""
        matrix, slope, _ = self.after(prior, self.before(prior))
        root, size = _scaled(matrix)
        inverse = solve_triangular(root, np.diag(1 / size), lower=True).T
        return -inverse @ (inverse.T @ slope), inverse


def covariance(distances, deviation, length):
    """Matern covariance of a function at points of given distances."""
    a = math.sqrt(5) * distances / length
    found = _MEAN + (1 + a + a**2 / 3) * np.exp(-a)
    found[np.diag_indices_from(found)] += _JITTER
    return deviation**2 * found


def _minimum(matrix, slope, square):
    """Minimum of a quadratic form, and the logarithm of its determinant."""
    root, size = _scaled(matrix)
    half = solve_triangular(root, slope / size, lower=True)
    return square - half @ half, 2 * np.sum(np.log(root.diagonal() * size))


def _scaled(matrix):
    """Cholesky factor of a matrix scaled to a diagonal of ones, and the scales."""
    floor = np.finfo(float).eps * matrix.diagonal().max()
    size = np.sqrt(matrix.diagonal() + floor)
    if not np.isfinite(size).all():
        raise np.linalg.LinAlgError("The matrix has entries that are not finite.")
    matrix = matrix / np.outer(size, size)
    matrix[np.diag_indices_from(matrix)] = 1 + len(matrix) * np.finfo(float).eps
    return cholesky(matrix, lower=True), size


# --- the error bars ------------------------------------------------------------------


class Found(NamedTuple):
    """The prior of the largest evidence, and the changes that follow from it."""

    prior: Prior
    change: np.ndarray  # (m,) the most probable one
    root: np.ndarray  # (m, k) of their covariance


class FunctionPosterior(StoredWithoutCaches):
    """Error bars of a solution with unknown functions, about a Posterior of weights.

    They are computed at the first access, and not stored with the object. To be used in
    the precision and on the device of the fit.
    """

    def __init__(self, posterior, functions):
        self._of_weights, self.functions = posterior, functions
        self.model, self.net = posterior.model, posterior.net
        self.batches, self.fresh = posterior.batches, posterior.fresh
        self.n_observations = posterior.n_observations

    @property
    def too_many_axes(self):
        """Whether there are no error bars, since waves would be too many."""
        return self._waves is None

    def output_deviations(self, x):
        """Error bars of the outputs at points, of shape (n, q)."""
        found = self._found
        _, slopes = backend.to_numpy(
            _output_slopes(self.model, self.net, self._waves, x)
        )
        return _deviations(found, np.float64(slopes), slice(slopes.shape[-1]))

    def noise_deviation(self):
        """Standard deviation of an observation of weight one, all outputs alike."""
        return self._of_weights.noise_deviation()

    def noise_freedom(self):
        """Degrees of freedom of this estimate."""
        return self._of_weights.noise_freedom()

    def coefficient_deviations(self):
        """Error bars of the coefficients that were to be found, by name."""
        if self.too_many_axes or not self.net.extra.size:
            return self._of_weights.coefficient_deviations()
        both = _coefficient_slopes(self.model.problem, self.net.extra)
        last = slice(-self.net.extra.size, None)
        return {
            name: _deviations(self._found, np.float64(slopes), last)
            for name, slopes in backend.to_numpy(both).items()
        }

    @property
    def _waves(self):
        return Waves.of(self.model.problem)

    @cached_property
    def _found(self):
        form, to_changes = self._form()
        values = form.values
        sizes = np.maximum(values.std(axis=1), _FLAT * np.abs(values).max(axis=1))
        first = Prior(
            self._noise,
            tuple(np.where(sizes > 0, sizes, 1.0)),
            (_LENGTH,) * len(self.functions),
        )
        prior = form.most_probable_prior(first)
        change, root = form.solution(prior)
        return Found(prior, to_changes @ change, to_changes @ root)

    @cached_property
    def _noise(self):
        return max(float(self.noise_deviation()), np.finfo(float).tiny)

    def _form(self):
        """The form of w and h, and the changes of all outputs that these make."""
        model, net, waves = self.model, self.net, self._waves
        equation = self._slopes_of_equation(waves)
        misfits, slopes = self._observations(waves)
        x = np.asarray(self.fresh[0].x, np.float64)[:_N_POINTS, 0]
        at = x.astype(net.extra.dtype)
        values, function_slopes = backend.to_numpy(
            _output_slopes(model, net, waves, at)
        )
        function_slopes = np.pad(function_slopes, ((0, 0), (0, 0), (0, net.extra.size)))
        free = np.repeat(np.isin(range(len(waves.sizes)), self.functions), waves.sizes)
        free = np.concatenate([free, np.ones(net.extra.size, bool)])
        left, held, right = np.linalg.svd(equation[:, ~free], full_matrices=False)
        least = max(_RCOND, 10 * np.finfo(net.extra.dtype).eps) * held[0]
        usual = held > least
        inverse = (right[usual].T / held[usual]) @ left[:, usual].T
        units = right.T / np.maximum(held, least)
        told = np.linalg.norm(slopes[:, ~free] @ units, axis=0) > _TOLD * self._noise
        n_free, n_told = np.count_nonzero(free), np.count_nonzero(told)
        to_changes = np.zeros((len(free), n_free + n_told))
        to_changes[free, :n_free] = np.eye(n_free)
        to_changes[~free, :n_free] = -inverse @ equation[:, free]
        to_changes[~free, n_free:] = units[:, told]
        kept = list(self.functions)
        form = Form(
            misfits,
            slopes @ to_changes,
            values[:, kept].T,
            np.moveaxis(function_slopes[:, kept], 1, 0) @ to_changes,
            self._distances(x),
            np.repeat([0.0, 1.0], [n_free, n_told]),
        )
        return form, to_changes

    def _slopes_of_equation(self, waves):
        """Slopes of the equation and the conditions, in units of their residuals."""
        found = []
        for kind, batch in zip(self.model.classes[:-1], self.fresh, strict=False):
            r, slopes = _stacked(self.model, kind, self.net, waves, batch)
            size = max(np.linalg.norm(r), _LEAST_SLACK * self._noise)
            found.append(slopes * (math.sqrt(len(r)) / size))
        return np.concatenate(found)

    def _observations(self, waves):
        """Misfits and their slopes, for observations of weight one."""
        data, kind = self.batches[-1], self.model.classes[-1]
        misfits, slopes = _stacked(self.model, kind, self.net, waves, data)
        unit = math.sqrt(self.n_observations / np.sum(np.float64(data.scale) ** 2))
        there = np.any(slopes != 0, axis=1)
        return unit * misfits[there], unit * slopes[there]

    def _distances(self, x):
        """Distances of points along the axes of each function, by the domain."""
        problem = self.model.problem
        axes, bounds = problem.domain.axes, problem.domain.bounds
        found = []
        for k in self.functions:
            kept = problem.depends_on.get(problem.outputs[k], axes)
            own = [axes.index(name) for name in kept]
            z = x[:, own] / np.ptp(bounds[own], axis=1)
            found.append(cdist(z, z))
        return tuple(found)


def _deviations(found, slopes, part):
    """Error bars of functions of some of the changes, by their slopes."""
    variances = np.sum((slopes @ found.root[part]) ** 2, axis=-1)
    return np.sqrt(variances + (slopes @ found.change[part]) ** 2)


@partial(jit_by_size, static_argnames="problem")
def _coefficient_slopes(problem, extra):
    return jax.jacfwd(partial(coefficient_values, problem))(extra)
