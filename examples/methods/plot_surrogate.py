"""
A surrogate of a differential equation
======================================

A simulation takes parameters and returns what sensors would measure. If it is slow and
needed often, for design or for the quantification of uncertainty, a *surrogate* takes
its place: a regressor fitted to some hundreds of runs. It has to be accurate to a few
digits, and every run that it is fitted to costs time. Variable projection was made for
such problems.
"""

# %%
# The data
# --------
#
# :func:`~sklearn_gn.datasets.make_cdr` solves an equation of convection, diffusion and
# reaction. The 55 parameters are the strengths of reactions; the 72 outputs are
# concentrations at six places and twelve times. A coarse mesh and few samples keep this
# page quick.

import numpy as np
import pandas as pd

from sklearn_gn.datasets import make_cdr

cdr = make_cdr(400, n_nodes=11, cache=False, return_X_y=False)
X_train, X_val, X_test = (cdr.data[i] for i in (cdr.train, cdr.validation, cdr.test))
Y_train, Y_val, Y_test = (cdr.target[i] for i in (cdr.train, cdr.validation, cdr.test))


def relative_error(Y_true, Y_pred):
    """Mean over the samples of ``|prediction - truth| / |truth|``."""
    distance = np.linalg.norm(Y_pred - Y_true, axis=1)
    return np.mean(distance / np.linalg.norm(Y_true, axis=1))


def errors(model):
    log = getattr(model, "convergence_log_", {"work_units": [np.nan]})
    return {
        "training": relative_error(Y_train, model.predict(X_train)),
        "test": relative_error(Y_test, model.predict(X_test)),
        "work units": log["work_units"][-1],
    }


{"samples": len(X_train), "parameters": X_train.shape[1], "outputs": Y_train.shape[1]}


# %%
# Three ways to train one network
# -------------------------------
#
# The network is a neural ODE of width 6: its hidden layers are steps of a flow through
# time. It is fitted with two cells in time first, then with four. All three solvers
# minimise the same function, from the same weights.
#
# - *GNvpro, dense*: Gauss-Newton on what is left when the output layer is eliminated,
#   with the matrix formed. For a network of this size it is the default.
# - *GNvpro, Krylov*: the same from 20 products with that matrix a step.
# - *Adam*: the first-order method, on all weights.
#
# Each fit is made twice. The first compiles, which takes longer than the iterations do;
# the second starts from the same weights and ends with the same result, and its times
# measure the method.
#
# Two regressors of scikit-learn serve as a comparison. Fits of a network end when the
# loss on the validation samples no longer falls.

from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import VarProNetRegressor
from sklearn_gn.networks import NeuralODE
from sklearn_gn.solvers import Adam, GNvpro

network = NeuralODE(width=6, n_cells=2, n_levels=2)
common = {"alpha": 1e-8, "early_stopping": True, "random_state": 0}
models = {
    "GNvpro, dense": VarProNetRegressor(
        network, solver=GNvpro(curvature="dense"), n_iter_no_change=5, **common
    ),
    "GNvpro, Krylov": VarProNetRegressor(
        network, rank=20, n_iter_no_change=5, **common
    ),
    "Adam": VarProNetRegressor(
        network,
        solver=Adam(batch_size=16),
        max_iter=1000,
        n_iter_no_change=20,
        **common,
    ),
}
rows = {}
for name, model in models.items():
    for _ in range(2):
        model.fit(X_train, Y_train, X_val=X_val, y_val=Y_val)
    rows[name] = errors(model)

mlp = MLPRegressor(
    hidden_layer_sizes=(32, 32), solver="lbfgs", max_iter=2000, random_state=0
)
for peer in (Ridge(1e-3), mlp):
    pipeline = make_pipeline(StandardScaler(), peer)
    scaled = TransformedTargetRegressor(pipeline, transformer=StandardScaler())
    rows[type(peer).__name__] = errors(scaled.fit(X_train, Y_train))
pd.DataFrame(rows).T

# %%
# Work and time
# -------------
#
# A work unit is a pass over all training rows, forward or backward. It does not depend
# on the machine, and leaves out linear algebra, which dense steps need most; the
# seconds on the right include it.
#
# The marks are at the last iteration before the refinement. The loss jumps there,
# because with more cells the same weights are not quite the same function.

import matplotlib.pyplot as plt

from sklearn_gn.plotting import ConvergenceDisplay, SurrogateDisplay

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
for name, model in models.items():
    ConvergenceDisplay.from_estimator(model, x="work_units", ax=left, name=name)
    ConvergenceDisplay.from_estimator(model, x="time", ax=right, name=name)
right.set_ylabel(None)
handles, labels = left.get_legend_handles_labels()
for ax in (left, right):
    ax.get_legend().remove()
figure.legend(handles, labels, loc="outside lower center", ncols=4)

# %%
# Sweeps
# ------
#
# The penalties ``alpha`` of the weights have to be chosen, since there are few training
# samples; Adam also needs a learning rate. A grid search tries both. None of these
# values causes a compilation.

from sklearn.base import clone
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV, ShuffleSplit

grids = {
    ("GNvpro, dense", "alpha"): [1e-10, 1e-8, 1e-6, 1e-4, 1e-2],
    ("Adam", "solver__learning_rate"): [1e-3, 3e-3, 1e-2, 3e-2],
}
sweeps, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
searches, rows = {}, {}
for panel, ((name, parameter), values) in zip(panels, grids.items(), strict=True):
    search = GridSearchCV(
        clone(models[name]),
        {parameter: values},
        scoring=make_scorer(relative_error, greater_is_better=False),
        cv=ShuffleSplit(1, test_size=50, random_state=0),
    ).fit(X_train, Y_train)
    searches[name] = search
    error = -search.cv_results_["mean_test_score"]
    panel.loglog(values, error, marker="o", label="held out")
    best = relative_error(Y_test, search.predict(X_test))
    chosen = search.best_params_[parameter]
    panel.plot(chosen, best, "k*", ms=10, label="best, test samples")
    panel.set(xlabel=parameter.removeprefix("solver__"), title=name)
    rows[name] = {"parameter": parameter, "best value": chosen, "test error": best}
panels[0].set_ylabel("Relative error")
panels[0].legend()
search = searches["GNvpro, dense"]
pd.DataFrame(rows).T

# %%
# What the surrogate says
# -----------------------
#
# The test samples with the smallest, the median and the largest error: concentrations
# at the six places over time. True ones are broad and pale, predicted ones thin.

display = SurrogateDisplay.from_estimator(
    search, X_test, Y_test, positions=cdr.times, position_name="Time"
)
display.ax_.set_ylabel("Concentration")

plt.show()
