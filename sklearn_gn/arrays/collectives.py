"""Collectives: what the devices tell each other in a function of divided rows.

See :mod:`sklearn_gn.arrays.devices`. On one device nothing here needs JAX.
"""

from contextvars import ContextVar

AXIS = "rows"  # of the mesh
INSIDE = ContextVar("INSIDE", default=1)  # number of devices, while a part is traced


def n_devices():
    """Number of devices among which the rows are divided."""
    return INSIDE.get()


def total(tree):
    """Sum over the devices of what each has summed over its rows."""
    if n_devices() == 1:
        return tree
    from jax import lax

    return lax.psum(tree, AXIS)


def all_rows(array):
    """Rows of all devices, in the order of the devices."""
    if n_devices() == 1:
        return array
    from jax import lax

    return lax.all_gather(array, AXIS, tiled=True)


def own_rows(array):
    """The rows of this device, from the rows of all devices."""
    if n_devices() == 1:
        return array
    from jax import lax

    n = array.shape[0] // n_devices()
    return lax.dynamic_slice_in_dim(array, lax.axis_index(AXIS) * n, n)


def differentiable_sum(function):
    """Return a sum over rows that covers all devices, and so does its gradient."""
    if n_devices() == 1:
        return function
    import jax

    summed = jax.custom_vjp(lambda parameters: total(function(parameters)))
    summed.defvjp(
        lambda parameters: total(jax.value_and_grad(function)(parameters)),
        lambda gradient, factor: (jax.tree.map(lambda g: factor * g, gradient),),
    )
    return summed
