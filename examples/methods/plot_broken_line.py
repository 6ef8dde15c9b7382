"""
A broken line: how many segments, and where they meet
=====================================================

Breakpoints of a broken line are estimates like slopes, with errors of their own. This
example lets the Bayesian information criterion choose the number of segments, reads the
standard errors of the breakpoints, and fits many series at once.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.solvers import JointGN

# %%
# Data
# ----
# Five segments, 400 noisy points. The change at 6.2 is the smallest.

rng = np.random.default_rng(0)
KNOTS, VALUES = [0, 2, 4.5, 6.2, 8, 10], [0, 3, 1, 2.5, 5.5, 2]
x = np.sort(rng.uniform(0, 10, 400))
y = np.interp(x, KNOTS, VALUES) + 0.4 * rng.standard_normal(400)

# %%
# The number of segments
# ----------------------
# The model has no linear term: a neuron left of the data carries the slope of the first
# segment, so there are as many neurons as segments.

model = ShallowReLURegressor(n_neurons="auto", n_init=20, random_state=0)
model.fit(x[:, None], y)
inside = np.isfinite(model.breakpoint_std_)
breakpoints, errors = model.breakpoints_[inside], model.breakpoint_std_[inside]
pd.DataFrame(
    {
        "breakpoint": breakpoints,
        "lower 95 %": breakpoints - 1.96 * errors,
        "upper 95 %": breakpoints + 1.96 * errors,
        "truth": KNOTS[1:-1],
    }
)

# %%
# Left: the fit, its pointwise 95 % band, and the intervals of the breakpoints. They are
# wide where the slope changes little. Right: the criterion of all sizes that were
# tried.

grid = np.linspace(0, 10, 1000)
mean, std = model.predict(grid[:, None], return_std=True)
path = model.selection_path_
figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 4), width_ratios=(2, 1), layout="constrained"
)
left.plot(x, y, ".", color="0.7", markersize=4, label="data")
left.fill_between(grid, mean - 1.96 * std, mean + 1.96 * std, alpha=0.3, color="C0")
left.plot(grid, mean, color="C0", label="fit, 95 % band")
level = np.interp(breakpoints, grid, mean)
left.errorbar(
    breakpoints,
    level,
    xerr=1.96 * errors,
    fmt="o",
    color="C1",
    capsize=3,
    zorder=3,
    label="breakpoints, 95 %",
)
left.set(xlabel="x", ylabel="y", title=f"{len(breakpoints) + 1} segments")
left.legend()
best = np.argmin(path["bic"])
right.plot(path["n_neurons"], path["bic"], ".-", color="C0")
right.plot(path["n_neurons"][best], path["bic"][best], "o", color="C1")
right.set(xlabel="Segments", ylabel="BIC", title="How many segments?")
right.xaxis.get_major_locator().set_params(integer=True)
plt.show()

# %%
# Many series
# -----------
# Each series has breakpoints of its own; 100 of them take a few seconds.

shifts = rng.uniform(-0.5, 0.5, 100)
X = [np.sort(rng.uniform(0, 10, 300)) for _ in shifts]
Y = [
    np.interp(a, np.add(KNOTS, s), VALUES) + 0.2 * rng.standard_normal(300)
    for a, s in zip(X, shifts, strict=True)
]
models = [
    ShallowReLURegressor(5, solver=JointGN(relocations=8), random_state=0).fit(
        a[:, None], b
    )
    for a, b in zip(X, Y, strict=True)
]
first = np.array([m.breakpoints_[np.argmin(abs(m.breakpoints_ - 2))] for m in models])

# %%
# The mean distance of the first breakpoint from the truth:

float(np.abs(first - 2 - shifts).mean())
