"""A bound on the compiled programs that a process keeps.

JAX keeps every program that it has compiled. Each maps memory, and Linux ends a process
that has more than 65,530 maps: a search over layer sizes came there after some
hundreds of fits. So all programs are forgotten when they are many; those that are
needed again are compiled again, or read from the cache on disk.
"""

import sys

MOST = 500  # programs; each one has about fifty maps
_EVENT = "/jax/core/compile/backend_compile_duration"

_counted = None  # programs since they were last forgotten; None before the first count


def forget_if_many():
    """Count compiled programs from the first call on, and forget them if many.

    A process that has not loaded JAX has none.
    """
    global _counted
    jax = sys.modules.get("jax")
    if jax is None:
        return
    if _counted is None:
        _counted = 0
        jax.monitoring.register_event_duration_secs_listener(_count)
    if _counted > MOST:
        _counted = 0
        jax.clear_caches()


def _count(event, seconds, **about):
    global _counted
    del seconds, about
    if event == _EVENT:
        _counted += 1
