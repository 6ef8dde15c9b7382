"""Problems of papers that only the benchmarks solve, with solutions in closed form."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._computed import check_count
from sklearn_gn.pde import Ball, Box, Dirichlet, Initial, Problem, d, grad, laplacian
from sklearn_gn.pde.problems import HeatSine

_HALF_WIDTH = 5.0  # of the cube of the Fokker-Planck equation


# --- Poisson's equation in many dimensions --------------------------------------------


def _laplace(u, x):
    return laplacian(u)(x)


def _products(x):
    return jnp.sum(x[::2] * x[1::2])


def Poisson(dim: int = 10) -> Problem:
    r"""Laplace's equation on the unit cube, with a harmonic polynomial on its boundary.

    .. math:: \Delta u = 0, \qquad u = \sum_k x_{2k-1} x_{2k} \text{ on the boundary},

    which is also the solution inside.

    Parameters
    ----------
    dim : int, default=10
        Number of axes, even.

    Returns
    -------
    Problem
        Axes x1, x2, ...; output u.
    """
    check_count("dim", dim, least=2, multiple=2)
    return Problem(
        _laplace,
        Box.unit(dim),
        conditions=(Dirichlet(_products),),
        exact=_products,
        name="Poisson",
    )


def _cosines(x):
    return jnp.sum(jnp.cos(np.pi * x))


def _poisson_cosine(u, x):
    return laplacian(u)(x) + np.pi**2 * _cosines(x)


def PoissonCosine(dim: int = 5) -> Problem:
    r"""Poisson's equation on the unit cube, with a sum of cosines as its solution.

    .. math:: -\Delta u = \pi^2 \sum_i \cos \pi x_i, \qquad
        u = \sum_i \cos \pi x_i,

    given on the boundary.

    Parameters
    ----------
    dim : int, default=5
        Number of axes.

    Returns
    -------
    Problem
        Axes x1, x2, ...; output u.
    """
    check_count("dim", dim)
    return Problem(
        _poisson_cosine,
        Box.unit(dim),
        conditions=(Dirichlet(_cosines),),
        exact=_cosines,
        name="PoissonCosine",
    )


@lru_cache(maxsize=4)
def weights_of(dim, seed):
    weights = np.random.RandomState(seed).standard_normal(dim - 1)
    weights.setflags(write=False)
    return weights


def _pair(a, b):
    return jnp.sin(a + jnp.cos(b)) + b * jnp.cos(a)


@dataclass(frozen=True)
class _TwoBody:
    """The solution u = (1 - |x|^2) g(x), where g sums over pairs of neighbours."""

    dim: int
    seed: int

    def __call__(self, x):
        return (1 - x @ x) * (self._weights(x) @ _pair(x[:-1], x[1:]))

    def laplacian(self, x):
        """The Laplacian, in a time that grows like the dimension.

        A pair depends on two coordinates only, so that two second derivatives of each
        make the Laplacian of g: one pass along the left neighbours, one along the
        right.
        """
        a, b, c = x[:-1], x[1:], self._weights(x)
        value, left, left2 = _derivatives(lambda a: _pair(a, b), a)
        _, right, right2 = _derivatives(lambda b: _pair(a, b), b)
        radial = c @ (a * left + b * right)  # x . grad g
        return (
            (1 - x @ x) * (c @ (left2 + right2)) - 4 * radial - 2 * x.size * c @ value
        )

    def _weights(self, x):
        return jnp.asarray(weights_of(self.dim, self.seed), x.dtype)


def _derivatives(function, x):
    """Value, first and second derivative of an elementwise function."""
    ones = jnp.ones_like(x)

    def first(x):
        return jax.jvp(function, (x,), (ones,))

    (value, slope), (_, curvature) = jax.jvp(first, (x,), (ones,))
    return value, slope, curvature


@dataclass(frozen=True)
class _PoissonBall:
    solution: _TwoBody

    def __call__(self, u, x):
        return laplacian(u)(x) - self.solution.laplacian(x)


def _vanish_on_sphere(x, u):
    return (1 - x @ x) * u


def PoissonBall(dim: int = 100_000, seed: int = 0) -> Problem:
    r"""Poisson's equation in the unit ball of very many dimensions.

    .. math::
        \Delta u = \Delta u^*, \quad u = 0 \text{ on the sphere}, \qquad
        u^* = (1 - |x|^2) \sum_{i<d} c_i
        \left[ \sin(x_i + \cos x_{i+1}) + x_{i+1} \cos x_i \right]

    with :math:`c_i` from the standard normal distribution. The boundary condition holds
    exactly: u is 1 - \|x\|^2 times the network. The right-hand side is computed by
    automatic differentiation, in a time that grows like the dimension; the Laplacian of
    a network in 100,000 dimensions must be estimated from random directions.

    In high dimension the coordinates of a point are small, and :math:`u^*` is nearly
    :math:`(1 - |x|^2) (a + b \cdot x)`: the numbers 100 and 1,000 of ``dim`` say more
    about a method. Points are drawn, and errors measured, with a uniform distance from
    the centre: of uniform density, nearly all would lie where the solution vanishes.

    Parameters
    ----------
    dim : int, default=100_000
        Number of axes d, at least 2.

    seed : int, default=0
        Determines the :math:`c_i`.

    Returns
    -------
    Problem
        Axes as in :class:`sklearn_gn.pde.Ball`; output u.

    References
    ----------
    Z. Shi, Z. Hu, M. Lin and K. Kawaguchi, "Stochastic Taylor Derivative Estimator:
    Efficient amortization for arbitrary differential operators", NeurIPS 2024, whose
    function has the second term inside the sine.
    """
    check_count("dim", dim, least=2)
    check_count("seed", seed, least=0)
    solution = _TwoBody(int(dim), int(seed))
    return Problem(
        _PoissonBall(solution),
        Ball(dim, density="radius"),
        exact=solution,
        transform=_vanish_on_sphere,
        name="PoissonBall",
    )


# --- the Fokker-Planck equation -------------------------------------------------------


def _log_fokker_planck(q, x):
    slope, space = grad(q)(x), x[:-1]
    drift = (space.size + space @ slope) / 2
    return d(q, "t")(x) - drift - laplacian(q)(x) - slope @ slope


def _log_normal(x):
    variance, space = 2 - jnp.exp(-x[-1]), x[:-1]
    constant = space.size * jnp.log(2 * np.pi * variance)
    return -(constant + space @ space / variance) / 2


def _start_exactly(x, q):
    return _log_normal(x.at[-1].set(0.0)) + x[-1] * q


def LogFokkerPlanck(dim: int = 9) -> Problem:
    r"""Fokker-Planck equation for the logarithm q of a probability density.

    The density spreads from the standard normal distribution, with the drift
    :math:`-x/2` and the diffusion matrix :math:`\sigma = \sqrt 2 I`:

    .. math::
        q_t - \tfrac d2 - \tfrac12 x \cdot \nabla q - \Delta q - |\nabla q|^2 = 0,
        \qquad q = \log N(0, (2 - e^{-t}) I),

    on :math:`[-5, 5]^d`, times from 0 to 1, without boundary conditions. The initial
    condition holds exactly: q is :math:`q(0, x)` plus t times the network.

    Parameters
    ----------
    dim : int, default=9
        Number d of axes of space.

    Returns
    -------
    Problem
        Axes x1, x2, ..., t; output q.
    """
    check_count("dim", dim)
    interval = (-_HALF_WIDTH, _HALF_WIDTH)
    intervals: dict[str, Any] = {f"x{i + 1}": interval for i in range(dim)}
    return Problem(
        _log_fokker_planck,
        Box(**intervals, t=(0.0, 1.0)),
        outputs=("q",),
        exact=_log_normal,
        transform=_start_exactly,
        name="LogFokkerPlanck",
    )


# --- the heat equation ----------------------------------------------------------------


def _fast(x):
    decay = jnp.exp(-(np.pi**2) * x[-1])
    return decay * jnp.sum(jnp.sin(2 * np.pi * x[:-1]))


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
    problem = HeatSine(dim)
    given = (Dirichlet(_fast), Initial(_fast))
    return replace(problem, conditions=given, exact=_fast, name="Heat")
