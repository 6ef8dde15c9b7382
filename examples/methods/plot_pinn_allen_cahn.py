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
# and cosine of the angle.

import jax.numpy as jnp

from sklearn_gn.pde import Box, Initial, Problem, d


def allen_cahn(u, x):
    value = u(x)
    return d(u, "t")(x) - 1e-4 * d(u, "x", "x")(x) + 5 * (value**3 - value)


def start(x):
    return x[0] ** 2 * jnp.cos(jnp.pi * x[0])


problem = Problem(
    allen_cahn,
    Box(x=(-1, 1), t=(0, 1)),
    conditions=[Initial(start, weight=10.0)],
    periodic=["x"],
)

# %%
# The fit
# -------
#
# A network this small, and so few points, keep the page quick. The fit ends with a
# ConvergenceWarning, since the loss still falls after 120 iterations. For more digits
# take wider layers, more points and more iterations.

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
log[["iteration", "time", "loss", "val_loss"]].iloc[19::20]

# %%
# The solution
# ------------
#
# The residual is largest in the layers, where the solution is steep.

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
