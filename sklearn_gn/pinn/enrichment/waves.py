r"""Waves that a problem shows: the peaks of the spectra of its source and values.

The source is the residual of the function that is zero. It is taken on a grid of the
bounding box, and so are the values of conditions on the faces of a box. A peak of the
discrete Fourier transform is a wave if it stands out from its surroundings, is not
small compared with the largest one, and oscillates at least twice along an axis. Slower
waves, which a network learns by itself, count where a sum of waves describes the
function entirely; the wave vectors are then refined by least squares, since periods
need not divide the box. Other smooth and slow functions show no waves.
"""

from itertools import product

import jax.numpy as jnp
import numpy as np
import scipy.fft
from scipy.optimize import least_squares

from sklearn_gn.pde.conditions import Points
from sklearn_gn.pde.given_values import faces_of
from sklearn_gn.pde.local_functions import constants, residuals_of_waves

_GRID = {1: 1024, 2: 96, 3: 24}  # points along an axis, by the number of axes
MOST_WAVES, MOST_AXES = 8, 3
_SMALL = 3e-3  # amplitude, relative to the largest
_STANDS_OUT = 5.0  # amplitude over those around it
_AROUND = 3  # cycles, beyond the width of a peak
SLOW, _LEAST_CYCLES = 2.0, 1.0  # what a network learns by itself; of any wave
_EQUAL = 0.3  # cycles by which two waves are the same
_MOST_REFINED = 6  # waves
_REFINED_POINTS = 1500
_MOST_STEPS = 20  # of least squares
_EXACT = 1e-3  # remainder of a source, relative, that its waves describe
_ROUNDING = 1e-12  # of values, relative to the largest


def wave_vectors(problem):
    """Wave vectors of a problem in radians, the largest amplitudes first."""
    domain = problem.domain
    if domain.dim > MOST_AXES or problem.n_laplacian_directions is not None:
        return ()
    found = []
    for values, axes in _functions(problem):
        low, high = domain.bounds[list(axes)].T
        for column in np.moveaxis(values, -1, 0):
            for amplitude, cycles in _waves(column, problem, axes):
                vector = np.zeros(domain.dim)
                vector[list(axes)] = 2 * np.pi * cycles / (high - low)
                found.append((amplitude, vector))
    return distinct(largest_first(found), domain, MOST_WAVES)


def plane_waves(vectors, domain, x):
    """Cosines and sines of wave vectors at a point."""
    phase = np.array(vectors).astype(x.dtype) @ (
        x - domain.bounds.mean(axis=1).astype(x.dtype)
    )
    return jnp.concatenate([jnp.cos(phase), jnp.sin(phase)])


def waves_on_faces(problem):
    """Yield axis, amplitudes (n,), cycles (n, d), whether exact, for values on faces.

    The largest terms of its series of half cycles, of cosines or of sines, whichever
    converges faster; or waves of any period where a few of them are the function.
    """
    dim = problem.domain.dim
    for values, axes in _functions(problem):
        if len(axes) == dim:
            continue
        (axis,) = set(range(dim)) - set(axes)
        for column in np.moveaxis(values, -1, 0):
            if not np.abs(column).max() > 0:
                continue
            amplitudes, along, exact = _series(column, problem, axes)
            cycles = np.zeros((len(along), dim))
            cycles[:, list(axes)] = along
            yield axis, amplitudes, cycles, exact


def _are_periodic(problem, axes):
    """Which axes, given by their numbers, the problem is periodic along."""
    return np.isin(np.array(problem.domain.axes)[list(axes)], problem.periodic)


def _series(values, problem, axes):
    """Amplitudes and cycles of waves of a function, and whether they are all of it."""
    kinds = [("fft",) if p else ("dct", "dst") for p in _are_periodic(problem, axes)]
    tried = [_terms(values, kind) for kind in product(*kinds)]
    amplitudes, cycles, rest = min(tried, key=lambda terms: terms[2])
    if rest > _EXACT:
        waving = (values - values.mean()) / np.abs(values).max()
        found = refined(waving, peaks(waving)[0], problem, axes)
        if found is not None:
            return [a for a, _ in found], np.array([c for _, c in found]), True
    return amplitudes, cycles, rest < _EXACT


def _terms(values, kinds):
    """The largest terms of a series: amplitudes, cycles, and what is left, relative."""
    cycles = []
    for axis, (kind, n) in enumerate(zip(kinds, values.shape, strict=True)):
        transform = getattr(scipy.fft, kind)
        values = transform(values, axis=axis, norm="ortho")
        half = np.arange(n) + (kind == "dst")
        cycles.append(np.abs(np.fft.fftfreq(n, 1 / n)) if kind == "fft" else half / 2)
    squares = (np.abs(values) ** 2).ravel()
    grid = np.stack(np.meshgrid(*cycles, indexing="ij"), -1).reshape(len(squares), -1)
    grid, number = np.unique(grid, axis=0, return_inverse=True)
    squares = np.bincount(number.ravel(), squares)
    largest = np.argsort(-squares)[:MOST_WAVES]
    rest = 1 - squares[largest].sum() / squares.sum()
    largest = largest[squares[largest] > _SMALL**2 * squares.max()]
    return np.sqrt(squares[largest]), grid[largest], np.sqrt(max(rest, 0.0))


def distinct(vectors, domain, n_most, equal=_EQUAL):
    """The first wave vectors that differ by ``equal`` cycles, as a tuple of tuples."""
    size = np.ptp(domain.bounds, axis=1) / (2 * np.pi)
    kept = []
    for vector in map(np.array, vectors):
        same = any(
            min(
                np.abs((vector - other) * size).max(),
                np.abs((vector + other) * size).max(),
            )
            < equal
            for other in kept
        )
        if not same:
            kept.append(vector)
    return tuple(tuple(map(float, vector)) for vector in kept[:n_most])


def largest_first(found):
    """Wave vectors of amplitudes and wave vectors, the largest amplitudes first."""
    return [vector for _, vector in sorted(found, key=lambda entry: -entry[0])]


# --- the functions -------------------------------------------------------------------


def _functions(problem):
    """Yield values on a grid (n, ..., n, k), and the axes of the grid.

    They are those of the source, and of conditions on each face of a box.
    """
    domain, (interior, *kinds) = problem.domain, problem.residual_classes()
    every = tuple(range(domain.dim))
    parts = [(interior, every, None)]
    for kind, (_, condition) in zip(kinds, problem._named_conditions(), strict=True):
        if condition.needs_normals or condition.n_fields != 1 or domain.dim == 1:
            continue
        for axis, value in faces_of(domain, condition):
            parts.append((kind, tuple(a for a in every if a != axis), (axis, value)))
    for kind, axes, fixed in parts:
        n = _GRID[len(axes)]
        x = np.repeat(_grid(domain, axes, fixed, n)[:, None], kind.n_points, axis=1)
        zero = constants(np.zeros((1, len(problem.outputs))), domain.dim)
        values = residuals_of_waves(problem, kind, Points(x, x[:, 0, :0]), zero)
        if np.isfinite(values).all():  # of the function that is zero
            yield values.reshape(*(n,) * len(axes), -1), axes


def _grid(domain, axes, fixed, n):
    """Middles (n ** len(axes), d) of cells."""
    share = (np.arange(n) + 0.5) / n
    x = np.empty((n ** len(axes), domain.dim))
    if fixed is not None:
        x[:, fixed[0]] = fixed[1]
    columns = np.meshgrid(*(share,) * len(axes), indexing="ij")
    for axis, column in zip(axes, columns, strict=True):
        low, high = domain.bounds[axis]
        x[:, axis] = low + (high - low) * column.ravel()
    return x


# --- their peaks ---------------------------------------------------------------------


def _waves(values, problem, axes):
    """Return amplitudes and cycles over the box (len(axes),) of the waves of values."""
    moving = values - values.mean()
    largest = np.abs(moving).max()
    if not largest > _ROUNDING * np.abs(values).max():
        return []
    half, amplitude = peaks(moving / largest)
    exact = refined(moving / largest, half, problem, axes)
    if exact is not None:
        return exact
    clear = amplitude > _STANDS_OUT * _largest_around(amplitude, _AROUND)
    kept = [(a, np.array(c)) for a, c in half if clear[tuple(map(int, c))]]
    return [(a, c) for a, c in kept if np.abs(c).max() >= SLOW]


def peaks(values):
    """Amplitudes and cycles of the largest peaks of the spectrum, and the spectrum."""
    n, dim = values.shape[0], values.ndim
    taper = np.hanning(n + 2)[1:-1]
    tapered = values
    for axis in range(dim):
        tapered = tapered * taper.reshape([-1 if a == axis else 1 for a in range(dim)])
    amplitude = np.abs(np.fft.fftn(tapered)) * (2 / n) ** dim
    cycles = np.stack(np.meshgrid(*[np.fft.fftfreq(n, 1 / n)] * dim, indexing="ij"), -1)
    fast = np.abs(cycles).max(axis=-1) >= _LEAST_CYCLES
    peaks = (amplitude >= _largest_around(amplitude, 1)) & fast
    peaks &= amplitude > _SMALL * amplitude.max()
    peaks &= np.abs(cycles).max(axis=-1) < n // 2
    found = sorted(zip(amplitude[peaks], map(tuple, cycles[peaks]), strict=True))
    # A real function has each wave twice, with opposite signs.
    half = [(a, c) for a, c in found[::-1] if c > tuple(-np.array(c))]
    return half[:MOST_WAVES], amplitude


def _largest_around(amplitude, distance):
    """Largest amplitude at a distance along some axes, in the periodic spectrum."""
    largest, dim = np.full_like(amplitude, -np.inf), amplitude.ndim
    for shift in product((-distance, 0, distance), repeat=dim):
        if any(shift):
            moved = np.roll(amplitude, shift, axis=tuple(range(dim)))
            largest = np.maximum(largest, moved)
    return largest


def refined(values, waves, problem, axes):
    """Waves of any period whose sum is the function; None where there are none."""
    if not waves or len(waves) > _MOST_REFINED:
        return None
    n, dim = values.shape[0], values.ndim
    share = np.stack(
        np.meshgrid(*[(np.arange(n) + 0.5) / n - 0.5] * dim, indexing="ij"), -1
    )
    share, right = share.reshape(-1, dim), values.ravel()
    chosen = np.random.RandomState(0).permutation(len(right))[:_REFINED_POINTS]
    share, right = share[chosen], right[chosen]
    first = np.array([c for _, c in waves])

    def remainder(cycles):
        phase = 2 * np.pi * share @ cycles.reshape(first.shape).T
        matrix = np.hstack([np.ones((len(share), 1)), np.cos(phase), np.sin(phase)])
        return right - matrix @ np.linalg.lstsq(matrix, right, rcond=None)[0]

    found, size = first.ravel(), np.linalg.norm(right)
    periodic = _are_periodic(problem, axes).any()
    if not periodic and not np.linalg.norm(remainder(found)) < _EXACT * size:
        width = np.full(first.size, 0.75)
        bounds = found - width, found + width
        found = least_squares(
            remainder, found, bounds=bounds, x_scale=0.1, max_nfev=_MOST_STEPS
        ).x
    if not np.linalg.norm(remainder(found)) < _EXACT * size:
        return None
    cycles = found.reshape(first.shape)
    return [(a, c) for (a, _), c in zip(waves, cycles, strict=True)]
