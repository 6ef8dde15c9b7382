"""Poisson's equation in five dimensions by PINNSolver: error after 600 seconds.

On the unit cube, with the solution cos(pi x1) + ... + cos(pi x5), given on the
boundary.
"""

from benchmarks._literature import PoissonCosine
from benchmarks._pinn import Case, paper, run_cases
from sklearn_gn import PINNSolver

CASE = Case(
    "Poisson's equation on (0, 1)^5, u = cos(pi x1) + ... + cos(pi x5), on the "
    "boundary",
    PINNSolver(
        PoissonCosine(5),
        hidden_layer_sizes=(64, 64, 48),
        activation="sin",
        n_interior=900,
        n_boundary=900,
        resample=2,
    ),
    seconds=600.0,
    aims={600: 1e-6},
    paper={
        **paper(5.3e-8, 3000, "ENGD"),
        **paper(4.1e-7, 3000, "SPRING"),
    },
)


def run(args):
    return run_cases({"poisson5d": CASE}, args)
