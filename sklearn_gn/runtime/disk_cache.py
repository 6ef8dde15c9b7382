"""Results of long computations on disk, kept by joblib."""

import os

from joblib import Memory

from sklearn_gn._caller import warn_user

_CHECKED = ("gzip", 1)  # has a checksum, which a plain file has not


def cached_on_disk(function, arguments, *, folder, ignore=(), on_read=None):
    """Call a function, or read its result from disk if it is there.

    A folder that cannot be read or written, and a damaged file, lead to a warning and
    to another computation. A result is void when the source of the function changes.

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
        memory = Memory(place, compress=_CHECKED, verbose=0)
        if not os.access(place, os.W_OK):
            raise PermissionError(f"{str(place)!r} cannot be written to")
        memorized = memory.cache(function, ignore=list(ignore))
        known = memorized.check_call_in_cache(**arguments)
    except OSError as error:
        warn_user(
            f"The folder of stored results cannot be used ({error}): the result is "
            "computed again."
        )
        return function(**arguments)
    if known:
        stored = memorized.call_and_shelve(**arguments)
        try:
            result = stored.get()
        except Exception as error:  # of a damaged file it can be nearly anything
            warn_user(
                f"A result stored in {place} cannot be used ({error}): it is computed "
                "again."
            )
            stored.clear()
        else:
            if on_read is not None:
                on_read(place)
            return result
    return memorized(**arguments)
