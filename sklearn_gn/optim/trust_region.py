"""Trust-region steps from a spectral form of the quadratic model.

However the Gauss-Newton matrix was met, as a dense matrix, through its dual or in a
Krylov space, its eigenpairs turn the model into a sum over single directions,

    m(d) = sum_j  s_j t_j + e_j t_j^2 / 2,      d = sum_j t_j v_j,

of which any number of steps, for any radius or shift, cost next to nothing.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

_NEWTON_ITERATIONS = 60


class SpectralModel(NamedTuple):
    """Quadratic model in the eigenvectors of its matrix."""

    values: jnp.ndarray  # (k,)  eigenvalues e, none negative
    slopes: jnp.ndarray  # (k,)  derivatives s along the eigenvectors
    basis: Any  # (n, k)  eigenvectors v, or what multiplies like them


def damped_coordinates(model, shift):
    """Coordinates ``-s / (e + shift)`` of the damped step; 0 where s is."""
    total = model.values + shift
    usable = (model.slopes != 0) & (total > 0)
    return jnp.where(usable, -model.slopes / jnp.where(usable, total, 1), 0)


def decrease(model, coordinates):
    """What the model promises for a step, ``-m(d)``."""
    bend = 0.5 * model.values * coordinates**2
    return -jnp.sum(model.slopes * coordinates + bend)


def radius_shift(model, radius):
    """The shift with which the damped step has length ``radius``; 0 if it is shorter.

    Newton's method on the secular equation ``1/|d| = 1/radius``, which from the left of
    the root converges without overshooting (Conn, Gould and Toint, Trust-Region
    Methods, section 7.3).
    """
    size = jnp.linalg.norm(model.slopes)
    # Left of the root: no direction has more curvature than the largest, and the step
    # along none is longer than the whole. From further left lengths may overflow.
    lower = jnp.maximum(
        size / radius - jnp.max(model.values),
        jnp.max(jnp.abs(model.slopes) / radius - model.values),
    )
    tiny = jnp.finfo(size.dtype).tiny
    start = jnp.maximum(lower, tiny)

    def norm(shift):
        return jnp.linalg.norm(damped_coordinates(model, shift))

    def improve(carry):
        shift, length, count = carry
        total = jnp.maximum(model.values + shift, tiny)
        bend = jnp.sum(damped_coordinates(model, shift) ** 2 / total)
        shift = shift + (length / radius - 1) * length**2 / bend
        return shift, norm(shift), count + 1

    def outside(carry):
        _, length, count = carry
        return (length > radius * (1 + 1e-6)) & (count < _NEWTON_ITERATIONS)

    shift, *_ = lax.while_loop(outside, improve, (start, norm(start), jnp.int32(0)))
    return jnp.where(norm(jnp.zeros_like(shift)) <= radius, 0, shift)
