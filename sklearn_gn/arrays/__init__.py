"""Who computes: NumPy or JAX, on which devices, in which precision."""
