"""
Flow behind a grid, and the solvers
===================================

The Kovasznay flow fulfils the steady Navier-Stokes equations and is known in closed
form: a small problem on which accuracy can be seen. It is solved here by dual natural
gradient descent, the default of :class:`~sklearn_gn.PINNSolver`, and by Adam, the
first-order method that physics-informed networks are usually trained with.
"""

# %%
# The problem
# -----------
#
# It is one of :mod:`sklearn_gn.pde.problems`. Unknown are the velocity (u, v) and the
# pressure p; the velocity is given on the boundary, so that the pressure is determined
# up to a constant.

from sklearn_gn.pde.problems import Kovasznay

flow = Kovasznay(reynolds=40)
print(flow)
print("Conditions:", [kind.name for kind in flow.residual_classes()])

# %%
# One network, two solvers
# ------------------------
#
# Both minimise the same loss from the same weights. Times include compilation. The fits
# end by their number of iterations, so the warnings that say so are off.

import warnings

from sklearn.exceptions import ConvergenceWarning

from sklearn_gn import PINNSolver

warnings.simplefilter("ignore", ConvergenceWarning)

common = {
    "hidden_layer_sizes": (20, 20),
    "n_interior": 200,
    "n_boundary": 80,
    "tol": 0,
    "random_state": 0,
}
solvers = {
    "D-NGD": PINNSolver(flow, max_iter=60, **common),
    "Adam": PINNSolver(flow, solver="adam", max_iter=400, **common),
}
print(f"\n{'':10}{'iterations':>12}{'seconds':>10}{'relative error':>16}")
for name, solver in solvers.items():
    solver.fit()
    log = solver.convergence_log_
    error = solver.relative_error()
    print(f"{name:10}{solver.n_iter_:12}{log['time'][-1]:10.1f}{error:16.1e}")

# %%
# Adam has two digits soon and then hardly gets on. A step of dual natural gradient
# descent takes longer, since it solves a linear system with a row for every residual,
# and is worth it.

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
for output, error in zip(
    flow.outputs, best.relative_error(multioutput="raw_values"), strict=True
):
    print(f"Relative error of {output}: {error:.1e}")
displays = [SolutionDisplay.from_estimator(best, output=name) for name in ("u", "p")]

# %%
# Derivatives come with the solution, here the vorticity at three points:

X = [[0.0, 0.25], [0.0, 0.5], [0.5, 0.75]]
vorticity = best.derivative(X, "x")[:, 1] - best.derivative(X, "y")[:, 0]
print("Vorticity:", vorticity.round(4))

plt.show()
