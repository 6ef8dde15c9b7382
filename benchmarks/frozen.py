"""Small fits of every estimator and solver, to prove that a change keeps behaviour.

A case is a fit that stops after a few iterations, before rounding grows; its figures
are the loss, the iterations, the reason to stop and twenty predictions. Make a file on
the tree before a change and compare the tree after it with that:

    python -m benchmarks frozen --out before.json
    python -m benchmarks frozen --compare before.json

The comparison fits again, prints the largest deviation of every case, and its exit
status is 1 if any case differs. Loss and predictions may deviate by 1e-9 of the loss
and of the largest prediction. ``--only NAME ...`` takes the cases whose names begin so,
METHOD or METHOD.CASE.

A file holds for the machine, the versions and the kernels of BLAS with which it was
made (``OPENBLAS_CORETYPE`` changes these): others may differ in rounding, which
varpro.gnvpro_wide amplifies to 1e-6. So compare with one made there, on the tree before
the change; the committed file shows what the cases give.
"""

import json
import math
import sys
import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from benchmarks._frozen import METHODS
from benchmarks._report import plain, progress, summary

RTOL = 1e-9
N_VALUES = 20
QUICK = ("shallow_relu.adam", "softmax_head.fgn_rank")

NOTES = (
    "Rounding depends on the machine: compare only with a file of the same one.",
    "seconds include compilation, which cases of a method share in part.",
)


def chosen(args):
    """Cases by method and name, those that the arguments ask for."""
    starts = tuple(args.only or (QUICK if args.quick else [""]))
    found = {
        method: {
            name: case
            for name, case in cases.items()
            if f"{method}.{name}".startswith(starts)
        }
        for method, cases in METHODS.items()
    }
    found = {method: cases for method, cases in found.items() if cases}
    if not found:
        sys.exit(f"No case begins with {' or '.join(starts)}.")
    return found


def figures(name, case):
    """Fit a case and return what is compared."""
    progress(f"--- {name}")
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model, values = case()
    return {
        "loss": model.loss_,
        "iterations": model.n_iter_,
        # partial_fit has none.
        "stop_reason": getattr(model, "stop_reason_", None),
        "predictions": np.ravel(values)[:N_VALUES].tolist(),
        "seconds": time.perf_counter() - start,
    }


def fit_all(methods):
    answers = {}
    for method, cases in methods.items():
        answers[method] = {}
        for name, case in cases.items():
            answers[method][name] = figures(f"{method}.{name}", case)
    return answers


def problems(answers):
    return {
        method: {
            "description": "cases that stop early",
            "methods": {
                name: {"runs": [run], "summary": summary([run])}
                for name, run in cases.items()
            },
        }
        for method, cases in answers.items()
    }


# --- the comparison ------------------------------------------------------------------


def deviation(now, before):
    """Largest difference, relative to the largest number before."""
    now, before = (np.array(values, dtype=float) for values in (now, before))
    if now.shape != before.shape or np.any(np.isnan(now) != np.isnan(before)):
        return math.inf
    known = ~np.isnan(before)
    if np.array_equal(now[known], before[known]):
        return 0.0
    return float(np.max(np.abs(now - before)[known]) / np.max(np.abs(before[known])))


def verdict(now, before):
    """Largest deviation of a case, and "same" or what differs."""
    most = max(
        deviation([now["loss"]], [before["loss"]]),
        deviation(now["predictions"], before["predictions"]),
    )
    changed = [
        f"{name} {now[name]}, was {before[name]}"
        for name in ("iterations", "stop_reason")
        if now[name] != before[name]
    ]
    if not most <= RTOL:
        changed.insert(0, "figures")
    return most, f"DIFFERS: {'; '.join(changed)}" if changed else "same"


def compare(answers, before, complete):
    """Print a line a case; True where all are the same.

    Where all cases were fitted, those that only the file has differ, too.
    """
    now = {f"{m}.{k}": run for m, cases in answers.items() for k, run in cases.items()}
    before = {
        f"{method}.{name}": answer["runs"][0]
        for method, problem in before["problems"].items()
        for name, answer in problem["methods"].items()
    }
    names = [*now, *(name for name in before if complete and name not in now)]
    n_same = 0
    for name in names:
        if name in now and name in before:
            most, words = verdict(now[name], before[name])
        else:
            most = math.inf
            words = f"DIFFERS: only in the {'tree' if name in now else 'file'}"
        n_same += words == "same"
        print(f"{name:36s} {most:9.2e}  {words}")
    print(f"{n_same} of {len(names)} cases are the same.")
    return n_same == len(names)


def run(args):
    # Read first: a file that cannot be read costs no fits.
    before = json.loads(args.compare.read_text()) if args.compare else None
    answers = plain(fit_all(chosen(args)))
    if before is not None:
        complete = not (args.only or args.quick)
        sys.exit(0 if compare(answers, before, complete) else 1)
    answer = problems(answers)
    if args.only and args.out is not None and args.out.exists():
        # The runner keeps other methods; cases of the same method are kept here.
        kept = json.loads(args.out.read_text())["problems"]
        for method, problem in answer.items():
            others = kept.get(method, {}).get("methods", {})
            problem["methods"] = {**others, **problem["methods"]}
    return {"problems": answer, "seeds": [0], "notes": NOTES}
