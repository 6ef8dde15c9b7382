"""The heat equation in 4+1 dimensions by PINNSolver: error after 600 seconds.

u_t = 1/4 Laplacian of u on the unit cube and times from 0 to 1, with the solution
exp(-t) (sin 2 x1 + ... + sin 2 x4), given on the boundary and at the start.
"""

from benchmarks._pinn import Case, paper, run_cases
from sklearn_gn import PINNSolver
from sklearn_gn.pde.problems import HeatSine

CASE = Case(
    "Heat equation, u_t = 1/4 Laplacian of u on (0, 1)^4, times from 0 to 1, u = "
    "exp(-t) (sin 2 x1 + ... + sin 2 x4), at the start and on the boundary",
    PINNSolver(
        HeatSine(4),
        hidden_layer_sizes=(64, 64, 48),
        activation="sin",
        n_interior=900,
        n_boundary=900,
        resample=2,
    ),
    seconds=600.0,
    aims={600: 1e-6},
    paper={**paper(3.9e-7, 3000, "ENGD"), **paper(6.7e-7, 3000, "KFAC")},
)


def run(args):
    return run_cases({"heat": CASE}, args)
