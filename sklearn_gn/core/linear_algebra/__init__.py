"""Linear algebra of curvature systems, shared by all methods."""
