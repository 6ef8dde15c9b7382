"""
Flow behind a grid, and the solvers
===================================

The Kovasznay flow satisfies the steady Navier-Stokes equations and is known in closed
form: a small problem on which accuracy can be seen. It is solved here by dual natural
gradient descent, the default of :class:`~sklearn_gn.PINNSolver`, and by Adam, the
first-order method that physics-informed networks are usually trained with.
"""

# %%
# The problem
# -----------
#
# It is one of :mod:`sklearn_gn.pde.problems`. The unknowns are the velocity (u, v) and
# the pressure p; the velocity is given on the boundary, so that the pressure is
# determined up to a constant.

from sklearn_gn.pde.problems import Kovasznay

flow = Kovasznay(reynolds=40)
flow

# %%
# One network, two solvers
# ------------------------
#
# Both minimise the same loss from the same weights, for at most 50 and 300 iterations.
# Both end with a ConvergenceWarning: it says that the first fit has solved the equation
# and would gain more digits, and that the second is stuck. Times include compilation.

import pandas as pd

from sklearn_gn import PINNSolver

common = {
    "hidden_layer_sizes": (20, 20),
    "n_interior": 120,
    "n_boundary": 60,
    "random_state": 0,
}
solvers = {
    "D-NGD": PINNSolver(flow, max_iter=50, **common),
    "Adam": PINNSolver(flow, solver="adam", max_iter=300, **common),
}
rows = {}
for name, solver in solvers.items():
    solver.fit()
    rows[name] = {
        "iterations": solver.n_iter_,
        "seconds": solver.convergence_log_["time"][-1],
        "relative error": solver.relative_error(),
    }
pd.DataFrame(rows).T

# %%
# Adam soon reaches two digits and then makes little progress. A step of dual natural
# gradient descent takes longer, since it solves a linear system, and is worth it.

import matplotlib.pyplot as plt

from sklearn_gn.plotting import ConvergenceDisplay

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for name, solver in solvers.items():
    words = {"y": "relative_error", "name": name}
    ConvergenceDisplay.from_estimator(solver, ax=left, x="iteration", **words)
    ConvergenceDisplay.from_estimator(solver, ax=right, x="time", **words)
left.set_xscale("log")
right.set_ylabel(None)
right.get_legend().remove()

# %%
# The solution
# ------------
#
# Errors of the outputs, each relative to its own size; the pressure is compared without
# its mean.

from sklearn_gn.plotting import SolutionDisplay

best = solvers["D-NGD"]
displays = [SolutionDisplay.from_estimator(best, output=name) for name in ("u", "p")]
error = best.relative_error(multioutput="raw_values")
pd.DataFrame({"relative error": error}, index=flow.outputs)

# %%
# Derivatives come with the solution, here the vorticity at three points:

X = [[0.0, 0.25], [0.0, 0.5], [0.5, 0.75]]
plt.show()
best.derivative(X, "x")[:, 1] - best.derivative(X, "y")[:, 0]
