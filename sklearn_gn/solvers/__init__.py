"""Solver objects: the settings that only one solver needs.

``solver="adam"`` selects a solver with its default settings, ``solver=Adam(
learning_rate=0.01)`` one with others, which a search reaches as
``solver__learning_rate``. The objects hold parameters and import no JAX; the algorithm
that each stands for is found by its name in the ``algorithms`` module of a method.
"""

from sklearn_gn.solvers._base import Solver
from sklearn_gn.solvers._first_order import SGD, Adam
from sklearn_gn.solvers._pinn import DNGD, LBFGS, SSBroyden
from sklearn_gn.solvers._shallow_relu import BFGS, KFRA, LM, JointGN, SgGN
from sklearn_gn.solvers._softmax_head import FGN, SGN, FGNNewton
from sklearn_gn.solvers._varpro import FullGN, GNvpro, LBFGSvpro

__all__ = [
    "BFGS",
    "DNGD",
    "FGN",
    "KFRA",
    "LBFGS",
    "LM",
    "SGD",
    "SGN",
    "Adam",
    "FGNNewton",
    "FullGN",
    "GNvpro",
    "JointGN",
    "LBFGSvpro",
    "SSBroyden",
    "SgGN",
    "Solver",
]


def _by_name(*solvers):
    return {solver.name: solver for solver in solvers}


SHALLOW_RELU_SOLVERS = _by_name(
    JointGN(),
    SgGN(),
    LM(),
    LM(hidden_only=True),
    KFRA(),
    BFGS(),
    Adam(learning_rate=0.01),
)
SOFTMAX_HEAD_SOLVERS = _by_name(FGNNewton(), FGN(), SGN(), Adam())
NETWORK_SOLVERS = _by_name(GNvpro(), FullGN(), LBFGSvpro(), Adam(), SGD())
PINN_SOLVERS = _by_name(DNGD(), Adam(), SGD(), LBFGS(), SSBroyden())
