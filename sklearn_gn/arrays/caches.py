"""What is computed, or allocated, once."""

import weakref
from functools import cached_property
from sys import getrefcount

import numpy as np

_LARGEST = 2**20  # numbers in an array that is kept


class StoredWithoutCaches:
    """Base of classes whose cached properties are not pickled."""

    def __getstate__(self):
        return {
            name: value
            for name, value in self.__dict__.items()
            if not isinstance(getattr(type(self), name, None), cached_property)
        }


class KeptWithArrays:
    """Arrays made of arrays that do not change, kept as long as these are.

    What is made must be no view, or the other one would be kept for its sake. Large
    ones are made anew each time.
    """

    def __init__(self):
        self._made = {}  # by the identity of what they are made of

    def get(self, array, key, make):
        """What ``make()`` makes of an array, under a key."""
        name = id(array), key
        if name in self._made:
            return self._made[name]
        made = make()
        if made.size <= _LARGEST:
            self._made[name] = made
            weakref.finalize(array, self._made.pop, name, None).atexit = False
        return made


class ReusedMemory:
    """Memory for an array that is made anew again and again.

    What is given back to the system is asked for again page by page, which takes longer
    than to fill a Jacobian of a few megabytes.
    """

    def __init__(self):
        self._last = last = np.empty(0)
        # By this object, by a name, and by the argument, which some versions of Python
        # do not count.
        self._own_references = getrefcount(last)

    def empty(self, shape, dtype):
        """Return the last array, if nothing else refers to it, or a new one."""
        last = self._last
        is_free = getrefcount(last) == self._own_references
        if is_free and last.shape == shape and last.dtype == dtype:
            return last
        new = np.empty(shape, dtype)
        self._last = new if new.size <= _LARGEST else None
        return new
