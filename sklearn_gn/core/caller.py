"""Where a warning comes from, as the user sees it."""

import sys


def level_of_the_user():
    """The stacklevel, seen from the caller, of the call from outside the package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(
        "."
    )[0] in ("sklearn_gn", "sklearn"):
        frame, level = frame.f_back, level + 1
    return level
