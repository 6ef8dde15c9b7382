"""Burgers' equation by PINNSolver, viscosity 0.01: error after 600 seconds.

On [-1, 1] and times from 0 to 1, zero at the ends, -sin(pi x) at the start: a shock
forms at the origin, of width 0.02. Many more residuals than weights: with fewer, the
error stays at some 1e-6.
"""

from benchmarks._burgers import Burgers
from benchmarks._pinn import Case, paper, run_cases
from sklearn_gn import PINNSolver

CASE = Case(
    "Burgers' equation, u_t + u u_x = 0.01 u_xx on [-1, 1], times from 0 to 1, "
    "-sin(pi x) at the start and zero at the ends, both exactly",
    PINNSolver(
        Burgers(nu=0.01, hard=True),
        hidden_layer_sizes=(20, 20, 20, 20),
        n_interior=6000,
        n_boundary=0,
        resample=10,
    ),
    seconds=600.0,
    aims={600: 1e-8},
    paper=paper(7.97e-14, 346, "DSGNAR"),
)


def run(args):
    return run_cases({"burgers": CASE}, args)
