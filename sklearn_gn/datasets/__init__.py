"""Data sets: those that come with the package, generators, and loaders of copies."""

from sklearn_gn.datasets._bundled import load_nile, load_udhr, load_us_employment
from sklearn_gn.datasets._cdr import make_cdr
from sklearn_gn.datasets._dcr import make_dcr
from sklearn_gn.datasets._loaders import load_cifar10, load_indian_pines
from sklearn_gn.datasets._toy import (
    make_circle,
    make_ellipse,
    make_peaks_classification,
)

__all__ = [
    "load_cifar10",
    "load_indian_pines",
    "load_nile",
    "load_udhr",
    "load_us_employment",
    "make_cdr",
    "make_circle",
    "make_dcr",
    "make_ellipse",
    "make_peaks_classification",
]
