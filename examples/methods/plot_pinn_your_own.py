"""
Your own equation
=================

A problem is a residual, a domain and conditions. This one, a plate that is heated from
a hole and radiates, has no closed solution and is stated in twenty lines.
"""

# %%
# The problem
# -----------
#
# The residual is what must vanish. It gets the field ``u``, one point ``x`` and the
# coefficients by name; operators turn fields into fields, which are evaluated at the
# point. Domains are combined by ``-`` and ``|``, and their faces have names.

from sklearn_gn.pde import Ball, Box, Dirichlet, Neumann, Problem, laplacian


def radiating(u, x, strength):
    return laplacian(u)(x) - strength * u(x) ** 4


square, hole = Box(x=(-1, 1), y=(-1, 1)), Ball(2, center=(0.2, 0.2), radius=0.35)
plate = Problem(
    radiating,
    square - hole,
    conditions=[
        Dirichlet(1.0, on="sphere", name="hot_hole"),
        Dirichlet(0.0, on="x=min", name="cold_side"),
        Neumann(0.0, on=("x=max", "y=min", "y=max"), name="insulated"),
    ],
    coefficients={"strength": 2.0},
    name="plate",
)
plate.domain.faces

# %%
# The fit
# -------
#
# With ``early_stopping`` the fit ends when the loss on fresh points, which it is not
# trained on, no longer falls.

from sklearn_gn import PINNSolver

solver = PINNSolver(
    plate,
    hidden_layer_sizes=(20, 20),
    n_interior=400,
    n_boundary=300,
    early_stopping=True,
    random_state=0,
).fit()
solver.diagnose()

# %%
# How good is it?
# ---------------
#
# There is nothing to compare with, so the picture shows the size of the residual next
# to the solution.

from sklearn_gn.plotting import SolutionDisplay

display = SolutionDisplay.from_estimator(solver)

# %%
# A second fit, with another network and other points, shows what the residual means for
# the solution: where the two differ, at least one of them is wrong.

import numpy as np

other = PINNSolver(
    plate,
    hidden_layer_sizes=(24, 24),
    n_interior=500,
    n_boundary=350,
    early_stopping=True,
    random_state=1,
).fit()
X = plate.domain.sample(2000, np.random.RandomState(0))
float(np.abs(solver.predict(X) - other.predict(X)).max())

# %%
# Physics gives another test: the heat that enters through the hole leaves through the
# cold side or is radiated.

points, normals = plate.domain.sample_face("sphere", 2000, np.random.RandomState(0))
slopes = np.column_stack([solver.derivative(points, axis) for axis in "xy"])
given = 2 * np.pi * 0.35 * np.mean(np.sum(slopes * normals, axis=1))
points, _ = plate.domain.sample_face("x=min", 2000, np.random.RandomState(0))
taken = 2.0 * np.mean(solver.derivative(points, "x"))
radiated = (4 - np.pi * 0.35**2) * np.mean(2.0 * solver.predict(X) ** 4)

import matplotlib.pyplot as plt
import pandas as pd

plt.show()
pd.DataFrame({"heat": {"given": given, "taken": taken, "radiated": radiated}})
