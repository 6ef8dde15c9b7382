r"""Several devices: rows are divided among them, parameters stand on each.

A function of rows that sums over them is written once. On one device it is compiled as
it is. Where the arrays of its arguments are divided among the devices of a mesh,
:class:`by_rows` compiles it with ``jax.shard_map``: every device calls it with its own
rows, and what it sums with :func:`~sklearn_gn.core.parts.total` is summed over all of
them. This is the same in one process and in several under ``jax.distributed``.
"""

from functools import partial, update_wrapper

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sklearn_gn.core.parts import AXIS, INSIDE


def mesh_of(devices):
    """Return the mesh of a list of devices, or of a mesh with axes of any names."""
    if isinstance(devices, Mesh):
        return Mesh(devices.devices.reshape(-1), (AXIS,))
    known = jax.devices()
    numbers = list(devices) if isinstance(devices, list | tuple) else [devices]
    valid = all(isinstance(k, int) and 0 <= k < len(known) for k in numbers)
    if not numbers or not valid or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"device={devices!r} must be a name, a jax.sharding.Mesh, or a list of "
            f"different numbers of devices; jax.devices() has {len(known)}."
        )
    return Mesh(np.array([known[number] for number in devices]), (AXIS,))


# --- functions of rows ---------------------------------------------------------------


class by_rows:
    """A compiled function of rows for one device, and for several.

    Parameters
    ----------
    function : callable
    compiled : callable
        Compiles it for one device, such as ``jax.jit`` with its arguments.
    rows_out : pytree of bool, default=False
        Which results have rows, a prefix of their tree. The others are the same on all
        devices.
    """

    def __init__(self, function, compiled, rows_out=False):
        update_wrapper(self, function)
        self._function, self._rows_out = function, rows_out
        self._one = compiled(function)
        self._several = jax.jit(self._divided, static_argnums=(0, 1, 2))

    def __call__(self, *args, **kwargs):
        """Call it where its rows are."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        mesh = next(filter(None, map(_mesh, leaves)), None)
        if mesh is None:
            return self._one(*args, **kwargs)
        return self._several(*self._divide(mesh, leaves, tree))

    def lower(self, *args, **kwargs):
        """Lower it for the devices of its arguments."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        mesh = next(filter(None, map(_mesh, leaves)), None)
        if mesh is None:
            return self._one.lower(*args, **kwargs)
        return self._several.lower(*self._divide(mesh, leaves, tree))

    def _divide(self, mesh, leaves, tree):
        static = tuple(
            (k, leaf)
            for k, leaf in enumerate(leaves)
            if not isinstance(leaf, jax.Array | np.ndarray | np.generic)
        )
        fixed = {k for k, _ in static}
        arrays = [leaf for k, leaf in enumerate(leaves) if k not in fixed]
        specs = tuple(
            PartitionSpec(AXIS) if _mesh(a) and _is_divided(a) else PartitionSpec()
            for a in arrays
        )
        return (mesh, specs), static, tree, arrays

    def _divided(self, where, static, tree, arrays):
        mesh, specs = where

        def part(arrays):
            arrays, fixed = iter(arrays), dict(static)
            count = tree.num_leaves
            leaves = [fixed[k] if k in fixed else next(arrays) for k in range(count)]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            token = INSIDE.set(mesh.size)
            try:
                return self._function(*args, **kwargs)
            finally:
                INSIDE.reset(token)

        out = jax.tree.map(
            lambda rows: PartitionSpec(AXIS) if rows else PartitionSpec(),
            self._rows_out,
        )
        # The sums are explicit, so that nothing has to be inferred of them.
        return jax.shard_map(
            part, mesh=mesh, in_specs=(list(specs),), out_specs=out, check_vma=False
        )(arrays)

    def _cache_size(self):
        return self._one._cache_size() + self._several._cache_size()

    def clear_cache(self):
        """Forget what has been compiled."""
        self._one.clear_cache()
        self._several.clear_cache()


def _mesh(leaf):
    sharding = getattr(leaf, "sharding", None)
    several = isinstance(sharding, NamedSharding) and AXIS in sharding.mesh.axis_names
    return sharding.mesh if several else None


def _is_divided(array):
    return AXIS in array.sharding.spec


def divide_rows(arrays, mesh, batch_size):
    """Put arrays of rows on the devices, a share of every batch on each.

    Parameters
    ----------
    arrays : list of ndarrays with one leading axis
        A whole number of batches.
    mesh : Mesh
    batch_size : int
        A multiple of the number of devices.

    Returns
    -------
    list of arrays
    """
    count = mesh.size
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))

    def put(array):
        shape = array.shape
        shares = array.reshape(-1, count, batch_size // count, *shape[1:])
        ordered = np.swapaxes(shares, 0, 1).reshape(shape)
        return jax.make_array_from_callback(shape, sharding, lambda i: ordered[i])

    return [put(np.asarray(array)) for array in arrays]


def jitted(**arguments):
    """Return a compiler for :class:`by_rows`: ``jax.jit`` with arguments."""
    return partial(jax.jit, **arguments)
