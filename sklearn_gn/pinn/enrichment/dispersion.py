r"""Waves that an equation lets pass: real roots of its symbol.

A linear equation with constant coefficients takes waves to waves,

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
from typing import NamedTuple

import numpy as np
import scipy.linalg

from sklearn_gn.arrays import backend
from sklearn_gn.pde.residual_classes import derivatives, slopes_at_zero
from sklearn_gn.pinn.enrichment import waves as spectrum

_N_POINTS = 4  # at which the symbol is taken
_VARIES = 0.01  # relative change of the symbol that counts as none
_ABSENT = 1e-9  # relative size of a coefficient
_SINGULAR = 1e-6  # smallest singular value at a root, relative
_DAMPED = 0.25  # imaginary part of a root that is a wave, over its real part
_LEAST_CYCLES, _MOST_CYCLES = 0.4, 200.0  # of a wave, over the box
_WHOLE = 1e-9  # distance of cycles to a whole number
MOST_WAVES = 24
EQUAL = 0.03  # cycles by which two waves are the same
_MORE_DIRECTIONS = 9  # than radians from the middle to a corner of the box


class Symbol(NamedTuple):
    """The symbol as a polynomial in the cycles over the box, with rows of size one."""

    powers: np.ndarray  # (n_terms, d)
    terms: np.ndarray  # (n_terms, q, q) complex

    def __call__(self, cycles):
        """Matrices (n, q, q) at cycles (n, d)."""
        monomials = np.prod(np.asarray(cycles)[:, None] ** self.powers, axis=2)
        return np.tensordot(monomials, self.terms, 1)


def further_waves(problem, scale, shown=()):
    """Wave vectors that the equation lets pass, in radians, the largest waves first.

    Those ``shown`` by source and values are left out. Where there are some, waves of
    all directions are not needed.
    """
    if problem.domain.dim > spectrum.MOST_AXES:
        return ()
    equation = symbol(problem, scale)
    if equation is None:
        return ()
    found = spectrum.largest_first(_from_faces(equation, problem))
    if not found and not shown:
        found = _in_all_directions(equation, problem)
    periodic = np.isin(problem.domain.axes, problem.periodic)
    cycles = [(vector / _radians(problem))[periodic] for vector in found]
    whole = [np.allclose(own, np.round(own), atol=_WHOLE) for own in cycles]
    found = [vector for vector, is_whole in zip(found, whole, strict=True) if is_whole]
    most = len(shown) + MOST_WAVES
    both = spectrum.distinct([*shown, *found], problem.domain, most, EQUAL)
    return tuple(vector for vector in both if vector not in set(shown))


def symbol(problem, scale):
    """Return the symbol of the equation of a problem; None where it has none."""
    kind, q, dim = (
        problem.residual_classes()[0],
        len(problem.outputs),
        problem.domain.dim,
    )
    local = kind.n_points == 1 and problem.n_laplacian_directions is None
    if not local or problem.unknown or kind.n_outputs != q:
        return None
    rng, known = np.random.RandomState(0), derivatives(dim)
    points = problem.probes(_N_POINTS, rng)["interior"].x[:, 0]
    states = np.stack([np.zeros((len(known), q)), rng.standard_normal((len(known), q))])
    powers = np.array([np.bincount(np.array(a, int), minlength=dim) for a in known])
    units = np.prod((1j * _radians(problem)) ** powers, axis=1)
    with backend.scope("float64"):
        slopes = np.stack(
            [
                backend.to_numpy(slopes_at_zero(problem, points, state * scale))
                for state in states
            ]
        )
    if not np.isfinite(slopes).all():
        return None
    # Of states, points, rows, derivatives and outputs; of waves of one cycle.
    slopes = slopes * units[:, None] * scale
    size = np.abs(slopes).max(axis=(0, 1, 3, 4))
    changes = np.abs(slopes - slopes[0, 0]).max(axis=(0, 1, 3, 4))
    if not (changes < _VARIES * size).all():
        return None
    return Symbol(
        powers, np.swapaxes(slopes[0].mean(axis=0) / size[:, None, None], 0, 1)
    )


def _radians(problem):
    """Of a cycle over the box, for a unit of each axis."""
    return 2 * np.pi / np.ptp(problem.domain.bounds, axis=1)


# --- real roots ----------------------------------------------------------------------


def real_roots(equation, start, direction):
    """Cycles ``start + s direction`` of waves that the equation lets pass, (n, d).

    Imaginary parts are small: such a wave oscillates before it is damped.
    """
    nodes = np.arange(-2.0, 3.0)  # of the fourth order
    values = equation(start + nodes[:, None] * direction)
    powers = np.vander(nodes, increasing=True).astype(complex)
    terms = np.linalg.solve(powers, values.reshape(len(nodes), -1))
    terms = terms.reshape(values.shape)
    sizes = np.abs(terms).max(axis=(1, 2))
    order = int(np.flatnonzero(sizes > _ABSENT * sizes.max())[-1])
    terms = terms[: order + 1]
    found = []
    for s in _eigenvalues(terms):
        damped = abs(s.imag) > _DAMPED * abs(s.real)
        if damped or not _singular(terms, s) or _singular(terms, s + 0.1 * abs(s)):
            continue
        found.append(start + s.real * direction)
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
    return found[np.isfinite(found) & (np.abs(found) < 1 / _ABSENT)]


def _singular(terms, s):
    powers = s ** np.arange(len(terms))
    size = np.abs(terms).max(axis=(1, 2)) @ np.abs(powers)
    values = np.linalg.svd(np.tensordot(powers, terms, 1), compute_uv=False)
    return values[-1] <= _SINGULAR * size


# --- the waves -----------------------------------------------------------------------


def _from_faces(equation, problem):
    """Amplitudes and wave vectors that go on from values on faces."""
    found = []
    for axis, amplitudes, cycles, exact in spectrum.waves_on_faces(problem):
        across, entries = np.eye(problem.domain.dim)[axis], []
        for amplitude, along in zip(amplitudes, cycles, strict=True):
            # Waves are reflected at ends of axes; those of opposite sign are the same.
            signs = list(product(*((1, -1) if c else (1,) for c in along)))
            for sign in signs[: max(1, len(signs) // 2)]:
                for wave in real_roots(equation, np.array(sign) * along, across):
                    if _LEAST_CYCLES <= np.abs(wave).max() <= _MOST_CYCLES:
                        entries.append((amplitude, wave))
        if exact or any(np.abs(wave).max() >= spectrum.SLOW for _, wave in entries):
            found += [(a, wave * _radians(problem)) for a, wave in entries]
    return found


def _in_all_directions(equation, problem):
    """Wave vectors, where every direction has one."""
    half_size = np.linalg.norm(np.ptp(problem.domain.bounds, axis=1)) / 2
    found, n = [], _MORE_DIRECTIONS
    for _ in range(2):  # the first ones say how many there have to be
        found = _along(equation, problem, _directions(problem.domain.dim, n))
        radians = max((np.linalg.norm(wave) for wave in found), default=0) * half_size
        n = min(math.ceil(radians) + _MORE_DIRECTIONS, MOST_WAVES)
    return found


def _along(equation, problem, directions):
    """Wave vectors in these directions; none, where one of them has none."""
    found = []
    for direction in directions:
        across = direction / _radians(problem)
        roots = real_roots(equation, 0 * across, across)
        roots = [r for r in roots if _LEAST_CYCLES <= np.abs(r).max() <= _MOST_CYCLES]
        if not roots:
            return []
        found += [root * _radians(problem) for root in roots]
    return found


def _directions(dim, n):
    """Unit vectors, evenly distributed over half of the sphere."""
    if dim == 1:
        return np.ones((1, 1))
    if dim == 2:
        angle = np.pi * np.arange(n) / n
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)
    height = (np.arange(n) + 0.5) / n
    angle = np.pi * (3 - math.sqrt(5)) * np.arange(n)  # the golden one
    width = np.sqrt(1 - height**2)
    return np.stack([width * np.cos(angle), width * np.sin(angle), height], axis=1)
