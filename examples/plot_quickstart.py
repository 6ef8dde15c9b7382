"""
Quick start
===========

A change in the flow of a river, found by two breakpoints, and a comparison with other
regressors on a small medical table.
"""

# %%
# The drop in the flow of the Nile
# --------------------------------
#
# How much water passed Aswan in each year from 1871 to 1970? The flow fell at the end
# of the 19th century, when work on the first dam began. A jump takes two breakpoints,
# one where it begins and one where it ends, so two neurons are enough. Nothing tells
# the model where to look.

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.datasets import load_nile

year, volume = load_nile(return_X_y=True)
model = ShallowReLURegressor(n_neurons=2, random_state=0).fit(year, volume)
before, after = model.predict([[1898], [1899]])

print("Breakpoints:", *model.breakpoints_.round(2))
print(f"Flow: {before:.0f} in 1898, {after:.0f} in 1899 (in 1e8 cubic metres a year)")

# %%
# Every fit keeps its history and the eigenvalues of its Gauss-Newton matrix, and both
# can be drawn. The other solvers minimise the same loss from the same start and end in
# local minima, out of which relocation carries "sggn" and the default solver, "vpgn".
#
# Two of the four eigenvalues are zero up to rounding. No year lies between the two
# breakpoints, so the data say that the flow falls between 1898 and 1899, but not when.

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from sklearn_gn.plotting import (
    BreakpointDisplay,
    ConvergenceDisplay,
    GramSpectrumDisplay,
)

figure, (left, middle, right) = plt.subplots(
    1, 3, figsize=(13, 4), layout="constrained"
)
BreakpointDisplay.from_estimator(model, year, volume, ax=left)
left.set(xlabel="Year", ylabel="Flow (1e8 m³ a year)", title="Fit")

for solver in ("sggn", "bfgs", "lm"):
    other = ShallowReLURegressor(n_neurons=2, solver=solver, random_state=0)
    other.fit(year, volume)
    ConvergenceDisplay.from_estimator(other, ax=middle, name=f'solver="{solver}"')
middle.set(ylabel="Loss (half the mean squared error)", title="Convergence")

GramSpectrumDisplay.from_estimator(model, ax=right)
right.set(title="Spectrum")

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
figure.savefig(folder / "nile.png", dpi=120)
print("Picture:", folder / "nile.png")

# %%
# A noisy table, with default settings
# ------------------------------------
#
# Ten measurements of 442 patients, and how far their disease had gone a year later.
# Most of the variation is noise, so regularisation decides. The evidence chooses all of
# it from the training data: a penalty for each feature, and the level of the noise. So
# one fit is enough, and it comes with intervals for new patients.

from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

X, y = load_diabetes(return_X_y=True)


def grid_search(regressor, grid, n_jobs=None):
    return GridSearchCV(
        Pipeline([("scale", StandardScaler()), ("model", regressor)]),
        {f"model__{parameter}": values for parameter, values in grid.items()},
        cv=KFold(n_splits=3, shuffle=True, random_state=42),
        n_jobs=n_jobs,
    )


shallow = ShallowReLURegressor(random_state=0).fit(X, y)
lower, upper = shallow.predict_interval(X, level=0.9)
covered = ((lower <= y) & (y <= upper)).mean()
print(f"Noise: {shallow.noise_std_:.0f}, parameters that the data determine:", end=" ")
print(f"{shallow.n_effective_parameters_:.0f}, in 90 % intervals: {covered:.0%}")

# %%
# A comparison with other regressors
# ----------------------------------
#
# ``ShallowReLURegressor`` has its default settings and no search; each of the others
# has a small grid of its own. The whole search is repeated inside the training part of
# every fold, so neither a model nor the choice of its parameters sees the rows on which
# it is scored. ``MLPRegressor`` gets a standardised target; ``ShallowReLURegressor``
# scales by itself.

from time import perf_counter

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import ParameterGrid, RepeatedKFold, cross_validate
from sklearn.neural_network import MLPRegressor


def mlp(solver):
    network = MLPRegressor(
        hidden_layer_sizes=10, solver=solver, max_iter=5000, random_state=0
    )
    return TransformedTargetRegressor(network, transformer=StandardScaler())


mlp_grid = {"regressor__alpha": [0.1, 1, 10]}
boosting_grid = {"learning_rate": [0.03, 0.1], "max_leaf_nodes": [4, 31]}
searches = {
    "ShallowReLURegressor": grid_search(shallow, {}),
    "MLPRegressor, adam": grid_search(mlp("adam"), mlp_grid),
    "MLPRegressor, lbfgs": grid_search(mlp("lbfgs"), mlp_grid),
    "HistGradientBoosting": grid_search(
        HistGradientBoostingRegressor(random_state=0), boosting_grid
    ),
    "Ridge": grid_search(Ridge(), {"alpha": [0.1, 1, 10, 100, 1000]}),
}

# %%
# The scores are means and standard deviations over the folds. The seconds are those of
# one fit with the chosen parameters (median) and of all fits, compilation included; how
# many these are depends on the size of the grid.

folds = RepeatedKFold(n_splits=5, n_repeats=2, random_state=42)

print(f"\n{'':22}{'test R2':>15}{'one fit (s)':>14}{'all (s)':>10}{'grid':>7}")
for name, search in searches.items():
    start = perf_counter()
    result = cross_validate(search, X, y, cv=folds, n_jobs=2, return_estimator=True)
    seconds = perf_counter() - start
    score = result["test_score"]
    one_fit = np.median([fitted.refit_time_ for fitted in result["estimator"]])
    n_grid = len(ParameterGrid(search.param_grid))
    test = f"{score.mean():.3f} ± {score.std():.3f}"
    print(f"{name:22}{test:>15}{one_fit:14.3f}{seconds:10.1f}{n_grid:7d}")
