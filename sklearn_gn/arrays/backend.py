"""The boundary between numpy and JAX: precision, device, padding, conversion.

Nothing here changes a global flag of JAX. Precision and device hold only inside
:func:`scope`, which the estimators open around calls of compiled functions, in the
thread that makes the call. JAX is loaded by the first of them: fits that need no
compiled function run without it.
"""

import os
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from multiprocessing import current_process

import numpy as np

from sklearn_gn._caller import warn_user
from sklearn_gn.arrays.libraries import NumPy, library_of
from sklearn_gn.arrays.threads import one_blas_thread


@contextmanager
def scope(dtype, device=None):
    """Compute in ``dtype`` on ``device`` while the context is open.

    BLAS is limited to one thread meanwhile. The device is a platform, such as "cpu" or
    "gpu"; if None, or if rows are divided among several devices, it is JAX's default
    for all that is small. One that JAX does not find is a ValueError, and what it
    cannot hold is a MemoryError.
    """
    import jax

    if current_process().name != "MainProcess":
        _warn_of_shared_gpu()
    place = nullcontext()
    if isinstance(device, str):  # otherwise the arrays say where they are
        try:
            place = jax.default_device(jax.devices(device)[0])
        except RuntimeError as error:
            known = sorted({d.platform for d in jax.devices()})
            raise ValueError(
                f"device={device!r} is not available; JAX found {known}."
            ) from error
    with jax.enable_x64(np.dtype(dtype) == np.float64), place, one_blas_thread():
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            _, found, cause = str(error).partition("RESOURCE_EXHAUSTED: ")
            if not found:
                raise
            raise MemoryError(  # the first line says how many bytes are missing
                f"{cause.splitlines()[0]} Fit fewer rows, or set dtype='float32'."
            ) from error


@cache
def _warn_of_shared_gpu():
    """Say once how the processes of a search divide the memory of a GPU."""
    import jax

    divided_by = (
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        "XLA_CLIENT_MEM_FRACTION",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "CUDA_VISIBLE_DEVICES",
    )
    if jax.default_backend() != "gpu" or any(name in os.environ for name in divided_by):
        return
    warn_user(
        "A worker process uses a GPU. JAX reserves three quarters of its memory, so a "
        "second worker would run out of it. Set XLA_PYTHON_CLIENT_PREALLOCATE=false, "
        "or XLA_CLIENT_MEM_FRACTION to the share of a worker, before the workers "
        "start; with several GPUs, give each worker "
        "its own by CUDA_VISIBLE_DEVICES; or set JAX_PLATFORMS=cpu."
    )


def mesh_of(device):
    """Return the mesh of a parameter ``device``; None for a single device."""
    if device is None or isinstance(device, str):
        return None
    from sklearn_gn.arrays import devices

    return devices.mesh_of(device)


def available(platform):
    """Return the platform if this machine has it, else None: JAX's default."""
    if isinstance(platform, str):
        import jax

        with suppress(RuntimeError):
            return platform if jax.devices(platform) else None
    return None


def to_numpy(tree):
    """Copy the arrays of a tree to writable arrays of numpy, of the same precision."""
    import jax

    return jax.tree.map(
        lambda leaf: np.array(leaf) if isinstance(leaf, jax.Array) else leaf, tree
    )


def views(tree):
    """The arrays of a tree as NumPy sees them: on a CPU, they are not copied."""
    if library_of(tree) is NumPy:
        return tree
    import jax

    return jax.tree.map(np.asarray, tree)


def on_device(tree):
    """Put the arrays of a tree that are in the memory of the host on the device."""
    import jax

    return jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf), tree
    )


def map_leaves(function, *trees):
    """Apply a function to the arrays of trees of one structure."""
    return library_of(trees[0]).tree_map(function, *trees)


def leaves(tree):
    """Return the arrays of a tree as a list."""
    import jax

    return jax.tree.leaves(tree)


def structure(tree):
    """Return the structure of a tree, without its arrays."""
    import jax

    return jax.tree.structure(tree)


def row_bucket(n_rows, cheap=1024):
    """Return the number of rows to pad to, one of a few sizes.

    These are powers of two up to ``cheap``, and four sizes an octave above, so that
    folds of a cross-validation and points of a learning curve share compiled functions.
    Up to half of the rows are padding while that costs nothing noticeable, then at most
    a fifth.
    """
    size = max(32, 1 << max(n_rows - 1, 0).bit_length())
    if size <= cheap:
        return size
    quarter = size // 8
    return -(-n_rows // quarter) * quarter


def aligned_zeros(shape, dtype):
    """Return zeros that begin at a cache line: XLA takes them over without a copy."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = np.zeros(size + 64, dtype=np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(shape)


def pad_rows(array, n_rows):
    """Append rows of zeros up to a number of rows."""
    padding = [(0, n_rows - array.shape[0])] + [(0, 0)] * (array.ndim - 1)
    return np.pad(array, padding)
