"""How hard the compiler tries: by the size of the data.

XLA spends seconds on code that runs for a millisecond where the data are small. Its
options are those of a top-level compiled function, so :func:`jit_by_size` holds a
function twice, compiled cheaply for small arrays on a CPU and fully for all others.
"""

from functools import cache, partial, update_wrapper

import jax
import numpy as np

_CHEAP = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


class jit_by_size:
    """``jax.jit`` that compiles cheaply where all arguments are small.

    Inside another compiled function, on a GPU, and with a JAX that knows none of the
    options, it is ``jax.jit``.

    Parameters
    ----------
    function : callable
    largest : int, default=2**18
        Numbers in the largest argument, up to which the arguments are small.
    **arguments
        Those of ``jax.jit``, such as ``static_argnames``.
    """

    def __init__(self, function, *, largest=2**18, **arguments):
        update_wrapper(self, function)
        self._full = jax.jit(function, **arguments)
        self._jit = partial(jax.jit, function, **arguments)
        self._cheap, self._largest = None, largest

    def __call__(self, *args, **kwargs):
        """Call the version that suits the sizes of the arguments."""
        leaves = jax.tree.leaves((args, kwargs))
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        if traced or max(map(np.size, leaves)) > self._largest or not cheap_options():
            return self._full(*args, **kwargs)
        if self._cheap is None:
            self._cheap = self._jit(compiler_options=cheap_options())
        return self._cheap(*args, **kwargs)

    def _versions(self):
        return [f for f in (self._full, self._cheap) if f is not None]

    def _cache_size(self):
        return sum(version._cache_size() for version in self._versions())

    def clear_cache(self):
        """Forget what has been compiled."""
        for version in self._versions():
            version.clear_cache()

    def lower(self, *args, **kwargs):
        """``lower`` of the fully compiled function."""
        return self._full.lower(*args, **kwargs)


@cache
def cheap_options():
    """Return those of the options for cheap compilation that this JAX knows."""
    if jax.default_backend() != "cpu":
        return {}
    if _are_known(_CHEAP):
        return _CHEAP
    return {name: v for name, v in _CHEAP.items() if _are_known({name: v})}


def _are_known(options):
    try:
        jax.jit(lambda x: x, compiler_options=options)(np.float32(0))
    except Exception:  # its type depends on the version
        return False
    return True
