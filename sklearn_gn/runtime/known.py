"""Values of the user that functions have been compiled for, by their content.

JAX keeps a compiled function by the identity of the functions of the user that it
calls. That is too narrow: functions that are stated again, in the cell of a notebook,
or come to a worker of a search as copies, would be compiled again. And it is too wide:
a function that reads a global number is the same one after the number has changed, but
what was compiled from it is not.
"""

import threading
from typing import Any

from sklearn_gn.runtime.fingerprint import digest

_MOST = 64  # values; then all are forgotten

_known: dict[str, Any] = {}  # by the digests of their content
_lock = threading.Lock()


def known(value):
    """Return the value of the same content that was known first.

    Parameters
    ----------
    value : hashable
        A function, or an object that holds functions. One whose content has no digest
        counts by its identity.
    """
    content = _content_of(value)
    if content is None:
        return value
    with _lock:
        first = _known.get(content)
        if first is value or (first is not None and _content_of(first) == content):
            return first
        outdated = [key for key, other in _known.items() if _is_same(other, value)]
        if first is not None:  # what it refers to has changed since
            outdated.append(content)
        if len(_known) == _MOST:  # nobody would notice that one of these has changed
            outdated = list(_known)
        for key in outdated:
            _known.pop(key, None)
        _known[content] = value
    if outdated:
        _forget_compiled_functions()
    return value


def _content_of(value):
    """Return the digest of a value, None where it has none."""
    try:
        return digest(value)
    except TypeError:
        return None


def _is_same(other, value):
    """Whether JAX takes two values for the same."""
    return type(other) is type(value) and other == value


def _forget_compiled_functions():
    import jax

    from sklearn_gn.arrays import numpy_programs

    jax.clear_caches()
    numpy_programs.forget()
