"""
Breakpoints that move to the jumps
==================================

The breaking points of a shallow ReLU network are its mesh. Gauss-Newton steps with
relocation move them to where the data jump; methods that see only a gradient, or that
do not leave the nearest local minimum, leave most of them where they started.
"""

# %%
# A step function in one dimension
# --------------------------------
#
# Ten pieces, sampled at 1,000 points. Thirty neurons start evenly spaced. Two
# breakpoints between neighbouring samples make a jump, so a loss of zero is possible.

import matplotlib.pyplot as plt
import numpy as np

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.plotting import BreakpointDisplay, ConvergenceDisplay
from sklearn_gn.solvers import Adam

x = (np.arange(1000) + 0.5)[:, None] / 100
pieces = np.array([1.0, 0.2, 2.5, 0.4, 0.1, 4.0, 0.3, 1.5, 0.6, 3.0])
y = pieces[x[:, 0].astype(int)]
step = ShallowReLURegressor(n_neurons=30, random_state=0).fit(x, y)
display = BreakpointDisplay.from_estimator(step, x, y)
display.ax_.set(title="Ten steps, 30 neurons", xlabel="x", ylabel="u(x)")
plt.show()

# %%
# The same loss, minimised by others from evenly spaced breakpoints: BFGS ends in a
# local minimum, and Adam has not converged after 2,000 iterations, as the warnings say.
# The default searches for the breakpoints first, and needs one iteration after that.

figure, ax = plt.subplots(layout="constrained")
ConvergenceDisplay.from_estimator(
    step, ax=ax, x="inner_iterations", name="vpgn", marker="o"
)
for name, solver in {"bfgs": "bfgs", "adam": Adam(learning_rate=0.1)}.items():
    other = ShallowReLURegressor(n_neurons=30, solver=solver, max_iter=2000)
    other.fit(x, y)
    ConvergenceDisplay.from_estimator(other, ax=ax, x="inner_iterations", name=name)
ax.set(title="Convergence", xscale="log")
plt.show()

# %%
# A band in the plane
# -------------------
#
# One inside a diagonal band, minus one outside, at 10,000 points: four lines, two for
# each edge of the band, are exact.

grid = np.arange(100)
i, j = (index.ravel() for index in np.meshgrid(grid, grid, indexing="ij"))
points = (np.c_[i, j] + 0.5) / 50 - 1
inside = np.abs(i + j + 1 - 100) <= 25
band = ShallowReLURegressor(n_neurons=4, alpha=0, random_state=0)
band.fit(points, np.where(inside, 1.0, -1.0))
display = BreakpointDisplay.from_estimator(band, points)
display.ax_.set(title="A band, 4 neurons", xlabel="$x_1$", ylabel="$x_2$")

plt.show()
