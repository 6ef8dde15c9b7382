"""Timed fits, compilation apart."""

import time
import warnings

import jax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning


def timed_fit(estimator, X, y):
    """Fit a clone; return it with the seconds that took."""
    model = clone(estimator)
    with warnings.catch_warnings():
        # That a baseline runs out of iterations is part of its result.
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = time.perf_counter()
        model.fit(X, y)
    return model, time.perf_counter() - start


def compile_seconds(estimator, X, y):
    """Seconds by which a first fit of these shapes exceeds a second one.

    Afterwards the functions of this estimator are compiled. The estimator should stop
    after a few steps: the difference of two long times is mostly noise.
    """
    jax.clear_caches()
    first = timed_fit(estimator, X, y)[1]
    second = timed_fit(estimator, X, y)[1]
    return max(first - second, 0.0)
