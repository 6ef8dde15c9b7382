"""
Counts that break: Down's syndrome and the age of the mother
============================================================

Rare cases among many births, a risk that rises from some age on, and how well the
counts know that age.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from sklearn_gn import SegmentedRegressor
from sklearn_gn.plotting import SegmentsDisplay

# %%
# Births and cases by the age of the mother in British Columbia, from Davison and
# Hinkley, "Bootstrap methods and their application" (1997).

age = np.array([17, 18.5, *np.arange(19.5, 46), 47])
births = """
13555 13675 18752 22005 23896 24667 24807 23986 22860 21450 19202 17450 15685 13954
11987 10983 9825 8483 7448 6628 5780 4834 3961 2952 2276 1589 1018 596 327 249
"""
cases = """
16 15 16 22 16 12 17 22 15 14 27 14 9 12 12 18 13 11 23 13 17 15 30 31 33 20 16 22 11 7
"""
births, cases = (np.array(text.split(), float) for text in (births, cases))
X = pd.DataFrame({"age": age})
share = pd.Series(cases / births, name="cases per birth")

# %%
# One breakpoint
# --------------
# The logit of the risk is a broken line. BIC chooses one breakpoint, at 31 years: below
# it the risk does not change, above it the odds rise by a third every year.

model = SegmentedRegressor(family="binomial")
model.fit(X, share, sample_weight=births)
model.summary()

# %%
# The bar at the bottom is the 95 % interval of the breakpoint.

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
display = SegmentsDisplay.from_estimator(model, X, share, ax=ax)
_ = ax.set_title("Down's syndrome in British Columbia")

# %%
# What limits the fit
# -------------------
# The dispersion in the summary is near one where counts vary as a binomial distribution
# says. Where they vary more, standard errors are too small; HC3 allows for it.

print(model.diagnose())
robust = SegmentedRegressor(1, family="binomial", covariance="HC3")
robust.fit(X, share, sample_weight=births)
pd.DataFrame(
    {
        "breakpoint": [*model.breakpoints_, *robust.breakpoints_],
        "standard error": [*model.breakpoint_std_, *robust.breakpoint_std_],
    },
    index=["binomial", "HC3"],
)
