"""One demo in a fresh process: ``python -m benchmarks._demos.worker TASK``."""

import json
import sys
import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from benchmarks._demos import DEMOS, TEXTBOOK
from benchmarks._demos.common import largest_error, relative_error, test_points
from benchmarks.pinn_demos import FOUND, SOLVED, WRONG
from sklearn_gn import PINNSolver


def demo_of(name):
    """The demo of a row."""
    if name.startswith("textbook_"):
        return TEXTBOOK[name.removeprefix("textbook_")]()
    return DEMOS[name]()


def error_of(model, demo):
    """Error of a fitted model."""
    if demo.truth:
        return largest_error(model.coefficients_, demo.truth)
    points, values = test_points(demo)
    return relative_error(demo.problem, model.predict(points), values)


def figures(name, seconds, seed, **settings):
    """Figures of a default fit."""
    demo = demo_of(name)
    model = PINNSolver(
        demo.problem, max_time=seconds, random_state=seed, **demo.solver, **settings
    )
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(*demo.data)
    spent = time.perf_counter() - begun
    error = error_of(model, demo)
    estimate = None if demo.truth or demo.field else model.error_estimate_
    bound = FOUND if demo.truth or demo.field else SOLVED
    return {
        "error": error if np.isfinite(error) else 1e9,
        "seconds": spent,
        "iterations": model.n_iter_,
        "weights": int(sum(a.size for a in (*model.coefs_, *model.intercepts_))),
        "fresh_loss": float(model.fresh_loss_),
        "stop_reason": model.stop_reason_,
        "error_estimate": estimate,
        "estimate_holds": estimate and bool(1 / 3 <= estimate / max(error, 1e-15) <= 3),
        "solved": bool(error <= bound),
        "misled": bool(model.converged_ and not error <= WRONG),
    }


if __name__ == "__main__":
    print(json.dumps(figures(**json.loads(sys.argv[1]))))
