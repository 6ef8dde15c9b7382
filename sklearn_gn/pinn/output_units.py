"""Units of the outputs of a problem, from what it says about their size.

Values that are given come first; an output without any has the size with which it
answers the source of the equations, or balances their terms. Fluxes and tractions ask
for more where they are larger than values and sources let expect.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.numpy_programs import evaluated_by_numpy
from sklearn_gn.pde import Condition, Dirichlet, Initial, Neumann, Robin
from sklearn_gn.pde.given_values import values_of
from sklearn_gn.pde.local_functions import fields_and_points, wave_at

_POINTS = 200  # of each condition, at which its values are taken
_TINY = 1e-30  # what is left alone
_RESONANCE = 1e-4  # share of the largest answer to a wave that is hardly one
_FAR = 100.0  # from one, beyond which sizes come from units
_SECANTS, _POWERS = 3, (0.25, 4.0)  # steps to the size of terms that are no lines
_NEGLIGIBLE = 1e-12  # size of values, relative to those of the others


def units(problem, y=None, observed=(), waves=()):
    """Return center and size of each output, from values and fluxes that are given.

    A single output without values, or behind a transform, has the size with which a
    wave answers the source; of several, those without values balance the equations.
    A slow wave with the largest given flux is the least size.
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
    has_values = np.array([unit is not None for unit in found])
    fluxes = _sizes_by_fluxes(problem, has_values)
    found = [
        (unit[0], max(unit[1], flux)) if unit else (0.0, flux) if flux else None
        for unit, flux in zip(found, fluxes, strict=True)
    ]
    if q == 1 and not has_values[0]:
        found = [(0.0, max(_size_of_answer(problem, waves), fluxes[0]) or 1.0)]
    elif None in found and any(found):
        found = _with_balanced_sizes(problem, found)
    if any(found) and not switches.on("pinn.units"):
        found = [None] * q
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
    given = {
        name: condition
        for name, condition in problem._named_conditions()
        if isinstance(condition, (Dirichlet, Initial))
        and not getattr(condition, "order", 0)
    }
    if not given:
        return
    points = problem.probes(_POINTS, np.random.RandomState(0))
    places = [points[name].x[:, 0] for name in given]
    with backend.scope("float64"):
        source = backend.to_numpy(_source(problem, points["interior"]))
    least = _NEGLIGIBLE * np.abs(source[np.isfinite(source)]).max(initial=0)
    for names, values in values_of(problem, given.values(), places):
        values = np.where(np.abs(values) < least, 0, values)  # rounding
        yield [problem.outputs.index(name) for name in names], values


def _size_of_answer(problem, waves):
    """Amplitude of the first wave, or of a slow one, that balances the source; or 0.

    A wave in resonance, which the equation hardly answers, is passed over.
    """
    low, high = problem.domain.bounds.T
    tried = np.array([*waves, np.pi / (high - low)])
    rng = np.random.RandomState(0)
    points = problem.probes(_POINTS, rng)["interior"]
    directions = problem.draw_directions(rng)
    with backend.scope("float64"):
        found = _source_and_answers(problem, points, tried, directions)
        squares = backend.to_numpy(found)
    squares = squares[np.isfinite(squares).all(axis=1)]
    source, *answers = np.sqrt(squares.sum(axis=0))
    clear = [answer for answer in answers if answer > _RESONANCE * max(answers)]
    if not (source > _TINY and clear and clear[0] > _TINY):
        return 0.0
    return float(source / clear[0])


def at_given_values(problem, net, share):
    """A network whose outputs are the means of their given values, and vary less.

    Its last weights are a share of what they are. Where no value is given, the mean is
    the center of the output's unit.
    """
    middle = np.zeros(len(problem.outputs))
    center, scale = (getattr(problem, name, ()) for name in ("center", "scale"))
    if scale and problem.transform is None:
        for numbers, values in _given_values(problem):
            numbers = np.array(numbers)
            middle[numbers] = (values.mean(axis=0) - np.array(center)[numbers]) / (
                np.array(scale)[numbers]
            )
    *hidden, last = net.layers
    last = np.asarray(last) * share
    last[-1] += np.resize(middle, len(last[-1])).astype(last.dtype)  # of each region
    return net._replace(layers=(*hidden, last))


def _sizes_by_fluxes(problem, has_values):
    """Amplitudes (q,) of a slow wave with the fluxes and tractions that are given.

    Of what the conditions on the boundary in space give beside values. Where a row has
    outputs without values, it says nothing of the others.
    """
    sizes = np.zeros(len(problem.outputs))
    kinds = tuple(
        kind
        for kind, (_, condition) in zip(
            problem.residual_classes()[1:], problem._named_conditions(), strict=True
        )
        if isinstance(condition, (Neumann, Robin, Condition))
    )
    if not kinds or problem.transform is not None:
        return sizes.tolist()
    drawn = problem.probes(_POINTS, np.random.RandomState(0))
    points = [drawn[kind.name] for kind in kinds]
    with backend.scope("float64"):
        found = backend.to_numpy(_fluxes_and_answers(problem, kinds, points))
    for squares in found:
        squares = squares[np.isfinite(squares).all(axis=(1, 2))]
        source, *answers = np.sqrt(squares.sum(axis=0))  # each of shape (k,)
        answers = np.array(answers)
        answers[has_values] *= ~(answers[~has_values] > _TINY).any(axis=0)
        clear = (answers > _TINY) & (source > _TINY)
        ratios = np.where(clear, source, 0) / np.where(clear, answers, 1)
        sizes = np.maximum(sizes, ratios.max(axis=1))
    return sizes.tolist()


@partial(evaluated_by_numpy, static_argnames=("problem", "kinds"))
def _fluxes_and_answers(problem, kinds, points):
    """Squares of the residuals of zero, and of their slopes by slow waves.

    Of shape (n, 1 + q, k) for each class; there are a cosine and a sine.
    """
    low, high = problem.domain.bounds.T
    wave, q = np.pi / (high - low), len(problem.outputs)

    def residual(kind, x, data, amplitudes):
        known_at = partial(
            wave_at, vectors=wave[None], cosines=amplitudes[0], sines=amplitudes[1]
        )
        fields, x = fields_and_points(problem, known_at, x)
        return kind.function(fields, x, data, problem.start)

    def one(kind, x, data):
        zero = jnp.zeros((2, q))
        row = partial(residual, kind, x, data)
        slopes = jax.jacfwd(row)(zero)  # (k, 2, q)
        return jnp.vstack([row(zero)[None] ** 2, jnp.sum(slopes**2, axis=1).T])

    return [
        jax.vmap(partial(one, kind))(batch.x, batch.data)
        for kind, batch in zip(kinds, points, strict=True)
    ]


@partial(evaluated_by_numpy, static_argnames="problem")
def _source_and_answers(problem, points, waves, directions):
    """Squares of the source, and of its changes by waves of size one: (n, 1 + k)."""
    kind = problem.residual_classes()[0]

    def residual(function, x, data):
        fields = (problem.field(function, directions),) * kind.n_points
        return kind.function(fields, x, data, problem.start)

    def one(x, data):
        source = residual(lambda x: jnp.zeros(1, x.dtype), x, data)

        def answer(wave):
            moved = residual(lambda x: jnp.cos(wave @ x)[None], x, data)
            return jnp.sum((moved - source) ** 2)

        return jnp.concatenate([jnp.sum(source**2)[None], jax.vmap(answer)(waves)])

    return jax.vmap(one)(points.x, points.data)


@partial(evaluated_by_numpy, static_argnames="problem")
def _source(problem, points):
    """Residuals of the equation where all outputs are zero."""
    kind = problem.residual_classes()[0]
    field = problem.field(lambda x: jnp.zeros(len(problem.outputs), x.dtype))

    def one(x, data):
        return kind.function((field,) * kind.n_points, x, data, problem.start)

    return jax.vmap(one)(points.x, points.data)


def _with_balanced_sizes(problem, found):
    """Give outputs without values the size with which they balance the equations.

    Of several equations the geometric mean. Only sizes far from one are taken: they
    come from the units of the statement.
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
    ordinary = (sizes >= 1 / _FAR) & (sizes <= _FAR)
    kept = known | (ordinary & ordinary[known].all())
    return [
        unit if keeps else (0.0, float(size))
        for unit, size, keeps in zip(found, sizes, kept, strict=True)
    ]


def _lacking_terms(problem, points, sizes, known):
    """Logarithms (q,) of what terms of unknown size lack to balance the equations."""
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


@partial(evaluated_by_numpy, static_argnames="problem")
def _terms_of_outputs(problem, points, sizes):
    """Squares of the source, and of its changes by each output: (n, 1 + q, k)."""
    kind = problem.residual_classes()[0]
    low, high = problem.domain.bounds.T
    wave, q = np.pi / (high - low), len(problem.outputs)

    def residual(amplitudes, x, data):
        known_at = partial(
            wave_at,
            vectors=wave.astype(x.dtype),
            cosines=amplitudes.astype(x.dtype),
            sines=jnp.zeros(q, x.dtype),
        )
        fields, x = fields_and_points(problem, known_at, x)
        return kind.function(fields, x, data, problem.start)

    def one(x, data):
        source = residual(jnp.zeros(q), x, data)
        moved = jax.vmap(lambda a: residual(a, x, data))(jnp.diag(sizes))
        return jnp.concatenate([source[None], moved - source[None]]) ** 2

    return jax.vmap(one)(points.x, points.data)
