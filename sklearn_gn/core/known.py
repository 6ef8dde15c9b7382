"""Values of the user that functions have been compiled for, by their content.

JAX keeps a compiled function by the identity of the functions of the user that it
calls. That is too narrow: functions that are stated again, in the cell of a notebook,
or come to a worker of a search as copies, would be compiled again. And it is too wide:
a function that reads a global number is the same one after the number has changed, but
what was compiled from it is not.
"""

import threading
from collections import OrderedDict

from sklearn_gn.core.fingerprint import digest

_MOST = 64

_known: OrderedDict = OrderedDict()  # values by the digests of their content
_lock = threading.Lock()


def known(value):
    """Return the value of the same content that was known first.

    Parameters
    ----------
    value : hashable
        A function, or an object that holds functions. One whose content has no digest
        counts by its identity.
    """
    try:
        content = digest(value)
    except TypeError:
        return value
    with _lock:
        if content in _known:
            _known.move_to_end(content)
            return _known[content]
        former = [key for key, other in _known.items() if other == value]
        for key in former:  # its functions refer to other values now
            del _known[key]
        _known[content] = value
        if len(_known) > _MOST:
            _known.popitem(last=False)
    if former:
        _forget_compiled_functions()
    return value


def _forget_compiled_functions():
    import jax

    jax.clear_caches()
