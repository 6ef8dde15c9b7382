"""DeepXDE's demos and 18 further problems by PINNSolver with default settings.

Every forward and inverse demo of DeepXDE is stated in sklearn_gn.pde and solved with
default settings in a process of its own; DeepXDE solves it with its demo's own network,
points, weights and optimisers in as many seconds. Rows that the result file has already
are kept: a run that was interrupted goes on where it ended. ``--only`` does its rows
again.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks._pinn_peers import python_of
from benchmarks._report import progress, summary

ROOT = Path(__file__).parents[1]
SECONDS = 60.0
SOLVED, FOUND = 1e-4, 1e-3  # errors of solutions, and of coefficients and fields
WRONG = 1e-2  # error of which a fit must not say that it has converged
THIRD, THOUSANDTH = 1 / 3, 1e-3  # of the error of DeepXDE
METHODS = ("default", "deepxde", "classical")
GRACE = 600.0  # seconds after which a process that has not answered is ended

NOTES = (
    "Default settings; only max_time is given. Every fit has a process of its own, and "
    "its seconds include compilation. error is the relative L2 error over the outputs "
    "that are compared; where coefficients or an unknown function are looked for, the "
    "largest relative error of a coefficient, or that of the function.",
    "solved: error at most 1e-4, of coefficients and unknown functions 1e-3. misled: "
    "the fit says that it has converged, and the error is above 1e-2.",
    "DeepXDE (PyTorch) has the network, points, weights and optimisers of its demo, "
    "for as many seconds; where its demo ends with L-BFGS, that has at least half of "
    "them. It ends earlier where the demo's iterations do.",
    "error_estimate: what the fitted model says of its own error, where a solution is "
    "looked for; it holds where it is within a factor of three of the error.",
    "In the committed file every process, ours and DeepXDE's, had one core to itself: "
    "with one thread DeepXDE took more iterations in a minute than with two. DeepXDE's "
    "fits there are of another day and of an Intel core, ours of an AMD core, on which "
    "products of float64 matrices take 1.8 times as long.",
    "textbook_*: further problems, which were stated before any of them was solved.",
    "classical: SciPy's solvers, for equations of one axis of space with Chebyshev "
    "nodes in it, or finite elements of degree four (scikit-fem), finer until they "
    "are as accurate as the default fit; seconds are CPU time of the last level alone, "
    "on a warm process with one thread, in the committed file of another day than the "
    "fits and another machine. Forward rows that a few lines state have one.",
)


def run(args):
    from benchmarks._demos import DEMOS, TEXTBOOK

    seconds = args.seconds or (1.0 if args.quick else SECONDS)
    seed = args.seeds[0]
    rows = {**DEMOS, **{f"textbook_{name}": None for name in TEXTBOOK}}
    names = args.only or (["poisson_dirichlet"] if args.quick else list(rows))
    unknown = set(names) - set(rows)
    if unknown:
        raise SystemExit(f"unknown: {sorted(unknown)}; the rows are {list(rows)}")
    answers = {} if args.only or args.quick else kept_rows(args.out, seconds, seed)
    for name in names:
        row = answers.get(name) or row_of(name, seconds)
        for method in METHODS:
            if method not in row["methods"] and method not in row["skipped"]:
                add_method(row, name, method, args.peers, seconds, seed)
        answers[name] = row
        args.write({"problems": answers, "seeds": [seed], "notes": NOTES})
    everything = {**kept_rows(args.out, seconds, seed), **answers}
    answers[next(reversed(answers))] |= targets(everything)
    return {"problems": answers, "seeds": [seed], "notes": NOTES}


def row_of(name, seconds):
    kind = "further problem" if name.startswith("textbook_") else "demo"
    words = name.removeprefix("textbook_").replace("_", " ")
    description = f"{words} ({kind}), {seconds:g} s"
    return {"description": description, "methods": {}, "skipped": {}}


def kept_rows(path, seconds, seed):
    """Rows of a result file that had the same seconds and seed, without targets."""
    if path is None or not path.exists():
        return {}
    problems = json.loads(path.read_text())["problems"]
    found = {}
    for name, row in problems.items():
        runs = [r for m in row["methods"].values() for r in m["runs"]]
        if runs and all((r.get("given"), r["seed"]) == (seconds, seed) for r in runs):
            parts = ("description", "methods", "skipped")
            found[name] = {part: row.get(part, {}) for part in parts}
    return found


def add_method(row, name, method, peers, seconds, seed):
    """Run a method in a process of its own and add its figures to a row."""
    task = {"name": name, "seconds": seconds, "seed": seed}
    if method == "classical":
        from benchmarks._demos.classical import ROWS

        if name not in ROWS or "default" not in row["methods"]:
            row["skipped"][method] = "no classical method is stated"
            return
        if ROWS[name][0] == "scikit-fem" and find_spec("skfem") is None:
            progress("scikit-fem is not installed")
            return  # a later run may have it
        del task["seed"]
        task["error"] = row["methods"]["default"]["runs"][0]["error"]
        command = [sys.executable, "-m", "benchmarks._demos.classical"]
        figures = answer_of(command, task, OPENBLAS_NUM_THREADS="1")
    elif method == "default":
        figures = answer_of([sys.executable, "-m", "benchmarks._demos.worker"], task)
    else:
        if name.startswith("textbook_"):
            row["skipped"][method] = "not a demo of DeepXDE"
            return
        python = python_of(peers, "deepxde")
        if python is None:
            progress("deepxde is not installed: see benchmarks/_pinn_peers.py")
            return  # a later run may have it
        figures = deepxde_figures(python, task)
    progress({"row": name, "method": method, **figures})
    if "failed" in figures:
        row["skipped"][method] = figures["failed"]
        return
    run = {"seed": seed, "given": seconds, **figures}
    row["methods"][method] = {"settings": {}, "runs": [run], "summary": summary([run])}


def answer_of(command, task, **environment):
    """What a process prints last, or why there is none."""
    try:
        process = subprocess.run(
            [*command, json.dumps(task)],
            cwd=ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=task["seconds"] + GRACE,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {task['seconds'] + GRACE:g} seconds"}
    if process.returncode:
        progress(process.stderr[-2000:])
        lines = process.stderr.strip().splitlines() or ["no message"]
        return {"failed": lines[-1][:200]}
    return json.loads(process.stdout.strip().splitlines()[-1])


def deepxde_figures(python, task):
    """Figures of DeepXDE, whose predictions are compared here."""
    from benchmarks._demos import DEMOS
    from benchmarks._demos.common import largest_error, relative_error, test_points

    demo = DEMOS[task["name"]]()
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder, f"{name}.npz")) for name in ("data", "answer")}
        points, values = test_points(demo) or (np.zeros((0, 1)), None)
        names = ("X", "y") if demo.data else ()
        np.savez(
            files["data"],
            points=points,
            **dict(zip(names, demo.data, strict=True)),
        )
        module = [python, "-m", "benchmarks._peers.deepxde_demos"]
        figures = answer_of(module, {**task, **files}, DDE_BACKEND="pytorch")
        if "failed" in figures:
            return figures
        if demo.truth:
            figures["error"] = largest_error(figures.pop("coefficients"), demo.truth)
        else:
            found = np.load(files["answer"])["values"]
            figures["error"] = relative_error(demo.problem, found, values)
            figures.pop("coefficients")
    figures["error"] = figures["error"] if math.isfinite(figures["error"]) else 1e9
    return figures


def targets(rows):
    """What was aimed at over all rows, and what was reached."""
    demos = {n: r["methods"] for n, r in rows.items() if not n.startswith("textbook_")}
    ours = [m["default"]["runs"][0] for m in demos.values() if "default" in m]
    both = [m for m in demos.values() if {"default", "deepxde"} <= set(m)]
    ratios = [
        max(m["default"]["runs"][0]["error"], 1e-16)
        / max(m["deepxde"]["runs"][0]["error"], 1e-16)
        for m in both
    ]
    share = float(np.mean([run["solved"] for run in ours])) if ours else 0.0
    misled = sum(run["misled"] for run in ours)
    answer = {
        "target_solved": aim("demos", "solved", "share", share, at_least=0.9),
        "target_misled": aim("demos", "misled", "number", misled, at_most=0),
    }
    runs = [m["default"]["runs"][0] for m in methods_of(rows) if "default" in m]
    judged = [run["estimate_holds"] for run in runs if run.get("error_estimate")]
    if judged:
        share = float(np.mean(judged))
        name, figure = "target_estimate", "error_estimate within a factor of 3"
        answer[name] = aim("all rows", figure, "share", share, at_least=0.5)
    if ratios:
        for name, value, bound in (
            ("median", float(np.median(ratios)), THOUSANDTH),
            ("largest", float(max(ratios)), THIRD),
        ):
            figure = "error over DeepXDE's"
            answer[f"target_{name}"] = aim("demos", figure, name, value, at_most=bound)
    return answer


def methods_of(rows):
    return [row["methods"] for row in rows.values()]


def aim(method, figure, statistic, value, **bound):
    """A target over all rows, in the form of those of one row."""
    passed = value >= bound["at_least"] if "at_least" in bound else None
    if passed is None:
        passed = value <= bound["at_most"]
    return {
        "method": method,
        "figure": figure,
        "statistic": statistic,
        **bound,
        "value": value,
        "passed": bool(passed),
    }
