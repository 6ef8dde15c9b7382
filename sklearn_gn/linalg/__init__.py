"""Factors and products of curvature matrices."""
