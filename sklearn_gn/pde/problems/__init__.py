"""Problems of the literature on physics-informed networks, with their solutions.

Each function returns a :class:`sklearn_gn.pde.Problem`. Its ``exact`` is a function of
one point where there is a closed form. Otherwise it is computed here, by a spectral
method whose ``convergence`` can be looked up, and stored on disk.
"""

from sklearn_gn.pde.problems.allen_cahn import AllenCahn, AllenCahnReference
from sklearn_gn.pde.problems.burgers import Burgers, ColeHopf
from sklearn_gn.pde.problems.cavity import CavityReference, LidDrivenCavity
from sklearn_gn.pde.problems.fokker_planck import LogFokkerPlanck
from sklearn_gn.pde.problems.heat import Heat, HeatSine
from sklearn_gn.pde.problems.kovasznay import Kovasznay, navier_stokes
from sklearn_gn.pde.problems.poisson import (
    Poisson,
    PoissonBall,
    PoissonCosine,
)

__all__ = [
    "AllenCahn",
    "AllenCahnReference",
    "Burgers",
    "CavityReference",
    "ColeHopf",
    "Heat",
    "HeatSine",
    "Kovasznay",
    "LidDrivenCavity",
    "LogFokkerPlanck",
    "Poisson",
    "PoissonBall",
    "PoissonCosine",
    "navier_stokes",
]
