"""Problems of the literature on physics-informed networks, with their solutions.

Each function returns a :class:`sklearn_gn.pde.Problem`; ``exact`` is a function of
one point.
"""

from dataclasses import dataclass
from numbers import Integral, Real

import jax.numpy as jnp
import numpy as np

from sklearn_gn.pde.coefficients import Unknown
from sklearn_gn.pde.conditions import Dirichlet, Initial
from sklearn_gn.pde.operators import d, div, grad, laplacian
from sklearn_gn.pde.problem import Problem
from sklearn_gn.pde.shapes import Box

__all__ = ["HeatSine", "Kovasznay"]


def _heat(u, x, kappa):
    return d(u, "t")(x) - kappa * laplacian(u)(x)


def _slow(x):
    return jnp.exp(-x[-1]) * jnp.sum(jnp.sin(2 * x[:-1]))


def HeatSine(dim: int = 4) -> Problem:
    r"""Heat equation on the unit cube with a solution that decays slowly.

    .. math:: u_t = \tfrac14 \Delta u, \qquad u = e^{-t} \sum_i \sin 2 x_i,

    given at the start and on the boundary.

    Parameters
    ----------
    dim : int, default=4
        Number of axes of space.

    Returns
    -------
    Problem
        Axes x1, x2, ..., t; output u; coefficient kappa.
    """
    if not isinstance(dim, Integral) or dim < 1:
        raise ValueError(f"dim must be an integer, at least 1, got {dim!r}.")
    return Problem(
        _heat,
        Box.unit(dim, time=(0.0, 1.0)),
        conditions=(Dirichlet(_slow), Initial(_slow)),
        coefficients={"kappa": 0.25},
        exact=_slow,
        name="HeatSine",
    )


def _navier_stokes(u, x, nu):
    """Balance of momentum (2,) of a steady flow, and divergence of its velocity."""
    velocity, pressure = u[:2], u["p"]
    convection = grad(velocity)(x) @ velocity(x)
    momentum = convection + grad(pressure)(x) - nu * laplacian(velocity)(x)
    return momentum, div(velocity)(x)


@dataclass(frozen=True)
class _Flow:
    """Velocity and pressure, known up to a constant, at a point, or some of these."""

    reynolds: float
    n_outputs: int = 3

    def __call__(self, x):
        half = self.reynolds / 2
        # half - sqrt(half^2 + 4 pi^2), which cancels for large numbers.
        rate = -4 * np.pi**2 / (half + np.sqrt(half**2 + 4 * np.pi**2))
        growth, angle = jnp.exp(rate * x[0]), 2 * np.pi * x[1]
        u = 1 - growth * jnp.cos(angle)
        v = rate / (2 * np.pi) * growth * jnp.sin(angle)
        return jnp.stack([u, v, (1 - growth**2) / 2])[: self.n_outputs]


def Kovasznay(
    reynolds: float = 40.0, viscosity: float | Unknown | None = None
) -> Problem:
    r"""Kovasznay flow: steady Navier-Stokes equations with a closed solution.

    On :math:`[-0.5, 1] \times [-0.5, 1.5]`, with :math:`\nu = 1/Re` and
    :math:`\lambda = Re/2 - \sqrt{Re^2/4 + 4 \pi^2}`,

    .. math::
        u = 1 - e^{\lambda x} \cos 2 \pi y, \quad
        v = \tfrac{\lambda}{2 \pi} e^{\lambda x} \sin 2 \pi y, \quad
        p = \tfrac12 (1 - e^{2 \lambda x}) + \text{const}.

    The velocity is given on the boundary. The pressure is determined up to a constant:
    compare it without its mean.

    Parameters
    ----------
    reynolds : float, default=40.0
        Reynolds number Re.
    viscosity : float or Unknown, default=None
        What stands for :math:`\nu` in the equations, such as
        ``Unknown(0.1, positive=True)`` where it is to be found from data. None is
        1 / reynolds.

    Returns
    -------
    Problem
        Axes x, y; outputs u, v, p; coefficient nu.

    References
    ----------
    L. I. G. Kovasznay, "Laminar flow behind a two-dimensional grid", Mathematical
    Proceedings of the Cambridge Philosophical Society 44 (1948), 58-62.

    Examples
    --------
    >>> from sklearn_gn.pde.problems import Kovasznay
    >>> Kovasznay(reynolds=20).outputs
    ('u', 'v', 'p')
    """
    if not isinstance(reynolds, Real) or not 0 < reynolds < np.inf:
        raise ValueError(f"reynolds must be a positive number, got {reynolds!r}.")
    return Problem(
        _navier_stokes,
        Box(x=(-0.5, 1.0), y=(-0.5, 1.5)),
        conditions=(Dirichlet(_Flow(float(reynolds), 2), outputs=("u", "v")),),
        outputs=("u", "v", "p"),
        coefficients={"nu": 1 / reynolds if viscosity is None else viscosity},
        exact=_Flow(float(reynolds)),
        up_to_constant=("p",),
        name="Kovasznay",
    )
