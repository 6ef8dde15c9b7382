"""The Allen-Cahn equation, with a reference by exponential time differencing."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from scipy import fft

from benchmarks._computed import Computed, check_count, grid, stored
from sklearn_gn._typing import Array
from sklearn_gn.pde.conditions import Initial
from sklearn_gn.pde.operators import d
from sklearn_gn.pde.problem import Problem
from sklearn_gn.pde.shapes import Box

_VERSION = 1  # of the numbers: a new one makes stored files void
_DIFFUSION, _REACTION = 1e-4, 5.0
_CONTOUR = 32  # points on the upper half of a circle
_N_X, _N_T = 512, 201  # of the grid


@dataclass(frozen=True)
class AllenCahnReference(Computed):
    """Fourier series in space, exponential Runge-Kutta method of order four in time.

    The initial values have a kink where the interval closes: their Fourier series
    converges slowly, and interpolated on a grid they spoil the low modes, too: the
    solution is off by 2e-7 with 4,096 modes and still by 5e-8 with 8,192. The series is
    therefore cut off, from its exact coefficients. What is cut off decays at once: the
    solution is right to 1e-9 with 2,048 modes, to rounding with 4,096, and 2,000 steps
    are right to 1e-12.

    Parameters
    ----------
    n_modes : int, default=4096
        Points of the grid in space on which products are formed, a multiple of 512.

    n_steps : int, default=2000
        Time steps, a multiple of 200.

    Attributes
    ----------
    points : ndarray of shape (102912, 2)
        x = -1 + j / 256 for j < 512, times 0, 0.005, ..., 1.
    values : ndarray of shape (102912, 1)
    """

    n_modes: int = 4096
    n_steps: int = 2000

    def __post_init__(self):
        check_count("n_modes", self.n_modes, least=_N_X, multiple=_N_X)
        check_count("n_steps", self.n_steps, least=_N_T - 1, multiple=_N_T - 1)

    @property
    def points(self) -> Array:
        """Points (x, t) of the grid."""
        return grid(-1 + 2 * np.arange(_N_X) / _N_X, np.linspace(0, 1, _N_T))

    @property
    def values(self) -> Array:
        """Solution at the points."""
        values = stored(
            f"allen_cahn_{_VERSION}",
            _solve,
            n_modes=int(self.n_modes),
            n_steps=int(self.n_steps),
        )
        return values.reshape(-1, 1)


def _solve(n_modes, n_steps):
    """Values on the grid, of shape (x, t)."""
    n, step = n_modes, 1 / n_steps
    wave_numbers = np.pi * np.arange(n // 2 + 1)
    linear = _REACTION - _DIFFUSION * wave_numbers**2
    whole, half = np.exp(step * linear), np.exp(step * linear / 2)
    middle, first, between, last = _weights(step, linear)

    def reaction(modes):
        return -_REACTION * fft.rfft(fft.irfft(modes, n) ** 3)

    x = -1 + 2 * np.arange(_N_X) / _N_X
    levels = [x**2 * np.cos(np.pi * x)]
    modes = _initial_modes(n)
    for i in range(n_steps):
        n0 = reaction(modes)
        a = half * modes + middle * n0
        na = reaction(a)
        b = half * modes + middle * na
        nb = reaction(b)
        c = half * a + middle * (2 * nb - n0)
        nc = reaction(c)
        modes = whole * modes + first * n0 + 2 * between * (na + nb) + last * nc
        if (i + 1) % (n_steps // (_N_T - 1)) == 0:
            levels.append(fft.irfft(modes, n)[:: n // _N_X])
    return np.stack(levels, axis=1)


def _weights(step, linear):
    """Weights of the stages, means over circles: the closed forms cancel."""
    angles = np.pi * (np.arange(_CONTOUR) + 0.5) / _CONTOUR
    z = step * linear[:, None] + np.exp(1j * angles)
    grown = np.exp(z)
    forms = (
        (np.exp(z / 2) - 1) / z,
        (-4 - z + grown * (4 - 3 * z + z**2)) / z**3,
        (2 + z + grown * (z - 2)) / z**3,
        (-4 - 3 * z - z**2 + grown * (4 - z)) / z**3,
    )
    return [step * form.real.mean(axis=1) for form in forms]


def _initial_modes(n):
    """Fourier coefficients of x^2 cos(pi x), as ``rfft`` scales them."""
    k = np.arange(n // 2 + 1)
    coefficients = (_moment(k - 1) + _moment(k + 1)) / 2
    return (n * coefficients * (-1.0) ** k).astype(complex)  # the grid begins at -1


def _moment(k):
    """Mean of x^2 cos(pi k x) over (-1, 1)."""
    nonzero = np.where(k == 0, 1, k)
    return np.where(k == 0, 1 / 3, 2 * (-1.0) ** k / (np.pi * nonzero) ** 2)


def _allen_cahn(u, x):
    value = u(x)
    slope, curvature = d(u, "t")(x), d(u, "x", "x")(x)
    return slope - _DIFFUSION * curvature + _REACTION * (value**3 - value)


def _start(x):
    return x[0] ** 2 * jnp.cos(np.pi * x[0])


def AllenCahn(initial_weight: float = 1.0) -> Problem:
    r"""Allen-Cahn equation: phases that separate, with thin layers between.

    .. math::
        u_t = 10^{-4} u_{xx} - 5 u^3 + 5 u, \qquad u(x, 0) = x^2 \cos \pi x

    for times from 0 to 1, periodic in x with period 2: the network sees
    :math:`\cos \pi x` and :math:`\sin \pi x`. The solution is computed, see
    :class:`AllenCahnReference`. The files in circulation are off by 1e-5, because the
    initial values have a kink where the interval closes.

    Parameters
    ----------
    initial_weight : float, default=1.0
        Weight of the initial condition.

    Returns
    -------
    Problem
        Axes x, t; output u.

    References
    ----------
    A.-K. Kassam and L. N. Trefethen, "Fourth-order time-stepping for stiff PDEs", SIAM
    Journal on Scientific Computing 26 (2005), 1214-1233.
    """
    return Problem(
        _allen_cahn,
        Box(x=(-1.0, 1.0), t=(0.0, 1.0)),
        conditions=(Initial(_start, weight=initial_weight),),
        exact=AllenCahnReference(),
        periodic=("x",),
        name="AllenCahn",
    )
