"""
Two series that break: the Nile, and the economy of the United States
=====================================================================

A jump and a kink, each with a date that is known, and how well the data alone know it.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from statsmodels.datasets import macrodata

from sklearn_gn import SegmentedRegressor
from sklearn_gn.datasets import load_nile
from sklearn_gn.plotting import SegmentsDisplay, SelectionPathDisplay

# %%
# A change of level
# -----------------
# The annual flow of the Nile at Aswan fell after 1898, when rainfall changed; the first
# dam at Aswan was begun in 1899. Constants between breakpoints are ``degree=0``, and
# the Bayesian information criterion chooses one.

X, y = load_nile(return_X_y=True)
X = pd.DataFrame(X, columns=["year"])
flow = pd.Series(y, name="flow in 10⁸ m³ a year")
nile = SegmentedRegressor(degree=0).fit(X, flow)
nile.summary()

# %%
# Is there a break at all? The p-value accounts for the search over all years.

pd.DataFrame([nile.breakpoint_test(X, flow)])

# %%
# The bar at the bottom is the 95 % interval of the break.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(11, 4), width_ratios=(2, 1), layout="constrained"
)
SegmentsDisplay.from_estimator(nile, X, flow, ax=left)
SelectionPathDisplay.from_estimator(nile, ax=right)

# %%
# Changes of slope
# ----------------
# The logarithm of the quarterly real gross domestic product, 1959 to 2009 (public
# domain, from statsmodels). Its residuals are so strongly correlated that the default,
# which allows for it, finds no kink worth its parameters; taken as independent, they
# would give one for every cycle. We ask for two kinks, and for standard errors that
# allow for the correlation.

data = macrodata.load_pandas().data
quarters = pd.PeriodIndex.from_fields(
    year=data["year"].astype(int), quarter=data["quarter"].astype(int), freq="Q"
)
X = pd.DataFrame({"date": quarters.to_timestamp()})
log_gdp = pd.Series(np.log(data["realgdp"]), name="log GDP")
growth = SegmentedRegressor(2, covariance="HAC-prewhitened").fit(X, log_gdp)
kinks = pd.DataFrame(growth.breakpoint_interval_, columns=["lower 95 %", "upper 95 %"])
kinks.insert(1, "kink", growth.breakpoints_)
kinks.apply(lambda dates: dates.dt.strftime("%B %Y"))

# %%
# The growth of each segment:

pd.DataFrame({"growth in % a year": 36525 * growth.segments_["slope"]}).round(1)

# %%
# The second kink is the recession. It began in December 2007 by the count of the
# National Bureau of Economic Research; growth slowed a little before it turned.

SegmentsDisplay.from_estimator(growth, X, log_gdp, residuals=True)
plt.show()
