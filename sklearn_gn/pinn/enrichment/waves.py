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
from sklearn_gn.pinn.reading import read

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
    for values, axes in _functions(problem):
        low, high = domain.bounds[list(axes)].T
        for column in np.moveaxis(values, -1, 0):
            moving = column - column.mean()
            largest = np.abs(moving).max()
            if not largest > ROUNDING * np.abs(column).max():
                continue
            half, amplitude = peaks(moving / largest)
            waves = refined(moving / largest, half, problem, axes)
            if waves is None:
                clear = amplitude > _STANDS_OUT * _largest_around(amplitude, _AROUND)
                kept = [(a, np.array(c)) for a, c in half if clear[tuple(map(int, c))]]
                waves = [(a, c) for a, c in kept if np.abs(c).max() >= SLOW]
            for amplitude, cycles in waves:
                vector = np.zeros(domain.dim)
                vector[list(axes)] = 2 * np.pi * cycles / (high - low)
                found.append((amplitude, vector))
    return distinct(found, domain, MOST_WAVES)


def plane_waves(vectors, domain, x):
    """Cosines and sines of wave vectors at a point."""
    phase = np.array(vectors).astype(x.dtype) @ (
        x - domain.bounds.mean(axis=1).astype(x.dtype)
    )
    return jnp.concatenate([jnp.cos(phase), jnp.sin(phase)])


def _series(values, problem, axes):
    """Amplitudes and cycles of waves of a function, and whether they are all of it."""
    periodic = np.isin(np.array(problem.domain.axes)[list(axes)], problem.periodic)
    kinds = [("fft",) if p else ("dct", "dst") for p in periodic]
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


def distinct(found, domain, n_most, equal=_EQUAL):
    """Wave vectors that differ by ``equal`` cycles, large amplitudes first.

    Of pairs of amplitudes and wave vectors; a tuple of tuples.
    """
    size = np.ptp(domain.bounds, axis=1) / (2 * np.pi)
    kept = []
    for _, vector in sorted(found, key=lambda entry: -entry[0]):
        vector = np.array(vector)
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


# --- the functions -------------------------------------------------------------------


def _functions(problem):
    """Yield values on a grid (n, ..., n, k), and the axes of the grid.

    They are the source, and the conditions on each face of a box.
    """
    domain, (interior, *kinds) = problem.domain, problem.residual_classes()
    every = tuple(range(domain.dim))
    parts = [(interior, every, None)]
    for kind in kinds if domain.dim > 1 else ():
        if kind.condition.needs_normals or kind.condition.n_fields != 1:
            continue
        for axis, value in faces_of(domain, kind.condition):
            parts.append((kind, tuple(a for a in every if a != axis), (axis, value)))
    for kind, axes, fixed in parts:
        n, (low, high) = _GRID[len(axes)], domain.bounds[list(axes)].T
        share = (np.indices((n,) * len(axes)).reshape(len(axes), -1).T + 0.5) / n
        x = np.empty((len(share), kind.n_points, domain.dim))  # the middles of cells
        x[..., list(axes)] = (low + (high - low) * share)[:, None]
        if fixed is not None:
            x[..., fixed[0]] = fixed[1]
        zero = constants(np.zeros((1, len(problem.outputs))), domain.dim)
        values = residuals_of_waves(problem, kind, Points(x, x[:, 0, :0]), zero)
        if np.isfinite(values).all():  # of the function that is zero
            yield values.reshape(*(n,) * len(axes), -1), axes


# --- their peaks ---------------------------------------------------------------------


def peaks(values):
    """Amplitudes and cycles of the largest peaks of the spectrum, and the spectrum."""
    n, dim = values.shape[0], values.ndim
    taper = np.hanning(n + 2)[1:-1]
    tapered = values
    for axis in range(dim):
        tapered = tapered * taper.reshape([-1 if a == axis else 1 for a in range(dim)])
    amplitude = np.abs(np.fft.fftn(tapered)) * (2 / n) ** dim
    cycles = np.stack(np.meshgrid(*[np.fft.fftfreq(n, 1 / n)] * dim, indexing="ij"), -1)
    peaks = (amplitude >= _largest_around(amplitude, 1)) & cycles.any(axis=-1)
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
    if not waves:
        return None
    n, dim = values.shape[0], values.ndim
    share = np.stack(
        np.meshgrid(*[(np.arange(n) + 0.5) / n - 0.5] * dim, indexing="ij"), -1
    )
    share, right = share.reshape(-1, dim), values.ravel()
    chosen = np.random.RandomState(0).permutation(len(right))[:N_POINTS]
    share, right = share[chosen], right[chosen]
    first = np.array([c for _, c in waves])

    def remainder(cycles):
        phase = 2 * np.pi * share @ cycles.reshape(first.shape).T
        matrix = np.hstack([np.ones((len(share), 1)), np.cos(phase), np.sin(phase)])
        return right - matrix @ np.linalg.lstsq(matrix, right, rcond=None)[0]

    found, size = first.ravel(), np.linalg.norm(right)
    names = np.array(problem.domain.axes)[list(axes)]
    periodic = np.isin(names, problem.periodic).any()
    if not periodic and not np.linalg.norm(remainder(found)) < _EXACT * size:
        width = np.full(first.size, 0.75)
        bounds = found - width, found + width
        found = least_squares(remainder, found, bounds=bounds, x_scale=0.1).x
    if not np.linalg.norm(remainder(found)) < _EXACT * size:
        return None
    cycles = found.reshape(first.shape)
    return [(a, c) for (a, _), c in zip(waves, cycles, strict=True)]


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
        """Of waves with these numbers of cycles, (points, n, k, q)."""
        turns = 1j * radians * cycles
        factors = [np.prod(turns[:, list(axes)], axis=1) for axes in every]
        return np.einsum("pkmq,mn->pnkq", slopes * scale, np.array(factors))

    cycles = np.random.RandomState(0).standard_normal((2 * dim, dim))
    waves = np.stack([values(cycles, slopes) for slopes in both])
    size = np.abs(waves).max(axis=(0, 1, 2, 4))
    changes = np.abs(waves - waves[0, 0]).max(axis=(0, 1, 2, 4))
    if not (changes < JUMP * size).all():
        return None
    mean = both[0].mean(axis=0, keepdims=True)
    return lambda cycles: values(cycles, mean)[0] / size[:, None]


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
    terms = terms[: order + 1]
    found = []
    for s in _eigenvalues(terms):
        damped = abs(s.imag) > _DAMPED * abs(s.real)
        if damped or not _singular(terms, s) or _singular(terms, s + 0.1 * abs(s)):
            continue
        wave = start + s.real * direction
        if _LEAST_ROOT <= np.abs(wave).max() <= _MOST_CYCLES:
            found.append(wave)
    return np.array(found).reshape(-1, len(start))


def _eigenvalues(terms):
    """Roots of the determinant of the polynomial with these matrices."""
    order, q = len(terms) - 1, terms.shape[1]
    if order == 0:
        return np.zeros(0, complex)
    n = order * q
    left, right = np.eye(n, k=q, dtype=complex), np.eye(n, dtype=complex)
    left[-q:] = -np.concatenate(terms[:-1], axis=1)
    right[-q:, -q:] = terms[-1]
    with np.errstate(all="ignore"):
        found = scipy.linalg.eigvals(left, right)
    return found[np.isfinite(found) & (np.abs(found) < 1 / ROUNDING)]


def _singular(terms, s):
    powers = s ** np.arange(len(terms))
    size = np.abs(terms).max(axis=(1, 2)) @ np.abs(powers)
    values = np.linalg.svd(np.tensordot(powers, terms, 1), compute_uv=False)
    return values[-1] <= _SINGULAR * size


def _from_faces(equation, problem):
    """Amplitudes and cycles of waves that go on from values on faces.

    Those of the values are the largest terms of a series of half cycles, of cosines or
    of sines, whichever converges faster; or waves of any period where a few of them are
    the function.
    """
    found, dim = [], problem.domain.dim
    for values, axes in _functions(problem):
        columns = np.moveaxis(values, -1, 0) if len(axes) < dim else ()
        across = np.ones(dim)
        across[list(axes)] = 0
        for column in columns:
            if not np.abs(column).max() > 0:
                continue
            entries = []
            amplitudes, cycles, exact = _series(column, problem, axes)
            for amplitude, own in zip(amplitudes, cycles, strict=True):
                along = np.zeros(dim)
                along[list(axes)] = own
                # Waves are reflected at ends of axes; those of opposite sign are the
                # same.
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
