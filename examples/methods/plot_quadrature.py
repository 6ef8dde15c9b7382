"""
Functions instead of tables
===========================

A function is known everywhere, not at some rows only. Its best approximation in the
mean square minimises an integral, and a quadrature rule makes a weighted sum of it:
the points are the samples, the weights are ``sample_weight``. How fine the rule has to
be depends on where the network breaks, which becomes known during the fit.
"""

# %%
# Narrow peaks
# ------------
#
# Three peaks of different widths, as in the paper on the structure-guided Gauss-Newton
# method. The cells of this rule are wider than the sharpest peak; each gets two points.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.plotting import BreakpointDisplay
from sklearn_gn.quadrature import grid


def peaks(X):
    centres = [-(np.pi**2) / 10, -(np.pi - 2.5), np.sqrt(85) / 10]
    return np.sum(1 / ([1e4, 1e3, 5e3] * (X - centres) ** 2 + 1), axis=1)


def fit(model, function, rule, reference):
    """Fit on a rule; return the error by this rule and by a much finer one."""
    points, weights = rule
    model.fit(points, function(points), sample_weight=weights)
    fine, fine_weights = reference
    difference = model.predict(fine) - function(fine)
    return {
        "points": len(points),
        "error by the rule": np.sqrt(2 * weights.sum() * model.loss_),
        "error in truth": np.sqrt(fine_weights @ difference**2),
    }


reference = grid(-1.5, 1.5, 20_000).gauss(order=3)
cells = grid(-1.5, 1.5, 60)
model = ShallowReLURegressor(n_neurons=15, warm_start=True, random_state=0)
errors = [fit(model, peaks, cells.gauss(), reference)]
errors[0]

# %%
# To the rule this fit looks much better than it is: the rest of the error lies between
# the points. (``loss_`` is half the square of the error, divided by the sum of the
# weights; the table shows the error itself.)
#
# A network can deviate from the function between two points only where it breaks.
# :meth:`~sklearn_gn.quadrature.Cells.refine` halves the cells with breakpoints, here
# three times, and makes the breakpoints edges of cells. The next fit starts from the
# last one. It moves the breakpoints, so the coarse cells are refined again.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(12, 4), layout="constrained", sharey=True
)


def draw(ax, points):
    x = np.linspace(-1.5, 1.5, 6001)[:, None]
    ax.plot(x, peaks(x), color="0.75", linewidth=4, label="Function")
    BreakpointDisplay.from_estimator(model, points, ax=ax)
    ax.plot(points, peaks(points), "k.", markersize=4, label="Samples")
    ax.set(title=f"Fit on {len(points)} points", xlabel="x", ylabel="u(x)")
    ax.legend(loc="upper center", bbox_to_anchor=(0.6, 1), framealpha=1)
    ax.label_outer()


draw(left, cells.gauss()[0])
for _ in range(2):
    refined = cells.refine(model.hyperplanes_, levels=3)
    errors.append(fit(model, peaks, refined.gauss(), reference))
draw(right, refined.gauss()[0])


# %%
# Now rule and truth agree. As many equal cells, in the last row, do worse:

model = ShallowReLURegressor(n_neurons=15, random_state=0)
errors.append(fit(model, peaks, grid(-1.5, 1.5, len(refined)).gauss(), reference))
pd.DataFrame(errors)

# %%
# A curved edge
# -------------
#
# The function is one inside a quarter of a disk and zero outside. In two dimensions the
# cells that a breaking line runs through are cut into four.


def disk(X):
    return np.where(np.sum(X**2, axis=1) < 0.64, 1.0, 0.0)


reference = grid([0, 0], 1, 1000).midpoint()
cells = grid([0, 0], 1, 16)
model = ShallowReLURegressor(12, alpha=0, warm_start=True, random_state=0)
errors = [fit(model, disk, cells.midpoint(), reference)]
refined = cells.refine(model.hyperplanes_)

# %%
# The first network with the cells that are refined for it, and the network that is
# fitted on them. The white lines are the breaking lines, the red one is the edge of the
# disk.

figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")


def draw(ax):
    display = BreakpointDisplay.from_estimator(
        model, [[0, 0], [1, 1]], ax=ax, vmin=-0.4, vmax=1.4
    )
    display.surface_.colorbar.set_label("u(x)")
    angle = np.linspace(0, np.pi / 2, 100)
    ax.plot(0.8 * np.cos(angle), 0.8 * np.sin(angle), color="tab:red")
    ax.set(xlabel="$x_1$", ylabel="$x_2$", xlim=(0, 1), ylim=(0, 1))


draw(left)
for low, size in zip(refined.low, refined.high - refined.low, strict=True):
    left.add_patch(plt.Rectangle(low, *size, fill=False, linewidth=0.4))
left.set(title=f"Fit on {len(cells)} cells, and {len(refined)} finer ones")

errors.append(fit(model, disk, refined.midpoint(), reference))
draw(right)
right.set(title=f"Fit on {len(refined)} cells")
plt.show()
pd.DataFrame(errors)
