"""The algorithms of PINNSolver by name."""

from sklearn_gn.pinn import baselines
from sklearn_gn.pinn.dngd import DNGD

ALGORITHMS = {a.name: a for a in (DNGD, *baselines.ALGORITHMS)}
