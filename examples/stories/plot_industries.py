"""
When industries fell, and when they recovered
=============================================

The recession of 2008 did not reach all industries at once, and some recovered sooner
than others. Fifteen series of monthly employment are fitted together; each gets a date
at which it began to fall and one at which the fall ended, with intervals.
"""

# %%
# The data
# --------
# Employees in the United States by industry, seasonally adjusted, 2006 to 2015 (Bureau
# of Labor Statistics). One row for every industry and month; the logarithm turns
# growth by a constant rate into a straight line.

import matplotlib.dates
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from sklearn_gn import SegmentedRegressor, fit_groups
from sklearn_gn.datasets import load_us_employment

sums = [
    "nonfarm",
    "private",
    "goods_producing",
    "service_providing",
    "private_service_providing",
    "manufacturing",
    "trade_transportation_utilties",
    "nonfarm_change",
]
table = load_us_employment().drop(columns=sums)
table.columns = table.columns.str.replace("_", " ")
data = table.melt("month", var_name="industry", value_name="employees")
data["log_employees"] = np.log(data.pop("employees"))
data.head()

# %%
# One call for all series
# -----------------------
# Growth, fall, recovery: two breakpoints for each industry. Left to choose, the
# criterion would follow the bends of these long waves with up to ten. Residuals of
# monthly employment are strongly correlated, hence the choice of standard errors.

model = SegmentedRegressor(2, covariance="HAC-prewhitened")
segments = fit_groups(model, data, group="industry", target="log_employees")
segments.head(3).T

# %%
# One row for each industry: when the fall began and ended, with standard errors in
# months, and what was lost between the two dates. An industry fell if even the upper
# limit of its slope there is negative.

first, middle, last = (
    segments[segments["segment"] == k].set_index("industry") for k in (1, 2, 3)
)
days = middle["end"] - middle["start"]
fell = middle["slope_upper"] < 0
dates = pd.DataFrame(
    {
        "fall began": middle["start"].dt.date,
        "± months": middle["breakpoint_std_error"] / 30.4,
        "fall ended": last["start"].dt.date,
        "± months ": last["breakpoint_std_error"] / 30.4,
        "change, %": 100 * np.expm1(middle["slope"] * days.dt.days),
        "growth before, % a year": 100 * np.expm1(365.25 * first["slope"]),
        "growth after, % a year": 100 * np.expm1(365.25 * last["slope"]),
    }
)
dates[fell].sort_values("fall began").round(1)

# %%
# Two industries did not fall between their breakpoints. Education and health grew all
# the time. Mining did fall in 2008, but its largest change is the collapse after the
# price of oil in 2014, and that took the breakpoints.

dates[~fell].round(1)

# %%
# The order of events
# -------------------
# Shaded is the recession as the National Bureau of Economic Research dates it, December
# 2007 to June 2009. Bars are 95 % intervals.

order = dates.index[fell][np.argsort(middle["start"][fell])][::-1]
rows = np.arange(len(order))
figure, ax = plt.subplots(figsize=(9, 5), layout="constrained")
recession = [pd.Timestamp("2007-12-01"), pd.Timestamp("2009-06-30")]
ax.axvspan(*recession, color="0.9", label="Recession, as dated by the NBER")
ax.hlines(rows, middle.loc[order, "start"], last.loc[order, "start"], color="0.7")
for each, color, label in (
    (middle, "tab:orange", "Fall begins"),
    (last, "tab:blue", "Fall ends"),
):
    ends = each.loc[order]
    at = ends["start"]
    ax.errorbar(
        at,
        rows,
        xerr=[
            at - ends["breakpoint_lower"],
            ends["breakpoint_upper"] - at,
        ],
        fmt="o",
        color=color,
        capsize=3,
        label=label,
    )
ax.set_yticks(rows, labels=order)
ax.xaxis.set_major_locator(matplotlib.dates.YearLocator())
ax.legend(loc="upper right")
plt.show()

# %%
# Are these lines the series?
# ---------------------------
# A table of dates is not a check; a look at the series is. Growth, fall and recovery
# describe most of them. They do not describe mining, and only roughly the utilities
# and government, which hired for the census of 2010.

figure, panels = plt.subplots(3, 5, figsize=(11, 6), sharex=True, layout="constrained")
for ax, (industry, series) in zip(
    panels.flat, segments.groupby("industry"), strict=True
):
    ax.plot(table["month"], table[industry], color="0.6", linewidth=3)
    corners = pd.concat([series["start"], series["end"].tail(1)])
    number = (corners - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    lines = series.loc[[*series.index, series.index[-1]]]
    fitted = lines["intercept"].to_numpy() + lines["slope"].to_numpy() * number
    color = "tab:orange" if fell[industry] else "tab:blue"
    ax.plot(corners, np.exp(fitted), color=color)
    ax.set_title(industry.replace(" and ", "\nand "), fontsize="small")
    ax.xaxis.set_major_locator(matplotlib.dates.YearLocator(4))
    ax.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%Y"))
    ax.tick_params(labelsize="small")
figure.supylabel("Thousands of employees; orange lines fell")
plt.show()
