"""Peak memory of one step of PINNSolver at the sizes of the D-NGD paper.

Allen-Cahn with 30,801 weights and 5,400 points, and Poisson's equation in 100,000
dimensions. Every run is a process of its own, ``python -m benchmarks.pinn_memory
NAME``, which prints its figures as JSON.
"""

import json
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_GB = 4.0
NOTES = (
    "peak_gb is the peak of the resident memory of a process that imports the package "
    "and makes one step, compilation included; before_gb that before the fit. 10^9 "
    "bytes each. seconds contain the compilation.",
)


def solver_of(name, quick):
    from benchmarks._pinn import QUICK
    from benchmarks.pinn_paper import cases

    solver = cases(quick)[name].solver
    return solver.set_params(**QUICK) if quick else solver


def peak_gb():
    """Of this process. Its parent's memory is part of what ``resource`` tells."""
    status = Path("/proc/self/status")
    if status.exists():
        words = (line.split() for line in status.read_text().splitlines())
        (kib,) = (int(word[1]) for word in words if word[0] == "VmHWM:")
        return 1024 * kib / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9


def fresh_process(name, quick):
    """Figures of this process, which has imported nothing of the package yet."""
    solver = solver_of(name, quick)
    before = peak_gb()
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one step is not the end
        solver.set_params(max_iter=1, random_state=0).fit()
    seconds = time.perf_counter() - begun
    return {"peak_gb": peak_gb(), "before_gb": before, "seconds": seconds}


PROBLEMS = {
    "allen_cahn": "Allen-Cahn equation, 3-100-100-100-100-1, one step",
    "poisson_ball": "Poisson's equation in 100,000 dimensions, one step",
}


def run_problem(name, quick):
    """The answer for a problem."""
    from benchmarks._report import settings, summary, target

    command = [sys.executable, "-m", "benchmarks.pinn_memory", name]
    process = subprocess.run(
        [*command, *(["--quick"] if quick else [])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    runs = [json.loads(process.stdout)]
    changed = settings(solver_of(name, quick))
    methods = {"dngd": {"settings": changed, "runs": runs, "summary": summary(runs)}}
    return {
        "description": PROBLEMS[name],
        "methods": methods,
        "target": target(methods, "dngd", "peak_gb", "max", MOST_GB),
    }


def run(args):
    names = args.only or PROBLEMS
    answers = {name: run_problem(name, args.quick) for name in names}
    return {"problems": answers, "seeds": [0], "notes": NOTES}


if __name__ == "__main__":
    print(json.dumps(fresh_process(sys.argv[1], "--quick" in sys.argv)))
