"""Burgers' equation by PINNSolver, viscosity 0.01: error after 600 seconds.

On [-1, 1] and times from 0 to 1, zero at the ends, -sin(pi x) at the start: a shock
forms at the origin, of width 0.02.
"""

from benchmarks._pinn import Case, paper, run_cases
from sklearn_gn import PINNSolver
from sklearn_gn.pde.problems import Burgers

CASE = Case(
    "Burgers' equation, viscosity 0.01, 2-40-40-40-1",
    PINNSolver(
        Burgers(nu=0.01, hard=True),
        hidden_layer_sizes=(40, 40, 40),
        n_interior=1500,
        n_boundary=0,
        resample=5,
    ),
    seconds=600.0,
    aims={600: 1e-8},
    paper=paper(7.97e-14, 346, "DSGNAR"),
)


def run(args):
    return run_cases({"burgers": CASE}, args)
