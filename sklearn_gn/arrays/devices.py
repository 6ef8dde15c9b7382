r"""Several devices: rows are divided among them, parameters stand on each.

A function of rows that sums over them is written once. On one device it is compiled as
it is. Where the arrays of its arguments are divided among the devices of a mesh,
:class:`by_rows` compiles it with ``jax.shard_map``: every device calls it with its own
rows, and what it sums with :func:`~sklearn_gn.arrays.collectives.total` is summed over
all of them. This is the same in one process and in several under ``jax.distributed``.
"""

from functools import partial, update_wrapper
from inspect import signature

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sklearn_gn.arrays.backend import pad_rows
from sklearn_gn.arrays.collectives import AXIS, INSIDE


def mesh_of(devices):
    """Return the mesh of a list of devices, or of a mesh with axes of any names."""
    if isinstance(devices, Mesh):
        return Mesh(devices.devices.reshape(-1), (AXIS,))
    known = jax.devices()
    numbers = devices if isinstance(devices, list | tuple) else []
    valid = all(isinstance(k, int) and 0 <= k < len(known) for k in numbers)
    if not numbers or not valid or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"device={devices!r} must be a name, a jax.sharding.Mesh, or a list of "
            f"distinct device numbers; jax.devices() has {len(known)} devices."
        )
    return Mesh(np.array([known[number] for number in numbers]), (AXIS,))


# --- functions of rows ---------------------------------------------------------------


class by_rows:
    """A function of rows that ``compiled`` compiles for one device, and for several.

    ``rows_out``, a prefix of the tree of results or a function of the arguments, says
    which results have rows; the others are the same on all devices. The arguments named
    ``static`` are fixed when it is compiled, whatever they hold.
    """

    def __init__(self, function, compiled, rows_out=False, static=()):
        update_wrapper(self, function)
        self._function, self._rows_out, self._names = function, rows_out, static
        self._signature = signature(function)
        self._one = compiled(function)
        self._several = jax.jit(self._divided, static_argnums=(0, 1, 2, 3))

    def __call__(self, *args, **kwargs):
        """Call it where its rows are."""
        compiled, args, kwargs = self._where_rows_are(args, kwargs)
        return compiled(*args, **kwargs)

    def lower(self, *args, **kwargs):
        """Lower it for the devices of its arguments."""
        compiled, args, kwargs = self._where_rows_are(args, kwargs)
        return compiled.lower(*args, **kwargs)

    def _where_rows_are(self, args, kwargs):
        """The compiled function for one device or several, and its arguments."""
        leaves = jax.tree.leaves((args, kwargs))
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        meshes = () if traced else map(_mesh, leaves)
        mesh = next((m for m in meshes if m is not None), None)
        if mesh is None:  # one device, or a part of a compiled function
            return self._one, args, kwargs
        given = dict(self._signature.bind(*args, **kwargs).arguments)
        named = tuple((name, given.pop(name)) for name in self._names)
        leaves, tree = jax.tree.flatten(given)
        kinds = jax.Array | np.ndarray | np.generic
        static = tuple((k, a) for k, a in enumerate(leaves) if not isinstance(a, kinds))
        arrays = [leaf for leaf in leaves if isinstance(leaf, kinds)]
        # Rows without numbers are divided too, which JAX forgets.
        specs = tuple(
            PartitionSpec(AXIS)
            if _mesh(a) is not None or (a.size == 0 and a.ndim > 1)
            else PartitionSpec()
            for a in arrays
        )
        return self._several, ((mesh, specs), named, static, tree, arrays), {}

    def _divided(self, where, named, static, tree, arrays):
        mesh, specs = where

        def arguments(arrays):
            arrays, fixed = iter(arrays), dict(static)
            count = tree.num_leaves
            leaves = [fixed[k] if k in fixed else next(arrays) for k in range(count)]
            return {**jax.tree.unflatten(tree, leaves), **dict(named)}

        def part(arrays):
            token = INSIDE.set(mesh.size)
            try:
                return self._function(**arguments(arrays))
            finally:
                INSIDE.reset(token)

        rows_out = self._rows_out
        if callable(rows_out):
            rows_out = rows_out(**arguments(arrays))
        out = jax.tree.map(
            lambda rows: PartitionSpec(AXIS) if rows else PartitionSpec(), rows_out
        )
        # The sums are explicit, so that nothing has to be inferred of them.
        return jax.shard_map(
            part, mesh=mesh, in_specs=(list(specs),), out_specs=out, check_vma=False
        )(arrays)


def _mesh(leaf):
    """The mesh of an array whose rows are divided."""
    sharding = getattr(leaf, "sharding", None)
    divided = isinstance(sharding, NamedSharding) and AXIS in sharding.spec
    return sharding.mesh if divided else None


def put_rows(arrays, mesh):
    """Put arrays on the devices, equal numbers of rows on each, zeros at the end."""
    sharding, found = NamedSharding(mesh, PartitionSpec(AXIS)), []
    for a in map(np.asarray, arrays):
        missing = -len(a) % mesh.size
        a = pad_rows(a, len(a) + missing) if missing else a  # padding is a copy
        found.append(jax.make_array_from_callback(a.shape, sharding, a.__getitem__))
    return found


def jitted(**arguments):
    """Return a compiler for :class:`by_rows`: ``jax.jit`` with arguments."""
    return partial(jax.jit, **arguments)
