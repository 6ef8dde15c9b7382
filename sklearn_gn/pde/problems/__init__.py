"""Problems of the literature on physics-informed networks, with their solutions.

Each function returns a :class:`sklearn_gn.pde.Problem`. Its ``exact`` is a function of
one point where there is a closed form. Otherwise it is computed here, by a spectral
method whose ``convergence`` can be looked up, and stored on disk.
"""

from sklearn_gn.pde.problems.allen_cahn import AllenCahn, AllenCahnReference
from sklearn_gn.pde.problems.burgers import Burgers, ColeHopf
from sklearn_gn.pde.problems.closed_forms import (
    HeatSine,
    Kovasznay,
    navier_stokes,
)

__all__ = [
    "AllenCahn",
    "AllenCahnReference",
    "Burgers",
    "ColeHopf",
    "HeatSine",
    "Kovasznay",
    "navier_stokes",
]
