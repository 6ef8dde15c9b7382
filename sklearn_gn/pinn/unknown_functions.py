r"""Error bars of unknown functions, which a network alone makes too narrow.

Observations with noise say little about the fast parts of an unknown function: a source
is seen through the solution, its second integral. A network that was fitted to them is
smooth by its construction, and what it cannot follow is missing from error bars among
its own changes. Here a function is any sum of waves, whose amplitudes z follow a
Gaussian process of Matern's kind: their prior variances fall like

    tau^2 (5 / l^2 + |k|^2)^(-(5 + d) / 2)

with the wave number k, and the mean's is large. With the functions, and with
coefficients that are to be found, the other outputs change by what the equation and its
conditions, linearised about the fit, make of them, and by h where these leave them
free. The most probable ones minimise

    |r + H (z - c, h)|^2 / sigma^2 + z' P z + |J h|^2 / s^2,

where r are the misfits of the observations, H their slopes, c the amplitudes that the
fit has, P the inverse of the prior variances, and s what the equation's residuals are
on fresh points. The noise sigma, and the tau and l of each function, maximise the
evidence.

The error bar of an output is the root of its variance, and of the square of its most
probable change: the fit is not the most probable function, and its bias is an error.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.libraries import namespace
from sklearn_gn.linalg.factors import factor, singular_triplets
from sklearn_gn.pde.given_values import ROUNDING
from sklearn_gn.pde.local_functions import in_numpy
from sklearn_gn.pde.residual_classes import ResidualClass
from sklearn_gn.pinn.model import Batch, network, network_values
from sklearn_gn.pinn.residuals import row_residuals
from sklearn_gn.pinn.solution import Outputs, Posterior, coefficient_slopes

_WAVES = {1: 30, 2: 8, 3: 4}  # largest wave number, by the number of axes
_PERIOD = 1.3  # of the longest wave, in lengths of the domain
_MEAN = 100.0  # variance of the mean of a function, in units of tau^2
_HIDDEN = 1e-3  # by the noise, in units of it
_LENGTH, _RANGE = 0.3, 10.0  # of a domain of length one; of it, up and down


def unknown_functions(problem, observed, n_equations):
    """Numbers of the outputs that are unknown functions, without an equation."""
    n_free = len(problem.outputs) - n_equations
    named = [problem.outputs.index(name) for name in problem.depends_on]
    unseen = [k for k in range(len(problem.outputs)) if k not in observed]
    for found in (named, unseen):
        if 0 < len(found) == n_free:
            return tuple(sorted(found))
    return ()


class Waves(NamedTuple):
    """Cosines and sines that add up to the changes of the outputs."""

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
            # Wave vectors in half of a ball, since the others have the same waves.
            most = _WAVES[len(own)]
            sides = [range(-most, most + 1)] * len(own)
            grid = np.array(list(itertools.product(*sides)))
            first = np.array([next((k for k in row if k), 0) for row in grid])
            kept = grid[(np.sum(grid**2, axis=1) <= most**2) & (first >= 0)]
            numbers = np.zeros((len(kept), len(axes)))
            numbers[:, own] = kept * 2 * np.pi / (_PERIOD * np.ptp(bounds[own], axis=1))
            found.append(numbers)
        return cls(tuple(found), bounds.mean(axis=1))

    @property
    def sizes(self):
        """Number of the waves of each output."""
        return [2 * len(numbers) for numbers in self.numbers]

    def at(self, x, numbers):
        """Waves (..., 2 k) of an output at points (..., d)."""
        xp = namespace(x)
        angles = (x - self.center.astype(x.dtype)) @ numbers.T.astype(x.dtype)
        return xp.concat([xp.cos(angles), xp.sin(angles)], axis=-1)


@partial(in_numpy, static_argnames=("model", "kind"))
def _residual_slopes(model, kind, net, waves, batch):
    """Residuals (n k,) of a class, and their slopes in the changes and coefficients."""

    def one(x, data, scale):
        def residual(changes, extra):
            def function(x):
                changed = zip(waves.numbers, changes, strict=True)
                parts = [waves.at(x, own) @ change for own, change in changed]
                return network(model, net, x) + jnp.stack(parts)

            functions = [function] * x.shape[0]
            return row_residuals(model, kind, functions, x, data, extra, batch.axes)

        start = [jnp.zeros(n, net.extra.dtype) for n in waves.sizes], net.extra
        slopes = jax.jacrev(residual, argnums=(0, 1))(*start)
        return scale * residual(*start), jax.tree.map(lambda a: scale * a, slopes)

    r, (changes, extra) = jax.vmap(one)(batch.x, batch.data, batch.scale)
    slopes = jnp.concatenate([*changes, extra], axis=-1)
    return jnp.ravel(r), slopes.reshape(r.size, -1)


def most_probable(misfits, slopes, functions, n_coefficients, noise):
    """The most probable amplitudes (m,), and a root of their covariance.

    The observations are a linear function of them with ``slopes`` (n, m) and what is
    left, ``misfits``. First are those of each function: the squared wave numbers (k,)
    by the domain, the number of its axes, and its standard deviation. ``noise`` and the
    latter are starts: the prior is the one of the largest evidence.
    """
    k, (numbers, n_axes, deviations) = len(functions), zip(*functions, strict=True)

    def solution(p):
        """Amplitudes, root, and minus the log evidence, of logarithms of the prior."""
        noise, deviations = math.exp(p[0]), np.exp(p[1 : 1 + k])
        lengths = _LENGTH * np.clip(np.exp(p[1 + k :]), 1 / _RANGE, _RANGE)
        # Inverse prior variances of the cosines, then the sines, of each function.
        parts, every = [], (numbers, n_axes, deviations, lengths)
        for own, n, deviation, length in zip(*every, strict=True):
            shares = (5 / length**2 + own) ** (-(5 + n) / 2)
            shares = np.where(own > 0, shares / shares[own > 0].sum(), _MEAN)
            parts.append(np.tile(1 / (deviation**2 * shares), 2))
        told = slopes / noise
        matrix, right = told.T @ told, told.T @ misfits / noise
        least = ROUNDING**2 * matrix.diagonal().max()
        first = np.concatenate([*parts, np.full(n_coefficients, least)])
        precision = np.ones(len(matrix))
        precision[: len(first)] = first
        found = factor(matrix / np.sqrt(np.outer(precision, precision)), 1.0)
        size = 1 / np.sqrt(precision)
        half = found.whiten(size * right)
        root = size[:, None] * found.inverse_root().T
        square = np.sum(misfits**2) / noise**2 - half @ half
        evidence = -len(misfits) * math.log(noise) - (square + found.log_det) / 2
        return root @ half, root, -evidence

    def cost(p):
        with np.errstate(all="ignore"):
            return np.nan_to_num(solution(p)[2], nan=np.inf)

    start = np.log([noise, *deviations, *[1.0] * k])
    options = {"xatol": 0.02, "fatol": 0.01}
    best = minimize(cost, start, method="Nelder-Mead", options=options).x
    return solution(best)[:2]


@dataclass(eq=False)
class FunctionPosterior(Posterior):
    """Error bars of a solution with unknown functions, the numbers of its outputs."""

    functions: tuple = ()

    @property
    def waves(self):
        """Waves that add up to changes; None: too many, and there are no error bars."""
        return Waves.of(self.model.problem)

    def output_deviations(self, x):
        """Error bars of the outputs at points, of shape (n, q)."""
        waves, q = self.waves, len(self.model.problem.outputs)
        kind = ResidualClass("outputs", Outputs(), 1, 1.0, q)
        points = Batch(x[:, None], x[:, :0], np.ones(len(x)))
        _, slopes = _residual_slopes(self.model, kind, self.net, waves, points)
        return self._deviations(slopes, slice(None)).reshape(len(x), q)

    def coefficient_deviations(self):
        """Error bars of the coefficients that were to be found, by name."""
        if self.waves is None or not self.net.extra.size:
            return super().coefficient_deviations()
        both = coefficient_slopes(self.model.problem, self.net.extra)
        last = slice(-self.net.extra.size, None)
        return {
            name: self._deviations(np.float64(slopes), last)
            for name, slopes in backend.to_numpy(both).items()
        }

    def _deviations(self, slopes, part):
        """Error bars of functions of some of the changes, by their slopes."""
        change, root = self._found
        variances = np.sum((slopes @ root[part]) ** 2, axis=-1)
        return np.sqrt(variances + (slopes @ change[part]) ** 2)

    @cached_property
    def _found(self):
        """The most probable changes of all outputs, and a root of their covariance."""
        model, net, waves = self.model, self.net, self.waves
        noise = np.sqrt(np.mean(self.noise_deviation() ** 2))
        noise = max(float(noise), np.finfo(float).tiny)
        # Slopes of the equation and the conditions, in units of their residuals.
        equation = []
        for kind, batch in zip(model.classes[:-1], self.fresh, strict=False):
            r, slopes = _residual_slopes(model, kind, net, waves, batch)
            size = max(np.linalg.norm(r), _HIDDEN * noise)
            equation.append(slopes * (math.sqrt(len(r)) / size))
        equation = np.concatenate(equation)
        # Misfits and their slopes, for observations of weight one.
        data, kind = self.batches[-1], model.classes[-1]
        misfits, slopes = _residual_slopes(model, kind, net, waves, data)
        unit = math.sqrt(self.n_observations / np.sum(np.float64(data.scale) ** 2))
        there = np.any(slopes != 0, axis=1)
        misfits, slopes = unit * misfits[there], unit * slopes[there]
        # What the equation makes of the functions, and what observations tell beyond.
        free = np.repeat(np.isin(range(len(waves.sizes)), self.functions), waves.sizes)
        free = np.concatenate([free, np.ones(net.extra.size, bool)])
        left, held, right = singular_triplets(equation[:, ~free])
        least = ROUNDING * held[0]
        usual = held > least
        inverse = (right[usual].T / held[usual]) @ left[:, usual].T
        units = right.T / np.maximum(held, least)
        told = np.linalg.norm(slopes[:, ~free] @ units, axis=0) > _HIDDEN * noise
        n_free, n_told = np.count_nonzero(free), np.count_nonzero(told)
        to_changes = np.zeros((len(free), n_free + n_told))
        to_changes[free, :n_free] = np.eye(n_free)
        to_changes[~free, :n_free] = -inverse @ equation[:, free]
        to_changes[~free, n_free:] = units[:, told]
        # The functions as the fit has them.
        x = np.asarray(self.fresh[0].x)[:, 0]
        values = np.float64(backend.to_numpy(network_values(model, net, x)))
        now, functions = [], []
        lengths = np.ptp(model.problem.domain.bounds, axis=1)
        for k in self.functions:
            own, value = waves.numbers[k], values[:, k]
            now.append(np.linalg.lstsq(waves.at(x, own), value, ROUNDING)[0])
            size = max(value.std(), 1e-2 * np.abs(value).max())  # of a flat one
            squares = np.sum((own * lengths) ** 2, axis=1)
            n_axes = int(np.count_nonzero(own.any(axis=0)))
            functions.append((squares, n_axes, size if size > 0 else 1.0))
        now = np.concatenate([*now, np.zeros(net.extra.size + n_told)])
        slopes = slopes @ to_changes
        misfits = misfits - slopes @ now
        given = misfits, slopes, functions, net.extra.size, noise
        found, root = most_probable(*given)
        return to_changes @ (-found - now), to_changes @ root
