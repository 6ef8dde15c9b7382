"""How far ``error_estimate_`` of PINNSolver is from the error, for many problems.

The forward problems of ``pinn_demos`` and of ``gates`` are fitted with the settings of
``gates``, which end many fits long before they are accurate: the estimate has to hold
for these, too. Every problem has a process of its own with one thread, two at a time;
none begins after ``--minutes``. The last line of the output has the share of estimates
within a factor of three of the error.
"""

import json
import math
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
MINUTES = 8.0  # of a run, where --minutes is not given
PATIENCE = 60  # seconds of CPU after which a process is given up
FACTOR, SHARE = 3.0, 0.95  # between estimate and error, of all problems
EQUAL = ("diffusion_resample", "heat_resample", "burgers_rar")  # to other rows

NOTES = (
    "Default settings, random_state=0, 100 iterations at most, or 350 of ordinary "
    "differential equations in time. error is the relative L2 error over the outputs "
    "that are compared, estimate is error_estimate_, ratio the estimate over the "
    "error; seconds are CPU time with one thread, compilation included.",
    "A row without an estimate is one that is refused, where the network is too large, "
    "the problem leaves something open or the residuals do not tell, or one whose "
    "reference has not all outputs.",
)


def names():
    """The problems that may have an estimate: not those with observations."""
    from benchmarks._demos import DEMOS, TEXTBOOK, inverse
    from benchmarks._gates import practitioners

    every = {**DEMOS, **TEXTBOOK, **practitioners.ROWS}
    return [n for n in every if n not in EQUAL and n not in inverse.ROWS]


def figures(name):
    """Error and estimate of a fit, with their seconds; None where neither is known."""
    import numpy as np

    from benchmarks._demos.common import relative_error, test_points
    from benchmarks._gates.equations import demo_of, fitted

    demo = demo_of(name)
    if demo.truth:
        return None
    model, found = fitted(demo, *demo.data)
    points, values = test_points(demo)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        error = relative_error(demo.problem, model.predict(points), values)
        begun = time.process_time()
        estimate = float(model.error_estimate_ or math.nan)
    answer = {
        "error": error,
        "seconds": found["first_seconds"],
        "estimate_seconds": time.process_time() - begun,
        "weights": int(sum(a.size for a in (*model.coefs_, *model.intercepts_))),
        "iterations": model.n_iter_,
    }
    # The estimate is that of all outputs, of which a reference may lack some.
    if np.isfinite(estimate) and not np.isnan(values).all(axis=0).any():
        answer |= {"estimate": estimate, "ratio": estimate / max(error, 1e-15)}
    return answer


def answer_of(name, seconds):
    """What a process prints of a problem, or the reason why there is nothing."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    try:
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.pinn_estimates", name],
            cwd=ROOT,
            env={**os.environ, **threads},
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return "no time left"
    if process.returncode < 0:
        return f"takes more than {PATIENCE} seconds of CPU"
    lines = process.stderr.strip().splitlines() or ["no message"]
    return lines[-1][:200] if process.returncode else json.loads(process.stdout)


def run(args):
    from benchmarks._report import progress, summary

    chosen = args.only or (["poisson_dirichlet"] if args.quick else names())
    end = time.monotonic() + 60 * (args.minutes or MINUTES)
    methods, skipped, ratios = {}, {}, []

    def answer(name):
        left = end - time.monotonic()
        return "no time left" if left <= 0 else answer_of(name, left)

    with ThreadPoolExecutor(2) as pool:
        for name, found in zip(chosen, pool.map(answer, chosen), strict=True):
            if isinstance(found, str):
                skipped[name] = found
            elif found is not None:
                runs = [{"seed": 0, **found}]
                entry = {"settings": {}, "runs": runs, "summary": summary(runs)}
                methods[name] = entry
                ratios += [found["ratio"]] if "ratio" in found else []
            progress(name, found)
    within = [1 / FACTOR <= ratio <= FACTOR for ratio in ratios]
    problem = {
        "description": "estimated and true errors of problems of all kinds",
        "methods": methods,
        "skipped": skipped,
    }
    if within:
        share = sum(within) / len(within)
        problem["target"] = {
            "method": f"{len(within)} problems",
            "figure": f"estimate within a factor of {FACTOR:.0f}",
            "statistic": "share",
            "at_least": SHARE,
            "value": share,
            "passed": share >= SHARE,
        }
    return {"problems": {"estimates": problem}, "seeds": [0], "notes": NOTES}


if __name__ == "__main__":
    import resource  # which Windows has not

    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))
    print(json.dumps(figures(sys.argv[1])))
