"""Compilations and seconds of a 5-fold GridSearchCV over 4 penalties on 403 x 5 data.

The folds differ in their numbers of rows, and the final fit has more: padding should
let all of them share one compilation of every function.
"""

import time
import warnings
from collections import Counter

import jax
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from benchmarks._report import settings, summary, target
from benchmarks._timing import stages
from sklearn_gn import ShallowReLURegressor
from sklearn_gn.solvers import JointGN

N_ROWS = 403  # not a multiple of 5
ALPHAS = [0.0, 1e-6, 1e-4, 1e-2]

NOTES = (
    "One process, n_jobs=1, default settings but for alpha: 21 fits.",
    "most_compilations is the largest number of compilations of one function; "
    "compilations lists all functions. seconds are those of a second search, which "
    "compiles nothing.",
)


def search(parameters):
    """One search; the fitted GridSearchCV and its seconds."""
    X, y = make_friedman1(N_ROWS, n_features=5, noise=1.0, random_state=0)
    grid = GridSearchCV(ShallowReLURegressor(**parameters), {"alpha": ALPHAS}, cv=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = time.perf_counter()
        grid.fit(X, y)
    return grid, time.perf_counter() - start


def run(args):
    parameters = {"n_neurons": 20, "random_state": 0}
    if args.quick:
        solver = JointGN(relocations=1)
        parameters |= {"n_neurons": 3, "solver": solver, "max_iter": 5}
    jax.clear_caches()
    stages()
    counts = Counter()

    def count(event, seconds, **about):
        del seconds
        if event.endswith("backend_compile_duration"):
            counts[about["fun_name"]] += 1

    jax.monitoring.register_event_duration_secs_listener(count)
    search(parameters)
    jax.monitoring.unregister_event_duration_listener(count)
    compiling = sum(stages().values())
    grid, seconds = search(parameters)
    runs = [
        {
            "seconds": seconds,
            "most_compilations": max(counts.values()),
            "best_alpha": grid.best_params_["alpha"],
            "best_R2": grid.best_score_,
        }
    ]
    methods = {
        "sggn": {
            "settings": settings(ShallowReLURegressor(**parameters)),
            "compilations": dict(counts),
            "compile_seconds": compiling,
            "runs": runs,
            "summary": summary(runs),
        }
    }
    problem = {
        "description": f"{N_ROWS} x 5, 5 folds, alphas {ALPHAS}",
        "rows": N_ROWS,
        "methods": methods,
        "target": target(methods, "sggn", "most_compilations", "max", 1),
    }
    return {"problems": {"friedman1": problem}, "notes": NOTES}
