"""Versions that a pickled estimator was made with, compared where it is loaded."""

import sys
import warnings
from typing import Any

import numpy as np
import sklearn
from sklearn.base import BaseEstimator

_STAMP = "_made_with"


def versions() -> dict[str, str]:
    """Return the versions that decide what fitted attributes mean."""
    package = sys.modules["sklearn_gn"]  # the core imports nothing from above
    return {
        "sklearn_gn": package.__version__,
        "scikit-learn": sklearn.__version__,
        "numpy": np.__version__,
    }


class VersionStampMixin(BaseEstimator):
    """Write the versions into the state of an estimator, and compare them on loading.

    pickle, joblib and skops all take the state.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {**dict(super().__getstate__()), _STAMP: versions()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        then, now = state.pop(_STAMP, {}), versions()
        super().__setstate__(state)
        changed = [
            f"{name} {then.get(name, 'unknown')}, now {now[name]}"
            for name in now
            if _release(then.get(name, "")) != _release(now[name])
        ]
        if changed:
            warnings.warn(
                f"This {type(self).__name__} was saved with {'; '.join(changed)}. Its "
                "predictions may differ or fail: fit it again, or load it with the "
                "versions that it was saved with.",
                UserWarning,
                stacklevel=2,
            )


def _release(version):
    """Major and minor number; patches keep the meaning of attributes."""
    return version.split(".")[:2]
