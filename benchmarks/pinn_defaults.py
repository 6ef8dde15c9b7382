"""The problems of the other pinn_* experiments by PINNSolver with default settings.

Each fit has a process of its own, its compilation counts, and it gets as many seconds
as the fit with chosen layers and points in the result file of the same name; those
compile nothing. ``default`` is given max_time only, ``one parameter`` one setting more.
Rows that the result file has already are kept; ``--only`` does its rows again.
"""

import json
import sys
import time
import warnings
from pathlib import Path

from benchmarks import (
    pinn_allen_cahn,
    pinn_burgers,
    pinn_heat,
    pinn_kovasznay,
    pinn_poisson5d,
    pinn_poisson10d,
)
from benchmarks._pinn import Scorer, problem_of
from benchmarks._report import progress, summary, target
from benchmarks.pinn_demos import answer_of, kept_rows

CASES = {
    "kovasznay": pinn_kovasznay.CASE,
    "allen_cahn": pinn_allen_cahn.CASE,
    "poisson5d": pinn_poisson5d.CASE,
    "heat": pinn_heat.CASE,
    "poisson10d": pinn_poisson10d.CASE,
    "burgers": pinn_burgers.CASE,
    "allen_cahn_long": pinn_allen_cahn.LONG,
}
# tol=0 goes on after the estimated error is small.
ONE = {name: {"tol": 0.0} for name in CASES}
METHODS = ("default", "one parameter")
RESULTS = Path(__file__).parent / "results"
NOTES = (
    "error is the relative L2 error of the outputs that count. chosen_error and "
    "chosen_seconds are the medians of the fits with chosen layers and points, in the "
    "result file of the problem; targets ask for these errors in these seconds.",
)


def run(args):
    seed, quick = args.seeds[0], 2.0 if args.quick else None
    names = args.only or (["kovasznay"] if args.quick else list(CASES))
    answers = {}
    for name in names:
        error, chosen = chosen_figures(name)
        seconds = args.seconds or quick or round(chosen)
        kept = {} if args.only or args.quick else kept_rows(args.out, seconds, seed)
        row = kept.get(name) or {"methods": {}}
        row["description"] = f"{CASES[name].statement}; {seconds:g} s"
        row |= {"chosen_error": error, "chosen_seconds": chosen}
        for method in METHODS:
            if method not in row["methods"]:
                add(row, name, method, seconds, seed)
        if METHODS[-1] in row["methods"]:
            row["target"] = target(
                row["methods"], best_of(row["methods"]), "error", "median", error
            )
        answers[name] = row
        args.write({"problems": answers, "seeds": [seed], "notes": NOTES})
    return {"problems": answers, "seeds": [seed], "notes": NOTES}


def chosen_figures(name):
    """Median error and seconds of the fits with chosen layers and points."""
    path = RESULTS / f"pinn_{name.removesuffix('_long')}.json"
    found = json.loads(path.read_text())["problems"][name]["methods"]["dngd"]["summary"]
    return found["error"]["median"], found["seconds"]["median"]


def best_of(methods):
    return min(methods, key=lambda name: methods[name]["runs"][0]["error"])


def add(row, name, method, seconds, seed):
    """Add the figures of a fit in a process of its own."""
    changes = ONE[name] if method == METHODS[-1] else {}
    task = {"name": name, "seconds": seconds, "seed": seed, "changes": changes}
    figures = answer_of([sys.executable, "-m", "benchmarks.pinn_defaults"], task)
    progress({"row": name, "method": method, **changes, **figures})
    if "failed" not in figures:
        run = {"seed": seed, "given": seconds, **figures}
        row["methods"][method] = {
            "settings": {"max_time": seconds, **changes},
            "runs": [run],
            "summary": summary([run]),
        }


def figures_of(task):
    """Fit and judge in this process."""
    started = time.perf_counter()
    from sklearn_gn import PINNSolver

    case = CASES[task["name"]]
    solver = PINNSolver(
        problem_of(case.solver),
        max_time=task["seconds"],
        random_state=task["seed"],
        **task["changes"],
    )
    return figures_of_fit(solver, case.outputs, started)


def figures_of_fit(solver, outputs, started):
    """Fit, where the clock showed ``started``, and judge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit()
    seconds = time.perf_counter() - started
    estimate = solver.error_estimate_
    return {
        "error": Scorer(solver.problem_, outputs)(solver),
        "seconds": seconds,
        "iterations": solver.n_iter_,
        "weights": sum(w.size for w in (*solver.coefs_, *solver.intercepts_)),
        "stop_reason": solver.stop_reason_,
        "error_estimate": float(estimate) if estimate == estimate else None,
    }


if __name__ == "__main__":
    print(json.dumps(figures_of(json.loads(sys.argv[1]))))
