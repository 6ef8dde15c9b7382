"""One method per file; every solver is a pair ``(init, step)`` in a registry."""

from sklearn_gn.solvers import (
    baselines,
    head_baselines,
    pinn_baselines,
    varpro_baselines,
)
from sklearn_gn.solvers._base import Registry
from sklearn_gn.solvers.dngd import DNGD
from sklearn_gn.solvers.fgn import FGN
from sklearn_gn.solvers.fgn_newton import FGN_NEWTON
from sklearn_gn.solvers.gnvpro import GNVPRO
from sklearn_gn.solvers.relocation import SGGN, VPGN

SHALLOW_RELU_SOLVERS = Registry()
for _solver in (SGGN, VPGN, *baselines.SOLVERS):
    SHALLOW_RELU_SOLVERS.add(_solver)

SOFTMAX_HEAD_SOLVERS = Registry()
for _solver in (FGN_NEWTON, FGN, *head_baselines.SOLVERS):
    SOFTMAX_HEAD_SOLVERS.add(_solver)

NETWORK_REGRESSOR_SOLVERS = Registry()
for _solver in (GNVPRO, *varpro_baselines.SOLVERS):
    NETWORK_REGRESSOR_SOLVERS.add(_solver)

NETWORK_CLASSIFIER_SOLVERS = Registry(NETWORK_REGRESSOR_SOLVERS)
NETWORK_CLASSIFIER_SOLVERS.add(varpro_baselines.FGN_NETWORK)

PINN_SOLVERS = Registry()
for _solver in (DNGD, *pinn_baselines.SOLVERS):
    PINN_SOLVERS.add(_solver)

__all__ = [
    "NETWORK_CLASSIFIER_SOLVERS",
    "NETWORK_REGRESSOR_SOLVERS",
    "PINN_SOLVERS",
    "SHALLOW_RELU_SOLVERS",
    "SOFTMAX_HEAD_SOLVERS",
]
