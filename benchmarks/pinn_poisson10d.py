"""Laplace's equation in ten dimensions by PINNSolver: error after 60 and 300 seconds.

On the unit cube, with x1 x2 + x3 x4 + ... + x9 x10 on the boundary, which is also the
solution.
"""

from benchmarks._literature import Poisson
from benchmarks._pinn import Case, paper, run_cases
from sklearn_gn import PINNSolver

CASE = Case(
    "Laplace's equation on (0, 1)^10, x1 x2 + x3 x4 + ... + x9 x10 on the boundary",
    PINNSolver(
        Poisson(10),
        hidden_layer_sizes=(64, 64, 48),
        n_interior=900,
        n_boundary=900,
        resample=2,
    ),
    seconds=300.0,
    aims={60: 2.7e-4, 300: 2e-5},
    paper={**paper(2.74e-4, 3000), **paper(2.14e-5, 3000, "SPRING")},
)


def run(args):
    return run_cases({"poisson10d": CASE}, args)
