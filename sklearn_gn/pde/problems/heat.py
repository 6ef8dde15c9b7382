"""The heat equation in several dimensions."""

import jax.numpy as jnp
import numpy as np

from sklearn_gn.pde.conditions import Dirichlet, Initial
from sklearn_gn.pde.operators import d, laplacian
from sklearn_gn.pde.problem import Problem
from sklearn_gn.pde.problems._common import check_count
from sklearn_gn.pde.shapes import Box

_CONDUCTIVITY = 0.25


def _heat(u, x, kappa):
    return d(u, "t")(x) - kappa * laplacian(u)(x)


def _fast(x):
    decay = jnp.exp(-4 * np.pi**2 * _CONDUCTIVITY * x[-1])
    return decay * jnp.sum(jnp.sin(2 * np.pi * x[:-1]))


def _slow(x):
    return jnp.exp(-4 * _CONDUCTIVITY * x[-1]) * jnp.sum(jnp.sin(2 * x[:-1]))


def _problem(dim, exact, name):
    check_count("dim", dim)
    return Problem(
        _heat,
        Box.unit(dim, time=(0.0, 1.0)),
        conditions=(Dirichlet(exact), Initial(exact)),
        coefficients={"kappa": _CONDUCTIVITY},
        exact=exact,
        name=name,
    )


def Heat(dim: int = 10) -> Problem:
    r"""Heat equation on the unit cube, that decays by a factor of 19,000 in unit time.

    .. math:: u_t = \tfrac14 \Delta u, \qquad
        u = e^{-\pi^2 t} \sum_i \sin 2 \pi x_i,

    given at the start and on the boundary, where it is not zero.

    Parameters
    ----------
    dim : int, default=10
        Number of axes of space.

    Returns
    -------
    Problem
        Axes x1, x2, ..., t; output u; coefficient kappa.
    """
    return _problem(dim, _fast, "Heat")


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
    return _problem(dim, _slow, "HeatSine")
