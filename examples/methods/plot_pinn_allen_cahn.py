"""
Phases that separate
====================

The Allen-Cahn equation drives every value to one of the phases -1 and 1, with layers a
few hundredths wide between them. Such layers make it a standard test of
physics-informed networks, and a hard one: where values are near 0 the equation is
nearly fulfilled by any slow function.
"""

# %%
# The problem
# -----------
#
# Space is periodic, which the network satisfies exactly, since its inputs are the sine
# and cosine of the angle. The reference is computed by a spectral method and stored on
# disk.

from sklearn_gn.pde.problems import AllenCahn

problem = AllenCahn(initial_weight=10.0)
print(problem)

# %%
# The fit
# -------
#
# A network this small, and so few points, keep the page quick; they reach three digits
# or nearly so. The fit ends with a ConvergenceWarning, since the loss still falls after
# 120 iterations. For more digits take wider layers, more points and more iterations.

from sklearn_gn import PINNSolver

solver = PINNSolver(
    problem,
    hidden_layer_sizes=(20, 20, 20),
    n_interior=600,
    n_boundary=100,
    max_iter=120,
    random_state=0,
).fit()

import pandas as pd

log = pd.DataFrame(solver.convergence_log_)
log[["iteration", "time", "loss", "val_loss", "relative_error"]].iloc[19::20]

# %%
# The solution
# ------------
#
# The error is largest in the layers, where a small shift is a large difference.

from sklearn_gn.plotting import ConvergenceDisplay, SolutionDisplay

solution = SolutionDisplay.from_estimator(solver)

# %%
# At the last time:

final = SolutionDisplay.from_estimator(solver, at={"t": 1.0}, n_points=256)

# %%
# The log
# -------
#
# The points are redrawn every fifth iteration. The loss falls on these five times and
# jumps when new ones are drawn; on points that are never trained on it is hundreds of
# times higher, or more. This is what a fit with too few points looks like. ``diagnose``
# names the limit that was reached first, the number of iterations.

import matplotlib.pyplot as plt

convergence = ConvergenceDisplay.from_estimator(solver)
plt.show()
solver.diagnose()
