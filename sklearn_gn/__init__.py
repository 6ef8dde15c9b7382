"""Scikit-learn estimators trained by Gauss-Newton methods on a JAX core."""

__version__ = "0.1.0.dev0"

from sklearn_gn.estimators.pinn import PINNSolver
from sklearn_gn.estimators.series import fit_series
from sklearn_gn.estimators.shallow_relu import ShallowReLURegressor
from sklearn_gn.estimators.softmax_head import FGNSoftmaxHead
from sklearn_gn.estimators.varpro import VarProNetClassifier, VarProNetRegressor

__all__ = [
    "FGNSoftmaxHead",
    "PINNSolver",
    "ShallowReLURegressor",
    "VarProNetClassifier",
    "VarProNetRegressor",
    "__version__",
    "fit_series",
]
