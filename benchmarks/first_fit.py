"""Seconds of the first fit of a fresh process, and of later fits, on 300 x 5 data.

The first fit of a process compiles; this is what a user waits for in a notebook. Every
run is a process of its own: ``python -m benchmarks.first_fit PARAMETERS``, which prints
its figures as JSON.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
N_LATER = 5  # fits after the first one of a process

NOTES = (
    "Default settings, another random_state for every fit; a run is a fresh process.",
    "first_fit_seconds includes compilation, not the import. JAX spends "
    "trace_seconds of it on following the Python functions, lower_seconds on writing "
    "them down for XLA, and xla_seconds on compiling them; run_seconds is the rest.",
    "later_fit_seconds is the median over the later fits of the process.",
)


def data(n_rows=300):
    from sklearn.datasets import make_friedman1

    return make_friedman1(n_rows, n_features=5, noise=1.0, random_state=0)


def fresh_process(parameters):
    """Figures of this process, which has imported nothing of the package yet."""
    start = time.perf_counter()
    from sklearn_gn import ShallowReLURegressor

    import_seconds = time.perf_counter() - start
    from benchmarks._timing import stages, timed_fit
    from sklearn_gn.solvers import JointGN

    if "relocations" in parameters:
        solver = JointGN(relocations=parameters["relocations"])
        parameters = {"n_neurons": parameters["n_neurons"], "solver": solver}

    def fit(seed):
        return timed_fit(ShallowReLURegressor(random_state=seed, **parameters), X, y)

    X, y = data()
    _, first = fit(0)
    compilation = stages()
    models, later = zip(*map(fit, range(1, 1 + N_LATER)), strict=True)
    return {
        "import_seconds": import_seconds,
        "first_fit_seconds": first,
        **compilation,
        "run_seconds": first - sum(compilation.values()),
        "later_fit_seconds": median(later),
        "iterations": median(m.n_iter_ for m in models),
        "steps": median(sum(m.convergence_log_["inner_iterations"]) for m in models),
        "R2": median(m.score(X, y) for m in models),
    }


def run(args):
    from benchmarks._report import summary

    parameters = {"n_neurons": 3, "relocations": 1} if args.quick else {}
    command = [sys.executable, "-m", "benchmarks.first_fit", json.dumps(parameters)]
    runs = []
    for _ in args.seeds:
        process = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
        runs.append(json.loads(process.stdout))
    methods = {"sggn": {"settings": parameters, "runs": runs, "summary": summary(runs)}}
    problem = {
        "description": "300 x 5, Friedman's first function with noise",
        "rows": 300,
        "methods": methods,
    }
    return {"problems": {"friedman1": problem}, "notes": NOTES}


if __name__ == "__main__":
    print(json.dumps(fresh_process(json.loads(sys.argv[1])), default=float))
