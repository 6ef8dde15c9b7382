r"""A problem as the network is given it: outputs of unit size, and waves as inputs.

The residuals see physical units. In between, the outputs of the network are those of
the solution in units of their own, ``u = center + scale * network(x)``, and beside the
axes, mapped to [-1, 1], the network has

- waves ``cos(k (x - m))`` and ``sin(k (x - m))``, with m the middle of the domain, for
  wave vectors k that the problem shows (:mod:`sklearn_gn.pinn.spectrum`) or that its
  equation lets pass (:mod:`sklearn_gn.pinn.dispersion`);
- singular functions of corners of the domain (:mod:`sklearn_gn.pde.corners`);
- functions that fall off from its small holes (:mod:`sklearn_gn.pde.holes`).

These are inputs of the first layer and of the output layer: a solution that is made of
them is linear in the weights, and one that is modulated by a smooth function can be
learnt.
"""

import math
from dataclasses import dataclass, fields
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.core import backend
from sklearn_gn.core.compilation import jit_by_size
from sklearn_gn.pde import Dirichlet, Initial, Problem
from sklearn_gn.pde.corners import singular_corners
from sklearn_gn.pde.holes import holes
from sklearn_gn.pinn import dispersion, spectrum

_POINTS = 200  # of each condition, at which its values are taken
_WHOLE = 0.01  # distance of an exponent to a whole number
_TINY = 1e-30  # what is left alone
_RESONANCE = 1e-4  # share of the largest answer to a wave that is hardly one
_FAR = 100.0  # from one, beyond which sizes come from units
_SECANTS, _POWERS = 3, (0.25, 4.0)  # steps to the size of terms that are no lines
_NEGLIGIBLE = 1e-12  # size of values, relative to those of the others


@dataclass(frozen=True, eq=False, repr=False)
class PosedProblem(Problem):
    """A problem with units of its outputs and waves."""

    center: tuple = ()
    scale: tuple = ()
    waves: tuple = ()  # wave vectors, each of d numbers
    corners: tuple = ()  # Corner, each with two functions
    holes: tuple = ()  # Hole, each with one function more than it has axes

    def __reduce__(self):
        return PosedProblem, self._arguments()

    @property
    def n_inputs(self):
        """Number of inputs of the network."""
        return super().n_inputs + self.n_functions

    @property
    def n_functions(self):
        """Number of the last inputs of the network, which are no axes."""
        of_holes = sum(1 + len(hole.axes) for hole in self.holes)
        return 2 * (len(self.waves) + len(self.corners)) + of_holes

    def embedding(self, x):
        """Inputs of the network: those of the axes, then cosines and sines of waves."""
        plain = super().embedding(x)
        if not self.n_functions:
            return plain
        found = [plain]
        if self.waves:
            middle = self.domain.bounds.mean(axis=1).astype(x.dtype)
            phase = np.array(self.waves).astype(x.dtype) @ (x - middle)
            found += [jnp.cos(phase), jnp.sin(phase)]
        size = float(np.ptp(self.domain.bounds, axis=1).max())
        found += [corner_functions(corner, x, size) for corner in self.corners]
        found += [hole_functions(hole, x) for hole in self.holes]
        return jnp.concatenate(found)

    def field(self, function, directions=None):
        """The field of a network, in physical units."""

        def scaled(x):
            center, scale = np.array(self.center), np.array(self.scale)
            outputs = self.as_outputs(function(x), "the network")
            return center.astype(x.dtype) + scale.astype(x.dtype) * outputs

        return super().field(scaled, directions)


def corner_functions(corner, x, size):
    """Real and imaginary part of a singular function of ``z / size``, with its cut-off.

    That is ``z^a``, or ``z^a log z`` where a is a whole number.
    """
    a = math.pi / corner.opening
    c, s = math.cos(corner.middle), math.sin(corner.middle)
    offset = x[np.array(corner.axes)] - np.array(corner.place).astype(x.dtype)
    along, across = offset @ np.array([[c, -s], [s, c]]).astype(x.dtype) / size
    square = along**2 + across**2 + _TINY
    angle = jnp.arctan2(across, along)
    real, imaginary = jnp.cos(a * angle), jnp.sin(a * angle)
    if abs(a - round(a)) < _WHOLE:
        log = jnp.log(square) / 2
        real, imaginary = (
            log * real - angle * imaginary,
            log * imaginary + angle * real,
        )
    radius = square ** (a / 2)
    if math.isfinite(corner.reach):
        radius *= jnp.maximum(1 - square * (size / corner.reach) ** 2, 0) ** 3
    return radius * jnp.stack([real, imaginary])


def hole_functions(hole, x):
    """The fundamental solution and the image of a point in the sphere of a hole."""
    offset = x[np.array(hole.axes)] - np.array(hole.center).astype(x.dtype)
    square = jnp.sum(offset**2) / hole.radius**2 + _TINY
    plane = len(hole.axes) == 2
    fundamental = -jnp.log(square) / 2 if plane else 1 / jnp.sqrt(square)
    return jnp.concatenate([fundamental[None], offset / (hole.radius * square)])


def posed(problem, stages, y=None, observed=()):
    """Return problems with the units and the waves of the last one.

    Parameters
    ----------
    problem : Problem
        The one to solve.
    stages : sequence of Problem
        Easier ones.
    y : ndarray of shape (m, n_observed), default=None
        Observations; NaN where there are none.
    observed : tuple
        Numbers of the outputs that y holds, or functions.

    Returns
    -------
    problem : PosedProblem
    stages : list of PosedProblem
    """
    waves = spectrum.wave_vectors(problem)
    center, scale = units(problem, y, observed, waves)
    passing = dispersion.wave_vectors(problem, scale, waves)
    most = spectrum.MOST_WAVES + dispersion.MOST_WAVES
    waves = spectrum.distinct(
        (*waves, *passing), problem.domain, most, dispersion.EQUAL
    )

    added = {
        "waves": waves,
        "corners": singular_corners(problem.domain),
        "holes": holes(problem.domain),
    }

    def pose(entry):
        arguments = {f.name: getattr(entry, f.name) for f in fields(Problem)}
        return PosedProblem(**arguments, center=center, scale=scale, **added)

    return pose(problem), [pose(stage) for stage in stages]


# --- units of the outputs ------------------------------------------------------------


def units(problem, y=None, observed=(), waves=()):
    """Return center and size of each output, from values that are given.

    Those of the conditions and of the observations. Where they are of both signs, or
    one number alone, the center is zero. A single output without values, or behind a
    transform, has the size with which a wave answers the source; of several, those
    without values have the size that balances the equations, if that is far from one.
    """
    q = len(problem.outputs)
    known = [[] for _ in range(q)]
    if problem.transform is None:
        for numbers, values in _given_values(problem):
            for number, column in zip(numbers, values.T, strict=True):
                known[number].append(column)
        for k, entry in enumerate(observed if y is not None else ()):
            if not callable(entry):
                known[entry].append(y[:, k])
    found = [_unit(np.concatenate([*columns, np.zeros(0)])) for columns in known]
    if q == 1 and found[0] is None:
        found = [(0.0, _size_of_answer(problem, waves))]
    elif None in found and any(found):
        found = _with_balanced_sizes(problem, found)
    found = [(0.0, 1.0) if unit is None else unit for unit in found]
    return tuple(c for c, _ in found), tuple(s for _, s in found)


def _unit(values):
    values = values[np.isfinite(values)]
    largest = float(np.abs(values).max(initial=0))
    if not _TINY < largest < 1 / _TINY:
        return None
    low, high = float(values.min()), float(values.max())
    if low < 0 < high or high - low < _NEGLIGIBLE * largest:
        return 0.0, largest
    # Values far from zero that differ little.
    center = (low + high) / 2 if (high - low) < largest / 2 else 0.0
    return center, max((high - low) / 2, largest / 2 if center == 0 else 0.0)


def _given_values(problem):
    """Yield numbers of outputs and values (n, k) of the conditions that give values."""
    rng = np.random.RandomState(0)
    given = [
        (k, condition)
        for k, condition in enumerate(problem.conditions)
        if isinstance(condition, (Dirichlet, Initial))
        and not getattr(condition, "order", 0)
    ]
    if not given:
        return
    points = list(problem.probes(_POINTS, rng).values())
    chosen = (0, *(k + 1 for k, _ in given))
    with backend.scope("float64"):
        values = backend.to_numpy(
            _residuals_of_zero(problem, chosen, [points[k] for k in chosen])
        )
    source, *values = values
    least = _NEGLIGIBLE * np.abs(source[np.isfinite(source)]).max(initial=0)
    for (_, condition), found in zip(given, values, strict=True):
        found[np.abs(found) < least] = 0  # rounding
        yield _numbers(problem, condition.outputs), -found


def _numbers(problem, outputs):
    every = range(len(problem.outputs))
    if outputs is None:
        return list(every)
    several = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    place = {name: k for k, name in enumerate(problem.outputs)}
    found = np.arange(len(place))
    return [int(found[place.get(o, o) if isinstance(o, str) else o]) for o in several]


def _size_of_answer(problem, waves):
    """Amplitude of the first wave, or of a slow one, that balances the source.

    A wave in resonance, which the equation hardly answers, tells nothing: the next one
    is taken, and the slow one is the last.
    """
    low, high = problem.domain.bounds.T
    tried = np.array([*waves, np.pi / (high - low)])
    points = problem.probes(_POINTS, np.random.RandomState(0))["interior"]
    with backend.scope("float64"):
        squares = backend.to_numpy(_source_and_answers(problem, points, tried))
    squares = squares[np.isfinite(squares).all(axis=1)]
    source, *answers = np.sqrt(squares.sum(axis=0))
    clear = [answer for answer in answers if answer > _RESONANCE * max(answers)]
    if not (source > _TINY and clear and clear[0] > _TINY):
        return 1.0
    return float(source / clear[0])


@partial(jit_by_size, static_argnames="problem")
def _source_and_answers(problem, points, waves):
    """Squares of the source, and of its changes by waves of size one: (n, 1 + k)."""
    kind = problem.residual_classes()[0]

    def residual(function, x, data):
        fields = (problem.field(function),) * kind.n_points
        return kind.function(fields, x, data, problem.start)

    def one(x, data):
        source = residual(lambda x: jnp.zeros(1, x.dtype), x, data)

        def answer(wave):
            moved = residual(lambda x: jnp.cos(wave @ x)[None], x, data)
            return jnp.sum((moved - source) ** 2)

        return jnp.concatenate([jnp.sum(source**2)[None], jax.vmap(answer)(waves)])

    return jax.vmap(one)(points.x, points.data)


@partial(jit_by_size, static_argnames=("problem", "chosen"))
def _residuals_of_zero(problem, chosen, points):
    kinds = problem.residual_classes()
    field = problem.field(lambda x: jnp.zeros(len(problem.outputs), x.dtype))

    def values(kind, points):
        def one(x, data):
            return kind.function((field,) * kind.n_points, x, data, problem.start)

        return jax.vmap(one)(points.x, points.data)

    return [values(kinds[k], p) for k, p in zip(chosen, points, strict=True)]


def _with_balanced_sizes(problem, found):
    """Give outputs without values the size with which they balance the equations.

    An equation that holds outputs of known size, or a source, wants terms of its other
    outputs that are as large; of several equations the geometric mean. Only sizes far
    from one are taken: they come from the units of the statement.
    """
    known = np.array([unit is not None for unit in found])
    before = np.array([1.0 if unit is None else unit[1] for unit in found])
    points = problem.probes(_POINTS, np.random.RandomState(0))["interior"]
    lack = _lacking_terms(problem, points, before, known)
    sizes = before * np.exp(lack)  # of linear terms; of others by the secant method
    for _ in range(_SECANTS):
        lack_before, lack = lack, _lacking_terms(problem, points, sizes, known)
        ratio = np.log(sizes / before)
        power = np.where(
            ratio == 0, 1, (lack_before - lack) / np.where(ratio, ratio, 1)
        )
        before, sizes = sizes, sizes * np.exp(lack / np.clip(power, *_POWERS))
    return [
        (0.0, float(size)) if unit is None and not 1 / _FAR <= size <= _FAR else unit
        for unit, size in zip(found, sizes, strict=True)
    ]


def _lacking_terms(problem, points, sizes, known):
    """Logarithms of what the terms of outputs lack to balance the equations, (q,).

    Zero for outputs of known size, and where there is nothing to balance.
    """
    with backend.scope("float64"):
        squares = backend.to_numpy(_terms_of_outputs(problem, points, sizes))
    squares = squares[np.isfinite(squares).all(axis=(1, 2))]
    lack = np.zeros(len(sizes))
    if not len(squares):
        return lack
    source, *terms = np.sqrt(squares.mean(axis=0))
    wanted = np.max([source, *np.array(terms)[known]], axis=0)
    for k, term in enumerate(terms):
        balanced = (wanted > _TINY) & (term > _TINY)
        if not known[k] and balanced.any():
            lack[k] = np.mean(np.log(wanted[balanced] / term[balanced]))
    return lack


@partial(jit_by_size, static_argnames="problem")
def _terms_of_outputs(problem, points, sizes):
    """Squares of the source, and of its changes by each output: (n, 1 + q, k)."""
    kind = problem.residual_classes()[0]
    low, high = problem.domain.bounds.T
    wave, q = np.pi / (high - low), len(problem.outputs)

    def residual(amplitudes, x, data):
        def function(x):
            return amplitudes.astype(x.dtype) * jnp.cos(wave.astype(x.dtype) @ x)

        fields = (problem.field(function),) * kind.n_points
        return kind.function(fields, x, data, problem.start)

    def one(x, data):
        source = residual(jnp.zeros(q), x, data)
        moved = jax.vmap(lambda a: residual(a, x, data))(jnp.diag(sizes))
        return jnp.concatenate([source[None], moved - source[None]]) ** 2

    return jax.vmap(one)(points.x, points.data)
