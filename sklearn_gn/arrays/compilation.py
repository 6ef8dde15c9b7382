"""How hard the compiler tries: by the size of the data.

XLA spends seconds on code that runs for a millisecond where the data are small. Its
options apply to a top-level compiled function, so :func:`jit_by_size` holds a function
in versions: on a CPU compiled cheaply for small arrays, with vector instructions but
without its costly passes for medium ones, and fully for all others.
"""

import re
from functools import partial, update_wrapper

import jax

_CHEAP = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
_UNKNOWN = re.compile("No such compile option: '?([a-z_]+)")
_unknown: set[str] = set()  # options that this JAX has refused


class jit_by_size:
    """``jax.jit``, with its arguments, that compiles cheaply where arrays are small.

    Arguments of at most ``largest`` numbers are small, up to ``medium`` they are
    medium; ``counted`` selects the arguments whose sizes count. Inside another compiled
    function, on a GPU, and with a JAX that knows none of the options, it is
    ``jax.jit``. An option that JAX refuses is not given again.
    """

    def __init__(self, function, *, largest=2**18, medium=0, counted=None, **arguments):
        update_wrapper(self, function)
        self._full = jax.jit(function, **arguments)
        self._jit = partial(jax.jit, function, **arguments)
        self._largest = largest, medium  # of optimization levels 0 and 1
        self._counted = counted
        self._compiled = {}  # by level

    def __call__(self, *args, **kwargs):
        """Call the version that suits the sizes of the arguments."""
        leaves = jax.tree.leaves((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._full(*args, **kwargs)
        if self._counted is not None:
            leaves = jax.tree.leaves(self._counted(*args, **kwargs))
        size = max(getattr(leaf, "size", 1) for leaf in leaves)
        for level, largest in enumerate(self._largest):
            while size <= largest and jax.default_backend() == "cpu":
                options = _CHEAP | {"xla_backend_optimization_level": level}
                options = {k: v for k, v in options.items() if k not in _unknown}
                if level not in self._compiled:
                    self._compiled[level] = self._jit(compiler_options=options)
                try:
                    return self._compiled[level](*args, **kwargs)
                except Exception as error:  # its type depends on the version
                    unknown = _UNKNOWN.search(str(error))
                    if unknown is None or unknown[1] not in options:
                        raise
                    _unknown.add(unknown[1])
                    self._compiled.pop(level, None)
        return self._full(*args, **kwargs)

    def lower(self, *args, **kwargs):
        """``lower`` of the fully compiled function."""
        return self._full.lower(*args, **kwargs)
