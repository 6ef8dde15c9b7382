"""One fit of a head with many classes in a process of its own: its trace and memory.

``python -m benchmarks._many_classes METHOD CLASSES SECONDS`` prints a line of JSON: CPU
seconds and objective of every evaluation that is the least so far, and the peak memory
of the process. Solvers of scikit-learn are stopped after so many CPU seconds.
"""

import json
import resource
import sys
import time
import warnings
from unittest import mock

import numpy as np
from scipy import optimize
from sklearn.linear_model import LogisticRegression, _logistic

ROWS, FEATURES = 30_000, 256


class OutOfTimeError(Exception):
    """The seconds of a solver are used up."""


class Trace:
    """CPU seconds and objective of the iterates of a fit, each the least so far."""

    def __init__(self, limit):
        self.limit, self.points, self.start = limit, [], time.process_time()

    def add(self, loss):
        seconds = time.process_time() - self.start
        if not self.points or loss < self.points[-1][1]:
            self.points.append((seconds, float(loss)))
        if seconds > self.limit:
            raise OutOfTimeError


def features(n, d, n_classes):
    """Rows of length one with a decaying spectrum, a mean for each class."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(n) % n_classes)
    means = 0.9 * rng.standard_normal((n_classes, d))
    X = means[y] + 1.3 * rng.standard_normal((n, d))
    X *= np.exp(-np.arange(d) / (d / 4))
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


def fit_head(X, y, trace):
    from sklearn_gn import FGNSoftmaxHead
    from sklearn_gn.callbacks import LogWriter

    model = FGNSoftmaxHead(alpha=1 / len(y), tol=1e-9)
    model.set_callbacks(LogWriter(lambda row: trace.add(row["loss"])))
    model.fit(X, y)


def fit_peer(solver, X, y, trace):
    minimize, newton_cg = optimize.minimize, _logistic._newton_cg

    def traced_minimize(function, start, **words):
        def traced(w, *given):
            loss, gradient = function(w, *given)
            trace.add(loss)
            return loss, gradient

        return minimize(traced, start, **words)

    def traced_newton_cg(grad_hess, func, grad, **words):
        def traced(w, *given):
            loss = func(w, *given)
            trace.add(loss)
            return loss

        return newton_cg(grad_hess, traced, grad, **words)

    model = LogisticRegression(solver=solver, tol=1e-9, max_iter=10_000)
    with (
        mock.patch.object(optimize, "minimize", traced_minimize),
        mock.patch.object(_logistic, "_newton_cg", traced_newton_cg),
    ):
        model.fit(X, y)


def main():
    method, n_classes, limit = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    X, y = features(ROWS, FEATURES, n_classes)
    warnings.simplefilter("ignore")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trace = Trace(limit)
    try:
        if method == "head":
            fit_head(X, y, trace)
        else:
            fit_peer(method, X, y, trace)
    except OutOfTimeError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"trace": trace.points, "peak_mib": peak / 1024, "data_mib": before / 1024}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
