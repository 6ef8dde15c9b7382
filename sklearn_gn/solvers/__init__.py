"""One method per file; every solver is a pair ``(init, step)`` in a registry."""

from sklearn_gn.solvers import baselines
from sklearn_gn.solvers._base import Registry
from sklearn_gn.solvers.sggn import SGGN

SHALLOW_RELU_SOLVERS = Registry()
for _solver in (SGGN, *baselines.SOLVERS):
    SHALLOW_RELU_SOLVERS.add(_solver)

__all__ = ["SHALLOW_RELU_SOLVERS"]
