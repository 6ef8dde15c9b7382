"""The seven problems of the D-NGD paper, and Burgers' equation, on a GPU.

Jnini and Vella, "Dual natural gradient descent for scalable training of
physics-informed neural networks", give 3000 seconds of an A100 (cavity 9000); the
targets are their best figures. ``NAME_default`` has the default settings; ``NAME`` the
paper's networks and numbers of points, but for the cavity, whose 34,000 residuals are
more than are factored; ``NAME_mixed``, with --only, begins in single precision.
Compilation counts: a fit is given 600 seconds of a process that has compiled nothing.
"""

import time
from dataclasses import replace

from sklearn.base import clone

from benchmarks import pinn_allen_cahn, pinn_burgers, pinn_kovasznay, pinn_poisson10d
from benchmarks._allen_cahn import AllenCahn
from benchmarks._burgers import Burgers
from benchmarks._cavity import CavityReference, LidDrivenCavity
from benchmarks._literature import Heat, LogFokkerPlanck, Poisson, PoissonBall
from benchmarks._pinn import QUICK, QUICK_SECONDS, Case, paper, problem_of
from benchmarks._report import progress, settings, summary, target
from benchmarks.pinn_defaults import figures_of_fit
from sklearn_gn import PINNSolver
from sklearn_gn.pde.problems import Kovasznay
from sklearn_gn.solvers import DNGD

SECONDS = 600.0
PAPER_SECONDS = 3000
CAVITY_STAGES = {100.0: 30, 400.0: 30, 1000.0: 40}  # iterations by Reynolds number
SINGLE_ITERATIONS = 100  # of the cases whose names end in _mixed, which --only runs
DIRECTIONS = 16  # of the estimate of a Laplacian in 100,000 dimensions
NOTES = (
    "error is the relative L2 error of the outputs that count at 10,000 points of the "
    "domain, or where a computed solution is known. seconds are those of the fit, "
    "compilation included. Rows that end in _default have default settings.",
)


def case_of(statement, solver, error, seconds=PAPER_SECONDS, **words):
    """With the paper's best figure as the target."""
    aims = {int(SECONDS): error}
    return Case(statement, solver, SECONDS, aims, paper=paper(error, seconds), **words)


def solver_of(problem, hidden, n_interior, n_boundary, **words):
    """A solver with what differs from problem to problem."""
    return PINNSolver(
        problem,
        hidden_layer_sizes=hidden,
        n_interior=n_interior,
        n_boundary=n_boundary,
        **words,
    )


def cavity(quick):
    """The problem, preceded by easier ones."""
    if quick:
        reference = CavityReference(100.0, n_modes=8)
        return replace(LidDrivenCavity(100.0), exact=reference)
    stages = [(LidDrivenCavity(re), n) for re, n in CAVITY_STAGES.items()]
    return (*stages, LidDrivenCavity(3000.0))


def cases(quick=False):
    """By name; with fewer axes if quick."""
    wide, even = (256, 256, 128, 128), (100, 100, 100, 100)
    dim, ball = (3, 4) if quick else (9, 100_000)
    return {
        "heat": case_of(
            "Heat equation, u_t = 1/4 Laplacian of u on (0, 1)^10, times from 0 to 1, "
            "u = exp(-pi^2 t) sum of sin(2 pi x_i), at the start and on the boundary",
            solver_of(Heat(2 if quick else 10), wide, 10_000, 1000),
            8.52e-6,
        ),
        "kovasznay": case_of(
            pinn_kovasznay.CASE.statement,
            solver_of(Kovasznay(40.0), (50, 50, 50, 50), 400, 400),
            5.23e-7,
            outputs=("u", "v"),
        ),
        "poisson10d": case_of(
            pinn_poisson10d.CASE.statement,
            solver_of(Poisson(2 if quick else 10), even, 8000, 2000),
            2.74e-4,
        ),
        "fokker_planck": case_of(
            "Logarithmic Fokker-Planck equation on [-5, 5]^9, times from 0 to 1, the "
            "logarithm of N(0, (2 - exp(-t)) I), exactly at the start",
            solver_of(LogFokkerPlanck(dim), wide, 3000, 0),
            2.47e-3,
        ),
        "allen_cahn": case_of(
            pinn_allen_cahn.STATEMENT,
            solver_of(AllenCahn(initial_weight=10.0), even, 4500, 900),
            9.13e-6,
        ),
        "cavity": case_of(
            "Lid-driven cavity on (0, 1)^2, Re 3000, a lid of velocity "
            "1 - cosh(10 (x - 1/2)) / cosh 5; at first 30, 30 and 40 iterations at Re "
            "100, 400 and 1000",
            # 9,651 weights, whose Gramian is factored.
            solver_of(cavity(quick), (48,) * 5, 12_000, 2400, tol=0.0),
            3.59e-3,
            seconds=9000,
            outputs=("u", "v"),
        ),
        "poisson_ball": case_of(
            f"Poisson's equation on the unit ball in {ball:,} dimensions, zero on the "
            "sphere, exactly",
            solver_of(
                replace(PoissonBall(ball), n_laplacian_directions=DIRECTIONS),
                (128,) * 4,
                100,
                0,
                resample=1,  # a step solves the equation at so few points
                tol=0.0,
            ),
            1.14e-5,
        ),
        "burgers": case_of(
            pinn_burgers.CASE.statement,
            solver_of(
                Burgers(nu=0.01, hard=True),
                (40, 40, 40, 40),
                12_000,
                0,
                activation="sin",
                tol=0.0,
            ),
            1e-12,
        )._replace(paper=pinn_burgers.CASE.paper),
    }


def mixed_cases(found):
    """The same by steps in single precision first."""
    solver = DNGD(single_precision_iter=SINGLE_ITERATIONS)
    return {
        f"{name}_mixed": case._replace(
            solver=clone(case.solver).set_params(solver=solver)
        )
        for name, case in found.items()
    }


def default_cases(found):
    """The same with default settings, of the last problem of a sequence."""
    return {
        f"{name}_default": case._replace(solver=PINNSolver(problem_of(case.solver)))
        for name, case in found.items()
    }


def row_of(case, seconds, seeds, changes):
    """The answer of a case."""
    solver, runs = clone(case.solver).set_params(max_time=seconds, **changes), []
    for seed in seeds:
        solver.set_params(random_state=seed)
        figures = figures_of_fit(solver, case.outputs, time.perf_counter())
        runs.append({"seed": seed, **figures})
        progress(runs[-1])
    shown = settings(case.solver)
    del shown["problem"]  # described
    method = {"settings": shown, "runs": runs, "summary": summary(runs)}
    (error,) = case.aims.values()
    return {
        "description": f"{case.statement}; {seconds:g} seconds, compilation included",
        "methods": {"dngd": method},
        "paper": dict(case.paper),
        "target": target({"dngd": method}, "dngd", "error", "median", error),
    }


def run(args):
    found = cases(args.quick)
    plain = {**default_cases(found), **found}
    every = {**plain, **mixed_cases(found)}
    answers = {}
    for name in args.only or plain:
        progress(f"--- {name}")
        changes = QUICK if args.quick and not name.endswith("_default") else {}
        seconds = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
        seeds = args.seeds if args.seeds_given else args.seeds[:1]
        answers[name] = row_of(every[name], seconds, seeds, changes)
        args.write({"problems": answers, "seeds": seeds, "notes": NOTES})
    return {"problems": answers, "seeds": seeds, "notes": NOTES}
