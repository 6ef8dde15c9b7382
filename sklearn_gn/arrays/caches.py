"""What is computed once, and kept in memory."""

import weakref
from functools import cached_property

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
