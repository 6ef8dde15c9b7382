"""Kovasznay flow by PINNSolver: error of the velocity after 100 and 300 seconds.

The steady Navier-Stokes equations at Re = 40 on [-0.5, 1] x [-0.5, 1.5], the velocity
given on the boundary. Only the velocity counts: the pressure has no boundary values.
"""

from benchmarks._pinn import Case, paper, run_cases
from sklearn_gn import PINNSolver
from sklearn_gn.pde.problems import Kovasznay

CASE = Case(
    "Kovasznay flow: the steady Navier-Stokes equations, Re 40, on [-0.5, 1] x "
    "[-0.5, 1.5], velocity on the boundary",
    PINNSolver(
        Kovasznay(40.0),
        hidden_layer_sizes=(50, 50, 50, 50),
        n_interior=300,
        n_boundary=100,
        resample=None,
    ),
    seconds=300.0,
    aims={100: 5.2e-7, 300: 1e-7},
    outputs=("u", "v"),
    paper=paper(5.23e-7, 3000),
)


def run(args):
    return run_cases({"kovasznay": CASE}, args)
