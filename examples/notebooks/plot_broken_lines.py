"""
Broken lines from first plot to report
======================================

A whole analysis of one series: look at it, ask whether it breaks at all, choose a
model, find the number of breakpoints, check the residuals, make the fit robust, state
intervals, and write the report. The series is the annual flow of the Nile.
"""

# %%
# Step 1: look
# ------------
# The flow at Aswan in 10⁸ cubic metres a year, 1871 to 1970.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import GridSearchCV, KFold

from sklearn_gn import SegmentedRegressor
from sklearn_gn.datasets import load_nile
from sklearn_gn.plotting import SegmentsDisplay, SelectionPathDisplay

X, y = load_nile(return_X_y=True)
X = pd.DataFrame(X, columns=["year"])
y = pd.Series(y, name="flow")
figure, ax = plt.subplots(figsize=(8, 3.5), layout="constrained")
ax.plot(X["year"], y, ".-", color="0.4")
ax.set(xlabel="Year", ylabel="Flow (10⁸ m³ a year)")
plt.show()

# %%
# The flow seems lower after about 1900. A smooth decline, a kink or a sudden drop would
# all look like this at a glance.

# %%
# Step 2: is there a break at all?
# --------------------------------
# Over all years one can always find a year that divides the series well. The test
# accounts for this search: its p-value is for the best of all divisions. Each form
# of a break has a test of its own: a change of level (constants that jump), a kink, or
# a jump between lines of any slope.

forms = {
    "change of level": SegmentedRegressor(degree=0),
    "kink": SegmentedRegressor(),
    "lines that jump": SegmentedRegressor(jumps=True),
}
pd.DataFrame({name: m.breakpoint_test(X, y)._asdict() for name, m in forms.items()}).T

# %%
# Step 3: which form?
# -------------------
# The Bayesian information criterion compares the forms, as it compares numbers of
# breakpoints within each of them. Lower is better; a difference above six is strong
# evidence.

fits = {name: model.fit(X, y) for name, model in forms.items()}
comparison = pd.DataFrame(
    {
        name: {"breakpoints": len(fit.breakpoints_), **fit.statistics_}
        for name, fit in fits.items()
    }
).T
comparison[["breakpoints", "n_parameters", "r2", "bic"]].round(3)

# %%
# A change of level describes the series as well as the others, with fewer parameters.

# %%
# Step 4: how many?
# -----------------
# The whole path of the criterion, not only its minimum: is a second break nearly as
# good?

nile = fits["change of level"]
figure, (left, right) = plt.subplots(
    1, 2, figsize=(11, 4), width_ratios=(2, 1), layout="constrained"
)
SegmentsDisplay.from_estimator(nile, X, y, ax=left)
SelectionPathDisplay.from_estimator(nile, ax=right)
plt.show()

# %%

pd.DataFrame(nile.selection_path_).set_index("n_breakpoints").round(3)

# %%
# Cross-validation, which assumes less, agrees.

folds = KFold(5, shuffle=True, random_state=0)
numbers = {"n_breakpoints": range(4)}
search = GridSearchCV(SegmentedRegressor(degree=0), numbers, cv=folds)
search.fit(X, y).best_params_

# %%
# Step 5: are the residuals as assumed?
# -------------------------------------
# Standard errors assume independent residuals of one variance. Correlation of
# successive residuals is visible in the first autocorrelations; beyond the dashed lines
# they differ from zero at the level of 5 %.

residual = y - nile.predict(X)
lags = np.arange(1, 16)
autocorrelation = [residual.autocorr(lag) for lag in lags]
figure, (left, right) = plt.subplots(
    1, 2, figsize=(11, 3.5), width_ratios=(2, 1), layout="constrained"
)
left.axhline(0, color="0.3", linewidth=0.8)
left.plot(X["year"], residual, ".", color="C0")
left.set(xlabel="Year", ylabel="Residual")
right.stem(lags, autocorrelation)
for limit in (-1.96, 1.96):
    right.axhline(limit / np.sqrt(len(y)), color="0.3", linestyle="--", linewidth=0.8)
right.set(xlabel="Lag in years", ylabel="Autocorrelation", xticks=lags[::2])
plt.show()

# %%
# There is little. Had there been more, ``covariance="HAC"`` would allow for it: the
# errors of the levels change as below.

covariances = ["nonrobust", "HC3", "HAC", "HAC-prewhitened"]
pd.DataFrame(
    {
        kind: SegmentedRegressor(1, degree=0, covariance=kind)
        .fit(X, y)
        .segments_["intercept_std_error"]
        for kind in covariances
    },
    index=["before", "after"],
).round(1)

# %%
# Step 6: does one row decide?
# ----------------------------
# With Huber's loss rows that are far off count less. Here we spoil three years on
# purpose, by a factor of five, and compare.

spoiled = y.mask(X["year"].isin([1885, 1920, 1950]), 5 * y)
pd.DataFrame(
    {
        name: {
            "break": fit.breakpoints_[0],
            "before": fit.segments_["intercept"][0],
            "after": fit.segments_["intercept"][1],
        }
        for name, fit in {
            "as measured": nile,
            "spoiled": SegmentedRegressor(1, degree=0).fit(X, spoiled),
            "spoiled, Huber": SegmentedRegressor(1, degree=0, loss="huber").fit(
                X, spoiled
            ),
        }.items()
    }
).round(1)

# %%
# Step 7: what to report
# ----------------------
# The break with its interval, the two levels with theirs, and what the next year will
# bring. Work on the first dam at Aswan began in 1899.

segments = pd.DataFrame(nile.segments_, index=["before", "after"])
segments[["start", "end", "intercept", "intercept_lower", "intercept_upper"]].round(1)

# %%

lower, upper = nile.predict_interval(pd.DataFrame({"year": [1971]}))
pd.DataFrame(
    {
        "from": [nile.breakpoint_interval_[0, 0], lower[0]],
        "estimate": [nile.breakpoints_[0], segments.loc["after", "intercept"]],
        "to": [nile.breakpoint_interval_[0, 1], upper[0]],
    },
    index=["year of the break", "flow in 1971"],
).round(1)

# %%
# ``summary()`` is the report in full, in a notebook as HTML and by ``print`` as text.

nile.summary()
