"""Data sets that come with the package, and generators."""

from sklearn_gn.datasets._bundled import load_nile, load_udhr, load_us_employment
from sklearn_gn.datasets._cdr import make_cdr
from sklearn_gn.datasets._toy import make_ellipse, make_peaks_classification

__all__ = [
    "load_nile",
    "load_udhr",
    "load_us_employment",
    "make_cdr",
    "make_ellipse",
    "make_peaks_classification",
]
