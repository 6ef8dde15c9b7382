"""Waves of a problem of more than three axes, found on lines.

A grid of so many axes has too many points. On lines along each axis, a function that is
a sum of products of waves of single axes is a sum of waves. Where the products are few,
their plane waves take the place of those of their factors: the product of d waves is a
sum of ``2 ** (d - 1)`` plane waves, whose wave numbers differ by signs.
"""

import math
from collections import Counter, defaultdict
from itertools import product

import numpy as np

from sklearn_gn.pinn.enrichment import dispersion
from sklearn_gn.pinn.enrichment import waves as spectrum

_POINTS, _LINES = 256, 2  # of a line; along an axis, for each residual class
_SAMPLE = 64  # points that tell where values are large
_NONE = 1e-9  # size of values that are none, relative to other faces
_HALF = 0.5  # cycles of a wave that makes no peak
_EXACT, _LEAST_CYCLES = 1e-9, 0.1  # remainder; cycles of what is no parabola
_EQUAL = 1e-6  # cycles by which two waves are the same, relative
_MOST_PRODUCTS = 3**6  # of cosines, sines and ones: those of a wave on each of six axes
_PRODUCT_POINTS = 2  # for each of them
_EXACT_SUM = 1e-7  # remainder, relative, of a sum of them
_ABSENT = 1e-6  # size of a product that is none, relative
_MOST_PLANE = 32  # waves of products


def wave_vectors(problem):
    """Wave vectors of a problem in radians, the largest amplitudes first."""
    domain = problem.domain
    if problem.n_laplacian_directions is not None:
        return ()
    found, products = [], []
    for kind, fixed, lines in _functions(problem):
        waves = {axis: _waves(problem, axis, lines[axis]) for axis in lines}
        plane = _plane_waves(problem, kind, fixed, waves)
        if plane is not None:
            products += plane
        else:
            for axis, own in waves.items():
                found += [(a, rate * np.eye(domain.dim)[axis]) for a, rate in own]
    vectors = [*products[:_MOST_PLANE], *spectrum.largest_first(found)]
    n_most = min(len(products), _MOST_PLANE) + 2 * domain.dim
    return spectrum.distinct(vectors, domain, n_most, dispersion.EQUAL)


def _functions(problem):
    """Yield residual classes, a face, and by axis values on lines (n, k)."""
    rng, n_lines = np.random.RandomState(0), Counter()
    for kind, axes, fixed in _largest_values_first(problem):
        lines = defaultdict(list)
        for axis in axes:
            left = _LINES - n_lines[kind.name, axis]
            n_new = left if fixed is None else min(left, 1)  # others on other faces
            n_lines[kind.name, axis] += n_new
            for _ in range(n_new):
                x = _points_of_line(problem.domain, axis, fixed, rng)
                values = spectrum.values_at(problem, kind, x)
                if values is not None:
                    lines[axis] += list(values.T)
        if lines:
            yield kind, fixed, lines


def _points_of_line(domain, axis, fixed, rng):
    """Middles of cells of a line along an axis, at a random place."""
    low, high = domain.bounds.T
    x = np.tile(rng.uniform(low, high), (_POINTS, 1))
    if fixed is not None:
        x[:, fixed[0]] = fixed[1]
    share = (np.arange(_POINTS) + 0.5) / _POINTS
    x[:, axis] = low[axis] + (high - low)[axis] * share
    return x


def _largest_values_first(problem):
    """Residual classes, their axes and faces, without faces of constant values."""
    by_kind = defaultdict(list)
    for entry in spectrum.kinds_and_faces(problem):
        kind, _, fixed = entry
        x = _random_points(problem, fixed, _SAMPLE)
        values = spectrum.values_at(problem, kind, x)
        size = 0.0 if values is None else float(np.ptp(values, axis=0).max())
        by_kind[kind.name].append((size, entry))
    for sized in by_kind.values():
        largest = max(size for size, _ in sized)
        for size, entry in sorted(sized, key=lambda pair: -pair[0]):
            if size > _NONE * largest:
                yield entry


def _random_points(problem, fixed, n):
    """Points of the bounding box, or of one of its faces."""
    rng, (low, high) = np.random.RandomState(0), problem.domain.bounds.T
    x = rng.uniform(low, high, (n, len(low)))
    if fixed is not None:
        x[:, fixed[0]] = fixed[1]
    return x


def _waves(problem, axis, lines):
    """Amplitudes and rates, in radians, of the waves of values on lines of an axis."""
    size = 2 * np.pi / np.ptp(problem.domain.bounds[axis])
    centred = map(spectrum.centred, lines)
    found = [wave for own in centred for wave in _waves_on_line(own, problem, axis)]
    return [(amplitude, abs(float(c[0])) * size) for amplitude, c in found]


def _waves_on_line(values, problem, axis):
    """Amplitudes and cycles of waves of centred values, perhaps half cycles."""
    half, amplitude = spectrum.peaks(values)
    slow = (1.0, (_HALF,))
    for tried in [slow], half, [*half, slow]:  # the fewest waves first
        exact = spectrum.refined(values, tried, problem, (axis,), _EXACT)
        if exact and min(abs(c[0]) for _, c in exact) >= _LEAST_CYCLES:
            return exact
    return spectrum.fast_waves(half, amplitude)


# --- products ------------------------------------------------------------------------


def _plane_waves(problem, kind, fixed, waves):
    """Wave vectors of a sum of products of waves of axes; None where it is not one."""
    rates = {axis: _different(own) for axis, own in waves.items()}
    rates = {axis: own for axis, own in rates.items() if own}
    n_products = math.prod(1 + 2 * len(own) for own in rates.values())
    if len(rates) < 2 or n_products > _MOST_PRODUCTS:
        return None
    x = _random_points(problem, fixed, _PRODUCT_POINTS * n_products)
    still = [axis for axis in range(problem.domain.dim) if axis not in rates]
    x[:, still] = x[0, still]
    values = spectrum.values_at(problem, kind, x)
    if values is None or not np.abs(values).max() > 0:
        return None
    x = x - problem.domain.bounds.mean(axis=1)
    factors = []  # of each axis: rates and functions of one, cosines and sines
    for axis, own in rates.items():
        z = x[:, axis]
        moving = [(rate, f(rate * z)) for rate in own for f in (np.cos, np.sin)]
        factors.append([(0.0, np.ones_like(z)), *moving])
    # One product of all axes first: of slow waves, those of fewer can hardly be told.
    found = _products(values, [own[1:] for own in factors])
    found = _products(values, factors) if found is None else found
    if found is None:
        return None
    axes = list(rates)
    return [v for own in found for v in _with_signs(problem.domain.dim, axes, own)]


def _products(values, factors):
    """Rates of the products of which values (n, k) are a sum, the largest first."""
    chosen = list(product(*factors))
    matrix = np.stack([math.prod(f for _, f in entry) for entry in chosen], axis=1)
    terms = np.linalg.lstsq(matrix, values, rcond=None)[0]
    if np.linalg.norm(values - matrix @ terms) > _EXACT_SUM * np.linalg.norm(values):
        return None
    sizes = defaultdict(float)
    for entry, size in zip(chosen, np.abs(terms).max(axis=1), strict=True):
        rates = tuple(rate for rate, _ in entry)
        sizes[rates] = max(sizes[rates], float(size))
    least = _ABSENT * max(sizes.values())
    found = sorted(sizes, key=lambda rates: -sizes[rates])
    return [rates for rates in found if any(rates) and sizes[rates] > least]


def _different(waves):
    """The rates of waves, each once."""
    rates = sorted(rate for _, rate in waves)
    return [
        rate
        for before, rate in zip([0.0, *rates], rates, strict=False)
        if rate - before > _EQUAL * rate
    ]


def _with_signs(dim, axes, rates):
    """Wave vectors of a product of waves: all signs, the first one positive."""
    axes = [axis for axis, rate in zip(axes, rates, strict=True) if rate]
    rates, vectors = [rate for rate in rates if rate], []
    for signs in product((1, -1), repeat=len(axes) - 1):
        vector = np.zeros(dim)
        vector[axes] = np.multiply((1, *signs), rates)
        vectors.append(vector)
    return vectors
