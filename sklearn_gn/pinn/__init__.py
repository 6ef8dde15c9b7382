"""PINNSolver: differential equations by dual natural gradient descent."""
