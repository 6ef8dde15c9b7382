"""Timed fits, compilation apart."""

import time
import warnings

import jax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

# What JAX calls the three stages of a compilation: following the Python functions,
# writing them down for XLA, and compiling them.
STAGES = {
    "trace_seconds": "/jax/core/compile/jaxpr_trace_duration",
    "lower_seconds": "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "xla_seconds": "/jax/core/compile/backend_compile_duration",
}

_intervals = {event: [] for event in STAGES.values()}


def _listen(event, duration, **_):
    if event in _intervals:
        end = time.perf_counter()
        _intervals[event].append((end - duration, end))


jax.monitoring.register_event_duration_secs_listener(_listen)


def stages():
    """Seconds of the compilations since the last call, by stage."""
    seconds = {name: covered(_intervals[event]) for name, event in STAGES.items()}
    for intervals in _intervals.values():
        intervals.clear()
    return seconds


def covered(intervals):
    """Length of the union: a trace contains those of the functions it calls."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def timed(call):
    """What it answers, and its seconds."""
    with warnings.catch_warnings():
        # That a baseline runs out of iterations is part of its result.
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = time.perf_counter()
        answer = call()
    return answer, time.perf_counter() - start


def warm(call):
    """The same where nothing is compiled: of the second call, if the first compiles."""
    stages()
    answer = timed(call)
    if sum(stages().values()) > 0:
        answer = timed(call)
    return answer


def timed_fit(estimator, X, y, **words):
    """Fit a clone, with further words of ``fit``; return it and the seconds."""
    model = clone(estimator)
    _, seconds = timed(lambda: model.fit(X, y, **words))
    return model, seconds


def warm_fit(estimator, X, y):
    """A fit that compiles nothing, and its seconds."""
    return warm(lambda: clone(estimator).fit(X, y))


def compiling(call):
    """Seconds that a first call spends on compilation, which later ones find done.

    A difference of two calls would be mostly noise where one takes longer than the
    compilation; hence JAX's own account.
    """
    jax.clear_caches()
    stages()
    timed(call)
    return sum(stages().values())


def compile_seconds(estimator, X, y, **words):
    """Seconds that a first fit spends on compilation, which later fits find done."""
    return compiling(lambda: clone(estimator).fit(X, y, **words))
