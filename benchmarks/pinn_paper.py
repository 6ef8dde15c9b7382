"""The seven problems of the D-NGD paper at its sizes, 600 seconds each, for a GPU.

Networks and numbers of points as in Jnini and Vella, "Dual natural gradient descent for
scalable training of physics-informed neural networks", who give 3000 seconds of an A100
(cavity 9000). The targets are their best figures.
"""

import time
from dataclasses import replace

from sklearn.base import clone

from benchmarks import pinn_allen_cahn, pinn_kovasznay, pinn_poisson10d
from benchmarks._pinn import QUICK_SECONDS, Case, paper, run_cases
from benchmarks._report import progress, summary, target
from benchmarks.pinn_defaults import fit_figures
from sklearn_gn import PINNSolver
from sklearn_gn.pde.problems import (
    AllenCahn,
    CavityReference,
    Heat,
    Kovasznay,
    LidDrivenCavity,
    LogFokkerPlanck,
    Poisson,
    PoissonBall,
)
from sklearn_gn.solvers import DNGD

SECONDS = 600.0
PAPER_SECONDS = 3000
CAVITY_STAGES = (100.0, 400.0, 1000.0)  # Reynolds numbers on the way
STAGE_ITERATIONS = 50
SINGLE_ITERATIONS = 100  # of the cases whose names end in _mixed, which --only runs
DEFAULT = "_default"  # ends the names of rows with default settings
DIRECTIONS = 16  # of the estimate of a Laplacian in 100,000 dimensions


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
    stages = [(LidDrivenCavity(re), STAGE_ITERATIONS) for re in CAVITY_STAGES]
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
            "1 - cosh(10 (x - 1/2)) / cosh 5",
            solver_of(cavity(quick), (128,) * 5, 10_000, 2000),
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
            ),
            1.14e-5,
        ),
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


def default_row(case, seconds, seeds):
    """The answer of a case with the defaults, given max_time only."""
    runs = [
        {"seed": seed, **fit_figures(case, time.perf_counter(), seconds, seed)}
        for seed in seeds
    ]
    settings = {"max_time": seconds}
    method = {"settings": settings, "runs": runs, "summary": summary(runs)}
    (error,) = case.aims.values()
    return {
        "description": f"{case.statement}; default settings, {seconds:g} seconds with "
        "those of compilation",
        "methods": {"default": method},
        "paper": dict(case.paper),
        "target": target({"default": method}, "default", "error", "median", error),
    }


def run(args):
    found = cases(args.quick)
    wanted = args.only or list(found)
    plain = [name for name in wanted if not name.endswith(DEFAULT)]
    answer = run_cases(found | mixed_cases(found), args, plain)
    for name in wanted:
        if name not in plain:
            progress(f"--- {name}")
            case = found[name.removesuffix(DEFAULT)]
            seconds = args.seconds or (QUICK_SECONDS if args.quick else case.seconds)
            row = default_row(case, seconds, args.seeds[:1])
            progress(row["methods"]["default"]["runs"][0])
            answer["problems"][name] = row
    return answer
