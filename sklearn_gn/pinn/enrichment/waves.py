r"""Waves that a problem shows: the peaks of the spectra of its source and values.

The source is the residual of the function that is zero. It is taken on a grid of the
bounding box, and so are the values of conditions on the faces of a box. A peak of the
discrete Fourier transform is a wave if it stands out from its surroundings, is not
small compared with the largest one, and oscillates at least twice along an axis. Slower
waves, which a network learns by itself, count where a sum of waves describes the
function entirely; the wave vectors are then refined by least squares, since periods
need not divide the box. Other smooth and slow functions show no waves.

Further waves are the ones an equation lets pass: real roots of its symbol. A linear
equation with constant coefficients takes waves to waves,

    L(c e^{i k x}) = P(k) c e^{i k x},

with a matrix P(k), its symbol: a polynomial in the wave vector k, of time as well as of
space. Waves with det P(k) = 0 fulfil the equation without a source, and a solution
consists of them and of its answer to the source. Two sets of them are finite:

- From the wave numbers of given values along a face of a box, the waves whose remaining
  component makes the determinant zero. At the start of time this is the dispersion
  relation, which gives the frequencies of the initial waves.
- Where the determinant has a real root in every direction, as Helmholtz's equation has,
  and neither source nor values show waves, those in evenly distributed directions. In
  a disk of the radius R the solution has k R harmonics and a few more in the angle, and
  takes as many directions.

There are none where the symbol has no real roots (diffusion, potentials), where the
equation is not linear, and where its coefficients vary or are to be found.
"""

import math
from functools import partial, reduce
from itertools import product

import jax.numpy as jnp
import numpy as np
import scipy.fft
import scipy.linalg
from scipy.optimize import least_squares

from sklearn_gn.pde.conditions import Points
from sklearn_gn.pde.given_values import JUMP, N_POINTS, ROUNDING, faces_of
from sklearn_gn.pde.reading import (
    constants,
    derivatives,
    residuals_of_waves,
    slopes_of_equation,
)
from sklearn_gn.pinn.statement import read

_GRID = {1: 1024, 2: 96, 3: 24}  # points along an axis, by the number of axes
MOST_WAVES = 8
_SMALL = 3e-3  # amplitude, relative to the largest
_STANDS_OUT = 5.0  # amplitude over those around it
_AROUND = 3  # cycles, beyond the width of a peak
SLOW = 2.0  # cycles that a network learns by itself
_EQUAL = 0.3  # cycles by which two waves are the same
_EXACT = 1e-3  # remainder of a source, relative, that its waves describe
_SINGULAR = 1e-6  # smallest singular value at a root, relative
_DAMPED = 0.25  # imaginary part of a root that is a wave, over its real part
_LEAST_ROOT, _MOST_CYCLES = 0.4, 200.0  # of a wave, over the box
_MOST_FURTHER = 24
_EQUAL_ROOTS = 0.03  # cycles by which two waves are the same
_MORE_DIRECTIONS = 9  # than radians from the middle to a corner of the box


def wave_vectors(problem):
    """Wave vectors of a problem in radians, the largest amplitudes first."""
    domain = problem.domain
    if domain.dim not in _GRID or problem.n_laplacian_directions is not None:
        return ()
    found = []
    for column, axes, periodic in _functions(problem):
        for amplitude, cycles in _waves_of(column, periodic)[0]:
            vector = np.zeros(domain.dim)
            vector[axes] = 2 * np.pi * cycles / np.ptp(domain.bounds[axes], axis=1)
            found.append((amplitude, vector))
    return distinct(found, domain, MOST_WAVES)


def plane_waves(vectors, domain, x):
    """Cosines and sines of wave vectors at a point."""
    phase = np.array(vectors).astype(x.dtype) @ (
        x - domain.bounds.mean(axis=1).astype(x.dtype)
    )
    return jnp.concatenate([jnp.cos(phase), jnp.sin(phase)])


def distinct(found, domain, n_most, equal=_EQUAL):
    """Wave vectors that differ by ``equal`` cycles, large amplitudes first.

    Of pairs of amplitudes and wave vectors; a tuple of tuples.
    """
    unit, kept = 2 * np.pi / np.ptp(domain.bounds, axis=1), np.zeros((0, domain.dim))
    for _, vector in sorted(found, key=lambda entry: -entry[0]):
        apart = np.abs(np.stack([kept - vector, kept + vector]) / unit).max(axis=2)
        if (apart >= equal).all():
            kept = np.vstack([kept, vector])
    return tuple(map(tuple, kept[:n_most].tolist()))


# --- the functions and their waves ----------------------------------------------------


def _functions(problem):
    """Yield values on a grid (n, ...), its axes (d,), and which of these are periodic.

    They are the source, and the conditions on each face of a box.
    """
    domain, reading = problem.domain, read(problem)
    every, parts = np.arange(domain.dim), [(reading.interior, None, 0.0)]
    for kind in reading.conditions if domain.dim > 1 else ():
        if not kind.condition.needs_normals and kind.condition.n_fields == 1:
            faces = faces_of(domain, kind.condition)
            parts += [(kind, axis, value) for axis, value in faces]
    for kind, across, value in parts:
        axes = every[every != across]
        n, (low, high) = _GRID[len(axes)], domain.bounds[axes].T
        share = (np.indices((n,) * len(axes)).reshape(len(axes), -1).T + 0.5) / n
        x = np.full((len(share), kind.n_points, domain.dim), value)
        x[..., axes] = (low + (high - low) * share)[:, None]  # the middles of cells
        zero = constants(np.zeros((1, len(problem.outputs))), domain.dim)
        values = residuals_of_waves(problem, kind, Points(x, x[:, 0, :0]), zero)
        if np.isfinite(values).all():  # of the function that is zero
            periodic = np.isin(np.array(domain.axes)[axes], problem.periodic)
            for column in values[:, 0].T:
                yield column.reshape((n,) * len(axes)), axes, periodic


def _waves_of(column, periodic):
    """Waves of a function, amplitudes and cycles, and whether these are all of it.

    If they are not, they are those that stand out of the spectrum and are fast.
    """
    moving = column - column.mean()
    largest = np.abs(moving).max()
    if not largest > ROUNDING * np.abs(column).max():
        return [], False
    moving = moving / largest
    n, dim = len(moving), moving.ndim
    taper, tapered = np.hanning(n + 2)[1:-1], moving
    for axis in range(dim):
        tapered = np.moveaxis(np.moveaxis(tapered, axis, -1) * taper, -1, axis)
    amplitude = np.abs(np.fft.fftn(tapered)) * (2 / n) ** dim
    cycles = np.stack(np.meshgrid(*[np.fft.fftfreq(n, 1 / n)] * dim, indexing="ij"), -1)

    def largest_around(distance):
        """Largest amplitude at a distance along some axes: the spectrum is periodic."""
        shifts = filter(any, product((-distance, 0, distance), repeat=dim))
        moved = (np.roll(amplitude, shift, tuple(range(dim))) for shift in shifts)
        return reduce(np.maximum, moved)

    peaks = (amplitude >= largest_around(1)) & cycles.any(axis=-1)
    peaks &= amplitude > _SMALL * amplitude.max()
    peaks &= np.abs(cycles).max(axis=-1) < n // 2
    found = sorted(zip(amplitude[peaks], map(tuple, cycles[peaks]), strict=True))
    # A real function has each wave twice, with opposite signs.
    half = [(a, c) for a, c in found[::-1] if c > tuple(-np.array(c))][:MOST_WAVES]
    # Waves of any period whose sum is the function.
    chosen = np.random.RandomState(0).permutation(moving.size)[:N_POINTS]
    share = (np.indices(moving.shape).reshape(dim, -1).T[chosen] + 0.5) / n - 0.5
    right = moving.ravel()[chosen]

    def remainder(cycles):
        phase = 2 * np.pi * share @ cycles.reshape(-1, dim).T
        matrix = np.hstack([np.ones((len(share), 1)), np.cos(phase), np.sin(phase)])
        return right - matrix @ np.linalg.lstsq(matrix, right, rcond=None)[0]

    cycles, size = np.ravel([c for _, c in half]), np.linalg.norm(right)
    moves = len(half) > 0 and not periodic.any()
    if moves and not np.linalg.norm(remainder(cycles)) < _EXACT * size:
        bounds = cycles - 0.75, cycles + 0.75
        cycles = least_squares(remainder, cycles, bounds=bounds, x_scale=0.1).x
    if half and np.linalg.norm(remainder(cycles)) < _EXACT * size:
        amplitudes = [a for a, _ in half]
        return list(zip(amplitudes, cycles.reshape(-1, dim), strict=True)), True
    clear = amplitude > _STANDS_OUT * largest_around(_AROUND)
    half = [(a, np.array(c)) for a, c in half if clear[tuple(map(int, c))]]
    return [(a, c) for a, c in half if np.abs(c).max() >= SLOW], False


# --- waves that the equation lets pass -----------------------------------------------


def further_waves(problem, scale, shown=()):
    """Wave vectors that the equation lets pass, in radians, the largest waves first.

    Those ``shown`` by source and values are left out. Where there are some, waves of
    all directions are not needed.
    """
    if problem.domain.dim not in _GRID:
        return ()
    equation = symbol(problem, scale)
    if equation is None:
        return ()
    radians = 2 * np.pi / np.ptp(problem.domain.bounds, axis=1)  # of a cycle
    found = _from_faces(equation, problem)
    if not found and not shown:
        found = [(1.0, cycles) for cycles in _in_all_directions(equation, problem)]
    periodic = np.isin(problem.domain.axes, problem.periodic)
    both = [(math.inf, vector) for vector in shown]
    for amplitude, cycles in found:
        own = cycles[periodic]
        if np.allclose(own, np.round(own)):
            both.append((amplitude, cycles * radians))
    most = len(shown) + _MOST_FURTHER
    both = distinct(both, problem.domain, most, _EQUAL_ROOTS)
    return tuple(vector for vector in both if vector not in set(shown))


def symbol(problem, scale):
    """The symbol (n, q, q) of an equation at cycles (n, d); None where it has none.

    The cycles are those over the box, and rows are of size one. It is read from the
    slopes of the equation, which are the same at all points and about all fields.
    """
    kind, dim, q = read(problem).interior, problem.domain.dim, len(scale)
    scale, radians = np.array(scale), 2 * np.pi / np.ptp(problem.domain.bounds, axis=1)
    local = kind.n_points == 1 and problem.n_laplacian_directions is None
    if not local or problem.unknown or kind.n_outputs != q:
        return None
    # About nothing and about waves of the size of the outputs, (2, n, k, m, q).
    sizes = 0.0 * scale, scale
    x = read(problem).x
    both = np.stack([slopes_of_equation(problem, x, size) for size in sizes])
    every = derivatives(dim)
    highest = [len(axes) == len(every[-1]) for axes in every]
    if not np.isfinite(both).all() or both[..., highest, :].any():
        return None

    def values(cycles, slopes):
        """Of waves with these numbers of cycles, (..., n, k, q)."""
        turns = 1j * radians * cycles
        factors = [np.prod(turns[:, list(axes)], axis=1) for axes in every]
        return np.einsum("...kmq,mn->...nkq", slopes * scale, np.array(factors))

    cycles = np.random.RandomState(0).standard_normal((2 * dim, dim))
    waves = values(cycles, both)
    size = np.abs(waves).max(axis=(0, 1, 2, 4))
    changes = np.abs(waves - waves[0, 0]).max(axis=(0, 1, 2, 4))
    if not (changes < JUMP * size).all():
        return None
    return partial(values, slopes=both[0].mean(axis=0) / size[:, None, None])


def real_roots(equation, start, direction):
    """Cycles ``start + s direction`` of waves that the equation lets pass, (n, d).

    Imaginary parts are small: such a wave oscillates before it is damped. Waves that
    are very slow or very fast are left out.
    """
    nodes = np.arange(-2.0, 3.0)  # of the fourth order
    values = equation(start + nodes[:, None] * direction)
    powers = np.vander(nodes, increasing=True).astype(complex)
    terms = np.linalg.solve(powers, values.reshape(len(nodes), -1))
    terms = terms.reshape(values.shape)
    sizes = np.abs(terms).max(axis=(1, 2))
    order = int(np.flatnonzero(sizes > ROUNDING * sizes.max())[-1])
    terms, sizes, q = terms[: order + 1], sizes[: order + 1], terms.shape[1]
    if order == 0:
        return np.zeros((0, len(start)))

    def singular(s):
        powers = s ** np.arange(order + 1)
        values = np.linalg.svd(np.tensordot(powers, terms, 1), compute_uv=False)
        return values[-1] <= _SINGULAR * (sizes @ np.abs(powers))

    # Roots of the determinant of the polynomial with these matrices.
    n = order * q
    left, right = np.eye(n, k=q, dtype=complex), np.eye(n, dtype=complex)
    left[-q:] = -np.concatenate(terms[:-1], axis=1)
    right[-q:, -q:] = terms[-1]
    with np.errstate(all="ignore"):
        roots = scipy.linalg.eigvals(left, right)
    found = []
    for s in roots[np.isfinite(roots) & (np.abs(roots) < 1 / ROUNDING)]:
        wave = start + s.real * direction
        is_wave = abs(s.imag) <= _DAMPED * abs(s.real)
        is_wave &= _LEAST_ROOT <= np.abs(wave).max() <= _MOST_CYCLES
        # Not where the determinant is zero for all waves.
        if is_wave and singular(s) and not singular(s + 0.1 * abs(s)):
            found.append(wave)
    return np.array(found).reshape(-1, len(start))


def _series(values, periodic):
    """Amplitudes and cycles of waves of a function, and whether they are all of it."""
    kinds = [("fft",) if p else ("dct", "dst") for p in periodic]
    tried = [_terms(values, kind) for kind in product(*kinds)]
    amplitudes, cycles, rest = min(tried, key=lambda terms: terms[2])
    if rest > _EXACT:
        waves, is_exact = _waves_of(values, periodic)
        if is_exact:
            return waves, True
    return list(zip(amplitudes, cycles, strict=True)), rest < _EXACT


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


def _from_faces(equation, problem):
    """Amplitudes and cycles of waves that go on from values on faces.

    Those of the values are the largest terms of a series of half cycles, of cosines or
    of sines, whichever converges faster; or waves of any period where a few of them are
    the function.
    """
    found, dim = [], problem.domain.dim
    for column, axes, periodic in _functions(problem):
        if len(axes) == dim or not column.any():
            continue
        across, entries = np.ones(dim), []
        across[axes] = 0
        waves, exact = _series(column, periodic)
        for amplitude, cycles in waves:
            along = np.zeros(dim)
            along[axes] = cycles
            # Waves are reflected at ends of axes; those of opposite sign are the same.
            signs = list(product(*((1, -1) if c else (1,) for c in along)))
            for sign in signs[: max(1, len(signs) // 2)]:
                roots = real_roots(equation, np.array(sign) * along, across)
                entries += [(amplitude, wave) for wave in roots]
        if exact or any(np.abs(wave).max() >= SLOW for _, wave in entries):
            found += entries
    return found


def _in_all_directions(equation, problem):
    """Cycles of waves in evenly distributed directions, if each of these has one."""
    size, dim = np.ptp(problem.domain.bounds, axis=1), problem.domain.dim
    half_size = np.linalg.norm(size) / 2
    found, n = [], _MORE_DIRECTIONS
    for _ in range(2):  # the first ones say how many there have to be
        # Unit vectors over half of the sphere.
        angle, height = np.pi * np.arange(n) / n, (np.arange(n) + 0.5) / n
        width, turn = np.sqrt(1 - height**2), (3 - math.sqrt(5)) * n * angle
        columns = {
            1: [np.ones(1)],
            2: [np.cos(angle), np.sin(angle)],
            3: [width * np.cos(turn), width * np.sin(turn), height],
        }
        found = []
        for direction in np.stack(columns[dim], axis=1):
            across = direction * size / (2 * np.pi)
            roots = real_roots(equation, 0 * across, across)
            if not len(roots):
                return []
            found += list(roots)
        largest = 2 * np.pi * max(np.linalg.norm(wave / size) for wave in found)
        n = min(math.ceil(largest * half_size) + _MORE_DIRECTIONS, _MOST_FURTHER)
    return found
