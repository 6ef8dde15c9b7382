"""Displays of fitted estimators, in the style of scikit-learn; they need matplotlib."""

from sklearn_gn.plotting.breakpoints import BreakpointDisplay
from sklearn_gn.plotting.convergence import ConvergenceDisplay
from sklearn_gn.plotting.dispersion import DispersionDisplay
from sklearn_gn.plotting.features import FeatureDisplay
from sklearn_gn.plotting.gram_spectrum import GramSpectrumDisplay
from sklearn_gn.plotting.relevance import RelevanceDisplay
from sklearn_gn.plotting.segments import SegmentsDisplay
from sklearn_gn.plotting.selection_path import SelectionPathDisplay
from sklearn_gn.plotting.series import SeriesDisplay
from sklearn_gn.plotting.solution import SolutionDisplay
from sklearn_gn.plotting.surrogate import SurrogateDisplay

__all__ = [
    "BreakpointDisplay",
    "ConvergenceDisplay",
    "DispersionDisplay",
    "FeatureDisplay",
    "GramSpectrumDisplay",
    "RelevanceDisplay",
    "SegmentsDisplay",
    "SelectionPathDisplay",
    "SeriesDisplay",
    "SolutionDisplay",
    "SurrogateDisplay",
]
