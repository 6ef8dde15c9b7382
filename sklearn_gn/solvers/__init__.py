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

_SHALLOW = JointGN(), SgGN(), LM(), LM(hidden_only=True), KFRA(), BFGS()
SHALLOW_RELU_SOLVERS = {s.name: s for s in (*_SHALLOW, Adam(learning_rate=0.01))}
SOFTMAX_HEAD_SOLVERS = {s.name: s for s in (FGNNewton(), FGN(), SGN(), Adam())}
NETWORK_SOLVERS = {s.name: s for s in (GNvpro(), FullGN(), LBFGSvpro(), Adam(), SGD())}
PINN_SOLVERS = {s.name: s for s in (DNGD(), Adam(), SGD(), LBFGS(), SSBroyden())}
