"""Data sets that come with the package."""

from sklearn_gn.datasets._nile import load_nile

__all__ = ["load_nile"]
