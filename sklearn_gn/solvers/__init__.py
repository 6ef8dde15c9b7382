"""One method per file; every solver is a pair ``(init, step)`` in a registry."""

from sklearn_gn.solvers import baselines, head_baselines
from sklearn_gn.solvers._base import Registry
from sklearn_gn.solvers.fgn import FGN
from sklearn_gn.solvers.fgn_newton import FGN_NEWTON
from sklearn_gn.solvers.sggn import SGGN

SHALLOW_RELU_SOLVERS = Registry()
for _solver in (SGGN, *baselines.SOLVERS):
    SHALLOW_RELU_SOLVERS.add(_solver)

SOFTMAX_HEAD_SOLVERS = Registry()
for _solver in (FGN_NEWTON, FGN, *head_baselines.SOLVERS):
    SOFTMAX_HEAD_SOLVERS.add(_solver)

__all__ = ["SHALLOW_RELU_SOLVERS", "SOFTMAX_HEAD_SOLVERS"]
