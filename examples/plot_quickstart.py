"""
Quick start
===========

A river that changed, a table that needs no tuning, and a differential equation: three
fits with default settings, on real data where there are any.
"""

# %%
# Where did the Nile change?
# --------------------------
#
# How much water passed Aswan in each year from 1871 to 1970? The flow fell at the end
# of the 19th century, when work on the first dam began. Nothing tells the model how
# many changes there are, or where.

import sys
from pathlib import Path
from time import perf_counter

from sklearn_gn import SegmentedRegressor
from sklearn_gn.datasets import load_nile
from sklearn_gn.plotting import SegmentsDisplay

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
year, flow = load_nile(return_X_y=True)

start = perf_counter()
model = SegmentedRegressor(jumps=True).fit(year, flow)
print(f"The Nile: one fit, {perf_counter() - start:.2f} s")
print(model.summary())

display = SegmentsDisplay.from_estimator(model, year, flow)
display.ax_.set(xlabel="Year", ylabel="Flow (1e8 m³ a year)")
display.figure_.savefig(folder / "nile.png", dpi=120)
print("Picture:", folder / "nile.png")

# %%
# A table that needs no tuning
# ----------------------------
#
# Ten measurements of 442 patients, and how far their diabetes had gone a year later.
# Most of the variation is noise, so regularisation decides. The evidence chooses it
# from the training data, so one fit is enough, and it comes with intervals for new
# patients.

from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from sklearn_gn import ShallowReLURegressor, VarProNetRegressor

X, y = load_diabetes(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

network = ShallowReLURegressor(random_state=0).fit(X_train, y_train)
lower, upper = network.predict_interval(X_test, level=0.9)
covered = ((lower <= y_test) & (y_test <= upper)).mean()
print(f"\nDiabetes: the noise is {network.noise_std_:.0f}, the data determine")
print(f"{network.n_effective_parameters_:.0f} parameters, and {covered:.0%} of new")
print("patients are in their 90 % intervals.")

# %%
# The same table for other regressors: with default settings, and with a search over a
# few candidates. Each score is the mean over 5 folds; the seconds are those of all.

import warnings

from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

mlp = make_pipeline(
    StandardScaler(),
    TransformedTargetRegressor(
        MLPRegressor(hidden_layer_sizes=10, max_iter=1000, random_state=0),
        transformer=StandardScaler(),
    ),
)
mlp_grid = {"transformedtargetregressor__regressor__alpha": [0.1, 1, 10, 100]}
boosting = HistGradientBoostingRegressor(random_state=0)
boosting_grid = {"learning_rate": [0.03, 0.1], "max_leaf_nodes": [4, 31]}
regressors = {
    "VarProNetRegressor()": VarProNetRegressor(random_state=0),
    "ShallowReLURegressor()": ShallowReLURegressor(random_state=0),
    "RidgeCV": make_pipeline(StandardScaler(), RidgeCV([0.1, 1, 10, 100, 1000])),
    "RandomForestRegressor": RandomForestRegressor(random_state=0),
    "HistGradientBoosting": boosting,
    "HistGradientBoosting, search": GridSearchCV(boosting, boosting_grid, cv=3),
    "MLPRegressor": mlp,
    "MLPRegressor, search": GridSearchCV(mlp, mlp_grid, cv=3),
}
folds = KFold(n_splits=5, shuffle=True, random_state=0)

print(f"\n{'':30}{'test R2':>8}{'seconds':>9}")
for name, regressor in regressors.items():
    start = perf_counter()
    with warnings.catch_warnings():  # MLPRegressor's, which takes all its iterations
        warnings.simplefilter("ignore", ConvergenceWarning)
        scores = cross_val_score(regressor, X, y, cv=folds)
    print(f"{name:30}{scores.mean():8.3f}{perf_counter() - start:9.1f}")

# %%
# A differential equation
# -----------------------
#
# The torsion function of a square bar: minus the Laplacian is one inside, and zero at
# the boundary. The equation is stated as in a book; its value at the centre is 0.29469.

from sklearn_gn import PINNSolver
from sklearn_gn.pde import Box, Dirichlet, Problem, laplacian
from sklearn_gn.plotting import SolutionDisplay


def equation(u, x):
    return -laplacian(u)(x) - 1


square = Box(x=(-1, 1), y=(-1, 1))
solver = PINNSolver(
    Problem(equation, square, [Dirichlet(0.0)]), max_time=15, random_state=0
)
with warnings.catch_warnings():  # it would become more accurate still
    warnings.simplefilter("ignore", ConvergenceWarning)
    solver.fit()
print(f"\nTorsion of a square bar: {solver.predict([[0.0, 0.0]])[0]:.5f} at the centre")

display = SolutionDisplay.from_estimator(solver)
display.figure_.savefig(folder / "torsion.png", dpi=120)
print("Picture:", folder / "torsion.png")
