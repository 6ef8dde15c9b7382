"""Kills and interrupts: 50 of each an estimator, spread over its solvers.

A fit is killed as ``kill -9`` does at random moments and resumed from its checkpoint;
nothing may be lost beyond the last save, the result has to be that of a fit that nobody
killed, bit for bit, and no temporary file may stay. Ctrl-C at random moments has to
leave a model that predicts, or none, and a process in which the next fit gives what it
gives alone. Another row is the share of a fit's seconds that a checkpoint takes.
``--only`` takes names of estimators. A run is a solver, written when it is complete; a
file is continued where it ends.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks._kills import solvers
from benchmarks._report import progress, summary, target
from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.callbacks import Checkpoint

NAMES = (
    "FGNSoftmaxHead",
    "PINNSolver",
    "SegmentedRegressor",
    "ShallowReLURegressor",
    "VarProNetClassifier",
    "VarProNetRegressor",
)
N = 50
QUICK = ("FGNSoftmaxHead",)
COST = "cost"
MOST = 0.02  # share of a fit's seconds


def run(args):
    problems = _known(args.out)
    names = args.only or ([*QUICK] if args.quick else [*NAMES, COST])
    for name in names:
        if name == COST:
            problems[COST] = cost()
            args.write(_answer(problems))
            continue
        known = problems.get(name, {}).get("methods", {})
        all_solvers = solvers(name) or ["default"]
        shares = spread(2 if args.quick else N, len(all_solvers))
        for solver, n in zip(all_solvers, shares, strict=True):
            if solver in known or not n:
                continue
            known[solver] = _method(worker(name, solver, n))
            problems[name] = _problem(known)
            args.write(_answer(problems))
            progress(name, solver, known[solver]["runs"][0])
    return _answer(problems)


def spread(total, n_parts):
    """Whole numbers that differ by one at most, and their sum."""
    return [total // n_parts + (i < total % n_parts) for i in range(n_parts)]


def worker(name, solver, n, seed=0):
    """Figures of one solver, from a process that has not used JAX."""
    n_kills = 0 if name == "SegmentedRegressor" else n
    words = [name, solver, str(n_kills), str(n), str(seed)]
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks._kills", *words],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    if process.returncode:
        raise RuntimeError(process.stderr[-2000:])
    return json.loads(process.stdout.splitlines()[-1])


def cost(n_rows=100_000, n_features=128, seconds=20.0):
    """The share of a fit's seconds that a checkpoint takes, once a second."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, n_features), dtype=np.float32)
    labels = np.argmax(X[:, :10] + rng.standard_normal((n_rows, 10)), axis=1)
    spent = []

    class Timed(Checkpoint):
        def on_fit_task_begin(self, estimator, context):
            self._timed(super().on_fit_task_begin, estimator, context)

        def on_fit_task_end(self, estimator, context):
            return self._timed(super().on_fit_task_end, estimator, context)

        def _timed(self, hook, *words):
            began = time.perf_counter()
            answer = hook(*words)
            spent.append(time.perf_counter() - began)
            return answer

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "fit.ckpt")
        model = FGNSoftmaxHead(alpha=0.0, tol=0.0, max_iter=10_000, max_time=seconds)
        model.set_params(dtype="float32", solver="fgn")
        began = time.perf_counter()
        model.set_callbacks(Timed(path, every=1.0)).fit(X, labels)
        figures = {
            "seed": 0,
            "fit_seconds": time.perf_counter() - began,
            "checkpoint_seconds": sum(spent),
            "share": sum(spent) / (time.perf_counter() - began),
            "megabytes": path.stat().st_size / 1e6,
        }
    methods = {"checkpoint": {**_method(figures), "settings": {"every": 1.0}}}
    return {
        "description": f"FGNSoftmaxHead, {n_rows:,} x {n_features} rows, 10 classes; a "
        "checkpoint each second",
        "methods": methods,
        "target": target(methods, "checkpoint", "share", "max", MOST),
    }


def _method(figures):
    return {"settings": {}, "runs": [figures], "summary": summary([figures])}


def _known(path):
    """Problems that a file has."""
    if path is None or not path.exists():
        return {}
    return json.loads(path.read_text())["problems"]


def _problem(methods):
    runs = [method["runs"][0] for method in methods.values()]

    def total(name):
        return sum(run.get(name, 0) for run in runs)

    n_kills, n_interrupts = total("kills"), total("interrupts")
    wrong = total("lost") + total("unequal") + total("left_files")
    targets = {
        "target_interrupts": _survived("interrupts", n_interrupts - total("unusable"))
    }
    if n_kills:
        targets["target"] = _survived("kills", n_kills - wrong)
    return {
        "description": f"{n_kills} kills and {n_interrupts} interrupts, "
        f"{len(methods)} solvers",
        "methods": methods,
        **targets,
    }


def _survived(figure, value):
    return {
        "method": "all solvers",
        "figure": f"{figure} survived",
        "statistic": "sum",
        "at_least": N,
        "value": value,
        "passed": value >= N,
    }


def _answer(problems):
    return {
        "problems": problems,
        "notes": [
            "SegmentedRegressor has no checkpoints: its fits take no iterations that "
            "could be resumed."
        ],
    }
