"""
Heat in ten dimensions
======================

A grid of ten points along each of ten axes has ten thousand million points. A network
needs no grid: it is trained at some hundred points, which are redrawn as it learns.
"""

# %%
# The problem
# -----------
#
# The heat equation on the unit cube from time 0 to 1,
#
# .. math:: u_t = \tfrac14 \Delta u, \qquad u = e^{-t} \sum_i \sin 2 x_i ,
#
# with the values of u given at the start and on the twenty faces of the cube.

from sklearn_gn.pde.problems import HeatSine

problem = HeatSine(dim=10)
print(problem.domain)

# %%
# The fit
# -------
#
# The Laplacian is propagated through the network by hand, so that its cost grows with
# the number of axes and not with its square. The points are redrawn in every iteration:
# some hundred do not represent a space of eleven axes, but all that the fit has seen
# do. The fit stops at ``max_iter``, to be quick; the ConvergenceWarning says what would
# take it further, a larger network.

from sklearn_gn import PINNSolver

solver = PINNSolver(
    problem,
    hidden_layer_sizes=(32, 32),
    n_interior=500,
    n_boundary=500,
    resample=1,
    max_iter=50,
    random_state=0,
).fit()

import pandas as pd

log = pd.DataFrame(solver.convergence_log_)
log[["iteration", "time", "loss", "val_loss", "relative_error"]].iloc[9::10]

# %%
# Slices
# ------
#
# The solution along two of the axes; the coordinates of the others are in the middle.

from sklearn_gn.plotting import ConvergenceDisplay, SolutionDisplay

plane = SolutionDisplay.from_estimator(solver, axes=("x1", "x2"), at={"t": 0.5})

# %%
# One axis over time:

decay = SolutionDisplay.from_estimator(solver, axes=("t", "x1"))

# %%
# Loss and error
# --------------
#
# Training points are new in every iteration, so the loss on them and the one on the
# points kept for validation differ little.

import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
ConvergenceDisplay.from_estimator(solver, ax=left)
ConvergenceDisplay.from_estimator(solver, ax=right, y="relative_error", x="time")

plt.show()
