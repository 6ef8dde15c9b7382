"""
A viscosity from noisy velocities
=================================

An inverse problem: the equations of a flow are known up to a coefficient, and some
velocities have been measured. Flow, pressure and coefficient are found together, with
an error bar.
"""

# %%
# The data
# --------
#
# Velocities of the Kovasznay flow at 200 places, with noise of standard deviation 0.05.
# The viscosity behind them is 1/40. Nothing is known about the flow on the boundary, so
# the problem has no conditions.

from dataclasses import replace

import numpy as np

from sklearn_gn.pde import Unknown
from sklearn_gn.pde.problems import Kovasznay

flow = Kovasznay(reynolds=40, viscosity=Unknown(0.1, positive=True))
problem = replace(flow, conditions=())
rng = np.random.RandomState(0)
X = problem.domain.sample(200, rng, "uniform")
noise = 0.05
y = problem.exact_values(X)[:, :2] + noise * rng.normal(size=(200, 2))

# %%
# The fit
# -------
#
# ``Unknown`` says what is to be found and where the search begins; ``observed_outputs``
# says which outputs the columns of y contain. The pressure is not measured: it follows
# from the equations.

from sklearn_gn import PINNSolver

solver = PINNSolver(
    problem,
    hidden_layer_sizes=(20, 20),
    observed_outputs=("u", "v"),
    random_state=0,
).fit(X, y)

# %%
# The viscosity and the noise of u and v, each with its true value. The fit has lowered
# the weight of the observations until their noise no longer bent the solution (see
# ``observation_weight`` in its log): the equations then act as constraints, and the
# interval agrees with least squares.

import pandas as pd

found, std = solver.coefficients_["nu"], solver.coefficients_std_["nu"]
pd.DataFrame(
    {
        "estimate": [found, *solver.noise_std_],
        "lower 95 %": [found - 1.96 * std, np.nan, np.nan],
        "upper 95 %": [found + 1.96 * std, np.nan, np.nan],
        "truth": [1 / 40, noise, noise],
    },
    index=["viscosity", "noise of u", "noise of v"],
)

# %%
# Errors of the outputs, each relative to its own size.

error = solver.relative_error(multioutput="raw_values")
pd.DataFrame({"relative error": error}, index=problem.outputs)

# %%
# The velocities along a line through the flow, with bands of two standard deviations
# and the measurements nearby. The bands belong to the flow, not to a single
# measurement: 200 measurements and the equations determine it better than one does.
# The pressure along another line is compared without its mean. It has no band, since
# nothing determines its constant.

import matplotlib.pyplot as plt

line = np.column_stack([np.full(200, 0.25), np.linspace(-0.5, 1.5, 200)])
mean, deviation = solver.predict(line, return_std=True)
exact = problem.exact_values(line)
near = np.abs(X[:, 0] - 0.25) < 0.1

figure, panels = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
for k, name in enumerate("uv"):
    low, high = (mean[:, k] + s * deviation[:, k] for s in (-2, 2))
    panels[k].fill_between(line[:, 1], low, high, alpha=0.4, label="Two deviations")
    panels[k].plot(line[:, 1], mean[:, k], label="Found")
    panels[k].plot(line[:, 1], exact[:, k], "k:", label="True")
    panels[k].plot(X[near, 1], y[near, k], "o", ms=3, color="0.5", label="Measured")
    panels[k].set(xlabel="y", title=f"{name} at x = 0.25")

line = np.column_stack([np.linspace(-0.5, 1, 200), np.full(200, 0.25)])
for values, style in ((solver.predict(line), "-"), (problem.exact_values(line), "k:")):
    panels[2].plot(line[:, 0], values[:, 2] - values[:, 2].mean(), style)
panels[2].set(xlabel="x", title="p at y = 0.25, without its mean")
labelled = panels[0].get_legend_handles_labels()
figure.legend(*labelled, loc="outside lower center", ncols=4)

plt.show()
