"""The scikit-learn face of the solvers; imports no JAX."""
