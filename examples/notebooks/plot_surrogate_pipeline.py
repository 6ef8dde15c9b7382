"""
A surrogate with error bars in a pipeline: search, calibration, deployment
==========================================================================

A regressor is seldom used alone. Here one goes through a project from start to end: a
pipeline with a search over its settings, a check of its error bars on new data, and
three ways to deploy it. The task is the concentration of a pollutant downstream of a
spill, as a function of the river and of the spill.
"""

# %%
# Step 1: the data
# ----------------
# The solution of the equation of advection, diffusion and decay in a river gives the
# concentration at a gauge at one time. Some inputs are numbers of very different size,
# one is a category, and the gauge has noise of 3 %.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

rng = np.random.default_rng(0)
n = 900
data = pd.DataFrame(
    {
        "mass, kg": rng.uniform(10, 50, n),
        "distance, m": rng.uniform(500, 2000, n),
        "velocity, m/s": rng.uniform(0.3, 0.9, n),
        "minutes": rng.uniform(20, 60, n),
        "bed": rng.choice(["sand", "gravel", "rock"], n),
    }
)
dispersion = data["bed"].map({"sand": 60.0, "gravel": 90.0, "rock": 140.0})
seconds = 60 * data["minutes"]
offset = data["distance, m"] - data["velocity, m/s"] * seconds
concentration = (
    data["mass, kg"]
    / np.sqrt(4 * np.pi * dispersion * seconds)
    * np.exp(-(offset**2) / (4 * dispersion * seconds) - 2e-4 * seconds)
)
root = np.sqrt(1e3 * concentration)  # varies less than the concentration itself
y = (root + 0.03 * root.std() * rng.standard_normal(n)).rename("root")
train, test, y_train, y_test = train_test_split(data, y, test_size=300, random_state=0)
train.head().round(2)

# %%
# Step 2: a pipeline and its defaults
# -----------------------------------
# The category is encoded; scaling is done by the regressor. The default is a committee
# of small networks, whose penalties and noise level the evidence chooses.

from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from sklearn_gn import VarProNetRegressor

encode = make_column_transformer(
    (OneHotEncoder(sparse_output=False), ["bed"]),
    remainder="passthrough",
    verbose_feature_names_out=False,
)
model = make_pipeline(encode, VarProNetRegressor(random_state=0))
model.fit(train, y_train)
boosting = make_pipeline(encode, HistGradientBoostingRegressor()).fit(train, y_train)
pd.Series(
    {
        "VarProNetRegressor": model.score(test, y_test),
        "HistGradientBoostingRegressor": boosting.score(test, y_test),
    },
    name="R2 of held-out rows",
).to_frame().round(4)

# %%
# What limited the fit?

model[-1].diagnose()

# %%
# Step 3: search
# --------------
# The penalties need no search. The size of the networks may: ten neurons are the
# default. Cross-validation compares a few.

from sklearn.model_selection import GridSearchCV

search = GridSearchCV(
    model,
    {"varpronetregressor__hidden_layer_sizes": [(10,), (20,), (10, 10)]},
    cv=3,
).fit(train, y_train)
results = pd.DataFrame(search.cv_results_)
results[["params", "mean_test_score", "std_test_score", "mean_fit_time"]].round(4)

# %%

best = search.best_estimator_
best.score(test, y_test)

# %%
# Step 4: are the error bars right?
# ---------------------------------
# Of new rows, 95 % should be in the intervals of 95 %, and likewise at all levels. The
# curve on the left would be the diagonal. It lies above: with noise as small as here
# the intervals are on the safe side, since the disagreement of the networks counts as
# uncertainty of their mean. On the right, the rows by their predicted value.


encoded = best[:-1].transform(test)
levels = np.linspace(0.05, 0.95, 19)
intervals = {level: best[-1].predict_interval(encoded, level) for level in levels}
covered = [
    np.mean((lower < y_test) & (y_test < upper)) for lower, upper in intervals.values()
]
predicted = best.predict(test)
lower, upper = best[-1].predict_interval(encoded, 0.95)
outside = (y_test < lower) | (y_test > upper)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
left.plot([0, 1], [0, 1], "k:", label="Ideal")
left.plot(levels, covered, ".-", label="Held-out rows")
left.set(xlabel="Level of the intervals", ylabel="Share inside", aspect="equal")
left.legend()
right.errorbar(
    predicted, y_test - predicted, yerr=(upper - lower) / 2, fmt="none", alpha=0.25
)
right.plot(predicted, y_test - predicted, ".", label="Inside")
right.plot(
    predicted[outside], (y_test - predicted)[outside], "C3o", label="Outside of 95 %"
)
right.axhline(0, color="0.3", linewidth=0.8)
right.set(xlabel="Predicted", ylabel="Measured minus predicted")
right.legend()
plt.show()

# %%
# The estimated noise, compared with the noise that was added. What the networks cannot
# fit counts as noise, too.

pd.Series(
    {"estimated": float(np.ravel(best[-1].noise_std_)[0]), "true": 0.03 * root.std()},
    name="noise",
).to_frame().round(4)

# %%
# Step 5: what does it depend on?
# -------------------------------
# Any tool of scikit-learn takes the pipeline.

from sklearn.inspection import permutation_importance

importance = permutation_importance(best, test, y_test, n_repeats=5, random_state=0)
pd.DataFrame(
    {"mean": importance.importances_mean, "std": importance.importances_std},
    index=test.columns,
).sort_values("mean", ascending=False).round(3)

# %%
# Step 6: deploy it
# -----------------
# Save the whole model, error bars included, by ``joblib`` or ``skops``: it predicts on
# a machine without a GPU, too. Or export it, without error bars, as an estimator of
# scikit-learn that needs nothing of this package.

import tempfile
from pathlib import Path

import joblib

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "surrogate.joblib")
    joblib.dump(best, path)
    size = path.stat().st_size
    loaded = joblib.load(path)
plain = make_pipeline(best[0], best[-1].to_sklearn())
pd.Series(
    {
        "size of the file, kB": size / 1e3,
        "largest difference, loaded": np.abs(loaded.predict(test) - predicted).max(),
        "largest difference, scikit-learn's": np.abs(
            plain.predict(test) - predicted
        ).max(),
    },
    name="value",
).to_frame()

# %%
# The networks of scikit-learn inside:

plain[-1]
