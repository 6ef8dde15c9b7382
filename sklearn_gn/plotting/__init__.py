"""Displays of fitted estimators, in the style of scikit-learn; they need matplotlib."""

from sklearn_gn.plotting.breakpoints import BreakpointDisplay
from sklearn_gn.plotting.convergence import ConvergenceDisplay
from sklearn_gn.plotting.gram_spectrum import GramSpectrumDisplay

__all__ = ["BreakpointDisplay", "ConvergenceDisplay", "GramSpectrumDisplay"]
