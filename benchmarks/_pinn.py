"""What the experiments on PINNSolver share: cases, recorded fits and marks in time.

A fit is recorded as points: after every iteration its seconds, its losses, and the
error of the network that it would return if it ended there. Neither compilation, which
a short fit does before, nor the scoring is counted.
"""

import math
import time
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from sklearn.base import clone

from benchmarks._report import progress, settings, summary, target
from benchmarks._timing import compile_seconds, timed_fit
from sklearn_gn import PINNSolver
from sklearn_gn.pde import Problem

MARKS = (60, 100, 120, 300, 600, 1800)  # seconds at which the error is reported
MOST_SCORED = 10_000  # points of the error on the way
MOST_FLOATS = 2**22  # of their coordinates
LONG = 300  # seconds of a fit beyond which one seed has to do
SEEDS = 3
ENDLESS = {"max_iter": 1_000_000, "tol": 0.0}  # only the time ends a fit
QUICK = {"hidden_layer_sizes": (6,), "n_interior": 24, "n_boundary": 16}
QUICK_SECONDS = 0.2

NOTES = (
    "error is the relative L2 error of the outputs that count (error_of) at 10,000 "
    "points of the domain, or at all points where a computed solution is known, of "
    "which those on the way take at most 10,000. error_S is that of the network that "
    "the fit would have returned after S seconds: the one with the least loss on fresh "
    "points. A target at S seconds is left out where a fit took less.",
    "Seconds are those of fits that compile nothing, without the scoring; every fit "
    "ends by its time. curves are those of the seed with the median error.",
    "loss is on the points of training, fresh_loss on points that are never trained "
    "on, both as PINNSolver defines it.",
)


class Case(NamedTuple):
    """A problem with the solver's settings and what is aimed at."""

    statement: str  # of the equation, its domain and its data
    solver: PINNSolver
    seconds: float
    aims: dict  # bound of the error by seconds
    outputs: tuple = ()  # whose error counts; (): all that are known
    paper: dict = MappingProxyType({})


def paper(error, seconds, method="D-NGD"):
    """What a publication reports."""
    return {method: [{"error": error, "seconds": seconds}]}


def problem_of(solver):
    """The problem to solve, the last one of a sequence."""
    problem = solver.problem
    return problem if isinstance(problem, Problem) else problem[-1]


def described(case):
    """The equation, its domain and its data, the network, and the points."""
    solver, problem = case.solver, problem_of(case.solver)
    hidden, n_outputs = solver.hidden_layer_sizes, len(problem.outputs)
    network = "-".join(map(str, (problem.n_inputs, *hidden, n_outputs)))
    renewed = {None: "fixed", 1: "new ones every iteration"}.get(
        solver.resample, f"new ones every {solver.resample} iterations"
    )
    drawn = " where the residual is large" if solver.sampling == "residual" else ""
    return (
        f"{case.statement}; network {network}, {solver.activation}; "
        f"{solver.n_interior:,} points inside{drawn} and {solver.n_boundary:,} on the "
        f"boundary, {renewed}"
    )


# --- recorded fits -------------------------------------------------------------------


class Scorer:
    """The error of a model over some of its outputs."""

    def __init__(self, problem, outputs=(), most=None):
        rng = np.random.RandomState(0)
        n = max(64, min(MOST_SCORED, MOST_FLOATS // problem.domain.dim))
        X, values = problem.reference(n, rng)
        if most is not None and len(X) > most:
            chosen = np.sort(rng.permutation(len(X))[:most])
            X, values = X[chosen], values[chosen]
        known = ~np.isnan(values).any(axis=0)
        self.outputs = tuple(
            name
            for name, there in zip(problem.outputs, known, strict=True)
            if there and name in (outputs or problem.outputs)
        )
        self.columns = [problem.outputs.index(name) for name in self.outputs]
        self.X, self.values = X, values[:, self.columns]

    def __call__(self, model):
        found = model.predict(self.X).reshape(len(self.X), -1)[:, self.columns]
        return relative(found, self.values)


def relative(found, values):
    """``|found - values| / |values|`` in the Euclidean norm."""
    return float(np.linalg.norm(found - values) / np.linalg.norm(values))


class Recorder:
    """A callback that keeps the curve of a fit and ends it after some seconds."""

    def __init__(self, score, seconds):
        self.score, self.seconds = score, seconds
        self.points = []
        self.rows = self.options = self.state = None
        self._spent = 0.0

    def setup(self, estimator, context):
        pass

    teardown = on_fit_task_begin = setup

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if context.max_subtasks != 0:  # the fit, not an iteration
            return False
        begun = time.perf_counter()
        run = estimator._fit_run
        row = run.log[-1]
        used = row["time"] - self._spent
        self.points.append(
            {
                "seconds": used,
                "loss": row["loss"],
                "fresh_loss": row["val_loss"],
                "error": self.score(fitted_estimator),
            }
        )
        self.rows, self.options, self.state = run.data, run.options, run.final_state
        self._spent += time.perf_counter() - begun
        return used >= self.seconds


def short(solver):
    """One that compiles what a fit needs: an iteration of every stage, then two."""
    stages = []
    if not isinstance(solver.problem, Problem):
        stages = [(problem, 1) for problem, _ in solver.problem[:-1]]
    copy = clone(solver).set_params(max_iter=len(stages) + 2, tol=0.0)
    if stages:
        copy.set_params(problem=[*stages, problem_of(solver)])
    n_single = getattr(solver.solver, "single_precision_iter", 0)
    return copy.set_params(solver__single_precision_iter=1) if n_single else copy


def recorded_fit(solver, score, seconds, seed):
    """The model and the recorder of a fit that ends by its time."""
    recorder = Recorder(score, seconds)
    solver = clone(solver).set_params(random_state=seed, **ENDLESS)
    model, _ = timed_fit(solver.set_callbacks(recorder), None, None)
    return model, recorder


def columns(points):
    """Points as lists by name."""
    return {name: [point[name] for point in points] for name in points[0]}


def at(points, seconds, figure="error"):
    """A figure of the last point within some seconds."""
    within = [point[figure] for point in points if point["seconds"] <= seconds]
    return within[-1] if within else math.nan


def seconds_to(points, loss):
    """Seconds until the loss of training is that low; infinite if it never is."""
    reached = (point["seconds"] for point in points if point["loss"] <= loss)
    return next(reached, math.inf)


def middle(runs):
    """Number of the run with the median error, the lower of two."""
    order = sorted(range(len(runs)), key=lambda k: runs[k]["error"])
    return order[(len(order) - 1) // 2]


# --- an experiment -------------------------------------------------------------------


def seeds_of(args, seconds):
    """The seeds asked for, else few of them."""
    if args.seeds_given or args.quick:
        return args.seeds
    return args.seeds[: 1 if seconds > LONG else SEEDS]


def quick_case(case, **changes):
    """The same in small."""
    solver = clone(case.solver).set_params(**{**QUICK, **changes})
    return case._replace(solver=solver, seconds=QUICK_SECONDS)


def seed_run(case, full, score, seed):
    """Figures and points of one seed; ``full`` scores at all points."""
    model, recorder = recorded_fit(case.solver, score, case.seconds, seed)
    points = recorder.points
    figures = {"seed": seed, "error": full(model)}
    marks = sorted({*MARKS, *case.aims})
    figures |= {
        f"error_{mark}": at(points, mark) for mark in marks if mark <= case.seconds
    }
    if len(full.outputs) > 1:
        each = model.relative_error(multioutput="raw_values")
        names = (f"error_{name}" for name in problem_of(case.solver).outputs)
        known = zip(names, each, strict=True)
        figures |= {name: error for name, error in known if not math.isnan(error)}
    last = points[-1]
    figures |= {
        "loss": last["loss"],
        "fresh_loss": model.fresh_loss_,
        "iterations": model.n_iter_,
        "seconds": last["seconds"],
        "stop_reason": model.stop_reason_,
    }
    return figures, points


def run_case(name, case, seeds):
    """The answer of a case."""
    progress(f"--- {name}")
    problem = problem_of(case.solver)
    full = Scorer(problem, case.outputs)
    score = Scorer(problem, case.outputs, MOST_SCORED)
    compiling = compile_seconds(short(case.solver), None, None)
    runs, recorded = [], []
    for seed in seeds:
        figures, points = seed_run(case, full, score, seed)
        runs.append(figures)
        recorded.append(points)
        progress(figures)
    methods = {
        "dngd": {
            "settings": settings(case.solver),
            "compile_seconds": compiling,
            "runs": runs,
            "summary": summary(runs),
        }
    }
    return {
        "description": f"{described(case)}; {case.seconds:g} seconds",
        "error_of": list(full.outputs),
        "methods": methods,
        "curves": {"dngd": columns(recorded[middle(runs)])},
        "paper": dict(case.paper),
        **targets_of(methods, case),
    }


def targets_of(methods, case):
    """A target for every mark that the fits reached."""
    return {
        f"target_{mark}": target(methods, "dngd", f"error_{mark}", "median", bound)
        for mark, bound in case.aims.items()
        if mark <= case.seconds
    }


def run_cases(cases, args, **quick):
    """The answer of an experiment with these cases; ``quick`` are further changes."""
    answers, most = {}, []
    for name in args.only or cases:
        case = quick_case(cases[name], **quick) if args.quick else cases[name]
        case = case._replace(seconds=args.seconds or case.seconds)
        seeds = seeds_of(args, case.seconds)
        most = max(most, seeds, key=len)
        answers[name] = run_case(name, case, seeds)
    return {"problems": answers, "seeds": most, "notes": NOTES}
