"""JAX linear algebra that the solvers share: solves, line searches, damping."""
