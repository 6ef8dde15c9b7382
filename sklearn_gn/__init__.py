"""Scikit-learn estimators trained by Gauss-Newton methods on a JAX core."""

from importlib.metadata import PackageNotFoundError, version

from sklearn_gn.arrays.programs import enable_compilation_cache, enable_if_asked
from sklearn_gn.data.tables import TableChunks
from sklearn_gn.pinn.estimator import PINNSolver
from sklearn_gn.segmented.estimator import SegmentedRegressor
from sklearn_gn.segmented.series import fit_groups
from sklearn_gn.shallow_relu.estimator import ShallowReLURegressor
from sklearn_gn.softmax_head.estimator import FGNSoftmaxHead
from sklearn_gn.softmax_head.search import FGNSoftmaxHeadCV
from sklearn_gn.varpro.classifier import VarProNetClassifier
from sklearn_gn.varpro.regressor import VarProNetRegressor

__all__ = [
    "FGNSoftmaxHead",
    "FGNSoftmaxHeadCV",
    "PINNSolver",
    "SegmentedRegressor",
    "ShallowReLURegressor",
    "TableChunks",
    "VarProNetClassifier",
    "VarProNetRegressor",
    "__version__",
    "enable_compilation_cache",
    "fit_groups",
]

try:
    __version__ = version("sklearn-gn")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

enable_if_asked()
