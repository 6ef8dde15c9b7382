"""Displays of fitted estimators, in the style of scikit-learn; they need matplotlib."""

from sklearn_gn.plotting.breakpoints import BreakpointDisplay
from sklearn_gn.plotting.convergence import ConvergenceDisplay
from sklearn_gn.plotting.gram_spectrum import GramSpectrumDisplay
from sklearn_gn.plotting.softmax import (
    AccuracyTimeDisplay,
    CurvatureTraceDisplay,
    DispersionDisplay,
    RetainedDecreaseDisplay,
    StepTimeDisplay,
)
from sklearn_gn.plotting.solution import SolutionDisplay
from sklearn_gn.plotting.varpro import (
    FeatureDisplay,
    SurrogateDisplay,
    TaylorDisplay,
    WorkDisplay,
)

__all__ = [
    "AccuracyTimeDisplay",
    "BreakpointDisplay",
    "ConvergenceDisplay",
    "CurvatureTraceDisplay",
    "DispersionDisplay",
    "FeatureDisplay",
    "GramSpectrumDisplay",
    "RetainedDecreaseDisplay",
    "SolutionDisplay",
    "StepTimeDisplay",
    "SurrogateDisplay",
    "TaylorDisplay",
    "WorkDisplay",
]
