"""SSBroyden: the self-scaled Broyden method of Al-Baali.

M. Al-Baali, "Numerical experience with a class of self-scaling quasi-Newton
algorithms", Journal of Optimization Theory and Applications. Urban, Stefanou and Pons
brought it to physics-informed networks.
"""

from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from sklearn_gn.optim.first_order import quasi_newton


class Broyden(NamedTuple):
    """Approximate inverse of the Hessian, and the last point."""

    inverse: jnp.ndarray  # (n, n)
    params: jnp.ndarray
    gradient: jnp.ndarray
    direction: jnp.ndarray
    count: jnp.ndarray  # type: ignore[assignment]


@cache
def ssbroyden(line_search_steps=20):
    """Return SSBroyden with a line search, for flat vectors."""

    def init(params):
        zero = jnp.zeros_like(params)
        eye = jnp.eye(params.shape[0], dtype=params.dtype)
        return Broyden(eye, zero, zero, zero, jnp.int32(0))

    def update(gradient, state, params):
        s, y = params - state.params, gradient - state.gradient
        moved = (state.count > 0) & (s @ y > 0)
        inverse = lax.cond(
            moved,
            lambda: _self_scaled_inverse(state.inverse, s, y, state),
            lambda: state.inverse,
        )
        direction = inverse @ gradient
        # Rounding can spoil the matrix: begin again.
        good = direction @ gradient > 0
        inverse = jnp.where(good, inverse, jnp.eye(s.shape[0], dtype=s.dtype))
        direction = jnp.where(good, direction, gradient)
        new = Broyden(inverse, params, gradient, -direction, state.count + 1)
        return direction, new

    return quasi_newton(init, update, line_search_steps)


def _self_scaled_inverse(inverse, s, y, state):
    """Al-Baali's update with the member of Broyden's family that he recommends."""
    n = s.shape[0]
    image = inverse @ y
    ys, yhy = y @ s, y @ image
    length = (s @ state.direction) / (state.direction @ state.direction)
    b = -length * (s @ state.gradient) / ys
    h = yhy / ys
    a = jnp.maximum(b * h - 1, jnp.finfo(s.dtype).eps)  # Cauchy and Schwarz: not less
    c = jnp.sqrt(a / (1 + a))
    rho = jnp.minimum(1, h * (1 - c))
    theta = jnp.maximum((rho - 1) / a, jnp.minimum(1 / rho, (1 - b) / b))
    sigma = 1 + a * theta
    root = jnp.abs(sigma) ** (1 / (1 - n))
    upper = rho * jnp.minimum(root, 1 / jnp.where(theta > 0, theta, 1))
    tau = jnp.where(theta > 0, upper, jnp.minimum(rho * root, sigma))
    phi = (1 - theta) / sigma
    v = s / ys - image / yhy
    changed = inverse - jnp.outer(image, image) / yhy + phi * yhy * jnp.outer(v, v)
    return changed / tau + jnp.outer(s, s) / ys
