"""Burgers' equation, solved by the transformation of Cole and Hopf."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._computed import check_positive, grid, relative_difference
from sklearn_gn.arrays.backend import scope
from sklearn_gn.pde.conditions import Dirichlet, Initial
from sklearn_gn.pde.operators import d
from sklearn_gn.pde.problem import Problem
from sklearn_gn.pde.shapes import Box

_VISCOSITIES = 1e-5, 1.0  # between which nodes are few enough and dense enough
_REACH = 6.5  # exp(-_REACH^2) is below rounding


@dataclass(frozen=True)
class ColeHopf:
    r"""The solution of Burgers' equation that starts as -sin(pi x).

    By the transformation of Cole and Hopf it is a mean of the initial values, weighted
    by an exponential,

    .. math::
        u(x, t) = -\frac{\int \sin(\pi y) \, e^{E(z)} dz}{\int e^{E(z)} dz}, \qquad
        y = x - 2 \sqrt{\nu t} \, z, \quad
        E(z) = -z^2 - \frac{\cos \pi y}{2 \pi \nu}.

    The trapezoidal rule gives these integrals to rounding: its error is like
    :math:`e^{-(\pi / h)^2}` at a distance h of the nodes, and no peak of the integrand
    becomes narrower with :math:`\nu`. Where Gauss-Hermite quadrature has too few nodes,
    far out for small :math:`\nu` and near the origin for large, this rule has enough.

    Parameters
    ----------
    nu : float
        Viscosity, from 1e-5 to 1.

    spacing : float, default=0.08
        Distance h of the nodes.
    """

    nu: float
    spacing: float = 0.08

    def __call__(self, x: Any) -> Any:
        """Value at a point (x, t); its derivatives exist for t > 0."""
        # E(z) - E(0) < -z^2 + 1 / (pi nu), hence below -_REACH^2 beyond the last node.
        last = np.ceil((_REACH + 1 / np.sqrt(np.pi * self.nu)) / self.spacing)
        z = jnp.asarray(self.spacing * np.arange(-last, last + 1), x.dtype)
        angle = np.pi * (x[0] - 2 * jnp.sqrt(self.nu * x[1]) * z)
        weights = jax.nn.softmax(-(z**2) - jnp.cos(angle) / (2 * np.pi * self.nu))
        return -(weights @ jnp.sin(angle))

    def convergence(
        self, spacing: Sequence[float] = (0.4, 0.2, 0.1)
    ) -> dict[float, float]:
        """Compare with other distances of the nodes, on a grid of 65 x 51 points.

        Parameters
        ----------
        spacing : sequence of float
            Distances to compare with.

        Returns
        -------
        dict of float
            By distance, the difference relative to these values.
        """
        points = grid(np.linspace(-1, 1, 65), np.linspace(0, 1, 51))
        values = _evaluate(self, points)
        return {
            h: relative_difference(_evaluate(replace(self, spacing=h), points), values)
            for h in spacing
        }


def _evaluate(function, points):
    with scope("float64"):
        return np.asarray(jax.jit(jax.vmap(function))(points))


def _burgers(u, x, nu):
    return d(u, "t")(x) + u(x) * d(u, "x")(x) - nu * d(u, "x", "x")(x)


def _start(x):
    return -jnp.sin(np.pi * x[0])


def _hold_start_and_ends(x, u):
    return _start(x) + x[1] * (1 - x[0] ** 2) * u


def Burgers(nu: float = 0.01, hard: bool = False) -> Problem:
    r"""Burgers' equation, whose solution steepens to a shock at the origin.

    .. math::
        u_t + u u_x = \nu u_{xx}, \qquad u(x, 0) = -\sin \pi x, \qquad u(\pm 1, t) = 0

    for :math:`-1 < x < 1` and times from 0 to 1.

    Parameters
    ----------
    nu : float, default=0.01
        Viscosity, from 1e-5 to 1. The literature has 0.01 and, more often and much
        harder, 0.01 / pi: the width of the shock is about 2 nu.

    hard : bool, default=False
        Whether the initial and boundary conditions hold exactly, by
        :math:`u = -\sin \pi x + t (1 - x^2) \cdot` network.

    Returns
    -------
    Problem
        Axes x, t; output u; coefficient nu.

    References
    ----------
    C. Basdevant et al., "Spectral and finite difference solutions of the Burgers
    equation", Computers and Fluids 14 (1986), 23-41.
    """
    check_positive("nu", nu)
    least, largest = _VISCOSITIES
    if not least <= nu <= largest:
        raise ValueError(f"nu must be from {least} to {largest}, got {nu!r}.")
    conditions = (Dirichlet(0.0), Initial(_start))
    return Problem(
        _burgers,
        Box(x=(-1.0, 1.0), t=(0.0, 1.0)),
        conditions=() if hard else conditions,
        coefficients={"nu": nu},
        exact=ColeHopf(float(nu)),
        transform=_hold_start_and_ends if hard else None,
        name="Burgers",
    )
