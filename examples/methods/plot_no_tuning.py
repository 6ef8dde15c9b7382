"""
No tuning
=========

How far a patient's diabetes progresses within a year is noisy, and the 442 patients
are few: a model that is not regularised fits the noise. The usual way is a grid of
penalties and cross-validation. :class:`~sklearn_gn.ShallowReLURegressor` does without:
the Gauss-Newton matrix of its steps tells how many parameters the data determine, from
which the penalties, the level of the noise and the error bars follow. The
:doc:`user guide </user_guide/shallow_relu>` has the formulas.
"""

# %%
# Fit
# ---
#
# Default settings, on the features as they are.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.plotting import RelevanceDisplay

X, y = load_diabetes(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
model = ShallowReLURegressor(random_state=0).fit(X_train, y_train)

figures = {
    "standard deviation of the target": y_train.std(),
    "standard deviation of the noise": model.noise_std_,
    "parameters of the network": 1 + 10 + 20 * (1 + 11),
    "parameters that the data determine": model.n_effective_parameters_,
}
pd.DataFrame({"value": figures}).round(1)

# %%
# The data determine so little that networks predict left-out patients no better than a
# linear model, which is returned in their place:

model.diagnose()

# %%
# Accuracy
# --------
#
# R2 in five folds. The penalty of ``RidgeCV`` is chosen from a grid by
# cross-validation; the neural network of scikit-learn has its default penalty and
# stops early.

peers = {
    "ShallowReLURegressor()": ShallowReLURegressor(random_state=0),
    "RidgeCV": RidgeCV(np.logspace(-3, 4, 20)),
    "MLPRegressor": MLPRegressor(early_stopping=True, max_iter=5000, random_state=0),
}
scores = {
    name: cross_val_score(make_pipeline(StandardScaler(), peer), X, y).mean()
    for name, peer in peers.items()
}
pd.DataFrame({"R2": scores}).round(3)

# %%
# Intervals
# ---------
#
# 95 % intervals for new patients include the noise and the error of the mean. The inner
# band is the error of the mean alone.

prediction, std = model.predict(X_test, return_std=True)
lower, upper = model.predict_interval(X_test)
order = np.argsort(prediction)
place = np.arange(len(order))
figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.fill_between(
    place, lower[order], upper[order], color="C0", alpha=0.15, label="95 % interval"
)
ax.fill_between(
    place,
    (prediction - 1.96 * std)[order],
    (prediction + 1.96 * std)[order],
    color="C0",
    alpha=0.35,
    label="Error of the mean",
)
ax.plot(place, prediction[order], color="C0", label="Prediction")
ax.plot(place, y_test.to_numpy()[order], "k.", markersize=4, label="New patients")
ax.set(xlabel="New patients, by their prediction", ylabel="Progression", ylim=(0, None))
ax.legend(loc="upper left", ncols=2)
plt.show()

# %%
# The share of the new patients that lie in their intervals:

float(np.mean((lower <= y_test) & (y_test <= upper)))

# %%
# Relevance
# ---------
#
# Where there is more to find, neurons take part. Friedman's function has ten features:
# a wave in the product of the first two, a parabola in the third, lines in the next
# two, and five features without any effect.
#
# Each feature has a penalty of its own for its weights in the hidden neurons. Where it
# is large, the feature acts linearly, or not at all. The bars show how much of the
# fitted function depends on each feature, by the linear term and by the neurons.

X, y = make_friedman1(400, noise=1.0, random_state=0)
X = pd.DataFrame(X, columns=[f"x{j}" for j in range(1, 11)])
friedman = ShallowReLURegressor(random_state=0).fit(X, y)
display = RelevanceDisplay.from_estimator(friedman, X)
plt.show()

# %%
# The numbers behind it: penalties of the hidden weights relative to the smallest.

penalties = friedman.alpha_["weights"] / friedman.alpha_["weights"].min()
table = pd.DataFrame({"penalty": penalties}, index=X.columns).sort_values("penalty")
table.round(1)
