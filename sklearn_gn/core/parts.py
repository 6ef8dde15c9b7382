"""What a function of rows computes of its part of them, on one of several devices.

See :mod:`sklearn_gn.core.devices`. On one device nothing here needs JAX.
"""

from contextvars import ContextVar

import numpy as np

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


def everywhere(condition):
    """Whether a condition holds on all devices."""
    if n_devices() == 1:
        return condition
    from jax import lax

    return lax.pmin(condition.astype(np.int32), AXIS) > 0


def all_rows(array):
    """Rows of all devices, in the order of the devices."""
    if n_devices() == 1:
        return array
    from jax import lax

    return lax.all_gather(array, AXIS, tiled=True)


def own_rows(array):
    """The rows of this device, from those of all."""
    if n_devices() == 1:
        return array
    from jax import lax

    n = array.shape[0] // n_devices()
    return lax.dynamic_slice_in_dim(array, lax.axis_index(AXIS) * n, n)
