"""One search of ``searches`` in a process of its own.

``python -m benchmarks._searches ESTIMATOR N_JOBS QUICK`` prints one JSON object: the
seconds of a search with an empty cache of compiled programs, and of the same once more
in the same process.
"""

import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

FOLDS = 5
PEERS = {
    "FGNSoftmaxHead": "LogisticRegression",
    "PINNSolver": "MLPRegressor",
    "SegmentedRegressor": "MLPRegressor",
    "ShallowReLURegressor": "MLPRegressor",
    "VarProNetClassifier": "MLPClassifier",
    "VarProNetRegressor": "MLPRegressor",
}


def decay(u, t):
    from sklearn_gn.pde import d

    return d(u, "t") + u


def one(x):
    return 1.0


def data(name):
    """Rows that the estimator and its peer search on."""
    from sklearn.datasets import load_diabetes, load_digits, load_wine
    from sklearn.preprocessing import scale

    rng = np.random.default_rng(0)
    if name == "FGNSoftmaxHead":
        X, y = load_digits(return_X_y=True)
        return X / 16, y
    if name == "VarProNetClassifier":
        X, y = load_wine(return_X_y=True)
        return scale(X), y
    if name == "PINNSolver":
        t = rng.uniform(0, 1, (100, 1))
        return t, np.exp(-t[:, 0]) + 0.01 * rng.standard_normal(100)
    X, y = load_diabetes(return_X_y=True)
    if name == "SegmentedRegressor":
        X = X[:, 2:3]
    return scale(X), scale(y)


def searched(name, peer):
    """An estimator and a grid of twelve candidates."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    import sklearn_gn
    from sklearn_gn.pde import Box, Initial, Problem

    if peer and name == "FGNSoftmaxHead":
        return LogisticRegression(max_iter=1000), {"C": np.logspace(-3, 3, 12)}
    if peer:
        network = MLPClassifier if name == "VarProNetClassifier" else MLPRegressor
        grid = {"alpha": [1e-4, 1e-3, 1e-2, 1e-1], "learning_rate_init": [1e-3, 3e-3]}
        grid["learning_rate_init"].append(1e-2)
        return network(random_state=0), grid
    if name == "SegmentedRegressor":
        grid = {"n_breakpoints": [0, 1, 2], "jumps": [False, True]}
        return sklearn_gn.SegmentedRegressor(), {**grid, "covariance": ["HC0", "HC3"]}
    grid = {"damping": [1e-3, 1e-2, 1e-1, 1.0], "rank": [5, 10, None]}
    if name == "PINNSolver":
        equation = Problem(decay, Box(t=(0.0, 1.0)), (Initial(one),))
        words = {"hidden_layer_sizes": (8,), "n_interior": 50, "max_iter": 50}
        return sklearn_gn.PINNSolver(equation, random_state=0, **words), grid
    return getattr(sklearn_gn, name)(random_state=0), grid


def run(name, peer, n_jobs, quick):
    import jax
    from sklearn.model_selection import GridSearchCV

    import sklearn_gn

    compiled = []

    def listen(event, seconds, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    model, grid = searched(name, peer)
    X, y = data(name)
    if quick:
        X, y = X[:120], y[:120]
        grid = {key: values[:1] for key, values in grid.items()}
    search = GridSearchCV(model, grid, cv=FOLDS, n_jobs=n_jobs)
    found = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache = sklearn_gn.enable_compilation_cache(folder)
        for word in ("first", "second"):
            start = time.perf_counter()
            search.fit(X, y)
            found[f"{word}_seconds"] = time.perf_counter() - start
        found["programs"] = len(list(Path(cache).glob("*-cache")))
    return {
        **found,
        "compilations": len(compiled),  # of this process; of its workers where many
        "compile_seconds": sum(compiled),
        "best_score": search.best_score_,
        "failed_fits": int(np.isnan(search.cv_results_["mean_test_score"]).sum()),
    }


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    name, peer, n_jobs, quick = sys.argv[1], *map(int, sys.argv[2:5])
    print(json.dumps(run(name, bool(peer), n_jobs, bool(quick))))
