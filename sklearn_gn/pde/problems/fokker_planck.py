"""The Fokker-Planck equation for the logarithm of a density."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from sklearn_gn.pde.operators import d, grad, laplacian
from sklearn_gn.pde.problem import Problem
from sklearn_gn.pde.problems._common import check_count
from sklearn_gn.pde.shapes import Box

_HALF_WIDTH = 5.0


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
