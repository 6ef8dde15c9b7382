"""Where a warning comes from, as the user sees it."""

import sys
import warnings


def warn_user(message, category=UserWarning):
    """Warn at the call from outside of this package and of scikit-learn."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in ("sklearn_gn", "sklearn"):
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
