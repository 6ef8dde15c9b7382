"""First-order and quasi-Newton updates: optax under its own rules of promotion.

The methods call optax through these functions only, inside their compiled steps. It is
imported by the first of them, since no default solver needs it.
"""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

OPTIMISERS = ("adam", "sgd")


@cache
def _transformation(method):
    """The transformation of a name, or the method itself."""
    import optax

    if method == "adam":
        return optax.scale_by_adam()
    return optax.trace(decay=0.9, nesterov=True) if method == "sgd" else method


@cache
def zoom_line_search():
    """The line search for the strong Wolfe conditions, from step size 1."""
    import optax

    return optax.scale_by_zoom_linesearch(
        max_linesearch_steps=20, initial_guess_strategy="one"
    )


@partial(jax.jit, static_argnames="method")
def start(method, parameters):
    """Return the empty memory of an optimiser, by its name or of optax."""
    with jax.numpy_dtype_promotion("standard"):
        memory = _transformation(method).init(parameters)
    # Some numbers of the line search have no fixed type before its first step, and a
    # second program would be compiled for those that it returns.
    return jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, leaf.dtype), memory)


def gradient_step(name, parameters, gradient, memory, learning_rate):
    """Return the parameters after one step of "adam" or "sgd", and its memory."""
    with jax.numpy_dtype_promotion("standard"):
        move, memory = _transformation(name).update(gradient, memory)
    new = jax.tree.map(lambda p, u: p - learning_rate * u, parameters, move)
    return new, memory


def line_search_step(
    method, parameters, value, gradient, memory, objective, *, direction=None
):
    """Return the move, along a direction if it is given, and the new memory."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return method.update(
            gradient if direction is None else direction,
            memory,
            parameters,
            value=value,
            grad=gradient,
            value_fn=objective,
        )


@cache
def lbfgs():
    """Return L-BFGS with a line search for the strong Wolfe conditions."""
    import optax

    return optax.lbfgs(linesearch=zoom_line_search())


def value_and_gradient(objective, parameters, memory):
    """Return both from the last line search, or new ones for a new memory."""
    import optax

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return optax.value_and_grad_from_state(objective)(parameters, state=memory)


class Broyden(NamedTuple):
    """Approximate inverse of the Hessian, and the last point."""

    inverse: jnp.ndarray  # (n, n)
    params: jnp.ndarray
    gradient: jnp.ndarray
    direction: jnp.ndarray
    count: jnp.ndarray  # type: ignore[assignment]


@cache
def ssbroyden():
    """Return SSBroyden with a line search, for flat vectors.

    It is the self-scaled Broyden method of M. Al-Baali, "Numerical experience with a
    class of self-scaling quasi-Newton algorithms", Journal of Optimization Theory and
    Applications. Urban, Stefanou and Pons brought it to physics-informed networks.
    """
    import optax

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

    return optax.chain(
        optax.GradientTransformation(init, update),
        optax.scale(-1.0),
        zoom_line_search(),
    )


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
