"""What is computed once: in memory, and on disk by joblib."""

import os
import weakref
from functools import cached_property

from joblib import Memory

from sklearn_gn._caller import warn_user

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


def cached_on_disk(function, arguments, *, folder, ignore=(), on_read=None):
    """Call a function, or read its result from disk if it is there.

    Where the folder cannot be used, the result is computed again with a warning; where
    a file is damaged, joblib does so and logs it. A result is void when the source of
    the function changes.

    Parameters
    ----------
    function, arguments : callable, dict
        At the top of a module; its arguments by name.
    folder : callable
        Returns the folder of the results.
    ignore : sequence of str, default=()
        Names of arguments that do not change the result.
    on_read : callable, default=None
        Called with the folder if the result was read from it.
    """
    try:
        place = folder()
        # Compressed files have a checksum.
        memory = Memory(place, compress=("gzip", 1), verbose=0)
        if not os.access(place, os.W_OK):
            raise PermissionError(f"{str(place)!r} cannot be written to")
    except OSError as error:
        warn_user(
            f"The folder of stored results cannot be used ({error}): the result is "
            "computed again."
        )
        return function(**arguments)
    memorized = memory.cache(function, ignore=list(ignore))
    if on_read is not None and memorized.check_call_in_cache(**arguments):
        on_read(place)
    return memorized(**arguments)
