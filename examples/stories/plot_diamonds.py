"""
Where a diamond's price per carat changes course
================================================

A heavier diamond costs more per carat. Does its price rise evenly with the weight, or
are there weights at which it leaps? Nearly 54,000 diamonds, and a regression that
chooses the number of its segments, answer the question with an interval for each
threshold.
"""

# %%
# The data
# --------
# Prices of round diamonds with their weight and the grades of their cut, colour and
# clarity, which come with the package ``plotnine`` (they were collected for
# ``ggplot2``). Above 2.5 carats there are only 126 diamonds; we leave them out.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from plotnine.data import diamonds
from sklearn.compose import make_column_transformer
from sklearn.preprocessing import OneHotEncoder

diamonds = diamonds.query("carat <= 2.5")
y = np.log(diamonds["price"] / diamonds["carat"]).rename("log of price per carat")
diamonds.head()

# %%
# The fit
# -------
# The broken feature is the weight, the first column. The grades are encoded, and enter
# linearly: diamonds are compared with others of the same grades. With ``jumps=True``
# the function may jump at a breakpoint as well as change its slope. The number of
# breakpoints is chosen by the Bayesian information criterion. By default ten are tried
# at most; :meth:`~sklearn_gn.SegmentedRegressor.diagnose` said that this was too few
# here.

from sklearn_gn import SegmentedRegressor

grades = ["cut", "color", "clarity"]
encode = make_column_transformer(
    ("passthrough", ["carat"]),
    (OneHotEncoder(drop="first", sparse_output=False), grades),
    verbose_feature_names_out=False,
).set_output(transform="pandas")
X = encode.fit_transform(diamonds)
model = SegmentedRegressor(jumps=True, max_breakpoints=20).fit(X, y)
model.diagnose()

# %%
# One row for each breakpoint: its 95 % interval, the jump of the price there, and by
# how much the price per carat rises over the next tenth of a carat. Differences of
# logarithms become percentages.

segments = pd.DataFrame(model.segments_)


def percent(log_difference):
    return 100 * np.expm1(log_difference)


thresholds = pd.DataFrame(
    {
        "carat": model.breakpoints_,
        "from": model.breakpoint_interval_[:, 0],
        "to": model.breakpoint_interval_[:, 1],
        "jump, %": percent(model.jumps_),
        "rise per 0.1 carat, %": percent(segments["slope"] / 10)[1:],
        "at least": percent(segments["slope_lower"] / 10)[1:],
        "at most": percent(segments["slope_upper"] / 10)[1:],
    }
)
thresholds.round(3)

# %%
# What it found
# -------------
# Trade price lists change at 0.30, 0.40, 0.50, 0.70, 0.90, 1.00, 1.50 and 2.00 carats
# (dotted). The fit knows nothing of them. It finds 0.30, 0.70, 0.90 and, a little
# early, 1.50 and 2.00 as jumps of 8 to 18 %. At half a carat and at one carat there is
# a steep rise in place of a jump: few diamonds weigh 0.47 or 0.97 carats, and those
# that do cost almost as much as the round weight. Above two carats the price of a carat
# no longer depends on the weight.

typical = X.assign(**X.drop(columns="carat").mean())  # of mean grades
adjusted = np.exp(model.predict(typical) + y - model.predict(X))
by_weight = adjusted.groupby(X["carat"]).agg(["median", "size"])
grid = typical.iloc[:2000].assign(carat=np.linspace(0.2, 2.5, 2000))

figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(9, 7), height_ratios=(2.5, 1), sharex=True, layout="constrained"
)
top.scatter(
    by_weight.index,
    by_weight["median"],
    s=2 + by_weight["size"] / 20,
    color="0.7",
    edgecolor="0.5",
    label="Median of the diamonds of one weight, area by their number",
)
top.plot(grid["carat"], np.exp(model.predict(grid)), "C2", label="SegmentedRegressor")
top.set(ylabel="Dollars per carat, at mean grades", yscale="log")
top.set_yticks([2000, 3000, 5000, 10_000], labels=["2000", "3000", "5000", "10000"])
top.minorticks_off()
lists = [0.3, 0.4, 0.5, 0.7, 0.9, 1.0, 1.5, 2.0]
for ax in (top, bottom):
    for k, weight in enumerate(lists):
        label = None if k else "Steps of trade price lists"
        ax.axvline(weight, color="0.3", linestyle=":", linewidth=1, label=label)
top.legend(loc="lower right")
jump_error = 1.96 * 100 * segments["jump_std_error"][1:]
bottom.errorbar(
    model.breakpoints_,
    thresholds["jump, %"],
    xerr=np.abs(model.breakpoint_interval_.T - model.breakpoints_),
    yerr=jump_error,
    fmt="C2o",
    markersize=4,
)
bottom.axhline(0, color="0.3", linewidth=0.8)
bottom.set(xlabel="Weight in carats", ylabel="Jump in %,\n95 % intervals")
plt.show()

# %%
# Does the broken line predict well?
# ----------------------------------
# The broken line has the same shape for all grades. Boosted trees let grades and weight
# interact, and predict better: take them where prices are all that is wanted. They name
# no thresholds. A spline of the weight with as many parameters cannot jump, and
# predicts a little worse than the broken line.

from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer

spline = make_column_transformer(
    (SplineTransformer(n_knots=34), ["carat"]), remainder="passthrough"
)
candidates = {
    "straight line": LinearRegression(),
    "spline": make_pipeline(spline, LinearRegression()),
    "SegmentedRegressor": SegmentedRegressor(jumps=True, max_breakpoints=20),
    "HistGradientBoostingRegressor": HistGradientBoostingRegressor(),
}
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
pd.Series(
    {
        name: candidate.fit(X_train, y_train).score(X_test, y_test)
        for name, candidate in candidates.items()
    },
    name="R2 of held-out diamonds",
).to_frame().round(4)
