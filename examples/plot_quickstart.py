"""
Quick start
===========

A river that changed, a table that needs no tuning, and a differential equation.
"""

# %%
# Where did the Nile change?
# --------------------------
#
# How much water passed Aswan in each year from 1871 to 1970? The flow fell at the end
# of the 19th century, when work on the first dam began. Nothing tells the model how
# many changes there are, or where.

from sklearn_gn import SegmentedRegressor
from sklearn_gn.datasets import load_nile
from sklearn_gn.plotting import SegmentsDisplay

year, flow = load_nile(return_X_y=True)
model = SegmentedRegressor(jumps=True).fit(year, flow)
print("Where did the Nile change?", model.summary(), sep="\n\n")

# %%
# Two lines with a jump between 1898 and 1899, and the 95 % interval of its date.

display = SegmentsDisplay.from_estimator(model, year, flow)
display.ax_.set(xlabel="Year", ylabel="Flow (10⁸ m³ a year)")
display.figure_.savefig("nile.png", dpi=120)
print("\nPicture: nile.png")

# %%
# A table that needs no tuning
# ----------------------------
#
# Ten measurements of 442 patients, and how far their diabetes had gone a year later.
# Most of the variation is noise, so regularisation decides. The evidence chooses it
# from the training data, so one fit is enough, and it comes with intervals for new
# patients.

import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from sklearn_gn import VarProNetRegressor

X, y = load_diabetes(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

network = VarProNetRegressor(random_state=0).fit(X_train, y_train)
lower, upper = network.predict_interval(X_test, level=0.9)
patients = pd.DataFrame(
    {
        "lower": lower,
        "prediction": network.predict(X_test),
        "upper": upper,
        "truth": y_test,
    }
)
print(
    "\nDiabetes a year later, with 90 % intervals", patients.round().head(), sep="\n\n"
)
inside = patients.eval("lower < truth < upper")
print(f"\nPatients in their intervals: {inside.mean():.0%}")

# %%
# The same table for regressors of scikit-learn: the mean R2 over five folds, and the
# seconds of one fit.

from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold, cross_validate
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import ShallowReLURegressor

mlp = TransformedTargetRegressor(
    make_pipeline(StandardScaler(), MLPRegressor(early_stopping=True, random_state=0)),
    transformer=StandardScaler(),
)
regressors = {
    "VarProNetRegressor": VarProNetRegressor(random_state=0),
    "ShallowReLURegressor": ShallowReLURegressor(random_state=0),
    "RidgeCV": RidgeCV([0.001, 0.01, 0.1, 1]),
    "RandomForestRegressor": RandomForestRegressor(random_state=0),
    "MLPRegressor": mlp,
    "HistGradientBoostingRegressor": HistGradientBoostingRegressor(random_state=0),
}
folds = KFold(n_splits=5, shuffle=True, random_state=0)
scores = {
    name: pd.DataFrame(cross_validate(regressor, X, y, cv=folds)).mean()
    for name, regressor in regressors.items()
}
table = pd.DataFrame(scores).T[["test_score", "fit_time"]]
print("\nR2 on held-out patients, and seconds of a fit", table.round(3), sep="\n\n")

# %%
# A differential equation
# -----------------------
#
# The torsion function of a square bar: minus the Laplacian is one inside, and zero at
# the boundary. The equation is stated as in a book; its value at the centre is 0.2947.

from sklearn_gn import PINNSolver
from sklearn_gn.pde import Box, Dirichlet, Problem, laplacian
from sklearn_gn.plotting import SolutionDisplay


def equation(u, x):
    return -laplacian(u)(x) - 1


problem = Problem(equation, Box(x=(-1, 1), y=(-1, 1)), [Dirichlet(0.0)])
solver = PINNSolver(problem, tol=1e-4, random_state=0)
solver.fit()
print("\nTorsion of a square bar, at its centre:", solver.predict([[0.0, 0.0]]))

display = SolutionDisplay.from_estimator(solver)
display.figure_.savefig("torsion.png", dpi=120)
print("Picture: torsion.png")
