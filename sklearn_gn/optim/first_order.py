"""First-order and quasi-Newton updates: optax under its own rules of promotion.

The methods call optax through these functions only, inside their compiled steps. It is
imported by the first of them, since no default solver needs it.
"""

from functools import cache, partial

import jax

OPTIMISERS = ("adam", "sgd")


@cache
def _transformation(method):
    """The transformation of a name, or the method itself."""
    import optax

    if method == "adam":
        return optax.scale_by_adam()
    return optax.trace(decay=0.9, nesterov=True) if method == "sgd" else method


@cache
def zoom_line_search(max_steps):
    """The line search for the strong Wolfe conditions, from step size 1."""
    import optax

    return optax.scale_by_zoom_linesearch(
        max_linesearch_steps=max_steps, initial_guess_strategy="one"
    )


def quasi_newton(init, update, line_search_steps):
    """Return a method whose ``update`` turns a gradient, with a line search."""
    import optax

    return optax.chain(
        optax.GradientTransformation(init, update),
        optax.scale(-1.0),
        zoom_line_search(line_search_steps),
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
    """Return the move of a quasi-Newton method with a line search, and its memory.

    The ``value`` and the gradient are those of the ``objective`` at the parameters; a
    bare line search moves along the gradient unless there is a ``direction``.
    """
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
def lbfgs(line_search_steps=20):
    """Return L-BFGS with a line search for the strong Wolfe conditions."""
    import optax

    return optax.lbfgs(linesearch=zoom_line_search(line_search_steps))


def value_and_gradient(objective, parameters, memory):
    """Return both: those of the last line search, or new ones for a new memory."""
    import optax

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return optax.value_and_grad_from_state(objective)(parameters, state=memory)
