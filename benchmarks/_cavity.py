r"""Lid-driven cavity, with a reference by a Galerkin method for the stream function.

The stream function psi, u = psi_y and v = -psi_x, satisfies, with z = Laplacian of psi,

    nu (z, Laplacian of chi) + (z, u chi_x + v chi_y) = 0

for all chi that vanish on the boundary together with their normal derivatives. Products
of phi_k(x) phi_l(y) span them, where the second derivatives of phi_k are Legendre
polynomials: the leading term of the equations is then well-conditioned, whereas
collocation of fourth derivatives loses digits quickly.

In the two upper corners the velocity of the lid has a slope that no smooth flow between
walls can follow: psi ~ r^2 times a function of the angle, whose vorticity jumps. This
part is known and is taken off, so that the series need only represent what is smoother.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from numpy.polynomial import legendre
from scipy.linalg import lu_factor, lu_solve

from benchmarks._computed import (
    Computed,
    check_count,
    check_positive,
    grid,
    stored,
)
from sklearn_gn._typing import Array
from sklearn_gn.pde import Box, Dirichlet, Problem, Unknown
from sklearn_gn.pde.problems import Kovasznay

_VERSION = 1  # of the numbers: a new one makes stored files void
_STEEPNESS = 10.0  # of the lid's velocity
_SLOPE = _STEEPNESS * np.tanh(_STEEPNESS / 2)  # of it, at the corner
_N_GRID = 101
_STAGES = (100.0, 400.0, 1000.0, 2000.0)  # Reynolds numbers on the way
_STAGE_RATIO = 1.5  # of the stages beyond these
_STAGE_MODES = 32
_ITERATIONS = 30
_NEAR = 0.1  # relative correction below which a factor is kept
_TOLERANCE = 1e-11  # of the last correction, relative
_ROUNDING = 1e-9  # corrections below this that stop to shrink are rounding


@dataclass(frozen=True)
class CavityReference(Computed):
    """Steady flow in the unit square below a moving lid, to spectral accuracy.

    Parameters
    ----------
    reynolds : float
        Reynolds number.

    n_modes : int, default=72
        Terms of the series in each direction. Equations and memory grow as their fourth
        power.

    Attributes
    ----------
    points : ndarray of shape (10201, 2)
        Grid of 101 x 101 points, walls included.
    values : ndarray of shape (10201, 3)
        u, v; and NaN for the pressure, which is not computed.
    """

    reynolds: float
    n_modes: int = 72

    def __post_init__(self):
        check_positive("reynolds", self.reynolds)
        check_count("n_modes", self.n_modes, least=8)

    @property
    def points(self) -> Array:
        """Points (x, y) of the grid."""
        ticks = np.linspace(0, 1, _N_GRID)
        return grid(ticks, ticks)

    @property
    def values(self) -> Array:
        """Velocity at the points, NaN for the pressure."""
        velocity = self.velocity(self.points)
        return np.column_stack([velocity, np.full(len(velocity), np.nan)])

    def velocity(self, X: Array) -> Array:
        """Velocity anywhere in the cavity.

        Parameters
        ----------
        X : ndarray of shape (n, 2)
            Points.

        Returns
        -------
        ndarray of shape (n, 2)
            Its two components.
        """
        x, y = np.asarray(X, dtype=float).T
        modes = self._modes()
        (p, px, _), (q, qy, _) = _basis(len(modes), x), _basis(len(modes), y)
        lift = _lift(x, y)
        psi_x = lift.x + np.einsum("kn,kn->n", px, modes @ q)
        psi_y = lift.y + np.einsum("kn,kn->n", p, modes @ qy)
        return np.column_stack([psi_y, -psi_x])

    def _modes(self):
        return stored(
            f"cavity_{_VERSION}",
            _solve,
            reynolds=float(self.reynolds),
            n_modes=int(self.n_modes),
        )


def _solve(reynolds, n_modes):
    """Few modes first, with increasing Reynolds number; then more modes."""
    n = min(n_modes, _STAGE_MODES)
    equations, modes = _Equations(n), np.zeros((n, n))
    for stage in _stages(reynolds):
        modes = equations.solve(modes, stage)
    while n < n_modes:
        n = min(n_modes, 3 * n // 2)
        grown = np.zeros((n, n))
        grown[: len(modes), : len(modes)] = modes
        modes = _Equations(n).solve(grown, reynolds)
    return modes


def _stages(reynolds):
    """Reynolds numbers that lead up to the one that is wanted."""
    stages = [stage for stage in _STAGES if stage < reynolds]
    while stages and _STAGE_RATIO * stages[-1] < reynolds and stages[-1] >= _STAGES[-1]:
        stages.append(_STAGE_RATIO * stages[-1])
    return [*stages, reynolds]


class _Equations:
    """The equations for the coefficients of n x n products."""

    def __init__(self, n):
        nodes, weights = legendre.leggauss(2 * n)  # the corners ask for twice the modes
        nodes, weights = (nodes + 1) / 2, weights / 2
        self.n = n
        self.basis = _basis(n, nodes)
        self.weights = weights[:, None] * weights
        self.lift = _lift(nodes[:, None], nodes)
        self.inner = [[(p * weights) @ q.T for q in self.basis] for p in self.basis]

    def solve(self, modes, reynolds):
        """Newton's method, which keeps a factor for as long as it serves."""
        factors, last = None, np.inf
        for _ in range(_ITERATIONS):
            flow = self._flow(modes)
            if factors is None:  # of the transposed matrix, in place
                matrix = self._jacobian(*flow, 1 / reynolds)
                factors = lu_factor(matrix.T, overwrite_a=True, check_finite=False)
            residual = self._residual(*flow, 1 / reynolds)
            step = lu_solve(factors, residual.ravel(), trans=1).reshape(modes.shape)
            modes = modes - step
            size = np.linalg.norm(step) / np.linalg.norm(modes)
            if size < _TOLERANCE or last / 3 < size < _ROUNDING:
                return modes
            if size > _NEAR or size > last / 10:
                factors, size = None, np.inf
            last = size
        raise RuntimeError(
            f"The flow at Reynolds number {reynolds} with {self.n} modes was not found "
            f"in {_ITERATIONS} iterations: take more modes."
        )

    def _flow(self, modes):
        """Derivatives psi_x, psi_y and the Laplacian at the nodes."""
        p, p1, p2 = self.basis
        psi_x = p1.T @ modes @ p + self.lift.x
        psi_y = p.T @ modes @ p1 + self.lift.y
        laplacian = p2.T @ modes @ p + p.T @ modes @ p2 + self.lift.laplacian
        return psi_x, psi_y, laplacian

    def _residual(self, psi_x, psi_y, laplacian, nu):
        p, p1, p2 = self.basis
        z = self.weights * laplacian
        diffusion = nu * (p2 @ z @ p.T + p @ z @ p2.T)
        return diffusion + p1 @ (z * psi_y) @ p.T - p @ (z * psi_x) @ p1.T

    def _jacobian(self, psi_x, psi_y, laplacian, nu):
        """Derivatives (i, j; k, l) of the equation of phi_i phi_j by the mode k, l.

        Each term is an integral of a field times derivatives of phi_i phi_k in x and of
        phi_j phi_l in y: one sum over x, for one i at a time, then one over y.
        """
        n, basis = self.n, self.basis
        u, v, z = (self.weights * f for f in (psi_y, -psi_x, laplacian))
        terms = [  # field, derivatives in x of phi_i, phi_k, in y of phi_j, phi_l
            (u, 1, 2, 0, 0),
            (u, 1, 0, 0, 2),
            (v, 0, 2, 1, 0),
            (v, 0, 0, 1, 2),
            (z, 1, 0, 0, 1),
            (-z, 0, 1, 1, 0),
        ]
        pairs = {
            orders: (basis[orders[0]][:, None] * basis[orders[1]]).reshape(n * n, -1)
            for orders in {term[3:] for term in terms}
        }
        matrix = np.empty((n, n, n, n))
        for i in range(n):
            block = np.zeros((n, n * n))  # (k, j l)
            for field, test_x, trial_x, *in_y in terms:
                along_x = (basis[test_x][i] * basis[trial_x]) @ field
                block += along_x @ pairs[tuple(in_y)].T
            for a in (0, 2):
                for b in (0, 2):
                    inner_y = self.inner[2 - a][2 - b].ravel()
                    block += nu * np.outer(self.inner[a][b][i], inner_y)
            matrix[i] = block.reshape(n, n, n).transpose(1, 0, 2)
        return matrix.reshape(n * n, n * n)


def _basis(n, x):
    """Clamped polynomials on [0, 1] at x, with two derivatives, of shape (n, len(x)).

    The second derivative of phi_k is a normalised Legendre polynomial of degree k + 2;
    integrated twice it vanishes at both ends, as does its slope.
    """
    p = legendre.legvander(2 * x - 1, n + 3).T
    k = np.arange(n)[:, None]
    second, norm = p[2 : n + 2], np.sqrt((2 * k + 5) / 2)
    first = (p[3 : n + 3] - p[1 : n + 1]) / (2 * k + 5)
    above = (p[4:] - second) / (2 * k + 7)
    below = (second - p[:n]) / (2 * k + 3)
    return norm * (above - below) / (2 * k + 5), 2 * norm * first, 4 * norm * second


@dataclass(frozen=True)
class _Stream:
    """Derivatives of a stream function; its second ones jump in the corners."""

    x: np.ndarray
    y: np.ndarray
    laplacian: np.ndarray

    def __add__(self, other):
        return _Stream(
            self.x + other.x, self.y + other.y, self.laplacian + other.laplacian
        )


def _lift(x, y):
    """A stream function with the velocity of the lid, and the right corners."""
    left, right = _corner(x, 1 - y), _corner(1 - x, 1 - y)
    right = _Stream(-right.x, right.y, right.laplacian)
    # What the corners leave of the lid's velocity vanishes at both ends with its slope.
    scaled = _STEEPNESS * (x - 0.5)
    cosh, sinh = (f(scaled) / np.cosh(_STEEPNESS / 2) for f in (np.cosh, np.sinh))
    (a, a1, a2), (b, b1, b2) = _ramp(x), _ramp(1 - x)
    g = 1 - cosh - _SLOPE * (a + b)
    g1 = -_STEEPNESS * sinh - _SLOPE * (a1 - b1)
    g2 = -(_STEEPNESS**2) * cosh - _SLOPE * (a2 + b2)
    h, h1, h2 = y**2 * (y - 1), 3 * y**2 - 2 * y, 6 * y - 2
    return left + right + _Stream(g1 * h, g * h1, g2 * h + g * h2)


def _corner(a, b):
    """Flow near an upper corner, at distances a from the wall and b from the lid.

    sigma = (r^2 theta - pi b^2 / 2 + a b) / 2 is biharmonic, vanishes on wall and lid,
    has no slope at the wall and the slope a at the lid. Cut-offs in a and b, which
    vanish at the other walls with their slopes, confine it.
    """
    theta = np.arctan2(b, a)
    radius2 = a**2 + b**2
    jump = a * b / np.where(radius2 == 0, 1, radius2)
    sigma = (radius2 * theta - np.pi * b**2 / 2 + a * b) / 2
    sigma_a, sigma_b = a * theta, b * (theta - np.pi / 2) + a
    sigma_aa, sigma_bb = theta - jump, theta - np.pi / 2 + jump
    (c, c1, c2), (e, e1, e2) = _cut_off(a), _cut_off(b)
    along_a = (sigma_aa * c + 2 * sigma_a * c1 + sigma * c2) * e
    along_b = (sigma_bb * e + 2 * sigma_b * e1 + sigma * e2) * c
    return _Stream(
        -_SLOPE * (sigma_a * c + sigma * c1) * e,
        _SLOPE * (sigma_b * e + sigma * e1) * c,
        -_SLOPE * (along_a + along_b),
    )


def _cut_off(a):
    """A cubic from 1 to 0 with no slope at the ends, and its derivatives."""
    return (1 - a) ** 2 * (1 + 2 * a), -6 * a * (1 - a), 12 * a - 6


def _ramp(a):
    """The distance times its cut-off, with derivatives."""
    c, c1, c2 = _cut_off(a)
    return a * c, c + a * c1, 2 * c1 + a * c2


def _walls(x):
    """Velocity on the boundary."""
    lid = 1 - jnp.cosh(_STEEPNESS * (x[0] - 0.5)) / np.cosh(_STEEPNESS / 2)
    return jnp.stack([jnp.where(x[1] == 1, lid, 0.0), jnp.zeros_like(lid)])


def LidDrivenCavity(
    reynolds: float = 3000.0, viscosity: float | Unknown | None = None
) -> Problem:
    r"""Steady flow in the unit square below a lid whose motion fades at its ends.

    The steady Navier-Stokes equations with :math:`\nu = 1/Re`, the velocity

    .. math:: u(x, 1) = 1 - \cosh(10 (x - \tfrac12)) / \cosh 5, \qquad v(x, 1) = 0

    of the lid, and no velocity at the other walls. The flow is computed, see
    :class:`CavityReference`; the pressure is not.

    Parameters
    ----------
    reynolds : float, default=3000.0
        Reynolds number Re. Solvers reach high ones by way of lower ones, such as 100,
        400, 1000.

    viscosity : float or Unknown, default=None
        What stands for :math:`\nu` in the equations; None is 1 / reynolds.

    Returns
    -------
    Problem
        Axes x, y; outputs u, v, p; coefficient nu.
    """
    check_positive("reynolds", reynolds)
    return Problem(
        Kovasznay().residual,
        Box(x=(0.0, 1.0), y=(0.0, 1.0)),
        conditions=(Dirichlet(_walls, outputs=("u", "v")),),
        outputs=("u", "v", "p"),
        coefficients={"nu": 1 / reynolds if viscosity is None else viscosity},
        exact=CavityReference(float(reynolds)),
        name="LidDrivenCavity",
    )
