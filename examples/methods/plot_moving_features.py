"""
Features that move the classes apart
====================================

The hidden layers of a classifier have one task: to arrange the samples so that straight
borders separate the classes. With variable projection the borders are the best ones at
every moment of the training, and what remains to be learnt are the features. In the
plane both can be watched.
"""

# %%
# An ellipse
# ----------
#
# No straight line separates the inside of an ellipse from the outside. Two units in the
# last hidden layer make features that can be drawn, with the regions that the output
# layer assigns to the classes. Iteration 0 is the untrained network: its borders
# already come from the best logistic regression on its features.

import pandas as pd
from sklearn.model_selection import train_test_split

from sklearn_gn import VarProNetClassifier
from sklearn_gn.datasets import make_ellipse
from sklearn_gn.plotting import FeatureDisplay

X, y = make_ellipse(600, random_state=0)
model = VarProNetClassifier(
    hidden_layer_sizes=(8, 2), alpha=1e-6, tol=0.01, random_state=0
)
iterations = (0, 1, 2, 5, 10)
features = FeatureDisplay.from_estimator(model, X, y, iterations=iterations)
pd.DataFrame({"iteration": iterations, "training accuracy": features.accuracy_})

# %%
# What has to be chosen
# ---------------------
#
# Five classes are the level sets of three humps and hollows, and few samples make the
# penalty ``alpha`` of the hidden weights matter. Adam also needs a learning rate. Both
# fits end when the loss on the rows that they have set aside no longer falls.

import matplotlib.pyplot as plt
from sklearn.model_selection import GridSearchCV

from sklearn_gn.datasets import make_peaks_classification
from sklearn_gn.solvers import Adam

X, y = make_peaks_classification(1000, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=500, stratify=y, random_state=0
)
common = {"hidden_layer_sizes": (16, 16), "early_stopping": True, "random_state": 0}
gnvpro = VarProNetClassifier(n_iter_no_change=5, **common)
adam = VarProNetClassifier(
    solver=Adam(), alpha=1e-6, max_iter=2000, n_iter_no_change=50, **common
)
penalties = [(alpha, 1e-6) for alpha in (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)]
rates = [1e-4, 1e-3, 1e-2, 3e-2, 1e-1]
searches = {
    "GNvpro": GridSearchCV(gnvpro, {"alpha": penalties}, cv=3),
    "Adam": GridSearchCV(adam, {"solver__learning_rate": rates}, cv=3),
}
rows = {}
sweeps, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
for panel, (name, search) in zip(panels, searches.items(), strict=True):
    search.fit(X_train, y_train)
    ((parameter, values),) = search.param_grid.items()
    (best,) = search.best_params_.values()
    if parameter == "alpha":  # that of the hidden layers varies
        values, best = [hidden for hidden, _ in values], best[0]
    panel.semilogx(
        values, search.cv_results_["mean_test_score"], marker="o", label="3 folds"
    )
    test = search.score(X_test, y_test)
    panel.plot(best, test, "k*", ms=10, label="best, test samples")
    panel.set(xlabel=parameter.removeprefix("solver__"), title=name)
    work = search.best_estimator_.convergence_log_["work_units"][-1]
    rows[name] = {**search.best_params_, "test accuracy": test, "work units": work}
panels[0].set_ylabel("Accuracy")
panels[0].legend()
plt.show()
pd.DataFrame(rows).T
