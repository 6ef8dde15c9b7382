"""Broken lines: regression on one feature with breakpoints."""
