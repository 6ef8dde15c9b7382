"""Waves of a problem of more than three axes, found on lines.

A grid of so many axes has too many points. On lines along each axis, a function that is
a sum or a product of waves of single axes is a sum of waves. Where it is a product, and
has few axes, its plane waves take the place of those of its factors: the product of d
waves is a sum of ``2 ** (d - 1)`` plane waves, whose wave numbers differ by signs.
"""

from collections import Counter, defaultdict
from itertools import product

import numpy as np

from sklearn_gn.pinn import spectrum

_POINTS, _LINES = 256, 2  # of a line; along an axis, for each residual class
_HALF = 0.5  # cycles of a wave that makes no peak
_EXACT, _LEAST_CYCLES = 1e-9, 0.1  # remainder; cycles of what is no parabola
_EQUAL = 1e-6  # cycles by which two waves are the same, relative
_MOST_FACTORS = 6
_FACTOR_POINTS = 4  # for each product of sines and cosines


def wave_vectors(problem):
    """Return the wave vectors of a problem, the largest amplitudes first.

    Empty where Laplacians are estimated: there are very many axes.

    Returns
    -------
    tuple of tuple of float
        In radians for a unit of the axes.
    """
    domain = problem.domain
    if problem.n_laplacian_directions is not None:
        return ()
    found, products = [], []
    for kind, fixed, lines in _functions(problem):
        waves = {axis: _waves(problem, axis, lines[axis]) for axis in lines}
        rates = {axis: own[0][1] for axis, own in waves.items() if _is_one(own)}
        if _is_product(problem, kind, fixed, rates):
            products += _plane_waves(domain.dim, rates)
        else:
            for axis, own in waves.items():
                found += [(a, rate * np.eye(domain.dim)[axis]) for a, rate in own]
    vectors = [*products, *spectrum.largest_first(found)]
    return spectrum.distinct(vectors, domain, len(products) + 2 * domain.dim)


def _functions(problem):
    """Yield residual classes, a face, and by axis values on lines (n, k)."""
    domain, rng, n_lines = problem.domain, np.random.RandomState(0), Counter()
    low, high = domain.bounds.T
    share = (np.arange(_POINTS) + 0.5) / _POINTS
    for kind, axes, fixed in spectrum.kinds_and_faces(problem):
        lines = defaultdict(list)
        for axis in [a for a in axes for _ in range(_LINES if fixed is None else 1)]:
            n_lines[kind.name, axis] += 1
            if n_lines[kind.name, axis] > _LINES:
                continue
            x = np.tile(rng.uniform(low, high), (_POINTS, 1))
            if fixed is not None:
                x[:, fixed[0]] = fixed[1]
            x[:, axis] = low[axis] + (high - low)[axis] * share
            values = spectrum.values_at(problem, kind, x)
            if values is not None:
                lines[axis] += list(values.T)
        if lines:
            yield kind, fixed, lines


def _waves(problem, axis, lines):
    """Amplitudes and rates, in radians, of the waves of values on lines of an axis."""
    size, found = 2 * np.pi / np.ptp(problem.domain.bounds[axis]), []
    for values in map(spectrum.centred, lines):
        own = _waves_on_line(values, problem, axis)
        found += [(amplitude, abs(float(c[0])) * size) for amplitude, c in own]
        if values.any() and not own:
            break  # there are many axes: another line would take as long
    return found


def _waves_on_line(values, problem, axis):
    """Amplitudes and cycles of the waves of centred values, which may be half cycles.

    The values of sin(pi x) are those of many a product of waves; its spectrum has no
    peak.
    """
    half, amplitude = spectrum.peaks(values)
    slow = (1.0, (_HALF,))
    for tried in [slow], half, [*half, slow]:  # the fewest waves first
        exact = spectrum.refined(values, tried, problem, (axis,), _EXACT)
        if exact and min(abs(c[0]) for _, c in exact) >= _LEAST_CYCLES:
            return exact
    return spectrum.fast_waves(half, amplitude)


# --- products ------------------------------------------------------------------------


def _is_one(waves):
    """Whether the waves of the lines of an axis are one and the same."""
    rates = [rate for _, rate in waves]
    return bool(rates) and np.ptp(rates) <= _EQUAL * max(rates)


def _is_product(problem, kind, fixed, rates):
    """Whether a residual is made of products of waves, one of each axis with a rate."""
    if not 2 <= len(rates) <= _MOST_FACTORS:
        return False
    rng, (low, high) = np.random.RandomState(0), problem.domain.bounds.T
    n = _FACTOR_POINTS * 2 ** len(rates)
    x = np.tile(rng.uniform(low, high), (n, 1))
    for axis in rates:
        x[:, axis] = rng.uniform(low[axis], high[axis], n)
    if fixed is not None:
        x[:, fixed[0]] = fixed[1]
    values = spectrum.values_at(problem, kind, x)
    if values is None or not np.abs(values).max() > 0:
        return False
    factors = [(np.cos(k * x[:, a]), np.sin(k * x[:, a])) for a, k in rates.items()]
    matrix = np.stack([np.prod(chosen, axis=0) for chosen in product(*factors)], axis=1)
    rest = values - matrix @ np.linalg.lstsq(matrix, values, rcond=None)[0]
    return np.linalg.norm(rest) < _EXACT * np.linalg.norm(values)


def _plane_waves(dim, rates):
    """Wave vectors of a product of waves: all signs, the first one positive."""
    axes, vectors = list(rates), []
    for signs in product((1, -1), repeat=len(axes) - 1):
        vector = np.zeros(dim)
        vector[axes] = np.multiply((1, *signs), list(rates.values()))
        vectors.append(vector)
    return vectors
