"""Every experiment that is made for a GPU, in the order of its value, one by one.

Each step is a process of its own, which runs one problem of one experiment. What it
finds is written at once, and a later run goes on with the steps that are missing: a run
that is cut into pieces loses the step in which it was cut.
"""

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MINUTES = 8.0
SECONDS = 60.0  # of a fit of PINNSolver
OVERHEAD = 0.4  # minutes of a step for imports, compilation and scoring
LONGEST = 3.0  # times as long as was planned, and a step is ended
QUICK_MINUTES = 5.0

NOTES = (
    "One seed. A problem is named by its experiment and by its name there, whose notes "
    "hold. Fits of PINNSolver take 60 seconds unless --seconds says otherwise. Names "
    "that end in _mixed: 100 iterations in single precision come first.",
    "failed: why a step has no result; it is tried again by the next run.",
)


class Step(NamedTuple):
    """A problem of an experiment."""

    experiment: str
    problem: str | None = None  # None: all of the experiment
    minutes: float = 4.0  # beside those of fits of PINNSolver
    arguments: tuple = ()
    reads_data: bool = False  # that --quick replaces by the problem "small"

    @property
    def name(self):
        """Name of the step."""
        return f"{self.experiment}.{self.problem}" if self.problem else self.experiment


def steps():
    """All steps, the most valuable first."""
    from benchmarks import device_fits

    papers = ["kovasznay", "poisson10d", "heat", "allen_cahn"]
    defaults = [f"{name}_default" for name in (*papers, "fokker_planck")]
    mixed = [f"{name}_mixed" for name in papers]
    others = ["fokker_planck", "poisson_ball"]
    heads = ["udhr", "mnist", "letters"]
    images = partial(
        Step, "varpro_images", arguments=("--paper-size",), reads_data=True
    )
    fits = [Step("device_fits", name, 0.2) for name in device_fits.PROBLEMS]
    pairs = [name for pair in zip(papers, mixed, strict=True) for name in pair]
    return [
        *fits,
        *(Step("pinn_paper", name, 0.0) for name in (*defaults, "cavity", "burgers")),
        *(Step("pinn_paper", name, 0.0) for name in pairs),
        Step("fgn_mechanism"),  # up to 4096 classes
        Step("fgn_heads", "cars_like"),
        images("mnist"),
        Step("sggn_large", "million_rows"),
        *(Step("pinn_paper", name, 0.0) for name in others),
        *(Step("fgn_heads", name, reads_data=True) for name in heads),
        images("fashion_mnist"),
        Step("sggn_1d", "million"),
        Step("pinn_memory", minutes=3.0),
    ]


def minutes_of(step, args):
    """How long a step takes, about."""
    if args.quick:
        return 0.3
    seconds = (args.seconds or SECONDS) if step.experiment == "pinn_paper" else 0.0
    return OVERHEAD + step.minutes + seconds / 60


def run_step(step, args, seconds):
    """Run a step within some seconds; return its problems by name.

    Raises
    ------
    RuntimeError
        If it fails, with the reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks", step.experiment]
        command += ["--seeds", "1", "--out", str(out), "--data", str(args.data)]
        problem = "small" if args.quick and step.reads_data else step.problem
        command += ["--only", problem] if problem else []
        command += ["--quick"] if args.quick else step.arguments
        if step.experiment == "pinn_paper" and not args.quick:
            command += ["--seconds", str(args.seconds or SECONDS)]
        try:
            subprocess.run(
                command,
                cwd=ROOT,
                check=True,
                timeout=seconds,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"not done after {seconds:.0f} s") from error
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines()
            raise RuntimeError(lines[-1] if lines else "no message") from error
        problems = json.loads(out.read_text())["problems"]
    if step.problem:
        return {step.name: problems[problem]}
    return {f"{step.experiment}.{name}": p for name, p in problems.items()}


def run(args):
    from benchmarks._report import progress

    minutes = args.minutes or (QUICK_MINUTES if args.quick else MINUTES)
    end = time.monotonic() + 60 * minutes
    answer = {"problems": {}, "done": [], "failed": {}, "notes": NOTES}
    if args.out is not None and args.out.exists():
        before = json.loads(args.out.read_text())
        if before["quick"] == args.quick:
            answer |= {key: before[key] for key in ("problems", "done")}
    chosen = [s for s in steps() if not args.only or s.name in args.only]
    for step in chosen:
        left = end - time.monotonic()
        if step.name in answer["done"] or 60 * minutes_of(step, args) > left:
            continue
        progress(f"--- {step.name}, {left / 60:.0f} minutes left")
        try:
            longest = 60 * LONGEST * minutes_of(step, args)
            answer["problems"] |= run_step(step, args, min(left, longest))
            answer["done"].append(step.name)
        except RuntimeError as error:
            answer["failed"][step.name] = str(error)
            progress(f"    failed: {error}")
        args.write(answer)
    missing = [s.name for s in steps() if s.name not in answer["done"]]
    progress(f"--- {len(missing)} steps are missing: {', '.join(missing)}")
    return answer
