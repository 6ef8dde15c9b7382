"""Where a warning comes from, as the user sees it."""

import sys
import warnings

_OURS = ("sklearn_gn", "sklearn")


def warn_user(message, category=UserWarning):
    """Warn at the call from outside of this package and of scikit-learn."""
    warnings.warn(message, category, stacklevel=level_of_the_user())


def level_of_the_user():
    """The stacklevel, seen from the caller, of the call from outside the package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _package_of(frame) in _OURS:
        frame, level = frame.f_back, level + 1
    return level


def _package_of(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0]
